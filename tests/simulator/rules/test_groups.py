"""Groups of micro-batches of interleaved pipelines that plans have where none is stated."""

from dataclasses import replace

import pytest

from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.rules.pipeline_rules import longer_groups, shortest_groups
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

TASK = Task(
    Model.preset("gpt3-1.3b"), Cluster.profile("h100-sxm", gpus=4), sequence=2048, global_batch=4
)


@pytest.mark.parametrize(
    ("m", "shortest", "longer"),
    [
        # Groups of the four ranks where they divide the micro-batches, or there are too few.
        (3, 0, 0),
        (4, 0, 0),
        (8, 0, 8),
        (12, 0, 6),
        # 5, 6, 9 and 10 in groups of 5, 6, 5 and 5 leave none, none, 4 and none.
        (5, 5, 0),
        (6, 6, 0),
        (9, 5, 9),
        (10, 5, 0),
    ],
)
def test_groups_are_of_as_many_as_there_are_ranks_where_that_is_legal(m, shortest, longer):
    """A longer one is said where it is not the shortest; whole stages have none."""
    task = replace(TASK, global_batch=m)
    for chunks, groups in ((2, (shortest, longer)), (1, (0, 0))):
        plan = resolve(Plan(pp=4, virtual_stages=chunks), 4).table()
        found = shortest_groups(plan, task), longer_groups(plan, task)
        assert [own.tolist() for own in found] == [[n] for n in groups]
