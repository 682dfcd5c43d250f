"""Benchmark of backends: how good a plan each finds, after how many, against the optimum."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from plan3d.simulator.base.arrays import Value
from plan3d.simulator.base.errors import InputError, NoFeasiblePlanError
from plan3d.simulator.base.printable import shorten
from plan3d.simulator.base.text_tables import Table, format_table, tables_html
from plan3d.simulator.task import Task

from ..rank_plans import Ranking, check_backend, check_space, rank_plans
from ..result.options import Progress
from ..result.search_result import SearchResult, Trace
from ..sampling.samplers import BUDGET, SAMPLERS, samplers_of_space
from ..space.space import Choices
from ..space.staged_problem import StagedProblem
from .schedulers import Scheduler, searches

if TYPE_CHECKING:
    from plan3d.simulator.reporting.palette import Picture

NEAR_OPTIMUM = 0.01
"""Regret that counts as having found the optimum: far below what a prediction can resolve."""
SEEDS = 5
"""Runs of a backend that draws at random, unless asked for more or fewer."""


@dataclass(frozen=True)
class BackendEntry:
    """What one backend did, a value for each seed; one value where nothing is drawn."""

    backend: str
    best: Value
    """Seconds of the best step; infinity where no plan that fits was found."""
    regret: Value
    """Best over optimum, less one."""
    evaluations: Value
    seconds: Value
    to_near: Value
    """Plans costed until the regret was at most NEAR_OPTIMUM; infinity when it never was."""
    traces: tuple[Trace, ...]

    def regrets(self, evaluations: Sequence[int], optimum: float) -> Value:
        """Regret [seed, count] after so many plans."""
        rows = [[trace.at(n) for n in evaluations] for trace in self.traces]
        return np.array(rows) / optimum - 1


@dataclass(kw_only=True, repr=False)
class BackendBenchmark:
    """The certified optimum of a space, and what each backend made of it."""

    task: Task
    space: str
    optimum: SearchResult
    """Exhaustion of the uniform space; of staged plans, a proof for a set that has all of them."""
    budget: int
    entries: list[BackendEntry] = field(default_factory=list)
    complete: bool = True
    """False when interrupted: the backends that came to their end."""

    @property
    def best(self) -> float:
        """Step seconds of the optimum."""
        assert self.optimum.best is not None
        return float(self.optimum.best.step_seconds)

    def to_frame(self) -> Any:
        """A pandas DataFrame, a row a backend: medians over the seeds."""
        import pandas

        columns = ("best", "regret", "evaluations", "to_near", "seconds")
        rows = [[np.median(getattr(entry, name)) for name in columns] for entry in self.entries]
        names = [entry.backend for entry in self.entries]
        return pandas.DataFrame(rows, columns=list(columns), index=names)

    def plot(self) -> Picture:
        """Regret against plans costed: in a notebook a picture, elsewhere
        plot().save("backends.png")."""
        from plan3d.simulator.reporting.palette import Picture

        from .pictures import race_page

        return Picture(race_page(self))

    def _table(self) -> Table:
        columns = {
            "best": ("best step s", "{:.4g}", 1),
            "regret": ("regret %", "{:.2f}", 100),
            "evaluations": ("plans costed", "{:,.0f}", 1),
            "to_near": (f"plans to {100 * NEAR_OPTIMUM:g} %", "{:,.0f}", 1),
            "seconds": ("search s", "{:.2g}", 1),
        }
        medians = self.to_frame()
        rows = tuple(
            (name, *(_cell(row[key], write, factor) for key, (_, write, factor) in columns.items()))
            for name, row in medians.iterrows()
        )
        return Table(headers=("backend", *(head for head, _, _ in columns.values())), rows=rows)

    def _repr_html_(self) -> str:
        return tables_html([self._table()])

    def __str__(self) -> str:
        """A row a backend: medians over the seeds."""
        return format_table(self._table())

    def __repr__(self) -> str:
        where = f"{self.task.model.name} on {self.task.gpus} x {self.task.cluster.name}"
        names = ", ".join(entry.backend for entry in self.entries)
        return shorten(f"BackendBenchmark({where}, {self.space} plans, {names})", 400)


def _cell(value: float, write: str, factor: float) -> str:
    """A median as it is written; '-' where there is none."""
    return write.format(factor * value) if np.isfinite(value) else "-"


def _entry(backend: str, results: list[SearchResult], optimum: float) -> BackendEntry:
    bests = [r.best for r in results]
    best = np.array([np.inf if b is None else b.step_seconds for b in bests])
    traces = tuple(r.trace or Trace(np.array([r.counts.evaluated]), best) for r in results)
    return BackendEntry(
        backend=backend,
        best=best,
        regret=best / optimum - 1,
        evaluations=np.array([float(r.counts.evaluated) for r in results]),
        seconds=np.array([r.seconds_searching for r in results]),
        to_near=np.array([trace.until(optimum * (1 + NEAR_OPTIMUM)) for trace in traces]),
        traces=traces,
    )


@dataclass(frozen=True, kw_only=True)
class BackendsRequest:
    """Which backends are compared, over which plans, and how much each may cost."""

    backends: Sequence[str] | None = None
    """Names; None for all of SAMPLERS that search the space."""
    space: str = "uniform"
    """'uniform' or 'staged'."""
    choose: Choices = field(default_factory=dict)
    """Values of plan fields to search instead of the usual."""
    headroom: float | None = None
    """That of a Ranking."""
    budget: int = BUDGET
    """Plans that a run of one that draws at random may cost."""
    seeds: int = SEEDS
    """Runs of such a backend."""
    scheduler: Scheduler | None = None
    """What runs the searches (schedulers.Scheduler); None for this process."""
    progress: Progress | None = None
    """Is called with the number of plans costed by all so far."""


def compare_backends(task: Task, request: BackendsRequest) -> BackendBenchmark:
    """Run each backend after a search that proves the optimum of the space: those that draw at
    random with seeds 0, 1, ..., others once, to their end.

    Raises InputError for an unknown backend, space or number and for a backend that does not search
    the space, NoFeasiblePlanError when no plan fits.
    """
    space, choose, headroom = request.space, request.choose, request.headroom
    budget, seeds = request.budget, request.seeds
    names = samplers_of_space(space) if request.backends is None else request.backends
    _check(names, space, budget, seeds)
    optimum = _certified(task, space, choose, headroom)
    race = BackendBenchmark(
        task=task, space=space, optimum=optimum, budget=budget, complete=optimum.complete
    )
    if optimum.best is None and race.complete:
        raise NoFeasiblePlanError("no plan of the space fits: there is nothing to compare")
    told = _Total(request.progress, optimum.counts.evaluated)
    here = told if request.scheduler is None else None
    ranking = Ranking(space=space, choose=choose, headroom=headroom, top=1, progress=here)
    runs: list[tuple[int, Ranking]] = []
    for number, name in enumerate(names if race.complete else ()):
        of_backend = replace(ranking, backend=name)
        seeded = [replace(of_backend, budget=budget, seed=seed) for seed in range(seeds)]
        runs += [(number, one) for one in (seeded if name in SAMPLERS else [of_backend])]
    asked = ((task, one) for _, one in runs)
    found: list[list[SearchResult]] = [[] for _ in names]
    with closing(searches(request.scheduler, asked)) as results:
        for (number, _), result in zip(runs, results, strict=False):
            if result.interrupted:
                break
            found[number].append(result)
            told.done += result.counts.evaluated
            told(0)
    race.complete = race.complete and sum(map(len, found)) == len(runs)
    for number, name in enumerate(names):
        if found[number] and len(found[number]) == sum(number == own for own, _ in runs):
            race.entries.append(_entry(name, found[number], race.best))
    return race


def _certified(task: Task, space: str, choose: Choices, headroom: float | None) -> SearchResult:
    """The best plan of a space, or of a set around it, with its proof."""
    if space == "uniform":
        return rank_plans(task, Ranking(choose=choose, headroom=headroom, top=1))
    around = StagedProblem.of(task, choose).constraints
    name = "dynamic-programming"
    return rank_plans(task, Ranking(backend=name, choose=around, headroom=headroom, top=1))


def _check(backends: Sequence[str], space: str, budget: int, seeds: int) -> None:
    for name in backends:
        check_backend(name)
        check_space(space, name)
    for what, number in (("budget", budget), ("seeds", seeds)):
        if number < 1:
            raise InputError(f"{what} must be at least 1, not {number}")


class _Total:
    """Tells of the plans costed by all runs so far."""

    def __init__(self, progress: Progress | None, done: int) -> None:
        self.progress, self.done = progress, done

    def __call__(self, costed: int) -> None:
        if self.progress:
            self.progress(self.done + costed)
