"""The layout of a published run of the question is a candidate of plan 1."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from plan3d.answers.known_layout import with_known_layout
from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

GPT = Task(
    Model.preset("gpt3-175b"),
    Cluster.profile("h100-sxm", gpus=256),
    sequence=2048,
    global_batch=512,
)
SLOWER = Ranking(choose={"tp": [8], "pp": [8], "cp": [1], "virtual_stages": [1]}, families=True)


def test_a_faster_layout_that_ran_comes_first_unless_a_value_rules_it_out() -> None:
    """NVIDIA's recipe: tp=4 pp=8 and 12 virtual stages."""
    found = rank_plans(GPT, SLOWER)
    assert found.costs is not None
    assert with_known_layout(found, SLOWER) is found
    wider = with_known_layout(found, replace(SLOWER, choose={}))
    first = wider.plans[0]
    assert (first.tp, first.pp, first.virtual_stages) == (4, 8, 12)
    assert wider.costs is not None
    assert np.array_equal(wider.costs.step[1:], found.costs.step)
    assert wider.families is not None
    assert len(wider.families.plans) == len(wider.costs)


def test_a_layout_that_ran_in_other_formats_fits_as_any_other_does() -> None:
    """NVIDIA's 8B recipe ran with gradients in 16 bits; in fp32 it is 11 GiB above a GPU."""
    llama = Task(
        Model.preset("llama-3.1-8b"),
        Cluster.profile("h100-sxm", gpus=8),
        sequence=8192,
        global_batch=128,
    )
    ranking = Ranking(families=True)
    found = rank_plans(llama, ranking)
    assert with_known_layout(found, ranking) is found
    assert found.costs is not None
    assert found.costs.memory_bytes[0] < found.limit
