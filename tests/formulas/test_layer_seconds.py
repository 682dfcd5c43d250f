"""Seconds of a layer's kernels, of launches, gradient accumulation and the optimizer.

Sources: Rajbhandari et al. 2020 (ZeRO), section 5.1 (updates of a shard); what a hardware profile
holds of a measured training step ([kernels.training]) and of whole layers (Bang et al. 2024,
vTrain).
"""

from dataclasses import replace

import numpy as np
import pytest
from round_numbers import (
    ACCELERATOR,
    EMBEDDING,
    FORWARD,
    HEAD,
    LAYER,
    LOGITS,
    MATMUL,
    MOVED,
    PARAMETERS,
    SCORES,
    TABLE,
    cluster,
    costs_of,
    group_of,
    sparse,
    stack,
    task,
)

from plan3d.simulator.hardware.layer_tables import build
from plan3d.simulator.workload.adapters import Adapters


def measured(**training):
    """One GPU of which more was measured."""
    training = replace(ACCELERATOR.training, **training)
    return cluster(1, accelerator=replace(ACCELERATOR, training=training))


# Kernels between GEMMs


def test_a_step_of_kernels_by_kind():
    """Four micro-batches of four layers and the ends, three forward passes' worth."""
    found = costs_of(task(), "tp=1").compute_seconds
    assert found["matmul"] == pytest.approx(4 * 3 * (4 * MATMUL + LOGITS))
    assert found["attention"] == pytest.approx(4 * 3 * 4 * SCORES)
    assert found["memory_bound"] == pytest.approx(4 * 3 * (4 * MOVED + EMBEDDING + HEAD - LOGITS))


def test_fp8_leaves_the_head_in_16_bits():
    """Transformer Engine: layers at the peak of 200 TFLOP/s, logits at 100."""
    found = costs_of(task(), "precision=fp8").compute_seconds["matmul"]
    assert found == pytest.approx(4 * 3 * (4 * MATMUL / 2 + LOGITS))


@pytest.mark.parametrize(("rate", "ratio"), [(1.0, 2.0), (0.5, 1.5)])
def test_a_stack_has_a_rate_and_a_backward_of_its_own(rate, ratio):
    software = stack(memory_bound_rate=rate, backward_bytes_ratio=ratio)
    found = costs_of(task(software=software), "tp=1").compute_seconds["memory_bound"]
    forward = (4 * MOVED + EMBEDDING + HEAD - LOGITS) / rate
    assert found == pytest.approx(4 * (1 + ratio) * forward)


def test_a_measured_backward_stands_before_the_stacks():
    question = task(cluster=measured(backward_bytes_ratio=3.0))
    found = costs_of(question, "tp=1").compute_seconds["memory_bound"]
    assert found == pytest.approx(4 * (1 + 3) * (4 * MOVED + EMBEDDING + HEAD - LOGITS))


@pytest.mark.parametrize("efficiency", [None, 0.5])
@pytest.mark.parametrize(("peak", "precision", "element"), [(4.0, "bf16", 2), (4.0, "fp32", 4)])
def test_a_loss_without_wide_copies_reads_logits_twice_and_writes_their_gradient(
    efficiency, peak, precision, element
):
    """Two elements a logit in either pass, whatever a loss in fp32 takes."""
    question = task(
        cluster=measured(loss_efficiency=efficiency),
        software=stack(logit_bytes=peak, backward_bytes_ratio=2.0, memory_bound_rate=0.5),
    )
    found = costs_of(question, f"precision={precision}").compute_seconds["memory_bound"]
    read = 2 * element * 2**20 / 1e12
    besides = (4 * MOVED + EMBEDDING + HEAD - LOGITS - 8 * 2**20 / 1e12) * element / 2 / 0.5
    assert found == pytest.approx(4 * (3 * besides + 2 * read))


@pytest.mark.parametrize(("precision", "wider"), [("bf16", 1), ("fp32", 2)])
def test_a_measured_loss_has_a_rate_of_its_own(precision, wider):
    """Eight bytes a logit at half of 1 TB/s, 1.6 times as long backward; twice as many in fp32."""
    question = task(cluster=measured(loss_efficiency=0.5), software=stack(memory_bound_rate=0.8))
    costs = costs_of(question, f"precision={precision}")
    loss = 8 * 1024**2 / 0.5e12
    others = 3 * (4 * MOVED + 2 * EMBEDDING) / 0.8
    expected = 4 * wider * (others + (1 + 1.6) * loss)
    assert costs.compute_seconds["memory_bound"] == pytest.approx(expected)
    forward = wider * (2 * MOVED / 0.8 + EMBEDDING / 0.8 + loss)
    stages = group_of(replace(question, cluster=replace(question.cluster, gpus=2)), "pp=2").stages
    if precision == "bf16":
        kernels = 2 * (MATMUL + SCORES) + LOGITS
        assert stages.forward[1, 0] == pytest.approx(kernels + forward)


@pytest.mark.parametrize(("spares", "left_out"), [(False, 0.0), (True, 1.0)])
def test_the_product_that_ends_a_dense_layer_may_not_run_again(spares, left_out):
    """1,024 tokens from ffn of 4,096 back to 1,024, at 100 TFLOP/s; experts run again, and so do
    products with adapters, whose gradients need what comes behind them."""
    software = stack(spares_last_product=spares)
    found = costs_of(task(software=software), "recompute=full").compute_seconds["recompute"]
    last = 2 * 1024 * 1024 * 4096 / 100e12
    assert found == pytest.approx(4 * 4 * (FORWARD - left_out * last))
    for changes in ({"model": sparse()}, {"adapters": Adapters(rank=16)}):
        asked = [task(software=of, **changes) for of in (software, stack())]
        each = [costs_of(one, "recompute=full").compute_seconds["recompute"] for one in asked]
        assert each[0] == each[1]


# Launches


def floored(work, floor):
    """The smooth maximum of exponent 8, less the work."""
    return (work**8 + floor**8) ** (1 / 8) - work


@pytest.mark.parametrize("floor", [100e-6, 500e-6, 2e-3])
def test_a_pass_takes_no_less_than_its_launches(floor):
    """The backward's floor is 1.5 times the forward's; the ends have none."""
    costs = costs_of(task(software=stack(layer_floor=floor)), "tp=1")
    each = floored(FORWARD, floor) + floored(2 * FORWARD, 1.5 * floor)
    assert costs.seconds["launch"] == pytest.approx(4 * 4 * each)


def test_full_recompute_launches_the_forward_kernels_again():
    question = task(software=stack(layer_floor=1e-3, backward_floor_ratio=2.0))
    each = 2 * floored(FORWARD, 1e-3) + floored(2 * FORWARD, 2e-3)
    costs = costs_of(question, "recompute=full")
    assert costs.seconds["launch"] == pytest.approx(4 * 4 * each)


@pytest.mark.parametrize("floor", [100e-6, 500e-6, 2e-3])
def test_a_pass_that_runs_again_without_its_last_product_takes_its_launches_too(floor):
    """It has fewer kernels to hide its launches behind."""
    question = task(software=stack(layer_floor=floor, spares_last_product=True))
    last = 2 * 1024 * 1024 * 4096 / 100e12
    each = floored(FORWARD, floor) + floored(FORWARD - last, floor)
    each += floored(2 * FORWARD, 1.5 * floor)
    costs = costs_of(question, "recompute=full")
    assert costs.seconds["launch"] == pytest.approx(4 * 4 * each)


def test_measured_launches_are_a_lower_bound_of_the_stacks():
    """1.1 ms measured of 11 launches, 0.5 ms of the stack's 20."""
    measured = replace(ACCELERATOR, training=replace(ACCELERATOR.training, layer_floor=1.1e-3))
    software = stack(layer_floor=0.5e-3, layer_launches=20)
    question = task(cluster=cluster(1, accelerator=measured), software=software)
    each = floored(FORWARD, 2e-3) + floored(2 * FORWARD, 3e-3)
    assert costs_of(question, "tp=1").seconds["launch"] == pytest.approx(4 * 4 * each)


@pytest.mark.parametrize(("text", "passes"), [("tp=1", 1), ("recompute=full", 2)])
def test_experts_wait_for_the_host_in_every_forward_pass(text, passes):
    """1 ms in each of four layers and four micro-batches; dense layers wait for nobody."""
    for model, layers in ((sparse(), 4), (task().model, 0)):
        question = task(model=model, software=stack(expert_seconds=1e-3))
        without = task(model=model)
        added = costs_of(question, text).step_seconds - costs_of(without, text).step_seconds
        assert added == pytest.approx(4 * layers * passes * 1e-3)


def pass_floors(forward, backward, layers):
    """What floors of 2 ms a layer and further tensor rank, beside 2.5 x 1 ms, add to the passes of
    layers on four tensor ranks: 1 of 2.5 to the forward one."""
    floor = layers * (1e-3 + 3 * 2e-3 / 2.5)
    return floored(forward, floor) + floored(backward, 1.5 * floor)


@pytest.mark.parametrize(("gpus", "shown"), [(16, True), (8, False)])
def test_a_stack_may_launch_slower_in_pipelines_of_several_nodes(gpus, shown):
    """nanotron: the last of two ranks has two blocks and the head, three layers."""
    question = task(gpus, 16, software=stack(pipeline_floor=2e-3, layer_floor=1e-3))
    with_ = group_of(question, "tp=4 pp=2").stages
    bare = replace(question, software=replace(question.software, pipeline_floor=0.0))
    without = group_of(bare, "tp=4 pp=2").stages
    added = [pass_floors(f, b, 3) for f, b in zip(without.forward, without.backward, strict=True)]
    longer = with_.slowest_seconds[0] - without.slowest_seconds[0]
    assert longer == pytest.approx(added[1] * shown)
    forward = floored(without.forward[1], 3 * (1e-3 + 3 * 2e-3 / 2.5))
    assert (with_.forward - without.forward)[1] == pytest.approx(forward * shown)
    both = (costs_of(q, "tp=4 pp=2").seconds["launch"] for q in (question, bare))
    # A step's parts are means over the ranks; the first has the embedding and two blocks.
    assert next(both) - next(both) == pytest.approx(8 * np.mean(added) * shown)
    # What comes before it grows as all passes do in the mean.
    for before, each in (("forward_before", ("forward",)), ("both", ("forward", "backward"))):
        waits, sums = [], []
        for stages in (with_, without):
            both = stages.forward_before + stages.backward_before
            waits.append((both if before == "both" else stages.forward_before)[1, 0])
            sums.append(sum(getattr(stages, name).sum() for name in each))
        assert waits[0] / waits[1] == pytest.approx(sums[0] / sums[1])
    # The last rank idles while the first, two blocks and the embedding, runs one micro-batch.
    assert with_.idle_seconds[0] - without.idle_seconds[0] == pytest.approx(added[0][0] * shown)


# Tables of whole layers


def with_table(stack_name):
    """One GPU whose layers of 1024 widths and tokens were measured with a stack."""
    sizes = np.array([[1024.0], [1.0], [1.0], [1024.0]])
    table = build(sizes, np.array([[1.5], [3.0]]))
    return cluster(1, accelerator=replace(ACCELERATOR, layer_tables={stack_name: table}))


def test_measured_layers_stretch_kernels_and_launches():
    """Layers measured 1.5 times as long forward and 3 times backward; the ends, accumulation and
    collectives as predicted, what selective recompute runs again as the forward pass."""
    software = stack(layer_floor=1e-3, accumulation_bytes=10.0, selective=("layernorm",))
    question = task(cluster=with_table("round"), software=software)
    costs = costs_of(question, "recompute=selective")
    forward, backward = 1.5 * FORWARD, 3.0 * 2 * FORWARD
    adding = 10 * LAYER / 1e12
    launches = floored(forward, 1.5e-3) + floored(backward + adding, 3 * 1.5e-3)
    again = 1.5 * 2 * 1024 * 2 * 2 * 1024 / 1e12
    ends = 3 * (HEAD + EMBEDDING) + 10 * (2 * TABLE + 1024) / 1e12
    layer = forward + backward + adding + launches + again
    run = costs.step_seconds - 30 * PARAMETERS / 1e12
    assert run == pytest.approx(4 * (4 * layer + ends))
    assert costs.seconds["launch"] == pytest.approx(4 * 4 * launches)


def test_a_table_of_dense_layers_says_nothing_of_experts():
    question = task(model=sparse(), software=stack(layer_floor=1e-3, selective=("layernorm",)))
    tabled = costs_of(replace(question, cluster=with_table("round")), "recompute=selective")
    assert tabled.step_seconds == costs_of(question, "recompute=selective").step_seconds


def test_a_table_of_another_stack_is_not_used():
    costs = costs_of(task(cluster=with_table("other")), "tp=1")
    assert costs.seconds["compute"] == pytest.approx(4 * 3 * (4 * FORWARD + HEAD + EMBEDDING))


def test_a_middle_rank_adds_to_the_idle_time_as_often_as_it_is_there():
    """Four stages of one layer, three of which the slowest waits for once; none without stages."""
    slow, bare = (stack(pipeline_floor=floor, layer_floor=1e-3) for floor in (2e-3, 0.0))
    with_, without = (group_of(task(16, 16, software=s), "tp=4 pp=4").stages for s in (slow, bare))
    passes = zip(without.forward[:, 0], without.backward[:, 0], (2, 1, 2), strict=True)
    added = [pass_floors(*one) for one in passes]
    slowest = int((without.forward + without.backward)[:, 0].argmax())
    others = added[0] + 2 * added[1] + added[2] - added[slowest]
    assert with_.idle_seconds[0] - without.idle_seconds[0] == pytest.approx(others)
    flat = [
        group_of(task(16, 16, software=s), "tp=4 dp=4").stages.slowest_seconds for s in (slow, bare)
    ]
    assert flat[0] == flat[1]


# Accumulation, weight gradients and the optimizer


def test_gradients_are_added_into_their_buffers_every_micro_batch():
    """Ten bytes a parameter, four micro-batches."""
    plain, adds = (costs_of(task(software=stack(accumulation_bytes=b)), "tp=1") for b in (0, 10))
    more = adds.compute_seconds["memory_bound"] - plain.compute_seconds["memory_bound"]
    assert more == pytest.approx(4 * 10 * PARAMETERS / 1e12)


@pytest.mark.parametrize(
    ("precision", "reduced", "moved"),
    # Of weights read; of what is reduced read and written.
    [("bf16", 0.0, 2 + 8), ("bf16", 2.0, 2 + 4), ("fp16", 0.0, 2 + 4), ("fp32", 0.0, 4 + 8)],
)
def test_bytes_of_accumulation_follow_the_formats(precision, reduced, moved):
    plain, adds = (
        costs_of(
            task(software=stack(accumulation_bytes=b, reduce_bytes=reduced)),
            f"precision={precision}",
        )
        for b in (0, 10)
    )
    more = adds.compute_seconds["memory_bound"] - plain.compute_seconds["memory_bound"]
    assert more == pytest.approx(4 * moved * PARAMETERS / 1e12)


def test_accumulation_is_part_of_the_backward_pass():
    plain, adds = (
        group_of(task(software=stack(accumulation_bytes=b)), "tp=1").stages for b in (0, 10)
    )
    assert adds.forward[0, 0] == plain.forward[0, 0]
    assert adds.backward[0, 0] - plain.backward[0, 0] == pytest.approx(10 * PARAMETERS / 1e12)


def test_gradients_of_experts_are_added_too():
    plain, adds = (
        costs_of(task(model=sparse(), software=stack(accumulation_bytes=b)), "tp=1")
        for b in (0, 10)
    )
    n = 4 * (4 * 1024**2 + 2 * 1024 + 8 * 1024 + 8 * 2 * 1024 * 4096) + 2 * 1024**2 + 1024
    more = adds.compute_seconds["memory_bound"] - plain.compute_seconds["memory_bound"]
    assert more == pytest.approx(4 * 10 * n / 1e12)


def test_weight_gradients_are_a_share_of_the_gemms():
    """Rates of 0.8 and 0.5 of the forward: 1 + 1.25 + 2, of which 2 are weight gradients."""
    slow = replace(ACCELERATOR, training=replace(ACCELERATOR.training, dgrad_rate=0.8))
    question = task(cluster=cluster(1, accelerator=slow), software=stack(wgrad_rate=0.5))
    matmul = 4 * MATMUL + 2 * 1024 * 1024**2 / 100e12
    found = costs_of(question, "tp=1").compute_seconds["matmul"]
    assert found == pytest.approx(4.25 * 4 * matmul)
    assert group_of(question, "tp=1").stages.weight_gradient[0, 0] == pytest.approx(2 * matmul)


@pytest.mark.parametrize("floor", [100e-6, 500e-6, 2e-3])
def test_weight_gradients_on_their_own_wait_for_their_own_launches(floor):
    """Two ranks of two layers: half of the launches of a backward pass, 1.5 times those of a
    forward pass, are of weight gradients; 1F1B waits for all of them together."""
    question = task(2, software=stack(layer_floor=floor))
    split, whole = (group_of(question, f"pp=2 schedule={n}").stages for n in ("zb-h1", "1f1b"))
    weight = MATMUL + floored(MATMUL, 0.75 * floor)
    rest = 2 * FORWARD - MATMUL
    rest += floored(rest, 0.75 * floor)
    assert split.weight_gradient[0, 0] == pytest.approx(2 * weight)
    more = 2 * (weight + rest - 2 * FORWARD - floored(2 * FORWARD, 1.5 * floor))
    assert (split.backward - whole.backward)[0, 0] == pytest.approx(more, abs=1e-12)
    assert split.forward[0, 0] == whole.forward[0, 0]


@pytest.mark.parametrize(
    ("precision", "optimizer", "moved"),
    [
        # State read and written, a gradient read, a weight written; one without a master read too.
        ("bf16", "adam", 2 * 12 + 4 + 2),
        ("bf16", "sgd", 2 * 8 + 4 + 2),
        ("fp16", "adam", 2 * 16 + 2 + 2),
        ("fp32", "adam", 2 * 8 + 4 + 2 * 4),
        ("mixed", "adam", 2 * 6 + 2 + 2 * 4),
        ("pure-bf16", "adam", 2 * 4 + 2 + 2 * 2),
    ],
)
def test_an_update_moves_every_byte_of_state(precision, optimizer, moved):
    text = f"dp=4 precision={precision} optimizer={optimizer}"
    whole, shard = (
        costs_of(task(4), f"{text} zero={zero}").seconds["optimizer"] for zero in (0, 1)
    )
    assert whole == pytest.approx(moved * PARAMETERS / 1e12)
    assert shard == pytest.approx(moved * PARAMETERS / 4 / 1e12)


@pytest.mark.parametrize(
    ("kept", "moved"),
    # Fewer bytes than the recipe's twelve; more are copies, and next to none are elsewhere.
    [(4.0, 2 * 4 + 4 + 2), (11.0, 2 * 11 + 4 + 2), (16.0, 30), (1e-9, 30), (0.0, 30)],
)
def test_an_update_moves_the_states_that_the_stack_keeps(kept, moved):
    seconds = costs_of(task(software=stack(optimizer_memory=kept)), "tp=1").seconds["optimizer"]
    assert seconds == pytest.approx(moved * PARAMETERS / 1e12)


@pytest.mark.parametrize(("precision", "wide"), [("bf16", 1), ("fp16", 1), ("pure-bf16", 0.5)])
def test_norm_and_scaling_of_gradients_go_over_those_that_a_rank_updates(precision, wide):
    """Twelve bytes of fp32 gradients, half as many of 16-bit ones that have no wider copy."""
    for zero, ranks in ((0, 1), (1, 4)):
        text = f"dp=4 precision={precision} zero={zero}"
        plain, clips = (
            costs_of(task(4, software=stack(clipping_bytes=b)), text).seconds["optimizer"]
            for b in (0, 12)
        )
        assert clips - plain == pytest.approx(12 * wide * PARAMETERS / ranks / 1e12)


def test_an_update_of_fp32_weights_writes_no_others():
    casts = costs_of(task(4, software=stack(casts_shards=True)), "dp=4 zero=3")
    assert casts.seconds["optimizer"] == pytest.approx((2 * 12 + 4) * PARAMETERS / 4 / 1e12)


def test_the_fullest_rank_updates_longest():
    """Two stages: the last holds two layers, the head and its norm."""
    n = 2 * (12 * 1024**2 + 2 * 1024) + 1024**2 + 1024
    assert costs_of(task(2), "pp=2").seconds["optimizer"] == pytest.approx(30 * n / 1e12)


def test_experts_are_updated_by_the_ranks_that_hold_them():
    """ep = 4 of eight: two of eight experts a rank, each shared by two ranks under ZeRO."""
    dense = 4 * (4 * 1024**2 + 2 * 1024 + 8 * 1024) + 2 * 1024**2 + 1024
    experts = 4 * 2 * 2 * 1024 * 4096
    found = costs_of(task(8, 8, sparse()), "dp=8 ep=4 zero=1").seconds["optimizer"]
    assert found == pytest.approx(30 * (dense / 8 + experts / 2) / 1e12)


def test_servers_update_the_weights():
    costs = costs_of(task(4), "dp=4 sync=parameter-server zero=0")
    assert costs.seconds["optimizer"] == 0


def test_loops_of_experts_launch_each_of_them():
    """Of the experts of a rank, half of them with ep=2; the backward pass 1.5 times as long."""
    count = next(kind.experts.count for kind in sparse().kinds if kind.experts)
    question = task(2, model=sparse(), software=stack(expert_floor=1.0))
    for text, ranks in (("dp=2 ep=1", 1), ("dp=2 ep=2", 2)):
        wanted = 2 * 4 * 2.5 * count / ranks
        assert costs_of(question, text).step_seconds == pytest.approx(wanted, rel=0.01)


@pytest.mark.parametrize(
    ("changes", "launches"),
    [
        ({}, 10 + 20 + 3 * 8),
        ({"graphs": ("attn", "moe_router", "moe_preprocess")}, 10 - 6 + 0 + 3 * 8),
        ({"graphs": ("mlp",)}, 10 + 20 + 3 * 8),
        ({"expert_launches": 0}, 10 + 20),
    ],
)
def test_a_launch_to_the_experts_takes_as_long_as_one_of_a_plain_layer(changes, launches):
    """0.1 s each, in two micro-batches of four layers, forward and 1.5 times as long backward;
    router and counts of tokens in graphs are as good as none of 20."""
    counts = {"layer_launches": 10, "routing_launches": 20, "expert_launches": 3}
    question = task(2, model=sparse(), software=stack(layer_floor=1.0, **(counts | changes)))
    found = costs_of(question, "dp=2").step_seconds
    assert found == pytest.approx(2 * 4 * 2.5 * 0.1 * launches, rel=0.01)


def test_a_graph_of_a_plain_mlp_is_one_launch():
    question = task(2, software=stack(layer_floor=1.3, layer_launches=13, graphs=("attn", "mlp")))
    assert costs_of(question, "dp=2").step_seconds == pytest.approx(2 * 4 * 2.5 * 0.2, rel=0.01)


def test_experts_of_a_loop_multiply_one_after_another():
    """Each of 8 experts in four layers and four micro-batches takes 1 s a product, two products
    forward and two of each backward; grouped ones start once, and so do the other products."""
    slow = {"16bit": replace(ACCELERATOR.gemm["16bit"], latency=1.0)}
    machine = cluster(1, accelerator=replace(ACCELERATOR, gemm=slow))
    grouped, loop = (
        costs_of(task(model=sparse(), cluster=machine, software=stack(expert_launches=n)), "tp=1")
        for n in (0, 1)
    )
    more = loop.step_seconds - grouped.step_seconds
    assert more == pytest.approx(4 * 4 * 3 * 2 * (8 - 1))


@pytest.mark.parametrize(
    ("casts", "dropout", "launches"), [(False, 0, 4), (False, 0.1, 5), (True, 0, 8), (True, 0.1, 9)]
)
def test_adapters_are_launched_one_by_one(casts, dropout, launches):
    """Two matrices of a layer have one of two products, a scale and a sum, with casts of its input
    to and fro and of both weights: four micro-batches of four layers, a second a launch forward and
    1.5 times as long backward, beside which kernels are nothing."""
    question = replace(
        task(software=stack(adapter_floor=9.0, adapter_casts=casts)),
        adapters=Adapters(targets=("q", "v"), dropout=dropout),
    )
    wanted = 4 * 4 * 2.5 * 2 * launches
    assert costs_of(question, "tp=1").step_seconds == pytest.approx(wanted, rel=0.01)
    assert costs_of(replace(question, adapters=None), "tp=1").step_seconds < 1
