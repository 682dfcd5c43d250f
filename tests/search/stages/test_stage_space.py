"""What plans with stages of their own cannot have is refused by name, by both programs."""

import pytest

from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.search.space.space import Space
from plan3d.search.stages.stage_space import (
    SINGLE_VALUE_FIELDS,
    WHOLE_STAGE_VALUES,
    most_overlap,
    stage_space,
)
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.pipeline.schedules import schedule_code
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

TASK = Task(
    Model.preset("llama-3.1-70b"),
    Cluster.profile("h100-sxm", gpus=64),
    sequence=8192,
    global_batch=256,
)
REFUSED = [
    ({"choose": {"micro_batch_group": [16]}}, "no micro_batch_group=16: the layers of stages are"),
    ({"choose": {"first_stage_layers": [2]}}, "no first_stage_layers=2"),
    ({"choose": {"last_stage_layers": [3]}}, "no last_stage_layers=3"),
    ({"choose": {"mtp_stage": [2]}}, "no mtp_stage=2"),
    ({"choose": {"tp_grid": ["2x2"], "tp": [4]}}, "no tp_grid=2d:2x2"),
    ({"choose": {"sync_period": [4]}}, "cannot search sync_period"),
    ({"choose": {"layers_per_stage": [40, 40]}}, "chooses layers_per_stage itself"),
    ({"objective": "memory"}, "minimises the step time, not memory"),
]
both = pytest.mark.parametrize("backend", ["dynamic-programming", "integer-programming"])


@both
@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_stages_cannot_have_is_refused_by_name(backend, options, message):
    with pytest.raises(InputError, match=f"{backend}.*{message}"):
        rank_plans(TASK, Ranking(backend=backend, **options))


@pytest.mark.parametrize(
    ("backend", "options", "message"),
    [
        ("dynamic-programming", {"choose": {"schedule": ["zb-h1"]}}, "breadth-first, not zb-h1"),
        ("dynamic-programming", {"choose": {"schedule": ["1f1b", "gpipe"]}}, "value of schedule"),
        ("dynamic-programming", {"choose": {"precision": ["bf16", "fp8"]}}, "value of precision"),
        ("dynamic-programming", {"budget": 10}, "give --time-limit"),
        ("integer-programming", {"choose": {"schedule": ["gpipe"]}}, "schedules 1f1b, .*not gpipe"),
    ],
)
def test_what_one_program_cannot_take_is_refused_by_name(backend, options, message):
    with pytest.raises(InputError, match=message):
        rank_plans(TASK, Ranking(backend=backend, **options))


def test_stages_are_whole_whatever_the_space_had():
    space = Space.of(TASK, {"first_stage_layers": [0], "schedule": ["gpipe"], "tp": [4]})
    stages = stage_space(space, "test", "cost", ("gpipe",))
    assert {name: stages.axes[name] for name in WHOLE_STAGE_VALUES} == {
        name: (n,) for name, n in WHOLE_STAGE_VALUES.items()
    }
    assert stages.axes["schedule"] == (schedule_code("gpipe"),)
    assert stages.axes["tp"] == (4,)
    assert stages.axes["zero"] == space.axes["zero"]


def test_precision_and_optimizer_have_one_value():
    assert set(SINGLE_VALUE_FIELDS) == {"precision", "optimizer"}


def test_overlaps_are_on_unless_ruled_out():
    axes = Space.of(TASK).axes
    on = {"overlap_tp": (1,), "overlap_grad_reduce": (1,), "overlap_param_gather": (1,)}
    assert most_overlap(TASK, axes) == on
    off = most_overlap(TASK, {**axes, "overlap_grad_reduce": (0,), "overlap_tp": (0,)})
    assert off == dict.fromkeys(on, (0,))
