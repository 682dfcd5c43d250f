"""What a search ranks by, and what it says where nothing fits, by hand."""

from __future__ import annotations

from dataclasses import replace
from math import e, log

import numpy as np
import pytest

from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.search.result.objective import BARRIER, guided, score
from plan3d.search.result.obstacle import obstacle
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.plan import Plan, concat, resolve
from plan3d.simulator.step.evaluate import simulate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

TASK = Task(
    Model.preset("gpt3-1.3b"), Cluster.profile("h100-sxm", gpus=8), sequence=2048, global_batch=8
)


def test_what_does_not_fit_is_worse_by_its_share_of_the_limit():
    """Steps of 2 and e s; 50 and 200 of 100 bytes; 100 of 100 fits."""
    table = concat([resolve(Plan(tp=tp), 8).table() for tp in (1, 2, 4)])
    costs = replace(
        simulate(TASK, table),
        step=np.array([2.0, e, 1.0]),
        memory_total=np.array([50.0, 200.0, 100.0]),
    )
    assert guided(costs, "step-time", 100.0) == pytest.approx([log(2), BARRIER + log(2), 0.0])
    assert score(costs, "step-time", 100.0).tolist() == [2.0, np.inf, 1.0]
    assert score(costs, "memory", 199.0).tolist() == [50.0, np.inf, 100.0]


def test_a_full_host_is_what_is_named_where_the_gpus_hold_what_they_may():
    """Also where they hold exactly that."""
    host = TASK.cluster.host
    assert host is not None
    small = replace(TASK.cluster, host=replace(host, memory=1e9))
    asked = Ranking(choose={"offload_optimizer": [100], "tp": [1], "pp": [1]})
    found = rank_plans(replace(TASK, cluster=small), asked)
    assert found.smallest is not None
    exact = replace(found, limit=float(found.smallest.memory_bytes))
    for result in (found, exact):
        assert "host" in obstacle(result)
    assert "over the limit of" in obstacle(replace(found, limit=0.9 * exact.limit))
