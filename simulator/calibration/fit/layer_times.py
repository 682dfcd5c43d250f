"""Times of whole layers, measured alone or by the steps they make up, and their prediction.

A machine's profile is fitted first; the layers are then compared with what it predicts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...base.arrays import Value
from ...base.errors import CalibrationError
from ...hardware import layer_tables
from ...hardware.cluster import Cluster
from ...hardware.precision import RECIPES, Precision
from ...hardware.software_stack import Software, software_profile
from ...layers.layer_kinds import is_tabled, layer_kinds
from ...layers.layer_seconds import block_seconds
from ...operators.work import Strategy
from ...runs.published_runs import PublishedRun
from ...runs.run_tasks import Question, questions
from ...step.stages import strategies
from ...task import Task
from ...validation import timed_runs
from ...validation.cross_validation import folds
from ...validation.timed_runs import TimedRuns
from ...workload.blocks import Attention, Block, Mlp
from ...workload.model import Model
from ..readers.measurements import Measurements
from .robust import FOLDS, Errors, errors

FEWEST_TIMED = 4
"""Layers timed alone that make a table; steps need timed_runs.FEWEST_SHAPES."""
_SHAPE_COLUMNS = ("hidden", "ffn", "heads", "kv_heads", "head_dim", "sequence", "tp", "batch")


@dataclass(frozen=True, kw_only=True)
class LayerTimes:
    """Times of layers, and how well such times predict others."""

    stack: str
    """Name of the software profile they hold for."""
    sizes: Value
    """[size, layer] in the order of layer_tables.SIZES."""
    seconds: Value
    """Forward and backward as measured and as modelled [4, layer]."""
    origins: tuple[str, ...]
    """Sources of the whole steps that they make come out as measured; none where they were timed
    alone."""
    without_table: Errors
    """Of the profile without a table, on the layers or on the steps."""
    held_out: Errors
    """Of tables that did not see the row."""
    split: str
    """How rows are held out, in words."""
    other_layers: Errors | None = None
    """On steps whose shape of layer the table did not see."""

    @property
    def timed_alone(self) -> bool:
        """Whether layers were timed, not steps."""
        return not self.origins


LayerComparison = Callable[[Path], LayerTimes]
"""What the profile in a file predicts of the layers."""


def timed_layers(table: Measurements, stack: str) -> LayerComparison | None:
    """Layers of `plan3d calibrate measure`; None without such rows, CalibrationError if too few."""
    rows = table.matching(suite="layer")
    if not len(rows):
        return None
    shapes, measured = both_passes(rows)
    if shapes.shape[1] < FEWEST_TIMED:
        raise CalibrationError(
            f"whole layers: {shapes.shape[1]} with a forward and a longer forward_backward time; a "
            f"table needs at least {FEWEST_TIMED}"
        )
    software = software_profile(stack)

    def compare(profile: Path) -> LayerTimes:
        return _held_out_layers(profile, software, shapes, measured)

    return compare


def both_passes(rows: Measurements) -> tuple[Value, Value]:
    """Shapes [_SHAPE, layer] with both times, and seconds of forward and backward [2, layer]."""
    columns = [rows.number(name) for name in _SHAPE_COLUMNS]
    found: dict[tuple[float, ...], dict[str, float]] = {}
    cells = zip(*columns, rows.text("op").tolist(), rows.number("seconds"), strict=True)
    for *shape, op, seconds in cells:
        found.setdefault(tuple(shape), {})[op] = seconds
    whole = {
        shape: (times["forward"], times["forward_backward"] - times["forward"])
        for shape, times in found.items()
        if times.get("forward_backward", 0.0) > times.get("forward", np.inf)
    }
    shapes = np.array(list(whole)).reshape(-1, len(_SHAPE_COLUMNS)).T
    return shapes, np.array(list(whole.values())).reshape(-1, 2).T


def rows_of_both_passes(rows: Measurements, shapes: Value) -> tuple[Mapping[str, str], ...]:
    """The row of both passes together of each of those shapes."""
    whole = rows.matching(op="forward_backward")
    sizes = zip(*(whole.number(name) for name in _SHAPE_COLUMNS), strict=True)
    found = dict(zip(sizes, whole.rows, strict=True))
    return tuple(found[tuple(shape)] for shape in shapes.T)


def modelled_layers(profile: Path, software: Software, shapes: Value) -> Value:
    """What a profile predicts of both passes of layers of these shapes [2, layer]."""
    modelled = np.empty((2, shapes.shape[1]))
    _, alike = np.unique(shapes[:6], axis=1, return_inverse=True)
    for same in (np.flatnonzero(alike.reshape(-1) == i) for i in range(int(alike.max()) + 1)):
        modelled[:, same] = _modelled_alike(profile, software, shapes[:, same])
    return modelled


def _held_out_layers(
    profile: Path, software: Software, shapes: Value, measured: Value
) -> LayerTimes:
    modelled = modelled_layers(profile, software, shapes)
    sizes = table_sizes(shapes)
    ratio, predicted = measured / modelled, np.empty_like(measured)
    for i in range(ratio.shape[1]):
        others = np.delete(np.arange(ratio.shape[1]), i)
        table = layer_tables.build(sizes[:, others], ratio[:, others])
        predicted[:, i] = modelled[:, i] * layer_tables.ratios(table, sizes[:, [i]])[:, 0]
    return LayerTimes(
        stack=software.label,
        sizes=sizes,
        seconds=np.concatenate([measured, modelled]),
        origins=(),
        without_table=errors(modelled.sum(axis=0), measured.sum(axis=0)),
        held_out=errors(predicted.sum(axis=0), measured.sum(axis=0)),
        split="layers, one by one",
    )


def table_sizes(shapes: Value) -> Value:
    """The sizes of layers that a table of them goes by, in the order of layer_tables.SIZES."""
    hidden, *_, sequence, tp, batch = shapes
    return np.stack([hidden, tp, batch, sequence])


def _modelled_alike(profile: Path, software: Software, shapes: Value) -> Value:
    """Seconds [pass, layer] of gated-MLP layers that differ in tensor size and micro-batch."""
    hidden, ffn, heads, kv_heads, width, sequence = (int(x) for x in shapes[:6, 0])
    tp, batch = shapes[6:]
    block = gated_block(ffn, heads, kv_heads, width)
    model = Model(name="layer", hidden=hidden, vocabulary=1, kinds=(block,), order=(0,))
    task = Task(
        model,
        Cluster.profile(profile, nodes=1),
        sequence=sequence,
        global_batch=1,
        # Measured on one GPU, whatever the tensor size of its shapes.
        software=replace(software, rank_spread=0.0),
    )
    return block_seconds(task, RECIPES[Precision.BF16], Strategy.of(tp=tp, micro_batch=batch))


def gated_block(ffn: int, heads: int, kv_heads: int, width: int) -> Block:
    """The layer that `measure` runs: attention of that head width, and a gated MLP."""
    attention = Attention(heads=heads, kv_heads=kv_heads, head_dim=width, value_dim=width)
    return Block(attention=attention, mlp=Mlp(ffn=ffn, gated=True))


def run_layers(runs: Sequence[PublishedRun], stack: str | None) -> LayerComparison | None:
    """Layers of runs in the columns of published ones; CalibrationError if they are too few."""
    if not runs:
        return None
    answers = questions([run for run in runs if run["step_seconds"]])
    dense = [q for q in answers if isinstance(q, Question) and _is_dense(q)]
    stacks = sorted({q.task.software.name for q in dense})
    if len(stacks) > 1:
        raise CalibrationError(f"runs of {', '.join(stacks)}: a table of layers is for one stack")
    if stack and stacks and stack != stacks[0]:
        raise CalibrationError(f"the runs are of {stacks[0]}, not of {stack}: leave out --software")
    shapes = len(np.unique(timed_runs.sizes_of(TimedRuns(dense)), axis=1).T) if dense else 0
    if shapes < timed_runs.FEWEST_SHAPES:
        raise CalibrationError(
            f"the runs have {shapes} shapes of layers (hidden, tp, micro-batch, sequence) of dense "
            f"16-bit models; a table needs at least {timed_runs.FEWEST_SHAPES}"
        )
    kept = [q.run for q in dense]
    return lambda profile: _layers_of_runs(_on_profile(kept, profile))


def check_generalises(layers: LayerTimes) -> None:
    """Raise CalibrationError where a table of runs does not predict runs that it did not see."""
    held_out, without = layers.held_out.median, layers.without_table.median
    if not layers.timed_alone and held_out >= without:
        raise CalibrationError(
            f"a table of layers is {held_out:.1%} off on runs that it did not see, the profile "
            f"without it {without:.1%}: leave the runs out"
        )


def _is_dense(q: Question) -> bool:
    recipe = RECIPES[int(q.plan.precision)]
    return layer_tables.applies_to(recipe) and all(map(is_tabled, layer_kinds(q.task.model)[:1]))


def _on_profile(runs: Sequence[PublishedRun], profile: Path) -> list[Question]:
    """The questions of the runs on the machine of a profile, without its tables of layers.

    They keep the run as it was stated, so that its fold does not depend on the profile's path.
    """
    moved = [PublishedRun({**run.cells, "accelerator": str(profile)}) for run in runs]
    answers = zip(runs, questions(moved), strict=True)
    found = [replace(q, run=run) for run, q in answers if isinstance(q, Question)]
    bare = {id(q.task): timed_runs.without_layer_table(q.task) for q in found}
    return [replace(q, task=bare[id(q.task)]) for q in found]


def _layers_of_runs(asked: Sequence[Question]) -> LayerTimes:
    rows = TimedRuns(asked)
    ratios = timed_runs.fit(rows)
    shapes, first = np.unique(timed_runs.sizes_of(rows), axis=1, return_index=True)
    modelled = np.stack([_modelled_run(asked[row]) for row in first], axis=1)
    groups = folds([q.run for q in asked])
    if len(set(groups)) < 2:
        groups = np.arange(len(asked)).astype(object) % FOLDS
    _, shape = np.unique(timed_runs.sizes_of(rows), axis=1, return_inverse=True)
    elsewhere = _held_out(rows, shape.reshape(-1).astype(object) % FOLDS)
    return LayerTimes(
        stack=asked[0].task.software.label,
        sizes=shapes,
        seconds=np.concatenate([modelled * ratios.ratio, modelled]),
        origins=tuple(sorted({_origin_name(str(q.run["source"])) for q in asked})),
        without_table=errors(rows.seconds(lambda task: task), rows.measured_seconds),
        held_out=_held_out(rows, groups),
        split="runs",
        other_layers=elsewhere,
    )


def _origin_name(source: str) -> str:
    """A source as the name of an origin."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", source)[:79].strip("-._") or "runs"


def _modelled_run(q: Question) -> Value:
    """Modelled seconds [pass] of the layer of a run."""
    recipe = RECIPES[int(q.plan.precision)]
    return block_seconds(q.task, recipe, strategies(q.plan.table()))[:, 0]


def _held_out(rows: TimedRuns, labels: NDArray[np.object_]) -> Errors:
    """Errors of steps predicted with a table of the steps of other labels."""
    predicted = np.empty_like(rows.measured_seconds)
    for label in sorted(set(labels)):
        mine = np.array(labels == label, bool)
        table = timed_runs.fit(rows.take(~mine)).table
        predicted[mine] = rows.take(mine).seconds(timed_runs.then_table(lambda task: task, table))
    return errors(predicted, rows.measured_seconds)
