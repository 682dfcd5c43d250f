"""What is on the host leaves the GPU, costs what its copies cost, and nothing where unused."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan3d.simulator.analysis.sensitivity import HOST_KNOBS, sensitivities, tabled_share
from plan3d.simulator.analysis.time_breakdown import losses
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.host import COPY_EFFICIENCY, copy_rate, update_rate
from plan3d.simulator.hardware.profile_file import profile_names
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.plan.plan import Plan, concat, resolve
from plan3d.simulator.reporting.assumptions import assumptions
from plan3d.simulator.reporting.report import plan_record
from plan3d.simulator.reporting.trace import trace
from plan3d.simulator.reporting.why import why
from plan3d.simulator.rules.validity import legal_rows
from plan3d.simulator.step.costs_tables import breakdown
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.step.optimizer import owned_parameters
from plan3d.simulator.step.plan_timeline import timeline_of
from plan3d.simulator.task import Task
from plan3d.simulator.uncertainty.memory import verdict
from plan3d.simulator.workload.model import Model

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
MEGATRON, DEEPSPEED = "megatron-core", "megatron-deepspeed-fp16"


@cache
def task(stack=MEGATRON, model="llama-7b", gpus=16):
    cluster = Cluster.profile("a100-80gb-sxm", gpus=gpus)
    software = software_profile(stack)
    batch = 96 if stack == MEGATRON else 64
    return Task(Model.preset(model), cluster, sequence=2048, global_batch=batch, software=software)


def with_host(question, **changes):
    """The same question with another host."""
    cluster = question.cluster
    return replace(question, cluster=replace(cluster, host=replace(cluster.host, **changes)))


percent = st.integers(1, 100)
shapes = st.sampled_from(
    [
        {},
        {"tp": 2, "zero": 2},
        {"pp": 2, "micro_batch": 2},
        {"tp": 2, "pp": 4, "virtual_stages": 2, "micro_batch": 2},
        {"zero": 3, "recompute": "full"},
        {"pp": 4, "schedule": "gpipe", "recompute": "full"},
    ]
)
stacks = st.sampled_from((MEGATRON, DEEPSPEED))
shares = st.fixed_dictionaries({"offload_optimizer": percent, "offload_activations": percent})


def weights_too(stack, shape):
    """The shape with most weights on the host, where its stack and ZeRO stage allow it."""
    able = stack == DEEPSPEED and shape.get("zero") == 3
    return {**shape, "offload_parameters": 60} if able else shape


def bytes_before_slack(costs, *parts):
    return sum(costs.memory[part] for part in parts)


@given(stacks, shapes, shares)
def test_parts_add_up(stack, shape, share):
    costs = evaluate(task(stack), Plan(**weights_too(stack, shape), **share))
    assert sum(costs.seconds.values()) == pytest.approx(costs.step_seconds)
    assert sum(costs.memory.values()) == pytest.approx(costs.memory_bytes)
    assert sum(losses(costs).values()) == pytest.approx(costs.step_seconds)
    assert costs.seconds["host_comm"] >= 0


@given(stacks, st.lists(st.tuples(shapes, shares), min_size=2, max_size=5))
def test_a_table_costs_what_each_plan_does(stack, some):
    question = task(stack)
    rows = [{}, *(weights_too(stack, shape) | share for shape, share in some)]
    rows = [resolve(Plan(**row), question.gpus).table() for row in rows]
    table = evaluate(question, concat(rows))
    for row, plan in enumerate(rows):
        alone = evaluate(question, plan)
        assert table.step[row] == pytest.approx(alone.step[0], rel=1e-12)
        assert table.memory_total[row] == pytest.approx(alone.memory_total[0], rel=1e-12)
        assert table.node_bytes[row] == pytest.approx(alone.node_bytes[0], rel=1e-12)


@given(stacks, shapes)
def test_nothing_on_the_host_is_the_plan_without(stack, shape):
    plain, none = Plan(**shape), Plan(**shape, offload_optimizer=0, offload_activations=0)
    question = task(stack)
    bare = replace(question, cluster=replace(question.cluster, host=None))
    before, after = evaluate(question, plain), evaluate(bare, none)
    assert before.step_seconds == after.step_seconds
    assert before.memory == after.memory
    assert not after.uses_host
    assert after.node_bytes == 0


@given(stacks, st.sampled_from(({}, {"zero": 2}, {"zero": 3})), percent)
def test_the_optimizer_leaves_the_gpu_for_the_host(stack, shape, share):
    """All bytes of a node's ranks are on its GPUs or its host; Megatron-Core copies gradients."""
    question = task(stack, gpus=8)
    before = evaluate(question, Plan(**shape))
    after = evaluate(question, Plan(**shape, offload_optimizer=share))
    parts = ("gradients", "optimizer")
    saved = bytes_before_slack(before, *parts) - bytes_before_slack(after, *parts)
    ranks = 8.0
    owned = before.groups[0].stages.weights.dense.max() / ranks
    gradients = before.groups[0].recipe.gradient * owned * share / 100
    stay = stack == MEGATRON or resolve(Plan(**shape), 8).zero == 1
    assert after.node_bytes == pytest.approx(ranks * (saved + gradients * stay), rel=1e-9)


@given(shapes, percent)
def test_activations_leave_the_gpu_for_the_host(shape, share):
    question = task()
    before = evaluate(question, Plan(**shape)).groups[0].stages
    after = evaluate(question, Plan(**shape, offload_activations=share)).groups[0].stages
    np.testing.assert_allclose(after.activations + after.host_activations, before.activations)
    assert (after.buffers >= before.buffers).all()


@pytest.mark.parametrize(
    ("machine", "model", "stack", "text"),
    [
        # Chunks of uneven sizes, whose waits the copies fill, and passes of different lengths.
        (
            "v100-16gb-sxm",
            "llama-4-maverick",
            "torchtitan",
            "tp=8 pp=8 cp=2 virtual_stages=4 micro_batch=4 zero=2 overlap_grad_reduce=0 "
            "overlap_tp=1 precision=fp16",
        ),
        (
            "h100-96gb",
            "qwen3-8b",
            "vtrain",
            "pp=16 dp=8 virtual_stages=2 schedule=dualpipe-v zero=3 recompute=full "
            "overlap_param_gather=0",
        ),
    ],
)
def test_copies_take_no_negative_seconds(machine, model, stack, text):
    cluster = Cluster.profile(machine, gpus=128)
    model = Model.preset(model)
    question = Task(model, cluster, sequence=8192, global_batch=256, software=stack)
    for share in (50, 100):
        costs = evaluate(question, Plan.parse(f"{text} offload_optimizer={share}"))
        assert costs.seconds["host_comm"] >= 0


@given(stacks, shapes, shares, st.floats(1.0, 50.0))
def test_a_faster_host_is_never_slower(stack, shape, share, factor):
    question, plan = task(stack), Plan(**weights_too(stack, shape), **share)
    host = question.cluster.host
    step = evaluate(question, plan).step_seconds
    for name in ("link_bandwidth", "memory_bandwidth"):
        faster = with_host(question, **{name: factor * getattr(host, name)})
        assert evaluate(faster, plan).step_seconds <= step * (1 + 1e-12)


@given(stacks, shapes, shares)
def test_copies_show_no_longer_than_they_take(stack, shape, share):
    question, plan = task(stack), Plan(**shape, **share)
    costs = evaluate(question, plan)
    group = costs.groups[0]
    stages, rate = group.stages, copy_rate(question.cluster)
    per_pass = group.stages.host_activations.max() * max(stages.micro_batches.max(), 1)
    owned = share["offload_optimizer"] / 100 * owned_parameters(stages.weights).max()
    trips = stages.micro_batches.max() + stages.ranks.max()
    once = owned * (group.recipe.gradient + group.recipe.weight) * trips
    assert costs.seconds["host_comm"] <= (2 * per_pass + once) / rate * (1 + 1e-9)


def test_copies_that_fit_behind_compute_do_not_show():
    fast = with_host(task(), link_bandwidth=1e15, memory_bandwidth=1e16)
    costs = evaluate(fast, Plan(offload_optimizer=100, offload_activations=100))
    assert costs.seconds["host_comm"] == 0
    slow = with_host(task(), link_bandwidth=1e9)
    plan = Plan(offload_activations=100)
    stages = evaluate(slow, plan).groups[0].stages
    copied = 96 / 16 * 2 * stages.host_activations.max() / copy_rate(slow.cluster)
    shown = evaluate(slow, plan).seconds["host_comm"]
    assert 0.8 * copied < shown < copied


@pytest.mark.parametrize("stack", [MEGATRON, DEEPSPEED])
def test_more_on_the_host_is_slower_and_smaller(stack):
    plans = Plan(offload_optimizer=[0, 25, 50, 75, 100], zero=2)
    costs = evaluate(task(stack), plans)
    assert (np.diff(costs.step) > 0).all()
    assert (np.diff(costs.memory_total) < 0).all()
    update = costs.seconds["optimizer"] - costs.task.software.step_seconds
    assert update[4] == pytest.approx(4 * update[1])


def test_gpus_share_links_and_memory_of_a_node():
    alone, two, node = (Cluster.profile("a100-80gb-sxm", gpus=n) for n in (1, 2, 8))
    assert copy_rate(alone) == pytest.approx(COPY_EFFICIENCY * 31.5e9)
    assert copy_rate(two) == copy_rate(node) == pytest.approx(copy_rate(alone) / 2)
    assert update_rate(alone) == pytest.approx(8 * update_rate(node))
    assert update_rate(Cluster.profile("a100-80gb-sxm", gpus=64)) == update_rate(node)


def test_a_smaller_node_keeps_its_share_of_the_host():
    whole = Cluster.profile("h100-sxm", gpus=8).host
    half = Cluster.profile("h100-sxm", gpus=8, gpus_per_node=4)
    assert half.host.memory == whole.memory / 2
    assert half.host.memory_bandwidth == whole.memory_bandwidth / 2
    assert half.host.link_bandwidth == whole.link_bandwidth
    assert "in proportion" in half.provenance["host.memory"].source


@pytest.mark.parametrize("name", profile_names())
def test_every_shipped_profile_says_what_its_host_has(name):
    cluster = Cluster.profile(name, gpus=1)
    assert 7e9 < copy_rate(cluster) < 500e9
    assert 8e9 < cluster.host.memory / cluster.gpus_per_node < 1e12
    assert not cluster.provenance["host.link_bandwidth"].measured


def test_a_host_may_be_too_small():
    small = with_host(task(gpus=8), memory=50e9)
    costs = evaluate(small, Plan(offload_optimizer=100))
    assert costs.margin > 0
    assert costs.host_share > 1
    assert not costs.fits
    assert verdict(costs) == "does not fit"
    assert evaluate(task(gpus=8), Plan(offload_optimizer=100)).fits


def test_a_node_holds_no_more_than_all_ranks():
    """Eight stages on one node keep unequal numbers of micro-batches in flight."""
    question = task(gpus=8)
    costs = evaluate(question, Plan(pp=8, offload_activations=100))
    stages = costs.groups[0].stages
    assert costs.node_bytes == pytest.approx((stages.host_activations * stages.ranks_alike).sum())
    assert costs.node_bytes < 8 * stages.host_activations.max()


def test_a_layer_list_is_offloaded_too():
    question = replace(task(gpus=8), model=Model.preset("resnet-50"), sequence=1, global_batch=2048)
    before = evaluate(question, Plan(micro_batch=64))
    after = evaluate(question, Plan(micro_batch=64, offload_activations=100))
    assert after.memory["activations"] == 0
    assert after.node_bytes == pytest.approx(8 * before.memory["activations"])
    assert after.seconds["host_comm"] > 0


def test_a_run_of_layers_is_offloaded_with_its_plan():
    question = task()
    uniform = evaluate(question, Plan(pp=2, offload_activations=50))
    runs = evaluate(question, Plan(pp=2, offload_activations=50, segments="16*2"))
    assert runs.step_seconds == pytest.approx(uniform.step_seconds)
    assert runs.node_bytes == pytest.approx(uniform.node_bytes)
    written = Plan(pp=2, segments="16*2", offload_optimizer=50)
    assert not legal_rows(resolve(written, question.gpus).table(), question)[0]


@given(shapes, shares)
def test_events_agree_with_the_closed_form(shape, share):
    found = timeline_of(task(), Plan(**shape, **share))
    assert found.step_seconds == pytest.approx(found.closed_form, rel=0.02)


def test_a_trace_shows_copies_on_a_thread_of_their_own():
    plan = Plan(pp=2, offload_optimizer=100, offload_activations=100)
    slow = with_host(task(DEEPSPEED), link_bandwidth=2e9)
    found = timeline_of(slow, plan)
    events = [e for e in trace(found)["traceEvents"] if e.get("cat") == "gpu_memcpy"]
    assert {e["name"].split()[1] for e in events} == {"HtoD", "DtoH"}
    assert sum(e["dur"] for e in events) > 0
    without = trace(timeline_of(task(), Plan(pp=2)))["traceEvents"]
    assert not any(e.get("cat") == "gpu_memcpy" for e in without)


def test_a_report_names_the_host_and_what_its_numbers_rest_on():
    costs = evaluate(task(), Plan(offload_optimizer=100, offload_activations=50))
    assert breakdown(costs)[-1].headers[0] == "host memory of a node"
    assert plan_record(costs)["host_memory_bytes"]["total"] == costs.node_bytes
    said = " ".join(assumptions(costs))
    assert "host (datasheet): copies at 12.6 GB/s each way a GPU" in said
    told = " ".join(why(costs))
    assert "The host updates 100 % of the parameters and holds 50 %" in told
    plain = evaluate(task(), Plan())
    assert "host_memory_bytes" not in plan_record(plain)
    assert "host (" not in " ".join(assumptions(plain))


def test_elasticities_of_the_host_complete_those_of_the_machine():
    costs = evaluate(task(), Plan(offload_optimizer=100, offload_activations=100))
    found = {knob.name: knob.elasticity for knob in sensitivities(costs)}
    assert found["host_link_bandwidth"] < -0.3
    assert found["host_memory_bandwidth"] < -0.05
    assert abs(tabled_share(sensitivities(costs))) < 0.1
    plain = {knob.name for knob in sensitivities(evaluate(task(), Plan()))}
    assert plain.isdisjoint(HOST_KNOBS)


def test_published_memory_of_offloaded_optimizers():
    """Qwen3-30B-A3B, tp 2, pp 2, ep 4 on 16 H100: 3.8 GB less for every quarter of the optimizer
    where the master weights stay (NVIDIA-NeMo/Megatron-Bridge, docs/training/cpu-offloading.md)."""
    model = Model.from_config(EXAMPLES / "qwen3-30b-a3b.json")
    cluster = Cluster.profile("h100-sxm", gpus=16)
    question = Task(model, cluster, sequence=4096, global_batch=8)
    costs = evaluate(question, Plan(tp=2, pp=2, ep=4, offload_optimizer=[0, 25]))
    saved = -np.diff(costs.memory["optimizer"])
    assert saved * 8 / 12 == pytest.approx(3.8e9, rel=0.02)


def test_13_billion_parameters_fit_on_one_v100():
    """ZeRO-Offload trains up to 13 B on one V100 of 32 GB, where 1.4 B fit without (abstract)."""
    gpt = Model.preset("gpt3-13b")
    cluster = Cluster.profile("v100-32gb-sxm", gpus=1)
    software = software_profile(DEEPSPEED)
    question = Task(gpt, cluster, sequence=1024, global_batch=16, software=software)
    plan = Plan(precision="fp16", recompute="full")
    assert evaluate(question, replace(plan, offload_optimizer=100)).fits
    assert evaluate(question, plan).memory_bytes > 7 * cluster.accelerator.memory
