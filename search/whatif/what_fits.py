"""Does it fit, with what: fine-tuning of all weights, LoRA and QLoRA on some GPUs.

Of each way, with and without recompute, the fastest plan that fits, and the longest sequence with
its ZeRO stage and a micro-batch of one; where none fits, with the optimizer on the host, or the
weights too. A plan fits from a probability of uncertainty.memory.FITS_PROBABILITY on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from plan3d.simulator.base.arrays import Value
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.rules.validity import check, legal_rows
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.step.evaluate import simulate
from plan3d.simulator.task import Task
from plan3d.simulator.uncertainty.memory import FITS_PROBABILITY, probability_fits
from plan3d.simulator.workload.adapters import Adapters

RECOMPUTE = ("none", "full")
OPTIMIZER = {"offload_optimizer": 100}
ON_HOST = (OPTIMIZER, {**OPTIMIZER, "offload_parameters": 100})
"""What leaves the GPUs where a way does not fit on them, least first."""
LONGEST = 2**20
"""Tokens of the longest sequence that is tried."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """One way to fine-tune: its fastest plan that fits, or the smallest plan where none does."""

    way: str
    """full, lora or qlora."""
    task: Task
    costs: Costs
    """Of that plan, one row."""
    probability: float
    """That it fits."""
    longest_sequence: int
    """Tokens of the longest sequence with the plan's ZeRO stage and a micro-batch of one; 0 where
    none fits."""

    @property
    def fits(self) -> bool:
        return self.probability >= FITS_PROBABILITY

    @property
    def plan(self) -> Plan:
        return self.costs.plans.take(0)

    def record(self) -> dict[str, Any]:
        """The same as JSON; seconds, bytes and tokens."""
        spelled, costs = self.plan.to_dict(), self.costs.row()
        return {
            "way": self.way,
            **{name: spelled[name] for name in ("recompute", "zero", "micro_batch", "dp")},
            **{name: spelled[name] for name in ON_HOST[-1]},
            "fits": self.fits,
            "probability_fits": self.probability,
            "memory_bytes": costs.memory_bytes,
            "capacity": costs.capacity,
            "longest_sequence": self.longest_sequence,
            "step_seconds": costs.step_seconds,
            "tokens_per_second": costs.tokens_per_second,
            "trained_parameters": self.task.trained_parameters,
        }


def what_fits(
    task: Task, ways: Sequence[Adapters | None], precision: str = "bf16", optimizer: str = "adam"
) -> tuple[list[Fit], list[str]]:
    """Each of RECOMPUTE for each of the ways, and why ways are left out that are not modelled.

    Raises InputError where no way is modelled.
    """
    found: list[Fit] = []
    left_out: list[str] = []
    for adapters in ways:
        try:
            asked = replace(task, adapters=adapters)
        except InputError as error:
            left_out.append(str(error))
            continue
        found += _of_way(asked, {"precision": precision, "optimizer": optimizer})
    if not found:
        raise InputError(left_out[0])
    return found, list(dict.fromkeys(left_out))


def _of_way(task: Task, fixed: dict[str, Any]) -> Iterator[Fit]:
    on_gpus = [_fit(task, {**fixed, "recompute": recompute}) for recompute in RECOMPUTE]
    yield from on_gpus
    if any(fit.fits for fit in on_gpus):
        return
    for away in ON_HOST if task.cluster.host else ():
        if "offload_parameters" in away and not task.software.offloads_parameters:
            continue
        fit = _fit(task, {**fixed, "recompute": RECOMPUTE[-1], **away})
        if fit.fits:
            yield fit
            return


def _fit(task: Task, fixed: dict[str, Any]) -> Fit:
    """The fastest plan that fits, or the plan most likely to."""
    table = _plans(task, fixed, _stages(task, fixed), _sizes(task))
    costs, fits = _costed(task, table)
    seconds = np.where(fits >= FITS_PROBABILITY, costs.step, np.inf)
    row = int(np.argmin(seconds) if np.isfinite(seconds).any() else np.argmax(fits))
    return Fit(
        way=task.adapters.name if task.adapters else "full",
        task=task,
        costs=costs.row(row),
        probability=float(fits[row]),
        longest_sequence=_longest(task, fixed, int(table.zero[row])),
    )


def _stages(task: Task, fixed: dict[str, Any]) -> tuple[int, ...]:
    """ZeRO stages that are tried: weights on the host need the third."""
    if "offload_parameters" in fixed:
        return (3,)
    return (0, 1, 2, 3) if task.gpus > 1 else (0,)


def _sizes(task: Task) -> list[int]:
    """Micro-batches that divide the batch of a GPU."""
    of_gpu = task.global_batch // task.gpus
    return [size for size in range(1, of_gpu + 1) if of_gpu % size == 0]


def _plans(task: Task, fixed: dict[str, Any], stages: Sequence[int], sizes: Sequence[int]) -> Plan:
    """Plans of data parallelism alone that break no rule."""
    zero, size = (np.array(x).ravel() for x in np.meshgrid(stages, sizes))
    plan = Plan(dp=task.gpus, micro_batch=size, zero=zero, **fixed)
    table = resolve(plan, task.gpus).table()
    keep = legal_rows(table, task)
    if not keep.any():
        check(table, task)
    return table.take(np.flatnonzero(keep))


def _costed(task: Task, table: Plan) -> tuple[Costs, Value]:
    """Costs of plans, and the probability that each fits."""
    costs = simulate(task, table)
    return costs, np.atleast_1d(probability_fits(costs))


def _longest(task: Task, fixed: dict[str, Any], zero: int) -> int:
    """The longest sequence, of powers of two, that fits with a ZeRO stage and a micro-batch of one;
    0 for none."""
    most, longest = task.model.longest_sequence or LONGEST, 0
    sequence = 256
    while sequence <= most:
        asked = replace(task, sequence=sequence)
        if _costed(asked, _plans(asked, fixed, [zero], [1]))[1].max() < FITS_PROBABILITY:
            break
        longest, sequence = sequence, 2 * sequence
    return longest
