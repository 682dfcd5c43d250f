"""The verb `textbook`: formulas that people compute by hand, compared with the simulator.

With --partition N the tensor partition instead: how to split each product of a layer over N ranks.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, TypeAlias

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.text_tables import Table
from plan3d.simulator.base.units import BYTE_UNITS, format_bytes, format_seconds

from ...screens.output import Progress, Screen, print_json
from ..arguments import task_arguments
from ..options.table import with_every_option

if TYPE_CHECKING:
    from plan3d.search.layer_ilp.block_partition import BlockPartition
    from plan3d.search.layer_ilp.operator_graph import Change
    from plan3d.search.layer_ilp.tensor_partition import TensorPartition
    from plan3d.simulator.task import Task

ABOUT = """Textbook formulas of a plan beside the simulator, and why they differ: bytes
of states and activations, shares of a GPU, time, bubbles, sends, what data
parallelism sends, steps to an accuracy. Without --plan of the fastest plan.

  plan3d textbook gpt3-175b a100-80gb-sxm 1024
  plan3d textbook gpt3-175b a100-80gb-sxm 64 --plan "tp=8 pp=8" --units GiB
  plan3d textbook llama-3.1-70b h100-sxm 512 --tokens 15T
  plan3d textbook gpt3-175b a100-80gb-sxm 1024 --tokens 300B --took 34days
  plan3d textbook llama-3.1-70b h100-sxm 64 --partition 8

N parameters, l layers, h hidden, s sequence, a heads, b sequences,
v vocabulary, T tokens, n GPUs, F peak FLOP/s, U utilisation, t time."""
MOST_WIDTHS = 6
"""Products whose choices are all listed: 2^6."""
LISTED_CHOICES = 8
"""Choices that a screen shows."""
TIME_LIMIT = 60.0
"""Seconds after which the best partition so far is shown."""
Choices: TypeAlias = "dict[tuple[int, ...], tuple[float, list[Change]]]"
"""Ring units and the changes of layout of every partition: 0 rows, 1 columns, by product."""
SPLITS = ("rows", "columns")
SPLIT_MEANINGS = {
    "rows": "rows: Megatron's column-parallel",
    "columns": "columns: Megatron's row-parallel",
    "replicated": "not split",
}


def run(args: argparse.Namespace, progress: Progress | None = None) -> int:
    """Print every formula with both values, or a partition."""
    screen = None if args.json else Screen(args.verbose)
    unit = "GB" if args.units is None else args.units
    if unit not in BYTE_UNITS:
        raise InputError(f"--units {unit[:20]!r} must be GB (10^9 bytes) or GiB (2^30)")
    if args.partition is None and args.widths is not None:
        raise InputError("--widths needs --partition N, the ranks to split over")
    if args.widths is not None and args.units is not None:
        raise InputError("--units is of bytes; products of --widths are in ring units")
    if args.widths is not None:
        _partition_widths(_widths(args.widths), args.partition, screen)
        return 0
    given = with_every_option(args)
    task = task_arguments.task_of(given)
    if args.partition is not None:
        _partition_block(task, args.partition, screen, unit)
        return 0
    from ...answers.textbook import TextbookRequest, textbook
    from ...screens import textbook as screens
    from ..arguments import plan_arguments

    request = TextbookRequest(
        task=task,
        plan=None if args.plan is None else plan_arguments.plan_of(given),
        precision=args.precision,
        tokens=task_arguments.tokens_of(args, task.model),
        took=args.took,
        full_recompute=args.full_recompute,
    )
    answer = textbook(request)
    if screen is None:
        print_json(screens.textbook_record(answer))
    else:
        screens.print_textbook(screen, answer, unit)
    return 0


def _partition_block(task: Task, ranks: int, screen: Screen | None, unit: str) -> None:
    """Print the cheapest partition of one layer; as JSON without a screen."""
    from plan3d.search.layer_ilp.block_partition import partition_block

    block = partition_block(task, ranks, TIME_LIMIT)
    best = block.best
    if screen is None:
        record = {
            "seconds": best.cost,
            "bound_seconds": best.bound,
            "megatron_seconds": block.megatron,
            "whole_seconds": block.one_rank,
            "bytes": best.bytes,
            "complete": best.complete,
            "handed_on": block.residual_layout,
        }
        print_json({"model": task.model.name, "ranks": ranks, **record, **_choice_record(best)})
        return
    as_megatron = best.cost >= block.megatron * (1 - 1e-9)
    verdict = "as Megatron-LM has it" if as_megatron else "cheaper"
    cost, megatron, one_gpu = map(format_seconds, (best.cost, block.megatron, block.one_rank))
    screen.lines(
        [
            f"One layer of {task.model.name} over {ranks} "
            f"{task.cluster.accelerator.name}, {task.sequence:,} tokens, both passes: {cost}, "
            f"{verdict} ({megatron}); on one GPU {one_gpu}"
        ]
    )
    print()
    screen.table(_products_table(block))
    screen.table(_collectives_table(best))
    proof = "proven to be the cheapest" if best.complete else f"gap {100 * best.gap:.1f} %"
    screen.lines(
        [
            f"Hidden states are handed on by {block.residual_layout}; "
            f"{format_bytes(best.bytes, unit)} of weights and their states a rank; {proof} "
            "(integer program)."
        ]
    )


def _choice_record(best: TensorPartition) -> dict[str, object]:
    return {
        "choice": best.choice,
        "collectives": [change._asdict() for change in best.changes],
    }


def _products_table(block: BlockPartition) -> Table:
    rows = tuple(
        (name, *(f"{side:,}" for side in sides), SPLIT_MEANINGS[block.best.choice[name]])
        for name, sides in block.shapes.items()
    )
    return Table(headers=("product", "m", "n", "k", "split"), rows=rows, words=frozenset({0, 4}))


def _collectives_table(best: TensorPartition) -> Table:
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


def _partition_widths(widths: Sequence[float], ranks: int, screen: Screen | None) -> None:
    """Print y = W_k .. W_1 x: every choice of rows and columns, and the integer program's."""
    if ranks < 2:
        raise InputError(f"--partition {ranks} must be 2 or more ranks")
    from plan3d.search.layer_ilp import operator_graph
    from plan3d.search.layer_ilp.block_partition import chain_of_products
    from plan3d.search.layer_ilp.tensor_partition import partition

    graph = chain_of_products(widths, ranks)
    prices = operator_graph.ring_units(ranks)
    names = [f"W{i + 1}" for i in range(len(widths))]
    choices = {}
    for choice in product((0, 1), repeat=len(widths)):
        index = {"x": 0, "y": 0, **dict(zip(names, choice, strict=True))}
        moves = [*operator_graph.changes(graph, prices, index, False)]
        choices[choice] = (sum(move.cost for move in moves), moves)
    best = partition(graph, prices, time_limit=TIME_LIMIT)
    if screen is None:
        every = [
            {"partition": [SPLITS[i] for i in choice], "units": units}
            for choice, (units, _) in choices.items()
        ]
        print_json({"widths": widths, "units": best.cost, **_choice_record(best), "every": every})
        return
    splits = ", ".join(best.choice[name] for name in names)
    screen.lines(
        [
            f"y = {' '.join(reversed(names))} x over {ranks} ranks, outputs of widths "
            f"{', '.join(f'{w:g}' for w in widths)}: {splits} at {best.cost:g} ring units, by the "
            "integer program"
        ]
    )
    print()
    screen.table(_choices_table(choices))
    screen.lines(
        [
            "A ring unit is (n - 1) / n of a tensor of width 1, sent by every rank; an all-reduce "
            "is two. Rows split a weight's outputs (Megatron's column-parallel), columns its "
            "inputs."
        ]
    )


def _choices_table(choices: Choices) -> Table:
    """The cheapest partitions, the best first."""
    ranked = sorted(choices.items(), key=lambda item: item[1][0])[:LISTED_CHOICES]
    rows = tuple(
        (
            ", ".join(SPLITS[i] for i in choice),
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


def _widths(text: str) -> list[float]:
    """The numbers of --widths."""
    try:
        widths = [float(word) for word in text.split(",")]
    except ValueError:
        widths = []
    if not 1 <= len(widths) <= MOST_WIDTHS or not all(0 < width < 1e12 for width in widths):
        raise InputError(
            f"--widths {text!r} must be up to {MOST_WIDTHS} numbers above 0, such as 4,1,1"
        )
    return widths
