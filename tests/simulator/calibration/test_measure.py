"""Measuring writes rows one by one, skips what is there, and survives what does not run."""

from __future__ import annotations

import ast
import csv
import math
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from not_empty import not_empty

from plan3d.simulator.calibration.fit.fit import fit
from plan3d.simulator.calibration.measure import measure as module
from plan3d.simulator.calibration.measure.cases import Case, coarse_to_fine
from plan3d.simulator.calibration.measure.cases_collective import Layout, layouts
from plan3d.simulator.calibration.measure.cases_collective import cases as collective_cases
from plan3d.simulator.calibration.measure.columns import COLUMNS, IDENTITY
from plan3d.simulator.calibration.measure.measure import suites_of_one_gpu
from plan3d.simulator.calibration.measure.recording import RowFile, open_files
from plan3d.simulator.calibration.measure.timing import (
    Bench,
    PowerLog,
    smi_reader,
    summary,
    time_call,
)
from plan3d.simulator.calibration.readers.files import read_all

SCRIPT = Path(module.__file__)


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_rows_are_kept_and_a_torn_line_is_dropped(tmp_path):
    path = tmp_path / "m.csv"
    first = RowFile(path)
    row = {"suite": "gemm", "op": "forward", "m": 8, "causal": 0, "seconds": 1e-6}
    first.append(row)
    with path.open("a") as file:
        file.write("gemm,dgrad,bf")
    again = RowFile(path)
    assert row in again
    assert {**row, "m": 9} not in again
    again.append({**row, "m": 9})
    assert len(rows_of(path)) == 2


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"suite,op,seconds\ngemm,forward,1e-6\ngemm,", "other columns"),
        (",".join(COLUMNS).encode() + b"\n" + b"x" * 200_000 + b"\n", "is not a CSV file"),
        (b"\xff\xfe\n", "is not a CSV file"),
    ],
)
def test_a_file_of_something_else_is_refused_and_left_as_it_is(tmp_path, content, why):
    path = tmp_path / "m.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=why):
        RowFile(path)
    assert path.read_bytes() == content


def test_the_script_needs_nothing_of_plan3d():
    """It is copied to machines where only torch and numpy are installed."""
    trees = [ast.parse(path.read_text()) for path in SCRIPT.parent.glob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    imports = [node for node in nodes if isinstance(node, ast.Import)]
    partial = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    names = {alias.name for node in imports for alias in node.names}
    names |= {node.module for node in partial if not node.level}
    assert "torch" in names
    assert {name.partition(".")[0] for name in names} <= {*sys.stdlib_module_names, "torch"}
    assert max(node.level for node in partial) <= 1


@pytest.mark.parametrize(
    ("layout", "members", "nodes"),
    [
        (Layout(4), [[0, 1, 2, 3]], 1),
        (Layout(16), [list(range(16))], 2),
        (Layout(2, 8), [[0, 8]], 2),
        (Layout(2, 8, 8), [[i, i + 8] for i in range(8)], 2),
        (Layout(8, 1, 2), [list(range(8)), list(range(8, 16))], 1),
    ],
)
def test_ranks_of_groups_on_two_nodes_of_eight(layout, members, nodes):
    assert layout.members() == members
    assert layout.nodes(8) == nodes
    assert layout in layouts(16, 8)


def test_the_most_valuable_cases_come_first():
    """All ranks, a node and one rank a node, a few sizes each, before any detail."""
    every = collective_cases(16, 8, quick=False)
    assert len(set(every)) == len(every)
    for layout in layouts(16, 8):
        ranks = [rank for group in layout.members() for rank in group]
        assert len(set(ranks)) == len(ranks) == layout.ranks * layout.groups
    assert [case.layout for case in every[:20:5]][:2] == [Layout(16), Layout(16)]
    early = {case.layout for case in every[: len(every) // 4]}
    assert early == set(layouts(16, 8))
    full = coarse_to_fine([list(suite(False)) for suite in suites_of_one_gpu().values()])
    assert {case.suite for case in full[: len(full) // 3]} >= {"gemm", "attention", "copy"}
    assert coarse_to_fine([range(9), "ab"]) == [0, 2, 4, 6, 8, "a", "b", 1, 3, 5, 7]


def test_a_limit_of_time_cuts_no_pass_of_a_kernel():
    """What a fit divides by each other is measured together."""
    cases = module._cases(["gemm", "attention", "layer", "copy"], False)
    early = {(case.suite, case.op) for case in cases[: len(cases) // 4]}
    assert early >= {("gemm", op) for op in ("forward", "dgrad", "wgrad", "wgrad_fp32")}
    assert early >= {("attention", op) for op in ("forward", "backward", "latent_backward")}
    assert early >= {("layer", "forward_backward"), ("copy", "device_to_host")}


def test_a_product_is_timed_alone_before_its_long_loop():
    """A limit of time may leave out most single products, but none that is looped."""
    cases = module._cases(["sustained"], False)
    alone, looped = cases[::2], cases[1::2]
    assert {(case.suite, case.op) for case in alone} == {("gemm", "forward")}
    assert {(case.suite, case.op) for case in looped} == {("sustained", "forward")}
    assert [case.shape for case in alone] == [case.shape for case in looped]


def test_readings_of_nvidia_smi():
    log = PowerLog()
    for said in (["1980", "650.5", "0x0000000000000000"], ["1755", "698.0", "0x0000000000000005"]):
        log.add(said)
    # 0x4: the software power cap; 0x1, an idle GPU, is no throttling.
    assert log.columns() == {"clock_hz": 1867.5e6, "power_watts": 674.25, "throttled": "0x4"}


def test_clocks_of_a_block_are_those_read_while_it_runs(tmp_path, monkeypatch):
    """One nvidia-smi, here a script that speaks again when told to, serves all blocks."""
    program, again = tmp_path / "nvidia-smi", tmp_path / "again"
    program.write_text(
        "#!/bin/sh\necho '1980, 650.5, 0x5'\n"
        f"while [ ! -e {again} ]; do sleep 0.01; done\necho '1755, 600.0, 0x4'\nsleep 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    smi_reader.cache_clear()
    readings = smi_reader().readings
    wait_for(lambda: len(readings) == 1)
    with PowerLog() as idle, PowerLog("cpu") as processor:
        pass
    with PowerLog() as log:
        again.touch()
        wait_for(lambda: len(readings) == 2)
    smi_reader.cache_clear()
    assert (idle.columns(), processor.columns()) == ({}, {})
    assert log.columns() == {"clock_hz": 1755e6, "power_watts": 600.0, "throttled": "0x4"}


def wait_for(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_every_suite_has_quick_and_full_cases():
    suites = suites_of_one_gpu()
    assert len(suites) == 13
    for name, suite in suites.items():
        for quick in (True, False):
            cases = list(suite(quick))
            assert cases, name
            identities = {(c.suite, c.op, c.dtype, *c.shape.items()) for c in cases}
            assert len(identities) == len(cases), name
            assert all(set(case.shape) < set(COLUMNS) for case in cases)


def test_timing_without_a_gpu():
    calls = []
    timing = time_call(lambda: calls.append(1), Bench("cpu", quick=True))
    assert 0 < timing.least <= timing.median <= timing.most
    assert timing.repeats <= len(calls)
    assert summary([2.0, 4.0, 9.0], 2).median == 2.0


def test_a_case_that_does_not_run_is_noted(tmp_path):
    def explode(bench: Bench) -> Mapping[str, float]:
        raise RuntimeError("CUDA out of memory.\nTried to allocate 2 GiB")

    rows, skipped = open_files(tmp_path)
    case = Case(suite="gemm", op="forward", shape={"m": 8}, run=explode)
    what = {"suite": "gemm", "op": "forward", "dtype": "bf16", "m": 8}
    assert module._measure_case(case, what, Bench("cpu"), rows, skipped) == ""
    assert what not in rows
    (note,) = rows_of(tmp_path / "skipped.csv")
    assert note["note"] == "CUDA out of memory. Tried to allocate 2 GiB"
    assert set(note) == {*IDENTITY, "note"}


def test_the_script_runs_without_plan3d(tmp_path):
    pytest.importorskip("torch")
    run = [sys.executable, str(SCRIPT), "--out", str(tmp_path), "--quick", "--device", "cpu"]
    first = subprocess.run(run, capture_output=True, text=True, check=True, cwd=tmp_path)
    rows = rows_of(tmp_path / "measurements.csv")
    assert {row["suite"] for row in rows} >= {"gemm", "attention", "memory", "layer", "sustained"}
    assert all(float(row["seconds"]) > 0 for row in rows)
    assert f"{len(rows)} measured" in first.stdout
    second = subprocess.run(run, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert f" {len(rows)} known" in second.stdout
    assert "0 measured" in second.stdout


def test_an_interrupted_script_says_so_and_keeps_its_rows(tmp_path):
    pytest.importorskip("torch")
    run = [sys.executable, str(SCRIPT), "--out", str(tmp_path), "--quick", "--device", "cpu"]
    rows = tmp_path / "measurements.csv"
    with subprocess.Popen(run, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as child:
        limit = time.monotonic() + 60
        while not (rows.exists() and len(rows_of(rows)) > 2):
            assert time.monotonic() < limit
            time.sleep(0.01)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert err.endswith("measure: interrupted: the same call goes on from here\n")
    assert "Traceback" not in err
    assert len(rows_of(rows)) > 2


def test_limits_and_wrong_names(tmp_path):
    pytest.importorskip("torch")
    options = {"device": "cpu", "quick": True}
    counts = module.measure(tmp_path, **options, suites=["gemm"], limit_seconds=1e-9)
    assert counts["measured"] == 0
    assert counts["left"] > 0
    with pytest.raises(ValueError, match="unknown suite 'gem'"):
        module.measure(tmp_path, **options, suites=["gem"])
    with pytest.raises(ValueError, match="torchrun"):
        module.measure(tmp_path, **options, suites=["collective"])
    with pytest.raises(ValueError, match="unknown device"):
        module.measure(tmp_path, device="tpu")


def test_training_steps_are_measured_once_and_shown(tmp_path, capsys):
    pytest.importorskip("torch")
    from plan3d.cli.main import main

    options = ["measure", "--out", str(tmp_path), "--quick", "--device", "cpu", "--quiet"]
    measure = ["calibrate", *options, "--suite", "training"]
    assert main(measure) == 0
    assert "4 measured, 0 skipped" in capsys.readouterr().out
    assert main(measure) == 0
    assert "0 measured, 0 skipped, 0 left, 4 known" in capsys.readouterr().out
    rows, beside = tmp_path / "measurements.csv", tmp_path / "beside.csv"
    for row in rows_of(rows):
        tokens = (int(row[name]) for name in ("micro_batches", "batch", "sequence"))
        assert float(row["tokens"]) == math.prod(tokens)
        # Peaks are counted on a GPU only.
        assert row["memory_bytes"] == row["reserved_bytes"] == ""
    show = ["show", str(rows), "--profile", "h200-sxm", "--quiet", "--csv", str(beside)]
    assert main(["calibrate", *show]) == 0
    assert "training steps, torch" in capsys.readouterr().out
    assert all(float(row["seconds_predicted"]) > 0 for row in not_empty(rows_of(beside)))


def test_collectives_on_two_processes(tmp_path):
    pytest.importorskip("torch")
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(SCRIPT)]
    run += ["--out", str(tmp_path), "--quick", "--device", "cpu"]
    subprocess.run(run, capture_output=True, text=True, check=True, timeout=120)
    rows = rows_of(tmp_path / "measurements.csv")
    assert {row["op"] for row in rows} >= {"all_reduce", "all_gather", "all_to_all", "send"}
    assert all(row["ranks"] == "2" for row in rows)
    beside = {row["op"] for row in rows if row["suite"] == "contention"}
    assert beside >= {"gemm", "gemm_beside_all_reduce"}


def test_a_rank_that_fails_ends_all_and_says_why(tmp_path):
    """Rank 0 cannot write, while the other waits for it in a collective."""
    pytest.importorskip("torch")
    (tmp_path / "file").write_text("")
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(SCRIPT)]
    run += ["--out", str(tmp_path / "file"), "--quick", "--device", "cpu"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "measure: rank 0 on " in done.stderr
    assert "File exists" in done.stderr


def test_measured_rows_are_fitted(tmp_path):
    """A CPU is no GPU: only the path is shown, its constants mean nothing."""
    pytest.importorskip("torch")
    module.measure(tmp_path, device="cpu", quick=True, suites=["gemm", "memory"])
    table = read_all([str(tmp_path / "measurements.csv")])
    found = fit(table, "h100-sxm")
    told = {one.subject.name for one in found.fits} | {note.split(":")[0] for note in found.notes}
    assert "dgrad GEMMs" in told
