"""Every exporter writes what its framework reads, and refuses by name what it cannot run."""

import ast
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import yaml
from not_empty import not_empty

from plan3d.launch_files.exporter import launch_text, refusals, with_stage_layers
from plan3d.launch_files.launch_file import ReaderOptions
from plan3d.launch_files.megatron.rules import EXPRESSIBLE
from plan3d.launch_files.megatron.spelling import layout_text, to_flags
from plan3d.launch_files.numbers import numbers_of
from plan3d.launch_files.registry import EXPORTERS, READERS, exporter
from plan3d.launch_files.shape import DENSE_LAYERS, UNEQUAL_LAYERS, features, same_shape
from plan3d.launch_files.torchtitan.model_flavors import (
    FLAVORS,
    UNWRITTEN_0_2,
    UNWRITTEN_0_3,
    flavor_model,
    missing_features,
    registration,
)
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.plan.field_values import Recompute
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.plan.stage_layout import read_layout
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model
from plan3d.simulator.workload.presets import preset_names

GPUS = 16


@cache
def task(model="llama-3.1-8b", gpus=GPUS, batch=64, cluster="h100-sxm", software="megatron-core"):
    what, machine = Model.preset(model), Cluster.profile(cluster, gpus=gpus)
    sequence = 2048 if what.kinds else 1
    return Task(what, machine, sequence=sequence, global_batch=batch, software=software)


def fine_grained(*modules):
    """Megatron-Core with the inputs of these modules on the host."""
    return replace(software_profile("megatron-core"), offload_modules=modules)


AGAIN = replace(software_profile("megatron-core"), selective=("core_attn",))
"""A stack that runs again what every model has."""


def text(framework, plan, version="", **of_task):
    return launch_text(task(**of_task), Plan.parse(plan), EXPORTERS[framework].form(version))


def array_words(script):
    """The flags of the bash arrays of a fragment: name -> values."""
    out, name = {}, None
    for line in script.splitlines():
        if line.startswith("  --"):
            name, *values = shlex.split(line)
            assert name not in out
            out[name] = values
    return out


def test_every_framework_names_its_version_and_states_the_plan():
    plan = "tp=2 dp=8 zero=0 overlap_grad_reduce=1 overlap_param_gather=0"
    for name in ("megatron", "megatron-bridge", "nanotron"):
        form = EXPORTERS[name].form()
        out = text(name, plan)
        assert out.startswith(f"# {form.title}, written by plan3d\n")
        assert form.version in form.title
        assert "# llama-3.1-8b on 16 x H100-80GB-SXM5 (2 x 8, h100-sxm)\n" in out
        assert "# plan: tp=2 dp=8 zero=0" in out


@pytest.mark.parametrize("framework", EXPORTERS)
@pytest.mark.parametrize("way", ["sync=gossip", "sync_period=4"])
def test_no_framework_synchronises_otherwise(framework, way):
    with pytest.raises(InputError, match="all-reduced every step in full"):
        text(framework, f"tp=2 dp=8 {way}")


def test_hybrid_sharding_is_replicas_of_shards():
    flags = array_words(text("megatron", "tp=2 dp=8 shard=4"))
    assert flags["--num-distributed-optimizer-instances"] == ["2"]
    flags = array_words(text("megatron", "dp=4 cp=4 zero=2 shard=8"))
    assert flags["--num-distributed-optimizer-instances"] == ["2"]
    bridge = text("megatron-bridge", "tp=2 dp=8 shard=4 bucket_parameters=1000000")
    assert "ddp.num_distributed_optimizer_instances=2" in bridge
    assert "ddp.bucket_size=1000000" in bridge
    usual = text("megatron-bridge", "tp=2 dp=8")
    assert "ddp.num_distributed_optimizer_instances=1" in usual
    assert "ddp.bucket_size=null" in usual
    for cp, shards, replicas in ((1, 4, 2), (2, 2, 2)):
        plan = f"tp=2 cp={cp} dp={8 // cp} zero=3 shard=4"
        axes = tomllib.loads(text("torchtitan", plan))["parallelism"]
        assert axes["data_parallel_shard_degree"] == shards
        assert axes["data_parallel_replicate_degree"] == replicas


def test_buckets_are_of_parameters():
    flags = array_words(text("megatron", "dp=16 bucket_parameters=1000000"))
    assert flags["--ddp-bucket-size"] == ["1000000"]
    plan = f"dp=16 zero=2 overlap_grad_reduce=1 bucket_parameters=1000000 {FREE}"
    zero = json.loads(text("deepspeed", plan))["zero_optimization"]
    assert zero["reduce_bucket_size"] == zero["allgather_bucket_size"] == 1_000_000
    assert "bucket" not in text("megatron", "dp=16") + text("deepspeed", f"dp=16 zero=2 {FREE}")


def test_megatron_flags():
    flags = array_words(text("megatron", "tp=2 pp=4 virtual_stages=2 micro_batch=2 recompute=full"))
    assert flags["--num-layers"] == ["32"]
    assert flags["--num-query-groups"] == ["8"]
    assert flags["--ffn-hidden-size"] == ["14336"]
    assert flags["--vocab-size"] == ["128256"]
    assert flags["--normalization"] == ["RMSNorm"]
    assert flags["--position-embedding-type"] == ["rope"]
    assert flags["--tensor-model-parallel-size"] == ["2"]
    assert flags["--pipeline-model-parallel-size"] == ["4"]
    assert flags["--num-virtual-stages-per-pipeline-rank"] == ["2"]
    assert flags["--global-batch-size"] == ["64"]
    assert flags["--recompute-method"] == ["uniform"]
    for switch in ("--swiglu", "--sequence-parallel", "--bf16", "--use-distributed-optimizer"):
        assert flags[switch] == []
    assert "--num-layers-per-virtual-pipeline-stage" not in flags
    assert "--kv-channels" not in flags


def test_megatron_states_the_traps():
    out = text("megatron", "tp=2 pp=4")
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=1" in out
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in text("megatron", "tp=2 pp=4", cluster="b200")
    fsdp = text("megatron", "tp=2 zero=3")
    assert "unset CUDA_DEVICE_MAX_CONNECTIONS" in fsdp
    assert array_words(fsdp)["--data-parallel-sharding-strategy"] == ["optim_grads_params"]
    assert array_words(fsdp)["--ckpt-format"] == ["fsdp_dtensor"]
    flags = array_words(
        text("megatron", "pp=4 recompute=selective", model="gpt3-1.3b", software=AGAIN)
    )
    assert flags["--recompute-modules"] == ["core_attn"]
    some = array_words(text("megatron", "ep=8 recompute=selective", model="mixtral-8x7b"))
    assert some["--recompute-modules"] == ["layernorm", "moe_act"]
    assert flags["--hidden-dropout"] == ["0.0"]
    experts = array_words(text("megatron", "tp=2 ep=8", model="mixtral-8x7b"))
    assert experts["--expert-tensor-parallel-size"] == ["1"]
    assert experts["--moe-token-dispatcher-type"] == ["alltoall"]
    deep = text("megatron", "ep=8 expert_dispatch=hierarchical", model="mixtral-8x7b")
    assert array_words(deep)["--moe-token-dispatcher-type"] == ["flex"]
    split = array_words(text("megatron", "cp=2 cp_comm=a2a"))
    assert split["--cp-comm-type"] == ["a2a"]


def test_ulysses_is_megatron_deepspeeds():
    flags = array_words(text("deepspeed", f"cp=2 cp_comm=a2a {FREE}"))
    assert flags["--ds-sequence-parallel-size"] == ["2"]


@pytest.mark.parametrize(
    ("model", "plan", "expected"),
    [
        ("deepseek-v3", "pp=16", "Et*3|(t*4|)*13t*3|t*3mL"),
        ("gpt3-1.3b", "pp=4 layers_per_stage=5,7,7,5", "Et*5|(t*7|)*2t*5L"),
        ("gpt3-1.3b", "pp=2 virtual_stages=2 layers_per_stage=1,11,11,1", "Et|(t*11|)*2tL"),
        ("deepseek-v3", "pp=4 layers_per_stage=Et*20|t*20|t*21m|L", "Et*20|t*20|t*21m|L"),
        # Ends that the flags for them cannot say: chunks that differ inside a rank, or between.
        ("deepseek-v3", "pp=2 virtual_stages=2 last_stage_layers=29", "Et*16|t*15|t*16|t*14mL"),
        ("gpt3-1.3b", "pp=4 first_stage_layers=7 last_stage_layers=6", "Et*7|t*6|t*5|t*6L"),
    ],
)
def test_layouts_are_those_that_are_read_back(model, plan, expected):
    row = resolve(Plan.parse(plan), GPUS).take(0)
    out = layout_text(to_flags(numbers_of(task(model), row), task(model)))
    assert out == expected
    assert sum(read_layout(out)) == task(model).model.layers
    assert f"--pipeline-model-parallel-layout '{out}'" in text("megatron", plan, model=model)


def test_megatron_bridge_overrides():
    out = text("megatron-bridge", "tp=2 pp=4 virtual_stages=2 recompute=selective", software=AGAIN)
    words = shlex.split(out.split("OVERRIDES=(")[1].split("\n)")[0])
    values = dict(word.split("=", 1) for word in words)
    assert values["model.num_query_groups"] == "8"
    assert values["model.virtual_pipeline_model_parallel_size"] == "2"
    assert values["model.overlap_p2p_comm"] == "true"
    assert values["model.batch_p2p_comm"] == "false"
    assert values["model.recompute_modules"] == "[core_attn]"
    assert values["model.seq_length"] == values["dataset.sequence_length"] == "2048"
    assert values["mixed_precision"] == "bf16_mixed"
    assert values["comm_overlap"] == "null"
    assert values["model.pipeline_model_parallel_layout"] == "null"
    layout = text("megatron-bridge", "pp=3 dp=4", gpus=12, batch=12)
    assert "'model.pipeline_model_parallel_layout=\"Et*11|t*11|t*10L\"'" in layout


def test_torchtitan_toml():
    out = tomllib.loads(text("torchtitan", "tp=2 pp=4 virtual_stages=2 zero=2 micro_batch=2"))
    assert out["model"] == {"name": "llama3", "flavor": "8B"}
    parallel = out["parallelism"]
    assert parallel["pipeline_parallel_schedule"] == "Interleaved1F1B"
    assert parallel["fsdp_reshard_after_forward"] == "never"
    assert parallel["data_parallel_shard_degree"] == 2
    assert parallel["pipeline_parallel_layers_per_stage"] == 4
    assert parallel["pipeline_parallel_first_stage_less_layers"] == 0
    # With a pipeline the local batch holds every micro-batch; without, one.
    assert out["training"]["local_batch_size"] == 32
    alone = tomllib.loads(text("torchtitan", "tp=2 zero=3 micro_batch=2"))
    assert alone["training"]["local_batch_size"] == 2
    assert alone["activation_checkpoint"] == {"mode": "none"}
    listed = tomllib.loads(text("torchtitan", "tp=2 zero=3 recompute=selective", software=AGAIN))
    asked = {"mode": "selective", "selective_ac_option": "op"}
    assert listed["activation_checkpoint"] == asked


def test_torchtitan_float8_is_a_converter_by_its_full_name():
    out = tomllib.loads(text("torchtitan", "tp=2 zero=3 precision=fp8"))
    assert out["model"]["converters"] == ["quantize.linear.float8"]
    assert out["compile"]["enable"]


def test_torchtitan_compiles_what_torch_can_compile():
    """Predictions are of compiled layers and a compiled loss."""
    assert tomllib.loads(text("torchtitan", "pp=2 zero=2"))["compile"]["enable"]
    split = tomllib.loads(text("torchtitan", "pp=2 virtual_stages=2 zero=2 schedule=zb-v"))
    assert "compile" not in split
    assert "CompileConfig(enable=True" in text("torchtitan", "zero=3", version="0.3")


def test_torchtitan_names_the_modules_of_uneven_chunks():
    out = tomllib.loads(text("torchtitan", "pp=3 dp=4 zero=2", gpus=12, batch=12))
    parts = out["parallelism"]["module_fqns_per_model_part"]
    assert [len(part) for part in parts] == [12, 11, 12]
    assert parts[0][0] == "tok_embeddings"
    assert parts[-1][-2:] == ["norm", "output"]
    names = [name for part in parts for name in part if name.startswith("layers.")]
    assert names == [f"layers.{i}" for i in range(32)]


def test_torchtitan_recipe_is_python():
    out = text("torchtitan", "tp=2 pp=3 zero=2 recompute=full", "0.3", gpus=12, batch=12)
    tree = ast.parse(out)
    (recipe,) = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    assigned = {
        ast.unparse(node.targets[0]): ast.unparse(node.value)
        for node in recipe.body
        if isinstance(node, ast.Assign)
    }
    assert assigned["config"] == "llama3_8b()"
    assert assigned["config.activation_checkpoint"] == "FullAC.Config()"
    assert assigned["config.training.disable_cuda_graphs"] == "True"
    parts = ast.literal_eval(assigned["config.parallelism.module_fqns_per_model_part"])
    assert parts[-1][-2:] == ["norm", "lm_head"]
    imported = {alias.name for n in tree.body if isinstance(n, ast.ImportFrom) for alias in n.names}
    used = {"CompileConfig", "CrossEntropyLoss", "FullAC", "model_registry", "llama3_8b", "Trainer"}
    assert imported == used


@pytest.mark.parametrize("names", FLAVORS, ids=" ".join)
def test_flavors_are_shapes_of_presets(names):
    model = flavor_model(*names)
    assert model is not None
    assert model.mtp_layers == 0
    assert registration(model) == []


DENSE_LLAMAS = [n for n in preset_names() if n.startswith("llama") and "llama-4" not in n]


def test_layers_are_equal_but_for_their_mlp_and_window():
    """One kind with an MLP and one with experts, whatever each one's window is."""
    mixtral, dense = Model.preset("mixtral-8x7b"), Model.preset("llama-3.1-8b").kinds[0]
    (sparse,) = mixtral.kinds
    dense = replace(dense, attention=sparse.attention)
    window = replace(sparse.attention, window=1024)
    wider = replace(sparse, experts=replace(sparse.experts, top_k=1))

    def found(*kinds):
        model = replace(mixtral, kinds=kinds, order=tuple(range(len(kinds))))
        return {UNEQUAL_LAYERS, DENSE_LAYERS} & {*features(model)}

    assert found(sparse) == set()
    assert found(sparse, replace(sparse, attention=window)) == set()
    assert found(dense, sparse) == {DENSE_LAYERS}
    assert found(dense, sparse, replace(dense, attention=window)) == {DENSE_LAYERS}
    assert found(dense, sparse, wider) == {DENSE_LAYERS, UNEQUAL_LAYERS}
    heads = replace(sparse.attention, kv_heads=4)
    assert found(sparse, replace(sparse, attention=heads)) == {UNEQUAL_LAYERS}


def narrow(ffn):
    """The 8B of Llama 3.1 with another width of its MLP; its usual one is 8 / 3 of 4096, 10922."""
    model = Model.preset("llama-3.1-8b")
    (kind,) = model.kinds
    return replace(model, kinds=(replace(kind, mlp=replace(kind.mlp, ffn=ffn)),))


@pytest.mark.parametrize(
    ("ffn", "has_factor"), [(10923, False), (10922, False), (10921, True), (8192, True), (64, True)]
)
def test_a_width_below_the_usual_one_has_a_factor(ffn, has_factor):
    model = narrow(ffn)
    assert any("ffn_dim_multiplier" in line for line in registration(model)) is has_factor
    assert_width_of(model)


@pytest.mark.parametrize("name", DENSE_LLAMAS)
def test_new_flavors_have_the_width_of_the_model(name):
    assert_width_of(Model.preset(name))


def assert_width_of(model):
    """torchtitan rounds int(multiplier x int(8 dim / 3)) up to a multiple."""
    lines = registration(model)
    if not lines:
        return
    call = ast.parse("".join(line.lstrip("# ") for line in lines[1:]).split(":", 1)[1].strip(", "))
    fields = {k.arg: ast.literal_eval(k.value) for k in call.body[0].value.keywords}
    width = int(fields.get("ffn_dim_multiplier", 1) * int(8 * fields["dim"] / 3))
    rounded = -(-width // fields["multiple_of"]) * fields["multiple_of"]
    assert rounded == model.kinds[0].mlp.ffn


def test_deepspeed_json():
    out = json.loads(text("deepspeed", "zero=3 micro_batch=2"))
    assert out.pop("plan3d")["sequence"] == 2048
    assert out == {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": 3, "overlap_comm": True},
        "bf16": {"enabled": True},
    }


def test_deepspeed_offloads_the_optimizer():
    out = json.loads(text("deepspeed", "zero=3 micro_batch=2 offload_optimizer=100"))
    assert out["zero_optimization"]["offload_optimizer"] == {"device": "cpu", "pin_memory": True}
    part = json.loads(text("deepspeed", "zero=3 offload_optimizer=40"))
    assert part["zero_optimization"]["offload_optimizer"]["ratio"] == 0.4
    # A shard of a tensor of 128,256 x 16,384 over 16 ranks is more than a buffer of 1e8 holds.
    drives = {"model": "llama-3.1-405b", "cluster": "h200-sxm", "software": "deepspeed"}
    both = text("deepspeed", "offload_optimizer=100 offload_parameters=100 nvme=both", **drives)
    where = {"device": "nvme", "pin_memory": True, "nvme_path": "/local_nvme"}
    stated = json.loads(both)["zero_optimization"]
    assert stated["offload_optimizer"] == where
    assert stated["offload_param"] == {**where, "buffer_size": 128256 * 16384 // GPUS}
    alone = text("deepspeed", "recompute=full offload_optimizer=100", gpus=1)
    assert array_words(alone)["--zero-stage"] == ["2"]
    assert array_words(alone)["--cpu-optimizer"] == []
    assert "cpu" not in text("deepspeed", "zero=3")


def test_weights_of_8_bits_have_a_distributed_optimizer_on_one_data_rank_too():
    """Megatron-LM's arguments.py takes --fp8-param-gather with nothing less."""
    flags = array_words(text("megatron", "tp=8 dp=1 precision=fp8 fp8_params=1", gpus=8))
    assert flags["--fp8-param-gather"] == flags["--use-distributed-optimizer"] == []
    wide = array_words(text("megatron", "tp=8 dp=1 precision=fp8", gpus=8))
    assert "--use-distributed-optimizer" not in wide


def test_megatron_offloads_by_flags_and_overrides():
    plan = "zero=1 offload_optimizer=50 offload_activations=25"
    flags = array_words(text("megatron", plan))
    assert flags["--optimizer-offload-fraction"] == ["0.5"]
    assert flags["--cpu-offloading-num-layers"] == ["8"]
    for switch in ("--optimizer-cpu-offload", "--overlap-cpu-optimizer-d2h-h2d"):
        assert flags[switch] == []
    bridge = text("megatron-bridge", plan)
    for override in (
        "optimizer.optimizer_offload_fraction=0.5",
        "model.cpu_offloading_num_layers=8",
    ):
        assert override in bridge
    assert "offload" not in text("megatron", "tp=2") + text("megatron-bridge", "tp=2")
    alone = array_words(text("megatron", "offload_optimizer=100", gpus=1))
    assert alone["--use-distributed-optimizer"] == []


def test_megatron_offloads_inputs_of_modules_in_pipelines_too():
    """Modules of experts are those of models that have some."""
    plan, stack = (
        "pp=2 offload_activations=100",
        fine_grained("core_attn", "attn_proj", "moe_act"),
    )
    script = text("megatron", plan, software=stack)
    flags = array_words(script)
    assert flags["--fine-grained-activation-offloading"] == []
    assert flags["--offload-modules"] == ["core_attn", "attn_proj"]
    assert "--cpu-offloading-num-layers" not in flags
    launch = READERS["megatron"](script, "run.sh", ReaderOptions())
    assert launch.plan["offload_activations"] == 100
    assert launch.software["offload_modules"] == ("core_attn", "attn_proj")
    assert launch.unread == []
    bridge = text("megatron-bridge", plan, software=stack)
    assert "model.offload_modules=[core_attn,attn_proj]" in bridge


def test_the_nearest_share_of_whole_layers_is_named():
    with pytest.raises(InputError, match=r"nearest: offload_activations=31 \(10 layers\)"):
        text("megatron", "offload_activations=30")
    with pytest.raises(InputError, match=r"at most 31 of 32; .*=96 \(31 layers\)"):
        text("megatron", "offload_activations=100")
    assert "--cpu-offloading-num-layers 10" in text("megatron", "offload_activations=31")


def test_deepspeed_with_megatron():
    plan = "tp=2 pp=4 overlap_grad_reduce=0 overlap_param_gather=0 recompute=full"
    out = text("deepspeed", plan)
    content = json.loads(out.split("<<'JSON'\n")[1].split("\nJSON\n")[0])
    flags = array_words(out)
    assert content["train_batch_size"] == int(flags["--global-batch-size"][0]) == 64
    assert content["zero_optimization"]["stage"] == int(flags["--zero-stage"][0]) == 1
    assert flags["--num-key-value-heads"] == ["8"]
    assert flags["--normalization"] == ["rmsnorm"]
    assert flags["--use-rotary-position-embeddings"] == []
    assert flags["--deepspeed-activation-checkpointing"] == []
    assert "--group-query-attention" not in flags
    assert "--no-pipeline-parallel" not in flags


def test_deepspeed_shards_without_megatron_fsdp():
    out = text("deepspeed", "tp=2 zero=3")
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=1" in out
    assert "unset" not in out


def test_nanotron_yaml():
    out = yaml.safe_load(text("nanotron", "tp=2 pp=4 schedule=gpipe overlap_param_gather=0"))
    assert out["parallelism"] == {
        "dp": 2,
        "pp": 4,
        "tp": 2,
        "context_parallel_size": 1,
        "expert_parallel_size": 1,
        "pp_engine": "afab",
        "tp_mode": "REDUCE_SCATTER",
        "tp_linear_async_communication": False,
        "recompute_layer": False,
    }
    assert out["tokens"]["batch_accumulation_per_replica"] == 32
    assert out["optimizer"] == {"zero_stage": 1, "accumulate_grad_in_fp32": True}
    assert out["model"]["model_config"]["vocab_size"] == 128256


FREE = "overlap_param_gather=0"
REFUSED = [
    ("megatron-schedule", "megatron", "", "pp=4 schedule=zb-h1", {}),
    ("megatron-schedule", "megatron", "", "pp=4 schedule=gpipe", {}),
    ("megatron-precision", "megatron", "", "precision=mixed", {}),
    (
        "megatron-delayed-recompute",
        "megatron",
        "",
        "ep=8 precision=fp8-delayed recompute=selective",
        {"model": "mixtral-8x7b"},
    ),
    (
        "megatron-overlap-precision",
        "megatron",
        "",
        "tp=2 precision=fp8-blockwise overlap_tp=1",
        {},
    ),
    ("megatron-fsdp-pipeline", "megatron", "", "pp=4 zero=2", {}),
    ("megatron-sharded-adam", "megatron", "", "optimizer=sgd", {}),
    ("megatron-optimizer", "megatron", "", f"optimizer=lion zero=0 {FREE}", {}),
    (
        "megatron-expert-overlap",
        "megatron",
        "",
        "tp=2 ep=8 overlap_ep=1 recompute=full",
        {"model": "mixtral-8x7b"},
    ),
    (
        "megatron-expert-overlap",
        "megatron",
        "",
        "ep=8 overlap_ep=1 zero=2",
        {"model": "mixtral-8x7b"},
    ),
    (
        "megatron-expert-kernels",
        "megatron",
        "",
        "ep=8 expert_dispatch=hierarchical",
        {"model": "mixtral-8x7b", "cluster": "a100-80gb-sxm"},
    ),
    ("megatron-latent-overlap", "megatron", "", "tp=2 overlap_tp=1", {"model": "deepseek-v3"}),
    (
        "megatron-experts-bf16",
        "megatron",
        "",
        "tp=2 ep=8 precision=fp16",
        {"model": "mixtral-8x7b"},
    ),
    ("megatron-window-context", "megatron", "", "cp=2", {"model": "mistral-7b"}),
    ("megatron-bridge-recipe", "megatron-bridge", "", "precision=fp32", {}),
    ("torchtitan-model", "torchtitan", "", "zero=3", {"model": "gpt3-1.3b"}),
    ("torchtitan-model", "torchtitan", "", "zero=3 ep=8", {"model": "deepseek-v3"}),
    ("torchtitan-schedule", "torchtitan", "", "pp=4 zero=2 schedule=zb-h1", {}),
    *(
        (
            "torchtitan-compiled-schedule",
            "torchtitan",
            version,
            f"pp=4 virtual_stages=2 zero=2 schedule=zb-v {field}",
            {},
        )
        for version in ("", "0.3")
        for field in ("precision=fp8", "tp=2 overlap_tp=1")
    ),
    ("torchtitan-micro-batches", "torchtitan", "", "pp=4 zero=2 micro_batch=8", {}),
    ("torchtitan-precision", "torchtitan", "", "zero=2 precision=fp16", {}),
    ("written-fp8-params", "torchtitan", "", "zero=2 precision=fp8 fp8_params=1", {}),
    (
        "megatron-ends-in-16-bits",
        "megatron",
        "",
        "precision=fp8-delayed bf16_last_layers=1",
        {},
    ),
    ("torchtitan-optimizer", "torchtitan", "", "zero=2 optimizer=sgd", {}),
    (
        "torchtitan-recompute",
        "torchtitan",
        "0.3",
        "zero=2 recompute=selective",
        {"software": AGAIN},
    ),
    ("torchtitan-sharding", "torchtitan", "", "zero=1", {}),
    ("torchtitan-hybrid", "torchtitan", "", "dp=4 cp=4 zero=2 shard=2", {}),
    ("torchtitan-buckets", "torchtitan", "", "dp=16 zero=2 bucket_parameters=9", {}),
    ("deepspeed-hybrid", "deepspeed", "", f"dp=16 zero=2 shard=4 {FREE}", {}),
    ("deepspeed-buckets", "deepspeed", "", f"dp=16 zero=0 bucket_parameters=9 {FREE}", {}),
    ("nanotron-hybrid", "nanotron", "", f"dp=16 shard=4 {FREE}", {}),
    ("nanotron-buckets", "nanotron", "", f"dp=16 bucket_parameters=9 {FREE}", {}),
    ("torchtitan-gradient-overlap", "torchtitan", "", f"zero=2 overlap_grad_reduce=0 {FREE}", {}),
    ("torchtitan-gather-overlap", "torchtitan", "", f"zero=3 {FREE}", {}),
    (
        "torchtitan-p2p-overlap",
        "torchtitan",
        "",
        "pp=4 virtual_stages=2 zero=2 overlap_p2p=0",
        {},
    ),
    (
        "torchtitan-group",
        "torchtitan",
        "",
        "pp=2 virtual_stages=2 zero=2 micro_batch_group=4",
        {},
    ),
    ("torchtitan-context", "torchtitan", "", "cp=2 cp_comm=a2a zero=2", {}),
    ("torchtitan-context", "torchtitan", "0.3", "cp=2 zero=2", {}),
    ("torchtitan-key-heads", "torchtitan", "", "tp=16", {}),
    ("torchtitan-ddp-alone", "torchtitan", "", f"tp=2 zero=0 {FREE}", {}),
    ("torchtitan-float8-scale", "torchtitan", "0.3", "zero=3 precision=fp8", {}),
    ("torchtitan-mixed-precision", "torchtitan", "", "tp=8 pp=2", {}),
    ("torchtitan-sequence-parallel", "torchtitan", "", "tp=2 zero=2 sequence_parallel=0", {}),
    ("torchtitan-flavor", "torchtitan", "0.3", "zero=2", {"model": "llama-7b"}),
    ("torchtitan-replicas-cp", "torchtitan", "0.3", f"cp=2 zero=0 {FREE}", {}),
    (
        "deepspeed-model",
        "deepspeed",
        "",
        f"tp=2 {FREE}",
        {"model": "mixtral-8x7b"},
    ),
    ("deepspeed-context-parallel", "deepspeed", "", f"cp=2 {FREE}", {}),
    ("deepspeed-ulysses-alone", "deepspeed", "", f"tp=2 cp=2 cp_comm=a2a {FREE}", {}),
    ("deepspeed-key-heads", "deepspeed", "", "tp=16", {}),
    ("deepspeed-chunks", "deepspeed", "", f"pp=4 virtual_stages=2 {FREE}", {}),
    ("deepspeed-schedule", "deepspeed", "", f"pp=4 schedule=gpipe {FREE}", {}),
    ("deepspeed-zero-bubble", "deepspeed", "", f"tp=2 pp=4 schedule=zb-h1 {FREE}", {}),
    ("deepspeed-pipeline-zero", "deepspeed", "", f"pp=4 zero=2 {FREE}", {}),
    ("deepspeed-stages", "deepspeed", "", f"pp=4 layers_per_stage=7,9,9,7 {FREE}", {}),
    ("deepspeed-expert-axes", "deepspeed", "", f"ep=8 {FREE}", {"model": "mixtral-8x7b"}),
    ("deepspeed-expert-tensor", "deepspeed", "", f"etp=2 {FREE}", {"model": "mixtral-8x7b"}),
    ("deepspeed-precision", "deepspeed", "", f"precision=fp8 {FREE}", {}),
    ("deepspeed-optimizer", "deepspeed", "", f"optimizer=sgd {FREE}", {}),
    ("deepspeed-muon-alone", "deepspeed", "", f"optimizer=muon recompute=full {FREE}", {}),
    ("deepspeed-recompute", "deepspeed", "", f"recompute=selective {FREE}", {"software": AGAIN}),
    ("deepspeed-tp-overlap", "deepspeed", "", f"tp=2 overlap_tp=1 {FREE}", {}),
    ("deepspeed-gather-overlap", "deepspeed", "", "zero=1", {}),
    ("deepspeed-gradient-overlap", "deepspeed", "", f"pp=4 {FREE}", {}),
    ("megatron-offloaded-optimizer", "megatron", "", "zero=3 offload_optimizer=50", {}),
    ("megatron-offloaded-activations", "megatron", "", "pp=2 offload_activations=50", {}),
    ("megatron-offloaded-activations", "megatron", "", "recompute=full offload_activations=50", {}),
    ("megatron-offloaded-layers", "megatron", "", "offload_activations=100", {}),
    ("megatron-offloaded-layers", "megatron", "", "offload_activations=30", {}),
    (
        *("megatron-offloaded-layers", "megatron", "", "offload_activations=50"),
        {"software": fine_grained("core_attn")},
    ),
    (
        *("megatron-offloaded-projection", "megatron", "", "offload_activations=100"),
        {"software": fine_grained("attn_proj")},
    ),
    ("deepspeed-offloaded-activations", "deepspeed", "", f"offload_activations=50 {FREE}", {}),
    ("deepspeed-offloaded-share", "deepspeed", "", "zero=2 offload_optimizer=50", {}),
    ("deepspeed-offloaded-stages", "deepspeed", "", f"pp=4 offload_optimizer=100 {FREE}", {}),
    ("torchtitan-offloads-together", "torchtitan", "", "offload_optimizer=50 zero=2", {}),
    (
        *("deepspeed-offloaded-weights", "deepspeed", ""),
        "offload_parameters=50 zero=3",
        {"software": "deepspeed"},
    ),
    (
        *("written-offload-parameters", "nanotron", ""),
        "offload_parameters=100 zero=3",
        {"software": "deepspeed"},
    ),
    (
        *("written-nvme", "torchtitan", "", "offload_optimizer=100 nvme=optimizer zero=3"),
        {"software": "deepspeed", "cluster": "h200-sxm"},
    ),
    ("torchtitan-offloaded-activations", "torchtitan", "", "offload_activations=50 zero=2", {}),
    ("nanotron-offloaded-optimizer", "nanotron", "", f"offload_optimizer=50 {FREE}", {}),
    ("nanotron-offloaded-activations", "nanotron", "", f"offload_activations=50 {FREE}", {}),
    ("nanotron-model", "nanotron", "", FREE, {"model": "mixtral-8x7b"}),
    ("nanotron-schedule", "nanotron", "", f"pp=4 schedule=zb-h1 {FREE}", {}),
    ("nanotron-chunks", "nanotron", "", f"pp=4 virtual_stages=2 {FREE}", {}),
    ("nanotron-stages", "nanotron", "", f"pp=4 layers_per_stage=7,9,9,7 {FREE}", {}),
    ("nanotron-context", "nanotron", "", f"cp=2 cp_comm=a2a {FREE}", {}),
    ("nanotron-key-heads", "nanotron", "", "tp=16", {}),
    ("nanotron-sharding", "nanotron", "", f"zero=2 {FREE}", {}),
    ("nanotron-precision", "nanotron", "", f"precision=fp16 {FREE}", {}),
    ("nanotron-optimizer", "nanotron", "", f"optimizer=sgd {FREE}", {}),
    ("nanotron-recompute", "nanotron", "", f"recompute=selective {FREE}", {"software": AGAIN}),
    ("nanotron-expert-axes", "nanotron", "", f"ep=8 {FREE}", {"model": "mixtral-8x7b"}),
    ("nanotron-expert-tensor", "nanotron", "", f"etp=2 {FREE}", {"model": "mixtral-8x7b"}),
    ("nanotron-gather-overlap", "nanotron", "", "tp=2", {}),
    ("nanotron-gradient-overlap", "nanotron", "", f"overlap_grad_reduce=0 {FREE}", {}),
    (
        "trainer-model",
        "accelerate",
        "",
        "zero=0 precision=amp",
        {"model": "resnet-50"},
    ),
    ("trainer-tp", "accelerate", "", "tp=2 zero=2", {}),
    ("trainer-pp", "accelerate", "", "pp=2 zero=2", {}),
    ("trainer-cp", "accelerate", "", "cp=2 zero=3", {}),
    ("trainer-ep", "accelerate", "", "ep=8 zero=2", {"model": "mixtral-8x7b"}),
    ("trainer-etp", "accelerate", "", "tp=2 etp=2 zero=2", {"model": "mixtral-8x7b"}),
    ("trainer-sequence-parallel", "accelerate", "", "tp=2 zero=2", {}),
    ("trainer-chunks", "accelerate", "", "pp=4 virtual_stages=2", {}),
    ("trainer-hybrid", "accelerate", "", "dp=16 shard=4 zero=3", {}),
    ("trainer-optimizer", "accelerate", "", f"optimizer=muon zero=0 {FREE}", {}),
    ("trainer-recompute", "accelerate", "", "recompute=selective zero=2", {"software": AGAIN}),
    ("trainer-loss", "accelerate", "", "loss=fused zero=2", {}),
    ("trainer-activations", "accelerate", "", "offload_activations=50 zero=2", {}),
    ("trainer-tensor-overlap", "accelerate", "", "tp=2 overlap_tp=1 zero=2", {}),
    (
        "trainer-expert-overlap",
        "accelerate",
        "",
        "pp=2 virtual_stages=2 ep=4 tp=2 overlap_ep=1",
        {"model": "mixtral-8x7b"},
    ),
    ("fsdp2-sharding", "accelerate", "", "zero=1", {}),
    ("fsdp2-buckets", "accelerate", "", "bucket_parameters=9 zero=2", {}),
    ("fsdp2-precision", "accelerate", "", "precision=fp16 zero=2", {}),
    ("fsdp2-master-weights", "accelerate", "", f"zero=0 {FREE}", {}),
    ("fsdp2-mixed", "accelerate", "", "precision=amp zero=2", {}),
    ("fsdp2-offload", "accelerate", "", "offload_optimizer=50 zero=2", {}),
    ("fsdp2-overlap", "accelerate", "", f"zero=3 overlap_grad_reduce=0 {FREE}", {}),
    ("engine-precision", "accelerate", "deepspeed", "precision=pure-bf16 zero=2", {}),
]
ELSEWHERE = {
    "megatron-model",  # tests of shapes
    "torchtitan-context-flavor",
    "torchtitan-deepep-experts",
    "torchtitan-float8-experts",
    "torchtitan-expert-sharding",
    "torchtitan-expert-overlap",
    "torchtitan-dispatch",
    "torchtitan-sequence-divides",
    "torchtitan-expert-tensor",
}
"""Rules that need a model or a sequence of their own."""


@pytest.mark.parametrize(
    ("rule", "framework", "version", "plan", "of_task"),
    REFUSED,
    ids=[f"{rule}-{i}" for i, (rule, *_) in enumerate(REFUSED)],
)
def test_what_a_framework_cannot_run_is_refused_by_name(rule, framework, version, plan, of_task):
    with pytest.raises(InputError) as error:
        text(framework, plan, version, **of_task)
    message = str(error.value)
    assert f"({rule})" in message
    assert message.startswith(EXPORTERS[framework].form(version).title)
    assert "\n" not in message


SHIPPED = [
    ("", "qwen3-8b", "torchtitan 0.2.2 has qwen3-8b as qwen3 8B, which plan3d does not write yet"),
    ("", "llama-4-scout", "has llama-4-scout as llama4 17bx16e_irope, which plan3d does not write"),
    ("", "gpt-oss-120b", "has gpt-oss-120b as gpt_oss 120b, which plan3d does not write yet"),
    ("", "deepseek-v3", "deepseek_v3 671B of torchtitan 0.2.2 has no multi-token prediction"),
    ("", "llama-3.2-1b", "plan3d does not write a tied LM head of llama-3.2-1b for torchtitan"),
    ("", "mixtral-8x7b", "plan3d does not write experts of mixtral-8x7b for torchtitan 0.2.2"),
    ("0.3", "llama-3.2-1b", "torchtitan 0.3.0 has llama-3.2-1b as llama3 1B, which plan3d does"),
    ("0.3", "deepseek-v3", "has deepseek-v3 as deepseek_v3 671B with num_mtp_layers=1, which"),
    ("0.3", "llama-7b", "0.3 builds shapes in code, and plan3d writes none like llama-7b; nearest"),
]
"""Models that a version of torchtitan may have, and that are not written."""


@pytest.mark.parametrize(("version", "model", "said"), SHIPPED)
def test_models_that_are_not_written_are_told_from_those_that_torchtitan_lacks(
    version, model, said
):
    with pytest.raises(InputError) as error:
        text("torchtitan", "zero=2", version, model=model)
    message = str(error.value)
    assert said in message
    assert "llama3 8B, llama3 70B, llama3 405B, deepseek_v3 671B" in message


@pytest.mark.parametrize("unwritten", [UNWRITTEN_0_2, UNWRITTEN_0_3])
def test_flavors_that_are_not_written_are_models_that_are_refused(unwritten):
    for preset in unwritten.values():
        assert missing_features(Model.preset(preset))


@pytest.mark.parametrize(
    ("framework", "model", "said"),
    [
        ("megatron", "llama-3.1-8b", ("(they change no time): --use-rope-scaling",)),
        ("megatron", "llama-7b", ("--rotary-base (10000 unless set), --use-rope-scaling",)),
        (
            "megatron",
            "mixtral-8x7b",
            ("--use-rope-scaling", "--moe-router-score-function (softmax"),
        ),
        ("megatron", "gpt3-1.3b", ()),
        ("deepspeed", "llama-7b", ("--rotary-position-embeddings-theta (10000 unless set)",)),
        ("nanotron", "llama-7b", ("model.model_config.rope_theta (10000 unless set)",)),
        ("torchtitan", "llama-7b", ("rope_theta (10000 unless set), rope_scaling_args",)),
        ("torchtitan", "llama-3.1-8b", ()),
    ],
)
def test_files_name_what_they_leave_out_of_a_model(framework, model, said):
    plans = {"deepspeed": f"tp=2 {FREE}", "torchtitan": "zero=2", "nanotron": f"tp=2 {FREE}"}
    out = text(framework, plans.get(framework, "tp=2"), model=model)
    (line,) = [line for line in out.splitlines() if line.startswith("# Left out")] or [""]
    assert all(setting in line for setting in said)
    assert bool(said) == bool(line)


@pytest.mark.parametrize(("cluster", "backend"), [("h100-sxm", ""), ("gb200", "hybridep")])
def test_nvlink_over_several_nodes_exchanges_tokens_by_hybridep(cluster, backend):
    """DeepEP, the default of `flex`, refuses racks (Megatron-Core 0.16, fused_a2a.py)."""
    plan = "ep=8 expert_dispatch=hierarchical"
    flags = text("megatron", plan, model="mixtral-8x7b", cluster=cluster)
    keys = text("megatron-bridge", plan, model="mixtral-8x7b", cluster=cluster)
    assert ("--moe-flex-dispatcher-backend hybridep" in flags) == bool(backend)
    assert ("moe_flex_dispatcher_backend=hybridep" in keys) == bool(backend)
    assert "flex-dispatcher" not in text("megatron", "ep=8", model="mixtral-8x7b", cluster=cluster)


def test_tokens_are_permuted_as_they_were_predicted():
    """The stack fuses it; Megatron-Core does not unless told, and a script that does not say so is
    read as one that does not."""
    script = text("megatron", "ep=8", model="mixtral-8x7b")
    assert "--moe-permute-fusion" in script
    assert "permute" not in text("megatron", "tp=2")
    (line,) = [line for line in script.splitlines() if "--moe-permute-fusion" in line]
    launch = READERS["megatron"](script.replace(line, ""), "run.sh", ReaderOptions())
    assert launch.software["fused_permutation"] is False


def test_overlapped_experts_get_more_connections():
    plan = "pp=2 virtual_stages=2 ep=4 tp=2 overlap_ep=1"
    hopper = text("megatron", plan, model="mixtral-8x7b")
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=32" in hopper
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1 " not in hopper
    assert "MAX_CONNECTIONS" not in text("megatron", plan, model="mixtral-8x7b", cluster="b200")


@pytest.mark.parametrize("framework", ["megatron", "megatron-bridge", "nanotron", "deepspeed"])
def test_as_many_processes_start_as_there_are_gpus(framework):
    """Of 12 GPUs in nodes of eight the second starts four; of four, four."""
    plan = "tp=2 overlap_param_gather=0"
    plan += " overlap_grad_reduce=0" * (framework == "deepspeed")
    software = "nanotron" if framework == "nanotron" else "megatron-core"
    sizes = {"nodes": "--num_nodes", "each": "--num_gpus"}
    if framework != "deepspeed":
        sizes = {"nodes": "--nnodes", "each": "--nproc-per-node"}
    for gpus, nodes, each in ((4, 1, 4), (8, 1, 8), (16, 2, 8)):
        out = text(framework, plan, gpus=gpus, batch=4 * gpus, software=software)
        assert f"{sizes['nodes']} {nodes} {sizes['each']} {each} " in out
        assert "do not fill" not in out
    out = text(framework, plan, gpus=12, batch=48, software=software)
    assert f"{sizes['nodes']} 2" in out
    assert "# 12 GPUs do not fill nodes of 8: the last one starts 4, with" in out
    assert f"{sizes['each']} 8" not in out


def test_every_rule_has_a_plan_that_breaks_it():
    broken = {rule for rule, *_ in REFUSED} | ELSEWHERE
    shared = {name.replace("megatron-", "megatron-bridge-") for name in broken}
    for framework in EXPORTERS.values():
        for form in not_empty(framework.forms):
            names = [rule.name for rule in form.rules]
            assert len(set(names)) == len(names)
            assert set(names) <= broken | shared


def test_messages_name_the_nearest_plan_and_following_it_works():
    plan = Plan.parse("tp=2 pp=4 zero=1 optimizer=sgd")
    form = EXPORTERS["torchtitan"].form()
    row = resolve(plan, GPUS).take(0)
    nearest = [m.split("nearest: ")[1].split(" (")[0] for m in refusals(task(), row, form)]
    assert nearest == ["optimizer=adam", "zero=2"]
    assert launch_text(task(), Plan.parse("tp=2 pp=4 zero=2 optimizer=adam"), form)


def test_rules_of_every_framework_come_first():
    with pytest.raises(InputError, match="!= 16 GPUs"):
        text("megatron", "tp=3 pp=3")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("framework", ["megatron", "megatron-bridge", "deepspeed"])
def test_fragments_are_what_bash_reads(framework, tmp_path):
    plan = f"tp=2 pp=4 layers_per_stage=7,9,9,7 recompute=full {FREE} overlap_grad_reduce=0"
    if framework == "deepspeed":
        plan = plan.replace("layers_per_stage=7,9,9,7 ", "")
    out = text(framework, plan)
    names = re.findall(r"^(\w+)=\($", out, re.M)
    show = "".join(f'printf "%s\\n" "${{{name}[@]}}"; ' for name in names)
    done = subprocess.run(
        ["bash", "-c", f"{out}\n{show}"], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    listed = [
        line.strip() for line in out.splitlines() if re.match(r"  ('?--|'?[a-z_]+[.=])", line)
    ]
    assert done.stdout.split("\n")[:-1] == [word for line in listed for word in shlex.split(line)]
    if framework == "deepspeed":
        assert json.loads((tmp_path / "ds_config.json").read_text())["train_batch_size"] == 64


def test_layers_that_differ_in_strategy_are_refused_by_name():
    plan = "tp=2 pp=4 segments=8:recompute=full|8|8|8"
    for name, framework in EXPORTERS.items():
        with pytest.raises(InputError, match=r"recompute=none and recompute=full in one plan"):
            text(name, plan)
        (reason,) = refusals(task(), resolve(Plan.parse(plan), GPUS).take(0), framework.form())
        assert reason.endswith("(uniform-strategy)")


def test_layers_that_differ_only_in_number_are_written():
    plan = Plan.parse("tp=2 pp=4 segments=7|9*2|7")
    row = with_stage_layers(resolve(plan, GPUS).take(0))
    assert row.layers_per_stage == (7, 9, 9, 7)
    assert "'Et*7|(t*9|)*2t*7L'" in text("megatron", "tp=2 pp=4 segments=7|9*2|7")


def test_names_and_versions_are_looked_up():
    assert EXPORTERS["torchtitan"].form("0.3").version == "0.3.0"
    with pytest.raises(InputError, match=r"files are written for torchtitan 0\.2\.2, 0\.3\.0"):
        EXPORTERS["torchtitan"].form("0.4")
    with pytest.raises(InputError, match="did you mean megatron"):
        exporter("megatrom")


def test_sizes_that_torchtitan_alone_refuses():
    form, recipe = EXPORTERS["torchtitan"].form(), EXPORTERS["torchtitan"].form("0.3")
    odd = Task(task().model, task().cluster, sequence=2050, global_batch=64)
    with pytest.raises(InputError, match="torchtitan-sequence-divides"):
        launch_text(odd, Plan.parse("tp=2 zero=2"), form)
    # No flavor has experts without multi-token prediction among the presets.
    model = flavor_model("deepseek_v3", "671B")
    experts = Task(model, task().cluster, sequence=2048, global_batch=64)
    assert "deepseek_v3" in launch_text(experts, Plan.parse("tp=2 zero=2 ep=8 etp=2"), form)
    with pytest.raises(InputError, match="torchtitan-expert-tensor"):
        launch_text(experts, Plan.parse("tp=4 zero=2 ep=4 etp=2"), form)
    with pytest.raises(InputError, match="torchtitan-context-flavor"):
        launch_text(experts, Plan.parse("cp=2 zero=2 ep=8"), form)
    with pytest.raises(InputError, match="torchtitan-deepep-experts"):
        launch_text(
            experts, Plan.parse("tp=2 zero=2 ep=8 etp=2 expert_dispatch=hierarchical"), form
        )
    job = tomllib.loads(launch_text(experts, Plan.parse("zero=3 ep=8 precision=fp8"), form))
    assert job["model"]["converters"][1:] == ["quantize.grouped_mm.float8"]
    assert job["quantize"]["grouped_mm"]["float8"] == {"fqns": ["experts"]}
    with pytest.raises(InputError, match="experts to float8 with neither"):
        launch_text(experts, Plan.parse("pp=2 zero=2 ep=8 precision=fp8"), form)
    for plan in ("tp=8 pp=2 ep=8", f"ep=8 zero=0 {FREE}"):
        with pytest.raises(InputError, match="torchtitan-expert-sharding"):
            launch_text(experts, Plan.parse(plan), form)
    with pytest.raises(InputError, match="torchtitan-expert-tensor"):
        launch_text(experts, Plan.parse("tp=2 zero=2 ep=8 etp=2"), recipe)
    assert "deepseek_v3_671b()" in launch_text(experts, Plan.parse("tp=2 zero=2 ep=8"), recipe)
    # The flavor itself has 2.
    alone = launch_text(experts, Plan.parse("tp=2 zero=2"), recipe)
    assert "config.parallelism.expert_parallel_degree = 1\n" in alone
    with pytest.raises(InputError, match="torchtitan-dispatch"):
        launch_text(experts, Plan.parse("zero=2 ep=8 expert_dispatch=hierarchical"), recipe)
    with pytest.raises(InputError, match="torchtitan-expert-overlap"):
        launch_text(experts, Plan.parse("zero=2 ep=8 overlap_ep=1"), form)
    plan = "pp=2 virtual_stages=2 schedule=dualpipe-v zero=2 ep=8 overlap_ep=1"
    parallel = tomllib.loads(launch_text(experts, Plan.parse(plan), form))["parallelism"]
    assert parallel["pipeline_parallel_expert_parallel_overlap"]
    assert parallel["expert_parallel_comm_backend"] == "standard"


def test_groups_of_micro_batches_are_a_flag():
    flags = array_words(text("megatron", "pp=2 virtual_stages=2 micro_batch_group=4"))
    assert flags["--microbatch-group-size-per-virtual-pipeline-stage"] == ["4"]
    assert "microbatch-group" not in text("megatron", "pp=2 virtual_stages=2")


def test_v_shaped_schedules_are_those_of_torch():
    for schedule, name in (("zb-v", "ZBVZeroBubble"), ("dualpipe-v", "DualPipeV")):
        plan = f"pp=4 virtual_stages=2 schedule={schedule} zero=2"
        out = tomllib.loads(text("torchtitan", plan))
        assert out["parallelism"]["pipeline_parallel_schedule"] == name
        for framework in ("megatron", "megatron-bridge", "nanotron", "deepspeed"):
            with pytest.raises(InputError, match=rf"\({framework}-schedule\)"):
                text(framework, plan.replace("zero=2", FREE))


def test_networks_of_listed_layers_are_refused_by_name():
    network = Task(Model.preset("resnet-50"), task().cluster, sequence=1, global_batch=64 * GPUS)
    row = resolve(Plan(overlap_param_gather=0), GPUS).take(0)
    for name in ("megatron", "megatron-bridge", "nanotron", "torchtitan"):
        reasons = refusals(network, row, EXPORTERS[name].form())
        assert any("a network that is a list of layers" in reason for reason in reasons)
    # DeepSpeed's configuration does not describe the model.
    assert json.loads(
        launch_text(network, Plan(overlap_param_gather=0), EXPORTERS["deepspeed"].form())
    )


CONFIGS = sorted(
    (Path(__file__).parents[2] / "simulator" / "workload" / "hf_configs").glob("*.json")
)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_megatron_describes_a_published_model_or_refuses_it_by_name(path):
    """The model that its flags describe has the same layers."""
    try:
        model = Model.from_config(path)
        Task(replace(model, mtp_layers=0), task().cluster, sequence=512, global_batch=64)
    except InputError:
        return
    lacking = [feature for feature in features(model) if feature not in EXPRESSIBLE]
    if lacking:
        form = EXPORTERS["megatron"].form()
        one = Task(replace(model, mtp_layers=0), task().cluster, sequence=2048, global_batch=64)
        row = resolve(Plan(), GPUS).take(0)
        assert any(lacking[0] in reason for reason in refusals(one, row, form))
        return
    one = Task(model, task().cluster, sequence=512, global_batch=64)
    script = EXPORTERS["megatron"].form().write(one, resolve(Plan(), GPUS).take(0), ())
    assert same_shape(READERS["megatron"](script, "run.sh", ReaderOptions()).model, model)


def windowed(widths, mtp_layers=0, **attention):
    """Llama 3.1 8B whose layers have these windows, repeated."""
    model = Model.preset("llama-3.1-8b")
    (block,), kinds = model.kinds, list(dict.fromkeys(widths))
    layers = tuple(
        replace(block, attention=replace(block.attention, window=width, **attention))
        for width in kinds
    )
    order = tuple(kinds.index(width) for width in widths) * (model.layers // len(widths))
    model = replace(model, name="windowed", kinds=layers, order=order, mtp_layers=mtp_layers)
    return replace(task(), model=model)


@pytest.mark.parametrize(
    ("widths", "mtp_layers", "frequency", "of_bridge"),
    [
        ((1024,), 0, None, "null"),
        ((1024, 0), 0, "2", "2"),
        ((1024, 1024, 1024, 0), 0, "4", "4"),
        ((0, 1024), 0, "([0]*1+[1]*1)*16", f"[{','.join(['0', '1'] * 16)}]"),
        ((0,) * 16 + (1024,) * 16, 0, "([0]*16+[1]*16)", f"[{','.join('0' * 16 + '1' * 16)}]"),
        ((1024,) * 31 + (0,), 0, "32", "32"),
        ((1024,), 1, None, "null"),
        ((1024,) * 16 + (0,) * 16, 1, "([1]*16+[0]*17)", f"[{','.join('1' * 16 + '0' * 17)}]"),
        ((1024, 0), 1, f"({'[1]*1+[0]*1+' * 15}[1]*1+[0]*2)", f"[{'1,0,' * 16}0]"),
    ],
)
def test_megatron_is_told_which_layers_have_a_window(widths, mtp_layers, frequency, of_bridge):
    """It counts the keys before a query; multi-token prediction is the layer after the last."""
    asked, plan = windowed(widths, mtp_layers), Plan(tp=2, pp=2)
    script = launch_text(asked, plan, EXPORTERS["megatron"].form())
    flags = array_words(script)
    assert flags["--window-size"] == ["1023,0"]
    assert flags.get("--window-attn-skip-freq") == (frequency and [frequency])
    launch = READERS["megatron"](script, "run.sh", ReaderOptions())
    assert same_shape(launch.model, asked.model)
    assert launch.unread == []
    bridge = [shlex.split(line)[0] for line in launch_text(
        asked, plan, EXPORTERS["megatron-bridge"].form()
    ).splitlines() if line.startswith("  ")]  # fmt: skip
    assert "model.window_size=[1023,0]" in bridge
    assert f"model.window_attn_skip_freq={of_bridge}" in bridge


@pytest.mark.parametrize(
    ("widths", "chunked", "lacking"),
    [
        ((1024, 4096), False, "does not write attention windows of several widths of windowed"),
        ((1024, 0, 512, 0), False, "does not write attention windows of several widths"),
        ((1024,), True, "does not write attention in chunks of windowed"),
    ],
)
def test_windows_that_megatron_has_no_flags_for_are_refused_by_name(widths, chunked, lacking):
    for name in ("megatron", "megatron-bridge"):
        with pytest.raises(InputError, match=lacking):
            launch_text(windowed(widths, chunked=chunked), Plan(tp=2), EXPORTERS[name].form())


def test_sequences_of_windows_are_gathered_or_exchanged():
    form = EXPORTERS["megatron"].form()
    with pytest.raises(InputError, match=r"cp_comm=p2p: .* nearest: cp_comm=all-gather"):
        launch_text(windowed((1024,)), Plan(cp=2), form)
    for way in ("all-gather", "a2a"):
        assert "--window-size 1023,0" in launch_text(
            windowed((1024,)), Plan(cp=2, cp_comm=way), form
        )
    assert launch_text(task(), Plan(cp=2), form)


def test_a_way_to_synchronise_is_refused_by_the_fields_that_make_it():
    for name in EXPORTERS:
        with pytest.raises(InputError, match=r"without sync=gossip topology=ring \(all-reduced"):
            text(name, "sync=gossip topology=ring zero=0")


def test_deepspeed_leaves_recompute_to_models_that_megatron_deepspeed_does_not_have():
    """Biases of queries, keys and values: the JSON has the section that only such code reads."""
    again = "zero=3 recompute=full overlap_grad_reduce=1"
    for plan, there in ((again, True), ("zero=3 overlap_grad_reduce=1", False)):
        out = text("deepspeed", plan, model="qwen2.5-7b")
        assert ("activation_checkpointing" in json.loads(out)) is there
        launch = READERS["deepspeed"](out, "ds_config.json", ReaderOptions())
        assert launch.plan["recompute"] == (Recompute.FULL if there else Recompute.NONE)
        assert launch.unread == []
    assert "deepspeed_activation_checkpointing" in text("deepspeed", again).replace("-", "_")
    with pytest.raises(InputError, match="deepspeed-model"):
        text("deepspeed", "tp=2 overlap_param_gather=0", model="qwen2.5-7b")


ROTARY = (
    ("megatron", "", "--rotary-base 500000", "--use-rope-scaling"),
    ("megatron-bridge", "", "model.rotary_base=500000", ""),
    ("deepspeed", "", "--rotary-position-embeddings-theta 500000", ""),
    ("nanotron", "", "rope_theta: 500000.0", "rope_scaling"),
)


@pytest.mark.parametrize(("framework", "version", "setting", "left_out"), ROTARY)
def test_the_rotary_base_of_a_model_is_written_and_read(framework, version, setting, left_out):
    """That of a config.json and that of a preset; 10000, the default, where neither states it."""
    exporter = EXPORTERS[framework]
    plan = "tp=2 overlap_param_gather=0" if framework in ("nanotron", "deepspeed") else "tp=2"
    config = Model.from_config(
        {
            "model_type": "llama",
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
            "vocab_size": 128256,
            "rope_theta": 500000.0,
        }
    )
    assert config.rotary_base == Model.preset("llama-3.1-8b").rotary_base == 500_000
    for model in (config, Model.preset("llama-3.1-8b")):
        out = launch_text(replace(task(), model=model), Plan.parse(plan), exporter.form(version))
        assert setting in out
        if left_out:
            assert f"(they change no time): {left_out}" in out
        if framework in READERS:
            ending = "yaml" if framework == "nanotron" else "sh"
            launch = READERS[framework](out, f"run.{ending}", ReaderOptions())
            assert launch.model.rotary_base == 500_000
            assert not launch.unread
    unstated = replace(config, rotary_base=0.0)
    out = launch_text(replace(task(), model=unstated), Plan.parse(plan), exporter.form(version))
    assert "500000" not in out


def test_the_rotary_base_of_a_new_flavor_is_in_its_code():
    model = replace(Model.preset("llama-7b"), rotary_base=500_000.0)
    form = EXPORTERS["torchtitan"].form()
    out = launch_text(replace(task(), model=model), Plan.parse("tp=2 zero=2"), form)
    assert "rope_theta=500000.0" in out
    assert "(they change no time): rope_scaling_args" in out
