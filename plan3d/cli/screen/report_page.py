"""The answer of a search as a page: one HTML file with its pictures inside.

The page loads nothing: its policy forbids it, and pictures are data in it.
"""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING

from plan3d.simulator.analysis.time_breakdown import waterfall
from plan3d.simulator.base import text_tables
from plan3d.simulator.base.text_tables import html_text
from plan3d.simulator.reporting import report, why
from plan3d.simulator.reporting.plots import time_and_memory
from plan3d.simulator.reporting.plots_many import frontier_picture
from plan3d.simulator.step import costs_tables

from . import search_view, views

if TYPE_CHECKING:
    from plan3d.search.result.search_result import SearchResult
    from plan3d.simulator.step.costs import Costs

_HEAD = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font: 15px/1.45 sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em; }}
h1 {{ font-size: 1.4em; }} h2 {{ font-size: 1.15em; margin-top: 2em; }}
table {{ border-collapse: collapse; margin: 0.8em 0; font-size: 0.9em; }}
th, td {{ padding: 0.2em 0.7em; border-bottom: 1px solid #ddd; white-space: nowrap; }}
caption {{ text-align: left; padding: 0.3em 0; }}
img {{ max-width: 100%; }} .wide {{ overflow-x: auto; }}
.answer {{ background: #eef5fa; border-left: 5px solid #0072B2; padding: 0.8em 1em; }}
</style></head><body>
<h1>{title}</h1>
"""


def page(
    result: SearchResult, tokens: float | None, price: float | None, infeasible: list[str]
) -> str:
    """The page: the answer, the ranking, where time and memory go, why, and what is assumed."""
    task = result.task
    title = f"{task.model.name} on {task.gpus} x {task.cluster.accelerator.name}"
    out = [_HEAD.format(title=html_text(title))]
    if result.costs is None:
        out += [_section("No plan fits", infeasible), *_asked(result)]
    else:
        out += _answer(result, result.costs, tokens, price)
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
    extra = search_view.family_columns(result)
    extra |= views.training_columns(costs, len(costs), tokens, price)
    same = " ".join(f"{name}={value}" for name, value in costs_tables.worth_saying(costs).items())
    return [
        f'<p class="answer">{lines}</p>',
        *_asked(result),
        "<h2>Ranking</h2>",
        _tables([costs_tables.ranking(costs, len(costs), extra)]),
        f"<p>mem: GiB = 2^30 bytes of the fullest rank; in every plan {html_text(same)}</p>",
        "<h2>Where the time and memory of the best plan go</h2>",
        _picture(time_and_memory(best, waterfall(best), "svg"), "waterfall and memory"),
        _tables([*costs_tables.breakdown(best), report.stage_table(best)]),
        _section("Why", why.why(best)),
        *_frontier(result, costs),
        _section("Assumptions", why.assumptions(best)),
    ]


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
    return f'<div class="wide">{text_tables.html(shown)}</div>'


def _picture(svg: bytes, name: str) -> str:
    data = b64encode(svg).decode()
    return f'<img alt="{html_text(name)}" src="data:image/svg+xml;base64,{data}">'
