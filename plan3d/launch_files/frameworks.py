"""Frameworks of tasks: the exporter of a name as what a search and an evaluation obey."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.software import DEFAULT_SOFTWARE, Software
from plan3d.simulator.hardware.software_stack import SOFTWARE, software_profile
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.task import Framework, Task

from .registry import EXPORTERS, exporter


def framework(name: str, required: bool = True, version: str = "") -> Framework:
    """What a version of a framework launches, its first where none is named; InputError with the
    nearest names."""
    found = exporter(name, "--framework")
    form = found.form(version)
    return Framework(
        name=found.name,
        title=form.title,
        stack=_kind_of_stack(name),
        required=required,
        rules=form.all_rules,
        search_values=found.search_values,
        rebuild=partial(framework, name, required, version),
    )


def for_framework(task: Task, name: str, version: str = "") -> Task:
    """The task of a framework, whose plans alone are legal, on its own stack where the task has the
    default one, unchanged.

    Raises InputError for an unknown framework and for a stack that is another framework's.

    >>> task = Task(Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=8),
    ...             sequence=2048, global_batch=64)
    >>> for_framework(task, "torchtitan").software
    Software('torchtitan')
    """
    wanted, own, stack = framework(name, version=version), stack_of(name), task.software
    if own and stack == software_profile(DEFAULT_SOFTWARE):
        stack = software_profile(own)
    check_stack(stack, name)
    return replace(task, framework=wanted, software=stack)


def with_usual(task: Task, name: str = "") -> Task:
    """The task with a framework, that of its stack unless named, which yields to what is asked for
    by name; of adapters, whose launch files nobody writes, as it is."""
    stated, name = name, name or task.software.framework
    if task.framework is not None or task.adapters or not EXPORTERS.is_registered(name):
        return task
    return replace(task, framework=framework(stated or _with_model(task, name), required=False))


def _with_model(task: Task, name: str) -> str:
    """A framework of a stack, or where it lacks the model the first other of that stack which has
    it: Megatron-LM has no attention sinks, Megatron-Bridge has."""
    for other in (name, *EXPORTERS):
        about_model = [rule for rule in exporter(other).form().all_rules if not rule.fields]
        if stack_of(other) == stack_of(name) and all(rule.ok(Plan(), task) for rule in about_model):
            return other
    return name


def stack_of(name: str) -> str:
    """The name of the stack that a framework is unless told otherwise; '' where none is known."""
    return exporter(name, "--framework").software


def _kind_of_stack(name: str) -> str:
    """The `framework` of the stacks that a framework trains with."""
    own = stack_of(name)
    return software_profile(own).framework if own else name


def check_stack(stack: Software, name: str, file: str = "") -> None:
    """Raise InputError where a stack, or that of a launch file, is none of a framework's."""
    own, kind = stack_of(name), _kind_of_stack(name)
    known = [other for other in SOFTWARE if SOFTWARE[other].framework == kind]
    if stack.framework == kind or not known:
        return
    what = f"is {stack.framework}" if stack.framework else "is of no framework that is launched"
    if file:
        raise InputError(
            f"{file}: its stack {stack.name} contradicts --framework {name}: it {what}; nearest: "
            f"--framework {stack.framework}, or a file of {name} (plan3d import --to {name})"
        )
    raise InputError(
        f"--software {stack.name} contradicts --framework {name}: it {what}; nearest: "
        f"--software {own or known[0]}"
    )
