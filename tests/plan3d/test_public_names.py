"""Public names: short reprs, an example each that runs, copies, pickles, notebook tables."""

from __future__ import annotations

import copy
import doctest
import functools
import inspect
import pickle
from pathlib import Path
from typing import Any

import pytest

import plan3d
from plan3d import (  # fmt: skip
    Cluster,
    Graph,
    Model,
    Plan,
    Task,
    TimedStep,
    compare_backends,
    compare_systems,
    evaluate,
    explain,
    find_plans,
    learn,
    nearest_run,
    plots,
    sweep,
)
from plan3d.simulator.base.printable import full_text

TASK = Task(Model.preset("gpt3-1.3b"), Cluster.profile("a100-80gb-sxm", gpus=16),
            sequence=2048, global_batch=64)  # fmt: skip
FEW = {"tp": [1, 2], "cp": [1]}


@functools.cache
def objects() -> dict[str, Any]:
    """What Python gives, one of each kind."""
    return {
        "task": TASK,
        "model": TASK.model,
        "network": Model.preset("resnet-50"),
        "cluster": TASK.cluster,
        "accelerator": TASK.cluster.accelerator,
        "software": TASK.software,
        "plan": Plan(tp=2, pp=2, recompute="full"),
        "plans": Plan(tp=[1, 2]),
        "layout": Plan(pp=24, layers_per_stage=(1,) * 24),
        "costs": evaluate(TASK, Plan(tp=2)),
        "table": evaluate(TASK, Plan(tp=[1, 2])),
        "result": find_plans(TASK, choose=FEW),
        "explanation": explain(TASK, "tp=2", against="tp=4"),
        "sweep": sweep(TASK, {"tp": [1, 2]}, plan="pp=2"),
        "graph": Graph.parse("0 1\n1 2\n2 0"),
        "step": TimedStep(TASK, Plan(tp=2), 4.0, "run 1"),
        "nearest": nearest_run(TASK),
        "learned": learn([TimedStep(TASK, evaluate(TASK, Plan(tp=2)).plans, 4.0, "run 1")]),
        "systems": compare_systems(TASK, ["ddp", "gpipe", "sequential"]),
        "backends": compare_backends(TASK, ["random"], choose=FEW, budget=20, seeds=1),
    }


NAMES = [name for name in plan3d.__all__ if not isinstance(getattr(plan3d, name), str)]


@pytest.mark.parametrize("name", [n for n in NAMES if not inspect.ismodule(getattr(plan3d, n))])
def test_every_public_name_has_an_example_that_runs(name: str) -> None:
    globs = {known: getattr(plan3d, known) for known in plan3d.__all__}
    (found,) = doctest.DocTestFinder(recurse=False).find(getattr(plan3d, name), name, globs=globs)
    assert found.examples
    assert doctest.DocTestRunner().run(found).failed == 0


def test_reprs_are_short_and_copies_say_the_same() -> None:
    for name, value in objects().items():
        assert 5 < len(repr(value)) <= 400, name
        assert "\n" not in repr(value), name
        for other in (pickle.loads(pickle.dumps(value)), copy.copy(value), copy.deepcopy(value)):
            assert type(other) is type(value), name
            assert repr(other) == repr(value), name
    for name in ("task", "cluster", "software", "plan"):
        value = objects()[name]
        again = pickle.loads(pickle.dumps(value))
        assert full_text(again) == full_text(value), name


def test_a_key_tells_tasks_apart_that_read_alike() -> None:
    other = Cluster.profile("a100-80gb-sxm", gpus=16, network_latency=9e-6)
    slower = Task(TASK.model, other, sequence=2048, global_batch=64)
    assert repr(slower) == repr(TASK)
    assert full_text(slower) != full_text(TASK)


DRAWN = ("result", "explanation", "sweep", "systems", "backends")


ASKED = ("task", "model", "network", "cluster", "plan", "layout")


@pytest.mark.parametrize("name", ["costs", "table", *ASKED, *DRAWN])
def test_tables_in_a_notebook(name: str) -> None:
    assert "<table" in objects()[name]._repr_html_()


def test_what_is_asked_is_read_in_a_notebook() -> None:
    """With units, as people write them."""
    shown = {name: objects()[name]._repr_html_() for name in (*ASKED, "plans")}
    assert "16 x A100-80GB-SXM4" in shown["task"]
    assert "2,048 tokens" in shown["task"]
    assert "1.517 B" in shown["model"]
    assert "79.2 GiB" in shown["cluster"]
    assert ">recompute</td>" in shown["plan"]
    assert "2 rows" in shown["plans"]


@pytest.mark.parametrize("name", [*DRAWN, "waterfall", "memory"])
def test_pictures_are_shown_and_kept(name: str, tmp_path: Path) -> None:
    of_costs = {"waterfall": plots.waterfall, "memory": plots.memory}
    picture = of_costs[name](objects()["costs"]) if name in of_costs else objects()[name].plot()
    assert picture._repr_png_().startswith(b"\x89PNG")
    assert repr(picture).startswith("Picture(")
    if name == "memory":
        picture.save(str(tmp_path / "picture.svg"))
        assert "<svg" in (tmp_path / "picture.svg").read_text(encoding="utf-8")


def test_a_plan_may_be_its_text() -> None:
    """As explain and sweep take it: a text that is no plan is one clear line."""
    assert repr(evaluate(TASK, "tp=2 pp=2")) == repr(evaluate(TASK, Plan(tp=2, pp=2)))
    with pytest.raises(plan3d.InputError, match="must be FIELD=VALUE, for example tp=8"):
        evaluate(TASK, "tp")
