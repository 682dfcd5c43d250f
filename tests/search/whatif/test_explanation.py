"""An explanation holds what it says, and refuses what it must."""

import json
from dataclasses import replace

import pytest

from plan3d import Cluster, InputError, Model, Plan, Task, evaluate, explain
from plan3d.search.whatif.single_field_changes import single_edits

TASK = Task(
    Model.preset("gpt3-6.7b"), Cluster.profile("a100-80gb-sxm", gpus=32), sequence=2048,
    global_batch=64,
)  # fmt: skip
PLAN = "pp=4 tp=2 recompute=full"


def test_the_waterfall_adds_up_and_edits_are_those_that_fit():
    found = explain(TASK, PLAN)
    assert sum(loss.seconds for loss in found.waterfall) == pytest.approx(found.costs.step_seconds)
    assert found.best_edits[0]["edit"] == "recompute=none"
    for edit in found.best_edits:
        again = evaluate(TASK, Plan.parse(edit["plan"]))
        assert edit["step_seconds"] == pytest.approx(again.step_seconds)
        assert edit["memory_change_bytes"] == pytest.approx(
            again.memory_bytes - found.costs.memory_bytes
        )
    assert len(found.edits) == len(single_edits(found.costs))


def test_a_table_of_plans_is_refused():
    with pytest.raises(InputError, match="one plan, not a table of 2"):
        explain(TASK, Plan(pp=4, tp=[1, 2]))


def test_another_plan_may_be_a_change_a_plan_or_illegal():
    change = explain(TASK, PLAN, "tp=4").against
    plan = explain(TASK, Plan.parse(PLAN), Plan.parse("pp=4 tp=4 recompute=full")).against
    assert str(change.plan) == str(plan.plan)
    assert change.changed["tp"] == (2, 4)
    assert change.costs.step_seconds == plan.costs.step_seconds
    refused = explain(TASK, PLAN, "tp=3").against
    assert refused.costs is None
    assert refused.refused_by[0][0] == "tp-divides-heads"
    assert refused.sentences[0].startswith("It is refused: ")
    with pytest.raises(InputError, match="tensor size 3 does not divide"):
        explain(TASK, "tp=3")


def test_it_is_sentences_and_json():
    found = explain(TASK, PLAN, "tp=4")
    assert str(found).splitlines() == found.sentences
    assert found.binding in found.sentences
    record = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert record["against"]["changed"]["tp"] == [2, 4]
    assert record["edits"] == found.best_edits
    assert "against" not in explain(TASK, PLAN).to_dict()


def test_what_memory_keeps_from_being_faster_is_said_in_percent_and_bytes():
    """tp=8 of a 40 GB card: whole layers would be faster, and need more than there is."""
    small = replace(TASK, cluster=Cluster.profile("a100-40gb-sxm", gpus=32))
    found = explain(small, "tp=8 zero=1")
    other = evaluate(small, Plan.parse("tp=1 zero=1"))
    gain = 100 * (1 - other.step_seconds / found.costs.step_seconds)
    lack = -other.margin / 2**30
    assert found.binding.startswith(
        f"Memory binds: tp=1 would be {gain:.1f} % faster, more than any edit that fits, and needs "
        f"{lack:.1f} GiB more than a GPU has; now rank 0 is fullest with "
    )
