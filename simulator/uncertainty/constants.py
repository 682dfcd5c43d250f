"""Constants of stacks and machines that are uncertain, each on a log scale.

    theta = theta0 exp(d)

A constant multiplies seconds: d > 0 makes a step longer. `with_constants` gives the task with some
of them changed, so that the simulator itself says how a step reacts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from ..base.arrays import Column, Value
from ..hardware.cluster import Cluster
from ..operators.task_table import TaskTable
from ..task import Task

Factor = float | Value
"""Of seconds; a column [row] where rows differ."""
Record = TypeVar("Record")
Powers = Mapping[str, int]
"""Numbers of a task by their path, and to which power of a factor they grow: 1 seconds, -1 rates
(bandwidths and shares of a peak)."""


@dataclass(frozen=True)
class Constant:
    """One uncertain constant."""

    name: str
    acts_on: str
    spread: float
    """Prior standard deviation of its logarithm between stacks and machines."""
    powers: Powers
    """The numbers of a stack and a machine that it is made of."""
    spread_of_mean: float = 0.0
    """Standard deviation of the mean over stacks, where stacks as a whole may be off; 0 where
    its neutral value has no direction."""
    profile_key: str = ""
    """Number of a hardware profile that it is measured by."""
    lent_spread: float = 0.0
    """Further standard deviation where another machine lends that number: root mean square of the
    log ratios of two shipped machines on which it was measured, of links without PCIe
    (tests/simulator/uncertainty/test_lent_numbers.py)."""
    stack_key: str = ""
    """Number of a stack that it is measured by."""


def _replaced(record: Record, **values: Any) -> Record:
    """`dataclasses.replace` of a record that checks nothing when it is made, without the cost: a
    forecast changes stacks, which have a hundred fields, some twenty times."""
    changed = object.__new__(type(record))
    vars(changed).update(vars(record), **values)
    return changed


def _scaled(record: Record, powers: Powers, factor: Factor) -> Record:
    """The record with these numbers of it, and of records inside, times powers of a factor."""
    new: dict[str, Any] = {}
    inside: dict[str, dict[str, int]] = {}
    for path, power in powers.items():
        name, _, rest = path.partition(".")
        if rest:
            inside.setdefault(name, {})[rest] = power
        else:
            value = getattr(record, name)
            new[name] = value * factor if power > 0 else value / factor
    for name, own in inside.items():
        part = getattr(record, name)
        if part is not None:
            new[name] = _scaled(part, own, factor)
    return _replaced(record, **new)


def _powers(path: str, names: str, power: int = 1) -> dict[str, int]:
    """Several numbers of one record."""
    return {f"{path}.{name}": power for name in names.split()}


_FAST = [
    f"cluster.fast_domain.{name}"
    for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
] + ["cluster.fast_domain.switch_all_reduce"]
_GEMM = {"software.sustained": -1}
_ATTENTION = {"software.attention_rate": -1}
_MEMORY_BOUND = {"software.memory_bound_rate": -1}
_FLOORS = {
    "cluster.accelerator.training.layer_floor": 1,
    **_powers("software", "layer_floor pipeline_floor adapter_floor expert_floor module_seconds"),
    **_powers("software", "gradient_seconds reduction_seconds norm_seconds overflow_seconds"),
    "software.lone_step_seconds": 1,
}
_STEP = {"software.step_seconds": 1}
_EXPERTS = {"software.expert_seconds": 1}
_FAST_BANDWIDTH = {
    path: -1 for one in _FAST for path in (f"{one}.bandwidth", f"{one}.own_bandwidth")
}
_FAST_LATENCY = {path: 1 for one in _FAST for path in _powers(one, "latency latency_per_step root")}
_NETWORK_BANDWIDTH = _powers("cluster.network", "bandwidth ring_bandwidth", -1)
_NETWORK_LATENCY = _powers("cluster.network", "latency latency_per_node root")
_KERNELS = {**_GEMM, **_ATTENTION, **_MEMORY_BOUND, **_FLOORS, **_STEP, **_EXPERTS}
_LINKS = {**_FAST_BANDWIDTH, **_FAST_LATENCY, **_NETWORK_BANDWIDTH, **_NETWORK_LATENCY}
_EVERYTHING = {**_KERNELS, **_LINKS}
"""All seconds; contention is a share of communication."""


CONSTANTS: dict[str, Constant] = {
    constant.name: constant
    for constant in (
        Constant("common", "everything: what is not modelled", 0.10, _EVERYTHING),
        Constant(
            "gemm", "matrix products", 0.10, _GEMM, 0.20, "kernels.gemm.16bit.efficiency", 0.28
        ),
        Constant("memory_bound", "norms, activations", 0.30, _MEMORY_BOUND),
        Constant(
            "attention",
            "the attention core",
            0.30,
            _ATTENTION,
            profile_key="kernels.attention.efficiency",
            lent_spread=0.20,
        ),
        Constant(
            "floor",
            "launches of small layers",
            0.50,
            _FLOORS,
            0.50,
            stack_key="layer_floor",
        ),
        Constant("step", "what the host does once a step", 1.00, _STEP, 1.00),
        Constant("experts", "waits of the host for experts", 1.00, _EXPERTS, 1.00),
        Constant(
            "fast_bandwidth",
            "bytes inside a domain",
            0.20,
            _FAST_BANDWIDTH,
            profile_key="links.fast.all_reduce.bandwidth",
            lent_spread=0.11,
        ),
        Constant(
            "fast_latency",
            "latency inside a domain",
            0.50,
            _FAST_LATENCY,
            profile_key="links.fast.all_reduce.latency",
            lent_spread=0.52,
        ),
        Constant("network_bandwidth", "bytes across nodes", 0.20, _NETWORK_BANDWIDTH),
        Constant("network_latency", "latency across nodes", 0.50, _NETWORK_LATENCY),
        Constant(
            "contention",
            "kernels slowed by communication",
            0.30,
            _powers("software", "contention fsdp_contention kernel_contention"),
        ),
    )
}
"""Every constant by name; spreads are a start, from which a fit to published runs departs."""


def lent_spreads(cluster: Cluster, names: Iterable[str]) -> list[float]:
    """Further spread of each constant where a machine has the numbers of another."""
    lent = {key for key, origin in cluster.provenance.items() if origin.is_lent}
    known = (CONSTANTS[name] for name in names)
    return [one.lent_spread if one.profile_key in lent else 0.0 for one in known]


def with_constants(task: Task, changes: Mapping[str, float]) -> Task:
    """The task with the seconds of some constants multiplied by exp(d), d by name."""
    factors = {name: math.exp(d) for name, d in changes.items() if d}
    if not factors:
        return task
    changed = _changed(task, factors)
    return replace(task, software=changed.software, cluster=changed.cluster)


def with_constant_columns(task: Task, names: Sequence[str], d: Value, variant: Column) -> TaskTable:
    """The task with a set of constants for each row: d [set, constant], and the set of each."""
    factors = {name: np.exp(column[variant]) for name, column in zip(names, d.T, strict=True)}
    away = {name: factor for name, factor in factors.items() if (factor != 1).any()}
    changed = _changed(task, away)
    return TaskTable.of_task(task, variant, changed.software, changed.cluster)


def _changed(task: Task, factors: Mapping[str, Factor]) -> Task:
    """The task, unchecked, with the seconds of some constants multiplied."""
    for name, factor in factors.items():
        task = _scaled(task, CONSTANTS[name].powers, factor)
    return task
