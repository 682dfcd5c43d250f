"""Simulate and search 3-D parallel training plans: the names most people need.

Names load their modules when first used, so that `import plan3d` costs nothing.
"""

from __future__ import annotations

import os
from importlib import import_module

TYPE_CHECKING = False  # typing's own; its import would come before signals are listened to
if TYPE_CHECKING:
    from typing import Any

    from plan3d import plots
    from plan3d.answers.compare import compare_backends, compare_systems
    from plan3d.answers.explain import explain
    from plan3d.answers.search import find_cluster, find_plans
    from plan3d.answers.sweep import sweep
    from plan3d.launch_files.frameworks import for_framework
    from plan3d.search.result.search_result import SearchResult
    from plan3d.search.whatif.explanation import Explanation
    from plan3d.search.whatif.sweep import Sweep
    from plan3d.simulator.analysis import closed_forms
    from plan3d.simulator.base.errors import InputError, NoFeasiblePlanError, Plan3dError
    from plan3d.simulator.hardware.accelerator import Accelerator
    from plan3d.simulator.hardware.cluster import Cluster
    from plan3d.simulator.hardware.profile_file import profile_names
    from plan3d.simulator.hardware.software_stack import Software, software_profile
    from plan3d.simulator.plan.gossip_graphs import Graph
    from plan3d.simulator.plan.plan import Plan
    from plan3d.simulator.reporting.why import why
    from plan3d.simulator.runs.nearest_run import nearest_run
    from plan3d.simulator.step.costs import Costs
    from plan3d.simulator.step.evaluate import by_stage, evaluate
    from plan3d.simulator.task import Goal, Task
    from plan3d.simulator.uncertainty.calibration import calibrated, read_calibration
    from plan3d.simulator.uncertainty.forecast import step_interval
    from plan3d.simulator.uncertainty.memory import probability_fits
    from plan3d.simulator.uncertainty.timed_steps import TimedStep, learn
    from plan3d.simulator.workload.adapters import Adapters
    from plan3d.simulator.workload.model import Model
    from plan3d.simulator.workload.presets import preset_names
    from plan3d.widget import explore

    __version__: str

_FOLDER = os.path.dirname(__file__)
if not os.path.isdir(os.path.join(_FOLDER, "simulator")):
    # In a clone the folders of the package lie beside this one, not inside it.
    __path__.append(os.path.dirname(_FOLDER))

_HOME = {
    "Accelerator": "simulator.hardware.accelerator",
    "Adapters": "simulator.workload.adapters",
    "Cluster": "simulator.hardware.cluster",
    "Costs": "simulator.step.costs",
    "Explanation": "search.whatif.explanation",
    "Goal": "simulator.task",
    "Graph": "simulator.plan.gossip_graphs",
    "InputError": "simulator.base.errors",
    "Model": "simulator.workload.model",
    "NoFeasiblePlanError": "simulator.base.errors",
    "Plan": "simulator.plan.plan",
    "Plan3dError": "simulator.base.errors",
    "SearchResult": "search.result.search_result",
    "Software": "simulator.hardware.software_stack",
    "Sweep": "search.whatif.sweep",
    "Task": "simulator.task",
    "TimedStep": "simulator.uncertainty.timed_steps",
    "by_stage": "simulator.step.evaluate",
    "calibrated": "simulator.uncertainty.calibration",
    "compare_backends": "answers.compare",
    "compare_systems": "answers.compare",
    "evaluate": "simulator.step.evaluate",
    "explain": "answers.explain",
    "explore": "widget",
    "find_cluster": "answers.search",
    "find_plans": "answers.search",
    "for_framework": "launch_files.frameworks",
    "learn": "simulator.uncertainty.timed_steps",
    "nearest_run": "simulator.runs.nearest_run",
    "preset_names": "simulator.workload.presets",
    "probability_fits": "simulator.uncertainty.memory",
    "profile_names": "simulator.hardware.profile_file",
    "read_calibration": "simulator.uncertainty.calibration",
    "software_profile": "simulator.hardware.software_stack",
    "step_interval": "simulator.uncertainty.forecast",
    "sweep": "answers.sweep",
    "why": "simulator.reporting.why",
}
"""The module that each public name lives in."""
_MODULES = {"closed_forms": "simulator.analysis.closed_forms", "plots": "plots"}
"""Public names that are modules: the textbook's formulas, and pictures."""

__all__ = [
    "Accelerator",
    "Adapters",
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
    "TimedStep",
    "__version__",
    "by_stage",
    "calibrated",
    "closed_forms",
    "compare_backends",
    "compare_systems",
    "evaluate",
    "explain",
    "explore",
    "find_cluster",
    "find_plans",
    "for_framework",
    "learn",
    "nearest_run",
    "plots",
    "preset_names",
    "probability_fits",
    "profile_names",
    "read_calibration",
    "software_profile",
    "step_interval",
    "sweep",
    "why",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from importlib.metadata import version

            return version("plan3d")
        if name in _MODULES:
            return import_module(f".{_MODULES[name]}", __name__)
        if name not in _HOME:
            raise AttributeError(f"module 'plan3d' has no attribute {name!r}")
        value = getattr(import_module(f".{_HOME[name]}", __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
