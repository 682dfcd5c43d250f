"""Timed steps move the constants of a stack towards what they were made with."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from not_empty import not_empty

from plan3d.answers.sweep import sweep
from plan3d.cli.main import main
from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.plan.plan import Plan, concat, resolve
from plan3d.simulator.step.evaluate import by_stage, evaluate
from plan3d.simulator.step.memory import further_share
from plan3d.simulator.task import Task
from plan3d.simulator.uncertainty import memory
from plan3d.simulator.uncertainty.calibration import calibrated, read_calibration
from plan3d.simulator.uncertainty.constants import with_constants
from plan3d.simulator.uncertainty.forecast import Forecast
from plan3d.simulator.uncertainty.memory import prior_spread, probability_fits
from plan3d.simulator.uncertainty.timed_steps import TimedStep, device_peak, learn, learn_peaks
from plan3d.simulator.validation.predict_runs import rank_memory
from plan3d.simulator.workload.model import Model

TASK = Task(
    Model.preset("gpt3-13b"),
    Cluster.profile("a100-80gb-sxm", gpus=64),
    sequence=2048,
    global_batch=256,
)
TEXTS = ("tp=2 pp=4 micro_batch=1", "tp=4 micro_batch=2", "pp=8 micro_batch=1 recompute=full")
NEW = "tp=8 pp=2 micro_batch=2"
COMMAND = ["calibrate", "steps", "--model", "gpt3-13b", "--cluster", "a100-80gb-sxm"]
COMMAND += ["--gpus", "64", "--global-batch", "256"]


def plan(text):
    return resolve(Plan.parse(text), TASK.gpus)


def seconds(task, text):
    return evaluate(task, plan(text)).step_seconds


def timed(factor=1.0, changes=None, texts=TEXTS):
    """Steps of a machine whose constants are others."""
    machine = with_constants(TASK, changes or {})
    return [
        TimedStep(TASK, plan(text), factor * seconds(machine, text), f"step {i}")
        for i, text in enumerate(texts, 1)
    ]


@cache
def taught(*held_bytes):
    """What is learned of the steps of TEXTS, or of runs of LEAN that held so many bytes."""
    return learn([held(LEAN, size) for size in held_bytes] or timed())


@pytest.mark.parametrize(
    "given",
    [Plan(tp=2, pp=4), "tp=2 pp=4", {"tp": 2, "pp": 4}, Plan(tp=[2], pp=[4])],
)
def test_a_plan_of_a_step_is_resolved(given):
    assert str(TimedStep(TASK, given, 4.2, "run 1").plan) == "tp=2 pp=4 dp=8"
    assert learn([TimedStep(TASK, given, 4.2, "run 1")]).calibration.steps == 1


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"plan": "tp=3"}, "run 1: tensor size 3 does not divide"),
        ({"plan": "tq=3"}, "run 1: .*tq"),
        ({"plan": 7}, "run 1: a plan must be a Plan"),
        ({"plan": Plan(tp=[2, 4])}, "run 1: a measured step ran one plan"),
        ({"seconds": -1}, "run 1: seconds must be a number above 0, not -1; None where it ran out"),
        ({"seconds": float("nan")}, "run 1: seconds must be a number above 0, not nan"),
        ({"seconds": "4"}, "run 1: seconds must be a number above 0, not '4'"),
        ({"peak": 0}, "run 1: peak must be a number above 0, not 0; None where nobody looked"),
        ({"peak": float("inf")}, "run 1: peak must be a number above 0, not inf"),
        ({"peak": 1e9, "seconds": None}, "run 1: a run that ran out of memory has no peak"),
        ({"task": "llama-7b"}, "task must be of type Task"),
        ({"source": 1}, "source must be of type str"),
    ],
)
def test_what_is_no_timed_step_is_one_error(given, why):
    usual = {"task": TASK, "plan": "tp=2", "seconds": 4.2, "source": "run 1"}
    with pytest.raises(InputError, match=why):
        TimedStep(**{**usual, **given})
    with pytest.raises(InputError, match="a run must be of type TimedStep"):
        learn([("tp=2", 4.2)])


def test_a_slower_machine_is_learned_from_three_of_its_steps():
    """Everything takes 20 % longer: a plan that nobody timed is predicted within 3 %."""
    found = learn(timed(1.2))
    task = calibrated(TASK, found.calibration)
    wanted = 1.2 * seconds(TASK, NEW)
    assert seconds(TASK, NEW) < 0.85 * wanted
    assert seconds(task, NEW) == pytest.approx(wanted, rel=0.03)
    assert np.abs(np.log(found.held_out_seconds / found.measured_seconds)).max() < 0.05
    assert np.abs(np.log(found.prior_seconds / found.measured_seconds)).min() > 0.15


def test_constants_that_differ_are_told_apart():
    """Launches take three times as long, nothing else: small shapes tell."""
    found = learn(timed(changes={"floor": np.log(3.0)}))
    task = calibrated(TASK, found.calibration)
    wanted = seconds(with_constants(TASK, {"floor": np.log(3.0)}), NEW)
    assert (
        abs(np.log(seconds(task, NEW) / wanted)) < abs(np.log(seconds(TASK, NEW) / wanted)) + 0.01
    )


@pytest.mark.parametrize("steps", [1, 3])
def test_intervals_shrink_with_every_step(steps):
    table = plan(NEW).table()
    before = Forecast.of_plans(TASK, table).half_width()
    task = calibrated(TASK, learn(timed(texts=TEXTS[:steps])).calibration)
    after = Forecast.of_plans(task, table).half_width()
    assert after < (0.9, None, 0.7)[steps - 1] * before


def test_what_the_file_says_is_what_was_predicted(tmp_path):
    """The common factor, spread over the other constants, is within a percent of itself."""
    found = learn(timed(1.3))
    path = tmp_path / "mine.toml"
    path.write_text(found.calibration.text)
    task = calibrated(TASK, read_calibration(path))
    each = [seconds(task, text) for text in TEXTS]
    assert each == pytest.approx(found.posterior_seconds, rel=0.01)


@pytest.mark.parametrize(
    ("row", "column", "number"), [("mean", 0, "1e9"), ("covariance", 1, "0.5"), ("sigma", 0, "1e9")]
)
def test_a_posterior_that_cannot_be_is_refused(tmp_path, row, column, number):
    """Constants of e^20, and a covariance that is not symmetric, end in no numbers."""
    path = tmp_path / "mine.toml"
    text = taught().calibration.text
    begin = text.index(f"{row} = ")
    found = list(re.finditer(r"-?[0-9][0-9.e-]*", text[begin:]))[column]
    path.write_text(text[: begin + found.start()] + number + text[begin + found.end() :])
    with pytest.raises(InputError, match="not the posterior"):
        read_calibration(path)


@pytest.mark.parametrize(("correlation", "reads"), [(0.5, True), (-0.99, True), (1.5, False)])
def test_no_two_constants_are_correlated_by_more_than_one(tmp_path, correlation, reads):
    """c = r sqrt(a b) is the covariance of no two numbers of variances a and b where r > 1."""
    path = tmp_path / "mine.toml"
    text = taught().calibration.text
    begin, size = text.index("covariance = "), len(taught().prior.names)
    found = list(re.finditer(r"-?[0-9][0-9.e-]*", text[begin:]))[: size**2]
    one, other = (float(found[place][0]) for place in (0, size + 1))
    numbers = [m[0] if i % (size + 1) == 0 else "0.0" for i, m in enumerate(found)]
    numbers[1] = numbers[size] = repr(correlation * (one * other) ** 0.5)
    rows = [f"[{', '.join(numbers[i : i + size])}]" for i in range(0, size**2, size)]
    end = begin + found[-1].end()
    path.write_text(f"{text[:begin]}covariance = [{', '.join(rows)}{text[end:].lstrip()[1:]}")
    if reads:
        assert read_calibration(path).posterior.names == taught().prior.names
    else:
        with pytest.raises(InputError, match="not the posterior"):
            read_calibration(path)


def test_a_step_that_contradicts_the_others_is_named():
    steps = timed(1.0, texts=(*TEXTS, NEW, "tp=2 pp=2 micro_batch=1"))
    odd = TimedStep(TASK, steps[3].plan, 2.5 * steps[3].seconds, "step 4")
    found = learn([*steps[:3], odd, steps[4]])
    assert found.contradicting_steps == [3]


def test_steps_of_something_else_are_refused():
    (step,) = timed(12.0, texts=TEXTS[:1])
    with pytest.raises(InputError, match=r"step 1: measured .* more than ten times off"):
        learn([step])
    with pytest.raises(InputError, match="no timed step"):
        learn([])


def run(capsys, *arguments):
    code = main([*COMMAND, *arguments])
    return code, capsys.readouterr()


def test_the_command_writes_a_calibration_that_others_take(tmp_path, capsys):
    rows = "\n".join(f'"{s.plan}",{s.seconds}' for s in timed(1.2))
    (tmp_path / "runs.csv").write_text(f"plan,seconds\n{rows}\n")
    out = str(tmp_path / "mine.toml")
    code, printed = run(capsys, str(tmp_path / "runs.csv"), "--out", out)
    assert code == 0
    assert "what moved" in printed.out
    asked = ["estimate", *COMMAND[2:], "--plan", NEW, "--json"]
    assert main(asked) == 0
    before = capsys.readouterr().out
    assert main([*asked, "--calibration", out]) == 0
    after = capsys.readouterr().out
    assert before != after
    assert "calibrated with 3 timed steps" in after
    assert main([*asked, "--calibration", out, "--software", "nanotron"]) == 2
    assert "--calibration is of megatron-core on A100" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--plan", "tp=2", "--seconds", "0"], "must be above 0 seconds"),
        (["--plan", "tp=2", "--seconds", "-4"], "must be above 0 seconds"),
        (["--plan", "tp=2"], "1 --plan and 0 --seconds: give one for each"),
        (["--plan", "tp=3", "--seconds", "4"], "tp"),
        ([], "no timed step"),
        (["none.csv"], "none.csv: cannot be read"),
        (["--plan", "tp=2", "--seconds", "4", "--out", "mine.csv"], "ends in .toml"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    arguments, said, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    code, printed = run(capsys, *arguments)
    assert code == 2
    assert said in printed.err
    assert printed.err.count("\n") == 1
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("plan,second\ntp=2,4\n", "no column seconds"),
        ("plan,seconds,gpu\ntp=2,4,8\n", "unknown column 'gpu'; did you mean gpus"),
        ("plan,seconds\ntp=2,fast\n", "row 1: seconds"),
        ("plan,seconds\ntp=2,4\ntp=x,4\n", "runs.csv: row 2: tp"),
        ("plan,seconds\ntq=2,4\n", "runs.csv: row 1: unknown plan field 'tq'"),
        ("plan,seconds\nfast,4\n", "runs.csv: row 1: plan 'fast' is neither FIELD=VALUE"),
        ("plan,seconds,gpus\ntp=2,4,x\n", "row 1: gpus 'x' must be a whole number"),
        ("plan,seconds\ntp=2 pp=4 micro_batch=1,4000\n", "more than ten times off"),
    ],
)
def test_bad_files_are_one_line(text, said, capsys, tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(text)
    out = tmp_path / "mine.toml"
    code, printed = run(capsys, str(path), "--out", str(out))
    assert code == 2
    assert said in printed.err
    assert printed.err.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize("text", ["", "[calibration]\nnames = 3\n", "[calibration]\n"])
def test_files_that_are_no_calibration(text, tmp_path, capsys):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    assert main(["estimate", *COMMAND[2:], "--plan", NEW, "--calibration", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def ran(text, factor=1.0, seconds=1.0):
    """A run of TASK whose fullest GPU held `factor` times what is predicted."""
    peak = evaluate(TASK, plan(text)).memory_bytes * factor
    return TimedStep(TASK, plan(text), seconds, text, peak)


def test_one_peak_counts_by_the_spreads_of_stack_and_plan():
    """b | y ~ N(m + w (y - m), w plan^2), w = stack^2 / (stack^2 + plan^2), m the mean of stacks,
    near for Student's t errors of 4 degrees of freedom (variance 2 plan^2, narrower in the middle):
    between both weights."""
    spread = prior_spread(TASK.software)
    found = learn_peaks([ran(TEXTS[0], 1.1)])
    weights = [spread.stack**2 / (spread.stack**2 + k * spread.plan**2) for k in (2.0, 1.0)]
    low, high = (spread.mean + w * (np.log(1.1) - spread.mean) for w in weights)
    assert low < found.log_bias < high
    assert found.spread.stack < spread.stack
    assert found.spread.plan == spread.plan


def test_peaks_of_ones_own_move_the_peaks_of_others():
    """A stack that holds 10 % more than is predicted: a plan that nobody looked at does too, and
    it is surer than before whether it fits."""
    learned = learn([ran(text, 1.1, seconds(TASK, text)) for text in TEXTS])
    task = calibrated(TASK, learned.calibration)
    before, after = (evaluate(one, plan(NEW)) for one in (TASK, task))
    assert after.memory_bytes / before.memory_bytes == pytest.approx(1.1, abs=0.02)
    assert memory.spread_of(task).stack < 0.5 * memory.spread_of(TASK).stack


def test_a_run_that_ran_out_is_a_lower_bound():
    """It was predicted to need four fifths of a GPU: others need more than was predicted."""
    text = "tp=2 micro_batch=2"
    costs = evaluate(TASK, plan(text))
    assert 0.75 < costs.memory_bytes / costs.capacity < 0.85
    out = TimedStep(TASK, plan(text), None, "run 1")
    learned = learn([out])
    assert repr(learned) == "StepCalibration(0 timed steps)"
    assert learned.calibration.peaks.log_bias > 0.05
    assert not learned.steps
    task = calibrated(TASK, learned.calibration)
    assert probability_fits(evaluate(task, plan(NEW))) < probability_fits(evaluate(TASK, plan(NEW)))


def test_what_needs_as_much_as_a_run_that_ran_out_does_not_fit(tmp_path):
    """A plan that was said to fit ran out: neither it nor one that needs more fits, whatever is
    thought of the others, and the file says so too."""
    lean, more = plan("tp=4 pp=2 micro_batch=1"), plan("tp=4 micro_batch=2")
    assert probability_fits(evaluate(TASK, lean)) > 0.99
    found = learn([TimedStep(TASK, lean, None, "run 1")]).calibration
    path = tmp_path / "mine.toml"
    path.write_text(found.text)
    for calibration in (found, read_calibration(path)):
        task = calibrated(TASK, calibration)
        assert [probability_fits(evaluate(task, one)) for one in (lean, more)] == [0.0, 0.0]
        assert probability_fits(evaluate(task, plan("tp=8 pp=4"))) > 0.9
        limit = memory.fitting_bytes(task)
        assert limit < evaluate(task, lean).memory_bytes
        for headroom in (None, 0.0):
            listed = rank_plans(task, Ranking(headroom=headroom, top=3))
            assert max(listed.costs.memory_bytes) < evaluate(task, lean).memory_bytes
    ran = TimedStep(TASK, more, seconds(TASK, "tp=4 micro_batch=2"), "run 2")
    contradicted = learn([TimedStep(TASK, lean, None, "run 1"), ran]).calibration
    assert probability_fits(evaluate(calibrated(TASK, contradicted), more)) > 0


LEAN = "tp=4 pp=2 micro_batch=1"
FAR = 3.0
"""Times its prediction that a run held."""


def held(text, size):
    """A run of TASK whose fullest GPU held so many bytes."""
    return TimedStep(TASK, plan(text), seconds(TASK, text), text, size)


def needs(task, text):
    return evaluate(task, plan(text)).memory_bytes


def learned_and_read(tmp_path, runs):
    """The task with what runs taught, at once and by way of a file."""
    found = learn(runs).calibration
    path = tmp_path / "mine.toml"
    path.write_text(found.text)
    return [calibrated(TASK, one) for one in (found, read_calibration(path))]


def with_memory(task, size):
    cluster = task.cluster
    chip = replace(cluster.accelerator, memory=size)
    return replace(task, cluster=replace(cluster, accelerator=chip))


def test_a_peak_far_above_its_prediction_is_never_predicted_lower(tmp_path):
    """It weighs nothing beside what is known of stacks: so the plan, and what needs as much, is
    taken to hold what it held, and fits where that is, not where the prediction is."""
    before = needs(TASK, LEAN)
    peak = FAR * before
    assert before / TASK.cluster.accelerator.memory < 0.35 < 0.6 < peak / 85e9 < 0.95
    learned = learn([held(LEAN, peak)])
    assert learned.contradicting_peaks == [0]
    assert learned.peak_weights[0] < 0.05
    for task in learned_and_read(tmp_path, [held(LEAN, peak)]):
        assert needs(task, LEAN) == pytest.approx(peak, rel=1e-6)
        assert needs(task, LEAN) >= peak * (1 - 1e-9)
        assert needs(task, "tp=4 micro_batch=1") >= peak * (1 - 1e-9)
        assert needs(task, "tp=8 pp=4") == pytest.approx(needs(TASK, "tp=8 pp=4"), rel=0.1)
        costs = evaluate(task, plan(LEAN))
        assert sum(costs.memory.values()) == pytest.approx(costs.memory_bytes)
        assert max(by_stage(costs)["total"]) == pytest.approx(costs.memory_bytes)
        small = evaluate(with_memory(task, 0.95 * peak), plan(LEAN))
        assert not small.fits
        assert probability_fits(small) < 0.5
        table = evaluate(task, Plan(tp=[4, 8], pp=[2, 4]))
        assert table.memory_total[0] == pytest.approx(peak, rel=1e-6)


def test_searches_obey_what_runs_held(tmp_path):
    """Plans that are predicted to need as much as the run do not fit in less than it held; others
    hold what stacks do in the mean."""
    peak = FAR * needs(TASK, LEAN)
    lean = needs(TASK, LEAN) * np.exp(prior_spread(TASK.software).mean)
    for task in not_empty(learned_and_read(tmp_path, [held(LEAN, peak)])):
        small = with_memory(task, 0.9 * peak)
        for more in ({}, {"headroom": 0.0}, {"headroom": 0.0, "backend": "branch-and-bound"}):
            found = rank_plans(small, Ranking(top=3, **more))
            assert found.costs is not None
            assert max(found.costs.memory_total) < lean * 1.05
        choose = {"tp": [4], "pp": [2], "virtual_stages": [1], "micro_batch": [1]}
        found = rank_plans(
            small, Ranking(headroom=0.0, backend="dynamic-programming", choose=choose)
        )
        assert found.costs is None or found.best.memory_bytes < lean * 1.05
        roomy = rank_plans(task, Ranking(headroom=0.0, choose=choose, top=3))
        assert max(roomy.costs.memory_total) >= peak * (1 - 1e-9)


def test_a_peak_that_a_larger_plan_contradicts_is_its_own_plans_alone(tmp_path):
    more = "tp=4 micro_batch=1"
    ordinary, peak = needs(TASK, more), FAR * needs(TASK, LEAN)
    assert needs(TASK, LEAN) < ordinary < peak
    for task in learned_and_read(tmp_path, [held(LEAN, peak), held(more, ordinary)]):
        assert needs(task, LEAN) == pytest.approx(peak, rel=1e-6)
        assert needs(task, more) == pytest.approx(ordinary, rel=0.1)
        between = needs(task, "tp=4 pp=2 micro_batch=2")
        assert needs(TASK, LEAN) < between < peak


@pytest.mark.parametrize("times", [1.05, 1.22])
def test_a_peak_that_is_not_named_moves_the_others_and_fits_in_no_less(times):
    """What it contradicts is within what is known of stacks, which then hold more."""
    peak = times * needs(TASK, LEAN)
    learned = learn([held(LEAN, peak)])
    assert learned.contradicting_peaks == []
    assert not learned.calibration.peaks.overfull
    task = calibrated(TASK, learned.calibration)
    assert needs(task, NEW) > needs(TASK, NEW) * (1 + 0.3 * (times - 1))
    assert (
        probability_fits(evaluate(with_memory(task, 0.98 * peak), plan(LEAN)))
        < memory.FITS_PROBABILITY
    )


def test_a_peak_far_below_its_prediction_is_named_and_bounds_nothing():
    low = learn([held(LEAN, 0.4 * needs(TASK, LEAN))])
    assert low.contradicting_peaks == [0]
    assert not low.calibration.peaks.overfull


def test_a_peak_above_the_memory_of_its_board_fits_where_it_ran():
    """Boards differ by a few per cent: what ran is not said to need more than there is."""
    full = 2 * needs(TASK, LEAN)
    small = with_memory(TASK, full)
    run = TimedStep(small, plan(LEAN), seconds(small, LEAN), "run 1", 1.02 * full)
    task = calibrated(small, learn([run]).calibration)
    assert needs(task, LEAN) == full
    assert evaluate(task, plan(LEAN)).fits


def test_a_contradicting_peak_is_named_in_one_line(capsys, tmp_path):
    took, out = seconds(TASK, LEAN), str(tmp_path / "mine.toml")
    asked = ["--plan", LEAN, "--seconds", f"{took}", "--peak"]
    code, printed = run(capsys, *asked, f"{FAR * needs(TASK, LEAN)}B", "--out", out)
    assert code == 0
    text = " ".join(printed.out.split())
    gib = FAR * needs(TASK, LEAN) / 2**30
    assert "- the peak of --plan 1 contradicts its prediction and weighs 0.0" in text
    assert f"no plan that needs as much is predicted below {gib:.1f} GiB" in text
    said = ["estimate", *COMMAND[2:], "--plan", LEAN, "--calibration", out, "--memory", "40GiB"]
    assert main(said) == 0
    assert f"does not fit: {gib - 40:.1f} GiB too much" in capsys.readouterr().out
    code, printed = run(capsys, *asked, f"{needs(TASK, LEAN)}B")
    assert "contradicts" not in printed.out
    code, printed = run(capsys, *asked, f"{0.4 * needs(TASK, LEAN)}B")
    assert "- the peak of --plan 1 contradicts its prediction and weighs 0.0" in printed.out
    assert "predicted below" not in printed.out
    code, printed = run(capsys, *asked, f"{FAR * needs(TASK, LEAN)}B", "--json")
    assert json.loads(printed.out)["contradicting_peaks"] == ["--plan 1"]


@pytest.mark.parametrize("rows", ["[[1.0, 2.0]]", "[[1.0, -2.0, 0.0]]", '[["a", 2.0, 0.0]]', "3"])
def test_what_runs_held_must_be_whole(rows, tmp_path):
    found = taught(FAR * needs(TASK, LEAN)).calibration
    begin = found.text.index("held = ")
    path = tmp_path / "mine.toml"
    path.write_text(found.text[:begin] + f"held = {rows}\n")
    with pytest.raises(InputError, match=r"\[peaks\]"):
        read_calibration(path)


def test_runs_that_ran_are_an_upper_bound():
    """Of four predicted to need nine tenths one ran out: others fit likelier where three ran."""
    out = TimedStep(TASK, plan(TEXTS[0]), None, "run 1")
    full = evaluate(TASK, out.plan).memory_bytes / 0.9
    chip = replace(TASK.cluster.accelerator, memory=full)
    small = replace(TASK, cluster=replace(TASK.cluster, accelerator=chip))
    out = replace(out, task=small)
    more = replace(out, seconds=seconds(small, TEXTS[0]))
    one, four = (learn(runs).calibration.peaks for runs in ([out], [out, more, more, more]))
    assert 0 < four.log_bias < 0.7 * one.log_bias
    assert four.runs == 4


def test_what_leaves_most_uncertain_is_in_the_steps():
    """A dense model has no experts: to time others of it says nothing of them."""
    learned = learn([TimedStep(TASK, plan(TEXTS[0]), seconds(TASK, TEXTS[0]), "run 1")])
    assert dict(zip(learned.prior.names, learned.largest_shares, strict=True))["experts"] == 0
    assert learned.most_uncertain_constant not in ("experts", "common")


def test_a_step_above_the_peak_of_its_gpus_is_refused():
    costs = evaluate(TASK, plan(TEXTS[0]))
    fastest = costs.mfu * costs.step_seconds
    learn([TimedStep(TASK, plan(TEXTS[0]), fastest * 1.01, "run 1")])
    with pytest.raises(InputError, match=r"run 1: measured .* 101 % of its GPUs' peak"):
        learn([TimedStep(TASK, plan(TEXTS[0]), fastest / 1.01, "run 1")])


def test_peaks_outlive_their_file(tmp_path):
    found = learn([ran(text, 0.9, seconds(TASK, text)) for text in TEXTS]).calibration
    path = tmp_path / "mine.toml"
    path.write_text(found.text)
    read = read_calibration(path)
    assert read.peaks.log_bias == pytest.approx(found.peaks.log_bias, abs=1e-5)
    assert read.peaks.runs == 3
    assert read.peaks.spread.stack == pytest.approx(found.peaks.spread.stack, abs=1e-5)
    path.write_text(found.text.replace("runs = 3", "runs = 0"))
    with pytest.raises(InputError, match="peaks"):
        read_calibration(path)


@pytest.mark.parametrize("peak", [1e3, 79.9 * 2**30, 200 * 2**30])
def test_a_peak_of_something_else_is_refused(peak):
    with pytest.raises(InputError, match=r"peak measured .* check its unit"):
        learn([TimedStep(TASK, plan(NEW), seconds(TASK, NEW), "run 1", peak)])


def test_peaks_on_the_command_line(capsys, tmp_path):
    """Measured and predicted stand beside each other, `oom` is a bound, the file takes both."""
    rows = tmp_path / "runs.csv"
    took = seconds(TASK, TEXTS[0])
    rows.write_text(f"plan,seconds,peak\n{TEXTS[0]},{took},40GiB\nmicro_batch=1 tp=1 pp=4,oom,\n")
    out = tmp_path / "mine.toml"
    assert main([*COMMAND, str(rows), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "peak of the fullest GPU" in printed
    assert "40.0" in printed
    assert ">" in printed
    assert read_calibration(out).peaks.runs == 2
    assert main([*COMMAND, "--plan", NEW, "--seconds", "oom", "--peak", "3GiB"]) == 2
    assert "has no peak" in capsys.readouterr().err
    assert main([*COMMAND, "--plan", NEW, "--seconds", "4", "--peak", "3"]) == 2
    assert "3" in capsys.readouterr().err


LINE = " iteration {}/ 50 | elapsed time per iteration (ms): {:.1f} | global batch size: 256 |\n"


def _beside(text):
    """Context and communicators: the reserve without the slack of what the allocator holds."""
    parts = evaluate(TASK, plan(text)).memory
    held = sum(size for name, size in parts.items() if name != "reserve")
    return parts["reserve"] - further_share(TASK) * held


def test_logs_are_steps_and_peaks_of_plans(capsys, tmp_path):
    """Megatron prints MiB reserved; a log that ends out of memory is a bound; one log a plan."""
    took = 1e3 * seconds(TASK, TEXTS[0])
    lines = "".join(LINE.format(i, took) for i in range(1, 31))
    good, out, mine = tmp_path / "1.log", tmp_path / "2.log", tmp_path / "mine.toml"
    good.write_text(lines + "[Rank 0] (after 10 iterations) memory (MB) | max reserved: 24576.0\n")
    out.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n")
    plans = ["--plan", TEXTS[0], "--plan", "tp=2 micro_batch=2"]
    assert main([*COMMAND, str(good), str(out), *plans, "--out", str(mine)]) == 0
    held = 24 * 2**30 + _beside(TEXTS[0])
    assert f" {held / 2**30:.1f} " in capsys.readouterr().out
    found = read_calibration(mine)
    assert (found.steps, found.peaks.runs) == (1, 2)
    assert main([*COMMAND, str(good), str(out), *plans[:2]]) == 2
    assert "1 --plan and 2 logs" in capsys.readouterr().err
    assert main([*COMMAND, str(good), *plans[:2], "--seconds", "4"]) == 2
    assert "gives the step time, as --seconds does" in capsys.readouterr().err


def test_steps_six_times_as_long_are_explained_and_the_cause_is_named(capsys):
    """Every step takes six times as long: what is predicted of them follows, and the notes say
    which constants are far from what is usual."""
    learned = learn(timed(6.0))
    off = np.abs(np.log(learned.posterior_seconds / learned.measured_seconds))
    assert np.median(off) < 0.07
    assert off.max() < 0.3
    assert learned.moved_constants
    pairs = zip(TEXTS, learned.measured_seconds.tolist(), strict=True)
    asked = [part for text, s in pairs for part in ("--plan", text, "--seconds", f"{s:.6g}")]
    out = run(capsys, *asked)[1].out
    assert "spreads away" in out


def test_runs_of_one_plan_are_one_step_of_their_median():
    first, second, _ = timed(1.1)
    again = [replace(first, seconds=first.seconds * by, source=f"again {by}") for by in (0.99, 2.0)]
    once = learn([first, second])
    more = learn([first, second, *again])
    assert [step.source for step in more.steps] == ["step 1 and 2 more", "step 2"]
    assert more.measured_seconds == pytest.approx(once.measured_seconds)
    assert more.calibration.posterior.mean == pytest.approx(once.calibration.posterior.mean)
    assert more.calibration.steps == 2


def test_what_is_left_out_is_predicted_from_the_others():
    """Straight lines through the mode of all steps against the simulator with the others."""
    steps = timed(1.15, texts=(*TEXTS, NEW))
    learned = learn(steps)
    for row, step in not_empty(enumerate(steps)):
        others = learn([one for one in steps if one is not step])
        alone = evaluate(calibrated(TASK, others.calibration), step.plan).step_seconds
        assert learned.held_out_seconds[row] == pytest.approx(alone, rel=0.01)


def test_timed_plans_are_known_in_a_choice(tmp_path):
    """One of two plans takes 8 % more than its constants say: it is expected at what was measured,
    a plan like it moves less, and only the other is to be timed."""
    steps = timed(texts=TEXTS[:2])
    steps[0] = replace(steps[0], seconds=steps[0].seconds * 1.08)
    (tmp_path / "c.toml").write_text(learn(steps).calibration.text)
    task = calibrated(TASK, read_calibration(tmp_path / "c.toml"))
    near, apart = "tp=2 pp=4 micro_batch=2", "tp=8 pp=8 micro_batch=1 zero=0"
    forecast = Forecast.of_plans(
        task, concat([plan(text).table() for text in (TEXTS[0], near, apart)])
    )
    assert list(forecast.timed_rows) == [0]
    moved = forecast.choice.mean - forecast.log_seconds
    assert np.exp(forecast.choice.mean[0]) == pytest.approx(steps[0].seconds, rel=0.01)
    assert 0 < moved[2] < moved[1] < moved[0]
    spread = np.sqrt(forecast.choice.covariance.diagonal())
    assert spread[0] < 0.013 < spread[1] < spread[2]
    other = replace(task, global_batch=512)
    assert not Forecast.of_plans(other, forecast.plans).timed_rows


@pytest.mark.parametrize(
    ("option", "usual"),
    [
        ({"power_limit": 300.0}, {"power_limit": 400.0}),
        ({"inter_node_bandwidth": 5e9}, {"inter_node_bandwidth": 25e9}),
        ({"network": "efa"}, {"network": None}),
        ({"memory": 20 * 2**30}, {"gpus_per_node": 8}),
    ],
)
def test_a_step_is_of_the_machine_that_it_was_timed_on(option, usual):
    """Not of one whose power, network or memory the user changed; what changes nothing is it."""
    steps = timed(texts=TEXTS[:1])
    other = replace(TASK, cluster=Cluster.profile("a100-80gb-sxm", gpus=64, **option))
    same = replace(TASK, cluster=Cluster.profile("a100-80gb-sxm", gpus=64, **usual))
    plans = steps[0].plan.table()
    found = learn(steps).calibration
    assert not Forecast.of_plans(calibrated(other, found), plans).timed_rows
    assert list(Forecast.of_plans(calibrated(same, found), plans).timed_rows) == [0]
    there = learn([replace(steps[0], task=other)]).calibration
    assert not Forecast.of_plans(calibrated(TASK, there), plans).timed_rows
    assert list(Forecast.of_plans(calibrated(other, there), plans).timed_rows) == [0]


def answer(capsys, *arguments):
    """Plans of the answer as they are written, and their records; all of the answer."""
    main([*arguments, "--json"])
    found = json.loads(capsys.readouterr().out)
    for one in found["plans"]:
        del one["plan"]["micro_batches"]
    return {str(Plan(**one["plan"])): one for one in found["plans"]}, found


def test_searches_name_timed_plans_and_suggest_others(capsys, tmp_path):
    asked = ["--model", "gpt3-13b", "--cluster", "a100-80gb-sxm", "--gpus", "64"]
    asked += ["--global-batch", "256"]
    text, best = next(iter(answer(capsys, "search", *asked)[0].items()))
    took = 1.07 * best["step_seconds"]
    file = str(tmp_path / "c.toml")
    run(capsys, "--plan", text, "--seconds", f"{took:.6g}", "--out", file)
    plans, again = answer(capsys, "search", *asked, "--calibration", file)
    known = {plan: one["timed_seconds"] for plan, one in plans.items()}
    assert known.pop(text) == pytest.approx(took, rel=1e-5)
    assert set(known.values()) == {None}
    assert text not in {one["plan"] for one in again["time_next"]}
    main(["estimate", *asked, "--plan", text, "--calibration", file])
    assert f"this plan took {took:.4g} s a step" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--plan", "tp=3", "--seconds", "4"], "--plan 1: tensor size 3 does not divide"),
        (["--plan", "tp=8 pp=8 recompute=full", "--seconds", "oom"], "--plan 1: ran out of memory"),
    ],
)
def test_what_cannot_have_run_is_named_with_its_row(arguments, said, capsys, tmp_path):
    code, printed = run(capsys, *arguments, "--out", str(tmp_path / "c.toml"))
    assert code == 2
    assert said in printed.err
    assert printed.err.count("\n") == 1
    assert not (tmp_path / "c.toml").exists()


def test_an_option_that_contradicts_a_plan_names_its_row(capsys, tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("plan,seconds\ntp=2 precision=fp8,4\n")
    code, printed = run(capsys, str(path), "--precision", "bf16")
    assert code == 2
    assert "runs.csv: row 1: --precision bf16 contradicts the plan" in printed.err


@pytest.mark.parametrize(
    ("options", "size"),
    [
        (["--nodes", "8"], 8),
        (["--nodes", "8", "--gpus", "64"], 8),
        (["--nodes", "8", "--gpus", "32"], 4),
        (["--gpus", "64", "--gpus-per-node", "4"], 4),
    ],
)
def test_gpus_of_a_row_fill_nodes_of_the_options(options, size, capsys, tmp_path):
    path, out = tmp_path / "runs.csv", tmp_path / "c.toml"
    path.write_text("plan,seconds,gpus\ntp=4 micro_batch=2,8,32\n")
    asked = [*COMMAND[: COMMAND.index("--gpus")], "--global-batch", "256", *options]
    assert main([*asked, str(path), "--out", str(out)]) == 0
    capsys.readouterr()
    assert f"32 GPUs, {size} a node" in read_calibration(out).timed_plans[0].question


def test_the_batch_of_a_log_is_that_of_its_step(capsys, tmp_path):
    """Where the options say none; a log that does not say it, or rounds it, needs the option."""
    path, out = tmp_path / "run.log", tmp_path / "c.toml"
    asked = [*COMMAND[: COMMAND.index("--global-batch")], str(path), "--plan", TEXTS[0]]
    line = " iteration {}/ 30 | elapsed time per iteration (ms): 4200.0 |{}\n"

    def written(batch):
        path.write_text("".join(line.format(i, batch) for i in range(1, 31)))
        return main([*asked, "--out", str(out)])

    assert written(" global batch size:   256 |") == 0
    assert "2048 x 256 tokens" in read_calibration(out).timed_plans[0].question
    capsys.readouterr()
    for batch in ("", " global batch size: 1.02K |"):
        assert written(batch) == 2
        said = "run.log: does not state the batch of its steps: give --global-batch"
        assert said in capsys.readouterr().err
    path.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n")
    assert main(asked) == 2
    assert said in capsys.readouterr().err


def test_steps_of_no_batch_are_refused(capsys):
    asked = [word for word in COMMAND if word not in ("--global-batch", "256")]
    assert main([*asked, "--plan", TEXTS[0], "--seconds", "4"]) == 2
    assert "--plan 1: a timed step needs its batch: --global-batch" in capsys.readouterr().err


def test_a_calibration_is_of_one_stack_and_machine():
    learned = learn(timed(1.1))
    task = calibrated(TASK, learned.calibration)
    with pytest.raises(InputError, match="calibration already"):
        calibrated(task, learned.calibration)
    with pytest.raises(InputError, match="A100-80GB-SXM4, the question of megatron-core on H100"):
        replace(task, cluster=Cluster.profile("h100-sxm", gpus=64))
    with pytest.raises(InputError, match="over: cluster of a calibrated task"):
        sweep(task, over={"cluster": ["a100-80gb-sxm"]})
    assert len(sweep(task, over={"gpus": [32, 64]}, plan=TEXTS[1]).rows) == 2


def test_a_calibration_is_of_one_hardware_profile(tmp_path, capsys):
    """Its constants multiply the numbers of that profile; options of the machine may differ, and
    the profile's file may lie elsewhere."""
    own = tmp_path / "mine.toml"
    own.write_text('base = "a100-80gb-sxm"\n')
    other = replace(TASK, cluster=Cluster.profile(own, gpus=64))
    found = learn(timed(1.1)).calibration
    with pytest.raises(InputError, match=r"profile a100-80gb-sxm, the question of .*mine\.toml"):
        calibrated(other, found)
    file = tmp_path / "c.toml"
    file.write_text(found.text)
    asked = ["estimate", *COMMAND[2:], "--plan", NEW, "--calibration", str(file)]
    assert main([*asked, "--power-limit", "300"]) == 0
    capsys.readouterr()
    assert main([*asked, "--cluster", str(own)]) == 2
    printed = capsys.readouterr()
    assert "ask of a100-80gb-sxm, with options for what differs" in printed.err
    assert printed.err.count("\n") == 1
    step = timed(1.1)[0]
    with pytest.raises(InputError, match=r"there: is of the hardware profile .*mine\.toml"):
        learn([step, replace(step, task=other, source="there")])
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    (moved / "mine.toml").write_text(own.read_text())
    known = learn([replace(step, task=other)]).calibration
    calibrated(replace(TASK, cluster=Cluster.profile(moved / "mine.toml", gpus=64)), known)


@pytest.mark.parametrize(
    ("stack", "text"), [("megatron-core", TEXTS[0]), ("torchtitan", "dp=64 zero=3 micro_batch=4")]
)
def test_a_device_holds_context_and_communicators_beside_what_is_reserved(stack, text):
    """Of FSDP's gradients too, which stay reserved while they are freed."""
    task = replace(TASK, software=software_profile(stack))
    memory = rank_memory(evaluate(task, plan(text)).row(), "max")
    held = device_peak(task, plan(text), memory["reserved"][0])
    assert held == pytest.approx(memory["device"][0])


def test_a_constant_is_said_by_the_step_where_it_is_most():
    learned = learn(timed())
    assert learned.largest_shares == pytest.approx(np.abs(learned.slopes).max(axis=0))
    assert (np.abs(learned.slopes).min(axis=0) < 0.9 * learned.largest_shares).any()


def test_what_moved_is_told_by_its_factor_and_its_spreads():
    """A machine on which everything takes four times as long."""
    learned = learn(timed(4.0))
    moved = {name: (factor, far) for name, factor, far in learned.moved_constants}
    mean = dict(zip(learned.prior.names, learned.calibration.posterior.mean, strict=True))
    assert moved
    for name, (factor, far) in moved.items():
        at = learned.prior.names.index(name)
        assert factor == pytest.approx(np.exp(mean[name]))
        off = abs(mean[name] - learned.prior.mean[at])
        assert far == pytest.approx(off / learned.prior.spread[at])
        assert far > 2


def failing(text, share):
    """A run of a GPU that is predicted to be so full of it."""
    size = needs(TASK, text) / share
    return with_memory(TASK, size)


@pytest.mark.parametrize(
    ("ran_at", "failed_at", "least"),
    [
        # Of runs that ran, the fullest: those that ran out below it say nothing of a limit.
        ((0.5, 0.8), (0.7, 0.9), 0.9),
        ((0.8, 0.5), (0.95, 0.9), 0.9),
        ((0.6,), (0.7, 0.9), 0.7),
        ((), (0.7,), 0.7),
        ((0.8,), (0.7,), float("inf")),
    ],
)
def test_the_leanest_run_that_ran_out_above_all_that_ran_is_the_limit(ran_at, failed_at, least):
    text = TEXTS[0]
    runs = [
        TimedStep(failing(text, share), plan(text), seconds(TASK, text), f"ran {share}")
        for share in ran_at
    ]
    runs += [TimedStep(failing(text, s), plan(text), None, f"out {s}") for s in failed_at]
    found = learn_peaks(runs)
    assert found.failed_share == pytest.approx(least * np.exp(found.log_bias))


def test_a_repeat_that_held_less_contradicts_a_peak_as_a_larger_plan_does():
    """Of two runs of one plan the one far above its prediction is its own alone; on its own it
    stands for all that need as much."""
    far, usual = held(LEAN, FAR * needs(TASK, LEAN)), held(LEAN, needs(TASK, LEAN))
    (alone,) = learn([far]).calibration.peaks.overfull
    assert not alone.isolated
    (both,) = learn([far, usual, usual]).calibration.peaks.overfull
    assert both.isolated
    assert both.peak == pytest.approx(FAR * needs(TASK, LEAN))


@pytest.mark.parametrize(("peak", "said"), [(1.0, "measured 1 GiB"), (120.0, "measured 120 GiB")])
def test_a_peak_of_something_else_is_said_in_gib(peak, said):
    predicted, capacity = (
        size / 2**30 for size in (needs(TASK, NEW), TASK.cluster.accelerator.memory)
    )
    text = rf"run 1: peak {said}, predicted {predicted:.4g} GiB of {capacity:.4g} GiB; check"
    with pytest.raises(InputError, match=text):
        learn([TimedStep(TASK, plan(NEW), seconds(TASK, NEW), "run 1", peak * 2**30)])


def test_a_run_that_cannot_have_run_out_is_said_in_gib():
    """Predicted to need less than a tenth of a GPU."""
    roomy = with_memory(TASK, 11 * needs(TASK, NEW))
    sizes = [size / 2**30 for size in (needs(roomy, NEW), roomy.cluster.accelerator.memory)]
    text = "ran out of memory, predicted {:.4g} GiB of {:.4g} GiB; check".format(*sizes)
    with pytest.raises(InputError, match=text):
        learn([TimedStep(roomy, plan(NEW), None, "run 1")])
    learn([TimedStep(with_memory(TASK, 9 * needs(TASK, NEW)), plan(NEW), None, "run 1")])


@pytest.mark.parametrize(
    ("was", "now", "reads"),
    [
        ("freedom = 4.0", "freedom = 1.0", True),
        ("freedom = 4.0", "freedom = 0.99", False),
        ("steps = 3", "steps = 0", True),
        ("steps = 3", "steps = -1", False),
    ],
)
def test_a_posterior_has_a_degree_of_freedom_and_no_fewer_steps_than_none(
    was, now, reads, tmp_path
):
    text = taught().calibration.text
    assert was in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(was, now))
    if reads:
        assert read_calibration(path).posterior.names == taught().prior.names
    else:
        with pytest.raises(InputError, match="not the posterior"):
            read_calibration(path)
