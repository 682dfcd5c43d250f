"""Axes of a plan: values worth trying on each, and those that follow from others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from plan3d.simulator.pipeline import schedules
from plan3d.simulator.plan.codes import Dispatch, Recompute, gossips
from plan3d.simulator.plan.gossip_graphs import Topology
from plan3d.simulator.plan.sync_policy import FIELDS, PLAIN
from plan3d.simulator.plan.values import AUTO
from plan3d.simulator.rules.expert_rules import overlaps_experts
from plan3d.simulator.task import Task

LARGEST_MICRO_BATCH = 64
"""Sequences beyond which a micro-batch is not tried unless asked for."""
MOST_SAMPLES = 1024
"""The same in samples of a layer list, which may be as small as one image."""
FEWEST_TOKENS = 1024
"""Tokens of a sequence on a rank below which cp is not tried unless asked for."""
MOST_DOMAINS = 2
"""Fast domains (NVLink nodes) that a tensor-parallel group may span unless asked for."""

DERIVED: dict[str, Callable[[Any, Task], Any]] = {
    "dp": lambda p, task: np.maximum(task.gpus // (p.tp * p.cp * p.pp), 1),
    "schedule": lambda p, task: schedules.usual(np.asarray(p.virtual_stages)),
    "overlap_param_gather": lambda p, task: p.overlap_grad_reduce * (np.asarray(p.zero) > 0),
    "overlap_p2p": lambda p, task: np.asarray(p.virtual_stages) > 1,
    "expert_dispatch": lambda p, task: np.where(
        p.ep * p.etp > task.cluster.fast.gpus, Dispatch.HIERARCHICAL, Dispatch.ALLTOALL
    ),
    "overlap_ep": lambda p, task: (
        (np.asarray(p.ep) > 1)
        & (p.recompute != Recompute.FULL)
        & overlaps_experts(p.pp, p.virtual_stages, p.schedule)
    ),
}
"""Fields that follow from others where their axis is AUTO: what is never slower, and what stacks
do where it is legal (Megatron-Core overlaps no experts under full recompute)."""
DERIVES_FROM = {
    "dp": ("tp", "cp", "pp"),
    "schedule": ("virtual_stages",),
    "overlap_param_gather": ("overlap_grad_reduce", "zero"),
    "overlap_p2p": ("virtual_stages",),
    "expert_dispatch": ("ep", "etp"),
    "overlap_ep": ("ep", "pp", "virtual_stages", "schedule", "recompute"),
}
"""The fields that each of DERIVED reads."""


PLAIN_AXES = {
    **{name: (int(value),) for name, value in zip(FIELDS, PLAIN, strict=True)},
    "offload_activations": (0,),
}
"""Gradients all-reduced every step in full, since other ways change the training, and nothing on
the host, which is slower wherever a plan fits without: both are chosen by name."""


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def default_axes(task: Task) -> dict[str, tuple[int, ...]]:
    """Every value worth trying on each axis; AUTO axes follow from the others (DERIVED).

    tp, pp and cp are divisors of the GPUs. Virtual stages are the divisors of the layer count
    and 2, 3, 4: other counts leave chunks of unequal size without making them smaller.
    Micro-batches are powers of two and 3; experts are whole (etp 1). The
    constants above end what grows without use; `choose` replaces any axis.
    """
    layers, cluster = task.model.layers, task.cluster
    experts = [kind.experts for kind in task.model.kinds if kind.experts]
    exchanged = bool(experts) and task.software.expert_exchange
    ranks = divisors(task.gpus)
    largest = LARGEST_MICRO_BATCH if task.model.kinds else MOST_SAMPLES
    return {
        "tp": tuple(d for d in ranks if d <= MOST_DOMAINS * cluster.fast.gpus),
        "tp_grid": (0,),
        "cp": tuple(d for d in ranks if d == 1 or task.sequence >= d * FEWEST_TOKENS),
        "pp": tuple(d for d in ranks if d <= layers),
        "dp": (AUTO,),
        "ep": divisors(experts[0].count) if experts else (1,),
        "etp": (1,),
        "micro_batch": micro_batches(task, largest),
        "virtual_stages": tuple(sorted({*divisors(layers), *range(1, min(4, layers) + 1)})),
        "schedule": (AUTO,),
        "micro_batch_group": (0,),
        "first_stage_layers": (0,),
        "last_stage_layers": (0,),
        "mtp_stage": (0,),
        "sequence_parallel": (1, 0),
        "recompute": (0, 1, 2),
        "overlap_tp": (1, 0),
        "overlap_ep": (AUTO if exchanged else 0,),
        "cp_comm": (0,),
        "expert_dispatch": (AUTO if exchanged else 0,),
        "precision": (0,),
        "optimizer": (0,),
        "zero": (0, 1, 2, 3),
        "overlap_grad_reduce": (1, 0),
        "overlap_param_gather": (AUTO,),
        "overlap_p2p": (AUTO,),
        **PLAIN_AXES,
    }


def micro_batches(task: Task, largest: int) -> tuple[int, ...]:
    """Powers of two and 3 that divide the batch, up to about `largest`."""
    micro = {3, *(2**i for i in range(largest.bit_length()))}
    return tuple(sorted(d for d in micro if task.global_batch % d == 0))


def topologies(syncs: tuple[int, ...]) -> tuple[int, ...]:
    """The graphs that go with the ways to synchronise: the exponential one for gossip."""
    return tuple({Topology.EXPONENTIAL * gossips(sync) for sync in syncs})
