"""Pipeline: its stages, its micro-batches, what all of its layers share and what they may choose.

Legend: p stages, m micro-batches; arrays are [s] by strategy (tp, dp, micro-batch), [r] by mode of
recompute, [z] by ZeRO stage, [k] by layer kind or [stage].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from plan3d.simulator.base.arrays import Column, Mask, Value
from plan3d.simulator.hardware.precision import RECIPES, Recipe
from plan3d.simulator.pipeline import schedules
from plan3d.simulator.pipeline.schedule import Sizes
from plan3d.simulator.step.layer_run_stages import hop_seconds
from plan3d.simulator.task import Task

from .ideal_ranks import even_cut, least_counts, whole_model
from .layer_table import LayerTable
from .shapes import one_kind

OWN = ("tp", "dp", "micro_batch", "zero", "recompute")
"""Fields of a plan that the layers of a stage choose."""


@dataclass(frozen=True)
class LeastSeconds:
    """Seconds that no plan of a pipeline beats, its layers each under their best strategy."""

    alone: float
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
        return (m - 1 / v) * self.slowest + max(self.alone, self.slowest) / v + self.sends

    def longest_stage(self, step: float) -> float:
        """Seconds of a micro-batch that no stage exceeds in a plan whose step is that short."""
        m, v, left = self.micro_batches, self.chunks, step - self.sends
        return min((left - self.alone / v) / (m - 1 / v), left / m) if m * v > 1 else left


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
    stated: Mapping[int, int]
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
    def again(self) -> int:
        """Chunks of the slowest stage that a step takes besides one of every stage: m v - 1."""
        return self.micro_batches * self.chunks - 1

    @property
    def searched(self) -> bool:
        """Whether stages of their own are known: in chunks only where all layers are alike."""
        return self.chunks == 1 or one_kind(self.task)

    @property
    def equal(self) -> bool:
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
    def least_held(self) -> Value:
        """Least bytes of a layer's weights, gradients and optimizer state on a rank [s, k]."""
        allowed: Mask = np.any(self.legal, axis=1)
        least = np.where(allowed.T[:, :, None], self.layers.held, np.inf).min(axis=0)
        out: Value = (1 + self.task.software.allocator_slack) * least
        return out

    @cached_property
    def least(self) -> LeastSeconds:
        """The slowest stage does no less than the mean of all GPUs, than any layer, and than what
        some stage has (ideal_ranks); the sends are those of the smallest tensor."""
        task, seconds = self.task, self.layers.fastest
        cut = even_cut(task.model, self.pp)
        whole, each = whole_model(cut), seconds.min(axis=0)
        busy = whole @ (seconds * self.gpus[:, None]).min(axis=0) / task.gpus
        longest, some = each[list(task.model.order)].max(), (least_counts(cut) @ each).max()
        size = np.array(self.layers.boundary)
        sends = self.sends * float(hop_seconds(task, size, size))
        slowest = float(max(busy, longest, some))
        return LeastSeconds(float(whole @ each), slowest, sends, self.micro_batches, self.chunks)
