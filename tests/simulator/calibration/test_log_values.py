"""What the lines of a log say of a step, of a trainer that prints in the plainest form."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.calibration.readers.log_values import Log, RunSizes
from plan3d.simulator.calibration.readers.trainers import CLOCK, VALUE, Trainer

UNKNOWN = RunSizes()
PLAIN = Trainer(name="plain", signs=("step",), iteration=r"step (\d+)")
SECONDS = replace(PLAIN, seconds=(f"in {VALUE}",))
TIMED = replace(PLAIN, clock=rf"at {CLOCK}")
MEANS = replace(SECONDS, means_since_start=True)


def log(trainer: Trainer, *lines: str, known: RunSizes = UNKNOWN) -> Log:
    return Log(trainer, "\n".join(lines), known)


def values(trainer: Trainer, *lines: str, known: RunSizes = UNKNOWN) -> list[float]:
    return [one.value for one in log(trainer, *lines, known=known).step_seconds]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1:40", 100.0),
        ("1:00:10", 3610.0),
        ("2 days, 1:00:10", 2 * 86400 + 3610.0),
        ("1 day, 0:00:50", 86400 + 50.0),
    ],
)
def test_a_clock_counts_in_sixties_and_days(text: str, seconds: float) -> None:
    """Iterations 11 to 30 in the seconds of the clock, from 0:00: one mean over the twenty."""
    lines = ("step 10 at 0:00", f"step 30 at {text}")
    assert log(TIMED, *lines).step_means == [pytest.approx(seconds / 20)]


def test_stretches_of_a_clock_are_fifty_seconds_after_the_warm_up() -> None:
    """The line of 20 is of iterations 11 to 20: from 0:30, at 0:50, 20 s are too few, at 1:20 just
    enough: 50 s of 20 iterations. The next stretch begins there: 60 s of 10. The last is short."""
    lines = (f"step {n} at {m}:{s:02d}" for n, m, s in CLOCKED)
    assert log(TIMED, *lines).step_means == [2.5, 6.0]


CLOCKED = ((10, 0, 30), (20, 0, 50), (30, 1, 20), (40, 2, 20), (50, 3, 9))


def test_a_clock_that_begins_anew_ends_its_stretch() -> None:
    """A run to 40 starts again from 20: 30 comes after no warm-up, 40 and 50 are 100 s of 20."""
    first = ("step 20 at 9:00", "step 30 at 9:10", "step 40 at 9:20")
    again = ("step 30 at 0:00", "step 40 at 0:20", "step 50 at 1:40")
    assert log(TIMED, *first).step_means == []
    assert log(TIMED, *first, *again).step_means == [5.0]


def test_of_an_iteration_the_last_clock_counts() -> None:
    lines = ("step 10 at 0:00", "step 20 at 0:20", "step 20 at 0:30", "step 30 at 1:40")
    assert log(TIMED, *lines[:1], *lines[2:]).step_means == [5.0]
    assert log(TIMED, *lines).step_means == [5.0]


@pytest.mark.parametrize(
    ("numbers", "kept"),
    [
        # One line an iteration from 1: ten are before that of 11.
        (range(1, 13), [11, 12]),
        # Every fifth: that of 15 is of iterations 11 to 15.
        (range(5, 25, 5), [15, 20]),
        # Resumed at 101: the first ten of this process.
        (range(101, 113), [111, 112]),
        # Resumed every fifth, the first line of iterations 101 to 105.
        (range(105, 125, 5), [115, 120]),
        # A run of twelve that began anew at 3: each has a warm-up of its own.
        ([*range(1, 13), *range(3, 14)], [11, 12, 13]),
    ],
)
def test_ten_iterations_come_before_a_line_that_counts(
    numbers: range | list[int], kept: list[int]
) -> None:
    one = log(SECONDS, *(f"step {n} in {n}" for n in numbers))
    assert one.after_warm_up(one.step_seconds, "log") == kept


def test_lines_without_a_number_are_one_iteration_each() -> None:
    nameless = replace(SECONDS, iteration=r"none (\d+)")
    one = log(nameless, *(f"step in {n}" for n in range(1, 13)))
    assert one.after_warm_up(one.step_seconds, "log") == [11, 12]


@pytest.mark.parametrize(
    ("numbers", "why"),
    [
        ([], "hold no time of a step"),
        (range(1, 11), "10 iterations; the first 10 are dropped as warm-up, so at least 11"),
        ([8, 16], "each of its 2 lines tells of some of the first 10 iterations"),
        # Ten ran, of which one is printed; then one more, and after two others ten at once.
        ([10], "its one line tells of some of the first 10 iterations, which are dropped"),
        ([1, 2, 12], "each of its 3 lines tells of some of the first 10 iterations"),
        ([1], "1 iteration; the first 10 are dropped as warm-up, so at least 11"),
    ],
)
def test_a_log_of_the_warm_up_says_so(numbers: range | list[int], why: str) -> None:
    one = log(SECONDS, "a first step", *(f"step {n} in {n}" for n in numbers))
    with pytest.raises(InputError, match=why):
        one.after_warm_up(one.step_seconds, "log")


def test_means_since_the_start_lose_the_warm_up() -> None:
    """Ten iterations of 9 s, then of 2 s: 90 + 2 n after. Of 10 to 30, the half is from 20 on."""
    lines = (f"step {n} in {(90 + 2 * (n - 10)) / n}" for n in (5, 10, 15, 20, 25, 30))
    assert log(MEANS, *list(lines)[1:]).step_means == pytest.approx([2.0, 2.0, 2.0])


def test_means_since_the_start_are_those_of_the_second_half() -> None:
    """Seconds since the start 10, 30, 60, 100, 150 at iterations 10 to 50: from the first on, of
    the later half 50 / 20, 90 / 30 and 140 / 40."""
    since = ((10, 10), (20, 30), (30, 60), (40, 100), (50, 150))
    one = log(MEANS, *(f"step {n} in {seconds / n}" for n, seconds in since))
    assert one.step_means == pytest.approx([50 / 20, 90 / 30, 140 / 40])


@pytest.mark.parametrize(
    "since",
    [
        ((5, 5), (10, 10)),  # nothing after the line of the warm-up
        ((5, 5), (8, 8)),  # no line after it at all
        ((10, 10), (20, 30), (15, 40)),  # numbers that fall
        ((10, 10), (20, 30), (30, 30)),  # a time that stands still
    ],
)
def test_means_since_the_start_of_no_whole_run_say_nothing(
    since: tuple[tuple[int, int], ...],
) -> None:
    assert log(MEANS, *(f"step {n} in {seconds / n}" for n, seconds in since)).step_means == []


def test_the_first_rates_that_say_a_step() -> None:
    """512 sequences of 1,024 tokens on 8 GPUs: 65,536 tokens of a GPU, 524,288 of all."""
    known = RunSizes(8, 1024, 512)
    rates = replace(
        PLAIN,
        tokens_per_gpu=f"gpu {VALUE}",
        tokens_per_second=f"all {VALUE}",
        samples_per_second=f"samples {VALUE}",
    )
    assert values(rates, "step 1 gpu 32768 all 1 samples 1", known=known) == [2.0]
    assert values(rates, "step 1 all 131072 samples 1", known=known) == [4.0]
    assert values(rates, "step 1 samples 64", known=known) == [8.0]
    assert values(rates, "step 1 samples 0", "step 2 samples 32", known=known) == [16.0]
    assert values(rates, "step 1 samples 64") == []


def test_tokens_of_a_step_that_the_log_states_are_those_of_its_rate() -> None:
    stated = replace(PLAIN, tokens_per_second=f"all {VALUE}", tokens=f"tokens {VALUE}")
    assert values(stated, "step 1 all 100 tokens 400") == [4.0]
    assert values(stated, "step 1 all 100 tokens 400", known=RunSizes(1, 1, 900)) == [4.0]


def test_parts_and_inverses_of_steps() -> None:
    """Milliseconds of two parts are summed; a line of rates alone is inverted, 0 is none."""
    parts = replace(
        PLAIN,
        seconds=(f"a {VALUE}", f"b {VALUE}"),
        seconds_scale=1e-3,
        steps_per_second=f"rate {VALUE}",
    )
    lines = ("step 1 a 1500 b 250 rate 9", "step 2 a 7 rate 4", "step 3 rate 0")
    assert values(parts, *lines) == pytest.approx([1.75, 0.25])


def test_a_step_is_the_sum_of_its_micro_batches() -> None:
    """Micro-batches 1 to 3 of step 1 and 4 to 5 of step 2; of step 3 the seventh is missing."""
    micro = replace(SECONDS, step=r"end (\d+)", iteration=r"micro (\d+)")
    lines = (
        *("step micro 1 in 1", "step micro 2 in 2", "step micro 3 in 4 end 1"),
        *("step micro 4 in 8", "step micro 5 in 16 end 2"),
        *("step micro 6 in 32", "step micro 8 in 64 end 3"),
        *("step micro 9 in 128 end 4",),
    )
    one = log(micro, *lines)
    assert [tuple(value) for value in one.step_seconds] == [(1, 7.0), (2, 24.0), (4, 128.0)]


def test_of_a_ramp_the_lines_of_the_last_batch_count() -> None:
    """Lines of the same step that state no batch count as well."""
    ramp = replace(SECONDS, batch=f"batch {VALUE}")
    lines = ("step 1 batch 8 in 1", "step 2 batch 16 in 2", "step 3 in 4", "step 4 batch 16 in 8")
    assert values(ramp, *lines) == [2.0, 4.0, 8.0]


def test_of_a_redrawn_line_the_last_value_counts() -> None:
    lines = ("step 1 in 1", "step 1 in 2", "step 2 in 4")
    assert values(SECONDS, *lines) == [1.0, 2.0, 4.0]
    assert values(replace(SECONDS, redrawn=True), *lines) == [2.0, 4.0]


def test_of_progress_bars_the_longest_counts() -> None:
    bars = replace(SECONDS, total=r"of (\d+)")
    lines = ("step 1 of 9 in 1", "step 1 of 40 in 2", "step 2 in 4")
    assert values(bars, *lines) == [2.0, 4.0]


EVALUATED = (
    "step 1 of 20 in 1",
    *(f"step {n} of 40 in 9" for n in (1, 2, 1, 2)),
    "step 2 of 20 in 2",
)


def test_a_longer_bar_inside_the_training_evaluates() -> None:
    """It is drawn twice, and the training goes on for more steps than that; where it does not, the
    outer bar counts epochs. What the training states holds in any case."""
    bars = replace(SECONDS, total=r"of (\d+)")
    assert values(bars, *EVALUATED) == [1.0, 2.0]
    epochs = tuple(line.replace("of 20", "of 2") for line in EVALUATED)
    assert values(bars, *epochs) == [9.0] * 4
    stated = replace(bars, stated_total=r"steps = ([\d,]+)")
    assert values(stated, "steps = 40", *EVALUATED) == [9.0] * 4
    assert values(stated, "steps = 2", *epochs) == [1.0, 2.0]
    assert values(stated, "steps = 1,000", *EVALUATED) == [1.0, 2.0]


def test_a_run_without_its_first_steps_says_a_mean() -> None:
    """64 sequences at 16 a second are 4 s; the last of several counts."""
    run = replace(PLAIN, run_samples_per_second=f"samples {VALUE}")
    known = RunSizes(global_batch=64)
    assert log(run, "step 1", "samples 8", "samples 16", known=known).step_means == [4.0]
    assert log(run, "step 1", "samples 0", known=known).step_means == []
    assert log(run, "step 1", "samples 16").step_means == []


@pytest.mark.parametrize(("seconds", "means"), [(400, [4.0]), (399, []), (0, [])])
def test_a_whole_run_of_a_hundred_steps_hides_its_warm_up(seconds: int, means: list[float]) -> None:
    """A quarter step a second over 400 s is a hundred steps."""
    run = replace(PLAIN, whole_run=f"rate {VALUE}", runtime=f"took {VALUE}")
    assert log(run, "step 1", f"rate 0.25 took {seconds}").step_means == means
    assert log(run, "step 1", "rate 0 took 400").step_means == []


def test_sequences_of_a_step_are_counted() -> None:
    """64 more in each of two intervals, 32 in one: 64. Uneven ones are rounded numbers: none."""
    counted = replace(PLAIN, consumed=r"seen (\d+)")
    lines = ("step 1 seen 32", "step 2 seen 64", "step 4 seen 192", "step 5 seen 256")
    assert log(counted, *lines).batch_of_samples == 64
    assert log(counted, "step 1 seen 64", "step 3 seen 193").batch_of_samples is None


@pytest.mark.parametrize(
    ("rate", "batch"), [("32", 64), ("31.99", 64), ("32.1", None), ("0.4", None), ("0.5", 1)]
)
def test_sequences_of_a_step_from_their_rate(rate: str, batch: float | None) -> None:
    """A rate times 2 s, where it is whole to a thousandth."""
    rates = replace(SECONDS, samples_per_second=f"samples {VALUE}")
    assert log(rates, f"step 1 in 2 samples {rate}", "step 2 in 9").batch_of_samples == batch


def test_tokens_of_a_sequence_divide_those_of_a_step() -> None:
    sizes = replace(
        PLAIN, tokens=f"tokens {VALUE}", batch=f"batch {VALUE}", sequence=f"length {VALUE}"
    )
    assert log(sizes, "step 1 tokens 4096 batch 4").sequence == 1024
    assert log(sizes, "step 1 tokens 4097 batch 4").sequence is None
    assert log(sizes, "step 1 tokens 4096 batch 4 length 512").sequence == 512


def test_the_fullest_rank_in_bytes() -> None:
    memory = replace(
        PLAIN,
        allocated=((f"mib {VALUE}", 2.0**20), (f"gb {VALUE}", 1e9)),
        reserved=((f"held {VALUE}", 1.0),),
    )
    one = log(memory, "step 1 mib 3 held 7", "step 2 mib 2", "step 3 mib 2")
    assert one.memory == {"memory_bytes": 3 * 2**20, "reserved_bytes": 7}
    assert log(memory, "step 1 mib 3 gb 0.004").memory == {"memory_bytes": 4_000_000}


@pytest.mark.parametrize(("number", "is_read"), [("1e18", True), ("1.01e18", False)])
def test_the_largest_numbers_of_a_log(number: str, is_read: bool) -> None:
    """Seconds of steps, and of the micro-batches of a step, and bytes."""
    value = [float(number)] * is_read
    assert values(SECONDS, f"step 1 in {number}") == value
    parts = replace(SECONDS, step=r"whole (\d+)")
    assert values(parts, f"step 1 in {number} whole 1") == value
    bytes_ = replace(PLAIN, allocated=((f"has {VALUE}", 1.0),))
    assert list(log(bytes_, f"step 1 has {number}").memory.values()) == [int(one) for one in value]
