"""Which few weights are trained? The options --adapter and --lora-... as Adapters."""

from __future__ import annotations

import argparse
from typing import Any

from plan3d.simulator.base.errors import InputError, did_you_mean
from plan3d.simulator.workload.adapters import ADAPTER_FORMATS, Adapters
from plan3d.simulator.workload.model import Model

from .usual_sizes import within

NAMES = (
    *("adapter", "lora_rank", "lora_dropout", "lora_targets", "lora_base"),
    "modules_to_save",
)
"""The options, as saved results name what they say."""
SEQUENCE, BATCH = 2048, 64
"""Tokens and sequences of a step where nothing else is said: the longest that QLoRA's authors
fine-tune with, and their batch from 33B on (Dettmers et al. 2023, appendix B.2)."""


def adapters_of(args: argparse.Namespace) -> Adapters | None:
    """The adapters of the options; None where all weights are trained."""
    kind = getattr(args, "adapter", None)
    given = [name for name in NAMES[1:] if getattr(args, name, None) is not None]
    if kind is None:
        if given:
            option = f"--{given[0].replace('_', '-')}"
            raise InputError(f"{option} needs --adapter lora or --adapter qlora")
        return None
    if kind not in ADAPTER_FORMATS:
        raise InputError(f"unknown adapter {kind[:60]!r}{did_you_mean(kind[:60], ADAPTER_FORMATS)}")
    if getattr(args, "framework", None) is not None:
        raise InputError(
            "--adapter does not go with --framework: launch files train all weights, not adapters"
        )
    said: dict[str, Any] = {"base": args.lora_base or ADAPTER_FORMATS[kind]}
    if args.lora_rank is not None:
        said["rank"] = args.lora_rank
    dropout = getattr(args, "lora_dropout", None)
    if dropout is not None:
        said["dropout"] = dropout
    if args.lora_targets is not None:
        said["targets"] = tuple(part.strip() for part in args.lora_targets.split(","))
    saved = getattr(args, "modules_to_save", None)
    if saved is not None:
        said["modules_to_save"] = tuple(part.strip() for part in saved.split(","))
    out = Adapters(**said)
    if out.name != kind:
        raise InputError(f"--adapter {kind} contradicts --lora-base {out.base}: that is {out.name}")
    return out


def usual_sequence(model: Model) -> int:
    """Tokens of a sequence of fine-tuning: no more than the model was trained on, or can have."""
    return within(model, min(model.sequence or SEQUENCE, SEQUENCE))
