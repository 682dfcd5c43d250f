"""Errors of kernels and collectives by GPU and kind, as a table in Markdown.

    python tests/benchmarks/microbenchmarks.py

The measurements are the public samples in tests/simulator/data. A GEMM is predicted from its
shipped table without the table's rows of the same n (`gemm`, `layer`: a sum of four), or from the
profile's roofline (`roofline`); collectives from the profile, and inside a domain also by a fit to
every other size (`without its size`). Errors are of |predicted / measured - 1|.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from plan3d.simulator.calibration.fit.links import fast_subjects
from plan3d.simulator.calibration.fit.robust import unseen_seconds
from plan3d.simulator.calibration.readers.measurements import Measurements
from plan3d.simulator.hardware import gemm_tables
from plan3d.simulator.hardware.accelerator import Accelerator
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.precision import RECIPES, Precision
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.operators import collectives, kernel_times
from plan3d.simulator.operators.work import AttentionWork, Gemm

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests/simulator/data"
TABLES = ROOT / "hardware_profiles/measurements"
PROFILES = {
    "a100": "a100-80gb-sxm",
    "h100": "h100-sxm",
    "h200": "h200-sxm",
    "b200": "b200",
    "gb200": "gb200",
}
"""The profile with each table's GPU."""
LAYERS = [
    (hidden, tp)
    for hidden, shards in {
        1024: (1, 2, 4),
        2048: (1, 2, 4, 8),
        4096: (1, 2, 4, 8),
        8192: (2, 4, 8),
        16384: (4, 8),
    }.items()
    for tp in shards
]
"""Hidden size and tensor ranks of layers with a feed-forward width of four times that."""
TOKENS = (512, 1024, 2048, 4096, 8192, 16384)
LARGE = 2**20
"""Bytes from which a collective is a training one."""

Value = NDArray[np.float64]
Row = dict[str, str]


def rows(name: str) -> list[Row]:
    """A sample's rows."""
    text = (DATA / f"microbench_{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))


@cache
def without(gpu: str, width: str, n: int) -> gemm_tables.GemmTable:
    """A shipped table that never saw this n."""
    m, sides, k, seconds = gemm_tables.parse_table((TABLES / f"{gpu}-gemm-{width}.csv").read_text())
    kept = sides != n
    times = gemm_tables.fit_times(m, sides[kept], k, seconds[kept])
    return gemm_tables.build(m, sides[kept], k, times)


def held_out(row: Row) -> float:
    """Seconds of a GEMM from the table without its n; the smallest n has no neighbour below."""
    m, n, k = (int(row[side]) for side in "mnk")
    sides = np.array([m, n, k], float).reshape(3, 1, 1)
    return float(gemm_tables.seconds(without(row["gpu"], row["width"], n), sides)[0, 0])


@cache
def accelerator(profile: str) -> Accelerator:
    """A profile's GPU without its tables."""
    return replace(Cluster.profile(profile, nodes=1).accelerator, gemm_tables={})


def roofline(row: Row) -> float:
    """Seconds of a GEMM from the profile's constants."""
    gpu = accelerator(PROFILES[row["gpu"]])
    recipe = RECIPES[Precision.BF16 if row["width"] == "16bit" else Precision.FP8]
    gemm = Gemm(*(np.array([float(row[side])]) for side in "mnk"))
    return float(kernel_times.gemm_seconds([gemm], 1, gpu, recipe, 1.0)[0, 0])


def gemms(predict: Callable[[Row], float]) -> Iterator[tuple[str, float]]:
    """Ratio of predicted to measured of every GEMM, by GPU and width."""
    for row in rows("gemm"):
        yield f"{row['gpu']} {row['width']}", predict(row) * 1e6 / float(row["us"])


def layer_sums(predict: Callable[[Row], float]) -> Iterator[tuple[str, float]]:
    """The same of sums over a layer's four GEMMs: QKV, projection, two of the MLP."""
    found = {
        (row["gpu"], *(int(row[side]) for side in "mnk")): row
        for row in rows("gemm")
        if row["width"] == "16bit"
    }
    for gpu in PROFILES:
        for h, tp in LAYERS:
            pairs = [(3 * h // tp, h), (h, h // tp), (4 * h // tp, h), (h, 4 * h // tp)]
            for m in TOKENS:
                layer = [found.get((gpu, m, n, k)) for n, k in pairs]
                if all(layer):
                    known = [row for row in layer if row]
                    measured = sum(float(row["us"]) for row in known)
                    yield f"{gpu} 16bit", sum(map(predict, known)) * 1e6 / measured


@cache
def cluster(profile: str, gpus: int, nodes: int, nic: str, node: str) -> Cluster:
    """The cluster of a row, with the NIC bandwidth and node latency it states."""
    bandwidth = float(nic) * 1e9 if nic else None
    latency = float(node) * 1e-6 if node else None
    return Cluster.profile(
        profile,
        gpus=gpus,
        nodes=nodes if nic else None,
        inter_node_bandwidth=bandwidth,
        latency_per_node=latency,
    )


def exchanges(least: float) -> Iterator[tuple[str, float]]:
    """The same of collectives of `least` bytes and more, by GPU, reach and operation."""
    for row in rows("collectives"):
        if float(row["bytes"]) < least:
            continue
        n, nodes = int(row["gpus"]), int(row["nodes"])
        where = cluster(row["profile"], n, nodes, row["nic_gb_s"], row["node_us"])
        group = collectives.place_group(np.array([float(n)]), np.ones(1), where)
        seconds = getattr(collectives, row["collective"])(float(row["bytes"]), group, where)
        reach = "in a domain" if nodes == 1 else "across nodes"
        ratio = float(seconds[0]) * 1e6 / float(row["us"])
        yield f"{row['profile']} {reach}, {row['collective']}", ratio


def unseen_sizes() -> Iterator[tuple[str, float]]:
    """The same inside a domain, by fits to every other size."""
    inside = [row for row in rows("collectives") if row["nodes"] == "1"]
    for profile in dict.fromkeys(row["profile"] for row in inside):
        table = measured([row for row in inside if row["profile"] == profile])
        for subject in fast_subjects(table, Cluster.profile(profile, nodes=1)):
            order = np.unique(subject.work, return_inverse=True)[1]
            ratios = unseen_seconds(replace(subject, folds=order % 2)) / subject.seconds
            operation = subject.section.rpartition(".")[2]
            yield from ((f"{profile} in a domain, {operation}", ratio) for ratio in ratios)


def measured(collected: Sequence[Row]) -> Measurements:
    """Rows of collectives in the columns of `plan3d calibrate`."""
    names = {"op": "collective", "ranks": "gpus", "nodes": "nodes", "bytes": "bytes"}
    return Measurements(
        rows=tuple(
            {name: row[column] for name, column in names.items()}
            | {"suite": "collective", "seconds": str(1e-6 * float(row["us"]))}
            for row in collected
        )
    )


def attention() -> Iterator[tuple[str, float]]:
    """The same of causal flash attention, by GPU, kernel and pass."""
    stack = replace(software_profile("megatron-core"), sustained=1.0)
    for row in rows("attention"):
        b, s, a, d = (int(row[key]) for key in ("batch", "sequence", "heads", "width"))
        work = AttentionWork(rows=np.array([float(b * s * a)]), width=2 * d, span=s / 2, sequence=s)
        gpu = accelerator(row["profile"])
        forward, backward = kernel_times.attention_seconds(
            work, gpu, RECIPES[Precision.BF16], stack
        )
        seconds = forward if row["pass"] == "forward" else backward
        seen = "" if row["fitted"] == "yes" else ", not fitted"
        key = f"{row['profile']} {row['kernel']} {d} {row['pass']}{seen}"
        yield key, float(seconds[0]) * 1e6 / float(row["us"])


KINDS: dict[str, Callable[[], Iterator[tuple[str, float]]]] = {
    "gemm, table without its n": lambda: gemms(held_out),
    "gemm, roofline": lambda: gemms(roofline),
    "layer, table without its n": lambda: layer_sums(held_out),
    "layer, roofline": lambda: layer_sums(roofline),
    "collective": lambda: exchanges(0.0),
    "collective, large": lambda: exchanges(LARGE),
    "collective, without its size": unseen_sizes,
    "attention": attention,
}


def ratios(kind: str) -> dict[str, Value]:
    """Ratios of predicted to measured by group."""
    out: dict[str, list[float]] = defaultdict(list)
    for key, ratio in KINDS[kind]():
        out[key].append(ratio)
    return {key: np.array(values) for key, values in sorted(out.items())}


def main() -> None:
    print("| kind | GPU and group | rows | median % | p90 % | bias % |")
    print("|---|---|---:|---:|---:|---:|")
    for kind in KINDS:
        groups = ratios(kind)
        every = np.concatenate(list(groups.values()))
        for key, values in {**groups, "all": every}.items():
            error = 100 * np.abs(values - 1)
            middle, p90 = np.median(error), np.quantile(error, 0.9)
            bias = 100 * (np.median(values) - 1)
            print(f"| {kind} | {key} | {values.size} | {middle:.1f} | {p90:.1f} | {bias:+.1f} |")


if __name__ == "__main__":
    main()
