"""Every field of a plan is stated once, and every table that follows from the records is whole."""

import json
from dataclasses import fields, replace

import numpy as np
import pytest
from not_empty import not_empty

from plan3d.cli.arguments.task_arguments import LAYOUTS, PLAN_FIELDS
from plan3d.cli.catalogue.help import fields_table
from plan3d.cli.options.table import OPTIONS
from plan3d.search.space.axes import DERIVED, TASK_AXES, default_axes
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.operators.work import Strategy
from plan3d.simulator.plan.field_record import SeenBy
from plan3d.simulator.plan.field_values import AUTO
from plan3d.simulator.plan.fields import (
    ALIASES,
    ALWAYS_WRITTEN,
    AXES,
    BY_RUN,
    CHOICES,
    EXPANSION,
    FIELDS,
    OPT_IN,
    POLICY,
    RANKING_AXES,
    RECIPE_FIELDS,
    RESOLVED_DEFAULTS,
    SKELETON,
    STRATEGY,
    SYNONYMS,
    TABLE_FIELDS,
    columns_where,
)
from plan3d.simulator.plan.plan import Plan, as_plan, plan_of_record, resolve
from plan3d.simulator.plan.stage_layout import Segments
from plan3d.simulator.plan.synchronisation import SyncPolicy
from plan3d.simulator.plan.tensor_grid import every_grid
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model


def task(model="gpt3-6.7b", gpus=16, batch=64):
    cluster = Cluster.profile("h100-sxm", gpus=gpus)
    return Task(Model.preset(model), cluster, sequence=2048, global_batch=batch)


CHANGES = {
    "tp": ("tp=2", "tp=4"),
    "tp_grid": ("tp=4 micro_batch=4", "tp_grid=2x2"),
    "pp": ("pp=2", "pp=4"),
    "dp": ("tp=2 dp=8", "dp=4 pp=2"),
    "cp": ("tp=2", "cp=2"),
    "ep": ("ep=2", "ep=4"),
    "etp": ("ep=2 tp=2", "etp=2"),
    "virtual_stages": ("pp=4", "virtual_stages=2"),
    "micro_batch": ("tp=2", "micro_batch=2"),
    "schedule": ("pp=4", "schedule=gpipe"),
    "micro_batch_group": ("pp=4 virtual_stages=2", "micro_batch_group=8"),
    "sequence_parallel": ("tp=2", "sequence_parallel=0"),
    "zero": ("tp=2 overlap_grad_reduce=0", "zero=3"),
    "recompute": ("tp=2", "recompute=full"),
    "overlap_grad_reduce": ("tp=2", "overlap_grad_reduce=0"),
    "overlap_param_gather": ("tp=2", "overlap_param_gather=0"),
    "overlap_p2p": ("pp=4 virtual_stages=2", "overlap_p2p=0"),
    "overlap_tp": ("tp=2", "overlap_tp=1"),
    "overlap_ep": ("ep=4 pp=2 virtual_stages=2", "overlap_ep=1"),
    "cp_comm": ("cp=4", "cp_comm=all-gather"),
    "expert_dispatch": ("ep=16", "expert_dispatch=hierarchical"),
    "precision": ("tp=2", "precision=fp8"),
    "fp8_params": ("tp=2 precision=fp8-delayed", "fp8_params=1"),
    "bf16_first_layers": ("tp=2 precision=fp8", "bf16_first_layers=1"),
    "bf16_last_layers": ("tp=2 precision=fp8", "bf16_last_layers=1"),
    "optimizer": ("tp=2", "optimizer=sgd"),
    "precision_aware": ("tp=2", "precision_aware=1"),
    "main_grads_dtype": ("tp=2 precision_aware=1", "main_grads_dtype=bf16"),
    "grad_reduce_dtype": ("tp=2", "grad_reduce_dtype=bf16"),
    "main_params_dtype": (
        "tp=2 precision=fp8 precision_aware=1",
        "main_params_dtype=fp16",
    ),
    "exp_avg_dtype": ("tp=2 precision_aware=1", "exp_avg_dtype=bf16"),
    "exp_avg_sq_dtype": ("tp=2 precision_aware=1", "exp_avg_sq_dtype=fp8"),
    "first_stage_layers": ("pp=4", "first_stage_layers=5"),
    "last_stage_layers": ("pp=4", "last_stage_layers=5"),
    "mtp_stage": ("pp=4 ep=4 layers_per_stage=20,20,21,0", "mtp_stage=3"),
    "sync": ("tp=1", "sync=ring"),
    "topology": ("sync=gossip zero=0", "topology=ring"),
    "sync_period": ("zero=0 overlap_grad_reduce=0", "sync_period=8"),
    "compression": ("zero=0 overlap_grad_reduce=0", "compression=one-bit"),
    "levels": ("zero=0 overlap_grad_reduce=0 compression=qsgd levels=4", "levels=64"),
    "kept_per_thousand": (
        "zero=0 overlap_grad_reduce=0 compression=mem-sgd kept_per_thousand=10",
        "kept_per_thousand=100",
    ),
    "bucket_parameters": ("zero=0", "bucket_parameters=100000"),
    "shard": ("zero=3", "shard=4"),
    "offload_optimizer": ("tp=2", "offload_optimizer=50"),
    "offload_parameters": ("zero=3", "offload_parameters=50"),
    "nvme": ("zero=3 offload_optimizer=100", "nvme=optimizer"),
    "sites": ("sync_period=10 zero=0 overlap_grad_reduce=0", "sites=2"),
    "outer_optimizer": ("sites=2 sync_period=10", "outer_optimizer=nesterov"),
    "fragments": ("sites=2 sync_period=10 outer_delay=1", "fragments=5"),
    "outer_delay": ("sites=2 sync_period=10", "outer_delay=1"),
    "outer_bits": ("sites=2 sync_period=10", "outer_bits=4"),
    "offload_activations": ("tp=2", "offload_activations=50"),
    "loss": ("tp=2", "loss=unfused"),
    "layers_per_stage": ("pp=4", "layers_per_stage=7,9,9,7"),
    "segments": ("pp=2", "segments=16:recompute=full|16"),
}
"""A plan without a field, or with its default, and the words that change it."""
MODELS = {
    **dict.fromkeys(("ep", "etp", "overlap_ep"), "mixtral-8x7b"),
    **dict.fromkeys(("expert_dispatch", "mtp_stage"), "deepseek-v3"),
}
"""Models of CHANGES that are not GPT-3 6.7B."""
SAMPLES = {name: (FIELDS[name].values.minimum, FIELDS[name].values.maximum) for name in AXES}
SAMPLES |= {name: tuple(choice.names.values()) for name, choice in CHOICES.items()}
SAMPLES |= {"tp_grid": every_grid([1, 4, 8, 12])}
"""Codes of every column."""


def changed(base, change):
    """The words of a plan with some of them replaced."""
    return dict(word.split("=", 1) for word in f"{base} {change}".split())


def test_the_attributes_of_a_plan_are_its_records():
    assert [f.name for f in fields(Plan)] == list(FIELDS) == [*AXES, *TABLE_FIELDS]
    assert all(record.name == name for name, record in FIELDS.items())
    plan = Plan()
    assert all(getattr(plan, name) == record.default for name, record in FIELDS.items())


@pytest.mark.parametrize("name", FIELDS)
def test_a_record_says_what_the_field_is(name):
    record = FIELDS[name]
    assert record.help.strip() == record.help != ""
    assert "\n" not in record.help
    assert len(record.help) < 90
    assert len(record.header or name) <= 17 or not record.ranked
    assert record.values.description
    assert set(record.aliases).isdisjoint(FIELDS)
    if record.is_column:
        assert record.default == AUTO or record.values.accepts(record.default)


def test_what_sees_a_field():
    """Layers, stages and synchronisation share the fields with the step and what is trained."""
    assert set(STRATEGY) == {
        *("tp", "tp_grid", "cp", "ep", "etp", "micro_batch", "sequence_parallel", "recompute"),
        *("overlap_tp", "overlap_ep", "cp_comm", "expert_dispatch", "offload_activations", "loss"),
    }
    assert set(SKELETON) - set(STRATEGY) == {
        *("pp", "dp", "virtual_stages", "schedule", "micro_batch_group"),
        *("first_stage_layers", "last_stage_layers", "mtp_stage"),
    }
    assert set(POLICY) == {
        *("sync", "topology", "sync_period", "compression", "levels", "kept_per_thousand"),
        *("bucket_parameters", "shard", "offload_optimizer", "offload_parameters", "nvme"),
        *("sites", "outer_optimizer", "fragments", "outer_delay", "outer_bits"),
    }
    step = columns_where(lambda record: record.seen_by is SeenBy.STEP)
    assert sorted((*SKELETON, *POLICY, *step, *RECIPE_FIELDS)) == sorted(AXES)


def test_typed_views_have_the_fields_they_are_made_of():
    """A strategy, a policy and the runs of layers name their fields once more, with types."""
    assert {f.name for f in fields(Strategy)} == set(STRATEGY)
    names = ("sync_period" if name == "period" else name for name in SyncPolicy._fields)
    assert tuple(names) == POLICY
    assert SyncPolicy() == tuple(OPT_IN[name] for name in POLICY)
    assert tuple(f.name for f in fields(Segments)) == ("stage", "layers", *BY_RUN)


def test_the_order_of_expansion():
    """Every axis has a turn of its own: stages before what synchronises them, and what a ranking
    tells apart before the rest, so that plans which it does not are neighbours."""
    assert sorted(EXPANSION) == sorted(AXES)
    turns = [FIELDS[name].turn for name in EXPANSION]
    assert sorted({*turns, 1}) == [1, *turns]
    of_stages = [EXPANSION.index(name) for name in SKELETON]
    assert max(of_stages) < min(EXPANSION.index(name) for name in AXES if name not in
                                (*SKELETON, *RECIPE_FIELDS))  # fmt: skip
    told = [name in RANKING_AXES for name in EXPANSION if name not in POLICY]
    assert told == sorted(told, reverse=True)


@pytest.mark.parametrize("name", AXES)
def test_values_are_read_as_they_are_written(name):
    record = FIELDS[name]
    for code in (*SAMPLES[name], *((AUTO,) if record.may_be_auto else ())):
        written = record.spell(code)
        assert record.code(written) == record.code(str(written)) == code
    for text, code in CHOICES[name].names.items() if name in CHOICES else ():
        assert record.code(text.upper()) == code
    low = AUTO - 1 if record.may_be_auto else record.values.minimum - 1
    with pytest.raises(
        InputError, match=rf"{name}={low} must be at least {record.values.minimum}\b"
    ):
        record.code(low)
    with pytest.raises(InputError, match=name):
        record.encode(np.array([1.5, 2.5]))


def test_no_field_counts_from_a_truth_value():
    with pytest.raises(InputError, match=r"^dp=0 must be at least 1$"):
        Plan(dp=0)


@pytest.mark.parametrize("name", AXES)
def test_plans_are_read_from_their_json_and_their_text(name):
    for code in not_empty(SAMPLES[name]):
        plan = Plan(**{name: code})
        again = Plan(**json.loads(json.dumps(plan.to_dict())))
        assert again.columns() == plan.columns()
        parsed = Plan.parse(f"{name}={plan.to_dict()[name]}")
        assert getattr(parsed, name) == code


def test_other_names_of_fields():
    assert ALIASES["pipeline_model_parallel_layout"] == "layers_per_stage"
    assert not set(ALIASES) & {*FIELDS}
    assert Plan.parse("pipeline-model-parallel-layout=Et|t|tL").layers_per_stage == (1, 1, 1)


@pytest.mark.parametrize("model", ["gpt3-6.7b", "mixtral-8x7b", "deepseek-v3"])
def test_every_axis_has_values(model):
    """From its record, from the task, or from other fields: never from two of them."""
    axes = default_axes(task(model))
    assert tuple(axes) == EXPANSION
    for name, values in axes.items():
        record = FIELDS[name]
        assert values
        assert len(set(values)) == len(values)
        assert all(value == AUTO or record.values.accepts(value) for value in values)
        assert (AUTO in values) == (values == (AUTO,))
        assert AUTO not in values or name in DERIVED
        if name not in TASK_AXES:
            assert values == record.searched
        else:
            assert record.searched == (record.default,)
        assert name not in OPT_IN or values == (OPT_IN[name],)


def test_no_axis_is_of_a_field_that_is_not_there():
    assert {*TASK_AXES, *DERIVED} <= set(AXES)
    assert all(set(derived.reads) <= set(AXES) for derived in DERIVED.values())


@pytest.mark.parametrize("name", CHANGES)
def test_a_field_changes_the_answer(name):
    base, change = CHANGES[name]
    question = task(MODELS.get(name, "gpt3-6.7b"))
    if name in ("offload_parameters", "nvme"):
        drives = Cluster.profile("h200-sxm", gpus=question.gpus)
        question = replace(question, cluster=drives, software="deepspeed")
    plain, other = Plan.parse(base), Plan(**changed(base, change))
    if name in AXES:
        ours, theirs = (getattr(resolve(p, question.gpus), name) for p in (plain, other))
        assert ours != theirs
    before, after = evaluate(question, plain), evaluate(question, other)
    assert (before.step_seconds, before.memory_bytes) != (after.step_seconds, after.memory_bytes)


@pytest.mark.parametrize("name", CHANGES)
def test_a_record_of_json_holds_what_is_not_at_its_default(name):
    for words in (CHANGES[name][0], changed(*CHANGES[name])):
        plan = resolve(as_plan(words), 16)
        record = json.loads(json.dumps(plan.to_record()))
        assert record.keys() >= set(ALWAYS_WRITTEN)
        assert plan_of_record({**record, "micro_batches": 8}).to_dict() == plan.to_dict()
        assert set(record) <= {*ALWAYS_WRITTEN, *(words if isinstance(words, dict) else FIELDS)}
    assert set(resolve(Plan(tp=2, pp=2), 16).to_record()) == set(ALWAYS_WRITTEN)


def test_every_field_is_tried():
    assert set(CHANGES) == set(FIELDS)


def test_options_of_fields():
    """A field that has an option of the command line is said to have one, and in its help every
    value that it may have."""
    options = {option.name: option for option in OPTIONS}
    assert set(PLAN_FIELDS) <= set(AXES)
    assert {name for name in FIELDS if name in options} == {*PLAN_FIELDS, "layers_per_stage"}
    assert set(LAYOUTS) == {"layers_per_stage", *FIELDS["layers_per_stage"].aliases}
    for name in set(PLAN_FIELDS) & set(CHOICES):
        assert all(text in options[name].help for text in not_empty(CHOICES[name].names))


def test_help_names_every_field_and_value():
    table = fields_table()
    names = [row[0] for row in table.rows if row[0]]
    assert names == list(FIELDS)
    said = " ".join(row[1].strip() for row in table.rows)
    for record in FIELDS.values():
        assert record.help in said
        assert f"seen by {record.seen_by.value}" in said
    values = [text for choice in CHOICES.values() for text in choice.names]
    assert all(text in said for text in not_empty(values))
    assert "default auto" in said


@pytest.mark.parametrize(
    ("word", "field"),
    {
        "tensor_parallel_degree": "tp",
        "pipeline_parallel_degree": "pp",
        "data_parallel_size": "dp",
        "zero_stages": "zero",
        "recompute_granularity": "recompute",
    }.items(),
)
def test_a_field_is_suggested_for_its_name_in_other_tools(word, field):
    with pytest.raises(InputError, match=f"unknown plan field '{word}'; did you mean {field}[?]"):
        Plan.parse(f"{word}=2")


def test_no_synonym_is_a_field():
    assert not set(SYNONYMS) & {*FIELDS}


def test_stated_defaults():
    assert RESOLVED_DEFAULTS["virtual_stages"] == RESOLVED_DEFAULTS["sync_period"] == 1
    assert all(RESOLVED_DEFAULTS[name] == max(int(getattr(Plan, name)), 0) for name in AXES)


@pytest.mark.parametrize("value", [[], [2], [1, 2], {}])
def test_a_record_of_one_plan_has_no_lists_of_numbers(value):
    with pytest.raises(InputError, match="pp of a plan must be one value"):
        plan_of_record({"tp": 2, "pp": value})
