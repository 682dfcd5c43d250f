"""Layer plans: the plans that a solution of a pipeline's program stands for, and the other way."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby, islice, permutations, product

import numpy as np

from plan3d.simulator.plan import layer_runs
from plan3d.simulator.plan.layer_runs import of_stages
from plan3d.simulator.plan.plan import Plan, from_columns

from ..stages.pipeline import Pipeline
from ..stages.stage_plans import Run, plan_of
from .layer_program import Counts, Shard

MOST_ORDERS = 64
"""Orders of strategies within stages that are tried for one solution."""


def proposals(pipeline: Pipeline, counts: Counts) -> Plan:
    """The plans of a solution: each stage's shards in every order, MOST_ORDERS in all."""
    used: list[set[Shard]] = [set() for _ in range(pipeline.pp)]
    for i, s, _, z, _ in counts:
        used[i].add((s, z))
    orders = islice(product(*(permutations(sorted(shards)) for shards in used)), MOST_ORDERS)
    found = [_stages(pipeline, counts, order) for order in orders]
    fields = plan_of(pipeline, found[0]).columns()
    columns = {name: np.repeat(column, len(found)) for name, column in fields.items()}
    return from_columns(columns, segments=layer_runs.concat([of_stages(one) for one in found]))


def _stages(
    pipeline: Pipeline, counts: Counts, orders: Sequence[Sequence[Shard]]
) -> list[list[Run]]:
    """Runs of every stage, its shards in the order given."""
    layers = iter(pipeline.task.model.order)
    return [
        [
            {**_strategy(pipeline, *key), "layers": len(list(run))}
            for key, run in groupby(_layers(layers, counts, stage, order))
        ]
        for stage, order in enumerate(orders)
    ]


def _layers(
    layers: Iterator[int], counts: Counts, stage: int, order: Sequence[Shard]
) -> Iterator[tuple[int, int, int]]:
    """Strategy, recompute and ZeRO stage of each layer of a stage, from the layers left."""
    left: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    own = [(key, n) for key, n in counts.items() if key[0] == stage]
    for (_, s, r, z, k), n in sorted(
        own, key=lambda item: (order.index((item[0][1], item[0][3])), -item[0][2])
    ):
        left[k] += n * [(s, r, z)]
    for _ in range(sum(n for _, n in own)):
        yield left[next(layers)].pop(0)


def _strategy(pipeline: Pipeline, s: int, r: int, z: int) -> Run:
    own = {"tp": int(pipeline.tp[s]), "dp": int(pipeline.dp[s])}
    return {**own, "zero": z, "recompute": pipeline.recompute[r]}


def counts_of(pipeline: Pipeline, plan: Plan) -> Counts:
    """The solution that stands for a plan of the pipeline."""
    assert plan.segments
    has = {stated: zero for zero, stated in pipeline.stated.items()}
    layers, counts = iter(pipeline.task.model.order), Counter[tuple[int, int, int, int, int]]()
    for stage, runs in enumerate(plan.segments.stages()):
        for run in runs:
            s = int(np.flatnonzero(pipeline.tp == run["tp"])[0])
            r = pipeline.recompute.index(run["recompute"])
            for kind in islice(layers, run["layers"]):
                counts[stage, s, r, has.get(run["zero"], run["zero"]), kind] += 1
    return dict(counts)
