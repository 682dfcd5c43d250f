"""Options about failures: how often jobs fail and what it costs, or the goodput of a run."""

from __future__ import annotations

import argparse

from plan3d.simulator.analysis.goodput import CHECKPOINT, LLAMA_3, RESTART, Reliability
from plan3d.simulator.base import units
from plan3d.simulator.base.errors import InputError

from .parser import Option, positive, seconds

LASTING = ("search", "estimate")
"""Verbs that say how long a run takes."""
CAUSES = ("failures_per_gpu_day", "checkpoint_time", "restart_time")

GOODPUT_OPTIONS = (
    Option(
        flag="--goodput",
        value="SHARE",
        read=units.parse_fraction,
        verbs=LASTING,
        help="share of a run's time that trains, such as 0.9: days and cost with failures",
    ),
    Option(
        flag="--failures-per-gpu-day",
        value="X",
        read=positive,
        verbs=LASTING,
        help=f"instead of --goodput: failures of a GPU in a day (Llama 3: {LLAMA_3:.2g}), each of "
        "which stops the job",
    ),
    Option(
        flag="--checkpoint-time",
        value="TIME",
        read=seconds,
        verbs=LASTING,
        help=f"that a checkpoint stops training (MegaScale: about {CHECKPOINT:g}s)",
    ),
    Option(
        flag="--restart-time",
        value="TIME",
        read=seconds,
        verbs=LASTING,
        help=f"from a failure until training goes on (MegaScale: {RESTART:g}s)",
    ),
)


def reliability_of(args: argparse.Namespace) -> Reliability | None:
    """What the options say of failures; None where they say nothing. InputError where they
    contradict each other, or nothing asks how long the run takes."""
    given = {name: value for name in CAUSES if (value := getattr(args, name)) is not None}
    stated = args.goodput
    if stated is None and not given:
        return None
    if args.tokens is None:
        flag = "goodput" if stated is not None else next(iter(given)).replace("_", "-")
        raise InputError(f"--{flag} needs --tokens, such as --tokens 300B")
    if stated is not None and given:
        flag = next(iter(given)).replace("_", "-")
        raise InputError(f"--goodput and --{flag} contradict each other: give one")
    named = {
        "failures_per_gpu_day": given.get("failures_per_gpu_day", LLAMA_3),
        "checkpoint_seconds": given.get("checkpoint_time", CHECKPOINT),
        "restart_seconds": given.get("restart_time", RESTART),
    }
    return Reliability(stated=stated, **named)
