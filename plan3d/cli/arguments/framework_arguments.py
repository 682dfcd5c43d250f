"""Which framework is to launch the plans? The option --framework of several verbs."""

from __future__ import annotations

import argparse

from plan3d.simulator.task import Task


def framework_of(args: argparse.Namespace) -> str | None:
    """The name after --framework; None where there is none."""
    name: str | None = getattr(args, "framework", None)
    return name


def launched(args: argparse.Namespace, task: Task, file: str = "") -> Task:
    """The task of --framework; InputError where --software contradicts it, or the stack of the
    launch file that states the task."""
    name = framework_of(args)
    if name is None:
        return task
    from ...launch_files import frameworks

    if args.software is not None:
        frameworks.check_stack(task.software, name)
    elif file:
        frameworks.check_stack(task.software, name, file)
    return frameworks.for_framework(task, name)
