"""Placements of layers on ranks: what the first rank alone holds."""

import numpy as np
import pytest

from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.layers.placements import Layouts, Placements
from plan3d.simulator.pipeline import stage_placement
from plan3d.simulator.plan.plan import Plan, concat
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

TASK = Task(
    Model.preset("gpt3-1.3b"),
    Cluster.profile("h100-sxm", gpus=32),
    sequence=2048,
    global_batch=64,
)


@pytest.mark.parametrize(
    ("ends", "distinct"),
    [
        # 24 layers on four ranks: 6, 5 and 4 on the first, or 6 again beside another last rank.
        (["", "first_stage_layers=5", "first_stage_layers=4", "last_stage_layers=6"], 3),
        # Of two copies the first rank holds the mean of both ends: 5 and 5.5.
        ([f"schedule=dualpipe first_stage_layers=5 last_stage_layers={n}" for n in (5, 6)], 2),
    ],
)
def test_layouts_with_one_first_rank_share_it(ends: list[str], distinct: int) -> None:
    plans = concat([Plan.parse(f"pp=4 dp=8 {text}").table() for text in ends])
    every = Placements(Layouts(TASK, stage_placement.layout), plans)
    alone = every.of_first_rank()
    assert len(alone.counts) == distinct
    shared = alone.counts[alone.which][:, 0]
    np.testing.assert_array_equal(shared, every.counts[every.which][:, 0])
