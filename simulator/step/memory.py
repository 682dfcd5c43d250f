"""Memory of every pipeline rank by component; the worst rank counts.

    total = weights + gradients + optimizer + activations + logits + buffers + reserve

ZeRO 1, 2 and 3 divide optimizer state, gradients and weights by the ranks that share them.
Copies of weights in a scaled format live beside them, but where ZeRO 3 gathers a layer at a time.
Logits are those that wait for the backward pass. Buffers are gathered inputs, boundary tensors,
those of sharding (sharding_buffers.py), and the larger of the recompute working set and the
temporaries of the loss, which are never alive together; the reserve is the CUDA context,
communicators and the allocator's slack.

Where a stack specifies what is allocated when, parts are those of the fuller of two moments: while
activations wait, and after the backward pass, when the update may have temporaries of its own.
Source: Rajbhandari et al. 2020, section 3; Korthikanti et al. 2022, section 4.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ..base.arrays import Mask, Value, any_nonzero
from ..hardware.precision import Optimizer, Recipe
from ..layers.quantisation import casts_weights
from ..plan.compressors import METHODS
from ..plan.synchronisation import DEFAULT_POLICY, SyncPolicy, gossips, through_servers
from ..task import Task
from . import compressed_exchange, outer_steps
from .ranks import Weights
from .sharding_buffers import ShardingBuffers, sharding_buffers
from .stages import Stages

PARTS = (
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "logits",
    "buffers",
    "reserve",
)
"""Components of a rank's memory; they add up to its total."""


class Moments(NamedTuple):
    """PARTS at two moments of a step [class, skeleton]."""

    waiting: dict[str, Value]
    """While activations wait for their backward pass."""
    update: dict[str, Value]
    """After the last backward pass, while weights are updated."""

    def fuller(self) -> dict[str, Value]:
        """All PARTS at the moment that needs more."""
        none = np.zeros(1)
        later = sum(self.update.values(), none) > sum(self.waiting.values(), none)
        return {name: np.where(later, self.update[name], self.waiting[name]) for name in PARTS}

    def tensor_bytes(self) -> Value:
        """Bytes of all but the reserve at the moment that has more of them."""
        held = (sum((m[name] for name in PARTS[:-1]), np.zeros(1)) for m in self)
        out: Value = np.maximum(*held)
        return out


def moments_of_step(
    task: Task,
    recipe: Recipe,
    optimizer: int,
    stages: Stages,
    zero: int,
    policy: SyncPolicy = DEFAULT_POLICY,
) -> Moments:
    """PARTS at both moments under one ZeRO stage; a stack that does not tell them apart keeps all
    but activations, logits and the buffers of layers through the update."""
    weights = stages.weights
    states = bytes_of_states(task, recipe, optimizer, policy)
    parts = state_bytes(states, zero, weights)
    if policy.compression:
        parts["gradients"] = parts["gradients"] + feedback_bytes(recipe, policy, weights)
    if policy.sites:
        parts["optimizer"] = parts["optimizer"] + outer_steps.state_bytes(policy, weights)
    each = states["gradients"] - states["leaving"]
    several, staying = several_passes(stages), states["staying"]
    bucket = policy.bucket_parameters
    buffers = sharding_buffers(task, recipe, weights, zero, each, several, staying, bucket)
    # Where layers run again as a whole, what they keep is cut from blocks of layers before, which
    # are then too small for what follows. Neglected: plans of several runs of layers.
    # Source: PyTorch, c10/cuda/CUDACachingAllocator.cpp (get_free_block, should_split); with its
    # rules alone tests/benchmarks/caching_allocator.py holds 1.06 to 1.49 bytes for each.
    share = (1 + task.software.uncounted) * task.software.rerun_slack * (zero < 3)
    holes = np.asarray(share * np.asarray(stages.full_recompute, float))
    if not separates_moments(task, recipe):
        same = buffers.passes
        first = with_activations(task, stages, parts, same, holes)
        return Moments(first, with_activations(task, _without_passes(stages, 0.0), parts, same))
    here = 0.0 if through_servers(policy.sync) else 1 - policy.offload_optimizer / 100
    update = here * update_bytes(task, recipe, zero, weights)
    again = sharded_input_growth(task, zero, weights)
    parts["gradients"] = parts["gradients"] + flat_gradients(task, zero, weights)
    apart = task.software.gradient_pool * (zero >= 3) * parts["gradients"]
    # Stacks that update on the host reduce and move the gradients of every micro-batch (DeepSpeed).
    whole = here * unreduced_bytes(task, recipe, zero, weights)
    kept = task.software.keeps_shards * (zero >= 3) * parts["gradients"]
    casts = cast_bytes(task, recipe, zero, weights)
    return separate_moments(
        task, stages, parts, buffers, update, again, whole, apart, kept, casts, holes
    )


def _without_passes(stages: Stages, buffers: Value | float) -> Stages:
    """What ranks hold while no pass runs and none waits."""
    none = np.zeros(stages.activations.shape)
    return replace(stages, activations=none, logits=none, buffers=buffers + none)


def state_bytes(states: dict[str, float], zero: int, weights: Weights) -> dict[str, Value]:
    """Bytes of weights, gradients and optimizer state under one ZeRO stage."""
    dense = _bytes_per_parameter(states, zero, weights.data_group.ranks)
    expert = _bytes_per_parameter(states, zero, weights.expert_group.ranks)
    held = {n: weights.dense * dense[n] + weights.expert * expert[n] for n in PARTS[:3]}
    if states["ends"]:
        held["optimizer"] = held["optimizer"] + _bytes_of_ends(states, zero, weights)
    held["weights"] = held["weights"] + frozen_bytes(zero, weights, states["staying"])
    if zero < 3:
        held["weights"] = held["weights"] + weights.scaled_copies
    return held


def frozen_bytes(zero: int, weights: Weights, staying: float = 1.0) -> Value | float:
    """Bytes of weights that are not trained: whole, or a shard of them under ZeRO 3, of which a
    share is `staying` on the GPU."""
    if weights.frozen_bytes is None:
        return 0.0
    return staying * weights.frozen_bytes / (weights.data_group.ranks if zero >= 3 else 1.0)


def separates_moments(task: Task, recipe: Recipe) -> bool:
    """Whether a task's stack specifies what is allocated when, beyond what is added up."""
    software = task.software
    moments = software.frees_gradients or software.unreduced_gradients or software.flat_gradients
    temporaries = software.update_memory + recipe.gradient_copy
    return moments or temporaries > 0 or software.sharded_inputs > 0


def update_bytes(task: Task, recipe: Recipe, zero: int, weights: Weights) -> Value:
    """Bytes of temporaries of the update, of the weights that a rank updates."""
    each = {"weights": 0.0, "sharded": 0.0, "gradients": 0.0, "leaving": 0.0}
    each["optimizer"] = task.software.update_memory + recipe.gradient_copy
    if not task.software.fused_update:
        each["optimizer"] += recipe.moments[1]
    dense = _bytes_per_parameter(each, zero, weights.data_group.ranks)["optimizer"]
    expert = _bytes_per_parameter(each, zero, weights.expert_group.ranks)["optimizer"]
    return weights.dense * dense + weights.expert * expert


def sharded_input_growth(task: Task, zero: int, weights: Weights) -> Value | float:
    """Bytes by which the inputs of layers grow while the backward pass of frozen weights runs under
    ZeRO 3."""
    if weights.input_bytes is None or weights.frozen_bytes is None or zero < 3:
        return 0.0
    return task.software.sharded_inputs * weights.input_bytes


def flat_gradients(task: Task, zero: int, weights: Weights) -> Value | float:
    """Bytes of a shard of the gradients of frozen weights that lie in one tensor with others."""
    return task.software.flat_gradients * (zero >= 3) * frozen_bytes(zero, weights)


def unreduced_bytes(task: Task, recipe: Recipe, zero: int, weights: Weights) -> Value | float:
    """Bytes of gradients that wait to be reduced under ZeRO 2 and 3: whole, in the format of the
    weights that products read."""
    if zero < 2:
        return 0.0
    frozen = task.software.flat_gradients * (zero >= 3) * frozen_bytes(0, weights)
    return recipe.weight * (weights.dense + weights.expert) + frozen


def cast_bytes(task: Task, recipe: Recipe, zero: int, weights: Weights) -> Value:
    """Bytes of the 16-bit weights that autocast has made."""
    return casts_weights(task, recipe) * (zero < 3) * weights.scaled_copies


def several_passes(stages: Stages) -> Mask:
    """Whether a rank runs more than one micro-batch a step, or others before it [skeleton]."""
    out: Mask = (stages.micro_batches > 1) | (stages.ranks > 1)
    return out


def separate_moments(
    task: Task,
    stages: Stages,
    states: dict[str, Value],
    sharding: ShardingBuffers,
    update: Value | float,
    again: Value | float,
    whole: Value | float,
    apart: Value | float,
    kept: Value | float,
    casts: Value | float,
    holes: Value | float = 0.0,
) -> Moments:
    """PARTS at both moments of a step, of a stack that tells them apart.

    `update` are bytes of its temporaries, `again` those that the inputs of layers grow by beside a
    layer that runs again, `whole` those of gradients that wait to be reduced, `apart` those of
    gradients for which the allocator keeps memory that nothing else takes, `kept` those of
    gradients that are never freed, `casts` those of weights that the backward pass has read,
    `holes` the share of what comes and goes that the allocator keeps between it.

    Source: PyTorch, c10/cuda/CUDACachingAllocator.cpp (blocks are of the stream that asked for
    them); _fsdp_collectives.py (foreach_reduce) and fsdp/_runtime_utils.py (_reduce_grad), where
    the shard is allocated in the stream that reduces. Seen in 12 steps under FSDP2 on one H200
    (measurements/h200-one-gpu.csv): reserved over allocated memory was 1.04 to 1.33.
    """
    software, several = task.software, several_passes(stages)
    if software.unreduced_gradients:
        reduced = states["gradients"]
        states = {**states, "gradients": np.maximum(reduced, np.where(several, whole, 0.0))}
    waiting = states["gradients"]
    if software.frees_gradients:
        waiting = np.where(several, waiting, kept)
    running, loss = stages.buffers_without_loss, stages.loss_buffers
    if running is None or loss is None:
        running = loss = stages.buffers
    # Where layers run, the logits of their micro-batch are gone.
    beside = running - (running is not loss) * stages.logits / stages.losses
    again = again + (sharding.passes - sharding.loss)
    buffers = np.maximum(beside + again, loss) - stages.buffers + sharding.loss
    first = with_activations(task, stages, {**states, "gradients": waiting}, buffers, holes)
    freed = np.maximum(apart - waiting, 0.0)
    held = 1 + further_share(task)
    first["reserve"] = first["reserve"] + held * (freed + sharding.idle)
    left: Value | float = 0.0
    if software.frees_gradients:
        left = np.maximum(running + sharding.last - sharding.absent, sharding.reduced)
    states = {**states, "weights": states["weights"] - casts}
    last = with_activations(task, _without_passes(stages, np.maximum(left, update)), states, 0.0)
    last["reserve"] = last["reserve"] + held * sharding.idle
    return Moments(first, last)


def with_activations(
    task: Task,
    stages: Stages,
    states: dict[str, Value],
    buffers: Value | float,
    holes: Value | float = 0.0,
) -> dict[str, Value]:
    """All PARTS: the states, then what else a rank keeps; `buffers` are those of sharding, `holes`
    are bytes of the allocator for each of what comes and goes."""
    parts = {**states, "activations": stages.activations, "logits": stages.logits}
    parts["buffers"] = stages.buffers + buffers
    passing = sum((parts[name] for name in ("activations", "logits", "buffers")), np.zeros(1))
    parts["reserve"] = fixed_bytes(task, stages) + further_share(task) * sum(parts.values())
    parts["reserve"] = parts["reserve"] + holes * passing
    return parts


def worst_bytes(
    task: Task,
    recipe: Recipe,
    optimizer: int,
    stages: Stages,
    zeros: list[int],
    policy: SyncPolicy = DEFAULT_POLICY,
) -> Value:
    """Bytes of the worst rank [4, skeleton]; only the ZeRO stages in `zeros` are filled.

    The sum of moments_of_step at the fuller moment, with what all ZeRO stages share added up once.
    """
    out = np.empty((4, stages.slowest_seconds.size))
    if separates_moments(task, recipe) or task.software.rerun_slack:
        for zero in zeros:
            parts = moments_of_step(task, recipe, optimizer, stages, zero, policy).fuller()
            out[zero] = sum(parts.values(), np.zeros(1)).max(axis=0)
        return out
    rest = stages.activations + stages.logits + stages.buffers
    fixed, slack = fixed_bytes(task, stages), 1 + further_share(task)
    states = bytes_of_states(task, recipe, optimizer, policy)
    weights = stages.weights
    for zero in zeros:
        dense = _bytes_per_parameter(states, zero, weights.data_group.ranks)
        total = weights.dense * sum(dense.values())
        total += rest
        if any_nonzero(weights.expert):
            expert = _bytes_per_parameter(states, zero, weights.expert_group.ranks)
            total += weights.expert * sum(expert.values())
        total += frozen_bytes(zero, weights, states["staying"])
        if states["ends"]:
            total += _bytes_of_ends(states, zero, weights)
        if policy.compression:
            total += feedback_bytes(recipe, policy, weights)
        if policy.sites:
            total += outer_steps.state_bytes(policy, weights)
        if zero < 3:
            total += weights.scaled_copies
        if zero != 1:
            staying = states["staying"]
            total += sharding_buffers(task, recipe, weights, zero, staying=staying).passes
        out[zero] = total.max(axis=0) * slack + fixed
    return out


def bytes_of_states(
    task: Task, recipe: Recipe, optimizer: int, policy: SyncPolicy = DEFAULT_POLICY
) -> dict[str, float]:
    """Bytes a parameter of weight, gradient and optimizer state: the recipe's, unless the stack
    keeps more or less (buffers of its own, no fp32 copy).

    A parameter server keeps the optimizer state; gossip receives into a second copy of the
    weights. `leaving` are the gradients that go to the host's share of the optimizer, `staying` the
    share of the weights that is not there, `sharded` what ZeRO 3 keeps of a weight.
    """
    software = task.software
    optimizer_bytes = software.optimizer_memory or float(recipe.optimizer_bytes(optimizer))
    gradients = software.gradient_memory or recipe.gradient
    away, staying = policy.offload_optimizer / 100, 1 - policy.offload_parameters / 100
    weights = staying * recipe.weight * (2 if gossips(policy.sync) else 1)
    apart = optimizer == Optimizer.MUON and not software.optimizer_memory
    cast = software.casts_shards and recipe.master and not software.optimizer_memory and not away
    return {
        "weights": 0.0 if casts_weights(task, recipe) else weights,
        "sharded": 0.0 if cast else weights,
        "staying": staying,
        "gradients": gradients,
        "leaving": away * gradients * software.offloads_gradients,
        "optimizer": 0.0 if through_servers(policy.sync) else (1 - away) * optimizer_bytes,
        "ends": recipe.bytes_of_ends(optimizer) if apart else 0.0,
    }


def feedback_bytes(recipe: Recipe, policy: SyncPolicy, weights: Weights) -> Value | float:
    """Bytes of the errors that a rank keeps of what it compressed: of its share of the gradients,
    or of all where they go to servers."""
    memories = METHODS[policy.compression].memories
    if not memories:
        return 0.0
    shares: Value | float = 1.0
    if not through_servers(policy.sync):
        shares = compressed_exchange.subgroups(weights.data_group)[0].ranks
    return memories * recipe.gradient * (weights.dense + weights.expert) / shares


def host_bytes(task: Task, recipe: Recipe, optimizer: int) -> tuple[float, float]:
    """Bytes of optimizer state, and of a gradient, for each parameter that the host updates: it
    adds gradients of the format of the master weights (DeepSpeed, stage3.py, step)."""
    software = task.software
    kept = software.optimizer_memory or recipe.optimizer_bytes(optimizer)
    return kept, max(software.gradient_memory or recipe.gradient, float(recipe.master))


def _bytes_per_parameter(
    states: dict[str, float], zero: int, shards: Value
) -> dict[str, Value | float]:
    """Bytes a rank stores for each of its parameters; ZeRO 1, 2, 3 shard state by state."""
    return {
        "weights": states["sharded"] / shards if zero >= 3 else states["weights"],
        "gradients": (states["gradients"] - states["leaving"] * (zero != 1))
        / (shards if zero >= 2 else 1.0),
        "optimizer": states["optimizer"] / (shards if zero >= 1 else 1.0),
    }


def _bytes_of_ends(states: dict[str, float], zero: int, weights: Weights) -> Value:
    """Further bytes of optimizer state of the parameters of embedding and head."""
    parameters = weights.dense + weights.expert - weights.matrix_parameters
    return states["ends"] * parameters / (weights.data_group.ranks if zero >= 1 else 1.0)


def fixed_bytes(task: Task, stages: Stages) -> Value:
    """Context, and the NCCL buffers of all process groups [.., skeleton]."""
    counted = task.software.context_bytes + stages.connections * task.software.connection_bytes
    return (1 + task.software.uncounted) * counted


def further_share(task: Task) -> float:
    """What a GPU holds for each byte of tensors besides: the allocator's slack, and what is not
    counted of the stack."""
    return (1 + task.software.uncounted) * (1 + task.software.allocator_slack) - 1


def usable_bytes(task: Task, limit: float) -> float:
    """Bytes of tensors and communicators within `limit` bytes of a GPU."""
    software = task.software
    counted = limit / (1 + software.uncounted) - software.context_bytes
    return counted / (1 + software.allocator_slack)


PEAK_TOLERANCE = 0.999
"""1 - e: share of the prediction of a run below which a plan does not count as like it."""


@dataclass(frozen=True)
class MeasuredPeak:
    """A run whose fullest GPU held far more than is predicted of it."""

    predicted: float
    """Bytes."""
    peak: float
    """Bytes that it held."""
    isolated: bool
    """Whether a run that needs more held less; else what needs as much is taken to hold as much."""


def measured_peaks(task: Task) -> tuple[MeasuredPeak, ...]:
    """The runs in the calibration of a task whose peaks were far above the prediction."""
    known = task.calibration.peaks if task.calibration else None
    found: tuple[MeasuredPeak, ...] = known.overfull if known else ()
    return found


def at_least_measured(task: Task, total: Value) -> Value:
    """Bytes of the worst rank, no less than measured runs like the plan held.

        M' = max(M, h_i)    where M > (1 - e) p_i, and M < p_i / (1 - e) where others held less

    M bytes that are predicted of the fullest rank, p_i those of run i, h_i what its fullest GPU
    held. Only a calibration has such runs.
    """
    out = total
    for run in measured_peaks(task):
        like = total > PEAK_TOLERANCE * run.predicted
        if run.isolated:
            like = like & (total < run.predicted / PEAK_TOLERANCE)
        out = np.where(like, np.maximum(out, run.peak), out)
    return out


def largest_prediction_within(task: Task, limit: float) -> float:
    """The bytes, at most `limit`, that plans are predicted to need which hold no more than that."""
    over = [run.predicted for run in measured_peaks(task) if run.peak > limit and not run.isolated]
    if not over:
        return limit
    return min(limit, float(at_least_measured(task, np.array(PEAK_TOLERANCE * min(over)))))
