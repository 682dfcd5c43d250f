"""Weak scaling is smooth: no step jumps because a rack is not a whole number of groups."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from plan3d import Cluster, Model, Plan, Task, evaluate
from plan3d.simulator.hardware.profile_file import profile_names

ROOT = Path(__file__).parents[3]
MOST = 0.06
"""Largest change of a step from one number of GPUs to the next, 8 more."""


def benchmark(name: str) -> ModuleType:
    """A script of tests/benchmarks as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"tests/benchmarks/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


weak_scaling = benchmark("weak_scaling")
RACKS = [name for name in profile_names() if Cluster.profile(name, nodes=1).fast_domain.gpus == 72]
NODES = [name for name in profile_names() if name not in RACKS]


@pytest.mark.parametrize("plan", weak_scaling.PLANS)
@pytest.mark.parametrize("profile", RACKS)
def test_on_racks(profile: str, plan: str) -> None:
    """Around one, four and 56 racks; the first also where a job leaves its rack."""
    for first in (8, 64, 280, 4024):
        sizes = range(first, first + 33, 8)
        assert np.abs(weak_scaling.changes(profile, plan, sizes)).max() < MOST, first


@pytest.mark.parametrize("plan", weak_scaling.PLANS)
def test_from_eight_nodes(plan: str) -> None:
    """A job that leaves its first nodes changes by more: what they share crosses the network."""
    sizes = range(64, 73, 8)
    most = {name: np.abs(weak_scaling.changes(name, plan, sizes)).max() for name in NODES}
    assert {name: change for name, change in most.items() if not change < MOST} == {}


def test_groups_of_64_on_racks_of_72() -> None:
    """DeepSeek-V3 with 64 ranks of experts: as fast on 256 GPUs as where racks hold 64."""
    plan = Plan(tp=1, pp=4, ep=64, etp=1, zero=1)

    def task(cluster: Cluster) -> Task:
        model = Model.preset("deepseek-v3")
        return Task(model, cluster, sequence=4096, global_batch=2048)

    def seconds(**filled: int) -> float:
        cluster = Cluster.profile("gb200", 256, **filled)
        return evaluate(task(cluster), plan).step_seconds

    assert seconds() == pytest.approx(seconds(gpus_per_domain=64), rel=1e-9)
    assert seconds(gpus_per_domain=32) > 1.1 * seconds()
