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
from .samplers import Repeats, StartPoints

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


class Stagnation:
    """Walkers that have not improved for a while, and should restart."""

    def __init__(self, walkers: int, patience: int) -> None:
        self.best, self.calls_since_best = np.full(walkers, np.inf), np.zeros(walkers, int)
        self.patience = patience

    def stagnant_rows(self, scores: Value) -> Index:
        """Walkers whose scores have not improved for `patience` calls; they count from 0 again."""
        self.calls_since_best = np.where(scores < self.best, 0, self.calls_since_best + 1)
        self.best = np.minimum(scores, self.best)
        stagnant = np.flatnonzero(self.calls_since_best >= self.patience)
        self.best[stagnant], self.calls_since_best[stagnant] = np.inf, 0
        return stagnant


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
    KNOWN_START_FACTOR = 0.2
    """Their factor where there are initial points."""
    PATIENCE, KNOWN_START_PATIENCE = 150, 40
    """Moves without anything better after which a chain starts again; the second where there are
    points to begin with."""

    def __init__(self, problem: Problem, random: Random, first: Points | None = None) -> None:
        self.problem, self.random = problem, random
        self.start = StartPoints(problem, random, first)
        self.points: Points | None = None
        self.scores: Value = np.zeros(0)
        self.start_temperature = self.HOT * (1.0 if first is None else self.KNOWN_START_FACTOR)
        self.temperature = self.start_temperature
        patience = self.PATIENCE if first is None else self.KNOWN_START_PATIENCE
        self.stagnation = Stagnation(self.CHAINS, patience)

    def ask(self, spent: float) -> Points:
        self.temperature = self.start_temperature * (self.COLD / self.HOT) ** spent
        if self.points is None:
            return self.start.table(TABLE)
        points = self.problem.neighbours(self.points, self.random)
        again = np.flatnonzero(np.isinf(self.scores))
        points[again] = self.start.restart(again.size)
        return points

    def tell(self, points: Points, scores: Value) -> None:
        self.start.add(points, scores)
        if self.points is None:
            best = np.resize(np.argsort(scores, kind="stable"), self.CHAINS)
            self.points, self.scores = points[best], scores[best]
            return
        worse = np.maximum(scores - self.scores, 0.0)
        moved = self.random.random(len(points)) < np.exp(-worse / self.temperature)
        self.points = np.where(moved[:, None], points, self.points)
        self.scores = np.where(moved, scores, self.scores)
        self.scores[self.stagnation.stagnant_rows(self.scores)] = np.inf


class Spsa:
    """Simultaneous perturbation: two points a step give the slope along a random direction.

    Walkers side by side, each at a real vector x, cost the legal points nearest to x + c d and
    x - c d; d has random signs in a random part of its places, zero elsewhere. They step down
    the difference. c is half a lattice unit: less would give both sides the same point.
    Source: J. C. Spall, IEEE Trans. Automatic Control 37, 1992; on a lattice: Q. Wang and
    J. C. Spall, American Control Conference 2011. Gains a / (A + k)^0.602.
    """

    WALKERS = 4
    HALF_STEP = 0.5
    PERTURBED_SHARE = 0.3
    """Chance that a place is perturbed."""
    MOST_PERTURBED = 10.0
    """Places perturbed at most, in the mean."""
    ROLE_SHARE = 0.5
    """Share of the steps in which all places of a role are perturbed alike."""
    GAIN = 32.0
    """Lattice units of the first step for a relative difference of one."""
    DELAY = 10.0
    """A: steps before the gain falls."""
    LARGEST_STEP = 1.0
    """Lattice units of the largest step; also what ends the pull of points that do not fit."""
    MARGIN = 0.75
    """Lattice units that x may leave the range by: a settled place is then not perturbed."""
    PATIENCE = 20
    """Steps without anything better after which a walker starts again."""
    RETURN_CHANCE = 0.8
    """Chance that it does so at the best point of all; else at a random one."""

    def __init__(self, problem: Problem, random: Random, first: Points | None = None) -> None:
        self.problem, self.random = problem, random
        self.start = StartPoints(problem, random, first)
        self.top, roles = highest_coordinates(problem), place_roles(problem)
        self.leaders = np.argmax(roles[:, None] == roles, axis=1)
        self.centres: Value | None = None
        self.signs: Value = np.zeros((0, 0))
        self.age = np.zeros(self.WALKERS)
        self.stagnation = Stagnation(self.WALKERS, self.PATIENCE)

    def ask(self, spent: float) -> Points:
        if self.centres is None:
            return self.start.table(TABLE)
        self.signs = self.random.choice([-1.0, 1.0], self.centres.shape)
        share = min(self.PERTURBED_SHARE, self.MOST_PERTURBED / self.centres.shape[1])
        self.signs *= self.random.random(self.centres.shape) < share
        if self.start.initial is not None:
            rows = np.flatnonzero(self.random.random(self.WALKERS) < self.ROLE_SHARE)
            self.signs[rows] = self.signs[rows][:, self.leaders]
        step = self.HALF_STEP * self.signs
        sides = [self.centres + step, self.centres - step]
        return nearest_points(self.problem, np.concatenate(sides))

    def tell(self, points: Points, scores: Value) -> None:
        self.start.add(points, scores)
        order = np.argsort(scores, kind="stable")
        if self.centres is None:
            self.centres = encode(self.problem, points[np.resize(order, self.WALKERS)])
            return
        up, down = np.split(scores, 2)
        gain = self.GAIN * (self.DELAY / (self.DELAY + self.age)) ** 0.602
        step = np.clip(gain * (up - down), -self.LARGEST_STEP, self.LARGEST_STEP)
        moved = self.centres - step[:, None] * self.signs
        self.centres = np.clip(moved, -self.MARGIN, self.top + self.MARGIN)
        self.age += 1
        self._start(self.stagnation.stagnant_rows(np.minimum(up, down)))

    def _start(self, walkers: Index) -> None:
        """Put walkers at the best point of all or at a random one."""
        assert self.centres is not None
        self.centres[walkers] = encode(
            self.problem, self.start.restart(walkers.size, self.RETURN_CHANCE)
        )
        self.age[walkers] = 0


class CmaEs:
    """CMA-ES with margin: a Gaussian that learns its shape and cannot stall on a plateau.

    The package `cmaes` keeps a lower bound on the chance that each integer changes. Starts again
    at a random point with twice the population when it has converged.
    Source: Hamano et al., CMA-ES with margin, GECCO 2022; Auger and Hansen, restarts, CEC 2005.
    """

    POPULATION, LARGEST_POPULATION = 16, 128
    """Points of a generation: at first, and at most."""
    WIDTH = 0.2
    """First standard deviation, as a share of each variable's range."""
    FULL_WIDTH_POPULATION = 64
    """Points of a generation from which it has that width where there are initial points;
    smaller ones are that much narrower."""
    ROLE_CORRELATION = 0.5
    """First correlation of variables of one role."""
    PATIENCE = 3
    """Generations of points that are all known after which it starts again."""

    def __init__(self, problem: Problem, random: Random, first: Points | None = None) -> None:
        self.problem, self.random = problem, random
        self.start = StartPoints(problem, random, first)
        self.population = self.POPULATION
        self.repeats = Repeats()
        self.vectors: list[Value] = []
        self._start()

    def _start(self) -> None:
        from cmaes import CMAwM

        point = self.start.restart(1)
        width = self.WIDTH
        if self.start.initial is not None:
            width *= min(self.population / self.FULL_WIDTH_POPULATION, 1.0)
        top = np.maximum(highest_coordinates(self.problem), 1.0)
        roles = place_roles(self.problem)
        alike = self.ROLE_CORRELATION * (roles[:, None] == roles)
        correlation = np.where(np.eye(top.size), 1.0, alike)
        self.repeats.tables = 0
        self.optimizer: Any = CMAwM(
            mean=encode(self.problem, point)[0],
            sigma=1.0,
            bounds=np.stack([np.zeros_like(top), top], axis=1),
            steps=np.ones_like(top),
            cov=correlation * np.outer(width * top, width * top),
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
            self.population = min(2 * self.population, self.LARGEST_POPULATION)
            self._start()
