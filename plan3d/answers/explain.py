"""Explanations: where the step of a plan goes, what binds it, and what one change would do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from plan3d.search.whatif.explanation import Explanation
from plan3d.search.whatif.explanation import explain as explained
from plan3d.simulator.plan.plan import PlanLike, as_plan
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task, check_task

from ..launch_files.frameworks import for_framework
from .plan import PlanAnswer
from .question import Question, with_usual_framework

if TYPE_CHECKING:
    from plan3d.simulator.analysis.memory_timeline import MemoryTimeline
    from plan3d.simulator.calibration.traces.memory_events import MeasuredPeak

    from .measured_step import MeasuredStep
    from .traced_step import TracedStep


@dataclass(frozen=True, kw_only=True)
class ExplainRequest:
    """A plan that is to be explained."""

    question: Question
    plan: PlanLike
    against: PlanLike | None = None
    """Another plan, or changes of this one, to say why it is slower or faster."""
    measured_step: float | None = None
    """Seconds that the step took."""
    traces: tuple[str, ...] = ()
    """Profiler traces of the step, files or folders."""


@dataclass(frozen=True, eq=False)
class ExplainAnswer:
    """An explanation, and what stands beside the plan."""

    plan: PlanAnswer
    explanation: Explanation
    measured: MeasuredStep | None = None
    """What a measured step says; the explanation is then of the constants that it makes likely."""
    traced: TracedStep | None = None
    """What traces of a step say, part by part; the explanation is then of the constants that its
    parts make likely."""


@dataclass(frozen=True, eq=False)
class MemoryAnswer:
    """The bytes of every pipeline rank of a plan through a step."""

    plan: PlanAnswer
    memory: MemoryTimeline
    measured: MeasuredPeak | None = None
    """The peak of a profiled rank."""


def explain_memory(question: Question, plan: PlanLike, measured: str | None = None) -> MemoryAnswer:
    """Who holds the memory of each rank, and when; one that does not fit is a valid question.
    `measured` is the profiler's memory timeline of a rank, a file. InputError where the plan breaks
    a rule, for more passes than can be simulated, and for another file."""
    from plan3d.simulator.analysis.memory_timeline import memory_timeline
    from plan3d.simulator.calibration.traces.memory_events import read_memory_timeline

    task = with_usual_framework(question.task, question.system)
    found = memory_timeline(task, as_plan(plan))
    answer = PlanAnswer(replace(question, task=task), found.timeline.costs.row())
    peak = None if measured is None else read_memory_timeline(measured)
    return MemoryAnswer(answer, found, peak)


def explain_plan(request: ExplainRequest) -> ExplainAnswer:
    """Explain one plan; one that does not fit is still a valid question. InputError where it breaks
    a rule, and for a step of something else."""
    question, measured = request.question, None
    task = with_usual_framework(question.task, question.system)
    if request.measured_step is not None:
        from .measured_step import MeasuredStep

        measured = MeasuredStep.of(task, as_plan(request.plan), request.measured_step)
        task = measured.task
    traced = None
    if request.traces:
        from .traced_step import TracedStep

        traced = TracedStep.of(evaluate(task, request.plan), request.traces)
        task = traced.task
    explanation = explained(task, request.plan, request.against)
    plan = PlanAnswer(replace(question, task=task), explanation.costs)
    return ExplainAnswer(plan, explanation, measured, traced)


def explain(
    task: Task, plan: PlanLike, against: PlanLike | None = None, *, framework: str | None = None
) -> Explanation:
    """Explain one plan; one that does not fit may be asked about as well.

    `against` is another plan, or changes of this one: "tp=4" or {"tp": 4}. Edits are those that the
    `framework` launches, or that of the task's stack, where it launches the plan itself. Raises
    InputError where the plan breaks a rule.

    >>> task = Task(Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=8),
    ...             sequence=2048, global_batch=64)
    >>> print(explain(task, "tp=2", against="tp=4").against.sentences[0])  # doctest: +ELLIPSIS
    It takes ...
    """
    check_task(task)
    asked = task if framework is None else for_framework(task, framework)
    request = ExplainRequest(question=Question(task=asked), plan=plan, against=against)
    return explain_plan(request).explanation
