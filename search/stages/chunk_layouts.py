"""Chunk layouts: ways to divide the layers of every rank among its chunks.

A rank's seconds and bytes are those of its layers whatever chunk they are in; how long the others
wait for it is not. So the search chooses layers by rank, and some layouts of them are costed: all
ranks divided in one way, then rank by rank in another while that helps. The chunks of a rank differ
by a layer at most, for which the closed form of their waiting was made.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from plan3d.simulator.base.arrays import Column
from plan3d.simulator.plan.plan import Plan, concat
from plan3d.simulator.step.evaluate import simulate

from ..result.options import Deadline
from ..result.tolerances import ROUNDING
from .pipeline import Pipeline
from .stage_plans import Run, plan_of

NEAR = 1e-4
"""Relative distance to what the layers of the ranks need at least at which a layout is kept."""


def _spread(layers: int, chunks: int) -> Column:
    """As even as possible, those with one layer more spread out."""
    return np.diff(np.arange(chunks + 1) * layers // chunks)


def _early(layers: int, chunks: int) -> Column:
    """The same with those first."""
    return np.sort(_spread(layers, chunks))[::-1]


def _late(layers: int, chunks: int) -> Column:
    """The same with those last."""
    return np.sort(_spread(layers, chunks))


WAYS: tuple[Callable[[int, int], Column], ...] = (_spread, _early, _late)
"""Layers of a rank and its chunks -> layers of each chunk."""


def best_layout(
    pipeline: Pipeline, ranks: list[list[Run]], least: float, limit: float, deadline: Deadline
) -> tuple[float, Plan]:
    """Seconds and plan of the fastest layout found within `limit` bytes, from the one or two runs
    of every rank; `least` seconds are those that their layers need. Raises TimeIsUp."""
    each = [[_divided(runs, way, pipeline.chunks) for way in WAYS] for runs in ranks]
    best = _fastest(pipeline, each, [(i,) * len(ranks) for i in range(len(WAYS))], limit)
    improves = True
    while improves and best[0] > least * (1 + NEAR):
        deadline.check()
        ways = best[2]
        others = [
            (*ways[:r], i, *ways[r + 1 :])
            for r in range(len(ranks))
            for i in range(len(WAYS))
            if each[r][i] != each[r][ways[r]]
        ]
        found = _fastest(pipeline, each, others, limit) if others else best
        improves = found[0] < best[0] * (1 - ROUNDING)
        best = found if improves else best
    return best[0], best[1]


def _fastest(
    pipeline: Pipeline,
    each: list[list[list[list[Run]]]],
    choices: list[tuple[int, ...]],
    limit: float,
) -> tuple[float, Plan, tuple[int, ...]]:
    """Seconds, plan and ways of the fastest of some choices of a way for each rank."""
    plans = []
    for ways in choices:
        turns = [own[way] for own, way in zip(each, ways, strict=True)]
        chunks = [turn[i] for i in range(pipeline.chunks) for turn in turns]
        plans.append(plan_of(pipeline, chunks))
    costs = simulate(pipeline.task, concat(plans))
    steps = np.where(costs.memory_total <= limit, costs.step, np.inf)
    row = int(steps.argmin())
    return float(steps[row]), plans[row], choices[row]


def _divided(runs: list[Run], way: Callable[[int, int], Column], chunks: int) -> list[list[Run]]:
    """The runs of each chunk, the layers of the first of two in proportion to the chunk's."""
    first, layers = runs[0]["layers"], sum(run["layers"] for run in runs)
    shares = way(layers, chunks)
    heavy = np.diff(np.concatenate([[0], np.cumsum(shares)]) * first // layers)
    counts = np.stack([heavy, shares - heavy], axis=1)
    return [
        [{**run, "layers": int(n)} for run, n in zip(runs, row, strict=False) if n]
        for row in counts
    ]
