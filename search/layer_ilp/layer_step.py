"""Layer step: seconds of the step of a pipeline's integer program, at least.

    (m - 1) t_max + sum_i t_i + R + G + O + what the host does once a step
    t_i >= sum n T + changes of tp + delays;  R >= r_i - sum_(j<i) b_j,  G >= g_i - sum_(j<i) f_j

t_i seconds of a stage per micro-batch, f_i and b_i of its passes; r_i and g_i the exposed seconds
of its reduction and its gather, O its optimizer. A collective of c seconds behind w seconds of
compute at contention k exposes max(c - w, tail) + k min(c, w), at least k c and c - (1 - k) w.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np

from plan3d.simulator.base.arrays import Value
from plan3d.simulator.layers.cost_columns import Cost

from ..result.tolerances import ROUNDING
from .cp_sat import Expression, Units, Variable
from .layer_bounds import Chords, CollectiveBounds, change_of_tp, fastest_stages
from .layer_program import LARGEST_QUANTITY, LayerProgram, Stage, Sum

REDUCE, SCATTER, GATHER = 0, 1, 2
"""Operations of layer_bounds."""


class StepProgram:
    """The objective of a program, in units of a step that is `longest` seconds at most."""

    def __init__(self, program: LayerProgram, longest: float) -> None:
        self.program, self.table, self.pipeline = program, program.table, program.pipeline
        self.collectives = CollectiveBounds(program.table, program.counts)
        self.tp_change_seconds = change_of_tp(program.pipeline)
        self.software = program.pipeline.task.software
        self.units = Units.of(longest)
        most = program.longest
        if not np.isfinite(most):
            most = LARGEST_QUANTITY * self.units.size
        self.slowest = program.model.new_int_var(0, self.units.round_down(most) + 1, "slowest")
        self.exposed = {name: self._quantity() for name in ("reduce", "gather", "update")}
        self.earlier_passes: dict[tuple[int, bool], Variable] = {}
        """Seconds of a pass (whether backward) of all stages before one."""
        total = [self._stage(stage) for stage in program.stages]
        again = (program.pipeline.micro_batches - 1) * self.slowest
        sends = program.pipeline.least_seconds.sends
        fixed = self.units.round_down(sends + self.software.step_seconds)
        self.objective = again + sum(total) + sum(self.exposed.values()) + fixed
        program.model.minimize(self.objective)

    def _quantity(self) -> Variable:
        return self.program.model.new_int_var(0, LARGEST_QUANTITY, "seconds")

    def _bound_below(self, quantity: Variable, parts: list[Sum]) -> None:
        self.program.model.add(quantity >= sum(part.build() for part in parts))

    def _stage(self, stage: Stage) -> Expression:
        """Seconds of a stage per micro-batch; bounds what follows from it."""
        self.program.deadline.check()
        shared, own = self.pipeline.shared, self._sum()
        stage.over_layers(own, self.table.costs[Cost.TOTAL])
        own.add(self.tp_change_seconds[0], self._tp_changes(stage))
        seconds = own.build() + self._delay(stage)
        self.program.model.add(self.slowest >= seconds)
        self._add_stage_floor(stage, seconds)
        update = self._sum()
        stage.over_shards(update, self.table.optimizer_seconds)
        self._bound_below(self.exposed["update"], [update])
        reduce = {0: REDUCE, 1: SCATTER}
        self._bound_exposed("reduce", stage, reduce, bool(shared["overlap_grad_reduce"]))
        gather = {1: GATHER, 2: GATHER}
        self._bound_exposed("gather", stage, gather, bool(shared["overlap_param_gather"]))
        return seconds

    def _add_stage_floor(self, stage: Stage, seconds: Expression) -> None:
        """Add the least seconds of a stage of so many equal layers: implied by the program, but not
        by its linear relaxation."""
        program, model = self.program, self.program.model
        if len(program.kinds) > 1:
            return
        layers = sum(n for *_, n in stage.layers)
        least = self._stage_floors(stage.number)
        known = np.flatnonzero(np.isfinite(least)).tolist()
        number = model.new_int_var(min(known, default=0), max(known, default=0), "layers")
        model.add(number == layers)
        floors = [int(value) if np.isfinite(value) else LARGEST_QUANTITY for value in least]
        floor_of = model.new_int_var(0, LARGEST_QUANTITY, "floor")
        model.add_element(number, floors, floor_of)
        model.add(seconds >= floor_of)
        self._add_lower_hull(number, seconds, floors, known)

    def _stage_floors(self, stage: int) -> Value:
        """Least time of a stage of 0, 1, ... layers of one kind, each layer's in whole units
        rounded down."""
        p, (kind,) = self.pipeline, self.program.kinds
        s, r, z = np.nonzero(p.legal)
        size = p.in_flight[stage] * self.program.activation_bytes[s, r, kind]
        size = size + self.table.state_bytes[z, s, kind]
        time = np.floor(self.table.costs[Cost.TOTAL, s, r, kind] / self.units.size)
        most, usable = p.task.model.layers - p.pp + 1, self.program.usable_bytes * (1 + ROUNDING)
        return fastest_stages(time, size, most, usable, self.program.deadline)

    def _add_lower_hull(
        self, number: Variable, seconds: Expression, floors: list[int], known: list[int]
    ) -> None:
        """The lower convex hull of the floors, as linear constraints."""
        hull: list[int] = []
        for n in known:
            while len(hull) > 1 and _is_above_line(floors, hull[-2], hull[-1], n):
                hull.pop()
            hull.append(n)
        for a, b in pairwise(hull):
            rise, run = floors[b] - floors[a], b - a
            self.program.model.add(run * (seconds - floors[a]) >= rise * (number - a))

    def _sum(self) -> Sum:
        return Sum(self.units.size)

    def _tp_changes(self, stage: Stage) -> Expression:
        """Changes of tp in a stage, at least."""
        sizes = sorted({s for s, _ in self.program.shards})
        if len(sizes) == 1:
            return 0
        return sum(self.program.has_any_strategy(stage, [s]) for s in sizes) - 1

    def _pass_seconds(self, stage: Stage, backward: bool, scale: float) -> Sum:
        """Seconds of one pass of a stage, at most, times `scale`, which is below 0."""
        forward = self.table.costs[Cost.FORWARD]
        own = self.table.costs[Cost.TOTAL] - forward if backward else forward
        out = self._sum()
        stage.over_layers(out, scale * own)
        out.add(scale * self.tp_change_seconds[1], self._tp_changes(stage))
        return out

    def _earlier_pass_seconds(self, stage: Stage, backward: bool) -> Sum:
        """Seconds of that pass of all earlier stages, at most, below 0."""
        out, key = self._sum(), (stage.number, backward)
        if stage.number and key not in self.earlier_passes:
            before = self.program.stages[stage.number - 1]
            more = self._earlier_pass_seconds(before, backward).build()
            more += self._pass_seconds(before, backward, -1.0).build()
            self.earlier_passes[key] = self._quantity()
            self.program.model.add(self.earlier_passes[key] == -more)
        if stage.number:
            out.terms.append((-1, self.earlier_passes[key]))
        return out

    def _collective_seconds(
        self, stage: Stage, operation: dict[int, int], chords: Chords, scale: float = 1.0
    ) -> Sum:
        """Seconds, at least, of moving the weights of a stage once, by ZeRO stage."""
        single, out = self.table.layer_weights, self._sum()
        costs = np.zeros_like(self.table.state_bytes)
        for zero, op in operation.items():
            costs[zero] = chords.dense[op, :, None] * single.dense
            costs[zero] += chords.expert[op, :, None] * single.expert
        stage.over_shards(out, scale * costs)
        for (s, z), used in stage.shards_used.items():
            if z in operation:
                out.add(scale * chords.start[operation[z], s], used)
        return out

    def _bound_exposed(
        self, name: str, stage: Stage, operation: dict[int, int], overlapped: bool
    ) -> None:
        """Bound what delays the step at one end of it by what a stage exposes."""
        if not any(z in operation for _, z in self.program.shards):
            return
        backward, k = name == "reduce", self.software.contention if overlapped else 1.0
        waited, whole = self._earlier_pass_seconds(stage, backward), self.collectives.unbucketed
        exposed, moved = self.exposed[name], partial(self._collective_seconds, stage, operation)
        if not overlapped:
            self._bound_below(exposed, [moved(whole), waited])
            return
        slower = whole.lesser(self.collectives.bucketed, k)
        self._bound_below(exposed, [moved(slower), waited])
        piece = self.collectives.last_bucket[list(operation.values())].min(axis=0)
        last = self._last_piece(stage, list(operation), (1.0 - k) * piece)
        self._bound_below(exposed, [moved(whole, k), last, waited])
        if not self.software.pipeline_floor:
            window = self._pass_seconds(stage, backward, -(1.0 - k))
            self._bound_below(exposed, [moved(whole), window, waited])

    def _delay(self, stage: Stage) -> Expression:
        """Seconds that ZeRO 2 and 3 add to every micro-batch."""
        levels = {z for _, z in self.program.shards}
        shared, software = self.pipeline.shared, self.software
        reduced, gathered = (
            bool(shared["overlap_grad_reduce"]),
            bool(shared["overlap_param_gather"]),
        )
        out: Expression = 0
        if 2 in levels:
            k = software.contention if reduced else 1.0
            bucketed = self.collectives.bucketed
            scattered = partial(self._collective_seconds, stage, {2: SCATTER}, bucketed)
            last = self._last_piece(stage, [2], (1.0 - k) * self.collectives.last_bucket[SCATTER])
            out += self._exposed_seconds(stage, True, k, scattered, last)
        if 3 in levels:
            k, hides = software.fsdp_contention, (float(gathered), float(reduced))
            _, scatter, gather = (1.0 - k) * self.collectives.last_layer
            ahead = partial(self._by_layer, stage, 1.0, 0.0)
            behind = partial(self._by_layer, stage, *hides)
            first = self._last_piece(stage, [3], gathered * gather)
            last = self._last_piece(stage, [3], hides[0] * gather + hides[1] * scatter)
            out += self._exposed_seconds(stage, False, k if gathered else 1.0, ahead, first)
            out += self._exposed_seconds(stage, True, k, behind, last)
            out += self._by_layer(stage, 1.0 - hides[0], 1.0 - hides[1], copies=2.0).build()
        return out

    def _last_piece(self, stage: Stage, zeros: list[int], piece: Value) -> Sum:
        """Seconds, at least, of the last piece of what a stage moves, if it moves any; `piece` is
        that of each strategy."""
        out, present = self._sum(), self.program.model.new_bool_var("moves")
        own = [s for s, z in stage.shards_used if z in zeros]
        for (_, z), used in stage.shards_used.items():
            if z in zeros:
                self.program.model.add(present >= used)
        out.add(piece[own].min(), present)
        return out

    def _by_layer(
        self,
        stage: Stage,
        gathers: float,
        scatters: float,
        scale: float = 1.0,
        copies: float = 0.0,
    ) -> Sum:
        """Seconds, at least, of moving the layers that ZeRO 3 shards one by one so many times."""
        out, costs = self._sum(), np.zeros_like(self.table.state_bytes)
        costs[3] = gathers * self.collectives.gathers + scatters * self.collectives.scatters
        costs[3] += copies * self.collectives.by_layer.copies
        stage.over_shards(out, scale * costs)
        return out

    def _exposed_seconds(
        self, stage: Stage, backward: bool, k: float, moved: Callable[..., Sum], last: Sum
    ) -> Variable:
        """Exposed seconds of communication behind a pass of a stage, at least."""
        exposed = self._quantity()
        self._bound_below(exposed, [moved(scale=k), last])
        if k < 1 and not self.software.pipeline_floor:
            self._bound_below(exposed, [moved(), self._pass_seconds(stage, backward, -(1.0 - k))])
        return exposed


def _is_above_line(values: list[int], a: int, b: int, c: int) -> bool:
    """Whether the value at b is not below the line from a to c."""
    return (values[b] - values[a]) * (c - a) >= (values[c] - values[a]) * (b - a)
