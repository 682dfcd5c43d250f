"""Which plans does a solution of a pipeline's program stand for? Layers in order, as segments."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby, islice, permutations, product

import numpy as np

from plan3d.simulator.plan import layer_runs
from plan3d.simulator.plan.fields import BY_RUN
from plan3d.simulator.plan.layer_runs import of_stages
from plan3d.simulator.plan.plan import Plan, from_columns
from plan3d.simulator.step.stage_layouts import chunk_sizes
from plan3d.simulator.task import Task

from .layer_choices import Pipeline
from .layer_program import Counts

MOST_ORDERS = 64
"""Orders of strategies within stages that are tried for one solution."""

Shard = tuple[int, int]
"""Strategy and ZeRO stage."""
Run = dict[str, int]


def proposals(pipeline: Pipeline, counts: Counts) -> Plan:
    """The plans of a solution: each stage's shards in every order, MOST_ORDERS in all."""
    used: list[set[Shard]] = [set() for _ in range(pipeline.stages)]
    for i, s, _, z, _ in counts:
        used[i].add((s, z))
    orders = islice(product(*(permutations(sorted(shards)) for shards in used)), MOST_ORDERS)
    found = [of_stages(_stages(pipeline, counts, order)) for order in orders]
    usual = Counter[tuple[int, int, int]]()
    for (_, s, r, z, _), n in counts.items():
        usual[s, r, z] += n
    s, r, z = usual.most_common(1)[0][0]
    own = {
        **pipeline.shared.columns(),
        **{"pp": pipeline.stages, "tp": pipeline.tp[s], "dp": pipeline.dp[s]},
        **{"micro_batch": pipeline.shares[s], "recompute": pipeline.recompute[r], "zero": z},
    }
    columns = {name: np.full(len(found), value, np.int64) for name, value in own.items()}
    return from_columns(columns, segments=layer_runs.concat(found))


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
    own = {"tp": pipeline.tp[s], "dp": pipeline.dp[s]}
    return {**own, "zero": z, "recompute": pipeline.recompute[r]}


def as_segments(plans: Plan, task: Task) -> Plan:
    """One plan with its stages written as segments; as it is where it has them."""
    if plans.segments:
        return plans
    row = plans.take(0)
    own = {name: getattr(row, name) for name in BY_RUN}
    stages = [[{"layers": layers, **own}] for layers in chunk_sizes(task, row)]
    return from_columns(plans.table().columns(), segments=of_stages(stages))
