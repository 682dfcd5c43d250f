"""Constants of stacks and machines that are uncertain, each on a log scale.

    theta = theta0 exp(d)

A constant multiplies seconds: d > 0 makes a step longer. `with_constants` gives the task with some
of them changed, so that the simulator itself says how a step reacts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from ..base.arrays import Column, Value
from ..hardware.cluster import Cluster, CollectiveTime, FastDomain
from ..hardware.software_stack import Software
from ..operators.task_table import TaskTable
from ..task import Task

Factor = float | Value
"""Of seconds; a column [row] where rows differ."""
Record = TypeVar("Record")
Change = Callable[[Software, Cluster, Factor], tuple[Software, Cluster]]


@dataclass(frozen=True)
class Constant:
    """One uncertain constant."""

    name: str
    acts_on: str
    spread: float
    """Prior standard deviation of its logarithm between stacks and machines."""
    change: Change
    """A stack and a machine with its seconds multiplied."""
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


def _scale_software(**powers: float) -> Change:
    """Fields of the stack times the factor raised to a power: 1 for seconds, -1 for rates."""

    def change(software: Software, cluster: Cluster, f: Factor) -> tuple[Software, Cluster]:
        new: dict[str, Any] = {n: getattr(software, n) * f**p for n, p in powers.items()}
        return _replaced(software, **new), cluster

    return change


def _scale_floors(software: Software, cluster: Cluster, f: Factor) -> tuple[Software, Cluster]:
    accelerator = cluster.accelerator
    floor: Any = accelerator.training.layer_floor * f
    training = _replaced(accelerator.training, layer_floor=floor)
    cluster = _replaced(cluster, accelerator=_replaced(accelerator, training=training))
    names = ("layer_floor", "pipeline_floor", "adapter_floor", "expert_floor", "module_seconds")
    floors: dict[str, Any] = {name: getattr(software, name) * f for name in names}
    return _replaced(software, **floors), cluster


def _with_collectives(
    fast: FastDomain, new: Callable[[CollectiveTime], CollectiveTime]
) -> FastDomain:
    names = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
    changed: dict[str, Any] = {name: new(getattr(fast, name)) for name in names}
    if fast.switch_all_reduce:
        changed["switch_all_reduce"] = new(fast.switch_all_reduce)
    return _replaced(fast, **changed)


def _scale_fast_bandwidth(
    software: Software, cluster: Cluster, f: Factor
) -> tuple[Software, Cluster]:
    def slower(time: CollectiveTime) -> CollectiveTime:
        rates = {name: getattr(time, name) / f for name in ("bandwidth", "own_bandwidth")}
        return _replaced(time, **rates)

    return software, _replaced(cluster, fast_domain=_with_collectives(cluster.fast_domain, slower))


def _scale_fast_latency(
    software: Software, cluster: Cluster, f: Factor
) -> tuple[Software, Cluster]:
    def later(time: CollectiveTime) -> CollectiveTime:
        changed = {
            name: getattr(time, name) * f for name in ("latency", "latency_per_step", "root")
        }
        return _replaced(time, **changed)

    return software, _replaced(cluster, fast_domain=_with_collectives(cluster.fast_domain, later))


def _scale_network_bandwidth(
    software: Software, cluster: Cluster, f: Factor
) -> tuple[Software, Cluster]:
    net = cluster.network
    slower = {name: getattr(net, name) / f for name in ("bandwidth", "ring_bandwidth")}
    return software, _replaced(cluster, network=_replaced(net, **slower))


def _scale_network_latency(
    software: Software, cluster: Cluster, f: Factor
) -> tuple[Software, Cluster]:
    net = cluster.network
    changed = {name: getattr(net, name) * f for name in ("latency", "latency_per_node", "root")}
    return software, _replaced(cluster, network=_replaced(net, **changed))


_GEMM = _scale_software(sustained=-1)
_ATTENTION = _scale_software(attention_rate=-1)
_MEMORY_BOUND = _scale_software(memory_bound_rate=-1)
_STEP = _scale_software(step_seconds=1)
_EXPERTS = _scale_software(expert_seconds=1)


def _scale_everything(software: Software, cluster: Cluster, f: Factor) -> tuple[Software, Cluster]:
    """All seconds; contention is a share of communication."""
    kernels = (_GEMM, _ATTENTION, _MEMORY_BOUND, _scale_floors, _STEP, _EXPERTS)
    links = (
        _scale_fast_bandwidth,
        _scale_fast_latency,
        _scale_network_bandwidth,
        _scale_network_latency,
    )
    for change in (*kernels, *links):
        software, cluster = change(software, cluster, f)
    return software, cluster


CONSTANTS: dict[str, Constant] = {
    constant.name: constant
    for constant in (
        Constant("common", "everything: what is not modelled", 0.10, _scale_everything),
        Constant(
            "gemm", "matrix products", 0.10, _GEMM, 0.20, "kernels.gemm.16bit.efficiency", 0.22
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
            _scale_floors,
            0.50,
            stack_key="layer_floor",
        ),
        Constant("step", "what the host does once a step", 1.00, _STEP, 1.00),
        Constant("experts", "waits of the host for experts", 1.00, _EXPERTS, 1.00),
        Constant(
            "fast_bandwidth",
            "bytes inside a domain",
            0.20,
            _scale_fast_bandwidth,
            profile_key="links.fast.all_reduce.bandwidth",
            lent_spread=0.11,
        ),
        Constant(
            "fast_latency",
            "latency inside a domain",
            0.50,
            _scale_fast_latency,
            profile_key="links.fast.all_reduce.latency",
            lent_spread=0.52,
        ),
        Constant("network_bandwidth", "bytes across nodes", 0.20, _scale_network_bandwidth),
        Constant("network_latency", "latency across nodes", 0.50, _scale_network_latency),
        Constant(
            "contention",
            "kernels slowed by communication",
            0.30,
            _scale_software(contention=1, fsdp_contention=1, kernel_contention=1),
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
    software, cluster = _changed(task, factors)
    return replace(task, software=software, cluster=cluster)


def with_constant_columns(task: Task, names: Sequence[str], d: Value, variant: Column) -> TaskTable:
    """The task with a set of constants for each row: d [set, constant], and the set of each."""
    factors = {name: np.exp(column[variant]) for name, column in zip(names, d.T, strict=True)}
    changed = {name: factor for name, factor in factors.items() if (factor != 1).any()}
    return TaskTable.of_task(task, variant, *_changed(task, changed))


def _changed(task: Task, factors: Mapping[str, Factor]) -> tuple[Software, Cluster]:
    """The stack and the machine of a task with the seconds of some constants multiplied."""
    software, cluster = task.software, task.cluster
    for name, factor in factors.items():
        software, cluster = CONSTANTS[name].change(software, cluster, factor)
    return software, cluster
