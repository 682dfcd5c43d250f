"""Axes of a search space: values tried by plan field, and fields derived from other fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from plan3d.simulator.pipeline import schedules
from plan3d.simulator.plan.field_values import AUTO, ContextComm, Dispatch, Recompute
from plan3d.simulator.plan.fields import EXPANSION, FIELDS
from plan3d.simulator.rules.expert_rules import has_expert_kernels, overlaps_experts
from plan3d.simulator.rules.pipeline_rules import longer_groups, shortest_groups
from plan3d.simulator.task import Task

LARGEST_MICRO_BATCH = 64
"""Largest micro-batch tried by default, in sequences."""
MOST_SAMPLES = 1024
"""The same in samples of a layer list, of which one may be as small as an image."""
FEWEST_TOKENS = 1024
"""Fewest tokens of a sequence on a rank for which cp is tried by default."""
MOST_DOMAINS = 2
"""Fast domains (NVLink nodes) that a tensor-parallel group may span by default."""


class Derived(NamedTuple):
    """How a field follows from others."""

    reads: tuple[str, ...]
    """The fields that it follows from."""
    compute: Callable[[Any, Task], Any]
    """Columns with those fields -> its values."""


DERIVED = {
    "dp": Derived(
        ("tp", "cp", "pp"), lambda p, task: np.maximum(task.gpus // (p.tp * p.cp * p.pp), 1)
    ),
    "schedule": Derived(
        ("virtual_stages",),
        lambda p, task: schedules.default_code(np.asarray(p.virtual_stages)),
    ),
    "overlap_param_gather": Derived(
        ("overlap_grad_reduce", "zero"),
        lambda p, task: p.overlap_grad_reduce * (np.asarray(p.zero) > 0),
    ),
    "micro_batch_group": Derived(
        ("pp", "dp", "micro_batch", "virtual_stages", "schedule"), shortest_groups
    ),
    "overlap_p2p": Derived(("virtual_stages",), lambda p, task: np.asarray(p.virtual_stages) > 1),
    "expert_dispatch": Derived(
        ("ep",),
        lambda p, task: np.where(
            (np.asarray(p.ep) > 1) & has_expert_kernels(task.cluster),
            Dispatch.HIERARCHICAL,
            Dispatch.ALLTOALL,
        ),
    ),
    "overlap_ep": Derived(
        ("ep", "pp", "dp", "micro_batch", "virtual_stages", "schedule", "recompute", "overlap_tp"),
        lambda p, task: (
            (np.asarray(p.ep) > 1)
            & ((np.asarray(p.overlap_tp) == 0) | task.cluster.accelerator.has_many_queues)
            & (task.global_batch > p.dp * p.micro_batch * p.pp)
            & (p.recompute != Recompute.FULL)
            & ((p.pp > 1) | (task.model.mtp_layers == 0))
            & overlaps_experts(p.pp, p.virtual_stages, p.schedule)
        ),
    ),
}
"""Fields that follow from others where their axis is AUTO: what is never slower, and what stacks
do where it is legal and useful (Megatron-Core overlaps no experts under full recompute, nor with
multi-token prediction without stages; before Blackwell overlap_tp or overlap_ep hides, not both; a
pipeline with as many micro-batches as ranks or fewer has no second one to overlap with; groups of
micro-batches are of pp, or the shortest without a rest)."""


LONGER = AUTO - 1
"""The other value that follows from the same fields (DERIVED_OTHERS)."""
DERIVED_OTHERS = {"micro_batch_group": longer_groups}
"""What a field is where its axis is (AUTO, LONGER), beside the value of DERIVED; 0 where there is
none."""


def derived_value(name: str, code: int, p: Any, task: Task) -> Any:
    """A field that follows from others, by the code of its axis."""
    return (DERIVED[name].compute if code == AUTO else DERIVED_OTHERS[name])(p, task)


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def largest_tensor_size(task: Task) -> int:
    """Largest tp tried by default."""
    return MOST_DOMAINS * task.cluster.fast_domain.gpus


def micro_batch_sizes(task: Task, largest: int) -> tuple[int, ...]:
    """Powers of two and 3 that divide the batch, up to about `largest`."""
    micro = {3, *(2**i for i in range(largest.bit_length()))}
    return tuple(sorted(d for d in micro if task.global_batch % d == 0))


def launchable_micro_batches(task: Task, largest: int = 0) -> tuple[int, ...]:
    """Every size that divides the batch, up to LARGEST_MICRO_BATCH or `largest`."""
    return _at_most(max(LARGEST_MICRO_BATCH, largest), divisors(task.global_batch))


def _at_most(most: int, values: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(value for value in values if value <= most)


def _expert_count(task: Task) -> int:
    """Experts of the first kind of layer that has some."""
    return next((kind.experts.count for kind in task.model.kinds if kind.experts), 0)


def _exchange_axis(task: Task) -> tuple[int, ...]:
    """Derived where the stack has more than one exchange of tokens."""
    return (AUTO if _expert_count(task) and task.software.expert_exchange else 0,)


def _hidden_axis(task: Task) -> tuple[int, ...]:
    """Derived where the stack can hide the exchange."""
    return (AUTO if _expert_count(task) and task.software.expert_overlap else 0,)


def _cp_comm_axis(task: Task) -> tuple[int, ...]:
    """P2P; every exchange for models with attention windows under a framework, as Transformer
    Engine has no ring for windows."""
    windows = any(kind.attention.window for kind in task.model.kinds)
    return tuple(ContextComm) if windows and task.framework else (ContextComm.P2P,)


TASK_AXES: dict[str, Callable[[Task], tuple[int, ...]]] = {
    "tp": lambda task: _at_most(largest_tensor_size(task), divisors(task.gpus)),
    "cp": lambda task: _at_most(max(task.sequence // FEWEST_TOKENS, 1), divisors(task.gpus)),
    "pp": lambda task: _at_most(task.model.layers, divisors(task.gpus)),
    "ep": lambda task: divisors(_expert_count(task) or 1),
    "micro_batch": lambda task: micro_batch_sizes(
        task, LARGEST_MICRO_BATCH if task.model.kinds else MOST_SAMPLES
    ),
    "virtual_stages": lambda task: tuple(
        sorted({*divisors(task.model.layers), *range(1, min(4, task.model.layers) + 1)})
    ),
    "micro_batch_group": lambda task: (AUTO,),
    "cp_comm": _cp_comm_axis,
    "overlap_ep": _hidden_axis,
    "expert_dispatch": _exchange_axis,
}
"""Values that a search tries by default of the fields for which they depend on the task; those of
the others are in their records.

tp, pp and cp are divisors of the GPUs. Virtual stages are the divisors of the layer count
and 2, 3, 4: other counts leave chunks of unequal size without making them smaller.
Micro-batches are powers of two and 3; experts are whole (etp 1). The
constants above limit them; `choose` replaces any axis."""


def default_axes(task: Task) -> dict[str, tuple[int, ...]]:
    """The values tried by default on each axis; AUTO axes follow from the others (DERIVED)."""
    return {
        name: TASK_AXES[name](task) if name in TASK_AXES else FIELDS[name].searched
        for name in EXPANSION
    }
