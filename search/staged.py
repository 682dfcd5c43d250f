"""Plans whose stages differ, as a problem: cuts, tensor size, ZeRO stage and recompute of each.

Stages have equally many GPUs. A point is the number of stages, of micro-batches, what all layers
recompute, and for each stage, in this order: where it ends (layers from an even cut), tp (and so
dp), the ZeRO stage and how many of its layers recompute in full. Shorter pipelines leave the
variables of the missing stages at their first value. cp, ep and virtual stages are 1 and every
overlap is on. Moves: Aceso, EuroSys 2024, table of primitives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plan3d.simulator.errors import InputError
from plan3d.simulator.plan import Plan, from_columns
from plan3d.simulator.plan_names import Recompute
from plan3d.simulator.plan_values import code
from plan3d.simulator.rule import nearest_divisors
from plan3d.simulator.rules import legal, supported_precisions
from plan3d.simulator.segments import ABSENT, Segments
from plan3d.simulator.task import Task

from .axes import LARGEST_MICRO_BATCH, divisors
from .problem import NOTHING, Mask, Points, Random, Variable, encode, nearest, step

Table = NDArray[np.int64]

MOST_STAGES = 16
"""Stages of the longest pipeline that is tried unless asked for."""
WINDOW = 4
"""Layers that a stage may end before or after an even cut."""
EIGHTHS = 8
"""Parts of a stage's layers in which full recompute is chosen."""
EVERYWHERE = 0.3
"""Share of moves that are made in all stages at once."""
PP, MICRO_BATCHES, RECOMPUTE, FIRST = range(4)
"""Places of the variables of the whole plan, and of the first stage's first."""
CUT, TP, ZERO, FULL, EACH = range(5)
"""Places of a stage's variables, and how many there are."""
BASES = (Recompute.NONE, Recompute.SELECTIVE)
"""What the layers recompute that do not recompute in full."""


def _place(stage: int, field: int) -> int:
    return FIRST + EACH * stage + field


@dataclass(frozen=True)
class StagedProblem:
    """Pipelines of a task with one strategy a stage; `stages` are the lengths to try."""

    task: Task
    stages: tuple[int, ...]

    @classmethod
    def of(cls, task: Task, choose: Mapping[str, Sequence[Any]] | None = None) -> StagedProblem:
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

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Tensor sizes: divisors of the GPUs of the largest stage, within a fast domain."""
        gpus = self.task.gpus // self.stages[0]
        return tuple(d for d in divisors(gpus) if d <= self.task.cluster.fast.gpus)

    @cached_property
    def variables(self) -> tuple[Variable, ...]:
        batches = divisors(self.task.global_batch)
        whole = [
            Variable("pp", self.stages, role="pp"),
            Variable("micro_batches", batches, role="micro_batches"),
            Variable("recompute", tuple(map(int, BASES)), role="recompute"),
        ]
        return (*whole, *(v for i in range(self.stages[-1]) for v in self._of_stage(i)))

    def _of_stage(self, stage: int) -> list[Variable]:
        """The variables of one stage; each depends on the plan's and on the stage before."""
        values = {
            "end": tuple(range(-WINDOW, WINDOW + 1)),
            "tp": self.sizes,
            "zero": (0, 1, 2, 3),
            "full": tuple(range(EIGHTHS + 1)),
        }
        out = []
        for field, (name, choices) in enumerate(values.items()):
            before = _place(stage - 1, field) if stage else NOTHING
            same = [_place(stage, other) if other < field else NOTHING for other in range(EACH)]
            given = (PP, MICRO_BATCHES, RECOMPUTE, before, *same)
            out.append(Variable(f"{name} {stage + 1}", choices, role=name, given=given))
        return out

    @property
    def candidates(self) -> int:
        return prod(len(variable.values) for variable in self.variables)

    @cached_property
    def strategies(self) -> Mask:
        """[pp, micro-batches, tp, zero] that a stage may have: what every rule lets through."""
        axes = (self.stages, divisors(self.task.global_batch), self.sizes, (0, 1, 2, 3))
        pp, m, tp, zero = (c.ravel() for c in np.meshgrid(*axes, indexing="ij"))
        dp = np.maximum(self.task.gpus // (pp * tp), 1)
        micro_batch = self.task.global_batch // (m * dp)
        whole = (pp * tp * dp == self.task.gpus) & (micro_batch * m * dp == self.task.global_batch)
        ok = whole & (micro_batch <= LARGEST_MICRO_BATCH)
        rows = np.flatnonzero(ok)
        plans = self._columns(pp[rows], tp[rows], dp[rows], micro_batch[rows], zero[rows])
        ok[rows] = legal(from_columns(plans), self.task)
        out: Mask = ok.reshape([len(axis) for axis in axes])
        return out

    def _columns(
        self, pp: Table, tp: Table, dp: Table, micro_batch: Table, zero: Table
    ) -> dict[str, Table]:
        """Plan columns of these sizes, with every overlap that they and the stack allow."""
        parallel, several = 1 * (tp > 1), 1 * (dp > 1)
        return {
            **{"pp": pp, "tp": tp, "dp": dp, "micro_batch": micro_batch, "zero": zero},
            "precision": np.full_like(pp, min(supported_precisions(self.task))),
            "schedule": np.zeros_like(pp),
            "sequence_parallel": parallel,
            "overlap_tp": parallel * (self.task.software.tp_overlap_share > 0),
            "overlap_grad_reduce": several,
            "overlap_param_gather": several * (zero > 0),
            "overlap_p2p": np.zeros_like(pp),
        }

    def even(self, stage: int, pp: Table) -> Table:
        """Layers up to the end of a stage in an even cut."""
        out: Table = ((stage + 1) * self.task.model.layers + pp // 2) // pp
        return out

    def end(self, points: Points, stage: int) -> Table:
        """Layers up to the end of a stage; all of them from the last stage on."""
        pp = np.array(self.stages)[points[:, PP]]
        if stage < 0:
            return np.zeros_like(pp)
        end = self.even(stage, pp) + points[:, _place(stage, CUT)] - WINDOW
        return np.where(stage >= pp - 1, self.task.model.layers, end)

    def legal(self, prefix: Points) -> Mask:
        """[row, value] of the next variable."""
        variable = prefix.shape[1]
        batches: Mask = np.any(self.strategies, axis=(2, 3))
        if variable == PP:
            return np.broadcast_to(np.any(batches, axis=1), (len(prefix), len(self.stages)))
        if variable == MICRO_BATCHES:
            some: Mask = batches[prefix[:, PP]]
            return some
        if variable == RECOMPUTE:
            return np.ones((len(prefix), len(BASES)), bool)
        stage, field = divmod(variable - FIRST, EACH)
        present = stage < np.array(self.stages)[prefix[:, PP]]
        mask = self._of_present(prefix, stage, field)
        first: Mask = np.arange(mask.shape[1]) == (WINDOW if field == CUT else 0)
        out: Mask = np.where(present[:, None], mask, first)
        return out

    def _of_present(self, prefix: Points, stage: int, field: int) -> Mask:
        """Legal values of one field of a stage that is there."""
        if field == CUT:
            return self._cuts(prefix, stage)
        if field == FULL:
            return _distinct_shares(self.end(prefix, stage) - self.end(prefix, stage - 1))
        chosen = self.strategies[prefix[:, PP], prefix[:, MICRO_BATCHES]]
        if field == TP:
            tp: Mask = np.any(chosen, axis=2)
            return tp
        zero: Mask = chosen[np.arange(len(prefix)), prefix[:, _place(stage, TP)]]
        return zero

    def _cuts(self, prefix: Points, stage: int) -> Mask:
        """Ends that leave a layer for this stage and for each later one; one for the last."""
        pp = np.array(self.stages)[prefix[:, PP]]
        offset = np.arange(-WINDOW, WINDOW + 1)
        end = self.even(stage, pp)[:, None] + offset
        room = end <= (self.task.model.layers - (pp - stage - 1))[:, None]
        inside = (end > self.end(prefix, stage - 1)[:, None]) & room
        last: Mask = np.equal(pp - 1, stage)[:, None]
        out: Mask = np.where(last, offset == 0, inside)
        return out

    def plans(self, points: Points) -> Plan:
        """One row a point, with two runs a stage: what recomputes in full, and the rest.

        A plan's own sizes are those of the stage with the largest dp, its zero is the largest.
        """
        value = [np.array(v.values)[i] for v, i in zip(self.variables, points.T, strict=True)]
        pp, m, base = (value[i] for i in (PP, MICRO_BATCHES, RECOMPUTE))
        runs: list[tuple[Table, ...]] = []
        for stage in range(self.stages[-1]):
            layers = self.end(points, stage) - self.end(points, stage - 1)
            tp, zero, share = (value[_place(stage, field)] for field in (TP, ZERO, FULL))
            dp = self.task.gpus // (pp * tp)
            full = _full_layers(share, layers)
            for part, recompute in ((full, Recompute.FULL), (layers - full, base)):
                at = np.where((stage < pp) & (part > 0), stage, ABSENT)
                runs.append((at, part, tp, dp, zero, np.broadcast_to(recompute, pp.shape)))
        segments = _packed(np.array(runs).transpose(1, 2, 0))
        dp, zero = segments.dp.max(axis=1), segments.zero.max(axis=1)
        columns = self._columns(pp, segments.tp.max(axis=1), dp, m, zero)
        columns |= {"tp": self.task.gpus // (pp * dp), "recompute": base}
        columns["micro_batch"] = self.task.global_batch // (m * dp)
        return from_columns(columns, segments=segments)

    def neighbours(self, points: Points, random: Random) -> Points:
        """A layer to the next stage; tp for dp; ZeRO, recompute, micro-batches; or pp.

        What changes in one stage changes in all of them in some moves. Stages that a longer
        pipeline adds are like the last one it had.
        """
        variable, index = step(self, points, random)
        wanted, rows = points.copy(), np.arange(len(points))
        wanted[rows, variable] = index
        last = np.array(self.stages)[points[:, PP]] - 1
        field = (variable - FIRST) % EACH
        everywhere = (variable >= FIRST) & (field != CUT) & (random.random(rows.size) < EVERYWHERE)
        for stage in range(self.stages[-1]):
            for other in (TP, ZERO, FULL):
                place = _place(stage, other)
                new = np.flatnonzero(stage > last)
                wanted[new, place] = points[new, _place(0, other) + EACH * last[new]]
                all_alike = everywhere & (field == other)
                wanted[all_alike, place] = index[all_alike]
        return nearest(self, encode(self, wanted))

    @cached_property
    def size(self) -> int:
        """Legal points: for each pipeline, strategies and cuts times shares, stage by stage."""
        per_stage = self.strategies.sum(axis=(2, 3))
        return sum(
            len(BASES) * int(strategies) ** pp * _layouts(self, pp)
            for pp, counts in zip(self.stages, per_stage.tolist(), strict=True)
            for strategies in counts
        )


def _full_layers(share: Table, layers: Table) -> Table:
    """Layers of a stage that recompute in full: so many eighths, rounded."""
    out: Table = (share * layers + EIGHTHS // 2) // EIGHTHS
    return out


def _distinct_shares(layers: Table) -> Mask:
    """Eighths [row, share] of which no smaller one gives the same number of layers."""
    full = _full_layers(np.arange(EIGHTHS + 1), layers[:, None])
    return np.diff(full, axis=1, prepend=-1) > 0


def _packed(runs: Table) -> Segments:
    """Segments of columns [field, row, run] with the runs that are there first."""
    order = np.argsort(runs[0] == ABSENT, axis=1, kind="stable")
    width = int((runs[0] != ABSENT).sum(axis=1).max())
    columns = [np.take_along_axis(column, order, axis=1)[:, :width] for column in runs]
    absent = columns[0] == ABSENT
    return Segments(*(np.where(absent, ABSENT, column) for column in columns))


def _layouts(problem: StagedProblem, pp: int) -> int:
    """Ways to cut the layers and to choose shares of full recompute, over all stages."""
    layers = problem.task.model.layers
    ways: dict[int, int] = {0: 1}
    for stage in range(pp):
        even = int(problem.even(stage, np.array(pp)))
        ends = [layers] if stage == pp - 1 else range(even - WINDOW, even + WINDOW + 1)
        room = layers - (pp - stage - 1)
        new: dict[int, int] = {}
        for end in ends:
            for begin, count in ways.items():
                if begin < end <= room:
                    shares = int(_distinct_shares(np.array([end - begin])).sum())
                    new[end] = new.get(end, 0) + count * shares
        ways = new
    return sum(ways.values())
