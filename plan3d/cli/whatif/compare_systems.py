"""The verb `compare --systems`: training systems beside each other on one task."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from plan3d.search.systems.systems import SYSTEMS, System, is_single, system
from plan3d.simulator.base.errors import InputError, NoFeasiblePlanError
from plan3d.simulator.base.text_tables import Table, select_columns
from plan3d.simulator.base.units import GIB, format_seconds, whole_percent

from ..arguments import framework_arguments, goal_arguments, task_arguments
from ..screen.output import INTERRUPTED, Progress, ProgressBar, Screen, print_json, warn

if TYPE_CHECKING:
    from plan3d.search.whatif.compare_systems import BySystem, SystemEntry
    from plan3d.simulator.plan.plan import Plan

BRIEF = ("system", "step s", "speed-up", "mem GiB", "fits %", "plan")
"""Columns of the first screen, the speed-up where one device has a plan; with a goal, those of
BY_ACCURACY."""
BY_ACCURACY = ("system", "step s", "fits %", "iterations", "to accuracy", "plan")
OF_BACKENDS = ("backends", "budget", "seeds", "plot")
"""Options of a comparison of backends."""


def compare(args: argparse.Namespace, progress: Progress | None) -> int:
    """Search the best plan of every system and print them side by side."""
    for name in OF_BACKENDS:
        if getattr(args, name) is not None:
            raise InputError(f"--{name} has no effect with --systems: no backends are compared")
    choose = task_arguments.choices_of(args)
    task = framework_arguments.usual(args, task_arguments.task_of(args))
    goal_arguments.check_graph(args, choose.get("topology", []))
    systems = _systems(args.systems)
    from plan3d.search.whatif.compare_systems import compare_systems

    free = args.memory_headroom
    with ProgressBar(args.quiet, progress) as bar:
        found = compare_systems(task, systems, choose=choose, headroom=free, progress=bar)
    if args.json:
        print_json(record(found))
    else:
        (_print if args.verbose else _print_brief)(Screen(args.verbose), found)
    if not found.complete:
        warn("interrupted: the systems that came to their end", args.quiet)
        return INTERRUPTED
    return 0 if any(entry.best for entry in found.entries) else NoFeasiblePlanError.exit_code


def _systems(text: str) -> list[System]:
    if text == "all":
        return list(SYSTEMS.values())
    named = [system(name.strip()) for name in text.split(",")]
    if len({s.name for s in named}) < len(named):
        raise InputError(f"--systems {text}: names a system twice")
    return named


def record(found: BySystem) -> dict[str, Any]:
    """The JSON object of a comparison of systems."""
    from ..screen import views

    return {
        **views.question_record(found.task),
        "objective": found.objective,
        "memory_limit_bytes": float(found.limit),
        "complete": found.complete,
        "one_device_step_seconds": None if found.alone is None else found.alone.step_seconds,
        "fastest": found.first.system.name if found.first else None,
        "systems": [_entry(found, entry) for entry in found.entries],
    }


def _entry(found: BySystem, entry: SystemEntry) -> dict[str, Any]:
    """One system: its best plan as a search has it, or null and why."""
    from plan3d.simulator.reporting.report import plan_record

    best, smallest = entry.best, entry.found.smallest
    return {
        "system": entry.system.name,
        "meaning": entry.system.meaning,
        "source": entry.system.source,
        "exact": entry.system.exact,
        "gpus": entry.found.task.gpus,
        "evaluated": entry.found.counts.evaluated,
        "feasible": entry.found.counts.feasible,
        "speed_up": None if best is None else found.speed_up(best),
        "least_memory_bytes": None if smallest is None else smallest.memory_bytes,
        "infeasible": entry.obstacle or None,
        "best": None if best is None else plan_record(best, 0, entry.found.limit),
    }


def _print_brief(screen: Screen, found: BySystem) -> None:
    """The first screen: the systems that fit, and what the others would need."""
    from plan3d.simulator.step.costs_tables import number_format

    from ..screen import brief

    screen.lines(_sentence(found))
    shown = [entry for entry in found.entries if entry.best]
    if found.first and found.first.best:
        print()
        screen.items(brief.asked(found.task, number_format(found.first.best.plans)))
        print()
        screen.table(select_columns(_table(found, shown), _columns(found)))
    screen.lines(_too_large(found))
    screen.lines(_notes(found, shown)[1:])
    screen.section("No legal plan", _illegal(found))
    screen.items([("more", brief.MORE)])


def _too_large(found: BySystem) -> list[str]:
    """What the systems need that do not fit, and what plans may use."""
    needs = {
        entry.system.name: entry.found.smallest.memory_bytes / GIB
        for entry in found.entries
        if not entry.best and entry.found.smallest
    }
    if not needs:
        return []
    (first, least), *others = needs.items()
    rest = "".join(f", {name} {size:.1f}" for name, size in others)
    capacity = found.task.cluster.accelerator.memory / GIB
    return [
        f"{'do' if others else 'does'} not fit: {first} needs at least {least:.1f} GiB{rest}; "
        f"plans may use {found.limit / GIB:.1f} of a GPU's {capacity:.1f} GiB"
    ]


def _columns(found: BySystem) -> tuple[str, ...]:
    """Headers of the first screen."""
    columns = BY_ACCURACY if found.task.goal else BRIEF
    return tuple(name for name in columns if found.alone is not None or name != "speed-up")


def _print(screen: Screen, found: BySystem) -> None:
    from ..screen import views

    screen.lines(_sentence(found))
    screen.lines(views.header(found.task, found.limit))
    best = [costs for entry in found.entries if (costs := entry.best)]
    screen.lines(list(dict.fromkeys(views.peak_line(costs) for costs in best)))
    print()
    screen.table(_table(found, found.entries))
    screen.lines(_notes(found, found.entries))
    print()
    screen.section("No legal plan", _illegal(found))
    screen.section("Iterations, to compare systems, from published rates", _rates(found))


def _sentence(found: BySystem) -> list[str]:
    """Which system is the fastest, and how far it is ahead of one device."""
    if found.first is None or (best := found.first.best) is None:
        return [f"no system fits on {found.task.gpus} GPUs"]
    gain = found.speed_up(best)
    told = "" if gain is None else f", {gain:.1f} times one device"
    return [
        f"{found.first.system.name} is the fastest of {len(found.entries)} systems: "
        f"{best.step_seconds:.4g} s a step{told}"
    ]


def _table(found: BySystem, entries: Sequence[SystemEntry]) -> Table:
    goal = found.task.goal is not None
    extra = ("iterations", "to accuracy") if goal else ()
    headers = ("system", "GPUs", "step s", "speed-up", "tokens/s", "MFU %", "mem GiB", "fits %")
    headers = (*headers, *extra)
    rows = [(*_cells(found, entry, goal), _plan(entry)) for entry in entries]
    first = entries.index(found.first) if found.first else -1
    return Table(
        headers=(*headers, "plan"),
        rows=tuple(rows),
        words=frozenset({0, len(headers)}),
        highlighted=first,
    )


def _cells(found: BySystem, entry: SystemEntry, goal: bool) -> tuple[str, ...]:
    """Numbers of one system's best plan; its smallest memory where none fits."""
    from plan3d.simulator.uncertainty.memory import probability_fits

    costs, smallest = entry.best, entry.found.smallest
    name, gpus = entry.system.name, str(entry.found.task.gpus)
    if costs is None:
        least = "-" if smallest is None else f"{smallest.memory_bytes / GIB:.1f}"
        return (name, gpus, "-", "-", "-", "-", least, "-", *(("-", "-") if goal else ()))
    gain = found.speed_up(costs)
    reached = (f"{costs.iterations:,.0f}", format_seconds(costs.accuracy_seconds)) if goal else ()
    return (
        name,
        gpus,
        f"{costs.step_seconds:.4g}",
        "-" if gain is None else f"{gain:.1f}",
        f"{costs.tokens_per_second:,.0f}",
        f"{100 * costs.mfu:.1f}",
        f"{costs.memory_bytes / GIB:.1f}",
        whole_percent(probability_fits(costs)),
        *reached,
    )


def _plan(entry: SystemEntry) -> str:
    """What `estimate --system` needs to be told of the plan; or why there is none."""
    best, smallest = entry.best, entry.found.smallest
    if best is not None:
        return open_fields(entry.system, best.plans.take(0))
    if smallest is None:
        return "no legal plan"
    part, size = max(smallest.memory.items(), key=lambda item: item[1])
    return (
        f"does not fit in {entry.found.limit / GIB:.1f} GiB: {size / GIB:.1f} GiB are {part} with "
        f"{open_fields(entry.system, smallest.plans)}"
    )


def open_fields(system: System, plan: Plan) -> str:
    """A plan without what its system leaves no choice of."""
    held = {field for field, values in system.search_values.items() if is_single(values)}
    words = [word for word in str(plan).split() if word.partition("=")[0] not in held]
    return " ".join(words) or f"micro_batch={plan.micro_batch}"


def _notes(found: BySystem, entries: Sequence[SystemEntry]) -> list[str]:
    """What the columns mean, and whose steps are worth less."""
    goal, alone = found.task.goal, found.alone
    worth = "" if goal else " of the systems whose steps are worth the same"
    base = "" if alone is None else f", {alone.step_seconds:.4g} s"
    if alone is not None and alone.memory_bytes > found.limit:
        base += " were its memory enough"
    out = [
        f"* fastest{worth}; every system with the best of its own plans; speed-up: step of one "
        f"device over the step{base}; mem: GiB = 2^30 bytes of the fullest rank, the least that a "
        "plan needs where none fits"
    ]
    changed = [entry.system.name for entry in entries if not entry.system.exact]
    if changed and not goal:
        out.append(
            f"{', '.join(changed)}: a step is worth less than one of the others; --accuracy with "
            "--gradient-noise says by how much"
        )
    return out


def _illegal(found: BySystem) -> list[str]:
    """Why rules leave no plan of some systems."""
    names: dict[str, list[str]] = {}
    for entry in found.entries:
        if entry.found.smallest is None:
            names.setdefault(entry.obstacle, []).append(entry.system.name)
    return [f"{', '.join(systems)}: {reason}" for reason, systems in names.items()]


def _rates(found: BySystem) -> list[str]:
    """The published rate behind the iterations, and the systems that it is of."""
    if not found.task.goal:
        return []
    from plan3d.simulator.analysis.traffic import rate_of
    from plan3d.simulator.plan.sync_policy import policy_of

    names: dict[str, list[str]] = {}
    for entry in found.entries:
        if entry.best is not None:
            rate = str(rate_of(policy_of(entry.best.plans)))
            names.setdefault(rate, []).append(entry.system.name)
    return [f"{', '.join(systems)}: {rate}" for rate, systems in names.items()]
