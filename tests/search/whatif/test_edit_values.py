"""Values that are tried around a plan, counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plan3d.search.whatif.single_field_changes import CHOICE_FIELDS, edit_values
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model


def task(model: str = "llama-7b", gpus: int = 8, batch: int = 48) -> Task:
    cluster = Cluster.profile("h100-sxm", gpus=gpus)
    return Task(Model.preset(model), cluster, sequence=2048, global_batch=batch)


def values(plan: str, asked: Task) -> dict[str, tuple[int, ...]]:
    return edit_values(resolve(Plan.parse(plan), asked.gpus).take(0), asked)


@pytest.mark.parametrize(
    ("plan", "first", "last"),
    [
        # 32 layers on 4 ranks.
        ("pp=4", (0, 6, 7, 8, 9, 10), (0, 6, 7, 8, 9, 10)),
        # 1 and 3 at the ends, 28 on the two between.
        ("pp=4 first_stage_layers=1 last_stage_layers=3", (0, 1, 2, 3), (0, 1, 2, 3, 4, 5)),
        ("pp=4 first_stage_layers=2 last_stage_layers=2", (0, 1, 2, 3, 4), (0, 1, 2, 3, 4)),
    ],
)
def test_ends_are_up_to_two_layers_longer_or_shorter(plan, first, last):
    found = values(plan, task())
    assert (found["first_stage_layers"], found["last_stage_layers"]) == (first, last)


@pytest.mark.parametrize(
    ("plan", "groups"),
    [
        ("pp=4 dp=2", (0, 1, 2, 3, 4, 6, 8, 12, 24)),  # 48 sequences of 2 replicas
        ("pp=4 dp=2 micro_batch=4", (0, 1, 2, 3, 6)),
        ("dp=8 micro_batch=6", (0, 1)),
    ],
)
def test_groups_divide_the_micro_batches(plan, groups):
    assert values(plan, task())["micro_batch_group"] == groups


def test_experts_are_split_within_a_fast_domain():
    """Divisors of 48 GPUs up to 8; nothing of a dense model is split so."""
    assert values("ep=8", task("mixtral-8x7b", gpus=48))["etp"] == (1, 2, 3, 4, 6, 8)
    assert values("tp=2", task())["etp"] == (1,)


def test_prediction_layers_may_be_on_any_stage():
    deep = task("deepseek-v3", gpus=64, batch=64)
    assert values("pp=4 ep=8", deep)["mtp_stage"] == (0, 1, 2, 3, 4)
    assert values("pp=4", task())["mtp_stage"] == (0,)


def test_hosts_and_names_are_tried_where_there_are_any():
    found = values("tp=2", task())
    assert found["offload_optimizer"] == (0, 50, 100)
    bare = task()
    bare = replace(bare, cluster=replace(bare.cluster, host=None))
    assert values("tp=2", bare)["offload_optimizer"] == (0,)
    assert all(len(found[name]) > 1 for name in CHOICE_FIELDS)
    assert {"dp", "precision", "optimizer"}.isdisjoint(found)
    assert {*found["overlap_grad_reduce"]} == {0, 1}
