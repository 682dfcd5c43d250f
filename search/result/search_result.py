"""Results of a search: ranked plans, counts, bounds and what they are compared with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plan3d.simulator.base.arrays import Value
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.printable import shorten
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.task import Task
from plan3d.simulator.uncertainty.memory import probability_fits

from .families import Families
from .objective import score
from .tolerances import ROUNDING

if TYPE_CHECKING:
    from plan3d.simulator.reporting.palette import Picture

    from .obstacle import NearestChoices

BOUND = "bound: "
"""Before the names of bounds among those of what removes candidates."""
TIE = 0.05
"""Relative difference of step times that a prediction does not resolve: the median error of
published layouts of one model, predicted uncalibrated."""


class Gain(NamedTuple):
    """A field of plan 1 at a value that the search did not try."""

    field: str
    value: str
    searched_value: str
    """The value in the search."""
    step_seconds: float
    step_change: float
    """Relative to the plan before, negative when faster."""


@dataclass
class Counts:
    """How many plans a search met."""

    candidates: int = 0
    """Combinations of the axes' values."""
    evaluated: int = 0
    """Legal plans, all costed in full."""
    feasible: int = 0
    """Plans within the memory limit."""
    removed: dict[str, int] = field(default_factory=dict)
    """Candidates that each rule, or memory, removed."""
    changes: int = 0
    """Single changes of the best plans that were costed beside the space."""


@dataclass(frozen=True)
class Trace:
    """Where a search improved: plans costed so far, and the best objective from then on."""

    evaluations: NDArray[np.intp]
    best: Value

    def at(self, evaluations: int) -> float:
        """The best objective after so many plans; infinity before the first that fits."""
        i = int(np.searchsorted(self.evaluations, evaluations, side="right"))
        return float(self.best[i - 1]) if i else np.inf

    def until(self, objective: float) -> float:
        """Plans costed until the best was that good; infinity when it never was."""
        reached = np.flatnonzero(self.best <= objective)
        return float(self.evaluations[reached[0]]) if reached.size else np.inf


@dataclass(frozen=True)
class Optimum:
    """What bounds say of all fields that a stack launches (exact.launchable_space)."""

    proven: bool
    """Whether bounds cover the space, so that no plan of it is better; else only fields of the best
    plans were changed."""
    opened: tuple[str, ...]
    """The fields that the enumerated space keeps at one value."""
    fields: tuple[str, ...]
    """All fields of which the set has several values."""
    candidates: int
    """Combinations of the axes' values."""
    costed: int
    removed: dict[str, int]
    """Candidates that each rule, or bound, removed."""

    @property
    def pruned(self) -> dict[str, int]:
        """Candidates that each bound removed, by its name."""
        every = self.removed.items()
        return {n.removeprefix(BOUND): count for n, count in every if n.startswith(BOUND)}


OverLaunchable = Callable[["SearchResult", Collection[str]], "SearchResult"]
"""A result and the fields that keep their values -> the result over all that a stack launches."""
Departures = Callable[[], Iterable[Gain]]
"""-> single changes that made a plan faster, in turn."""
NearestToChosen = Callable[["float | None"], "NearestChoices | None"]
"""Bytes that a plan may use, or None -> what to change so that one fits in them, or is legal."""


@dataclass(frozen=True, kw_only=True)
class UniformSteps:
    """Seconds of a step of the best uniform plans; infinity where none fits."""

    same_pp: float
    """With as many stages as the best plan, without virtual stages."""
    not_interleaved: float
    """Without virtual stages."""
    overall: float
    """Of all, with virtual stages where they help."""


@dataclass(kw_only=True)
class SearchResult:
    """Ranked plans of a task, the frontier of time against memory, and counts.

    >>> task = Task(Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=8),
    ...             sequence=2048, global_batch=64)
    >>> result = find_plans(task, choose={"tp": [1, 2]})
    >>> result.best.fits, len(result.plans) == len(result.to_frame())
    (True, True)
    """

    task: Task
    backend: str
    objective: str
    limit: float
    """Bytes a plan may use on a GPU: its capacity less the headroom."""
    counts: Counts
    seconds_searching: float
    complete: bool
    """False when legal plans were left out: interrupted, out of budget, or sampled."""
    costs: Costs | None
    """Costs of the ranked plans, best first; None when none is feasible."""
    frontier: Costs | None
    """Plans of the enumerated space and ranked ones that no other of these beats in both step time
    and memory, fastest first; None where it was not asked for, plans were left out of the search,
    or none fits."""
    families: Families | None = None
    """What each of `costs` stands for, where they are the simplest plans of their families."""
    depths: Costs | None = None
    """The best plan of each family and number of stages, where families are listed: with other end
    stages it may be the best of all."""
    safe: Costs | None = None
    """The best plan that surely fits (SearchOptions.safe_limit), of any family; None where it was
    not asked for or none does."""
    of_families: Costs | None = None
    """Plans that no other of their family beats in both, where families are listed and the frontier
    was asked for."""
    smallest: Costs | None
    """The legal plan that needs least memory, feasible or not; None when none is legal."""
    departures: Departures | None = field(default=None, repr=False, compare=False)
    """What says how plan 1 departs from the space."""
    interrupted: bool = False
    """Ended by Ctrl-C: the best so far."""
    trace: Trace | None = None
    """How the best plan came about, of a search that does not cost every plan."""
    bound: float | None = None
    """What no plan that fits scores below, where the backend proves it."""
    system: str | None = None
    """The system whose plans alone were searched."""
    over_launchable: OverLaunchable | None = field(default=None, repr=False, compare=False)
    """What looks for better plans among all that a stack launches; None of a search of plans that
    are not uniform."""
    searched: tuple[str, ...] = ()
    """Fields of which the space has several values."""
    nearest_to_chosen: NearestToChosen | None = field(default=None, repr=False, compare=False)
    """What looks for the values nearest to the chosen ones that leave a plan; None where none were
    chosen, and of a search of plans that are not uniform."""
    optimum: Optimum | None = None
    """What bounds say of all fields that a stack launches, where they were asked."""
    risk: float | None = None
    """The quantile of the objective that ranks; None for its expectation."""
    uncovered: tuple[str, ...] = ()
    """Plans that are not uniform and that neither the search nor its bound covers, in words."""
    compared: UniformSteps | None = None
    """Of a search over plans that are not uniform: what the best uniform ones take."""

    @cached_property
    def climbed(self) -> tuple[Gain, ...]:
        """How plan 1 departs from the space: single changes that made it faster."""
        return () if self.departures is None else tuple(self.departures())

    def ended_by_interrupt(self) -> SearchResult:
        """The best so far, where Ctrl-C ended what was to make it better."""
        return replace(self, complete=False, interrupted=True)

    def nearest_choices(self, limit: float | None) -> NearestChoices | None:
        """What to change in the chosen values so that a plan is legal, or needs at most `limit`
        bytes; None where nothing would do, or nothing was chosen."""
        return None if self.nearest_to_chosen is None else self.nearest_to_chosen(limit)

    def unless_interrupted(self) -> SearchResult:
        """The result of a search that is part of another; KeyboardInterrupt goes on where it ended
        it."""
        if self.interrupted:
            raise KeyboardInterrupt
        return self

    @property
    def where(self) -> str:
        """The model and the machine."""
        task = self.task
        return f"{task.model.name} on {task.gpus} x {task.cluster.accelerator.name}"

    @property
    def plans(self) -> list[Plan]:
        return list(self.costs.plans) if self.costs is not None else []

    @property
    def best(self) -> Costs | None:
        """Costs of the best plan as plain numbers."""
        return None if self.costs is None else self.costs.row()

    @property
    def ties(self) -> int:
        """Ranked plans whose step is within TIE of the best: too close for a prediction to tell."""
        if self.costs is None:
            return 0
        step = self.costs.step
        return int(np.count_nonzero(step <= step[0] * (1 + TIE)))

    @property
    def gap(self) -> float | None:
        """How much better than the best plan another could be, relative; None where unknown."""
        if self.bound is None or self.costs is None:
            return None
        found = float(score(self.costs, self.objective, self.limit)[0])
        gap = 1 - self.bound / found
        return gap if gap > ROUNDING else 0.0

    @cached_property
    def event_seconds(self) -> Value:
        """Step seconds of the ranked plans with their pipelines simulated event by event.

        The ranking keeps the closed form, which the frontier and the counts are made with.
        """
        from plan3d.simulator.step.plan_timeline import rescore

        return rescore(self.costs) if self.costs is not None else np.zeros(0)

    def to_frame(self) -> Any:
        """A pandas DataFrame of the ranked plans."""
        from plan3d.simulator.step.costs_tables import frame

        table = frame(self.costs)
        if self.costs is not None:
            table["probability_fits"] = probability_fits(self.costs)
        return table

    def plot(self) -> Picture:
        """Time against memory, of the ranked plans and of the frontier, where it was asked for:
        in a notebook a picture, elsewhere plot().save("plans.png")."""
        from plan3d.simulator.reporting.palette import Picture
        from plan3d.simulator.reporting.plots_many import frontier_page

        if self.costs is None:
            raise InputError("there is no plan to draw: none fits")
        frontier = _frontier(self.costs) if self.frontier is None else self.frontier
        return Picture(frontier_page(frontier, self.costs, self.limit))

    def __repr__(self) -> str:
        none = "none fits" if self.smallest is not None else "none is legal"
        best = none if self.best is None else f"best {self.best!r}"
        return shorten(f"SearchResult({self.where}, {len(self.plans)} plans, {best})", 400)

    def __str__(self) -> str:
        from .result_text import text

        return text(self)

    def _repr_html_(self) -> str:
        from plan3d.simulator.step.costs_tables import html

        return html(self.costs) if self.costs is not None else "<p>no feasible plan</p>"


def _frontier(costs: Costs) -> Costs:
    """Those of some ranked plans that no other beats in both time and memory."""
    order = np.argsort(costs.step, kind="stable")
    least = np.minimum.accumulate(costs.memory_total[order])
    first = np.concatenate([[True], least[1:] < least[:-1]])
    return costs.take(order[first])
