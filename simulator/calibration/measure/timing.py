"""Time of a call on a device: medians over batches of calls, with clocks and power beside.

On a GPU a batch is enough calls to hide the launches, timed by events; small kernels are
replayed from a CUDA graph, so that the CPU does not set the pace.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
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
COLD_BYTES = 512 * 2**20
"""Bytes written to empty the caches: the L2 of a B200 has 126 MB, the cache of an MI300X 256."""
SMI_PERIOD = 0.05
"""Seconds between two readings of clock and power."""


@dataclass(frozen=True)
class Bench:
    """Where and how thoroughly to measure."""

    device: str
    quick: bool = False
    """Tiny shapes and few repeats: shows that everything runs, measures nothing."""
    cold: bool = False
    """Empty the caches before every call."""

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
    if bench.cold:
        return _time_cold(call, bench)
    batch = graph_of(call, calls) if graph and bench.device == "cuda" else None
    began = time.perf_counter()
    seconds: list[float] = []
    while len(seconds) < FEWEST_BATCHES or time.perf_counter() - began < bench.budget:
        if batch:
            seconds.append(batch_seconds(batch, 1, bench.device))
        else:
            seconds.append(batch_seconds(call, calls, bench.device))
    return summary(seconds, calls)


def _time_cold(call: Call, bench: Bench) -> Timing:
    """Every call alone, after a pass over more memory than the caches hold."""
    import torch

    size = 2**16 if bench.quick else COLD_BYTES
    other = torch.zeros(size, dtype=torch.uint8, device=bench.device)
    began = time.perf_counter()
    seconds: list[float] = []
    while len(seconds) < FEWEST_BATCHES or time.perf_counter() - began < bench.budget:
        other.add_(1)
        seconds.append(batch_seconds(call, 1, bench.device))
    return summary(seconds)


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


def graph_of(call: Call, calls: int) -> Call | None:
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


class SmiReader(threading.Thread):
    """Reads clock, power and throttle bits of this process's GPU from one nvidia-smi that runs as
    long as this process; nothing where there is none."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.readings: list[list[str]] = []

    def run(self) -> None:
        for reasons in THROTTLE_FIELDS:
            with contextlib.suppress(OSError):
                self._follow(["clocks.sm", "power.draw", reasons])

    def _follow(self, fields: list[str]) -> None:
        command = [*smi_command(*fields), f"--loop-ms={round(SMI_PERIOD * 1e3)}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            atexit.register(process.kill)
            for line in process.stdout or ():
                said = [part.strip() for part in line.split(",")]
                if len(said) == len(fields):
                    self.readings.append(said)


@functools.cache
def smi_reader() -> SmiReader | None:
    """The one that is running; None without nvidia-smi."""
    if not shutil.which("nvidia-smi"):
        return None
    reader = SmiReader()
    reader.start()
    return reader


@dataclass
class PowerLog:
    """Clock, power and throttle bits of this process's GPU while a block runs, from nvidia-smi;
    empty where there is none."""

    device: str = "cuda"
    clocks_hz: list[float] = field(default_factory=list)
    watts: list[float] = field(default_factory=list)
    bits: int = 0
    _readings: list[list[str]] = field(default_factory=list)
    _earlier: int = 0

    def __enter__(self) -> PowerLog:
        reader = smi_reader() if self.device == "cuda" else None
        if reader:
            self._readings, self._earlier = reader.readings, len(reader.readings)
        return self

    def __exit__(self, *error: Any) -> None:
        for said in self._readings[self._earlier :]:
            with contextlib.suppress(ValueError):  # "[N/A]"
                self.add(said)

    def add(self, said: list[str]) -> None:
        """One reading: MHz, watts and bits."""
        clock, power, bits = said
        self.clocks_hz.append(float(clock) * 1e6)
        self.watts.append(float(power))
        self.bits |= int(bits, 16) & ~IDLE_BIT

    def columns(self) -> dict[str, float | str]:
        """Medians of what was read, and every bit that was set."""
        out: dict[str, float | str] = {}
        if self.clocks_hz:
            out["clock_hz"] = statistics.median(self.clocks_hz)
            out["throttled"] = f"{self.bits:#x}"
        if self.watts:
            out["power_watts"] = statistics.median(self.watts)
        return out


THROTTLE_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""What nvidia-smi calls the bits, new drivers first."""
IDLE_BIT = 0x1
"""The bit of a GPU that does nothing (NVML, nvmlClocksThrottleReasonGpuIdle)."""


def smi(*fields: str) -> list[str]:
    """What nvidia-smi says of this process's GPU."""
    done = subprocess.run(
        smi_command(*fields), capture_output=True, text=True, check=True, timeout=5
    )
    return [part.strip() for part in done.stdout.splitlines()[0].split(",")]


def smi_command(*fields: str) -> list[str]:
    """The call of nvidia-smi, which knows no CUDA_VISIBLE_DEVICES, that prints these fields of this
    process's GPU as CSV."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    visible = [word for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word]
    gpu = visible[local] if local < len(visible) else str(local)
    query = f"--query-gpu={','.join(fields)}"
    return ["nvidia-smi", query, "--format=csv,noheader,nounits", "-i", gpu]
