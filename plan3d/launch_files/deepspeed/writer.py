"""How does DeepSpeed run a plan? A JSON configuration; with tensor or pipeline parallelism or
recompute also the flags of Megatron-DeepSpeed, in one shell fragment.

Source: DeepSpeed, runtime/config.py, runtime/zero/config.py, runtime/pipe/engine.py, as of 0.19;
Megatron-DeepSpeed, megatron/arguments.py and examples_deepspeed, as of 2024-12 (207b2d5).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from plan3d.simulator.hardware.precision import Optimizer, Precision
from plan3d.simulator.pipeline.schedules import code, launched_by
from plan3d.simulator.plan.codes import ContextComm, Recompute
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.rules.rule import Rule
from plan3d.simulator.step.stage_layouts import chunk_sizes
from plan3d.simulator.task import Task

from .. import shape
from ..documents import with_kept
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
from ..megatron import writer as megatron
from ..megatron.model_flags import Lines, model_flags

VERSION = "0.19"
TITLE = f"DeepSpeed {VERSION}"
FILE = "ds_config.json"
"""Where the fragment puts the configuration."""
SCHEDULES = launched_by("deepspeed")
FORMATS = {Precision.FP16: "fp16", Precision.FP32: "", Precision.BF16: "bf16"}
"""The section that switches a 16-bit format on."""
BUCKETS = ("reduce_bucket_size", "allgather_bucket_size")
"""Parameters of a bucket that is reduced, and of one that is gathered."""
EXPRESSES = (
    shape.HEAD_WIDTH,
    shape.GROUPED,
    shape.BIASES,
    shape.LAYER_NORM,
    shape.RMS_NORM,
    shape.PLAIN_MLP,
    shape.GATED_MLP,
    shape.LEARNED,
    shape.ROTARY,
    shape.TIED,
    shape.UNTIED,
)
"""Features of a model that Megatron-DeepSpeed has flags for."""
OWN_NAMES = {
    ("--normalization", "LayerNorm"): ("--normalization", "layernorm"),
    ("--normalization", "RMSNorm"): ("--normalization", "rmsnorm"),
    ("--position-embedding-type", "rope"): ("--use-rotary-position-embeddings",),
    ("--position-embedding-type", "learned_absolute"): (),
    ("--group-query-attention",): (),
}
"""Megatron-LM's flags that Megatron-DeepSpeed spells in its own way."""


def needs_megatron(plan: Plan) -> bool:
    """Whether the JSON alone cannot say everything of one plan."""
    return bool(plan.tp * plan.pp * plan.cp > 1 or plan.recompute > 0)


_BUILT = expresses("deepspeed-model", "Megatron-DeepSpeed", EXPRESSES)


def _even(p: Any, task: Task) -> Any:
    ends = (p.first_stage_layers == 0) & (p.last_stage_layers == 0)
    return (p.pp == 1) | (ends & (len(p.layers_per_stage) == 0) & (task.model.layers % p.pp == 0))


RULES = (
    Rule(
        _BUILT.name,
        ("tp", "pp", "cp", "recompute"),
        lambda p, t: _BUILT.ok(p, t) | ((p.tp * p.pp * p.cp == 1) & (p.recompute == 0)),
        _BUILT.message,
    ),
    Rule(
        "deepspeed-context-parallel",
        ("cp", "cp_comm"),
        lambda p, t: (p.cp == 1) | (p.cp_comm == ContextComm.A2A),
        lambda p, t: (
            f"{said(p, 'cp')} {said(p, 'cp_comm')}: DeepSpeed splits sequences by all-to-all "
            "(Ulysses); nearest: cp_comm=a2a, or cp=1"
        ),
    ),
    Rule(
        "deepspeed-ulysses-alone",
        ("cp", "tp", "pp"),
        lambda p, t: (p.cp == 1) | (p.tp * p.pp == 1),
        lambda p, t: f"{said(p, 'cp')}: Ulysses excludes tp and pp; nearest: tp=1 pp=1, or cp=1",
    ),
    whole_key_heads("deepspeed-key-heads", "Megatron-DeepSpeed"),
    only("deepspeed-chunks", "virtual_stages", (1,), "its pipeline engine runs one chunk a rank"),
    only(
        "deepspeed-schedule",
        "schedule",
        SCHEDULES,
        "its pipeline engine runs 1f1b, and zb-h1 in Megatron-DeepSpeed",
    ),
    Rule(
        "deepspeed-zero-bubble",
        ("schedule", "sequence_parallel"),
        lambda p, t: (p.schedule != code("zb-h1")) | (p.sequence_parallel == 0),
        lambda p, t: "zb-h1 excludes sequence parallelism; nearest: sequence_parallel=0",
    ),
    Rule(
        "deepspeed-pipeline-zero",
        ("pp", "zero"),
        lambda p, t: (p.pp == 1) | (p.zero < 2),
        lambda p, t: f"zero={p.zero}: the pipeline engine takes ZeRO 0 and 1; nearest: zero=1",
    ),
    Rule(
        "deepspeed-stages",
        ("pp", "first_stage_layers", "last_stage_layers"),
        _even,
        lambda p, t: (
            f"stages of {','.join(map(str, chunk_sizes(t, p)))} layers: Megatron-DeepSpeed cuts "
            f"{t.model.layers} layers into {p.pp} equal stages"
        ),
    ),
    only("deepspeed-hybrid", "shard", (0,), "its hpZ keeps a copy of the weights, no more"),
    Rule(
        "deepspeed-buckets",
        ("bucket_parameters", "zero"),
        lambda p, t: (p.bucket_parameters == 0) | (p.zero > 0),
        lambda p, t: (
            f"{said(p, 'bucket_parameters')}: buckets are those of ZeRO 1 and 2; nearest: "
            "bucket_parameters=0"
        ),
    ),
    only("deepspeed-expert-axes", "ep", (1,), "expert groups are set in the model's code"),
    only("deepspeed-expert-tensor", "etp", (1,), "expert groups are set in the model's code"),
    only("deepspeed-precision", "precision", FORMATS, "DeepSpeed has bf16, fp16 and fp32"),
    only("deepspeed-optimizer", "optimizer", (Optimizer.ADAM,), "ZeRO is tested with Adam"),
    only(
        "deepspeed-recompute",
        "recompute",
        (Recompute.FULL, Recompute.NONE),
        "activation checkpointing is of whole layers",
    ),
    only(
        "deepspeed-offloaded-activations",
        "offload_activations",
        (0,),
        "its cpu_checkpointing waits for every copy, which no plan says",
    ),
    Rule(
        "deepspeed-offloaded-share",
        ("offload_optimizer", "zero"),
        lambda p, t: (p.offload_optimizer % 100 == 0) | (p.zero == 3),
        lambda p, t: (
            f"{said(p, 'offload_optimizer')}: a part of the optimizer (Twin-Flow's ratio) needs "
            "ZeRO 3; nearest: offload_optimizer=100, or zero=3"
        ),
    ),
    Rule(
        "deepspeed-offloaded-stages",
        ("offload_optimizer", "pp"),
        lambda p, t: (p.offload_optimizer == 0) | (p.pp == 1),
        lambda p, t: (
            f"{said(p, 'offload_optimizer')}: the pipeline engine keeps its optimizer on GPUs "
            "(deepspeedai/Megatron-DeepSpeed#369); nearest: pp=1"
        ),
    ),
    only("deepspeed-tp-overlap", "overlap_tp", (0,), "Megatron-DeepSpeed does not overlap tp"),
    Rule(
        "deepspeed-gather-overlap",
        ("overlap_param_gather", "zero"),
        lambda p, t: p.overlap_param_gather == (p.zero == 3),
        lambda p, t: (
            f"{said(p, 'overlap_param_gather')}: ZeRO 3 prefetches weights, ZeRO 1 and 2 gather "
            f"them after the step; nearest: overlap_param_gather={int(p.zero == 3)}"
        ),
    ),
    Rule(
        "deepspeed-gradient-overlap",
        ("overlap_grad_reduce", "zero", "pp"),
        lambda p, t: (p.overlap_grad_reduce == 0) | ((p.zero > 0) & (p.pp == 1)),
        lambda p, t: (
            "overlap_grad_reduce=1: without ZeRO, and in pipelines, gradients are reduced after "
            "the last micro-batch; nearest: overlap_grad_reduce=0"
        ),
    ),
)
"""Rules of DeepSpeed and, with tp, pp or recompute, of Megatron-DeepSpeed."""


def stage_of(plan: Plan) -> int:
    """The ZeRO stage; an optimizer on the host needs one, also of a single data rank."""
    return 2 if plan.offload_optimizer and plan.zero == 0 else int(plan.zero)


def offload_of(plan: Plan) -> dict[str, Any]:
    """Where the optimizer is; a part of it in the terms of Twin-Flow."""
    out: dict[str, Any] = {"device": "cpu", "pin_memory": True}
    if plan.offload_optimizer < 100:
        out["ratio"] = plan.offload_optimizer / 100
    return out


def configuration(task: Task, plan: Plan) -> dict[str, Any]:
    """The JSON configuration."""
    out: dict[str, Any] = {
        "train_batch_size": task.global_batch,
        "train_micro_batch_size_per_gpu": int(plan.micro_batch),
        "gradient_accumulation_steps": micro_batches(task, plan),
        "zero_optimization": {"stage": stage_of(plan)},
    }
    if plan.offload_optimizer:
        out["zero_optimization"]["offload_optimizer"] = offload_of(plan)
    if plan.zero > 0:
        out["zero_optimization"]["overlap_comm"] = bool(plan.overlap_grad_reduce)
    if plan.bucket_parameters:
        out["zero_optimization"] |= dict.fromkeys(BUCKETS, int(plan.bucket_parameters))
    section = FORMATS[Precision(int(plan.precision))]
    if section:
        out[section] = {"enabled": True}
    return out


def deepspeed_flags(plan: Plan) -> Lines:
    """Megatron-DeepSpeed's own flags."""
    out: Lines = [
        ("--deepspeed",),
        ("--deepspeed_config", FILE),
        ("--zero-stage", str(stage_of(plan))),
    ]
    if plan.offload_optimizer:
        out.append(("--cpu-optimizer",))
    if plan.pp == 1:
        out.append(("--no-pipeline-parallel",))
    if plan.schedule == code("zb-h1"):
        out.append(("--enable-zbh1-pipeline",))
    if plan.recompute:
        out += [("--checkpoint-activations",), ("--deepspeed-activation-checkpointing",)]
    return out


def training_flags(task: Task, plan: Plan) -> Lines:
    """Sizes and number formats, which must agree with the JSON."""
    dropout = "0.1" if task.software.dropout else "0.0"
    section = FORMATS[Precision(int(plan.precision))]
    return [
        ("--tensor-model-parallel-size", str(plan.tp)),
        ("--pipeline-model-parallel-size", str(plan.pp)),
        *([("--ds-sequence-parallel-size", str(plan.cp))] if plan.cp > 1 else []),
        *([("--sequence-parallel",)] if plan.sequence_parallel else []),
        ("--micro-batch-size", str(plan.micro_batch)),
        ("--global-batch-size", str(task.global_batch)),
        ("--seq-length", str(task.sequence)),
        *([(f"--{section}",)] if section else []),
        ("--optimizer", "adam"),
        ("--attention-dropout", dropout),
        ("--hidden-dropout", dropout),
    ]


def own_model_flags(task: Task) -> Lines:
    """The flags of the model as Megatron-DeepSpeed spells them."""
    flags = [OWN_NAMES.get(words, words) for words in model_flags(task.model, task.sequence)]
    renamed = {"--num-query-groups": "--num-key-value-heads"}
    return [(renamed.get(words[0], words[0]), *words[1:]) for words in flags if words]


def json_text(content: dict[str, Any]) -> str:
    """An object as people write it."""
    return json.dumps(content, indent=2)


def write(task: Task, plan: Plan) -> str:
    """The JSON file, or a shell fragment that writes it and states the other flags."""
    content = json_text(configuration(task, plan))
    if not needs_megatron(plan):
        return content + "\n"
    groups = {
        "MODEL_ARGS": own_model_flags(task),
        "TRAINING_ARGS": training_flags(task, plan),
        "DEEPSPEED_ARGS": deepspeed_flags(plan),
    }
    used = " ".join(f'"${{{name}[@]}}"' for name in groups)
    nodes, each = task.cluster.nodes, task.cluster.gpus_per_node
    return "\n".join(
        [
            *heading(task, plan, f"{TITLE} with Megatron-DeepSpeed"),
            *megatron.environment(task, plan, False),
            f"cat > {FILE} <<'JSON'",
            content,
            "JSON",
            *(line for name, flags in groups.items() for line in megatron.array(name, flags)),
            "# Add your data, tokenizer, learning rate and checkpoint flags:",
            f"# deepspeed --num_nodes {nodes} --num_gpus {each} pretrain_gpt.py {used} ...",
            "",
        ]
    )


def merge(text: str, kept: Sequence[Kept]) -> str:
    """The file with what an imported one said besides, in its JSON and among its flags."""
    inside = [part for part in kept if part.keys]
    if text.startswith("{"):
        return json_text(with_kept(json.loads(text), inside)) + "\n"
    before, after = text.split("<<'JSON'\n", 1)
    content, rest = after.split("\nJSON\n", 1)
    new = json_text(with_kept(json.loads(content), inside))
    flags = [part for part in kept if not part.keys]
    return megatron.merge(f"{before}<<'JSON'\n{new}\nJSON\n{rest}", flags)


EXPORTER = Exporter("deepspeed", (Form(VERSION, TITLE, RULES, write, merge),))
