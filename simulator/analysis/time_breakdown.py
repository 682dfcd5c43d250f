"""Breakdown of a step: seconds from the model's arithmetic at peak to the predicted step.

    step = ideal + causal + matmul + attention + memory_bound + recompute + ... + imbalance + ...

Every term is in GPU-seconds of the step, so they add up to it, and each divided by the step is
the points of MFU that it costs. For one plan, never the hot path.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..operators.model_flops import adapted_flops_per_token, task_flops_per_token
from ..step.costs import Costs

LABELS = {
    "ideal": "arithmetic at peak",
    "causal": "attention scores that the mask skips",
    "matmul": "matrix products below peak",
    "attention": "attention below peak",
    "memory_bound": "memory-bound kernels",
    "recompute": "recompute",
    "contended": "kernels slowed by communication",
    "tensor_comm": "tensor-parallel communication",
    "context_comm": "context-parallel communication",
    "expert_comm": "expert all-to-all",
    "host_comm": "copies to and from the host",
    "launch": "kernel launches",
    "pipeline_comm": "pipeline sends",
    "bubble": "pipeline bubble",
    "imbalance": "uneven stages",
    "data_comm": "data-parallel communication",
    "optimizer": "optimizer and host, once a step",
}
"""What a step consists of; the keys of losses(), in their order."""
KERNELS = ("causal", "matmul", "attention", "memory_bound")
"""Losses inside the kernels that do the model's arithmetic."""


@dataclass(frozen=True, slots=True)
class Loss:
    """One bar of the waterfall."""

    name: str
    label: str
    seconds: float
    mfu_points: float
    """Points of MFU between 100 and the plan's: 100 seconds / step."""
    mfu_if_free: float | None
    """The plan's MFU, as a fraction, if this alone took no time; None for the ideal itself."""


def losses(costs: Costs) -> dict[str, float]:
    """Seconds of one plan's step by LABELS; they add up to the step.

        matmul = seconds of GEMMs, mean over the ranks - their model FLOPs / peak

    and alike for attention. MFU counts attention over the whole window, so what a causal mask
    saves is a gain (`causal`, negative); stacks that materialise scores do not save it.
    """
    costs = costs.row()
    seconds, compute = dict(costs.seconds), costs.compute_seconds
    del seconds["compute"]
    ideal, attention, skipped = _peak_seconds(costs)
    return {
        "ideal": ideal,
        "causal": -skipped,
        "matmul": compute["matmul"] - (ideal - attention),
        "attention": compute["attention"] - (attention - skipped),
        "memory_bound": compute["memory_bound"],
        "recompute": compute["recompute"],
        **seconds,
    }


def _peak_seconds(costs: Costs) -> tuple[float, float, float]:
    """Seconds at peak of all model FLOPs, of attention among them, and of what a mask skips."""
    task = costs.task
    all_flops = task_flops_per_token(task)
    scores = all_flops - adapted_flops_per_token(task.model, 0, adapters=task.adapters)
    rate = costs.peak_flops * task.gpus / task.tokens
    flash = task.software.flash_attention
    computed = task_flops_per_token(task, causal=flash)
    return all_flops / rate, scores / rate, (all_flops - computed) / rate


def waterfall(costs: Costs) -> list[Loss]:
    """The bars from the ideal step to the predicted one; the first is the ideal itself."""
    costs = costs.row()
    step, parts = costs.step_seconds, losses(costs)
    ideal = parts["ideal"]
    return [
        Loss(name, LABELS[name], s, 100 * s / step, None if s == ideal else ideal / (step - s))
        for name, s in parts.items()
    ]
