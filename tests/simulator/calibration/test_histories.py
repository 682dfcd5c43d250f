"""Exports of Weights & Biases and TensorBoard say the step as logs do."""

import pytest

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.calibration.readers.files import Hints, read
from plan3d.simulator.calibration.readers.histories import is_history
from plan3d.simulator.calibration.readers.training_logs import RunSizes

SIZES = RunSizes(8, 2048, 64)
SECONDS = [9.0 if step <= 10 else 2.1 for step in range(1, 41)]


def table(header, row):
    """Forty steps; `row` has the number of a step, its seconds and the time since the start."""
    lines = [
        row.format(n=n, s=s, ms=s * 1e3, t=1.7e9 + sum(SECONDS[:n]), rate=64 * 2048 / 8 / s)
        for n, s in enumerate(SECONDS, 1)
    ]
    return "\n".join([header, *lines]) + "\n"


HISTORIES = {
    "chart of W&B": table(
        '"Step","a b - iteration-time","a b - iteration-time__MIN","a b - iteration-time__MAX"',
        '"{n}","{s}","{s}","{s}"',
    ),
    "history of W&B": table("_step,_runtime,train/loss,train/global_step", "{n}0,{t},3.1,{n}"),
    "nanotron": table("Step,run - time_per_iteration_ms", "{n},{ms}"),
    "torchtitan": table(
        "Step,r - throughput(tps),r - memory/max_reserved(GiB)", "{n},{rate:.3f},61.5"
    ),
    "TensorBoard": table("Wall time,Step,Value", "{t},{n},3.2e-4"),
    "Windows": table("Wall time,Step,Value", "{t},{n},1").replace("\n", "\r\n"),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_steps_of_exports(tmp_path, name):
    path = tmp_path / "history.csv"
    path.write_text(HISTORIES[name], newline="")
    row = read(str(path), Hints(sizes=SIZES))
    assert row.number("seconds").tolist() == pytest.approx([2.1], rel=1e-4)
    peak = str(int(61.5 * 2**30)) if name == "torchtitan" else ""
    assert row.text("reserved_bytes").tolist() == [peak]


def test_several_runs_are_refused(tmp_path):
    path = tmp_path / "history.csv"
    path.write_text("Step,a - iteration-time,b - iteration-time\n1,2,3\n")
    with pytest.raises(InputError, match=r"history.csv: has iteration-time of several runs"):
        read(str(path), Hints(sizes=SIZES))


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "Step,loss\n1,2\n", "suite,op,seconds\n"])
def test_other_tables_are_none(text):
    assert not is_history(text)


@pytest.mark.parametrize("row", ["x,y,z", "", "1", "2,nan,inf", '"', "1e400,1,1", "-5,-5,-5"])
def test_broken_rows_are_refused_in_a_line(tmp_path, row):
    path = tmp_path / "history.csv"
    path.write_text(f"Wall time,Step,Value\n{row}\n")
    with pytest.raises(InputError, match=r"history.csv|unknown format"):
        read(str(path), Hints(sizes=SIZES))
