"""Lines about one plan that first screens share: (name, text) pairs for Screen.items()."""

from __future__ import annotations

import re
from itertools import islice

from plan3d.search.whatif.single_field_changes import WORTH
from plan3d.simulator.analysis.goodput import DAY, Reliability, Training
from plan3d.simulator.base.units import (
    GIB,
    format_bytes,
    format_count,
    format_flops,
    format_seconds,
)
from plan3d.simulator.reporting import why
from plan3d.simulator.reporting.assumptions import old_gpu_warnings
from plan3d.simulator.reporting.report import training_record
from plan3d.simulator.runs.nearest_run import CLOSE_DISTANCE
from plan3d.simulator.runs.same_runs import sentence
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.step.costs_tables import number_format
from plan3d.simulator.task import Task
from plan3d.simulator.uncertainty.memory import (
    exceeds_failed_run,
    fitting_share,
    format_probability,
    verdict_of,
)

from ..answers.plan import PlanAnswer
from ..answers.question import launcher
from . import views

Items = list[tuple[str, str]]
LONG = 1.1
"""MFU over the whole window is said beside that of the causal half from this many times on."""
REASONS = 2
"""Sentences beside the one that says where GPU time goes."""
MORE_LINE = "-v shows all numbers and assumptions; plan3d help words explains them"


def gpus(task: Task) -> str:
    """'3,072 H100': the number of GPUs and their name without memory and socket."""
    return f"{task.gpus:,} {re.sub('-[0-9]+GB.*', '', task.cluster.accelerator.name)}"


def headline(answer: PlanAnswer) -> str:
    """The answer in one sentence: the step of one plan, or what training takes, with its 80 %."""
    costs, training = answer.costs, answer.question.training
    task, (low, high) = costs.task, answer.interval
    where = gpus(task)
    if training is not None:
        state = "" if costs.fits else ", OUT OF MEMORY"
        return f"{where}{state}: {_training(answer, training)}"
    apart = costs.mfu > LONG * costs.mfu_causal
    causal = f" ({100 * costs.mfu_causal:.1f} causal)" if apart else ""
    rates = (
        f"({low:.4g} to {high:.4g} at 80 %), {100 * costs.mfu:.1f} % MFU{causal}, "
        f"{costs.tokens_per_second:,.0f} {task.model.unit}/s"
    )
    lead = f"{task.model.name} on {where}: "
    if costs.margin < 0:
        missing = format_bytes(-costs.margin)
        lead += f"OUT OF MEMORY by {missing}; a step would take {costs.step_seconds:.4g} s "
        return lead + rates
    state = "" if costs.fits else "OUT OF HOST MEMORY; "
    return f"{lead}{state}{costs.step_seconds:.4g} s a step {rates}"


def _training(answer: PlanAnswer, training: Training) -> str:
    """'51 to 70 days, $9.4M to $12.9M at 80 % (expected: 58 days, $10.7M)'."""
    costs = answer.costs
    tokens, price = training.tokens, training.price
    expected = training_record(costs, 0, tokens, price)
    ends = [seconds / costs.step_seconds for seconds in answer.interval]
    low, high = (expected["train_seconds"] * share for share in ends)
    between, middle = _duration(low, high), _duration(expected["train_seconds"])
    if price is not None:
        usd = expected["cost_usd"]
        between += f", {_dollars(usd * ends[0])} to {_dollars(usd * ends[1])}"
        middle += f", {_dollars(usd)}"
    amount = f"{format_count(tokens)} {costs.task.model.unit}"
    return f"{between} at 80 % (expected: {middle}) for {amount}"


def _duration(*seconds: float) -> str:
    """'51 to 70 days', in hours where it is less than two days."""
    unit, name = views.time_unit(seconds)
    return f"{' to '.join(f'{s / unit:.3g}' for s in seconds)} {name}"


def _dollars(usd: float) -> str:
    """'$9.4M'."""
    for factor, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if usd >= factor:
            return f"${usd / factor:.3g}{suffix}"
    return f"${usd:.3g}"


def facts(answer: PlanAnswer) -> Items:
    """The question, what it left open, the plan, whether it fits, the nearest measured run, the
    goal."""
    costs = answer.costs
    return [
        *question(costs.task, number_format(costs.plans)),
        *(("assumed", line) for line in answer.question.assumed),
        ("plan", str(costs.plans.take(0))),
        ("memory", memory(answer)),
        *measured(answer),
        *(("timed", line) for line in (timed(costs) if costs.task.calibration else [])),
        *(("goal", line) for line in (views.accuracy_lines(costs) if costs.task.goal else [])),
    ]


def question(task: Task, precision: str) -> Items:
    """What the question was taken to be."""
    model, framework = task.model, launcher(task)
    active = model.active_parameters
    size = f"{format_count(model.parameters)} parameters"
    size += f" ({format_count(active)} active)" if active != model.parameters else ""
    stack = f", launched by {framework}" if framework else ""
    return [
        (
            "asked",
            f"{size}, batch {task.global_batch:,} x {task.sequence:,} {model.unit}, "
            f"{precision}{', ' * bool(precision)}{task.software.name}{stack}",
        ),
        *(
            ("warning", f"{part} of the model is left out: its weights, memory and time")
            for part in model.left_out
        ),
        *(("warning", line) for line in old_gpu_warnings(task)),
    ]


def memory(answer: PlanAnswer) -> str:
    """Whether the plan fits, with which margin and how likely."""
    costs = answer.costs
    if not answer.fits_in_limit:
        return re.sub("^[A-Z ]+", lambda capitals: capitals[0].lower(), views.verdict(costs))
    likely = answer.probability_fits
    if exceeds_failed_run(costs):
        used = f"{costs.memory_bytes / GIB:.1f} of {format_bytes(costs.capacity)}"
        return f"does not fit: {used}, as much as a run that ran out of memory"
    used = (
        f"(probability {format_probability(likely)}): {costs.memory_bytes / GIB:.1f} of "
        f"{format_bytes(costs.capacity)}, {costs.margin / GIB:.1f} GiB left on rank "
        f"{costs.worst_rank}"
    )
    if verdict_of(likely) == "fits":
        return f"fits {used}"
    return f"at the edge {used}; sure up to {fitting_share(costs) * costs.capacity / GIB:.1f} GiB"


def timed(costs: Costs) -> list[str]:
    """What a calibration keeps of this plan's step and of the fastest of the same question."""
    steps = costs.task.calibration.timed_plans_of(costs.task)
    plan = str(costs.plans.take(0))
    lines = [f"this plan took {steps[plan].seconds:.4g} s a step"] if plan in steps else []
    fastest = min(steps.values(), key=lambda one: one.seconds, default=None)
    if fastest is not None and fastest.plan != plan:
        many = f"the fastest of {len(steps)}" if len(steps) > 1 else "a timed plan"
        lines.append(f"{many} took {fastest.seconds:.4g} s: {fastest.plan}")
    return lines


def measured(answer: PlanAnswer) -> Items:
    """The nearest measured run, where one is near, and what contradicts it."""
    nearest, costs = answer.nearest_run, answer.costs
    if nearest is None:
        return []
    lines = [("measured", nearest.brief)]
    low, high = (costs.mfu * costs.step_seconds / step for step in answer.interval[::-1])
    if nearest.distance <= CLOSE_DISTANCE and not low <= nearest.run.mfu <= high:
        forecast = f"{100 * low:.0f} to {100 * high:.0f} %"
        lines.append(("", f"which is outside the forecast of {forecast} MFU"))
    if answer.same_runs:
        lines.append(("", sentence(answer.same_runs)))
    return lines


def reasons(costs: Costs) -> Items:
    """Where the GPU time goes, and what the two largest losses come from."""
    rate = format_flops(costs.model_flops_per_second).split()[0]
    causes = why.step_causes(costs)
    largest = ", ".join(f"{one.label} {100 * one.share:.1f} %" for one in causes[:2])
    of = f"{rate} of {format_flops(costs.peak_flops)} a GPU ({number_format(costs.plans)}, dense)"
    settings = islice(filter(None, (one.settings for one in causes)), REASONS)
    return [("why", of), ("", f"lost: {largest}"), *(("", line) for line in settings)]


def next_step(answer: PlanAnswer) -> Items:
    """The one change that would help most."""
    change, over = answer.next_step, not answer.fits_in_limit
    if change is None:
        does = "makes it fit" if over else f"fits and improves tokens/s by {100 * WORTH:.0f} %"
        return [("next step", f"no single change of plan, batch, network or precision {does}")]
    gain = f"{100 * change.gain:+.0f} % tokens/s"
    return [("next step", f"{change.description}: {'fits, ' * over}{gain}")]


def failures(answer: PlanAnswer) -> Items:
    """What failures make of a run, where that is asked for or a cluster is sized."""
    training = answer.question.training
    if training is None or (training.reliability is None and not training.sizes_cluster):
        return []
    return [("failures", failure_line(answer.costs, training))]


def failure_line(costs: Costs, training: Training) -> str:
    """Days and cost of one plan with failures and without, and how often to checkpoint; with
    published failures where none are given."""
    reliability = training.reliability or Reliability()
    r = views.failure_record(costs, 0, training, reliability)
    if not r["goodput"]:
        return "with failures it never ends: jobs fail before a checkpoint is written"
    low, high = (f"{seconds / DAY:.3g}" for seconds in r["train_seconds_interval"])
    cost = f", {r['cost_usd']:,.0f} USD" if training.price else ""
    every = r["checkpoint_interval_seconds"]
    often = f", best with a checkpoint every {format_seconds(every)}" if every else ""
    ideal = training_record(costs, 0, training.tokens)["train_seconds"] / DAY
    stated = training.reliability is not None
    hint = "" if stated else "; --goodput or --failures-per-gpu-day sizes the cluster by it"
    return (
        f"{'with' if stated else 'with published'} failures {r['train_seconds'] / DAY:.3g} days "
        f"({low} to {high} in four of five such runs), {r['gpu_hours']:,.0f} GPU-hours{cost}: "
        f"goodput {100 * r['goodput']:.0f} %{often}; without {ideal:.3g} days{hint}"
    )
