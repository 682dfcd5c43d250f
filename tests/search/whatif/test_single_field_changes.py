"""Single edits are legal and change one field, and the best of them is found."""

from dataclasses import replace

import pytest

from plan3d.search.whatif.single_field_changes import (
    CAPACITIES,
    FOLLOWING,
    NEAR_LAYERS,
    ON_HOST_VALUES,
    beyond_memory,
    binding_sentence,
    by_capacity,
    edit_values,
    edited,
    fitting,
    loose,
    single_edits,
    too_large,
)
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.fields import AXES
from plan3d.simulator.plan.plan import Plan, field_changes, resolve
from plan3d.simulator.rules.validity import legal_rows, violations
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

DENSE = Task(
    Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=32), sequence=4096, global_batch=128
)
EXPERTS = replace(DENSE, model=Model.preset("mixtral-8x7b"))
PLANS = [
    (DENSE, "tp=2 pp=2"),
    (DENSE, "tp=2 pp=4 virtual_stages=2 dp=4 zero=0 overlap_grad_reduce=0"),
    (DENSE, "pp=4 first_stage_layers=7 recompute=full"),
    (DENSE, "pp=4 layers_per_stage=7,9,9,7 schedule=zb-h1"),
    (DENSE, "pp=4 segments=8:recompute=full|8:tp=2,dp=4|8*2"),
    (DENSE, "pp=4 virtual_stages=2 schedule=zb-v micro_batch=2"),
    (DENSE, "tp=2 pp=4 schedule=dualpipe"),
    (EXPERTS, "tp=2 ep=8 pp=2 zero=3"),
]


def fields(plan):
    return {name: getattr(plan.take(0), name) for name in AXES}


@pytest.mark.parametrize(("task", "text"), PLANS)
def test_edits_are_legal_and_change_one_field(task, text):
    costs = evaluate(task, Plan.parse(text))
    edits = single_edits(costs)
    assert len(edits) >= 5
    assert legal_rows(edits.costs.plans, task).all()
    own = fields(costs.plans)
    for row in range(len(edits)):
        new = fields(edits.costs.plans.take(row))
        changed = {name for name in AXES if new[name] != own[name]}
        assert edits.fields[row] in changed
        assert changed - {edits.fields[row]} <= {"dp", *FOLLOWING}
        assert new[edits.fields[row]] == edits.values[row]
    step = edits.costs.step
    assert (step[1:] >= step[:-1]).all()


@pytest.mark.parametrize(("task", "text"), PLANS)
def test_a_loose_plan_resolves_to_itself(task, text):
    plan = resolve(Plan.parse(text), task.gpus)
    again = resolve(loose(plan, task.gpus), task.gpus)
    assert fields(again) == fields(plan)
    assert str(again) == str(plan)


def test_every_legal_value_of_a_field_is_an_edit():
    plan = resolve(Plan(tp=2, pp=2), DENSE.gpus)
    edits = single_edits(evaluate(DENSE, plan))
    found = {value for name, value in zip(edits.fields, edits.values, strict=True) if name == "tp"}
    legal_tp = {tp for tp in edit_values(plan, DENSE)["tp"]
                if not violations(edited(plan, DENSE, {"tp": tp}), DENSE)}  # fmt: skip
    assert found == legal_tp - {2} == {1, 4, 8, 16}


def test_an_edit_derives_the_rest():
    plan = edited(Plan(tp=2, pp=2, dp=8), DENSE, field_changes("tp=4"))
    assert (plan.tp, plan.dp, plan.sequence_parallel) == (4, 4, 1)
    alone = edited(plan, DENSE, {"tp": 1})
    assert (alone.dp, alone.sequence_parallel) == (16, 0)
    looped = edited(plan, DENSE, field_changes("virtual-stages=2"))
    assert (looped.schedule, looped.overlap_p2p) == (1, 1)
    kept = edited(Plan(tp=2, zero=3), DENSE, {"pp": 2})
    assert kept.zero == 3


def test_an_illegal_change_says_which_rule_refuses_it():
    broken = violations(edited(Plan(tp=2), DENSE, {"tp": 3}), DENSE)
    assert "tp-divides-heads" in {rule for rule, _ in broken}
    with pytest.raises(InputError, match="did you mean tp"):
        edited(Plan(), DENSE, {"ttp": 3})
    with pytest.raises(InputError, match="FIELD=VALUE"):
        field_changes("tp")


def test_memory_binds_where_a_faster_edit_is_too_large():
    tight = Cluster.profile("h100-sxm", gpus=32, memory=20e9)
    small = replace(DENSE, cluster=tight)
    costs = evaluate(small, Plan(tp=2, pp=2, micro_batch=1, recompute="full"))
    edits = single_edits(costs)
    assert costs.fits
    assert beyond_memory(costs, edits) == too_large(edits, costs.step_seconds)[0] == 0
    assert binding_sentence(costs, edits).startswith(f"Memory binds: {edits.text(0)} would be")
    assert set(too_large(edits, costs.step_seconds)).isdisjoint(fitting(edits))
    roomy = evaluate(DENSE, Plan(tp=2, pp=2))
    assert beyond_memory(roomy, single_edits(roomy)) is None
    assert binding_sentence(roomy, single_edits(roomy)).startswith("Memory does not bind: rank 0")


@pytest.mark.parametrize(
    ("size", "words"), [(9e9, "the fastest single edit that fits is"), (3e9, "comes nearest with")]
)
def test_what_does_not_fit_is_told_what_would(size, words):
    tight = replace(DENSE, cluster=Cluster.profile("h100-sxm", gpus=32, memory=size))
    costs = evaluate(tight, Plan(tp=2, pp=2))
    assert words in binding_sentence(costs, single_edits(costs))


def test_a_plan_that_no_edit_makes_smaller_says_so():
    alone = replace(DENSE, cluster=replace(Cluster.profile("h100-sxm", gpus=1), host=None))
    costs = evaluate(alone, Plan(recompute="full"))
    said = binding_sentence(costs, single_edits(costs))
    assert said.endswith("no single edit needs less.")


def test_more_memory_is_never_slower():
    tight = replace(DENSE, cluster=Cluster.profile("h100-sxm", gpus=32, memory=15e9))
    found = by_capacity(evaluate(tight, Plan(tp=2, pp=2, precision="fp8")))
    assert [factor for factor, _ in found] == list(CAPACITIES)
    steps = [best.step_seconds for _, best in found if best]
    assert steps == sorted(steps, reverse=True)
    assert {int(best.plans.precision[0]) for _, best in found if best} == {2}


def test_values_that_an_edit_may_try():
    """32 layers on four ranks of 8: ends of two layers more and less; 128 sequences of 8 replicas
    are 16 micro-batches; experts are split over at most the 8 GPUs of a node."""
    plan = resolve(Plan(pp=4), DENSE.gpus)
    found = edit_values(plan, DENSE)
    ends = {8 + d for d in range(-NEAR_LAYERS, NEAR_LAYERS + 1)}
    assert set(found["first_stage_layers"]) == set(found["last_stage_layers"]) == {0} | ends
    assert set(found["micro_batch_group"]) == {0, 1, 2, 4, 8, 16}
    assert found["mtp_stage"] == (0,)
    assert found["offload_optimizer"] == ON_HOST_VALUES
    hostless = replace(DENSE, cluster=replace(DENSE.cluster, host=None))
    assert edit_values(plan, hostless)["offload_optimizer"] == (0,)
    doubled = resolve(Plan(pp=4, micro_batch=2), DENSE.gpus)
    assert set(edit_values(doubled, DENSE)["micro_batch_group"]) == {0, 1, 2, 4, 8}
    assert set(edit_values(plan, EXPERTS)["etp"]) == {1, 2, 4, 8}
    predicting = replace(DENSE, model=replace(DENSE.model, mtp_layers=1))
    assert edit_values(plan, predicting)["mtp_stage"] == (0, 1, 2, 3, 4)
    thin = edit_values(resolve(Plan(pp=32, dp=1), 32), DENSE)
    assert set(thin["first_stage_layers"]) == {0, *range(1, NEAR_LAYERS + 2)}
