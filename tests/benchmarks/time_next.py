"""What to time next, when every evaluation is a job on a cluster: timed plans until one is good.

    OMP_NUM_THREADS=1 python tests/benchmarks/time_next.py published | constants | errors

A plan is good within 1 % of the best. `published`: layouts of published groups of 8 and more, of
stacks whose source taught nothing. `constants`: a cluster that is the simulator with constants
drawn from the prior of stacks nobody has timed, which the tool does not know. `errors`: besides,
every value of the fields that rankings tell apart has a share in an error that no constant
explains, as spread as that of published rows.

`order`         plans as predicted before anything is timed
`posterior`     the least expected step, once those timed before are known (uncertainty.choice)
`improvement`   the largest expected improvement, by the same posterior
`tune`          constants at their posterior mode, and all plans searched again (plan3d tune)
`spsa, cma-es`  begun at the START plans predicted best; `annealing` likewise
`random`        any plan that is predicted to fit
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from plan3d.search.rank_plans import DEFAULT_HEADROOM, Ranking, rank_plans
from plan3d.search.result.objective import BARRIER
from plan3d.search.sampling.samplers import SAMPLERS
from plan3d.search.space.problem import (
    PrefixWalk,
    Variable,
    encode,
    nearest_points,
    random_step,
)
from plan3d.search.space.space import Space
from plan3d.search.space.uniform_problem import UniformProblem
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.fields import RANKING_AXES
from plan3d.simulator.plan.plan import Plan, concat
from plan3d.simulator.runs.published_runs import read_runs
from plan3d.simulator.runs.run_tasks import Question, questions
from plan3d.simulator.step.evaluate import simulate
from plan3d.simulator.task import Task
from plan3d.simulator.uncertainty.choice import Choice
from plan3d.simulator.uncertainty.constants import with_constants
from plan3d.simulator.uncertainty.forecast import Forecast, posterior_of
from plan3d.simulator.uncertainty.predictive import DOUBLING_FIELDS
from plan3d.simulator.validation.choice_scores import GOOD_REGRET, LEAST_LAYOUTS
from plan3d.simulator.validation.leave_origin_out import choice_groups, fitting_groups
from plan3d.simulator.validation.memory_scores import with_held_out_spreads
from plan3d.simulator.validation.predict_runs import predict
from plan3d.simulator.validation.unseen import UnseenRuns
from plan3d.simulator.workload.model import Model
from plan3d.tuning.advice import Outcome, Outcomes, advise

SEEDS, MOST = 5, 60
"""Runs of what draws at random, and plans timed at most."""
START, SHORT = 4, 300
"""Plans to begin with, and those that a posterior chooses among."""
STALE_TABLES = 300
"""Tables without a new plan after which a sampler has nothing more to say."""
DRAWN = ("annealing", "spsa", "cma-es", "random")
TASKS = (
    ("gpt3-13b", "a100-80gb-sxm", 64, 2048, 512),
    ("gpt3-175b", "a100-80gb-sxm", 1024, 2048, 1536),
    ("llama-3.1-8b", "h100-sxm", 32, 8192, 256),
    ("llama-3.1-70b", "h100-sxm", 256, 8192, 512),
    ("llama-33b", "v100-32gb-sxm", 64, 2048, 256),
    ("mixtral-8x7b", "h100-sxm", 128, 4096, 1024),
    ("qwen2.5-32b", "h200-sxm", 64, 4096, 512),
    ("llama-2-70b", "mi300x", 128, 4096, 1024),
)
CLUSTERS = 3
"""Draws of the constants for each task."""


@dataclass
class Timed:
    """Plans timed one after another until one is good."""

    good: float
    """Logarithm of seconds that is good enough."""
    known: set[bytes] = field(default_factory=set)
    reached: bool = False

    def add(self, key: bytes, log_seconds: float) -> None:
        if not self.reached and key not in self.known:
            self.known.add(key)
            self.reached = log_seconds <= self.good

    @property
    def over(self) -> bool:
        return self.reached or len(self.known) >= MOST

    @property
    def runs(self) -> float:
        return len(self.known) if self.reached else np.inf


class Listed:
    """A sampling problem whose points are those of a list of plans."""

    def __init__(self, task: Task, plans: Plan) -> None:
        self.task = task
        columns = {name: c for name, c in plans.columns().items() if np.unique(c).size > 1}
        self.variables = tuple(
            Variable(name, tuple(np.unique(c).tolist()), ordered=name in DOUBLING_FIELDS, role=name)
            for name, c in columns.items()
        )
        sides = [np.unique(c, return_inverse=True)[1].ravel() for c in columns.values()]
        self.points = np.column_stack(sides)
        self.size = self.candidates = len(np.unique(self.points, axis=0))

    def legal(self, prefix: np.ndarray) -> np.ndarray:
        i = prefix.shape[1]
        mask = np.zeros((len(prefix), len(self.variables[i].values)), bool)
        same = (self.points[:, None, :i] == prefix).all(axis=2)
        for row in range(len(prefix)):
            mask[row, self.points[same[:, row], i]] = True
        return mask

    def walk(self, rows: int) -> PrefixWalk:
        return PrefixWalk(self, rows)

    def neighbours(self, points: np.ndarray, random: np.random.Generator) -> np.ndarray:
        variable, index = random_step(self, points, random)
        wanted = points.copy()
        wanted[np.arange(len(points)), variable] = index
        return nearest_points(self, encode(self, wanted))


Score = Callable[[np.ndarray], np.ndarray]
"""Points -> logarithms of measured seconds, or BARRIER and more where the plan does not fit."""


def drawn(name: str, problem, first: np.ndarray, score: Score, good: float, seed: int) -> float:
    """Runs that a sampler needs; what the tool says does not fit is not run."""
    timed, stale = Timed(good), 0
    random = np.random.default_rng(seed)
    start = () if name == "random" else (first,)
    sampler = SAMPLERS[name](problem, random, *start)
    while not timed.over and stale < STALE_TABLES:
        before = len(timed.known)
        points = sampler.ask(min(before / MOST, 1.0))
        scores = score(points)
        for point, value in zip(points, scores, strict=True):
            if value < BARRIER and not timed.over:
                timed.add(point.tobytes(), float(value))
        stale = 0 if len(timed.known) > before else stale + 1
        sampler.tell(points, scores)
    return timed.runs


def improving(choice: Choice, timed: list[int]) -> int:
    """The plan of the largest expected improvement; the least expected step before the first."""
    if not timed:
        return int(choice.mean.argmin())
    gains = choice.gains(timed)
    gains[timed] = -1.0
    return int(gains.argmax())


def expected(choice: Choice, timed: list[int]) -> int:
    """The plan of the least expected step of those that are left."""
    mean = choice.mean.copy()
    mean[timed] = np.inf
    return int(mean.argmin())


def chosen(
    choice: Choice, log_seconds: np.ndarray, good: float, by: Callable[[Choice, list[int]], int]
) -> float:
    """Runs that a posterior needs."""
    timed: list[int] = []
    known = choice
    for _ in range(min(MOST, log_seconds.size)):
        timed.append(by(known, timed))
        if log_seconds[timed[-1]] <= good:
            return len(timed)
        known = choice.conditioned_on(timed, log_seconds[timed])
    return np.inf


def in_order(choice: Choice, log_seconds: np.ndarray, good: float) -> float:
    """Runs in the order of the prediction."""
    found = np.flatnonzero(log_seconds[np.argsort(choice.mean, kind="stable")] <= good)
    return float(found[0] + 1) if found.size and found[0] < MOST else np.inf


Found = dict[str, list[float]]


def published() -> Found:
    """Runs by method, on published groups."""
    answers = questions(read_runs(), learned=False)
    p = with_held_out_spreads(predict([a for a in answers if isinstance(a, Question)]))
    unseen = UnseenRuns.of_prediction(p)
    units = unseen.units_of("all")
    out: Found = {}
    groups = zip(choice_groups(unseen, units), fitting_groups(unseen, units), strict=True)
    for group, (_, rows) in groups:
        measured = group.log_seconds
        if measured.size < LEAST_LAYOUTS:
            continue
        good = float(measured.min() + np.log1p(GOOD_REGRET))
        asked = [p.questions[row] for row in rows]
        add(out, "order", in_order(group.choice, measured, good))
        add(out, "posterior", chosen(group.choice, measured, good, expected))
        add(out, "improvement", chosen(group.choice, measured, good, improving))
        listed = Listed(asked[0].task, concat([q.plan.table() for q in asked]))
        times = {}
        for point, seconds in zip(listed.points, measured, strict=True):
            key = point.astype(np.intp).tobytes()
            times[key] = min(times.get(key, np.inf), seconds)

        def score(points: np.ndarray, times: dict[bytes, float] = times) -> np.ndarray:
            return np.array([times[point.tobytes()] for point in points])

        first = listed.points[np.argsort(group.choice.mean, kind="stable")[:START]]
        draw_all(out, listed, first.astype(np.intp), score, good)
    print(f"{len(out['order'])} groups")
    return out


def add(out: Found, name: str, runs: float) -> None:
    out.setdefault(name, []).append(runs)


def draw_all(out: Found, problem, first: np.ndarray, score: Score, good: float) -> None:
    for name in DRAWN:
        for seed in range(SEEDS):
            add(out, name, drawn(name, problem, first, score, good, seed))


@dataclass(frozen=True)
class Hidden:
    """A task on a cluster whose constants the tool does not know."""

    task: Task
    changes: dict[str, float]
    errors: dict[str, dict[int, float]]
    """By field and value, what it adds to the logarithm of a step."""

    @cached_property
    def truth(self) -> Task:
        return with_constants(self.task, self.changes)

    @property
    def limit(self) -> float:
        return self.task.cluster.accelerator.memory * (1 - DEFAULT_HEADROOM)

    def log_seconds(self, plans: Plan) -> np.ndarray:
        found = np.log(simulate(self.truth, plans).step)
        for name, shares in self.errors.items():
            values, rows = np.unique(getattr(plans, name), return_inverse=True)
            found = found + np.array([shares[int(v)] for v in values])[rows.ravel()]
        return found

    def good(self) -> float:
        """1 % above the best of all plans that are predicted to fit."""
        best = np.inf
        for plans in Space.of(self.task).chunks():
            fits = simulate(self.task, plans).memory_total <= self.limit
            if fits.any():
                best = min(best, float(self.log_seconds(plans)[fits].min()))
        return best + float(np.log1p(GOOD_REGRET))

    def tuned(self, good: float) -> float:
        """Runs of plan3d tune, one plan at a time."""
        timed: list = []
        while len(timed) < 20:
            advice = advise(self.task, Outcomes(timed=timed))
            plan = advice.plans.take(advice.rows_to_time(1)[0])
            seconds = float(self.log_seconds(plan.table())[0])
            if seconds <= good:
                return len(timed) + 1
            timed.append(Outcome(plan, float(np.exp(seconds)), "run", None))
        return np.inf


def clusters(spread: float) -> Iterator[Hidden]:
    """Clusters whose rows have errors of so many times the spread of published ones."""
    for seed, (model, cluster, gpus, sequence, batch) in enumerate(TASKS):
        where = Cluster.profile(cluster, gpus=gpus)
        task = Task(Model.preset(model), where, sequence=sequence, global_batch=batch)
        known = posterior_of(task)
        random = np.random.default_rng(seed)
        variables = [v for v in UniformProblem(Space.of(task)).variables if v.name in RANKING_AXES]
        for _ in range(CLUSTERS):
            d = random.multivariate_normal(known.mean, known.covariance)
            each = spread * known.sigma / np.sqrt(len(variables))
            errors = {
                v.name: {x: float(random.normal(0, each)) for x in v.values} for v in variables
            }
            yield Hidden(task, dict(zip(known.names, d.tolist(), strict=True)), errors)


def hidden(spread: float) -> Found:
    """Runs by method, on clusters with hidden constants."""
    out: Found = {}
    for one in clusters(spread):
        good = one.good()
        plans = concat([plan.table() for plan in rank_plans(one.task, Ranking(top=SHORT)).plans])
        choice, seconds = Forecast.of_plans(one.task, plans).choice, one.log_seconds(plans)
        add(out, "order", in_order(choice, seconds, good))
        add(out, "posterior", chosen(choice, seconds, good, expected))
        add(out, "improvement", chosen(choice, seconds, good, improving))
        add(out, "tune", one.tuned(good))
        problem = UniformProblem(Space.of(one.task))
        first = indices(problem, plans.take(slice(0, START)))

        def score(points: np.ndarray, one: Hidden = one, problem=problem) -> np.ndarray:
            plans = problem.plans(points)
            excess = np.log(simulate(one.task, plans).memory_total / one.limit)
            return np.where(excess > 0, BARRIER + excess, one.log_seconds(plans))

        draw_all(out, problem, first, score, good)
        print({name: runs[-1] for name, runs in out.items()}, file=sys.stderr, flush=True)
    print(f"{len(out['order'])} clusters")
    return out


def indices(problem: UniformProblem, plans: Plan) -> np.ndarray:
    """Points of plans."""
    columns = [[v.values.index(int(x)) for x in getattr(plans, v.name)] for v in problem.variables]
    return np.array(columns, np.intp).T


def main() -> None:
    what = sys.argv[1]
    found = published() if what == "published" else hidden(float(what == "errors"))
    print("\n| method | mean | median | 90th percentile | within 5 | not after 60 |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, runs in found.items():
        cut = np.minimum(runs, MOST)
        middle, tail = np.median(cut), np.percentile(cut, 90)
        few, never = 100 * np.mean(np.array(runs) <= 5), 100 * np.mean(np.isinf(runs))
        mean = f"{cut.mean():.1f} | {middle:.0f} | {tail:.0f}"
        print(f"| `{name}` | {mean} | {few:.0f} % | {never:.0f} % |")


if __name__ == "__main__":
    main()
