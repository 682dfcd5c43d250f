"""The plan that is meant: fields written out, a text file, or a plan of a saved result.

A saved result is a file of --json or the last search: `result.json#3`, `last#2`, `last#safe`.
Fields after it replace those of its plan: 'last#1 micro_batch=2'.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plan3d.simulator.base.documents import SCHEMA, parse_json
from plan3d.simulator.base.errors import InputError, check_path
from plan3d.simulator.base.files import is_file, read_text
from plan3d.simulator.base.units import is_whole
from plan3d.simulator.task import Task

from ...answers.question import LAST
from . import last_answer, restrictions, training_arguments
from .task_arguments import PLAN_FIELDS, layout_of, task_of

if TYPE_CHECKING:
    from plan3d.simulator.plan.plan import Plan

TASK_OPTIONS = (
    *("model", "cluster", "gpus", "gpus_per_node", "sequence", "global_batch"),
    *training_arguments.ADAPTER_OPTIONS,
)
"""What a saved result says about its task, by the names of the options."""
WORDS = (
    *("model", "cluster", "software"),
    *("adapter", "lora_targets", "lora_base", "modules_to_save"),
)
"""Those that are words."""
MACHINE = (
    "gpus_per_domain",
    "inter_node_bandwidth",
    "intra_node_bandwidth",
    "memory",
    "network_latency",
    "latency_per_node",
    "nic_gpus",
    "site_bandwidth",
    "site_latency",
    "network",
    "power_limit",
    "expert_imbalance",
)
"""Options that a verb without prediction does not have."""


SAFE = "safe"
"""The plan of a result that fits more surely than its first."""


@dataclass(frozen=True)
class Saved:
    """A plan as it was given, and what came with it."""

    plan: Plan
    stated: frozenset[str]
    """The fields that it states."""
    task: Mapping[str, Any] = field(default_factory=dict)
    """The task of a saved result, by option."""


def plan_of(args: argparse.Namespace) -> Plan:
    """The plan of --plan, with what it leaves open to --system and to options of its fields."""
    saved = read_plan(args.plan, "--plan")
    of_system = restrictions.with_system(args, saved.plan, saved.stated)
    plan = completed(replace(saved, plan=of_system), args)
    graph = getattr(args, "graph", None)
    if graph is not None and plan.to_dict()["topology"] != "given":
        raise InputError("--graph has no effect without topology=given")
    return plan


def completed(saved: Saved, args: argparse.Namespace) -> Plan:
    """A plan with the options that name one of its fields, or give a layout."""
    from plan3d.simulator.plan.fields import code, spell

    plan = saved.plan
    for option, text in layout_of(args):
        plan = _with_layout(plan, option, text)
    for name in PLAN_FIELDS:
        given = getattr(args, name, None)
        wanted = None if given is None else code(name, given)
        if name in saved.stated and wanted not in (None, getattr(plan, name)):
            has = f"{name}={spell(name, getattr(plan, name))}"
            option = f"--{name.replace('_', '-')} {given}"
            raise InputError(f"{option} contradicts the plan, which has {has}")
        if wanted is not None:
            plan = replaced(plan, {name: wanted})
    return plan


def _with_layout(plan: Plan, option: str, text: str) -> Plan:
    """The plan with the layout of an option, which may not contradict its own."""
    out = replaced(plan, {"layers_per_stage": text})
    if plan.layers_per_stage and plan.layers_per_stage != out.layers_per_stage:
        has = ",".join(map(str, plan.layers_per_stage))
        raise InputError(f"{option} {text} contradicts the plan, which has layers_per_stage={has}")
    return out


def replaced(plan: Plan, fields: Mapping[str, Any]) -> Plan:
    """The plan with other values of some fields."""
    return replace(plan, **fields)


def fields_of(texts: list[str] | None, option: str) -> dict[str, Any]:
    """Plan fields by value from 'FIELD=VALUE ...' of an option that may be repeated."""
    from plan3d.simulator.plan.plan import field_changes

    try:
        return field_changes(" ".join(texts or []))
    except InputError as error:
        raise InputError(f"{option}: {error}") from None


def _with_saved(args: argparse.Namespace, saved: Saved) -> argparse.Namespace:
    """The options, and those of the saved result where they are left open."""
    filled = argparse.Namespace(**vars(args))
    sized = args.gpus is not None or args.nodes is not None
    batched = args.global_batch is not None or args.global_batch_tokens is not None
    given = {"gpus": sized, "gpus_per_node": sized, "global_batch": batched}
    for name, value in saved.task.items():
        if not given.get(name, getattr(args, name, None) is not None):
            setattr(filled, name, value)
    return filled


def task_of_saved(args: argparse.Namespace, saved: Saved) -> Task:
    """The task of the options, and of the saved result where they leave it open."""
    filled = _with_saved(argparse.Namespace(**{**dict.fromkeys(MACHINE), **vars(args)}), saved)
    for name in ("model", "cluster"):
        if getattr(filled, name) is None:
            raise InputError(f"the following arguments are required: --{name}")
    return task_of(filled)


def is_handle(word: str) -> bool:
    """Whether a word names a plan of a saved result: last, last#2 or result.json#2."""
    path, mark, _ = word.partition("#")
    return path == LAST or bool(mark and is_file(path))


def fill_from_saved(args: argparse.Namespace) -> None:
    """Take what the options leave open from the saved result that --plan names."""
    if args.plan is None or not is_handle(args.plan.partition(" ")[0]):
        return
    filled = vars(_with_saved(args, read_plan(args.plan, "--plan")))
    vars(args).update({name: filled[name] for name in vars(args)})


def read_plan(source: str, option: str) -> Saved:
    """A plan written out, in a text file or in a saved result; `option` names it in errors."""
    handle, _, changes = source.strip().partition(" ")
    if changes and is_handle(handle):
        from plan3d.simulator.plan.plan import Plan

        saved, changed = read_plan(handle, option), fields_of([changes], option)
        fields = _of_text(str(saved.plan))
        stated = {name: getattr(fields.plan, name) for name in fields.stated - {"dp"}} | changed
        return replace(saved, plan=replaced(Plan(), stated), stated=frozenset(stated))
    path, _, number = source.rpartition("#")
    if not path or not (is_file(path) or path == LAST):
        path, number = source, ""
    if path == LAST:
        path = str(last_answer.path())
        if not is_file(path):
            raise InputError(f"{option} {source}: there is no last search; run plan3d search first")
    if not is_file(path):
        if "=" not in source:
            file, _, _ = source.partition("#")
            if re.search(r"[/.]", file):
                read_text(Path(file), f"{option} {file}")  # says why it cannot be read
            near = with_equals(source)
            raise InputError(f"{option} {source!r} is neither FIELD=VALUE ... nor a file{near}")
        return _of_text(source)
    text = read_text(Path(path), f"{option} {path}")
    if not text.lstrip().startswith(("{", "[")):
        if number:
            raise InputError(f"{option} {source}: #{number} needs a saved JSON result")
        return _of_text(text)
    return _of_result(parse_json(text, f"{option} {path}"), source, path, number, option)


def with_equals(text: str) -> str:
    """The end of a line about fields without '=', as in TP8PP4 or 'tp 8'; '' for other words."""
    from plan3d.simulator.plan.fields import FIELDS, field_called

    pairs = re.findall(r"([A-Za-z_]+)[\s:-]*(\d+)", text)
    fields = [f"{field_called(name)}={value}" for name, value in pairs]
    known = all(field_called(name) in FIELDS for name, _ in pairs)
    whole = re.fullmatch(r"(?:[A-Za-z_]+[\s:-]*\d+[\s,-]*)+", text)
    return f"; did you mean {' '.join(fields)!r}?" if whole and known else ""


def _of_text(text: str) -> Saved:
    from plan3d.simulator.plan.plan import Plan, stated_fields

    return Saved(Plan.parse(text), frozenset(stated_fields(text)))


def _of_result(content: Any, source: str, path: str, number: str, option: str) -> Saved:
    from plan3d.simulator.plan.fields import AXES, check_field
    from plan3d.simulator.plan.plan import Plan, is_record, plan_of_record

    if isinstance(content, dict) and content.get("schema", SCHEMA) != SCHEMA:
        schema = json.dumps(content["schema"])[:60]
        raise InputError(f"{option} {path}: has schema {schema}; only {SCHEMA} is read")
    record = _record(content, source, number, option)
    fields = record.get("plan", record)
    if not isinstance(fields, dict):
        raise InputError(f"{option} {path}: 'plan' must be an object of fields")
    values = {name: value for name, value in fields.items() if name != "micro_batches"}
    for name, value in values.items():
        check_field(name)
        if name == "segments":
            continue
        layout = name == "layers_per_stage" and isinstance(value, list)
        wanted = int if name == "layers_per_stage" else (int, str)
        if not all(isinstance(part, wanted) for part in (value if layout else [value])):
            raise InputError(f"{option} {path}: {name} cannot be {json.dumps(value)[:60]}")
        values[name] = tuple(value) if layout else value
    plan, task = Plan(**values), _task(content, path, option)
    if fields is not record and is_record(values):
        return Saved(plan_of_record(values), frozenset({*AXES, *values}), task)
    return Saved(plan, frozenset(values), task)


def _record(content: Any, source: str, number: str, option: str) -> dict[str, Any]:
    """The wanted record of a saved result; the file's only object where it is no result."""
    if isinstance(content, dict) and isinstance(content.get("plans"), list):
        plans = content["plans"]
        if number == SAFE and SAFE in content:
            return _record(content[SAFE], source, "", option)
        rank = int(number or 1) if is_whole(number or "1") else 0
        if not 1 <= rank <= len(plans):
            raise InputError(
                f"{option} {source}: the result holds {len(plans)} plan{'s' * (len(plans) != 1)}"
            )
        content = plans[rank - 1]
    elif number:
        raise InputError(f"{option} {source}: the file is not a saved result with plans")
    if not isinstance(content, dict):
        raise InputError(f"{option} {source}: must hold a result or an object of plan fields")
    return content


def _task(content: Any, path: str, option: str) -> dict[str, Any]:
    """What a saved result says about its task and software, by option."""
    task = content.get("task", {}) if isinstance(content, dict) else {}
    profile = content.get("profile", {}) if isinstance(content, dict) else {}
    if not isinstance(task, dict) or not isinstance(profile, dict):
        raise InputError(f"{option} {path}: 'task' and 'profile' must be objects")
    stated = content.get("options", {}) if isinstance(content, dict) else {}
    if not isinstance(stated, dict) or not stated.keys() <= last_answer.OPTIONS_KEPT:
        raise InputError(f"{option} {path}: 'options' must be an object of options of a search")
    found = {name: task[name] for name in TASK_OPTIONS if name in task}
    lengths = task.get("document_lengths", [])
    if not isinstance(lengths, list) or not all(type(length) is int for length in lengths):
        raise InputError(f"{option} {path}: document_lengths must be whole numbers")
    if "software" in profile:
        found["software"] = profile["software"]
    for name, value in found.items():
        words = name in WORDS
        if type(value) is not (str if words else int):
            raise InputError(f"{option} {path}: {name} cannot be {json.dumps(value)[:60]}")
        if words:
            check_path(str(value), f"{option} {path}: {name}")
    if lengths:
        found["documents"] = ",".join(map(str, lengths))
    for name, value in stated.items():
        if not isinstance(value, str | int | float):
            raise InputError(f"{option} {path}: {name} cannot be {json.dumps(value)[:60]}")
    return {**found, **stated}
