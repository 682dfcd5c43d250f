"""Goals of training and its failures: accuracy to reach, graph of the replicas, goodput."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from plan3d.simulator.analysis.goodput import (
    CHECKPOINT_SECONDS,
    LLAMA_3_FAILURES,
    RESTART_SECONDS,
    Reliability,
)
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.files import read_text

if TYPE_CHECKING:
    from plan3d.simulator.plan.gossip_graphs import Graph
    from plan3d.simulator.task import Goal

FAILURES = ("failures_per_gpu_day", "checkpoint_time", "restart_time")
"""Options that say how often jobs fail, and what a failure costs."""


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
