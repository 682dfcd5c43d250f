"""The one change that would help a plan most: of the plan, its precision, the batch, the network,
or the number of GPUs where that does not divide.

gain = tokens/s after over tokens/s before, less one
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from plan3d.simulator.hardware.precision import CODES
from plan3d.simulator.plan.field_values import Recompute
from plan3d.simulator.rules.validity import violations
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.step.evaluate import simulate
from plan3d.simulator.task import Task
from plan3d.simulator.uncertainty.memory import FITS_PROBABILITY, probability_fits

from ..rank_plans import Ranking, none_within, rank_plans
from ..result.tolerances import ROUNDING
from .single_field_changes import WORTH, edited, single_edits

NETWORK = "inter_node_bandwidth"
SPLIT = 0.3
"""Share of a step that splitting the model costs, from which another place for the optimizer is
looked for."""
FEWER = 1 / 8
"""Share of the GPUs that a rounder number may leave idle."""
LOSS = 0.05
"""Share of the tokens/s that odd numbers may cost without a word."""
NUMERICS = "(changes numerics)"


@dataclass(frozen=True)
class Change:
    """One change and what it gives."""

    description: str
    gain: float
    """Share of tokens/s more."""


def best_change(costs: Costs, limit: float | None = None) -> Change | None:
    """The change of one plan that gives most tokens/s and fits `limit` bytes (default: is sure to
    fit a GPU); None where none gives WORTH. A plan that does not fit is helped by what makes it
    fit, whatever it gives: by a change of the plan, if there is one, before any of the task."""
    of_the_plan = list(_of_the_plan(costs, limit))
    if does_not_fit(costs, limit):
        return _largest_gain(of_the_plan) or _largest_gain(_of_the_task(costs.row(), limit))
    best = _largest_gain([*of_the_plan, *_of_the_task(costs.row(), limit)])
    return best if best is not None and best.gain >= WORTH else None


def rounder_size(costs: Costs, likely: float) -> Change | None:
    """The batch or the fewer GPUs nearby that give plan 1 of a search of odd numbers most tokens/s,
    with plans that fit with that probability; None where none gives LOSS."""
    if not _is_odd(costs.task):
        return None
    best = _largest_gain(_in_round_numbers(costs.row(), None, likely, least=LOSS))
    return best if best is not None and best.gain >= LOSS else None


def optimizer_on_host(costs: Costs, ranking: Ranking) -> Change | None:
    """What a search gains with the optimizer on the host, where its plan 1 is in want of memory;
    None where that is less than LOSS."""
    field = "offload_optimizer"
    if not _is_in_want(costs) or field in ranking.choose:
        return None
    asked = replace(
        ranking,
        choose={**ranking.choose, field: [100]},
        fits_probability=FITS_PROBABILITY,
        families=False,
        top=1,
    )
    found = rank_plans(costs.task, asked).unless_interrupted().best
    if found is None:
        return None
    gain = found.tokens_per_second / costs.tokens_per_second - 1
    return Change(f"--fix {field}=100", gain) if gain >= LOSS else None


def _is_in_want(plan: Costs) -> bool:
    """Whether a plan recomputes all for want of memory, and is split or may not fit all the same,
    on a machine with a host for its optimizer."""
    row, parts = plan.plans.take(0), plan.seconds
    split = sum(float(parts[name]) for name in ("tensor_comm", "context_comm", "pipeline_comm"))
    tight = split > SPLIT * plan.step_seconds or probability_fits(plan) < FITS_PROBABILITY
    on_gpu = row.offload_optimizer == 0 and plan.task.cluster.host is not None
    return bool(on_gpu and row.recompute == Recompute.FULL and tight)


def _largest_gain(changes: Iterable[Change]) -> Change | None:
    return max(changes, key=lambda change: change.gain, default=None)


def does_not_fit(costs: Costs, limit: float | None = None) -> bool:
    """Whether one plan needs more than a GPU has, or than `limit` bytes."""
    one = costs.row()
    return not one.fits or (limit is not None and one.memory_bytes > limit)


def _may(costs: Costs, limit: float | None, likely: float = FITS_PROBABILITY) -> NDArray[np.bool_]:
    """Which plans a change may lead to [row]."""
    if limit is None:
        return np.atleast_1d(probability_fits(costs)) >= likely
    return np.atleast_1d(costs.fits & (costs.memory_total <= limit))


def _of_the_plan(costs: Costs, limit: float | None) -> Iterator[Change]:
    """The fastest change of one field that fits."""
    edits = single_edits(costs)
    if edits.costs is None:
        return
    for row in np.flatnonzero(_may(edits.costs, limit))[:1].tolist():
        yield Change(edits.text(row), float(costs.step[0] / edits.costs.step[row]) - 1)


def _of_the_task(plan: Costs, limit: float | None) -> Iterator[Change]:
    """fp8 where the GPU has it, twice the batch, the optimizer on the host, numbers that divide,
    and twice the network where there is one."""
    task, batch = plan.task, 2 * plan.task.global_batch
    if "fp8" in task.cluster.accelerator.peak and plan.plans.precision == CODES["bf16"]:
        yield from _in_fp8(plan, limit)
    larger = replace(task, global_batch=batch)
    yield from _gain(f"global batch {batch:,} (if convergence permits)", larger, plan, limit)
    yield from _on_the_host(plan, limit)
    if _is_odd(task) and _is_best(plan):
        yield from _in_round_numbers(plan, limit, FITS_PROBABILITY)
    if task.cluster.nodes > 1:
        from plan3d.simulator.analysis.sensitivity import KNOBS

        faster = KNOBS[NETWORK].scale(task, 2.0)
        rate = task.cluster.network.bandwidth / 1e9
        said = f"network of {2 * rate:g} GB/s a GPU instead of {rate:g}"
        yield from _gain(said, faster, plan, limit)


def _on_the_host(plan: Costs, limit: float | None) -> Iterator[Change]:
    """A search with the optimizer on the host, where the best plan without is in want of memory:
    single changes of it do not lead there."""
    if not _is_in_want(plan):
        return
    found = _searched(plan.task, plan, limit, offload_optimizer=[100])
    if found is not None and _is_best(plan):
        what = "a search with --fix offload_optimizer=100, which keeps the optimizer on the host"
        yield Change(what, found.tokens_per_second / plan.tokens_per_second - 1)


def _is_odd(task: Task) -> bool:
    """Whether the batch shares too little with the number of GPUs."""
    return task.global_batch % _odd(task.gpus) != 0


def _in_round_numbers(
    plan: Costs, limit: float | None, likely: float, least: float | None = None
) -> Iterator[Change]:
    """The best plan of a batch that the GPUs divide, and of fewer GPUs that divide the batch or
    have small factors alone; not those that give less than `least`."""
    from .cluster_size import with_gpus

    task, batch, rounder = plan.task, plan.task.global_batch, []
    if batch >= task.gpus:
        near = round(batch / task.gpus) * task.gpus
        rounder.append((f"global batch {near:,}", replace(task, global_batch=near)))
    for fewer in _rounder_counts(task):
        rounder.append((f"{fewer:,} GPUs instead of {task.gpus:,}", with_gpus(task, fewer)))
    for what, other in rounder:
        if least is not None:
            slowest = other.tokens / (plan.tokens_per_second * (1 + least))
            if none_within(other, _in_formats_of(plan, likely), slowest * (1 + ROUNDING)):
                continue
        found = _best(other, plan, likely)
        if found is not None and _may(found, limit, likely)[0]:
            yield Change(what, found.tokens_per_second / plan.tokens_per_second - 1)


def _odd(number: int) -> int:
    """The largest odd divisor."""
    return number // (number & -number)


def _rounder_counts(task: Task) -> list[int]:
    """Of whole nodes, at most FEWER fewer GPUs: those with the two smallest odd divisors, and the
    most whose odd divisor divides the batch; none that are as odd as the GPUs of the task."""
    gpus, node = task.gpus, task.cluster.gpus_per_node
    least = gpus - int(FEWER * gpus)
    counts = [n for n in range(-(-least // node) * node, gpus, node) if _odd(n) < _odd(gpus)]
    sharing = [n for n in counts if task.global_batch % _odd(n) == 0]
    smallest = sorted(counts, key=lambda n: (_odd(n), -n))[:2]
    return list(dict.fromkeys([*smallest, *sharing[-1:]]))


def _is_best(plan: Costs) -> bool:
    """Whether a search of its task finds nothing faster by more than WORTH."""
    usual = _best(plan.task, plan, FITS_PROBABILITY)
    return usual is None or plan.step_seconds <= usual.step_seconds * (1 + WORTH)


def _searched(task: Task, plan: Costs, limit: float | None, **choose: list[int]) -> Costs | None:
    """The best plan of a search, in a plan's formats, that may be taken."""
    found = _best(task, plan, FITS_PROBABILITY, **choose)
    return found if found is not None and _may(found, limit)[0] else None


def _best(task: Task, plan: Costs, likely: float, **choose: list[int]) -> Costs | None:
    return rank_plans(task, _in_formats_of(plan, likely, **choose)).unless_interrupted().best


def _in_formats_of(plan: Costs, likely: float, **choose: list[int]) -> Ranking:
    """A ranking of plans in the formats of one, which fit with that probability."""
    row = plan.plans.take(0)
    trained = {"precision": [row.precision], "optimizer": [row.optimizer]}
    return Ranking(choose=trained | choose, fits_probability=likely, top=1)


def _in_fp8(plan: Costs, limit: float | None) -> Iterator[Change]:
    """fp8, and where it needs more memory than there is, with the change that saves it."""
    other = edited(plan.plans.take(0), plan.task, {"precision": CODES["fp8"]})
    if violations(other, plan.task):
        return
    costs = simulate(plan.task, other.table(), scalar=True)
    faster = costs.tokens_per_second / plan.tokens_per_second
    if _may(costs, limit)[0]:
        yield Change(f"precision=fp8 {NUMERICS}", faster - 1)
        return
    for change in _of_the_plan(costs, limit):
        yield Change(
            f"precision=fp8 {change.description} {NUMERICS}", faster * (1 + change.gain) - 1
        )


def _gain(what: str, task: Task, plan: Costs, limit: float | None) -> Iterator[Change]:
    """What the plan gains on another task; nothing where it may not."""
    other = edited(plan.plans.take(0), task, {})
    if violations(other, task):
        return
    costs = simulate(task, other.table(), scalar=True)
    if _may(costs, limit)[0]:
        yield Change(what, costs.tokens_per_second / plan.tokens_per_second - 1)
