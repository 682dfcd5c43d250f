"""Change of tp: seconds in which a run of layers takes over from one with another tp."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np

from plan3d.simulator.plan.layer_runs import of_stages
from plan3d.simulator.plan.plan import from_columns
from plan3d.simulator.step import layer_run_stages

from ..result.tolerances import ROUNDING
from ..stages.pipeline import Pipeline


def change_of_tp(pipeline: Pipeline) -> tuple[float, float]:
    """Least and most seconds of a change, both passes.

    From stages of two layers: those with both orders of two strategies take twice the change
    longer than those with one strategy.
    """
    pairs = list(combinations(range(pipeline.tp.size), 2))
    if not pairs or pipeline.task.model.layers < 2:
        return 0.0, 0.0
    time = {key: _two_layers(pipeline, *key) for a, b in pairs for key in product((a, b), repeat=2)}
    found = [(time[a, b] + time[b, a] - time[a, a] - time[b, b]) / 2 for a, b in pairs]
    return max(min(found), 0.0) * (1 - ROUNDING), max(found) * (1 + ROUNDING)


def _two_layers(pipeline: Pipeline, first: int, second: int) -> float:
    """Seconds of the first two layers of a model on one stage, each with its own strategy."""
    p, same = pipeline, {"layers": 1, "zero": 0, "recompute": 0}
    runs = [{**same, "tp": int(p.tp[s]), "dp": int(p.dp[s])} for s in (first, second)]
    columns = p.columns(np.zeros(1, np.int64)) | {"pp": np.ones(1, np.int64)}
    plans = from_columns(columns, segments=of_stages([runs]))
    return float(layer_run_stages.build(p.task, p.recipe, plans).stages.slowest[0])
