"""The first screen about plans: the sentence, whether it fits, why, and what would help.

Lines are (name, text) pairs for Screen.items(); everything else is in the tables of -v.
"""

from __future__ import annotations

import argparse
import re

from plan3d.search.whatif.best_change import best_change, does_not_fit
from plan3d.search.whatif.single_field_changes import WORTH
from plan3d.simulator.base.units import GIB, format_bytes, format_count, format_flops
from plan3d.simulator.plan.values import spell
from plan3d.simulator.reporting import report, why
from plan3d.simulator.runs.nearest_run import CLOSE_DISTANCE, nearest_run
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.step.costs_tables import number_format
from plan3d.simulator.task import Task
from plan3d.simulator.uncertainty.memory import (
    exceeds_failed_run,
    fitting_share,
    format_probability,
    probability_fits,
    verdict_of,
)

from ..arguments.usual_sizes import assumed
from . import views

Items = list[tuple[str, str]]
LONG = 1.1
"""MFU over the whole window is said beside that of the causal half from this many times on."""
REASONS = 2
"""Sentences beside the one that says where GPU time goes."""
MORE = "-v shows all numbers and assumptions; plan3d help words explains them"


def gpus(task: Task) -> str:
    """'3,072 H100': the number of GPUs and their short name."""
    return f"{task.gpus:,} {task.cluster.accelerator.name.partition('-')[0]}"


def sentence(costs: Costs, tokens: float | None = None, price: float | None = None) -> str:
    """The answer in one sentence: the step of one plan, or what training takes, with its 80 %."""
    task, one = costs.task, costs.row()
    low, high = report.bounds(one)
    where = f"{gpus(task)}{'' if one.fits else ', where it does not fit'}"
    if tokens is not None:
        return f"{where}: {training(one, (low, high), tokens, price)}"
    apart = one.mfu > LONG * one.mfu_causal
    causal = f" ({100 * one.mfu_causal:.1f} causal)" if apart else ""
    return (
        f"{task.model.name} on {where}: {one.step_seconds:.4g} s a step "
        f"({low:.4g} to {high:.4g} at 80 %), {100 * one.mfu:.1f} % MFU{causal}, "
        f"{one.tokens_per_second:,.0f} {task.model.unit}/s"
    )


def training(costs: Costs, between: tuple[float, float], tokens: float, price: float | None) -> str:
    """'51 to 70 days, $9.4M to $12.9M at 80 % (expected: 58 days, $10.7M)'."""
    expected = report.training_record(costs, 0, tokens, price)
    ends = [seconds / costs.step_seconds for seconds in between]
    low, high = (expected["train_seconds"] * share for share in ends)
    told, middle = duration(low, high), duration(expected["train_seconds"])
    if price is not None:
        usd = expected["cost_usd"]
        told += f", {dollars(usd * ends[0])} to {dollars(usd * ends[1])}"
        middle += f", {dollars(usd)}"
    return f"{told} at 80 % (expected: {middle}) for {format_count(tokens)} {costs.task.model.unit}"


def duration(*seconds: float) -> str:
    """'51 to 70 days', in hours where it is less than two days."""
    unit, name = views.time_unit(seconds)
    return f"{' to '.join(f'{s / unit:.3g}' for s in seconds)} {name}"


def dollars(usd: float) -> str:
    """'$9.4M'."""
    for factor, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if usd >= factor:
            return f"${usd / factor:.3g}{suffix}"
    return f"${usd:.3g}"


def facts(
    costs: Costs, limit: float | None = None, args: argparse.Namespace | None = None
) -> Items:
    """The question, what it left open, the plan, whether it fits, the nearest measured run, the
    goal."""
    one, task = costs.row(), costs.task
    open_ = [] if args is None else assumed(args, task.model, task.sequence, task.global_batch)
    question = [*asked(task, number_format(one.plans)), *(("assumed", line) for line in open_)]
    told = [("plan", str(one.plans.take(0))), ("memory", fits(one, limit)), *_seen(one)]
    goal = [("goal", line) for line in views.accuracy_lines(costs)]
    return [*question, *told, *goal]


def asked(task: Task, precision: str) -> Items:
    """What the question was taken to be."""
    model, launcher = task.model, views.launcher(task)
    active = model.active_parameters
    size = f"{format_count(model.parameters)} parameters"
    size += f" ({format_count(active)} active)" if active != model.parameters else ""
    stack = f", launched by {launcher}" if launcher else ""
    return [
        (
            "asked",
            f"{size}, batch {task.global_batch:,} x {task.sequence:,} {model.unit}, "
            f"{precision}{', ' * bool(precision)}{task.software.name}{stack}",
        ),
        *(
            ("beware", f"{part} of the model is left out: its weights, memory and time")
            for part in model.left_out
        ),
        *(("beware", line) for line in why.old_gpu_warnings(task)),
    ]


def fits(costs: Costs, limit: float | None = None) -> str:
    """Whether one plan fits, with which margin and how likely."""
    one = costs.row()
    if does_not_fit(one, limit):
        return re.sub("^[A-Z ]+", lambda shouted: shouted[0].lower(), views.verdict(one))
    likely = float(probability_fits(one))
    if exceeds_failed_run(one):
        held = f"{one.memory_bytes / GIB:.1f} of {format_bytes(one.capacity)}"
        return f"does not fit: {held}, as much as a run that ran out of memory"
    held = (
        f"(probability {format_probability(likely)}): {one.memory_bytes / GIB:.1f} of "
        f"{format_bytes(one.capacity)}, {one.margin / GIB:.1f} GiB left on rank {one.worst_rank}"
    )
    if verdict_of(likely) == "fits":
        return f"fits {held}"
    return f"at the edge {held}; sure up to {fitting_share(one) * one.capacity / GIB:.1f} GiB"


def _seen(costs: Costs) -> Items:
    """The nearest measured run, and the timed steps of a calibration."""
    return [*measured(costs), *(("timed", line) for line in timed(costs))]


def timed(costs: Costs) -> list[str]:
    """What a calibration keeps of this plan's step and of the fastest of the same question."""
    task = costs.task
    known = task.calibration.timed_plans_of(task) if task.calibration else {}
    own = str(costs.plans.take(0))
    lines = [f"this plan took {known[own].seconds:.4g} s a step"] if own in known else []
    fastest = min(known.values(), key=lambda one: one.seconds, default=None)
    if fastest is not None and fastest.plan != own:
        many = f"the fastest of {len(known)}" if len(known) > 1 else "a timed plan"
        lines.append(f"{many} took {fastest.seconds:.4g} s: {fastest.plan}")
    return lines


def measured(costs: Costs) -> Items:
    """The nearest measured run, where one is near, and what contradicts it."""
    found = nearest_run(costs.task, number_format(costs.plans))
    if found is None:
        return []
    told = [("measured", found.brief)]
    one = costs.row()
    fast, slow = report.bounds(one)
    low, high = (float(one.mfu) * one.step_seconds / step for step in (slow, fast))
    if found.distance <= CLOSE_DISTANCE and not low <= found.run.mfu <= high:
        forecast = f"{100 * low:.0f} to {100 * high:.0f} %"
        told.append(("", f"which is not in the {forecast} forecast here"))
    return told


def reasons(costs: Costs) -> Items:
    """Where the GPU time goes, and what the two largest losses come from."""
    one = costs.row()
    rate, peak = format_flops(one.model_flops_per_second).split()[0], format_flops(one.peak_flops)
    shares = sorted(why.loss_shares(one).items(), key=lambda item: -abs(item[1]))
    lost = [(name, s) for name, s in shares if name != "peak" and abs(s) >= why.LEAST_SHARE]
    largest = ", ".join(f"{why.LABELS[name]} {100 * share:.1f} %" for name, share in lost[:2])
    of = f"{rate} of {peak} a GPU ({number_format(one.plans)}, dense)"
    caused = [line for name, _ in lost if (line := _cause(name, one))]
    return [("why", of), ("", f"lost: {largest}"), *(("", line) for line in caused[:REASONS])]


def _cause(name: str, costs: Costs) -> str:
    """What a loss comes from; '' where there is no more to say than its name."""
    plan, cluster = costs.plans.take(0), costs.task.cluster
    batches = costs.task.global_batch // (plan.dp * plan.micro_batch)
    hidden = ("not overlapped", "after overlap")
    causes = {
        "recompute": f"recompute={spell('recompute', plan.recompute)} buys activation memory",
        "tensor_comm": f"tensor parallelism: tp={plan.tp}, {hidden[plan.overlap_tp]}",
        "bubble": f"bubble: pp={plan.pp}, {batches:,} micro-batches, "
        f"virtual_stages={plan.virtual_stages}",
        "data_comm": f"data parallelism: {plan.dp * plan.cp:,} ranks, zero={plan.zero}, "
        f"{hidden[plan.overlap_grad_reduce]}",
        "expert_comm": f"experts: all-to-alls over ep={plan.ep}, {cluster.fast.gpus} GPUs are "
        "fast-linked",
        "kernels": f"kernels: {_kernels(costs)}",
    }
    return causes.get(name, "")


def _kernels(costs: Costs) -> str:
    """How fast kernels do the model's arithmetic, and the largest of them."""
    compute = {name: s for name, s in costs.compute_seconds.items() if name != "recompute"}
    total = sum(compute.values())
    largest = max(compute, key=lambda name: compute[name])
    reached = 100 * costs.mfu * costs.step_seconds / total
    share = 100 * compute[largest] / total
    return f"{reached:.0f} % of peak while they run, {share:.0f} % of it {largest}"


def helps(costs: Costs, limit: float | None = None) -> Items:
    """The one change that would help most."""
    found, over = best_change(costs, limit), does_not_fit(costs, limit)
    if found is None:
        none = "no one change of plan, batch, network or precision"
        does = "makes it fit" if over else f"fits and gains {100 * WORTH:.0f} %"
        return [("helps", f"{none} {does}")]
    more = f"{100 * abs(found.gain):.0f} % {'more' if found.gain >= 0 else 'fewer'} tokens/s"
    return [("helps", f"{found.what}: {'fits, with ' * over}{more}")]
