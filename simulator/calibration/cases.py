"""What is one measurement? A case: sizes, and how to time them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from .timing import Bench, Call, time_call


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


def timed(
    prepare: Callable[..., Call], *sizes: int | str, graph: bool = False
) -> Callable[[Bench], Mapping[str, float]]:
    """The usual way to run a case: allocate on the device with these sizes, then time the call."""

    def run(bench: Bench) -> Mapping[str, float]:
        return time_call(prepare(bench.device, *sizes), bench, graph=graph).columns()

    return run
