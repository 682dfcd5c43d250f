"""Rules of the formats of gradients, master weights and moments, by framework.

A format that a framework does not have is refused by its name, and formats that contradict one
another as the framework itself refuses them.
Source: Megatron-LM 0075637, core/optimizer/optimizer_config.py (__post_init__) and
training/arguments.py (validate_args); DeepSpeed 0.19, runtime/config.py and
runtime/precision_config.py; torchtitan 0.2.2, config/job_config.py (mixed_precision_reduce).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..base.arrays import is_among
from ..hardware.precision import RECIPES, Optimizer
from ..hardware.software import Software
from ..plan.field_values import StateFormat
from ..plan.fields import spell
from ..plan.plan import Plan
from ..plan.synchronisation import all_reduces
from ..task import Task
from .rule import Rule

GRADIENT_FIELDS = ("main_grads_dtype", "grad_reduce_dtype")
OPTIMIZER_FIELDS = ("main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
STATE_FIELDS = ("precision_aware", *GRADIENT_FIELDS, *OPTIMIZER_FIELDS)
"""Fields of a plan that are formats of state, and the optimizer that has them."""
_FP32, _BF16, _FP16, _FP8 = StateFormat.FP32, StateFormat.BF16, StateFormat.FP16, StateFormat.FP8


class StateFormats(NamedTuple):
    """The formats of one framework by field, besides the usual ones."""

    framework: str
    """As people call it."""
    formats: dict[str, tuple[StateFormat, ...]]
    """The nearest first."""


_MOMENTS = (_FP32, _BF16, _FP16, _FP8)
FRAMEWORKS = {
    "megatron": StateFormats(
        "Megatron-LM",
        {
            "main_grads_dtype": (_BF16, _FP32),
            "grad_reduce_dtype": (_BF16,),
            "main_params_dtype": (_FP16, _FP32),
            "exp_avg_dtype": _MOMENTS,
            "exp_avg_sq_dtype": _MOMENTS,
        },
    ),
    "deepspeed": StateFormats(
        "DeepSpeed",
        {
            **dict.fromkeys(GRADIENT_FIELDS, (_BF16, _FP32)),
            **dict.fromkeys(OPTIMIZER_FIELDS, (_BF16,)),
        },
    ),
    "torchtitan": StateFormats("torchtitan", {}),
    "nanotron": StateFormats("nanotron", {}),
    "accelerate": StateFormats("Accelerate", {}),
    "": StateFormats("PyTorch (MixedPrecision)", {"grad_reduce_dtype": (_BF16, _FP32)}),
}
"""By the framework of a stack; others have the usual formats alone."""


def formats_of(software: Software, field: str) -> tuple[StateFormat, ...]:
    """The formats that a field may have in a stack, besides the usual one; the nearest first."""
    known = FRAMEWORKS.get(software.framework)
    return known.formats.get(field, ()) if known else ()


def _formats_exist(p: Any, task: Task) -> Any:
    out: Any = True
    for name in (*GRADIENT_FIELDS, *OPTIMIZER_FIELDS):
        allowed = [int(code) for code in (StateFormat.USUAL, *formats_of(task.software, name))]
        out = out & is_among(getattr(p, name), allowed)
    aware = p.precision_aware == 0
    return out & (aware | (task.software.framework == "megatron"))


def _missing_format(p: Plan, task: Task) -> str:
    software = task.software
    known = FRAMEWORKS.get(software.framework)
    who = known.framework if known else software.framework
    for name in (*GRADIENT_FIELDS, *OPTIMIZER_FIELDS):
        code, allowed = int(getattr(p, name)), formats_of(software, name)
        if code not in (StateFormat.USUAL, *allowed):
            usual = code == StateFormat.FP32 or not allowed
            near = spell(name, int(StateFormat.USUAL if usual else allowed[0]))
            has = ", ".join(spell(name, int(one)) for one in (StateFormat.USUAL, *allowed))
            return f"{name}={spell(name, code)}: {who} has {has}; nearest: {name}={near}"
    return (
        f"precision_aware=1 is an optimizer of Megatron-LM, not of {who}; nearest: "
        "precision_aware=0"
    )


_WITH_MASTERS = [
    code
    for code, one in RECIPES.items()
    if (one.weight, one.gradient, one.master, one.moments) == (2, 4, 4, (4, 4))
]
"""Recipes of 16-bit weights with fp32 masters, moments and gradients, which formats can narrow."""


def _states_formats(p: Any) -> Any:
    out: Any = np.asarray(p.precision_aware) > 0
    for name in (*GRADIENT_FIELDS, *OPTIMIZER_FIELDS):
        out = out | (getattr(p, name) > 0)
    return out


def _narrow(p: Any, *names: str) -> Any:
    """Whether one of some fields states another format than fp32."""
    out: Any = np.False_
    for name in names:
        out = out | (np.asarray(getattr(p, name)) > StateFormat.FP32)
    return out


def _stated(p: Plan, names: tuple[str, ...] = STATE_FIELDS) -> str:
    """FIELD=VALUE of the fields of a plan that are not at their defaults."""
    values = ((name, int(getattr(p, name))) for name in names)
    return " ".join(
        f"{name}={int(value) if name == STATE_FIELDS[0] else spell(name, value)}"
        for name, value in values
        if value
    )


FORMAT_RULES: tuple[Rule, ...] = (
    Rule("state-formats-of-framework", STATE_FIELDS, _formats_exist, _missing_format),
    Rule(
        "state-formats-of-recipe",
        (*STATE_FIELDS, "precision", "sync", "sync_period", "compression"),
        lambda p, t: (
            ~_states_formats(p)
            | (
                is_among(p.precision, _WITH_MASTERS)
                & (all_reduces(p.sync) & (p.sync_period == 1) & (p.compression == 0))
            )
        ),
        lambda p, t: (
            f"{_stated(p)}: formats of state go with a precision of fp32 masters "
            f"({', '.join(RECIPES[code].name for code in _WITH_MASTERS)}) and gradients that are "
            f"all-reduced in full, here precision={RECIPES[int(p.precision)].name} "
            f"sync={spell('sync', int(p.sync))}; nearest: precision=bf16 sync=all-reduce"
        ),
    ),
    Rule(
        "state-formats-of-adam",
        ("precision_aware", *OPTIMIZER_FIELDS, "optimizer"),
        lambda p, t: (
            (p.optimizer == Optimizer.ADAM)
            | ((p.precision_aware == 0) & ~_narrow(p, *OPTIMIZER_FIELDS))
        ),
        lambda p, t: (
            f"{_stated(p, ('precision_aware', *OPTIMIZER_FIELDS))}: formats of master "
            f"weights and moments are those of Adam, optimizer={spell('optimizer', p.optimizer)} "
            "has its own; nearest: optimizer=adam"
        ),
    ),
    Rule(
        "precision-aware-formats",
        ("precision_aware", "main_grads_dtype", *OPTIMIZER_FIELDS),
        lambda p, t: (
            (t.software.framework != "megatron")
            | (p.precision_aware > 0)
            | ~_narrow(p, "main_grads_dtype", *OPTIMIZER_FIELDS)
        ),
        lambda p, t: (
            f"{_stated(p, ('main_grads_dtype', *OPTIMIZER_FIELDS))}: Megatron-LM keeps these in "
            "fp32 unless its optimizer is precision-aware; nearest: precision_aware=1"
        ),
    ),
    Rule(
        "precision-aware-sharding",
        ("precision_aware", "zero", "offload_optimizer"),
        lambda p, t: (p.precision_aware == 0) | ((p.zero == 1) & (p.offload_optimizer == 0)),
        lambda p, t: (
            "precision_aware=1 is a form of the distributed optimizer; here "
            f"zero={p.zero} offload_optimizer={p.offload_optimizer}, where it is not modelled; "
            "nearest: zero=1 offload_optimizer=0"
        ),
    ),
    Rule(
        "sixteen-bit-masters",
        (*OPTIMIZER_FIELDS, "main_grads_dtype", "zero"),
        lambda p, t: (
            (t.software.framework != "deepspeed")
            | ~_narrow(p, *OPTIMIZER_FIELDS)
            | (
                _narrow(p, "main_params_dtype")
                & (p.main_grads_dtype != StateFormat.FP32)
                & (_narrow(p, "exp_avg_dtype") == _narrow(p, "exp_avg_sq_dtype"))
                & (p.zero > 0)
            )
        ),
        lambda p, t: (
            f"{_stated(p, (*OPTIMIZER_FIELDS, 'main_grads_dtype'))} zero={p.zero}: DeepSpeed has "
            "bf16 moments, both of them, with bf16 master weights and gradients under ZeRO only; "
            "nearest: main_params_dtype=bf16 exp_avg_dtype=bf16 exp_avg_sq_dtype=bf16 zero=1"
        ),
    ),
)
"""Rules of STATE_FIELDS."""
