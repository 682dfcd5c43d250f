"""Dispatch and combine of experts, and the groups of ranks that hold the same weights.

Sources: Lepikhin et al. 2020 (GShard), section 3.2 (two all-to-alls a direction); Megatron-Core MoE
(etp x ep x edp = tp x cp x dp, ranks of an expert innermost); DeepSeek-V3 report, sections 2.1.2
and 3.2 (node-limited routing, one copy a node, exchanges behind another micro-batch).
"""

from dataclasses import replace

import numpy as np
import pytest
from round_numbers import (
    EXPERTS,
    costs_of,
    exchange,
    gather,
    group_of,
    local,
    scatter,
    sparse,
    stack,
    task,
)

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.layers.communication import expert_exchange, nodes_reached, overlap

TOKENS = 1024 * 1024 * 2
"""Bytes of a micro-batch's tokens."""


def one_direction(text, gpus=8, experts=EXPERTS, question=None):
    question = question or task(gpus, gpus, sparse())
    return float(expert_exchange(experts, local(question, text))[0])


# Exchanges inside a domain


def test_a_direction_is_a_dispatch_and_a_combine_of_top_k_copies():
    assert one_direction("ep=8") == pytest.approx(2 * exchange(2 * TOKENS, 8))
    assert one_direction("ep=4") == pytest.approx(2 * exchange(2 * TOKENS, 4))


def test_whole_experts_exchange_nothing():
    assert one_direction("ep=1") == 0


def test_the_busiest_rank_sends_its_imbalance():
    loaded = replace(EXPERTS, imbalance=1.5)
    assert one_direction("ep=8", experts=loaded) == pytest.approx(2 * exchange(1.5 * 2 * TOKENS, 8))


def test_tensor_ranks_send_their_shards_of_the_sequence():
    """tp = 2, whole experts: each rank dispatches half of the tokens."""
    assert one_direction("tp=2 ep=4") == pytest.approx(2 * exchange(2 * TOKENS / 2, 4))


def test_a_split_expert_gathers_its_tokens_and_scatters_its_sums():
    """etp = 2: the halves that two ranks dispatched are gathered before and scattered after."""
    copies = 2 * TOKENS / 2
    expected = 2 * exchange(copies, 4) + gather(2 * copies, 2) + scatter(2 * copies, 2)
    assert one_direction("tp=2 ep=4 etp=2", 8) == pytest.approx(expected)


def test_tensor_ranks_of_an_expert_are_neighbours():
    """etp = 8 fills a domain: only gathers and scatters, inside."""
    copies = 2 * TOKENS / 8
    expected = gather(8 * copies, 8) + scatter(8 * copies, 8)
    assert one_direction("tp=8 etp=8") == pytest.approx(expected)


def test_tokens_are_put_in_order_as_often_backward_as_forward():
    """Two choices of 1,024 tokens, four micro-batches: not fused it is 2 + 3 + 1/2 instead of 2
    (1 + 1/2) h elements of two bytes at 1 TB/s, in each pass of every layer."""
    found, fused = (
        costs_of(task(1, 4, sparse(), software=stack(fused_permutation=one)), "tp=1")
        for one in (False, True)
    )
    more = found.compute_seconds["memory_bound"] - fused.compute_seconds["memory_bound"]
    layers = len(sparse().order)
    assert more == pytest.approx(4 * layers * 2 * 2.5 * 2 * 2048 * 1024 / 1e12)


def test_ranks_gather_all_tokens_and_scatter_sums():
    """Eight ranks gather those of each other once, whatever top_k is; with etp = 2 over the eight
    ranks of tp ep, half of the tokens each."""
    assert one_direction("ep=8 expert_dispatch=all-gather") == pytest.approx(
        gather(8 * TOKENS, 8) + scatter(8 * TOKENS, 8)
    )
    text = "tp=2 ep=4 etp=2 expert_dispatch=all-gather"
    whole = 8 * TOKENS / 2
    assert one_direction(text) == pytest.approx(gather(whole, 8) + scatter(whole, 8))


def test_gathered_tokens_are_read_once_and_summed_into_rows_of_all():
    """Two choices of eight times 1,024 tokens over eight ranks: 2 (1 + 1/2) of 2,048 rows ordered
    for ranks, of which each has one expert; 2 + 1 and the 8,192 rows of sums."""
    lean = stack(logit_bytes=0.0, kept_logit_bytes=0.0)
    found, plain = (
        costs_of(task(8, 8, sparse(), software=lean), f"dp=8 ep=8 expert_dispatch={name}")
        for name in ("all-gather", "alltoall")
    )
    more = found.compute_seconds["memory_bound"] - plain.compute_seconds["memory_bound"]
    layers = len(sparse().order)
    assert more == pytest.approx(layers * 2 * 2 * (3 + 4 - 3) * 2048 * 1024 / 1e12)
    buffers = found.memory["buffers"] - plain.memory["buffers"]
    assert buffers == pytest.approx(2 * 2 * 8 * 1024 * 1024)


@pytest.mark.parametrize("text", ["overlap_ep=1 virtual_stages=2 pp=2 ep=4 dp=4", "ep=1 dp=8"])
def test_what_all_gathers_of_experts_exclude(text):
    with pytest.raises(InputError, match="expert_dispatch"):
        costs_of(task(8, 8, sparse()), f"{text} expert_dispatch=all-gather")


# Across domains


def test_a_plain_exchange_leaves_through_the_ranks_own_nic():
    """Sixteen ranks, eight in a domain: half of the copies cross at 10 GB/s."""
    leaving = 100e-6 + 2 * TOKENS * 8 / 16 / 10e9
    assert one_direction("ep=16", 16) == pytest.approx(2 * leaving)


def test_ranks_of_a_split_expert_lie_between_those_of_an_exchange():
    """etp = 2, ep = 8: neighbours are two apart, so a domain of eight has four of them."""
    copies = 2 * TOKENS / 2
    leaving = 100e-6 + copies * 4 / 8 / 10e9
    expected = 2 * leaving + gather(2 * copies, 2) + scatter(2 * copies, 2)
    assert one_direction("tp=2 ep=8 etp=2", 16) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("top_k", "groups", "limit", "nodes", "reached"),
    [
        (1, 1, 1, 4, 1),
        # Two choices of four nodes: 4 (1 - (3/4)^2).
        (2, 1, 1, 4, 1.75),
        # Eight choices of the four nodes that a token may use, of eight.
        (8, 8, 4, 8, 4 * (1 - 0.75**8)),
        (8, 8, 4, 16, 8 * (1 - (7 / 8) ** 8)),
        # No fewer than one node.
        (8, 8, 4, 1, 1),
        # A node holds two of four groups, both, one or none of the two that a token uses, with
        # 1/6, 4/6 and 1/6; with one of them, it misses both choices once in four.
        (2, 4, 2, 2, 2 * (1 - 1 / 6 - 4 / 6 / 4)),
        # Four of eight groups: 1, 16, 36, 16 and 1 of 70 ways to hold none to four of the four.
        (8, 8, 4, 2, 2 * (1 - (1 + 16 * 0.75**8 + 36 * 0.5**8 + 16 * 0.25**8) / 70)),
        # Two of eight: 15, 40 and 15 of 70 ways to hold none, one and two.
        (8, 8, 4, 4, 4 * (1 - (15 + 40 * 0.75**8 + 15 * 0.5**8) / 70)),
    ],
)
def test_nodes_that_hold_the_experts_of_a_token(top_k, groups, limit, nodes, reached):
    """K' (1 - (1 - 1/K')^k): choices fall on nodes alike (section 2.1.2); a node that holds several
    groups is used if any of them is."""
    experts = replace(EXPERTS, top_k=top_k, groups=groups, group_limit=limit)
    assert nodes_reached(experts, np.array(float(nodes))) == pytest.approx(reached)


def test_one_copy_goes_to_each_node():
    """Two choices of two nodes reach 1.5, half of it elsewhere; inside, two copies to eight."""
    leaving = 100e-6 + 1.5 * 0.5 * TOKENS / 10e9
    assert leaving > exchange(2 * TOKENS, 8)
    found = one_direction("ep=16 expert_dispatch=hierarchical", 16)
    assert found == pytest.approx(2 * leaving)


def test_inside_a_node_one_copy_goes_to_each_rank():
    """In one domain a token is sent once to each rank that has an expert of it: two choices of
    eight ranks reach 8 (1 - (7/8)^2) = 1.875."""
    found = one_direction("ep=8 expert_dispatch=hierarchical")
    assert found == pytest.approx(2 * exchange(1.875 * TOKENS, 8))


# What shows


@pytest.mark.parametrize(
    ("share", "window", "exposed", "slowed"),
    [(0, 8, 6, 0), (1, 8, 0, 1.5), (1, 4, 2, 1), (1, 0, 6, 0), (0.5, 8, 3, 0.75)],
)
def test_what_hides_slows_what_hides_it(share, window, exposed, slowed):
    """6 ms, of which a share may hide behind `window` ms, which takes longer by a quarter of what
    does (section 3.2.1)."""
    assert overlap(np.array(6.0), np.array(float(window)), 0.25, share) == (exposed, slowed)


@pytest.mark.parametrize(("recompute", "directions"), [("none", 2), ("full", 3)])
def test_a_plan_exchanges_in_both_passes_of_every_layer(recompute, directions):
    """Four layers, one micro-batch a rank; full recompute dispatches and combines again."""
    costs = costs_of(task(8, 8, sparse()), f"ep=8 recompute={recompute}")
    expected = 4 * directions * 2 * exchange(2 * TOKENS, 8)
    assert costs.seconds["expert_comm"] == pytest.approx(expected)


@pytest.mark.parametrize("contention", [0.25, 0.75])
def test_a_plan_hides_exchanges_behind_the_other_kernels_of_a_pass(contention):
    """Of three micro-batches the first has no other beside it forward, nor the last backward: one
    is exposed, beside two the kernels take longer."""
    own = stack(kernel_contention=contention, contention=0.0)
    question = replace(task(8, 24, sparse()), software=own)
    alone, hidden = (costs_of(question, f"ep=8 overlap_ep={o}") for o in (0, 1))
    assert alone.seconds["compute"] > 2 * alone.seconds["expert_comm"]
    each = 4 * 2 * 2 * exchange(2 * TOKENS, 8)
    assert hidden.seconds["expert_comm"] == pytest.approx(each)
    assert hidden.seconds["contended"] == pytest.approx(2 * contention * each)
    assert hidden.seconds["compute"] == alone.seconds["compute"]
    assert sum(hidden.seconds.values()) == pytest.approx(float(hidden.step[0]))


@pytest.mark.parametrize(("micro_batches", "beside"), [(2, 0), (4, 2)])
def test_exchanges_are_alone_while_a_pipeline_fills_and_drains(micro_batches, beside):
    """Two ranks of two chunks of a layer: the last has (v - 1) p + 1 = 3 passes of a chunk each way
    before its first pair and after its last, the other waits through p - 1 = 1: two micro-batches'
    four, of which there may be no more."""
    batch = 8 * micro_batches
    own = stack(kernel_contention=0.25, contention=0.0)
    question = replace(task(16, batch, sparse()), software=own)
    costs = costs_of(question, "pp=2 ep=8 virtual_stages=2 overlap_p2p=1 overlap_ep=1")
    each = 2 * 2 * 2 * exchange(2 * TOKENS, 8)
    assert costs.seconds["expert_comm"] == pytest.approx(2 * each)
    assert costs.seconds["contended"] == pytest.approx(beside * 0.25 * each, abs=1e-12)


@pytest.mark.parametrize("overlapped", [0, 1])
def test_seconds_in_which_exchanges_leave_the_links_to_others(overlapped):
    """All of a micro-batch but its exchanges, those that hide behind another included."""
    stages = group_of(task(8, 16, sparse()), f"ep=8 overlap_ep={overlapped}").stages
    left = stages.forward_window + stages.backward_window
    exchanged = stages.forward + stages.backward - left
    assert exchanged == pytest.approx(4 * 2 * 2 * exchange(2 * TOKENS, 8))


@pytest.mark.parametrize(("recompute", "backward"), [("none", 1), ("full", 2)])
def test_either_pass_leaves_the_links_for_its_own_exchanges(recompute, backward):
    """Two exchanges of each of four layers in a forward pass, which hide or not; a backward pass
    has those of the pass that runs again besides."""
    each = 4 * 2 * exchange(2 * TOKENS, 8)
    for overlapped in (0, 1):
        text = f"ep=8 overlap_ep={overlapped} recompute={recompute}"
        stages = group_of(task(8, 16, sparse()), text).stages
        assert stages.forward - stages.forward_window == pytest.approx(each)
        assert stages.backward - stages.backward_window == pytest.approx(backward * each)


# Groups that hold the same weights: size, ranks of it in a domain of eight, domains


def groups(text, gpus):
    weights = group_of(task(gpus, 64, sparse()), text).stages.weights
    both = (weights.data_group, weights.expert_group)
    return [tuple(float(np.ravel(part)[0]) for part in group) for group in both]


@pytest.mark.parametrize(
    ("text", "gpus", "data", "experts"),
    [
        # Dense weights: dp cp ranks, tp apart. Experts: tp cp dp / (etp ep) ranks, etp ep apart.
        ("dp=8", 8, (8, 8, 1), (8, 8, 1)),
        ("dp=8 ep=4", 8, (8, 8, 1), (2, 2, 1)),
        ("dp=16 ep=4", 16, (16, 8, 2), (4, 2, 2)),
        ("dp=16 ep=8", 16, (16, 8, 2), (2, 1, 2)),
        ("tp=2 dp=8", 16, (8, 4, 2), (16, 8, 2)),
        ("tp=2 dp=8 ep=2", 16, (8, 4, 2), (8, 4, 2)),
        ("tp=2 dp=8 ep=2 etp=2", 16, (8, 4, 2), (4, 2, 2)),
        ("tp=2 cp=2 dp=2 ep=4", 8, (4, 4, 1), (2, 2, 1)),
        ("tp=4 cp=2 dp=4 ep=2 etp=4", 32, (8, 2, 4), (4, 1, 4)),
    ],
)
def test_groups_of_dense_weights_and_of_experts(text, gpus, data, experts):
    assert groups(text, gpus) == [data, experts]


def test_experts_and_dense_weights_are_reduced_one_after_the_other():
    """ep = 8 of 16 ranks. Dense weights: a ring of 16 with eight ranks in either domain, slower in
    the domains (50 and 80 of 8 x 10 GB/s). Experts: two ranks, each alone in its domain."""
    dense = 4 * (4 * 1024**2 + 2 * 1024 + 8 * 1024) + 2 * 1024**2 + 1024
    experts = 4 * 2 * 1024 * 4096
    off = "overlap_grad_reduce=0 overlap_param_gather=0"
    costs = costs_of(task(16, 16, sparse()), f"dp=16 ep=8 zero=1 {off}")
    scattered = 15 / 16 * 4 * dense / 50e9 + 1 / 2 * 4 * experts / 10e9
    gathered = 15 / 16 * 2 * dense / 80e9 + 1 / 2 * 2 * experts / 10e9
    assert costs.seconds["data_comm"] == pytest.approx(4 * 100e-6 + scattered + gathered)
