"""Rules of overlapped tensor-parallel communication: what the stack and the links can do."""

from __future__ import annotations

from math import gcd

from ..operators.collectives import inside_domain
from .rule import Rule

TP_OVERLAP_RULES: tuple[Rule, ...] = (
    Rule(
        "tp-overlap-needs-sequence-parallel",
        ("overlap_tp", "sequence_parallel", "tp_grid"),
        lambda p, t: (p.overlap_tp == 0) | (p.sequence_parallel == 1) | (p.tp_grid != 0),
        lambda p, t: "overlap_tp needs sequence_parallel or a tp_grid",
    ),
    Rule(
        "software-overlaps-tp",
        ("overlap_tp", "tp_grid"),
        lambda p, t: (p.overlap_tp == 0) | (t.software.tp_overlap_share > 0) | (p.tp_grid != 0),
        lambda p, t: f"{t.software.name} cannot overlap tensor-parallel communication",
    ),
    Rule(
        "tp-overlap-in-peer-memory",
        ("overlap_tp", "tp", "tp_grid"),
        lambda p, t: (
            (p.overlap_tp == 0) | (p.tp == 1) | (p.tp_grid != 0) | t.cluster.fast.peer_memory
        ),
        lambda p, t: (
            f"overlap_tp: ranks on {t.cluster.fast.name} do not write into each other's memory; "
            "nearest: overlap_tp=0"
        ),
    ),
    Rule(
        "tp-overlap-inside-domain",
        ("overlap_tp", "tp", "tp_grid"),
        lambda p, t: (
            (p.overlap_tp == 0)
            | (p.tp_grid != 0)
            | t.software.tp_overlap_across_domains
            | inside_domain(p.tp, t.cluster)
        ),
        lambda p, t: (
            f"overlap_tp: {t.software.name} overlaps tensor-parallel communication inside a fast "
            f"domain of {t.cluster.fast.gpus} GPUs only, and tp={p.tp} spans several; nearest: "
            f"overlap_tp=0, or tp={gcd(int(p.tp), t.cluster.fast.gpus)}"
        ),
    ),
)
