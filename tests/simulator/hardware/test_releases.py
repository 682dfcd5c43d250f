"""Releases of stacks: what earlier ones lack, and what is no release."""

from __future__ import annotations

import pytest

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task


@pytest.mark.parametrize(
    ("release", "permutation", "modules", "deepep", "overlap", "muon"),
    [
        ("0.10", False, False, False, False, -1),
        ("0.11", True, False, False, False, -1),
        ("v0.12.1", True, True, True, False, -1),
        ("0.13", True, True, True, False, -1),
        ("0.14.3", True, True, True, True, -1),
        ("0.15", True, True, True, True, 1),
    ],
)
def test_a_release_lacks_what_came_after_it(release, permutation, modules, deepep, overlap, muon):
    stack = software_profile(f"megatron-core@{release}")
    assert (stack.name, stack.label) == (f"megatron-core@{release}", "megatron-core")
    assert (stack.fused_permutation, bool(stack.selective)) == (permutation, modules)
    assert (stack.expert_exchange, stack.expert_overlap) == (deepep, overlap)
    assert stack.muon_stage == muon
    assert stack.layer_floor == software_profile("megatron-core").layer_floor


def test_torchtitan_had_one_unit_beside_its_layers():
    old, new = (software_profile(f"torchtitan@{release}") for release in ("0.1.0", "0.2.2"))
    assert (old.gathered_ends, new.gathered_ends) == (("embedding", "head"), ("head",))


@pytest.mark.parametrize(
    ("release", "plan", "message"),
    [
        ("0.13", "ep=8 overlap_ep=1", "megatron-core@0.13 has no overlap_ep; nearest"),
        (
            "0.11",
            "ep=8 expert_dispatch=hierarchical",
            "has no expert_dispatch=hierarchical",
        ),
        ("0.14", "ep=8 optimizer=muon", "megatron-core@0.14 has no Muon; nearest: optimizer=adam"),
    ],
)
def test_a_plan_of_what_a_release_lacks_is_refused(release, plan, message):
    cluster = Cluster.profile("h100-sxm", gpus=8)
    stack = f"megatron-core@{release}"
    task = Task("mixtral-8x7b", cluster, sequence=2048, global_batch=64, software=stack)
    with pytest.raises(InputError, match=message):
        evaluate(task, Plan.parse(plan))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("megatron-core@0.7", "nearest: megatron-core@0.8"),
        ("megatron-core@1.2", "nearest: megatron-core@0.19"),
        ("megatron-core@new", "written as 0.8"),
        ("nanotron@0.4", "known: megatron-core@RELEASE"),
    ],
)
def test_what_is_no_release_is_refused(name, message):
    with pytest.raises(InputError, match=message):
        software_profile(name)


@pytest.mark.parametrize("release", ["0", "0.14.3.1", "0.12345", "0.x", "", "0..1"])
def test_releases_are_of_two_or_three_short_numbers(release):
    with pytest.raises(InputError, match="a release is written as"):
        software_profile(f"megatron-core@{release}")
