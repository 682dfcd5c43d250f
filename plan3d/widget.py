"""The what-if of a task in a notebook: the page of `plan3d serve`, answered by the kernel.

anywidget runs the page's own explorer and sends its questions here; widgets of ipywidgets would be
a second explorer, with pictures that take longer to draw than answers to compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from plan3d.search.rank_plans import Ranking
from plan3d.search.space.space import Choices
from plan3d.simulator.base.errors import InputError, Plan3dError
from plan3d.simulator.plan.plan import as_plan, resolve
from plan3d.simulator.task import Task, check_task

from .answers.explain import ExplainRequest, explain_plan
from .answers.plan import estimate
from .answers.question import Question, launching_framework, with_usual_framework
from .answers.search import SearchRequest, search
from .answers.what_if import varied
from .launch_files.frameworks import for_framework

SCRIPTS = ("drawing.js", "plans.js", "explorer.js", "widget.js")
STYLE = "explorer.css"


class Explorer:
    """A task whose GPUs, batch, bandwidths and memory move under one's hands: in a notebook it is
    shown as sliders over a table of plans; `answer` is what they ask."""

    def __init__(self, task: Task, choose: Choices | None = None) -> None:
        self.task = task
        self.choose = choose or {}

    def answer(
        self,
        what: str,
        what_if: Mapping[str, float] | None = None,
        plan: str | None = None,
        against: str | None = None,
    ) -> dict[str, Any]:
        """The record of `plan3d search`, or of `estimate`, `explain`, `timeline` and `export` of a
        plan, with other numbers of the task: {"gpus": 128, "memory": 64e9}. Raises InputError."""
        from .screens.explain import explain_record
        from .screens.search_json import search_record

        task = varied(self.task, what_if or {})
        question = Question(task=task)
        if what == "search":
            if plan is not None or against is not None:
                raise InputError("a search takes no plan: ask estimate, explain, ... of it")
            ranking = Ranking.of(choose=self.choose)
            return search_record(search(SearchRequest(question=question, ranking=ranking)))
        if plan is None:
            raise InputError(f"{what} needs a plan")
        if what == "estimate":
            from .screens.views import estimate_record

            return estimate_record(estimate(question, plan))
        if what == "explain":
            request = ExplainRequest(question=question, plan=plan, against=against)
            return explain_record(explain_plan(request), against)
        if what == "timeline":
            from plan3d.simulator.step.plan_timeline import timeline_of

            from .screens.timeline import timeline_record

            return timeline_record(timeline_of(with_usual_framework(task), as_plan(plan)), True)
        if what == "export":
            return _launch_record(with_usual_framework(task), plan)
        raise InputError(
            f"unknown question {what!r}: search, estimate, explain, timeline or export"
        )

    @cached_property
    def widget(self) -> Any:
        """The widget; InputError where anywidget is not installed."""
        try:
            import anywidget

            from .screens.report_page import shipped
        except ModuleNotFoundError as error:
            raise InputError('explore needs anywidget: pip install "plan3d[notebooks]"') from error

        files = {"_esm": shipped(*SCRIPTS), "_css": shipped(STYLE)}
        made = type("Explorer", (anywidget.AnyWidget,), files)()
        made.on_msg(self._reply)
        return made

    def _reply(self, widget: Any, message: dict[str, Any], buffers: Any) -> None:
        """Send the record that the widget asked for, or the line that refuses it."""
        asked = {name: message.get(name) for name in ("what_if", "plan", "against")}
        reply: dict[str, Any] = {"id": message["id"]}
        try:
            reply["record"] = self.answer(message["what"], **asked)
        except Plan3dError as error:
            reply["error"] = str(error)
        widget.send(reply)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.widget._repr_mimebundle_(**options)

    def __repr__(self) -> str:
        return f"Explorer({self.task!r})"


def _launch_record(task: Task, plan: str) -> dict[str, Any]:
    """The launch file of a plan by the framework of the task, or by the first that can run it."""
    from .launch_files.exporter import launch_text
    from .launch_files.registry import exporter

    resolved = resolve(as_plan(plan), task.gpus).take(0)
    name = launching_framework(task, resolved)
    if name is None:
        return {"framework": None, "text": None}
    return {"framework": name, "text": launch_text(task, resolved, exporter(name).form())}


def explore(task: Task, *, framework: str | None = None, choose: Choices | None = None) -> Explorer:
    """The best plans of a task under sliders for GPUs, batch, bandwidth and memory; in Jupyter the
    last line of a cell.

    * `framework`: what is to launch the plans.
    * `choose`: values of plan fields to search instead of the usual: {"tp": [4, 8]}.

    >>> task = Task(Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=8),
    ...             sequence=2048, global_batch=64)
    >>> smaller = explore(task, choose={"tp": [2]}).answer("search", {"memory": 60e9})
    >>> smaller["plans"][0]["plan"]["tp"]
    2
    """
    check_task(task)
    return Explorer(task if framework is None else for_framework(task, framework), choose)
