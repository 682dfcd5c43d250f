"""Numbers of logs, of nccl-tests and of exports on either side of what is read, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.calibration.readers.histories import log_of_history
from plan3d.simulator.calibration.readers.log_values import Log, RunSizes
from plan3d.simulator.calibration.readers.nccl_tests import NcclHints, read_json, read_text
from plan3d.simulator.calibration.readers.rank_lines import lines_of_one_rank
from plan3d.simulator.calibration.readers.trainers import CLOCK, VALUE, Trainer
from plan3d.simulator.calibration.readers.training_logs import outcome, read_log
from plan3d.simulator.calibration.traces.events import EventColumns, keep_event
from plan3d.simulator.calibration.traces.reader import _launches, _matches, array, np

UNKNOWN = RunSizes()
PLAIN = Trainer(name="plain", signs=("step",), iteration=r"step (\d+)")
SECONDS = replace(PLAIN, seconds=(f"in {VALUE}",))
TIMED = replace(PLAIN, clock=rf"at {CLOCK}")
MEANS = replace(SECONDS, means_since_start=True)


def log(trainer: Trainer, *lines: str, known: RunSizes = UNKNOWN) -> Log:
    return Log(trainer, "\n".join(lines), known)


# Logs of trainers


@pytest.mark.parametrize(
    ("rate", "batch"),
    [
        ("4000.09", 8000),  # 0.18 off
        ("4000.11", None),  # 0.22: more than a fifth, though less than a thousandth
        ("500.45", 1001),
        ("50.04", 100),  # 0.08 off 100.08
        ("50.06", None),  # 0.12: more than a thousandth
    ],
)
def test_a_batch_from_a_rate_is_whole_to_a_thousandth_and_a_fifth(
    rate: str, batch: int | None
) -> None:
    """Samples a second times 2 s."""
    rates = replace(SECONDS, samples_per_second=f"samples {VALUE}")
    assert log(rates, f"step 1 in 2 samples {rate}").batch_of_samples == batch


def test_a_batch_from_a_rate_is_at_least_one() -> None:
    rates = replace(SECONDS, samples_per_second=f"samples {VALUE}")
    assert log(rates, "step 1 in 1 samples 1").batch_of_samples == 1
    assert log(rates, "step 1 in 1 samples 0.9999").batch_of_samples is None
    assert log(rates, "step 1 in 1 samples 0").batch_of_samples is None


@pytest.mark.parametrize(("rate", "means"), [("0.5", [128.0]), ("0", []), ("1", [64.0])])
def test_rates_of_a_run_below_one_sample_a_second_count(rate: str, means: list[float]) -> None:
    run = replace(PLAIN, run_samples_per_second=f"samples {VALUE}")
    known = RunSizes(global_batch=64)
    assert log(run, "step 1", f"samples {rate}", known=known).step_means == means


@pytest.mark.parametrize(
    ("since", "means"),
    [
        (((10, 10), (20, 30)), [2.0]),  # one line after that of the warm-up
        (((5, 5), (10, 10), (20, 30)), [2.0]),
        (((10, 10), (20, 30), (30, 90)), [2.0, 4.0]),  # the half is from 20 on, that of 20 too
        (((10, 10), (19, 28), (30, 90)), [4.0]),
    ],
)
def test_two_lines_after_the_warm_up_say_a_mean(
    since: tuple[tuple[int, int], ...], means: list[float]
) -> None:
    one = log(MEANS, *(f"step {n} in {seconds / n}" for n, seconds in since))
    assert one.step_means == pytest.approx(means)


def test_a_number_that_falls_begins_a_run_of_a_clock_anew() -> None:
    """After 20 comes 15, of iterations 6 to 15 of another run: 60 s of the ten up to 25."""
    lines = ("step 10 at 0:00", "step 20 at 0:20", "step 15 at 9:30", "step 25 at 10:30")
    assert log(TIMED, *lines).step_means == [6.0]
    lines = (*lines[:2], "step 30 at 1:20", "step 40 at 2:20")
    assert log(TIMED, *lines).step_means == [4.0, 6.0]


@pytest.mark.parametrize(
    ("numbers", "before"),
    [
        ([7], [0]),
        ([1, 2], [0]),
        ([4, 8, 12, 16], [12]),
        ([3, 4], [0]),
        ([104, 108, 112, 116], [12]),
    ],
)
def test_the_first_line_is_of_as_many_iterations_as_are_between_two(
    numbers: list[int], before: list[int]
) -> None:
    """Lines whose iterations are all later than ten; that of 16 tells of 13 to 16."""
    one = log(SECONDS, *(f"step {n} in {n}" for n in numbers))
    if before == [0]:
        with pytest.raises(InputError):
            one.after_warm_up(one.step_seconds, "log")
    else:
        assert one.after_warm_up(one.step_seconds, "log") == numbers[3:]


def test_iterations_of_a_log_that_says_too_little_are_counted() -> None:
    """Of lines of 2 and 6, the second tells of four iterations; 101 and 102 of one each."""
    one = log(SECONDS, "step 2 in 1", "step 6 in 1")
    with pytest.raises(InputError, match="each of its 2 lines tells of some of the first 10"):
        one.after_warm_up(one.step_seconds, "log")
    one = log(SECONDS, "step 101 in 1", "step 102 in 1")
    with pytest.raises(InputError, match=r"2 iterations; the first 10 are .* at least 11"):
        one.after_warm_up(one.step_seconds, "log")


def test_a_clock_that_is_never_printed_is_not_told_of() -> None:
    with pytest.raises(InputError, match="hold no time of a step after the warm-up"):
        log(TIMED, "step 1").after_warm_up([], "log")
    with pytest.raises(InputError, match="its clock does not run 50 s"):
        log(TIMED, "step 1 at 0:10").after_warm_up([], "log")


MEGATRON = (
    " [2026-01-01 00:00:00] iteration {n:8d}/     100 | consumed samples: {c:12d} | elapsed time "
    "per iteration (ms): {ms:.1f} | learning rate: 3.0E-4 | global batch size: {b:5d} |"
)


def megatron(*milliseconds: float, batch: int = 64) -> str:
    return "\n".join(
        MEGATRON.format(n=n, c=n * batch, ms=ms, b=batch) for n, ms in enumerate(milliseconds, 1)
    )


def test_a_row_of_a_log_has_the_extremes_of_its_steps() -> None:
    (row,) = read_log(megatron(*[9000] * 10, 2000, 5000, 3000), RunSizes(8, 1024, 64), "log")
    found = [row[name] for name in ("seconds", "seconds_min", "seconds_max", "repeats", "tokens")]
    assert found == [3.0, 2.0, 5.0, 3, 65536]
    assert row["tokens_per_second_per_gpu"] == pytest.approx(65536 / 3 / 8)


def test_steps_that_take_no_time_are_refused() -> None:
    known = RunSizes(8, 1024, 64)
    with pytest.raises(InputError, match="its iterations take no time"):
        read_log(megatron(*[0.0] * 13), known, "log")
    assert outcome(megatron(*[0.0] * 12, *[1.0] * 30), known, "log").seconds == 1e-3


@pytest.mark.parametrize(("known", "agrees"), [(1000, True), (1009, True), (1011, False)])
def test_sizes_of_a_log_agree_to_a_hundredth(known: int, agrees: bool) -> None:
    """999 sequences of a batch that the log states."""
    text = megatron(*[1000.0] * 13, batch=999)
    if agrees:
        assert read_log(text, RunSizes(8, 1024, known), "log")[0]["batch"] == known
    else:
        with pytest.raises(InputError, match=r"a batch of 999, not 1,011"):
            read_log(text, RunSizes(8, 1024, known), "log")


def test_lines_of_ranks_are_told_apart_where_most_have_one() -> None:
    """Two of three lines begin with their rank; of two lines one is no more than half."""
    text = "[rank0]: step 1\n[rank1]: step 1\nstep 2"
    assert "[rank1]" not in lines_of_one_rank(text, "step")
    half = "[rank1]: step 1\nstep 2"
    assert lines_of_one_rank(half, "step").rstrip() == half


# nccl-tests


def nccl(*rows: str, ranks: int = 2) -> list[dict[str, object]]:
    """Rows of an all-reduce; each has size, count, type, redop, root, time and more."""
    header = "#  size  count  type  redop  root  time  algbw  busbw  #wrong"
    text = "\n".join(["# Collective test starting: all_reduce_perf", header, *rows])
    return read_text(text, NcclHints(ranks=ranks), "out")


def test_rows_of_nccl_tests_have_a_size_and_a_time() -> None:
    """One byte in a microsecond is the least of either."""
    found = nccl(
        "1 1 int8 sum -1 1.00 1 1 0",
        "0 0 int8 sum -1 9.00 1 1 0",
        "8 2 float sum -1 0.00 1 1 0",
        "8 2 float sum -1 2.50",
        "8 2 float sum -1",
        "8 2 float sum -1 broken 1 1 0",
    )
    assert [(row["bytes"], row["seconds"]) for row in found] == [
        (1, pytest.approx(1e-6)), (8, pytest.approx(2.5e-6))
    ]  # fmt: skip


@pytest.mark.parametrize(("ranks", "is_read"), [(0, False), (1, False), (2, True), (3, True)])
def test_a_collective_has_two_ranks_at_least(ranks: int, is_read: bool) -> None:
    if is_read:
        assert nccl("8 2 float sum -1 2.5 1 1 0", ranks=ranks)[0]["ranks"] == ranks
    else:
        with pytest.raises(InputError, match=r"has no '# +Rank' lines"):
            nccl("8 2 float sum -1 2.5 1 1 0", ranks=ranks)


def test_a_report_has_rows_of_a_size_and_a_time() -> None:
    def entry(size: int, micro: float) -> dict[str, object]:
        return {"size": size, "type": "float", "out_of_place": {"time": micro}}

    report = {
        "nccl_version": 1, "args": ["all_reduce_perf"], "config": {"nthreads": 3, "ngpus": 2},
        "results": [entry(1, 0.5), entry(0, 1), entry(8, 0), entry(8, 1)],
    }  # fmt: skip
    found = read_json(report, NcclHints(), "out")
    assert [(row["bytes"], row["ranks"], row["nodes"]) for row in found] == [(1, 6, 1), (8, 6, 1)]
    assert [row["seconds"] for row in found] == pytest.approx([5e-7, 1e-6])


# Exports


def test_exports_of_a_clock_have_the_steps_that_follow_each_other() -> None:
    """From 1 to 2 in 3 s, to 6 in 2 s, of one number twice and of a clock that stands none."""
    text = "Wall time,Step,Value\n100,1,x\n103,2,x\n105,6,x\n108,6,x\n108,7,x\n108.5,8,x\n"
    assert log_of_history(text, "h").splitlines() == [
        "history: step=2 seconds=3",
        "history: step=6 seconds=0.5",
        "history: step=8 seconds=0.5",
    ]


def test_exports_in_milliseconds_and_of_rates() -> None:
    text = "Step,a - time_per_iteration_ms,a - throughput/batches_per_sec\n1,250,4\n2,,5\n"
    assert log_of_history(text, "h").splitlines() == [
        "history: step=1 seconds=0.25 steps_per_second=4",
        "history: step=2 steps_per_second=5",
    ]


# Events of a trace


def events(*each: dict[str, object]) -> EventColumns:
    columns = EventColumns()
    for one in each:
        keep_event({"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 2} | one, columns)
    return columns


@pytest.mark.parametrize(
    ("about", "kept"),
    [
        ({"dur": 0}, True),
        ({"dur": -1e-9}, False),
        ({"ts": 0}, True),
        ({"ts": -5.0}, True),
        ({"ts": 1e300}, False),
        ({"ts": -1e300}, False),
        ({"dur": 1e300}, False),
    ],
)
def test_events_have_a_length_and_a_time(about: dict[str, object], kept: bool) -> None:
    columns = events(about)
    assert (len(columns.gpu), columns.negative) == ((1, 0) if kept else (0, 1))


def test_streams_are_told_apart_by_number_or_name() -> None:
    columns = events(*({"tid": one} for one in (7, 20, "stream 7", "stream 20", "stream 7")))
    streams = columns.gpu[0][2].tolist()
    assert streams[:2] == [7, 20]
    assert streams[2] == streams[4]
    assert len(set(streams)) == 4


def test_peaks_of_memory_are_of_each_device() -> None:
    columns = EventColumns()
    for kind, device, held, reserved in ((1, 0, 5, 9), (1, 0, 7, 8), (1, 1, 3, 4), (0, 0, 99, 99)):
        args = {"Device Type": kind, "Device Id": device, "Total Allocated": held,
                "Total Reserved": reserved}  # fmt: skip
        keep_event({"ph": "i", "name": "[memory]", "args": args}, columns)
    assert columns.memory == {0: (7, 9), 1: (3, 4)}


def test_launches_are_found_by_their_number() -> None:
    """Numbers 0 to 2, of which 2 was given twice: the last counts. -1 and 5 are of none, and what
    was launched by no thread has no time."""
    launches = tuple(array("d", one) for one in ([0, 1, 2, 2], [10, 11, 12, 13], [0, 4, 5, 6]))
    when, thread = _launches(np.array([0.0, 1.0, 2.0, 5.0, -1.0]), launches)
    np.testing.assert_array_equal(when, [10, 11, 13, np.nan, np.nan])
    assert thread.tolist() == [0, 4, 6, -1, -1]
    assert _matches(np.array([-1.0, 3.0]), [3.0], [8.0]).tolist() == [-1, 8]
    assert _matches(np.array([3.0]), [], []).tolist() == [-1]
