"""Assumptions behind the numbers of a plan, in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..hardware.host import (
    COPY_EFFICIENCY,
    UPDATE_EFFICIENCY,
    copy_rate,
    host_of,
    node_gpus,
    update_rate,
)
from ..hardware.provenance import TableFile, provenance_line
from ..plan.plan import Plan
from ..step.costs import Costs
from ..task import Task
from ..uncertainty.learned import has_fitted_rates
from ..workload.model import padded_vocabulary
from .why import layers_per_rank

NEEDS_AMPERE = ("megatron", "nanotron", "deepspeed")
"""Frameworks whose attention is FlashAttention 2."""
BEFORE_AMPERE = "megatron-lm-2021"
"""A stack of older GPUs."""


def assumptions(costs: Costs, row: int = 0, shares: Mapping[str, float] | None = None) -> list[str]:
    """What the numbers of one plan rest on; `shares` are those of time_provenance where they are
    known already."""
    from ..analysis.provenance import provenance_sentence, time_provenance
    from ..analysis.traffic import grid_sentences, traffic_sentences

    task, plan = costs.task, costs.plans.take(row)
    out = [
        _interval_basis(task),
        provenance_line(task.cluster.name, task.cluster.provenance),
        provenance_sentence(shares or time_provenance(costs, row)),
        *_layer_table_assumptions(task),
        *old_gpu_warnings(task),
        *(_host_assumptions(costs) if costs.uses_host else []),
        f"software profile {task.software.name}: {task.software.title}",
        "MFU counts whole-window attention (causal: half, as Megatron-LM logs it) and no recompute",
        "no failures, data loading, checkpoints or other jobs on the network",
    ]
    out += grid_sentences(costs, row)
    return out + traffic_sentences(costs, row) + _model_assumptions(task, plan)


def old_gpu_warnings(task: Task) -> list[str]:
    """What a stack counts on that GPUs before Ampere, which have no bf16, do not run. Sources:
    FlashAttention 2 and Transformer Engine, requirements; PyTorch has kernels of its own there."""
    old = "bf16" not in task.cluster.accelerator.peak and task.model.kinds
    if not (old and task.software.flash_attention and task.software.framework in NEEDS_AMPERE):
        return []
    return [
        f"{task.software.name} counts on FlashAttention 2 and Transformer Engine; "
        f"{task.cluster.accelerator.name} runs neither: --software {BEFORE_AMPERE}"
    ]


def _host_assumptions(costs: Costs) -> list[str]:
    """What copies and updates on the host rest on."""
    cluster, keys = costs.task.cluster, ("host.link_bandwidth", "host.memory_bandwidth")
    measured = all(cluster.provenance[key].measured for key in keys)
    copies, updates = copy_rate(cluster), update_rate(cluster) * node_gpus(cluster)
    host, drives = host_of(cluster), ""
    if costs.swaps and host.nvme_read and host.nvme_write:
        rates = f"{host.nvme_read / 1e9:.3g} and {host.nvme_write / 1e9:.3g} GB/s a node"
        drives = f"; drives read and write at {rates}, not beside the update"
    return [
        f"host ({'measured' if measured else 'datasheet'}): copies at {copies / 1e9:.3g} GB/s each "
        f"way a GPU, {100 * COPY_EFFICIENCY:.0f} % of its share of a link; updates at "
        f"{updates / 1e9:.3g} GB/s a node, {100 * UPDATE_EFFICIENCY:.0f} % of its memory "
        f"bandwidth{drives}"
    ]


def _interval_basis(task: Task) -> str:
    """What the interval rests on."""
    if task.calibration:
        steps = task.calibration.steps
        return f"calibrated with {steps} timed step{'s' * (steps > 1)} of this stack and machine"
    prior = "its profile was fitted to published runs"
    if not has_fitted_rates(task.software):
        prior = "prior from published runs of other stacks"
    return f"stack not calibrated ({prior}): the interval holds four of five such runs"


def _layer_table_assumptions(task: Task) -> list[str]:
    """Whether times of whole layers of the stack are used."""
    entry = task.cluster.accelerator.layer_tables.get(task.software.label)
    if entry is None:
        return []
    where = entry.path if isinstance(entry, TableFile) else "a table"
    return [f"times of whole 16-bit layers from {Path(where).name}"]


def _routing(task: Task) -> str:
    """The load of experts, with what it was where nothing balanced it: that of the busiest of EP
    ranks over the mean, models of 106 to 671 billion parameters (arXiv:2606.04101, UltraEP)."""
    imbalance = max(kind.experts.imbalance for kind in task.model.kinds if kind.experts)
    if imbalance == 1:
        return (
            "tokens are routed evenly over the experts; measured without balancing, the busiest "
            "rank gets 1.3 to 4 times the mean (--expert-imbalance)"
        )
    return f"the busiest rank of experts gets {imbalance:g} times the mean of tokens"


def _model_assumptions(task: Task, plan: Plan) -> list[str]:
    out = [
        f"{part} of the model is left out: its weights, memory and time"
        for part in task.model.left_out
    ]
    if any(kind.experts for kind in task.model.kinds):
        out.append(_routing(task))
    padded = padded_vocabulary(task.model.vocabulary, task.software.vocabulary_multiple * plan.tp)
    if padded != task.model.vocabulary:
        out.append(f"vocabulary padded from {task.model.vocabulary:,} to {padded:,}")
    layers = layers_per_rank(task, plan)
    if len(set(layers)) > 1:
        out.append(f"pipeline ranks hold {min(layers)} to {max(layers)} layers")
    if task.model.mtp_layers:
        out.append(f"multi-token prediction ({task.model.mtp_layers} layer) is trained too")
    return out
