"""Pipelines of a task: stages, micro-batches, what all layers share and what stages choose.

Legend: N GPUs, p stages, m micro-batches, B sequences of a step; arrays are [s] by strategy (tp,
dp, micro-batch), [r] by mode of recompute, [z] by ZeRO stage, [k] by layer kind or [stage].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from types import SimpleNamespace

import numpy as np

from plan3d.simulator.base.arrays import Column, Mask, Value
from plan3d.simulator.hardware.precision import RECIPES, Recipe
from plan3d.simulator.pipeline import schedules
from plan3d.simulator.pipeline.schedule import Sizes
from plan3d.simulator.plan.field_values import AUTO, Recompute
from plan3d.simulator.plan.plan import Plan, from_columns
from plan3d.simulator.rules.layer_run_rules import as_run
from plan3d.simulator.rules.validity import legal_runs
from plan3d.simulator.step import memory
from plan3d.simulator.step.data_parallel import zero_in_pipeline
from plan3d.simulator.step.layer_run_stages import hop_seconds
from plan3d.simulator.task import Task

from ..exact.ideal_layouts import even_cut_of_model, least_counts, model_counts
from ..space.axes import DERIVED, default_axes, largest_tensor_size
from .layer_table import ZERO_STAGES, LayerTable
from .stage_space import FIXED_FIELDS, VARIED_FIELDS, Axes, Shape, has_bare_head, has_one_kind


@dataclass(frozen=True)
class LeastSeconds:
    """Seconds that no plan of a pipeline beats, its layers each under their best strategy."""

    traversal: float
    """Of one micro-batch through all stages, its sends aside."""
    slowest: float
    """Of a micro-batch on the slowest stage."""
    sends: float
    """Of boundary tensors in a step."""
    micro_batches: int
    chunks: int = 1
    """Chunks that a stage is held in: virtual stages."""

    @property
    def step(self) -> float:
        """Seconds of a step: (m - 1 / v) slowest + alone / v + sends."""
        m, v = self.micro_batches, self.chunks
        return (m - 1 / v) * self.slowest + max(self.traversal, self.slowest) / v + self.sends

    def longest_stage(self, step: float) -> float:
        """Seconds of a micro-batch that no stage exceeds in a plan whose step is that short."""
        m, v, left = self.micro_batches, self.chunks, step - self.sends
        return min((left - self.traversal / v) / (m - 1 / v), left / m) if m * v > 1 else left


@dataclass(frozen=True, eq=False)
class Pipeline:
    """Stages that share their micro-batches and all fields of a plan but OWN."""

    task: Task
    pp: int
    micro_batches: int
    shared: Mapping[str, int]
    """The other fields of a plan, the same for all stages."""
    tp: Column
    dp: Column
    recompute: tuple[int, ...]
    """Modes that a layer may have, lightest first."""
    legal: Mask
    """Which combinations rules and axes allow [s, r, z]."""
    stated_zero: Mapping[int, int]
    """The ZeRO stage that plans state where it is not the one that they have."""
    layers: LayerTable

    @property
    def recipe(self) -> Recipe:
        return RECIPES[int(self.shared["precision"])]

    @property
    def gpus(self) -> Column:
        """GPUs of a stage [s]."""
        out: Column = self.tp * self.dp * self.shared["cp"]
        return out

    @property
    def chunks(self) -> int:
        """Chunks that a rank holds: virtual stages. A stage is what a rank holds."""
        return self.shared["virtual_stages"]

    @property
    def repeated_chunks(self) -> int:
        """Chunks of the slowest stage that a step takes besides one of every stage: m v - 1."""
        return self.micro_batches * self.chunks - 1

    @property
    def allows_bare_head(self) -> bool:
        """Whether the last stage may hold the head and the loss alone (Megatron-Core's layout
        'Ett|..|L', torchtitan's last stage): of whole stages, without multi-token prediction."""
        return self.pp > 1 and self.chunks == 1 and has_bare_head(self.task)

    @property
    def is_searchable(self) -> bool:
        """Whether its stages can be searched: those in chunks only where all layers are alike."""
        return self.chunks == 1 or has_one_kind(self.task)

    @property
    def has_equal_stages(self) -> bool:
        """Whether all stages have equally many GPUs."""
        return bool((self.gpus * self.pp == self.task.gpus).all())

    @property
    def micro_batch(self) -> Column:
        """Sequences of a micro-batch on a rank [s]."""
        out: Column = self.task.global_batch // (self.micro_batches * self.dp)
        return out

    def columns(self, strategies: Column) -> dict[str, Column]:
        """Plan columns of one stage for each of these strategies; ZeRO and recompute are 0."""
        none = np.zeros_like(strategies)
        columns = {name: np.full_like(strategies, value) for name, value in self.shared.items()}
        columns |= {"pp": np.full_like(strategies, self.pp), "zero": none, "recompute": none}
        own = {"tp": self.tp, "dp": self.dp, "micro_batch": self.micro_batch}
        return columns | {name: column[strategies] for name, column in own.items()}

    @property
    def sizes(self) -> Sizes[Value]:
        """Of its schedule, one row."""
        sizes = self.pp, self.chunks, self.pp, self.micro_batches
        return Sizes(*(np.array([float(n)]) for n in sizes))

    @property
    def schedule(self) -> Column:
        """Its schedule, one row."""
        return np.array([self.shared["schedule"]])

    @cached_property
    def in_flight(self) -> Value:
        """Micro-batches whose activations each stage keeps at its peak [stage]."""
        rank = np.arange(self.pp, dtype=float)[:, None]
        out: Value = schedules.in_flight(self.schedule, self.sizes, rank)[:, 0]
        return out

    @cached_property
    def sends(self) -> float:
        """Sends that show in a step."""
        contention = self.task.software.contention
        hidden = np.array([float(self.shared["overlap_p2p"])])
        return float(schedules.sends(self.schedule, self.sizes, hidden, contention)[0])

    @cached_property
    def least_state_bytes(self) -> Value:
        """Least bytes of a layer's weights, gradients and optimizer state on a rank [s, k]."""
        allowed: Mask = np.any(self.legal, axis=1)
        least = np.where(allowed.T[:, :, None], self.layers.state_bytes, np.inf).min(axis=0)
        out: Value = (1 + memory.further_share(self.task)) * least
        return out

    @cached_property
    def least_seconds(self) -> LeastSeconds:
        """The slowest stage does no less than the mean of all GPUs, than any layer, and than what
        some stage has (least_counts); the sends are those of the smallest tensor."""
        task, seconds = self.task, self.layers.least_seconds
        cut = even_cut_of_model(task.model, self.pp)
        whole, each = model_counts(cut), seconds.min(axis=0)
        busy = whole @ (seconds * self.gpus[:, None]).min(axis=0) / task.gpus
        longest, some = each[list(task.model.order)].max(), (least_counts(cut) @ each).max()
        size = np.array(self.layers.boundary_bytes)
        sends = self.sends * float(hop_seconds(task, size, size))
        slowest = float(max(busy, longest, some))
        return LeastSeconds(float(whole @ each), slowest, sends, self.micro_batches, self.chunks)


def pipelines(
    task: Task, axes: Axes, unequal: bool = False, shapes: Sequence[Shape] = ()
) -> Iterator[Pipeline]:
    """Every pipeline of a task; `axes` are the values that a stage's fields may have.

    A stage has N / p GPUs. If p does not divide N, or if they may be `unequal`, each whole stage
    has any number of GPUs. Without `shapes` stages are whole, under the schedule of the axes.
    """
    meshes = list(_meshes(task, axes["pp"], unequal))
    # Divisors of all GPUs do not divide every stage.
    any_tp = axes["tp"] == default_axes(task)["tp"] and any(len(sizes) > 1 for _, sizes in meshes)
    every_tp = range(1, largest_tensor_size(task) + 1) if any_tp else axes["tp"]
    fixed = {name: axes[name][0] for name in FIXED_FIELDS}
    shapes = shapes or [Shape(*(fixed[name] for name in Shape._fields))]
    overlaps = sorted({shape.overlap_ep for shape in shapes})
    for overlap, *values in product(overlaps, *(axes[name] for name in VARIED_FIELDS)):
        shared = {**fixed, **dict(zip(VARIED_FIELDS, values, strict=True)), "overlap_ep": overlap}
        if overlap and shared["ep"] == 1:
            continue
        shared["overlap_tp"] *= shared["sequence_parallel"]
        degrees = {**axes, "tp": tuple(every_tp)}
        if shared["expert_dispatch"] == AUTO:
            dispatch = DERIVED["expert_dispatch"].compute(SimpleNamespace(**shared), task)
            shared["expert_dispatch"] = int(dispatch)
        rows = np.array(list(_strategies(task, degrees, shared["cp"], meshes)), np.int64)
        if rows.size:
            own = [shape for shape in shapes if shape.overlap_ep == overlap]
            yield from _StrategyTable(task, axes, shared, rows).pipelines(meshes, own)


Mesh = tuple[int, tuple[int, ...]]
"""A number of stages, and the GPUs that each of them may have."""


def _meshes(task: Task, pp: tuple[int, ...], unequal: bool) -> Iterator[Mesh]:
    for stages in pp:
        most = min(task.model.layers, task.gpus) if "pp" in task.software.splits else 1
        if stages > most:
            continue
        if task.gpus % stages or (unequal and stages > 1):
            yield stages, tuple(range(1, task.gpus - stages + 2))
        else:
            yield stages, (task.gpus // stages,)


def _strategies(
    task: Task, axes: Axes, cp: int, meshes: list[Mesh]
) -> Iterator[tuple[int, int, int, int, int]]:
    """Mesh, micro-batches, tp, dp and sequences of a micro-batch on a rank."""
    for at, (_, sizes) in enumerate(meshes):
        for size, tp in product(sizes, axes["tp"]):
            dp, rest = divmod(size, tp * cp)
            if rest or not dp or task.global_batch % dp:
                continue
            if axes["dp"] != (AUTO,) and dp not in axes["dp"]:
                continue
            for share in axes["micro_batch"]:
                m, rest = divmod(task.global_batch, dp * share)
                if not rest:
                    yield at, m, tp, dp, share


def _by_effective_zero(legal: Mask, pp: int) -> Mask:
    """Legal combinations by the ZeRO stage that they have: in a pipeline 2 is 1
    (data_parallel.zero_in_pipeline)."""
    out = np.zeros_like(legal)
    really = zero_in_pipeline(np.arange(ZERO_STAGES), np.full(ZERO_STAGES, pp))
    for stated, zero in enumerate(really.tolist()):
        out[:, :, zero] |= legal[:, :, stated]
    return out


@dataclass(frozen=True)
class _StrategyTable:
    """Strategies of pipelines that share their other fields."""

    task: Task
    axes: Axes
    shared: dict[str, int]
    rows: Column
    """Of _strategies [s, 5]."""

    def pipelines(self, meshes: list[Mesh], shapes: Sequence[Shape]) -> Iterator[Pipeline]:
        """One pipeline for every number of stages and of micro-batches, and every shape."""
        task, shared, modes = self.task, self.shared, tuple(sorted(self.axes["recompute"]))
        legal = self._legal(modes)
        used = legal.any(axis=(0, 2))
        modes, legal = tuple(np.array(modes)[used].tolist()), legal[:, used]
        if not modes:
            return
        recipe = RECIPES[int(shared["precision"])]
        layers = LayerTable.of(task, recipe, self._plans(0, modes), len(modes))
        keys, which = np.unique(self.rows[:, :2], axis=0, return_inverse=True)
        for i, (at, m) in enumerate(keys.tolist()):
            pp, mine = meshes[at][0], (which.ravel() == i) & legal.any(axis=(1, 2))
            equal = len(meshes[at][1]) == 1
            fit = [s for s in shapes if s.fits(task, pp, m) and (equal or s.virtual_stages == 1)]
            if not mine.any() or not fit:
                continue
            tp, dp = self.rows[mine][:, 2:4].T
            own = _by_effective_zero(legal[mine], pp)
            stated = {1: 2} if pp > 1 and 1 not in self.axes["zero"] else {}
            layer_table = layers.take(mine)
            for shape in fit:
                fields = {**shared, **shape._asdict()}
                yield Pipeline(task, pp, m, fields, tp, dp, modes, own, stated, layer_table)

    def _legal(self, modes: tuple[int, ...]) -> Mask:
        """Combinations of strategy, recompute and ZeRO stage that rules and axes allow."""
        out = np.zeros((len(self.rows), len(modes), ZERO_STAGES), bool)
        for zero in self.axes["zero"]:
            ok = legal_runs(self._plans(zero, modes), self.task)
            out[:, :, zero] = ok.reshape(-1, len(modes))
        if self.shared["overlap_ep"]:
            out[:, np.array(modes) == Recompute.FULL] = False
        return out

    def _plans(self, zero: int, modes: tuple[int, ...]) -> Plan:
        """Plans whose layers all have one strategy [s r]; what some have no use for is off."""
        n = len(self.rows)
        columns = {name: np.full(n * len(modes), value) for name, value in self.shared.items()}
        _, _, tp, dp, share = np.repeat(self.rows, len(modes), axis=0).T
        columns |= {"tp": tp, "dp": dp, "micro_batch": share, "zero": np.full_like(tp, zero)}
        return from_columns(as_run({**columns, "recompute": np.tile(modes, n)}))
