"""Time of a call on a device: medians over batches of calls, with clocks and power beside.

On a GPU a batch is enough calls to hide the launches, timed by events; small kernels are
replayed from a CUDA graph, so that the CPU does not set the pace.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Call = Callable[[], object]

BATCH_SECONDS = 2e-3
"""A batch of calls lasts at least this long, which makes event resolution (0.5 us) negligible."""
MOST_CALLS = 200
FEWEST_BATCHES = 5
SMI_PERIOD = 0.2
"""Seconds between two readings of clock and power."""


@dataclass(frozen=True)
class Bench:
    """Where and how thoroughly to measure."""

    device: str
    quick: bool = False
    """Tiny shapes and few repeats: shows that everything runs, measures nothing."""

    @property
    def budget(self) -> float:
        """Seconds spent on one case after warming up."""
        return 0.01 if self.quick else 0.15

    @property
    def sustained_seconds(self) -> float:
        """Length of a sustained loop: clocks settle within a few seconds of full power."""
        return 0.05 if self.quick else 10.0


class Timing(NamedTuple):
    """Seconds of one call."""

    median: float
    least: float
    most: float
    repeats: int

    def columns(self) -> dict[str, float]:
        """As columns of a row of measurements."""
        return {
            "seconds": self.median,
            "seconds_min": self.least,
            "seconds_max": self.most,
            "repeats": self.repeats,
        }


def summary(seconds: list[float], calls: int = 1) -> Timing:
    """Timing of batches of so many calls each."""
    each = [value / calls for value in seconds]
    return Timing(statistics.median(each), min(each), max(each), len(each) * calls)


def time_call(call: Call, bench: Bench, *, graph: bool = False) -> Timing:
    """Seconds of one call, warmed up; `graph` replays it from a CUDA graph where that works."""
    for _ in range(3):
        call()
    once = max(batch_seconds(call, 1, bench.device), 1e-7)
    calls = max(1, min(MOST_CALLS, round(BATCH_SECONDS / once)))
    batch = _graph_of(call, calls) if graph and bench.device == "cuda" else None
    began = time.perf_counter()
    seconds: list[float] = []
    while len(seconds) < FEWEST_BATCHES or time.perf_counter() - began < bench.budget:
        if batch:
            seconds.append(batch_seconds(batch, 1, bench.device))
        else:
            seconds.append(batch_seconds(call, calls, bench.device))
    return summary(seconds, calls)


def batch_seconds(call: Call, calls: int, device: str) -> float:
    """Seconds of `calls` calls in a row."""
    if device != "cuda":
        began = time.perf_counter()
        for _ in range(calls):
            call()
        return time.perf_counter() - began
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def _graph_of(call: Call, calls: int) -> Call | None:
    """Replays `calls` calls; None where they cannot be captured."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for _ in range(calls):
                call()
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    graph.replay()
    replay: Call = graph.replay
    return replay


@dataclass
class PowerLog:
    """Clock and power of GPU 0 while a block runs, from nvidia-smi; empty where there is none."""

    clocks_hz: list[float] = field(default_factory=list)
    watts: list[float] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> PowerLog:
        if shutil.which("nvidia-smi"):
            self._thread = threading.Thread(target=self._read, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join(timeout=5)

    def _read(self) -> None:
        while not self._stop.wait(SMI_PERIOD):
            with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
                clock, power = smi("clocks.sm", "power.draw")
                self.clocks_hz.append(float(clock) * 1e6)
                self.watts.append(float(power))

    def columns(self) -> dict[str, float]:
        """Medians of what was read."""
        out = {}
        if self.clocks_hz:
            out["clock_hz"] = statistics.median(self.clocks_hz)
        if self.watts:
            out["power_watts"] = statistics.median(self.watts)
        return out


def smi(*fields: str) -> list[str]:
    """What nvidia-smi says of the first visible GPU."""
    query = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(query, capture_output=True, text=True, check=True, timeout=5)
    return [part.strip() for part in done.stdout.splitlines()[0].split(",")]
