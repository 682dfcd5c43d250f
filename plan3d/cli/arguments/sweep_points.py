"""The points of a sweep: the values of --over as tasks and plans."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from plan3d.search.whatif.crossings import SYSTEM
from plan3d.simulator.base import units
from plan3d.simulator.base.errors import InputError, did_you_mean

from ...answers.question import MACHINE_UNITS
from ...screens.sweep import Axis
from ..options.parser import OTHER_NAMES
from ..options.table import OPTIONS, SWEEP

if TYPE_CHECKING:
    from plan3d.search.whatif.sweep import Point, PointOptions
    from plan3d.simulator.plan.plan import Plan
    from plan3d.simulator.task import Task

OF_TASK = (
    *("model", "cluster", "gpus", "nodes", "gpus_per_node", "sequence", "global_batch"),
    *("gpus_per_domain", "global_batch_tokens", "software", "framework"),
    *("inter_node_bandwidth", "site_bandwidth", "site_latency"),
    *("intra_node_bandwidth", "network_latency", "latency_per_node", "memory"),
    *("network", "power_limit", "expert_imbalance"),
)
"""Options of the task that can be varied."""
SIZES = ("gpus", "nodes")
OF_SEARCH = ("fix", "choose", "memory_headroom", "objective")


def check(args: argparse.Namespace) -> None:
    """Refuse options that contradict each other or have no effect."""
    if args.best and args.plan is not None:
        raise InputError("--best and --plan contradict each other: give one")
    if args.plan is not None:
        for name in OF_SEARCH:
            if getattr(args, name) is not None:
                flag = name.replace("_", "-")
                raise InputError(f"--{flag} has no effect with --plan: nothing is searched")
    if args.resume and args.csv is None:
        raise InputError("--resume needs --csv FILE, the file to continue")
    if not args.over:
        raise InputError("say what to vary: --over gpus=64,128,256")
    if len(args.over) > 2:
        raise InputError(f"--over is given {len(args.over)} times; at most two fields are varied")


def axes_of(args: argparse.Namespace) -> list[Axis]:
    axes = [_axis(text) for text in args.over] + _system_axis(args)
    names = [axis.name for axis in axes]
    if len(set(names)) < len(names):
        raise InputError(f"--over varies {names[0]} twice")
    for name in names:
        if getattr(args, name, None) is not None:
            flag = name.replace("_", "-")
            raise InputError(f"--over {name} and --{flag} say the same: give one")
    if args.weak and not set(names) & set(SIZES):
        raise InputError("--weak needs --over gpus or nodes: the batch grows with them")
    if args.weak and set(names) & {"global_batch", "global_batch_tokens"}:
        raise InputError("--weak sets the global batch: leave it out of --over")
    return axes


def _system_axis(args: argparse.Namespace) -> list[Axis]:
    """The systems of --system, where they are several."""
    from plan3d.search.systems.systems import system

    names = [system(name.strip()).name for name in (args.system or "").split(",") if name.strip()]
    if len(names) < 2:
        return []
    if len(set(names)) < len(names):
        raise InputError(f"--system {args.system}: names a system twice")
    if len(args.over) > 1:
        raise InputError("--system names several systems, which are varied: give one --over")
    args.system = None
    return [Axis(SYSTEM, names)]


def _axis(text: str) -> Axis:
    from plan3d.simulator.plan.fields import AXES, SYNONYMS, TABLE_FIELDS, field_called

    name, equals, values = text.partition("=")
    name, texts = field_called(name), units.doublings(values, f"--over {name.strip()}")
    known = [*OF_TASK, *AXES]
    option = _name(OTHER_NAMES.get(f"--{name.replace('_', '-')}", ""))
    others = SYNONYMS | ({name: option} if option in known else {})
    if name in TABLE_FIELDS:
        raise InputError(f"--over {name}: cannot be varied; compare such plans with 'explain'")
    if name not in known:
        raise InputError(f"--over {name}: unknown field{did_you_mean(name, known, others)}")
    if not equals or not all(texts):
        raise InputError(f"--over {text!r} must be FIELD=VALUE,VALUE, for example gpus=64,128")
    return Axis(name, list(dict.fromkeys(texts)), *_unit(name, texts))


def _name(option: str) -> str:
    """What `--over` calls an option."""
    return option.removeprefix("--").replace("-", "_")


def _unit(name: str, texts: list[str]) -> tuple[str, float]:
    """The unit in which all values are written, else the usual one of their field."""
    usual = MACHINE_UNITS.get(name, ("", 1.0))
    written = {units.written_unit(text) for text in texts}
    if not usual[0] or len(written) > 1 or "" in written:
        return usual
    (unit,) = written
    return unit, float(_read(name)(f"1{unit}", f"--over {name}"))


def points_of(args: argparse.Namespace, axes: list[Axis]) -> list[Point]:
    grid = product(*(axis.texts for axis in axes))
    base: list[float] = []
    return [
        _point(args, dict(zip((axis.name for axis in axes), texts, strict=True)), base)
        for texts in grid
    ]


def _point(args: argparse.Namespace, varied: dict[str, str], base: list[float]) -> Point:
    """One combination of values; `base` receives the GPUs that the given batch belongs to."""
    from plan3d.search.whatif.sweep import Point, PointOptions

    from ...answers.question import with_usual_framework
    from . import positional, task_arguments

    own = argparse.Namespace(**vars(args))
    settings, fields = _settings(own, varied)
    positional.check_complete(own)
    task = task_arguments.task_of(own)
    if args.weak:
        task = _grown(task, base)
    asked = PointOptions(tokens=task_arguments.tokens_of(own, task.model), price=args.price)
    if args.plan is not None:
        return Point(settings=settings, task=task, plan=_plan_at(own, task, fields), options=asked)
    task = with_usual_framework(task, own.system)
    asked = _search_options(own, task, fields, asked)
    return Point(settings=settings, task=task, options=asked)


def _settings(
    own: argparse.Namespace, varied: dict[str, str]
) -> tuple[dict[str, Any], dict[str, int]]:
    """Values as rows hold them, and those of plan fields as codes; options go into `own`."""
    from plan3d.simulator.plan.fields import code, spell

    settings: dict[str, Any] = {}
    fields: dict[str, int] = {}
    for name, text in varied.items():
        if name == SYSTEM:
            settings[name] = own.system = text
        elif name in OF_TASK:
            settings[name] = _read(name)(text, f"--over {name}")
            setattr(own, name, settings[name])
        else:
            fields[name] = code(name, text)
            value = spell(name, fields[name])
            settings[name] = int(value) if isinstance(value, bool) else value
    return settings, fields


def _read(name: str) -> Callable[[str, str], Any]:
    flag = f"--{name.replace('_', '-')}"
    return next(o.read for o in OPTIONS if o.flag == flag and set(SWEEP) <= set(o.verbs))


def _grown(task: Task, base: list[float]) -> Task:
    """The task with a batch in proportion to its GPUs; the first point has the batch given."""
    if not base:
        base.append(task.gpus)
    batch = task.global_batch * task.gpus / base[0]
    if batch != int(batch):
        raise InputError(
            f"--weak: global batch {task.global_batch} x {task.gpus} / {base[0]} GPUs is no whole "
            "number of sequences"
        )
    return replace(task, global_batch=int(batch))


def _plan_at(args: argparse.Namespace, task: Task, fields: dict[str, int]) -> Plan:
    """The plan of --plan with the varied fields; dp, and what follows, derived for the task."""
    from plan3d.search.whatif.single_field_changes import edited

    from . import plan_arguments, restrictions

    if args.system is not None:
        restrictions.check_system(args.system, task)
    plan = edited(plan_arguments.plan_of(args), task, fields)
    return restrictions.with_system(args, plan, frozenset(fields))


def _search_options(
    args: argparse.Namespace, task: Task, fields: dict[str, int], asked: PointOptions
) -> PointOptions:
    """What is asked of a point whose best plan is wanted; InputError for what no search takes."""
    from plan3d.search.result.objective import objective
    from plan3d.search.space.space import Space

    from ...answers.search import narrowed_choices
    from . import task_arguments

    choose: dict[str, list[Any]] = dict(task_arguments.choices_of(args))
    for name, value in fields.items():
        if name in choose:
            raise InputError(f"--over {name}: is constrained already")
        choose[name] = [value]
    narrowed = narrowed_choices(task, choose, args.system)
    Space.of(task, narrowed)
    aim = args.objective or ("time-to-accuracy" if task.goal else asked.objective)
    objective(aim)
    asked = replace(asked, objective=aim)
    return replace(asked, choose=narrowed, headroom=args.memory_headroom)
