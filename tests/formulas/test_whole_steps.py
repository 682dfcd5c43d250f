"""Steps of whole plans, every second added up by hand.

Sources: Narayanan et al. 2021, sections 2.2 and 3 (1F1B: m micro-batches of the slowest rank, one
of each other rank); Rajbhandari et al. 2020, section 7; Li et al. 2020, section 3.2.
"""

from dataclasses import replace

import pytest
from round_numbers import (
    EMBEDDING,
    FORWARD,
    HEAD,
    MODEL,
    PARAMETERS,
    TABLE,
    costs_of,
    gather,
    group_of,
    reduce,
    scatter,
    send,
    stack,
    task,
)

HIDDEN = 2 * 1024**2
"""Bytes of a micro-batch's hidden states."""
OFF = "overlap_grad_reduce=0 overlap_param_gather=0"


def test_one_gpu():
    """Four micro-batches of three forward passes' worth, and an update of 30 bytes a parameter."""
    costs = costs_of(task(), "tp=1")
    compute = 4 * 3 * (4 * FORWARD + HEAD + EMBEDDING)
    assert costs.seconds["compute"] == pytest.approx(compute)
    assert costs.step_seconds == pytest.approx(compute + 30 * PARAMETERS / 1e12)
    assert costs.tokens_per_second == pytest.approx(4 * 1024 / costs.step_seconds)


def test_one_rank_waits_for_no_other():
    """3 seconds once a step where ranks wait for each other, 1 of one that is alone."""
    software = stack(step_seconds=3.0, lone_step_seconds=1.0)
    once = [
        costs_of(task(n, 4 * n, software=software), f"dp={n}").seconds["optimizer"]
        - costs_of(task(n, 4 * n), f"dp={n}").seconds["optimizer"]
        for n in (1, 2)
    ]
    assert once == pytest.approx([1.0, 3.0])


def test_a_tied_head_works_as_an_untied_one():
    """The same products and losses; an update of one table less."""
    costs = costs_of(task(model=replace(MODEL, tied=True)), "tp=1")
    compute = 4 * 3 * (4 * FORWARD + HEAD + EMBEDDING)
    assert costs.step_seconds == pytest.approx(compute + 30 * (PARAMETERS - TABLE) / 1e12)
    assert costs.memory["logits"] == 6 * 1024**2


def test_replicas_under_zero_0_and_1():
    """Four replicas, four micro-batches each; the update of a quarter under ZeRO 1."""
    run = 4 * 3 * (4 * FORWARD + HEAD + EMBEDDING)
    zero_0 = costs_of(task(4, 16), f"dp=4 zero=0 {OFF}")
    assert zero_0.step_seconds == pytest.approx(
        run + reduce(4 * PARAMETERS, 4) + 30 * PARAMETERS / 1e12
    )
    zero_1 = costs_of(task(4, 16), f"dp=4 zero=1 {OFF}")
    moved = scatter(4 * PARAMETERS, 4) + gather(2 * PARAMETERS, 4)
    assert zero_1.step_seconds == pytest.approx(run + moved + 30 * PARAMETERS / 4 / 1e12)


def test_zero_1_overlapped():
    """52 M parameters in three buckets of at most 20 M. The reduction outlasts a backward pass by
    less than its last bucket, which shows; so does the gather's last; kernels take longer by a
    quarter of the two buckets that hide of each."""
    forward = 4 * FORWARD + HEAD + EMBEDDING
    reduced, gathered = 3 * scatter(4 * PARAMETERS / 3, 4), 3 * gather(2 * PARAMETERS / 3, 4)
    assert 2 * forward < reduced < 3 * forward
    assert gathered < forward
    question = task(4, 16, software=stack(bucket_parameters=20e6))
    costs = costs_of(question, "dp=4 zero=1")
    assert costs.seconds["data_comm"] == pytest.approx(reduced / 3 + gathered / 3)
    assert costs.seconds["contended"] == pytest.approx(0.25 * 2 / 3 * (reduced + gathered))


def test_zero_1_in_many_buckets():
    """53 buckets of at most 1 M: 53 latencies, and all but a bucket hides in a longer backward."""
    question = task(4, 16, software=stack(bucket_parameters=1e6), sequence=4096)
    costs = costs_of(question, "dp=4 zero=1 overlap_param_gather=0")
    bucket = scatter(4 * PARAMETERS / 53, 4)
    assert costs.seconds["data_comm"] == pytest.approx(bucket + gather(2 * PARAMETERS, 4))
    assert costs.seconds["contended"] == pytest.approx(52 * 0.25 * bucket)


def test_zero_3_with_full_recompute():
    """Six layers cut alike; every micro-batch gathers twice and scatters once, and kernels take
    longer by half of what hides. The window of the backward pass has the layers' forward again."""
    part = PARAMETERS / 6
    gathered, scattered = 6 * gather(2 * part, 4), 6 * scatter(4 * part, 4)
    forward = 4 * FORWARD + HEAD + EMBEDDING
    backward = 2 * forward + 4 * FORWARD
    alone = 4 * (forward + backward + 2 * gathered + scattered) + 30 * PARAMETERS / 4 / 1e12
    costs = costs_of(task(4, 16), f"dp=4 zero=3 recompute=full {OFF}")
    assert costs.step_seconds == pytest.approx(alone)
    both = gathered + scattered
    exposed = max(gathered - forward, gathered / 6) + max(both - backward, both / 6)
    costs = costs_of(task(4, 16), "dp=4 zero=3 recompute=full")
    assert costs.seconds["data_comm"] == pytest.approx(4 * exposed)
    hidden = min(gathered * 5 / 6, forward) + min(both * 5 / 6, backward)
    assert costs.seconds["contended"] == pytest.approx(4 * 0.5 * hidden)
    slowed = {
        name: s / costs.compute_seconds[name] for name, s in costs.contended_seconds.items() if s
    }
    assert slowed == pytest.approx(dict.fromkeys(slowed, 0.5 * hidden / (forward + backward)))


def test_tensor_parallel_pipeline_of_two_replicas():
    """Four micro-batches of the mean rank, what the last works longer, and one of the first; four
    sends of half the hidden states; the first rank, which waits for nobody, reduces and gathers
    its share; the last, with the norm, updates most."""
    costs = costs_of(task(8, 8), f"tp=2 pp=2 dp=2 zero=1 {OFF}")
    g, s = gather(HIDDEN, 2), scatter(HIDDEN, 2)
    first = 3 * (2 * FORWARD + EMBEDDING) / 2 + 2 * 2 * (2 * g + 2 * s) + s + g
    last = 3 * (2 * FORWARD + HEAD) / 2 + 2 * 2 * (2 * g + 2 * s) + g + s
    layers = 2 * (12 * 1024**2 / 2 + 2 * 1024) + TABLE / 2
    assert last > first
    compute = 3 * (2 * FORWARD + (HEAD + EMBEDDING) / 2) / 2
    parts = {
        "compute": 4 * compute,
        "contended": 0,
        "tensor_comm": 4 * ((first + last) / 2 - compute),
        "context_comm": 0,
        "expert_comm": 0,
        "host_comm": 0,
        "launch": 0,
        "pipeline_comm": 4 * send(HIDDEN / 2),
        "bubble": first,
        "imbalance": 4 * (last - first) / 2,
        "data_comm": scatter(4 * layers, 2) + gather(2 * layers, 2),
        "optimizer": 30 * (layers + 1024) / 2 / 1e12,
    }
    assert costs.seconds == pytest.approx(parts)
    assert costs.step_seconds == pytest.approx(sum(parts.values()))


def test_the_first_rank_decides_because_the_last_reduces_while_it_drains():
    """The last rank has 1,024 parameters more, and a whole backward pass of the first to hide
    them behind."""
    stages = group_of(task(8, 8), "tp=2 pp=2 dp=2 zero=1").stages
    g, s = gather(HIDDEN, 2), scatter(HIDDEN, 2)
    forward = (2 * FORWARD + EMBEDDING) / 2 + 2 * (2 * g + 2 * s) + s
    backward = 2 * (2 * FORWARD + EMBEDDING) / 2 + 2 * (2 * g + 2 * s) + g
    assert stages.forward_before[:, 0] == pytest.approx([0, forward])
    assert stages.backward_before[:, 0] == pytest.approx([0, backward])
    assert stages.forward[0, 0] == pytest.approx(forward)
    assert stages.backward[0, 0] == pytest.approx(backward)


@pytest.mark.parametrize("virtual", [1, 2])
def test_a_rank_waits_for_one_chunk_of_every_earlier_rank(virtual):
    """Eight layers on four ranks: two a rank, in one chunk or two of one layer; ranks 1 and 2 are
    alike and waited for as rank 1 is."""
    model = replace(MODEL, order=(0,) * 8)
    stages = group_of(task(4, 8, model), f"pp=4 virtual_stages={virtual}").stages
    first, middle = 2 * FORWARD + EMBEDDING, 2 * FORWARD
    waits = [0, first, first + 2 * middle]
    assert stages.ranks_alike[:, 0].tolist() == [1, 2, 1]
    assert stages.forward_before[:, 0] == pytest.approx([w / virtual for w in waits])
    assert stages.backward_before[:, 0] == pytest.approx([2 * w / virtual for w in waits])


def test_interleaved_sends_beside_compute():
    """Two ranks, two chunks each, four micro-batches: the first and the last turn around the ranks
    show, 2 (p - 1) + 2 (v - 1) p = 6 hops; those of the two micro-batches in between, 2 v - 1 = 3
    each, and p - 1 hide, and slow kernels by a quarter."""
    costs = costs_of(task(2), "pp=2 virtual_stages=2")
    assert costs.seconds["pipeline_comm"] == pytest.approx(6 * send(HIDDEN))
    assert costs.seconds["contended"] == pytest.approx(0.25 * 7 * send(HIDDEN))


def test_context_parallel_step():
    """Two ranks of 512 tokens each, keys and values gathered (2 x 1024 widths of 1024 tokens, two
    bytes), gradients reduced among both; kernels of half the sequence."""
    costs = costs_of(task(2), f"cp=2 cp_comm=all-gather zero=1 {OFF}")
    whole = 1024 * 2 * 1024 * 2
    layer = 3 * FORWARD / 2 + 2 * gather(whole, 2) + scatter(whole, 2)
    micro = 4 * layer + 3 * (HEAD + EMBEDDING) / 2
    moved = scatter(4 * PARAMETERS, 2) + gather(2 * PARAMETERS, 2)
    assert costs.step_seconds == pytest.approx(4 * micro + moved + 30 * PARAMETERS / 2 / 1e12)


def test_twice_the_micro_batch_has_half_the_slots():
    """Two sequences at a time: kernels take twice as long, sends and gathers have one latency."""
    g, s = gather(2 * HIDDEN, 2), scatter(2 * HIDDEN, 2)
    costs = costs_of(task(2), "tp=2 micro_batch=2")
    compute = 3 * 2 * (4 * FORWARD + HEAD + EMBEDDING) / 2
    moved = 4 * 2 * (2 * g + 2 * s) + 2 * (g + s)
    n = 4 * (12 * 1024**2 / 2 + 2 * 1024) + TABLE + 1024
    assert costs.step_seconds == pytest.approx(2 * (compute + moved) + 30 * n / 1e12)
