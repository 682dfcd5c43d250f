"""Seconds of kernels by hand: GEMM rooflines, groups, gradients, attention, moved bytes.

    GEMM  t = t0 + [(2 m n k / (eta P))^q + (bytes / (beta BW))^q]^(1/q)

Source: Williams, Waterman and Patterson 2009 (roofline), rounded by q; FlashAttention's count of
causal FLOPs (Dao 2023); the forms stated in the docstrings of accelerator.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from plan3d.simulator.hardware.accelerator import (
    Accelerator,
    AttentionTime,
    GemmTime,
    MemoryBoundTime,
    TrainingTime,
)
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.precision import RECIPES, Precision
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.layers.cost_columns import Cost
from plan3d.simulator.layers.layer_costs import layer_costs
from plan3d.simulator.operators import kernel_times
from plan3d.simulator.operators.work import AttentionWork, Gemm, Strategy
from plan3d.simulator.task import Task
from plan3d.simulator.workload.blocks import Attention, Block, Mlp
from plan3d.simulator.workload.model import Model

BF16, FP8, FP32 = (RECIPES[p] for p in (Precision.BF16, Precision.FP8, Precision.FP32))
# bf16: 0.5 x 2e13 = 10^13 FLOP/s; memory 0.5 x 4e10 = 2 x 10^10 bytes/s for GEMMs.
PLAIN = GemmTime(efficiency=0.5, memory_efficiency=0.5, latency=0.0, sharpness=2.0)
GPU = Accelerator(
    name="made-up",
    title="made up",
    memory=80e9,
    memory_bandwidth=4e10,
    power=400.0,
    peak={"bf16": 2e13, "fp8": 4e13, "fp32": 1e12},
    gemm={"16bit": PLAIN, "8bit": PLAIN, "32bit": PLAIN},
    attention=AttentionTime(
        efficiency=0.5, diagonal_tokens=0.0, latency=0.0, backward_ratio=3.0, tail_rows=0.0
    ),
    memory_bound=MemoryBoundTime(efficiency=0.25, latency=1e-5),
    training=TrainingTime(streaming_efficiency=0.8, loss_efficiency=0.5),
)
STACK = replace(software_profile("megatron-core"), sustained=0.94)


def near(expected):
    return pytest.approx(expected, rel=1e-12)


def took(gemm, recipe=BF16, sustained=1.0, **constants):
    """Seconds of one GEMM on the GPU whose every width has these constants."""
    gpu = replace(GPU, gemm=dict.fromkeys(GPU.gemm, replace(PLAIN, **constants)))
    return kernel_times.gemm_seconds([gemm], 1, gpu, recipe, sustained)[0, 0]


def test_smooth_maximum():
    a, b = np.array([3.0, 3.0, 5.0, 0.0]), np.array([4.0, 0.0, 12.0, 0.0])
    assert kernel_times.smooth_maximum(a, b, 2.0).tolist() == near([5.0, 3.0, 13.0, 0.0])
    assert kernel_times.smooth_maximum(b, a, 1.0).tolist() == near([7.0, 3.0, 17.0, 0.0])


def test_gemm_roofline():
    """1000 x 1000 x 1000: 2 x 10^9 FLOPs at 5 x 10^12 take 4e-4 s, 6 x 10^6 bytes 3e-4 s: 5e-4 s.

    Half of the efficient rate is sustained.
    """
    cube = Gemm(np.array([1000.0]), 1000.0, 1000.0)
    assert took(cube, sustained=0.5) == near(5e-4)
    assert took(cube, sustained=0.5, latency=1e-5) == near(5.1e-4)


def test_each_side_of_a_gemm():
    """[1000, 500] x [500, 2000], q = 1: 2 x 10^9 FLOPs at 10^13, 2 bytes for each of the
    500,000 + 10^6 elements read and the 2 x 10^6 written, at 2 x 10^10."""
    gemm = Gemm(np.array([1000.0]), 2000.0, 500.0)
    assert took(gemm, sharpness=1.0) == near(2e-4 + 7e6 / 2e10)


def test_a_group_of_gemms():
    """Four products at once: four times the FLOPs and bytes, one latency."""
    group = Gemm(np.array([1000.0]), 2000.0, 500.0, 4.0)
    expected = 1e-5 + 8e-4 + 4 * 7e6 / 2e10
    assert took(group, sharpness=1.0, latency=1e-5) == near(expected)


def test_the_measured_rate_of_groups():
    """Groups at 4/5 of the predicted rate; single products as they are, in one call."""
    side = np.array([1000.0])
    gpu = replace(GPU, training=replace(GPU.training, grouped_rate=0.8))
    gemms = [Gemm(side, 1000.0, 1000.0), Gemm(side, 1000.0, 1000.0, 4.0)]
    one, group = kernel_times.gemm_seconds(gemms, 1, gpu, BF16, 0.5)[:, 0]
    assert one == near(5e-4)
    assert group == near(4 * 5e-4 / 0.8)


def test_number_formats():
    """fp8 doubles the peak, reads 8 bits and writes 16; fp32 has its own peak and 4 bytes."""
    cube = Gemm(np.array([1000.0]), 1000.0, 1000.0)
    assert took(cube, FP8, sharpness=1.0) == near(2e9 / 2e13 + 4e6 / 2e10)
    assert took(cube, FP32, sharpness=1.0) == near(2e9 / 5e11 + 1.2e7 / 2e10)
    # Each width has constants of its own.
    gpu = replace(GPU, gemm={**GPU.gemm, "8bit": replace(PLAIN, efficiency=0.25, sharpness=1.0)})
    (seconds,) = kernel_times.gemm_seconds([cube], 1, gpu, FP8, 1.0)[0]
    assert seconds == near(2e9 / 1e13 + 4e6 / 2e10)
    # Without them a format goes with 16 bits: 0.9 of twice their rate, and 2 MB less to read.
    gpu = replace(GPU, gemm={k: v for k, v in GPU.gemm.items() if k != "8bit"})
    gpu = replace(gpu, format_shares={"fp8": 0.9})
    (seconds,) = kernel_times.gemm_seconds([cube], 1, gpu, FP8, 1.0)[0]
    bound = PLAIN.efficiency * 0.9 * 4e13, PLAIN.memory_efficiency * GPU.memory_bandwidth
    assert seconds == near(((2e9 / bound[0]) ** 2 + (4e6 / bound[1]) ** 2) ** 0.5)


def test_sustained_share():
    """A stack's share in proportion to the machine's over the 0.94 that stacks were fitted at."""
    assert kernel_times.sustained_share(STACK, GPU, 1) == near(0.94)
    cooler = replace(GPU, training=TrainingTime(sustained=0.47))
    assert kernel_times.sustained_share(replace(STACK, sustained=0.8), cooler, 1) == near(0.4)


@pytest.mark.parametrize(("ranks", "largest"), [(1, 0.0), (2, 0.564), (10, 1.539), (100, 2.508)])
def test_ranks_wait_for_the_slowest(ranks, largest):
    """Expected largest of normal numbers: of two 1 / sqrt(pi); others as tabulated by Harter 1961.
    Of ranks that differ by a tenth, a hundred take 1.25 times as long as one."""
    assert kernel_times.expected_largest(ranks) == pytest.approx(largest, abs=0.03)
    uneven = replace(STACK, rank_spread=0.1)
    share = kernel_times.sustained_share(uneven, GPU, ranks)
    assert share == pytest.approx(0.94 / (1 + 0.1 * largest), abs=0.003)


def test_gradient_rates():
    """The stack's rate of weight gradients, unless the machine's was measured."""
    stack = replace(STACK, wgrad_rate=0.9)
    assert kernel_times.gradient_rates(stack, GPU) == (1.0, 0.9)
    measured = replace(GPU, training=TrainingTime(dgrad_rate=0.8, wgrad_rate=0.5))
    assert kernel_times.gradient_rates(stack, measured) == (0.8, 0.5)


def work(**changes):
    """1000 (query, head) pairs of width 128 + 128 against 1000 of 2000 keys on average."""
    made = AttentionWork(rows=np.array([1000.0]), width=256, span=1000.0, sequence=2000)
    return made._replace(**changes)


def attention(software, gpu=GPU, recipe=BF16, **changes):
    forward, backward = kernel_times.attention_seconds(work(**changes), gpu, recipe, software)
    return forward[0], backward[0]


def test_flash_attention():
    """2 x 1000 x 256 x 1000 = 5.12 x 10^8 FLOPs at 0.5 x 2e13 = 10^13, whatever GEMMs sustain.

    4 d FLOPs a (query, key) pair for d = 128: 2 for each of q k and p v.
    """
    assert attention(STACK) == near((5.12e8 / 1e13, 3 * 5.12e8 / 1e13))
    # fp8 recipes leave attention in bf16 (Transformer Engine's default).
    assert attention(STACK, recipe=FP8) == attention(STACK)


def test_latency_diagonal_tail_and_rate_of_flash_attention():
    """24 more rows, 250 more keys: 2 x 1024 x 256 x 1250 = 6.5536 x 10^8 FLOPs; half the rate."""
    time = AttentionTime(
        efficiency=0.5, diagonal_tokens=250.0, latency=1e-5, backward_ratio=2.5, tail_rows=24.0
    )
    slow = replace(STACK, attention_rate=0.5)
    forward = (1e-5 + 6.5536e8 / 1e13) / 0.5
    assert attention(slow, replace(GPU, attention=time)) == near((forward, 2.5 * forward))
    # Four kernels of a ring start four times.
    ring = forward + 3e-5 / 0.5
    found = attention(slow, replace(GPU, attention=time), kernels=4.0)
    assert found == near((ring, 2.5 * ring))


MATERIALISED = replace(STACK, flash_attention=False, score_bytes=9.0)


def test_materialised_attention():
    """All 2000 keys: 2 x 1000 x 256 x 2000 FLOPs at the GEMM's 10^13, 9 bytes for each of
    2 x 10^6 scores at 0.8 x 4e10 = 3.2 x 10^10; backward twice the FLOPs, 1.5 times the bytes.

    Source: Narayanan et al. 2021, section 5.7 (kernels of softmax); Megatron-LM of 2021.
    """
    matmul, softmax = 1.024e9 / 1e13, 1.8e7 / 3.2e10
    assert attention(MATERIALISED) == near((matmul + softmax, 2 * matmul + 1.5 * softmax))
    # Half the rate of the matmuls leaves the bytes as they are.
    slow = replace(MATERIALISED, attention_rate=0.5)
    assert attention(slow) == near((2 * matmul + softmax, 4 * matmul + 1.5 * softmax))


def test_misaligned_heads():
    """Heads of no multiple of 8: matmuls at fp32's 0.25 x 10^12, softmax as before."""
    gpu = replace(GPU, gemm={"16bit": PLAIN, "32bit": replace(PLAIN, efficiency=0.25)})
    matmul, softmax = 1.024e9 / 2.5e11, 1.8e7 / 3.2e10
    expected = near((matmul + softmax, 2 * matmul + 1.5 * softmax))
    assert attention(MATERIALISED, gpu, aligned=False) == expected
    # Flash kernels pad them.
    assert attention(STACK, gpu, aligned=False) == attention(STACK, gpu)


def test_memory_bound_kernels():
    """Six launches of 10 us and 10^6 bytes at a quarter of 4 x 10^10."""
    assert kernel_times.memory_bound_seconds(np.array([1e6]), GPU, 6)[0] == near(6e-5 + 1e6 / 1e10)


def test_streaming():
    """10^6 bytes at 0.8 of 4 x 10^10; a long pass starts once and its latency is left out."""
    assert kernel_times.streaming_seconds(np.array([1e6]), GPU)[0] == near(1e6 / 3.2e10)


def layer_task(**software):
    """One layer of hidden 1000, 10 heads of 100, ffn 4000 without gate; 1000 tokens; V = 1000."""
    block = Block(
        attention=Attention(heads=10, kv_heads=10, head_dim=100, value_dim=100),
        mlp=Mlp(ffn=4000, gated=False),
    )
    model = Model(name="made-up", hidden=1000, vocabulary=1000, kinds=(block,), order=(0,))
    cluster = Cluster.profile("a100-80gb-sxm", gpus=1)
    stack = replace(STACK, layer_floor=0.0, vocabulary_multiple=1, **software)
    summed = {"16bit": replace(PLAIN, sharpness=1.0)}
    gpu = replace(GPU, gemm=summed)
    return Task(
        model, replace(cluster, accelerator=gpu), sequence=1000, global_batch=1, software=stack
    )


def costs(task, kind):
    """The costs of one layer kind for a plan of ones."""
    return layer_costs(task, BF16, Strategy.of()).table[0, kind]


def test_both_gradients_of_a_layers_gemms():
    """QKV, projection and two MLP matrices: 12 x 10^9 multiply-adds at 9.4 x 10^12 FLOP/s, and
    (3 + 1 + 4 + 4) x 10^6 weights, (1 + 1 + 1 + 4) x 10^6 inputs, (3 + 1 + 4 + 1) x 10^6 outputs
    of 2 bytes. Backward a GEMM for inputs at 0.8 and one for weights at 0.5 of the rate.
    """
    task = layer_task()
    rates = TrainingTime(dgrad_rate=0.8, wgrad_rate=0.5)
    gpu = replace(task.cluster.accelerator, training=rates)
    table = costs(replace(task, cluster=replace(task.cluster, accelerator=gpu)), 0)
    forward = 2.4e10 / 9.4e12 + 2 * (12e6 + 7e6 + 9e6) / 2e10
    assert table[Cost.MATMUL] == near(forward * (1 + 1 / 0.8 + 1 / 0.5))


def test_moved_bytes_of_a_layer():
    """Norms 11 h, attention 8 h, GELU 3 ffn elements of 2 bytes a token: 31,000 x 1000 x 2.

    Six kernels; the stack moves them at half the rate, the backward pass takes 1.6 times as long.
    """
    table = costs(layer_task(memory_bound_rate=0.5), 0)
    assert table[Cost.MEMORY_BOUND] == near((6e-5 + 6.2e7 / 5e9) * 2.6)


def test_moved_bytes_of_cross_entropy():
    """Norm 4 h bytes and 3 kernels as elsewhere; 8 bytes a logit at a measured half of the
    bandwidth, 1.6 times as many backward."""
    task = layer_task(backward_bytes_ratio=2.0)
    table = costs(task, 2)
    norm, loss = 3e-5 + 4e6 / 1e10, 8e6 / 2e10
    assert table[Cost.MEMORY_BOUND] == near(norm * 3.0 + loss * 2.6)
