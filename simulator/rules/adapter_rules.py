"""Rules of plans that train adapters beside frozen weights: what has no cost model is refused."""

from __future__ import annotations

from typing import Any

from ..hardware.precision import RECIPES
from ..operators.adapter_work import UNPACKED_BYTES
from ..pipeline.schedules import defers
from ..plan.codes import all_reduces
from ..plan.values import spell
from ..task import Task
from .rule import Rule


def _plain_experts(p: Any, task: Task) -> Any:
    routed = any(kind.experts for kind in task.model.kinds)
    return (task.adapters is None) | (not routed) | ((p.ep == 1) & (p.etp == p.tp))


def _whole_backward(p: Any, task: Task) -> Any:
    return (task.adapters is None) | (defers(p.schedule) == 0)


def _narrow_weights(p: Any, task: Task) -> Any:
    """Frozen weights have 16 bits or fewer, and so have those that they are multiplied with."""
    out: Any = task.adapters is None
    for code, recipe in RECIPES.items():
        if recipe.weight <= UNPACKED_BYTES:
            out = out | (p.precision == code)
    return out


def _no_grid(p: Any, task: Task) -> Any:
    return (task.adapters is None) | (p.tp_grid == 0)


def _plain_sync(p: Any, task: Task) -> Any:
    plain = all_reduces(p.sync) & (p.sync_period == 1) & (p.compression == 0)
    return (task.adapters is None) | plain


def _refused(what: str, nearest: str) -> str:
    return f"{what} is not modelled with adapters beside frozen weights; nearest: {nearest}"


ADAPTER_RULES: tuple[Rule, ...] = (
    Rule(
        "adapters-keep-experts-whole",
        ("ep", "etp", "tp"),
        _plain_experts,
        lambda p, t: _refused(f"ep={p.ep} etp={p.etp}", f"ep=1 etp={p.tp}"),
    ),
    Rule(
        "adapters-schedule",
        ("schedule",),
        _whole_backward,
        lambda p, t: _refused(f"schedule={spell('schedule', p.schedule)}", "1f1b"),
    ),
    Rule(
        "adapters-in-sixteen-bits",
        ("precision",),
        _narrow_weights,
        lambda p, t: _refused(f"precision={spell('precision', p.precision)}", "bf16"),
    ),
    Rule(
        "adapters-grid",
        ("tp_grid",),
        _no_grid,
        lambda p, t: _refused(f"tp_grid={spell('tp_grid', p.tp_grid)}", "1d"),
    ),
    Rule(
        "adapters-sync",
        ("sync", "sync_period", "compression"),
        _plain_sync,
        lambda p, t: _refused(
            f"sync={spell('sync', p.sync)} sync_period={p.sync_period} "
            f"compression={spell('compression', p.compression)}",
            "gradients that are all-reduced every step in full",
        ),
    ),
)
"""Rules of plans of adapters."""
