"""What plans are restricted to: a framework that launches them, a named system."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from plan3d.simulator.task import Task

if TYPE_CHECKING:
    from plan3d.simulator.plan.plan import Plan


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


def check_system(name: str, task: Task) -> None:
    """InputError where the task is none for a system."""
    from plan3d.search.systems.systems import check_gpus, system

    check_gpus(system(name), task.gpus)


def with_system(args: argparse.Namespace, plan: Plan, stated: frozenset[str]) -> Plan:
    """A plan with what it leaves open to --system."""
    if getattr(args, "system", None) is None:
        return plan
    from plan3d.search.systems.system_plans import complete_plan
    from plan3d.search.systems.systems import system

    return complete_plan(system(args.system), plan, stated)


def system_record(args: argparse.Namespace) -> dict[str, str]:
    """What a JSON object says about --system."""
    return {} if args.system is None else {"system": args.system}


def system_line(name: str) -> str:
    """What a system means, for the top of an answer."""
    from plan3d.search.systems.systems import system

    named = system(name)
    return f"system {named.name}: {named.meaning} ({named.source})"
