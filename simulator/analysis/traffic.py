"""Traffic of one plan's data-parallel synchronisation, and its assumptions.

Bytes and messages are those of the rank with most parameters, mean over the steps of a period.
Legend: n replicas, S bytes of a rank's gradients or weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..base.units import format_bytes
from ..operators.collectives import ProcessGroup as Ranks
from ..plan.compressors import METHODS, Compression, delta, omega
from ..plan.fields import spell
from ..plan.gossip_graphs import Mixing
from ..plan.plan import Plan
from ..plan.synchronisation import Sync, SyncPolicy, gossips, policy_of, through_servers
from ..step import gradient_exchange
from ..step.convergence import (
    ASYNCHRONOUS_SGD,
    COMPRESSED_SGD,
    COOPERATIVE_SGD,
    PARALLEL_SGD,
    Rate,
    gradient_delay,
)
from ..step.costs import Costs
from ..step.evaluate import simulate
from ..step.plan_groups import PlanGroup
from ..task import Task


@dataclass(frozen=True)
class Traffic:
    """One plan's synchronisation in numbers."""

    policy: SyncPolicy
    replicas: int
    bytes_sent: float
    """By a rank in a step."""
    messages: float
    """By a rank in a step; a bucket or a layer at a time sends more, smaller ones."""
    server_bytes: float
    """Received by one parameter server in a step; 0 where there is none."""
    mixing: Mixing | None
    """How gossip averages; None where averages are exact."""

    @property
    def staleness(self) -> float:
        """Updates by others, and one of its own, that a gradient's weights lack; 0 where replicas
        wait for each other."""
        return float(gradient_delay(self.replicas)) if self.policy.is_asynchronous else 0.0

    def record(self) -> dict[str, float]:
        """As JSON holds it."""
        out = {
            "replicas": self.replicas,
            "bytes_sent": self.bytes_sent,
            "messages": self.messages,
            "server_bytes": self.server_bytes,
        }
        if self.policy.is_asynchronous:
            out["staleness"] = self.staleness
        if self.mixing:
            out["spectral_gap"] = self.mixing.spectral_gap
            out["graph_period"] = self.mixing.period
        return out


def traffic(costs: Costs, row: int = 0) -> Traffic:
    """Bytes and messages of one plan."""
    task, plan = costs.task, costs.plans.take(row)
    (group,) = simulate(task, plan).groups
    replicas = plan.dp * plan.cp
    policy = group.policy
    mixing = (
        gradient_exchange.replica_mixing(task, policy, plan.dp, plan.tp)
        if gossips(policy.sync)
        else None
    )
    sent = float(_bytes_sent(group, policy, plan, mixing).max())
    server = 0.0
    if through_servers(policy.sync):
        server = sent * task.gpus / gradient_exchange.server_count(policy, task.cluster)
    neighbours = mixing.messages if mixing else 0.0
    messages = gradient_exchange.message_count(policy, replicas, neighbours) / policy.sync_period
    return Traffic(policy, replicas, sent, messages, server, mixing)


def _bytes_sent(
    group: PlanGroup, policy: SyncPolicy, plan: Plan, mixing: Mixing | None
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Bytes that a rank of each class sends in a step [class, 1]."""
    weights, task = group.stages.weights, group.task
    full = gradient_exchange.element_bytes(task, group.recipe, policy)
    up, down = gradient_exchange.wire_bytes(full, policy)
    shares = ((weights.dense, weights.data_group), (weights.expert, weights.expert_group))
    out = np.zeros_like(weights.dense)
    for share, ranks in shares:
        if through_servers(policy.sync):
            out = out + share * up
        elif mixing:
            out = out + share * full * _gossip_copies(policy, ranks, mixing)
        elif plan.zero:
            out = out + share * _sharded_bytes(group, ranks, plan, full)
        else:
            out = out + share * (up + down) * (ranks.ranks - 1) / ranks.ranks
    if weights.frozen_bytes is not None and plan.zero == 3:
        gathers = 2 * group.task.global_batch // (plan.dp * plan.micro_batch)
        n = weights.data_group.ranks
        out = out + weights.frozen_bytes * gathers * (n - 1) / n
    return out / policy.sync_period


def _gossip_copies(policy: SyncPolicy, ranks: Ranks, mixing: Mixing) -> np.float64:
    """Copies of its weights that a rank sends in one exchange."""
    if policy.sync == Sync.GOSSIP:
        return np.float64(mixing.messages)
    inside = np.max(ranks.in_domain)
    return np.float64((2 * (inside - 1) + mixing.messages) / inside)


def _sharded_bytes(group: PlanGroup, ranks: Ranks, plan: Plan, gradient: float) -> np.float64:
    """Bytes a parameter under ZeRO: scattered and gathered once, or for every micro-batch."""
    m = group.task.global_batch // (plan.dp * plan.micro_batch)
    scatters, gathers = {1: (1, 1), 2: (m, 1)}.get(plan.zero, (m, 2 * m))
    n = np.max(ranks.ranks)
    moved = (n - 1) / n * (scatters * gradient + gathers * group.recipe.weight)
    replicas = group.stages.weights.replicas
    if replicas is not None:
        r = np.max(replicas.ranks)
        moved = moved + scatters * 2 * (r - 1) / r * gradient / n
    return np.float64(moved)


def traffic_sentences(costs: Costs, row: int = 0) -> list[str]:
    """What is assumed about a plan's way to synchronise; none for the usual one without a goal."""
    task, plan = costs.task, costs.plans.take(row)
    policy = policy_of(plan.table())
    if policy.is_default and not policy.shard and not task.goal:
        return []
    found = traffic(costs, row)
    out = [_volume_sentence(found), *_policy_sentences(task, found)]
    return [*out, *_rate_sentences(task, plan, policy)]


def _volume_sentence(found: Traffic) -> str:
    what = "weights" if found.policy.averages_weights else "gradients"
    often = f" every {found.policy.sync_period} steps" if found.policy.sync_period > 1 else ""
    return (
        f"{spell('sync', found.policy.sync)} of {what} among {found.replicas} replicas{often}: a "
        f"rank sends {format_bytes(found.bytes_sent)} in {found.messages:.4g} messages a step"
    )


def _policy_sentences(task: Task, found: Traffic) -> list[str]:
    policy, out = found.policy, []
    if found.mixing:
        out.append(
            f"graph {spell('topology', policy.topology)}: {found.mixing.messages:.4g} messages a "
            f"rank, {found.mixing.inter_domain:.4g} leaving a fast domain, spectral gap "
            f"{found.mixing.spectral_gap:.4g} over {found.mixing.period} steps; replicas numbered "
            "domain by domain; received weights are kept beside the own"
        )
    if through_servers(policy.sync):
        count = gradient_exchange.server_count(policy, task.cluster)
        out.append(
            f"{count} parameter server{'s' if count > 1 else ''} with a node's NICs, receiving "
            f"{format_bytes(found.server_bytes)} each a step and keeping the optimizer state; the "
            "update there is taken to be free"
        )
    if policy.is_asynchronous:
        out.append(
            f"asynchronous: gradients are of weights {found.staleness:.4g} updates old, one of "
            "every worker"
        )
    if policy.sync_period > 1:
        out.append("optimizer states are not averaged")
    if policy.compression:
        out.append(_compression_sentence(policy))
    return out


def _compression_sentence(policy: SyncPolicy) -> str:
    method = METHODS[policy.compression]
    quality = f"delta = {delta(method, policy.kept_per_thousand):.4g}"
    if policy.compression == Compression.QSGD:
        quality = f"omega = {omega(policy.levels):.4g}"
    ways = "both ways" if method.both_ways else "from workers, sums sent back in full"
    return (
        f"{spell('compression', policy.compression)}: {quality}, {method.rounds} round"
        f"{'s' if method.rounds > 1 else ''} a step, compressed {ways}; selecting entries takes "
        "no longer than reading and writing them"
    )


def rate_of(policy: SyncPolicy) -> Rate:
    """The published rate behind the iterations of a policy."""
    if policy.compression:
        return COMPRESSED_SGD[policy.compression]
    if policy.is_asynchronous:
        return ASYNCHRONOUS_SGD
    return COOPERATIVE_SGD if policy.averages_weights else PARALLEL_SGD


def _rate_sentences(task: Task, plan: Plan, policy: SyncPolicy) -> list[str]:
    """Which rate stands behind the iterations."""
    rate, goal = rate_of(policy), task.goal
    if not goal:
        return [f"steps to an accuracy may differ from all-reduce: {rate}"]
    variance = goal.sequence_noise * plan.dp / task.global_batch
    return [
        f"e = {goal.accuracy:.4g}, n = {plan.dp} workers, v = {variance:.4g} of each: {rate}; "
        "without the constants of the bounds, with the optimizer of the theory (SGD)"
    ]
