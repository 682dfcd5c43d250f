"""The columns of measurements: one wide CSV for every kind; a field that does not apply is
empty. SI units: seconds, bytes, hertz, watts. Standard library only: `measure` runs where plan3d
is not installed.

`bytes` is the memory traffic of a kernel, the buffer of a copy, or the size of a collective as
nccl-tests prints it (the larger buffer: gathered, or before scattering).
"""

from __future__ import annotations

KIND = ("suite", "op", "dtype")
SHAPE = (
    "m",
    "n",
    "k",
    "batch",
    "heads",
    "kv_heads",
    "head_dim",
    "sequence",
    "causal",
    "hidden",
    "ffn",
    "tp",
    "vocabulary",
    "layers",
    "micro_batches",
    "recompute",
    "experts",
    "elements",
    "ranks",
    "nodes",
    "groups",
    "bytes",
    "cold_cache",
)
"""Sizes of the work; those of a GEMM are of its forward, Y[m, n] = X[m, k] W[k, n]. `batch` is a
micro-batch; `recompute` is 1 where every layer is run again in the backward pass, else 0. `groups`
are process groups that communicate at once, each on ranks of its own; `cold_cache` is 1 where the
caches are emptied before every call."""
RESULT = (
    "seconds",
    "seconds_min",
    "seconds_max",
    "repeats",
    "tokens",
    "tokens_per_second_per_gpu",
    "memory_bytes",
    "reserved_bytes",
    "clock_hz",
    "power_watts",
    "from_graph",
)
"""`seconds` is the median; memory is the peak of one GPU; clock and power are medians while the
case runs, of several ranks the slowest clock and the largest power. `from_graph` is 1 where the
calls were replayed from a CUDA graph."""
REMARKS = ("throttled",)
"""`throttled`: what held the clock down while the case ran, as nvidia-smi's bits."""
ORIGIN = ("gpu", "driver", "torch", "nccl", "environment", "date", "source")
COLUMNS = (*KIND, *SHAPE, *RESULT, *REMARKS, *ORIGIN)
NUMBERS = (*SHAPE, *RESULT)
IDENTITY = (*KIND, *SHAPE, "gpu", "torch")
"""A row with the same values here has been measured already."""
