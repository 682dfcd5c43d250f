"""The rule of losses: which of them a training stack has."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..hardware.software import Software
from ..plan.codes import Loss, names_of
from ..task import Task
from ..workload.model import Network
from .rule import Rule

_NAMES = {code: name for name, code in names_of(Loss).items()}


def supported_losses(software: Software) -> list[Loss]:
    """The losses of a stack, its own first."""
    has = {
        Loss.USUAL: True,
        Loss.UNFUSED: software.unfused_logit_bytes > 0,
        Loss.FUSED: software.fused_logit_bytes > 0,
        Loss.CHUNKED: software.loss_pieces > 0,
        Loss.FUSED_LINEAR: software.fused_linear_loss,
    }
    return [loss for loss, there in has.items() if there]


def _computed(p: Any, task: Task) -> Any:
    known = [Loss.USUAL] if isinstance(task.model, Network) else supported_losses(task.software)
    return np.isin(p.loss, [int(loss) for loss in known])


LOSS_RULES: tuple[Rule, ...] = (
    Rule(
        "loss-of-stack",
        ("loss",),
        _computed,
        lambda p, t: (
            f"loss={_NAMES[int(p.loss)]}: {t.software.name} computes the loss of a language model "
            f"as {', '.join(_NAMES[int(loss)] for loss in supported_losses(t.software))}; "
            "nearest: loss=usual"
        ),
    ),
)
