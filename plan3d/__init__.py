"""Simulate and search 3-D parallel training plans: the names most people need.

Names load their modules when first used, so that `import plan3d` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .search.advice import smallest_cluster
    from .search.backend import SearchResult
    from .search.explanation import Explanation, explain
    from .search.finder import find_plans
    from .search.sweep import Sweep
    from .search.variation import sweep
    from .simulator.costs import Costs
    from .simulator.errors import InputError, NoFeasiblePlanError, Plan3dError
    from .simulator.explain import why
    from .simulator.goal import Goal
    from .simulator.hardware import Accelerator, Cluster, profile_names
    from .simulator.model import Model
    from .simulator.plan import Plan
    from .simulator.presets import preset_names
    from .simulator.software import Software, software_profile
    from .simulator.step import by_stage, evaluate
    from .simulator.task import Task
    from .simulator.topologies import Graph

    __version__: str

_HOME = {
    "Accelerator": "simulator.hardware",
    "Cluster": "simulator.hardware",
    "Costs": "simulator.costs",
    "Explanation": "search.explanation",
    "Goal": "simulator.goal",
    "Graph": "simulator.topologies",
    "InputError": "simulator.errors",
    "Model": "simulator.model",
    "NoFeasiblePlanError": "simulator.errors",
    "Plan": "simulator.plan",
    "Plan3dError": "simulator.errors",
    "SearchResult": "search.backend",
    "Software": "simulator.software",
    "Sweep": "search.sweep",
    "Task": "simulator.task",
    "by_stage": "simulator.step",
    "evaluate": "simulator.step",
    "explain": "search.explanation",
    "find_plans": "search.finder",
    "preset_names": "simulator.presets",
    "profile_names": "simulator.hardware",
    "smallest_cluster": "search.advice",
    "software_profile": "simulator.software",
    "sweep": "search.variation",
    "why": "simulator.explain",
}
"""The module that each public name lives in."""

__all__ = [
    "Accelerator",
    "Cluster",
    "Costs",
    "Explanation",
    "Goal",
    "Graph",
    "InputError",
    "Model",
    "NoFeasiblePlanError",
    "Plan",
    "Plan3dError",
    "SearchResult",
    "Software",
    "Sweep",
    "Task",
    "__version__",
    "by_stage",
    "evaluate",
    "explain",
    "find_plans",
    "preset_names",
    "profile_names",
    "smallest_cluster",
    "software_profile",
    "sweep",
    "why",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from importlib.metadata import version

            return version("plan3d")
        if name not in _HOME:
            raise AttributeError(f"module 'plan3d' has no attribute {name!r}")
        value = getattr(import_module(f".{_HOME[name]}", __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
