"""Rules of what runs again in the backward pass."""

from __future__ import annotations

from ..hardware.software import OP_LIST
from ..operators.rerun import rerun_modules
from ..plan.codes import Recompute
from ..task import Task
from .rule import Rule


def _lists_operations_of_experts(task: Task) -> bool:
    """Whether selective recompute would be of a list of operations, in a model of experts."""
    listed = OP_LIST in task.software.selective
    return listed and any(kind.experts for kind in task.model.kinds)


def recomputed_modules(task: Task) -> tuple[str, ...]:
    """What selective recompute runs again of some layer of the task's model."""
    ops, inside = task.software.selective, task.software.norm_in_linear
    found = {op for block in task.model.kinds for op in rerun_modules(block, ops, inside)}
    return tuple(op for op in ops if op in found)


def _nothing_again(task: Task) -> str:
    """Why selective recompute runs nothing again, and what else there is."""
    software, names = task.software.name, ", ".join(task.software.selective)
    if not names:
        return (
            f"software {software} has no modules that recompute=selective runs again; nearest: "
            "recompute=full"
        )
    inside = " (its norms are inside linear layers)" * task.software.norm_in_linear
    return (
        f"recompute=selective of software {software} runs {names} again, of which "
        f"{task.model.name} has none{inside}; nearest: recompute=full, or none"
    )


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
        lambda p, t: (
            (p.recompute != Recompute.SELECTIVE) | (not t.model.kinds) | bool(recomputed_modules(t))
        ),
        lambda p, t: _nothing_again(t),
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
