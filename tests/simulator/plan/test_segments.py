"""Plans with segments are read back as they are written; runs that do not fit are refused."""

import json

import pytest
from hypothesis import given
from layer_runs import DENSE, mixed

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.step.evaluate import evaluate


@given(plan=mixed())
def test_texts_and_json_give_the_plan_back(plan):
    asked = resolve(plan, DENSE.gpus)
    for again in (Plan.parse(str(asked)), Plan(**json.loads(json.dumps(asked.to_dict())))):
        assert str(resolve(again, DENSE.gpus)) == str(asked)
        assert evaluate(DENSE, again).step_seconds == evaluate(DENSE, plan).step_seconds


@pytest.mark.parametrize(
    "own", ["zero=0", "zero=1", "zero=0 overlap_grad_reduce=0", "zero=1 overlap_param_gather=0"]
)
def test_a_row_without_data_ranks_of_its_own_is_given_back_too(own):
    runs = "segments=8|8:tp=4,dp=2,zero=0|8:tp=4,dp=2|8"
    asked = resolve(Plan.parse(f"tp=8 pp=4 dp=1 micro_batch=2 {own} {runs}"), DENSE.gpus)
    again = resolve(Plan.parse(str(asked)), DENSE.gpus)
    assert again.to_dict() == asked.to_dict()


def test_runs_on_one_rank_have_the_zero_that_their_plan_states():
    """As the plan without runs, where an engine runs its ZeRO on one rank too; none by default."""
    for own, zero in (("zero=3", 3), ("zero=0", 0), ("", 0)):
        asked = resolve(Plan.parse(f"{own} segments=16+16:recompute=full"), 1)
        assert asked.segments.zero.tolist() == [[zero, zero]]
        again = resolve(Plan.parse(str(asked)), 1)
        assert again.to_dict() == asked.to_dict()


UNREADABLE = [
    ("8|x", "'x' must be LAYERS or LAYERS:field=value"),
    ("8*0x", r"\*0x must repeat a stage"),
    ("8:cp=2", "cannot give 'cp' by run"),
    ("8:recompute", "'recompute' must be field=value"),
    ("8:recompute=ful", "recompute=ful is not modelled; did you mean full"),
]


@pytest.mark.parametrize(("text", "message"), UNREADABLE)
def test_texts_that_are_no_segments_are_refused(text, message):
    with pytest.raises(InputError, match=message):
        Plan(segments=text)


@pytest.mark.parametrize("value", [3, [{"layers": 3}], [[{"tp": 3}]], [[{"layers": "x"}]], [[3]]])
def test_json_that_is_no_segments_is_refused(value):
    with pytest.raises(InputError, match="segments"):
        Plan(segments=value)


def test_segments_belong_to_as_many_plans_as_there_are():
    runs = Plan(segments="8|8").segments
    with pytest.raises(InputError, match="segments are those of 1 plans, the table has 2"):
        Plan(tp=[1, 2], segments=runs)
