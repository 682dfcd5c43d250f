"""Seconds of the GEMMs of layers: of all kinds together, once for strategies with equal GEMMs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..base.arrays import Index, Value, distinct_rows
from ..operators import kernel_times
from ..operators.task_table import at_rows, variant_keys
from ..operators.work import Gemm, Work
from .layer_kinds import LayerContext

FEW = 1024
"""Numbers that one call adds up faster than a call a row."""


class GemmSeconds(NamedTuple):
    """Seconds of the forward GEMMs of a layer [strategy]."""

    forward: Value
    """Of all."""
    selective: Value
    """Of those that selective recompute runs again."""
    last: Value


def seconds_by_kind(works: list[Work | None], local: LayerContext) -> list[GemmSeconds]:
    """Seconds of the GEMMs of each kind.

    Strategies with GEMMs of the same sizes and rate are timed once. Those of the head and of layers
    in 16 bits have a format of their own (Recipe.head). Experts that are modules of their own
    (expert_launches) multiply one after another.
    """
    every = [g for w in works if w for g in (*w.gemms, *w.selective_gemms)]
    rows, task, recipe = local.s.tp.size, local.task, local.recipe
    first = which = np.arange(rows)
    if rows > 1 and local.grid is None:
        s = local.s
        sizes = (s.tp, s.cp, s.ep, s.etp, s.micro_batch, s.sequence_parallel)
        columns = [size.astype(np.int64) for size in sizes]
        first, which = distinct_rows([*columns, *variant_keys(task)])
    fewer = first.size < rows
    if fewer:
        every, rows = [_take_rows(gemm, first) for gemm in every], first.size
    accelerator = task.cluster.accelerator
    loops = np.ones((len(every), rows))
    if task.software.expert_launches:
        for row, gemm in zip(loops, every, strict=True):
            row[:] = gemm.batch
        every = [gemm._replace(batch=1.0) for gemm in every]
    sustained = kernel_times.sustained_share(at_rows(task, first).software, accelerator, task.gpus)
    seconds = loops * kernel_times.gemm_seconds(every, rows, accelerator, recipe, sustained)
    out, at = [], 0
    for work in works:
        middle = at + (len(work.gemms) if work else 0)
        end = middle + (len(work.selective_gemms) if work else 0)
        own, again = seconds[at:middle], seconds[middle:end]
        if work and work.wide and recipe.head != recipe.linear:
            of_head = recipe.of_head()
            both = kernel_times.gemm_seconds(every[at:end], rows, accelerator, of_head, sustained)
            own, again = both[: middle - at], both[middle - at :]
        last = own[-1] if len(own) else np.zeros(rows)
        out.append(GemmSeconds(sum_in_order(own), sum_in_order(again), last))
        at = end
    return [GemmSeconds(*(each[which] for each in of_kind)) for of_kind in out] if fewer else out


def _take_rows(gemm: Gemm, rows: Index) -> Gemm:
    """The products of the chosen strategies."""
    return Gemm(*(side[rows] if isinstance(side, np.ndarray) else side for side in gemm))


def adapter_seconds(work: Work, local: LayerContext) -> Value:
    """Forward seconds of the products of adapters: too thin for tables of GEMMs."""
    task, rows = local.task, local.s.tp.size
    accelerator = task.cluster.accelerator
    sustained = kernel_times.sustained_share(task.software, accelerator, task.gpus)
    sizes = kernel_times.stack_gemms([*work.adapter_gemms], rows)
    return sum_in_order(kernel_times.roofline_seconds(sizes, accelerator, local.recipe, sustained))


def sum_in_order(parts: Value) -> Value:
    """The sum over the first axis; np.sum rounds a single row differently from a column."""
    if not len(parts):
        return np.zeros(parts.shape[1])
    if parts.size < FEW:
        few: Value = np.add.accumulate(parts, axis=0)[-1]
        return few
    out: Value = parts[0].copy()
    for part in parts[1:]:
        out += part
    return out
