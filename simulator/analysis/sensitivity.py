"""Elasticity of one plan's step to each number of the hardware.

    elasticity = d ln(step) / d ln(number)

by a central difference of RELATIVE_STEP either way: -0.6 means that 1 % more of it makes the step
0.6 % shorter. All numbers of one knob move together. A step scales with the machine: rates less
latencies and launch floors add up to -1 (up to the curvature of the model).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from ..hardware.accelerator import Accelerator
from ..hardware.cluster import CollectiveTime, FastDomain
from ..hardware.host import host_of
from ..hardware.software import HOOKS
from ..operators.task_table import TaskTable
from ..step.costs import Costs
from ..step.evaluate import simulate
from ..task import Task

RELATIVE_STEP = 0.05
"""Relative change on either side of a number."""
WHAT_IF_FACTOR = 2.0
"""Factor of the what-if on either side: half and twice the number."""
FACTORS = (1 + RELATIVE_STEP, 1 / (1 + RELATIVE_STEP), 1 / WHAT_IF_FACTOR, WHAT_IF_FACTOR)
"""What a number is multiplied by."""
LEAST_TABLED_SHARE = 0.02
"""Share of a step that measured tables hold from which it is worth saying."""

Scaled = Callable[[Task, Any], Task]
"""A task with some numbers of its hardware multiplied by a factor, or by a column of them."""


@dataclass(frozen=True, slots=True)
class Knob:
    """One hardware number, or several that belong together."""

    label: str
    rate: bool
    """More of it is faster; otherwise it is a time, and more of it is slower."""
    scale: Scaled
    """The same question with the numbers of the knob multiplied by a factor."""
    may_be_column: bool = False
    """Whether rows of one table may differ in these numbers (operators.task_table)."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """How one plan's step reacts to one knob."""

    name: str
    label: str
    rate: bool
    elasticity: float
    step_if_halved: float
    """Seconds."""
    step_if_doubled: float


def _scaled_accelerator(change: Callable[[Accelerator, float], dict[str, Any]]) -> Scaled:
    def scaled(task: Task, factor: float) -> Task:
        cluster = task.cluster
        new = replace(cluster.accelerator, **change(cluster.accelerator, factor))
        return replace(task, cluster=replace(cluster, accelerator=new))

    return scaled


def _peaks(a: Accelerator, factor: float) -> dict[str, Any]:
    return {"peak": {name: peak * factor for name, peak in a.peak.items()}}


def _kernel_latencies(a: Accelerator, factor: float) -> dict[str, Any]:
    def later(constants: Any) -> Any:
        return replace(constants, latency=constants.latency * factor)

    return {
        "gemm": {width: later(constants) for width, constants in a.gemm.items()},
        "attention": later(a.attention),
        "memory_bound": later(a.memory_bound),
    }


def _scaled_fast_domain(names: tuple[str, ...]) -> Scaled:
    """Multiplies these constants of every collective inside the fast domain."""

    def scaled(task: Task, factor: float) -> Task:
        fast = task.cluster.fast_domain
        new: dict[str, Any] = {
            f.name: _scaled_fields(getattr(fast, f.name), names, factor)
            for f in fields(FastDomain)
            if isinstance(getattr(fast, f.name), CollectiveTime)
        }
        if "bandwidth" in names:
            new["bandwidth"] = fast.bandwidth * factor
        return replace(task, cluster=replace(task.cluster, fast_domain=replace(fast, **new)))

    return scaled


def _scaled_network(names: tuple[str, ...]) -> Scaled:
    def scaled(task: Task, factor: float) -> Task:
        new = _scaled_fields(task.cluster.network, names, factor)
        return replace(task, cluster=replace(task.cluster, network=new))

    return scaled


def _scaled_host(name: str) -> Scaled:
    def scaled(task: Task, factor: float) -> Task:
        new = _scaled_fields(host_of(task.cluster), (name,), factor)
        return replace(task, cluster=replace(task.cluster, host=new))

    return scaled


def _scaled_launches(task: Task, factor: float) -> Task:
    floors = ("layer_floor", "pipeline_floor", "adapter_floor", "expert_floor")
    host = ("step_seconds", "lone_step_seconds", "expert_seconds", *HOOKS)
    return replace(task, software=_scaled_fields(task.software, (*floors, *host), factor))


def _scaled_fields(constants: Any, names: tuple[str, ...], factor: float) -> Any:
    return replace(constants, **{name: getattr(constants, name) * factor for name in names})


KNOBS: dict[str, Knob] = {
    "flop_rate": Knob("peak FLOP/s", True, _scaled_accelerator(_peaks)),
    "memory_bandwidth": Knob(
        "memory bandwidth",
        True,
        _scaled_accelerator(lambda a, factor: {"memory_bandwidth": a.memory_bandwidth * factor}),
    ),
    "intra_node_bandwidth": Knob(
        "bandwidth inside a fast domain", True, _scaled_fast_domain(("bandwidth", "own_bandwidth"))
    ),
    "inter_node_bandwidth": Knob("network bandwidth", True, _scaled_network(("bandwidth",)), True),
    "intra_node_latency": Knob(
        "latency inside a fast domain",
        False,
        _scaled_fast_domain(("latency", "latency_per_step", "root")),
        True,
    ),
    "inter_node_latency": Knob(
        "network latency", False, _scaled_network(("latency", "latency_per_node", "root")), True
    ),
    "kernel_latency": Knob("kernel latency", False, _scaled_accelerator(_kernel_latencies)),
    "launch_floor": Knob("launches by the host", False, _scaled_launches, True),
}
"""Numbers that a step depends on; the bandwidths of all collectives follow their link."""
SITE_KNOBS = {
    "site_bandwidth": Knob("bandwidth between sites", True, _scaled_network(("site_bandwidth",))),
    "site_latency": Knob("latency between sites", False, _scaled_network(("site_latency",))),
}
"""Further ones of clusters whose sites are joined by links."""
HOST_KNOBS = {
    "host_link_bandwidth": Knob("bandwidth to the host", True, _scaled_host("link_bandwidth")),
    "host_memory_bandwidth": Knob("host memory bandwidth", True, _scaled_host("memory_bandwidth")),
}
"""Further ones of plans that use the host."""
NVME_KNOBS = {
    "nvme_read": Knob("reading of NVMe drives", True, _scaled_host("nvme_read")),
    "nvme_write": Knob("writing of NVMe drives", True, _scaled_host("nvme_write")),
}
"""Further ones of plans that use its drives."""


def sensitivities(costs: Costs) -> list[Sensitivity]:
    """Every knob's effect on one plan's step, the largest elasticity first."""
    knobs = {**KNOBS, **(HOST_KNOBS if costs.uses_host else {})}
    knobs |= NVME_KNOBS if costs.swaps else {}
    knobs |= SITE_KNOBS if costs.task.cluster.network.site_bandwidth else {}
    span = 2 * math.log1p(RELATIVE_STEP)
    out = []
    for name, (more, less, half, twice) in _steps(costs, knobs).items():
        knob = knobs[name]
        elasticity = math.log(more / less) / span
        out.append(Sensitivity(name, knob.label, knob.rate, elasticity, half, twice))
    return sorted(out, key=lambda s: -abs(s.elasticity))


def _steps(costs: Costs, knobs: Mapping[str, Knob]) -> dict[str, list[float]]:
    """The step by knob with each of FACTORS, in the order of the knobs."""
    task, plan = costs.task, costs.plans.take(slice(0, 1))
    together = [name for name, knob in knobs.items() if knob.may_be_column]
    size = len(FACTORS)
    rows, changed = np.arange(size * len(together)), task
    for at, name in enumerate(together):
        factor = np.ones(rows.size)
        factor[at * size : (at + 1) * size] = FACTORS
        changed = knobs[name].scale(changed, factor)
    table = TaskTable.of_task(task, rows, changed.software, changed.cluster)
    steps = simulate(table, plan.take(0 * rows)).step.reshape(-1, size)
    found = dict(zip(together, steps.tolist(), strict=True))
    for name, knob in knobs.items():
        if name not in found:
            scaled = (knob.scale(task, factor) for factor in FACTORS)
            found[name] = [float(simulate(one, plan).step[0]) for one in scaled]
    return {name: found[name] for name in knobs}


def tabled_share(found: Sequence[Sensitivity]) -> float:
    """Share of the step that no knob moves: times of measured tables, which do not react."""
    return 1 + sum(s.elasticity if s.rate else -s.elasticity for s in found)
