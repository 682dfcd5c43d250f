"""How long layers are beside each other, and what two ranks share of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import round_numbers

from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.layers.gemm_seconds import FEW, sum_in_order
from plan3d.simulator.layers.launches import launch_seconds, trained_tensors
from plan3d.simulator.layers.layer_kinds import EXPERT_SLOWDOWN, layer_kinds, relative_lengths
from plan3d.simulator.layers.placements import looped_groups
from plan3d.simulator.operators.model_flops import multiply_adds
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.adapters import Adapters
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


@pytest.mark.parametrize(("mtp", "vocabulary"), [(0, 1024), (1, 1024), (1, 4096)])
def test_multi_token_prediction_is_a_block_its_projection_and_a_head(mtp, vocabulary):
    """12 h^2 and half of 2 s h a token of scores; a projection of 2 h to h, and V h of the head."""
    model = replace(round_numbers.MODEL, mtp_layers=mtp, vocabulary=vocabulary)
    asked = round_numbers.task(model=model)
    names = (one.name for one in layer_kinds(model))
    lengths = dict(zip(names, relative_lengths(asked), strict=True))
    block, wide = 12 + 1, vocabulary / 1024
    assert lengths["head"] == round(wide / block, 3)
    assert lengths["embedding"] == 0
    parts = {name for name in lengths if "mtp" in name}
    assert {lengths[name] for name in parts} == (
        {round((block + 2 + wide) / block, 3)} if mtp else set()
    )
    assert len(parts) == 3 * mtp


@pytest.mark.parametrize("model", [round_numbers.MODEL, round_numbers.sparse()], ids=str)
def test_adapters_add_their_launches_to_those_of_a_layer(model):
    """However many launches the layer, its router and its experts have: two products, a scale and a
    sum of each of four adapters, of a floor of 12 us for nine."""
    stack = round_numbers.stack(adapter_floor=12e-6, layer_floor=1e-5, expert_floor=1e-6)
    seconds = []
    for adapters in (None, Adapters(rank=8)):
        question = round_numbers.task(model=model, software=stack, adapters=adapters)
        seconds.append(launch_seconds(model.kinds[0], round_numbers.local(question)))
    added = float(np.ravel(seconds[1] - seconds[0])[0])
    assert added == pytest.approx(4 * 4 * 12e-6 / 9)


def test_sums_are_alike_however_many_rows_there_are():
    parts = np.arange(3.0)[:, None] + np.zeros(FEW)
    assert sum_in_order(parts).tolist() == [3.0] * FEW
    assert sum_in_order(parts[:, :1]).tolist() == [3.0]
    assert sum_in_order(parts[:0]).tolist() == [0.0] * FEW


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


@pytest.mark.parametrize(("model", "biases"), [("llama-3.1-8b", 3), ("gpt3-1.3b", 2)])
def test_biases_are_tensors_with_a_gradient(model: str, biases: int) -> None:
    """One a matrix of an MLP, of which a gated one has three; one of the queries, the keys and the
    values each, and one of the projection."""
    where = Cluster.profile("h100-sxm", gpus=8)
    whole = Task(Model.preset(model), where, sequence=2048, global_batch=32)
    block = whole.model.kinds[0]
    assert block.mlp is not None
    bare = replace(
        block,
        mlp=replace(block.mlp, bias=False),
        attention=replace(block.attention, qkv_bias=False, out_bias=False),
    )
    least = trained_tensors(bare, whole)
    with_mlp = replace(bare, mlp=replace(block.mlp, bias=True))
    assert trained_tensors(with_mlp, whole) - least == biases
    for name, more in (("qkv_bias", 3), ("out_bias", 1)):
        other = replace(bare, attention=replace(bare.attention, **{name: True}))
        assert trained_tensors(other, whole) - least == more


@pytest.mark.parametrize(("ranks", "matrices"), [(1, 24), (2, 12), (8, 3)])
def test_a_rank_has_the_tensors_of_its_share_of_the_experts(ranks: int, matrices: int) -> None:
    """Eight of three matrices each; beside them projections, norms and the router."""
    where = Cluster.profile("h100-sxm", gpus=8)
    whole = Task(Model.preset("mixtral-8x7b"), where, sequence=2048, global_batch=32)
    (block,) = whole.model.kinds
    rest = trained_tensors(block, whole, 8) - 3
    assert trained_tensors(block, whole, ranks) == rest + matrices
    assert rest == 4 + 2 + 1
