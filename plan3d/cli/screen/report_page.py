"""The answer of a search as a page: one HTML file with its pictures and its script inside.

The page loads nothing: its policy forbids it, and pictures are data in it. Without JavaScript its
tables are there and the sliders are not.
"""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING

from plan3d.simulator.analysis.time_breakdown import waterfall
from plan3d.simulator.base import text_tables
from plan3d.simulator.base.text_tables import html_text
from plan3d.simulator.reporting import explorer, report, why
from plan3d.simulator.reporting.plots import time_and_memory
from plan3d.simulator.reporting.plots_many import frontier_picture
from plan3d.simulator.step import costs_tables

from . import report_explorer, search_view, views

if TYPE_CHECKING:
    from plan3d.search.result.search_result import SearchResult
    from plan3d.search.whatif.plans_around import PlansAround
    from plan3d.simulator.step.costs import Costs

    from .report_explorer import Launch

_HEAD = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {allowed}">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
{style}</style></head><body>
<h1>{title}</h1>
"""


def page(
    result: SearchResult,
    tokens: float | None,
    price: float | None,
    infeasible: list[str],
    around: PlansAround,
    launch: Launch,
) -> str:
    """The page: the answer, plans to rank anew, the ranking, where time and memory go, why, and
    what is assumed. `around` are the plans of each batch, `launch` writes the line that starts one.
    """
    task, script = result.task, explorer.script()
    title = f"{task.model.name} on {task.gpus} x {task.cluster.accelerator.name}"
    out = [
        _HEAD.format(
            title=html_text(title), allowed=explorer.allowed(script), style=explorer.style()
        )
    ]
    if result.costs is None:
        out += [_section("No plan fits", infeasible), *_asked(result)]
    else:
        costs = result.costs
        out += _answer(result, costs, tokens, price)
        out += report_explorer.section(result, around)
        out += _details(result, costs, tokens, price, launch(task, result.plans[0]))
        record = report_explorer.record(result, around, launch, tokens, price)
        out += [f'<script type="application/json" id="data">{explorer.embedded(record)}</script>']
        out += [f"<script>{script}</script>"]
    return "\n".join([*out, f"<p>plan3d {html_text(views.version())}</p></body></html>\n"])


def _answer(
    result: SearchResult, costs: Costs, tokens: float | None, price: float | None
) -> list[str]:
    best = costs.take(slice(0, 1))
    low, high = report.bounds(best)
    said = [f"Best plan: {report.summary(best)}; step between {low:.4g} and {high:.4g} s"]
    said += views.anchor_lines(best)
    if tokens is not None:
        said.append(views.training_line(costs, tokens, price))
    lines = "<br>".join(map(html_text, said))
    return [f'<p class="answer">{lines}</p>']


def _details(
    result: SearchResult, costs: Costs, tokens: float | None, price: float | None, launch: str
) -> list[str]:
    best = costs.take(slice(0, 1))
    extra = search_view.family_columns(result)
    extra |= views.training_columns(costs, len(costs), tokens, price)
    same = " ".join(
        f"{name}={value}" for name, value in costs_tables.shared_settings(costs).items()
    )
    return [
        "<h2>What was asked</h2>",
        *_asked(result),
        "<div data-static><h2>Ranking</h2>",
        _tables([costs_tables.ranking(costs, len(costs), extra)]),
        f"<p>mem: GiB = 2^30 bytes of the fullest rank; in every plan {html_text(same)}</p>",
        *([f"<h2>Launch the best plan</h2><pre>{html_text(launch)}</pre>"] if launch else []),
        "</div>",
        "<h2>Where the time and memory of the best plan go</h2>",
        _picture(time_and_memory(best, waterfall(best), "svg"), "waterfall and memory"),
        _tables([*costs_tables.breakdown(best), report.stage_table(best)]),
        *_timeline(best),
        _section("Why", why.why(best)),
        *_frontier(result, costs),
        _section("Assumptions", why.assumptions(best)),
    ]


def _timeline(best: Costs) -> list[str]:
    """The pipeline of the best plan, event by event; nothing where it has one rank."""
    if best.plans.take(0).pp == 1:
        return []
    from plan3d.simulator.reporting.gantt import picture
    from plan3d.simulator.step.plan_timeline import timeline_of

    drawn = picture(timeline_of(best.task, best.plans.take(0)), "png")
    return ["<h2>Timeline of the best plan</h2>", _picture(drawn, "timeline", "png")]


def _frontier(result: SearchResult, costs: Costs) -> list[str]:
    """The picture of time against memory; nothing of a search that leaves plans out."""
    if result.frontier is None:
        return []
    picture = frontier_picture(result.frontier, costs, result.limit, "svg")
    return ["<h2>Time against memory</h2>", _picture(picture, "frontier")]


def _asked(result: SearchResult) -> list[str]:
    """What was asked, and what the search met."""
    lines = views.header(result.task, result.limit)
    if result.costs is not None:
        lines = [*lines, views.peak_line(result.costs)]
    return [f"<p>{html_text(line)}</p>" for line in [*lines, *search_view.count_lines(result)]]


def _section(title: str, sentences: list[str]) -> str:
    items = "".join(f"<li>{html_text(sentence)}</li>" for sentence in sentences)
    return f"<h2>{html_text(title)}</h2><ul>{items}</ul>"


def _tables(shown: list[text_tables.Table]) -> str:
    return f'<div class="wide">{text_tables.tables_html(shown)}</div>'


def _picture(drawn: bytes, name: str, form: str = "svg+xml") -> str:
    data = b64encode(drawn).decode()
    return f'<img alt="{html_text(name)}" src="data:image/{form};base64,{data}">'
