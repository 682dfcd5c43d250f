"""Which framework is to launch the plans? The option --framework of several verbs."""

from __future__ import annotations

import argparse

from plan3d.simulator.task import Task


def framework_of(args: argparse.Namespace) -> str | None:
    """The name after --framework; None where there is none."""
    name: str | None = getattr(args, "framework", None)
    return name


def stack_of(args: argparse.Namespace) -> str | None:
    """The software profile: that of --software, or the one of --framework."""
    name, software = framework_of(args), args.software
    if software is not None or name is None:
        return None if software is None else str(software)
    from ...launch_files import frameworks

    return frameworks.stack_of(name) or None


def launched(args: argparse.Namespace, task: Task) -> Task:
    """The task of --framework; InputError where --software contradicts it."""
    name = framework_of(args)
    if name is None:
        return task
    from ...launch_files import frameworks

    return frameworks.for_framework(task, name)


def usual(args: argparse.Namespace, task: Task) -> Task:
    """The task with the framework of its stack, where --system names nothing else."""
    from ...launch_files import frameworks

    found = frameworks.with_usual(task)
    other = args.system is not None and found.framework and args.system != found.framework.name
    return task if other else found
