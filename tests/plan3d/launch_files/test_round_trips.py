"""A plan that is written and read again is the same plan of the same model."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan3d.launch_files.exporter import launch_text
from plan3d.launch_files.launch_file import (
    ReaderOptions,
    batch_of,
    effective_plan,
    explicit_layers,
    gpus_of,
    plan_of,
    sequence_of,
)
from plan3d.launch_files.registry import EXPORTERS, READERS, framework_of_file
from plan3d.launch_files.shape import same_shape
from plan3d.launch_files.torchtitan.model_flavors import flavor_model
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.precision import Optimizer, Precision
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.layers.placements import chunk_sizes
from plan3d.simulator.pipeline.schedules import schedule_code
from plan3d.simulator.plan.field_values import (
    AUTO,
    ContextComm,
    Dispatch,
    Loss,
    Nvme,
    Recompute,
)
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.rules.validity import legal_rows
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

MODELS = {
    "megatron": ("gpt3-1.3b", "llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "mistral-7b"),
    "torchtitan": ("llama-3.1-8b", "llama-7b", "deepseek_v3 671B"),
    "deepspeed": ("gpt3-1.3b", "llama-3.1-8b", "mixtral-8x7b"),
    "nanotron": ("llama-3.1-8b", "llama-7b"),
}
BUCKETS = (0, 0, 10_000_000)
COMMON = {
    "tp": (1, 2, 4),
    "pp": (1, 2, 3, 4),
    "micro_batch": (1, 2),
    "sequence_parallel": (0, AUTO),
    "overlap_param_gather": (0, AUTO),
    "recompute": (Recompute.NONE, Recompute.FULL),
}
FIELDS = {
    "megatron": {
        "bucket_parameters": BUCKETS,
        "shard": (0, 0, 0, 2, 4),
        "cp": (1, 2),
        "virtual_stages": (1, 2, 4),
        "zero": (0, 1, 2, 3),
        "precision": (Precision.BF16, Precision.FP16, Precision.FP8, Precision.FP8_DELAYED),
        "fp8_params": (0, 0, 0, 1),
        "loss": (Loss.USUAL, Loss.FUSED),
        "bf16_first_layers": (0, 0, 0, 0, 0, 1),
        "bf16_last_layers": (0, 0, 0, 0, 0, 2),
        "recompute": tuple(Recompute),
        "optimizer": (Optimizer.ADAM, Optimizer.SGD),
        "overlap_grad_reduce": (0, AUTO),
        "overlap_tp": (0, 1),
        "overlap_p2p": (0, AUTO),
        "micro_batch_group": (0, 0, 4),
        "cp_comm": (ContextComm.P2P, *ContextComm),
        "expert_dispatch": (Dispatch.ALLTOALL, *Dispatch),
        "overlap_ep": (0, 0, 0, 1),
        "ep": (1, 2, 4),
        "etp": (1, 2),
        "first_stage_layers": (0, 0, 2, 7),
        "last_stage_layers": (0, 0, 4, 7),
        "offload_optimizer": (0, 0, 50, 100),
        "offload_activations": (0, 0, 0, 0, 25, 50),
    },
    "torchtitan": {
        "shard": (0, 0, 2, 4),
        "ep": (1, 2, 4),
        "etp": (1, 2),
        "expert_dispatch": (Dispatch.ALLTOALL, *Dispatch),
        "overlap_ep": (0, 0, 1),
        "cp": (1, 2),
        "cp_comm": (ContextComm.P2P, ContextComm.ALL_GATHER),
        "virtual_stages": (1, 2, 4),
        "zero": (0, 2, 3),
        "schedule": (AUTO, *map(schedule_code, ("gpipe", "breadth-first", "zb-v", "dualpipe-v"))),
        "precision": (Precision.BF16, Precision.FP8, Precision.FP8_ROWWISE, Precision.PURE_BF16),
        "overlap_tp": (0, 1),
        "first_stage_layers": (0, 0, 2, 7),
        "offload_optimizer": (0, 0, 100),
        "offload_parameters": (0, 0, 100),
    },
    "deepspeed": {
        "bucket_parameters": BUCKETS,
        "cp": (1, 2),
        "cp_comm": (ContextComm.P2P, ContextComm.A2A),
        "zero": (0, 1, 2, 3),
        "schedule": (AUTO, schedule_code("zb-h1")),
        "precision": (Precision.BF16, Precision.FP16, Precision.FP32),
        "overlap_grad_reduce": (0, AUTO),
        "offload_optimizer": (0, 0, 50, 100),
        "offload_parameters": (0, 0, 100),
        "optimizer": (Optimizer.ADAM, Optimizer.ADAM, Optimizer.MUON),
        "nvme": (Nvme.NONE, *Nvme),
    },
    "nanotron": {
        "cp": (1, 2),
        "cp_comm": (ContextComm.P2P, ContextComm.ALL_GATHER),
        "zero": (0, 1),
        "schedule": (AUTO, schedule_code("gpipe")),
        "precision": (Precision.BF16, Precision.FP32, Precision.PURE_BF16),
        "overlap_tp": (0, 1),
    },
}
"""What each framework can say."""
DRAWN = 100_000
"""Random plans of which the legal ones are tested."""


@cache
def base(model, gpus, software="megatron-core"):
    cluster = Cluster.profile("h200-sxm", gpus=gpus)
    name, _, flavor = model.partition(" ")
    layers = flavor_model(name, flavor) or Model.preset(model)
    return Task(layers, cluster, sequence=2048, global_batch=96, software=software)


def of_framework(framework, model, gpus):
    """The question in the stack of a framework that keeps weights on the host."""
    offloads = framework in ("deepspeed", "torchtitan")
    return base(model, gpus, framework) if offloads else base(model, gpus)


@cache
def legal_plans(framework, model, gpus):
    """Random plans that the framework runs: its rules take a table as well as a plan."""
    task, random = of_framework(framework, model, gpus), np.random.default_rng(7)
    choices = {**COMMON, **FIELDS[framework]}
    columns = {name: random.choice(np.array(c), DRAWN) for name, c in choices.items()}
    plans = resolve(Plan(**columns), gpus)
    keep = legal_rows(plans, task)
    for rule in EXPORTERS[framework].form().rules:
        keep &= rule.ok(plans, task)
    assert keep.sum() > 8
    return plans.take(np.flatnonzero(keep))


@st.composite
def tasks_and_plans(draw, framework):
    model = draw(st.sampled_from(MODELS[framework]))
    gpus = draw(st.sampled_from((8, 12, 16)))
    plans = legal_plans(framework, model, gpus)
    return of_framework(framework, model, gpus), plans.take(draw(st.integers(0, plans.rows - 1)))


def again(framework, task, plan):
    """The plan and the task of the file that was written."""
    text = launch_text(task, plan, EXPORTERS[framework].form())
    name = {"torchtitan": "job.toml", "nanotron": "run.yaml"}.get(framework, "run")
    assert framework_of_file(text, name) == framework
    launch = READERS[framework](text, name, ReaderOptions(task.model))
    assert all("buffer_size" in part.place for part in launch.unread)
    model = launch.model or task.model
    assert same_shape(model, task.model)
    back = plan_of(launch, {})
    gpus = gpus_of(launch, task.gpus)
    batch = batch_of(launch, back, gpus, None)
    sequence = sequence_of(launch, launch.sequence or task.sequence, model)
    software = replace(task.software, **launch.software)
    made = Task(model, task.cluster, sequence=sequence, global_batch=batch, software=software)
    return made, resolve(effective_plan(launch, back, made), gpus).take(0)


def comparable(task, plan):
    """A plan's fields, its layers as the chunks that they mean."""
    fields = plan.to_dict()
    for name in ("layers_per_stage", "first_stage_layers", "last_stage_layers"):
        fields.pop(name, None)
    chunks = chunk_sizes(task, plan)
    return fields, explicit_layers(chunks, int(plan.pp), int(plan.virtual_stages))


@pytest.mark.parametrize("framework", MODELS)
@given(data=st.data())
def test_import_undoes_export(framework, data):
    task, plan = data.draw(tasks_and_plans(framework))
    made, back = again(framework, task, plan)
    assert comparable(made, back) == comparable(task, plan)
    assert (made.sequence, made.global_batch) == (task.sequence, task.global_batch)
    assert made.software.dropout == task.software.dropout


@pytest.mark.parametrize(
    ("framework", "text", "stated"),
    [
        ("megatron", "grad_reduce_dtype=bf16", "--grad-reduce-in-bf16"),
        ("megatron", "precision_aware=1", "--use-precision-aware-optimizer"),
        (
            "megatron",
            "precision_aware=1 main_grads_dtype=bf16 main_params_dtype=fp16 "
            "exp_avg_dtype=fp8 exp_avg_sq_dtype=fp32",
            "--exp-avg-dtype fp8",
        ),
        ("deepspeed", "main_grads_dtype=fp32 grad_reduce_dtype=bf16", "grad_accum_dtype"),
        (
            "deepspeed",
            "main_params_dtype=bf16 exp_avg_dtype=bf16 exp_avg_sq_dtype=bf16",
            "bf16_optimizer_states",
        ),
    ],
)
def test_formats_come_back_as_they_were_stated(framework, text, stated):
    task = base("llama-3.1-8b", 8, {"megatron": "megatron-core"}.get(framework, framework))
    words = f"tp=1 zero=1 {text}"
    if framework == "deepspeed":
        words += " overlap_param_gather=0 overlap_grad_reduce=0"
    plan = resolve(Plan.parse(words), 8).take(0)
    assert stated in launch_text(task, plan, EXPORTERS[framework].form())
    _, back = again(framework, task, plan)
    assert comparable(task, back) == comparable(task, plan)


@pytest.mark.parametrize("framework", ["megatron", "torchtitan"])
def test_layouts_come_back_as_they_were_stated(framework):
    task = base("llama-3.1-8b", 8)
    for layers in ((7, 9, 9, 7), (1, 15, 15, 1)):
        plan = resolve(Plan(pp=4, zero=1 + (framework == "torchtitan"), layers_per_stage=layers), 8)
        _, back = again(framework, task, plan.take(0))
        assert back.layers_per_stage == layers


def test_selective_modules_come_back_with_the_software():
    task = base("deepseek-v3", 16)
    plan = resolve(Plan(tp=2, ep=8, recompute="selective"), 16).take(0)
    made, back = again("megatron", task, plan)
    assert back.recompute == plan.recompute
    assert set(made.software.selective) == set(task.software.selective)


def test_dropout_comes_back_with_the_software():
    task = replace(base("gpt3-1.3b", 8), software=software_profile("megatron-lm-2021"))
    made, _ = again("megatron", task, resolve(Plan(tp=2), 8).take(0))
    assert made.software.dropout
