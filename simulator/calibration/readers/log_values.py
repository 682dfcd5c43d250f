"""A training log as values by iteration: which lines count, and what they say of a step.

Of several ranks the lines of one are read, of several progress bars that of the training, of
several batches the last. The first iterations are dropped.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from ...base.errors import InputError
from .rank_lines import lines_of_one_rank
from .trainers import Trainer, trainers_of

WARM_UP = 10
"""Iterations dropped: compilation, allocator growth, first collectives."""
MOST_DIGITS = 18
"""Of the number of an iteration."""
LARGEST = 1e18
"""A larger number in a log is none of a run."""
LEAST_CLOCK = 50
"""Seconds of a clock, which counts whole ones, that a time of a step is the mean of."""
LEAST_WHOLE_RUN = 100
"""Steps of a run whose mean may hold the warm-up."""
_SUFFIX = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
Row = dict[str, object]


@dataclass(frozen=True)
class RunSizes:
    """What the user says about the run that the log does not."""

    gpus: int | None = None
    sequence: int | None = None
    global_batch: int | None = None


class LineValue(NamedTuple):
    """What a line says of the iterations since the line before it."""

    iteration: int | None
    """Number of the last of them; None where the line has none."""
    value: float


@dataclass(frozen=True)
class Log:
    """A text as the log of one trainer."""

    trainer: Trainer
    text: str
    """The lines of every rank, without colours."""
    known: RunSizes

    @cached_property
    def rank_text(self) -> str:
        """The lines of one rank."""
        sign = next(sign for sign in self.trainer.signs if sign in self.text)
        return lines_of_one_rank(self.text, sign)

    @cached_property
    def lines(self) -> list[tuple[int | None, str]]:
        """The lines that have values of steps, each with its iteration: those of one rank, of one
        progress bar, of one batch."""
        trainer = self.trainer
        every = self.rank_text.splitlines()
        if not trainer.iteration_of_block:
            every = [line for line in every if any(sign in line for sign in trainer.signs)]
        out: list[tuple[int | None, str]] = []
        iteration = None
        for line in self._of_training(every):
            number = re.search(trainer.iteration, line)
            if number or not trainer.iteration_of_block:
                iteration = int(number[1][:MOST_DIGITS]) if number else None
            out.append((iteration, line))
        return _of_last_batch(out, trainer.batch)

    def _of_training(self, lines: list[str]) -> list[str]:
        """The lines without progress bars of other iterations than those of the training."""
        if not self.trainer.total:
            return lines
        totals = [re.search(self.trainer.total, line) for line in lines]
        numbers = [int(found[1][:MOST_DIGITS]) if found else 0 for found in totals]
        stated = (
            re.findall(self.trainer.stated_total, self.text) if self.trainer.stated_total else []
        )
        steps = int(stated[-1].replace(",", "")[:MOST_DIGITS]) if stated else 0
        if steps not in numbers or not steps:
            steps = self._longest_bar(lines, numbers)
        return [line for line, total in zip(lines, numbers, strict=True) if total in (0, steps)]

    def _longest_bar(self, lines: list[str], totals: list[int]) -> int:
        """The iterations of the longest progress bar; where that is drawn inside another which
        advances by more than one between its runs, of the other: those runs evaluate."""
        longest = max(totals, default=0)
        places: dict[int, list[int]] = {}
        for place, total in enumerate(totals):
            places.setdefault(total, []).append(place)
        counts = [_numbers(self.trainer.iteration + "()", lines[at]) for at in places[longest]]
        drawn = [count[0] for count in counts if count]
        runs = 1 + sum(later < one for one, later in pairwise(drawn))
        first = places[longest][0]
        outer = [
            total for total, own in places.items() if total > 2 * runs and own[0] < first < own[-1]
        ]
        return max(outer, default=longest)

    def values(self, pattern: str) -> list[LineValue]:
        """Every value of that pattern; of an iteration that is printed several times, the last."""
        out: list[LineValue] = []
        for iteration, line in self.lines if pattern else ():
            for value in _numbers(pattern, line):
                if self.trainer.redrawn and out and iteration == out[-1].iteration is not None:
                    out.pop()
                out.append(LineValue(iteration, value))
        return out

    @cached_property
    def step_seconds(self) -> list[LineValue]:
        """Seconds of an iteration by line; [] where the log only has rates and the sizes are not
        known."""
        direct = self._direct_seconds
        if direct:
            return direct
        batch = self.known.global_batch or self.batch
        sequence = self.known.sequence or self.sequence
        tokens = batch * sequence if batch and sequence else None
        gpus = self.known.gpus or self.gpus
        rates = self.values(self.trainer.tokens_per_gpu)
        if rates and tokens and gpus:
            return _inverse(rates, tokens / gpus)
        totals = self.values(self.trainer.tokens_per_second)
        tokens = self.last_number(self.trainer.tokens) or tokens
        if totals and tokens and not self.trainer.clock:
            return _inverse(totals, tokens)
        return _inverse(self.values(self.trainer.samples_per_second), batch) if batch else []

    @cached_property
    def _direct_seconds(self) -> list[LineValue]:
        """Times of steps, or their inverses, that lines state."""
        trainer = self.trainer
        out: list[LineValue] = []
        if trainer.step:
            return [one for one in self._sums_of_micro_batches if one.value <= LARGEST]
        for iteration, line in self.lines if trainer.seconds or trainer.steps_per_second else ():
            parts = [_numbers(pattern, line) for pattern in trainer.seconds]
            seconds = [sum(values) * trainer.seconds_scale for values in zip(*parts, strict=False)]
            inverse = [1 / rate for rate in _numbers(trainer.steps_per_second, line) if rate > 0]
            for value in seconds or inverse:
                if trainer.redrawn and out and iteration == out[-1].iteration is not None:
                    out.pop()
                out.append(LineValue(iteration, value))
        return [one for one in out if one.value <= LARGEST]

    @property
    def _sums_of_micro_batches(self) -> list[LineValue]:
        """Seconds of the steps of which every micro-batch has a line."""
        trainer, out = self.trainer, []
        seconds, last = 0.0, 0
        is_whole = True
        for iteration, line in self.lines:
            values = _numbers(trainer.seconds[0], line)
            if iteration is None or not values:
                continue
            is_whole &= iteration == last + 1
            seconds, last = seconds + values[-1] * trainer.seconds_scale, iteration
            if end := re.search(trainer.step, line):
                if is_whole:
                    out.append(LineValue(int(end[1][:MOST_DIGITS]), seconds))
                seconds, is_whole = 0.0, True
        return out

    @cached_property
    def step_means(self) -> list[float]:
        """Seconds of a step after the warm-up, where lines state times since the start."""
        if self.trainer.means_since_start:
            means = self._direct_seconds
            clock = [LineValue(n, n * mean) for n, mean in means if n is not None]
            return _means_after_warm_up(clock) if len(clock) == len(means) else []
        if self.trainer.clock and not self._direct_seconds:
            return _means_of_clock(self._clock)
        rates = _numbers(self.trainer.run_samples_per_second, self.text)
        batch = self.known.global_batch or self.batch
        if rates and rates[-1] > 0 and batch:
            return [batch / rates[-1]]
        runs = _numbers(self.trainer.whole_run, self.text)
        times = _numbers(self.trainer.runtime, self.text)
        if runs and times and not self._direct_seconds:
            return [1 / runs[-1]] if runs[-1] * times[-1] >= LEAST_WHOLE_RUN else []
        return []

    @property
    def _clock(self) -> list[LineValue]:
        out: list[LineValue] = []
        for iteration, line in self.lines:
            if iteration is not None and (time := re.search(self.trainer.clock, line)):
                if out and out[-1].iteration == iteration:
                    out.pop()
                out.append(LineValue(iteration, _clock_seconds(time[1])))
        return out

    def after_warm_up(self, lines: Sequence[LineValue], name: str) -> list[float]:
        """The values after the warm-up: of lines whose iterations are all later."""
        if not lines:
            raise InputError(f"{name}: {self._why_no_step}")
        *before, ran = _iterations_before([one.iteration for one in lines])
        kept = [one.value for one, since in zip(lines, before, strict=True) if since >= WARM_UP]
        if not kept and ran > len(lines):
            each = f"each of its {len(lines)} lines" if len(lines) > 1 else "its one line"
            raise InputError(
                f"{name}: {each} tells of some of the first {WARM_UP} iterations, which are "
                "dropped as warm-up: run longer, or log every iteration"
            )
        if not kept:
            raise InputError(
                f"{name}: {len(lines)} iteration{'s' * (len(lines) > 1)}; the first {WARM_UP} are "
                f"dropped as warm-up, so at least {WARM_UP + 1} are needed"
            )
        return kept

    @property
    def _why_no_step(self) -> str:
        """Why the log says no step."""
        trainer = self.trainer
        if trainer.step and any(re.search(trainer.step, line) for _, line in self.lines):
            return "its lines leave out micro-batches of every step: give the seconds of a step"
        if self.values(trainer.samples_per_second) or (
            trainer.run_samples_per_second and re.search(trainer.run_samples_per_second, self.text)
        ):
            return "the log holds samples per second only: give --global-batch for step seconds"
        if self.values(trainer.tokens_per_second) and not trainer.clock:
            return "the log holds tokens per second only: give --sequence and --global-batch"
        if trainer.clock and len(self._clock) > 0:
            return (
                f"its clock does not run {LEAST_CLOCK} s after the first {WARM_UP} iterations, "
                "which are dropped as warm-up: run longer"
            )
        return f"its lines, of {trainer.name}, hold no time of a step after the warm-up"

    def last_number(self, pattern: str, exact: bool = False) -> float | None:
        """The last value of that pattern; None for a rounded one where it has to be exact."""
        found = re.findall(pattern, self.rank_text)[-1:] if pattern else []
        if exact and found and not found[0][0].replace(",", "").removesuffix(".0").isdecimal():
            return None
        if exact and found and found[0][1]:
            return None
        return _number(*found[0]) if found else None

    @cached_property
    def batch(self) -> float | None:
        """Sequences of a step, stated or counted."""
        stated = self.last_number(self.trainer.batch)
        return stated if stated and stated >= 1 else self.batch_of_samples

    @cached_property
    def batch_of_samples(self) -> float | None:
        """Sequences of a step, from those since the start or those per second; None where these
        are rounded."""
        counts = [
            (iteration, int(count[1][:MOST_DIGITS]))
            for iteration, line in self.lines
            if self.trainer.consumed and iteration is not None
            if (count := re.search(self.trainer.consumed, line))
        ]
        ratios = Counter(
            (later[1] - one[1]) / (later[0] - one[0])
            for one, later in pairwise(counts)
            if later[0] > one[0] and later[1] > one[1]
        )
        if ratios:
            ((ratio, _),) = ratios.most_common(1)
            return ratio if ratio == int(ratio) else None
        rates = _by_iteration(self.values(self.trainer.samples_per_second))
        steps = _by_iteration(self._direct_seconds)
        products = [rates[n] * steps[n] for n in rates if n in steps]
        product = statistics.median(products) if products else 0.0
        near = product >= 1 and abs(product - round(product)) < min(0.2, 1e-3 * product)
        return float(round(product)) if near else None

    @cached_property
    def sequence(self) -> float | None:
        """Tokens of a sequence."""
        stated = self.last_number(self.trainer.sequence)
        tokens, batch = self.last_number(self.trainer.tokens), self.batch
        if stated or not tokens or not batch or tokens % batch:
            return stated
        return tokens / batch

    @cached_property
    def gpus(self) -> int | None:
        """GPUs of the run."""
        stated = self.last_number(self.trainer.gpus)
        return int(stated) if stated else None

    @property
    def memory(self) -> Row:
        """Peak bytes of the fullest rank, as this trainer or another of the text states them."""
        out: Row = {}
        for trainer in (self.trainer, *trainers_of(self.text)):
            for column, patterns in (
                ("memory_bytes", trainer.allocated),
                ("reserved_bytes", trainer.reserved),
            ):
                values = [
                    value * unit
                    for pattern, unit in patterns
                    for value in _numbers(pattern, self.text)
                ]
                if values and max(values) <= LARGEST:
                    out.setdefault(column, int(max(values)))
        return out


def _of_last_batch(
    lines: list[tuple[int | None, str]], pattern: str
) -> list[tuple[int | None, str]]:
    """The lines without iterations of another batch than the last: those of a ramp."""
    batches = [_numbers(pattern, line)[-1:] if number else [] for number, line in lines]
    last = next((batch for batch in reversed(batches) if batch), [])
    return [line for line, batch in zip(lines, batches, strict=True) if batch in ([], last)]


def _by_iteration(values: Sequence[LineValue]) -> dict[int, float]:
    return {one.iteration: one.value for one in values if one.iteration is not None}


def _inverse(rates: Sequence[LineValue], amount: float) -> list[LineValue]:
    """Seconds of a step that handles an amount, from amounts per second."""
    return [LineValue(one.iteration, amount / one.value) for one in rates if one.value > 0]


def _means_after_warm_up(clock: Sequence[LineValue]) -> list[float]:
    """Means since the warm-up of lines in the second half of a run: where lines state the time
    since the start, each holds the warm-up, and early differences are mostly rounding."""
    numbers = [one.iteration or 0 for one in clock]
    warm = next((at for at, number in enumerate(numbers) if number >= WARM_UP), len(clock))
    rises = all(
        one.iteration < later.iteration and one.value < later.value
        for one, later in pairwise(clock)
        if one.iteration is not None and later.iteration is not None
    )
    if not rises or warm >= len(clock) - 1:
        return []
    half = (numbers[warm] + numbers[-1]) / 2
    return [
        (one.value - clock[warm].value) / (number - numbers[warm])
        for one, number in zip(clock, numbers, strict=True)
        if number > numbers[warm] and number >= half
    ]


def _means_of_clock(clock: Sequence[LineValue]) -> list[float]:
    """Means over stretches of at least LEAST_CLOCK seconds after the warm-up."""
    numbers = [one.iteration or 0 for one in clock]
    out: list[float] = []
    start: tuple[int, float] | None = None
    for at, before in enumerate(_iterations_before(numbers)[:-1]):
        if at == 0 or before < WARM_UP:
            start = None
            continue
        start = start or (numbers[at - 1], clock[at - 1].value)
        if clock[at].value - start[1] >= LEAST_CLOCK:
            out.append((clock[at].value - start[1]) / (numbers[at] - start[0]))
            start = None
    return out


def _clock_seconds(text: str) -> float:
    """Seconds of `1 day, 2:03:04` or `03:04`."""
    days, _, clock = text.rpartition(" ")
    seconds = 86400.0 * int("0" + days.split(" ")[0][:6])
    for power, part in enumerate(reversed(clock.split(":")[-3:])):
        seconds += int(part[:9]) * 60**power
    return seconds


def _iterations_before(numbers: Sequence[int | None]) -> list[int]:
    """Iterations that a run had made before those of each line, and after the last one; lines are
    one each where some have no number. A number below the last one is of a run that began anew."""
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers):
        return list(range(len(numbers) + 1))
    every = max(known[1] - known[0], 1) if len(known) > 1 else (known or [1])[0]
    out: list[int] = []
    start = last = 0
    for number in known:
        if not out or number < last:
            start = last = number - max(min(number, every), 1)
        out.append(last - start)
        last = number
    return [*out, last - start]


def _number(digits: str, suffix: str) -> float | None:
    value = float(digits.replace(",", "")) * _SUFFIX[suffix]
    return value if value <= LARGEST else None


def _numbers(pattern: str, text: str) -> list[float]:
    found = re.findall(pattern, text) if pattern else []
    return [value for one in found if (value := _number(*one)) is not None]
