"""The shipped priors, the default stack that has their means, and the intervals they give."""

from __future__ import annotations

import json
from importlib import resources

import numpy as np
import pytest

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.software import UNCERTAIN
from plan3d.simulator.hardware.software_stack import SOFTWARE, neutral, software_profile
from plan3d.simulator.plan.plan import Plan, concat, resolve
from plan3d.simulator.step.evaluate import evaluate, simulate
from plan3d.simulator.task import Task
from plan3d.simulator.uncertainty import learned, memory
from plan3d.simulator.uncertainty.calibration import calibrated
from plan3d.simulator.uncertainty.constants import CONSTANTS
from plan3d.simulator.uncertainty.forecast import Forecast, step_interval
from plan3d.simulator.uncertainty.timed_steps import TimedStep, learn
from plan3d.simulator.workload.model import Model


def task(software="megatron-core", model="gpt3-13b", cluster="a100-80gb-sxm", gpus=64):
    return Task(
        Model.preset(model),
        Cluster.profile(cluster, gpus=gpus),
        sequence=2048,
        global_batch=128,
        software=software_profile(software),
    )


def test_the_default_stack_is_the_neutral_one_with_learned_means():
    """Rates exp(-mean) and floors exp(mean) times the neutral ones, to three digits."""
    text = resources.files("plan3d.simulator.uncertainty").joinpath(learned.PRIORS_FILE).read_text()
    record = json.loads(text)[learned.OTHER_STACKS]
    mean = dict(zip(record["names"], record["mean"], strict=True))
    default = software_profile("megatron-core")
    plain = neutral(default)
    assert (plain.sustained, plain.layer_floor, plain.step_seconds) == (1.0, 300e-6, 10e-3)
    assert plain.expert_seconds == pytest.approx(250e-6)
    assert default.sustained == pytest.approx(np.exp(-mean["gemm"]), abs=6e-4)
    assert default.layer_floor == pytest.approx(300e-6 * np.exp(mean["floor"]), rel=2e-3)
    assert default.step_seconds == pytest.approx(10e-3 * np.exp(mean["step"]), rel=2e-3)
    assert default.expert_seconds == pytest.approx(250e-6 * np.exp(mean["experts"]), rel=2e-3)
    free = {name for name, constant in CONSTANTS.items() if constant.spread_of_mean}
    assert (
        {name for name, value in mean.items() if abs(value) > 1e-3}
        <= free
        == {"gemm", "floor", "step", "experts"}
    )


def test_priors_read_back_as_they_were_written():
    prior = learned.shipped_prior(learned.FITTED_STACKS)
    again = learned.prior_from_record(json.loads(json.dumps(learned.prior_record(prior))))
    assert again.names == prior.names == tuple(CONSTANTS)
    assert again.covariance == pytest.approx(prior.covariance)
    assert np.linalg.eigvalsh(prior.covariance).min() > 0


def test_novelty_counts_the_parts_that_nobody_showed():
    """Of 64 A100 with 200 Gb/s each; one domain of 8 crosses no network."""
    many, few = (learned.Setting.of_task(task(gpus=gpus)) for gpus in (64, 8))
    assert many == ("megatron-core", "A100-80GB-SXM4", "InfiniBand HDR, 256 Gb/s", "dense")
    assert few == many._replace(network="none")
    moe = learned.Setting.of_task(task("torch", "mixtral-8x7b", "h100-sxm", gpus=8))
    assert moe == ("torch", "H100-80GB-SXM5", "none", "moe")
    shown = learned.parts_of([many, moe])
    assert shown["kind"] == ["dense", "moe"]
    found = [one.novelty(shown) for one in (many, few, moe._replace(stack="ours", kind="x"))]
    assert found == [0, 0, 2]


@pytest.mark.parametrize(
    ("name", "known"),
    [("megatron-core", False), ("torch", False), ("nanotron", True), ("zero-bubble", True)],
)
def test_a_stack_is_known_where_it_was_fitted(name, known):
    assert learned.has_fitted_rates(software_profile(name)) is known


def test_no_shipped_stack_without_a_neutral_one():
    for name in SOFTWARE:
        assert not any(one.origins for one in neutral(software_profile(name)).provenance.values())


def width(question, text="tp=8 pp=2 micro_batch=1"):
    costs = evaluate(question, Plan.parse(text))
    (low,), (high,) = step_interval(costs)
    assert low * high == pytest.approx(costs.step_seconds**2)
    return np.log(high / low) / 2


def test_intervals_are_wider_where_less_is_known():
    """A stack nobody timed, fewer than 16 bits, many experts."""
    plain = width(task())
    assert 0.1 < plain < 0.35
    assert width(task("zero-bubble")) < plain
    hopper = task(cluster="h100-sxm")
    assert width(hopper, "tp=8 pp=2 micro_batch=1 precision=fp8") > 1.1 * width(hopper)
    experts = task(model="deepseek-v3", cluster="h800-sxm", gpus=256)
    assert width(experts, "tp=1 pp=8 ep=32 micro_batch=1 recompute=full") > plain


def test_levels_hold_each_other():
    costs = evaluate(task(), Plan.parse("tp=8 pp=2 micro_batch=1"))
    half, most, nearly = (step_interval(costs, level) for level in (0.5, 0.8, 0.95))
    assert nearly[0] < most[0] < half[0] < costs.step_seconds < half[1] < most[1] < nearly[1]


def test_a_choice_among_plans_of_one_stack():
    """Two plans that are one share the probability; one that is far behind has little."""
    plans = ["tp=8 pp=2 micro_batch=1", "tp=8 pp=2 micro_batch=1", "tp=2 pp=8 micro_batch=8"]
    table = concat([resolve(Plan.parse(text), 64).table() for text in plans])
    costs = simulate(task(), table)
    share = Forecast.of_plans(costs.task, table).choice.probability_fastest
    assert share.sum() == pytest.approx(1)
    assert share[0] == pytest.approx(share[1], abs=0.06)
    assert costs.step[2] > 1.3 * costs.step[0]
    assert share[2] < 0.1
    assert (
        Forecast.of_plans(costs.task, table).choice.probability_fastest.tolist() == share.tolist()
    )


def own(tmp_path, spreads):
    """A stack whose file says how uncertain it is."""
    leaf = '{{ value = {}, unit = "%", source = "mine", kind = "measured" }}'
    lines = [f"{name} = {leaf.format(value)}" for name, value in spreads.items()]
    head = 'base = "megatron-core"\ntitle = "ours"\n[sources]\nmine = "our nodes"\n[spreads]\n'
    path = tmp_path / "ours.toml"
    path.write_text(head + "\n".join(lines) + "\n")
    return str(path)


def test_ones_own_priors_replace_what_runs_taught(tmp_path):
    """Standard deviations as the file says, without correlations; the others as of a stack that no
    published run had."""
    theirs = learned.prior_of(task())
    ours = learned.prior_of(task(own(tmp_path, {"gemm": 3, "steps": 1.5})))
    k = ours.names.index("gemm")
    others = np.delete(np.arange(len(ours.names)), k)
    assert ours.covariance[k, k] == pytest.approx(0.03**2)
    assert not ours.covariance[k, others].any()
    rest = np.ix_(others, others)
    wider = learned.shipped_prior(learned.OTHER_STACKS).of_unit(1).covariance
    np.testing.assert_array_equal(ours.covariance[rest], wider[rest])
    assert (np.diag(wider) > np.diag(theirs.covariance)).all()
    assert (ours.sigma, theirs.sigma) == (pytest.approx(0.015), pytest.approx(0.0389, abs=0.02))


def test_intervals_are_those_of_ones_own_priors(tmp_path):
    """A machine whose constants are known to a hundredth has an interval of a few."""
    known = own(tmp_path, dict.fromkeys((*CONSTANTS, "steps"), 1) | {"peaks": 1})
    theirs, ours = task(), task(known)
    plan = resolve(Plan.parse("tp=2 pp=4"), 64).table()
    assert (
        Forecast.of_plans(ours, plan).half_width()
        < 0.05
        < Forecast.of_plans(theirs, plan).half_width()
    )
    assert memory.spread_of(ours).stack == pytest.approx(0.01)
    assert memory.spread_of(theirs).stack > 0.05


def test_steps_of_hugging_face_models_scatter_more_than_others_and_less_once_some_are_timed(
    tmp_path,
):
    """f^2 - 1 of the prior's sigma^2, and 2 of 5 of that after three steps; one's own profile that
    has the Trainer's for its base scatters as it does."""
    plan, theirs = resolve(Plan.parse("zero=3"), 64).table(), task("hf-trainer")
    prior = learned.prior_of(theirs)
    whole = (prior.scatter**2 - 1) * prior.sigma**2
    assert prior.scatter > 2
    assert Forecast.of_plans(theirs, plan).further == pytest.approx(whole)
    assert Forecast.of_plans(task("torch"), plan).further == 0
    mine = tmp_path / "mine.toml"
    mine.write_text('base = "hf-trainer"\n')
    assert Forecast.of_plans(task(str(mine)), plan).further == pytest.approx(whole)
    seconds = {"zero=3": 2.0, "zero=3 micro_batch=2": 1.8, "zero=3 recompute=full": 2.5}
    timed = [TimedStep(theirs, Plan.parse(one), took, one) for one, took in seconds.items()]
    known = calibrated(theirs, learn(timed).calibration)
    assert Forecast.of_plans(known, plan).further == pytest.approx(0.4 * whole)


@pytest.mark.parametrize(
    ("spreads", "why"),
    [({"gem": 3}, "unknown constant; did you mean gemm"), ({"gemm": 0}, "must be at least 0.001")],
)
def test_spreads_of_something_else_are_refused(tmp_path, spreads, why):
    with pytest.raises(InputError, match=why):
        software_profile(own(tmp_path, spreads))


def test_every_constant_may_have_a_spread_of_ones_own():
    assert tuple(CONSTANTS) == UNCERTAIN
