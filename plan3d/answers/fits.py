"""Fine-tuning: does it fit on some GPUs, and with what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plan3d.search.whatif.what_fits import Fit, usual_precision, what_fits
from plan3d.simulator.task import Task
from plan3d.simulator.workload.adapters import Adapters


@dataclass(frozen=True, kw_only=True)
class FitsRequest:
    """A model that is to be fine-tuned."""

    task: Task
    adapters: Sequence[Adapters | None]
    """Which weights are trained; None for all of them."""
    precision: str | None = None
    """bf16 where it is None, fp16 on GPUs that have none; 16 bits alone where only that fits."""
    optimizer: str | None = None
    """Adam where it is None; in 8 bits where only that fits."""


@dataclass(frozen=True)
class FitsAnswer:
    """Each way to fine-tune, with and without recompute."""

    task: Task
    precision: str
    fits: Sequence[Fit]
    not_modelled: Sequence[str]
    """Why adapters are left out."""

    @property
    def fastest(self) -> Fit | None:
        """The fastest that fits."""
        able = (fit for fit in self.fits if fit.fits)
        return max(able, key=lambda fit: float(fit.costs.tokens_per_second), default=None)


def fine_tuning_fits(request: FitsRequest) -> FitsAnswer:
    """Say of every way to fine-tune whether it fits. InputError where none is modelled."""
    precision = request.precision or usual_precision(request.task)
    fits, left_out = what_fits(request.task, request.adapters, request.precision, request.optimizer)
    return FitsAnswer(request.task, precision, fits, left_out)
