"""Pipelines over two pools that a framework launches: stages differ in their layers only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.task import Framework

from ..stages.layer_table import ZEROS
from ..stages.pipeline import Pipeline
from .pooled_pipeline import PooledPipeline


def alike(pipelines: Iterable[PooledPipeline], framework: Framework) -> Iterator[PooledPipeline]:
    """Of each pipeline those whose stages all have one tp, dp, ZeRO stage and recompute, as far as
    the framework's rules allow them."""
    for pipeline in pipelines:
        one, other = pipeline.pools
        tps = np.intersect1d(one.tp, other.tp).tolist()
        modes = sorted({*one.recompute} & {*other.recompute})
        for tp, mode, zero in product(tps, modes, range(ZEROS)):
            own = _narrowed(one, tp, mode, zero), _narrowed(other, tp, mode, zero)
            legal = own[0].legal.any() and own[1].legal.any() and own[0].dp == own[1].dp
            if legal and _launched(own[0], mode, zero, framework):
                yield PooledPipeline.of(own, pipeline.counts, pipeline.swapped)


def _narrowed(pipeline: Pipeline, tp: int, mode: int, zero: int) -> Pipeline:
    """The pipeline with one strategy, mode of recompute and ZeRO stage."""
    s, r = np.flatnonzero(pipeline.tp == tp)[:1], [pipeline.recompute.index(mode)]
    legal = pipeline.legal[s][:, r] & (np.arange(ZEROS) == zero)
    layers = pipeline.layers.take(s)
    return replace(
        pipeline,
        tp=pipeline.tp[s],
        dp=pipeline.dp[s],
        recompute=(mode,),
        legal=legal,
        layers=replace(layers, which=layers.which[:, r]),
    )


def _launched(pipeline: Pipeline, mode: int, zero: int, framework: Framework) -> bool:
    """Whether the framework's rules allow stages of one strategy."""
    tp, dp, micro = (int(c[0]) for c in (pipeline.tp, pipeline.dp, pipeline.micro_batch))
    own = {"tp": tp, "dp": dp, "pp": pipeline.pp, "micro_batch": micro, "recompute": mode}
    own["zero"] = pipeline.stated.get(zero, zero)
    fields: dict[str, Any] = {**pipeline.shared, **own}
    task = pipeline.task
    plan = resolve(Plan(**fields), task.gpus)
    return all(bool(np.all(rule.ok(plan, task))) for rule in framework.rules)
