"""Plans that a framework launches: what searches and evaluations of its tasks leave out."""

from __future__ import annotations

import pickle
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from not_empty import not_empty

import plan3d
from plan3d.launch_files.common_rules import one_of
from plan3d.launch_files.exporter import (
    Exporter,
    Form,
    launch_text,
    refusals,
)
from plan3d.launch_files.frameworks import for_framework, framework, with_usual
from plan3d.launch_files.registry import EXPORTERS, register_exporter
from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.search.space.space import Space
from plan3d.search.whatif.climb import climbed, improved
from plan3d.search.whatif.single_field_changes import edited
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.software_stack import SOFTWARE, software_profile
from plan3d.simulator.plan.field_values import ContextComm
from plan3d.simulator.plan.plan import Plan, concat, resolve
from plan3d.simulator.rules.validity import legal_rows, violations
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model


def task(model="llama-3.1-8b", cluster="h100-sxm", gpus=16, batch=64, **more):
    clustered = Cluster.profile(cluster, gpus=gpus)
    return Task(Model.preset(model), clustered, sequence=2048, global_batch=batch, **more)


def field_text(found):
    """The plans of a result."""
    return [str(plan) for plan in found.plans]


FORMS = [
    pytest.param(name, form, id=f"{name}-{form.version}")
    for name, exporter in EXPORTERS.items()
    for form in exporter.forms
]


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_rules_read_only_the_fields_that_they_name(name, form):
    """A search prunes with a rule as soon as those fields are known; the layout always is."""
    table = resolve(Plan(tp=[1, 2], pp=2), 16).table()
    for rule in not_empty(form.all_rules):
        known = {field: getattr(table, field) for field in rule.fields}
        named = rule.ok(SimpleNamespace(**known, layers_per_stage=()), task())
        np.testing.assert_array_equal(
            np.broadcast_to(named, (2,)), np.broadcast_to(rule.ok(table, task()), (2,)), rule.name
        )


# Searches


QUESTIONS = st.fixed_dictionaries(
    {
        "model": st.sampled_from(
            ("llama-3.1-8b", "gpt3-1.3b", "llama-7b", "mixtral-8x7b", "deepseek-v3")
        ),
        "cluster": st.sampled_from(("a100-80gb-sxm", "h100-sxm", "gb200", "mi300x")),
        "gpus": st.sampled_from((8, 16, 24, 72, 512)),
        "batch": st.sampled_from((24, 64, 96)),
    }
)


@given(question=QUESTIONS, name=st.sampled_from(("", *EXPORTERS)))
def test_each_of_the_ten_plans_is_exported(question, name):
    asked = task(**question)
    asked = for_framework(asked, name) if name else with_usual(asked)
    form = EXPORTERS[name or asked.software.framework].form()
    plans = [*rank_plans(asked).plans]
    assert not [plan for plan in plans if refusals(asked, plan, form)]
    assert not [plan for plan in plans if not launch_text(asked, plan, form)]


@pytest.mark.parametrize("name", EXPORTERS)
def test_every_framework_has_plans(name):
    model = "gpt3-1.3b" if name == "deepspeed" else "llama-3.1-8b"
    found = rank_plans(for_framework(task(model), name), Ranking(top=3))
    assert len(found.plans) == 3
    assert found.task.software.name == EXPORTERS[name].software


@pytest.mark.parametrize("name", ["torchtitan", pytest.param("megatron", marks=pytest.mark.slow)])
def test_a_restricted_space_is_the_whole_one_without_what_is_refused(name):
    asked = for_framework(task(gpus=8, batch=16), name)
    few = {"tp": [1, 2], "cp": [1], "micro_batch": [1, 2], "recompute": ["none", "full"]}
    whole = concat(list(Space.of(replace(asked, framework=None), few).chunks()))
    form = EXPORTERS[name].form()
    may = [str(p) for i in range(whole.rows) if not refusals(asked, p := whole.take(i), form)]
    unread = concat(list(Space.of(asked, few).chunks()))
    assert [str(unread.take(i)) for i in range(unread.rows)] == may
    assert 0 < len(may) < whole.rows


ACROSS = [
    ("gpt3-175b", "mi300x", 8192, 1536, 2048),
    ("megatron-529.6b", "h100-sxm", 2048, 1920, 2048),
    ("megatron-529.6b", "mi300x", 16384, 1920, 2048),
]
"""Searches that were won by a tensor-parallel group of two nodes that overlaps its exchanges."""
UNSTAGED = [
    ("deepseek-v3", "a100-80gb-sxm", 512, 8192, 4096),
    ("deepseek-v3", "gb200", 4096, 8192, 4096),
    ("deepseek-v3", "mi300x", 8192, 8192, 4096),
]
"""Searches that were won by overlapped experts beside multi-token prediction without stages."""


@pytest.mark.parametrize(("model", "cluster", "gpus", "batch", "sequence"), ACROSS + UNSTAGED)
def test_searches_that_were_won_by_plans_that_cannot_be_launched(
    model, cluster, gpus, batch, sequence
):
    asked = replace(task(model, cluster, gpus, batch), sequence=sequence)
    best = rank_plans(with_usual(asked), Ranking(top=1)).best.plans.take(0)
    assert not best.overlap_tp or best.tp <= asked.cluster.fast_domain.gpus
    assert not refusals(asked, best, EXPORTERS["megatron"].form())


def test_a_model_is_launched_by_the_framework_of_the_stack_that_has_it():
    """Megatron-LM has no attention sinks; Megatron-Bridge, of the same stack, has."""
    asked = with_usual(task("gpt-oss-20b", gpus=8))
    assert asked.framework.name == "megatron-bridge"
    assert with_usual(task("llama-7b")).framework.name == "megatron"
    found = rank_plans(asked, Ranking(top=1, choose={"tp": [2], "pp": [2], "cp": [1]}))
    assert not refusals(asked, found.best.plans.take(0), EXPORTERS["megatron-bridge"].form())
    few = {"tp": [1], "pp": [2], "cp": [1]}
    usual, named = (
        rank_plans(asked, Ranking(top=1, choose={**few, **more})).plans[0].schedule
        for more in ({}, {"schedule": ["zb-h1"]})
    )
    assert named != usual, "what is asked for by name has an answer"


def test_a_stack_may_overlap_tensor_parallelism_across_domains():
    plan = Plan(tp=16, overlap_tp=1, sequence_parallel=1)
    assert "tp-overlap-inside-domain" in dict(violations(resolve(plan, 16), task("llama-7b")))
    able = replace(software_profile("megatron-core"), tp_overlap_across_domains=True)
    assert not violations(resolve(plan, 16), task("llama-7b", software=able))
    assert not violations(resolve(plan, 16), task("llama-7b", "gb200"))


def test_sequences_of_windows_are_split_as_their_framework_can():
    asked = replace(task("mistral-7b"), sequence=32768)
    ways = rank_plans(with_usual(asked), Ranking(choose={"cp": [4]}, top=200)).costs.plans.cp_comm
    assert set(ways) == {ContextComm.ALL_GATHER, ContextComm.A2A}
    gemma = replace(task("gemma-2-9b"), sequence=32768)
    # A model that plan3d does not write runs in the same framework.
    assert set(Space.of(with_usual(gemma)).axes["cp_comm"]) == set(ContextComm)


# What is asked for by name


@pytest.mark.parametrize(
    "choose",
    [
        {"schedule": ["zb-h1"]},
        {"schedule": ["1f1b", "zb-h1"]},
        {"sync": ["gossip"]},
        {"zero": [3], "pp": [4]},
        {"precision": ["pure-bf16"]},
    ],
    ids=str,
)
def test_values_asked_for_have_an_answer_without_a_framework(choose):
    found = rank_plans(with_usual(task()), Ranking(choose=choose, top=200))
    plain = rank_plans(task(), Ranking(choose=choose, top=200))
    fields = [set(map(str, np.unique(getattr(found.costs.plans, name)))) for name in choose]
    assert fields == [set(map(str, np.unique(getattr(plain.costs.plans, name)))) for name in choose]
    assert found.task == with_usual(task())


def test_axes_that_are_asked_for_keep_the_rules_that_they_can_meet():
    experts = with_usual(task("mixtral-8x7b"))
    for choose in ({"pp": [1, 2]}, {"ep": [8]}, {"recompute": ["none"]}, {"overlap_ep": [0, 1]}):
        found = rank_plans(experts, Ranking(choose=choose))
        form = EXPORTERS["megatron"].form()
        assert not any(refusals(experts, found.costs.plans.take(i), form) for i in range(10))


def test_values_asked_for_are_left_out_with_a_framework():
    asked = for_framework(task(), "megatron")
    assert not rank_plans(asked, Ranking(choose={"schedule": ["zb-h1"]})).plans
    found = rank_plans(asked, Ranking(choose={"zero": [1, 3]}, top=500)).costs.plans
    assert set(found.pp[found.zero == 3]) == {1}
    assert rank_plans(with_usual(task()), Ranking(choose={"zero": [3]})).costs.plans.pp.max() == 1


def test_a_model_that_the_usual_framework_lacks_has_an_answer():
    images = Task(
        Model.preset("resnet-50"), Cluster.profile("h100-sxm", gpus=8), sequence=1, global_batch=64
    )
    assert field_text(rank_plans(with_usual(images))) == field_text(rank_plans(images)) != []
    with pytest.raises(InputError, match=r"does not write .* for Megatron-LM|a list of layers"):
        evaluate(for_framework(images, "megatron"), Plan())


def test_a_system_and_a_stack_without_framework_are_not_restricted():
    for stack in ("fsdp", "zero-bubble", "torch"):
        assert with_usual(task(software=stack)).framework is None
    small = task("gpt3-1.3b", gpus=2)
    found = field_text(rank_plans(with_usual(small), Ranking(system="gpipe")))
    assert found == field_text(rank_plans(small, Ranking(system="gpipe"))) != []


@pytest.mark.parametrize(
    "backend",
    ["dynamic-programming", pytest.param("integer-programming", marks=pytest.mark.slow)],
)
def test_backends_of_unequal_stages_refuse_a_framework(backend):
    with pytest.raises(InputError, match="stages that differ, which no framework launches"):
        rank_plans(for_framework(task(), "megatron"), Ranking(backend=backend))
    assert rank_plans(
        with_usual(task()),
        Ranking(backend=backend, choose={"tp": [2], "pp": [2], "micro_batch": [1]}),
    ).plans


@pytest.mark.parametrize(
    ("backend", "budget"), [("branch-and-bound", None), ("random", 200), ("annealing", 200)]
)
def test_other_backends_obey_a_framework(backend, budget):
    asked = for_framework(task(gpus=8), "torchtitan")
    found = rank_plans(asked, Ranking(backend=backend, top=20, budget=budget))
    form = EXPORTERS["torchtitan"].form()
    assert not any(refusals(asked, found.costs.plans.take(i), form) for i in range(20))
    if backend == "branch-and-bound":
        assert found.best.step[0] == pytest.approx(rank_plans(asked).best.step[0])


# Tasks of a framework


@pytest.mark.parametrize("name", EXPORTERS)
def test_tasks_are_sent_to_other_processes(name):
    asked = for_framework(task(), name)
    again = pickle.loads(pickle.dumps(asked))
    assert again == asked != task()
    assert again.framework.rules == asked.framework.rules


def test_plans_that_a_framework_refuses_are_illegal():
    asked, plan = for_framework(task(), "megatron"), resolve(Plan(pp=4, schedule="zb-h1"), 16)
    assert [name for name, _ in violations(plan, asked)] == ["megatron-schedule"]
    assert legal_rows(plan.table(), with_usual(task()))[0]
    assert not legal_rows(plan.table(), asked)[0]
    with pytest.raises(InputError, match="runs 1f1b, and interleaved"):
        evaluate(asked, plan)
    runs = Plan(tp=2, pp=4, dp=2, segments="8|8:zero=0|8|8")
    with pytest.raises(InputError, match="trains all stages alike; nearest: layers_per_stage"):
        evaluate(asked, runs)


def test_a_change_turns_a_switch_only_where_the_plan_itself_is_launched():
    asked = for_framework(task("llama-7b", gpus=32), "nanotron")
    plan = resolve(Plan(tp=2, zero=0), 32)
    assert edited(plan, asked, {"zero": 1}).overlap_param_gather == 0
    assert edited(plan, asked, {"zero": 1, "overlap_param_gather": 1}).overlap_param_gather == 1
    assert edited(plan, replace(asked, framework=None), {"zero": 1}).overlap_param_gather == 1
    refused = resolve(Plan(tp=2, virtual_stages=2, pp=2, zero=0), 32)
    assert edited(refused, asked, {"zero": 1}).overlap_param_gather == 1


def test_a_framework_has_its_own_stack():
    for name, exporter in EXPORTERS.items():
        assert for_framework(task(), name).software.name == exporter.software
        usual = with_usual(task(software=exporter.software)).framework
        assert usual.name == SOFTWARE[exporter.software].framework
        assert not usual.required
    old = for_framework(task(software="megatron-lm-2021"), "megatron")
    assert old.software.name == "megatron-lm-2021"
    changed = replace(software_profile("megatron-core"), dropout=True)
    assert for_framework(task(software=changed), "megatron").software == changed
    with pytest.raises(InputError, match="megatron-core contradicts --framework torchtitan"):
        for_framework(task(software=changed), "torchtitan")


@pytest.mark.parametrize(
    ("stack", "name", "message"),
    [
        ("nanotron", "megatron", "--software nanotron contradicts --framework megatron: it is "
         "nanotron; nearest: --software megatron-core"),
        ("fsdp", "torchtitan", "it is of no framework that is launched; nearest: --software "
         "torchtitan"),
        ("megatron-core", "torchtitn", "--framework torchtitn is not known; did you mean "
         "torchtitan"),
    ],
)  # fmt: skip
def test_contradictions_are_refused_in_one_line(stack, name, message):
    with pytest.raises(InputError) as error:
        for_framework(task(software=stack), name)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.fixture
def mine():
    """A framework of somebody else's, which knows no pipelines and has no stack here."""
    form = Form(
        "1.0",
        "mine",
        (one_of("mine-stages", "pp", (1,), "no stages"),),
        lambda t, p, k: "x",
    )
    register_exporter(Exporter("mine", (form,)))
    yield "mine"
    del EXPORTERS._known["mine"]


def test_frameworks_of_others_work(mine):
    found = plan3d.find_plans(task(), framework=mine, top=50)
    assert set(found.costs.plans.pp) == {1}
    assert found.task.software.name == "megatron-core"
    with pytest.raises(InputError, match="pp=2: no stages; nearest: pp=1"):
        evaluate(plan3d.for_framework(task(), mine), Plan(pp=2))


# The public names


def test_public_searches_restrict_as_the_command_line_does():
    usual, first = with_usual(task()), Ranking(top=5)
    plans = field_text(plan3d.find_plans(task(), families=False, top=5))
    assert plans == field_text(improved(rank_plans(usual, first), usual, first))
    other = plan3d.find_plans(task(), framework="torchtitan")
    asked = for_framework(task(), "torchtitan")
    assert field_text(other) == field_text(
        climbed(rank_plans(asked, Ranking(families=True)), {}, top=10)
    )
    rows = plan3d.sweep(task(), {"gpus": [8, 16]}, framework="torchtitan").rows
    assert rows[1]["step_seconds"] == pytest.approx(other.best.step_seconds)
    fewest = plan3d.find_cluster(
        task(), tokens=1e10, days=30, framework="torchtitan", choose={"tp": [1]}
    )
    assert fewest.task.framework == framework("torchtitan")
