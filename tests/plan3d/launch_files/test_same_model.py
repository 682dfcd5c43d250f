"""What a model is goes from its config.json to the launch file and back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plan3d.cli.main import parser
from plan3d.cli.plans.import_ import imported
from plan3d.launch_files.exporter import launch_text
from plan3d.launch_files.registry import EXPORTERS
from plan3d.launch_files.shape import same_shape
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

COMMON = {
    "hidden_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 4096,
    "vocab_size": 32000,
    "rope_theta": 500000,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
EXPERTS = {"moe_intermediate_size": 512, "num_experts_per_tok": 2}
LATENT = {
    "num_key_value_heads": 16,
    "kv_lora_rank": 128,
    "q_lora_rank": 256,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
}
DEEPSEEK = {
    **LATENT,
    **EXPERTS,
    "n_routed_experts": 16,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"type": "yarn", "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"rope_scaling": LLAMA3},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {},
    "mistral": {"sliding_window": 512},
    "nemotron": {"hidden_act": "relu2", "partial_rotary_factor": 0.5},
    "glm4_moe": {
        **EXPERTS,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "use_qk_norm": True,
        "partial_rotary_factor": 0.5,
        "num_nextn_predict_layers": 1,
    },
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen3_moe": {**EXPERTS, "num_experts": 8, "norm_topk_prob": True},
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": False},
    "deepseek_v2": {**DEEPSEEK, "scoring_func": "softmax", "norm_topk_prob": False},
    "deepseek_v3": {**DEEPSEEK, "rope_scaling": YARN, "num_nextn_predict_layers": 1},
    "kimi_k2": DEEPSEEK,
    "bailing_moe_v2": {
        **EXPERTS,
        "num_experts": 8,
        "num_shared_experts": 1,
        "first_k_dense_replace": 1,
        "use_qk_norm": True,
    },
}
UNEXPRESSIBLE = {"olmoe"}
"""Norms over the full width of queries and keys, which Megatron-Core does not have."""
PLANS = {
    "even": "pp=2 zero=1",
    "last": "pp=4 zero=1 first_stage_layers=1 last_stage_layers=1",
    "interleaved": "pp=2 virtual_stages=2 zero=1 tp=2",
    "layers": "pp=3 zero=1 layers_per_stage=3,3,2",
}


def model_of(kind: str) -> Model:
    config = {**COMMON, "model_type": kind, **FAMILIES[kind]}
    return Model.from_config_values(config, f"my-{kind.replace('_', '-')}")


def task_of(model: Model) -> Task:
    cluster = Cluster.profile("h100-sxm", gpus=24)
    return Task(model, cluster, sequence=2048, global_batch=48, software="megatron-core")


def back(text: str, folder: Path, name: str = "run.sh") -> tuple[Task, Plan]:
    """Task and plan of a file, read without any option."""
    file = folder / name
    file.write_text(text, encoding="utf-8")
    args = parser("import").parse_args(["import", str(file)])
    args.script_arguments = ()
    found = imported(args)
    return found.task, found.plan


@pytest.mark.parametrize("kind", sorted({*FAMILIES} - UNEXPRESSIBLE))
def test_import_of_an_export_is_the_same_task_and_plan(kind: str, tmp_path: Path) -> None:
    model = model_of(kind)
    task = task_of(model)
    for words in PLANS.values():
        plan = resolve(Plan.parse(words), task.gpus).take(0)
        text = launch_text(task, plan, EXPORTERS["megatron"].form())
        made, stated = back(text, tmp_path)
        assert same_shape(made.model, model)
        assert made.model.name == model.name
        assert made.model.rotary_base == model.rotary_base
        assert (made.gpus, made.cluster.name) == (task.gpus, "h100-sxm")
        assert (made.sequence, made.global_batch) == (task.sequence, task.global_batch)
        assert resolve(stated, made.gpus).take(0).to_dict() == plan.to_dict()


SETTINGS = {
    "llama": ["--use-rope-scaling", "--rope-scaling-factor 32.0", "--norm-epsilon 1e-06"],
    "nemotron": ["--squared-relu", "--rotary-percent 0.5"],
    "deepseek_v2": ["--moe-router-pre-softmax", "--moe-router-topk-scaling-factor 2.5"],
    "deepseek_v3": [
        "--rope-type yarn",
        "--rotary-scaling-factor 40.0",
        "--mscale 0.707",
        "--mscale-all-dim 0.707",
        "--moe-router-score-function sigmoid",
        "--moe-router-enable-expert-bias",
        "--moe-router-topk-scaling-factor 2.5",
        "--moe-router-dtype fp32",
        "--moe-router-num-groups 4",
        "--moe-router-group-topk 2",
        "--mtp-num-layers 1",
        "--rotary-base 500000",
    ],
    "kimi_k2": ["--rope-type rope", "--moe-router-score-function sigmoid"],
    "glm4_moe": ["--moe-router-enable-expert-bias", "--qk-layernorm", "--rotary-percent 0.5"],
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_settings_of_the_config_are_flags_and_come_back(kind: str, tmp_path: Path) -> None:
    model = model_of(kind)
    text = launch_text(task_of(model), Plan(zero=1), EXPORTERS["megatron"].form())
    lines = [line.strip() for line in text.splitlines()]
    assert [flag for flag in SETTINGS[kind] if flag not in lines] == []
    made, _ = back(text, tmp_path)
    found, expected = made.model.settings, model.settings
    assert found.router_score == expected.router_score
    assert found.router_correction == expected.router_correction
    assert found.router_scale == expected.router_scale
    assert found.pre_softmax == expected.pre_softmax
    assert found.router_dtype == expected.router_dtype
    assert found.rotary_share == expected.rotary_share
    assert found.rope_scaling == expected.rope_scaling
    assert found.rope_number("factor", 1.0) == expected.rope_number("factor", 1.0)
    assert found.norm_epsilon == expected.norm_epsilon


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "rotary scaling linear (factor 4)"),
        ({"hidden_act": "gelu_pytorch_tanh"}, "activation gelu_pytorch_tanh"),
        (
            {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 4096}},
            "rotary scaling llama3",
        ),
    ],
)
def test_what_a_file_cannot_hold_is_its_first_line(values: dict[str, Any], words: str) -> None:
    config = {**COMMON, "model_type": "llama", **values}
    task = task_of(Model.from_config_values(config, "mine"))
    first = launch_text(task, Plan(zero=1), EXPORTERS["megatron"].form()).partition("\n")[0]
    assert first.startswith("# Not in this file, and part of mine: ")
    assert words in first


def test_overrides_of_bridge_state_the_router() -> None:
    text = launch_text(
        task_of(model_of("deepseek_v3")), Plan(zero=1), EXPORTERS["megatron-bridge"].form()
    )
    for words in (
        "model.moe_router_score_function=sigmoid",
        "model.moe_router_enable_expert_bias=true",
        "model.moe_router_topk_scaling_factor=2.5",
        "model.moe_router_dtype=fp32",
        "model.rotary_scaling_factor=40.0",
        "model.rotary_base=500000",
    ):
        assert words in text


def test_a_recipe_of_bridge_states_the_model() -> None:
    """GPT-OSS: sinks, biases of experts and its activation are in the recipe of its name."""
    model = Model.preset("gpt-oss-20b")
    bridge = EXPORTERS["megatron-bridge"].form()
    text = launch_text(task_of(model), Plan(zero=1, ep=8), bridge)
    assert "run_recipe.py --recipe gpt_oss_20b_pretrain_config" in text
    assert "model.expert_model_parallel_size=8" in text
    assert "model.seq_length=2048" in text
    assert "model.num_layers=" not in text
    other = replace(model, rotary_base=10000.0)
    with pytest.raises(InputError, match="attention sinks"):
        launch_text(task_of(other), Plan(zero=1, ep=8), bridge)


OTHERS = {
    "torchtitan": ("llama-3.1-8b", "pp=4 zero=2 last_stage_layers=7", "job.toml"),
    "torchtitan 0.3.0": ("llama-3.1-8b", "zero=3", "recipe.py"),
    "nanotron": ("llama-3.1-8b", "pp=4 zero=1 overlap_param_gather=0", "run.yaml"),
    "deepspeed": ("llama-3.1-8b", "pp=2 zero=1 overlap_grad_reduce=0", "run.sh"),
    "deepspeed 0.19": ("deepseek-v2-lite", "zero=3", "ds.json"),
    "megatron-bridge": ("mistral-7b", "tp=2 zero=1", "run.sh"),
    "accelerate": ("gpt-oss-20b", "zero=3", "run.sh"),
    "accelerate fsdp2": ("gpt3-1.3b", "zero=3 recompute=full", "run.sh"),
    "accelerate deepspeed": ("olmo-2-7b", "zero=2 overlap_param_gather=0", "run.sh"),
}
"""Frameworks, some with a version: a model, a plan and the name of the file."""


@pytest.mark.parametrize("framework", OTHERS)
def test_files_of_other_frameworks_are_read_without_options(framework: str, tmp_path: Path) -> None:
    name, words, file = OTHERS[framework]
    tool, _, version = framework.partition(" ")
    exporter = EXPORTERS[tool]
    cluster = Cluster.profile("h100-sxm", gpus=16)
    stack = exporter.software
    task = Task(name, cluster, sequence=2048, global_batch=64, software=stack)  # type: ignore[arg-type]
    plan = resolve(Plan.parse(words), task.gpus).take(0)
    made, stated = back(launch_text(task, plan, exporter.form(version)), tmp_path, file)
    assert same_shape(made.model, task.model)
    assert (made.gpus, made.sequence, made.global_batch) == (16, 2048, 64)
    assert resolve(stated, 16).take(0).to_dict() == plan.to_dict()


def test_what_a_framework_does_not_load_is_the_first_line() -> None:
    cluster = Cluster.profile("h100-sxm", gpus=16)
    asked = {"sequence": 2048, "global_batch": 64}
    plan = resolve(Plan.parse("zero=3"), 16).take(0)
    task = Task("deepseek-v3", cluster, **asked, software="hf-trainer")  # type: ignore[arg-type]
    text = launch_text(task, plan, EXPORTERS["accelerate"].form())
    assert text.startswith("# Not in this file, and part of deepseek-v3: multi-token prediction")
    opt = Task("opt-125m", cluster, **asked)  # type: ignore[arg-type]
    text = launch_text(opt, plan, EXPORTERS["megatron-bridge"].form())
    assert text.startswith("# Not in this file, and part of opt-125m: 2,050 learned positions")


def test_overlap_that_deepspeed_has_not_is_refused_for_the_trainer_too() -> None:
    cluster = Cluster.profile("h100-sxm", gpus=16)
    task = Task("llama-2-7b", cluster, sequence=2048, global_batch=64, software="hf-trainer")  # type: ignore[arg-type]
    plan = resolve(Plan.parse("zero=2"), 16).take(0)
    with pytest.raises(InputError, match="nearest: overlap_param_gather=0"):
        launch_text(task, plan, EXPORTERS["accelerate"].form("deepspeed"))
