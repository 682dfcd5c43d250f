"""Causes of a plan's step time in sentences.

A step is split into the seconds that the model's arithmetic would take at the datasheet peak and
everything that keeps a GPU from it; the shares add up to one. For a few rows, never the hot path.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..analysis.time_breakdown import KERNELS, losses
from ..analysis.time_breakdown import LABELS as LOSSES
from ..base.units import format_bytes, format_flops
from ..hardware.host import (
    copy_rate,
)
from ..layers.placements import chunk_sizes
from ..pipeline.schedule import Placement
from ..pipeline.schedules import model_copies, placement
from ..pipeline.stage_placement import chunk_ranks
from ..plan.field_values import ContextComm
from ..plan.fields import spell
from ..plan.plan import Plan
from ..step.costs import Costs
from ..step.costs_tables import number_format
from ..task import Task

LABELS = {
    "peak": LOSSES["ideal"],
    "kernels": "kernels below peak",
    **{name: label for name, label in LOSSES.items() if name not in ("ideal", *KERNELS)},
}
"""What a GPU-second goes to; the keys of loss_shares()."""

LEAST_SHARE = 0.005
"""Share of a step below which a cause is not listed."""
LEAST_SENTENCE_SHARE = 0.02
"""Share of a step from which a cause has a sentence."""


def layers_per_rank(task: Task, p: Plan) -> list[int]:
    """Transformer layers on every pipeline rank of one plan, those of both copies."""
    if p.segments:
        of_stages = [sum(run["layers"] for run in stage) for stage in p.segments.stages()]
        return [sum(of_stages[rank :: p.pp]) for rank in range(p.pp)]
    chunks, out = chunk_sizes(task, p), [0] * p.pp
    ranks = chunk_ranks(p.pp, len(chunks), int(placement(p.schedule))).tolist()
    for layers, rank in zip(chunks, ranks, strict=True):
        out[rank] += layers
    copies = out[::-1] if model_copies(p.schedule) > 1 else [0] * p.pp
    return [own + other for own, other in zip(out, copies, strict=True)]


def loss_shares(costs: Costs) -> dict[str, float]:
    """Share of a step by LABELS, of one plan; they add up to 1.

    `peak` is the MFU; `kernels` sums what losses() tells apart. Where attention is causal, kernels
    skip half of the scores that the MFU counts, so that it can fall below zero at long sequences.
    """
    costs = costs.row()
    share = {name: seconds / costs.step_seconds for name, seconds in losses(costs).items()}
    peak, kernels = share.pop("ideal"), sum(share.pop(name) for name in KERNELS)
    return {"peak": peak, "kernels": kernels, **share}


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that keeps a GPU from the model's arithmetic at peak."""

    name: str
    """A key of LABELS."""
    share: float
    """Of the step; below zero where it saves time."""
    costs: Costs
    """Of the one plan."""

    @property
    def label(self) -> str:
        """The name as people read it."""
        return LABELS[self.name]

    @property
    def settings(self) -> str:
        """What it comes from, in words for one line: 'bubble: pp=4, 16 micro-batches'; may be
        ''."""
        words = _SETTINGS.get(self.name)
        return words(self.costs, self.costs.plans.take(0)) if words else ""

    @property
    def sentence(self) -> str:
        """The same as a sentence with what would change it; may be ''."""
        words = _SENTENCES.get(self.name)
        return words(self.costs, self.costs.plans.take(0), _percent(self.share)) if words else ""


def step_causes(costs: Costs, least: float = LEAST_SHARE) -> list[Cause]:
    """Causes of one plan's step with a share of at least `least`, the largest first."""
    costs = costs.row()
    shares = loss_shares(costs)
    del shares["peak"]
    largest = sorted(shares.items(), key=lambda item: -abs(item[1]))
    return [Cause(name, share, costs) for name, share in largest if abs(share) >= least]


def why(costs: Costs) -> list[str]:
    """Where the GPU time of one plan goes, the largest losses and what would change them.

    >>> task = Task(Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=8),
    ...             sequence=2048, global_batch=64)
    >>> costs = evaluate(task, Plan(tp=2, recompute="full"))
    >>> why(costs)[0].startswith("MFU ")
    True
    """
    costs = costs.row()
    causes = step_causes(costs)
    rate = format_flops(costs.model_flops_per_second)
    dense = f"{format_flops(costs.peak_flops)} ({number_format(costs.plans)}, dense)"
    spent = [f"{cause.label} {_percent(cause.share)}" for cause in causes]
    large = [c.sentence for c in causes if c.share >= LEAST_SENTENCE_SHARE and c.sentence]
    return [
        f"MFU {_percent(costs.mfu)}: {rate} of {dense} per GPU; the rest of each GPU-second goes "
        f"to {', '.join(spent)}.",
        _kernel_sentence(costs),
        *large[:3],
        _memory_sentence(costs),
        *([_host_sentence(costs)] if costs.uses_host else []),
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _kernel_sentence(costs: Costs) -> str:
    """How fast kernels do the model's arithmetic, whatever share of the step they lose."""
    compute, total, reached = _kernels(costs)
    parts = [f"{name.replace('_', '-')} {_percent(s / total)}" for name, s in compute.items()]
    return (
        f"Kernels do the model's arithmetic at {_percent(reached)} of peak; their time is "
        f"{', '.join(parts)}."
    )


def _kernels(costs: Costs) -> tuple[dict[str, float], float, float]:
    """Seconds of kernels by class without recompute, their sum, and the share of peak reached."""
    compute = {n: s for n, s in costs.compute_seconds.items() if n != "recompute"}
    total = sum(compute.values())
    return compute, total, costs.mfu * costs.step_seconds / total


def _memory_sentence(costs: Costs) -> str:
    parts = sorted(costs.memory.items(), key=lambda item: -item[1])
    largest = ", ".join(f"{name} {format_bytes(size)}" for name, size in parts[:3])
    state = f"{format_bytes(costs.margin)} are left"
    if not costs.fits:
        state = f"it exceeds the GPU by {format_bytes(-costs.margin)}"
    return (
        f"Pipeline rank {costs.worst_rank} needs most memory, {format_bytes(costs.memory_bytes)} "
        f"of {format_bytes(costs.capacity)} ({largest}); {state}."
    )


def _host_sentence(costs: Costs) -> str:
    """What one plan keeps on the host, and what is left there."""
    plan, share = costs.plans.take(0), 1 - costs.host_share
    left = (
        f"{100 * share:.1f} % are left" if share >= 0 else f"it has {-100 * share:.1f} % too little"
    )
    weights = f", {plan.offload_parameters} % of the weights" * (plan.offload_parameters > 0)
    drives = ""
    if plan.nvme:
        what = spell("nvme", plan.nvme).replace("both", "both optimizer and weights")
        drives = f" On its drives ({what}): {format_bytes(costs.nvme_bytes)}."
    return (
        f"The host updates {plan.offload_optimizer} % of the parameters and holds "
        f"{plan.offload_activations} % of the kept activations{weights}: "
        f"{format_bytes(costs.node_bytes)} of {format_bytes(costs.node_capacity)} of a node; "
        f"{left}.{drives}"
    )


def _kernel_settings(costs: Costs, plan: Plan) -> str:
    compute, total, reached = _kernels(costs)
    largest = max(compute, key=lambda name: compute[name])
    part = 100 * compute[largest] / total
    return f"kernels: {100 * reached:.0f} % of peak while they run, {part:.0f} % of it {largest}"


def _recompute_settings(costs: Costs, plan: Plan) -> str:
    return f"recompute={spell('recompute', plan.recompute)} buys activation memory"


def _recompute_sentence(costs: Costs, plan: Plan, share: str) -> str:
    mode = spell("recompute", plan.recompute)
    return f"Recompute ({mode}) costs {share} of the step and buys activation memory."


def _contending(plan: Plan) -> str:
    """The fields of a plan by which communication hides beside kernels."""
    ranks = {
        "overlap_tp": plan.tp,
        "overlap_ep": plan.ep,
        "overlap_p2p": plan.pp,
        **dict.fromkeys(("overlap_grad_reduce", "overlap_param_gather"), plan.dp * plan.cp),
    }
    overlaps = [name for name, size in ranks.items() if size > 1 and getattr(plan, name) == 1]
    overlaps += ["cp_comm=p2p"] * (plan.cp > 1 and plan.cp_comm == ContextComm.P2P)
    return ", ".join(overlaps)


def _contended_settings(costs: Costs, plan: Plan) -> str:
    return f"contention: kernels beside communication ({_contending(plan)})"


def _contended_sentence(costs: Costs, plan: Plan, share: str) -> str:
    return (
        f"Kernels run longer by {share} of the step beside the communication that they hide "
        f"({_contending(plan)})."
    )


def _tensor_settings(costs: Costs, plan: Plan) -> str:
    hidden = "after overlap" if plan.overlap_tp else "not overlapped"
    return f"tensor parallelism: tp={plan.tp}, {hidden}"


def _tensor_sentence(costs: Costs, plan: Plan, share: str) -> str:
    fast = costs.task.cluster.fast_domain
    where = f"inside {fast.name}" if plan.tp <= fast.gpus else f"beyond {fast.name}"
    hidden = "after overlap" if plan.overlap_tp else "not overlapped"
    return f"Tensor parallelism of {plan.tp} communicates {share} of the step, {where}, {hidden}."


def _bubble_settings(costs: Costs, plan: Plan) -> str:
    batches = costs.task.global_batch // (plan.dp * plan.micro_batch)
    return f"bubble: pp={plan.pp}, {batches:,} micro-batches, virtual_stages={plan.virtual_stages}"


def _bubble_sentence(costs: Costs, plan: Plan, share: str) -> str:
    batches = costs.task.global_batch // (plan.dp * plan.micro_batch)
    return (
        f"The pipeline bubble is {share}: pp = {plan.pp} with {batches} micro-batches and "
        f"{plan.virtual_stages} virtual stages; more of either shrinks it."
    )


def _data_settings(costs: Costs, plan: Plan) -> str:
    ranks = plan.dp * plan.cp
    if ranks == 1 and model_copies(plan.schedule) == 1:
        return f"hooks and copies of the engine that shards: zero={plan.zero}, over one rank"
    overlapped = "after overlap" if plan.overlap_grad_reduce else "not overlapped"
    return f"data parallelism: {ranks:,} ranks, zero={plan.zero}, {overlapped}"


def _data_sentence(costs: Costs, plan: Plan, share: str) -> str:
    ranks, several = plan.dp * plan.cp, model_copies(plan.schedule) > 1
    if ranks == 1 and not several:
        return (
            f"The engine that shards calls its hooks on one rank as well, which shares nothing: "
            f"{share} of the step (zero = {plan.zero})."
        )
    copies = " and both copies of the model" if several else ""
    return (
        f"Synchronising gradients and weights over dp x cp = {ranks} ranks{copies} shows {share} "
        f"of the step {'after' if plan.overlap_grad_reduce else 'without'} overlap "
        f"(zero = {plan.zero})."
    )


def _expert_sizes(plan: Plan) -> str:
    """The degrees that experts are divided by: 'ep=8, etp=2'."""
    sizes = {name: getattr(plan, name) for name in ("ep", "etp") if getattr(plan, name) > 1}
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def _expert_settings(costs: Costs, plan: Plan) -> str:
    fast = costs.task.cluster.fast_domain.gpus
    return f"experts: all-to-alls over {_expert_sizes(plan)}, {fast} GPUs are fast-linked"


def _expert_sentence(costs: Costs, plan: Plan, share: str) -> str:
    fast = costs.task.cluster.fast_domain.gpus
    where = "within" if plan.ep * plan.etp <= fast else "beyond"
    over = _expert_sizes(plan).replace("=", " = ")
    return (
        f"The experts' all-to-alls over {over} take {share} of the step, {where} {fast} "
        "fast-linked GPUs."
    )


def _copies_sentence(costs: Costs, plan: Plan, share: str) -> str:
    rate = copy_rate(costs.task.cluster)
    return (
        f"Copies to and from the host show {share} of the step, beyond the compute that they hide "
        f"behind: {rate / 1e9:.3g} GB/s each way a GPU."
    )


_ENDS = {
    Placement.LOOPED: "the first also the embedding, the last the head",
    Placement.V_SHAPED: "the first also embedding and head",
    Placement.TWO_WAY: "the first and the last also embedding and head",
}


def _imbalance_sentence(costs: Costs, plan: Plan, share: str) -> str:
    place = Placement(int(placement(plan.schedule)))
    layers = layers_per_rank(costs.task, plan)
    held = f"{min(layers)} to {max(layers)}" if min(layers) < max(layers) else f"{min(layers)}"
    return (
        f"The slowest rank works {share} of the step longer than the mean: ranks hold {held} "
        f"layers, {_ENDS[place]}."
    )


_SETTINGS: dict[str, Callable[[Costs, Plan], str]] = {
    "kernels": _kernel_settings,
    "recompute": _recompute_settings,
    "contended": _contended_settings,
    "tensor_comm": _tensor_settings,
    "bubble": _bubble_settings,
    "data_comm": _data_settings,
    "expert_comm": _expert_settings,
}
"""Cause.settings by name."""
_SENTENCES: dict[str, Callable[[Costs, Plan, str], str]] = {
    "recompute": _recompute_sentence,
    "contended": _contended_sentence,
    "tensor_comm": _tensor_sentence,
    "bubble": _bubble_sentence,
    "data_comm": _data_sentence,
    "expert_comm": _expert_sentence,
    "host_comm": _copies_sentence,
    "imbalance": _imbalance_sentence,
}
"""Cause.sentence by name."""
