"""Textbook formulas beside the simulator's numbers, and why the two differ: sizes, memory, time.

The left side is a closed form of a few numbers of the model and the plan; the right side is what
the cost model or the event simulation says of a plan, and shares nothing with the left but those
numbers. Pipelines are in textbook_pipeline, exchanges of gradients in textbook_exchange.
Legend as in closed_forms: N parameters, l layers, h hidden, s sequence, a heads, b sequences, v
vocabulary, T tokens, n GPUs, F peak FLOP/s, U utilisation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..base.errors import InputError
from ..hardware.precision import RECIPES
from ..layers.cost_columns import Cost
from ..layers.layer_costs import layer_costs
from ..layers.layer_kinds import layer_kinds
from ..plan.plan import Plan
from ..step.costs import Costs
from ..step.evaluate import by_stage, evaluate
from ..step.memory import PARTS
from ..step.stages import strategies
from ..task import Task
from ..workload.model import Network
from . import closed_forms

STATES = PARTS[:3]
"""Weights, gradients and optimizer of one rank."""
MEMORY, TIME = "memory", "time"
"""Topics of rows."""


@dataclass(frozen=True)
class FormulaRow:
    """One formula, and what the simulator says of the same."""

    topic: str
    name: str
    formula: str
    textbook: float
    simulator: float | None
    """None where the simulator cannot be asked; `why` says for what reason."""
    unit: str
    """Empty of counts, else bytes, seconds or 1, a share."""
    why: str
    """Why the two differ."""


def check_transformer(task: Task) -> None:
    """Raise InputError for a network that is no transformer."""
    model = task.model
    if isinstance(model, Network) or model.kinds[0].attention is None:
        raise InputError(f"the textbook's formulas are of transformers; {model.name} is none")


def memory_rows(task: Task, plan: Plan) -> list[FormulaRow]:
    """Parameters, and bytes of one GPU: states, activations, data and model parallelism, ZeRO.

    `plan` has every AUTO resolved.
    """
    return [*_state_rows(task), *_activation_rows(task, plan), *_share_rows(task, plan)]


def _state_rows(task: Task) -> list[FormulaRow]:
    model, n = task.model, float(task.model.parameters)
    one = in_16_bits(replace(task, cluster=replace(task.cluster, gpus=1), global_batch=1))
    fp32, mixed = (evaluate(one, Plan(precision=name)).memory for name in ("fp32", "mixed"))
    by_hand = closed_forms.parameters(model.layers, model.hidden, model.vocabulary)
    counted = "counted one by one: grouped heads, gates, experts, biases, norms, tied ends"
    every = [FormulaRow(MEMORY, "parameters", "12 l h^2 + 2 v h", by_hand, n, "", counted)]
    why = "layer by layer on one GPU, with the vocabulary padded as the stack pads it"
    values = closed_forms.ADAM_VALUES * n
    held = sum(fp32[name] for name in STATES)
    every.append(FormulaRow(MEMORY, "values of Adam", "4 N", values, held / 4, "", why))
    for name, formula, size in zip(
        STATES, ("4 N", "4 N", "8 N"), (4 * n, 4 * n, 8 * n), strict=True
    ):
        every.append(FormulaRow(MEMORY, f"{name}, fp32", formula, size, fp32[name], "bytes", why))
    both = (("fp32", 16 * n, held), ("mixed", 12 * n, sum(mixed[name] for name in STATES)))
    parts = f"4 fp32 weights, 2 + 2 gradient and momentum, 4 second moment; {why}"
    for name, size, found in both:
        formula, reason = ("16 N", why) if name == "fp32" else ("(4 + 2 + 2 + 4) N", parts)
        every.append(FormulaRow(MEMORY, f"states, {name}", formula, size, found, "bytes", reason))
    return every


def _values(task: Task, batch: float) -> float:
    """Activations of a batch by the closed form."""
    model = task.model
    heads = model.kinds[0].attention.heads
    return closed_forms.activation_values(model.layers, model.hidden, heads, task.sequence, batch)


def _activations(task: Task, batch: int) -> tuple[float, float]:
    """Bytes of activations of a batch on one GPU in fp32, and of its states."""
    one = replace(task, cluster=replace(task.cluster, gpus=1), global_batch=batch)
    memory = evaluate(one, Plan(precision="fp32", micro_batch=batch)).memory
    return memory["activations"] + memory["logits"], sum(memory[name] for name in STATES)


def _activation_rows(task: Task, plan: Plan) -> list[FormulaRow]:
    model, n = task.model, float(task.model.parameters)
    why = "flash attention stores no scores, fused kernels keep less; logits are counted"
    every = []
    for batch in dict.fromkeys((1, int(plan.micro_batch), task.global_batch)):
        by_hand, (found, states) = 4 * _values(task, batch), _activations(task, batch)
        name = f"activations, b = {batch:,}"
        formula = "4 b l (2 s^2 a + 14 s h)"
        every.append(FormulaRow(MEMORY, name, formula, by_hand, found, "bytes", why))
        share = (by_hand / (4 * n), found / (states / 4))
        if batch in (1, task.global_batch):
            unit = "1" if share[0] < 1 else ""
            every.append(
                FormulaRow(MEMORY, f"  over weights, b = {batch:,}", "", *share, unit, why)
            )
    b = int(plan.micro_batch)
    heads, found = model.kinds[0].attention.heads, sum(_activations(task, b))
    total = closed_forms.training_bytes(model.layers, model.hidden, heads, task.sequence, b)
    return [
        *every,
        *_layer_rows(task, plan),
        FormulaRow(
            MEMORY,
            f"states and those, b = {b}",
            "4 (48 l h^2 + b l (..))",
            total,
            found,
            "bytes",
            "48 l h^2 has no embedding; flash attention stores no scores",
        ),
    ]


def _layer_rows(task: Task, plan: Plan) -> list[FormulaRow]:
    """Activations of the first layer on one rank, in the plan's format and of its micro-batch, with
    nothing and with all of it run again."""
    recipe, tp, b = RECIPES[int(plan.precision)], int(plan.tp), int(plan.micro_batch)
    size, every = recipe.activation, []
    by_hand = size * _values(task, b) / task.model.layers / tp
    kept = size * b * task.sequence * task.model.hidden / tp
    first = next(i for i, kind in enumerate(layer_kinds(task.model)) if kind.block)
    why = "flash attention stores no scores, fused kernels keep less"
    if tp > 1:
        why += "; without sequence parallelism inputs are whole on every rank"
    for recompute, textbook, formula in (
        ("none", by_hand, "(2s^2 a + 14sh)"),
        ("full", kept, "s h"),
    ):
        again = replace(plan, recompute=recompute, cp=1).table()
        costs = layer_costs(task, recipe, strategies(again)).table[0, first]
        name = f"a layer, recompute={recompute}"
        formula = f"{size:g} b {formula}" + "/tp" * (tp > 1)
        found = float(costs[Cost.ACTIVATIONS])
        every.append(FormulaRow(MEMORY, name, formula, textbook, found, "bytes", why))
    return every


def _share_rows(task: Task, plan: Plan) -> list[FormulaRow]:
    """What one GPU holds: copies of the whole model, a part of it, and ZeRO's stages."""
    n, gpus = float(task.model.parameters), task.gpus
    fullest = -(-task.global_batch // gpus)
    every = replace(in_16_bits(task), global_batch=fullest * gpus)
    half = evaluate(every, Plan(dp=gpus, zero=0, micro_batch=fullest, precision="pure-bf16")).memory
    found = sum(half[name] for name in (*STATES, "activations", "logits"))
    values = _values(task, task.global_batch)
    rows = [
        FormulaRow(
            MEMORY,
            "a GPU, data parallel",
            "2 (4 N + (b/n) values)",
            closed_forms.data_parallel_bytes(n, values, gpus),
            found,
            "bytes",
            f"16 bits each; b = {task.global_batch:,}, n = {gpus:,}: the fullest GPU has "
            f"{fullest} sequence{'s' * (fullest > 1)}; flash attention stores no scores",
        ),
        _model_parallel_row(task, plan),
    ]
    replicas = max(gpus, 2)
    cluster = replace(task.cluster, gpus=replicas)
    sharded = replace(task, cluster=cluster, global_batch=replicas)
    why = f"fp32, n = {replicas:,} replicas; shards are padded"
    for stage, formula in enumerate(("8 N + 8 N / n", "4 N + 12 N / n", "16 N / n"), start=1):
        memory = evaluate(sharded, Plan(dp=replicas, zero=stage, precision="fp32")).memory
        states = sum(memory[name] for name in STATES)
        by_hand = closed_forms.zero_bytes(n, replicas, stage)
        name = f"a GPU, ZeRO {stage}"
        rows.append(FormulaRow(MEMORY, name, f"{formula}, fp32", by_hand, states, "bytes", why))
    return rows


def in_16_bits(task: Task) -> Task:
    """The task on GPUs that compute in bf16 as fast as in fp16, where they have only that: bytes of
    16-bit formats are alike."""
    accelerator = task.cluster.accelerator
    if "bf16" in accelerator.peak:
        return task
    peak = {**accelerator.peak, "bf16": accelerator.peak["fp16"]}
    return replace(task, cluster=replace(task.cluster, accelerator=replace(accelerator, peak=peak)))


def _model_parallel_row(task: Task, plan: Plan) -> FormulaRow:
    """The model cut by the plan's tensor and pipeline ranks alone: no ZeRO, no replicas."""
    tp, pp = int(plan.tp), int(plan.pp)
    alone = replace(task, cluster=replace(task.cluster, gpus=tp * pp), global_batch=pp)
    widths = {kind.experts.ffn for kind in task.model.kinds if kind.experts}
    experts = tp if widths and not any(width % tp for width in widths) else 1
    cut = Plan(tp=tp, pp=pp, dp=1, etp=experts, zero=0, precision="fp32", recompute="full")
    ranks = by_stage(evaluate(alone, cut))
    weights, gradients, optimizer = (ranks[name] for name in STATES)
    return FormulaRow(
        MEMORY,
        "a GPU, model parallel",
        "16 N / n",
        closed_forms.model_parallel_bytes(float(task.model.parameters), tp * pp),
        float((weights + gradients + optimizer).max()),
        "bytes",
        f"n = tp pp = {tp * pp}, no ZeRO: the fullest rank holds the embedding or the head besides",
    )


def time_rows(
    task: Task, costs: Costs, tokens: float, took: float | None = None, full: bool = False
) -> list[FormulaRow]:
    """Training time, and utilisation where a run of these tokens `took` seconds.

    `costs` are those of the plan; `full` counts 8 T N, as a plan with full recompute does.
    """
    active, peak = task.model.active_parameters, costs.peak_flops
    counted = full or bool(costs.plans.take(0).to_dict()["recompute"] == "full")
    # What runs again is part of the utilisation that 8 T N is of.
    utilised = costs.mfu * (1 + costs.repeated_share * counted)
    by_hand = closed_forms.train_seconds(active, tokens, task.gpus, peak, utilised, counted)
    rows = [
        FormulaRow(
            TIME,
            "training",
            f"{8 if counted else 6} T N / (n F U)",
            by_hand,
            tokens / costs.tokens_per_second,
            "seconds",
            f"U = {100 * utilised:.1f} % is the simulator's{', recompute counted' * counted}; "
            "attention's own FLOPs are left out of N",
        )
    ]
    if took is not None:
        reached = closed_forms.utilisation(active, tokens, task.gpus, peak, took, counted)
        why = "of a run of that length; the simulator's is that of the plan, without failures"
        formula = f"{8 if counted else 6} T N / (n F t)"
        rows.append(FormulaRow(TIME, "utilisation", formula, reached, utilised, "1", why))
    return rows
