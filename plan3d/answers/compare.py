"""Comparisons: search backends against the optimum, training systems beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plan3d.search.space.constraints import check_choices
from plan3d.search.systems.systems import System
from plan3d.search.whatif import backend_benchmark
from plan3d.search.whatif import compare_systems as system_comparison
from plan3d.search.whatif.backend_benchmark import BackendBenchmark, BackendsRequest
from plan3d.search.whatif.compare_systems import BySystem, SystemsRequest
from plan3d.simulator.task import Task, check_task

from ..launch_files.frameworks import for_framework
from .question import with_usual_framework
from .search import check_graph, with_keywords_of


def benchmark_backends(task: Task, request: BackendsRequest) -> BackendBenchmark:
    """Search backends on one task against its optimum; plans are those that can be launched."""
    check_choices(task, request.choose)
    check_graph(task, request.choose)
    return backend_benchmark.compare_backends(with_usual_framework(task), request)


def benchmark_systems(task: Task, request: SystemsRequest) -> BySystem:
    """The best plan of every training system on one task."""
    check_graph(task, request.choose)
    return system_comparison.compare_systems(with_usual_framework(task), request)


@with_keywords_of(BackendsRequest)
def compare_backends(
    task: Task,
    backends: Sequence[str] | None = None,
    *,
    framework: str | None = None,
    **options: Any,
) -> BackendBenchmark:
    """Run each backend after a search that proves the optimum of the space, uniform or staged:
    those that draw at random (all of them when None) with seeds 0, 1, ... and `budget` plans each,
    others once, to their end.

    `framework`, `choose` and `headroom` are those of find_plans; `progress` hears of the plans
    costed by all. Raises InputError for an unknown backend, space or number and for a backend that
    does not search the space, NoFeasiblePlanError when no plan fits.

    >>> task = Task(Model.preset("gpt3-1.3b"), Cluster.profile("a100-80gb-sxm", gpus=16),
    ...             sequence=2048, global_batch=64)
    >>> race = compare_backends(task, ["random"], budget=50, seeds=2)
    >>> race.entries[0].evaluations
    array([50., 50.])
    """
    check_task(task)
    asked = task if framework is None else for_framework(task, framework)
    return benchmark_backends(asked, BackendsRequest(backends=backends, **options))


@with_keywords_of(SystemsRequest)
def compare_systems(
    task: Task,
    systems: Sequence[System | str] | None = None,
    *,
    framework: str | None = None,
    **options: Any,
) -> BySystem:
    """Search the plans of every system, or of those named: by step time, by time to accuracy where
    the task has a goal. `choose` narrows all of them; `headroom` and `framework` are those of
    find_plans.

    Raises InputError for an unknown name, and where `choose` contradicts one of the systems.

    >>> task = Task(Model.preset("gpt3-1.3b"), Cluster.profile("a100-80gb-sxm", gpus=16),
    ...             sequence=2048, global_batch=64)
    >>> compare_systems(task, ["ddp", "gpipe", "megatron"]).fastest.system.name
    'megatron'
    """
    check_task(task)
    asked = task if framework is None else for_framework(task, framework)
    return benchmark_systems(asked, SystemsRequest(systems=systems, **options))
