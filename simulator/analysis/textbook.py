"""Textbook formulas beside the simulator's numbers, and why the two differ.

Legend as in closed_forms: N parameters, l layers, h hidden, s sequence, a heads, b sequences, v
vocabulary, T tokens, n GPUs, F peak FLOP/s, U utilisation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..base.errors import InputError
from ..hardware.precision import RECIPES, Optimizer, Precision
from ..plan.plan import Plan
from ..step.costs import Costs
from ..step.evaluate import evaluate
from ..step.memory import PARTS, bytes_of_states
from ..task import Task
from ..workload.model import Network
from . import closed_forms


@dataclass(frozen=True)
class FormulaRow:
    """One formula, and what the simulator says of the same."""

    name: str
    formula: str
    textbook: float
    simulator: float
    unit: str
    """Empty of parameters, else bytes, seconds or 1."""
    why: str
    """Why the two differ."""


def formula_rows(
    task: Task, best: Costs, tokens: float, took: float | None = None, full_recompute: bool = False
) -> list[FormulaRow]:
    """The formulas of a task; `best` is its fastest plan, `took` the seconds that a run took, with
    `full_recompute` or without.

    Raises InputError for a network that is no transformer.
    """
    model = task.model
    if isinstance(model, Network) or model.kinds[0].attention is None:
        raise InputError(f"the textbook's formulas are of transformers; {model.name} is none")
    out = [*_sizes(task), *_memory(task), _time(task, best, tokens, full_recompute)]
    if took is None:
        return out
    return [*out, _utilisation(task, best, tokens, took, full_recompute)]


def _sizes(task: Task) -> list[FormulaRow]:
    model, n = task.model, float(task.model.parameters)
    by_hand = closed_forms.parameters(model.layers, model.hidden, model.vocabulary)
    counted = "counted one by one: grouped heads, gates, experts, biases, norms, tied ends"
    every = [FormulaRow("parameters", "12 l h^2 + 2 v h", by_hand, n, "", counted)]
    for name, code, bytes_each in (("fp32", Precision.FP32, 16), ("mixed", Precision.MIXED, 12)):
        held = sum(_states(task, code).values()) * n
        why = "weights, gradients and Adam's moments, each in its format"
        every.append(
            FormulaRow(f"states, {name}", f"{bytes_each} N", bytes_each * n, held, "bytes", why)
        )
    return every


def _states(task: Task, code: int) -> dict[str, float]:
    held = bytes_of_states(task, RECIPES[code], Optimizer.ADAM)
    return {name: held[name] for name in PARTS[:3]}


def _memory(task: Task) -> list[FormulaRow]:
    """Bytes of one GPU: activations of a sequence, data and model parallelism."""
    model, n = task.model, float(task.model.parameters)
    heads = model.kinds[0].attention.heads
    values = closed_forms.activation_values(model.layers, model.hidden, heads, task.sequence, 1)
    one = replace(task, cluster=replace(task.cluster, gpus=1), global_batch=1)
    narrow = "pure-bf16" if "bf16" in task.cluster.accelerator.peak else "fp16"
    alone, half = (evaluate(one, Plan(precision=name)).memory for name in ("fp32", narrow))
    sharded = replace(task, global_batch=task.gpus)
    every = evaluate(sharded, Plan(dp=task.gpus, zero=3, precision="fp32")).memory
    of_states = sum(every[name] for name in PARTS[:3])
    rest = sum(every.values()) / of_states - 1
    return [
        FormulaRow(
            "activations, b = 1",
            "4 b l (2 s^2 a + 14 s h)",
            4 * values,
            alone["activations"] + alone["logits"],
            "bytes",
            "flash attention stores no scores, fused kernels keep less",
        ),
        FormulaRow(
            "a GPU, data parallel",
            "2 (4 N + (b/n) values)",
            closed_forms.data_parallel_bytes(n, values, 1),
            sum(half.values()),
            "bytes",
            f"one sequence a GPU, precision={narrow}; buffers and context besides",
        ),
        FormulaRow(
            "a GPU, model parallel",
            "16 N / n",
            closed_forms.model_parallel_bytes(n, task.gpus),
            of_states,
            "bytes",
            f"states alone, divided by ZeRO 3; the rest is {rest:.3g} times as much",
        ),
    ]


def _time(task: Task, best: Costs, tokens: float, full_recompute: bool) -> FormulaRow:
    peak, share = best.peak_flops, best.mfu
    full = full_recompute or bool(best.plans.take(0).to_dict()["recompute"] == "full")
    seconds = closed_forms.train_seconds(
        task.model.active_parameters, tokens, task.gpus, peak, share, full
    )
    simulated = tokens / best.tokens_per_second
    formula = f"{8 if full else 6} T N / (n F U)"
    why = f"U = {100 * share:.1f} % is the simulator's; attention's own FLOPs are left out of N"
    return FormulaRow("training", formula, seconds, simulated, "seconds", why)


def _utilisation(
    task: Task, best: Costs, tokens: float, took: float, full_recompute: bool
) -> FormulaRow:
    active, peak = task.model.active_parameters, best.peak_flops
    run = (active, tokens, task.gpus, peak, took)
    reached = closed_forms.utilisation(*run, full_recompute=full_recompute)
    why = "of a run of that length; the simulator's is that of the best plan, without failures"
    formula = f"{8 if full_recompute else 6} T N / (n F t)"
    return FormulaRow("utilisation", formula, reached, best.mfu, "1", why)
