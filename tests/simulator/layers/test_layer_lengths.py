"""How long layers are beside each other, and what two ranks share of them."""

from __future__ import annotations

import pytest

from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.layers.layer_kinds import EXPERT_SLOWDOWN, layer_kinds, relative_lengths
from plan3d.simulator.layers.placements import looped_groups
from plan3d.simulator.operators.model_flops import multiply_adds
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model


def task(model: str) -> Task:
    cluster = Cluster.profile("h100-sxm", gpus=8)
    return Task(Model.preset(model), cluster, sequence=4096, global_batch=32)


@pytest.mark.parametrize(
    ("model", "slower"), [("llama-3.1-8b", 1.0), ("mixtral-8x7b", EXPERT_SLOWDOWN)]
)
def test_a_head_is_as_long_as_its_products_beside_those_of_a_block(
    model: str, slower: float
) -> None:
    asked = task(model)
    block = multiply_adds(asked.model, asked.model.kinds[0], 4096, True)
    head = asked.model.vocabulary * asked.model.hidden
    lengths = dict(
        zip((k.name for k in layer_kinds(asked.model)), relative_lengths(asked), strict=True)
    )
    assert lengths["block 0"] == 1.0
    assert lengths["head"] == pytest.approx(head / (slower * block), abs=5e-4)
    assert EXPERT_SLOWDOWN > 1


def test_groups_are_of_pp_where_a_rank_has_several_chunks() -> None:
    plans = {v: resolve(Plan(pp=4, virtual_stages=v), 8).table() for v in (1, 2)}
    assert {v: looped_groups(plan).tolist() for v, plan in plans.items()} == {1: [0], 2: [4]}


def test_two_ranks_of_a_context_gather_keys_and_values() -> None:
    """All-gathers are before attention, and show."""
    asked = task("llama-3.1-8b")
    shown = {
        cp: evaluate(asked, Plan(cp=cp, cp_comm=way)).seconds["context_comm"]
        for cp, way in ((1, "p2p"), (2, "all-gather"))
    }
    assert shown[1] == 0 < shown[2]
