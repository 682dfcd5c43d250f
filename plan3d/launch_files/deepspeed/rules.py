"""Rules of DeepSpeed, and of Megatron-DeepSpeed, which runs tp, pp and recompute.

Source: DeepSpeed 0.19, runtime/config.py, runtime/zero/config.py, runtime/pipe/engine.py;
Megatron-DeepSpeed, megatron/arguments.py, as of 2024-12 (207b2d5).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from plan3d.simulator.hardware.precision import Optimizer
from plan3d.simulator.layers.placements import chunk_sizes
from plan3d.simulator.pipeline.schedules import launched_by, schedule_code
from plan3d.simulator.plan.field_values import ContextComm, Recompute
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.rules.rule import Rule
from plan3d.simulator.task import Task

from .. import shape
from ..common_rules import expressible_model, field_text, one_of, whole_key_heads
from .keys import FORMATS

SCHEDULES = launched_by("deepspeed")
EXPRESSIBLE = (
    shape.HEAD_WIDTH,
    shape.GROUPED_QUERIES,
    shape.LINEAR_BIASES,
    shape.LAYER_NORM,
    shape.RMS_NORM,
    shape.UNGATED_MLP,
    shape.GATED_MLP,
    shape.LEARNED_POSITIONS,
    shape.ROTARY_POSITIONS,
    shape.TIED_HEAD,
    shape.UNTIED_HEAD,
)
"""Features of a model that Megatron-DeepSpeed has flags for."""
_MEGATRON_MODEL = expressible_model("deepspeed-model", "Megatron-DeepSpeed", EXPRESSIBLE)


def needs_megatron(p: Plan, task: Task) -> Any:
    """Whether plans need Megatron-DeepSpeed: split models, and recompute of models that it has.
    Other models recompute in their own code."""
    return (p.tp * p.pp * p.cp > 1) | ((p.recompute > 0) & bool(_MEGATRON_MODEL.ok(p, task)))


def _has_equal_stages(p: Plan, task: Task) -> Any:
    ends = (p.first_stage_layers == 0) & (p.last_stage_layers == 0)
    return (p.pp == 1) | (ends & (len(p.layers_per_stage) == 0) & (task.model.layers % p.pp == 0))


GATHER_OVERLAP = Rule(
    "deepspeed-gather-overlap",
    ("overlap_param_gather", "zero", "overlap_grad_reduce"),
    lambda p, t: p.overlap_param_gather == ((p.zero == 3) & (p.overlap_grad_reduce > 0)),
    lambda p, t: (
        f"{field_text(p, 'overlap_param_gather')}: ZeRO 3 prefetches weights, ZeRO 1 and 2 "
        f"gather them after the step; nearest: overlap_param_gather={int(p.zero == 3)}"
    ),
)
"""ZeRO 3 alone gathers beside other work."""
RULES = (
    Rule(
        _MEGATRON_MODEL.name,
        ("tp", "pp", "cp"),
        lambda p, t: _MEGATRON_MODEL.ok(p, t) | (p.tp * p.pp * p.cp == 1),
        _MEGATRON_MODEL.message,
    ),
    Rule(
        "deepspeed-context-parallel",
        ("cp", "cp_comm"),
        lambda p, t: (p.cp == 1) | (p.cp_comm == ContextComm.A2A),
        lambda p, t: (
            f"{field_text(p, 'cp')} {field_text(p, 'cp_comm')}: DeepSpeed splits sequences by "
            "all-to-all (Ulysses); nearest: cp_comm=a2a, or cp=1"
        ),
    ),
    Rule(
        "deepspeed-ulysses-alone",
        ("cp", "tp", "pp"),
        lambda p, t: (p.cp == 1) | (p.tp * p.pp == 1),
        lambda p, t: (
            f"{field_text(p, 'cp')}: Ulysses excludes tp and pp; nearest: tp=1 pp=1, or cp=1"
        ),
    ),
    whole_key_heads("deepspeed-key-heads", "Megatron-DeepSpeed"),
    one_of("deepspeed-chunks", "virtual_stages", (1,), "its pipeline engine runs one chunk a rank"),
    one_of(
        "deepspeed-schedule",
        "schedule",
        SCHEDULES,
        "its pipeline engine runs 1f1b, and zb-h1 in Megatron-DeepSpeed",
    ),
    Rule(
        "deepspeed-zero-bubble",
        ("schedule", "sequence_parallel"),
        lambda p, t: (p.schedule != schedule_code("zb-h1")) | (p.sequence_parallel == 0),
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
        _has_equal_stages,
        lambda p, t: (
            f"stages of {','.join(map(str, chunk_sizes(t, p)))} layers: Megatron-DeepSpeed cuts "
            f"{t.model.layers} layers into {p.pp} equal stages"
        ),
    ),
    one_of("deepspeed-hybrid", "shard", (0,), "its hpZ keeps a copy of the weights, no more"),
    Rule(
        "deepspeed-buckets",
        ("bucket_parameters", "zero"),
        lambda p, t: (p.bucket_parameters == 0) | (p.zero > 0),
        lambda p, t: (
            f"{field_text(p, 'bucket_parameters')}: buckets are those of ZeRO 1 and 2; nearest: "
            "bucket_parameters=0"
        ),
    ),
    one_of("deepspeed-expert-axes", "ep", (1,), "expert groups are set in the model's code"),
    one_of("deepspeed-expert-tensor", "etp", (1,), "expert groups are set in the model's code"),
    one_of("deepspeed-precision", "precision", FORMATS, "DeepSpeed has bf16, fp16 and fp32"),
    one_of(
        "deepspeed-optimizer",
        "optimizer",
        (Optimizer.MUON, Optimizer.ADAM),
        "ZeRO is tested with Adam and Muon",
    ),
    Rule(
        "deepspeed-muon-alone",
        ("optimizer", "tp", "pp", "cp", "recompute"),
        lambda p, t: (p.optimizer != Optimizer.MUON) | np.logical_not(needs_megatron(p, t)),
        lambda p, t: (
            f"{field_text(p, 'optimizer')}: Megatron-DeepSpeed, which {field_text(p, 'tp')} "
            f"{field_text(p, 'pp')} {field_text(p, 'cp')} {field_text(p, 'recompute')} need, has "
            "no Muon; nearest: optimizer=adam"
        ),
    ),
    one_of(
        "deepspeed-recompute",
        "recompute",
        (Recompute.FULL, Recompute.NONE),
        "activation checkpointing is of whole layers",
    ),
    one_of(
        "deepspeed-offloaded-activations",
        "offload_activations",
        (0,),
        "its cpu_checkpointing waits for every copy, which is not modelled",
    ),
    Rule(
        "deepspeed-offloaded-share",
        ("offload_optimizer", "zero"),
        lambda p, t: (p.offload_optimizer % 100 == 0) | (p.zero == 3),
        lambda p, t: (
            f"{field_text(p, 'offload_optimizer')}: a part of the optimizer (Twin-Flow's ratio) "
            "needs ZeRO 3; nearest: offload_optimizer=100, or zero=3"
        ),
    ),
    Rule(
        "deepspeed-offloaded-stages",
        ("offload_optimizer", "pp"),
        lambda p, t: (p.offload_optimizer == 0) | (p.pp == 1),
        lambda p, t: (
            f"{field_text(p, 'offload_optimizer')}: the pipeline engine keeps its optimizer on "
            "GPUs (deepspeedai/Megatron-DeepSpeed#369); nearest: pp=1"
        ),
    ),
    Rule(
        "deepspeed-offloaded-weights",
        ("offload_parameters", "nvme"),
        lambda p, t: p.offload_parameters % 100 == 0,
        lambda p, t: (
            f"{field_text(p, 'offload_parameters')}: offload_param takes all weights or none, to "
            "the host or to its drives; nearest: offload_parameters=100"
        ),
    ),
    one_of("deepspeed-tp-overlap", "overlap_tp", (0,), "Megatron-DeepSpeed does not overlap tp"),
    GATHER_OVERLAP,
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
