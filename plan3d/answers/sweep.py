"""Sweeps: the same question over one or two numbers: scaling, what-if, cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from plan3d.search.space.constraints import check_lists
from plan3d.search.space.space import Choices
from plan3d.search.whatif.schedulers import Scheduler
from plan3d.search.whatif.sweep import Point, PointOptions, Sweep, run_points, with_scaling
from plan3d.search.whatif.variation import Values, points_over
from plan3d.simulator.base.units import as_count
from plan3d.simulator.plan.plan import PlanLike
from plan3d.simulator.task import Task, check_task

from ..launch_files.frameworks import for_framework
from .question import with_usual_framework

SIZES = ("gpus", "nodes")
"""Fields that count GPUs: where they are varied, rows have their scaling efficiency."""


@dataclass(frozen=True, kw_only=True)
class SweepRequest:
    """Points, and where they run."""

    points: Sequence[Point]
    varied: Sequence[str]
    """The fields that are varied, in order."""
    scheduler: Scheduler | None = None
    """An executor, a client of Dask or the address of its scheduler, instead of processes of this
    machine."""
    workers: int | None = None
    """Processes; one a core where it is None."""
    resume: str | None = None
    """A CSV file that keeps the points that are done, and goes on with them."""
    anew: bool = False
    """Whether points that the file holds are run again."""
    progress: Callable[[int], None] | None = None
    """Called with the number of points that are done."""


def run_sweep(request: SweepRequest) -> Sweep:
    """Rows of all points; an interrupt keeps what is done."""
    done = run_points(
        request.points,
        scheduler=request.scheduler,
        resume=request.resume,
        anew=request.anew,
        workers=request.workers,
        each=request.progress,
    )
    if not set(request.varied) & set(SIZES):
        return done
    series = next((name for name in request.varied if name not in SIZES), None)
    return replace(done, rows=with_scaling(done.rows, series))


def sweep(
    task: Task,
    over: Mapping[str, Values],
    *,
    framework: str | None = None,
    plan: PlanLike | None = None,
    choose: Choices | None = None,
    headroom: float | None = None,
    objective: str | None = None,
    tokens: float | str | None = None,
    price: float | None = None,
    scheduler: Scheduler | None = None,
    resume: str | None = None,
    workers: int | None = 1,
) -> Sweep:
    """The same question at every combination of values: scaling, what-if, cost.

    `over` maps fields of the task (model, cluster, gpus, sequence, global_batch, software) or of a
    plan to their values: {"gpus": [64, 128], "tp": [1, 2]}; values of one's own may have names:
    {"cluster": {"mine": cluster}}. "system" is varied over names of training systems.

    * `plan`: the plan of every point, its dp filling the GPUs; without it each point has its best.
    * `framework`, `choose`, `headroom`, `objective`: of the search of that, as find_plans has them.
    * `tokens`, such as 2e12 or "2T": adds the time, GPU-hours and energy of training, with a
      `price` in USD per GPU-hour its cost.
    * `workers`: processes; several import the calling script again, so it needs a main guard.
      `scheduler`: instead any executor of concurrent.futures, a client of Dask, or the address of
      its scheduler.
    * `resume`: a CSV file that keeps the points that are done, and goes on with them.

    >>> task = Task(Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=8),
    ...             sequence=2048, global_batch=64)
    >>> len(sweep(task, {"gpus": [8, 16]}, plan="tp=2").rows)
    2
    """
    check_task(task)
    check_lists("choose", {} if choose is None else choose)
    asked = with_usual_framework(task) if framework is None else for_framework(task, framework)
    counts = {"tokens": tokens, "price": price}
    stated: dict[str, Any] = {"choose": choose, "headroom": headroom, "objective": objective}
    stated |= {name: as_count(value, name) for name, value in counts.items() if value is not None}
    options = PointOptions(**{n: value for n, value in stated.items() if value is not None})
    return run_sweep(
        SweepRequest(
            points=points_over(asked, over, plan, options),
            varied=tuple(over),
            scheduler=scheduler,
            workers=workers,
            resume=resume,
        )
    )
