"""Exchanging keys and values when a sequence is split over cp ranks.

Sources: Liu et al. 2023 (Ring Attention), section 3; Llama 3 report, section 3.3.2 (all-gather);
Jacobs et al. 2023 (DeepSpeed-Ulysses), section 3 (all-to-all).
"""

from dataclasses import replace

import numpy as np
import pytest
from round_numbers import (
    ACCELERATOR,
    ATTENTION,
    BLOCK,
    cluster,
    costs_of,
    exchange,
    gather,
    kind,
    local,
    of_blocks,
    scatter,
    send,
    send_across,
    stack,
    task,
)

from plan3d.simulator.layers.communication import context_overlap
from plan3d.simulator.layers.memory_footprint import context_buffers, kept_activations
from plan3d.simulator.plan.field_values import ContextComm
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.workload.blocks import NO_ATTENTION

US = 1e-6
FOUR = task(8, 8, sequence=4096)
"""1024 tokens a rank under cp = 4."""
KEYS = 1024 * 8 * (128 + 128) * 2
"""Bytes of a rank's keys and values: tokens, heads, widths, two bytes."""


def added(text, question=FOUR, block=BLOCK, core=(400, 800)):
    """What is exposed and what is slowed, forward and backward; `core` microseconds of attention
    over the whole sequence."""
    both = tuple(np.array([one * US]) for one in core)
    return context_overlap(block, both, local(question, text))


def exposed(*question, **more):
    """Exposed seconds forward and backward."""
    return [float(one.exposed[0]) for one in added(*question, **more)]


def test_a_ring_slows_the_attention_it_hides_behind():
    """By a quarter of what hides: all of a send that is shorter than the attention of its step,
    else as much as that takes."""
    question = task(8, 8, sequence=4096, software=stack(kernel_contention=0.25))
    slowed = [one.contention[0] for one in added("cp=4", question)]
    assert slowed == pytest.approx([0.25 * 3 * 400 * US / 4, 0.25 * 3 * 800 * US / 4])
    assert exposed("cp=4", question) == exposed("cp=4")
    hidden = added("cp=4", question, core=(4e6, 4e6))
    each = [0.25 * 3 * send(KEYS), 0.25 * 3 * send(2 * KEYS)]
    assert [one.contention[0] for one in hidden] == pytest.approx(each)
    assert [one.exposed[0] for one in hidden] == [0, 0]


def test_a_ring_passes_keys_and_values_cp_minus_1_times():
    """Each of 3 steps shows what it takes longer than a quarter of the attention; backward the
    gradients of keys and values go round with them."""
    forward, backward = exposed("cp=4")
    assert forward == pytest.approx(3 * (send(KEYS) - 400 * US / 4))
    assert backward == pytest.approx(3 * (send(2 * KEYS) - 800 * US / 4))


def test_a_ring_hides_behind_longer_attention():
    assert exposed("cp=4", core=(4000, 8000)) == [0, 0]


@pytest.mark.parametrize(("peaks", "shown"), [({}, 1), ({"mxfp8": 1.0}, 0)])
def test_a_ring_beside_hidden_exchanges_of_experts_hides_from_blackwell_on(peaks, shown):
    gpu = replace(ACCELERATOR, peak=ACCELERATOR.peak | peaks)
    question = task(8, 8, sequence=4096, cluster=cluster(8, accelerator=gpu))
    found = exposed("cp=4 overlap_ep=1", question, core=(4000, 8000))
    assert found == pytest.approx([shown * 3 * send(KEYS), shown * 3 * send(2 * KEYS)])


def test_a_ring_of_one_sends_nothing():
    assert exposed("cp=1", core=(0, 0)) == [0, 0]


@pytest.mark.parametrize(("text", "crosses"), [("cp=8", False), ("tp=2 cp=8", True)])
def test_a_ring_longer_than_a_domain_goes_through_the_network(text, crosses):
    """tp x cp ranks of eight a domain; tp = 2 halves the heads of a rank."""
    size = 1024 * 256 * 2 * (4 if crosses else 8)
    one = send_across(size) if crosses else send(size)
    question = task(16, 16, sequence=8192)
    assert exposed(text, question, core=(0, 0))[0] == pytest.approx(7 * one)


@pytest.mark.parametrize(("tp", "kv", "heads"), [(2, 8, 4), (2, 2, 1), (4, 2, 1)])
def test_tensor_ranks_pass_their_own_heads(tp, kv, heads):
    """Key/value heads are split over tp and repeated where there are fewer (GQA)."""
    block = replace(BLOCK, attention=replace(ATTENTION, kv_heads=kv))
    model = of_blocks(block)
    question = task(8, 8, model, sequence=2048)
    forward, _ = exposed(f"tp={tp} cp=2", question, block, core=(0, 0))
    assert forward == pytest.approx(send(1024 * heads * 256 * 2))


def test_widths_of_keys_and_values_may_differ():
    block = replace(BLOCK, attention=replace(ATTENTION, head_dim=192))
    forward, _ = exposed("cp=4", block=block, core=(0, 0))
    assert forward == pytest.approx(3 * send(1024 * 8 * (192 + 128) * 2))


def test_llama_gathers_keys_and_values_in_both_passes_and_scatters_their_gradients():
    """Section 3.3.2: before attention, so nothing hides however long attention is."""
    forward, backward = exposed("cp=4 cp_comm=all-gather", core=(9e6, 9e6))
    assert forward == pytest.approx(gather(4 * KEYS, 4))
    assert backward == pytest.approx(gather(4 * KEYS, 4) + scatter(4 * KEYS, 4))


def test_ulysses_exchanges_queries_keys_values_and_outputs_in_either_pass():
    """Section 3: an all-to-all of 3 h a token, and one of h."""
    token = 1024 * 2
    expected = exchange(1024 * 3 * token, 4) + exchange(1024 * token, 4)
    assert exposed("cp=4 cp_comm=a2a") == pytest.approx([expected, expected])


def test_ulysses_exchanges_the_heads_of_a_tensor_rank():
    """GQA with 4 key/value heads under tp = 2: 4 + 2 + 2 heads in, 4 out."""
    block = replace(BLOCK, attention=replace(ATTENTION, kv_heads=4))
    question = task(8, 8, of_blocks(block), sequence=2048)
    head = 1024 * 128 * 2
    expected = exchange(8 * head, 2) + exchange(4 * head, 2)
    assert exposed("tp=2 cp=2 cp_comm=a2a", question, block)[0] == pytest.approx(expected)


@pytest.mark.parametrize(("recompute", "forwards"), [("none", 1), ("full", 2)])
def test_a_plan_communicates_in_every_layer_and_micro_batch(recompute, forwards):
    """Four layers, two micro-batches; full recompute runs the forward pass's gather again."""
    costs = costs_of(
        task(4, 2, sequence=4096), f"cp=4 cp_comm=all-gather recompute={recompute} zero=1"
    )
    each = (forwards + 1) * gather(4 * KEYS, 4) + scatter(4 * KEYS, 4)
    assert costs.seconds["context_comm"] == pytest.approx(2 * 4 * each)


def test_a_table_may_mix_ways_to_exchange():
    """A micro-batch of one layer forward and backward: three gathers' worth, four exchanges."""
    ways = np.array([ContextComm.ALL_GATHER, ContextComm.A2A])
    costs = evaluate(task(4, 1, sequence=4096), Plan(cp=4, zero=1, cp_comm=ways))
    gathered = 2 * gather(4 * KEYS, 4) + scatter(4 * KEYS, 4)
    exchanged = 2 * 4 * exchange(1024 * 1024 * 2, 4)
    found = costs.seconds["context_comm"]
    assert found == pytest.approx([4 * gathered, 4 * exchanged])
    sizes = {"cp": np.array([1, 4]), "dp": np.array([4, 1])}
    costs = evaluate(task(4, 4, sequence=4096), Plan(**sizes, cp_comm=np.array([0, 1]), zero=1))
    assert costs.seconds["context_comm"] == pytest.approx([0, 4 * 4 * gathered])


def test_the_attention_of_a_rank_is_what_a_ring_hides_behind():
    """1024 queries of 8 heads against 2048 of 4096 keys on average: 2 x 1024 x 8 x 256 x 2048
    FLOPs at 100 TFLOP/s forward, twice that backward; a step hides behind a quarter of either."""
    forward = 2 * 1024 * 8 * 256 * 2048 / 100e12
    shown = 3 * (send(KEYS) - forward / 4) + 3 * (send(2 * KEYS) - 2 * forward / 4)
    costs = costs_of(task(4, 2, sequence=4096), "cp=4 zero=1")
    assert costs.seconds["context_comm"] == pytest.approx(2 * 4 * shown)


OUTPUT = 1024 * 8 * 128
"""Elements of a rank's output of attention."""


@pytest.mark.parametrize(
    ("text", "changes", "expected"),
    [
        ("cp=4", {"keeps_ring_steps": True}, 4 * (KEYS + 2 * OUTPUT) + 4 * OUTPUT),
        ("cp=4", {"keeps_ring_steps": False}, 2 * KEYS),
        ("cp=4 cp_comm=all-gather", {}, 2 * 4 * KEYS),
        ("cp=4 cp_comm=a2a", {}, 0),
        ("cp=4 tp=2", {"keeps_ring_steps": True}, (4 * (KEYS + 2 * OUTPUT) + 4 * OUTPUT) / 2),
    ],
)
def test_other_parts_of_a_sequence_are_in_memory_while_attention_runs(text, changes, expected):
    """Not beside gathered inputs of a tensor rank: the larger counts."""
    seen = local(task(8, 8, sequence=4096, software=stack(gather_buffers=0.0, **changes)), text)
    assert context_buffers(BLOCK, seen)[0] == expected
    model = of_blocks(BLOCK)
    assert kept_activations(kind(model, "block 0"), seen)[1][0] == expected
    gathers = task(8, 8, sequence=4096, software=stack(gather_buffers=99.0, **changes))
    inputs = 99.0 * 2 * 1024 * 1024 * ("tp" in text)
    assert kept_activations(kind(model, "block 0"), local(gathers, text))[1][0] == max(
        expected, inputs
    )


def test_layers_without_keys_have_none_of_other_parts():
    seen = local(FOUR, "cp=4")
    assert context_buffers(replace(BLOCK, attention=NO_ATTENTION), seen)[0] == 0
