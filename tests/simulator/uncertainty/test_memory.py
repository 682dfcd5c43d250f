"""Probabilities that plans fit: quantiles by hand, what moves them, where their word changes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from not_empty import not_empty

from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.software_stack import SOFTWARE, neutral, software_profile
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task
from plan3d.simulator.uncertainty import memory
from plan3d.simulator.uncertainty.learned import (
    FITTED_STACKS,
    MEMORY,
    OTHER_STACKS,
    shipped_records,
)
from plan3d.simulator.uncertainty.memory import (
    FITS_PROBABILITY,
    Spread,
    probability_within,
    share_for_probability,
    student_cdf,
)
from plan3d.simulator.workload.model import Model

SPREAD = Spread(0.17, 0.06)


def task(software="megatron-core", memory_bytes=None, model="gpt3-13b"):
    cluster = Cluster.profile("a100-80gb-sxm", gpus=64)
    if memory_bytes:
        accelerator = replace(cluster.accelerator, memory=memory_bytes)
        cluster = replace(cluster, accelerator=accelerator)
    stack = software_profile(software)
    return Task(Model.preset(model), cluster, sequence=2048, global_batch=128, software=stack)


def test_quantiles_of_student_s_t():
    """Tables of t with 4 degrees of freedom: 0.741, 2.132 and 4.604."""
    quantiles = np.array([0.0, 0.740697, 2.131847, 4.604095])
    assert student_cdf(quantiles) == pytest.approx([0.5, 0.75, 0.95, 0.995], abs=1e-6)
    assert student_cdf(-quantiles) == pytest.approx([0.5, 0.25, 0.05, 0.005], abs=1e-6)


def test_a_prediction_is_the_median():
    assert probability_within(np.zeros(3), SPREAD) == pytest.approx(0.5)


def test_plans_that_share_nothing_are_off_by_student_s_t():
    room = np.array([2.131847, 4.604095]) * 0.06
    assert probability_within(room, Spread(0.0, 0.06)) == pytest.approx([0.95, 0.995], abs=1e-6)


@pytest.mark.parametrize("which", [FITTED_STACKS, OTHER_STACKS])
def test_quadrature_is_exact_enough(which):
    """Against a sum over 4,000 values of what plans of a stack share."""
    record = shipped_records()[MEMORY][which]
    b = np.linspace(-8, 8, 4001) * record["stack"]
    weight = np.exp(-0.5 * (b / record["stack"]) ** 2)
    for room in (0.02, 0.1, 0.3):
        exact = student_cdf((room - b) / record["plan"]) @ weight / weight.sum()
        found = float(probability_within(np.array(room), Spread(record["stack"], record["plan"])))
        assert found == pytest.approx(exact, abs=1e-3)


@given(st.floats(-2, 2), st.floats(0, 1))
def test_more_room_is_never_less_likely_to_fit(room, more):
    less, than = probability_within(np.array([room, room + more]), SPREAD)
    assert less <= than + 1e-12


def test_a_share_and_its_probability_belong_together():
    for wanted in (0.6, FITS_PROBABILITY, 0.99):
        room = -math.log(share_for_probability(wanted, SPREAD))
        assert float(probability_within(np.array(room), SPREAD)) == pytest.approx(wanted, abs=1e-3)
    assert share_for_probability(FITS_PROBABILITY, SPREAD) < share_for_probability(0.5, SPREAD) == 1


def test_words_by_hand():
    words = memory.verdict_of(np.array([0.0, 0.49, 0.5, 0.94, 0.95, 1.0]))
    assert words.tolist() == ["does not fit"] * 2 + ["edge"] * 2 + ["fits"] * 2
    said = [memory.format_probability(p) for p in (0.0, 0.42, 0.949, 0.95, 1.0)]
    assert said == ["<0.01", "0.42", "0.94", "0.95", ">0.99"]


@pytest.mark.parametrize("software", ["megatron-core", "nanotron"])
def test_a_plan_fits_with_0_95_and_not_below(software):
    plan = Plan(tp=8, pp=4, micro_batch=2, recompute="full")
    needed = evaluate(task(software), plan).memory_bytes
    share = memory.fitting_share(evaluate(task(software), plan))
    for factor, word in ((0.99, "edge"), (1.01, "fits")):
        costs = evaluate(task(software, factor * needed / share), plan)
        assert memory.verdict(costs) == word
        assert (memory.probability_fits(costs) >= FITS_PROBABILITY) == (word == "fits")
        assert word.replace("edge", "fits, at the edge") in memory.fit_sentence(costs)
    small = evaluate(task(software, 0.99 * needed), plan)
    assert memory.verdict(small) == "does not fit"
    assert not small.fits


def test_rows_of_a_table_are_single_plans():
    plans = [Plan(tp=8, pp=4), Plan(tp=4, pp=2, micro_batch=4)]
    one = [memory.probability_fits(evaluate(task(), plan)) for plan in plans]
    both = evaluate(task(), Plan(tp=[8, 4], pp=[4, 2], micro_batch=[1, 4]))
    assert memory.probability_fits(both) == pytest.approx(one)
    assert memory.verdict(both).tolist() == [memory.verdict(evaluate(task(), p)) for p in plans]


def test_memory_that_follows_from_times_is_drawn_with_them():
    """ZB-H2 holds back more weight gradients where its passes are of other lengths: a plan that is
    predicted with few does not fit in the draws that need more. ZB-H1 holds back as published."""
    cluster = Cluster.profile("h100-sxm", gpus=16)
    model = Model.preset("llama-3.1-8b")
    question = Task(model, cluster, sequence=4096, global_batch=64)
    for schedule, follows in (("zb-h2", True), ("zb-h1", False)):
        costs = evaluate(question, f"tp=1 pp=8 schedule={schedule}")
        shares = memory._shares_by_times(question, costs.plans.table())[:, 0]
        here = costs.memory_bytes / costs.capacity
        assert (len(np.unique(shares.round(6))) > 1) == follows
        assert shares.min() <= here * (1 + 1e-9)
        margins = -np.log(shares if follows else [here])
        expected = probability_within(margins, memory.spread_of(question)).mean()
        assert memory.probability_fits(costs) == pytest.approx(expected, rel=1e-9)


def test_peaks_in_fewer_bits_are_as_sure():
    """Errors of published peaks below 16 bits are no larger: the same share of the memory fits."""
    plan = {"tp": 8, "pp": 4, "micro_batch": 2}
    h100 = replace(task(), cluster=Cluster.profile("h100-sxm", gpus=64))
    costs = [evaluate(h100, Plan(**plan, precision=name)) for name in ("bf16", "fp8")]
    sixteen, eight = (memory.fitting_share(one) for one in costs)
    assert sixteen == eight


def test_stacks_whose_peaks_are_known():
    known = {name for name, stack in SOFTWARE.items() if memory.has_fitted_peaks(stack)}
    measured = {"torch", "torchtitan", "hf-trainer", "hf-deepspeed"}
    assert {"nanotron", "zero-bubble", "megatron-deepspeed-bf16"} | measured <= known
    assert not {"megatron-core", "automodel", "fsdp"} & known
    assert {n for n, stack in SOFTWARE.items() if memory.has_fitted_peaks(neutral(stack))} == (
        measured
    )
    whole, plain = (
        shipped_records()[MEMORY][OTHER_STACKS]["mean"],
        memory.prior_spread(neutral(software_profile("megatron-core"))).mean,
    )
    assert plain == whole > shipped_records()[MEMORY][FITTED_STACKS]["mean"]


@pytest.mark.parametrize("name", SOFTWARE)
def test_predicted_peaks_are_medians(name):
    """What stacks hold beyond what is counted is in the prediction where nobody fitted or measured
    their peaks, and in its neutral profile in the probability."""
    stack = software_profile(name)
    assert (stack.uncounted == 0) == memory.has_fitted_peaks(stack)
    assert memory.prior_spread(stack).mean == pytest.approx(0.0, abs=0.008)


def test_every_number_says_what_taught_it():
    for record in not_empty(shipped_records()[MEMORY].values()):
        assert record["peaks"] + record["labels"] >= len(record["sources"])
        assert 1 <= len(record["origins"]) <= len(record["sources"])
