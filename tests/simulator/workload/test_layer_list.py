"""Layer lists behave like models: counts, costs, searches and bad files."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.operators.model_flops import model_flops_per_token
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.step.evaluate import by_stage, evaluate
from plan3d.simulator.step.plan_timeline import timeline_of
from plan3d.simulator.task import Task
from plan3d.simulator.workload.blocks import ListedLayer
from plan3d.simulator.workload.layer_list import lists_layers
from plan3d.simulator.workload.model import Model, Network

LAYER = ListedLayer(parameters=1000, forward_flops=1e9, activation_bytes=1e6, boundary_bytes=1e5)


def question(model, gpus=8, batch=256):
    cluster = Cluster.profile("v100-32gb-sxm", gpus=gpus)
    return Task(model, cluster, sequence=1, global_batch=batch)


def test_shipped_networks_have_the_published_sizes():
    # torchvision's resnet50, Hugging Face's BertForPreTraining of bert-large-uncased.
    assert Model.preset("resnet-50").parameters == 25_557_032
    assert Model.preset("bert-large").parameters == 336_226_108
    assert Model.preset("amoebanet-1.8b").parameters == pytest.approx(1.8e9, rel=1e-6)
    # 4.09 G multiply-adds an image (torchvision).
    assert Model.preset("resnet-50").forward_flops == pytest.approx(2 * 4.09e9, rel=0.01)


def test_a_step_is_three_forward_passes_and_its_flops_are_those_of_the_mfu():
    task = question(Model.preset("amoebanet-1.8b"))
    costs = evaluate(task, Plan(dp=8, micro_batch=32, precision="fp16"))
    assert model_flops_per_token(task.model, 1) == 3 * task.model.forward_flops
    assert costs.seconds["compute"] == pytest.approx(3 * costs.groups[0].stages.forward.sum())
    achieved = 3 * task.model.forward_flops * 256 / costs.step_seconds / 8
    assert costs.mfu == pytest.approx(achieved / costs.peak_flops)


def test_recompute_keeps_boundaries_only_and_costs_a_forward_pass():
    task = question(Model.preset("amoebanet-1.8b"))
    none, full = (
        evaluate(task, Plan(dp=8, micro_batch=32, precision="fp16", recompute=mode))
        for mode in ("none", "full")
    )
    assert full.memory["activations"] < none.memory["activations"]
    assert full.compute_seconds["recompute"] == pytest.approx(none.seconds["compute"] / 3)


@given(order=st.permutations(range(6)), pp=st.sampled_from([1, 2, 3, 6]))
def test_stages_hold_all_parameters_and_send_what_lies_between_them(order, pp):
    kinds = [
        ListedLayer(
            parameters=10 ** (i + 1),
            forward_flops=1e9,
            activation_bytes=1e6,
            boundary_bytes=1e6 * (i + 1),
        )
        for i in order
    ]
    task = question(Network.from_layers("six", kinds), gpus=pp)
    costs = evaluate(task, Plan(pp=pp, micro_batch=1, precision="fp16"))
    assert by_stage(costs)["weights"].sum() == 2 * task.model.parameters
    segments = "|".join([str(6 // pp)] * pp)
    parted = evaluate(task, Plan(pp=pp, precision="fp16", segments=segments))
    assert parted.step_seconds == pytest.approx(costs.step_seconds, rel=1e-12)
    if pp > 1:
        behind = [order[cut - 1] for cut in range(6 // pp, 6, 6 // pp)]
        sizes, send = 1e6 * (np.array(behind) + 1), task.cluster.fast_domain.send
        each = send.latency + send.latency_per_step + send.root * np.sqrt(sizes)
        (group,) = costs.groups
        assert group.stages.hop_seconds[0] == pytest.approx((each + sizes / send.bandwidth).mean())


def test_wider_numbers_move_and_keep_more():
    task = question(Model.preset("resnet-50"))
    narrow, wide = (
        evaluate(task, Plan(dp=8, micro_batch=32, precision=name)) for name in ("fp16", "fp32")
    )
    assert wide.memory["activations"] == 2 * narrow.memory["activations"]
    assert wide.step_seconds > narrow.step_seconds


def test_a_layer_with_an_efficiency_of_its_own_takes_as_long_as_that_says():
    sizes = {"parameters": 1, "forward_flops": 1e13, "activation_bytes": 1, "boundary_bytes": 1}
    seconds = [
        evaluate(
            question(Network.from_layers("one", [ListedLayer(**sizes, efficiency=share)]), 1),
            Plan(precision="fp16"),
        ).step_seconds
        for share in (0.5, 0.25)
    ]
    assert seconds[1] == pytest.approx(2 * seconds[0], rel=1e-3)


def test_a_search_finds_pipelines_where_data_parallelism_does_not_fit():
    wide = ListedLayer(
        parameters=400_000_000, forward_flops=1e12, activation_bytes=1e6, boundary_bytes=1e6
    )
    task = question(Network.from_layers("wide", [wide] * 16), 8, 64)
    best = rank_plans(task, Ranking(choose={"precision": ["fp16"], "zero": [0]})).best
    assert best is not None
    assert best.plans.take(0).pp > 1
    assert best.plans.take(0).tp == 1


def test_the_timeline_simulates_a_network():
    task = question(Model.preset("resnet-50"))
    timeline = timeline_of(task, Plan.parse("pp=8 micro_batch=4 precision=fp16"))
    assert timeline.step_seconds == pytest.approx(timeline.closed_form, rel=0.25)


SIZES = ("parameters", "forward_flops", "activation_bytes", "boundary_bytes")
HEAD = "name," + ",".join(SIZES)


def test_files_are_read_as_they_say(tmp_path):
    csv, other = tmp_path / "net.csv", tmp_path / "net.json"
    csv.write_text(f"# mine\n{HEAD},repeat\na,1000,1e9,1e6,1e5,3\nb,5,1,1,1,\n")
    layers = [
        {"name": "a", **{size: getattr(LAYER, size) for size in SIZES}, "repeat": 3},
        {"name": "b", **dict.fromkeys(SIZES, 1), "parameters": 5},
    ]
    other.write_text(json.dumps({"name": "net", "layers": layers, "source": "mine"}))
    one, two = Network.from_file(csv), Network.from_file(other)
    assert one == two
    assert one.layers == 4
    assert one.listed_layers[0] == LAYER
    assert lists_layers(csv)
    assert lists_layers(other)
    other.write_text("{}")
    assert not lists_layers(other)


BAD = [
    (f"{HEAD}\na,1,2,3", "layer 1 has no boundary_bytes"),
    (f"{HEAD}\na,x,2,3,4", "layer 1: parameters is 'x', not a number"),
    (f"{HEAD}\na,-1,2,3,4", "layer 1: parameters is -1; it must be at least 0"),
    (f"{HEAD},repeat\na,1,2,3,4,0.5", "repeat is 0.5; it must be 1 to"),
    (f"{HEAD},efficiency\na,1,2,3,4,1.5", "efficiency is 1.5; a share of the peak is 0 to 1"),
    (f"{HEAD},flop\na,1,2,3,4,5", "unknown column 'flop'"),
    (HEAD, "has no layers"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_bad_layer_lists_are_refused(tmp_path, text, message):
    path = tmp_path / "net.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        Network.from_file(path)


ONE = {"parameters": 1, "forward_flops": 1, "activation_bytes": 1, "boundary_bytes": 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"layers": [{**ONE, "parameters": True}]}, "parameters is True, not a number"),
        ({"layers": [{**ONE, "parameters": 1.9}]}, "parameters is 1.9; it must be whole"),
        ({"layers": [{**ONE, "parameters": 10**40}]}, "more than 40 digits"),
        ({"layers": [{**ONE, "efficiency": True}]}, "efficiency is True, not a number"),
        ({"layers": [ONE], "nmae": "x"}, "unknown key 'nmae'; did you mean name"),
        ({"layers": [ONE], "name": "a\nb"}, r"name: a b: character \\n cannot be in a name"),
        ({"layers": [ONE], "name": 3}, "'name' must be a text"),
    ],
)
def test_what_a_layer_list_cannot_hold_is_refused(tmp_path, content, message):
    path = tmp_path / "net.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        Network.from_file(path)


@pytest.mark.parametrize(("more", "fits"), [(96, True), (97, False)])
def test_a_list_has_at_most_4096_layers(tmp_path, more, fits):
    path = tmp_path / "net.json"
    path.write_text(json.dumps({"layers": [{**ONE, "repeat": n} for n in (4000, more)]}))
    if fits:
        assert Network.from_file(path).layers == 4096
    else:
        with pytest.raises(InputError, match="at most 4096 layers"):
            Network.from_file(path)


@pytest.mark.parametrize("text", ["{", "[]", '{"layers": [3]}'])
def test_bad_json_is_refused(tmp_path, text):
    path = tmp_path / "net.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"net\.json"):
        Network.from_file(path)


def test_the_sequence_of_a_sample_is_one():
    cluster = Cluster.profile("v100-32gb-sxm", gpus=8)
    with pytest.raises(InputError, match="batch counts samples: sequence must be 1, not 512"):
        Task(Model.preset("bert-large"), cluster, sequence=512, global_batch=256)
