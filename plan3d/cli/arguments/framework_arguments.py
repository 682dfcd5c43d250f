"""Which framework is to launch the plans? The option --framework of several verbs."""

from __future__ import annotations

import argparse

from plan3d.simulator.task import Task


def launched(args: argparse.Namespace, task: Task, file: str = "") -> Task:
    """The task of --framework; InputError where --software contradicts it, or the stack of the
    launch file that states the task."""
    name: str | None = getattr(args, "framework", None)
    if name is None:
        return task
    from ...launch_files import frameworks

    if args.software is not None:
        frameworks.check_stack(task.software, name)
    elif file:
        frameworks.check_stack(task.software, name, file)
    return frameworks.for_framework(task, name)
