"""Rules of a mixture of experts: sizes, folding, dispatch and overlap of experts.

Source: argument checks of Megatron-LM.
"""

from __future__ import annotations

from typing import Any

from ..hardware.cluster import Cluster
from ..pipeline.schedules import pairs
from ..plan.field_values import Dispatch
from ..task import Task
from .rule import Rule, divides, nearest_divisors


def _expert_counts(task: Task) -> tuple[int, ...]:
    return tuple({k.experts.count for k in task.model.kinds if k.experts})


def has_expert_kernels(cluster: Cluster) -> bool:
    """Whether there are kernels that send a token once to a node or rank with several of its
    experts: on NVLink, of Hopper and later (DeepEP, README, requirements; built for Ampere it has
    none across nodes)."""
    fast = cluster.fast_domain
    return fast.name.startswith("NVLink") and fast.peer_memory and "fp8" in cluster.accelerator.peak


def overlaps_experts(pp: Any, virtual_stages: Any, schedule: Any) -> Any:
    """Whether a rank may run one micro-batch beside another."""
    return (pp == 1) | (virtual_stages > 1) | pairs(schedule)


EXPERT_RULES: tuple[Rule, ...] = (
    Rule(
        "moe-tp-needs-sequence-parallel",
        ("tp", "sequence_parallel"),
        lambda p, t: (p.tp == 1) | (p.sequence_parallel == 1) | (not _expert_counts(t)),
        lambda p, t: "a mixture of experts with tp > 1 needs sequence_parallel",
    ),
    Rule(
        "expert-axes-need-experts",
        ("ep", "etp"),
        lambda p, t: (p.ep * p.etp == 1) | bool(_expert_counts(t)),
        lambda p, t: f"ep={p.ep} etp={p.etp} need a model with experts",
    ),
    Rule(
        "expert-exchange-needs-ep",
        ("expert_dispatch", "overlap_ep", "ep"),
        lambda p, t: ((p.expert_dispatch == 0) & (p.overlap_ep == 0)) | (p.ep > 1),
        lambda p, t: "expert_dispatch other than alltoall and overlap_ep need ep > 1",
    ),
    Rule(
        "all-gather-of-experts",
        ("expert_dispatch", "overlap_ep"),
        lambda p, t: (
            (p.expert_dispatch != Dispatch.ALL_GATHER)
            | ((t.software.framework == "megatron") & (p.overlap_ep == 0))
        ),
        lambda p, t: (
            "expert_dispatch=all-gather is of Megatron-Core's stacks and has no overlap_ep "
            "(transformer_config.py); nearest: expert_dispatch=alltoall"
        ),
    ),
    Rule(
        "software-exchanges-experts",
        ("expert_dispatch", "overlap_ep"),
        lambda p, t: (
            ((p.expert_dispatch != Dispatch.HIERARCHICAL) | t.software.expert_exchange)
            & ((p.overlap_ep == 0) | t.software.expert_overlap)
        ),
        lambda p, t: (
            f"software {t.software.name} has no "
            + " and no ".join(
                (not t.software.expert_exchange) * ["expert_dispatch=hierarchical"]
                + (not t.software.expert_overlap) * ["overlap_ep"]
            )
            + "; nearest: expert_dispatch=alltoall overlap_ep=0"
        ),
    ),
    Rule(
        "expert-overlap-needs-interleaving",
        ("overlap_ep", "virtual_stages", "pp", "schedule"),
        lambda p, t: (p.overlap_ep == 0) | overlaps_experts(p.pp, p.virtual_stages, p.schedule),
        lambda p, t: (
            "overlap_ep runs one micro-batch beside another: with pp > 1 it needs "
            "virtual_stages >= 2 or a dualpipe schedule"
        ),
    ),
    Rule(
        "ep-divides-experts",
        ("ep",),
        lambda p, t: divides(_expert_counts(t), p.ep),
        lambda p, t: (
            f"expert size {p.ep} does not divide {_expert_counts(t)[0]} experts (ep); "
            f"nearest: {nearest_divisors(_expert_counts(t)[0], p.ep)}"
        ),
    ),
    Rule(
        "etp-divides-expert-ffn",
        ("etp",),
        lambda p, t: divides({k.experts.ffn for k in t.model.kinds if k.experts}, p.etp),
        lambda p, t: f"expert tensor size {p.etp} does not divide the expert ffn width (etp)",
    ),
    Rule(
        "experts-fold-into-ranks",
        ("tp", "cp", "dp", "ep", "etp"),
        lambda p, t: p.tp * p.cp * p.dp % (p.ep * p.etp) == 0,
        lambda p, t: (
            f"etp({p.etp}) x ep({p.ep}) does not divide tp({p.tp}) x cp({p.cp}) x dp({p.dp}) = "
            f"{p.tp * p.cp * p.dp}"
        ),
    ),
)
"""Rules about experts."""
