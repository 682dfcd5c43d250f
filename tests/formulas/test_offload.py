"""Optimizer and activations on the host: rates, copies, updates and bytes.

Sources: Ren et al. 2021 (ZeRO-Offload), sections 3.4 and 4 and table 4; Megatron-Core 0.16,
HybridDeviceOptimizer; Transformer Engine, CPU offloading of activations; Rajbhandari et al. 2021
(ZeRO-Infinity); DeepSpeed 0.19, runtime/zero/stage3.py and runtime/swap_tensor. Of a link's
datasheet rate copies reach 0.8, of the host's memory rate Adam reaches 0.46.
"""

from dataclasses import replace

import numpy as np
import pytest
from round_numbers import (
    EMBEDDING,
    FORWARD,
    HEAD,
    HOST,
    LAYER,
    PARAMETERS,
    TABLE,
    cluster,
    costs_of,
    group_of,
    sparse,
    stack,
    task,
)

from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.host import copy_rate, excess_copy_seconds, update_rate
from plan3d.simulator.hardware.precision import RECIPES, Optimizer, Precision
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.plan.field_values import Nvme
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.plan.synchronisation import SyncPolicy
from plan3d.simulator.step.data_parallel import Synchronisation, synchronisation
from plan3d.simulator.step.memory import bytes_of_states, host_bytes, state_bytes
from plan3d.simulator.step.offload import host_copies, host_update, node_bytes
from plan3d.simulator.step.optimizer import moved_bytes, owned_parameters
from plan3d.simulator.step.plan_timeline import timeline_of
from plan3d.simulator.step.slot_delays import NO_COPIES, HostCopies
from plan3d.simulator.step.sync_delays import sync_seconds
from plan3d.simulator.task import Task
from plan3d.simulator.workload.adapters import Adapters
from plan3d.simulator.workload.model import Model

BF16, ADAM = RECIPES[Precision.BF16], Optimizer.ADAM
ALL = SyncPolicy(offload_optimizer=100)


# Rates


@pytest.mark.parametrize(
    ("gpus", "link_gpus", "memory", "rate"),
    [
        # Two of eight GPUs share a link of 20 GB/s; a single GPU has it alone.
        (8, 2, 400e9, 0.8 * 20e9 / 2),
        (1, 2, 400e9, 0.8 * 20e9),
        # Eight GPUs cannot copy faster than the node's memory.
        (8, 1, 40e9, 40e9 / 8),
        # A second node has a host of its own.
        (16, 2, 400e9, 0.8 * 20e9 / 2),
    ],
)
def test_copies_share_a_link_and_the_nodes_memory(gpus, link_gpus, memory, rate):
    host = replace(HOST, link_gpus=link_gpus, memory_bandwidth=memory)
    assert copy_rate(cluster(gpus, host=host)) == pytest.approx(rate)


@pytest.mark.parametrize(("gpus", "share"), [(1, 1), (4, 4), (8, 8), (32, 8)])
def test_the_node_updates_the_parameters_of_all_its_gpus(gpus, share):
    assert update_rate(cluster(gpus)) == pytest.approx(0.46 * 400e9 / share)


def test_an_adam_step_of_ten_billion_parameters():
    """Table 4: 2.57 s with the 256 GB/s of a DGX-2; state read and written, a gradient read and a
    16-bit weight written are 30 bytes."""
    host = replace(HOST, memory_bandwidth=256e9)
    assert moved_bytes(BF16, ADAM) == 30
    seconds = 10e9 * 30 / update_rate(cluster(1, host=host))
    assert seconds == pytest.approx(2.57, rel=0.01)


def test_a_copy_shows_when_it_outlasts_what_it_runs_beside():
    """80 MB at 8 GB/s take 10 ms."""
    beside = np.array([4e-3, 10e-3, 20e-3])
    assert excess_copy_seconds(80e6, beside, cluster(8)) == pytest.approx([6e-3, 0, 0])


# The optimizer on the host


def test_a_rank_updates_all_its_weights_or_its_shard():
    """Four replicas, pp = 2: dense weights of either rank, without ZeRO and with."""
    first, last = 2 * LAYER + TABLE, 2 * LAYER + TABLE + 1024
    found = owned_parameters(group_of(task(8, 8), "pp=2 dp=4").stages.weights)[..., 0]
    assert found.tolist() == [[first, last], [first / 4, last / 4]]


def test_a_rank_updates_its_experts_too():
    """ep = 4 of eight: two of eight experts a layer, which two ranks hold."""
    dense = 4 * (4 * 1024**2 + 2 * 1024 + 8 * 1024) + 2 * TABLE + 1024
    experts = 4 * 2 * 2 * 1024 * 4096
    found = owned_parameters(group_of(task(8, 8, sparse()), "dp=8 ep=4").stages.weights)
    assert found.ravel().tolist() == [dense + experts, dense / 8 + experts / 2]


@pytest.mark.parametrize("percent", [25, 100])
def test_host_and_gpu_update_side_by_side(percent):
    """One GPU, Megatron-Core: a share at 184 GB/s beside the rest at 1 TB/s; gradients of four
    bytes go down and weights of two come up beside the longer, at 16 GB/s."""
    away = percent / 100
    on_host = away * 30 * PARAMETERS / (0.46 * 400e9)
    on_gpu = (1 - away) * 30 * PARAMETERS / 1e12
    copies = away * 4 * PARAMETERS / (0.8 * 20e9)
    assert on_host > on_gpu
    assert copies > on_host
    costs = costs_of(task(), f"offload_optimizer={percent}")
    assert costs.seconds["optimizer"] == pytest.approx(on_host)
    assert costs.seconds["host_comm"] == pytest.approx(copies - on_host)
    kernels = 4 * 3 * (4 * FORWARD + HEAD + EMBEDDING)
    assert costs.step_seconds == pytest.approx(kernels + copies)


def test_an_engine_scales_casts_and_copies_around_the_update():
    """DeepSpeed: 30 bytes of the optimizer and 12 of its own passes a parameter at 184 GB/s, then
    weights of two bytes at 16 GB/s, which nothing hides."""
    software = stack(offloads_gradients=True, host_scaling_bytes=12.0, uploads_after_update=True)
    costs = costs_of(task(software=software), "offload_optimizer=50")
    beside = costs_of(task(software=stack(offloads_gradients=True)), "offload_optimizer=50")
    assert costs.seconds["optimizer"] == pytest.approx(0.5 * 42 * PARAMETERS / (0.46 * 400e9))
    up = 0.5 * 2 * PARAMETERS / 16e9
    assert up < 0.5 * 30 * PARAMETERS / (0.46 * 400e9)
    assert costs.seconds["host_comm"] - beside.seconds["host_comm"] == pytest.approx(up)


def test_a_small_share_leaves_the_gpu_the_longer():
    """One percent: 30 N / 1 TB/s of the other 99."""
    costs = costs_of(task(), "offload_optimizer=1")
    assert costs.seconds["optimizer"] == pytest.approx(0.99 * 30 * PARAMETERS / 1e12)
    assert costs.seconds["host_comm"] == 0


def test_gradients_may_leave_behind_every_backward_pass():
    """ZeRO-Offload, section 4.1: in each of four micro-batches they outlast the backward pass; only
    weights come up beside the update."""
    quick = replace(HOST, memory_bandwidth=4000e9)
    question = task(cluster=cluster(1, host=quick), software=stack(offloads_gradients=True))
    stages = group_of(question, "offload_optimizer=100").stages
    backward = 2 * (4 * FORWARD + HEAD + EMBEDDING)
    assert stages.backward[0, 0] == pytest.approx(backward)
    down, up, update = (
        4 * PARAMETERS / 16e9,
        2 * PARAMETERS / 16e9,
        30 * PARAMETERS / (0.46 * 4000e9),
    )
    costs = costs_of(question, "offload_optimizer=100")
    shown = 4 * (down - backward) + (up - update)
    assert costs.seconds["host_comm"] == pytest.approx(shown)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_ranks_update_their_shards(zero):
    """ZeRO over four ranks of a node: a quarter each, at a quarter of the host's rate, gradients
    copied through links of 10 GB/s that two share."""
    slow = cluster(4, host=replace(HOST, link_bandwidth=10e9))
    costs = costs_of(task(4, cluster=slow), f"dp=4 zero={zero} offload_optimizer=100")
    update = PARAMETERS / 4 * 30 / (0.46 * 400e9 / 4)
    assert costs.seconds["optimizer"] == pytest.approx(update)
    assert costs.seconds["host_comm"] == pytest.approx(PARAMETERS / 4 * 4 / 4e9 - update)
    assert costs.node_bytes == pytest.approx(16 * PARAMETERS)


@pytest.mark.parametrize(("away", "weights", "copied"), [(50, 100, 4 / 2 + 2 / 2), (50, 0, 4 / 2)])
def test_weights_that_the_gpu_updates_go_back_beside_gradients(away, weights, copied):
    """Half of the parameters on the GPU: two bytes of those, four of the others, at 16 GB/s."""
    policy = SyncPolicy(offload_optimizer=away, offload_parameters=weights)
    stages = group_of(task(), "tp=1").stages
    found = host_update(task(), BF16, ADAM, policy, np.zeros((2, 1, 1)), stages)
    update = 30 * PARAMETERS / 2 / (0.46 * 400e9)
    assert found.update[0, 0] == pytest.approx(update)
    assert found.copies[0, 0] == pytest.approx(max(copied * PARAMETERS / 16e9 - update, 0))


def test_the_slowest_rank_decides():
    """Of two stages the last has the norm: its 1,024 parameters more."""
    question = task(2)
    stages = group_of(question, "pp=2").stages
    found = host_update(question, BF16, ADAM, ALL, np.zeros((2, 2, 1)), stages)
    last = 2 * LAYER + TABLE + 1024
    update = 30 * last / (0.46 * 400e9 / 2)
    assert found.update[0, 0] == pytest.approx(update)
    assert found.copies[0, 0] == pytest.approx(4 * last / 8e9 - update)


@pytest.mark.parametrize(
    ("zero", "direct", "gradients"),
    [
        # What leaves as it is made is not kept, unless ZeRO 1 reduces whole gradients at the end.
        (0, True, 0.25 * 4),
        (1, True, 4),
        (2, True, 0.25 * 4 / 4),
        (3, True, 0.25 * 4 / 4),
        (0, False, 4),
        (2, False, 4 / 4),
    ],
)
def test_gradients_that_leave_are_not_kept(zero, direct, gradients):
    question = task(4, software=stack(offloads_gradients=direct))
    each = bytes_of_states(question, BF16, ADAM, SyncPolicy(offload_optimizer=75))
    weights = group_of(question, "dp=4").stages.weights
    assert state_bytes(each, zero, weights)["gradients"] == gradients * PARAMETERS


@pytest.mark.parametrize(
    ("zero", "overlapped", "reduce", "copy", "shown"),
    [
        # One window of 20 ms hides a reduction of four buckets and the copy that follows it.
        (2, True, 16e-3, 10e-3, 4 * (6e-3 - 4e-3)),
        (2, True, 30e-3, 10e-3, 4 * 10e-3),
        (2, True, 8e-3, 10e-3, 0.0),
        # A reduction that is not overlapped leaves the window to the copy.
        (2, False, 16e-3, 10e-3, 0.0),
        (2, False, 16e-3, 25e-3, 4 * 5e-3),
        # Once a step: the copies of the last pass leave 10 ms to the reduction, not 20.
        (1, True, 16e-3, 10e-3, 6e-3 - 4e-3),
        (1, True, 16e-3, 25e-3, 4 * 5e-3 + 12e-3),
    ],
)
def test_a_backward_pass_hides_reductions_and_copies_once(zero, overlapped, reduce, copy, shown):
    stages = group_of(task(4, 16), "dp=4").stages
    one, none = np.full((1, 1), 1.0), np.zeros((3, 1, 1))
    stages = replace(
        stages,
        backward=20e-3 * one,
        slowest_seconds=(stages.forward + 20e-3)[0],
        backward_before=0.0 * one,
    )
    question = task(4, 16, software=stack(contention=0.0))
    sync = Synchronisation(none, none + reduce, none, none + np.array([1, 4, 6])[:, None, None])
    copies = [NO_COPIES, HostCopies(0.0, copy * one)]
    late, usual = (
        sync_seconds(question, sync, stages, [zero], SyncPolicy(), each)[zero, int(overlapped), 0]
        for each in (copies, [NO_COPIES] * 2)
    )
    assert late - usual == pytest.approx(shown, abs=1e-12)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_more_compute_is_never_a_faster_step(zero):
    """Eight consumer GPUs, whose reductions and copies both outlast a backward pass."""
    machine = Cluster.profile("rtx-5090", gpus=8)
    question = Task(
        Model.preset("llama-3.1-8b"),
        machine,
        sequence=4096,
        global_batch=64,
        software=software_profile("deepspeed"),
    )
    plans = [
        f"tp=4 dp=2 zero={zero} offload_optimizer={away} recompute={mode}"
        for away in (50, 100)
        for mode in ("none", "full")
    ]
    kept, again, kept_away, again_away = (costs_of(question, plan).step_seconds for plan in plans)
    assert kept <= again
    assert kept_away <= again_away


# Weights on the host

WINDOW = 4 * FORWARD + HEAD + EMBEDDING
INFINITY = {"software": stack(offloads_parameters=True, swaps_to_nvme=True)}


def test_one_gpu_copies_its_weights_up_for_both_passes_and_down_after_the_update():
    """Two bytes of every parameter at 16 GB/s outlast each pass of four micro-batches; the GPU
    updates 30 bytes a parameter at 1 TB/s while its weights go back."""
    copy, update = 2 * PARAMETERS / 16e9, 30 * PARAMETERS / 1e12
    assert copy > 2 * WINDOW
    costs = costs_of(task(**INFINITY), "offload_parameters=100")
    shown = 4 * ((copy - WINDOW) + (copy - 2 * WINDOW))
    assert costs.seconds["host_comm"] == pytest.approx(shown + copy - update)
    assert costs.seconds["data_comm"] == 0
    assert costs.step_seconds == pytest.approx(4 * 3 * WINDOW + shown + copy)
    assert costs.memory["weights"] == 0
    assert costs.node_bytes == 2 * PARAMETERS


def test_a_shard_is_copied_in_the_stream_of_its_gather():
    """Four ranks: a quarter of every layer at 8 GB/s, then its gather; of what hides behind a pass
    at least the first of six layers shows. The gather's contention stays what it was."""

    def shown(communication, window):
        return max(communication - window, communication / 6)

    gather = 6 * 10e-6 + 0.75 * 2 * PARAMETERS / 100e9
    scatter = 6 * 20e-6 + 0.75 * 4 * PARAMETERS / 50e9
    ready = gather + 2 * PARAMETERS / 4 / 8e9
    late = shown(ready, WINDOW) - shown(gather, WINDOW)
    late += shown(ready + scatter, 2 * WINDOW) - shown(gather + scatter, 2 * WINDOW)
    question = task(4, 16, **INFINITY)
    plain, away = (costs_of(question, f"dp=4 zero=3 offload_parameters={p}") for p in (0, 100))
    assert away.seconds["data_comm"] == plain.seconds["data_comm"]
    down = 2 * PARAMETERS / 4 / 8e9 - 30 * PARAMETERS / 4 / 1e12
    assert away.seconds["host_comm"] == pytest.approx(4 * late + down)


def test_everything_on_the_host_is_18_bytes_a_parameter():
    """DeepSpeed's estimate_zero3_model_states_mem_needs, without its factor for buffers; weights
    that the host updates do not come up for it."""
    both = "dp=8 offload_optimizer=100 offload_parameters=100"
    costs = costs_of(task(8, 8, **INFINITY), both)
    assert costs.node_bytes == pytest.approx(18 * PARAMETERS)
    gradients = 4 * PARAMETERS / 8 / 8e9
    assert gradients < costs.seconds["optimizer"]
    assert costs.groups[0].tables.copies[1, 0] == 0


# Drives: read at 8 GB/s a node, written at 4


DRIVES = replace(HOST, nvme=1e13, nvme_read=8e9, nvme_write=4e9)


def test_states_and_gradients_are_read_and_written_around_the_update():
    """12 bytes of state and 4 of gradient a parameter; a gradient of all micro-batches and four
    buffers of fp32 numbers, here of the whole shard, are what host memory holds."""
    question = task(8, 8, cluster=cluster(8, host=DRIVES), **INFINITY)
    plans = [f"dp=8 zero=3 offload_optimizer=100 nvme={where}" for where in ("none", "optimizer")]
    memory, drives = (costs_of(question, plan) for plan in plans)
    shard = 16 * PARAMETERS / 8
    assert drives.seconds["host_comm"] - memory.seconds["host_comm"] == pytest.approx(
        shard / 1e9 + shard / 0.5e9
    )
    assert drives.nvme_bytes == pytest.approx(16 * PARAMETERS)
    assert drives.node_bytes == pytest.approx((4 + 4 * 4) * PARAMETERS)


@pytest.mark.parametrize(
    ("parameters", "memory", "drives", "fetch"),
    [
        # Up to 1e9 (max_in_cpu) a shard stays in memory, beside five buffers of 1e8 numbers.
        (1e9, 2e9 + 1e9, 0.0, 2e9 / 16e9),
        (4e9, 2e9 + 1e9, 8e9, 8e9 / 8e9),
    ],
)
def test_weights_are_read_ahead_of_their_copies(parameters, memory, drives, fetch):
    question = task(cluster=cluster(1, host=DRIVES), **INFINITY)
    policy = SyncPolicy(offload_parameters=100, nvme=Nvme.PARAMETERS)
    stages = group_of(question, "offload_parameters=100").stages
    weights = replace(stages.weights, dense=np.full((1, 1), parameters))
    stages = replace(stages, weights=weights)
    found = node_bytes(question, BF16, ADAM, policy, stages)
    assert (found.memory[1, 0], found.drives[1, 0]) == (memory, drives)
    sync = synchronisation(question, BF16, weights, policy, (3,))
    copies = host_copies(question, BF16, policy, sync, stages)
    late = sync_seconds(question, sync, stages, [3], policy, copies)[3, 0, 1, 0]
    assert late == pytest.approx(4 * (2 * fetch - 3 * WINDOW))
    # Updated weights are written after the step, at 4 GB/s.
    written = host_update(question, BF16, ADAM, policy, np.zeros((2, 1, 1)), stages).copies[1, 0]
    assert written == pytest.approx(2 * parameters / 16e9 + drives / 4e9)


# Host memory


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, (12, 4)), ({"optimizer_memory": 16.0, "gradient_memory": 6.0}, (16, 6))],
)
def test_the_host_keeps_state_and_a_gradient(changes, expected):
    assert host_bytes(task(software=stack(**changes)), BF16, ADAM) == expected


def test_a_node_holds_what_its_ranks_own():
    """Eight replicas under ZeRO have 16 bytes of every parameter once."""
    costs = costs_of(task(8, 8), "dp=8 zero=1 offload_optimizer=100")
    assert costs.node_bytes == pytest.approx(16 * PARAMETERS)
    assert costs.host_share == pytest.approx(16 * PARAMETERS / 1e12)


def test_a_node_is_taken_to_hold_its_fullest_rank_eight_times():
    """Two stages of eight replicas on two nodes: eight times a shard of the last stage; one node
    with one rank of either holds no more than both own together."""
    stages = group_of(task(16, 16), "pp=2 dp=8").stages
    found = node_bytes(task(16, 16), BF16, ADAM, ALL, stages).memory
    last = 2 * LAYER + TABLE + 1024
    assert found[1, 0] == pytest.approx(16 * 8 * last / 8)
    alone = node_bytes(task(2), BF16, ADAM, ALL, group_of(task(2), "pp=2").stages).memory
    assert alone[0, 0] == pytest.approx(16 * PARAMETERS)
    # Of four stages the two in the middle are alike.
    four = node_bytes(task(4), BF16, ADAM, ALL, group_of(task(4), "pp=4").stages).memory
    assert four[0, 0] == pytest.approx(16 * PARAMETERS)


# Activations on the host


def test_activations_go_out_beside_forward_and_come_back_beside_backward():
    """Half of 32 s b h of a layer at 16 GB/s outlasts its forward and its backward pass; the head's
    4 s b h outlast its forward pass."""
    moved, head_moved = 16 * 1024**2 / 16e9, 2 * 1024**2 / 16e9
    assert moved > 2 * FORWARD
    assert head_moved > 2 * HEAD
    layer = (moved - FORWARD) + (moved - 2 * FORWARD)
    ends = (head_moved - HEAD) + (head_moved - 2 * HEAD)
    costs = costs_of(task(), "offload_activations=50")
    shown = 4 * (4 * layer + ends)
    assert costs.seconds["host_comm"] == pytest.approx(shown)
    kernels = 4 * 3 * (4 * FORWARD + HEAD + EMBEDDING)
    assert costs.step_seconds == pytest.approx(kernels + shown + 30 * PARAMETERS / 1e12)
    stages = costs.groups[0].stages
    assert stages.forward[0, 0] == pytest.approx(4 * moved + head_moved + EMBEDDING)


def test_activations_leave_the_gpu_but_for_two_copies_under_way():
    """Half stays; a copy of a layer's half goes while another waits; the host has the rest."""
    layer, head = 32 * 1024**2, 4 * 1024**2
    plain, half = (costs_of(task(), f"offload_activations={p}") for p in (0, 50))
    assert plain.memory["activations"] == 4 * layer + head
    assert half.memory["activations"] == (4 * layer + head) / 2
    assert half.memory["buffers"] == 2 * layer / 2
    assert half.node_bytes == (4 * layer + head) / 2


@pytest.mark.parametrize(
    ("modules", "hidden"),
    [
        # Of a layer's 1024 x 1024 elements of two bytes: norms and QKV read one, the core of
        # attention three, its projection one; eight experts get two rows of each token, and their
        # activation reads four times as wide ones.
        (("attn_norm", "mlp_norm"), 2),
        (("qkv_linear",), 1),
        (("core_attn", "attn_proj"), 3 + 1),
        (("expert_fc1",), 2),
        (("moe_act", "expert_fc1"), 2 * 4 + 2),
    ],
)
def test_inputs_of_modules_go_to_the_host(modules, hidden):
    question = task(model=sparse(), software=stack(offload_modules=modules))
    plain, away = (costs_of(question, f"offload_activations={p}") for p in (0, 100))
    moved = hidden * 2 * 1024**2
    assert away.node_bytes == 4 * moved
    assert plain.memory["activations"] - away.memory["activations"] == 4 * moved
    assert away.memory["buffers"] == 2 * moved


@pytest.mark.parametrize(
    ("module", "keeps", "wide"),
    [
        # In fp8 two rows of four widths at one byte, and one width of attention's output at 1.5.
        ("moe_act", {"scales_activation_inputs": True}, 2 * 4 * 1),
        ("attn_proj", {"scaled_output_bytes": 1.5}, 1.5),
    ],
)
def test_what_waits_in_fewer_bits_goes_in_fewer(module, keeps, wide):
    software = stack(offload_modules=(module,), **keeps)
    question = task(model=sparse(), software=software)
    away = costs_of(question, "offload_activations=100 precision=fp8-delayed")
    assert away.node_bytes == 4 * wide * 1024**2


def test_copies_under_way_are_kept_beside_gathered_inputs():
    """tp = 2: three gathered hidden states, and two copies of a quarter of half a layer."""
    costs = costs_of(task(2), "tp=2 offload_activations=25")
    assert costs.memory["buffers"] == 3 * 2 * 1024**2 + 2 * 0.25 * 32 * 1024**2 / 2


def test_micro_batches_in_flight_wait_on_the_host_too():
    """1F1B: the first of two ranks keeps two of its two layers, the last one and the head."""
    costs = costs_of(task(2), "pp=2 offload_activations=100")
    stages = costs.groups[0].stages
    layer, head = 32 * 1024**2, 4 * 1024**2
    assert stages.host_activations[:, 0].tolist() == [2 * 2 * layer, 2 * layer + head]
    assert stages.activations[:, 0].tolist() == [0, 0]
    assert costs.node_bytes == 2 * 2 * layer + 2 * layer + head


# Frozen weights beside adapters on the host


TUNED = {"adapters": Adapters(rank=8), **INFINITY}
FROZEN = 2 * PARAMETERS
"""Bytes of all weights, which train no more."""


@pytest.mark.parametrize("share", [50, 100])
def test_frozen_weights_wait_on_the_host_with_those_that_train(share):
    """Two bytes of every parameter of the model and of its adapters, once in a node."""
    costs = costs_of(task(4, 16, **TUNED), f"dp=4 zero=3 offload_parameters={share}")
    trained = costs.groups[0].stages.weights.dense.item()
    assert costs.node_bytes == pytest.approx(share / 100 * (2 * trained + FROZEN))


@pytest.mark.parametrize(("nvme", "read"), [(Nvme.NONE, 0.0), (Nvme.PARAMETERS, 8e9 / 4)])
def test_frozen_weights_come_up_before_their_gather(nvme, read):
    """A quarter of the bytes at 8 GB/s of a link that two share; drives give a rank 2 GB/s, less
    what the gather takes, and hold what is frozen, but not so few trained weights."""
    machine = cluster(4, host=DRIVES)
    question = task(4, 16, cluster=machine, **TUNED)
    policy = SyncPolicy(offload_parameters=100, nvme=nvme)
    stages = group_of(question, "dp=4 zero=3").stages
    sync = synchronisation(question, BF16, stages.weights, policy, (3,))
    trained = stages.weights.dense.item()
    plain, sharded = host_copies(question, BF16, policy, sync, stages)
    up = (2 * trained + FROZEN) / 4 / 8e9
    if read:
        up = max(up, FROZEN / 4 / read - sync.all_gather[2].item())
    assert sharded.weights.item() == pytest.approx(up)
    assert plain.weights == 0
    held = node_bytes(question, BF16, ADAM, policy, stages)
    buffers = 5 * 1e8 * 2 * 4
    assert held.drives[1].item() == pytest.approx(FROZEN if read else 0)
    assert held.memory[1].item() == pytest.approx(
        2 * trained + (buffers if read else FROZEN), rel=1e-9
    )


# Room on the host


@pytest.mark.parametrize(
    ("memory", "drives", "share"),
    [(1e12, 1e13, 0.0), (1e12, 0.5, 2.0), (1.0, 1e13, 1.0), (0.75, 0.5, 2.0), (0.5, 1.0, 2.0)],
)
def test_memory_or_drives_fill_a_node_first(memory, drives, share):
    """Of what the plan needs of either the host has so much."""
    plan = "dp=8 zero=3 offload_optimizer=100 nvme=optimizer"
    asked = costs_of(task(8, 8, cluster=cluster(8, host=DRIVES), **INFINITY), plan)
    sizes = {"memory": memory * asked.node_bytes, "nvme": drives * asked.nvme_bytes}
    machine = cluster(8, host=replace(DRIVES, **sizes))
    costs = costs_of(task(8, 8, cluster=machine, **INFINITY), plan)
    assert costs.host_share == pytest.approx(share, abs=1e-9)
    assert costs.fits == (share <= 1)


@pytest.mark.parametrize(("gradients", "window", "shown"), [(25, 20, 5), (15, 20, 0)])
@pytest.mark.parametrize("virtual", [1, 2])
def test_earlier_ranks_wait_for_their_copies_too(gradients, window, shown, virtual):
    """Two ranks of passes of 20 ms reduce in 4 and 16 ms; the second waits 6 ms for the first, and
    for what its copies outlast a pass of one chunk. Four micro-batches are later by as much, and
    the first rank's while the pipeline drains."""
    ms, two, none = 1e-3, np.ones((2, 1)), np.zeros((3, 2, 1))
    stages = replace(
        group_of(task(4, 16), "dp=4").stages,
        micro_batches=np.array([4.0]),
        virtual_stages=np.array([float(virtual)]),
        backward=window * ms * two,
        forward=0 * two,
        weight_gradient=0 * two,
        slowest_seconds=np.array([window * ms]),
        backward_before=np.array([[0.0], [6.0]]) * ms,
        ranks_alike=two,
        rank=np.array([[0.0], [1.0]]),
    )
    reduce = np.tile(np.array([[4.0], [16.0]]) * ms, (3, 1, 1))
    sync = Synchronisation(reduce, none, none, none + 1)
    copies = [HostCopies(0.0, gradients * ms * two), NO_COPIES]
    found = sync_seconds(task(4, 16), sync, stages, [0], SyncPolicy(), copies)[0, 0, 0, 0]
    reduced = max(4, 16 - 6 - shown / virtual)
    assert found == pytest.approx((reduced + 4 * shown + shown / virtual) * ms)


# The same, event by event


def test_copies_at_the_end_and_of_every_micro_batch_follow_the_passes():
    """ZeRO-Offload on one GPU: gradients of four micro-batches outlast their backward passes, then
    weights come up behind the update."""
    quick = replace(HOST, memory_bandwidth=4000e9)
    question = task(cluster=cluster(1, host=quick), software=stack(offloads_gradients=True))
    x = timeline_of(question, Plan.parse("offload_optimizer=100"))
    down, up = 4 * PARAMETERS / 16e9, 2 * PARAMETERS / 16e9
    update = 30 * PARAMETERS / (0.46 * 4000e9)
    assert x.host_comm == pytest.approx(4 * (down - 2 * WINDOW) + (up - update))
    assert x.step_seconds == pytest.approx(x.closed_form)
    assert x.host_share == pytest.approx(0)


def test_copies_of_activations_are_a_share_of_the_passes():
    """Half of 32 s b h of a layer and 4 of the head at 16 GB/s, of four micro-batches."""
    moved, head_moved = 16 * 1024**2 / 16e9, 2 * 1024**2 / 16e9
    shown = 4 * (2 * moved - 3 * FORWARD) + 2 * head_moved - 3 * HEAD
    x = timeline_of(task(), Plan.parse("offload_activations=50 offload_optimizer=50"))
    assert x.host_comm > 0
    assert x.host_share == pytest.approx(shown / (3 * WINDOW + shown))
    assert x.tensor_share == 0
