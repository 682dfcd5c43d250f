"""The loop of timed runs, with a stand-in for the framework whose constants nobody is told."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import shutil
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from plan3d.answers.search import find_plans
from plan3d.cli.main import main
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.step.evaluate import evaluate, simulate
from plan3d.simulator.task import Task
from plan3d.simulator.uncertainty.calibration import calibrated, read_calibration
from plan3d.simulator.uncertainty.constants import with_constants
from plan3d.simulator.workload.model import Model
from plan3d.tuning.advice import Outcome, Outcomes, advise

TASK = Task(
    Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=16), sequence=2048, global_batch=64
)
COMMAND = ["tune", "--framework", "megatron", "--model", "llama-7b", "--cluster", "h100-sxm"]
COMMAND += ["--gpus", "16", "--global-batch", "64"]
CONSTANTS = {"gemm": 0.25, "floor": 0.8, "fast_bandwidth": 0.3, "network_bandwidth": -0.2}
STAND_IN = """
import json, sys
lines = open(sys.argv[1]).read().splitlines()
plan = next(line for line in lines if line.startswith("# plan: "))[8:]
seconds = json.load(open(sys.argv[2]))[plan]
for i in range(1, 13):
    print(f" iteration {i}/ 12 | elapsed time per iteration (ms): {1e3 * seconds:.3f} |")
"""
LINE = " iteration {}/ 20 | elapsed time per iteration (ms): {} |\n"


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """A command that prints Megatron's log of a machine with other constants, and its steps."""
    folder = tmp_path_factory.mktemp("machine")
    table = find_plans(
        TASK, framework="megatron", headroom=0.1, families=False, top=5000
    ).costs.plans
    steps = evaluate(with_constants(TASK, CONSTANTS), table).step
    seconds = {str(plan): float(step) for plan, step in zip(table, steps, strict=True)}
    (folder / "steps.json").write_text(json.dumps(seconds))
    (folder / "stand_in.py").write_text(STAND_IN)
    words = [sys.executable, "-S", "-E", str(folder / "stand_in.py"), "{script}"]
    return shlex.join([*words, str(folder / "steps.json")]), table, seconds


def tune(capsys, folder, *options):
    code = main([*COMMAND, "--logs", str(folder), "--quiet", *options])
    return code, capsys.readouterr()


def asked(capsys, folder, *options):
    """The JSON answer."""
    code, printed = tune(capsys, folder, "--json", *options)
    assert code == 0, printed.err
    return json.loads(printed.out)


def log(folder, number, milliseconds, count=12):
    lines = [LINE.format(i, milliseconds) for i in range(1, count + 1)]
    (folder / f"run-{number:03d}.log").write_text("".join(lines))


@pytest.mark.slow
def test_the_loop_finds_the_best_plan_of_a_machine_it_does_not_know(machine, tmp_path, capsys):
    command, table, seconds = machine
    folder = tmp_path / "runs"
    answer = asked(capsys, folder, "--launch", command, "--next", "9", "--worth", "0.01")
    assert {run["state"] for run in answer["runs"]} == {"timed"}
    assert 2 <= len(answer["runs"]) <= 7
    assert "expected to gain" in answer["enough"] or "probability" in answer["enough"]
    best = answer["best"]["step_seconds"]
    assert best == pytest.approx(min(run["step_seconds"] for run in answer["runs"]), rel=0.005)
    assert best < 1.02 * min(seconds.values())
    again = asked(capsys, folder, "--launch", command, "--worth", "0.01")
    assert again["runs"] == answer["runs"]
    known = calibrated(TASK, read_calibration(folder / "calibration.toml"))
    real = np.log([*seconds.values()])
    before, after = (np.abs(np.log(simulate(t, table).step) - real) for t in (TASK, known))
    assert np.median(after) < 0.5 * np.median(before)


def test_logs_are_read_as_they_appear(tmp_path, capsys):
    first = asked(capsys, tmp_path, "--next", "2")
    assert [run["state"] for run in first["runs"]] == ["open", "open"]
    assert first["best"] is None
    script = (tmp_path / "run-001.sh").read_text()
    assert str(Plan(**first["runs"][0]["plan"])) in script
    log(tmp_path, 1, 1500.0)
    with (tmp_path / "run-001.log").open("a") as file:
        file.write("[Rank 0] (after 10 iterations) memory (MB) | max reserved: 30720.0\n")
    log(tmp_path, 2, 1600.0, count=5)
    answer = asked(capsys, tmp_path, "--next", "2", "--worth", "0")
    assert [run["state"] for run in answer["runs"]] == ["timed", "open", "open"]
    assert answer["runs"][0]["peak_bytes"] == 30 * 2**30
    assert read_calibration(tmp_path / "calibration.toml").peaks.runs == 1
    assert "5 iterations" in answer["runs"][1]["why"]
    assert answer["best"]["step_seconds"] == pytest.approx(1.5, rel=0.01)
    plans = [json.dumps(run["plan"]) for run in answer["runs"]]
    assert len(set(plans)) == 3
    code, printed = tune(capsys, tmp_path, "--worth", "0")
    assert code == 0
    assert "best so far" in printed.out


def test_what_needs_as_much_as_a_plan_that_ran_out_is_not_suggested(tmp_path, capsys):
    answer = asked(capsys, tmp_path, "--next", "1")
    full = evaluate(TASK, Plan(**answer["runs"][0]["plan"])).memory_bytes
    (tmp_path / "run-001.log").write_text("torch.OutOfMemoryError: CUDA out of memory.\n")
    answer = asked(capsys, tmp_path, "--next", "3")
    assert answer["runs"][0]["state"] == "out-of-memory"
    needed = [evaluate(TASK, Plan(**run["plan"])).memory_bytes for run in answer["runs"][1:]]
    assert len(needed) == 3
    assert max(needed) < full


def test_a_command_that_fails_is_not_repeated(tmp_path, capsys):
    command = f"{shlex.quote(sys.executable)} -S -c 'raise SystemExit(3)' {{script}}"
    answer = asked(capsys, tmp_path, "--launch", command, "--next", "2")
    assert [(run["state"], run["why"]) for run in answer["runs"]] == [("failed", "exit code 3")] * 2
    assert answer["runs"][0]["plan"] != answer["runs"][1]["plan"]


def test_logs_of_something_else_are_noted_and_the_others_go_on(tmp_path, capsys):
    """A step ten times off, a folder in place of a log, a peak of more than a GPU has."""
    asked(capsys, tmp_path, "--next", "4")
    log(tmp_path, 1, 1500.0)
    log(tmp_path, 2, 90000.0)
    (tmp_path / "run-003.log").mkdir()
    log(tmp_path, 4, 1600.0)
    with (tmp_path / "run-004.log").open("a") as file:
        file.write("[Rank 0] (after 10 iterations) memory (MB) | max reserved: 307200.0\n")
    runs = asked(capsys, tmp_path, "--next", "4", "--worth", "0")["runs"]
    assert [run["state"] for run in runs[:4]] == ["timed", "open", "open", "open"]
    assert "run-002.log: measured 90 s" in runs[1]["why"]
    assert "run-003.log: cannot be read (" in runs[2]["why"]
    assert "run-004.log: peak measured" in runs[3]["why"]


def test_a_launched_run_of_something_else_fails_and_the_next_starts(machine, tmp_path, capsys):
    command, *_ = machine
    odd = tmp_path / "odd.py"
    odd.write_text(
        "import runpy, sys\n"
        "if 'run-001' in sys.argv[1]:\n"
        "    for i in range(1, 13):\n"
        "        print(f' iteration {i}/ 12 | elapsed time per iteration (ms): 90000 |')\n"
        "    raise SystemExit\n"
        "sys.argv = sys.argv[2:3] + sys.argv[1:2] + sys.argv[3:]\n"
        "runpy.run_path(sys.argv[0])\n"
    )
    words = shlex.split(command)
    launch = shlex.join([*words[:3], str(odd), "{script}", words[3], *words[5:]])
    folder = tmp_path / "runs"
    runs = asked(capsys, folder, "--launch", launch, "--next", "2", "--worth", "0")["runs"]
    assert [run["state"] for run in runs] == ["failed", "timed"]
    assert "run-001.log: measured 90 s" in runs[0]["why"]


def test_a_failed_run_is_read_once_its_log_is_whole(tmp_path, capsys):
    command = f"{shlex.quote(sys.executable)} -S -c 'raise SystemExit(3)' {{script}}"
    asked(capsys, tmp_path, "--launch", command, "--next", "2")
    log(tmp_path, 2, 1500.0)
    runs = asked(capsys, tmp_path, "--worth", "0")["runs"]
    assert [(run["state"], run["why"]) for run in runs[:2]] == [
        ("failed", "exit code 3"),
        ("timed", ""),
    ]
    assert runs[1]["step_seconds"] == pytest.approx(1.5)


def test_an_interrupt_loses_nothing(machine, tmp_path, capsys):
    """The second run interrupts plan3d, as Ctrl-C does, and hangs; asked again, all goes on."""
    command, *_ = machine
    stop = tmp_path / "stop.py"
    stop.write_text(
        "import os, runpy, signal, sys, time\n"
        "if 'run-002' in sys.argv[2] and not os.path.exists(sys.argv[1] + '.done'):\n"
        "    open(sys.argv[1] + '.done', 'w').close()\n"
        "    os.kill(os.getppid(), signal.SIGINT)\n"
        "    time.sleep(30)\n"
        "sys.argv = sys.argv[3:]\n"
        "runpy.run_path(sys.argv[0])\n"
    )
    words = shlex.split(command)
    launch = shlex.join([*words[:3], str(stop), str(stop), "{script}", *words[3:]])
    folder = tmp_path / "runs"
    words = [*COMMAND, "--logs", str(folder), "--launch", launch, "--worth", "0", "--quiet"]
    done = subprocess.run([sys.executable, "-m", "plan3d", *words], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")
    state = json.loads((folder / "tune.json").read_text())
    assert [run["state"] for run in state["runs"]] == ["timed", "open"]
    assert not (folder / "run-002.log").exists()
    answer = asked(capsys, folder, "--launch", launch, "--next", "1", "--worth", "0")
    assert [run["state"] for run in answer["runs"]] == ["timed", "timed"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--launch", "bash start.sh"], "needs {script}"),
        (["--launch", "no-such-program {script}"], "there is no program 'no-such-program'"),
        (["--launch", "bash 'x {script}"], "No closing quotation"),
        (["--next", "0"], "at least 1"),
        (["--framework", "megatrom"], "megatron"),
        (["--calibration", "mine.toml"], "unknown option '--calibration'"),
        (["--fix", "tp=3"], "tp"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(tmp_path, capsys, options, why):
    folder = tmp_path / "runs"
    code, printed = tune(capsys, folder, *options)
    assert code == 2
    assert why in printed.err
    assert printed.err.count("\n") == 1
    assert not folder.exists()


def test_another_question_is_refused(tmp_path, capsys):
    asked(capsys, tmp_path)
    before = (tmp_path / "tune.json").read_text()
    code, printed = tune(capsys, tmp_path, "--gpus", "32")
    assert code == 2
    assert (
        "this session was begun with gpus 16, not 32: ask for 16 again, or name another folder "
        "with --logs"
    ) in printed.err
    assert (tmp_path / "tune.json").read_text() == before


@pytest.fixture(scope="module")
def session_of(tmp_path_factory):
    """The folder of a session that was begun with some options."""

    @cache
    def begin(*options):
        folder = tmp_path_factory.mktemp("session")
        with contextlib.redirect_stdout(io.StringIO()):
            assert main([*COMMAND, "--logs", str(folder), "--quiet", *options]) == 0
        return folder

    return begin


@pytest.mark.parametrize(
    ("begun", "options", "why"),
    [
        ([], ["--precision", "fp8"], "without precision, not with fp8: leave it out, or"),
        ([], ["--optimizer", "sgd"], "without optimizer, not with sgd"),
        ([], ["--power-limit", "300"], "without power_limit, not with 300W: leave"),
        ([], ["--network", "efa"], "without network, not with EFA: leave"),
        ([], ["--memory", "60GiB"], "without memory, not with 60GiB: leave"),
        ([], ["--fix", "tp=4"], "without tp, not with 4: leave it out, or"),
        (["--fix", "tp=4"], ["--choose", "tp=2,4"], "with tp 4, not 2,4: ask for 4 again, or"),
        (["--fix", "tp=4"], [], "with tp 4, not without: ask for 4 again, or"),
    ],
)
def test_another_machine_or_other_plans_are_another_question(
    session_of, tmp_path, capsys, begun, options, why
):
    shutil.copytree(session_of(*begun), tmp_path, dirs_exist_ok=True)
    before = (tmp_path / "tune.json").read_text()
    code, printed = tune(capsys, tmp_path, *options)
    assert code == 2
    assert f"this session was begun {why}" in printed.err
    assert printed.err.count("\n") == 1
    assert (tmp_path / "tune.json").read_text() == before
    asked(capsys, tmp_path, *begun, "--power-limit", "700")


def test_a_session_of_before_goes_on(tmp_path, capsys):
    """Its file does not say what was asked of the machine and of plans."""
    asked(capsys, tmp_path)
    state = tmp_path / "tune.json"
    record = json.loads(state.read_text())
    del record["question"]["machine"], record["question"]["plans"]
    state.write_text(json.dumps(record))
    asked(capsys, tmp_path, "--fix", "tp=4")


def test_only_what_plan3d_wrote_is_started(machine, tmp_path, capsys):
    asked(capsys, tmp_path, "--next", "1")
    script, state = tmp_path / "run-001.sh", tmp_path / "tune.json"
    written, kept = script.read_text(), state.read_text()
    script.write_text(written + "echo mine\n")
    code, printed = tune(capsys, tmp_path, "--launch", machine[0])
    assert code == 2
    assert "is not the file that plan3d wrote" in printed.err
    assert not (tmp_path / "run-001.log").exists()
    script.write_text(written)
    for other in ('"../run-001.sh"', "5", '"run-001.sh;x"', '"run-002.sh"'):
        state.write_text(kept.replace('"run-001.sh"', other))
        code, printed = tune(capsys, tmp_path, "--launch", machine[0])
        assert code == 2
        assert "is not a session of this version" in printed.err


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a killed parent ends nothing")
def test_a_command_ends_when_plan3d_is_killed(tmp_path):
    code = (
        "import sys; from pathlib import Path; from plan3d.tuning.loop import run_command; "
        "from plan3d.tuning.session import Run; run = Run(1, {}, 'a.sh'); "
        "run_command(run, ['sh', '-c', 'echo $$; exec sleep 60'], Path(sys.argv[1]))"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) as parent:
        number = _until(lambda: "".join(path.read_text() for path in tmp_path.glob("*.part")))
        parent.kill()
    gone = Path(f"/proc/{int(number)}")
    assert _until(lambda: not gone.exists() or ") Z " in (gone / "stat").read_text())


def _until(found, seconds=10.0):
    limit = time.monotonic() + seconds
    while not found() and time.monotonic() < limit:
        time.sleep(0.01)
    return found()


def test_an_interrupted_search_gives_no_advice():
    def stop(count):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        advise(TASK, Outcomes(), progress=stop)


def test_a_stalled_run_is_no_step_of_the_others_and_not_the_best():
    """Three steps of a machine 10 % slower than its profile, one of them three times as long:
    plans that nobody timed are expected within 10 % of the machine, and the best is the fastest
    that was measured, with its seconds."""
    true = with_constants(TASK, {"common": 0.1})
    plans = [*find_plans(TASK, top=8).plans]
    seconds = [evaluate(true, plan).step_seconds for plan in plans]
    times = [(plans[row], seconds[row] * (3 if row == 1 else 1)) for row in (0, 1, 3)]
    timed = [Outcome(plan, took, f"run {at}", None) for at, (plan, took) in enumerate(times)]
    advice = advise(TASK, Outcomes(timed=timed), choose={})
    assert advice.learned.contradicting_steps == [1]
    off = [
        advice.seconds[row] / evaluate(true, advice.plans.take(row)).step_seconds
        for row in range(advice.timed_count, advice.plans.rows)
    ]
    assert np.abs(np.log(off)).max() < 0.1
    assert advice.best_row == int(np.argmin([took for _, took in times]))
    assert advice.seconds[: advice.timed_count] == pytest.approx([took for _, took in times])
    assert advice.choice.regret[advice.best_row] < 0.15
