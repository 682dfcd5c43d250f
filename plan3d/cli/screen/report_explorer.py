"""The part of a report in which sliders rank its plans anew: what it shows and what it embeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from plan3d.simulator.base.text_tables import html_text
from plan3d.simulator.base.units import format_count
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.reporting.explorer import explorer_record
from plan3d.simulator.task import Task

if TYPE_CHECKING:
    from plan3d.search.result.search_result import SearchResult
    from plan3d.search.whatif.plans_around import PlansAround

Launch = Callable[[Task, Plan], str]
"""Writes the command that starts a plan; '' where no framework can."""

PRICE = 2.0
"""USD of a GPU-hour at which the slider stands where the user gives none."""
TOKENS = 1e9
"""Training tokens whose cost is shown where the user gives none."""
LEAST_MEMORY = 0.25
"""Of the memory that a plan may use: where its slider begins."""

_SLIDERS = """<div class="controls">
<label>bandwidth of {network} <output id="network-said"></output>
<input type="range" id="network" min="0" step="1"></label>
<label>bandwidth of {link} <output id="link-said"></output>
<input type="range" id="link" min="0" step="1"></label>
<label>memory that a plan may use <output id="memory-said"></output>
<input type="range" id="memory" min="{least}" step="0.05"></label>
<label>global batch <output id="batch-said"></output>
<input type="range" id="batch" min="0" step="1"></label>
<label>price of a GPU-hour <output id="price-said"></output>
<input type="range" id="price" min="0.1" step="0.1"></label>
<div><button type="button" id="reset">As asked</button></div>
</div>"""
_PLANS = """<p id="best" aria-live="polite"></p>
<div class="wide"><table id="plans"><thead></thead><tbody></tbody></table></div>
<div id="detail"><h3 id="chosen"></h3>
<div class="panels">
<div><h3>From arithmetic at peak to the step</h3><div id="waterfall"></div></div>
<div><h3>Memory of the fullest rank</h3><div id="memory-bars"></div></div>
</div>
<p id="said" class="note">Point at a bar to read it; press a row to see its plan.</p>
<pre id="launch"></pre><button type="button" id="copy">Copy</button></div>"""


def section(result: SearchResult, around: PlansAround) -> list[str]:
    """The sliders, their table and the chosen plan; hidden until the script runs."""
    cluster = result.task.cluster
    sliders = _SLIDERS.format(
        network=html_text(cluster.network.name),
        link=html_text(cluster.fast.name),
        least=LEAST_MEMORY,
    )
    return [
        '<section id="explorer" hidden><h2>What if?</h2>',
        sliders,
        _PLANS,
        f'<p class="note">{html_text(_said(around))}</p></section>',
    ]


def _said(around: PlansAround) -> str:
    """What the sliders do, and what they do not."""
    from plan3d.search.result.families import NEAR
    from plan3d.search.whatif.plans_around import MEMORY

    count = sum(plans.plans.rows for plans in around.batches)
    out = (
        f"Each position of bandwidth and batch holds plan3d's own steps of {count} plans, none "
        "interpolated; all collectives of a link follow its bandwidth, its latencies stay. "
        "The price does not change the order, because every plan uses all GPUs. "
    )
    if not around.searched:
        return out + "The plans are those of this search, ranked here by their step."
    return (
        out + "Each position of batch and network was searched, with "
        f"{MEMORY:g} times the memory. Of the plans of a family within {100 * NEAR:g} % of its "
        "fastest the simplest is listed; plans that no other of their family beats in time and "
        f"memory are here in steps of {100 * NEAR:g} %. A plan may be missing that is best only at "
        "another bandwidth inside the fast domain, or that differs in fields which a search keeps "
        "fixed: search there to be sure."
    )


def record(
    result: SearchResult,
    around: PlansAround,
    launch: Launch,
    tokens: float | None,
    price: float | None,
) -> dict[str, Any]:
    """What the page's script reads."""
    from plan3d.search.result.families import NEAR
    from plan3d.search.whatif.plans_around import MEMORY

    assert result.costs is not None
    batches = [
        (a.task, a.plans, a.simple, a.listed, [launch(a.task, plan) for plan in a.plans])
        for a in around.batches
    ]
    of = TOKENS if tokens is None else tokens
    return {
        **explorer_record(batches, result.limit, NEAR if around.searched else None),
        "most_memory": MEMORY if around.searched else 1.0,
        "asked": {
            "global_batch": result.task.global_batch,
            "step": float(result.costs.step[0]),
            "tokens": of,
            "price": PRICE if price is None else price,
            "unit": result.task.model.unit,
            "cost_of": f"USD for {format_count(of)} {result.task.model.unit}",
        },
    }
