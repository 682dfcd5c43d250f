"""Formats of 8 and 4 bits, and optimizers: seconds of scaling, copies and states by hand.

Sources: Transformer Engine d0067d0 (what each recipe reads, writes and keeps), OCP Microscaling
Formats 1.0 (a scale of 8 bits for 32 elements), Jordan et al. 2024 (Muon), Dettmers et al. 2022.
The layer: [1024, 1024] times [1024, 3072], [1024, 1024], [1024, 4096], and 4096 to 1024.
"""

from dataclasses import replace

import numpy as np
import pytest
from round_numbers import (
    ACCELERATOR,
    EMBEDDING,
    FAST,
    HEAD,
    LAYER,
    LOGITS,
    MOVED,
    PARAMETERS,
    TABLE,
    cluster,
    costs_of,
    sparse,
    stack,
    task,
)

from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.precision import orthogonalisation_flops
from plan3d.simulator.hardware.profile_changes import POWER_EXPONENT

INPUTS = 1024 * (1024 + 1024 + 1024 + 4096)
GRADIENTS = 1024 * (3072 + 1024 + 4096 + 1024)
WEIGHTS = 12 * 1024**2
BLACKWELL = replace(ACCELERATOR, peak={**ACCELERATOR.peak, "mxfp8": 200e12, "nvfp4": 400e12})
NARROW, WIDE = cluster(1), cluster(1, accelerator=BLACKWELL)
MX, NV = 1 + 1 / 32, 1 / 2 + 1 / 16
RECIPES = [
    # Recipe and machine; bytes to scale an element, of a kept input, of the copies of a weight.
    ("fp8", NARROW, 2 + 2 + 1 + 1, 1, 2),
    ("fp8", WIDE, 2 + 2 + 1, 1, 1),
    ("fp8-delayed", NARROW, 2 + 1 + 1, 1, 2),
    ("fp8-delayed", WIDE, 2 + 1, 1, 1),
    ("fp8-blockwise", NARROW, 2 + 1 + 1, 1, 2),
    ("fp8-rowwise", NARROW, (2 + 2 + 1) * (1 + 2.1 / 0.65), 1, 2),
    ("mxfp8", WIDE, 2 + 2 * MX, MX, 2 * MX),
    ("nvfp4", WIDE, 2 + 2 + 2 * NV, NV, 2 * NV),
]


@pytest.mark.parametrize(("name", "machine", "moved", "kept", "copies"), RECIPES)
def test_what_scaling_takes(name, machine, moved, kept, copies):
    """Inputs forward, gradients of outputs backward, once each at 1 TB/s; copies of 12 matrices of
    1024^2; inputs of the layer's products kept in the format, and the output of attention twice."""
    costs = costs_of(task(cluster=machine), f"precision={name}")
    plain = 3 * (4 * MOVED + EMBEDDING + HEAD - LOGITS)
    scaling = 4 * moved * (INPUTS + GRADIENTS) / 1e12
    assert costs.compute_seconds["memory_bound"] == pytest.approx(4 * (plain + scaling))
    bf16 = costs_of(task(cluster=machine), "precision=bf16").memory
    assert costs.memory["weights"] - bf16["weights"] == pytest.approx(4 * LAYER * copies)
    # Two norms' outputs and the product of 4096 in the format, and a copy of 1024.
    fewer = 1024 * ((2 * 1024 + 4096) * (2 - kept) - 1024 * kept)
    assert bf16["activations"] - costs.memory["activations"] == pytest.approx(4 * fewer)


def test_a_stack_that_keeps_nothing_scaled():
    """torchao: inputs and weights wait in 16 bits, and weights are scaled in both passes."""
    software = stack(keeps_scaled=False)
    found = costs_of(task(software=software), "precision=fp8")
    plain = costs_of(task(software=software), "precision=bf16")
    more = 4 * 4 * 6 * (INPUTS + GRADIENTS + 2 * WEIGHTS) / 1e12
    seconds = found.compute_seconds["memory_bound"] - plain.compute_seconds["memory_bound"]
    assert seconds == pytest.approx(more)
    assert found.memory == pytest.approx(plain.memory)


@pytest.mark.parametrize("keeps", [False, True])
def test_autocast_casts_weights_in_every_pass(keeps):
    """4 + 2 bytes of inputs and weights forward, of gradients of outputs and of weights backward,
    whether copies of weights wait or not; four micro-batches of four layers."""
    found, plain = (
        costs_of(task(software=stack(keeps_scaled=keeps)), f"precision={name}").compute_seconds
        for name in ("amp", "fp16")
    )
    more = 4 * 4 * (4 + 2) * (INPUTS + GRADIENTS + 2 * WEIGHTS) / 1e12
    assert found["memory_bound"] - plain["memory_bound"] == pytest.approx(more)


@pytest.mark.parametrize(
    ("keeps", "fewer"),
    [
        # 4096 that the activation reads, 2 bytes less 1; 1024 of attention, 2 + 1 less 1.5.
        ({"scales_activation_inputs": True}, 4096 * (2 - 1)),
        ({"scaled_output_bytes": 1.5}, 1024 * (2 + 1 - 1.5)),
    ],
)
def test_a_stack_that_keeps_more_in_fewer_bits(keeps, fewer):
    """DeepSeek-V3 report, section 3.3.3: inputs of SwiGLU in 8 bits, attention's output in 12; four
    layers of 1024 tokens. Nothing else changes, and nothing in 16 bits."""
    lean, usual = stack(**keeps), stack()
    for precision, less in (("fp8", 4 * 1024 * fewer), ("bf16", 0)):
        found, plain = (
            costs_of(task(software=one, cluster=NARROW), f"precision={precision}").memory
            for one in (lean, usual)
        )
        assert plain["activations"] - found["activations"] == pytest.approx(less)
        assert found | {"activations": 0} == plain | {"activations": 0}


def test_scaling_has_a_rate_of_its_own_where_it_was_measured():
    training = replace(ACCELERATOR.training, scaling_efficiency=0.5)
    half = cluster(1, accelerator=replace(ACCELERATOR, training=training))
    found, usual = (
        costs_of(task(cluster=where), "precision=fp8").compute_seconds["memory_bound"]
        for where in (half, NARROW)
    )
    assert found - usual == pytest.approx(4 * 4 * 6 * (INPUTS + GRADIENTS) / 1e12)


@pytest.mark.parametrize(
    ("name", "kernels"),
    [("fp8", 4 * (2 + 1 + 2 * 8)), ("fp8-blockwise", 2 + 1 + 2 * 8), ("fp8-delayed", 5)],
)
def test_what_goes_to_experts_is_scaled_one_by_one(name, kernels):
    """Two products of attention, the router's, and two of each of 8 experts, by kernels of 1 us, in
    both passes of four layers; a recipe whose scales are known before has one for all experts, one
    that finds them first four each: zero, the largest value, the scale, the cast."""
    slow = replace(ACCELERATOR, memory_bound=replace(ACCELERATOR.memory_bound, latency=1e-6))

    def waits(precision):
        machines = (cluster(1, accelerator=one) for one in (slow, ACCELERATOR))
        each = (
            costs_of(task(model=sparse(), cluster=m), f"precision={precision}") for m in machines
        )
        return np.subtract(*(costs.compute_seconds["memory_bound"] for costs in each))

    assert waits(name) - waits("bf16") == pytest.approx(4 * 4 * 2 * kernels * 1e-6)


@pytest.mark.parametrize(
    ("name", "kernels"),
    [("bf16", 0), ("fp8", 4 * 2 * 8), ("fp8-blockwise", 16), ("fp8-delayed", 2)],
)
def test_what_scales_for_experts_is_launched_behind_the_wait_for_their_counts(name, kernels):
    """1 ms is the copy and 24 launches; each further one adds a 25th, in each of four layers and
    micro-batches."""
    waiting, none = (
        costs_of(task(model=sparse(), software=stack(expert_seconds=t)), f"precision={name}")
        for t in (1e-3, 0.0)
    )
    found = waiting.step_seconds - none.step_seconds
    assert found == pytest.approx(4 * 4 * 1e-3 * (1 + kernels / 25))


def test_what_goes_to_experts_is_padded():
    """Inputs, and gradients of outputs, of attention, router and the experts of 2048 tokens; those
    are padded and unpadded in both passes, 8 bytes of 1024 each."""
    found, plain = (costs_of(task(model=sparse()), f"precision={p}") for p in ("fp8", "bf16"))
    inputs = 1024 * 3 * 1024 + 2048 * (1024 + 4096)
    gradients = 1024 * (3072 + 1024 + 8) + 2048 * (4096 + 1024)
    moved = 6 * (inputs + gradients) + 2 * 8 * 2048 * 1024
    more = found.compute_seconds["memory_bound"] - plain.compute_seconds["memory_bound"]
    assert more == pytest.approx(4 * 4 * moved / 1e12)


@pytest.mark.parametrize(
    ("name", "machine", "weight", "gathered"),
    [("fp8", NARROW, 2.0, 1), ("fp8", WIDE, 1.0, 1), ("mxfp8", WIDE, 2 * MX, 2)],
)
def test_parameters_in_8_bits(name, machine, weight, gathered):
    """Layers have the copies alone, the tables 2 bytes; formats with a scale a block gather 16
    bits."""
    question = task(2, cluster=replace(machine, gpus=2))
    plan = f"dp=2 zero=1 overlap_param_gather=0 precision={name}"
    found, plain = (costs_of(question, f"{plan} fp8_params={n}") for n in (1, 0))
    layers = 4 * LAYER
    expected = weight * layers + 2 * (PARAMETERS - layers)
    assert found.memory["weights"] == pytest.approx(expected)
    fewer = layers * (2 - gathered) / 2 / 100e9
    assert plain.seconds["data_comm"] - found.seconds["data_comm"] == pytest.approx(fewer)


def test_end_layers_in_16_bits():
    """One layer of four at the start and one at the end are those of bf16: their products run at
    half the rate, nothing of theirs is scaled, and they have no copies; the others are fp8's."""
    question = task(2, cluster=replace(WIDE, gpus=2))
    plan = "dp=2 zero=1 overlap_param_gather=0 precision={} fp8_params={}"
    ends = " bf16_first_layers=1 bf16_last_layers=1"
    found, whole = (costs_of(question, plan.format("fp8", 1) + more) for more in (ends, ""))
    plain = costs_of(question, plan.format("bf16", 0))
    for kernels in ("matmul", "memory_bound"):
        both = plain.compute_seconds[kernels] + whole.compute_seconds[kernels]
        assert found.compute_seconds[kernels] == pytest.approx(both / 2)
    for part in ("weights", "activations"):
        assert found.memory[part] == pytest.approx((plain.memory[part] + whole.memory[part]) / 2)
    exchanged = (plain.seconds["data_comm"] + whole.seconds["data_comm"]) / 2
    assert found.seconds["data_comm"] == pytest.approx(exchanged)
    assert costs_of(question, plan.format("fp8", 0) + " bf16_first_layers=4").step_seconds == (
        pytest.approx(plain.step_seconds, rel=1e-12)
    )


@pytest.mark.parametrize(
    ("optimizer", "state"),
    [
        ("adam", 4 + 4 + 4),
        ("sgd", 4 + 4),
        ("lion", 4 + 4),
        ("adafactor", 4),
        ("adam-8bit", 4 + 2 + 2 * 4 / 256),
    ],
)
def test_states_of_optimizers(optimizer, state):
    """Master weights, and what each keeps besides; all of it is read and written once a step."""
    costs = costs_of(task(), f"optimizer={optimizer}")
    assert costs.memory["optimizer"] == pytest.approx(state * PARAMETERS)
    assert costs.seconds["optimizer"] == pytest.approx((2 * state + 4 + 2) * PARAMETERS / 1e12)


def test_muon():
    """Layers keep a moment, tables and the last norm two; per layer 5 (4 n^2 m + 2 n^3) FLOPs of
    [1024, 3072], [1024, 1024] and twice [1024, 4096] at 100 TFLOP/s."""
    costs = costs_of(task(), "optimizer=muon")
    ends = 2 * TABLE + 1024
    assert costs.memory["optimizer"] == pytest.approx(8 * PARAMETERS + 4 * ends)
    flops = 5 * 1024**3 * sum(4 * m + 2 for m in (3, 1, 4, 4))
    moved = (2 * 8 + 4 + 2) * PARAMETERS / 1e12
    assert costs.seconds["optimizer"] == pytest.approx(moved + 4 * flops / 100e12)
    assert orthogonalisation_flops(np.array(2.0), np.array(3.0)) == 5 * (4 * 4 * 3 + 2 * 8)


@pytest.mark.parametrize(("zero", "ranks"), [(0, 1), (1, 2)])
def test_ranks_that_shard_share_the_moments_of_muon(zero, ranks):
    """Eight bytes of every parameter, four more of tables and the last norm."""
    costs = costs_of(task(2), f"dp=2 optimizer=muon zero={zero}")
    held = 8 * PARAMETERS + 4 * (2 * TABLE + 1024)
    assert costs.memory["optimizer"] == pytest.approx(held / ranks)
    assert costs.memory_bytes == pytest.approx(sum(costs.memory.values()))


def test_experts_have_one_moment_of_muon():
    """Routers, norms and experts as other hidden layers."""
    costs = costs_of(task(model=sparse()), "optimizer=muon")
    layer = 4 * 1024**2 + 2 * 1024 + 8 * 1024 + 8 * 2 * 1024 * 4096
    ends = 2 * TABLE + 1024
    assert costs.memory["optimizer"] == pytest.approx(8 * (4 * layer + ends) + 4 * ends)
    assert costs.memory_bytes == pytest.approx(sum(costs.memory.values()))


def test_ranks_that_shard_share_out_the_matrices_of_muon():
    whole, shared = (
        costs_of(task(2), f"dp=2 optimizer=muon zero={zero}").seconds["optimizer"]
        for zero in (0, 1)
    )
    assert shared == pytest.approx(whole / 2)


def test_fewer_ranks_share_out_the_experts_of_muon():
    """ep = 4 of eight: eight ranks have the same dense matrices, [1024, 3072], [1024, 1024] and a
    router of [8, 1024]; two have the same two experts, each twice [1024, 4096]."""
    costs = costs_of(task(8, 8, sparse()), "dp=8 ep=4 zero=1 optimizer=muon")
    dense = 4 * (4 * 1024**2 + 2 * 1024 + 8 * 1024) + 2 * TABLE + 1024
    experts = 4 * 2 * 2 * 1024 * 4096
    router = 5 * (4 * 8**2 * 1024 + 2 * 8**3)
    flops = 4 * (5 * 1024**3 * (14 + 6) + router) / 8
    flops += 4 * 2 * 2 * 5 * 1024**3 * 18 / 2
    moved = (2 * 8 + 4 + 2) * (dense / 8 + experts / 2) / 1e12
    assert costs.seconds["optimizer"] == pytest.approx(moved + flops / 100e12)


@pytest.mark.parametrize(("bandwidth", "hidden"), [(40e9, True), (4e9, False)])
def test_shards_of_matrices_are_exchanged_beside_their_products(bandwidth, hidden):
    """FSDP2 over four ranks: three quarters of a rank's shard, two bytes a parameter, there and
    back, or the FLOPs of a quarter of the matrices, whichever is longer."""
    link = replace(FAST.all_to_all, bandwidth=bandwidth)
    machine = cluster(4, fast_domain=replace(FAST, all_to_all=link))
    question = task(4, cluster=machine, software=stack(muon_stage=3))
    exchange = 2 * 0.75 * 2 * 4 * (LAYER / 4) / bandwidth
    products = 5 * 1024**3 * sum(4 * m + 2 for m in (3, 1, 4, 4)) / 100e12
    assert (exchange < products) == hidden
    moved = (2 * 8 + 4 + 2) * PARAMETERS / 4 / 1e12
    costs = costs_of(question, "dp=4 zero=3 optimizer=muon")
    assert costs.seconds["optimizer"] == pytest.approx(moved + max(exchange, products))


def test_gemms_under_a_power_limit():
    """What long GEMMs keep falls as the limit to the power of 0.85, in every format alike."""
    usual, low = (Cluster.profile("h100-sxm", 8, power_limit=w).accelerator for w in (None, 350.0))
    ratio = low.training.sustained / usual.training.sustained
    assert ratio == pytest.approx(0.5**0.85)
    assert POWER_EXPONENT == 0.85
    assert (low.power, low.memory_bandwidth) == (350.0, usual.memory_bandwidth)
