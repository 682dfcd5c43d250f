"""The rows of a sweep are the same wherever they run, and nothing gets lost."""

import csv
import functools
import multiprocessing
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from plan3d.search.whatif import schedulers, sweep
from plan3d.search.whatif.sweep import Point, PointOptions, run_point, run_points, with_scaling
from plan3d.search.whatif.sweep_file import SweepFile
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

TASK = Task(
    Model.preset("gpt3-1.3b"), Cluster.profile("h100-sxm", gpus=8), sequence=2048, global_batch=48
)
FEW = {"cp": [1], "micro_batch": [1, 2], "recompute": ["none"], "overlap_tp": [0]}


def point(gpus, **others):
    """The best plan of a small space, or a given plan, on some GPUs."""
    task = replace(TASK, cluster=replace(TASK.cluster, gpus=gpus))
    plan = others.pop("plan", None)
    asked = PointOptions(**others) if plan else PointOptions(**{"choose": FEW, **others})
    return Point(settings={"gpus": gpus}, task=task, plan=plan, options=asked)


POINTS = [point(gpus) for gpus in (1, 2)]
POINTS += [point(gpus, plan=Plan(dp=gpus)) for gpus in (3, 4, 6, 8)]


@functools.cache
def rows_in_turn():
    """The rows of POINTS, run one after the other."""
    return [run_point(p) for p in POINTS]


def test_rows_hold_settings_and_numbers():
    first = rows_in_turn()[0]
    assert (first["gpus"], first["status"], first["verdict"]) == (1, "ok", "fits")
    assert 0.95 <= first["probability_fits"] <= 1
    assert first["tokens_per_second"] * first["step_seconds"] == pytest.approx(48 * 2048)
    assert first["step_seconds_low"] < first["step_seconds"] < first["step_seconds_high"]
    trained = run_point(point(2, tokens=1e9, price=2.0))
    assert trained["cost_usd"] == pytest.approx(2 * trained["gpu_hours"])


def test_what_is_impossible_says_why():
    illegal = run_point(point(8, plan=Plan(tp=3, dp=1)))
    assert illegal["status"] == "illegal"
    assert "does not divide" in illegal["detail"]
    none = run_point(point(8, choose={"tp": [3]}))
    assert none["status"] == "no plan"
    assert "tensor size 3 does not divide ffn width 8192" in none["detail"]
    small = replace(TASK, cluster=Cluster.profile("h100-sxm", gpus=1, memory=1e9))
    large = run_point(Point(settings={}, task=small, options=PointOptions(choose=FEW)))
    assert "GiB over the limit" in large["detail"]


def test_a_pool_gives_the_same_rows(monkeypatch):
    monkeypatch.setattr(sweep, "WORTH_A_POOL", -1.0)
    done, processes, before = [], [], {*multiprocessing.active_children()}

    def each(count):
        done.append(count)
        processes.append(len({*multiprocessing.active_children()} - before))

    assert run_points(POINTS, workers=2, each=each).rows == rows_in_turn()
    assert done == [1, 2, 3, 4, 5, 6]
    assert max(processes) == 2


def test_one_worker_is_this_process(monkeypatch):
    monkeypatch.setattr(sweep, "WORTH_A_POOL", -1.0)
    before, more = {*multiprocessing.active_children()}, []

    def each(_):
        more.append({*multiprocessing.active_children()} - before)

    assert run_points(POINTS[2:], workers=1, each=each).rows == rows_in_turn()[2:]
    assert more == [set()] * 4


def test_a_killed_process_loses_nothing(monkeypatch):
    monkeypatch.setattr(sweep, "WORTH_A_POOL", -1.0)
    killed = []

    def kill_one(done):
        children = multiprocessing.active_children()
        if done == 2 and children:
            killed.append(children[0].pid)
            os.kill(children[0].pid, 9)

    found = run_points(POINTS[:4], workers=2, each=kill_one)
    assert killed
    assert found.complete
    assert found.rows == rows_in_turn()[:4]


def interrupt_after(count):
    def each(done):
        if done == count:
            raise KeyboardInterrupt

    return each


def test_an_interrupt_keeps_what_is_done_and_the_file_continues(tmp_path):
    file = tmp_path / "rows.csv"
    first = run_points(POINTS, workers=1, resume=str(file), each=interrupt_after(2))
    assert (first.complete, first.rows) == (False, rows_in_turn()[:2])
    marked = file.read_text().replace(repr(rows_in_turn()[1]["step_seconds"]), "123.5")
    file.write_text(marked + "0123456789abcdef,3,ok,,0.")  # cut off by a kill
    second = run_points(POINTS, workers=1, resume=str(file))
    assert second.complete
    assert second.rows[1] == {**rows_in_turn()[1], "step_seconds": 123.5}
    assert [second.rows[0], *second.rows[2:]] == [rows_in_turn()[0], *rows_in_turn()[2:]]
    with file.open(newline="") as lines:
        written = list(csv.DictReader(lines))
    assert [int(row["gpus"]) for row in written] == [1, 2, 3, 4, 6, 8]
    assert [row["point"] for row in written] == [p.key for p in POINTS]


def test_columns_that_come_later_are_added(tmp_path):
    file = tmp_path / "rows.csv"
    mixed = [point(8, plan=Plan(tp=3, dp=1)), point(2)]
    rows = run_points(mixed, workers=1, resume=str(file)).rows
    assert run_points(mixed, workers=1, resume=str(file)).rows == rows
    assert "step_seconds" in file.read_text().splitlines()[0]


def test_a_file_of_another_question_is_refused(tmp_path):
    file = tmp_path / "rows.csv"
    run_points(POINTS[:2], workers=1, resume=str(file))
    with pytest.raises(InputError, match="holds 1 points of another sweep"):
        run_points(POINTS[1:], workers=1, resume=str(file))
    file.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="is not the file of a sweep"):
        run_points(POINTS, workers=1, resume=str(file))


def files_in(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize(
    "text", ["a,b\n1,2\n", "notes\n", "point,gpus\nffff,8\n", "point,,\nf,8,9\n", "x" * 200_000]
)
def test_a_file_that_is_no_part_of_a_sweep_stays_as_it_is(tmp_path, text, anew):
    file = tmp_path / "rows.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=r"give another file|is not CSV"):
        run_points(POINTS[:1], workers=1, resume=str(file), anew=anew)
    assert files_in(tmp_path) == {"rows.csv": text}


def test_old_rows_stay_until_the_new_ones_are_whole(tmp_path):
    file = tmp_path / "rows.csv"
    run_points(POINTS[:3], workers=1, resume=str(file))
    whole = file.read_text()
    old = whole.replace(repr(rows_in_turn()[0]["step_seconds"]), "123.5")
    file.write_text(old)
    run_points(POINTS[:3], workers=1, resume=str(file), anew=True, each=interrupt_after(2))
    found = files_in(tmp_path)
    assert found["rows.csv"] == old
    assert found["rows.csv.part"].count("\n") == 3
    asked = []
    run_points(POINTS[:3], workers=1, resume=str(file), each=asked.append)
    assert asked == [3]
    assert files_in(tmp_path) == {"rows.csv": whole}


@pytest.mark.parametrize(
    ("column", "cell", "problem"),
    [
        ("step_seconds", "-5", "step_seconds is '-5'"),
        ("step_seconds", "0", "step_seconds is '0'"),
        ("mfu", "inf", "mfu is 'inf'"),
        ("mfu", "nan", "mfu is 'nan'"),
        ("memory_bytes", "x\x1b", r"memory_bytes is 'x\\\\x1b'"),
        ("capacity_bytes", "9" * 5000, "capacity_bytes is '999"),
        ("plan", "", "plan is not there"),
        ("peak_flops", "", "peak_flops is not there"),
        ("status", "fine", "status is 'fine'"),
        ("gpus", "9", "gpus is '9'"),
    ],
)
def test_cells_that_no_point_gives_are_refused(tmp_path, column, cell, problem):
    file = tmp_path / "rows.csv"
    run_points(POINTS[:1], workers=1, resume=str(file))
    with file.open(newline="") as lines:
        (row,) = csv.DictReader(lines)
    with file.open("w", newline="") as lines:
        writer = csv.DictWriter(lines, row, lineterminator="\n")
        writer.writeheader()
        writer.writerow({**row, column: cell})
    text = file.read_text()
    with pytest.raises(InputError, match=f"line 2: {problem}.*no point gives"):
        run_points(POINTS[:1], workers=1, resume=str(file))
    assert files_in(tmp_path) == {"rows.csv": text}


POOL = """
import multiprocessing, sys, time
sys.path.insert(0, {folder!r})
from plan3d.search.whatif import sweep

def each(done):
    if done == 2:
        print(*(child.pid for child in multiprocessing.active_children()), flush=True)
        time.sleep(60)

if __name__ == "__main__":
    from test_sweep import POINTS
    sweep.WORTH_A_POOL = -1.0
    sweep.run_points(POINTS, workers=2, each=each)
"""


UNGUARDED = """
import sys; sys.path.insert(0, {folder!r})
from test_sweep import TASK
from plan3d.search.whatif import sweep
from plan3d.simulator.plan.plan import Plan
from dataclasses import replace
assert __name__ == "__main__"
sweep.WORTH_A_POOL, sweep.RESTARTS = -1.0, 1
tasks = [replace(TASK, global_batch=8 * n, documents=(n,) * 2000) for n in range(1, 9)]
points = [sweep.Point(settings={{}}, task=task, plan=Plan(dp=8)) for task in tasks]
print(len(sweep.run_points(points, workers=2).rows))
"""


def test_a_script_that_cannot_be_imported_again_is_answered_without_a_pool(tmp_path):
    """What its processes were to read is more than a pipe holds."""
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED.format(folder=os.path.dirname(__file__)))
    words = [sys.executable, str(script)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "8\n"


def alive(pid):
    """Whether a process runs; one that has ended and that nobody waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_children_end_with_their_parent(tmp_path):
    script = tmp_path / "pool.py"
    script.write_text(POOL.format(folder=os.path.dirname(__file__)))
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE) as parent:
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(alive, pids))
        parent.kill()
    limit = time.monotonic() + 2
    while any(map(alive, pids)) and time.monotonic() < limit:
        time.sleep(0.02)
    assert not any(map(alive, pids))


def test_everything_that_decides_an_answer_is_in_its_key():
    base = point(8)
    others = [
        point(4),
        point(8, choose={"tp": [2]}),
        point(8, plan=Plan(tp=2)),
        point(8, headroom=0.2),
        point(8, objective="memory"),
        point(8, tokens=1e9),
        replace(base, task=replace(TASK, global_batch=96)),
        replace(base, task=replace(TASK, model=Model.preset("gpt3-2.7b"))),
        replace(base, task=replace(TASK, cluster=Cluster.profile("h100-sxm", 8, memory=4e10))),
    ]
    assert len({base.key, *(other.key for other in others)}) == 1 + len(others)
    assert base.key == point(8).key


def test_scaling_is_relative_to_the_first_of_a_series():
    rows = [
        {"status": "ok", "gpus": g, "tp": tp, "tokens_per_second": speed}
        for tp, g, speed in ((1, 8, 80.0), (1, 16, 120.0), (2, 8, 40.0), (2, 16, 80.0))
    ]
    rows.append({"status": "no plan", "gpus": 32, "tp": 2})
    found = with_scaling(rows, "tp")
    assert [row.get("scaling_efficiency") for row in found] == [1, 0.75, 1, 1, None]
    assert with_scaling(rows)[3]["scaling_efficiency"] == 0.5


DASK = """
import os
from distributed import LocalCluster
from plan3d.search.whatif.sweep import run_points
import sys; sys.path.insert(0, {folder!r})
from test_sweep import POINTS, rows_in_turn

def main():
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        pid = next(iter(cluster.workers.values())).pid
        def kill(done):
            if done == 2:
                os.kill(pid, 9)
        found = run_points(POINTS, scheduler=cluster.scheduler_address, each=kill)
        assert found.complete and found.rows == rows_in_turn()
        print("equal")

if __name__ == "__main__":
    main()
"""


def test_a_cluster_gives_the_same_rows_and_a_lost_worker_loses_nothing(tmp_path):
    pytest.importorskip("distributed")
    script = tmp_path / "on_dask.py"
    folder = os.path.dirname(__file__)
    script.write_text(DASK.format(folder=folder))
    environment = {**os.environ, "PYTHONPATH": folder}
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True, text=True, timeout=120, check=False, env=environment,
    )  # fmt: skip
    assert done.stdout.strip().endswith("equal"), done.stderr


def test_an_address_without_a_scheduler_is_one_line(monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(schedulers, "PATIENCE", 1)
    with pytest.raises(InputError, match="cannot be reached"):
        run_points(POINTS[:1], scheduler="tcp://127.0.0.1:9")


ALONE = """
import sys
from distributed import LocalCluster
from plan3d.search.whatif import schedulers, sweep
from plan3d.simulator.base.errors import InputError
sys.path.insert(0, {folder!r})
from test_sweep import POINTS

if __name__ == "__main__":
    schedulers.PATIENCE = 1
    with LocalCluster(n_workers=0, dashboard_address=None) as cluster:
        try:
            sweep.run_points(POINTS[:1], scheduler=cluster.scheduler_address)
        except InputError as error:
            print(error)
"""


def test_a_scheduler_without_workers_is_one_line(tmp_path):
    pytest.importorskip("distributed")
    script = tmp_path / "alone.py"
    script.write_text(ALONE.format(folder=os.path.dirname(__file__)))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "no worker came within 1 s" in done.stdout, done.stderr


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("before", [0, 1])
def test_of_two_sweeps_on_one_file_the_second_is_refused(tmp_path, anew, before):
    file = tmp_path / "rows.csv"
    if before:
        run_points(POINTS[:before], workers=1, resume=str(file))
    settings = {p.key: p.settings for p in POINTS}
    first, second = (SweepFile(str(file), settings, anew) for _ in range(2))
    first.append(POINTS[before].key, rows_in_turn()[before])
    with pytest.raises(InputError, match=r"rows\.csv.* another program writes to it"):
        second.append(POINTS[before + 1].key, rows_in_turn()[before + 1])
    with pytest.raises(InputError, match="another program writes to it"):
        second.finish([])
    first.append(POINTS[before + 1].key, rows_in_turn()[before + 1])
    rows = list(first.rows)
    first.finish(rows)
    assert list(SweepFile(str(file), settings).rows) == rows
