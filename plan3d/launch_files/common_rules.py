"""Rules that frameworks share, and makers of rules: values, models and key/value heads.

A value that no framework writes, or that a framework has no setting for, is refused by name, never
dropped: a plan that is written and read again is the same plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd
from typing import Any

from plan3d.simulator.plan.fields import ON_HOST, OPT_IN, POLICY, spell
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.rules.rule import Rule
from plan3d.simulator.task import Task

from .shape import blocks, features

RARELY_SUPPORTED = ("offload_parameters", "nvme")
"""Fields of offloading that most frameworks lack; the others have rules about them."""
FRAMEWORK_SPECIFIC = (
    "bucket_parameters",
    "shard",
    *(name for name in ON_HOST if name not in RARELY_SUPPORTED),
)
"""Fields that every framework has settings or rules of its own for."""
SYNCHRONISATION_DEFAULTS = {
    name: default
    for name, default in OPT_IN.items()
    if name in POLICY and name not in (*FRAMEWORK_SPECIFIC, *RARELY_SUPPORTED)
}
"""Fields of the synchronisation of replicas, at the values that every framework has: gradients are
all-reduced in every step."""


def field_text(plan: Plan, field: str) -> str:
    """FIELD=VALUE of one plan."""
    return value_text(field, int(getattr(plan, field)))


def value_text(field: str, code: int) -> str:
    """FIELD=VALUE, truth as 1 and 0."""
    value = spell(field, code)
    return f"{field}={int(value) if isinstance(value, bool) else value}"


def one_of(name: str, field: str, values: Iterable[int], why: str) -> Rule:
    """The rule that a field has one of these values; the last of them is the nearest."""
    allowed = tuple(int(value) for value in values)

    def ok(p: Plan, task: Task) -> Any:
        out: Any = False
        for value in allowed:
            out = out | (getattr(p, field) == value)
        return out

    return Rule(
        name,
        (field,),
        ok,
        lambda p, t: f"{field_text(p, field)}: {why}; nearest: {value_text(field, allowed[-1])}",
    )


def expressible_model(name: str, framework: str, expressible: Iterable[str]) -> Rule:
    """The rule that a model has no features (shape.features) but those written for a framework."""
    written = frozenset(expressible)

    def missing(task: Task) -> list[str]:
        return [feature for feature in features(task.model) if feature not in written]

    return Rule(
        name,
        (),
        lambda p, t: not missing(t),
        lambda p, t: (
            f"plan3d does not write {' or '.join(missing(t))} of {t.model.name} for {framework}"
        ),
    )


def whole_key_heads(name: str, framework: str) -> Rule:
    """The rule that every tensor rank holds whole key/value heads of its own."""

    def head_counts(task: Task) -> set[int]:
        return {layer.attention.kv_heads for layer in blocks(task.model)}

    def ok(p: Plan, task: Task) -> Any:
        out: Any = p.tp > 0
        for heads in head_counts(task):
            out = out & (heads % p.tp == 0)
        return out

    return Rule(
        name,
        ("tp",),
        ok,
        lambda p, t: (
            f"tp={p.tp}: {framework} does not copy key/value heads to several ranks; nearest: "
            f"tp={min(gcd(heads, int(p.tp)) for heads in head_counts(t))}"
        ),
    )


def _has_default_synchronisation(p: Plan, task: Task) -> Any:
    out: Any = True
    for name, default in SYNCHRONISATION_DEFAULTS.items():
        out = out & (getattr(p, name) == default)
    return out


def _synchronisation_message(p: Plan, task: Task) -> str:
    other = " ".join(
        field_text(p, name)
        for name, default in SYNCHRONISATION_DEFAULTS.items()
        if getattr(p, name) != default
    )
    return (
        "launch files are written for gradients that are all-reduced every step in full, without "
        f"{other}"
    )


ALL_REDUCED_GRADIENTS = Rule(
    "all-reduced-gradients",
    tuple(SYNCHRONISATION_DEFAULTS),
    _has_default_synchronisation,
    _synchronisation_message,
)
"""The rule of every framework about the synchronisation of replicas."""
ONE_DIMENSIONAL = one_of(
    "one-dimensional-tensor-parallelism",
    "tp_grid",
    (0,),
    "launch files are written for frameworks that split matrices by rows or columns only",
)
"""The rule of every framework about tensor ranks."""
DEFAULT_VALUE_RULES = {
    name: one_of(
        f"written-{name.replace('_', '-')}", name, (default,), "launch files have no setting for it"
    )
    for name, default in OPT_IN.items()
    if name in RARELY_SUPPORTED or name not in (*POLICY, *FRAMEWORK_SPECIFIC)
}
"""By field, the rule of frameworks that have neither a setting nor a rule for it: it keeps its
default."""
