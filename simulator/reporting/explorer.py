"""Data of the interactive page of a search: seconds and bytes of its plans by slider position.

Nothing is interpolated: each position of the sliders is the simulator's own answer for these plans.
The page adds parts up, leaves out what exceeds the memory, and takes of each family the simplest
plan that is alike to the fastest.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..analysis.sensitivity import KNOBS
from ..analysis.time_breakdown import LABELS as LOSSES
from ..base.arrays import Index, Value
from ..base.printable import escape_unprintable
from ..hardware.cluster import FastDomain, InterNodeNetwork
from ..plan.plan import Plan, families, family_name
from ..step import memory
from ..step.costs import Costs
from ..step.evaluate import simulate
from ..step.plan_groups import PARTS
from ..task import Task

NETWORKS = (0.25, 0.5, 1.0, 2.0)
"""Of the bandwidth between fast domains: positions of its slider."""
LINKS = (0.5, 1.0, 2.0)
"""Of the bandwidth inside a fast domain."""
DIGITS = 5
"""Significant digits of what is embedded."""
LABELS = {
    "ideal": LOSSES["ideal"],
    "kernels": "kernels below peak",
    **{name: LOSSES[name] for name in ("recompute", *PARTS[1:])},
}
"""Parts of a step on the page; they add up to it."""


def explorer_record(
    batches: Sequence[tuple[Task, Plan, Index, int, Sequence[str]]],
    limit: float,
    alike: float | None,
) -> dict[str, Any]:
    """All that the page ranks with, plain numbers in SI units.

    `batches` are (task, plans, how simple each is, how many of the first are the answer, their
    launch lines); `limit` the bytes a plan may
    use, `alike` the relative difference of steps under which plans of a family are one answer, None
    where plans are ranked on their own.
    """
    task = batches[0][0]
    return {
        "gpus": task.gpus,
        "parts": [{"name": name, "label": label} for name, label in LABELS.items()],
        "memory_parts": list(memory.PARTS),
        "networks": _positions(task.cluster.network, network_factors(task)),
        "links": _positions(task.cluster.fast_domain, link_factors(task)),
        "limit": limit,
        "capacity": task.cluster.accelerator.memory,
        "alike": alike,
        "batches": [_batch(*batch) for batch in batches],
    }


def script_policy(code: str) -> str:
    """The source of a content security policy that lets this script run, and no other."""
    return f"'sha256-{b64encode(sha256(code.encode()).digest()).decode()}'"


def script_json(record: Any) -> str:
    """JSON that can stand inside a script element: no '<' that could end it, no NaN."""
    text = json.dumps(record, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def network_factors(task: Task) -> tuple[float, ...]:
    """Positions of the bandwidth between fast domains; one where nothing is sent there."""
    return NETWORKS if task.gpus > task.cluster.fast_domain.gpus else (1.0,)


def link_factors(task: Task) -> tuple[float, ...]:
    """Positions of the bandwidth inside a fast domain; one where it has a single GPU."""
    return LINKS if min(task.gpus, task.cluster.fast_domain.gpus) > 1 else (1.0,)


def scaled_task(task: Task, network: float, link: float) -> Task:
    """The same question with both bandwidths multiplied."""
    task = KNOBS["inter_node_bandwidth"].scale(task, network)
    return KNOBS["intra_node_bandwidth"].scale(task, link)


def _positions(link: InterNodeNetwork | FastDomain, factors: Sequence[float]) -> dict[str, Any]:
    rates = [{"factor": f, "bandwidth": f * link.bandwidth} for f in factors]
    return {"name": escape_unprintable(link.name), "positions": rates}


def _batch(
    task: Task, plans: Plan, simple: Index, listed: int, launch: Sequence[str]
) -> dict[str, Any]:
    """The plans of one batch: bytes, and the parts of a step [network, link, plan, part]."""
    costs = simulate(task, plans)
    ideal = costs.mfu * costs.step
    seconds = [
        [
            _parts(simulate(scaled_task(task, network, link), plans), ideal)
            for link in link_factors(task)
        ]
        for network in network_factors(task)
    ]
    of, held = families(plans), np.stack(list(costs.memory.values()), axis=-1)
    return {
        "global_batch": task.global_batch,
        "tokens": task.tokens,
        "plans": [
            {
                "plan": escape_unprintable(str(plan)),
                "family": family_name(int(of[row])),
                "simple": int(simple[row]),
                "listed": row < listed,
                "launch": launch[row],
                "memory": _significant(held[row]),
            }
            for row, plan in enumerate(plans)
        ],
        "seconds": [[_significant(table) for table in row] for row in seconds],
    }


def _parts(costs: Costs, ideal: Value) -> NDArray[np.float64]:
    """Seconds of LABELS [plan, part]."""
    seconds, recompute = costs.seconds, costs.compute_seconds["recompute"]
    kernels = seconds["compute"] - recompute - ideal
    columns = [ideal, kernels, recompute, *(seconds[name] for name in PARTS[1:])]
    return np.stack(columns, axis=-1)


def _significant(table: NDArray[np.float64]) -> list[Any]:
    """Nested lists of numbers with DIGITS; 0 and whole numbers without a point."""
    if table.ndim > 1:
        return [_significant(row) for row in table]
    short = [float(f"{x:.{DIGITS}g}") for x in table.tolist()]
    return [int(x) if x == int(x) else x for x in short]
