"""Exporters: a framework's own rules, and a function from a task and a plan to text.

An exporter writes every field of a plan, or refuses by name what its framework cannot run: what
is implied by a framework (it always overlaps, it always shards) is a rule too. So a plan that is
written and read again is the same plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd
from typing import Any

import numpy as np

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.printable import one_line
from plan3d.simulator.plan.fields import BY_RUN, ON_HOST, PLAIN, POLICY
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.plan.values import spell
from plan3d.simulator.rules.rule import Rule
from plan3d.simulator.rules.validity import violations
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

from .launch_file import UnreadSetting
from .shape import EXPERTS, ROTARY_POSITIONS, blocks, features
from .tables import Row, Table

Writer = Callable[[Task, Plan, Sequence[UnreadSetting]], str]
"""(task, plan, what an imported file also said) -> the file."""


@dataclass(frozen=True, slots=True)
class Form:
    """One file format of one version of a framework."""

    version: str
    title: str
    """What is written, and for what."""
    rules: tuple[Rule, ...]
    """What this version refuses, beyond the rules that every framework has."""
    write: Writer
    """The file of a task and a resolved plan that breaks no rule."""
    keeps_unread: bool = True
    """It can hold what an imported file also said."""
    table: Table = ()
    """What it writes, row by row."""


@dataclass(frozen=True, slots=True)
class Exporter:
    """One framework and the formats it reads."""

    name: str
    forms: tuple[Form, ...]
    """By version; the first is the default."""
    software: str = ""
    """The software profile of its training stack; empty where none is shipped."""
    search_values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Values by plan field that a search of its plans tries instead of the usual ones."""

    def form(self, version: str = "") -> Form:
        """The format of a version: '0.3' finds 0.3.0. Raises InputError for an unknown one."""
        if not version:
            return self.forms[0]
        for form in self.forms:
            if form.version == version or form.version.startswith(f"{version}."):
                return form
        known = ", ".join(form.version for form in self.forms)
        raise InputError(f"--version {version}: files are written for {self.name} {known}")


def launch_text(task: Task, plan: Plan, form: Form, unread: Sequence[UnreadSetting] = ()) -> str:
    """The file of one plan, with what an imported one also said. Raises InputError with every rule
    that it breaks."""
    plan = resolve(plan, task.gpus).take(0)
    refused = refusals(task, plan, form)
    if refused:
        raise InputError(f"{form.title} cannot run {plan}: {'; '.join(refused)}")
    return form.write(task, with_stage_layers(plan), unread)


def mixed_strategies(plan: Plan) -> str:
    """What differs between the runs of one plan; '' where they only divide the layers."""
    if not plan.segments:
        return ""
    runs = plan.segments
    for name in BY_RUN:
        values = sorted({int(value) for value in getattr(runs, name)[runs.present]})
        if len(values) > 1:
            texts = " and ".join(value_text(name, value) for value in values)
            return f"layers with {texts} in one plan"
    return ""


def with_stage_layers(plan: Plan) -> Plan:
    """A plan whose runs all have one strategy, as layers of its stages."""
    if not plan.segments:
        return plan
    runs = plan.segments
    counts = tuple(sum(run["layers"] for run in stage) for stage in runs.stages())
    own = {name: int(getattr(runs, name)[0, 0]) for name in BY_RUN}
    return replace(plan, segments=None, layers_per_stage=counts, **own)


RARELY_SUPPORTED = ("offload_parameters", "nvme")
"""Fields of a policy that most frameworks lack; the others have rules about them."""
FRAMEWORK_SPECIFIC = (
    "bucket_parameters",
    "shard",
    *(name for name in ON_HOST if name not in RARELY_SUPPORTED),
)
"""Fields that few plans use and that each framework has in its own way."""
SYNCHRONIZATION_DEFAULTS = {
    n: usual
    for n, usual in PLAIN.items()
    if n in POLICY and n not in (*FRAMEWORK_SPECIFIC, *RARELY_SUPPORTED)
}
"""The others, which are about how replicas are kept together, and what every framework does."""


def _synchronizes_every_step(p: Any, task: Task) -> Any:
    out: Any = True
    for name, usual in SYNCHRONIZATION_DEFAULTS.items():
        out = out & (getattr(p, name) == usual)
    return out


def _changed_synchronization(p: Plan) -> list[str]:
    """The fields of WAYS that do not keep their defaults."""
    own = {name: getattr(p, name) for name in SYNCHRONIZATION_DEFAULTS}
    return [
        value_text(name, value)
        for name, value in own.items()
        if value != SYNCHRONIZATION_DEFAULTS[name]
    ]


ALL_REDUCED_GRADIENTS = Rule(
    "all-reduced-gradients",
    tuple(SYNCHRONIZATION_DEFAULTS),
    _synchronizes_every_step,
    lambda p, t: (
        "launch files are written for gradients that are all-reduced every step in full, without "
        f"{' '.join(_changed_synchronization(p))}"
    ),
)
"""The rule of every framework about how replicas are kept together."""


def refusals(task: Task, plan: Plan, form: Form) -> list[str]:
    """Why a framework cannot run a resolved plan, a sentence a rule."""
    if task.adapters:
        return ["its launch files train all weights, not adapters (trains-all-weights)"]
    if task.documents:
        return ["what packs documents into sequences is not written (whole-sequences)"]
    uneven = mixed_strategies(plan)
    if uneven:
        return [f"{uneven} (uniform-strategy)"]
    plan = with_stage_layers(plan)
    general = violations(plan, task)
    if general:
        return [text for _, text in general]
    return [
        f"{rule.message(plan, task)} ({rule.name})"
        for rule in format_rules(form)
        if not np.all(rule.ok(plan, task))
    ]


def allowed_values(name: str, field: str, values: Iterable[int], why: str) -> Rule:
    """The rule that a field has one of these values; the last of them is the nearest."""
    allowed = tuple(int(value) for value in values)

    def ok(p: Any, task: Task) -> Any:
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


ONE_DIMENSIONAL = allowed_values(
    "one-dimensional-tensor-parallelism",
    "tp_grid",
    (0,),
    "launch files are written for frameworks that split matrices by rows or columns only",
)
"""The rule of every framework about tensor ranks."""


DEFAULT_VALUE_RULES = {
    name: allowed_values(
        f"written-{name.replace('_', '-')}", name, (usual,), "launch files do not say it"
    )
    for name, usual in PLAIN.items()
    if name in RARELY_SUPPORTED or name not in (*POLICY, *FRAMEWORK_SPECIFIC)
}
"""The rules of frameworks of which no row, nor a rule of their own, says a field that few know of:
it keeps its default."""


def format_rules(form: Form) -> tuple[Rule, ...]:
    """Everything that a version of a framework refuses."""
    known = {row.name for row in form.table if isinstance(row, Row)}
    known |= {name for rule in form.rules for name in rule.fields if name in RARELY_SUPPORTED}
    unwritten = (rule for name, rule in DEFAULT_VALUE_RULES.items() if name not in known)
    return (ALL_REDUCED_GRADIENTS, ONE_DIMENSIONAL, *unwritten, *form.rules)


def expressible_model(name: str, framework: str, known: Iterable[str]) -> Rule:
    """The rule that a model has no feature besides those that are written for a framework."""
    table = frozenset(known)

    def lacking(task: Task) -> list[str]:
        return [feature for feature in features(task.model) if feature not in table]

    return Rule(
        name,
        (),
        lambda p, t: not lacking(t),
        lambda p, t: (
            f"plan3d does not write {' or '.join(lacking(t))} of {t.model.name} for {framework}"
        ),
    )


def whole_key_heads(name: str, framework: str) -> Rule:
    """The rule that every tensor rank holds whole key/value heads of its own."""

    def counts(task: Task) -> set[int]:
        return {layer.attention.kv_heads for layer in blocks(task.model)}

    def ok(p: Any, task: Task) -> Any:
        out: Any = p.tp > 0
        for heads in counts(task):
            out = out & (heads % p.tp == 0)
        return out

    return Rule(
        name,
        ("tp",),
        ok,
        lambda p, t: (
            f"tp={p.tp}: {framework} does not copy key/value heads to several ranks; nearest: "
            f"tp={min(gcd(heads, int(p.tp)) for heads in counts(t))}"
        ),
    )


def field_text(plan: Plan, field: str) -> str:
    """One field of one plan as people write it."""
    return value_text(field, int(getattr(plan, field)))


def value_text(field: str, code: int) -> str:
    """FIELD=VALUE, truth as 1 and 0."""
    value = spell(field, code)
    return f"{field}={int(value) if isinstance(value, bool) else value}"


def heading(task: Task, plan: Plan, title: str) -> list[str]:
    """The comment at the top of a file, each part on one line: what it is for, and its plan."""
    cluster = task.cluster
    model, machine = one_line(task.model.name), one_line(cluster.accelerator.name)
    return [
        f"# {title}, written by plan3d",
        f"# {model} on {task.gpus} x {machine} ({cluster.nodes} x {cluster.gpus_per_node})",
        f"# plan: {plan}",
    ]


def unwritten_settings(model: Model, positions: str, router: str = "") -> list[str]:
    """A comment that names the settings of a model that plan3d does not know, as they change
    neither time nor memory: those of its rotary positions and of its router."""
    known = features(model)
    left_out = [positions] if ROTARY_POSITIONS in known else []
    left_out += [router] if EXPERTS in known and router else []
    if not left_out:
        return []
    return ["# Left out, to be set as the model was published (they change no time): "
            f"{'; '.join(left_out)}"]  # fmt: skip
