"""Pipelines over two pools of GPUs: what their stages may be, and what they cost at least.

Legend: pool 0 has the first stages; arrays are [kind of layer] or [candidate].
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from plan3d.simulator.base.arrays import Value
from plan3d.simulator.operators.collectives import send
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.step.layer_run_stages import hop_seconds
from plan3d.simulator.task import Framework

from ..exact.ideal_layouts import even_cut_of_model, model_counts
from ..result.options import Deadline
from ..stages.candidates import Candidates, candidates
from ..stages.intervals import Intervals, can_hold_all, most_layers
from ..stages.layer_table import ZERO_STAGES
from ..stages.pipeline import LeastSeconds, Pipeline
from ..stages.stage_table import Entries, Places, StageTable

Limits = tuple[float, float]
"""Bytes that a plan may use on a GPU of each pool."""


@dataclass(frozen=True, eq=False)
class PooledPipeline(Pipeline):
    """A pipeline as pool 0 would have it alone, and what is different in pool 1."""

    pools: tuple[Pipeline, Pipeline]
    """All stages in one pool, and all in the other."""
    counts: tuple[int, int]
    """Stages of each."""
    swapped: bool
    """Whether the pool that was named second has the first stages."""

    @classmethod
    def of(
        cls, pools: tuple[Pipeline, Pipeline], counts: tuple[int, int], swapped: bool
    ) -> PooledPipeline:
        own = {name: getattr(pools[0], name) for name in Pipeline.__dataclass_fields__}
        return cls(**own, pools=pools, counts=counts, swapped=swapped)

    @cached_property
    def least_seconds(self) -> LeastSeconds:
        """Layers each where they are fastest.

        With layers x_ik of kind k in pool i, of s_ik seconds, and any weight w > 0, no plan's
        slowest stage is faster than

            sum_k n_k min(s_0k, w s_1k) / (p_0 + w p_1)

        as p_i of the slowest is at least sum_k x_ik s_ik; w is the ratio of the pools' seconds.
        """
        each = [pool.layers.least_seconds.min(axis=0) for pool in self.pools]
        whole = model_counts(even_cut_of_model(self.task.model, self.pp))
        fastest, order = np.minimum(*each), list(self.task.model.order)
        weight = float(whole @ each[0] / (whole @ each[1]))
        busy = whole @ np.minimum(each[0], weight * each[1])
        busy /= self.counts[0] + weight * self.counts[1]
        slowest = float(max(busy, fastest[order].max()))
        sends = min(pool.least_seconds.sends for pool in self.pools)
        return LeastSeconds(float(whole @ fastest), slowest, sends, self.micro_batches)

    @property
    def allows_bare_head(self) -> bool:
        """Every stage has a layer."""
        return False

    def table(self, limits: Limits, longest: float, deadline: Deadline) -> StageTable | None:
        """What every stage may be; None where some stage has nothing. Raises TimeIsUp."""
        parts, places, first = [], [], self.counts[0]
        own = slice(0, first), slice(first, self.pp)
        most = np.concatenate(
            [
                most_layers(pool, longest, limit)[stages]
                for pool, limit, stages in zip(self.pools, limits, own, strict=True)
            ]
        )
        if not can_hold_all(self, most):
            return None
        seconds = np.minimum(*(pool.layers.least_seconds.min(axis=0) for pool in self.pools))
        held = [pool.least_state_bytes.min(axis=0) for pool in self.pools]
        share = np.minimum(held[0] / limits[0], held[1] / limits[1])
        for pool, limit, stages in zip(self.pools, limits, own, strict=True):
            found = Intervals.of(pool, longest, limit, (seconds, share * limit))
            found = found.restrict(most, self.task.model.layers, stages)
            if not found.start.size:
                return None
            table = candidates(pool, limit, longest, found, deadline)
            if not table.kind.size:
                return None
            parts.append(table)
            places.append(found)
        return _joined(self, parts, places, deadline)


def _joined(
    pipeline: PooledPipeline, parts: list[Candidates], places: list[Intervals], deadline: Deadline
) -> StageTable:
    """The candidates of both pools as one table."""
    handed = [np.stack([part.costs.received_bytes, part.costs.sent_bytes]) for part in parts]
    sizes = np.unique(np.concatenate([sent.ravel() for sent in handed]))
    tps = [p.tp[part.strategy] for p, part in zip(pipeline.pools, parts, strict=True)]
    tied = np.zeros(max(int(tp.max()) for tp in tps) + 1)
    for tp, part in zip(tps, parts, strict=True):
        np.maximum.at(tied, tp, part.costs.tied_embedding_seconds)
    entries: list[Entries] = []
    start = 0
    for i, count in enumerate(pipeline.counts):
        boundary = np.searchsorted(sizes, handed[i]) + i * sizes.size
        none = np.zeros_like(tps[i])
        place = Places(places[i], parts[i], none, boundary, tps[i], bool(tied.any()), deadline)
        for stage in range(len(entries), len(entries) + count):
            own = place.entries(stage, pipeline.in_flight[stage])
            entries.append(replace(own, candidate=own.candidate + start))
        start += parts[i].kind.size
    return StageTable(
        pipeline=pipeline,
        candidates=Candidates.concat(parts),
        entries=entries,
        hops=_hops(pipeline, sizes),
        tied=tied,
        gpus=0,
    )


def _hops(pipeline: PooledPipeline, sizes: Value) -> Value:
    """StageTable.hops of boundary tensors of these sizes in pool 0, then of the same in pool 1."""
    each = pipeline.sends / max(pipeline.pp - 1, 1)
    n, larger = sizes.size, np.maximum(sizes[:, None], sizes)
    out = np.zeros((2 * n + 1, 2 * n + 1))
    tasks = [pool.task for pool in pipeline.pools]
    across = np.maximum(*(send(larger, np.array(True), task.cluster) for task in tasks))
    out[:n, n:-1] = out[n:-1, :n] = each * across
    for i, task in enumerate(tasks):
        own = slice(i * n, (i + 1) * n)
        out[own, own] = each * hop_seconds(task, sizes[:, None], sizes[None])
    return out


def launchable_pipelines(
    pipelines: Iterable[PooledPipeline], framework: Framework
) -> Iterator[PooledPipeline]:
    """Of each pipeline those whose stages all have one tp, dp, ZeRO stage and recompute, as far as
    the framework's rules allow them."""
    for pipeline in pipelines:
        one, other = pipeline.pools
        tps = np.intersect1d(one.tp, other.tp).tolist()
        modes = sorted({*one.recompute} & {*other.recompute})
        for tp, mode, zero in product(tps, modes, range(ZERO_STAGES)):
            own = _with_one_strategy(one, tp, mode, zero), _with_one_strategy(other, tp, mode, zero)
            legal = own[0].legal.any() and own[1].legal.any() and own[0].dp == own[1].dp
            if legal and _is_launchable(own[0], mode, zero, framework):
                yield PooledPipeline.of(own, pipeline.counts, pipeline.swapped)


def _with_one_strategy(pipeline: Pipeline, tp: int, mode: int, zero: int) -> Pipeline:
    """The pipeline with one strategy, mode of recompute and ZeRO stage."""
    s, r = np.flatnonzero(pipeline.tp == tp)[:1], [pipeline.recompute.index(mode)]
    legal = pipeline.legal[s][:, r] & (np.arange(ZERO_STAGES) == zero)
    layers = pipeline.layers.take(s)
    return replace(
        pipeline,
        tp=pipeline.tp[s],
        dp=pipeline.dp[s],
        recompute=(mode,),
        legal=legal,
        layers=replace(layers, rows=layers.rows[:, r]),
    )


def _is_launchable(pipeline: Pipeline, mode: int, zero: int, framework: Framework) -> bool:
    """Whether the framework's rules allow stages of one strategy."""
    tp, dp, micro = (int(c[0]) for c in (pipeline.tp, pipeline.dp, pipeline.micro_batch))
    own = {"tp": tp, "dp": dp, "pp": pipeline.pp, "micro_batch": micro, "recompute": mode}
    own["zero"] = pipeline.stated_zero.get(zero, zero)
    fields: dict[str, Any] = {**pipeline.shared, **own}
    task = pipeline.task
    plan = resolve(Plan(**fields), task.gpus)
    return all(bool(np.all(rule.ok(plan, task))) for rule in framework.rules)
