"""What training takes when jobs fail: a line, and the same for JSON."""

from __future__ import annotations

import argparse
from typing import Any

from plan3d.simulator.analysis.goodput import DAY, Reliability
from plan3d.simulator.base.units import format_seconds
from plan3d.simulator.reporting.report import training_record
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.uncertainty.forecast import step_interval

from ..arguments import goal_arguments, task_arguments


def line(costs: Costs, tokens: float, price: float | None, known: Reliability | None) -> str:
    """Days and cost of the best plan with failures and without, and how often to checkpoint; with
    published failures where nothing is known."""
    r = record(costs, 0, tokens, price, known or Reliability())
    if not r["goodput"]:
        return "with failures it never ends: jobs fail before a checkpoint is written"
    low, high = (f"{seconds / DAY:.3g}" for seconds in r["train_seconds_interval"])
    cost = f", {r['cost_usd']:,.0f} USD" if price else ""
    every = r["checkpoint_interval_seconds"]
    often = f", best with a checkpoint every {format_seconds(every)}" if every else ""
    kept = training_record(costs, 0, tokens)["train_seconds"] / DAY
    hint = "" if known else "; --goodput or --failures-per-gpu-day sizes the cluster by it"
    return (
        f"{'with' if known else 'with published'} failures {r['train_seconds'] / DAY:.3g} days "
        f"({low} to {high} in four of five such runs), {r['gpu_hours']:,.0f} GPU-hours{cost}: "
        f"goodput {100 * r['goodput']:.0f} %{often}; without {kept:.3g} days{hint}"
    )


def items(costs: Costs, args: argparse.Namespace, tokens: float | None) -> list[tuple[str, str]]:
    """What failures make of a run, where that is asked for or a cluster is sized."""
    known = goal_arguments.reliability_of(args)
    sized = task_arguments.asks_for_gpus(args)
    if tokens is None or (known is None and not sized):
        return []
    return [("failures", line(costs, tokens, args.price, known))]


def record(
    costs: Costs, row: int, tokens: float, price: float | None, known: Reliability
) -> dict[str, Any]:
    """What training on `tokens` takes at the goodput of the cluster's size."""
    gpus = costs.task.gpus
    goodput = known.goodput(gpus)
    every = None if known.measured_goodput is not None else known.checkpoint_interval(gpus)
    out: dict[str, Any] = {"goodput": goodput, "checkpoint_interval_seconds": every}
    if not goodput:
        return out
    ideal = training_record(costs, row, tokens, price)
    share = {name: value / goodput for name, value in ideal.items() if name != "energy_joules"}
    one = costs.take([row])
    bounds = (float(bound[0]) / float(one.step[0]) for bound in step_interval(one))
    return out | share | {"train_seconds_interval": [share["train_seconds"] * b for b in bounds]}


def with_failures(
    plans: list[dict[str, Any]],
    costs: Costs | None,
    tokens: float | None,
    price: float | None,
    known: Reliability | None,
) -> None:
    """Add it to the records of ranked plans, where it was asked for."""
    if known and tokens is not None and costs is not None:
        for row, plan in enumerate(plans):
            plan["with_failures"] = record(costs, row, tokens, price, known)
