"""Parts of traces of a known machine say which of its constants differ from the profile's."""

import json

import numpy as np
import pytest

from plan3d import Cluster, Model, Plan, Task
from plan3d.cli.main import main
from plan3d.simulator.calibration.traces.comparison import compare, sizes_of
from plan3d.simulator.calibration.traces.evidence import learn_parts, observed_rows
from plan3d.simulator.calibration.traces.job import traced_job
from plan3d.simulator.calibration.traces.reader import read_trace
from plan3d.simulator.reporting.trace import trace
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.step.plan_timeline import timeline_of
from plan3d.simulator.uncertainty.constants import with_constants
from plan3d.simulator.uncertainty.timed_steps import TimedStep, learn

TASK = Task(
    Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=16), sequence=4096, global_batch=64
)
PLAN = Plan.parse("pp=2 tp=2")


def compared(changes, path):
    """The prediction beside a trace of the machine whose constants take exp(changes) as long."""
    x = timeline_of(with_constants(TASK, changes), PLAN)
    path.write_text(json.dumps(trace(x)))
    costs = evaluate(TASK, PLAN)
    return compare(costs, traced_job(read_trace(path), sizes_of(costs.row())))


@pytest.mark.parametrize("slow", ["memory_bound", "attention", "step"])
def test_the_slower_part_is_recovered(slow, tmp_path):
    """One trace says which constant differs; a timed step of as many seconds does not."""
    truth = {slow: np.log(1.5)}
    known = learn_parts(compared(truth, tmp_path / "t.json"))
    assert next(name for name in known.changes if name != "common") == slow
    found = dict(zip(known.posterior.names, known.posterior.mean, strict=True))
    assert found[slow] + found["common"] == pytest.approx(truth[slow], rel=0.35)
    # What runs taught of how constants go together moves others a little.
    others = [found[name] for name in found if name != slow]
    assert np.abs(others).max() < 0.55 * truth[slow]
    assert known.explained[slow] > 0.5
    machine = with_constants(TASK, truth)
    timed = TimedStep(TASK, PLAN, evaluate(machine, PLAN).step_seconds, "run")
    whole = learn([timed]).calibration.changes
    assert abs(whole[slow] - truth[slow]) > 1.5 * abs(found[slow] - truth[slow])
    for plan in (PLAN, Plan.parse("pp=2 tp=4"), Plan.parse("tp=4 recompute=full")):
        steps = [evaluate(task, plan).step_seconds for task in (TASK, known.task, machine)]
        assert abs(steps[1] / steps[2] - 1) < 0.8 * abs(steps[0] / steps[2] - 1)


def test_collectives_that_wait_teach_nothing(tmp_path):
    """Ranks of different stages share no tensor group: theirs are upper bounds."""
    found = compared({"fast_bandwidth": np.log(2.0)}, tmp_path / "t.json")
    (row,) = [row for row in found.rows if row.name == "tensor_comm"]
    assert row.bound
    assert row.ratio > 1.5
    names = {row.name for row in observed_rows(found)}
    assert {"matmul", "attention", "memory_bound", "optimizer"} <= names
    assert "tensor_comm" not in names
    assert "pipeline" not in names
    assert learn_parts(found).changes["fast_bandwidth"] == pytest.approx(0, abs=0.02)


def test_traces_add_to_a_calibration(tmp_path):
    """Constants that were known are where the parts leave them, not learned twice."""
    found = compared({"attention": np.log(1.5)}, tmp_path / "t.json")
    first = learn_parts(found)
    again = compare(evaluate(first.task, PLAN), found.job)
    second = learn_parts(again)
    assert np.abs(second.posterior.mean).max() < 0.5 * np.abs(first.posterior.mean).max()
    total = second.task.calibration.changes
    assert total["attention"] == pytest.approx(
        first.task.calibration.changes["attention"] + second.posterior.mean[3]
    )
    assert second.task.calibration.steps == 0


def test_a_trace_conditions_constants_together_with_timed_steps(tmp_path, capsys):
    """A timed step of a machine whose memory-bound kernels take half as long again, and a trace of
    another plan: the trace tells which constant it is, the step still counts."""
    machine = with_constants(TASK, {"memory_bound": np.log(1.5)})
    path = tmp_path / "t.json"
    path.write_text(json.dumps(trace(timeline_of(machine, PLAN))))
    seconds = evaluate(machine, Plan.parse("tp=4")).step_seconds
    words = ["calibrate", "steps", "--model", "llama-7b", "--cluster", "h100-sxm", "--gpus", "16"]
    words += ["--sequence", "4096", "--global-batch", "64", "--json", "--plan", "tp=4"]
    words += ["--seconds", f"{seconds}s"]
    found = []
    for more in ([], ["--plan", "pp=2 tp=2", "--trace", str(path)]):
        assert main([*words, *more]) == 0
        found.append(json.loads(capsys.readouterr().out))
    alone, both = (one["constants"]["memory_bound"] for one in found)
    assert both["spread_after"] < 0.7 * alone["spread_after"]
    assert abs(both["factor"] / 1.5 - 1) < 0.5 * abs(alone["factor"] / 1.5 - 1)
    assert "memory_bound" in found[1]["traced_parts"]
    (step,) = found[1]["steps"]
    assert step["after_seconds"] == pytest.approx(seconds, rel=0.03)


def test_a_trace_alone_is_no_calibration(tmp_path, capsys):
    words = ["calibrate", "steps", "--model", "llama-7b", "--cluster", "h100-sxm", "--gpus", "16"]
    words += ["--global-batch", "64", "--plan", "tp=4", "--trace", str(tmp_path / "t.json")]
    assert main(words) == 2
    assert "--trace goes with timed steps" in capsys.readouterr().err
