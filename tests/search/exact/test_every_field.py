"""An exact search keeps the value that a field is given, or refuses it by name."""

from dataclasses import replace

import pytest

from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.search.stages.stage_space import SINGLE_VALUE_FIELDS
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.fields import (
    AXES,
    BY_RUN,
    FIELDS,
    OPT_IN,
    RESOLVED_DEFAULTS,
)
from plan3d.simulator.plan.tensor_grid import parse_grid
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

MODEL = replace(Model.preset("gpt3-1.3b"), order=(0,) * 4)
TASK = Task(MODEL, Cluster.profile("a100-80gb-sxm", gpus=4), sequence=2048, global_batch=8)
BACKENDS = ("exhaustive", "branch-and-bound", "dynamic-programming", "integer-programming")
STAGED = ("dynamic-programming", "integer-programming")
"""Backends of unequal stages, which visit more plans: theirs are cut short."""
OFF = ("sequence_parallel", "overlap_tp", "overlap_grad_reduce", "overlap_param_gather")
"""What a stage that has no use for it leaves off, whatever was asked for."""
VALUES = {name: RESOLVED_DEFAULTS[name] + 1 for name in AXES} | dict.fromkeys(OFF, 0)
VALUES |= {"tp_grid": parse_grid("2x2"), "levels": 2, "sites": 2, "fragments": 2}
"""A value of every field that is not its default, or of OFF not what is usual."""
WITH = {
    "tp_grid": {"micro_batch": [2]},
    "cp_comm": {"cp": [2]},
    "topology": {"sync": ["gossip"]},
    "levels": {"compression": ["qsgd"]},
    "kept_per_thousand": {"compression": ["mem-sgd"]},
    "shard": {"zero": [1]},
    **{
        name: {"sites": [2], "sync_period": [4]}
        for name in ("outer_optimizer", "fragments", "outer_delay", "outer_bits")
    },
}
"""What else a search needs, so that such plans are legal."""


def found(backend, choose):
    """The best plan, and why there can be none."""
    try:
        return rank_plans(TASK, Ranking(choose=choose, backend=backend, top=1)).best, ""
    except InputError as error:
        return None, str(error)


@pytest.mark.parametrize("name", AXES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_value_is_kept_or_refused(backend, name):
    own = {**WITH.get(name, {}), name: [VALUES[name]]}
    usual = {"cp": [1], "micro_batch": [1], "optimizer": ["adam"], "pp": [1, 2], "zero": [1]}
    if backend in STAGED:
        usual |= {"precision": ["bf16"], "recompute": ["none", "full"]}
    best, refused = found(backend, {**usual, **own})
    if refused:
        assert backend != "exhaustive"
        assert any(asked in refused for asked in own)
    else:
        assert name not in OPT_IN or backend == "exhaustive"
    if best is not None:
        runs = best.plans.segments
        ours = {int(best.plans.table().columns()[name][0])}
        ours |= set(getattr(runs, name)[runs.is_run]) if runs and name in BY_RUN else set()
        assert VALUES[name] in ours


def test_the_dynamic_program_takes_one_value_of_what_it_does_not_vary():
    assert set(SINGLE_VALUE_FIELDS) == {"precision", "optimizer"}
    for name, values in (
        *((name, [0, 1]) for name in SINGLE_VALUE_FIELDS),
        ("schedule", ["1f1b", "gpipe"]),
    ):
        with pytest.raises(InputError, match=f"takes one value of {name}.*, not several"):
            rank_plans(TASK, Ranking(choose={name: values}, backend="dynamic-programming"))
        assert FIELDS[name].values.accepts(1)
