"""What-ifs of a task: other GPUs, batch, bandwidths and memory, in the units of the task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from plan3d.search.whatif.cluster_size import with_gpus
from plan3d.simulator.analysis.sensitivity import KNOBS
from plan3d.simulator.base.errors import InputError, did_you_mean
from plan3d.simulator.task import Task


def _memory(task: Task, size: float) -> Task:
    more = replace(task.cluster.accelerator, memory=size)
    return replace(task, cluster=replace(task.cluster, accelerator=more))


def _network(task: Task, rate: float) -> Task:
    factor = rate / task.cluster.network.bandwidth
    return KNOBS["inter_node_bandwidth"].scale(task, factor)


def _fast_domain(task: Task, rate: float) -> Task:
    factor = rate / task.cluster.fast_domain.bandwidth
    return KNOBS["intra_node_bandwidth"].scale(task, factor)


CHANGES: dict[str, Callable[[Task, float], Task]] = {
    "gpus": lambda task, count: with_gpus(task, int(count)),
    "global_batch": lambda task, count: replace(task, global_batch=int(count)),
    "inter_node_bandwidth": _network,
    "intra_node_bandwidth": _fast_domain,
    "memory": _memory,
}
"""Numbers of a task that may be changed: bytes/s of a GPU in one direction, bytes of a GPU."""

COUNTS = ("gpus", "global_batch")


def varied(task: Task, what_if: Mapping[str, float]) -> Task:
    """The task with other numbers. InputError for an unknown name and a value that is none."""
    for name, value in what_if.items():
        if name not in CHANGES:
            raise InputError(f"what_if: {name} is no number{did_you_mean(name, CHANGES)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e18:
            raise InputError(f"what_if: {name}={value!r} must be a number above 0")
        if name in COUNTS and value % 1:
            raise InputError(f"what_if: {name}={value!r} must be a whole number")
        task = CHANGES[name](task, value)
    return task


def machine_record(task: Task) -> dict[str, Any]:
    """The numbers of a machine that a what-if changes, and the names of its links."""
    network, fast = task.cluster.network, task.cluster.fast_domain
    return {
        "memory": task.cluster.accelerator.memory,
        "network": network.name,
        "inter_node_bandwidth": network.bandwidth,
        "fast_domain": fast.name,
        "intra_node_bandwidth": fast.bandwidth,
        "gpus_per_domain": int(fast.gpus),
    }
