"""A sweep in Python asks what it says, point by point."""

import pytest

from plan3d import Cluster, InputError, Model, Plan, Task, evaluate, find_plans, sweep

TASK = Task(
    Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=32), sequence=2048, global_batch=256
)


def test_given_plans_are_evaluated_at_every_combination():
    found = sweep(TASK, {"gpus": [16, 32], "tp": [1, 2]}, plan="pp=2", tokens=1e12, price=2.0)
    assert found.complete
    assert [(row["gpus"], row["tp"]) for row in found.rows] == [(16, 1), (16, 2), (32, 1), (32, 2)]
    last = evaluate(TASK, Plan(tp=2, pp=2))
    assert found.rows[-1]["step_seconds"] == last.step_seconds
    assert found.rows[0]["scaling_efficiency"] == found.rows[1]["scaling_efficiency"] == 1.0
    assert found.rows[0]["cost_usd"] == pytest.approx(2 * found.rows[0]["gpu_hours"])
    assert list(found.to_frame()["gpus"]) == [16, 16, 32, 32]


def test_without_a_plan_the_best_one_is_found():
    rows = sweep(TASK, {"sequence": [1024, 2048]}, choose={"recompute": ["full"]}).rows
    best = find_plans(TASK, choose={"recompute": ["full"]}, top=1).best
    assert rows[1]["step_seconds"] == best.step_seconds
    assert "scaling_efficiency" not in rows[0]


def test_clusters_and_models_have_names():
    slow = Cluster.profile("h100-sxm", gpus=32, inter_node_bandwidth=12.5e9)
    rows = sweep(TASK, {"cluster": {"slow": slow, "fast": TASK.cluster}}, plan="tp=2").rows
    assert [row["cluster"] for row in rows] == ["slow", "fast"]
    assert rows[0]["step_seconds"] > rows[1]["step_seconds"]
    both = sweep(TASK, {"model": ["llama-7b", Model.preset("llama-13b")]}, plan="tp=2").rows
    assert [row["model"] for row in both] == ["llama-7b", "llama-13b"]
    (named,) = sweep(TASK, {"cluster": ["a100-80gb-sxm"], "software": ["nanotron"]}, plan="").rows
    assert named["peak_flops"] < both[0]["peak_flops"]


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({}, "say what to vary"),
        ({"gpuss": [8]}, "gpuss is no field; did you mean gpus"),
        ({"gpus": [0]}, "gpus=0 must be a whole number"),
        ({"gpus": [2.5]}, "gpus=2.5 must be a whole number"),
        ({"tp": ["x"]}, "tp=x must be a whole number"),
        ({"recompute": ["full"]}, "recompute is constrained by choose already"),
    ],
)
def test_what_cannot_be_varied_is_refused(over, message):
    with pytest.raises(InputError, match=message):
        sweep(TASK, over, choose={"recompute": ["none"]})
