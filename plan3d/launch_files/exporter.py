"""Exporters: the file formats of a framework, what they refuse, and the text of a plan.

An exporter writes every field of a plan, or refuses by name what its framework cannot run: what
is implied by a framework (it always overlaps, it always shards) is a rule too. So a plan that is
written and read again is the same plan.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.printable import one_line
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.fields import BY_RUN
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.rules.rule import Rule
from plan3d.simulator.rules.validity import violations
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model
from plan3d.simulator.workload.presets import preset_names
from plan3d.simulator.workload.settings import ModelSettings

from .common_rules import (
    ALL_REDUCED_GRADIENTS,
    DEFAULT_VALUE_RULES,
    ONE_DIMENSIONAL,
    RARELY_SUPPORTED,
    value_text,
)
from .launch_file import Launch, UnreadSetting
from .model_settings import unwritten
from .shape import EXPERTS, ROTARY_POSITIONS, features
from .tables import Row, Table

PROFILE = r"[a-z0-9][\w.-]*"
"""A name of a hardware profile, not the path of one."""
HEADING = re.compile(
    r"^# [^\n]*, written by plan3d\n"
    r"# (?P<model>[^\n]{1,200}) on (?P<gpus>[1-9]\d{0,6}) x [^\n]*"
    rf"\(\d+ x \d+(?:, (?P<cluster>{PROFILE}))?\)\n# plan: (?P<plan>[^\n]*)$",
    re.M,
)
"""The lines of heading()."""

Writer = Callable[[Task, Plan, Sequence[UnreadSetting]], str]
"""(task, plan, unread settings of an imported file) -> the file."""


@dataclass(frozen=True, slots=True)
class Form:
    """One file format of one version of a framework."""

    version: str
    title: str
    """Framework and version, for messages and for the top of the file."""
    rules: tuple[Rule, ...]
    """What this version refuses, beyond the rules that every framework has."""
    write: Writer
    """The file of a task and a resolved plan that breaks no rule."""
    keeps_unread: bool = True
    """It can hold the unread settings of an imported file."""
    table: Table = ()
    """Its settings."""
    model_settings: frozenset[str] | None = None
    """Settings of a model other than sizes that it holds (names of model_settings); None where it
    takes them from the model's own files."""
    recipe_of: Callable[[Model], str] = lambda model: ""
    """The framework's own recipe that states the whole of a model; '' where the file does."""

    @property
    def all_rules(self) -> tuple[Rule, ...]:
        """Everything that this version refuses."""
        covered = {row.name for row in self.table if isinstance(row, Row)}
        covered |= {name for rule in self.rules for name in rule.fields if name in RARELY_SUPPORTED}
        defaults = (rule for name, rule in DEFAULT_VALUE_RULES.items() if name not in covered)
        return (ALL_REDUCED_GRADIENTS, ONE_DIMENSIONAL, *defaults, *self.rules)


@dataclass(frozen=True, slots=True)
class Exporter:
    """One framework and the formats that are written for it."""

    name: str
    forms: tuple[Form, ...]
    """By version; the first is the default."""
    software: str = ""
    """The software profile of its training stack; empty where none is shipped."""
    search_values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Values by plan field that a search of its plans tries instead of the default ones."""

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
    """The file of one plan, with the unread settings of an imported one. Raises InputError with
    every rule that it breaks."""
    plan = resolve(plan, task.gpus).take(0)
    refused = refusals(task, plan, form)
    if refused:
        raise InputError(f"{form.title} cannot run {plan}: {'; '.join(refused)}")
    text = form.write(task, with_stage_layers(plan), unread)
    by_others = form.model_settings is None or form.recipe_of(task.model)
    absent = [] if by_others else unwritten(task.model, form.model_settings or frozenset())
    absent += task.model.left_out
    if not absent or text.startswith("{"):
        return text
    return f"{NOT_WRITTEN}, and part of {one_line(task.model.name)}: {'; '.join(absent)}\n{text}"


NOT_WRITTEN = "# Not in this file"
"""The beginning of the first line of a file that does not hold the whole model."""


def refusals(task: Task, plan: Plan, form: Form) -> list[str]:
    """Why a framework cannot run a resolved plan, a sentence a rule."""
    if task.adapters:
        return ["its launch files train all weights, not adapters (trains-all-weights)"]
    if task.documents:
        return ["packing of documents into sequences is not written (whole-sequences)"]
    mixed = mixed_strategies(plan)
    if mixed:
        return [f"{mixed} (uniform-strategy)"]
    plan = with_stage_layers(plan)
    general = violations(plan, task)
    if general:
        return [text for _, text in general]
    return [
        f"{rule.message(plan, task)} ({rule.name})"
        for rule in form.all_rules
        if not np.all(rule.ok(plan, task))
    ]


def mixed_strategies(plan: Plan) -> str:
    """A strategy that differs between the layer runs of one plan; '' where all have the same."""
    if not plan.segments:
        return ""
    runs = plan.segments
    for name in BY_RUN:
        values = sorted({int(value) for value in getattr(runs, name)[runs.is_run]})
        if len(values) > 1:
            texts = " and ".join(value_text(name, value) for value in values)
            return f"layers with {texts} in one plan"
    return ""


def with_stage_layers(plan: Plan) -> Plan:
    """A plan whose layer runs all have one strategy, as layers of its stages."""
    if not plan.segments:
        return plan
    runs = plan.segments
    counts = tuple(sum(run["layers"] for run in stage) for stage in runs.stages())
    strategy = {name: int(getattr(runs, name)[0, 0]) for name in BY_RUN}
    return replace(plan, segments=None, layers_per_stage=counts, **strategy)


def heading(task: Task, plan: Plan, title: str) -> list[str]:
    """The comment at the top of a file: title, model and machine, plan."""
    cluster = task.cluster
    model, machine = one_line(task.model.name), one_line(cluster.accelerator.name)
    profile = f", {cluster.name}" if re.fullmatch(PROFILE, cluster.name) else ""
    sizes = f"{cluster.nodes} x {cluster.gpus_per_node}{profile}"
    return [
        f"# {title}, written by plan3d",
        f"# {model} on {task.gpus} x {machine} ({sizes})",
        f"# plan: {plan}",
    ]


def heading_model(text: str) -> Model | None:
    """The preset that the comment at the top of a file of plan3d names."""
    found = HEADING.search(text)
    return Model.preset(found["model"]) if found and found["model"] in preset_names() else None


def read_heading(launch: Launch, text: str) -> None:
    """Add what the comment at the top of a file of plan3d says: the GPUs, the cluster, the name of
    the model, and how the layers of its stages were stated."""
    found = HEADING.search(text)
    if not found:
        return
    launch.launcher_gpus = launch.launcher_gpus or int(found["gpus"])
    launch.cluster = found["cluster"] or ""
    if launch.model:
        launch.model = replace(launch.model, name=found["model"])
    with suppress(InputError):
        launch.stated_plan = Plan.parse(found["plan"])


def unwritten_settings(
    model: Model, base: str, scaling: str, router: str = "", balancing: str = ""
) -> list[str]:
    """A comment that names the settings of rotary positions and of the router that the model does
    not state, and how experts are balanced: they change neither time nor memory."""
    present, settings = features(model), []
    stated = model.settings != ModelSettings()
    if ROTARY_POSITIONS in present:
        names = [] if model.rotary_base else [f"{base} (10000 unless set)"]
        settings.append(", ".join(filter(None, [*names, "" if stated else scaling])))
    if EXPERTS in present:
        settings.append(balancing if stated else router)
    left_out = "; ".join(filter(None, settings))
    reason = "to be set as the model was published (they change no time)"
    return [f"# Left out, {reason}: {left_out}"] if left_out else []


PROCESSES = "with PROCESSES={}"
"""How torchrun is told what the last node starts."""


def processes_by_node(cluster: Cluster) -> tuple[int, int, int]:
    """Nodes, processes that each starts, and those of the last one, which may not be full."""
    each = min(cluster.gpus, cluster.gpus_per_node)
    return cluster.nodes, each, cluster.gpus - (cluster.nodes - 1) * each


def torchrun(cluster: Cluster) -> str:
    """torchrun and its sizes; where the last node is not full, the processes of a node are those of
    the variable PROCESSES."""
    nodes, each, last = processes_by_node(cluster)
    count = str(each) if last == each else f'"${{PROCESSES:-{each}}}"'
    return f"torchrun --nnodes {nodes} --nproc-per-node {count}"


def partial_node(cluster: Cluster, how: str) -> list[str]:
    """A comment where the last node starts fewer processes than the others; `how` is what tells the
    launcher their number."""
    _, each, last = processes_by_node(cluster)
    if last == each:
        return []
    filled = f"# {cluster.gpus} GPUs do not fill nodes of {each}"
    return [f"{filled}: the last one starts {last}, {how.format(last)}"]
