"""Fastest stages: least seconds of so many layers that fit, whatever the strategy of each.

All sums (seconds, bytes) of n layers of one kind that no other sum beats in both, layer by layer:
the Pareto lists of TensorOpt (Cai et al. 2021). A lower bound on what a stage of n layers takes.
"""

from __future__ import annotations

import numpy as np

from plan3d.simulator.base.arrays import Value

from ..result.options import Deadline
from ..result.pareto import frontier

LONGEST = 2048
"""Sums kept of each number of layers; of more, neighbours are merged into one that beats both."""


def fastest(seconds: Value, size: Value, most: int, room: float, deadline: Deadline) -> Value:
    """Least seconds of 0 to `most` layers within `room` bytes; infinity where none fit.

    `seconds` and `size` are those of a layer under each strategy. Raises TimeIsUp.
    """
    keep = frontier(size, seconds)
    own_size, own_seconds = size[keep], seconds[keep]
    out = np.full(most + 1, np.inf)
    sums = np.zeros(1), np.zeros(1)
    for n in range(most + 1):
        deadline.check()
        fits = sums[0] <= room
        if not fits.any():
            break
        sums = sums[0][fits], sums[1][fits]
        out[n] = sums[1].min()
        sums = _undominated(
            np.add.outer(sums[0], own_size).ravel(), np.add.outer(sums[1], own_seconds).ravel()
        )
    return out


def _undominated(size: Value, seconds: Value) -> tuple[Value, Value]:
    """Sums that no other beats in both, ordered by size; merged where there are too many."""
    keep = frontier(size, seconds)
    size, seconds = size[keep], seconds[keep]
    if size.size <= LONGEST:
        return size, seconds
    starts = np.linspace(0, size.size, LONGEST, endpoint=False).astype(int)
    return size[starts], np.minimum.reduceat(seconds, starts)
