"""Frameworks of tasks: the exporter of a name as what a search and an evaluation obey."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.software import DEFAULT_SOFTWARE, Software
from plan3d.simulator.hardware.software_stack import SOFTWARE, software_profile
from plan3d.simulator.task import Framework, Task

from .exporter import form_rules
from .registry import EXPORTERS, exporter

if TYPE_CHECKING:
    from plan3d.search.result.search_result import SearchResult
    from plan3d.search.whatif.sweep import Sweep


def framework(name: str, required: bool = True, version: str = "") -> Framework:
    """What a version of a framework launches, its first where none is named; InputError with the
    nearest names."""
    found = exporter(name, "--framework")
    form = found.form(version)
    return Framework(
        name=name,
        title=form.title,
        required=required,
        rules=form_rules(form),
        tries=found.tries,
        again=partial(framework, name, required, version),
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
    name = name or task.software.framework
    if task.framework is not None or task.adapters or not EXPORTERS.knows(name):
        return task
    return replace(task, framework=framework(name, required=False))


def stack_of(name: str) -> str:
    """The name of the stack that a framework is unless told otherwise; '' where none is known."""
    return exporter(name, "--framework").software


def check_stack(stack: Software, name: str, file: str = "") -> None:
    """Raise InputError where a stack, or that of a launch file, is none of a framework's."""
    own = stack_of(name)
    kind = software_profile(own).framework if own else name
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


def _asked(task: Task, name: str | None) -> Task:
    return with_usual(task) if name is None else for_framework(task, name)


def find_plans(task: Task, *, framework: str | None = None, **options: Any) -> SearchResult:
    """search.find_plans.find_plans, whose `options` it takes, of plans that can be launched.

    The simplest plan of each family is ranked and the best are climbed (search.whatif.climb), where
    every plan is costed by its time and `families` is not False. With `framework` plans are those
    that it launches; otherwise those of the framework of the task's stack, which yields to values
    of `choose` and to `system`. Raises InputError for an unknown framework and where the task's
    software is another framework's.

    >>> task = Task(Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=8),
    ...             sequence=2048, global_batch=64)
    >>> find_plans(task, choose={"tp": [2]}, framework="torchtitan").plans[0].tp
    2
    """
    from plan3d.search.find_plans import UNEQUAL
    from plan3d.search.find_plans import find_plans as searched
    from plan3d.search.whatif.climb import never_behind

    asked = _asked(task, framework)
    found = _climbed(searched, asked, options)
    unequal = options.get("backend") in UNEQUAL
    return never_behind(found, asked, options) if unequal else found


def _climbed(
    searched: Callable[..., SearchResult], task: Task, options: dict[str, Any]
) -> SearchResult:
    """A search of families, where it can list them, and its best plans climbed."""
    from plan3d.search.find_plans import TOP, lists_families
    from plan3d.search.whatif.climb import climbed

    asked = {name: options[name] for name in ("backend", "objective", "risk") if name in options}
    families = options.get("families", lists_families(**asked))
    found = searched(task, **{**options, "families": families})
    return climbed(found, options.get("choose") or {}, options.get("top", TOP))


def smallest_cluster(task: Task, *, framework: str | None = None, **options: Any) -> SearchResult:
    """search.whatif.cluster_size.smallest_cluster of plans that can be launched, as find_plans.

    >>> task = Task(Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=8),
    ...             sequence=2048, global_batch=64)
    >>> smallest_cluster(task, tokens=1e11, days=10, choose={"tp": [1, 2]}).task.gpus >= 8
    True
    """
    from plan3d.search.whatif.cluster_size import smallest_cluster as smallest

    return _climbed(smallest, _asked(task, framework), options)


def sweep(
    task: Task,
    over: Mapping[str, Sequence[Any] | Mapping[str, Any]],
    *,
    framework: str | None = None,
    **options: Any,
) -> Sweep:
    """search.whatif.variation.sweep of plans that can be launched, as find_plans.

    >>> task = Task(Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=8),
    ...             sequence=2048, global_batch=64)
    >>> len(sweep(task, {"gpus": [8, 16]}, plan="tp=2").rows)
    2
    """
    from plan3d.search.whatif.variation import sweep as swept

    return swept(_asked(task, framework), over, **options)
