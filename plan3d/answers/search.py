"""Searches: which plans are fastest and fit, on the GPUs of the task or on as many as it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import numpy as np

from plan3d.search.rank_plans import Ranking, RankingOptions, rank_plans
from plan3d.search.result.search_result import SearchResult
from plan3d.search.space.constraints import check_choices, check_lists
from plan3d.search.space.space import Choices
from plan3d.search.whatif.climb import climbed, improved
from plan3d.simulator.analysis.goodput import Reliability, Training
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.units import as_count
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.rules.validity import legal_rows
from plan3d.simulator.runs.same_runs import FastestRun, fastest_run
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.step.costs_tables import number_format
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task, check_task
from plan3d.simulator.uncertainty.forecast import Forecast
from plan3d.simulator.uncertainty.memory import FITS_PROBABILITY, probability_fits

from ..launch_files.frameworks import for_framework
from .known_layout import with_known_layout
from .plan import PlanAnswer
from .question import Question, with_usual_framework

if TYPE_CHECKING:
    from plan3d.search.whatif.best_change import Change
    from plan3d.search.whatif.plans_around import PlansAround
    from plan3d.search.whatif.schedulers import Scheduler

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class SearchRequest:
    """A question for plans."""

    question: Question
    ranking: Ranking
    families: bool | None = None
    """Whether families of plans are listed and the best climbed; None where the search can."""
    scheduler: Scheduler | None = None
    """What runs the searches of several numbers of GPUs (whatif.schedulers); None for this
    process."""


@dataclass(eq=False)
class SearchAnswer:
    """Ranked plans, and what stands beside them. Parts are computed when asked for, once."""

    question: Question
    """With the number of GPUs that was found, where it was asked for."""
    ranking: Ranking
    result: SearchResult
    safe: Costs | None = None
    """The first plan that fits with FITS_PROBABILITY, where plan 1 does not; None where it does or
    none would."""

    @cached_property
    def best(self) -> PlanAnswer | None:
        """Plan 1; None where none fits."""
        costs = self.result.best
        return None if costs is None else PlanAnswer(self.question, costs, self.result.limit)

    @cached_property
    def fastest_run(self) -> tuple[FastestRun, Costs | None] | None:
        """The fastest published run of this very question, and what its layout costs here where it
        is legal; None where no run is, or it is of plan 1."""
        best = self.best
        if best is None or best.same_runs:
            return None
        task = self.result.task
        run = fastest_run(task, number_format(best.costs.plans))
        if run is None:
            return None
        legal = bool(legal_rows(run.plan.table(), task).all())
        return run, evaluate(task, run.plan).row() if legal else None

    @cached_property
    def forecast(self) -> Forecast | None:
        """The steps of all listed plans; None where none fits."""
        costs = self.result.costs
        return None if costs is None else Forecast.of_plans(self.result.task, costs.plans)

    @cached_property
    def rounder(self) -> Change | None:
        """A batch or fewer GPUs nearby whose best plan trains more tokens a second; None where the
        numbers divide well."""
        if self.best is None or not self.result.complete or not self.ranking.can_list_families:
            return None
        from plan3d.search.whatif.best_change import rounder_size

        return rounder_size(self.best.costs, self.ranking.least_probability)

    @cached_property
    def optimizer_on_host(self) -> Change | None:
        """The same search with the optimizer on the host, where plan 1 is in want of memory; None
        where that trains no faster."""
        if self.best is None or not self.result.complete or not self.ranking.can_list_families:
            return None
        from plan3d.search.whatif.best_change import optimizer_on_host

        return optimizer_on_host(self.best.costs, self.ranking)

    @cached_property
    def infeasible(self) -> list[str]:
        """Why no plan fits, and what would; nothing where one does."""
        if self.result.plans:
            return []
        if not self.result.complete:
            return ["no plan that fits was found before the search ended"]
        from plan3d.search.whatif.cluster_size import why_infeasible

        return why_infeasible(self.result, self.ranking.choose)

    @cached_property
    def plans_around(self) -> PlansAround:
        """The plans of other batches and networks, which the page of a report ranks anew."""
        from plan3d.search.whatif.plans_around import plans_around

        around = plans_around(self.result, self.ranking)
        if around.interrupted:
            self.result = self.result.ended_by_interrupt()
        return around

    def refused(self, listed: int | None = None) -> list[str]:
        """Which of the first listed plans the usual framework of their stack cannot launch, and why
        the first: there are some where a value was asked for by name that it lacks."""
        from ..launch_files.exporter import refusals
        from ..launch_files.registry import exporter

        task, framework = self.result.task, self.result.task.framework
        usual = framework is not None and not framework.required
        if framework is None or not usual or self.result.system not in (None, framework.name):
            return []
        form = exporter(framework.name).form()
        plans = self.result.plans[:listed]
        reasons = {
            row: why for row, plan in enumerate(plans) if (why := refusals(task, plan, form))
        }
        if not reasons:
            return []
        rows = [row + 1 for row in reasons]
        several = rows[-1] - rows[0] == len(rows) - 1 > 0
        which = f"{rows[0]} to {rows[-1]}" if several else ", ".join(map(str, rows))
        first, *rest = reasons[rows[0] - 1]
        return [
            f"plan{'s' if len(rows) > 1 else ''} {which} cannot be launched by {framework.title}: "
            f"{first}{f', and {len(rest)} more' if rest else ''}"
        ]

    def launch_words(self, plan: Plan) -> list[str]:
        """The command that writes a plan's launch file; none where no framework runs it."""
        command = self.question.command
        return [] if command is None else command.words(self.result.task, plan)


def search(request: SearchRequest) -> SearchAnswer:
    """The best plans of a question that can be launched, the best of each family climbed.

    Raises InputError for what no plan can have, NoFeasiblePlanError where no number of GPUs trains
    in time.
    """
    ranking, training = request.ranking, request.question.training
    listed = ranking.can_list_families if request.families is None else request.families
    ranking = replace(ranking, families=listed)
    task = with_usual_framework(request.question.task, ranking.system)
    sized = training is not None and training.sizes_cluster
    _check(task, ranking, sized)
    if training is not None and sized:
        from plan3d.search.whatif.cluster_size import find_cluster as cluster_of_size

        sized_by = cluster_of_size(task, training, ranking, request.scheduler)
        result = climbed(sized_by, ranking.choose, ranking.top)
    else:
        result = improved(rank_plans(task, ranking), task, ranking)
    result = with_known_layout(result, ranking)
    safe = _safe_plan(result, ranking)
    return SearchAnswer(replace(request.question, task=result.task), ranking, result, safe)


def _safe_plan(result: SearchResult, ranking: Ranking) -> Costs | None:
    """The best plan that fits with FITS_PROBABILITY where plan 1 does not: of all that the search
    met where it costs them all, else of the listed plans."""
    costs = result.costs
    if costs is None or ranking.headroom is not None or not result.complete:
        return None
    fits = np.atleast_1d(probability_fits(costs)) >= FITS_PROBABILITY
    if fits[0]:
        return None
    if ranking.can_list_families:
        return None if result.safe is None else result.safe.row()
    return costs.row(int(fits.argmax())) if fits.any() else None


def _check(task: Task, ranking: Ranking, sized: bool) -> None:
    """Refuse constraints that contradict the system or that no plan can meet."""
    if sized and (ranking.budget is not None or ranking.time_limit is not None):
        raise InputError("--budget and --time-limit do not go with --days or --budget-usd")
    check_lists("choose", ranking.choose)
    narrowed = narrowed_choices(task, ranking.choose, ranking.system, ranking.space)
    if not sized:
        check_choices(task, narrowed)
    check_graph(task, narrowed)


def check_graph(task: Task, choose: Choices) -> None:
    """Refuse a graph that no plan asked for uses."""
    if task.graph is not None and "given" not in map(str, choose.get("topology", ())):
        raise InputError("--graph has no effect without topology=given")


def narrowed_choices(
    task: Task, choose: Choices, system: str | None, space: str = "uniform"
) -> Choices:
    """What was chosen and the constraints of a system, which it may not contradict."""
    if system is None:
        return choose
    from plan3d.search.systems.system_plans import constraints
    from plan3d.search.systems.systems import check_gpus
    from plan3d.search.systems.systems import system as system_named

    named = system_named(system)
    check_gpus(named, task.gpus)
    if space == "staged":
        raise InputError(f"--system {named.name} has stages that are all alike: leave out --space")
    return constraints(named, task, choose)


def with_keywords_of(record: type) -> Callable[[Function], Function]:
    """Show the fields of a record in the signature of a function that takes them as keywords."""

    def signed(function: Function) -> Function:
        stated = inspect.signature(function)
        named = [p for p in stated.parameters.values() if p.kind is not p.VAR_KEYWORD]
        names = {parameter.name for parameter in named}
        fields = inspect.signature(record).parameters.values()
        added = [parameter for parameter in fields if parameter.name not in names]
        vars(function)["__signature__"] = stated.replace(parameters=[*named, *added])
        return function

    return signed


def _request(
    task: Task,
    framework: str | None,
    families: bool | None,
    training: Training | None,
    ranking: RankingOptions,
) -> SearchRequest:
    """The request of a task in Python."""
    check_task(task)
    check_lists("choose", ranking.get("choose") or {})
    asked = task if framework is None else for_framework(task, framework)
    question = Question(task=asked, training=training)
    return SearchRequest(question=question, ranking=Ranking.of(**ranking), families=families)


@with_keywords_of(Ranking)
def find_plans(
    task: Task,
    *,
    framework: str | None = None,
    families: bool | None = None,
    **ranking: Unpack[RankingOptions],
) -> SearchResult:
    """Search the plans of a task that can be launched and rank the best that fit.

    * `choose`: values of plan fields to search instead of the usual: {"tp": [4, 8], "zero": [1]}.
    * `framework`: what is to launch the plans; without it the framework of the task's stack, which
      yields to `choose` and `system`.
    * `system`: the name of a training system, whose plans alone are searched.
    * `fits_probability`: the least probability of fitting of a plan, 0.5; `headroom`: share of
      memory to leave free, in its place.
    * `objective`: what ranks, such as 'step-time', 'memory' or 'cost'; `risk`: a quantile of the
      step that ranks instead of its expectation, such as 0.9, of plans as likely to fit.
    * `top`: plans to rank; `families`: whether to list the simplest plan of each family and climb
      the best (the default where every plan is costed by its time); `frontier`: whether to keep the
      plans that no other beats in both time and memory; `safe`: whether to keep the best that
      surely fits beside plan 1 (the default).
    * `backend`: what searches; `space`: 'uniform' stages or 'staged' ones, which differ.
    * `budget`, `time_limit`: plans and seconds after which it ends, incomplete; `seed`: of backends
      that draw at random; `progress`: is called with the number of plans costed so far.

    Raises InputError for an unknown name, and where no plan can have a chosen value.

    >>> task = Task(Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=8),
    ...             sequence=2048, global_batch=64)
    >>> find_plans(task, choose={"tp": [2]}, framework="torchtitan").plans[0].tp
    2
    """
    return search(_request(task, framework, families, None, ranking)).result


@with_keywords_of(Ranking)
def find_cluster(
    task: Task,
    *,
    tokens: float | str,
    days: float | None = None,
    budget_usd: float | None = None,
    price: float | None = None,
    reliability: Reliability | None = None,
    framework: str | None = None,
    families: bool | None = None,
    scheduler: Scheduler | None = None,
    **ranking: Unpack[RankingOptions],
) -> SearchResult:
    """The search on the GPUs that train `tokens`, such as 2e12 or "2T", in time or for a budget.

    * `days`: the most that training may take: the fewest GPUs.
    * `budget_usd`: the most that it may cost, at a `price` in USD per GPU-hour: with no `days`, the
      GPUs that are done first.
    * `reliability`: the failures to count in (simulator.analysis.goodput.Reliability).
    * `scheduler`: what searches the numbers of GPUs at once: any executor of concurrent.futures, a
      client of Dask, or the address of its scheduler.
    * All others: as find_plans has them.

    Raises NoFeasiblePlanError where no number of GPUs does, InputError where neither days nor a
    budget is given.

    >>> task = Task(Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=8),
    ...             sequence=2048, global_batch=64)
    >>> find_cluster(task, tokens="100B", days=10, choose={"tp": [1, 2]}).task.gpus >= 8
    True
    """
    stated = {"days": days, "budget_usd": budget_usd, "price": price}
    training = Training(
        tokens=as_count(tokens, "tokens"),
        reliability=reliability,
        **{name: as_count(value, name) for name, value in stated.items() if value is not None},
    )
    if not training.sizes_cluster:
        raise InputError("say what limits the run: days, or a budget with a price per GPU-hour")
    request = _request(task, framework, families, training, ranking)
    return search(replace(request, scheduler=scheduler)).result
