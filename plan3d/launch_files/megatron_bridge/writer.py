"""How does Megatron-Bridge run a plan? Overrides of a recipe, for 0.3.

Source: megatron-bridge 0.3.1, training/config.py (ConfigContainer), training/mixed_precision.py,
training/utils/omegaconf_utils.py (overrides go to a closed structure), models/gpt_provider.py;
field names of megatron/core 0.16.
"""

from __future__ import annotations

from typing import Any

from plan3d.simulator.hardware.precision import Optimizer, Precision
from plan3d.simulator.plan.codes import Recompute
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.task import Task
from plan3d.simulator.workload.blocks import Attention, Experts
from plan3d.simulator.workload.model import Model

from .. import shape
from ..exporter import Exporter, Form, heading, only
from ..megatron import writer as megatron
from ..megatron.offload_flags import offload_values
from ..megatron.rules import rules
from ..shape import shape_of

VERSION = "0.3.1"
TITLE = f"Megatron-Bridge {VERSION}"
MIXED = {
    Precision.FP16: "fp16_mixed",
    Precision.FP8: "bf16_with_fp8_current_scaling_mixed",
    Precision.BF16: "bf16_mixed",
}
"""Recipes of number formats by precision."""
RULES = (
    *rules(TITLE, "megatron-bridge"),
    only("megatron-bridge-recipe", "precision", MIXED, f"{TITLE} has no recipe for it"),
)
FLAGS = {
    "--decoder-first-pipeline-num-layers": "num_layers_in_first_pipeline_stage",
    "--decoder-last-pipeline-num-layers": "num_layers_in_last_pipeline_stage",
    "--pipeline-model-parallel-layout": "pipeline_model_parallel_layout",
    "--num-virtual-stages-per-pipeline-rank": "virtual_pipeline_model_parallel_size",
}
"""Fields of the model by Megatron-LM's flags of its stages."""

Values = dict[str, Any]


def overrides(task: Task, plan: Plan) -> Values:
    """Every override by dotted key."""
    dropout = 0.1 if task.software.dropout else 0.0
    model: Values = {
        **model_values(task.model),
        "seq_length": task.sequence,
        **parallel_values(task, plan),
        **recompute_values(task, plan),
        "attention_dropout": dropout,
        "hidden_dropout": dropout,
    }
    return {
        **{f"model.{key}": value for key, value in model.items()},
        # Data and model state the length on their own; `seq_length` of the data is no field.
        "dataset.sequence_length": task.sequence,
        "train.micro_batch_size": int(plan.micro_batch),
        "train.global_batch_size": task.global_batch,
        "mixed_precision": MIXED[Precision(int(plan.precision))],
        "optimizer.optimizer": Optimizer(int(plan.optimizer)).name.lower(),
        **sharding_values(plan),
        **offload_values(task, plan),
        # Without it the overlaps are those stated here, not what Bridge chooses for the sizes.
        "comm_overlap": None,
    }


def model_values(model: Model) -> Values:
    """Fields of the provider that describe the layers."""
    s = shape_of(model)
    dense, experts = s.mlp, s.experts
    out: Values = {
        "num_layers": model.layers,
        "hidden_size": model.hidden,
        "ffn_hidden_size": dense.ffn if dense else experts.ffn if experts else 0,
        "num_attention_heads": s.attention.heads,
        "vocab_size": model.vocabulary,
        "share_embeddings_and_output_weights": model.tied,
        "normalization": "LayerNorm" if model.norm_bias else "RMSNorm",
        "position_embedding_type": "learned_absolute" if model.learned_positions else "rope",
        "gated_linear_unit": dense.gated if dense else experts is not None and experts.gated,
        "add_bias_linear": s.attention.out_bias,
        "add_qkv_bias": s.attention.qkv_bias,
        **_attention(s.attention),
    }
    if model.mtp_layers:
        out["mtp_num_layers"] = model.mtp_layers
    return {**out, **(_experts(experts, s.sparse) if experts else {})}


def _attention(a: Attention) -> Values:
    if not a.kv_rank:
        return {
            "num_query_groups": a.kv_heads,
            "kv_channels": a.head_dim,
            "qk_layernorm": bool(a.query_key_norm),
        }
    return {
        "multi_latent_attention": True,
        "q_lora_rank": a.q_rank or None,
        "kv_lora_rank": a.kv_rank,
        "qk_head_dim": a.head_dim - a.rope_dim,
        "qk_pos_emb_head_dim": a.rope_dim,
        "v_head_dim": a.value_dim,
        "qk_layernorm": True,
    }


def _experts(e: Experts, sparse: tuple[bool, ...]) -> Values:
    return {
        "num_moe_experts": e.count,
        "moe_router_topk": e.top_k,
        "moe_ffn_hidden_size": e.ffn,
        "moe_shared_expert_intermediate_size": e.shared_ffn or None,
        "moe_router_num_groups": e.groups if e.groups > 1 else None,
        "moe_router_group_topk": e.group_limit if e.groups > 1 else None,
        "moe_layer_freq": 1 if all(sparse) else [int(kind) for kind in sparse],
        "moe_grouped_gemm": True,
    }


def parallel_values(task: Task, plan: Plan) -> Values:
    """Fields of the provider that describe the axes and stages."""
    stages: Values = dict.fromkeys(FLAGS.values())
    if plan.pp > 1:
        stages |= {
            FLAGS[flag]: value if value.startswith("E") else int(value)
            for flag, value in megatron.stage_flags(task, plan)
        }
    overlapped = plan.virtual_stages > 1 and bool(plan.overlap_p2p)
    out: Values = {
        "tensor_model_parallel_size": int(plan.tp),
        "pipeline_model_parallel_size": int(plan.pp),
        "context_parallel_size": int(plan.cp),
        "cp_comm_type": megatron.EXCHANGES[int(plan.cp_comm)] if plan.cp > 1 else None,
        "microbatch_group_size_per_vp_stage": int(plan.micro_batch_group) or None,
        **stages,
        "sequence_parallel": bool(plan.sequence_parallel),
        "tp_comm_overlap": bool(plan.overlap_tp),
        "overlap_p2p_comm": overlapped,
        "batch_p2p_comm": not overlapped,
    }
    if shape.EXPERTS in shape.features(task.model):
        out |= {
            "expert_model_parallel_size": int(plan.ep),
            "expert_tensor_parallel_size": int(plan.etp),
            "moe_token_dispatcher_type": megatron.DISPATCHERS[int(plan.expert_dispatch)],
            "overlap_moe_expert_parallel_comm": bool(plan.overlap_ep),
        }
    return out


def recompute_values(task: Task, plan: Plan) -> Values:
    """Fields of the provider that describe recomputation."""
    names = ("recompute_granularity", "recompute_method", "recompute_num_layers")
    if plan.recompute == Recompute.FULL:
        return {**dict(zip(names, ("full", "uniform", 1), strict=True)), "recompute_modules": None}
    if plan.recompute == Recompute.NONE:
        return {**dict.fromkeys(names), "recompute_modules": None}
    modules = list(megatron.recomputed_modules(task))
    return {**dict.fromkeys(names), names[0]: "selective", "recompute_modules": modules}


def sharding_values(plan: Plan) -> Values:
    """Fields of the data-parallel wrapper and of the optimizer."""
    fsdp = plan.zero > 1
    out: Values = {
        "ddp.use_distributed_optimizer": plan.zero > 0,
        "optimizer.use_distributed_optimizer": plan.zero > 0,
        "ddp.overlap_grad_reduce": bool(plan.overlap_grad_reduce),
        "ddp.overlap_param_gather": bool(plan.overlap_param_gather),
        "ddp.use_megatron_fsdp": fsdp,
        "ddp.data_parallel_sharding_strategy": megatron.SHARDING.get(int(plan.zero), "no_shard"),
        "ddp.bucket_size": int(plan.bucket_parameters) or None,
        "ddp.num_distributed_optimizer_instances": megatron.instances(plan) or 1,
    }
    if fsdp:
        out |= {"model.gradient_accumulation_fusion": False}
        out |= {"checkpoint.ckpt_format": "fsdp_dtensor"}
    return out


def hydra(value: Any) -> str:
    """A value as an override states it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return f'"{value}"' if isinstance(value, str) and not value.isidentifier() else str(value)


def write(task: Task, plan: Plan) -> str:
    """The overrides as a bash array."""
    words = ((f"{key}={hydra(value)}",) for key, value in overrides(task, plan).items())
    nodes, each = task.cluster.nodes, task.cluster.gpus_per_node
    return "\n".join(
        [
            *heading(task, plan, TITLE),
            *megatron.environment(task, plan, bool(plan.zero > 1)),
            *megatron.array("OVERRIDES", words),
            "# Start from the recipe of this model, or of one of its family:",
            f"# torchrun --nnodes {nodes} --nproc-per-node {each} run_recipe.py --recipe RECIPE "
            '"${OVERRIDES[@]}"',
            "",
        ]
    )


EXPORTER = Exporter("megatron-bridge", (Form(VERSION, TITLE, RULES, write),))
