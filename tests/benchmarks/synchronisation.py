"""Errors of ways to synchronise: figures of published ResNet and BERT runs.

    python tests/benchmarks/synchronisation.py

One network is fitted to two published communication times of ResNet-50 on 256 V100s; the hours and
iterations are predicted with it.
"""

from __future__ import annotations

import numpy as np

from plan3d.simulator.validation.synchronisation_runs import (
    bert_hours,
    bluefog,
    fit_network,
    imagenet_hours,
)


def main() -> None:
    network = fit_network()
    rate, latency = network.bandwidth / 1e9, 1e3 * network.latency
    print(f"network: {rate:.3f} GB/s a GPU, {latency:.2f} ms a node")
    for row in (*imagenet_hours(network), bert_hours(network)):
        print(
            f"{row.what}: {row.measured:.2f} h measured, {row.predicted:.2f} h predicted, "
            f"{100 * row.error:+.1f} %"
        )
    errors = 100 * np.abs([row.error for _, row in bluefog(network)])
    print(f"BlueFog's benchmark, {errors.size} rows: median error {np.median(errors):.1f} %")


if __name__ == "__main__":
    main()
