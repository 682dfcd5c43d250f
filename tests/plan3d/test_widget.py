"""plan3d.explore: what sliders ask, and what a notebook is answered."""

from __future__ import annotations

from typing import Any

import pytest

import plan3d
from plan3d import Cluster, InputError, Model, Task, evaluate
from plan3d.answers.what_if import CHANGES, machine_record, varied

TASK = Task(Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=16),
            sequence=2048, global_batch=64)  # fmt: skip
VIEW = plan3d.explore(TASK, choose={"tp": [2], "pp": [1], "cp": [1], "zero": [1]})
PLAN = "tp=2 micro_batch=1"


class Heard:
    """The other side of a widget."""

    def __init__(self) -> None:
        self.replies: list[dict[str, Any]] = []

    def send(self, reply: dict[str, Any]) -> None:
        self.replies.append(reply)


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("inter_node_bandwidth", "inter_node_bandwidth"),
        ("intra_node_bandwidth", "intra_node_bandwidth"),
        ("memory", "memory"),
    ],
)
def test_a_number_of_the_machine_is_that_of_the_profile(name: str, argument: str) -> None:
    value = machine_record(TASK)[name] / 2
    cluster = Cluster.profile("h100-sxm", gpus=16, **{argument: value})
    there = Task(TASK.model, cluster, sequence=2048, global_batch=64)
    ours, theirs = evaluate(varied(TASK, {name: value}), PLAN), evaluate(there, PLAN)
    assert ours.step_seconds == pytest.approx(theirs.step_seconds, rel=1e-9)
    assert (ours.memory_bytes, ours.capacity) == (theirs.memory_bytes, theirs.capacity)


@pytest.mark.parametrize("name", CHANGES)
def test_a_number_as_it_is_changes_nothing(name: str) -> None:
    now = {"gpus": 16, "global_batch": 64, **machine_record(TASK)}[name]
    same = evaluate(varied(TASK, {name: now}), PLAN)
    assert same.step_seconds == pytest.approx(evaluate(TASK, PLAN).step_seconds, rel=1e-12)


@pytest.mark.parametrize(
    "wrong", [{"gpu": 8}, {"memory": 0}, {"memory": True}, {"gpus": "8"}, {"gpus": 8.5}]
)
def test_what_is_no_number_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"^what_if: "):
        varied(TASK, wrong)


def test_a_search_of_a_plan_is_refused() -> None:
    with pytest.raises(InputError, match="a search takes no plan"):
        VIEW.answer("search", plan="tp=2")


def test_a_plan_of_the_answer_is_explained_timed_and_written() -> None:
    small = {"memory": 60e9}
    found = VIEW.answer("search", small)
    assert found["machine"]["memory"] == 60e9
    first = found["plans"][0]
    low, high = first["step_seconds_interval"]
    assert low < first["step_seconds"] < high
    told = VIEW.answer("explain", small, plan=first["text"], against="tp=4")
    assert sum(loss["seconds"] for loss in told["waterfall"]) == pytest.approx(
        first["step_seconds"]
    )
    assert told["stages"][0]["memory_bytes"]["total"] == first["memory_bytes"]["total"]
    assert told["against"]["sentences"]
    alone = VIEW.answer("estimate", small, plan=first["text"])
    assert (alone["waterfall"], alone["stages"]) == (told["waterfall"], told["stages"])
    timed = VIEW.answer("timeline", small, plan=first["text"])
    assert timed["step_seconds"] == pytest.approx(first["event_step_seconds"])
    written = VIEW.answer("export", small, plan=first["text"])
    assert "--tensor-model-parallel-size 2" in written["text"]


def test_a_message_is_answered_by_its_number() -> None:
    other = Heard()
    VIEW._reply(other, {"id": 3, "what": "timeline", "what_if": {}, "plan": PLAN}, [])
    VIEW._reply(other, {"id": 4, "what": "explain", "what_if": {}, "plan": "tp=3"}, [])
    VIEW._reply(other, {"id": 5, "what": "explain"}, [])
    record, refused, empty = other.replies
    assert record["id"] == 3
    assert record["record"]["step_seconds"] > 0
    assert (refused["id"], "record" in refused) == (4, False)
    assert "3" in refused["error"]
    assert empty == {"id": 5, "error": "explain needs a plan"}
