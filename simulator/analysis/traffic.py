"""Traffic of one plan with its assumptions: data-parallel synchronisation, grids of tensor ranks.

Bytes and messages of a synchronisation are those of the rank with most parameters, mean over the
steps of a period; those of a grid are what a rank sends for one micro-batch, forward and backward,
of a model's first layer, without what recompute sends again.
Legend: n replicas, S bytes of a rank's gradients or weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..base.arrays import Value
from ..base.units import format_bytes, format_count, format_seconds
from ..hardware.precision import RECIPES
from ..layers import communication
from ..layers.layer_kinds import layer_context, layer_kinds
from ..operators.collectives import ProcessGroup as Ranks
from ..plan.compressors import METHODS, Compression, delta, omega
from ..plan.convergence import (
    ASYNCHRONOUS_SGD,
    COMPRESSED_SGD,
    COOPERATIVE_SGD,
    PARALLEL_SGD,
    Rate,
    gradient_delay,
)
from ..plan.fields import spell
from ..plan.gossip_graphs import Mixing
from ..plan.plan import Plan
from ..plan.synchronisation import Sync, SyncPolicy, gossips, policy_of, through_servers
from ..plan.tensor_grid import GridKind, MeshCollective, elements_sent, grid_of
from ..step import compressed_exchange, gradient_exchange, outer_steps, stages
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
    compressed_bytes: float = 0.0
    """Those that a rank sends compressed, to ranks of other domains where there are some."""
    outer: outer_steps.Exchange | None = None
    """Of one fragment, or of gradients, between sites; None where there are none."""

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
        if self.outer:
            out["site_bytes_sent"] = self.outer.sent.item()
            out["site_seconds"] = self.outer.seconds.item()
            out["site_exposed_seconds"] = self.outer.exposed.item()
        return out


def traffic(costs: Costs, row: int = 0) -> Traffic:
    """Bytes and messages of one plan."""
    task, plan = costs.task, costs.plans.take(row)
    (group,) = simulate(task, plan).groups
    policy, inner = group.policy, group.policy.inner
    replicas = plan.dp * plan.cp // max(policy.sites, 1)
    mixing = (
        gradient_exchange.replica_mixing(task, policy, plan.dp, plan.tp)
        if gossips(policy.sync)
        else None
    )
    sent = float(_bytes_sent(group, inner, plan, mixing).max())
    server = 0.0
    if through_servers(policy.sync):
        server = sent * task.gpus / gradient_exchange.server_count(policy, task.cluster)
    neighbours = mixing.messages if mixing else 0.0
    messages = gradient_exchange.message_count(inner, replicas, neighbours) / inner.sync_period
    compressed = 0.0
    if policy.compression and not server:
        weights, ranks = group.stages.weights, group.stages.weights.data_group
        full = gradient_exchange.element_bytes(task, group.recipe, policy)
        _, each = compressed_exchange.sent_bytes(full, policy, ranks)
        compressed = float((weights.dense * each).max())
        messages = float(np.max(compressed_exchange.message_count(full, policy, ranks)))
    outer = None
    if policy.sites:
        outer = outer_steps.exchange(task, group.recipe, policy, group.stages)
    return Traffic(policy, replicas, sent, messages, server, mixing, compressed, outer)


def _bytes_sent(
    group: PlanGroup, policy: SyncPolicy, plan: Plan, mixing: Mixing | None
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Bytes that a rank of each class sends in a step [class, 1]."""
    weights, task = group.stages.weights, group.task
    full = gradient_exchange.element_bytes(task, group.recipe, policy)
    shares = ((weights.dense, weights.data_group), (weights.expert, weights.expert_group))
    out = np.zeros_like(weights.dense)
    for share, ranks in shares:
        if through_servers(policy.sync):
            out = out + share * compressed_exchange.wire_bytes(full, policy)[0]
        elif mixing:
            out = out + share * full * _gossip_copies(policy, ranks, mixing)
        elif plan.zero:
            out = out + share * _sharded_bytes(group, ranks, plan, full)
        else:
            out = out + share * _reduced_bytes(full, policy, ranks)
    if weights.frozen_bytes is not None and plan.zero == 3:
        gathers = 2 * group.task.global_batch // (plan.dp * plan.micro_batch)
        n = weights.data_group.ranks
        out = out + weights.frozen_bytes * gathers * (n - 1) / n
    return out / policy.sync_period


def _reduced_bytes(full: float, policy: SyncPolicy, ranks: Ranks) -> Value:
    """Bytes a parameter that a rank sends to sum gradients or average weights."""
    if policy.compression:
        return compressed_exchange.sent_bytes(full, policy, ranks)[0]
    out: Value = 2 * full * (ranks.ranks - 1) / ranks.ranks
    return out


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
    if found.outer:
        out.append(_outer_sentence(policy, found.outer))
    return [*out, *_rate_sentences(task, plan, policy)]


def _volume_sentence(found: Traffic) -> str:
    policy = found.policy.inner
    what = "weights" if policy.averages_weights else "gradients"
    often = f" every {policy.sync_period} steps" if policy.sync_period > 1 else ""
    often += " of a site" if found.policy.sites else ""
    return (
        f"{spell('sync', found.policy.sync)} of {what} among {found.replicas} replicas{often}: a "
        f"rank sends {format_bytes(found.bytes_sent)} in {found.messages:.4g} messages a step"
    )


def _outer_sentence(policy: SyncPolicy, one: outer_steps.Exchange) -> str:
    """What sites exchange, how long it takes and how much of that no compute hides."""
    bits = policy.outer_bits or outer_steps.FULL_BITS
    parts = f"a fragment of {policy.fragments}" if policy.fragments > 1 else "the model"
    behind = (
        f", {format_seconds(float(one.exposed.max()))} of it not behind {policy.outer_delay} steps"
        if policy.outer_delay
        else ""
    )
    if not policy.replicas_differ:
        spent = format_seconds(float(one.seconds.max()))
        return f"{policy.sites} sites exchange gradients every step: {spent} before overlap"
    return (
        f"{policy.sites} sites exchange {parts} every {policy.sync_period} steps in {bits} bits a "
        f"parameter: {format_seconds(float(one.seconds.max()))} each{behind}; the outer optimizer "
        f"is {spell('outer_optimizer', policy.outer_optimizer)}, whose momentum, delays and "
        "rounding are in no rate"
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
        out.append(_compression_sentence(found))
    return out


def _compression_sentence(found: Traffic) -> str:
    policy = found.policy
    method = METHODS[policy.compression]
    quality = f"delta = {delta(method, policy.kept_per_thousand):.4g}"
    if policy.compression == Compression.QSGD:
        quality = f"omega = {omega(policy.levels):.4g}"
    ways = "both ways" if method.both_ways else "from workers, sums in full"
    share = found.compressed_bytes / found.bytes_sent
    if 0 < share < 1:
        ways += f": {100 * share:.2g} % of these bytes, the sum inside a fast domain comes first"
    return (
        f"{spell('compression', policy.compression)}: {quality}, {method.rounds} round"
        f"{'s' if method.rounds > 1 else ''} a step, compressed {ways}"
    )


def rate_of(policy: SyncPolicy) -> Rate:
    """The published rate behind the iterations of a policy."""
    if policy.compression:
        return COMPRESSED_SGD[policy.compression]
    if policy.is_asynchronous:
        return ASYNCHRONOUS_SGD
    return COOPERATIVE_SGD if policy.replicas_differ else PARALLEL_SGD


def _rate_sentences(task: Task, plan: Plan, policy: SyncPolicy) -> list[str]:
    """Which rate stands behind the iterations."""
    rate, goal = rate_of(policy), task.goal
    if not goal:
        return [f"steps to an accuracy may differ from all-reduce: {rate}"]
    every = plan.table()
    workers = float(gradient_exchange.worker_count(task, policy, every.dp, every.tp)[0])
    variance = goal.sequence_noise * workers / task.global_batch
    return [
        f"e = {goal.accuracy:.4g}, n = {workers:.4g} workers, v = {variance:.4g} of each: {rate}; "
        "without the constants of the bounds, with the optimizer of the theory (SGD)"
    ]


@dataclass(frozen=True)
class AxisTraffic:
    """What a layer sends along one axis of a grid."""

    axis: str
    ranks: int
    domains: int
    """Fast domains that the ranks of a group span."""
    operations: dict[str, float]
    """Bytes by collective, of weights or of activations: 'all_gather of weights'."""
    seconds: float
    """One after another, whatever hides."""


def axis_traffic(costs: Costs, row: int = 0) -> list[AxisTraffic]:
    """The axes with several ranks of one plan's grid, innermost first; none where it is 1d."""
    plan = costs.plans.take(slice(row, row + 1)).table()
    if not plan.tp_grid[0]:
        return []
    recipe = RECIPES[int(plan.precision[0])]
    local = layer_context(costs.task, recipe, stages.strategies(plan))
    ahead, behind = communication.grid_messages(layer_kinds(costs.task.model)[0], local)
    found = [c for one in (*ahead, *behind) for part in one for c in part]
    grid = grid_of(plan.tp_grid, plan.tp)
    out = []
    for axis, size in grid.mesh.items():
        along = [c for c in found if c.axis == axis]
        if size[0] > 1 and along:
            group = communication.axis_group(grid, axis, costs.task.cluster)
            seconds = float(communication.mesh_seconds(along, local)[0])
            sent = {
                what: recipe.wire * float(np.ravel(elements_sent(some, grid.mesh))[0])
                for what, some in _by_operation(along).items()
            }
            domains = int(np.ravel(group.domains)[0])
            out.append(AxisTraffic(axis, int(size[0]), domains, sent, seconds))
    return out


def _by_operation(found: list[MeshCollective]) -> dict[str, list[MeshCollective]]:
    out: dict[str, list[MeshCollective]] = {}
    for c in found:
        what = "activations" if "tokens" in c.tensor.dimensions else "weights"
        out.setdefault(f"{c.operation} of {what}", []).append(c)
    return out


def grid_sentences(costs: Costs, row: int = 0) -> list[str]:
    """What is sent and taken for granted on a grid; none where tensor parallelism is 1d."""
    traffic = axis_traffic(costs, row)
    plan = costs.plans.take(row)
    if not plan.tp_grid:
        return []
    fast = costs.task.cluster.fast_domain.name
    axes = [_axis_sentence(one, fast) for one in traffic]
    return [
        f"tp_grid={spell('tp_grid', plan.tp_grid)}: a layer sends per micro-batch and rank "
        f"{'; '.join(axes)}",
        _caveats(plan),
    ]


def _axis_sentence(one: AxisTraffic, fast: str) -> str:
    where = f"inside {fast}" if one.domains == 1 else f"over {one.domains} fast domains"
    parts = [
        f"{format_count(size)}B in {what.replace('_', '-', 1)}"
        for what, size in one.operations.items()
    ]
    sent = f"along {one.axis} ({one.ranks} ranks {where}) {', '.join(parts)}"
    return f"{sent}: {format_seconds(one.seconds)}"


def _caveats(plan: Plan) -> str:
    whole = (
        "sums of norms over split hidden states are neglected; axes do not slow each other; no run "
        "on a grid is among those that the interval of the step comes from"
    )
    if grid_of(plan.tp_grid, plan.tp).kind in (GridKind.TWO_D, GridKind.TWO_HALF_D):
        return f"SUMMA's broadcasts are costed as all-gathers of the same bytes; {whole}"
    return whole
