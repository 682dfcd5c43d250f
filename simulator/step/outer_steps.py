"""Exchanges between sites: seconds of a step that they add, and bytes that ranks keep for them.

Replicas of a site reduce gradients every step, and sites exchange the sums: every rank its share,
behind the last backward pass where the reduction is overlapped. Or sites train on their own
(DiLoCo): every H steps they average their weights, or take a step of SGD with Nesterov momentum
along the mean change, in F fragments each of which has its turn once in H steps. A fragment may
take up to D steps beside compute before it is merged. The site gathers the weights then.

    seconds of a step = F / H max(t / F - D T, 0) + gather / H,
    t = 2 (k - 1) / k bytes / B + 2 (k - 1) F latency

Source: Douillard et al. 2023 (DiLoCo), algorithm 1; Douillard et al. 2025 (Streaming DiLoCo:
fragments, overlap, 4 bits); Charles et al. 2025 (Scaling laws for DiLoCo: its model of wall-clock
time); torchft, local_sgd.py (DiLoCo: sync_every, fragment_sync_delay).
Neglected: kernels of the outer step (of a share, every H steps), the SMs that a slow link takes.
Legend: k sites, T seconds of compute of a step, B bytes/s of a site's link.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..base.arrays import Value
from ..hardware.precision import Recipe
from ..operators import collectives
from ..plan.synchronisation import OuterOptimizer, SyncPolicy
from ..task import Task
from . import gradient_exchange
from .ranks import Weights
from .stages import Stages

FULL_BITS = 32
"""Bits of a parameter where it is not quantised."""
STATE_BYTES = 8.0
"""Bytes of a parameter of the last outer step and of its momentum, fp32."""
SENT_BYTES = 4.0
"""Those of a copy that is being exchanged while training goes on."""


def site_weights(weights: Weights, sites: int) -> Weights:
    """The weights as the ranks of one site share them."""
    every = weights.data_group
    within, across = collectives.split_group(every, every.ranks / sites)
    return replace(weights, data_group=within, site_group=across)


class Exchange(NamedTuple):
    """The exchange of one fragment [skeleton]."""

    sent: Value
    """Bytes that the fullest rank sends."""
    seconds: Value
    exposed: Value
    """Seconds of them that no compute hides."""


def exchange(task: Task, recipe: Recipe, policy: SyncPolicy, s: Stages) -> Exchange:
    """One fragment, or the gradients, among all sites: through the links of sites or, where they
    have none, the network of the cluster."""
    k, net, weights = policy.sites, task.cluster.network, s.weights
    assert weights.site_group
    full = 8 * gradient_exchange.element_bytes(task, recipe, policy.inner)
    bits = policy.outer_bits or (FULL_BITS if policy.replicas_differ else full)
    each = bits / 8 / policy.fragments
    share = weights.dense / weights.data_group.ranks * each
    sent = (2 * (k - 1) / k * share).max(axis=0)
    if net.site_bandwidth:
        moved = 2 * (k - 1) / k * task.model.parameters * each / net.site_bandwidth
        seconds = moved + 2 * (k - 1) * net.site_latency + np.zeros(sent.shape)
    else:
        seconds = np.max(collectives.all_reduce(share, weights.site_group, task.cluster), axis=0)
    window = policy.outer_delay * s.micro_batches * (s.forward_window + s.backward_window)
    return Exchange(sent, seconds, np.maximum(seconds - window.max(axis=0), 0.0))


def step_seconds(task: Task, recipe: Recipe, policy: SyncPolicy, s: Stages) -> Value:
    """Seconds that are added to the mean step [ZeRO stage, overlap_grad_reduce, 1, skeleton];
    weights that ZeRO 3 shards are not gathered."""
    one = exchange(task, recipe, policy, s)
    if not policy.replicas_differ:
        rest = np.maximum(one.seconds - s.backward_window.max(axis=0), 0.0)
        return np.broadcast_to(np.array([one.seconds, rest])[:, None], (4, 2, 1, rest.size))
    size = recipe.weight * s.weights.dense
    gathered = collectives.all_gather(size, s.weights.data_group, task.cluster).max(axis=0)
    exposed = policy.fragments * one.exposed
    each = np.array([exposed + gathered, exposed + gathered, exposed + gathered, exposed])
    out: Value = each[:, None, None] / policy.sync_period
    return out


def state_bytes(policy: SyncPolicy, weights: Weights) -> Value:
    """Bytes that a rank keeps for its share: of the outer optimizer, and of a fragment on its
    way."""
    each = STATE_BYTES * (policy.outer_optimizer == OuterOptimizer.NESTEROV)
    each += SENT_BYTES / policy.fragments * (policy.outer_delay > 0)
    out: Value = each * weights.dense / weights.data_group.ranks
    return out
