"""Staged plans as a sampling problem: cut, tensor size, ZeRO stage and recompute of every stage.

Stages have equally many GPUs. A point is the number of stages, of micro-batches, and for each
stage, in this order: where it ends (layers from an even cut), tp (and so dp), the ZeRO stage and
how much of it recomputes. Shorter pipelines leave the variables of the missing stages at their
first value. cp, ep and virtual stages are 1 and every overlap is on. Moves: Aceso, EuroSys 2024,
table of primitives. All these plans are in the set that the dynamic program proves an optimum of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from plan3d.simulator.base.arrays import Index, Mask
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.pipeline import schedules
from plan3d.simulator.plan.field_values import Recompute
from plan3d.simulator.plan.fields import code
from plan3d.simulator.plan.plan import Plan, from_columns
from plan3d.simulator.plan.stage_layout import PADDING, Segments
from plan3d.simulator.rules.rule import nearest_divisors
from plan3d.simulator.rules.training_rules import default_precision, recomputed_modules
from plan3d.simulator.rules.validity import legal_rows
from plan3d.simulator.task import Task

from .axes import LARGEST_MICRO_BATCH, divisors
from .problem import (
    NO_VARIABLE,
    Points,
    PrefixWalk,
    Random,
    Variable,
    encode,
    nearest_points,
    random_step,
)
from .space import Choices

Table = NDArray[np.int64]

WINDOW = 4
"""Layers that a stage may end before or after an even cut."""
EIGHTHS = 8
"""Parts of a stage's layers that change how they recompute at once: first from not at all to the
next of MODES that there is, one eighth after another, then to the one after it."""
SINGLE_STAGE, WHOLE_SIDE = 0.4, 0.7
"""Share of moves of one stage alone; chance of the others to take along all stages on a side."""
STRIDES = (1, 2, 4, 8)
"""Eighths by which recompute changes in a move."""
MODES = (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
"""Recompute from light to heavy."""
PP, MICRO_BATCHES, FIRST_STAGE = range(3)
"""Places of the variables of the whole plan, and of the first stage's first."""
CUT, TP, ZERO, RECOMPUTE, PER_STAGE = range(5)
"""Places of a stage's variables, and how many there are."""


def place_of(stage: int, field: int) -> int:
    """The place of a stage's variable in a point."""
    return FIRST_STAGE + PER_STAGE * stage + field


def stage_of(variable: Index) -> tuple[Index, Index]:
    """The stage and the field of variables; NOTHING and NOTHING of those of the whole plan."""
    stage, field = np.divmod(variable - FIRST_STAGE, PER_STAGE)
    whole = variable < FIRST_STAGE
    return np.where(whole, NO_VARIABLE, stage), np.where(whole, NO_VARIABLE, field)


def heavier_layers(share: Table, layers: Table) -> Table:
    """Layers of a stage that recompute more than the others: so many eighths, rounded."""
    eighths = share - EIGHTHS * (np.maximum(share - 1, 0) // EIGHTHS)
    out: Table = (eighths * layers + EIGHTHS // 2) // EIGHTHS
    return out


def distinct_shares(layers: Table, modes: int) -> Mask:
    """Eighths [row, share] of which no smaller one recomputes the same, in so many modes."""
    share = np.arange((modes - 1) * EIGHTHS + 1)
    more = heavier_layers(share, layers[:, None])
    fresh: Mask = np.diff(more, axis=1, prepend=-1) > 0
    first = share[1:] % EIGHTHS == 1
    fresh[:, 1:][:, first] = more[:, 1:][:, first] > 0
    return fresh


def move_along(
    points: Points, variable: Index, index: Index, last: Index, random: Random
) -> tuple[Points, Mask]:
    """Points with one variable changed to an index, or further that way, and those that went along
    with it; and which rows changed in every stage up to the `last` [row].

    In some moves the variable changes in one stage, in others in all before it, after it, or both.
    """
    rows, (stage, field) = np.arange(len(points)), stage_of(variable)
    far = np.where(field == RECOMPUTE, random.choice(STRIDES, rows.size), 1)
    shift = far * (index - points[rows, variable])
    out = _with_missing_stages(points, last)
    alone = random.random(rows.size) < SINGLE_STAGE
    before, after = random.random((2, rows.size)) < WHOLE_SIDE
    low, high = np.where(before, 0, stage), np.where(after, last, stage)
    others = np.arange((points.shape[1] - FIRST_STAGE) // PER_STAGE)
    along = ~alone[:, None] & (low[:, None] <= others) & (others <= high[:, None])
    along = (along | (others == stage[:, None])) & (stage != NO_VARIABLE)[:, None]
    row, other = np.nonzero(along)
    out[row, FIRST_STAGE + PER_STAGE * other + field[row]] += shift[row]
    whole = np.flatnonzero(stage == NO_VARIABLE)
    out[whole, variable[whole]] += shift[whole]
    return out, ~alone & (low == 0) & (high == last) & (stage != NO_VARIABLE)


def _with_missing_stages(points: Points, last: Index) -> Points:
    """Points whose missing stages are like their `last` one, but where it ends."""
    out = points.copy()
    stages = out[:, FIRST_STAGE:].reshape(len(out), -1, PER_STAGE)
    there = np.minimum(np.arange(stages.shape[1]), last[:, None])
    stages[:] = np.take_along_axis(stages, there[:, :, None], axis=1)
    return out


def pack_runs(runs: Table) -> Segments:
    """Segments of columns [field, row, run] with the runs that are there first."""
    order = np.argsort(runs[0] == PADDING, axis=1, kind="stable")
    width = int((runs[0] != PADDING).sum(axis=1).max())
    columns = [np.take_along_axis(column, order, axis=1)[:, :width] for column in runs]
    absent = columns[0] == PADDING
    return Segments(*(np.where(absent, PADDING, column) for column in columns))


def count_layouts(even_ends: list[int], shares: list[int]) -> int:
    """Ways to cut the layers and to choose how much recomputes, over all stages: `even_ends`
    are the ends of stages in an even cut, `shares` how many ways a stage of so many layers has."""
    layers = even_ends[-1]
    counts: dict[int, int] = {0: 1}
    for left, end in zip(reversed(range(len(even_ends))), even_ends, strict=True):
        new: dict[int, int] = {}
        for at in range(end - WINDOW, end + WINDOW + 1) if left else [layers]:
            for start, count in counts.items():
                if start < at <= layers - left:
                    new[at] = new.get(at, 0) + count * shares[at - start]
        counts = new
    return sum(counts.values())


MOST_STAGES = 16
"""Stages of the longest pipeline that is tried by default."""


@dataclass(frozen=True)
class StagedProblem:
    """Pipelines of a task with one strategy a stage; `stages` are the lengths to try."""

    task: Task
    stages: tuple[int, ...]

    @classmethod
    def of(cls, task: Task, choose: Choices | None = None) -> StagedProblem:
        """Pipelines of up to MOST_STAGES stages, or of those in choose['pp'].

        Raises InputError for other constraints, and for stages that the GPUs or layers forbid.
        """
        others = [name for name in choose or {} if name != "pp"]
        if others:
            raise InputError(f"a search of staged plans takes constraints on pp, not {others[0]}")
        most = min(MOST_STAGES, task.model.layers)
        usual = [d for d in divisors(task.gpus) if d <= most]
        stages = sorted({code("pp", value) for value in (choose or {}).get("pp", usual)})
        for pp in stages:
            if task.gpus % pp or pp > task.model.layers:
                raise InputError(
                    f"pp={pp} must divide {task.gpus} GPUs and be at most {task.model.layers} "
                    f"layers; nearest: {nearest_divisors(task.gpus, min(pp, task.model.layers))}"
                )
        return cls(task, tuple(stages))

    @property
    def constraints(self) -> dict[str, Sequence[int]]:
        """What the dynamic program must choose among so that its set has all of these plans."""
        batches = divisors(self.task.global_batch)
        return {
            "pp": self.stages,
            "tp": self.tensor_sizes,
            "virtual_stages": [1],
            "micro_batch": [d for d in batches if d <= LARGEST_MICRO_BATCH],
            **{"cp": [1], "ep": [1], "sequence_parallel": [1]},
        }

    def walk(self, rows: int) -> PrefixWalk:
        """So many points at the first variable."""
        return PrefixWalk(self, rows)

    @cached_property
    def tensor_sizes(self) -> tuple[int, ...]:
        """Tensor sizes: divisors of the GPUs of the largest stage, within a fast domain."""
        gpus = self.task.gpus // self.stages[0]
        return tuple(d for d in divisors(gpus) if d <= self.task.cluster.fast_domain.gpus)

    @cached_property
    def modes(self) -> tuple[int, ...]:
        """Ways to recompute that the stack has for the model, from light to heavy."""
        some = bool(recomputed_modules(self.task))
        return tuple(mode for mode in MODES if some or mode != Recompute.SELECTIVE)

    @cached_property
    def variables(self) -> tuple[Variable, ...]:
        batches = divisors(self.task.global_batch)
        whole = [
            Variable("pp", self.stages, role="pp"),
            Variable("micro_batches", batches, role="micro_batches"),
        ]
        return (*whole, *(v for i in range(self.stages[-1]) for v in self._stage_variables(i)))

    def _stage_variables(self, stage: int) -> list[Variable]:
        """The variables of one stage; each depends on the plan's and on the stage before."""
        values = {
            "end": tuple(range(-WINDOW, WINDOW + 1)),
            "tp": self.tensor_sizes,
            "zero": (0, 1, 2, 3),
            "recompute": tuple(range((len(self.modes) - 1) * EIGHTHS + 1)),
        }
        out = []
        for field, (name, choices) in enumerate(values.items()):
            before = place_of(stage - 1, field) if stage else NO_VARIABLE
            earlier = [place_of(stage, other) for other in range(field)]
            later = [NO_VARIABLE] * (PER_STAGE - field)
            out.append(
                Variable(
                    f"{name} {stage + 1}",
                    choices,
                    role=name,
                    parents=(PP, MICRO_BATCHES, before, *earlier, *later),
                    optional=stage > 0,
                )
            )
        return out

    @property
    def candidates(self) -> int:
        return prod(len(variable.values) for variable in self.variables)

    @cached_property
    def strategies(self) -> Mask:
        """[pp, micro-batches, tp, zero] that a stage may have: what every rule lets through."""
        axes = (self.stages, divisors(self.task.global_batch), self.tensor_sizes, (0, 1, 2, 3))
        pp, m, tp, zero = (c.ravel() for c in np.meshgrid(*axes, indexing="ij"))
        dp = np.maximum(self.task.gpus // (pp * tp), 1)
        micro_batch = self.task.global_batch // (m * dp)
        whole = (pp * tp * dp == self.task.gpus) & (micro_batch * m * dp == self.task.global_batch)
        ok = whole & (micro_batch <= LARGEST_MICRO_BATCH)
        rows = np.flatnonzero(ok)
        plans = self._columns(pp[rows], tp[rows], dp[rows], micro_batch[rows], zero[rows])
        ok[rows] = legal_rows(from_columns(plans), self.task)
        out: Mask = ok.reshape([len(axis) for axis in axes])
        return out

    def _columns(
        self, pp: Table, tp: Table, dp: Table, micro_batch: Table, zero: Table
    ) -> dict[str, Table]:
        """Plan columns of these sizes, with every overlap that they and the stack allow."""
        parallel, several = 1 * (tp > 1), 1 * (dp > 1)
        return {
            **{"pp": pp, "tp": tp, "dp": dp, "micro_batch": micro_batch, "zero": zero},
            "precision": np.full_like(pp, default_precision(self.task)),
            "schedule": np.full_like(pp, schedules.default_code(1)),
            "sequence_parallel": parallel,
            "overlap_tp": parallel * (self.task.software.tp_overlap_share > 0),
            "overlap_grad_reduce": several,
            "overlap_param_gather": several * (zero > 0),
            "overlap_p2p": np.zeros_like(pp),
        }

    @cached_property
    def even_ends(self) -> Table:
        """Layers up to the end of a stage in an even cut [stage, pp]; all from the last one on."""
        pp, layers = self._lengths, self.task.model.layers
        stage = np.arange(self.stages[-1])[:, None]
        out: Table = np.where(stage >= pp - 1, layers, ((stage + 1) * layers + pp // 2) // pp)
        return out

    @cached_property
    def shares(self) -> Mask:
        """distinct_shares of every number of layers [layers, share]."""
        return distinct_shares(np.arange(self.task.model.layers + 1), len(self.modes))

    def end(self, points: Points, stage: int) -> Table:
        """Layers up to the end of a stage; the cut of a stage that is not there is even."""
        if stage < 0:
            return np.zeros(len(points), np.int64)
        out: Table = self.even_ends[stage, points[:, PP]] + points[:, place_of(stage, CUT)] - WINDOW
        return out

    def legal(self, prefix: Points) -> Mask:
        """[row, value] of the next variable."""
        variable = prefix.shape[1]
        if variable == PP:
            some: Mask = np.any(self.strategies, axis=(1, 2, 3))
            return np.broadcast_to(some, (len(prefix), some.size))
        if variable == MICRO_BATCHES:
            batches: Mask = np.any(self.strategies, axis=(2, 3))[prefix[:, PP]]
            return batches
        stage, field = divmod(variable - FIRST_STAGE, PER_STAGE)
        absent = self._absent_values[field]
        absent = np.broadcast_to(absent, (len(prefix), absent.size))
        present = stage < self._lengths[prefix[:, PP]]
        if not present.any():
            return absent
        if present.all():
            return self._present_values(prefix, stage, field)
        out = absent.copy()
        out[present] = self._present_values(prefix[present], stage, field)
        return out

    @cached_property
    def _lengths(self) -> Table:
        """Stages of each pipeline [pp]."""
        return np.array(self.stages)

    @cached_property
    def _absent_values(self) -> list[Mask]:
        """The one value of each variable of a stage that is not there [field] of [value]."""
        fields = self.variables[FIRST_STAGE : FIRST_STAGE + PER_STAGE]
        return [
            np.arange(len(v.values)) == (WINDOW if field == CUT else 0)
            for field, v in enumerate(fields)
        ]

    def _present_values(self, prefix: Points, stage: int, field: int) -> Mask:
        """Legal values of one field of a stage that is there."""
        if field == CUT:
            return self._cuts(prefix, stage)
        if field == RECOMPUTE:
            shares: Mask = self.shares[self.end(prefix, stage) - self.end(prefix, stage - 1)]
            return shares
        chosen = self.strategies[prefix[:, PP], prefix[:, MICRO_BATCHES]]
        if field == TP:
            tp: Mask = np.any(chosen, axis=2)
            return tp
        zero: Mask = chosen[np.arange(len(prefix)), prefix[:, place_of(stage, TP)]]
        return zero

    def _cuts(self, prefix: Points, stage: int) -> Mask:
        """Ends that leave a layer for this stage and for each later one; one for the last."""
        pp = self._lengths[prefix[:, PP]]
        offset = np.arange(-WINDOW, WINDOW + 1)
        end = self.even_ends[stage, prefix[:, PP]][:, None] + offset
        leaves_layers = end <= (self.task.model.layers - (pp - stage - 1))[:, None]
        inside = (end > self.end(prefix, stage - 1)[:, None]) & leaves_layers
        last: Mask = np.equal(pp - 1, stage)[:, None]
        out: Mask = np.where(last, offset == 0, inside)
        return out

    def plans(self, points: Points) -> Plan:
        """One row a point, with two runs a stage: what recomputes more, and the rest.

        A plan's own sizes are those of the stage with the largest dp, its zero is the largest.
        """
        value = [np.array(v.values)[i] for v, i in zip(self.variables, points.T, strict=True)]
        pp, m = value[PP], value[MICRO_BATCHES]
        runs: list[tuple[Table, ...]] = []
        modes = np.array(self.modes, np.int64)
        for stage in range(self.stages[-1]):
            layers = self.end(points, stage) - self.end(points, stage - 1)
            tp, zero, share = (value[place_of(stage, field)] for field in (TP, ZERO, RECOMPUTE))
            dp = self.task.gpus // (pp * tp)
            more, light = heavier_layers(share, layers), np.maximum(share - 1, 0) // EIGHTHS
            for part, recompute in ((more, modes[light + 1]), (layers - more, modes[light])):
                at = np.where((stage < pp) & (part > 0), stage, PADDING)
                runs.append((at, part, tp, dp, zero, recompute))
        segments = pack_runs(np.array(runs).transpose(1, 2, 0))
        dp, zero = segments.dp.max(axis=1), segments.zero.max(axis=1)
        columns = self._columns(pp, segments.tp.max(axis=1), dp, m, zero)
        columns |= {"tp": self.task.gpus // (pp * dp), "recompute": segments.recompute[:, 0]}
        columns["micro_batch"] = self.task.global_batch // (m * dp)
        return from_columns(columns, segments=segments)

    def neighbours(self, points: Points, random: Random) -> Points:
        """A layer to another stage; tp for dp; ZeRO, recompute, micro-batches; or pp.

        Stages that a longer pipeline adds are like the last one it had; a rank keeps the sequences
        of its micro-batch.
        """
        variable, index = random_step(self, points, random)
        last = self._lengths[points[:, PP]] - 1
        wanted, everywhere = move_along(points, variable, index, last, random)
        wider = everywhere & (stage_of(variable)[1] == TP)
        tp = np.where(wider, index, points[:, place_of(0, TP)])
        wanted[:, MICRO_BATCHES] = self.rescaled_micro_batches(points, wanted, tp)
        return nearest_points(self, encode(self, wanted))

    def rescaled_micro_batches(self, points: Points, wanted: Points, tp: Table) -> Table:
        """Indices of the micro-batches with which a rank of the first stage keeps its sequences
        per micro-batch when the stages change, and all tp with the first to that index."""
        stages, sizes = self._lengths, np.array(self.tensor_sizes)
        batches = np.array(divisors(self.task.global_batch))
        before = points[:, place_of(0, TP)]
        more = stages[wanted[:, PP]] * sizes[tp] / (stages[points[:, PP]] * sizes[before])
        at = np.searchsorted(batches, batches[wanted[:, MICRO_BATCHES]] * more)
        out: Table = np.minimum(at, batches.size - 1)
        return out

    @cached_property
    def size(self) -> int:
        """Legal points: for each pipeline, strategies and cuts times shares, stage by stage."""
        per_stage = self.strategies.sum(axis=(2, 3))
        shares = self.shares.sum(axis=1).tolist()
        return sum(
            int(strategies) ** pp * count_layouts(self.even_ends[:pp, i].tolist(), shares)
            for i, (pp, counts) in enumerate(zip(self.stages, per_stage.tolist(), strict=True))
            for strategies in counts
        )
