"""How does nanotron run a plan? The sections of its YAML that a plan decides.

Source: nanotron main of 2026-04 (2411b02): config/config.py, config/parallelism_config.py,
config/models_config.py, parallel/context.py, examples/config_tiny_llama.yaml. The release 0.4 on
PyPI has neither recompute_layer nor context_parallel_size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plan3d.simulator.hardware.precision import Optimizer, Precision
from plan3d.simulator.pipeline.schedules import launched_by
from plan3d.simulator.plan.codes import ContextComm, Recompute
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.rules.rule import Rule
from plan3d.simulator.task import Task

from .. import shape
from ..documents import comments, with_kept
from ..exporter import (
    Exporter,
    Form,
    expresses,
    heading,
    micro_batches,
    only,
    said,
    whole_key_heads,
)
from ..launch_file import Kept
from ..shape import shape_of

VERSION = "2026-04"
TITLE = f"nanotron main of {VERSION}"
SCHEDULES = launched_by("nanotron")
"""pp_engine by schedule."""
FORMATS = {
    Precision.FP32: ("float32", False),
    Precision.PURE_BF16: ("bfloat16", False),
    Precision.BF16: ("bfloat16", True),
}
"""model.dtype and optimizer.accumulate_grad_in_fp32 by precision."""
KERNELS: dict[int, str] = {ContextComm.ALL_GATHER: "llama3_ring_attention", ContextComm.P2P: "ring"}
"""model_config._attn_implementation by cp_comm."""
EXPRESSES = (
    shape.GROUPED,
    shape.RMS_NORM,
    shape.GATED_MLP,
    shape.ROTARY,
    shape.TIED,
    shape.UNTIED,
)
"""Features of LlamaConfig."""
_NO_EXPERTS = "plans of nanotron are written for dense models"

RULES = (
    expresses("nanotron-model", "nanotron's LlamaConfig", EXPRESSES),
    whole_key_heads("nanotron-key-heads", "nanotron"),
    only("nanotron-schedule", "schedule", SCHEDULES, "nanotron has 1f1b and afab (gpipe)"),
    only("nanotron-chunks", "virtual_stages", (1,), "its engines run one chunk a rank"),
    Rule(
        "nanotron-stages",
        ("first_stage_layers", "last_stage_layers"),
        lambda p, t: (
            (p.first_stage_layers == 0)
            & (p.last_stage_layers == 0)
            & (len(p.layers_per_stage) == 0)
        ),
        lambda p, t: (
            "nanotron cuts stages by the parameters of its blocks, which no file changes; nearest: "
            "neither layers_per_stage nor first_stage_layers nor last_stage_layers"
        ),
    ),
    only("nanotron-context", "cp_comm", KERNELS, "nanotron has rings and gathers"),
    only("nanotron-sharding", "zero", (0, 1), "nanotron has ZeRO 0 and 1"),
    only("nanotron-hybrid", "shard", (0,), "its ZeRO 1 shards over all data ranks"),
    only("nanotron-buckets", "bucket_parameters", (0,), "its buckets are of megabytes"),
    only("nanotron-precision", "precision", FORMATS, "nanotron has bfloat16 and float32"),
    only("nanotron-optimizer", "optimizer", (Optimizer.ADAM,), "its SGD has no momentum"),
    only(
        "nanotron-recompute",
        "recompute",
        (Recompute.FULL, Recompute.NONE),
        "recompute_layer is of whole layers",
    ),
    only("nanotron-expert-axes", "ep", (1,), _NO_EXPERTS),
    only("nanotron-expert-tensor", "etp", (1,), _NO_EXPERTS),
    only("nanotron-offloaded-optimizer", "offload_optimizer", (0,), "its optimizer stays on GPUs"),
    only(
        "nanotron-offloaded-activations",
        "offload_activations",
        (0,),
        "it keeps activations on GPUs",
    ),
    only(
        "nanotron-gather-overlap",
        "overlap_param_gather",
        (0,),
        "its ZeRO 1 gathers weights after the step",
    ),
    Rule(
        "nanotron-gradient-overlap",
        ("overlap_grad_reduce", "dp", "cp"),
        lambda p, t: p.overlap_grad_reduce == (p.dp * p.cp > 1),
        lambda p, t: (
            f"{said(p, 'overlap_grad_reduce')}: its DDP always overlaps; nearest: "
            "overlap_grad_reduce=1"
        ),
    ),
)
"""Rules of nanotron."""


def sections(task: Task, plan: Plan) -> dict[str, Any]:
    """The sections of the configuration that a plan decides."""
    dtype, accumulate = FORMATS[Precision(int(plan.precision))]
    return {
        "parallelism": {
            "dp": int(plan.dp),
            "pp": int(plan.pp),
            "tp": int(plan.tp),
            "context_parallel_size": int(plan.cp),
            "expert_parallel_size": 1,
            "pp_engine": SCHEDULES[int(plan.schedule)],
            "tp_mode": "REDUCE_SCATTER" if plan.sequence_parallel else "ALL_REDUCE",
            "tp_linear_async_communication": bool(plan.overlap_tp),
            "recompute_layer": plan.recompute == Recompute.FULL,
        },
        "model": {
            "dtype": dtype,
            "make_vocab_size_divisible_by": 1,
            "model_config": model_config(task) | attention_kernel(plan),
        },
        "tokens": {
            "sequence_length": task.sequence,
            "micro_batch_size": int(plan.micro_batch),
            "batch_accumulation_per_replica": micro_batches(task, plan),
        },
        "optimizer": {"zero_stage": int(plan.zero), "accumulate_grad_in_fp32": accumulate},
    }


def attention_kernel(plan: Plan) -> dict[str, Any]:
    """The attention of split sequences."""
    return {"_attn_implementation": KERNELS[int(plan.cp_comm)]} if plan.cp > 1 else {}


def model_config(task: Task) -> dict[str, Any]:
    """The keys of LlamaConfig that decide the layers."""
    model, s = task.model, shape_of(task.model)
    assert s.mlp is not None
    return {
        "is_llama_config": True,
        "hidden_act": "silu",
        "hidden_size": model.hidden,
        "intermediate_size": s.mlp.ffn,
        "num_hidden_layers": model.layers,
        "num_attention_heads": s.attention.heads,
        "num_key_value_heads": s.attention.kv_heads,
        "max_position_embeddings": max(task.sequence, model.sequence),
        "tie_word_embeddings": model.tied,
        "vocab_size": model.vocabulary,
    }


def write(task: Task, plan: Plan) -> str:
    """The sections as YAML."""
    nodes, each = task.cluster.nodes, task.cluster.gpus_per_node
    top = [
        *heading(task, plan, TITLE),
        "# Add general, tokenizer, data_stages, checkpoints, model.init_method, tokens.train_steps",
        "# and what else the optimizer needs (optimizer_factory, weight_decay, clip_grad,",
        "# learning_rate_scheduler), then:",
        f"# CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --nnodes {nodes} --nproc-per-node {each} "
        "run_train.py --config-file FILE",
    ]
    return "\n".join(top) + "\n" + yaml_text(sections(task, plan))


def merge(text: str, kept: Sequence[Kept]) -> str:
    """The file with the keys that an imported one had besides."""
    import yaml

    return comments(text) + yaml_text(with_kept(yaml.safe_load(text), kept))


def yaml_text(content: dict[str, Any]) -> str:
    """A document in block style, keys in their order."""
    import yaml

    return str(yaml.safe_dump(content, sort_keys=False, default_flow_style=False))


EXPORTER = Exporter("nanotron", (Form(VERSION, TITLE, RULES, write, merge),))
