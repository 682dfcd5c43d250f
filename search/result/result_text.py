"""A search result as plain text: its first plans in a table, or why there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from plan3d.simulator.base.text_tables import format_table
from plan3d.simulator.base.units import whole_percent
from plan3d.simulator.step.costs_tables import MOST_ROWS, ranking, shared_settings
from plan3d.simulator.uncertainty.memory import probability_fits

from .obstacle import obstacle

if TYPE_CHECKING:
    from .search_result import SearchResult


def text(result: SearchResult) -> str:
    """At most SHOWN plans and four lines more."""
    if result.costs is None:
        return f"{result.where}: {obstacle(result)}"
    shown = result.costs.take(slice(0, MOST_ROWS))
    fits = np.atleast_1d(probability_fits(shown))
    table = ranking(shown, MOST_ROWS, {"fits %": [whole_percent(float(one)) for one in fits]})
    same = " ".join(f"{name}={value}" for name, value in shared_settings(shown).items())
    left = len(result.plans) - len(shown)
    return "\n".join(
        [
            f"{result.where}: {result.backend} search by {result.objective}",
            format_table(table),
            *([f"... and {left} more: to_frame()"] if left else []),
            *([f"in every plan {same}"] if same else []),
        ]
    )
