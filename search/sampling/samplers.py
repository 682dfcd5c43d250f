"""Samplers: the backends that draw plans and only see their scores, and the loop that runs them.

The budget counts plans asked for: a point asked for again is answered from the scores that are
known, free of charge. The trace of a run is the best score against the plans asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Protocol

import numpy as np

from plan3d.simulator.base.arrays import Value
from plan3d.simulator.base.registry import Registry
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.step.evaluate import simulate

from ..exact.exhaustive import UniformPlans
from ..result.objective import BARRIER, guided
from ..result.options import SearchOptions
from ..result.search_record import SearchRecord
from ..result.search_result import SearchResult, Trace
from ..space.problem import Points, Problem, Random, draw
from ..space.space import Space
from ..space.staged_problem import StagedProblem
from ..space.uniform_problem import UniformProblem

BUDGET = 2000
"""Plans costed by default."""
MOST_COSTED_WHOLE = 200_000
"""Plans of a space that are costed whole, in less time than the tables of one run take."""
STALE_TABLES = 50
"""Tables in a row without a new plan after which a sampler starts again; more than the samplers'
own restarts need."""
STALE_SHARE = 0.25
"""Share of the budget without a better plan after which it does so as well."""
STALE_STARTS = 3
"""Starts in a row without a new plan after which a search ends: what is left is out of reach."""


class Sampler(Protocol):
    """A backend that only sees points and scores."""

    def ask(self, spent: float) -> Points:
        """Points to cost next, as many as it likes; `spent` is the share of the budget used."""
        ...

    def tell(self, points: Points, scores: Value) -> None:
        """The scores of the points just asked for, lower is better (objective.guided)."""
        ...


MakeSampler = Callable[..., Sampler]
"""Of a problem, a random generator and, if there are any, points to start from, best first."""


class StartPoints:
    """Points where a search starts and restarts: random ones, or initial ones that are given."""

    RETURN_CHANCE = 0.8
    """Chance to restart at the best point of all, where there are initial points."""

    def __init__(self, problem: Problem, random: Random, initial: Points | None) -> None:
        self.problem, self.random, self.initial = problem, random, initial
        self.best, self.best_score = np.zeros((1, len(problem.variables)), np.intp), np.inf

    def add(self, points: Points, scores: Value) -> None:
        """Keep the best of all."""
        i = int(np.argmin(scores))
        if scores[i] < self.best_score:
            self.best_score, self.best = float(scores[i]), points[[i]]

    def table(self, rows: int) -> Points:
        """Points to start from: the initial ones, or so many random ones."""
        return draw(self.problem, rows, self.random) if self.initial is None else self.initial

    def restart(self, rows: int, share: float = 0.0) -> Points:
        """Points to restart from; without initial points a `share` is the best point of all."""
        if self.initial is None:
            points = draw(self.problem, rows, self.random)
        else:
            points, share = self.initial[np.arange(rows) % len(self.initial)], self.RETURN_CHANCE
        if not share or np.isinf(self.best_score):
            return points
        back = self.random.random((rows, 1)) < share
        out: Points = np.where(back, self.best, points)
        return out


class Repeats:
    """Count of tables in a row without a new point."""

    def __init__(self) -> None:
        self.points: set[bytes] = set()
        self.tables = 0

    def add(self, points: Points) -> int:
        """The number, this table included; 0 where one of its points is new."""
        rows = {row.tobytes() for row in points}
        self.tables = self.tables + 1 if rows <= self.points else 0
        self.points |= rows
        return self.tables


@dataclass
class KnownScores:
    """Scores of the points costed so far."""

    scores: dict[bytes, float] = field(default_factory=dict)

    def unscored(self, points: Points) -> Points:
        """The distinct points that are not known yet, in lexicographic order."""
        rows = {row.tobytes(): row for row in points}
        fresh = sorted(row.tolist() for key, row in rows.items() if key not in self.scores)
        return np.array(fresh, np.intp).reshape(len(fresh), points.shape[1])

    def add(self, points: Points, scores: Value) -> None:
        keys = (row.tobytes() for row in points)
        self.scores.update(zip(keys, scores.tolist(), strict=True))

    def look_up(self, points: Points) -> Value:
        return np.array([self.scores[row.tobytes()] for row in points])


@dataclass
class _Improvements:
    """The trace under construction, in logarithms."""

    evaluations: list[int] = field(default_factory=list)
    best: list[float] = field(default_factory=list)

    def add(self, before: int, scores: Value) -> None:
        """Scores of plans costed one after another, after so many others."""
        for number, value in enumerate(scores.tolist(), before + 1):
            if value < min(BARRIER, self.best[-1] if self.best else BARRIER):
                self.evaluations.append(number)
                self.best.append(value)

    def trace(self) -> Trace:
        return Trace(np.array(self.evaluations, np.intp), np.exp(np.array(self.best, float)))


def scorer(problem: Problem, options: SearchOptions) -> Callable[[Points], Value]:
    """What scores points (objective.guided): a space that is small is costed whole, once, so that
    tables of a few points are looked up; of a large one every table is costed."""

    def score(plans: Plan) -> Value:
        return guided(simulate(problem.task, plans), options.objective, options.limit)

    if isinstance(problem, UniformProblem) and problem.size <= MOST_COSTED_WHOLE:
        asked = ("scores", options.objective, options.limit)
        if asked not in problem.known:
            each = [score(plans) for plans in problem.space.chunks()]
            problem.known[asked] = np.concatenate(each)
        every: Value = problem.known[asked]
        return lambda points: every[problem.numbers(points)]
    return lambda points: score(problem.plans(points))


class AskTell:
    """One backend on one problem, from the first table to the last."""

    def __init__(self, problem: Problem, record: SearchRecord) -> None:
        self.problem, self.record, self.scores = problem, record, KnownScores()
        self.budget = min(record.options.budget or BUDGET, problem.size)
        self.improvements = _Improvements()
        self.stale_tables = self.costed = 0
        self.tables: list[Points] = []
        """What was costed and is not in the record."""

    @cached_property
    def score(self) -> Callable[[Points], Value]:
        return scorer(self.problem, self.record.options)

    @property
    def plans_left(self) -> int:
        """Plans that may still be costed."""
        return self.budget - self.costed

    def cost(self, points: Points) -> Value | None:
        """Scores of the points; None when the budget does not cover all that are new."""
        new = self.scores.unscored(points)
        within = new[: self.plans_left]
        self.stale_tables = 0 if len(new) else self.stale_tables + 1
        if len(within):
            scores = self.score(within)
            self.scores.add(within, scores)
            self.improvements.add(self.costed, scores)
            self.tables.append(within)
            self.costed += len(within)
        return self.scores.look_up(points) if len(within) == len(new) else None

    def keep(self) -> None:
        """Enter what was costed into the record, as one table in the order of the space."""
        if self.tables:
            points = np.unique(np.concatenate(self.tables), axis=0)
            self.record.add(self.problem.plans(points))
            self.tables = []

    def run(self, make: Callable[[], Sampler]) -> None:
        """Ask, cost and tell until plans or seconds run out; a sampler that finds nothing new or
        nothing better is replaced by one that knows nothing, which is told known scores again for
        free, until STALE_STARTS of them find nothing new."""
        stale_starts = 0
        while self.plans_left and stale_starts < STALE_STARTS:
            before = self.costed
            self._run_one(make())
            if self.record.options.deadline.passed:
                return
            stale_starts = 0 if self.costed > before else stale_starts + 1

    def _run_one(self, sampler: Sampler) -> None:
        """Run one sampler until plans or seconds run out, or it is stale; it sees the share that it
        spent of what was left."""
        start, best, deadline = self.costed, np.inf, self.record.options.deadline
        self.stale_tables, best_at = 0, start
        while self.plans_left and self.stale_tables < STALE_TABLES and not deadline.passed:
            points = sampler.ask((self.costed - start) / (self.budget - start))
            scores = self.cost(points)
            self.record.options.tell(self.costed)
            if scores is None:
                continue
            sampler.tell(points, scores)
            if scores.min() < best:
                best, best_at = scores.min(), self.costed
            elif self.costed - best_at > STALE_SHARE * self.budget:
                return


def sample(
    problem: Problem,
    make: MakeSampler,
    options: SearchOptions,
    *,
    backend: str,
    seed: int | None = None,
) -> SearchResult:
    """The best plans that a sampler finds within the budget of plans (BUDGET when None).

    The same seed (0 when None) gives the same plans. Complete when every legal plan was costed;
    an interrupt or the end of the time returns the best so far.
    """
    record = SearchRecord(problem.task, options)
    ask_tell = AskTell(problem, record)
    random = np.random.default_rng(seed or 0)
    try:
        if problem.size == 1:
            ask_tell.cost(draw(problem, 1, random))
        elif problem.size:
            ask_tell.run(lambda: make(problem, random))
    except KeyboardInterrupt:
        record.interrupted = True
    ask_tell.keep()
    record.complete = record.counts.evaluated == problem.size
    removed = {"rules": problem.candidates - problem.size}
    return record.result(backend, problem.candidates, removed, ask_tell.improvements.trace())


_PACKAGE = __package__
SAMPLERS: Registry[MakeSampler] = Registry(
    "backend",
    "plan3d.samplers",
    {
        "random": f"{_PACKAGE}.zeroth_order:RandomSearch",
        "annealing": f"{_PACKAGE}.zeroth_order:Annealing",
        "spsa": f"{_PACKAGE}.zeroth_order:Spsa",
        "cma-es": f"{_PACKAGE}.zeroth_order:CmaEs",
        "reinforcement-learning": f"{_PACKAGE}.reinforcement_learning:PolicyGradient",
        "pretrained-policy": f"{_PACKAGE}.pretrained_policy:PretrainedPolicy",
    },
)
"""They take a seed."""
EQUAL_STAGES_ONLY = ("pretrained-policy",)
"""Samplers of equal stages only, as those they were trained on."""


def samplers_of_space(space: str) -> tuple[str, ...]:
    """The names of those that search a space."""
    return tuple(name for name in SAMPLERS if space == "uniform" or name not in EQUAL_STAGES_ONLY)


def staged_sampler(name: str) -> MakeSampler:
    """A backend of SAMPLERS as it searches staged plans: those with equal stages first, unless it
    draws without learning."""
    from .two_phase import TwoPhase

    make = SAMPLERS[name]
    return make if name == "random" else partial(TwoPhase, make)


_LATEST: list[UniformProblem] = []
"""The latest problem: backends and seeds that are compared share what they find of it."""


def _problem_of(space: Space) -> UniformProblem:
    """The plans of a space as a problem."""
    if not (_LATEST and _LATEST[0].is_of(space)):
        _LATEST[:] = [UniformProblem(space)]
    return _LATEST[0]


def search(
    name: str, subject: Space | StagedProblem, options: SearchOptions, *, seed: int | None = None
) -> SearchResult:
    """The search of one sampler, over plans whose stages are alike or may differ."""
    if isinstance(subject, Space):
        make = SAMPLERS[name]
        return sample(_problem_of(subject), make, options, backend=name, seed=seed)
    whole = Space.of(subject.task)
    uniform = UniformPlans.of_default_space(whole, options)
    if uniform.whole_stages.interrupted:
        return replace(uniform.whole_stages, backend=name, frontier=None)
    result = sample(subject, staged_sampler(name), options, backend=name, seed=seed)
    return replace(result, compared=uniform.compared_steps(result.costs))
