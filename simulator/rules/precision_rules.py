"""Rules of number formats, of what is kept in them, and of optimizers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.errors import InputError
from ..hardware.accelerator import peak_flops
from ..hardware.precision import RECIPES, Optimizer
from ..hardware.precision.number_formats import FP8
from ..plan.plan import Plan
from ..task import Task
from ..workload.model import Network
from .rule import Rule

_KEEP_SCALED = [code for code, one in RECIPES.items() if one.linear.width == FP8.width]
"""Recipes whose weights may be in 8 bits."""


_SCALE = [code for code, one in RECIPES.items() if one.scaled]
"""Recipes that scale operands."""


def _computes(p: Any, task: Task) -> Any:
    out: Any = False
    for code in supported_precisions(task):
        out = out | (p.precision == code)
    return out


def default_precision(task: Task) -> int:
    """The recipe of plans that name none: the first that the machine and the stack have."""
    return min(supported_precisions(task))


def supported_precisions(task: Task) -> list[int]:
    """Precision recipes whose formats the accelerator computes in."""
    peaks = task.cluster.accelerator.peak
    return [
        code
        for code, recipe in RECIPES.items()
        if all(form.peak in peaks for form in recipe.formats)
    ]


def _whole_layers(task: Task) -> bool:
    """Whether matrices of transformer layers are trained whole."""
    return not isinstance(task.model, Network) and task.adapters is None


def _ends_are_wide(p: Any, task: Task) -> Any:
    """No end is in 16 bits, or layers of a transformer are, among those that are scaled."""
    ends = p.bf16_first_layers + p.bf16_last_layers
    blocks = not isinstance(task.model, Network)
    return (ends == 0) | (np.isin(p.precision, _SCALE) & (ends <= task.model.layers) & blocks)


def _no_format(p: Plan, task: Task) -> str:
    for form in RECIPES[int(p.precision)].formats:
        try:
            peak_flops(task.cluster.accelerator, form.peak)
        except InputError as error:
            return f"{error} (precision)"
    raise AssertionError("the rule holds")


PRECISION_RULES: tuple[Rule, ...] = (
    Rule(
        "precision-on-accelerator",
        ("precision",),
        _computes,
        lambda p, t: _no_format(p, t),
    ),
    Rule(
        "scaled-parameters",
        ("fp8_params", "precision", "zero"),
        lambda p, t: (p.fp8_params == 0) | (np.isin(p.precision, _KEEP_SCALED) & (p.zero > 0)),
        lambda p, t: (
            "fp8_params needs zero >= 1, whose optimizer has the wide weights, and a precision of "
            f"8 bits ({', '.join(RECIPES[code].name for code in _KEEP_SCALED)}); "
            f"here precision={RECIPES[int(p.precision)].name} zero={p.zero}; nearest: fp8_params=0"
        ),
    ),
    Rule(
        "ends-in-16-bits",
        ("bf16_first_layers", "bf16_last_layers", "precision"),
        _ends_are_wide,
        lambda p, t: (
            f"bf16_first_layers={p.bf16_first_layers} bf16_last_layers={p.bf16_last_layers} are "
            "layers among scaled ones: at most all of a transformer's, and a precision of "
            f"{', '.join(RECIPES[code].name for code in _SCALE)}; here {t.model.layers} layers, "
            f"precision={RECIPES[int(p.precision)].name}; nearest: bf16_first_layers=0 "
            "bf16_last_layers=0"
        ),
    ),
    Rule(
        "muon-whole-matrices",
        ("optimizer", "offload_optimizer"),
        lambda p, t: (
            (p.optimizer != Optimizer.MUON) | ((p.offload_optimizer == 0) & _whole_layers(t))
        ),
        lambda p, t: (
            "optimizer=muon orthogonalises whole matrices of transformer layers: on the host "
            f"(offload_optimizer={p.offload_optimizer}), of a layer list or of adapters it is not "
            "modelled; nearest: offload_optimizer=0"
        ),
    ),
    Rule(
        "muon-sharding",
        ("optimizer", "zero"),
        lambda p, t: (p.optimizer != Optimizer.MUON) | (p.zero <= t.software.muon_stage),
        lambda p, t: (
            f"optimizer=muon with zero={p.zero}: {t.software.name} has Muon up to ZeRO "
            f"{t.software.muon_stage}, where gradients of whole matrices are on one rank; nearest: "
            f"zero={t.software.muon_stage}"
        ),
    ),
    Rule(
        "muon-exchanges",
        ("optimizer", "zero", "tp"),
        lambda p, t: (
            (p.optimizer != Optimizer.MUON)
            | (p.zero == 0)
            | (t.software.muon_stage < 3)
            | (p.tp == 1)
        ),
        lambda p, t: (
            f"optimizer=muon with zero={p.zero} tp={p.tp}: {t.software.name} exchanges matrices "
            "that are sharded in one way only; nearest: tp=1, or zero=0"
        ),
    ),
)
