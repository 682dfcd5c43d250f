"""What does Megatron-LM refuse? Rules that it shares with what is built on it.

Source: Megatron-LM, megatron/training/arguments.py (validate_args), megatron/core 0.16
(transformer_config.py, transformer_block.py, optimizer/distrib_optimizer.py), Megatron-FSDP guide.
"""

from __future__ import annotations

from typing import Any

from plan3d.simulator.hardware.precision import Optimizer, Precision
from plan3d.simulator.pipeline.schedules import launched_by
from plan3d.simulator.plan.codes import Recompute
from plan3d.simulator.rules.rule import Rule
from plan3d.simulator.step.stage_layouts import chunk_sizes
from plan3d.simulator.task import Task

from .. import shape
from ..exporter import expresses, only
from .model_flags import EXPRESSES
from .offload_flags import offload_rules

SCHEDULES = launched_by("megatron-core")
PRECISIONS = (Precision.FP8, Precision.FP16, Precision.FP32, Precision.BF16)


def _ends_fit(p: Any, task: Task) -> Any:
    """First, last and middle ranks hold whole chunks, and the middle ranks equally many."""
    first, last, v = p.first_stage_layers, p.last_stage_layers, p.virtual_stages
    free = p.pp - (first > 0) - (last > 0)
    rest = task.model.layers - first - last
    whole = (first % v == 0) & (last % v == 0) & (rest % (free * v + (free == 0)) == 0)
    return whole | ((first == 0) & (last == 0))


def rules(title: str, prefix: str) -> tuple[Rule, ...]:
    """What a version of Megatron-LM, or what is built on it, refuses."""
    runs = f"{title} runs 1f1b, and interleaved with virtual stages"
    return (
        expresses(f"{prefix}-model", title, EXPRESSES),
        only(f"{prefix}-schedule", "schedule", SCHEDULES, runs),
        only(f"{prefix}-precision", "precision", PRECISIONS, f"{title} keeps fp32 master weights"),
        Rule(
            f"{prefix}-end-stages",
            ("first_stage_layers", "last_stage_layers", "virtual_stages", "pp"),
            _ends_fit,
            lambda p, t: (
                f"first_stage_layers={p.first_stage_layers} last_stage_layers="
                f"{p.last_stage_layers}: {title} needs whole chunks of virtual_stages="
                f"{p.virtual_stages} and equal ranks between them; nearest: layers_per_stage="
                f"{','.join(map(str, chunk_sizes(t, p)))} without them"
            ),
        ),
        *_sharding_rules(prefix),
        *_expert_rules(prefix),
        *offload_rules(prefix),
    )


def _sharding_rules(prefix: str) -> tuple[Rule, ...]:
    """What the distributed optimizer and Megatron-FSDP exclude."""
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
    """What grouped GEMMs and overlapped dispatch exclude."""
    return (
        Rule(
            f"{prefix}-experts-bf16",
            ("precision",),
            lambda p, t: (
                (p.precision == Precision.BF16)
                | (p.precision == Precision.FP8)
                | (shape.EXPERTS not in shape.features(t.model))
            ),
            lambda p, t: "grouped GEMMs of experts need bf16; nearest: precision=bf16",
        ),
        Rule(
            f"{prefix}-expert-overlap",
            ("overlap_ep", "recompute", "precision", "pp"),
            lambda p, t: (
                (p.overlap_ep == 0)
                | (
                    (p.recompute != Recompute.FULL)
                    & (p.precision != Precision.FP32)
                    & ((p.pp > 1) | (t.model.mtp_layers == 0))
                )
            ),
            lambda p, t: (
                "overlap_ep excludes full recompute, fp32, and multi-token prediction without "
                "stages; nearest: overlap_ep=0"
            ),
        ),
    )
