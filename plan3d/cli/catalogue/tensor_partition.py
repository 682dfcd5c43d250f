"""The tensor partition of `textbook --partition`: how to split each product of a layer."""

from __future__ import annotations

import argparse
from itertools import product
from typing import TYPE_CHECKING

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.text_tables import Table
from plan3d.simulator.base.units import format_bytes, format_seconds

from ..arguments import task_arguments
from ..options.table import OPTIONS
from ..screen.output import Screen, print_json

if TYPE_CHECKING:
    from plan3d.search.layer_ilp.block_partition import BlockPartition
    from plan3d.search.layer_ilp.operator_graph import Change
    from plan3d.search.layer_ilp.tensor_partition import TensorPartition

MOST_WIDTHS = 6
"""Products whose choices are all listed: 2^6."""
LISTED = 8
"""Choices that a screen shows."""
LIMIT = 60.0
"""Seconds after which the best partition so far is shown."""


def run(args: argparse.Namespace) -> int:
    """Print the partition of a layer, or of products of given widths."""
    if args.partition is None:
        raise InputError("--widths needs --partition N, the ranks to split over")
    return _of_widths(args) if args.widths is not None else _of_a_block(args)


def _of_a_block(args: argparse.Namespace) -> int:
    known = {option.name: None for option in OPTIONS}
    task = task_arguments.task_of(argparse.Namespace(**{**known, **vars(args)}))
    from plan3d.search.layer_ilp.block_partition import partition_block

    found = partition_block(task, args.partition, LIMIT)
    best = found.best
    if args.json:
        record = {
            "seconds": best.cost,
            "bound_seconds": best.bound,
            "megatron_seconds": found.megatron,
            "whole_seconds": found.whole,
            "bytes": best.bytes,
            "complete": best.complete,
            "handed_on": found.handed_on,
        }
        print_json({"model": task.model.name, "ranks": args.partition, **record, **_chosen(best)})
        return 0
    screen = Screen(args.verbose)
    as_usual = "as Megatron-LM has it" if best.cost >= found.megatron * (1 - 1e-9) else "cheaper"
    took, usual, alone = map(format_seconds, (best.cost, found.megatron, found.whole))
    screen.lines(
        [
            f"One layer of {task.model.name} over {args.partition} "
            f"{task.cluster.accelerator.name}, {task.sequence:,} tokens, both passes: {took}, "
            f"{as_usual} ({usual}); on one GPU {alone}"
        ]
    )
    print()
    screen.table(_products(found))
    screen.table(_collectives(best))
    proof = "proven to be the cheapest" if best.complete else f"gap {100 * best.gap:.1f} %"
    screen.lines(
        [
            f"Hidden states are handed on by {found.handed_on}; {format_bytes(best.bytes)} of "
            f"weights and their states a rank; {proof} (integer program)."
        ]
    )
    return 0


def _chosen(best: TensorPartition) -> dict[str, object]:
    return {
        "choice": best.choice,
        "collectives": [change._asdict() for change in best.changes],
    }


_MEANING = {
    "rows": "rows: Megatron's column-parallel",
    "columns": "columns: Megatron's row-parallel",
    "replicated": "not split",
}


def _products(found: BlockPartition) -> Table:
    rows = tuple(
        (name, *(f"{side:,}" for side in sides), _MEANING[found.best.choice[name]])
        for name, sides in found.shapes.items()
    )
    return Table(headers=("product", "m", "n", "k", "split"), rows=rows, words=frozenset({0, 4}))


def _collectives(best: TensorPartition) -> Table:
    rows = tuple(
        (
            change.tensor,
            "backward" if change.backward else "forward",
            change.collective.replace("_", "-"),
            format_seconds(change.cost),
        )
        for change in best.changes
    )
    headers = ("tensor", "pass", "collective", "time")
    return Table(headers=headers, rows=rows, words=frozenset({0, 1, 2}))


def _of_widths(args: argparse.Namespace) -> int:
    """y = W_k .. W_1 x: every choice of rows and columns, and the integer program's."""
    widths = _widths(args.widths)
    if args.partition < 2:
        raise InputError(f"--partition {args.partition} must be 2 or more ranks")
    from plan3d.search.layer_ilp import operator_graph
    from plan3d.search.layer_ilp.block_partition import chain_of_products
    from plan3d.search.layer_ilp.tensor_partition import partition

    graph = chain_of_products(widths, args.partition)
    prices = operator_graph.ring_units(args.partition)
    names = [f"W{i + 1}" for i in range(len(widths))]
    every = {}
    for choice in product((0, 1), repeat=len(widths)):
        index = {"x": 0, "y": 0, **dict(zip(names, choice, strict=True))}
        moves = [*operator_graph.changes(graph, prices, index, False)]
        every[choice] = (sum(move.cost for move in moves), moves)
    found = partition(graph, prices, time_limit=LIMIT)
    if args.json:
        choices = [
            {"partition": _split(choice), "units": units} for choice, (units, _) in every.items()
        ]
        print_json({"widths": widths, "units": found.cost, **_chosen(found), "every": choices})
        return 0
    screen = Screen(args.verbose)
    best = ", ".join(found.choice[name] for name in names)
    screen.lines(
        [
            f"y = {' '.join(reversed(names))} x over {args.partition} ranks, outputs of widths "
            f"{', '.join(f'{w:g}' for w in widths)}: {best} at {found.cost:g} ring units, by the "
            "integer program"
        ]
    )
    print()
    screen.table(_choices(every))
    screen.lines(
        [
            "A ring unit is (n - 1) / n of a tensor of width 1, sent by every rank; an all-reduce "
            "is two. Rows split a weight's outputs (Megatron's column-parallel), columns its "
            "inputs."
        ]
    )
    return 0


def _choices(every: dict[tuple[int, ...], tuple[float, list[Change]]]) -> Table:
    ranked = sorted(every.items(), key=lambda item: item[1][0])[:LISTED]
    rows = tuple(
        (
            ", ".join(_split(choice)),
            f"{units:g}",
            ", ".join(
                f"{move.collective.replace('_', '-')} of {move.tensor}"
                for move in moves
                if move.cost
            ),
        )
        for choice, (units, moves) in ranked
    )
    headers = ("partition", "ring units", "collectives")
    return Table(headers=headers, rows=rows, words=frozenset({0, 2}), highlighted=0)


def _split(choice: tuple[int, ...]) -> list[str]:
    return [("rows", "columns")[i] for i in choice]


def _widths(text: str) -> list[float]:
    try:
        widths = [float(word) for word in text.split(",")]
    except ValueError:
        widths = []
    if not 1 <= len(widths) <= MOST_WIDTHS or not all(0 < width < 1e12 for width in widths):
        raise InputError(
            f"--widths {text!r} must be up to {MOST_WIDTHS} numbers above 0, such as 4,1,1"
        )
    return widths
