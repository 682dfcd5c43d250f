"""Memory of a GPU through a profiled step: the profiler's memory timeline, and its peak.

Read are torch.profiler's export_memory_timeline as JSON, [times, bytes by category], and as raw
events, [time, action, bytes, category] each, packed with gzip or not. Pickles of
torch.cuda.memory._record_memory_history are refused: a pickle runs whatever it holds.
Source: PyTorch, torch/profiler/_memory_profiler.py (MemoryProfileTimeline, _CATEGORY_TO_INDEX).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...base.documents import JsonStream
from ...base.errors import InputError
from ...base.files import read_pieces

CATEGORIES = (
    "weights",
    "optimizer",
    "activations",
    "buffers",
    "activations",
    "gradients",
    "activations",
    "other",
)
"""What the profiler's categories are to a prediction: parameters, optimizer state, inputs,
temporaries, activations, gradients, autograd details, and tensors of no category."""
PICKLES = (".pickle", ".pkl", ".pt")
NAMES = tuple(dict.fromkeys(CATEGORIES))
LARGEST = 1e18
"""Bytes that no GPU has."""


@dataclass(frozen=True)
class MeasuredPeak:
    """The moment at which a profiled GPU held most."""

    source: str
    seconds: float
    """From the first event."""
    memory: dict[str, float]
    """Bytes of tensors by NAMES."""
    left_out: str = ""

    @property
    def total(self) -> float:
        return sum(self.memory.values())


def read_memory_timeline(name: str) -> MeasuredPeak:
    """The peak of a memory timeline. InputError for what is none."""
    if name.endswith(PICKLES):
        raise InputError(
            f"{name}: is a pickle, which is not read: write the profiler's timeline with "
            "export_memory_timeline('memory.json')"
        )
    path = Path(name)
    stream = JsonStream(read_pieces(path), name, "traceEvents")
    elements, peak = iter(stream), (-LARGEST, 0.0, [0.0])
    begin, moments = 0.0, 0
    try:
        for moment, held in _moments(elements):
            # What was there before has no time.
            begin, moments, total = begin or max(moment, 0.0), moments + 1, sum(held)
            if len(held) != len(CATEGORIES) or not sum(map(abs, held)) < LARGEST:
                raise ValueError
            if total > peak[0]:
                peak = (total, max(moment - begin, 0.0), held)
    except (TypeError, ValueError, IndexError, OverflowError):
        raise InputError(
            f"{name}: is no memory timeline of torch.profiler (export_memory_timeline, JSON)"
        ) from None
    if not moments or stream.head:
        raise InputError(f"{name}: is no memory timeline of torch.profiler: no moment is in it")
    memory = dict.fromkeys(NAMES, 0.0)
    for category, size in zip(CATEGORIES, peak[2], strict=True):
        memory[category] += size
    return MeasuredPeak(path.name, peak[1], memory, stream.broken)


def _moments(elements: Iterator[Any]) -> Iterator[tuple[float, list[float]]]:
    """Seconds and bytes by category of every moment."""
    one, other = next(elements, None), next(elements, None)
    if one is None:
        return
    if isinstance(other, list) and other and isinstance(other[0], list):
        # The sizes begin with a column that stands for nothing.
        for moment, sizes in zip(one, other, strict=True):
            yield 1e-6 * float(moment), [float(size) for size in sizes[1:]]
        return
    held = [0.0] * len(CATEGORIES)
    for event in (one, *([] if other is None else [other]), *elements):
        moment, _, size, category = event
        if not 0 <= category < len(CATEGORIES):
            raise IndexError
        held[category] += float(size)
        yield 1e-9 * float(moment), [*held]
