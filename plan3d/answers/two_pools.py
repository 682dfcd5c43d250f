"""Pipelines over two kinds of machines: the best plan that has stages in both pools."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from plan3d.search.rank_plans import Ranking, memory_limit, rank_plans
from plan3d.search.result.options import Deadline, Progress
from plan3d.search.space.space import Choices
from plan3d.search.stage_dp.two_pools import PooledResult, search
from plan3d.simulator.task import Task

from ..launch_files import frameworks, pools
from ..launch_files.registry import exporter

HINTS = 8
"""Plans of each pool whose values are tried first."""


@dataclass(frozen=True, kw_only=True)
class PoolsRequest:
    """One model and batch on two pools of machines."""

    tasks: tuple[Task, Task]
    choose: Choices = field(default_factory=dict)
    headroom: float | None = None
    time_limit: float | None = None
    framework: str | None = None
    """What is to launch the plan."""
    model: str = ""
    """The model as it was named, for the launch line."""
    software: str | None = None
    """The stack that was named."""
    progress: Progress | None = None


@dataclass(frozen=True, eq=False)
class PoolsAnswer:
    """The best plan over both pools, and how it is launched."""

    request: PoolsRequest
    result: PooledResult

    @cached_property
    def launch(self) -> tuple[list[str], str]:
        """The words of the command that writes the plan's launch file, or why there is none."""
        plan, tasks = self.result.plan, self.result.tasks
        if plan is None:
            return [], ""
        usual = frameworks.with_usual(tasks[0]).framework
        name = self.request.framework or (usual.name if usual else pools.TAKES_LAYERS[0])
        form = exporter(name).form()
        if plan.plan is None:
            sizes = " and ".join(str(n) for n in sorted({stage.gpus for stage in plan.stages}))
            return [], f"{form.title} has no stages of {sizes} GPUs in one plan"
        in_order = plan.stages[0].cluster == tasks[0].cluster.name
        both = tasks if in_order else tasks[::-1]
        launched = plan.plan.take(0)
        refused = pools.refusals(both, launched, form)
        if refused:
            return [], f"{form.title} cannot run it: {'; '.join(refused)}"
        task, (one, other) = tasks[0], both
        software = self.request.software
        return [
            *("plan3d", "export", str(launched), "--to", name, "--model", self.request.model),
            *("--cluster", one.cluster.name, "--gpus", str(one.gpus)),
            *("--second-pool", f"{other.cluster.name}:{other.gpus}"),
            *("--sequence", str(task.sequence), "--global-batch", str(task.global_batch)),
            *(("--software", software) if software else ()),
        ], ""


def search_two_pools(request: PoolsRequest) -> PoolsAnswer:
    """Search the plans with stages in both pools, beside the best plan of each pool alone."""
    deadline, tasks = Deadline.after(request.time_limit), request.tasks
    apart = Ranking(choose=request.choose, headroom=request.headroom, top=1)
    bests = [rank_plans(one, apart).unless_interrupted().best for one in tasks]
    alone = [float("inf") if best is None else float(best.step_seconds) for best in bests]
    whole = replace(apart, choose={**request.choose, "virtual_stages": ["1"]}, top=HINTS)
    each = [rank_plans(one, whole).unless_interrupted().costs for one in tasks]
    hints = [costs.plans for costs in each if costs is not None]
    limits = [memory_limit(one, request.headroom) for one in tasks]
    unlaunched = replace(tasks[0], framework=None), replace(tasks[1], framework=None)
    result = search(
        unlaunched,
        (limits[0], limits[1]),
        (alone[0], alone[1]),
        request.choose,
        deadline,
        request.progress,
        hints,
        tasks[0].framework,
    )
    return PoolsAnswer(request, result)
