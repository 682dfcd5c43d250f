"""Tensor-parallel collectives and shares of a block, of the embedding and of the head.

Sources: Shoeybi et al. 2019 (Megatron-LM), section 3: f and g, one all-reduce a region and pass;
Korthikanti et al. 2022, section 4.2.2: with sequence parallelism g-bar gathers and scatters.
"""

from dataclasses import replace

import numpy as np
import pytest
from round_numbers import (
    ATTENTION,
    BLOCK,
    FAST,
    MODEL,
    cluster,
    costs_of,
    gather,
    group_of,
    kind,
    local,
    of_blocks,
    reduce,
    scatter,
    send,
    send_across,
    sparse,
    stack,
    task,
)

from plan3d.simulator.hardware.cluster import CollectiveTime
from plan3d.simulator.layers.communication import tensor_overlap
from plan3d.simulator.layers.memory_footprint import stored_parameters
from plan3d.simulator.workload.blocks import Attention, Block, Experts, Mlp

HIDDEN = 1024 * 1024 * 2
"""Bytes of a micro-batch's hidden states: tokens, width, two bytes."""
AR, AG, RS = reduce(HIDDEN, 4), gather(HIDDEN, 4), scatter(HIDDEN, 4)
PLAIN, SEQUENCE = "tp=4 sequence_parallel=0", "tp=4 sequence_parallel=1"


def added(name, text, question=None, matmul=1.0):
    """What is exposed and what is slowed, forward and backward, of a layer kind beside `matmul`
    seconds of its GEMMs."""
    question = question or task(4)
    seen = local(question, text)
    return tensor_overlap(kind(question.model, name), seen, np.array([matmul]))


def exposed(*layer, **more):
    """Exposed seconds forward and backward."""
    return [float(one.exposed[0]) for one in added(*layer, **more)]


# Collectives


def test_a_block_all_reduces_twice_in_either_pass():
    """Section 3, figure 4: after attention and after the MLP; backward before them."""
    assert exposed("block 0", PLAIN) == pytest.approx([2 * AR, 2 * AR])


def test_with_sequence_parallelism_it_gathers_and_scatters_twice():
    assert exposed("block 0", SEQUENCE) == pytest.approx([2 * AG + 2 * RS] * 2)


@pytest.mark.parametrize(
    ("block", "regions"),
    [
        (replace(BLOCK, parallel=True), 1),
        (Block(attention=ATTENTION), 1),
        (Block(attention=ATTENTION, experts=Experts(count=8, top_k=2, ffn=4096)), 1),
        (
            Block(
                attention=ATTENTION, experts=Experts(count=8, top_k=2, ffn=4096, shared_ffn=4096)
            ),
            2,
        ),
    ],
)
def test_regions_of_other_blocks(block, regions):
    """Attention beside the MLP shares a region (GPT-J); routed experts make none, shared do."""
    question = task(4, model=of_blocks(block))
    assert exposed("block 0", PLAIN, question) == pytest.approx([regions * AR] * 2)
    assert exposed("block 0", SEQUENCE, question) == pytest.approx([regions * (AG + RS)] * 2)


@pytest.mark.parametrize(("q_rank", "width"), [(256, 256 + 128 + 64), (0, 1024)])
def test_latent_attention_gathers_its_compressions(q_rank, width):
    """DeepSeek-V3 report, section 2.1.1: queries, keys and rotary keys, made of sequence shards;
    all of 1024 where queries are not compressed (DeepSeek-V2-Lite). The MLP gathers all. The links
    have no latency here."""
    latent = Attention(
        heads=8, kv_heads=8, head_dim=192, value_dim=128, kv_rank=128, q_rank=q_rank, rope_dim=64
    )
    free = CollectiveTime(latency=0.0, latency_per_step=0.0, root=0.0, bandwidth=100e9)
    question = task(
        4,
        model=of_blocks(Block(attention=latent, mlp=Mlp(ffn=4096, gated=False))),
        cluster=cluster(4, fast_domain=replace(FAST, all_gather=free)),
    )
    gathered = 3 / 4 * (HIDDEN * width / 1024 + HIDDEN) / 100e9
    assert exposed("block 0", SEQUENCE, question)[0] == pytest.approx(gathered + 2 * RS)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        # Rows of a vocabulary-parallel table are summed after the look-up: g.
        ("embedding", PLAIN, [AR, 0]),
        ("embedding", SEQUENCE, [RS, AG]),
        # The head reads what all ranks have and sums the gradient of that: f.
        ("head", PLAIN, [0, AR]),
        ("head", SEQUENCE, [AG, RS]),
    ],
)
def test_embedding_and_head_are_each_other_the_other_way_round(name, text, expected):
    """Shoeybi et al. 2019, section 3, and Korthikanti et al. 2022, section 4.2.2."""
    assert exposed(name, text) == pytest.approx(expected)


def test_multi_token_prediction_is_a_block_and_a_head():
    question = task(4, model=replace(MODEL, mtp_layers=1))
    both = 2 * AG + 2 * RS
    assert exposed("mtp", SEQUENCE, question) == pytest.approx([both + AG, both + RS])
    assert exposed("mtp", PLAIN, question) == pytest.approx([2 * AR, 3 * AR])


def test_one_rank_sends_nothing():
    for name in ("block 0", "embedding", "head"):
        assert exposed(name, "tp=1") == [0, 0]


@pytest.mark.parametrize(("matmul", "hidden"), [(1.0, 0.5 * (2 * AG + 2 * RS)), (50e-6, 50e-6)])
def test_overlap_hides_a_share_behind_the_gemms(matmul, hidden):
    """Half of it in this stack, and no more than the GEMMs take."""
    found = exposed("block 0", f"{SEQUENCE} overlap_tp=1", matmul=matmul)
    assert found == pytest.approx([2 * AG + 2 * RS - hidden] * 2)


def test_what_hides_slows_the_gemms():
    """By a quarter of the half that hides."""
    question = task(4, software=stack(kernel_contention=0.25))
    ahead, behind = added("block 0", f"{SEQUENCE} overlap_tp=1", question, matmul=1.0)
    half = 0.5 * (2 * AG + 2 * RS)
    assert ahead == behind == (pytest.approx(half), pytest.approx(0.25 * half))


def test_exchanges_of_experts_take_its_hardware_queue_before_blackwell():
    """Of both overlaps the exchanges hide; a GPU with queues for all hides half of this too."""
    text, whole = f"{SEQUENCE} overlap_tp=1 overlap_ep=1", 2 * AG + 2 * RS
    assert exposed("block 0", text) == pytest.approx([whole] * 2)
    question = task(4)
    cluster = question.cluster
    peak = {**cluster.accelerator.peak, "mxfp8": 1e15}
    queues = replace(cluster, accelerator=replace(cluster.accelerator, peak=peak))
    assert exposed("block 0", text, replace(question, cluster=queues)) == pytest.approx(
        [0.5 * whole] * 2
    )


@pytest.mark.parametrize(("matmul", "hidden"), [(1.0, (0.5 * AG, 0.5 * RS)), (9e-6, (9e-6,) * 2)])
def test_overlap_hides_a_share_of_either_pass_of_the_head(matmul, hidden):
    found = exposed("head", f"{SEQUENCE} overlap_tp=1", matmul=matmul)
    assert found == pytest.approx([AG - hidden[0], RS - hidden[1]])


def test_a_plan_sends_in_every_layer_both_passes_and_every_micro_batch():
    """Four blocks, embedding and head of one rank; four micro-batches; full recompute sends the
    forward collectives of the blocks once more."""
    block, ends = 2 * AG + 2 * RS, (RS + AG) + (AG + RS)
    question = task(4, software=stack(selective=("layernorm",)))
    for recompute, passes in (("none", 2), ("selective", 2), ("full", 3)):
        costs = costs_of(question, f"{SEQUENCE} recompute={recompute}")
        expected = 4 * (4 * passes * block + ends)
        assert costs.seconds["tensor_comm"] == pytest.approx(expected)


def test_collectives_that_selective_recompute_makes_again_hide_behind_what_runs_again():
    """Of a layer's two regions that of the MLP, whose products take 2/3 of 240 us on 4 ranks; half
    of its collectives may hide. At ten times the rate of the links all of the half hides, at a
    tenth no more than the products take."""
    products = 2 * 1024 * 8 * 1024**2 / 4 / 100e12
    for faster in (10.0, 1e-3):
        links = {
            name: replace(time, bandwidth=faster * time.bandwidth)
            for name in ("all_reduce", "all_gather", "reduce_scatter")
            if (time := getattr(FAST, name))
        }
        machine = cluster(4, fast_domain=replace(FAST, **links))
        question = task(4, cluster=machine, software=stack(selective=("mlp",)))
        text = f"{SEQUENCE} overlap_tp=1 recompute"
        none, again = (
            costs_of(question, f"{text}={how}").seconds["tensor_comm"] / 16
            for how in ("none", "selective")
        )
        alone = costs_of(question, f"{SEQUENCE} recompute=none").seconds["tensor_comm"] / 16
        ends = costs_of(question, f"{SEQUENCE} recompute=selective").seconds["tensor_comm"] / 16
        region = ends - alone
        assert again - none == pytest.approx(region - min(region / 2, products))


def test_context_ranks_send_their_part_of_the_sequence():
    part = HIDDEN / 2
    assert exposed("block 0", f"{PLAIN} cp=2", task(8))[0] == pytest.approx(2 * reduce(part, 4))
    assert exposed("block 0", f"{PLAIN} micro_batch=2")[0] == pytest.approx(
        2 * reduce(2 * HIDDEN, 4)
    )


@pytest.mark.parametrize(
    ("text", "gpus", "seconds"),
    [
        # A boundary crosses where pp x tp x cp x dp ranks do not fit a domain of eight.
        ("tp=2 cp=2 dp=1 pp=2", 8, send(HIDDEN / 4)),
        ("tp=2 cp=2 dp=2 pp=2", 16, send_across(HIDDEN / 4)),
        ("pp=8 dp=2", 16, send_across(HIDDEN)),
        ("pp=4 dp=2", 8, send(HIDDEN)),
    ],
)
def test_a_boundary_leaves_the_domain_where_the_pipeline_does(text, gpus, seconds):
    model = replace(MODEL, order=(0,) * 8)
    stages = group_of(task(gpus, 16, model), text).stages
    assert stages.hop_seconds[0] == pytest.approx(seconds)


# Shares


def stored(name, text, model=MODEL):
    dense, expert = stored_parameters(kind(model, name), local(task(4, model=model), text))
    return float(dense[0]), float(np.ravel(expert)[0])


def test_a_block_splits_its_matrices_and_repeats_its_norms():
    """12 h^2 / t and two norms."""
    assert stored("block 0", "tp=4") == (12 * 1024**2 / 4 + 2 * 1024, 0)


@pytest.mark.parametrize(("tp", "held"), [(1, 2), (2, 1), (4, 1)])
def test_key_value_heads_are_repeated_where_there_are_fewer(tp, held):
    """Two key/value heads of 128: a rank of four holds a whole one."""
    model = of_blocks(Block(attention=replace(ATTENTION, kv_heads=2)))
    own = 2 * 1024**2 / tp + held * 256 * 1024 + 2 * 1024
    assert stored("block 0", f"tp={tp}", model)[0] == own


def test_routers_and_latent_down_projections_are_whole_on_every_rank():
    """Megatron-Core: neither is split by tensor parallelism."""
    assert stored("block 0", "tp=4", sparse())[0] == 4 * 1024**2 / 4 + 2 * 1024 + 8 * 1024
    latent = Attention(
        heads=8, kv_heads=8, head_dim=192, value_dim=128, kv_rank=128, q_rank=256, rope_dim=64
    )
    down = 1024 * (256 + 128 + 64)
    up = 256 * 8 * 192 + 128 * 8 * (128 + 128) + 8 * 128 * 1024
    norms = 2 * 1024 + 256 + 128
    model = of_blocks(Block(attention=latent))
    assert stored("block 0", "tp=4", model)[0] == down + up / 4 + norms


def test_experts_are_split_by_ep_and_etp_and_shared_ones_by_tp():
    experts = Experts(count=8, top_k=2, ffn=4096, gated=True, shared_ffn=2048)
    model = of_blocks(Block(attention=ATTENTION, experts=experts))
    dense, expert = stored("block 0", "tp=4 ep=2 etp=2", model)
    assert dense == (4 * 1024**2 + 3 * 1024 * 2048) / 4 + 2 * 1024 + 8 * 1024
    assert expert == 8 * 3 * 1024 * 4096 / 4


# Boundaries between stages


@pytest.mark.parametrize(
    ("scatter_gather", "text", "share"),
    [(True, PLAIN, 4), (False, PLAIN, 1), (False, SEQUENCE, 4), (True, "tp=1", 1)],
)
def test_pipeline_sends_are_split_over_tensor_ranks(scatter_gather, text, share):
    """Narayanan et al. 2021, section 4.1: each rank sends 1/t, gathered after; with sequence
    parallelism it has no more than that."""
    question = task(8 if "tp=4" in text else 2, software=stack(scatter_gather=scatter_gather))
    stages = group_of(question, f"{text} pp=2 dp=1").stages
    assert stages.hop_seconds[0] == pytest.approx(send(HIDDEN / share))


def test_boundary_tensors_are_kept_for_every_micro_batch_in_flight():
    """Two a micro-batch, of which the first of two ranks keeps two and the last one."""
    stages = group_of(task(2), "pp=2").stages
    head = (10 - 6) * 1024 * 1024
    assert stages.buffers.ravel().tolist() == [2 * 2 * HIDDEN, 2 * HIDDEN + head]
