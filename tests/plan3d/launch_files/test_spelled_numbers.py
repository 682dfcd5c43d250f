"""Numbers as launch files spell them, all of a file, and functions that spell one number."""

import json
import re
import shlex
import tomllib

import pytest

from plan3d.launch_files.exporter import (
    heading,
    launch_text,
    partial_node,
    processes_by_node,
    torchrun,
)
from plan3d.launch_files.megatron import spelling
from plan3d.launch_files.registry import EXPORTERS
from plan3d.launch_files.tables import Numbers
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model


def text(framework, plan, model="llama-3.1-8b", gpus=16, software="megatron-core", version=""):
    cluster = Cluster.profile("h100-sxm", gpus=gpus)
    task = Task(Model.preset(model), cluster, sequence=2048, global_batch=64, software=software)
    return launch_text(task, resolve(Plan.parse(plan), gpus), EXPORTERS[framework].form(version))


def arrays(script):
    """The words of the arrays of a script, by name."""
    found = re.findall(r"^(\w+_ARGS)=\(\n(.*?)\n\)$", script, re.M | re.S)
    return {name: " ".join(shlex.split(body)) for name, body in found}


DENSE = "--overlap-grad-reduce --overlap-param-gather --use-distributed-optimizer"
TRAINED = "--global-batch-size 64 --seq-length 2048 --bf16"
NO_DROPOUT = "--attention-dropout 0.0 --hidden-dropout 0.0"
EVERY_FLAG = [
    # Eight heads of keys, an MLP and ends that are not tied; nothing of axes of one rank.
    (
        *("llama-3.1-8b", 16, "tp=1"),
        "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
        "--group-query-attention --num-query-groups 8 --position-embedding-type rope "
        "--max-position-embeddings 8192 --vocab-size 128256 --normalization RMSNorm --swiglu "
        "--untie-embeddings-and-output-weights --disable-bias-linear --rotary-base 500000",
        "--tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 "
        f"--context-parallel-size 1 {DENSE}",
        f"--micro-batch-size 1 {TRAINED} --optimizer adam {NO_DROPOUT}",
    ),
    # 24 heads of 128 on a width of 2048, so that their width is said.
    (
        "gpt3-1.3b",
        16,
        "tp=2 cp=2 pp=2 virtual_stages=3 micro_batch=2 micro_batch_group=4 recompute=full "
        "precision=fp8-delayed",
        "--num-layers 24 --hidden-size 2048 --ffn-hidden-size 8192 --num-attention-heads 24 "
        "--kv-channels 128 --position-embedding-type learned_absolute "
        "--max-position-embeddings 2048 --vocab-size 50257 --normalization LayerNorm",
        "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 "
        "--context-parallel-size 2 --cp-comm-type p2p "
        "--microbatch-group-size-per-virtual-pipeline-stage 4 "
        f"--num-virtual-stages-per-pipeline-rank 3 --sequence-parallel {DENSE}",
        f"--micro-batch-size 2 {TRAINED} --fp8-format hybrid --optimizer adam "
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1 "
        f"{NO_DROPOUT}",
    ),
    # Half of the parameters on the host; experts on four ranks of two.
    (
        "mixtral-8x7b",
        16,
        "tp=2 ep=4 etp=2 recompute=selective offload_optimizer=50",
        "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
        "--group-query-attention --num-query-groups 8 --position-embedding-type rope "
        "--max-position-embeddings 32768 --vocab-size 32000 --normalization RMSNorm --swiglu "
        "--untie-embeddings-and-output-weights --disable-bias-linear --num-experts 8 "
        "--moe-router-topk 2 --moe-ffn-hidden-size 14336 --rotary-base 1000000",
        "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 1 "
        "--context-parallel-size 1 --expert-model-parallel-size 4 "
        "--expert-tensor-parallel-size 2 --moe-token-dispatcher-type alltoall "
        f"--moe-permute-fusion --moe-grouped-gemm --sequence-parallel {DENSE} "
        "--optimizer-cpu-offload --optimizer-offload-fraction 0.5 "
        "--overlap-cpu-optimizer-d2h-h2d --use-precision-aware-optimizer",
        f"--micro-batch-size 1 {TRAINED} --optimizer adam --recompute-granularity selective "
        f"--recompute-modules layernorm moe_act {NO_DROPOUT}",
    ),
    # 61 layers and one that predicts further tokens on four ranks; three layers without experts.
    (
        "deepseek-v3",
        64,
        "tp=4 pp=4 ep=8",
        "--num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 "
        "--multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 "
        "--qk-pos-emb-head-dim 64 --v-head-dim 128 --qk-layernorm --position-embedding-type rope "
        "--max-position-embeddings 4096 --vocab-size 129280 --normalization RMSNorm --swiglu "
        "--untie-embeddings-and-output-weights --disable-bias-linear --mtp-num-layers 1 "
        "--num-experts 256 --moe-router-topk 8 --moe-ffn-hidden-size 2048 "
        "--moe-router-num-groups 8 --moe-router-group-topk 4 "
        "--moe-shared-expert-intermediate-size 2048 --moe-layer-freq ([0]*3+[1]*58) "
        "--rope-type rope --norm-epsilon 1e-06 --moe-router-score-function sigmoid "
        "--moe-router-enable-expert-bias --moe-router-topk-scaling-factor 2.5 "
        "--moe-router-dtype fp32",
        "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 4 "
        "--context-parallel-size 1 --pipeline-model-parallel-layout Et*15|t*16|t*15|t*15mL "
        "--expert-model-parallel-size 8 --expert-tensor-parallel-size 1 "
        "--moe-token-dispatcher-type alltoall --moe-permute-fusion --moe-grouped-gemm "
        f"--sequence-parallel {DENSE}",
        f"--micro-batch-size 1 {TRAINED} --optimizer adam {NO_DROPOUT}",
    ),
]


@pytest.mark.parametrize(("model", "gpus", "plan", "of_model", "parallel", "training"), EVERY_FLAG)
def test_megatron_has_these_flags_and_no_others(model, gpus, plan, of_model, parallel, training):
    out = text("megatron", plan, model, gpus)
    assert arrays(out) == {
        "MODEL_ARGS": of_model, "PARALLEL_ARGS": parallel, "TRAINING_ARGS": training
    }  # fmt: skip
    assert f"# torchrun --nnodes {gpus // 8} --nproc-per-node 8 pretrain_gpt.py" in out
    assert ("CUDA_DEVICE_MAX_CONNECTIONS=1" in out) is ("tp=1" not in plan)


def test_torchtitan_has_these_settings_and_no_others():
    """Of 64 sequences on four replicas 16 each, in pieces of two; 32 layers in chunks of eight."""
    plan = "tp=2 pp=2 zero=3 micro_batch=2 virtual_stages=2 recompute=full"
    found = tomllib.loads(text("torchtitan", plan, software="torchtitan", version="0.2"))
    assert found["training"] == {
        "seq_len": 2048, "local_batch_size": 16, "global_batch_size": 64, "dtype": "float32",
        "mixed_precision_param": "bfloat16", "mixed_precision_reduce": "float32",
    }  # fmt: skip
    assert found["parallelism"] == {
        "data_parallel_replicate_degree": 1, "data_parallel_shard_degree": 4,
        "tensor_parallel_degree": 2, "context_parallel_degree": 1, "pipeline_parallel_degree": 2,
        "expert_parallel_degree": 1, "fsdp_reshard_after_forward": "always",
        "pipeline_parallel_schedule": "Interleaved1F1B", "pipeline_parallel_microbatch_size": 2,
        "pipeline_parallel_first_stage_less_layers": 0,
        "pipeline_parallel_last_stage_less_layers": 0, "pipeline_parallel_layers_per_stage": 8,
    }  # fmt: skip
    assert found["activation_checkpoint"] == {"mode": "full"}


def test_torchtitan_recipes_set_these_fields_and_no_others():
    """Four data ranks of two context ranks in replicas of shards of four ranks."""
    plan = "tp=2 cp=2 dp=4 zero=3 shard=4 cp_comm=all-gather"
    out = text("torchtitan", plan, software="torchtitan", version="0.3")
    found = dict(re.findall(r"^    config\.(?:parallelism|training)\.(\w+) = (.*)$", out, re.M))
    assert found == {
        "seq_len": "2048", "local_batch_size": "1", "global_batch_size": "64",
        "dtype": "'float32'", "mixed_precision_param": "'bfloat16'",
        "disable_cuda_graphs": "False", "enable_sequence_parallel": "True",
        "data_parallel_replicate_degree": "2", "data_parallel_shard_degree": "2",
        "tensor_parallel_degree": "2", "context_parallel_degree": "2",
        "pipeline_parallel_degree": "1", "expert_parallel_degree": "1",
        "fsdp_reshard_after_forward": "'always'",
    }  # fmt: skip


def test_deepspeed_has_these_keys_and_no_others():
    """Of 64 sequences on 16 replicas two micro-batches of two."""
    plan = "zero=3 micro_batch=2 offload_optimizer=100 overlap_grad_reduce=1 overlap_param_gather=1"
    found = json.loads(text("deepspeed", plan, software="deepspeed"))
    assert found.pop("plan3d")["sequence"] == 2048
    assert found == {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "cpu", "pin_memory": True},
            "overlap_comm": True,
        },
        "bf16": {"enabled": True},
    }
    less = json.loads(text("deepspeed", plan.replace("=100", "=30"), software="deepspeed"))
    assert less["zero_optimization"]["offload_optimizer"]["ratio"] == 0.3


def test_megatron_deepspeed_has_these_flags_and_no_others():
    plan = "tp=2 pp=2 zero=1 overlap_grad_reduce=0 overlap_param_gather=0 sequence_parallel=0"
    out = text("deepspeed", plan, "gpt3-1.3b", software="deepspeed")
    assert arrays(out) == {
        "MODEL_ARGS": "--num-layers 24 --hidden-size 2048 --ffn-hidden-size 8192 "
        "--num-attention-heads 24 --kv-channels 128 --max-position-embeddings 2048 "
        "--vocab-size 50257 --normalization layernorm",
        "TRAINING_ARGS": "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 "
        f"--micro-batch-size 1 {TRAINED} --optimizer adam {NO_DROPOUT}",
        "DEEPSPEED_ARGS": "--deepspeed --deepspeed_config ds_config.json --zero-stage 1",
    }
    settings = json.loads(out.partition("<<'JSON'\n")[2].partition("\nJSON")[0])
    assert settings["gradient_accumulation_steps"] == 16
    assert "# deepspeed --num_nodes 2 --num_gpus 8 pretrain_gpt.py" in out


def test_accelerate_has_these_arguments_and_no_others():
    out = text("accelerate", "zero=3 micro_batch=2", software="hf-trainer")
    found = dict(re.findall(r"^  --(\w+) (\S+) ", out, re.M))
    assert found == {
        "model_name_or_path": "meta-llama/Llama-3.1-8B", "dtype": "float32", "bf16": "True",
        "fp16": "False", "max_length": "2048", "packing": "True",
        "per_device_train_batch_size": "2", "gradient_accumulation_steps": "2",
        "gradient_checkpointing": "False", "optim": "adamw_torch_fused",
        "use_liger_kernel": "False",
    }  # fmt: skip
    assert "num_machines: 2\nnum_processes: 16\n" in out
    assert "fsdp_reshard_after_forward: true" in out


@pytest.mark.parametrize(
    ("gpus", "sizes", "starts", "said"),
    [
        (8, (1, 8, 8), "--nnodes 1 --nproc-per-node 8", []),
        (4, (1, 4, 4), "--nnodes 1 --nproc-per-node 4", []),
        (16, (2, 8, 8), "--nnodes 2 --nproc-per-node 8", []),
        (20, (3, 8, 4), '--nnodes 3 --nproc-per-node "${PROCESSES:-8}"',
         ["# 20 GPUs do not fill nodes of 8: the last one starts 4, with PROCESSES=4"]),
    ],
)  # fmt: skip
def test_the_last_node_starts_what_is_left(gpus, sizes, starts, said):
    cluster = Cluster.profile("h100-sxm", gpus=gpus)
    assert processes_by_node(cluster) == sizes
    assert torchrun(cluster) == f"torchrun {starts}"
    assert partial_node(cluster, "with PROCESSES={}") == said


@pytest.mark.parametrize(
    ("windowed", "period"),
    [("10", 2), ("1010", 2), ("110", 3), ("110110", 3), ("01", 0), ("100", 0), ("111", 0),
     ("0", 0), ("1101", 3), ("1011", 0), ("0000", 0)],
)  # fmt: skip
def test_layers_without_a_window_by_their_period(windowed, period):
    """Every second or third layer from the first period on."""
    assert spelling.full_attention_period([mark == "1" for mark in windowed]) == period


@pytest.mark.parametrize(
    ("marked", "pattern"),
    [("0001111", "([0]*3+[1]*4)"), ("0101", "([0]*1+[1]*1)*2"), ("1111", "([1]*1)*4"),
     ("1", "([1]*1)"), ("011011", "([0]*1+[1]*2)*2"), ("01101", "([0]*1+[1]*2+[0]*1+[1]*1)")],
)  # fmt: skip
def test_patterns_of_layers(marked, pattern):
    assert spelling.layer_pattern([mark == "1" for mark in marked]) == pattern
    assert [str(mark) for mark in eval(pattern)] == [*marked]


@pytest.mark.parametrize(
    ("layers", "pp", "v", "first", "last", "said"),
    [(24, 4, 1, 7, 5, True), (24, 4, 1, 7, 6, False), (24, 4, 1, 0, 0, False),
     (24, 4, 1, 3, 0, True), (24, 4, 1, 4, 0, False), (24, 4, 1, 0, 3, True),
     (24, 4, 2, 4, 4, True), (24, 4, 2, 3, 5, False), (24, 4, 2, 6, 4, False),
     (24, 2, 1, 11, 13, True), (26, 4, 2, 2, 0, True)],
)  # fmt: skip
def test_ends_are_flags_where_the_others_are_even(layers, pp, v, first, last, said):
    n = Numbers(layers=layers, pp=pp, virtual_stages=v, first_stage_layers=first,
                        last_stage_layers=last)  # fmt: skip
    assert spelling.ends_are_flags(n) is said


@pytest.mark.parametrize(
    ("chunks", "mtp", "layout"),
    [([3], 0, "Et*3L"), ([1, 1], 0, "Et|tL"), ([0, 2, 2, 2, 0], 0, "E|(t*2|)*3L"),
     ([1, 2, 0, 3], 0, "Et|t*2||t*3L"), ([2, 1, 1, 0], 4, "Et*2|(t|)*2mL"),
     ([2, 2, 1], 2, "Et*2|t*2m|tL")],
)  # fmt: skip
def test_layouts_of_chunks(chunks, mtp, layout):
    n = Numbers(chunks=chunks, mtp_layers=int(mtp > 0), mtp_stage=mtp)
    assert spelling.layout_text(n) == layout


@pytest.mark.parametrize(
    ("hidden", "gated", "ffn"), [(4096, True, 10880), (4096, False, 16384), (96, True, 256)]
)
def test_the_usual_width_of_an_mlp(hidden, gated, ffn):
    """Eight thirds in multiples of 64, or four times."""
    assert spelling.default_ffn(Numbers(hidden=hidden, gated=gated)) == ffn


@pytest.mark.parametrize(("hidden", "heads", "width"), [(4096, 32, 128), (2048, 24, 0), (6, 6, 1)])
def test_the_usual_width_of_a_head(hidden, heads, width):
    assert spelling.default_head_dim(Numbers(hidden=hidden, heads=heads)) == width


@pytest.mark.parametrize(
    ("percent", "layers", "offloaded", "again"),
    [(0, 32, 0, 0), (1, 32, 1, 3), (31, 32, 10, 31), (32, 32, 11, 34), (50, 32, 16, 50),
     (100, 32, 32, 100), (10, 80, 8, 10)],
)  # fmt: skip
def test_shares_of_layers_on_the_host(percent, layers, offloaded, again):
    assert spelling.offloaded_layers(percent, layers) == offloaded
    assert spelling.percent_of(offloaded, layers) == again


def test_a_heading_states_whole_nodes_and_the_rest():
    cluster = Cluster.profile("h100-sxm", gpus=20)
    task = Task(Model.preset("llama-7b"), cluster, sequence=2048, global_batch=20)
    assert heading(task, Plan(dp=20), "Title") == [
        "# Title, written by plan3d",
        "# llama-7b on 20 x H100-80GB-SXM5 (3 x 8, h100-sxm)",
        "# plan: dp=20",
    ]
