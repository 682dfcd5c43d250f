"""Logs of Megatron, torchtitan, DeepSpeed and nanotron as one row: the time of a step.

The first iterations are dropped and the median is taken. A line is the mean of the iterations
since the line before it (Megatron's --log-interval, torchtitan's log_freq): its number says how
many. Memory is the peak of any rank that the log names: Megatron prints MB of 2^20 bytes, DeepSpeed
GB of 2^30, torchtitan GiB reserved, nanotron MiB.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...base.errors import InputError

_PREFIX_FORMS = (
    r"\s*\d+:\s",
    r"\[\d+,\d+\](?:<std(?:out|err)>)?:\s?",
    r"\[[A-Za-z_]+\d+\]:\s?",
    r"\[(?:pod/)?[\w.-]+/[\w.-]+\]\s",
    r"[\w.-]+\s+\|\s",
)
"""Names of ranks that mpirun, srun, torchrun, kubectl and Compose put before lines: `0: ...`,
`[1,0]<stdout>: ...`, `[default0]:...`, `[pod/worker-0/train] ...`, `worker-0 | ...`."""
LEAST_PREFIXED = 0.5
"""Share of the lines of a text that must have a prefix of one form."""
WARM_UP = 10
"""Iterations dropped: compilation, allocator growth, first collectives."""
MIB, GIB = 2.0**20, 2.0**30
MOST_DIGITS = 18
"""Of the number of an iteration."""
LARGEST = 1e18
"""A larger number in a log is none of a run."""
SIZE_TOLERANCE = 0.01
"""Share by which a log's size may differ from the run's: nanotron prints 1,024 as 1.02K."""
_SUFFIX = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
Row = dict[str, object]


@dataclass(frozen=True)
class RunSizes:
    """What the user says about the run that the log does not."""

    gpus: int | None = None
    sequence: int | None = None
    global_batch: int | None = None


@dataclass(frozen=True)
class Format:
    """How one framework writes. Patterns with one group, or with a number and its suffix."""

    name: str
    iteration: str
    """The number of the last iteration that a line is of."""
    seconds: str = ""
    seconds_scale: float = 1e-3
    tokens_per_gpu: str = ""
    samples: str = ""
    batch: str = ""
    sequence: str = ""
    allocated: str = ""
    reserved: str = ""
    memory_unit: float = MIB


_NUMBER = r"(\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][+-]?\d+)?)([KMGBT]?)\b"
FORMATS = (
    Format(
        "nanotron",
        iteration=r"iteration: (\d+)",
        seconds=rf"elapsed_time_per_iteration_ms: {_NUMBER}",
        tokens_per_gpu=rf"tokens_per_sec_per_gpu: {_NUMBER}",
        batch=rf"global_batch_size: {_NUMBER}",
        allocated=r"Peak allocated:? (\d+(?:\.\d+)?)\s*MiB",
        reserved=r"Peak reserved:? (\d+(?:\.\d+)?)\s*MiB",
    ),
    Format(
        "Megatron",
        iteration=r"iteration\s+(\d+)/",
        seconds=rf"elapsed time per iteration \(ms\): {_NUMBER}",
        batch=rf"global batch size:\s*{_NUMBER}",
        allocated=r"\| max allocated: (\d+(?:\.\d+)?)",
        reserved=r"\| max reserved: (\d+(?:\.\d+)?)",
    ),
    Format(
        "torchtitan",
        iteration=r"step:\s*(\d+)",
        tokens_per_gpu=rf"\btps:\s*{_NUMBER}",
        batch=rf"global batch size {_NUMBER}",
        sequence=rf"sequence length {_NUMBER}",
        reserved=r"\bmemory:\s*(\d+(?:\.\d+)?)\s*GiB",
        memory_unit=GIB,
    ),
    Format(
        "DeepSpeed",
        iteration=r"global_step=(\d+)",
        samples=rf"CurrSamplesPerSec={_NUMBER}",
        allocated=r"MaxMemAllocated=(\d+(?:\.\d+)?)\s*GB",
        memory_unit=GIB,
    ),
)
"""In order: the first whose lines are in the text. Megatron-DeepSpeed prints Megatron's time."""
SIGNS = {
    "nanotron": "elapsed_time_per_iteration_ms:",
    "Megatron": "elapsed time per iteration (ms):",
    "torchtitan": " tps: ",
    "DeepSpeed": "SamplesPerSec=",
}


OUT_OF_MEMORY = ("OutOfMemoryError", "CUDA out of memory", "HIP out of memory")
"""What PyTorch prints when a run needs more than a GPU has."""


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    seconds: float | None
    """Of a step; None where it ran out of memory."""
    peak: float | None
    """Bytes that its allocator reserved; None where the log does not say."""


def ran_out(text: str) -> bool:
    """Whether a run needed more memory than its GPUs have."""
    return any(words in text for words in OUT_OF_MEMORY)


def is_outcome(text: str) -> bool:
    """Whether a text says what a run came to."""
    return ran_out(text) or is_log(text)


def outcome(text: str, known: RunSizes, name: str) -> Outcome:
    """What a log says of a run; InputError for one that says too little."""
    if ran_out(text):
        return Outcome(None, None)
    if not is_log(text):
        raise InputError(f"{name}: no line of a training framework")
    (row,) = read_log(text, known, name)
    if "seconds" not in row:
        raise InputError(f"{name}: says no step; give --gpus, --sequence and --global-batch")
    peak = row.get("reserved_bytes")
    return Outcome(float(str(row["seconds"])), None if peak is None else float(str(peak)))


def stated_batch(text: str) -> int | None:
    """Sequences of a step that a log states, not rounded; None where it does not."""
    every = _COLOUR.sub("", text)
    form = next((form for form in FORMATS if SIGNS[form.name] in every), None)
    found = re.findall(form.batch, every) if form and form.batch else []
    number, suffix = found[-1] if found else ("", "")
    digits = number.replace(",", "")
    return int(digits) if digits.isdecimal() and not suffix and len(digits) <= MOST_DIGITS else None


def is_log(text: str) -> bool:
    """Whether one of the known frameworks wrote this."""
    return any(sign in _COLOUR.sub("", text) for sign in SIGNS.values())


def read_log(text: str, known: RunSizes, name: str) -> list[Row]:
    """One row: median step seconds, tokens and peak memory of a run; where a launcher mixed the
    lines of several ranks, the times of one."""
    every = _COLOUR.sub("", text)
    form = next(form for form in FORMATS if SIGNS[form.name] in every)
    text = lines_of_one_rank(every, SIGNS[form.name])
    batch = _checked_size(_last_number(form.batch, text), known.global_batch, "a batch", name)
    sequence = _checked_size(
        _last_number(form.sequence, text), known.sequence, "a sequence length", name
    )
    tokens = batch * sequence if batch and sequence else None
    rates = _line_values(form.tokens_per_gpu, form, text)
    steps = _step_seconds(form, text, rates, tokens, batch, known.gpus)
    kept = _after_warm_up(steps or rates, name)
    if statistics.median(kept) <= 0:
        raise InputError(f"{name}: its iterations take no time")
    row: Row = {"suite": "step", "op": "train_step", "repeats": len(kept)}
    if steps:
        row |= {
            "seconds": statistics.median(kept),
            "seconds_min": min(kept),
            "seconds_max": max(kept),
        }
    if rates:
        row["tokens_per_second_per_gpu"] = statistics.median(_after_warm_up(rates, name))
    elif tokens and known.gpus and steps:
        row["tokens_per_second_per_gpu"] = tokens / statistics.median(kept) / known.gpus
    return [row | _sizes(known, tokens, batch, sequence) | _memory(form, every)]


class LineValue(NamedTuple):
    """What a line says of the iterations since the line before it."""

    iteration: int | None
    """Number of the last of them; None where the line has none."""
    value: float


def _step_seconds(
    form: Format,
    text: str,
    rates: Sequence[LineValue],
    tokens: float | None,
    batch: float | None,
    gpus: int | None,
) -> list[LineValue]:
    """Seconds of an iteration by line; [] where the log only has rates and the sizes are not
    known."""
    if form.seconds:
        told = _line_values(form.seconds, form, text)
        return [LineValue(one.iteration, one.value * form.seconds_scale) for one in told]
    if rates and tokens and gpus:
        return [
            LineValue(one.iteration, tokens / (one.value * gpus)) for one in rates if one.value > 0
        ]
    samples = _line_values(form.samples, form, text)
    return (
        [LineValue(one.iteration, batch / one.value) for one in samples if one.value > 0]
        if batch
        else []
    )


def _line_values(pattern: str, form: Format, text: str) -> list[LineValue]:
    """Every line with a value of that pattern."""
    out = []
    for line in text.splitlines() if pattern else ():
        for value in _numbers(pattern, line):
            number = re.search(form.iteration, line)
            out.append(LineValue(int(number[1][:MOST_DIGITS]) if number else None, value))
    return out


def _after_warm_up(told: Sequence[LineValue], name: str) -> list[float]:
    """The values after the warm-up: of lines whose iterations are all later."""
    if not told:
        raise InputError(
            f"{name}: the log holds samples per second only: give --global-batch for step seconds"
        )
    before = _iterations_before([one.iteration for one in told])
    kept = [one.value for one, since in zip(told, before, strict=True) if since >= WARM_UP]
    if not kept and before[-1] >= len(told):
        raise InputError(
            f"{name}: each of its {len(told)} lines tells of some of the first {WARM_UP} "
            "iterations, which are dropped as warm-up: run longer, or log every iteration"
        )
    if not kept:
        raise InputError(
            f"{name}: {len(told)} iterations; the first {WARM_UP} are dropped as warm-up, so "
            f"at least {WARM_UP + 1} are needed"
        )
    return kept


def _iterations_before(numbers: Sequence[int | None]) -> list[int]:
    """Iterations that a run had made before those of each line; lines are one each where some have
    no number. A number below the last one is of a run that began anew."""
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers):
        return list(range(len(numbers)))
    every = max(known[1] - known[0], 1) if len(known) > 1 else known[0]
    out: list[int] = []
    start = last = 0
    for number in known:
        if not out or number < last:
            start = last = number - max(min(number, every), 1)
        out.append(last - start)
        last = number
    return out


def _numbers(pattern: str, text: str) -> list[float]:
    if not pattern:
        return []
    found = re.findall(pattern, text)
    values = [float(number.replace(",", "")) * _SUFFIX[s] for number, s in found]
    return [value for value in values if value <= LARGEST]


def _last_number(pattern: str, text: str) -> float | None:
    values = _numbers(pattern, text)
    return values[-1] if values else None


def _checked_size(stated: float | None, known: int | None, what: str, name: str) -> float | None:
    """A size of the run, said by the log or the user; InputError where they differ."""
    if stated and known and abs(stated / known - 1) > SIZE_TOLERANCE:
        raise InputError(f"{name}: its steps have {what} of {stated:,.0f}, not {known:,}")
    return known or stated


def _sizes(
    known: RunSizes, tokens: float | None, batch: float | None, sequence: float | None
) -> Row:
    sizes = {"tokens": tokens, "batch": batch, "sequence": sequence, "ranks": known.gpus}
    return {name: int(value) for name, value in sizes.items() if value}


def _memory(form: Format, text: str) -> Row:
    """Peak bytes of the fullest rank in the log."""
    out: Row = {}
    for column, pattern in (("memory_bytes", form.allocated), ("reserved_bytes", form.reserved)):
        values = [float(value) for value in re.findall(pattern, text)] if pattern else []
        values = [value for value in values if value <= LARGEST]
        if values:
            out[column] = int(max(values) * form.memory_unit)
    return out


def split_prefixes(text: str) -> list[tuple[str, str]]:
    """(prefix, rest) of every line; prefixes are '' unless most lines have one of the same form."""
    lines = text.splitlines()
    form = _prefix_form(lines)
    if not form:
        return [("", line) for line in lines]
    found = [(form.match(line), line) for line in lines]
    return [(m[0].strip(), line[m.end() :]) if m else ("", line) for m, line in found]


def _prefix_form(lines: list[str]) -> re.Pattern[str] | None:
    """The form that most lines begin with."""
    told = [line for line in lines if line.strip()]
    for form in map(re.compile, _PREFIX_FORMS):
        if told and sum(bool(form.match(line)) for line in told) > LEAST_PREFIXED * len(told):
            return form
    return None


def without_prefixes(text: str) -> str:
    """The text without prefixes."""
    return "\n".join(line for _, line in split_prefixes(text)) + "\n"


def lines_of_one_rank(text: str, sign: str) -> str:
    """The lines of the rank that prints most lines with `sign`, without prefixes."""
    lines = split_prefixes(text)
    counts = Counter(prefix for prefix, line in lines if sign in line)
    if len(counts) < 2:
        return without_prefixes(text)
    ((rank, _),) = counts.most_common(1)
    return "\n".join(line for prefix, line in lines if prefix == rank) + "\n"
