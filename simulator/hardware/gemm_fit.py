"""Fit of a table of GEMM times: rates that do not fall with m, and are smooth in n and k.

A measured time says how one kernel chose its tiles as much as how fast a GPU is, so that a plan
with a lucky shape would win a near-tie. The fit is of ln(T / (m n k)), the seconds a FLOP takes:

    1. along n, then along k: a line through its neighbours, weighted by a Gaussian of WIDTH;
    2. along m: the nearest non-increasing sequence in least squares (pool adjacent violators);
    3. T does not fall along m.

Sources: local linear regression, Cleveland 1979; isotonic regression, Ayer et al. 1955. What it
costs on sizes that it did not see: tests/benchmarks/microbenchmarks.py.
Legend: [m, k] times [k, n]; arrays are [n, k, m].
"""

from __future__ import annotations

import numpy as np

from ..base.arrays import Value

WIDTH = 0.25
"""Octaves of the Gaussian: a step of the lattice. Wider ones are worse on n and k that were left
out on every GPU; none at all is as good on H100 and B200, and better on A100."""
_ALONE = 1e-300
"""Square octaves that keep a side what it is where the weights of all others underflow."""


def fitted(m: Value, n: Value, k: Value, seconds: Value) -> Value:
    """Seconds of the fit at the sides of a table without blanks."""
    flops = m * n[:, None, None] * k[:, None]
    cost = np.log(seconds / flops)
    cost = _smooth(_smooth(cost, n, 0), k, 1)
    each = cost.reshape(-1, m.size)
    falling = np.stack([-rising(-row) for row in each]).reshape(cost.shape)
    out: Value = np.maximum.accumulate(np.exp(falling) * flops, axis=2)
    return out


def rising(values: Value) -> Value:
    """The nearest non-decreasing sequence in least squares (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []
    for value in values.tolist():
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (a, n), (b, m) = pools[-2:]
            pools[-2:] = [((a * n + b * m) / (n + m), n + m)]
    means, counts = zip(*pools, strict=True)
    return np.repeat(np.array(means), counts)


def _smooth(values: Value, side: Value, axis: int) -> Value:
    """Local linear regression along an axis, at every point of it."""
    distance = np.log2(side) - np.log2(side)[:, None]
    weight = np.exp(-0.5 * (distance / WIDTH) ** 2)
    first, second = (weight * distance).sum(axis=1), (weight * distance**2).sum(axis=1) + _ALONE
    share = weight * (second[:, None] - first[:, None] * distance)
    share /= (weight.sum(axis=1) * second - first**2)[:, None]
    out: Value = np.moveaxis(np.tensordot(share, values, axes=(1, axis)), 0, axis)
    return out
