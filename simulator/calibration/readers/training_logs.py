"""Logs of training runs as one row: the time of a step, its tokens and the peak of memory.

The first iterations are dropped and the median is taken. A line tells the mean of the iterations
since the line before it (Megatron's --log-interval, torchtitan's log_freq): its number says how
many. Memory is the peak of any rank that the log names. What trainers print is in trainers.py.
"""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass

from ...base.errors import InputError
from .log_values import Log, Row
from .log_values import RunSizes as RunSizes
from .trainers import EVALUATIONS, NAMES, OTHER_WORK, TRAININGS, trainers_of

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
SIZE_TOLERANCE = 0.01
"""Share by which a log's size may differ from the run's: nanotron prints 1,024 as 1.02K."""
OUT_OF_MEMORY = (
    "OutOfMemoryError",
    "CUDA out of memory",
    "HIP out of memory",
    "RESOURCE_EXHAUSTED: Out of memory",
)
"""What PyTorch and JAX print when a run needs more than a GPU has."""


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
    log = _read(text, RunSizes())
    exact = log and (log.last_number(log.trainer.batch, exact=True) or log.batch_of_samples)
    return int(exact) if exact and exact == int(exact) else None


def is_log(text: str) -> bool:
    """Whether one of the known trainers wrote this."""
    return bool(trainers_of(_COLOUR.sub("", text)))


def read_log(text: str, known: RunSizes, name: str, timed: bool = True) -> list[Row]:
    """One row: median step seconds, tokens and peak memory of a run; where a launcher mixed the
    lines of several ranks, the times of one. A log without a step after the warm-up is refused
    where it must be `timed`."""
    for sign, work in OTHER_WORK:
        if sign in text:
            raise InputError(f"{name}: its steps are of {work}, which is not read")
    if any(sign in text for sign in EVALUATIONS) and not any(sign in text for sign in TRAININGS):
        raise InputError(f"{name}: evaluates a model and trains none: give the log of a training")
    log = _read(text, known)
    if log is None:
        raise InputError(f"{name}: no line of a trainer that is read here: {NAMES}")
    batch = _checked_size(log.batch, known.global_batch, "a batch", name)
    sequence = _checked_size(log.sequence, known.sequence, "a sequence length", name)
    gpus = known.gpus or log.gpus
    if known.gpus and log.gpus and log.gpus != known.gpus:
        raise InputError(f"{name}: ran on {log.gpus:,.0f} GPUs, not {known.gpus:,}")
    tokens = batch * sequence if batch and sequence else log.last_number(log.trainer.tokens)
    rates = log.values(log.trainer.tokens_per_gpu)
    row: Row = {"suite": "step", "op": "train_step", "repeats": 0}
    sizes = {"tokens": tokens, "batch": batch, "sequence": sequence, "ranks": gpus}
    row |= {size: int(value) for size, value in sizes.items() if value} | log.memory
    try:
        steps = log.step_means or log.after_warm_up(log.step_seconds or rates, name)
    except InputError:
        if timed:
            raise
        return [row]
    if statistics.median(steps) <= 0:
        raise InputError(f"{name}: its iterations take no time")
    row["repeats"] = len(steps)
    seconds = statistics.median(steps) if log.step_means or log.step_seconds else None
    if seconds:
        row |= {"seconds": seconds, "seconds_min": min(steps), "seconds_max": max(steps)}
    if rates:
        row["tokens_per_second_per_gpu"] = statistics.median(log.after_warm_up(rates, name))
    elif tokens and gpus and seconds:
        row["tokens_per_second_per_gpu"] = tokens / seconds / gpus
    elif gpus and (totals := log.values(log.trainer.tokens_per_second)):
        rate = statistics.median(log.after_warm_up(totals, name))
        row["tokens_per_second_per_gpu"] = rate / gpus
    return [row]


def _read(text: str, known: RunSizes) -> Log | None:
    """A text as the log of the first trainer whose lines say a step, or that has a sign there."""
    every = _COLOUR.sub("", text)
    logs = [Log(trainer, every, known) for trainer in trainers_of(every)]
    timed = (log for log in logs if log.step_means or log.step_seconds)
    return next(timed, logs[0] if logs else None)


def _checked_size(stated: float | None, known: int | None, what: str, name: str) -> float | None:
    """A size of the run, said by the log or the user; InputError where they differ."""
    if stated and known and abs(stated / known - 1) > SIZE_TOLERANCE:
        raise InputError(f"{name}: its steps have {what} of {stated:,.0f}, not {known:,}")
    return known or stated
