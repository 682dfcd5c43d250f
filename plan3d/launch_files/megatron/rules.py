"""Rules of Megatron-LM, and of what is built on it.

Source: Megatron-LM, megatron/training/arguments.py (validate_args), megatron/core 0.16
(transformer_config.py, transformer_block.py, optimizer/distrib_optimizer.py), Megatron-FSDP guide;
Transformer Engine 2.9, attention/dot_product_attention/context_parallel.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from plan3d.simulator.base.arrays import is_among
from plan3d.simulator.hardware.precision import Optimizer, Precision
from plan3d.simulator.pipeline.schedules import launched_by
from plan3d.simulator.plan.field_values import ContextComm, Dispatch, Recompute
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.rules.expert_rules import has_expert_kernels
from plan3d.simulator.rules.rule import Rule
from plan3d.simulator.rules.training_rules import recomputed_modules
from plan3d.simulator.task import Task

from .. import shape
from ..common_rules import expressible_model, field_text, one_of
from .spelling import FP8_RECIPES, offloaded_layers, percent_of

EXPRESSIBLE = (
    shape.LATENT_ATTENTION,
    shape.WINDOWED_ATTENTION,
    shape.HEAD_NORM,
    shape.HEAD_WIDTH,
    shape.GROUPED_QUERIES,
    shape.QKV_BIAS,
    shape.LINEAR_BIASES,
    shape.LAYER_NORM,
    shape.RMS_NORM,
    shape.UNGATED_MLP,
    shape.GATED_MLP,
    shape.EXPERTS,
    shape.DENSE_LAYERS,
    shape.SHARED_EXPERTS,
    shape.LEARNED_POSITIONS,
    shape.ROTARY_POSITIONS,
    shape.TIED_HEAD,
    shape.UNTIED_HEAD,
    shape.MTP,
)
"""Features of a model that Megatron-LM has flags for."""
SCHEDULES = launched_by("megatron-core")
WRITTEN_OPTIMIZERS = (Optimizer.ADAM, Optimizer.SGD)
WITHOUT_USERBUFFERS = (Precision.FP8_BLOCKWISE, Precision.NVFP4)
"""Formats whose scales do not fit into the buffers of overlapped tensor parallelism."""
NOT_RECOMPUTED_DELAYED = frozenset({"layernorm", "moe_act"})
"""Modules that selective recompute does not run again with delayed scaling
(transformer_config.py)."""
SCALED_FORMATS = (Precision.NVFP4, *FP8_RECIPES.values())
PRECISIONS = (*SCALED_FORMATS, Precision.FP16, Precision.FP32, Precision.BF16)


def _expressible_bf16_ends(p: Plan, task: Task) -> Any:
    """At most the layers of a stage at either end, and no delayed scaling."""
    most = np.maximum(p.bf16_first_layers, p.bf16_last_layers)
    supported = (most <= task.model.layers // p.pp) & (p.precision != Precision.FP8_DELAYED)
    return (most == 0) | supported


def rules(title: str, prefix: str) -> tuple[Rule, ...]:
    """What a version of Megatron-LM, or what is built on it, refuses."""
    runs = f"{title} runs 1f1b, and interleaved with virtual stages"
    return (
        expressible_model(f"{prefix}-model", title, EXPRESSIBLE),
        one_of(f"{prefix}-schedule", "schedule", SCHEDULES, runs),
        one_of(
            f"{prefix}-precision", "precision", PRECISIONS, f"{title} keeps fp32 master weights"
        ),
        one_of(
            f"{prefix}-optimizer",
            "optimizer",
            WRITTEN_OPTIMIZERS,
            f"{title} is written with Adam or SGD",
        ),
        Rule(
            f"{prefix}-ends-in-16-bits",
            ("bf16_first_layers", "bf16_last_layers", "precision", "pp"),
            _expressible_bf16_ends,
            lambda p, t: (
                f"bf16_first_layers={p.bf16_first_layers} bf16_last_layers={p.bf16_last_layers}: "
                f"{title} keeps no more than {t.model.layers // p.pp} layers, those of a stage, at "
                "either end in 16 bits, and none with delayed scaling; nearest: "
                "bf16_first_layers=0 bf16_last_layers=0"
            ),
        ),
        Rule(
            f"{prefix}-delayed-recompute",
            ("precision", "recompute"),
            lambda p, t: (
                (p.precision != Precision.FP8_DELAYED)
                | (p.recompute != Recompute.SELECTIVE)
                | NOT_RECOMPUTED_DELAYED.isdisjoint(recomputed_modules(t))
            ),
            lambda p, t: (
                f"recompute=selective: {title} does not run "
                f"{' and '.join(sorted(NOT_RECOMPUTED_DELAYED))} again with "
                "delayed scaling; nearest: precision=fp8, or recompute=full"
            ),
        ),
        Rule(
            f"{prefix}-window-context",
            ("cp", "cp_comm"),
            lambda p, t: (
                (p.cp == 1)
                | (p.cp_comm != ContextComm.P2P)
                | (shape.WINDOWED_ATTENTION not in shape.features(t.model))
            ),
            lambda p, t: (
                f"{field_text(p, 'cp_comm')}: Transformer Engine splits sequences of attention "
                "windows by gathering or Ulysses, not in rings; nearest: cp_comm=all-gather"
            ),
        ),
        Rule(
            f"{prefix}-overlap-precision",
            ("overlap_tp", "precision"),
            lambda p, t: (p.overlap_tp == 0) | ~is_among(p.precision, WITHOUT_USERBUFFERS),
            lambda p, t: (
                f"overlap_tp: Transformer Engine has no buffers for {field_text(p, 'precision')} "
                "(pytorch/module/base.py, fill_userbuffers_buffer_for_all_gather); nearest: "
                "overlap_tp=0"
            ),
        ),
        Rule(
            f"{prefix}-latent-overlap",
            ("overlap_tp",),
            lambda p, t: (
                (p.overlap_tp == 0) | (shape.LATENT_ATTENTION not in shape.features(t.model))
            ),
            lambda p, t: (
                "overlap_tp: Megatron-Core turns it off for all layers where attention is latent "
                "(extensions/transformer_engine.py, buffers of tp_comm_overlap); nearest: "
                "overlap_tp=0"
            ),
        ),
        *_sharding_rules(prefix),
        *_expert_rules(prefix),
        *_offload_rules(prefix),
    )


def _sharding_rules(prefix: str) -> tuple[Rule, ...]:
    """Rules of the distributed optimizer and Megatron-FSDP."""
    return (
        Rule(
            f"{prefix}-fsdp-pipeline",
            ("zero", "pp"),
            lambda p, t: (p.zero < 2) | (p.pp == 1),
            lambda p, t: (
                f"zero={p.zero} is Megatron-FSDP, which has no pipeline stages; nearest: zero=1"
            ),
        ),
        Rule(
            f"{prefix}-sharded-adam",
            ("zero", "optimizer"),
            lambda p, t: (p.zero == 0) | (p.optimizer == Optimizer.ADAM),
            lambda p, t: (
                f"zero={p.zero}: the distributed optimizer is Adam's only; nearest: optimizer=adam"
            ),
        ),
    )


def _expert_rules(prefix: str) -> tuple[Rule, ...]:
    """Rules of grouped GEMMs and overlapped dispatch."""
    return (
        Rule(
            f"{prefix}-experts-bf16",
            ("precision",),
            lambda p, t: (
                is_among(p.precision, (Precision.BF16, *SCALED_FORMATS))
                | (shape.EXPERTS not in shape.features(t.model))
            ),
            lambda p, t: "grouped GEMMs of experts need bf16; nearest: precision=bf16",
        ),
        Rule(
            f"{prefix}-expert-overlap",
            ("overlap_ep", "recompute", "precision", "pp", "zero"),
            lambda p, t: (
                (p.overlap_ep == 0)
                | (
                    (p.recompute != Recompute.FULL)
                    & (p.precision != Precision.FP32)
                    & ((p.pp > 1) | (t.model.mtp_layers == 0))
                    & (p.zero < 2)
                )
            ),
            lambda p, t: (
                "overlap_ep excludes full recompute, fp32, multi-token prediction without stages "
                "and Megatron-FSDP, whose hooks its schedule does not call "
                "(NVIDIA/Megatron-LM#3797); nearest: overlap_ep=0, or zero=1"
            ),
        ),
        Rule(
            f"{prefix}-expert-kernels",
            ("expert_dispatch",),
            lambda p, t: (
                (p.expert_dispatch != Dispatch.HIERARCHICAL) | has_expert_kernels(t.cluster)
            ),
            lambda p, t: (
                f"{field_text(p, 'expert_dispatch')}: DeepEP and HybridEP, which it is, need "
                f"NVLink and Hopper or later, not {t.cluster.accelerator.name}; nearest: "
                "expert_dispatch=alltoall"
            ),
        ),
    )


def _offloads_whole_layers(p: Plan, task: Task) -> Any:
    """A share that is a number of layers, but not all of them."""
    layers = offloaded_layers(np.asarray(p.offload_activations), task.model.layers)
    exact = percent_of(layers, task.model.layers) == p.offload_activations
    allowed = exact & (layers < task.model.layers)
    if task.software.offload_modules:
        allowed = np.asarray(p.offload_activations) == 100
    return (p.offload_activations == 0) | allowed


def _offloaded_layers_message(p: Plan, task: Task) -> str:
    total = task.model.layers
    if task.software.offload_modules:
        modules = ", ".join(task.software.offload_modules)
        return (
            f"{field_text(p, 'offload_activations')}: inputs of {modules} are offloaded in every "
            "layer; nearest: offload_activations=100"
        )
    near = min(int(offloaded_layers(p.offload_activations, total)), total - 1)
    return (
        f"{field_text(p, 'offload_activations')}: whole layers are offloaded, at most {total - 1} "
        f"of {total}; nearest: offload_activations={percent_of(near, total)} ({near} layers)"
    )


def _offload_rules(prefix: str) -> tuple[Rule, ...]:
    """Rules of offloading."""
    return (
        Rule(
            f"{prefix}-offloaded-optimizer",
            ("offload_optimizer", "zero", "optimizer", "fp8_params", "precision"),
            lambda p, t: (
                (p.offload_optimizer == 0)
                | (
                    (p.zero < 2)
                    & (p.optimizer == Optimizer.ADAM)
                    & ((p.fp8_params == 0) | (p.precision == Precision.FP8_DELAYED))
                )
            ),
            lambda p, t: (
                f"{field_text(p, 'offload_optimizer')}: the host updates for the distributed "
                "optimizer with Adam, not yet for Megatron-FSDP (NVIDIA/Megatron-LM#4910), nor "
                "weights in 8 bits but of delayed scaling; nearest: zero=1 optimizer=adam "
                "fp8_params=0"
            ),
        ),
        Rule(
            f"{prefix}-offloaded-activations",
            ("offload_activations", "pp", "recompute"),
            lambda p, t: (
                (p.offload_activations == 0)
                | bool(t.software.offload_modules)
                | ((p.pp == 1) & (p.recompute == Recompute.NONE))
            ),
            lambda p, t: (
                f"{field_text(p, 'offload_activations')}: offloading of layers excludes pipeline "
                "stages and recompute; nearest: pp=1 recompute=none"
            ),
        ),
        Rule(
            f"{prefix}-offloaded-layers",
            ("offload_activations",),
            _offloads_whole_layers,
            _offloaded_layers_message,
        ),
        Rule(
            f"{prefix}-offloaded-projection",
            ("offload_activations",),
            lambda p, t: (
                (p.offload_activations == 0)
                | ("attn_proj" not in t.software.offload_modules)
                | ("core_attn" in t.software.offload_modules)
            ),
            lambda p, t: (
                "attn_proj is offloaded with core_attn only, which needs the same tensor; nearest: "
                "both in the stack's offload_modules"
            ),
        ),
    )
