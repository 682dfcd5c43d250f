"""Seconds of the GEMMs of layers: all kinds together, strategies with equal GEMMs once.

Columns are strategies.
"""

from __future__ import annotations

import numpy as np

from ..base.arrays import Index, Value, distinct_rows
from ..operators import kernel_times
from ..operators.work import Gemm, Work
from .layer_kinds import LayerContext


def seconds_by_kind(works: list[Work | None], local: LayerContext) -> list[tuple[Value, Value]]:
    """For each kind, forward seconds of its GEMMs and of those selective recompute reruns.

    Those of the head and of layers in 16 bits have a format of their own (Recipe.head).
    """
    every = [g for w in works if w for g in (*w.gemms, *w.selective_gemms)]
    rows, task, recipe = local.s.tp.size, local.task, local.recipe
    first, which = _alike_in_size(local)
    fewer = first.size < rows
    if fewer:
        every, rows = [_take_rows(gemm, first) for gemm in every], first.size
    accelerator = task.cluster.accelerator
    sustained = kernel_times.sustained_share(task.software, accelerator)
    seconds = kernel_times.gemm_seconds(every, rows, accelerator, recipe, sustained)
    out, at = [], 0
    for work in works:
        middle = at + (len(work.gemms) if work else 0)
        end = middle + (len(work.selective_gemms) if work else 0)
        own, again = seconds[at:middle], seconds[middle:end]
        if work and work.wide and recipe.head != recipe.linear:
            of_head = recipe.of_head()
            both = kernel_times.gemm_seconds(every[at:end], rows, accelerator, of_head, sustained)
            own, again = both[: middle - at], both[middle - at :]
        out.append((sum_in_order(own), sum_in_order(again)))
        at = end
    return [(own[which], again[which]) for own, again in out] if fewer else out


def adapter_seconds(work: Work, local: LayerContext) -> Value:
    """Forward seconds of the products of adapters: too thin for tables of GEMMs."""
    accelerator, rows = local.task.cluster.accelerator, local.s.tp.size
    sustained = kernel_times.sustained_share(local.task.software, accelerator)
    sizes = kernel_times.stack_gemms([*work.adapter_gemms], rows)
    return sum_in_order(kernel_times.roofline_seconds(sizes, accelerator, local.recipe, sustained))


def _alike_in_size(local: LayerContext) -> tuple[Index, Index]:
    """Strategies that stand for all with GEMMs of the same sizes, and each one's place there."""
    s = local.s
    if s.tp.size == 1 or local.grid is not None:
        return np.arange(s.tp.size), np.arange(s.tp.size)
    sizes = (s.tp, s.cp, s.ep, s.etp, s.micro_batch, s.sequence_parallel)
    return distinct_rows([size.astype(np.int64) for size in sizes])


def _take_rows(gemm: Gemm, rows: Index) -> Gemm:
    """The products of the chosen strategies."""
    return Gemm(*(side[rows] if isinstance(side, np.ndarray) else side for side in gemm))


def sum_in_order(parts: Value) -> Value:
    """The sum over the first axis; np.sum rounds a single row differently from a column."""
    if not len(parts):
        return np.zeros(parts.shape[1])
    out: Value = np.add.accumulate(parts, axis=0)[-1]
    return out
