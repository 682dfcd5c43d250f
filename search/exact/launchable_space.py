"""The launchable space: every field that a stack launches, searched by bounds from a known plan.

A default search enumerates the fields that decide most and derives or keeps the others. This is the
same space with those opened, which is too large to enumerate (10^8 to 10^11 combinations): branch
and bound leaves out what cannot be faster than the best plan that is known, and counts by which
bound. Values are those of the frameworks' flags (FIELDS_OPENED); their rules say what is legal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import numpy as np

from plan3d.simulator.pipeline import schedules
from plan3d.simulator.plan.field_values import AUTO, ContextComm, Dispatch
from plan3d.simulator.rules.expert_rules import has_expert_kernels
from plan3d.simulator.rules.rule import Rule
from plan3d.simulator.task import Task

from ..space.axes import LONGER, TASK_AXES, divisors, launchable_micro_batches
from ..space.space import Space

SMALLER_END, LARGER_END = 3, 1
"""Layers by which an end stage may be smaller or larger than an even share."""


def _end_stages(task: Task) -> tuple[int, ...]:
    """Any number of layers that is near an even share of some number of stages."""
    layers = task.model.layers
    shares = {layers // pp for pp in divisors(task.gpus) if 1 < pp <= layers}
    near = {n + d for n in shares for d in range(-SMALLER_END, LARGER_END + 2)}
    return (0, *sorted(n for n in near if 0 < n < layers))


def _shared_evenly(task: Task) -> tuple[int, ...]:
    """Layers that chunks may share equally: with or without the embedding, the layers of
    multi-token prediction and the head as one each."""
    layers, mtp = task.model.layers, task.model.mtp_layers
    return tuple(range(layers, layers + mtp + 3))


def _virtual_stages(task: Task) -> tuple[int, ...]:
    """Those that the enumeration tries, and divisors of what chunks may share."""
    every = {d for layers in _shared_evenly(task) for d in divisors(layers)}
    usual = TASK_AXES["virtual_stages"](task)
    return tuple(sorted({*usual, *(v for v in every if v <= task.model.layers)}))


def _has_experts(task: Task) -> bool:
    return any(kind.experts for kind in task.model.kinds)


def _dispatches(task: Task) -> tuple[int, ...]:
    once = task.software.expert_exchange and has_expert_kernels(task.cluster)
    gathers = task.software.framework == "megatron"
    others = once * (Dispatch.HIERARCHICAL,) + gathers * (Dispatch.ALL_GATHER,)
    return (Dispatch.ALLTOALL, *(others if _has_experts(task) else ()))


def _expert_tensor_sizes(task: Task) -> tuple[int, ...]:
    inside = (d for d in divisors(task.gpus) if d <= task.cluster.fast_domain.gpus)
    return tuple(inside) if _has_experts(task) else (1,)


def _looped_schedules(task: Task) -> tuple[int, ...]:
    """The schedules of a framework whose chunks are placed in turn; derived where it has two."""
    launched = schedules.launched_by(task.framework.name) if task.framework else {}
    looped = tuple(code for code in launched if schedules.looped(code))
    return looped if len(looped) > 2 else (AUTO,)


FIELDS_OPENED: dict[str, Callable[[Task], tuple[int, ...]]] = {
    "etp": _expert_tensor_sizes,
    "schedule": _looped_schedules,
    "micro_batch_group": lambda task: (AUTO, LONGER),
    "cp_comm": lambda task: tuple(ContextComm),
    "expert_dispatch": _dispatches,
    "first_stage_layers": _end_stages,
    "last_stage_layers": _end_stages,
    "overlap_ep": lambda task: (
        (0, 1) if _has_experts(task) and task.software.expert_overlap else (0,)
    ),
    "overlap_param_gather": lambda task: (0, 1),
    "overlap_p2p": lambda task: (0, 1),
}
"""Values by field that the default search enumerates at one value or derives: Megatron-LM's
--expert-tensor-parallel-size, --microbatch-group-size-per-virtual-pipeline-stage (pp, and the
least that is longer in every group), --cp-comm-type, --moe-token-dispatcher-type,
--decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers,
--overlap-moe-expert-parallel-comm, --overlap-param-gather and --overlap-p2p-communication; the
schedules of torchtitan, DeepSpeed and nanotron. Chunks between chosen ends differ by a layer at
most; where they are not equal, --pipeline-model-parallel-layout says them."""


def _ends_near(p: Any, task: Task, ends: tuple[str, ...]) -> Any:
    """Whether end stages have 0 (even), or nearly an even share of the layers."""
    share = task.model.layers // p.pp
    out: Any = True
    for name in ends:
        layers = np.asarray(getattr(p, name))
        near = (layers >= share - SMALLER_END) & (layers <= share + 1 + LARGER_END)
        out = out & ((layers == 0) | near)
    return out


def _chunks_even(p: Any, task: Task) -> Any:
    """Whether chunks are as many as a rank's in the enumeration, or can be equal with the ends."""
    out = np.isin(p.virtual_stages, TASK_AXES["virtual_stages"](task))
    for layers in _shared_evenly(task):
        out = out | (layers % (p.pp * p.virtual_stages) == 0)
    return out


ONE_OVERLAP = Rule(
    "one-overlap-before-blackwell",
    ("overlap_tp", "overlap_ep"),
    lambda p, t: (p.overlap_tp == 0) | (p.overlap_ep == 0) | t.cluster.accelerator.has_many_queues,
    lambda p, t: "overlap_tp hides nothing beside overlap_ep on this GPU",
)
SEARCH_RULES = (
    ONE_OVERLAP,
    Rule(
        "longer-micro-batch-group",
        ("micro_batch_group",),
        lambda p, t: np.asarray(p.micro_batch_group) != LONGER,
        lambda p, t: "no longer group of micro-batches hides more",
    ),
    Rule(
        "chunks-near-even",
        ("pp", "virtual_stages"),
        _chunks_even,
        lambda p, t: "chunks are not equal, embedding and head counted",
    ),
    Rule(
        "first-stage-near-even",
        ("pp", "first_stage_layers"),
        lambda p, t: _ends_near(p, t, ("first_stage_layers",)),
        lambda p, t: "first_stage_layers is far from an even share",
    ),
    Rule(
        "last-stage-near-even",
        ("pp", "last_stage_layers"),
        lambda p, t: _ends_near(p, t, ("last_stage_layers",)),
        lambda p, t: "last_stage_layers is far from an even share",
    ),
)
"""What a search proposes of what is legal."""


WIDENED = ("micro_batch", "virtual_stages")
"""Fields of which the enumeration tries some values."""


def launchable_space(space: Space, chosen: Collection[str]) -> Space:
    """A space with FIELDS_OPENED where it has one value that neither the user has `chosen` nor the
    framework says, and every micro-batch that divides the batch, up to the largest."""
    task = space.task
    stated = {*chosen, *(task.framework.search_values if task.framework else ())}
    opened = {
        name: tuple(map(int, values(task)))
        for name, values in FIELDS_OPENED.items()
        if name not in stated and len(space.axes[name]) == 1
    }
    usual = {name: space.axes[name] == TASK_AXES[name](task) for name in WIDENED}
    if usual["micro_batch"] and "micro_batch" not in stated:
        opened["micro_batch"] = launchable_micro_batches(task, max(space.axes["micro_batch"]))
    if usual["virtual_stages"] and "virtual_stages" not in stated:
        opened["virtual_stages"] = _virtual_stages(task)
    if space.layers_per_stage or task.software.cut_by_parameters:
        opened = {name: v for name, v in opened.items() if not name.endswith("_stage_layers")}
    asked_for = {"overlap_tp", "overlap_ep"} <= stated
    rules = tuple(rule for rule in SEARCH_RULES if not (asked_for and rule is ONE_OVERLAP))
    return replace(space, axes={**space.axes, **opened}, search_rules=rules)
