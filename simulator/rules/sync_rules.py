"""Rules of synchronisation policies: which settings go together.

A replica that averages weights differs from the others in between, so nothing of it can be
sharded over the others. What could be combined but has no cost model here is refused by name.
"""

from __future__ import annotations

from typing import Any

from ..pipeline.schedules import model_copies
from ..plan.compressors import METHODS, Compression
from ..plan.fields import spell
from ..plan.gossip_graphs import Topology
from ..plan.plan import Plan
from ..plan.synchronisation import Sync, all_reduces, gossips
from ..task import Task
from .rule import Rule

_TOP_K = tuple(c for c, method in METHODS.items() if method.scheme == "top-k")
_COMPRESSIBLE_SYNCS = (Sync.ALL_REDUCE, Sync.PARAMETER_SERVER, Sync.SHARDED_PARAMETER_SERVER)


def _is_one_of(column: Any, codes: tuple[int, ...]) -> Any:
    out: Any = False
    for code in codes:
        out = out | (column == code)
    return out


def _all_reduces_in_full(p: Any) -> Any:
    """Whether gradients are all-reduced every step, in full."""
    return (p.sync == Sync.ALL_REDUCE) & (p.sync_period == 1) & (p.compression == 0)


def _all_reduces_every_step(p: Any) -> Any:
    """Whether the policy is one that any group of ranks can follow, not only whole replicas."""
    return all_reduces(p.sync) & (p.sync_period == 1) & (p.compression == 0)


def _replicas_are_whole(p: Any, task: Task) -> Any:
    experts = any(kind.experts for kind in task.model.kinds)
    alone = (p.cp == 1) & (model_copies(p.schedule) == 1)
    return alone & ((p.ep == 1) & (p.etp == p.tp) if experts else True)


def _policy_text(p: Plan) -> str:
    """The first field that makes a plan's policy unusual."""
    if p.sync:
        return f"sync={spell('sync', p.sync)}"
    if p.sync_period > 1:
        return f"sync_period={p.sync_period}"
    return f"compression={spell('compression', p.compression)}"


def _graph_fits(p: Any, task: Task) -> Any:
    fits = (p.dp == task.graph.nodes) if task.graph else False
    return (p.topology != Topology.GIVEN) | ((p.sync == Sync.GOSSIP) & fits)


def _graph_message(p: Plan, task: Task) -> str:
    if p.sync != Sync.GOSSIP:
        return "topology=given names replicas one by one: it needs sync=gossip"
    if not task.graph:
        return "topology=given needs a graph of the replicas (--graph FILE)"
    return f"the graph has {task.graph.nodes} nodes, the plan dp = {p.dp} replicas"


def _levels_fit(p: Any, task: Task) -> Any:
    return (p.levels >= 2) == (p.compression == Compression.QSGD)


def _kept_entries_fit(p: Any, task: Task) -> Any:
    return (p.kept_per_thousand >= 1) == _is_one_of(p.compression, _TOP_K)


def _shard_fits(p: Any, task: Task) -> Any:
    ranks, shard = p.dp * p.cp * model_copies(p.schedule), p.shard + (p.shard == 0)
    fits = (ranks % shard == 0) & (p.shard > 1) & (p.shard < ranks) & (p.zero > 0)
    return (p.shard == 0) | (fits & (not any(kind.experts for kind in task.model.kinds)))


def _shard_message(p: Plan, task: Task) -> str:
    if not p.zero:
        return f"shard={p.shard} needs zero >= 1: nothing is sharded"
    if any(kind.experts for kind in task.model.kinds):
        return f"shard={p.shard}: hybrid sharding of experts is not modelled"
    ranks = p.dp * p.cp * model_copies(p.schedule)
    return (
        f"shard={p.shard} must divide {ranks} data ranks into several groups of several ranks; "
        "0 shards over all"
    )


def _sites_divide(p: Any, task: Task) -> Any:
    several = p.sites + (p.sites == 0)
    fits = (p.sites > 1) & (p.dp % several == 0) & (p.dp > p.sites)
    return (p.sites == 0) | fits


def _sites_all_reduce(p: Any, task: Task) -> Any:
    usual = (p.sync == Sync.ALL_REDUCE) & (p.compression == 0) & (p.shard == 0)
    usual = usual & (p.offload_optimizer == 0) & (p.offload_parameters == 0)
    alike = _replicas_are_whole(p, task) & (task.adapters is None)
    experts = any(kind.experts for kind in task.model.kinds)
    return (p.sites == 0) | (usual & alike & (not experts))


def _has_no_outer_step(p: Any) -> Any:
    usual = (p.outer_optimizer == 0) & (p.fragments == 1) & (p.outer_delay == 0)
    return usual & (p.outer_bits == 0)


def _fragments_fit(p: Any, task: Task) -> Any:
    fits = (p.sync_period % p.fragments == 0) & (p.fragments <= task.model.layers)
    return (p.fragments == 1) | fits


SITES_ARE_NAMED = Rule(
    "sites-are-named",
    ("sites",),
    lambda p, t: (p.sites > 0) | (not t.cluster.network.site_bandwidth) | (t.gpus == 1),
    lambda p, t: (
        "the cluster has links between sites (site_bandwidth): say how many, such as sites=2; "
        "sync_period=1 exchanges gradients every step"
    ),
)
"""Where links of sites are given, no plan ignores them."""
SITE_RULES = (
    Rule(
        "sites-divide-replicas",
        ("sites", "dp"),
        _sites_divide,
        lambda p, t: (
            f"sites={p.sites} must be 2 or more and divide {p.dp} replicas into groups of several; "
            "where each trains on its own: sync_period without sites"
        ),
    ),
    Rule(
        "sites-all-reduce",
        (
            *("sites", "sync", "compression", "shard", "offload_optimizer", "offload_parameters"),
            *("cp", "ep", "etp", "tp", "schedule"),
        ),
        _sites_all_reduce,
        lambda p, t: (
            f"sites={p.sites} is modelled with sync=all-reduce, cp=1 and ep=1, without "
            "compression, shard, offload, dualpipe, experts or adapters"
        ),
    ),
    Rule(
        "outer-steps-are-of-sites",
        ("sites", "sync_period", "outer_optimizer", "fragments", "outer_delay", "outer_bits"),
        lambda p, t: ((p.sites > 0) & (p.sync_period > 1)) | _has_no_outer_step(p),
        lambda p, t: (
            f"outer_optimizer={spell('outer_optimizer', p.outer_optimizer)} "
            f"fragments={p.fragments} outer_delay={p.outer_delay} outer_bits={p.outer_bits} need "
            "sites that step on their own, such as sites=2 sync_period=100"
        ),
    ),
    Rule(
        "fragments-divide-period",
        ("fragments", "sync_period"),
        _fragments_fit,
        lambda p, t: (
            f"fragments={p.fragments} must divide sync_period={p.sync_period}, and be at most the "
            f"{t.model.layers} layers"
        ),
    ),
    Rule(
        "outer-delay-ends-in-turn",
        ("outer_delay", "fragments", "sync_period"),
        lambda p, t: p.outer_delay * p.fragments <= p.sync_period * (p.outer_delay > 0),
        lambda p, t: (
            f"outer_delay={p.outer_delay}: an exchange must end before the next of "
            f"{p.fragments} in {p.sync_period} steps; nearest: {p.sync_period // p.fragments}"
        ),
    ),
)
"""Rules of outer steps between sites."""

SYNC_RULES = (
    Rule(
        "sync-needs-replicas",
        ("sync", "sync_period", "compression", "dp"),
        lambda p, t: _all_reduces_in_full(p) | (p.dp > 1),
        lambda p, t: f"{_policy_text(p)} has nothing to synchronise when dp = 1",
    ),
    Rule(
        "sync-of-whole-replicas",
        ("sync", "sync_period", "compression", "cp", "ep", "etp", "tp", "schedule"),
        lambda p, t: _all_reduces_every_step(p) | _replicas_are_whole(p, t),
        lambda p, t: (
            f"{_policy_text(p)} is not modelled with cp = {p.cp}, dualpipe or experts spread over "
            f"replicas (ep = {p.ep}, etp = {p.etp}): it needs cp = 1, ep = 1 and experts split by "
            "etp = tp"
        ),
    ),
    Rule(
        "sync-needs-zero-0",
        ("sync", "sync_period", "compression", "zero", "sites"),
        lambda p, t: _all_reduces_in_full(p) | (p.sites > 0) | (p.zero == 0),
        lambda p, t: (
            f"{_policy_text(p)} needs zero = 0, not {p.zero}: replicas that average weights, "
            "servers and compressed or named all-reduces are not sharded"
        ),
    ),
    Rule(
        "topology-is-of-gossip",
        ("sync", "topology"),
        lambda p, t: gossips(p.sync) == (p.topology != Topology.NONE),
        lambda p, t: (
            f"sync={spell('sync', p.sync)} averages over a graph: name its topology"
            if gossips(p.sync)
            else f"topology={spell('topology', p.topology)} needs sync=gossip"
        ),
    ),
    Rule("graph-fits-replicas", ("topology", "sync", "dp"), _graph_fits, _graph_message),
    Rule(
        "local-steps-are-not-overlapped",
        ("sync_period", "overlap_grad_reduce", "sites"),
        lambda p, t: (p.sync_period == 1) | (p.sites > 0) | (p.overlap_grad_reduce == 0),
        lambda p, t: (
            f"sync_period={p.sync_period} averages weights after a step: overlap_grad_reduce has "
            "nothing to hide"
        ),
    ),
    Rule(
        "compression-has-an-exchange",
        ("compression", "sync", "sync_period"),
        lambda p, t: (
            (p.compression == 0) | (_is_one_of(p.sync, _COMPRESSIBLE_SYNCS) & (p.sync_period == 1))
        ),
        lambda p, t: (
            f"compression={spell('compression', p.compression)} with sync="
            f"{spell('sync', p.sync)} and sync_period={p.sync_period} is not modelled; it goes "
            f"with {', '.join(spell('sync', s) for s in _COMPRESSIBLE_SYNCS)} every step"
        ),
    ),
    Rule(
        "levels-are-of-qsgd",
        ("compression", "levels"),
        _levels_fit,
        lambda p, t: (
            f"compression=qsgd needs levels >= 2, not {p.levels}, such as levels=16"
            if p.compression == Compression.QSGD
            else f"levels={p.levels} needs compression=qsgd"
        ),
    ),
    Rule(
        "kept-entries-are-of-top-k",
        ("compression", "kept_per_thousand"),
        _kept_entries_fit,
        lambda p, t: (
            f"compression={spell('compression', p.compression)} needs kept_per_thousand from 1 to "
            "1000, such as kept_per_thousand=10"
            if p.compression in _TOP_K
            else f"kept_per_thousand={p.kept_per_thousand} needs a compression by top-k: "
            f"{', '.join(spell('compression', c) for c in _TOP_K)}"
        ),
    ),
    Rule(
        "buckets-need-overlap",
        ("bucket_parameters", "overlap_grad_reduce", "zero", "sync"),
        lambda p, t: (
            (p.bucket_parameters == 0)
            | ((p.overlap_grad_reduce == 1) & (p.zero < 3) & (gossips(p.sync) == 0))
        ),
        lambda p, t: (
            f"bucket_parameters={p.bucket_parameters} needs overlap_grad_reduce, zero <= 2 and "
            "gradients that are reduced: else nothing is cut into buckets"
        ),
    ),
    Rule(
        "shards-fill-ranks", ("shard", "zero", "dp", "cp", "schedule"), _shard_fits, _shard_message
    ),
    *SITE_RULES,
)
"""Every rule of a policy."""
