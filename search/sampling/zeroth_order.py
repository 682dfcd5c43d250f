"""Samplers that know only scores: random search, annealing, SPSA and CMA-ES.

Each class asks for points and is told their scores, which are logarithms (objective.guided):
a difference of 0.01 is one percent. One setting serves all tasks; it was chosen on the tasks that
tests/benchmarks/search_backends.py names.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from plan3d.simulator.base.arrays import Index, Value

from ..space.problem import (
    Points,
    Problem,
    Random,
    draw,
    encode,
    highest_coordinates,
    nearest_points,
    place_roles,
)
from .samplers import Repeats, Start

TABLE = 64
"""Points in a table of a search without a population: costing it takes as long as a few rows."""


class RandomSearch:
    """Every variable uniform over its legal values: what every other backend must beat."""

    def __init__(self, problem: Problem, random: Random, first: Points | None = None) -> None:
        self.problem, self.random = problem, random

    def ask(self, spent: float) -> Points:
        return draw(self.problem, TABLE, self.random)

    def tell(self, points: Points, scores: Value) -> None:
        """Learns nothing."""


class Tired:
    """Those of several walkers that found nothing better for a while, and should start again."""

    def __init__(self, walkers: int, patience: int) -> None:
        self.best, self.since = np.full(walkers, np.inf), np.zeros(walkers, int)
        self.patience = patience

    def rows(self, scores: Value) -> Index:
        """Walkers whose scores have not improved for `patience` calls; they count from 0 again."""
        self.since = np.where(scores < self.best, 0, self.since + 1)
        self.best = np.minimum(scores, self.best)
        tired = np.flatnonzero(self.since >= self.patience)
        self.best[tired], self.since[tired] = np.inf, 0
        return tired


class Annealing:
    """Simulated annealing: chains side by side, from the best of a random table.

    A chain moves to a neighbour of the problem (Problem.neighbours) that is worse by d with
    probability exp(-d / temperature); the temperature falls geometrically with the budget spent.
    A chain that finds nothing better for a while starts again at a random point.
    Source: Kirkpatrick, Gelatt and Vecchi, Optimization by simulated annealing, 1983.
    """

    CHAINS = 8
    HOT, COLD = 0.05, 0.005
    """Temperatures: relative worsening that is accepted with probability 1/e."""
    COOLER = 0.2
    """Their factor where there are points to begin with."""
    PATIENCE, SOONER = 150, 40
    """Moves without anything better after which a chain starts again; the second where there are
    points to begin with."""

    def __init__(self, problem: Problem, random: Random, first: Points | None = None) -> None:
        self.problem, self.random = problem, random
        self.start = Start(problem, random, first)
        self.at: Points | None = None
        self.scores: Value = np.zeros(0)
        self.warmth = self.HOT * (1.0 if first is None else self.COOLER)
        self.temperature = self.warmth
        self.tired = Tired(self.CHAINS, self.PATIENCE if first is None else self.SOONER)

    def ask(self, spent: float) -> Points:
        self.temperature = self.warmth * (self.COLD / self.HOT) ** spent
        if self.at is None:
            return self.start.table(TABLE)
        points = self.problem.neighbours(self.at, self.random)
        again = np.flatnonzero(np.isinf(self.scores))
        points[again] = self.start.again(again.size)
        return points

    def tell(self, points: Points, scores: Value) -> None:
        self.start.add(points, scores)
        if self.at is None:
            best = np.resize(np.argsort(scores, kind="stable"), self.CHAINS)
            self.at, self.scores = points[best], scores[best]
            return
        worse = np.maximum(scores - self.scores, 0.0)
        moved = self.random.random(len(points)) < np.exp(-worse / self.temperature)
        self.at = np.where(moved[:, None], points, self.at)
        self.scores = np.where(moved, scores, self.scores)
        self.scores[self.tired.rows(self.scores)] = np.inf


class Spsa:
    """Simultaneous perturbation: two points a step give the slope along a random direction.

    Walkers side by side, each at a real vector x, cost the legal points nearest to x + c d and
    x - c d; d has random signs in a random part of its places, zero elsewhere. They step down
    the difference. c is half a lattice unit: less would give both sides the same point.
    Source: J. C. Spall, IEEE Trans. Automatic Control 37, 1992; on a lattice: Q. Wang and
    J. C. Spall, American Control Conference 2011. Gains a / (A + k)^0.602.
    """

    WALKERS = 4
    HALF = 0.5
    SHARE = 0.3
    """Chance that a place is perturbed."""
    PLACES = 10.0
    """Places perturbed at most, in the mean."""
    TOGETHER = 0.5
    """Share of the steps in which all places of a role are perturbed alike."""
    GAIN = 32.0
    """Lattice units of the first step for a relative difference of one."""
    DELAY = 10.0
    """A: steps before the gain falls."""
    LARGEST = 1.0
    """Lattice units of the largest step; also what ends the pull of points that do not fit."""
    BEYOND = 0.75
    """Lattice units that x may leave the range by: a settled place is then not perturbed."""
    PATIENCE = 20
    """Steps without anything better after which a walker starts again."""
    RETURN = 0.8
    """Chance that it does so at the best point of all; else at a random one."""

    def __init__(self, problem: Problem, random: Random, first: Points | None = None) -> None:
        self.problem, self.random = problem, random
        self.start = Start(problem, random, first)
        self.top, roles = highest_coordinates(problem), place_roles(problem)
        self.leaders = np.argmax(roles[:, None] == roles, axis=1)
        self.at: Value | None = None
        self.signs: Value = np.zeros((0, 0))
        self.age = np.zeros(self.WALKERS)
        self.tired = Tired(self.WALKERS, self.PATIENCE)

    def ask(self, spent: float) -> Points:
        if self.at is None:
            return self.start.table(TABLE)
        self.signs = self.random.choice([-1.0, 1.0], self.at.shape)
        share = min(self.SHARE, self.PLACES / self.at.shape[1])
        self.signs *= self.random.random(self.at.shape) < share
        if self.start.first is not None:
            rows = np.flatnonzero(self.random.random(self.WALKERS) < self.TOGETHER)
            self.signs[rows] = self.signs[rows][:, self.leaders]
        sides = [self.at + self.HALF * self.signs, self.at - self.HALF * self.signs]
        return nearest_points(self.problem, np.concatenate(sides))

    def tell(self, points: Points, scores: Value) -> None:
        self.start.add(points, scores)
        order = np.argsort(scores, kind="stable")
        if self.at is None:
            self.at = encode(self.problem, points[np.resize(order, self.WALKERS)])
            return
        up, down = np.split(scores, 2)
        gain = self.GAIN * (self.DELAY / (self.DELAY + self.age)) ** 0.602
        step = np.clip(gain * (up - down), -self.LARGEST, self.LARGEST)
        moved = self.at - step[:, None] * self.signs
        self.at = np.clip(moved, -self.BEYOND, self.top + self.BEYOND)
        self.age += 1
        self._start(self.tired.rows(np.minimum(up, down)))

    def _start(self, walkers: Index) -> None:
        """Put walkers at the best point of all or at a random one."""
        assert self.at is not None
        self.at[walkers] = encode(self.problem, self.start.again(walkers.size, self.RETURN))
        self.age[walkers] = 0


class CmaEs:
    """CMA-ES with margin: a Gaussian that learns its shape and never gets stuck on a plateau.

    The package `cmaes` keeps a lower bound on the chance that each integer changes. Starts again
    at a random point with twice the population when it has converged.
    Source: Hamano et al., CMA-ES with margin, GECCO 2022; Auger and Hansen, restarts, CEC 2005.
    """

    POPULATION, LARGEST = 16, 128
    """Points of a generation: at first, and at most."""
    WIDTH = 0.2
    """First standard deviation, as a share of each variable's range."""
    WIDE = 64
    """Points of a generation from which it has that width where there are points to begin with;
    smaller ones are that much narrower."""
    ALIKE = 0.5
    """First correlation of variables of one role."""
    PATIENCE = 3
    """Generations of points that are all known after which it starts again."""

    def __init__(self, problem: Problem, random: Random, first: Points | None = None) -> None:
        self.problem, self.random = problem, random
        self.start = Start(problem, random, first)
        self.population = self.POPULATION
        self.repeats = Repeats()
        self.vectors: list[Value] = []
        self._start()

    def _start(self) -> None:
        from cmaes import CMAwM

        point = self.start.again(1)
        narrow = 1.0 if self.start.first is None else min(self.population / self.WIDE, 1.0)
        width = narrow * self.WIDTH
        top = np.maximum(highest_coordinates(self.problem), 1.0)
        roles = place_roles(self.problem)
        together = np.where(np.eye(top.size), 1.0, self.ALIKE * (roles[:, None] == roles))
        self.repeats.tables = 0
        self.optimizer: Any = CMAwM(
            mean=encode(self.problem, point)[0],
            sigma=1.0,
            bounds=np.stack([np.zeros_like(top), top], axis=1),
            steps=np.ones_like(top),
            cov=together * np.outer(width * top, width * top),
            population_size=self.population,
            seed=int(self.random.integers(2**31)),
        )

    def ask(self, spent: float) -> Points:
        asked = [self.optimizer.ask() for _ in range(self.population)]
        self.vectors = [told for _, told in asked]
        return nearest_points(self.problem, np.array([costed for costed, _ in asked]))

    def tell(self, points: Points, scores: Value) -> None:
        self.start.add(points, scores)
        self.optimizer.tell(list(zip(self.vectors, scores.tolist(), strict=True)))
        if self.repeats.add(points) >= self.PATIENCE or self.optimizer.should_stop():
            self.population = min(2 * self.population, self.LARGEST)
            self._start()
