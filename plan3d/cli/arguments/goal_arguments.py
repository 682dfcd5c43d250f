"""What training must reach, and which replicas average: options of single ways to synchronise."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.files import read_text

if TYPE_CHECKING:
    from plan3d.simulator.plan.goal import Goal
    from plan3d.simulator.plan.gossip_graphs import Graph


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
    from plan3d.simulator.plan.goal import Goal

    return Goal(accuracy, noise)


def check_graph(args: argparse.Namespace, topologies: list[str]) -> None:
    """Refuse a --graph that no plan asked for uses."""
    if getattr(args, "graph", None) is not None and "given" not in topologies:
        raise InputError("--graph has no effect without topology=given")
