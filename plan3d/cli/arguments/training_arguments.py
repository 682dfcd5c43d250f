"""What is trained, and until when: adapters, goals, the graph of replicas, and failures."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plan3d.simulator.analysis.goodput import (
    CHECKPOINT_SECONDS,
    LLAMA_3_FAILURES,
    RESTART_SECONDS,
    Reliability,
)
from plan3d.simulator.base.errors import InputError, did_you_mean
from plan3d.simulator.base.files import read_text
from plan3d.simulator.workload.adapters import ADAPTER_FORMATS, Adapters
from plan3d.simulator.workload.model import Model

from .usual_sizes import within_positions

if TYPE_CHECKING:
    from plan3d.simulator.plan.gossip_graphs import Graph
    from plan3d.simulator.task import Goal

ADAPTER_OPTIONS = (
    *("adapter", "lora_rank", "lora_dropout", "lora_targets", "lora_base"),
    "modules_to_save",
)
"""The options, as saved results name what they say."""
SEQUENCE, BATCH = 2048, 64
"""Tokens and sequences of a step where nothing else is said: the longest that QLoRA's authors
fine-tune with, and their batch from 33B on (Dettmers et al. 2023, appendix B.2)."""
FAILURES = ("failures_per_gpu_day", "checkpoint_time", "restart_time")
"""Options that say how often jobs fail, and what a failure costs."""


def adapters_of(args: argparse.Namespace) -> Adapters | None:
    """The adapters of the options; None where all weights are trained."""
    kind = getattr(args, "adapter", None)
    given = [name for name in ADAPTER_OPTIONS[1:] if getattr(args, name, None) is not None]
    if kind is None:
        if given:
            option = f"--{given[0].replace('_', '-')}"
            raise InputError(f"{option} needs --adapter lora or --adapter qlora")
        return None
    kind = kind.lower()
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
    return within_positions(model, min(model.sequence or SEQUENCE, SEQUENCE))


def graph_of(args: argparse.Namespace) -> Graph | None:
    """The graph of --graph."""
    if getattr(args, "graph", None) is None:
        return None
    from plan3d.simulator.plan.gossip_graphs import Graph

    return Graph.parse(read_text(Path(args.graph), f"--graph {args.graph}"))


def goal_of(args: argparse.Namespace) -> Goal | None:
    """What training must reach: --accuracy and --gradient-noise, both or neither."""
    accuracy, noise = getattr(args, "accuracy", None), getattr(args, "gradient_noise", None)
    if (accuracy is None) != (noise is None):
        raise InputError("--accuracy and --gradient-noise need each other: iterations follow both")
    if accuracy is None or noise is None:
        return None
    from plan3d.simulator.task import Goal

    return Goal(accuracy, noise)


def reliability_of(args: argparse.Namespace) -> Reliability | None:
    """What the options say of failures; None where they say nothing. InputError where they
    contradict each other, or nothing asks how long the run takes."""
    given = {name: value for name in FAILURES if (value := getattr(args, name)) is not None}
    stated = args.goodput
    if stated is None and not given:
        return None
    if args.tokens is None:
        flag = "goodput" if stated is not None else next(iter(given)).replace("_", "-")
        raise InputError(f"--{flag} needs --tokens, such as --tokens 300B")
    if stated is not None and given:
        flag = next(iter(given)).replace("_", "-")
        raise InputError(f"--goodput and --{flag} contradict each other: give one")
    return Reliability(
        measured_goodput=stated,
        failures_per_gpu_day=given.get("failures_per_gpu_day", LLAMA_3_FAILURES),
        checkpoint_seconds=given.get("checkpoint_time", CHECKPOINT_SECONDS),
        restart_seconds=given.get("restart_time", RESTART_SECONDS),
    )
