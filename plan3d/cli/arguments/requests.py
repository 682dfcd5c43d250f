"""The words of a command as the question behind its answer."""

from __future__ import annotations

import argparse

from plan3d.simulator.analysis.goodput import Training
from plan3d.simulator.hardware.software_stack import ENGINE, TRAINER
from plan3d.simulator.task import Task

from ...answers.question import LaunchCommand, Question
from . import task_arguments, training_arguments, usual_sizes


def question_of(args: argparse.Namespace, task: Task) -> Question:
    """The question of a task that options state."""
    training = _training(args, task) if hasattr(args, "tokens") else None
    sizes = usual_sizes.assumed(args, task.model, task.sequence, task.global_batch)
    if args.software == TRAINER and task.software.name == ENGINE:
        sizes.append("experts in a loop: sharded by DeepSpeed (by PyTorch: --framework accelerate)")
    return Question(
        task=task,
        assumed=tuple(sizes),
        system=getattr(args, "system", None),
        training=training,
        command=_command(args),
    )


def _training(args: argparse.Namespace, task: Task) -> Training | None:
    """How much is trained; None where nothing asks how long that takes."""
    tokens, reliability = task_arguments.tokens_of(args, task.model), None
    if hasattr(args, "goodput"):
        reliability = training_arguments.reliability_of(args)
    if tokens is None:
        return None
    return Training(
        tokens=tokens,
        price=args.price,
        days=getattr(args, "days", None),
        budget_usd=getattr(args, "budget_usd", None),
        reliability=reliability,
    )


def _command(args: argparse.Namespace) -> LaunchCommand:
    """How launch lines name the model and the machine."""
    options: list[str] = []
    for name in ("gpus_per_node", "gpus_per_domain"):
        value = getattr(args, name)
        options += [f"--{name.replace('_', '-')}", str(value)] if value else []
    return LaunchCommand(
        model=args.model,
        cluster=args.cluster,
        options=tuple(options),
        names_stack=bool(args.software),
        names_framework=bool(getattr(args, "framework", None)),
    )
