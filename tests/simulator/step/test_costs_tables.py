"""Costs as a data frame: a row a plan, numbered as a ranking is."""

from __future__ import annotations

import numpy as np

from plan3d import Cluster, Model, Plan, Task
from plan3d.simulator.plan.plan import concat, resolve
from plan3d.simulator.step.evaluate import simulate


def test_rows_of_a_frame_are_numbered_from_one_and_say_what_costs_say() -> None:
    task = Task(
        Model.preset("gpt3-125m"), Cluster.profile("h100-sxm", gpus=8),
        sequence=2048, global_batch=8,
    )  # fmt: skip
    costs = simulate(task, concat([resolve(Plan(tp=tp), 8).table() for tp in (1, 2, 4)]))
    frame = costs.to_frame()
    assert frame.index.tolist() == [1, 2, 3]
    assert frame["tp"].tolist() == [1, 2, 4]
    assert frame["step_seconds"].tolist() == costs.step.tolist()
    parts = frame.filter(like="seconds.").sum(axis=1)
    assert np.allclose(parts, costs.step, rtol=1e-12)
