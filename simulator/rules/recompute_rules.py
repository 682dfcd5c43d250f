"""Rules of what runs again in the backward pass."""

from __future__ import annotations

from ..hardware.software import OP_LIST
from ..plan.codes import Recompute
from ..task import Task
from .rule import Rule


def _lists_operations_of_experts(task: Task) -> bool:
    """Whether selective recompute would be of a list of operations, in a model of experts."""
    listed = OP_LIST in task.software.selective
    return listed and any(kind.experts for kind in task.model.kinds)


RECOMPUTE_RULES = (
    Rule(
        "listed-layers-recompute-whole",
        ("recompute",),
        lambda p, t: (p.recompute != Recompute.SELECTIVE) | bool(t.model.kinds),
        lambda p, t: f"recompute=selective needs attention layers; {t.model.name} is a layer list",
    ),
    Rule(
        "software-recomputes-modules",
        ("recompute",),
        lambda p, t: (p.recompute != Recompute.SELECTIVE) | bool(t.software.selective),
        lambda p, t: (
            f"software {t.software.name} has no modules that recompute=selective runs again; "
            "nearest: recompute=full"
        ),
    ),
    Rule(
        "software-recomputes-experts",
        ("recompute",),
        lambda p, t: (p.recompute != Recompute.SELECTIVE) | (not _lists_operations_of_experts(t)),
        lambda p, t: (
            f"recompute=selective of software {t.software.name} keeps a list of operations, which "
            f"is not modelled for experts like those of {t.model.name}; nearest: recompute=full"
        ),
    ),
)
