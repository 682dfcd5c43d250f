"""Reports of Nsight Systems as SQLite: what each GPU ran, its steps, and files that are none."""

import sqlite3

import pytest

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.calibration.traces.breakdown import break_down, common_steps
from plan3d.simulator.calibration.traces.job import traced_job
from plan3d.simulator.calibration.traces.nsys import _correlation
from plan3d.simulator.calibration.traces.reader import read_trace, read_traces

GEMM, NCCL, ADAM = "nvjet_tst_128x256", "ncclDevKernel_AllReduce_Sum", "multi_tensor_apply_kernel"
MILLISECOND = 1_000_000
SCHEMA = """
CREATE TABLE StringIds (id INTEGER, value TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER,
    streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER,
    shortName INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER,
    streamId INTEGER, correlationId INTEGER, globalPid INTEGER, copyKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER,
    correlationId INTEGER, nameId INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT,
    globalTid INTEGER, textId INTEGER);
CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT);
"""
PROCESS = 1 << 24


def report(path, rows):
    """A report with rows of its tables, times in milliseconds of the first two columns."""
    with sqlite3.connect(path) as database:
        database.executescript(SCHEMA)
        for number, name in enumerate((GEMM, NCCL, ADAM, "step 7")):
            database.execute("INSERT INTO StringIds VALUES (?, ?)", (number, name))
        database.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H100')")
        for table, *cells in rows:
            if cells[1] is not None:
                cells[:2] = (MILLISECOND * one for one in cells[:2])
            marks = ", ".join("?" * len(cells))
            database.execute(f"INSERT INTO {table} VALUES ({marks})", cells)
    database.close()
    return path


def kernel(start, end, name, device=0, process=PROCESS, correlation=None, stream=7):
    about = (start, end, device, stream, correlation, process, name, name)
    return ("CUPTI_ACTIVITY_KIND_KERNEL", *about)


def launch(start, correlation, process=PROCESS):
    return ("CUPTI_ACTIVITY_KIND_RUNTIME", start, start, process + 5, correlation, 0)


STEP = [
    kernel(2, 10, 0, correlation=1),
    kernel(8, 14, 1, stream=9),
    kernel(16, 18, 2, correlation=2),
    ("CUPTI_ACTIVITY_KIND_MEMCPY", 14, 15, 0, 7, 3, PROCESS, 1),
    launch(1, 1),
    # The same number of another process.
    launch(15.9, 1, 2 * PROCESS),
    launch(15.5, 2),
    launch(13.5, 3),
    ("NVTX_EVENTS", 0, 17, 59, None, PROCESS + 5, 3),
    ("NVTX_EVENTS", 15.4, 16, 59, "Optimizer.step#AdamW.step, op_id = 4", PROCESS + 5, None),
    ("NVTX_EVENTS", 3, None, 34, "a mark", PROCESS + 5, None),
]


def test_a_report_is_a_trace(tmp_path):
    (trace,) = read_trace(report(tmp_path / "rank3.sqlite", STEP))
    assert (trace.rank, trace.gpu, trace.left_out) == (3, "NVIDIA H100", ())
    assert [name for name, _, _ in trace.steps] == ["ProfilerStep#7"]
    found = break_down(trace, common_steps([trace]))
    parts = {name: s for name, s in found.seconds.items() if s}
    assert parts == pytest.approx(
        {"matmul": 0.008, "unassigned_comm": 0.004, "optimizer": 0.002, "host_comm": 0.001}
    )
    # The step begins at 0; the first kernel is launched at 1 and starts at 2.
    assert found.gaps["host"] == pytest.approx(0.001)
    assert found.gaps["queued"] == pytest.approx(0.001)
    assert found.gaps["update"] == pytest.approx(0.001)
    assert sum(parts.values()) + sum(found.gaps.values()) == pytest.approx(found.wall)
    (use,) = found.collectives
    assert (use.operation, use.exposed) == ("all_reduce", pytest.approx(0.004))


def test_processes_that_see_one_gpu_each_are_ranks(tmp_path):
    rows = [kernel(0, 5, 0, process=number * PROCESS) for number in (4, 2)]
    found = read_trace(report(tmp_path / "node.sqlite", rows))
    assert [one.rank for one in found] == [0, 1]
    own = [kernel(0, 5, 0, device=number, process=number * PROCESS) for number in (5, 3)]
    assert [one.rank for one in read_trace(report(tmp_path / "own.sqlite", own))] == [3, 5]
    assert len(traced_job(read_traces([str(tmp_path / "own.sqlite")])).ranks) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "t.sqlite: is empty"),
        (b"{}" * 40, "t.sqlite: is no SQLite file"),
        (b"SQLite format 3\0" + b"x" * 200, "t.sqlite: cannot be read as SQLite"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    (tmp_path / "t.sqlite").write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_trace(tmp_path / "t.sqlite")


def test_what_is_missing_is_said(tmp_path):
    path = report(tmp_path / "t.sqlite", [kernel("late", None, 0), kernel(0, 5, 99)])
    with pytest.raises(InputError, match="holds no GPU kernels among 1 events"):
        read_trace(path)
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER)")
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (1)")
    database.close()
    with pytest.raises(InputError, match="1 CUDA graphs without their kernels"):
        read_trace(path)
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
    database.close()
    with pytest.raises(InputError, match="profile with nsys --trace=cuda,nvtx"):
        read_trace(path)


def test_rows_that_cannot_be_read_are_counted(tmp_path):
    """Three without a name, and two whose times are no numbers."""
    nameless = [kernel(start, start + 1, 99) for start in (1, 2, 3)]
    timeless = [kernel(f"'{start}'", None, GEMM) for start in (4, 5)]
    timeless = [("CUPTI_ACTIVITY_KIND_KERNEL", "late", None, *row[3:-2], 0, 0) for row in timeless]
    rows = [kernel(0, 5, 0), *nameless, *timeless]
    (trace,) = read_trace(report(tmp_path / "t.sqlite", rows))
    assert trace.left_out == ("5 events without name or time",)


@pytest.mark.parametrize(
    ("number", "identifier", "own"),
    [
        (7, 5 * PROCESS + 3, 5 * 2**32 + 7),
        (0, 5 * PROCESS, 5 * 2**32),
        (2**32 - 1, None, 2**32 - 1),
        (1, (2**20 + 2) * PROCESS, 2 * 2**32 + 1),
        (None, 5 * PROCESS, -1),
    ],
)
def test_the_number_of_a_launch_is_that_of_its_process(number, identifier, own):
    """Calls of CUDA are numbered below 2^32 by each process, the numbers of which begin at bit
    24."""
    assert _correlation(number, identifier) == own
