"""`search --second-pool`: a pipeline over two kinds of machines, as a table and as JSON."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plan3d.simulator.base.errors import InputError, NoFeasiblePlanError
from plan3d.simulator.base.text_tables import Table
from plan3d.simulator.base.units import GIB
from plan3d.simulator.task import Task

from ..arguments import task_arguments
from ..screen.output import INTERRUPTED, Progress, ProgressBar, Screen, print_json, warn

if TYPE_CHECKING:
    from plan3d.search.stage_dp.two_pools import PooledPlan, PooledResult

TAKEN = (
    *("verb", "words", "model", "cluster", "gpus", "nodes", "sequence", "software", "second_pool"),
    *("global_batch", "global_batch_tokens", "memory_headroom", "time_limit", "fix", "choose"),
    *("precision", "optimizer", "json", "quiet", "verbose", "traceback", "backend", "framework"),
)
"""Options that change the answer; others are refused."""
BACKEND = "dynamic-programming"
HINTS = 8
"""Plans of each pool whose values are tried first."""


def run(args: argparse.Namespace, progress: Progress | None = None) -> int:
    """Print the best plan that has stages in both pools."""
    _check(args)
    from plan3d.search.find_plans import find_plans, memory_limit
    from plan3d.search.result.options import Deadline
    from plan3d.search.stage_dp.two_pools import search
    from plan3d.simulator.plan.values import code

    deadline = Deadline.after(args.time_limit)
    choose = task_arguments.choices_of(args)
    task = task_arguments.task_of(args)
    tasks = task, replace(task, cluster=task_arguments.second_pool(args.second_pool))
    own = {"headroom": args.memory_headroom}
    apart = [find_plans(one, choose=choose, top=1, **own) for one in tasks]
    bests = [found.unless_interrupted().best for found in apart]
    alone = [float("inf") if best is None else float(best.step_seconds) for best in bests]
    whole = {**choose, "virtual_stages": ["1"]}
    apart = [find_plans(one, choose=whole, top=HINTS, **own) for one in tasks]
    each = [found.unless_interrupted().costs for found in apart]
    like = [costs.plans for costs in each if costs is not None]
    asked = [code("precision", value) for value in choose.get("precision", ())]
    limits = [memory_limit(one, args.memory_headroom, asked) for one in tasks]
    with ProgressBar(args.quiet, progress) as bar:
        both = (limits[0], limits[1]), (alone[0], alone[1])
        plain = replace(tasks[0], framework=None), replace(tasks[1], framework=None)
        found = search(plain, *both, choose, deadline, bar, like, task.framework)
    if args.json:
        print_json(_record(found, args))
    elif found.plan is None:
        Screen(args.verbose).lines([_none(found)])
    else:
        _print(Screen(args.verbose), found, found.plan, args)
    if found.interrupted:
        warn("interrupted: the best so far", args.quiet)
        return INTERRUPTED
    fits = found.plan is not None or min(alone) < float("inf")
    return 0 if fits else NoFeasiblePlanError.exit_code


def _check(args: argparse.Namespace) -> None:
    """Refuse what a search of two pools does not take."""
    given = [name for name, value in vars(args).items() if value not in (None, False, [])]
    other = next((name for name in given if name not in TAKEN), None)
    if other is not None:
        raise InputError(f"--{other.replace('_', '-')} has no effect with --second-pool")
    if args.backend not in (None, BACKEND):
        raise InputError(
            f"--second-pool is searched by {BACKEND}, not by the {args.backend} backend"
        )
    from ...launch_files.pools import TAKES_LAYERS

    if args.framework not in (None, *TAKES_LAYERS):
        raise InputError(
            f"--second-pool goes with no --framework {args.framework}, which cuts stages itself; "
            f"nearest: {', '.join(TAKES_LAYERS)}"
        )
    if args.global_batch is None and args.global_batch_tokens is None:
        raise InputError("--second-pool needs --global-batch: the pools share it")


def _pools(tasks: tuple[Task, Task]) -> str:
    return " and ".join(f"{task.gpus} x {task.cluster.name}" for task in tasks)


def _none(found: PooledResult) -> str:
    if not found.complete:
        return "no plan over both pools was found before the search ended"
    if min(found.alone) == float("inf"):
        return f"no plan over {_pools(found.tasks)} fits"
    best = found.tasks[found.alone.index(min(found.alone))]
    return f"no plan over both pools is faster than {_pools((best, best)).split(' and ')[0]} alone"


def _launch(
    found: PooledResult, plan: PooledPlan, args: argparse.Namespace
) -> tuple[list[str], str]:
    """The words of the command that writes the plan's launch file, or why there is none."""
    from ...launch_files import frameworks, pools
    from ...launch_files.registry import exporter

    task = found.tasks[0]
    usual = frameworks.with_usual(task).framework
    name = args.framework or (usual.name if usual else pools.TAKES_LAYERS[0])
    form = exporter(name).form()
    sizes = sorted({stage.gpus for stage in plan.stages})
    if plan.plan is None:
        told = " and ".join(map(str, sizes))
        return [], f"{form.title} has no stages of {told} GPUs in one plan"
    first = plan.stages[0].cluster == task.cluster.name
    both = found.tasks if first else found.tasks[::-1]
    launched = plan.plan.take(0)
    refused = pools.refusals(both, launched, form)
    if refused:
        return [], f"{form.title} cannot run it: {'; '.join(refused)}"
    one, other = both
    words = ["plan3d", "export", str(launched), "--to", name, "--model", args.model]
    words += ["--cluster", one.cluster.name, "--gpus", str(one.gpus)]
    words += ["--second-pool", f"{other.cluster.name}:{other.gpus}"]
    words += ["--sequence", str(task.sequence), "--global-batch", str(task.global_batch)]
    words += ["--software", args.software] if args.software else []
    return words, ""


def _print(screen: Screen, found: PooledResult, plan: PooledPlan, args: argparse.Namespace) -> None:
    alone = [
        f"{seconds:.4g} s on {task.gpus} x {task.cluster.name}"
        for task, seconds in zip(found.tasks, found.alone, strict=True)
        if seconds < float("inf")
    ]
    gap = max(1 - found.bound / plan.step_seconds, 0.0)
    left = f"at most {100 * gap:.1f} % from the best" if found.bound else "not yet bounded"
    proof = "proven best" if found.complete else left
    shared = f"cp={plan.shared['cp']} ep={plan.shared['ep']}"
    shared += f" sequence_parallel={plan.shared['sequence_parallel']}"
    screen.lines(
        [
            f"{plan.step_seconds:.4g} s a step on {_pools(found.tasks)} ({proof}); "
            f"{plan.micro_batches} micro-batches, {shared}",
            f"each pool alone: {', '.join(alone) or 'no plan fits'}",
        ]
    )
    print()
    screen.table(_table(plan))
    words, refused = _launch(found, plan, args)
    if words:
        screen.command(words, "launch")
        return
    other = "" if args.framework else "; --framework searches plans that one launches"
    screen.lines([f"{refused}{other}"])


def _table(plan: PooledPlan) -> Table:
    from plan3d.simulator.plan.values import spell

    headers = ("stage", "cluster", "recompute", "GPUs", "layers", "tp", "dp", "zero", "ms", "GiB")
    rows = []
    for i, stage in enumerate(plan.stages):
        modes = [f"{spell('recompute', run['recompute'])} {run['layers']}" for run in stage.runs]
        first = stage.runs[0]
        numbers = stage.gpus, stage.layers, first["tp"], first["dp"], first["zero"]
        last = f"{1e3 * stage.seconds:.1f}", f"{stage.memory_bytes / GIB:.1f}"
        rows.append((str(i), stage.cluster, ", ".join(modes), *map(str, numbers), *last))
    return Table(headers=headers, rows=tuple(rows), words=frozenset({1, 2}))


def _record(found: PooledResult, args: argparse.Namespace) -> dict[str, Any]:
    from plan3d.simulator.plan.values import spell

    from ..screen import views

    plan = found.plan
    launch, refused = _launch(found, plan, args) if plan else ([], "")
    return {
        "plan3d": views.version(),
        "pools": [views.task_record(task) for task in found.tasks],
        "alone_step_seconds": [None if s == float("inf") else s for s in found.alone],
        "seconds_searching": found.seconds_searching,
        "stages_costed": found.stages_costed,
        "complete": found.complete,
        "bound": found.bound if found.bound < float("inf") else None,
        "plan": plan
        and {
            "step_seconds": plan.step_seconds,
            "tokens_per_second": found.tasks[0].tokens / plan.step_seconds,
            "micro_batches": plan.micro_batches,
            "text": str(plan.plan.take(0)) if plan.plan else None,
            "launch": shlex.join(launch),
            "not_launched": refused,
            "shared": {name: spell(name, value) for name, value in plan.shared.items()},
            "stages": [
                {
                    "cluster": stage.cluster,
                    "gpus": stage.gpus,
                    "layers": stage.layers,
                    "runs": [
                        {n: spell(n, v) if n != "layers" else v for n, v in run.items()}
                        for run in stage.runs
                    ],
                    "seconds": stage.seconds,
                    "memory_bytes": stage.memory_bytes,
                }
                for stage in plan.stages
            ],
        },
    }
