"""The screens of comparisons: search backends against the optimum, systems side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from plan3d.search.result.proven_set import proven_set
from plan3d.search.systems.systems import System, is_single
from plan3d.search.whatif.backend_benchmark import BackendBenchmark, BackendEntry
from plan3d.search.whatif.compare_systems import BySystem, SystemEntry
from plan3d.simulator.base.text_tables import Table, select_columns
from plan3d.simulator.base.units import GIB, format_seconds, whole_percent
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.reporting.report import plan_record
from plan3d.simulator.step.costs_tables import number_format
from plan3d.simulator.uncertainty.memory import probability_fits

from . import plan_lines, views
from .output import Screen

BY_STEP = ("system", "step s", "speed-up", "mem GiB", "fits %", "plan")
"""Columns of the first screen, the speed-up where one device has a plan; with a goal, those of
BY_ACCURACY."""
BY_ACCURACY = ("system", "step s", "fits %", "iterations", "to accuracy", "plan")


def backends_record(race: BackendBenchmark) -> dict[str, Any]:
    """The JSON object of a comparison; medians over the seeds, null where most found nothing."""
    best = race.optimum.best
    optimum: dict[str, Any] = {"backend": race.optimum.backend}
    if best is not None:
        optimum |= {"step_seconds": best.step_seconds, "plan": best.plans.take(0).to_record()}
    covered = proven_set(race.optimum)
    optimum |= {
        "evaluations": race.optimum.counts.evaluated,
        "seconds": race.optimum.seconds_searching,
    }
    return {
        **views.question_record(race.task),
        "memory_limit_bytes": float(race.optimum.limit),
        "space": race.space,
        "budget": race.budget,
        "complete": race.complete,
        "optimum": optimum,
        **({} if covered is None else {"proven_over": covered.record()}),
        "backends": [_backend(entry) for entry in race.entries],
    }


def _backend(entry: BackendEntry) -> dict[str, Any]:
    near = [count for count in entry.to_near.tolist() if math.isfinite(count)]
    return {
        "backend": entry.backend,
        "best_step_seconds": _median(entry.best),
        "regret": _median(entry.regret),
        "evaluations": _median(entry.evaluations),
        "seconds": _median(entry.seconds),
        "evaluations_to_1_percent": _median(entry.to_near),
        "seeds": len(entry.best),
        "seeds_within_1_percent": len(near),
    }


def _median(values: Any) -> float | None:
    """The lower median, so that it is a value some run had; None where that is infinite."""
    middle = sorted(values.tolist())[(len(values) - 1) // 2]
    return middle if math.isfinite(middle) else None


def print_backends(screen: Screen, race: BackendBenchmark) -> None:
    """Backends side by side."""
    screen.lines(_backend_headline(race))
    screen.lines(views.header(race.task, race.optimum.limit))
    print()
    screen.table(_backend_table(race))
    covered = proven_set(race.optimum)
    screen.lines(
        [
            "medians over the seeds; what draws at random may cost "
            f"{race.budget:,} plans, where one costed before is free; regret: best step over the "
            "optimum, less one; to 1 %: plans costed until the regret was at most 1 %, - where "
            "most seeds never got there",
            *([] if covered is None else [str(covered)]),
        ]
    )


def _backend_headline(race: BackendBenchmark) -> list[str]:
    """Which backend came nearest to the optimum, by the median of its seeds."""
    every = [e for e in map(_backend, race.entries) if e["regret"] is not None]
    if not every or race.optimum.best is None:
        return []
    first = min(every, key=lambda e: (e["regret"], e["evaluations"]))
    return [
        f"{first['backend']} comes nearest to the optimum of {race.optimum.best.step_seconds:.4g} s"
        f" a step: {100 * first['regret']:.2f} % behind after {first['evaluations']:,.0f} plans"
    ]


def _backend_table(race: BackendBenchmark) -> Table:
    headers = ("backend", "step s", "regret %", "plans costed", "s", "to 1 %", "seeds within 1 %")
    done, best = race.optimum, race.optimum.best
    step = "-" if best is None else f"{best.step_seconds:.4g}"
    optimum = (done.backend, step, "0", f"{done.counts.evaluated:,}")
    rows = [(*optimum, f"{done.seconds_searching:.2f}", "", "certified")]
    for e in (_backend(entry) for entry in race.entries):
        rows.append(
            (
                e["backend"],
                _cell(e["best_step_seconds"], ".4g"),
                "-" if e["regret"] is None else f"{100 * e['regret']:.2f}",
                _cell(e["evaluations"], ",.0f"),
                _cell(e["seconds"], ".2f"),
                _cell(e["evaluations_to_1_percent"], ",.0f"),
                f"{e['seeds_within_1_percent']} of {e['seeds']}",
            )
        )
    return Table(headers=headers, rows=tuple(rows))


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def systems_record(found: BySystem) -> dict[str, Any]:
    """The JSON object of a comparison of systems."""
    return {
        **views.question_record(found.task),
        "objective": found.objective,
        "memory_limit_bytes": float(found.limit),
        "complete": found.complete,
        "one_device_step_seconds": None
        if found.one_device is None
        else found.one_device.step_seconds,
        "fastest": found.fastest.system.name if found.fastest else None,
        "shortest_step": found.shortest.system.name if found.shortest else None,
        "shortest_exact_step": found.shortest_exact.system.name if found.shortest_exact else None,
        "systems": [_system(found, entry) for entry in found.entries],
    }


def _system(found: BySystem, entry: SystemEntry) -> dict[str, Any]:
    """One system: its best plan as a search has it, or null and why."""
    best, smallest = entry.best, entry.result.smallest
    return {
        "system": entry.system.name,
        "meaning": entry.system.meaning,
        "source": entry.system.source,
        "exact": entry.system.exact,
        "gpus": entry.result.task.gpus,
        "evaluated": entry.result.counts.evaluated,
        "feasible": entry.result.counts.feasible,
        "speed_up": None if best is None else found.speed_up(best),
        "least_memory_bytes": None if smallest is None else smallest.memory_bytes,
        "infeasible": entry.obstacle or None,
        "best": None if best is None else plan_record(best, 0, entry.result.limit),
    }


def print_systems(screen: Screen, found: BySystem) -> None:
    """Systems side by side: those that fit and what the others would need, or every number."""
    if screen.details:
        _print_all_systems(screen, found)
        return
    screen.lines(_system_headline(found))
    shown = [entry for entry in found.entries if entry.best]
    if found.fastest and found.fastest.best:
        print()
        screen.items(plan_lines.question(found.task, number_format(found.fastest.best.plans)))
        print()
        every = BY_ACCURACY if found.task.goal else BY_STEP
        columns = tuple(n for n in every if found.one_device is not None or n != "speed-up")
        screen.table(select_columns(_system_table(found, shown), columns))
    screen.lines(_too_large(found))
    screen.lines(_notes(found, shown)[1:])
    screen.section("No legal plan", _illegal(found))
    screen.items([("more", plan_lines.MORE_LINE)])


def _too_large(found: BySystem) -> list[str]:
    """What the systems need that do not fit, and what plans may use."""
    needs = {
        entry.system.name: entry.result.smallest.memory_bytes / GIB
        for entry in found.entries
        if not entry.best and entry.result.smallest
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


def _print_all_systems(screen: Screen, found: BySystem) -> None:
    screen.lines(_system_headline(found))
    screen.lines(views.header(found.task, found.limit))
    best = [costs for entry in found.entries if (costs := entry.best)]
    screen.lines(list(dict.fromkeys(views.peak_line(costs) for costs in best)))
    print()
    screen.table(_system_table(found, found.entries))
    screen.lines(_notes(found, found.entries))
    print()
    screen.section("No legal plan", _illegal(found))
    screen.section("Iterations, to compare systems, from published rates", _rates(found))


def _system_headline(found: BySystem) -> list[str]:
    """Which systems have the shortest step and the shortest exact one, how far that is ahead of one
    device, and which is at the accuracy first."""
    if found.shortest is None:
        return [f"no system fits on {found.task.gpus} GPUs"]
    of_all = f"the shortest step of {len(found.entries)} systems"
    first, exact = found.shortest, found.shortest_exact
    if exact is None:
        out = f"{_named_step(found, first, of_all)}; none that is exact fits"
    elif exact is first:
        out = _named_step(found, first, f"{of_all}, an exact one")
    else:
        second = _named_step(found, exact, "the shortest exact one")
        out = f"{_named_step(found, first, of_all)}; {second}"
    if found.task.goal and found.fastest and found.fastest.best:
        spent = format_seconds(found.fastest.best.accuracy_seconds)
        out += ", each with its plan that is at the accuracy first"
        return [out, f"{found.fastest.system.name} is at the accuracy first, in {spent}"]
    return [out]


def _named_step(found: BySystem, entry: SystemEntry, what: str) -> str:
    assert entry.best
    gain = found.speed_up(entry.best)
    ahead = "" if gain is None else f" ({gain:.1f} times one device)"
    return f"{entry.system.name} has {what}: {entry.best.step_seconds:.4g} s{ahead}"


def _system_table(found: BySystem, entries: Sequence[SystemEntry]) -> Table:
    goal = found.task.goal is not None
    extra = ("iterations", "to accuracy") if goal else ()
    headers = ("system", "GPUs", "step s", "speed-up", "tokens/s", "MFU %", "mem GiB", "fits %")
    headers = (*headers, *extra)
    rows = [(*_cells(found, entry, goal), _plan(entry)) for entry in entries]
    first = entries.index(found.fastest) if found.fastest else -1
    return Table(
        headers=(*headers, "plan"),
        rows=tuple(rows),
        words=frozenset({0, len(headers)}),
        highlighted=first,
    )


def _cells(found: BySystem, entry: SystemEntry, goal: bool) -> tuple[str, ...]:
    """Numbers of one system's best plan; its smallest memory where none fits."""
    costs, smallest = entry.best, entry.result.smallest
    name, gpus = entry.system.name, str(entry.result.task.gpus)
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
    best, smallest = entry.best, entry.result.smallest
    if best is not None:
        return open_fields(entry.system, best.plans.take(0))
    if smallest is None:
        return "no legal plan"
    part, size = max(smallest.memory.items(), key=lambda item: item[1])
    return (
        f"does not fit in {entry.result.limit / GIB:.1f} GiB: {size / GIB:.1f} GiB are {part} with "
        f"{open_fields(entry.system, smallest.plans)}"
    )


def open_fields(system: System, plan: Plan) -> str:
    """A plan without what its system leaves no choice of, and without the usual values of what it
    leaves open to all."""
    held = {
        field
        for field, values in (system.search_values | system.held_values).items()
        if is_single(values)
    }
    words = [word for word in str(plan).split() if word.partition("=")[0] not in held]
    return " ".join(words) or f"micro_batch={plan.micro_batch}"


def _notes(found: BySystem, entries: Sequence[SystemEntry]) -> list[str]:
    """What the columns mean, and whose steps are worth less."""
    goal, alone = found.task.goal, found.one_device
    worth = " at the accuracy" if goal else " of the systems whose steps are exact"
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
            f"{', '.join(changed)}: a step is not exact and worth less than one of the others; "
            "--accuracy with --gradient-noise says by how much"
        )
    return out


def _illegal(found: BySystem) -> list[str]:
    """Why rules leave no plan of some systems."""
    names: dict[str, list[str]] = {}
    for entry in found.entries:
        if entry.result.smallest is None:
            names.setdefault(entry.obstacle, []).append(entry.system.name)
    return [f"{', '.join(systems)}: {reason}" for reason, systems in names.items()]


def _rates(found: BySystem) -> list[str]:
    """The published rate behind the iterations, and the systems that it is of."""
    if not found.task.goal:
        return []
    from plan3d.simulator.analysis.traffic import rate_of
    from plan3d.simulator.plan.synchronisation import policy_of

    names: dict[str, list[str]] = {}
    for entry in found.entries:
        if entry.best is not None:
            rate = str(rate_of(policy_of(entry.best.plans)))
            names.setdefault(rate, []).append(entry.system.name)
    return [f"{', '.join(systems)}: {rate}" for rate, systems in names.items()]
