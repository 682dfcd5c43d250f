"""Timed runs predicted with other numbers, and the times of whole layers that explain them.

Every run has one shape of layer (layer_tables.SIZES). The ratio of a shape is what makes the median
of ln(measured / predicted) over its runs zero, so a few runs that went wrong do not move it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..base.arrays import Mask, Value
from ..hardware import layer_tables
from ..hardware.layer_tables import LayerTable
from ..layers.layer_kinds import layer_sizes
from ..plan.plan import concat
from ..runs.run_tasks import Question
from ..step.evaluate import simulate
from ..step.stages import strategies
from ..task import Task
from .predict_runs import batches


class TimedRuns:
    """Timed rows, ready to be predicted again and again with other scalars."""

    def __init__(self, asked: Sequence[Question]) -> None:
        self.questions = tuple(asked)
        self.measured_seconds = np.array([q.run["step_seconds"] for q in asked], float)
        self.tables = [
            (rows, asked[rows[0]].task, concat([asked[row].plan.table() for row in rows]))
            for rows in batches(asked)
        ]

    def take(self, keep: Mask) -> TimedRuns:
        return TimedRuns([q for q, kept in zip(self.questions, keep, strict=True) if kept])

    def seconds(self, change: Callable[[Task], Task]) -> Value:
        """Predicted seconds of a step where every task is changed."""
        out = np.empty_like(self.measured_seconds)
        for rows, task, plans in self.tables:
            out[rows] = simulate(change(task), plans).step
        return out


FEWEST_SHAPES = 16
"""Shapes of layers from which measured steps make a table."""
ROUNDS = 25
MOST_RESIDUAL = 5e-4
"""Largest median of ln(measured / predicted) that remains."""


@dataclass(frozen=True)
class LayerRatios:
    """Measured over modelled seconds of layers, alike in both passes: steps do not tell them
    apart."""

    sizes: Value
    """[size, shape]"""
    ratio: Value
    """[shape]"""

    @property
    def table(self) -> LayerTable:
        return layer_tables.build(self.sizes, np.stack([self.ratio, self.ratio]))


def sizes_of(rows: TimedRuns) -> Value:
    """The sizes of every row's layer [size, row]."""
    out = np.empty((len(layer_tables.SIZES), rows.measured_seconds.size))
    for index, task, plans in rows.tables:
        out[:, index] = layer_sizes(task, strategies(plans))
    return out


def without_layer_table(task: Task) -> Task:
    """The task without tables of layers."""
    return with_layer_table(task, None)


def with_layer_table(task: Task, table: LayerTable | None) -> Task:
    """The task with this table of its stack's layers and no other; None for no table."""
    tables = {} if table is None else {task.software.label: table}
    accelerator = replace(task.cluster.accelerator, layer_tables=tables)
    return replace(task, cluster=replace(task.cluster, accelerator=accelerator))


def fit(rows: TimedRuns, change: Callable[[Task], Task] = lambda task: task) -> LayerRatios:
    """The ratios of the rows' shapes, with every task changed."""
    sizes, shape = np.unique(sizes_of(rows), axis=1, return_inverse=True)
    shape = shape.reshape(-1)
    mine = [np.flatnonzero(shape == i) for i in range(sizes.shape[1])]
    found = LayerRatios(sizes, np.ones(len(mine)))
    for _ in range(ROUNDS):
        predicted = rows.seconds(then_table(change, found.table))
        off = np.log(rows.measured_seconds / predicted)
        step = np.array([np.median(off[members]) for members in mine])
        found = LayerRatios(sizes, found.ratio * np.exp(step))
        if np.abs(step).max() < MOST_RESIDUAL:
            break
    return found


def then_table(change: Callable[[Task], Task], table: LayerTable) -> Callable[[Task], Task]:
    """The change, and then this table."""
    return lambda task: with_layer_table(change(task), table)
