"""The screen of a search over two pools of machines, and its JSON object."""

from __future__ import annotations

import shlex
from typing import Any

from plan3d.search.stage_dp.two_pools import PooledPlan, PooledResult
from plan3d.simulator.base.text_tables import Table
from plan3d.simulator.base.units import GIB
from plan3d.simulator.plan.fields import spell
from plan3d.simulator.task import Task

from ..answers.question import task_record
from ..answers.two_pools import PoolsAnswer
from . import views
from .output import Screen


def print_pools(screen: Screen, answer: PoolsAnswer) -> None:
    """The best plan over both pools, or why there is none."""
    if answer.result.plan is None:
        screen.lines([_none(answer.result)])
    else:
        _print_plan(screen, answer, answer.result.plan)


def _pools(tasks: tuple[Task, Task]) -> str:
    return " and ".join(f"{task.gpus} x {task.cluster.name}" for task in tasks)


def _none(found: PooledResult) -> str:
    if not found.complete:
        return "no plan over both pools was found before the search ended"
    if min(found.alone_seconds) == float("inf"):
        return f"no plan over {_pools(found.tasks)} fits"
    best = found.tasks[found.alone_seconds.index(min(found.alone_seconds))]
    return f"no plan over both pools is faster than {_pools((best, best)).split(' and ')[0]} alone"


def _print_plan(screen: Screen, answer: PoolsAnswer, plan: PooledPlan) -> None:
    found = answer.result
    alone = [
        f"{seconds:.4g} s on {task.gpus} x {task.cluster.name}"
        for task, seconds in zip(found.tasks, found.alone_seconds, strict=True)
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
    words, refused = answer.launch
    if words:
        screen.command(words, "launch")
        return
    other = "" if answer.request.framework else "; --framework searches plans that one launches"
    screen.lines([f"{refused}{other}"])


def _table(plan: PooledPlan) -> Table:
    headers = ("stage", "cluster", "recompute", "GPUs", "layers", "tp", "dp", "zero", "ms", "GiB")
    rows = []
    for i, stage in enumerate(plan.stages):
        modes = [f"{spell('recompute', run['recompute'])} {run['layers']}" for run in stage.runs]
        first = stage.runs[0]
        numbers = stage.gpus, stage.layers, first["tp"], first["dp"], first["zero"]
        last = f"{1e3 * stage.seconds:.1f}", f"{stage.memory_bytes / GIB:.1f}"
        rows.append((str(i), stage.cluster, ", ".join(modes), *map(str, numbers), *last))
    return Table(headers=headers, rows=tuple(rows), words=frozenset({1, 2}))


def pools_record(answer: PoolsAnswer) -> dict[str, Any]:
    """The JSON object."""
    found, plan = answer.result, answer.result.plan
    launch, refused = answer.launch
    return {
        "plan3d": views.version(),
        "pools": [task_record(task) for task in found.tasks],
        "alone_step_seconds": [None if s == float("inf") else s for s in found.alone_seconds],
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
