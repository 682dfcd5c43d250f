"""Bytes of weights, gradients and optimizer state under ZeRO 0 to 3.

Sources: Rajbhandari et al. 2020 (ZeRO), section 5 and figure 1; Megatron-Core, distributed
optimizer guide, table of bytes per parameter; Zhao et al. 2023 (FSDP), sections 3.2.2 and 3.3.
"""

from dataclasses import replace

import numpy as np
import pytest
from round_numbers import (
    LAYER,
    MODEL,
    PARAMETERS,
    TABLE,
    costs_of,
    gather,
    group_of,
    sparse,
    stack,
    task,
)

from plan3d.simulator.hardware.precision import RECIPES, Optimizer, Precision
from plan3d.simulator.operators.collectives import ProcessGroup
from plan3d.simulator.pipeline.schedules import schedule_code
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.plan.synchronisation import Sync, SyncPolicy
from plan3d.simulator.step.data_parallel import synchronisation
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.step.memory import bytes_of_states, state_bytes
from plan3d.simulator.step.optimizer import muon_seconds
from plan3d.simulator.step.ranks import EndUnits, Weights
from plan3d.simulator.step.sharding_buffers import sharding_buffers

BF16, ADAM = RECIPES[Precision.BF16], Optimizer.ADAM
BYTES = [
    # Recipe, optimizer; bytes of a weight, of a gradient, of optimizer state.
    ("bf16", "adam", 2, 4, 4 + 4 + 4),
    ("bf16", "sgd", 2, 4, 4 + 4),
    ("fp16", "adam", 2, 2, 4 + 4 + 4),
    ("fp16", "sgd", 2, 2, 4 + 4),
    ("fp32", "adam", 4, 4, 4 + 4),
    ("fp32", "sgd", 4, 4, 4),
    ("mixed", "adam", 4, 2, 2 + 4),
    ("mixed", "sgd", 4, 2, 2),
    ("pure-bf16", "adam", 2, 2, 2 + 2),
    ("pure-bf16", "sgd", 2, 2, 2),
]


def states(costs):
    """Bytes of weights, gradients and optimizer; the total is that of all parts."""
    assert costs.memory_bytes == pytest.approx(sum(costs.memory.values()), rel=1e-12)
    return [costs.memory[part] for part in ("weights", "gradients", "optimizer")]


def weights(dense, expert=0.0, ranks=4.0, expert_ranks=2.0):
    """Parameters of a rank, and groups that share them inside one domain."""

    def group(n):
        return ProcessGroup(np.array([n]), np.array([n]), np.ones(1))

    return Weights(
        dense=np.array([[dense]]),
        expert=np.array([[expert]]),
        units=np.array([[5.0]]),
        unit_parameters=np.array([[dense / 5]]),
        scaled_copies=np.zeros((1, 1)),
        matrix_parameters=np.zeros((1, 1)),
        scaled_parameters=np.zeros((1, 1)),
        orthogonalisation=np.zeros((1, 1)),
        expert_orthogonalisation=np.zeros((1, 1)),
        data_group=group(ranks),
        expert_group=group(expert_ranks),
    )


@pytest.mark.parametrize(("precision", "optimizer", "weight", "gradient", "state"), BYTES)
def test_states_of_every_recipe_and_stage(precision, optimizer, weight, gradient, state):
    """Stage 1 divides optimizer state by the data ranks, 2 gradients too, 3 weights too."""
    text = f"dp=4 precision={precision} optimizer={optimizer}"
    found = [states(costs_of(task(4), f"{text} zero={zero}")) for zero in range(4)]
    w, g, o = weight * PARAMETERS, gradient * PARAMETERS, state * PARAMETERS
    assert found == [[w, g, o], [w, g, o / 4], [w, g / 4, o / 4], [w / 4, g / 4, o / 4]]


@pytest.mark.parametrize(("optimizer", "state"), [("adam", 12), ("sgd", 8)])
def test_fp8_keeps_the_optimizer_state_of_bf16(optimizer, state):
    """Transformer Engine's recipe: master weights and moments stay in fp32."""
    costs = costs_of(task(4), f"dp=4 precision=fp8 optimizer={optimizer} zero=1")
    assert costs.memory["optimizer"] == state * PARAMETERS / 4


@pytest.mark.parametrize(("share", "left"), [(0, 1.0), (50, 0.5), (100, 0.0)])
def test_temporaries_of_an_update_are_where_the_update_runs(share, left):
    """Four bytes more of each of a rank's quarter of the parameters, but for those on the host."""
    held = []
    for each in (4.0, 8.0):
        text = f"dp=4 zero=1 offload_optimizer={share}"
        moments = group_of(task(4, software=stack(update_memory=each)), text).rank_moments(1)
        held.append(sum(part.item() for part in moments.update.values()))
    assert held[1] - held[0] == pytest.approx(4 * left * PARAMETERS / 4)


def test_shards_of_matrices_are_exchanged_before_and_behind_their_orthogonalisation():
    """2 bytes of each of 2e9 parameters a rank, three quarters of them to others at 40 GB/s, there
    and back."""
    held = replace(weights(8e9), matrix_parameters=np.array([[8e9]]))
    stage = {stage: task(4, software=stack(muon_stage=stage)) for stage in (2, 3)}
    assert muon_seconds(stage[2], held).ravel().tolist() == [0.0, 0.0]
    once = 0.75 * 2 * 2e9 / 40e9
    assert muon_seconds(stage[3], held).ravel() == pytest.approx([0.0, 2 * once])
    # Routed experts among them are whole on their ranks.
    routed = replace(weights(8e9, 4e9), matrix_parameters=np.array([[12e9]]))
    assert muon_seconds(stage[3], routed).ravel() == pytest.approx([0.0, 2 * once])


def test_scaled_parameters_are_gathered_in_fewer_bits():
    """One byte of half of 4,000 dense and 1,000 routed parameters, two of the others."""
    held = replace(weights(4e9, 1e9), scaled_parameters=np.array([[2.5e9]]))
    recipe = RECIPES[Precision.FP8].with_scaled_parameters()
    found = synchronisation(task(4, model=sparse()), recipe, held, zeros=(1,)).all_gather[0]
    assert recipe.gather == 1
    assert found.item() == pytest.approx(gather(1.5 * 4e9, 4) + gather(1.5 * 1e9, 2))


def test_frozen_weights_are_copied_into_their_gathers_and_out_of_them():
    """Read and written at 1 TB/s: whole in the stream of the passes, and the shard of one of four
    ranks in that of gathers."""
    frozen = replace(
        weights(1e9), frozen_bytes=np.array([[8e9]]), unit_frozen_bytes=np.array([[1e9]])
    )
    found = {
        (copies, held.frozen_bytes is None): synchronisation(
            task(4, software=stack(copies_gathered=copies)), BF16, held, zeros=(3,)
        )
        for copies in (False, True)
        for held in (weights(1e9), frozen)
    }
    own = found[True, False].copies - found[True, True].copies
    assert own.item() == pytest.approx(2 * 8e9 / 1e12)
    into = [found[True, of].all_gather - found[False, of].all_gather for of in (True, False)]
    assert (into[1] - into[0])[2].item() == pytest.approx(2 * 8e9 / 4 / 1e12)


@pytest.mark.parametrize(
    ("casts", "ranks", "own", "into"),
    [(False, 4, 4, 4 / 4), (True, 4, 4, (6 + 4) / 4), (False, 1, 4, 0), (True, 1, 6 + 4, 0)],
)
def test_copies_into_a_gather_are_in_its_stream(casts, ranks, own, into):
    """Bytes a parameter in the stream of the passes and in that of gathers, at 1 TB/s; one rank
    gathers nothing: cast from fp32, weights are copied in the former."""
    held, found = weights(1e9, ranks=ranks), []
    for copies in (False, True):
        software = stack(copies_gathered=copies, casts_shards=casts)
        found.append(synchronisation(task(ranks, software=software), BF16, held, zeros=(3,)))
    without, copied = found
    assert copied.copies.item() == pytest.approx(own * 1e9 / 1e12)
    later = copied.all_gather - without.all_gather
    assert later.ravel() == pytest.approx([0, 0, into * 1e9 / 1e12])


@pytest.mark.parametrize(("zero", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_the_7_5_billion_parameters_of_the_paper(zero, gigabytes):
    """Figure 1: 7.5 B parameters on 64 ranks, 2 + 2 + K = 12 bytes a parameter."""
    of_paper = task(software=stack(gradient_memory=2.0))
    each = bytes_of_states(of_paper, BF16, ADAM)
    held = state_bytes(each, zero, weights(7.5e9, ranks=64.0))
    assert sum(part.item() for part in held.values()) / 1e9 == pytest.approx(gigabytes, abs=0.05)


@pytest.mark.parametrize(
    ("zero", "expected"),
    [
        (0, [2 * 1600, 4 * 1600, 12 * 1600]),
        (1, [2 * 1600, 4 * 1600, 12 * (250 + 300)]),
        (2, [2 * 1600, 4 * (250 + 300), 12 * (250 + 300)]),
        (3, [2 * (250 + 300), 4 * (250 + 300), 12 * (250 + 300)]),
    ],
)
def test_experts_are_sharded_over_the_ranks_that_hold_them(zero, expected):
    """1000 dense parameters over 4 data ranks, 600 of experts over 2."""
    each = bytes_of_states(task(), BF16, ADAM)
    held = state_bytes(each, zero, weights(1000.0, 600.0))
    assert [part.item() for part in held.values()] == expected


def test_experts_of_a_plan_are_sharded_over_fewer_ranks():
    """ep = 4 of 8 ranks: a rank has 2 of 8 experts, which 8 / 4 = 2 ranks hold."""
    costs = costs_of(task(8, 8, sparse()), "dp=8 ep=4 zero=1")
    experts = 4 * 2 * (2 * 1024 * 4096)
    dense = 4 * (4 * 1024**2 + 2 * 1024 + 8 * 1024) + 2 * 1024**2 + 1024
    assert states(costs) == [
        2 * (dense + experts),
        4 * (dense + experts),
        12 * (dense / 8 + experts / 2),
    ]


@pytest.mark.parametrize(("shard", "shards"), [(0, 8), (2, 2), (4, 4)])
@pytest.mark.parametrize("zero", [1, 3])
def test_hybrid_sharding_divides_by_the_shard(zero, shard, shards):
    """FSDP, section 3.2.2: F = shard ranks share the states, replicated beyond."""
    costs = costs_of(task(8, 8), f"dp=8 zero={zero} shard={shard}")
    whole, part = 1, 1 / shards
    expected = [whole, whole, part] if zero == 1 else [part, part, part]
    assert states(costs) == [
        bytes_ * PARAMETERS * share for bytes_, share in zip((2, 4, 12), expected, strict=True)
    ]


def test_context_ranks_share_the_weights_too():
    """ZeRO shards over dp x cp ranks (Megatron-Core, data-parallel group with context)."""
    assert states(costs_of(task(8), "dp=2 cp=4 zero=1"))[2] == 12 * PARAMETERS / 8


def test_two_copies_of_dualpipe_hold_all_of_a_pair_of_stages():
    """DualPipe repository: rank r holds stages r and p - 1 - r, which its counterpart holds too;
    the optimizer is shared among dp x 2 ranks."""
    costs = costs_of(task(4, 8), "pp=2 dp=2 schedule=dualpipe zero=1")
    assert states(costs) == [2 * PARAMETERS, 4 * PARAMETERS, 12 * PARAMETERS / 4]
    # Either copy's head is on one of the two; four layers and two ends are gathered one by one.
    assert costs.memory["logits"] == 6 * 1024 * 1024
    assert costs.groups[0].stages.weights.units.ravel().tolist() == [6]


@pytest.mark.parametrize(
    ("text", "gpus", "group"),
    [
        # Data ranks of both copies: ranks, those of them in a domain of eight, domains.
        ("pp=2 dp=4", 8, (8, 8, 1)),
        ("pp=4 dp=4", 16, (8, 4, 2)),
        ("tp=2 pp=2 dp=4", 16, (8, 4, 2)),
        ("tp=2 pp=2 dp=8", 32, (16, 4, 4)),
    ],
)
def test_the_other_copy_is_a_pipeline_away(text, gpus, group):
    """A pipeline longer than a domain has its two copies in different ones."""
    weights = group_of(task(gpus, 64), f"{text} schedule=dualpipe").stages.weights
    assert tuple(float(part[0]) for part in weights.data_group) == group


def test_a_table_may_mix_schedules_with_one_copy_and_with_two():
    both = np.array([schedule_code("1f1b"), schedule_code("dualpipe")])
    costs = evaluate(task(4, 8), Plan(pp=2, dp=2, zero=1, schedule=both))
    first = 2 * LAYER + 1024**2
    assert costs.memory["optimizer"].tolist() == [12 * first / 2, 12 * PARAMETERS / 4]


# Buffers


@pytest.mark.parametrize(("bucket", "held"), [(1e6, 1e6), (1e9, PARAMETERS)])
def test_zero_2_keeps_one_bucket_of_gradients(bucket, held):
    """At most all of them, in the gradient's four bytes; the other stages keep none."""
    question = task(4, software=stack(bucket_parameters=bucket))
    found = [costs_of(question, f"dp=4 zero={zero}").memory["buffers"] for zero in range(3)]
    loss = (10 - 6) * 1024 * 1024
    assert found == [loss, loss, loss + 4 * held]


def test_the_bucket_of_zero_2_does_not_grow_with_the_group():
    """Megatron-Core grows what is reduced together, 1 M a rank, not what is kept."""
    question = task(4, software=stack(bucket_parameters_per_rank=1e9))
    assert sharding_buffers(question, BF16, weights(5e6), 2).passes.item() == 4 * 1e6


def test_zero_2_counts_experts_in_its_bucket():
    assert sharding_buffers(task(), BF16, weights(4e5, 5e5), 2).passes.item() == 4 * 9e5


def test_zero_3_keeps_two_gathered_layers_and_gradients_of_one():
    """FSDP, section 3.3: the next layer is gathered while one runs."""
    assert sharding_buffers(task(), BF16, weights(5000.0), 3).passes.item() == 1000 * (2 * 2 + 4)
    assert sharding_buffers(task(), BF16, weights(5000.0), 1).passes == 0
    costs = costs_of(task(4), "dp=4 zero=3")
    assert costs.memory["buffers"] == (10 - 6) * 1024 * 1024 + LAYER * (2 * 2 + 4)


def test_fsdp_reduces_in_fp32_what_autograd_makes_in_16_bits():
    """The input of one layer's reduction (4 bytes) beside the gradients of the next (2); 16-bit
    gradients are reduced as they are."""
    torch = task(software=stack(accumulation_bytes=10.0))
    assert sharding_buffers(torch, BF16, weights(5000.0), 3).passes.item() == 1000 * (2 * 2 + 4 + 2)
    narrow = task(software=stack(accumulation_bytes=10.0, gradient_memory=2.0))
    assert sharding_buffers(narrow, BF16, weights(5000.0), 3).passes.item() == 1000 * (2 * 2 + 2)


@pytest.mark.parametrize(
    ("ranks", "expert_ranks", "copied"),
    [(4.0, 2.0, 5700), (4.0, 1.0, 5000), (2.0, 1.0, 5000), (1.0, 1.0, 0)],
)
def test_ddp_keeps_gradients_in_buckets_as_well(ranks, expert_ranks, copied):
    """Of 5,000 dense and 700 expert parameters, where there are replicas; with ZeRO none."""
    asked = task(software=stack(ddp_buckets=1.0))
    held = weights(5000.0, 700.0, ranks, expert_ranks)
    assert sharding_buffers(asked, BF16, held, 0).passes.item() == 4 * copied
    assert sharding_buffers(asked, BF16, held, 1).passes == 0
    assert np.all(sharding_buffers(task(), BF16, held, 0).passes == 0)


@pytest.mark.parametrize(("live", "gathered"), [(1500.0, 2000.0), (4000.0, 4000.0), (9e9, 5000.0)])
def test_zero_3_of_deepspeed_leaves_gathered_what_is_read_again_soon(live, gathered):
    """stage3_max_reuse_distance, where that is more than two layers of 1,000; at most all 5,000."""
    asked = task(software=stack(live_parameters=live))
    assert (
        sharding_buffers(asked, BF16, weights(5000.0), 3).passes.item() == 2 * gathered + 4 * 1000
    )


@pytest.mark.parametrize(
    ("zero", "stated", "expected"),
    [(1, 0, 2 * 2 * 700), (2, 0, 2 * 2 * 700), (2, 9000, 2 * 2 * 9000)],
)
def test_buckets_of_deepspeed_are_whole_however_few_weights_are_trained(zero, stated, expected):
    """Two of 16 bits, of the stack's 700 parameters or of a stated size, beside 10 trained ones."""
    asked = task(software=stack(whole_buckets=2.0, bucket_parameters=700.0))
    found = sharding_buffers(asked, BF16, weights(10.0), zero, bucket=stated)
    assert (found.passes, found.loss, found.last) == (expected,) * 3
    filled = replace(asked, software=replace(asked.software, whole_buckets=0.0))
    assert sharding_buffers(filled, BF16, weights(10.0), 2, bucket=stated).passes == 4 * 10


def test_the_size_of_a_bucket_is_that_of_the_plan():
    asked = task(2, software=stack(whole_buckets=2.0, update_memory=4.0))
    less, more = (
        group_of(asked, f"dp=2 zero=2 bucket_parameters={size}").rank_moments(2).waiting["buffers"]
        for size in (1000, 3000)
    )
    assert more - less == 2 * 2 * 2000


ROOT, APART = ("embedding", "head"), ("head",)


@pytest.mark.parametrize(
    ("gathered", "units", "expected"),
    [
        # All gathered, the head's gradient, two layers and one's gradients; then their reduction.
        (ROOT, (5000, 0, 3000), [(2 * 5 + 2 * 3 + 4 + 6) * 1000, 10_000, 24_000, 6 * 5000]),
        # The head's reduction beside the last layer; the embedding's behind the first.
        (APART, (3000, 2000, 3000), [(6 * 3 + 2) * 1000, 6000, 2 * 2000 + 8000, 6 * 2000]),
        # A small head: the input of its reduction is no more than that of a layer.
        (APART, (500, 2000, 500), [10_000, 1000, 12_000, 12_000]),
        # A small embedding: its gather and the reduction of a layer beside it are more.
        (APART, (3000, 1000, 3000), [(6 * 3 + 2) * 1000, 6000, 2000 + 8000, 2 * 2000 + 4000]),
    ],
)
def test_fsdp_keeps_ends_gathered(gathered, units, expected):
    """Layers of 1,000 parameters beside an embedding of 2,000; 2 bytes gathered, 4 reduced, 2 of
    autograd's gradients. PyTorch, _fsdp_state.py; torchtitan, distributed/fsdp.py."""
    asked = task(software=stack(accumulation_bytes=10.0, gathered_ends=gathered))
    ends = EndUnits(*(np.array([[size]]) for size in units))
    held = replace(weights(5000.0), ends=ends)
    *found, idle, absent = sharding_buffers(asked, BF16, held, 3)
    assert [part.item() for part in found] == expected
    assert (idle, absent) == (0, 0)
    copied = replace(asked, software=replace(asked.software, copies_gathered=True))
    # Two buffers at once in the forward pass, the larger of which nothing else takes.
    assert sharding_buffers(copied, BF16, held, 3).idle == 2 * max(*units[:2], 1000)
    # A rank's quarter of four bytes is no shard before it is reduced.
    late = units[0] if gathered == ROOT else units[1]
    first = sharding_buffers(asked, BF16, held, 3, 4.0, several=False)
    assert first.last == expected[2] - (1000 + late)
    assert first.reduced == expected[3] - late


@pytest.mark.parametrize(("zero", "each"), [(0, 4), (1, 4), (2, 1)])
@pytest.mark.parametrize(
    ("gathered", "units", "late"),
    [(ROOT, (5000, 0, 3000), 2000), (APART, (3000, 2000, 3000), 2000)],
)
def test_freed_gradients_come_back_with_the_backward_pass(zero, each, gathered, units, late):
    """That of the head before all layers, those of the first layer and of the embedding behind the
    last working set; ZeRO 2 has a quarter of four bytes. A second micro-batch finds them all."""
    asked = task(software=stack(frees_gradients=True, gathered_ends=gathered))
    ends = EndUnits(*(np.array([[size]]) for size in units))
    held = replace(weights(5000.0), ends=ends)
    first, second = (
        sharding_buffers(asked, BF16, held, zero, 4.0, several) for several in (False, True)
    )
    assert first.passes - second.passes == each * 3000
    assert first.absent == each * (1000 + late)
    assert (second.absent, first.loss, first.last) == (0, second.loss, second.last)
    alone = sharding_buffers(asked, BF16, replace(held, ends=None), zero, 4.0, several=False)
    assert (alone.passes, alone.absent) == (second.passes, each * 1000)


def test_a_head_that_is_reduced_in_16_bits_has_its_weights_twice_beside_it():
    """Two bytes of 3,000 parameters that stay gathered and of those that are gathered once more,
    more than two of their gradient, beside a layer of 1,000."""
    asked = task(software=stack(gradient_memory=2.0, gathered_ends=APART))
    held = replace(weights(5000.0), ends=EndUnits(*(np.array([[n]]) for n in (3e3, 2e3, 3e3))))
    assert sharding_buffers(asked, BF16, held, 3).passes.item() == 2 * 2 * 3000 + 2 * 1000


@pytest.mark.parametrize(("several", "reduced"), [(True, 5 * 5000), (False, 5 * 5000 - 5000)])
def test_a_gradient_that_is_kept_stands_beside_its_reduction(several, reduced):
    """Four bytes that are reduced, with a fourth of four that a rank of four keeps of them, of all
    5,000 parameters of the ends; in the first micro-batch these are not there yet."""
    asked = task(software=stack(gathered_ends=ROOT))
    ends = EndUnits(*(np.array([[size]]) for size in (5e3, 0.0, 3e3)))
    held = replace(weights(5000.0), ends=ends)
    assert sharding_buffers(asked, BF16, held, 3, 4.0, several).reduced == reduced


@pytest.mark.parametrize(("zero", "copies"), [(0, 1), (1, 1), (2, 1), (3, 0)])
def test_scaled_copies_of_weights_live_until_zero_3(zero, copies):
    """Two bytes of every parameter, and two copies of a byte of those of four layers."""
    costs = costs_of(task(4), f"dp=4 zero={zero} precision=fp8")
    shards = 4 if zero == 3 else 1
    expected = 2 * PARAMETERS / shards + copies * 2 * 4 * LAYER
    assert costs.memory["weights"] == pytest.approx(expected)
    assert costs.memory_bytes == pytest.approx(sum(costs.memory.values()))


@pytest.mark.parametrize(("ranks", "idle"), [(1.0, 0), (2.0, 2 * 5000)])
def test_gathers_of_one_rank_need_no_buffers(ranks, idle):
    asked = task(software=stack(copies_gathered=True, gathered_ends=ROOT))
    ends = EndUnits(*(np.array([[size]]) for size in (5e3, 0.0, 3e3)))
    held = replace(weights(5000.0, ranks=ranks), ends=ends)
    assert np.all(sharding_buffers(asked, BF16, held, 3).idle == idle)


@pytest.mark.parametrize(
    ("frozen", "share"), [(None, 1000 / 5000), ((8e3, 2e3), (2e3 + 2e3) / (10e3 + 8e3))]
)
def test_what_stays_gathered_is_a_share_of_all_that_is(frozen, share):
    """1,000 of 5,000 trained parameters of two bytes; 2,000 of 8,000 bytes that are frozen."""
    one = np.ones((1, 1))
    ends = EndUnits(1e3 * one, 0 * one, 1e3 * one, frozen and frozen[1] * one)
    held = replace(
        weights(4000.0, 1000.0),
        ends=ends,
        frozen_bytes=frozen and frozen[0] * one,
        unit_frozen_bytes=frozen and one,
    )
    found = synchronisation(task(4), BF16, held, zeros=(3,)).kept_share
    assert found.item() == pytest.approx(share)


@pytest.mark.parametrize(
    ("gathered", "tied", "units"),
    [
        (ROOT, False, [2 * TABLE + 1024, 0, TABLE + 1024]),
        (APART, False, [TABLE + 1024, TABLE, TABLE + 1024]),
        # One unit, in which the head's gradient is that of all.
        (APART, True, [TABLE + 1024, 0, TABLE + 1024]),
    ],
)
def test_ends_of_fsdp_are_units(gathered, tied, units):
    question = task(4, 4, replace(MODEL, tied=tied), software=stack(gathered_ends=gathered))
    found = group_of(question, "dp=4 zero=3").stages.weights
    assert [part.item() for part in found.ends[:3]] == units
    assert found.unit_parameters.item() == LAYER


def test_gathered_experts_are_part_of_a_layer():
    """ep = 2: four of eight experts beside attention, norms and the router."""
    weights = group_of(task(4, 4, sparse()), "dp=4 ep=2 zero=3").stages.weights
    layer = 4 * 1024**2 + 2 * 1024 + 8 * 1024 + 4 * 2 * 1024 * 4096
    assert weights.unit_parameters.ravel().tolist() == [layer]


def test_the_gathered_layer_is_the_largest_of_a_rank():
    """A vocabulary of 65,536 makes the ends larger than a layer, on the ranks that hold them."""
    question = task(8, 8, replace(MODEL, vocabulary=65536))
    found = group_of(question, "pp=4 dp=2 zero=3").stages.weights.unit_parameters
    assert found.ravel().tolist() == [65536 * 1024, LAYER, 65536 * 1024 + 1024]


# What a stack or a way to synchronise keeps besides


def test_a_stack_may_keep_more_bytes_a_parameter():
    """BLOOM's bf16 optimizer: an fp32 gradient beside the 16-bit one, 16 bytes of state."""
    question = task(4, software=stack(gradient_memory=6.0, optimizer_memory=16.0))
    found = states(costs_of(question, "dp=4 zero=1"))
    assert found == [2 * PARAMETERS, 6 * PARAMETERS, 16 * PARAMETERS / 4]


def test_buckets_of_ddp_are_kept_in_a_pipeline_of_replicas():
    """nanotron: 2 bytes a parameter; only with stages and with more than one replica."""
    kept = task(4, software=stack(bucket_memory=2.0))
    first = 2 * LAYER + 1024**2
    for text, more in (("pp=2 dp=2", 2 * first), ("pp=4", 0), ("dp=4", 0)):
        with_, without = (group_of(q, text).stages.buffers[0, 0] for q in (kept, task(4)))
        assert with_ - without == more


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (SyncPolicy(sync=Sync.PARAMETER_SERVER), (2, 4, 0)),
        (SyncPolicy(sync=Sync.SHARDED_PARAMETER_SERVER), (2, 4, 0)),
        (SyncPolicy(sync=Sync.GOSSIP), (4, 4, 12)),
        (SyncPolicy(offload_optimizer=25), (2, 4, 9)),
    ],
)
def test_servers_gossip_and_hosts_keep_other_bytes(policy, expected):
    """Dean et al. 2012: state on the server; Lian et al. 2017: neighbours' weights beside the own;
    Ren et al. 2021: a share of the state on the host."""
    each = bytes_of_states(task(), BF16, ADAM, policy)
    assert (each["weights"], each["gradients"], each["optimizer"]) == expected
