"""Makes the shipped GEMM tables: thins and smooths measured times into table files.

    python tests/benchmarks/make_gemm_tables.py FILE.csv KERNELS GPU SOURCE PEAK BANDWIDTH OUT.csv

FILE.csv holds the GEMM rows of one GPU as exported from the parquet tables of the PyPI package
aiconfigurator-core, with columns dtype, src, m, n, k, us; KERNELS names the rows to take,
'bf16/trt', or several, 'fp8/sgl,fp8_block/sgl', of which the fastest counts; PEAK and BANDWIDTH
are the datasheet's FLOP/s and bytes/s.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np

from plan3d.simulator.hardware.gemm_tables import STEPS, isotonic

M = (128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192, 16384, 32768)
"""Rows kept: what training uses; odd ones (129, 257 ...) are left out."""

HEADER = """\
# GEMM seconds, {gpu}: Y[m,n] = X[m,k] W[n,k]^T, microseconds; columns are values of m.
# source: {source}; kernels {kernels}
# licence: Apache-2.0, (c) NVIDIA CORPORATION & AFFILIATES; changed: thinned and smoothed
# thinned: m of {rows}; every n and k of the source that is 2^i x 1, 1.25, 1.5 or 1.75
# smoothed: nearest non-decreasing times along m in least squares of the logarithm; {moved}
# blank: not measured
"""


def on_lattice(side: int) -> bool:
    """Whether a side is 2^i times 1, 1.25, 1.5 or 1.75, where a table interpolates exactly."""
    return (2 * STEPS * float(np.frexp(side)[0])).is_integer()


def measured(file: Path, kernels: set[str]) -> dict[tuple[int, int], dict[int, float]]:
    """Microseconds by (n, k) and m: the median of repeats, the fastest of the kernels."""
    times: dict[tuple[int, int, int, str], list[float]] = defaultdict(list)
    with file.open(encoding="utf-8") as lines:
        for row in csv.DictReader(line for line in lines if not line.startswith("#")):
            kernel = f"{row['dtype']}/{row['src']}"
            m, n, k = (int(row[side]) for side in "mnk")
            if kernel in kernels and m in M and on_lattice(n) and on_lattice(k):
                times[m, n, k, kernel].append(float(row["us"]))
    out: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    for (m, n, k, _), repeats in times.items():
        best = out[n, k].get(m, np.inf)
        out[n, k][m] = min(best, float(np.median(repeats)))
    return out


def write(
    file: Path, kernels: str, gpu: str, source: str, machine: tuple[str, str], out: Path
) -> None:
    """One table file."""
    times = measured(file, set(kernels.split(",")))
    rows = sorted({m for row in times.values() for m in row})
    lines, moved = [], []
    for n, k in sorted(times):
        row = dict(sorted(times[n, k].items()))
        smooth = isotonic(np.log(list(row.values())))
        assert all(a <= b for a, b in pairwise(smooth))
        moved += [abs(s - np.log(us)) for s, us in zip(smooth, row.values(), strict=True)]
        at = dict(zip(row, smooth, strict=True))
        cells = [f"{np.exp(at[m]):.5g}" if m in at else "" for m in rows]
        lines.append(",".join([str(n), str(k), *cells]))
    p90, most = np.quantile(np.expm1(moved), [0.9, 1.0])
    header = HEADER.format(
        gpu=gpu, source=source, kernels=kernels, rows=", ".join(map(str, rows)),
        moved=f"90 % of times moved by <= {100 * p90:.1f} %, all by <= {100 * most:.0f} %",
    )  # fmt: skip
    head = ",".join(["n", "k", *map(str, rows)])
    bounds = [f"peak,{float(machine[0]):g}", f"memory_bandwidth,{float(machine[1]):g}"]
    out.write_text("\n".join([header.strip(), *bounds, head, *lines]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    file, kernels, gpu, source, peak, bandwidth, out = sys.argv[1:]
    write(Path(file), kernels, gpu, source, (peak, bandwidth), Path(out))
