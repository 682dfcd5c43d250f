"""A staged search begins with stages that are alike, and goes on from the best of them."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.search.sampling.samplers import samplers_of_space, staged_sampler
from plan3d.search.sampling.two_phase import EqualStagesProblem, TwoPhase
from plan3d.search.sampling.zeroth_order import RandomSearch
from plan3d.search.space.problem import draw
from plan3d.search.space.staged_problem import StagedProblem
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

LEARNING = [name for name in samplers_of_space("staged") if name != "random"]


@cache
def problem():
    cluster = Cluster.profile("h100-sxm", gpus=16)
    stack = replace(software_profile("megatron-core"), norm_in_linear=False)
    task = Task(Model.preset("llama-7b"), cluster, sequence=2048, global_batch=64, software=stack)
    return StagedProblem.of(task)


def test_stages_are_alike_and_evenly_cut():
    alike = EqualStagesProblem(problem())
    points = draw(alike, 60, np.random.default_rng(0))
    for plan in alike.plans(points):
        runs = plan.to_dict()["segments"]
        strategies = {tuple(sorted((run["tp"], run["dp"], run["zero"]))) for s in runs for run in s}
        layers = [sum(run["layers"] for run in stage) for stage in runs]
        assert len(strategies) == 1
        assert max(layers) - min(layers) <= 1
    assert len({str(plan) for plan in alike.plans(points)}) == len(np.unique(points, axis=0))


class Script:
    """A backend that draws at random and keeps what it began with."""

    made: list = []  # noqa: RUF012

    def __init__(self, problem, random, first=None):
        self.problem, self.random, self.first = problem, random, first
        self.spent, self.told = [], []
        Script.made.append(self)

    def ask(self, spent):
        self.spent.append(spent)
        return draw(self.problem, 16, self.random)

    def tell(self, points, scores):
        self.told.append((points, scores))


def test_the_second_search_begins_with_the_best_of_each_pp_and_tp():
    Script.made = []
    search = TwoPhase(Script, problem(), np.random.default_rng(0))
    scores = iter(np.random.default_rng(1).permutation(1000).astype(float))
    for spent in (0.0, 0.1, 0.2, 0.25, 0.625):
        points = search.ask(spent)
        assert points.shape[1] == len(problem().variables)
        search.tell(points, np.array([next(scores) for _ in points]))
    first, second = Script.made
    assert first.spent == [0.0, 0.4, 0.8]
    assert second.spent == [0.0, 0.5]
    told, values = (np.concatenate(column) for column in zip(*first.told, strict=True))
    best = {}
    for point, value in zip(told.tolist(), values.tolist(), strict=True):
        kind = point[0], point[2]
        best[kind] = min(best.get(kind, (np.inf, None)), (value, point))
    kept = [point for _, point in sorted(best.values())][: TwoPhase.SEEDS]
    assert second.first.tolist() == search.equal_stages.lift(np.array(kept)).tolist()


def test_it_goes_on_early_when_nothing_is_new():
    Script.made = []
    search = TwoPhase(Script, problem(), np.random.default_rng(0))
    point = draw(search.equal_stages, 1, np.random.default_rng(0))
    for _ in range(TwoPhase.PATIENCE + 1):
        search.ask(0.0)
        search.points = point
        search.tell(search.equal_stages.lift(point), np.zeros(1))
    assert len(Script.made) == 1
    search.ask(0.0)
    assert len(Script.made) == 2


def test_random_search_stays_the_baseline():
    assert staged_sampler("random") is RandomSearch


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNING)
def test_learning_beats_drawing_stages_at_random(name):
    options = {"space": "staged", "budget": 300, "top": 1}
    found = rank_plans(problem().task, Ranking(backend=name, **options))
    drawn = rank_plans(problem().task, Ranking(backend="random", **options))
    assert found.best.step_seconds < 0.95 * drawn.best.step_seconds
