"""The answer of a search as a page: one HTML file with its pictures and its script inside.

The page loads nothing: its policy forbids it, and pictures are data in it. Without JavaScript its
tables are there and the sliders are not.
"""

from __future__ import annotations

import shlex
from base64 import b64encode
from dataclasses import asdict
from importlib import resources
from typing import Any

from plan3d.search.result.families import ALIKE
from plan3d.search.result.search_result import SearchResult
from plan3d.search.whatif.plans_around import MEMORY, PlansAround
from plan3d.simulator.analysis.time_breakdown import waterfall
from plan3d.simulator.base import text_tables
from plan3d.simulator.base.files import read_text
from plan3d.simulator.base.text_tables import html_text
from plan3d.simulator.base.units import format_count
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.reporting import explorer, report, why
from plan3d.simulator.reporting.assumptions import assumptions
from plan3d.simulator.reporting.explorer import explorer_record
from plan3d.simulator.reporting.plots import time_and_memory
from plan3d.simulator.reporting.plots_many import frontier_picture
from plan3d.simulator.step import costs_tables
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.step.plan_timeline import PlanTimeline, timeline_of
from plan3d.simulator.task import Task
from plan3d.simulator.uncertainty.forecast import step_interval

from ..answers.plan import PlanAnswer
from ..answers.search import SearchAnswer
from . import search, search_json, views
from .timeline import timeline_record

PRICE = 2.0
"""USD of a GPU-hour at which the slider stands where the user gives none."""
TOKENS = 1e9
"""Training tokens whose cost is shown where the user gives none."""
SCRIPTS = ("drawing.js", "plans.js", "explorer.js", "report.js")
STYLES = ("explorer.css", "report.css")
"""Of the page of `plan3d serve`, and what is frozen of it."""

_HEAD = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {allowed}">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
{style}</style></head><body class="plan3d">
<main>
<h1>{title}</h1>
"""


def shipped(*names: str) -> str:
    """Files of the page, one after another."""
    folder = resources.files("plan3d") / "web" / "static"
    return "\n".join(read_text(folder / name, name) for name in names)


def page(answer: SearchAnswer) -> str:
    """The page: the answer, plans to rank anew, the ranking, where time and memory go, why, and
    what is assumed."""
    result, script = answer.result, shipped(*SCRIPTS)
    task = result.task
    title = f"{task.model.name} on {task.gpus} x {task.cluster.accelerator.name}"
    out = [
        _HEAD.format(
            title=html_text(title), allowed=explorer.script_policy(script), style=shipped(*STYLES)
        )
    ]
    if result.costs is None or answer.best is None:
        out += [_section("No plan fits", answer.infeasible), *_question_lines(answer)]
    else:
        costs, plan = answer.best.costs, answer.best.costs.plans.take(0)
        drawn = None if plan.pp == 1 else timeline_of(costs.task, plan)
        out += _answer(answer.best)
        out += _explorer_section(answer.plans_around)
        out += _details(answer, result.costs, answer.best, drawn)
        record = _explorer_record(answer, answer.best, drawn)
        out += [
            f'<script type="application/json" id="data">{explorer.script_json(record)}</script>'
        ]
        out += [f"<script>{script}</script>"]
    end = f"<p>plan3d {html_text(views.version())}</p></main></body></html>\n"
    return "\n".join([*out, end])


def _answer(best: PlanAnswer) -> list[str]:
    low, high = best.interval
    said = [f"Best plan: {report.summary(best.costs)}; step between {low:.4g} and {high:.4g} s"]
    said += [str(best.nearest_run)] if best.nearest_run else []
    if best.question.training is not None:
        said.append(views.training_line(best.costs, best.question.training))
    lines = "<br>".join(map(html_text, said))
    return [f'<p class="answer">{lines}</p>']


def _details(
    answer: SearchAnswer, costs: Costs, plan: PlanAnswer, drawn: PlanTimeline | None
) -> list[str]:
    best, launch = plan.costs, shlex.join(plan.launch_words)
    ends = zip(*step_interval(costs), strict=True)
    extra = {"80 % interval": [f"{low:.4g} to {high:.4g}" for low, high in ends]}
    extra |= search.family_columns(answer.result)
    extra |= views.training_columns(costs, len(costs), answer.question.training)
    same = " ".join(
        f"{name}={value}" for name, value in costs_tables.shared_settings(costs).items()
    )
    return [
        "<h2>What was asked</h2>",
        *_question_lines(answer),
        "<div data-static><h2>Ranking</h2>",
        _tables([costs_tables.ranking(costs, len(costs), extra)]),
        f"<p>mem: GiB = 2^30 bytes of the fullest rank; in every plan {html_text(same)}</p>",
        *([f"<h2>Launch the best plan</h2><pre>{html_text(launch)}</pre>"] if launch else []),
        "</div>",
        "<h2>Where the time and memory of the best plan go</h2>",
        *_static([_picture(time_and_memory(best, waterfall(best), "svg"), "waterfall and memory")]),
        _tables([*costs_tables.breakdown(best), report.stage_table(best)]),
        *_static(_timeline_section(drawn)),
        _section("Why", why.why(best)),
        *_frontier(answer.result, costs),
        _section("Assumptions", assumptions(best)),
    ]


def _timeline_section(drawn: PlanTimeline | None) -> list[str]:
    if drawn is None:
        return []
    from plan3d.simulator.reporting.gantt import gantt_picture

    picture = _picture(gantt_picture(drawn, "png"), "timeline", "png")
    return ["<h2>Timeline of the best plan</h2>", picture]


def _frontier(result: SearchResult, costs: Costs) -> list[str]:
    """The picture of time against memory; nothing of a search that leaves plans out."""
    if result.frontier is None:
        return []
    picture = frontier_picture(result.frontier, costs, result.limit, "svg")
    return ["<h2>Time against memory</h2>", _picture(picture, "frontier")]


def _question_lines(answer: SearchAnswer) -> list[str]:
    """What was asked, and what the search met."""
    result = answer.result
    lines = views.header(result.task, result.limit)
    if result.costs is not None:
        lines = [*lines, views.peak_line(result.costs)]
    return [f"<p>{html_text(line)}</p>" for line in [*lines, *search.count_lines(answer)]]


def _section(title: str, sentences: list[str]) -> str:
    items = "".join(f"<li>{html_text(sentence)}</li>" for sentence in sentences)
    return f"<h2>{html_text(title)}</h2><ul>{items}</ul>"


def _static(inside: list[str]) -> list[str]:
    """What the explorer draws where scripts run."""
    return ["<div data-static>", *inside, "</div>"] if inside else []


def _tables(shown: list[text_tables.Table]) -> str:
    inside = text_tables.tables_html(shown)
    return f'<div class="wide" role="group" aria-label="table" tabindex="0">{inside}</div>'


def _picture(drawn: bytes, name: str, form: str = "svg+xml") -> str:
    data = b64encode(drawn).decode()
    return f'<img alt="{html_text(name)}" src="data:image/{form};base64,{data}">'


def _explorer_section(around: PlansAround) -> list[str]:
    """The sliders, their table and the chosen plan; hidden until the script runs."""
    return [
        '<section id="what-if" hidden><h2>What if?</h2><div id="explorer"></div>',
        f'<p class="note">{html_text(_explorer_note(around))}</p></section>',
    ]


def _explorer_note(around: PlansAround) -> str:
    """What the sliders do, and what they do not."""
    count = sum(plans.plans.rows for plans in around.batches)
    out = (
        f"Each position of bandwidth and batch holds plan3d's own steps of {count} plans, none "
        "interpolated; all collectives of a link follow its bandwidth, its latencies stay. "
        "Intervals are of the plans as asked. "
        "The price does not change the order, because every plan uses all GPUs. "
    )
    if not around.searched:
        return out + "The plans are those of this search, ranked here by their step."
    return (
        out + "Each position of batch and network was searched, with "
        f"{MEMORY:g} times the memory. Of the plans of a family within {100 * ALIKE:g} % of its "
        "fastest the simplest is listed; plans that no other of their family beats in time and "
        f"memory are here in steps of {100 * ALIKE:g} %. A plan may be missing that is best only "
        "at another bandwidth inside the fast domain, or that differs in fields which a search "
        "keeps fixed: search there to be sure."
    )


def _explorer_record(
    answer: SearchAnswer, best: PlanAnswer, drawn: PlanTimeline | None
) -> dict[str, Any]:
    """What the page's script reads: records of the answer, and its plans at every position."""
    around, training = answer.plans_around, answer.question.training
    batches = [
        (
            one.task,
            one.plans,
            one.simple,
            one.listed,
            [shlex.join(_launch(answer, one.task, plan)) for plan in one.plans],
        )
        for one in around.batches
    ]
    tokens = TOKENS if training is None else training.tokens
    price = None if training is None else training.price
    task = answer.result.task
    return {
        **explorer_record(batches, answer.result.limit, ALIKE if around.searched else None),
        "most_memory": MEMORY if around.searched else 1.0,
        "record": search_json.search_record(answer),
        "explained": {
            "waterfall": [asdict(loss) for loss in waterfall(best.costs)],
            "stages": best.ranks,
        },
        "timeline": None if drawn is None else timeline_record(drawn, chart=True),
        "asked": {
            "global_batch": task.global_batch,
            "tokens": tokens,
            "price": PRICE if price is None else price,
            "unit": task.model.unit,
            "cost_of": f"USD for {format_count(tokens)} {task.model.unit}",
        },
    }


def _launch(answer: SearchAnswer, task: Task, plan: Plan) -> list[str]:
    command = answer.question.command
    return [] if command is None else command.words(task, plan)
