"""GPU time of a traced step by class of kernel: Chrome traces of the torch profiler.

Each class is one row: `seconds` is the sum of its kernels, `repeats` their number, both for one
step where the trace marks steps. Overlapping kernels are summed, not merged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...base.errors import InputError

CLASSES = (
    ("all_reduce", r"nccl.*all_?reduce"),
    ("all_gather", r"nccl.*all_?gather"),
    ("reduce_scatter", r"nccl.*reduce_?scatter"),
    ("send", r"nccl.*send|nccl.*recv"),
    ("broadcast", r"nccl.*broadcast"),
    ("nccl_other", r"nccl"),
    ("attention", r"flash|fmha|sdpa|attention|attn"),
    ("gemm", r"gemm|nvjet|cublas|cutlass|xmma|wgmma|cijk_"),
)
"""Kernel class by the first pattern its name matches; what matches none is memory-bound."""
_PATTERNS = tuple((name, re.compile(pattern, re.I)) for name, pattern in CLASSES)
_STEP = re.compile(r"ProfilerStep#\d+")
Row = dict[str, object]


def is_trace(content: object) -> bool:
    """Whether this is a Chrome trace."""
    return isinstance(content, dict) and isinstance(content.get("traceEvents"), list)


def read_trace(content: Mapping[str, Any], name: str) -> list[Row]:
    """One row for each kernel class of one rank's trace."""
    spent: dict[str, tuple[float, int]] = {}
    steps = set()
    for event in content["traceEvents"]:
        if event.get("ph") != "X":
            continue
        kind, title = str(event.get("cat", "")), str(event.get("name", ""))
        if _STEP.match(title):
            steps.add(title)
        if kind.lower() in ("kernel", "gpu_memcpy", "gpu_memset"):
            key = kernel_class(title) if kind.lower() == "kernel" else "copy"
            total, count = spent.get(key, (0.0, 0))
            spent[key] = (total + float(event.get("dur", 0.0)) * 1e-6, count + 1)
    if not spent:
        raise InputError(f"{name}: the trace holds no GPU kernels (profile with CUDA activities)")
    devices = content.get("deviceProperties") or [{}]
    gpu = str(devices[0].get("name", ""))
    each = max(len(steps), 1)
    return [
        {
            "suite": "trace",
            "op": key,
            "seconds": total / each,
            "repeats": round(count / each),
            "gpu": gpu,
        }
        for key, (total, count) in sorted(spent.items())
    ]


def kernel_class(title: str) -> str:
    """'gemm', 'attention', an NCCL operation, or 'memory_bound'."""
    for name, pattern in _PATTERNS:
        if pattern.search(title):
            return name
    return "memory_bound"
