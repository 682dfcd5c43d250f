"""Frameworks of tasks: the exporter of a name as what a search and an evaluation obey."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.software import Software
from plan3d.simulator.hardware.software_stack import SOFTWARE, software_profile
from plan3d.simulator.task import Framework, Task

from .exporter import form_rules
from .registry import EXPORTERS, exporter


def framework(name: str, required: bool = True, option: str = "--framework") -> Framework:
    """What the default version of a framework launches; InputError with the nearest names."""
    found = exporter(name, option)
    form = found.form()
    return Framework(
        name=name,
        title=form.title,
        required=required,
        rules=form_rules(form),
        tries=found.tries,
        again=partial(framework, name, required, option),
    )


def for_framework(task: Task, name: str) -> Task:
    """The task of a framework, whose plans alone are legal, on the stack that the task has.

    Raises InputError for an unknown framework and for a stack that is another framework's.
    """
    wanted = framework(name)
    check_stack(task.software, name)
    return replace(task, framework=wanted)


def with_usual(task: Task) -> Task:
    """The task with the framework of its stack, which yields to what is asked for by name."""
    name = task.software.framework
    if task.framework is not None or not EXPORTERS.knows(name):
        return task
    return replace(task, framework=framework(name, required=False))


def stack_of(name: str) -> str:
    """The name of the stack that a framework is unless told otherwise; '' where none is known."""
    return exporter(name, "--framework").software


def stacks_of(name: str) -> list[str]:
    """Names of the stacks that a framework may be."""
    own = stack_of(name)
    kind = software_profile(own).framework if own else name
    return [stack for stack in SOFTWARE if SOFTWARE[stack].framework == kind]


def check_stack(stack: Software, name: str) -> None:
    """Raise InputError where a stack is none of a framework's."""
    own = stack_of(name)
    kind = software_profile(own).framework if own else name
    if stack.framework == kind:
        return
    known = stacks_of(name)
    nearest = f"; nearest: --software {own or known[0]}" if known else ""
    what = f"is {stack.framework}" if stack.framework else "is of no framework that is launched"
    raise InputError(
        f"--software {stack.name} contradicts --framework {name}: it {what}{nearest}"
    )
