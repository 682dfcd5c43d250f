"""Rules of tensor parallelism: grids of tensor ranks, and overlap of its communication.

What no published system combines with a grid, and what has no cost model here, is refused.
"""

from __future__ import annotations

from math import gcd
from typing import Any

from ..base.arrays import is_among
from ..hardware.precision import RECIPES
from ..operators.collectives import inside_domain
from ..plan import tensor_grid
from ..plan.fields import spell
from ..plan.plan import Plan
from ..task import Task
from ..workload.model import Network
from .rule import Rule


def feature_ranks(p: Any) -> Any:
    """Ranks that share heads and feed-forward width: tp where it is 1d."""
    grid = p.tp_grid
    if grid == 0 if isinstance(grid, int) else not grid.any():
        return p.tp
    return tensor_grid.grid_numbers(p.tp_grid, p.tp, lambda grid: grid.features)


def _scales_operands(p: Any) -> Any:
    """Whether linear layers multiply scaled operands."""
    return is_among(p.precision, [code for code, recipe in RECIPES.items() if recipe.is_scaled])


def _is_1d(p: Any) -> Any:
    return p.tp_grid == 0


def _grid_fills_tp(p: Any, task: Task) -> Any:
    return (p.tp_grid >= 0) & (
        tensor_grid.grid_numbers(p.tp_grid, p.tp, lambda grid: grid.size) == p.tp
    )


def _grid_message(p: Plan, task: Task) -> str:
    if p.tp_grid < 0:
        return "tp_grid=auto is for a search: name a grid of one plan, such as tp_grid=4x2x2"
    rows, columns, depth = tensor_grid.grid_sides(p.tp_grid)
    near = [tensor_grid.format_grid(code) for code in tensor_grid.grids(p.tp)]
    return (
        f"tp_grid={spell('tp_grid', p.tp_grid)}: {rows} x {columns} x {depth} = "
        f"{rows * columns * depth} != tp = {p.tp}; grids of {p.tp}: "
        f"{', '.join(['1d', *near[:GRIDS_SHOWN]])}"
    )


GRIDS_SHOWN = 8
"""Grids that a message names."""


def _hidden_ranks(p: Any) -> Any:
    return tensor_grid.grid_numbers(p.tp_grid, p.tp, lambda grid: grid.hidden)


def _token_ranks(p: Any) -> Any:
    return tensor_grid.grid_numbers(p.tp_grid, p.tp, lambda grid: grid.tokens)


def _is_dense(task: Task) -> bool:
    """Whether every layer is attention with projections of its own and a dense MLP."""
    model = task.model
    plain = all(kind.mlp and kind.attention.is_plain for kind in model.kinds)
    return plain and not model.mtp_layers and not isinstance(model, Network)


GRID_RULES = (
    Rule("grid-fills-tp", ("tp", "tp_grid"), _grid_fills_tp, _grid_message),
    Rule(
        "grid-splits-dense-layers",
        ("tp_grid",),
        lambda p, t: _is_1d(p) | _is_dense(t),
        lambda p, t: (
            f"tp_grid={spell('tp_grid', p.tp_grid)} is modelled for dense transformer layers, not "
            "for experts, latent attention, states, multi-token prediction or a list of layers; "
            "nearest: 1d"
        ),
    ),
    Rule(
        "grid-divides-hidden",
        ("tp", "tp_grid"),
        lambda p, t: _is_1d(p) | (t.model.hidden % _hidden_ranks(p) == 0),
        lambda p, t: (
            f"tp_grid={spell('tp_grid', p.tp_grid)} splits hidden states over {_hidden_ranks(p)} "
            f"ranks, which does not divide hidden size {t.model.hidden}"
        ),
    ),
    Rule(
        "grid-divides-micro-batch",
        ("tp", "tp_grid", "micro_batch"),
        lambda p, t: _is_1d(p) | (p.micro_batch % _token_ranks(p) == 0),
        lambda p, t: (
            f"tp_grid={spell('tp_grid', p.tp_grid)} splits the sequences of a micro-batch over "
            f"{_token_ranks(p)} ranks, which does not divide micro_batch={p.micro_batch}; nearest: "
            f"{max(p.micro_batch // int(_token_ranks(p)), 1) * int(_token_ranks(p))}"
        ),
    ),
    Rule(
        "grid-splits-no-sequence",
        ("tp_grid", "sequence_parallel", "cp"),
        lambda p, t: _is_1d(p) | ((p.sequence_parallel == 0) & (p.cp == 1)),
        lambda p, t: (
            f"tp_grid={spell('tp_grid', p.tp_grid)} splits tokens by sequence already: it needs "
            f"sequence_parallel=0 and cp=1, not {p.sequence_parallel} and {p.cp}"
        ),
    ),
    Rule(
        "grid-in-sixteen-bits",
        ("tp_grid", "precision"),
        lambda p, t: _is_1d(p) | ~_scales_operands(p),
        lambda p, t: (
            f"tp_grid={spell('tp_grid', p.tp_grid)}: no scaling recipe of "
            f"{RECIPES[int(p.precision)].linear.name} is known for partial sums over a grid; "
            "nearest: precision=bf16"
        ),
    ),
)
"""Every rule of a grid; plans without one meet them all."""


TP_OVERLAP_RULES: tuple[Rule, ...] = (
    Rule(
        "tp-overlap-needs-sequence-parallel",
        ("overlap_tp", "sequence_parallel", "tp_grid"),
        lambda p, t: (p.overlap_tp == 0) | (p.sequence_parallel == 1) | (p.tp_grid != 0),
        lambda p, t: "overlap_tp needs sequence_parallel or a tp_grid",
    ),
    Rule(
        "software-overlaps-tp",
        ("overlap_tp", "tp_grid"),
        lambda p, t: (p.overlap_tp == 0) | (t.software.tp_overlap_share > 0) | (p.tp_grid != 0),
        lambda p, t: f"{t.software.name} cannot overlap tensor-parallel communication",
    ),
    Rule(
        "tp-overlap-in-peer-memory",
        ("overlap_tp", "tp", "tp_grid"),
        lambda p, t: (
            (p.overlap_tp == 0) | (p.tp == 1) | (p.tp_grid != 0) | t.cluster.fast_domain.peer_memory
        ),
        lambda p, t: (
            f"overlap_tp: ranks on {t.cluster.fast_domain.name} do not write into each other's "
            "memory; nearest: overlap_tp=0"
        ),
    ),
    Rule(
        "tp-overlap-inside-domain",
        ("overlap_tp", "tp", "tp_grid"),
        lambda p, t: (
            (p.overlap_tp == 0)
            | (p.tp_grid != 0)
            | t.software.tp_overlap_across_domains
            | inside_domain(p.tp, t.cluster)
        ),
        lambda p, t: (
            f"overlap_tp: {t.software.name} overlaps tensor-parallel communication inside a fast "
            f"domain of {t.cluster.fast_domain.gpus} GPUs only, and tp={p.tp} spans several; "
            f"nearest: overlap_tp=0, or tp={gcd(int(p.tp), t.cluster.fast_domain.gpus)}"
        ),
    ),
)
