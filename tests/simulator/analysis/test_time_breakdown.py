"""The waterfall adds up, and a step scales with its machine."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan3d.simulator.analysis.plan_difference import (
    changed_fields,
    contrast_sentences,
    memory_differences,
    time_differences,
)
from plan3d.simulator.analysis.roofline import gemm_points
from plan3d.simulator.analysis.sensitivity import KNOBS, sensitivities, tabled_share
from plan3d.simulator.analysis.time_breakdown import LABELS, losses, waterfall
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model


def task_of(model, cluster="mi300x", gpus=64, sequence=2048):
    """A question on a GPU without measured tables, so that every number has its effect."""
    machine = Cluster.profile(cluster, gpus=gpus)
    software = replace(software_profile("megatron-core"), norm_in_linear=False)
    return Task(
        Model.preset(model), machine, sequence=sequence, global_batch=256, software=software
    )


DENSE, EXPERTS = task_of("llama-7b"), task_of("mixtral-8x7b")
PLANS = [
    (DENSE, "tp=2 pp=2"),
    (DENSE, "tp=8 pp=8 recompute=full"),
    (DENSE, "zero=3"),
    (DENSE, "pp=4 segments=8:recompute=full|8:tp=2,dp=8|8*2"),
    (DENSE, "pp=4 virtual_stages=2 schedule=dualpipe-v"),
    (EXPERTS, "pp=2 ep=8"),
]
legal_plans = st.builds(
    "tp={} pp={} cp={} micro_batch={} recompute={} zero={}".format,
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 2]),
    st.sampled_from(["none", "selective", "full"]),
    st.integers(0, 3),
)


@given(text=legal_plans, dense=st.booleans())
def test_the_waterfall_adds_up(text, dense):
    costs = evaluate(DENSE if dense else EXPERTS, Plan.parse(text))
    bars = waterfall(costs)
    assert [bar.name for bar in bars] == list(LABELS)
    assert sum(bar.seconds for bar in bars) == pytest.approx(costs.step_seconds, rel=1e-12)
    lost = sum(bar.mfu_points for bar in bars[1:])
    assert 100 - lost == pytest.approx(100 * costs.mfu, rel=1e-9)
    assert bars[0].mfu_points == pytest.approx(100 * costs.mfu)
    assert bars[1].seconds < 0 < bars[2].seconds


@pytest.mark.parametrize(("task", "text"), PLANS)
def test_losses_of_every_kind_of_plan_add_up(task, text):
    costs = evaluate(task, Plan.parse(text))
    assert sum(losses(costs).values()) == pytest.approx(costs.step_seconds, rel=1e-12)


def test_a_loss_that_is_free_raises_the_mfu_by_what_it_took():
    costs = evaluate(DENSE, Plan.parse("tp=8 pp=8 recompute=full"))
    bars = {bar.name: bar for bar in waterfall(costs)}
    assert bars["ideal"].mfu_if_free is None
    without = costs.step_seconds - bars["recompute"].seconds
    assert bars["recompute"].mfu_if_free == pytest.approx(costs.mfu * costs.step_seconds / without)


@pytest.mark.parametrize("task", [DENSE, EXPERTS])
def test_the_causal_mfu_leaves_out_what_the_mask_skips(task):
    costs = evaluate(task, Plan(pp=2))
    parts = losses(costs)
    kept = costs.mfu * (parts["ideal"] + parts["causal"]) / parts["ideal"]
    assert costs.mfu_causal == pytest.approx(kept, rel=1e-12)


def test_a_stack_that_stores_scores_skips_none():
    old = replace(DENSE, software=software_profile("megatron-lm-2021"))
    assert losses(evaluate(old, Plan(tp=8)))["causal"] == 0
    assert losses(evaluate(DENSE, Plan(tp=8)))["causal"] < 0


@pytest.mark.parametrize(("task", "text"), PLANS)
def test_rates_less_latencies_add_up_to_minus_one(task, text):
    found = sensitivities(evaluate(task, Plan.parse(text)))
    assert {s.name for s in found} == set(KNOBS)
    assert tabled_share(found) == pytest.approx(0, abs=0.01)
    for s in found:
        slow, fast = s.step_if_halved, s.step_if_doubled
        assert slow >= fast if s.rate else slow <= fast
        assert (s.elasticity <= 0) == s.rate or s.elasticity == 0


def test_a_compute_bound_plan_follows_the_flop_rate():
    machine = DENSE.cluster.accelerator
    slow = replace(machine, peak={name: peak / 50 for name, peak in machine.peak.items()})
    task = replace(DENSE, cluster=replace(DENSE.cluster, accelerator=slow))
    (flops, *_) = sensitivities(evaluate(task, Plan(tp=2, recompute="full")))
    assert flops.name == "flop_rate"
    assert -1 < flops.elasticity < -0.95


def test_one_node_does_not_feel_the_network():
    one_node = task_of("llama-7b", gpus=8)
    found = {s.name: s.elasticity for s in sensitivities(evaluate(one_node, Plan(tp=4)))}
    assert found["inter_node_bandwidth"] == found["inter_node_latency"] == 0
    assert found["intra_node_bandwidth"] < 0


@pytest.mark.parametrize(("task", "text"), PLANS)
def test_differences_add_up(task, text):
    ours, theirs = evaluate(task, Plan.parse(text)), evaluate(task, Plan(tp=4, pp=2))
    seconds = sum(d.change for d in time_differences(ours, theirs))
    assert seconds == pytest.approx(theirs.step_seconds - ours.step_seconds, rel=1e-9)
    size = sum(d.change for d in memory_differences(ours, theirs))
    assert size == pytest.approx(theirs.memory_bytes - ours.memory_bytes, rel=1e-9)
    said = contrast_sentences(ours, theirs)
    assert f"{theirs.step_seconds:.4g} s a step" in said[0]
    assert said[-1].startswith("Its fullest rank needs")


def test_changed_fields_are_spelled():
    ours, theirs = evaluate(DENSE, Plan(tp=2)), evaluate(DENSE, Plan(tp=2, recompute="full"))
    assert changed_fields(ours.plans, theirs.plans) == {"recompute": ("none", "full")}
    runs = evaluate(DENSE, Plan.parse("tp=2 pp=2 segments=16:recompute=full|16"))
    assert changed_fields(evaluate(DENSE, Plan(tp=2, pp=2)).plans, runs.plans) == {
        "segments": ("none", "16:recompute=full|16")
    }
    assert contrast_sentences(ours, ours) == ["It is the same plan."]


@pytest.mark.parametrize(("task", "text"), PLANS)
def test_gemms_stay_below_their_roof(task, text):
    points = gemm_points(evaluate(task, Plan.parse(text)))
    assert len(points) >= 4
    assert len({(*p.sides, p.batch) for p in points}) == len(points)
    for p in points:
        assert 0 < p.rate < p.roof
        assert p.intensity > 0
