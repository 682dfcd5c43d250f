"""What ranks send to stay together, and what is said of it, by hand.

Two nodes of eight ranks, each with all 52,438,016 parameters of the tiny model: gradients of four
bytes, weights of two.
"""

from __future__ import annotations

import pytest
from round_numbers import LAYER, MODEL, PARAMETERS, TABLE, costs_of, sparse, stack, task

from plan3d.simulator.analysis.plan_difference import (
    Difference,
    changed_fields,
    contrast_sentences,
    memory_differences,
    time_differences,
)
from plan3d.simulator.analysis.textbook import FormulaRow, memory_rows, time_rows
from plan3d.simulator.analysis.textbook_pipeline import pipeline_rows
from plan3d.simulator.analysis.traffic import (
    axis_traffic,
    grid_sentences,
    traffic,
    traffic_sentences,
)
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.task import Goal
from plan3d.simulator.workload.adapters import Adapters

N, GIB = PARAMETERS, 2**30


def near(expected):
    return pytest.approx(expected, rel=1e-12)


def sent(text, gpus=16, batch=None, **changes):
    """What a rank sends in a step."""
    return traffic(costs_of(task(gpus, batch or 4 * gpus, **changes), text))


@pytest.mark.parametrize(
    ("text", "each"),
    [
        # All-reduced; scattered and gathered once; scattered for each of four micro-batches; and
        # gathered twice for each.
        ("dp=16 zero=0", 2 * 15 / 16 * 4),
        ("dp=16 zero=1", 15 / 16 * (4 + 2)),
        ("dp=16 zero=2", 15 / 16 * (4 * 4 + 2)),
        ("dp=16 zero=3", 15 / 16 * (4 * 4 + 8 * 2)),
        # Shards of eight, whose gradients are all-reduced between two nodes.
        ("dp=16 zero=1 shard=8", 7 / 8 * (4 + 2) + 2 * 1 / 2 * 4 / 8),
        ("dp=16 zero=3 shard=8", 7 / 8 * (4 * 4 + 8 * 2) + 4 * 2 * 1 / 2 * 4 / 8),
        # To servers; to two neighbours, four bytes of masters; averaged every fourth step.
        ("dp=16 sync=parameter-server", 4),
        ("dp=16 sync=gossip topology=ring", 2 * 4),
        ("dp=16 sync_period=4", 2 * 15 / 16 * 4 / 4),
        # Eight sum first, each sends an eighth of what a node sends to its one neighbour.
        ("dp=16 sync=hierarchical-gossip topology=ring", (2 * 7 + 1) / 8 * 4),
    ],
)
def test_bytes_of_a_rank(text, each):
    assert sent(text).bytes_sent == near(each * N)


def test_experts_are_sent_among_those_that_hold_them():
    """ep = 4 of 16: sixteen share attention, norms, routers and ends, four the same two experts."""
    dense = 4 * (4 * 1024**2 + 2 * 1024 + 8 * 1024) + 2 * TABLE + 1024
    experts = 4 * 2 * 2 * 1024 * 4096
    found = sent("dp=16 ep=4 zero=0", model=sparse())
    assert found.bytes_sent == near(4 * (2 * 15 / 16 * dense + 2 * 3 / 4 * experts))


@pytest.mark.parametrize(("text", "pieces"), [("dp=4 zero=3", 8), ("dp=4 zero=3 micro_batch=2", 4)])
def test_frozen_weights_are_gathered_for_both_passes_of_a_micro_batch(text, pieces):
    found = sent(text, 4, adapters=Adapters(rank=8))
    trained = 4 * 4 * 8 * 2 * 1024
    own = 3 / 4 * (pieces / 2 * 4 + pieces * 2) * trained
    assert found.bytes_sent == near(own + 3 / 4 * pieces * 2 * N)


@pytest.mark.parametrize(
    ("text", "servers"),
    [("sync=parameter-server", 1), ("sync=sharded-parameter-server", 2)],
)
def test_servers_receive_what_all_send(text, servers):
    found = sent(f"dp=16 {text}")
    assert found.server_bytes == near(16 * 4 * N / servers)
    assert found.staleness == 0
    assert sent("dp=16 zero=0").server_bytes == 0


def test_gradients_of_a_server_that_nobody_waits_for_are_old():
    found = sent("dp=16 sync=asynchronous-parameter-server")
    assert (found.staleness, found.record()["staleness"]) == (16, 16)
    (said,) = [
        s
        for s in traffic_sentences(
            costs_of(task(16, 64), "dp=16 sync=asynchronous-parameter-server")
        )
        if "asynchronous:" in s
    ]
    assert "gradients are of weights 16 updates old" in said


def test_compressed_bytes_are_those_between_nodes():
    """QSGD of five levels, 4 bits and a norm for 512: between two nodes an eighth each, the sum of
    a node in full."""
    bits = 4 / 8 + 4 / 512
    found = sent("dp=16 zero=0 compression=qsgd levels=5")
    across = bits * 1 / 8
    assert found.compressed_bytes == near(across * N)
    assert found.bytes_sent == near((across + 2 * 4 * 7 / 8) * N)
    assert found.messages == 2 * 7 + 1
    question = costs_of(task(16, 64), "dp=16 zero=0 compression=qsgd levels=5")
    (said,) = [s for s in traffic_sentences(question) if "of these bytes" in s]
    share = 100 * across / (across + 7)
    assert f"compressed from workers, sums in full: {share:.2g} % of these bytes" in said


def test_what_is_said_of_a_graph():
    costs = costs_of(task(16, 64), "dp=16 sync=gossip topology=ring sync_period=2")
    first, graph, *rest = traffic_sentences(costs)
    assert "sync=gossip" not in first
    assert "weights among 16 replicas every 2 steps: a rank sends 0.2 GiB in 1 messages" in first
    assert "2 messages a rank, 2 leaving a fast domain, spectral gap" in graph
    assert "optimizer states are not averaged" in rest
    assert "steps to an accuracy may differ" in rest[-1]


def test_a_goal_names_its_workers_and_their_noise():
    """16 workers of four sequences of noise 80: 20 of each."""
    goal = Goal(accuracy=0.1, sequence_noise=80.0)
    sentences = traffic_sentences(costs_of(task(16, 64, goal=goal), "dp=16 zero=0"))
    assert sentences[-1].startswith("e = 0.1, n = 16 workers, v = 20 of each: ")
    assert traffic_sentences(costs_of(task(16, 64), "dp=16 zero=0")) == []
    assert len(traffic_sentences(costs_of(task(16, 64), "dp=16 zero=1 shard=8"))) > 0


# Two plans beside each other


def test_differences_are_second_less_first():
    a, b = (costs_of(task(2, 8), text) for text in ("pp=2", "dp=2 zero=0"))
    for found, total in (
        (time_differences(a, b), b.step_seconds - a.step_seconds),
        (memory_differences(a, b), b.memory_bytes - a.memory_bytes),
    ):
        assert sum(one.change for one in found) == pytest.approx(total)
    assert Difference("n", "l", 3.0, 5.0).change == 2.0


def test_a_contrast_says_seconds_and_bytes():
    """Full recompute runs four blocks again for each of four micro-batches."""
    a, b = (costs_of(task(), f"recompute={how}") for how in ("none", "full"))
    for first, second, verb, sign in ((a, b, "slower", "+"), (b, a, "faster", "-")):
        head, time, memory = contrast_sentences(first, second)
        ratio = second.step_seconds / first.step_seconds - 1
        assert f"{abs(100 * ratio):.1f} % {verb} than {first.step_seconds:.4g} s" in head
        again = second.compute_seconds["recompute"] - first.compute_seconds["recompute"]
        word = "more" if sign == "+" else "less"
        assert f"It spends {word} on" in time
        assert f"{sign}{1e3 * abs(again):.3g} ms" in time
        kept = (second.memory["activations"] - first.memory["activations"]) / GIB
        assert f"activations {kept:+.1f} GiB" in memory
        sizes = [f"{one.memory_bytes / GIB:.1f} GiB" for one in (second, first)]
        assert f"needs {sizes[0]} instead of {sizes[1]}" in memory
    assert contrast_sentences(a, a) == ["It is the same plan."]


def test_fields_that_changed_are_written_as_people_write_them():
    plans = [
        resolve(Plan.parse(text), 4) for text in ("tp=2 dp=2", "tp=1 pp=2 dp=2 recompute=full")
    ]
    found = changed_fields(*plans)
    assert (found["tp"], found["pp"], found["recompute"]) == ((2, 1), (1, 2), ("none", "full"))
    assert "dp" not in found


# Rows of the textbook beside the simulator's numbers


def rows(found: list[FormulaRow]) -> dict[str, FormulaRow]:
    return {row.name.strip(): row for row in found}


LEAN = {"software": stack(kept_logit_bytes=6.0)}


def test_what_the_simulator_holds_beside_the_formulas():
    """In fp32 a layer of SwiGLU-free MLP keeps 2 x 32 s b h bytes, the head 8 and the logits 6; of
    two tensor ranks and two stages the last has the head and its norm."""
    question = task(4, 8, **LEAN)
    found = rows(memory_rows(question, resolve(Plan.parse("tp=2 pp=2 micro_batch=2"), 4)))
    for b in (1, 2, 8):
        kept = found[f"activations, b = {b}"]
        assert kept.simulator == near(b * 1024**2 * (4 * 64 + 2 * 4 + 6))
    over = found["over weights, b = 8"]
    assert over.simulator == near(found["activations, b = 8"].simulator / (4 * N))
    assert over.textbook == near(found["activations, b = 8"].textbook / (4 * N))
    values = 4 * (2 * 1024**2 * 8 + 14 * 1024 * 1024)
    assert found["activations, b = 2"].textbook == 4 * 2 * values
    both = found["states and those, b = 2"]
    assert both.textbook == 4 * (48 * 4 * 1024**2 + 2 * values)
    assert both.simulator == near(16 * N + found["activations, b = 2"].simulator)
    layer = found["a layer, recompute=none"]
    assert layer.textbook == 2 * 2 * values / 4 / 2
    assert layer.simulator == near(2 * 32 * 1024**2 / 2)
    full = found["a layer, recompute=full"]
    assert full.textbook == full.simulator == 2 * 2 * 1024**2 / 2
    last = 2 * (12 * 1024**2 / 2 + 2 * 1024) + TABLE / 2 + 1024
    cut = found["a GPU, model parallel"]
    assert cut.textbook == near(16 * N / 4)
    assert cut.simulator == near(16 * last)
    parallel = found["a GPU, data parallel"]
    assert parallel.textbook == near(2 * (4 * N + 8 / 4 * values))
    assert parallel.simulator == near(8 * N + 2 * 1024**2 * (4 * 32 + 4 + 6))
    for stage, held in ((1, 8 + 8 / 4), (2, 4 + 12 / 4), (3, 16 / 4)):
        row = found[f"a GPU, ZeRO {stage}"]
        assert row.textbook == row.simulator == near(held * N)


def test_parameters_by_the_formula_and_one_by_one():
    found = rows(memory_rows(task(), resolve(Plan(), 1)))["parameters"]
    assert found.textbook == 12 * 4 * 1024**2 + 2 * 1024**2
    assert found.simulator == N == 4 * LAYER + 2 * TABLE + 1024


@pytest.mark.parametrize(("text", "factor"), [("tp=1", 6), ("recompute=full", 8)])
def test_training_takes_its_flops_at_the_utilisation(text, factor):
    """A billion tokens; of a run of 1,000 seconds the utilisation that they took."""
    costs = costs_of(task(), text)
    found = rows(time_rows(task(), costs, 1e9, took=1000.0))
    active = MODEL.active_parameters
    used = costs.hfu
    assert found["training"].textbook == pytest.approx(factor * 1e9 * active / (100e12 * used))
    assert found["training"].simulator == near(1e9 / costs.tokens_per_second)
    assert found["utilisation"].textbook == near(factor * 1e9 * active / (100e12 * 1000))
    assert found["utilisation"].simulator == pytest.approx(used)


def test_bubbles_of_the_textbook_are_those_of_events():
    """Two stages of two chunks, eight micro-batches: 1, 1/8 and 1/16 of the work idle."""
    question = task(2, 8)
    found = rows(pipeline_rows(question, resolve(Plan.parse("pp=2 virtual_stages=2"), 2)))
    for name, share in (
        ("one stage at a time", 1.0),
        ("bubble, even stages", 1 / 8),
        ("bubble, v = 2", 1 / 16),
    ):
        assert found[name].textbook == near(share)
        assert found[name].simulator == near(share)
    assert (found["sends, at least"].textbook, found["sends, at most"].textbook) == (2, 16)
    assert 2 <= found["sends, at least"].simulator <= 16
    assert found["idle of the pipeline"].textbook == near(1 / 16 / (1 + 1 / 16))
    assert found["backward to forward"].simulator == pytest.approx(2)
    uneven = found["bubble, its stages"]
    assert uneven.simulator == pytest.approx(uneven.textbook)


# Grids


def test_axes_of_a_grid_send_what_its_products_gather():
    """None where tensor parallelism is 1d; along each axis of 2 x 2 what is said adds up."""
    assert axis_traffic(costs_of(task(4), "tp=4")) == []
    assert grid_sentences(costs_of(task(4), "tp=4")) == []
    costs = costs_of(task(4), "tp=4 tp_grid=2x2 micro_batch=2 sequence_parallel=0")
    found = axis_traffic(costs)
    assert [(one.ranks, one.domains) for one in found] == [(2, 1), (2, 1)]
    head, caveats = grid_sentences(costs)
    assert "2 ranks inside round link" in head
    assert caveats.startswith("SUMMA's broadcasts are costed as all-gathers")
    cube = costs_of(task(8), "tp=8 tp_grid=2x2x2 micro_batch=4 sequence_parallel=0")
    assert grid_sentences(cube)[1].startswith("sums of norms over split hidden states")
    assert len(axis_traffic(cube)) == 3
