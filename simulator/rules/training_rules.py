"""Rules of training: number formats, optimizers, recompute, losses and adapters."""

from __future__ import annotations

from functools import cache
from typing import Any

from ..base.arrays import is_among
from ..base.errors import InputError
from ..hardware.accelerator import peak_flops
from ..hardware.precision import FP8, RECIPES, Optimizer
from ..hardware.software import OP_LIST, Software
from ..operators.adapter_work import UNPACKED_BYTES
from ..operators.layer_work import rerun_modules
from ..pipeline.schedules import defers, model_copies
from ..plan.field_values import Loss, Recompute, names_of
from ..plan.fields import spell
from ..plan.plan import Plan
from ..plan.synchronisation import all_reduces
from ..task import Task
from ..workload.model import Network
from .rule import Rule

_EIGHT_BIT_RECIPES = [code for code, one in RECIPES.items() if one.linear.width == FP8.width]
"""Recipes whose weights may be in 8 bits."""


_SCALED_RECIPES = [code for code, one in RECIPES.items() if one.is_scaled]
"""Recipes that scale operands."""


def _formats_are_supported(p: Any, task: Task) -> Any:
    return is_among(p.precision, supported_precisions(task))


def default_precision(task: Task) -> int:
    """The recipe of plans that name none: the first that the machine and the stack have."""
    return min(supported_precisions(task))


def supported_precisions(task: Task) -> tuple[int, ...]:
    """Precision recipes whose formats the accelerator computes in."""
    return _recipes_of(tuple(task.cluster.accelerator.peak), len(RECIPES))


@cache
def _recipes_of(formats: tuple[str, ...], known: int) -> tuple[int, ...]:
    """Codes of the recipes, of so many that are registered, that need no other formats."""
    return tuple(
        code
        for code, recipe in RECIPES.items()
        if code < known and all(form.peak in formats for form in recipe.formats)
    )


def _ends_are_wide(p: Any, task: Task) -> Any:
    """No end is in 16 bits, or layers of a transformer are, among those that are scaled."""
    ends = p.bf16_first_layers + p.bf16_last_layers
    blocks = not isinstance(task.model, Network)
    return (ends == 0) | (
        is_among(p.precision, _SCALED_RECIPES) & (ends <= task.model.layers) & blocks
    )


def _format_message(p: Plan, task: Task) -> str:
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
        _formats_are_supported,
        lambda p, t: _format_message(p, t),
    ),
    Rule(
        "scaled-parameters",
        ("fp8_params", "precision", "zero", "dp", "cp", "schedule"),
        lambda p, t: (
            (p.fp8_params == 0)
            | (
                is_among(p.precision, _EIGHT_BIT_RECIPES)
                & ((p.zero > 0) | (p.dp * p.cp * model_copies(p.schedule) == 1))
            )
        ),
        lambda p, t: (
            "fp8_params needs zero >= 1 over several data ranks, whose optimizer has the wide "
            "weights, and a precision of "
            f"8 bits ({', '.join(RECIPES[code].name for code in _EIGHT_BIT_RECIPES)}); "
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
            f"{', '.join(RECIPES[code].name for code in _SCALED_RECIPES)}; here {t.model.layers} "
            f"layers, precision={RECIPES[int(p.precision)].name}; nearest: bf16_first_layers=0 "
            "bf16_last_layers=0"
        ),
    ),
    Rule(
        "muon-whole-matrices",
        ("optimizer", "offload_optimizer"),
        lambda p, t: (
            (p.optimizer != Optimizer.MUON)
            | ((p.offload_optimizer == 0) & bool(t.model.kinds) & (t.adapters is None))
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
            if t.software.muon_stage >= 0
            else f"{t.software.name} has no Muon; nearest: optimizer=adam"
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


def recomputed_modules(task: Task) -> tuple[str, ...]:
    """What selective recompute runs again of some layer of the task's model."""
    ops, inside = task.software.selective, task.software.norm_in_linear
    found = {op for block in task.model.kinds for op in rerun_modules(block, ops, inside)}
    return tuple(op for op in ops if op in found)


def _recompute_message(task: Task) -> str:
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
        lambda p, t: _recompute_message(t),
    ),
    Rule(
        "software-recomputes-experts",
        ("recompute",),
        lambda p, t: (
            (p.recompute != Recompute.SELECTIVE)
            | (OP_LIST not in t.software.selective)
            | (not any(kind.experts for kind in t.model.kinds))
        ),
        lambda p, t: (
            f"recompute=selective of software {t.software.name} keeps a list of operations, which "
            f"is not modelled for experts like those of {t.model.name}; nearest: recompute=full"
        ),
    ),
)


_LOSS_NAMES = {code: name for name, code in names_of(Loss).items()}


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


def _loss_is_supported(p: Any, task: Task) -> Any:
    known = [Loss.USUAL] if isinstance(task.model, Network) else supported_losses(task.software)
    return is_among(p.loss, [int(loss) for loss in known])


LOSS_RULES: tuple[Rule, ...] = (
    Rule(
        "loss-of-stack",
        ("loss",),
        _loss_is_supported,
        lambda p, t: (
            f"loss={_LOSS_NAMES[int(p.loss)]}: {t.software.name} computes the loss of a language "
            "model as "
            f"{', '.join(_LOSS_NAMES[int(loss)] for loss in supported_losses(t.software))}; "
            "nearest: loss=usual"
        ),
    ),
)


def _experts_are_unsharded(p: Any, task: Task) -> Any:
    routed = any(kind.experts for kind in task.model.kinds)
    return (task.adapters is None) | (not routed) | ((p.ep == 1) & (p.etp == p.tp))


def _backward_is_one_pass(p: Any, task: Task) -> Any:
    return (task.adapters is None) | (defers(p.schedule) == 0)


def _weights_have_sixteen_bits(p: Any, task: Task) -> Any:
    """Frozen weights have 16 bits or fewer, and so have those that they are multiplied with."""
    out: Any = task.adapters is None
    for code, recipe in RECIPES.items():
        if recipe.weight <= UNPACKED_BYTES:
            out = out | (p.precision == code)
    return out


def _has_no_grid(p: Any, task: Task) -> Any:
    return (task.adapters is None) | (p.tp_grid == 0)


def _gradients_are_all_reduced(p: Any, task: Task) -> Any:
    plain = all_reduces(p.sync) & (p.sync_period == 1) & (p.compression == 0)
    return (task.adapters is None) | plain


def _adapter_message(what: str, nearest: str) -> str:
    return f"{what} is not modelled with adapters beside frozen weights; nearest: {nearest}"


ADAPTER_RULES: tuple[Rule, ...] = (
    Rule(
        "adapters-keep-experts-whole",
        ("ep", "etp", "tp"),
        _experts_are_unsharded,
        lambda p, t: _adapter_message(f"ep={p.ep} etp={p.etp}", f"ep=1 etp={p.tp}"),
    ),
    Rule(
        "adapters-schedule",
        ("schedule",),
        _backward_is_one_pass,
        lambda p, t: _adapter_message(f"schedule={spell('schedule', p.schedule)}", "1f1b"),
    ),
    Rule(
        "adapters-in-sixteen-bits",
        ("precision",),
        _weights_have_sixteen_bits,
        lambda p, t: _adapter_message(f"precision={spell('precision', p.precision)}", "bf16"),
    ),
    Rule(
        "adapters-grid",
        ("tp_grid",),
        _has_no_grid,
        lambda p, t: _adapter_message(f"tp_grid={spell('tp_grid', p.tp_grid)}", "1d"),
    ),
    Rule(
        "adapters-sync",
        ("sync", "sync_period", "compression"),
        _gradients_are_all_reduced,
        lambda p, t: _adapter_message(
            f"sync={spell('sync', p.sync)} sync_period={p.sync_period} "
            f"compression={spell('compression', p.compression)}",
            "gradients that are all-reduced every step in full",
        ),
    ),
)
"""Rules of plans of adapters."""
