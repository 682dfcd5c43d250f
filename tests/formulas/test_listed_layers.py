"""Layers of a listed network: seconds from FLOPs and bytes, what they keep and hand on.

Sources: Williams et al. 2009 (roofline); Huang et al. 2019 (GPipe), section 2 (a layer's forward
and backward cost, activations and parameters are all that a pipeline needs to know).
"""

from dataclasses import replace

import pytest
from round_numbers import (
    ACCELERATOR,
    cluster,
    costs_of,
    gather,
    group_of,
    scatter,
    send,
    stack,
    task,
)

from plan3d.simulator.workload.blocks import ListedLayer
from plan3d.simulator.workload.model import Network

WIDE = ListedLayer(
    parameters=3_000_000, forward_flops=4e9, activation_bytes=8e6, boundary_bytes=2e6
)
DEEP = ListedLayer(
    parameters=5_000_000, forward_flops=2e9, activation_bytes=6e6, boundary_bytes=1e6
)
TWO_AND_ONE = Network.from_layers("listed", [WIDE, WIDE, DEEP])


def listed(gpus=1, layers=TWO_AND_ONE, **changes):
    return task(gpus, 8, layers, sequence=1, **changes)


def test_a_forward_pass_takes_its_flops_at_the_rate_of_the_gemms():
    """Two samples: 2 (2 x 4 + 2) GFLOP at 100 TFLOP/s; the backward pass twice as long."""
    costs = costs_of(listed(), "micro_batch=2")
    assert costs.compute_seconds["matmul"] == pytest.approx(4 * 3 * 2 * 10e9 / 100e12)
    assert costs.seconds["optimizer"] == pytest.approx(30 * 11e6 / 1e12)
    forward = group_of(listed(), "micro_batch=2").stages.forward
    assert forward[0, 0] == pytest.approx(2 * 10e9 / 100e12)


def test_a_layer_may_state_its_own_share_of_the_peak():
    slow = Network.from_layers("slow", [replace(WIDE, efficiency=0.25)])
    costs = costs_of(listed(layers=slow), "tp=1")
    assert costs.compute_seconds["matmul"] == pytest.approx(8 * 3 * 4e9 / 25e12)


@pytest.mark.parametrize(
    ("dgrad", "wgrad", "share"), [(1.0, 1.0, 1 / 3), (1.0, 2.0, 1 / 5), (0.5, 1.0, 1 / 4)]
)
def test_weight_gradients_are_a_share_of_three_products(dgrad, wgrad, share):
    """1 / wgrad of 1 + 1 / dgrad + 1 / wgrad."""
    training = replace(ACCELERATOR.training, dgrad_rate=dgrad)
    machine = cluster(1, accelerator=replace(ACCELERATOR, training=training))
    stages = group_of(listed(cluster=machine, software=stack(wgrad_rate=wgrad)), "tp=1").stages
    assert stages.weight_gradient.item() == pytest.approx(3 * 10e9 / 100e12 * share)


def test_a_stack_keeps_its_share_of_the_rate():
    costs = costs_of(listed(software=stack(sustained=0.5)), "tp=1")
    assert costs.compute_seconds["matmul"] == pytest.approx(8 * 3 * 10e9 / 50e12)


@pytest.mark.parametrize(("precision", "wider"), [("bf16", 1), ("fp32", 2)])
def test_a_layer_of_bytes_takes_the_bandwidth(precision, wider):
    """Activations of two samples written and read, and weights read, at half of 1 TB/s after 1 us;
    fp32 doubles both."""
    gemm = replace(ACCELERATOR.gemm["16bit"], memory_efficiency=0.5, latency=1e-6)
    machine = replace(ACCELERATOR, gemm={"16bit": gemm, "32bit": gemm})
    layers = Network.from_layers("bytes", [replace(WIDE, forward_flops=0.0)])
    question = listed(layers=layers, cluster=cluster(1, accelerator=machine))
    forward = 1e-6 + wider * (2 * 2 * 8e6 + 3e6 * 2) / 0.5e12
    costs = costs_of(question, f"micro_batch=2 precision={precision}")
    assert costs.compute_seconds["matmul"] == pytest.approx(4 * 3 * forward)
    assert costs.mfu == costs.mfu_causal == 0


def test_flops_and_bytes_are_rounded_where_they_meet():
    """Of a sharpness of 2: 40 us of arithmetic and 30 us of bytes take 50."""
    gemm = replace(ACCELERATOR.gemm["16bit"], memory_efficiency=1.0)
    machine = replace(ACCELERATOR, gemm={"16bit": gemm})
    layers = Network.from_layers("both", [replace(WIDE, activation_bytes=12e6)])
    question = listed(layers=layers, cluster=cluster(1, accelerator=machine))
    costs = costs_of(question, "tp=1")
    assert costs.compute_seconds["matmul"] == pytest.approx(8 * 3 * 50e-6)


@pytest.mark.parametrize(
    ("recompute", "kept", "again", "alive"), [("none", 22e6, 0, 0), ("full", 5e6, 1, 8e6)]
)
def test_full_recompute_keeps_boundaries(recompute, kept, again, alive):
    """Two samples: outputs of 2 + 2 + 1 MB; the largest layer's activations while it runs again."""
    costs = costs_of(listed(), f"micro_batch=2 recompute={recompute}")
    assert costs.memory["activations"] == 2 * kept
    assert costs.memory["buffers"] == 2 * alive
    assert costs.compute_seconds["recompute"] == pytest.approx(4 * again * 2 * 10e9 / 100e12)


def test_fp32_activations_are_twice_as_large():
    costs = costs_of(listed(), "precision=fp32")
    assert costs.memory["activations"] == 2 * 22e6
    assert costs.memory["weights"] == 4 * 11e6
    again = costs_of(listed(), "precision=fp32 recompute=full")
    assert again.memory["buffers"] == 2 * 8e6
    stages = group_of(listed(3), "pp=3 precision=fp32").stages
    assert stages.hop_seconds[0] == pytest.approx(send(2 * 2e6))


def test_layers_are_sharded_one_by_one():
    """ZeRO 3: the largest of three is gathered twice over, with gradients of one."""
    costs = costs_of(listed(4), "dp=4 zero=3 overlap_grad_reduce=0 overlap_param_gather=0")
    assert costs.memory["weights"] == 2 * 11e6 / 4
    assert costs.memory["buffers"] == 5e6 * (2 * 2 + 4)
    # Three layers of eleven thirds, two micro-batches.
    each = 2 * 3 * gather(2 * 11e6 / 3, 4) + 3 * scatter(4 * 11e6 / 3, 4)
    assert costs.seconds["data_comm"] == pytest.approx(2 * each)


@pytest.mark.parametrize(
    ("layout", "layers", "sends"),
    [
        ("2,1", [WIDE, WIDE, DEEP], [2e6]),
        ("1,1,1", [WIDE, DEEP, WIDE], [2e6, 1e6]),
        ("1,2,1", [WIDE, WIDE, DEEP, WIDE], [2e6, 1e6]),
    ],
)
def test_a_send_is_the_mean_over_the_cuts(layout, layers, sends):
    """What the layer before each cut hands on, for two samples."""
    question = listed(len(sends) + 1, Network.from_layers("cut", layers))
    stages = group_of(
        question, f"pp={len(sends) + 1} micro_batch=2 layers_per_stage={layout}"
    ).stages
    assert stages.hop_seconds[0] == pytest.approx(
        sum(send(2 * size) for size in sends) / len(sends)
    )


def test_activations_of_a_listed_layer_go_to_the_host():
    """All of 8 MB at 16 GB/s: 500 us, beside 40 us forward and 80 us backward."""
    costs = costs_of(listed(layers=Network.from_layers("one", [WIDE])), "offload_activations=100")
    shown = (500e-6 - 40e-6) + (500e-6 - 80e-6)
    assert costs.seconds["host_comm"] == pytest.approx(8 * shown)
    assert costs.memory["activations"] == 0
    assert costs.memory["buffers"] == 2 * 8e6
    assert costs.node_bytes == 8e6
