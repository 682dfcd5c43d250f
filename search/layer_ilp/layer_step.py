"""Layer step: seconds of the step of a pipeline's integer program, at least.

    (m - 1) t_max + sum_i t_i + R + G + O + what the host does once a step
    t_i >= sum n T + changes of tp + delays;  R >= r_i - sum_(j<i) b_j,  G >= g_i - sum_(j<i) f_j

t_i seconds of a stage per micro-batch, f_i and b_i of its passes; r_i and g_i what shows of its
reduction and its gather, O its optimizer. Of a collective of c seconds behind w seconds of compute
at contention k shows max(c - w, tail) + k min(c, w), which is at least k c and c - (1 - k) w.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from plan3d.simulator.base.arrays import Value
from plan3d.simulator.layers.cost_columns import Cost

from ..result.tolerances import ROUNDING
from .cp_sat import Units
from .layer_bounds import Chords, CollectiveBounds, change_of_tp, fastest
from .layer_program import MOST, LayerProgram, Stage, Sum

REDUCE, SCATTER, GATHER = 0, 1, 2
"""Operations of layer_bounds."""


class StepProgram:
    """The objective of a program, in units of a step that is `longest` seconds at most."""

    def __init__(self, program: LayerProgram, longest: float) -> None:
        self.program, self.table, self.pipeline = program, program.table, program.pipeline
        self.moves = CollectiveBounds(program.table, program.counts)
        self.change = change_of_tp(program.pipeline)
        self.software = program.pipeline.task.software
        self.units = Units.of(longest)
        most = program.longest if np.isfinite(program.longest) else MOST * self.units.size
        self.slowest = program.model.new_int_var(0, self.units.down(most) + 1, "slowest")
        self.late = {name: self._quantity() for name in ("reduce", "gather", "update")}
        self.passed: dict[tuple[int, bool], Any] = {}
        """Seconds of a pass (whether backward) of all stages before one."""
        total = [self._stage(stage) for stage in program.stages]
        again = (program.pipeline.micro_batches - 1) * self.slowest
        fixed = self.units.down(program.pipeline.least_seconds.sends + self.software.step_seconds)
        self.objective = again + sum(total) + sum(self.late.values()) + fixed
        program.model.minimize(self.objective)

    def _quantity(self) -> Any:
        return self.program.model.new_int_var(0, MOST, "seconds")

    def _at_least(self, quantity: Any, parts: list[Sum]) -> None:
        self.program.model.add(quantity >= sum(part.build() for part in parts))

    def _stage(self, stage: Stage) -> Any:
        """Seconds of a stage per micro-batch; bounds what follows from it."""
        self.program.deadline.check()
        shared, own = self.pipeline.shared, self._sum()
        stage.over_layers(own, self.table.costs[Cost.TOTAL])
        own.add(self.change[0], self._changes(stage))
        seconds = own.build() + self._delay(stage)
        self.program.model.add(self.slowest >= seconds)
        self._no_faster(stage, seconds)
        update = self._sum()
        stage.over_shards(update, self.table.optimizer_seconds)
        self._at_least(self.late["update"], [update])
        reduce = {0: REDUCE, 1: SCATTER}
        self._exposed("reduce", stage, reduce, bool(shared["overlap_grad_reduce"]))
        gather = {1: GATHER, 2: GATHER}
        self._exposed("gather", stage, gather, bool(shared["overlap_param_gather"]))
        return seconds

    def _no_faster(self, stage: Stage, seconds: Any) -> None:
        """Tell the solver how fast a stage of so many equal layers can be: it follows from the
        rest, but not from its linear relaxation."""
        program, model = self.program, self.program.model
        if len(program.kinds) > 1:
            return
        layers = sum(n for *_, n in stage.layers)
        least = self._fastest(stage.number)
        known = np.flatnonzero(np.isfinite(least)).tolist()
        number = model.new_int_var(min(known, default=0), max(known, default=0), "layers")
        model.add(number == layers)
        floors = [int(value) if np.isfinite(value) else MOST for value in least]
        floor_of = model.new_int_var(0, MOST, "floor")
        model.add_element(number, floors, floor_of)
        model.add(seconds >= floor_of)
        self._tangents(number, seconds, floors, known)

    def _fastest(self, stage: int) -> Value:
        """Least time of a stage of 0, 1, ... layers of one kind, each layer's in whole units
        rounded down."""
        p, (kind,) = self.pipeline, self.program.kinds
        s, r, z = np.nonzero(p.legal)
        size = (
            p.in_flight[stage] * self.program.kept[s, r, kind] + self.table.state_bytes[z, s, kind]
        )
        time = np.floor(self.table.costs[Cost.TOTAL, s, r, kind] / self.units.size)
        most, room = p.task.model.layers - p.pp + 1, self.program.room * (1 + ROUNDING)
        return fastest(time, size, most, room, self.program.deadline)

    def _tangents(self, number: Any, seconds: Any, floors: list[int], known: list[int]) -> None:
        """The lower convex hull of the floors, as linear constraints."""
        hull: list[int] = []
        for n in known:
            while len(hull) > 1 and _above(floors, hull[-2], hull[-1], n):
                hull.pop()
            hull.append(n)
        for a, b in pairwise(hull):
            rise, run = floors[b] - floors[a], b - a
            self.program.model.add(run * (seconds - floors[a]) >= rise * (number - a))

    def _sum(self) -> Sum:
        return Sum(self.units.size)

    def _changes(self, stage: Stage) -> Any:
        """Changes of tp in a stage, at least."""
        sizes = sorted({s for s, _ in self.program.shards})
        if len(sizes) == 1:
            return 0
        return sum(self.program.any_of(stage, [s]) for s in sizes) - 1

    def _window(self, stage: Stage, backward: bool, scale: float) -> Sum:
        """Seconds of one pass of a stage, at most, times `scale`, which is below 0."""
        forward = self.table.costs[Cost.FORWARD]
        own = self.table.costs[Cost.TOTAL] - forward if backward else forward
        out = self._sum()
        stage.over_layers(out, scale * own)
        out.add(scale * self.change[1], self._changes(stage))
        return out

    def _waited(self, stage: Stage, backward: bool) -> Sum:
        """Seconds of that pass of all earlier stages, at most, below 0."""
        out, key = self._sum(), (stage.number, backward)
        if stage.number and key not in self.passed:
            before = self.program.stages[stage.number - 1]
            more = self._waited(before, backward).build()
            more += self._window(before, backward, -1.0).build()
            self.passed[key] = self._quantity()
            self.program.model.add(self.passed[key] == -more)
        if stage.number:
            out.terms.append((-1, self.passed[key]))
        return out

    def _moved(
        self, stage: Stage, operation: dict[int, int], chords: Chords, scale: float = 1.0
    ) -> Sum:
        """Seconds, at least, of moving the weights of a stage once, by ZeRO stage."""
        single, out = self.table.layer_weights, self._sum()
        costs = np.zeros_like(self.table.state_bytes)
        for zero, op in operation.items():
            costs[zero] = chords.dense[op, :, None] * single.dense
            costs[zero] += chords.expert[op, :, None] * single.expert
        stage.over_shards(out, scale * costs)
        for (s, z), used in stage.used.items():
            if z in operation:
                out.add(scale * chords.start[operation[z], s], used)
        return out

    def _exposed(
        self, name: str, stage: Stage, operation: dict[int, int], overlapped: bool
    ) -> None:
        """Bound what delays the step at one end of it by what a stage shows."""
        if not any(z in operation for _, z in self.program.shards):
            return
        backward, k = name == "reduce", self.software.contention if overlapped else 1.0
        waited, whole = self._waited(stage, backward), self.moves.whole
        if not overlapped:
            self._at_least(self.late[name], [self._moved(stage, operation, whole), waited])
            return
        slower = whole.least(self.moves.in_buckets, k)
        self._at_least(self.late[name], [self._moved(stage, operation, slower), waited])
        piece = self.moves.last_bucket[list(operation.values())].min(axis=0)
        last = self._last(stage, list(operation), (1.0 - k) * piece)
        self._at_least(self.late[name], [self._moved(stage, operation, whole, k), last, waited])
        if not self.software.pipeline_floor:
            window = self._window(stage, backward, -(1.0 - k))
            parts = [self._moved(stage, operation, whole), window, waited]
            self._at_least(self.late[name], parts)

    def _delay(self, stage: Stage) -> Any:
        """Seconds that ZeRO 2 and 3 add to every micro-batch."""
        levels = {z for _, z in self.program.shards}
        shared, software = self.pipeline.shared, self.software
        reduced, gathered = (
            bool(shared["overlap_grad_reduce"]),
            bool(shared["overlap_param_gather"]),
        )
        out: Any = 0
        if 2 in levels:
            k = software.contention if reduced else 1.0
            scattered = partial(self._moved, stage, {2: SCATTER}, self.moves.in_buckets)
            last = self._last(stage, [2], (1.0 - k) * self.moves.last_bucket[SCATTER])
            out += self._hidden(stage, True, k, scattered, last)
        if 3 in levels:
            k, hides = software.fsdp_contention, (float(gathered), float(reduced))
            _, scatter, gather = (1.0 - k) * self.moves.last_layer
            ahead = partial(self._by_layer, stage, 1.0, 0.0)
            behind = partial(self._by_layer, stage, *hides)
            first = self._last(stage, [3], gathered * gather)
            last = self._last(stage, [3], hides[0] * gather + hides[1] * scatter)
            out += self._hidden(stage, False, k if gathered else 1.0, ahead, first)
            out += self._hidden(stage, True, k, behind, last)
            out += self._by_layer(stage, 1.0 - hides[0], 1.0 - hides[1]).build()
        return out

    def _last(self, stage: Stage, zeros: list[int], piece: Value) -> Sum:
        """Seconds, at least, of the last piece of what a stage moves, if it moves any; `piece` is
        that of each strategy."""
        out, present = self._sum(), self.program.model.new_bool_var("moves")
        own = [s for s, z in stage.used if z in zeros]
        for (_, z), used in stage.used.items():
            if z in zeros:
                self.program.model.add(present >= used)
        out.add(piece[own].min(), present)
        return out

    def _by_layer(self, stage: Stage, gathers: float, scatters: float, scale: float = 1.0) -> Sum:
        """Seconds, at least, of moving the layers that ZeRO 3 shards one by one so many times."""
        out, costs = self._sum(), np.zeros_like(self.table.state_bytes)
        costs[3] = gathers * self.moves.gathers + scatters * self.moves.scatters
        stage.over_shards(out, scale * costs)
        return out

    def _hidden(
        self, stage: Stage, backward: bool, k: float, moved: Callable[..., Sum], last: Sum
    ) -> Any:
        """What shows of communication behind a pass of a stage."""
        shown = self._quantity()
        self._at_least(shown, [moved(scale=k), last])
        if k < 1 and not self.software.pipeline_floor:
            self._at_least(shown, [moved(), self._window(stage, backward, -(1.0 - k))])
        return shown


def _above(values: list[int], a: int, b: int, c: int) -> bool:
    """Whether the value at b is not below the line from a to c."""
    return (values[b] - values[a]) * (c - a) >= (values[c] - values[a]) * (b - a)
