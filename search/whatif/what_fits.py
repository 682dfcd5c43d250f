"""Does it fit, with what: fine-tuning of all weights, LoRA and QLoRA on some GPUs.

Of each way, with and without recompute, the fastest plan that fits, and the longest sequence with
its ZeRO stage and a micro-batch of one. Where none fits, with less memory, what changes the
training least first: another loss of the stack, moments in 8 bits, weights in 16 bits alone; then
with the optimizer on the host, or the weights too. What was asked for is not changed. A plan fits
from a probability of uncertainty.memory.FITS_PROBABILITY on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from plan3d.simulator.base.arrays import Value
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.plan.field_values import Loss
from plan3d.simulator.plan.fields import spell
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.rules.training_rules import supported_losses
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
CHOSEN = ("loss", "optimizer", "precision")
"""What may be chosen where a way does not fit, in the order in which it is."""
LEAN_LOSSES = (Loss.FUSED, Loss.CHUNKED, Loss.FUSED_LINEAR)
"""Losses that keep fewer bytes a logit, the most bytes first."""
LEAN_OPTIMIZER, LEAN_PRECISION = "adam-8bit", "pure-bf16"
SHORTEST, LONGEST = 2**8, 2**20
"""Tokens of the sequences that are tried."""


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
    fixed: dict[str, Any]
    """Fields of the plan that were not chosen for speed."""
    longest_sequence: int = 0
    """Tokens of the longest sequence with the plan's ZeRO stage and a micro-batch of one; 0 where
    none fits."""
    chosen: tuple[str, ...] = ()
    """Fields of the plan that were chosen so that it fits, of CHOSEN."""

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
            **{name: spelled[name] for name in (*ON_HOST[-1], *CHOSEN)},
            "chosen": list(self.chosen),
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
    task: Task,
    ways: Sequence[Adapters | None],
    precision: str | None = None,
    optimizer: str | None = None,
) -> tuple[list[Fit], list[str]]:
    """Each of RECOMPUTE for each of the ways, and why ways are left out that are not modelled.

    Precision and optimizer are chosen where they are None, first of all the usual ones. Raises
    InputError where no way is modelled.
    """
    fixed = {"precision": precision or usual_precision(task), "optimizer": optimizer or "adam"}
    free = {
        name
        for name, asked in {"precision": precision, "optimizer": optimizer}.items()
        if asked is None
    }
    found: list[Fit] = []
    left_out: list[str] = []
    for adapters in ways:
        try:
            asked = replace(task, adapters=adapters)
        except InputError as error:
            left_out.append(str(error))
            continue
        found += _of_way(asked, fixed, free)
    if not found:
        raise InputError(left_out[0])
    return found, list(dict.fromkeys(left_out))


def usual_precision(task: Task) -> str:
    """bf16, or fp16 on GPUs that have none."""
    return "bf16" if "bf16" in task.cluster.accelerator.peak else "fp16"


def _of_way(task: Task, fixed: dict[str, Any], free: set[str]) -> Iterator[Fit]:
    """The fits of one way that are shown; only theirs are the longest sequences."""
    for fit in _candidates(task, fixed, free):
        yield replace(fit, longest_sequence=_longest(fit))


def _candidates(task: Task, fixed: dict[str, Any], free: set[str]) -> Iterator[Fit]:
    on_gpus = [_fit(task, {**fixed, "recompute": recompute}) for recompute in RECOMPUTE]
    yield from on_gpus
    if any(fit.fits for fit in on_gpus):
        return
    for changes in _leaner_choices(task, fixed, free):
        fits = [_fit(task, {**fixed, **changes, "recompute": way}) for way in RECOMPUTE]
        able = [fit for fit in fits if fit.fits]
        if able:
            fastest = max(able, key=lambda fit: float(fit.costs.tokens_per_second))
            yield replace(fastest, chosen=tuple(changes))
            return
    for away in ON_HOST if task.cluster.host else ():
        if "offload_parameters" in away and not task.software.offloads_parameters:
            continue
        fit = _fit(task, {**fixed, "recompute": RECOMPUTE[-1], **away})
        if fit.fits:
            yield fit
            return


def _leaner_choices(task: Task, fixed: dict[str, Any], free: set[str]) -> Iterator[dict[str, Any]]:
    """Fields of CHOSEN that need less memory, each choice with those before it."""
    changes: dict[str, Any] = {}
    for loss in LEAN_LOSSES:
        if loss in supported_losses(task.software):
            changes = {"loss": spell("loss", int(loss))}
            yield changes
    if task.adapters is not None or fixed["precision"] != "bf16":
        return
    for name, lean in (("optimizer", LEAN_OPTIMIZER), ("precision", LEAN_PRECISION)):
        if name in free:
            changes = {**changes, name: lean}
            yield changes


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
        fixed=fixed,
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


def _longest(fit: Fit) -> int:
    """The longest sequence, of powers of two, that fits with the ZeRO stage of a fit and a
    micro-batch of one; 0 for none. A longer one needs no less memory, so that halves are left out
    at a time."""
    task, zero = fit.task, int(fit.plan.zero)

    def is_too_long(sequence: int) -> bool:
        asked = replace(task, sequence=sequence)
        _, fits = _costed(asked, _plans(asked, fit.fixed, [zero], [1]))
        return bool(fits[0] < FITS_PROBABILITY)

    most = task.model.longest_sequence or LONGEST
    sequences = [SHORTEST << i for i in range((most // SHORTEST).bit_length())]
    count = bisect_left(sequences, True, key=is_too_long)
    return sequences[count - 1] if count else 0
