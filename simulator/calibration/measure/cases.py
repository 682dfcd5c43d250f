"""A case of a measurement: sizes, and how to time them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from .timing import Bench, Call, time_call

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row to be: what it is and how to get its results."""

    suite: str
    op: str
    dtype: str = "bf16"
    shape: Mapping[str, int] = field(default_factory=dict)
    run: Callable[[Bench], Mapping[str, float]]
    """Columns of the row that only a measurement can fill."""

    @property
    def title(self) -> str:
        sizes = " ".join(f"{name}={size}" for name, size in self.shape.items())
        return f"{self.suite} {self.op} {self.dtype} {sizes}"


Suite = Callable[[bool], Iterator[Case]]
"""Cases of a suite; True for the quick ones."""


def coarse_to_fine(series: Sequence[Sequence[Item]]) -> list[Item]:
    """The items of several ordered series, coarse before fine: the first and every fourth part of
    each, then those half-way between, and so on; series in their order.

    >>> coarse_to_fine([[0, 1, 2, 3, 4, 5, 6, 7, 8], ["a", "b"]])
    [0, 2, 4, 6, 8, 'a', 'b', 1, 3, 5, 7]
    """
    ranked = [
        (_level(at, len(items)), which, at)
        for which, items in enumerate(series)
        for at in range(len(items))
    ]
    return [series[which][at] for _, which, at in sorted(ranked)]


def _level(at: int, length: int) -> int:
    """0 for about every fourth part of a series, then halved."""
    step, level = 1, 0
    while 4 * (2 * step) <= length:
        step *= 2
    while at % step:
        step, level = step // 2, level + 1
    return level


def time_prepared(
    prepare: Callable[..., Call], *sizes: int | str, graph: bool = False
) -> Callable[[Bench], Mapping[str, float]]:
    """The usual way to run a case: allocate on the device with these sizes, then time the call."""

    def run(bench: Bench) -> Mapping[str, float]:
        return time_call(prepare(bench.device, *sizes), bench, graph=graph).columns()

    return run


def time_with_peaks(prepare: Callable[[], Call], bench: Bench) -> dict[str, float]:
    """Time the call that `prepare` allocates; on a GPU also the peaks of the memory that it takes,
    by tensors and by the allocator's segments, over what was there before."""
    if bench.device != "cuda":
        return time_call(prepare(), bench).columns()
    import torch

    gc.collect()
    torch.cuda.empty_cache()
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    return {
        **time_call(prepare(), bench).columns(),
        "memory_bytes": torch.cuda.max_memory_allocated() - allocated,
        "reserved_bytes": torch.cuda.max_memory_reserved() - reserved,
    }
