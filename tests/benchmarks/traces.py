"""Seconds and memory that a long trace takes, and how much of public traces is classified.

    python tests/benchmarks/traces.py --gigabytes 1
    python tests/benchmarks/traces.py FILE...

The first writes a trace as Kineto lays it out (for each kernel its launch, two arrows, three
operators and two Python functions) to a temporary folder and reads it in this process.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

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
    shapes = f"[[4096, {1024 + at % 64}], [1024, 8192], [], []]"
    out = [
        f'  {{\n    "ph": "X", "cat": "python_function", "name": "torch/nn/modules/module.py({line}):'
        f' _call_impl", "pid": 542, "tid": 542,\n    "ts": {moment:.3f}, "dur": 40.125,\n    "args": '
        f'{{\n      "Python id": {at}, "Python parent id": {at - 1}, "Ev Idx": {at}\n    }}\n  }}'
        for line in (1784, 1775)
    ]
    out += [
        f'  {{\n    "ph": "X", "cat": "cpu_op", "name": "aten::{op}", "pid": 542, "tid": 542,\n    '
        f'"ts": {moment + 1:.3f}, "dur": 20.375,\n    "args": {{\n      "External id": '
        f'{3 * at + i},"Record function id": 0, "Concrete Inputs": ["", "", "", ""], "Input type": '
        f'["c10::BFloat16", "c10::BFloat16", "", ""], "Input Strides": [[1024, 1], [1, 1024], [], '
        f'[]], "Input Dims": {shapes}, "Ev Idx": {at}\n    }}\n  }}'
        for i, op in enumerate(("linear", "t", "addmm"))
    ]
    out += [
        f'  {{\n    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 542, "tid": '
        f'542,\n    "ts": {moment + 3:.3f}, "dur": 4.125,\n    "args": {{\n      "External id": '
        f'{3 * at + 2}, "cbid": 211, "correlation": {at}\n    }}\n  }}',
        f'  {{\n    "ph": "s", "id": {at}, "pid": 542, "tid": 542, "ts": {moment + 3:.3f},\n    '
        '"cat": "ac2g", "name": "ac2g"\n  }',
        f'  {{\n    "ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": 7,\n    "ts": '
        f'{moment + 12:.3f}, "dur": 45.500,\n    "args": {{\n      "External id": {3 * at + 2}, '
        f'"queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": {at}, "registers per '
        'thread": 168, "shared memory": 213252, "blocks per SM": 1.000000, "warps per SM": '
        '12.000000, "grid": [132, 1, 1], "block": [384, 1, 1]\n    }\n  }',
        f'  {{\n    "ph": "f", "id": {at}, "pid": 0, "tid": 7, "ts": {moment + 12:.3f},\n    "cat": '
        '"ac2g", "name": "ac2g", "bp": "e"\n  }',
    ]
    return ",\n".join(out)


def pieces(size: float) -> Iterator[str]:
    """A trace of about so many bytes."""
    yield '{"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 8},\n"traceEvents": [\n'
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
            f"{found.window.steps} steps of {found.wall:.6g} s, busy {found.busy / found.wall:.3f}, "
            f"classified {found.classified:.4f}, parts and gaps / wall {parts / found.wall:.6f}"
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
