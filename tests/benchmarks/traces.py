"""Seconds and memory that a long trace takes, and how much of public traces is classified.

    python tests/benchmarks/traces.py --gigabytes 1
    python tests/benchmarks/traces.py FILE...

The first writes a trace as Kineto lays it out (for each kernel its launch, two arrows, three
operators and two Python functions) to a temporary folder and reads it in this process.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.calibration.traces.breakdown import break_down, common_steps
from plan3d.simulator.calibration.traces.reader import read_trace

NAMES = (
    "nvjet_tst_128x256_64x4_2x1_v_bz_TNT",
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false>>(Params)",
    "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, "
    "3ul>)",
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
)
PERIOD = 50.0
"""Microseconds between kernels."""


def events(at: int) -> str:
    """One kernel and what belongs to it."""
    moment, name = 3743411222894.405 + at * PERIOD, NAMES[at % len(NAMES)]
    host = {"pid": 542, "tid": 542}
    shapes = [[4096, 1024 + at % 64], [1024, 8192], [], []]
    operator = {
        "Record function id": 0,
        "Concrete Inputs": ["", "", "", ""],
        "Input type": ["c10::BFloat16", "c10::BFloat16", "", ""],
        "Input Strides": [[1024, 1], [1, 1024], [], []],
        "Input Dims": shapes,
        "Ev Idx": at,
    }
    launch = {"External id": 3 * at + 2, "cbid": 211, "correlation": at}
    grid = {"registers per thread": 168, "shared memory": 213252, "blocks per SM": 1.0}
    grid |= {"warps per SM": 12.0, "grid": [132, 1, 1], "block": [384, 1, 1], "stream": 7}
    rows = [
        _event("python_function", f"module.py({line}): _call_impl", host, moment, 40.1, {"id": at})
        for line in (1784, 1775)
    ]
    rows += [
        _event("cpu_op", f"aten::{op}", host, moment + 1, 20.4, {"External id": i, **operator})
        for i, op in enumerate(("linear", "t", "addmm"), 3 * at)
    ]
    arrow = {"id": at, "cat": "ac2g", "name": "ac2g"}
    gpu = {"pid": 0, "tid": 7}
    rows += [
        _event("cuda_runtime", "cudaLaunchKernel", host, moment + 3, 4.1, launch),
        {"ph": "s", **arrow, **host, "ts": moment + 3},
        _event("kernel", name, gpu, moment + 12, 45.5, {**launch, **grid}),
        {"ph": "f", "bp": "e", **arrow, **gpu, "ts": moment + 12},
    ]
    return ",\n".join(json.dumps(row, indent=2) for row in rows)


def _event(
    category: str,
    name: str,
    place: dict[str, int],
    start: float,
    length: float,
    args: dict[str, Any],
) -> dict[str, Any]:
    about = {"ph": "X", "cat": category, "name": name, **place}
    return {**about, "ts": start, "dur": length, "args": args}


def pieces(size: float) -> Iterator[str]:
    """A trace of about so many bytes."""
    yield '{"distributedInfo": {"rank": 0, "world_size": 8}, "traceEvents": [\n'
    written, at = 0, 0
    while written < size:
        text = events(at)
        yield ",\n" * (at > 0) + text
        written, at = written + len(text), at + 1
    yield '\n], "traceName": "rank0.json"}'


def read(path: Path) -> None:
    """Read one trace and print what it takes."""
    start = time.process_time()
    for trace in read_trace(path):
        found = break_down(trace, common_steps([trace]))
        parts = sum(found.seconds.values()) + sum(found.gaps.values())
        print(
            f"{path.name}: {trace.gpu or 'GPU not named'}, {trace.start.size:,} events of the GPU, "
            f"{found.window.steps} steps of {found.wall:.6g} s, "
            f"busy {found.busy / found.wall:.3f}, classified {found.classified:.4f}, "
            f"parts and gaps / wall {parts / found.wall:.6f}"
        )
    print(f"  {time.process_time() - start:.1f} s of CPU, {peak():.2f} GB at the peak")


def peak() -> float:
    """Gigabytes of memory that this process has used at most."""
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes / (1e9 if sys.platform == "darwin" else 1e6)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--gigabytes", type=float, default=0.0)
    args = parser.parse_args()
    for path in args.files:
        try:
            read(path)
        except InputError as error:
            print(error)
    if args.gigabytes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            with path.open("w") as file:
                file.writelines(pieces(1e9 * args.gigabytes))
            read(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
