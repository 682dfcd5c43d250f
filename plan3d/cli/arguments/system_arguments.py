"""The option --system of several verbs: the plans that a named system leaves."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plan3d.simulator.plan.plan import Plan
    from plan3d.simulator.task import Task


def check_task(args: argparse.Namespace, task: Task) -> None:
    """InputError where the task is none for --system."""
    if getattr(args, "system", None) is not None:
        from plan3d.search.systems.systems import check_gpus, system

        check_gpus(system(args.system), task.gpus)


def plan_of(args: argparse.Namespace, plan: Plan, stated: frozenset[str]) -> Plan:
    """A plan with what it leaves open to --system."""
    if getattr(args, "system", None) is None:
        return plan
    from plan3d.search.systems.system_plans import complete_plan
    from plan3d.search.systems.systems import system

    return complete_plan(system(args.system), plan, stated)


def record(args: argparse.Namespace) -> dict[str, str]:
    """What a JSON object says about --system."""
    return {} if args.system is None else {"system": args.system}


def line(args: argparse.Namespace) -> list[str]:
    """What --system means, for the top of an answer."""
    if getattr(args, "system", None) is None:
        return []
    from plan3d.search.systems.systems import system

    named = system(args.system)
    return [f"system {named.name}: {named.meaning} ({named.source})"]
