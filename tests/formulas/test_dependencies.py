"""What every pass of a tiny pipeline waits for, written out by hand.

A forward pass needs the stage before it, a backward pass the stage after it, the last stage its
own forward pass, and a weight gradient its own input gradient; every pass follows the one before
it on its rank. A level is what can run once all earlier levels have.
"""

from itertools import pairwise

import numpy as np
import pytest

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.pipeline import dependency_graph
from plan3d.simulator.pipeline.dependency_graph import graph_of_orders
from plan3d.simulator.pipeline.schedules import SCHEDULES

LETTERS = "FBIW"


def graph(name, *sizes):
    return dependency_graph.graph(SCHEDULES[name], *sizes)


def names(g):
    """Every operation as F2@1: its pass, micro-batch and stage."""
    each = zip(g.kind.tolist(), g.micro_batch.tolist(), g.stage.tolist(), strict=True)
    return [f"{LETTERS[kind]}{micro}@{stage}" for kind, micro, stage in each]


def needs(g):
    """The pass whose result each operation needs, and the boundary that it crosses."""
    name = names(g)
    out = {}
    for i, (source, boundary) in enumerate(zip(g.source, g.received_boundary, strict=True)):
        needed = name[source] if source >= 0 else ""
        out[name[i]] = f"{needed} over {boundary}" if boundary >= 0 else needed
    return out


def sends(g):
    """The boundary over which each operation's result leaves its rank."""
    return {n: int(b) for n, b in zip(names(g), g.sent_boundary, strict=True) if b >= 0}


def levels(g):
    """Operations by level, those that run together as one."""
    name = names(g)
    nodes = [
        name[first] + (f"&{name[other]}" if other >= 0 else "")
        for first, other in zip(g.operation.tolist(), g.partner.tolist(), strict=True)
    ]
    bounds = g.levels.tolist()
    return [" ".join(nodes[a:b]) for a, b in pairwise(bounds)]


def test_two_micro_batches_through_two_stages():
    """1F1B: rank 0 runs F0 F1 B0 B1, rank 1 runs F0 B0 F1 B1."""
    g = graph("1f1b", 2, 1, 2)
    assert needs(g) == {
        "F0@0": "",
        "F1@0": "",
        "B0@0": "B0@1 over 0",
        "B1@0": "B1@1 over 0",
        "F0@1": "F0@0 over 0",
        "B0@1": "F0@1",
        "F1@1": "F1@0 over 0",
        "B1@1": "F1@1",
    }
    assert sends(g) == {"F0@0": 0, "F1@0": 0, "B0@1": 0, "B1@1": 0}
    assert levels(g) == ["F0@0", "F1@0 F0@1", "B0@1", "B0@0 F1@1", "B1@1", "B1@0"]
    assert (g.ranks, g.stages, g.micro_batches, g.operations) == (2, 2, 2, 8)
    assert g.rank.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_nodes_wait_for_their_rank_and_for_their_input():
    """Nodes are numbered by level, so the start of the step is number 8: F0@0 = 0, F1@0 = 1,
    F0@1 = 2, B0@1 = 3, B0@0 = 4, F1@1 = 5, B1@1 = 6, B1@0 = 7."""
    g = graph("1f1b", 2, 1, 2)
    on_its_rank, for_its_input = g.waits.tolist()
    assert on_its_rank == [8, 0, 8, 2, 1, 3, 5, 4]
    assert for_its_input == [8, 8, 0, 2, 3, 1, 5, 6]
    assert g.crossed_boundary.tolist() == [[-1] * 8, [-1, -1, 0, -1, 0, 0, -1, 0]]


def test_a_weight_gradient_needs_its_input_gradient_and_is_sent_nowhere():
    g = graph("zb-h1", 2, 1, 1)
    assert needs(g) == {
        "F0@0": "",
        "I0@0": "I0@1 over 0",
        "W0@0": "I0@0",
        "F0@1": "F0@0 over 0",
        "I0@1": "F0@1",
        "W0@1": "I0@1",
    }
    assert sends(g) == {"F0@0": 0, "I0@1": 0}


def test_a_v_turns_round_on_its_last_rank():
    """Stages 1 and 2 are both on rank 1: nothing crosses the boundary between them."""
    g = graph("zb-v", 2, 2, 4)
    found = needs(g)
    assert found["F0@2"] == "F0@1"
    assert found["I0@1"] == "I0@2"
    assert found["F0@3"] == "F0@2 over 2"
    assert found["I0@2"] == "I0@3 over 2"
    assert found["I0@3"] == "F0@3"
    sent = sends(g)
    assert not {"F0@1", "I0@2", "F0@3", "I0@0"} & set(sent)
    assert (sent["F0@0"], sent["I0@1"], sent["F0@2"], sent["I0@3"]) == (0, 0, 2, 2)


def test_interleaved_chunks_send_from_the_last_rank_to_the_first():
    """Two ranks, four stages: stage 1 on rank 1 hands on to stage 2 on rank 0."""
    found = needs(graph("interleaved", 2, 2, 2))
    assert found["F0@2"] == "F0@1 over 1"
    assert found["B0@1"] == "B0@2 over 1"


def test_passes_that_run_together_wait_for_both_inputs():
    """DualPipe of two ranks and four micro-batches; micro-batches 2 and 3 enter at rank 1.
    F3@1 & B0@0 on rank 0 wait for F3@0 and B0@1 of rank 1."""
    g = graph("dualpipe", 2, 1, 4)
    found = needs(g)
    assert found["F3@1"] == "F3@0 over 0"
    assert found["B0@0"] == "B0@1 over 0"
    assert levels(g) == [
        "F0@0 F2@0",
        "F2@1 F0@1",
        "F1@0 F3@0",
        "B2@1 B0@1",
        "F3@1&B0@0 F1@1&B2@0",
        "B3@1 B1@1",
        "I1@0 I3@0",
        "W1@0 W3@0",
    ]
    assert g.waits.shape[0] == 3


def test_orders_of_ones_own():
    """One rank with two stages, forward 0 and 1, backward 1 and 0: nothing is sent."""
    g = graph_of_orders([np.array([[0, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0]])], 2)
    assert needs(g) == {"F0@0": "", "F0@1": "F0@0", "B0@1": "F0@1", "B0@0": "B0@1"}
    assert sends(g) == {}
    assert levels(g) == ["F0@0", "F0@1", "B0@1", "B0@0"]


def test_a_circle_is_named():
    """Rank 0 would run its backward pass first, which needs a forward pass of its own."""
    backwards = SCHEDULES["1f1b"].orders(2, 1, 1)
    backwards[0] = backwards[0][::-1].copy()
    with pytest.raises(InputError) as caught:
        graph_of_orders(backwards, 2)
    message = str(caught.value)
    assert message.startswith("deadlock: ")
    assert "rank 0 waits at B(0) of stage 0 for B(0) of stage 1 of rank 1" in message
    assert "rank 1 waits at F(0) of stage 1 for F(0) of stage 0 of rank 0" in message
