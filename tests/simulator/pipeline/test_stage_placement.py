"""Placement of layers, and closed forms against a simulation of every operation written here."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan3d.simulator.pipeline.dependency_graph import graph
from plan3d.simulator.pipeline.event_simulation import StageTimes, simulate
from plan3d.simulator.pipeline.schedule import Placement, Sizes
from plan3d.simulator.pipeline.schedules import (
    SCHEDULES,
    in_flight,
    losses_in_flight,
    schedule_code,
    sends,
)
from plan3d.simulator.pipeline.stage_placement import (
    Cut,
    balanced_layers,
    chunk_layers,
    chunk_ranks,
    every_rank,
    layout,
    rank_counts,
)

MTP = ("mtp", "shared mtp", "lone mtp")
FORWARD, BACKWARD = 1, 2
"""Ticks of a chunk's two passes."""


# Placement


@given(layers=st.integers(1, 200), chunks=st.integers(1, 64))
def test_balanced_layers(layers, chunks):
    sizes = balanced_layers(layers, chunks)
    assert len(sizes) == chunks
    assert sum(sizes) == layers
    assert max(sizes) - min(sizes) <= 1
    if chunks > 1 and max(sizes) > min(sizes):
        assert sizes[-1] == min(sizes)
        if layers % chunks < chunks - 1:
            assert sizes[0] == min(sizes)


def test_ends_get_an_extra_layer_last():
    assert balanced_layers(9, 4) == (2, 3, 2, 2)
    assert balanced_layers(10, 4) == (2, 3, 3, 2)
    assert balanced_layers(11, 4) == (3, 3, 3, 2)
    assert balanced_layers(7, 1) == (7,)
    assert balanced_layers(3, 2) == (2, 1)
    assert balanced_layers(126, 16).count(8) == 14
    assert balanced_layers(61, 16)[0] == balanced_layers(61, 16)[-1] == 3


def per_rank(sizes, pp):
    return [sum(sizes[r::pp]) for r in range(pp)]


@given(data=st.data(), pp=st.integers(1, 16), virtual=st.integers(1, 4))
def test_first_and_last_stage_layers(data, pp, virtual):
    first, last = (data.draw(st.integers(0, 6)) for _ in range(2))
    free = pp - (first > 0) - (last > 0)
    if pp == 1 or free < 0:
        first = last = 0
        free = pp
    rest = data.draw(st.integers(free * virtual, free * virtual + 40)) if free else 0
    sizes = chunk_layers(first + last + rest, pp, virtual, first, last, ())
    assert len(sizes) == pp * virtual
    assert sum(sizes) == first + last + rest
    ranks = per_rank(sizes, pp)
    assert not first or ranks[0] == first
    assert not last or ranks[-1] == last
    middle = [sizes[i] for i in range(len(sizes)) if i % pp not in ends(first, last, pp)]
    assert not middle or max(middle) - min(middle) <= 1


def ends(first, last, pp):
    return ({0} if first else set()) | ({pp - 1} if last else set())


def test_explicit_layers():
    assert chunk_layers(10, 4, 1, 0, 0, (3, 2, 2, 3)) == (3, 2, 2, 3)
    # One number a rank: its layers are spread over its chunks.
    assert chunk_layers(10, 2, 2, 0, 0, (6, 4)) == (3, 2, 3, 2)
    # One number a chunk.
    assert chunk_layers(10, 2, 2, 0, 0, (1, 2, 3, 4)) == (1, 2, 3, 4)


@given(
    kinds=st.lists(st.integers(0, 2), min_size=1, max_size=40),
    pp=st.integers(1, 12),
    virtual=st.integers(1, 4),
    ends=st.sampled_from([("embedding", "head"), ("embedding", "head", "shared head")]),
    mtp=st.booleans(),
)
def test_every_layer_is_placed_once(kinds, pp, virtual, ends, mtp):
    names = ("block 0", "block 1", "block 2", *ends, *(MTP if mtp else ()))
    chunks = chunk_layers(len(kinds), pp, virtual, 0, 0, ())
    counts = rank_counts(Cut(tuple(kinds), names, pp, chunks))
    total = dict(zip(names, counts.sum(axis=0), strict=True))
    assert [total[f"block {k}"] for k in range(3)] == [kinds.count(k) for k in range(3)]
    assert total["embedding"] == 1
    assert total["head"] + total.get("shared head", 0) == 1
    assert not mtp or total["mtp"] + total["shared mtp"] == 1
    # Shared ends reuse an embedding, so they are where it is.
    for i, name in enumerate(names):
        if "shared" in name and total[name]:
            assert pp == 1
            assert counts[0, i] == 1
    # Model order: chunk i is on rank i mod pp, each holding the next layers.
    at = 0
    expected = [Counter() for _ in range(pp)]
    for i, size in enumerate(chunks):
        expected[i % pp].update(kinds[at : at + size])
        at += size
    assert at == len(kinds)
    for r in range(pp):
        assert [counts[r, k] for k in range(3)] == [expected[r][k] for k in range(3)]


@given(
    kinds=st.lists(st.integers(0, 1), min_size=1, max_size=40),
    pp=st.integers(1, 6),
    ends=st.sampled_from([("embedding", "head"), ("embedding", "head", "shared head")]),
)
def test_a_v_puts_both_ends_on_one_rank_and_two_copies_are_mirrored(kinds, pp, ends):
    names = ("block 0", "block 1", *ends, *MTP)
    order, pair = tuple(kinds), chunk_layers(len(kinds), pp, 2, 0, 0, (), Placement.V_SHAPED)
    v_shaped = rank_counts(Cut(order, names, pp, pair, Placement.V_SHAPED))
    assert chunk_ranks(pp, 2 * pp, Placement.V_SHAPED).tolist() == [*range(pp), *range(pp)[::-1]]
    np.testing.assert_array_equal(
        v_shaped[:, :2].sum(axis=1), [pair[r] + pair[-1 - r] for r in range(pp)]
    )
    first = dict(zip(names, v_shaped[0], strict=True))
    head = "shared head" if "shared head" in names else "head"
    assert first["embedding"] == first[head] == first["shared mtp"] == 1
    assert not v_shaped[1:, 2:].any()
    stages = chunk_layers(len(kinds), pp, 1, 0, 0, ())
    one, both = (rank_counts(Cut(order, names, pp, stages, p)) for p in (0, Placement.TWO_WAY))
    np.testing.assert_array_equal(both, both[::-1])
    np.testing.assert_array_equal(both[:, :3], (one + one[::-1])[:, :3] / 2)
    np.testing.assert_array_equal(both.sum(axis=0)[:3], one.sum(axis=0)[:3])
    assert both[0, names.index(head)] == 1 / min(pp, 2)


def test_the_layout_decides_which_rank_holds_multi_token_prediction():
    names = ("block 0", "embedding", "head", *MTP)

    def holder(pp, chunks, stage, place=Placement.LOOPED):
        counts = rank_counts(Cut((0,) * sum(chunks), names, pp, chunks, place, stage))[:, 3:]
        (rank,), (kind,) = np.nonzero(counts)
        return int(rank), MTP[kind]

    assert holder(4, (2, 2, 0, 0), 0) == (3, "mtp")
    assert holder(4, (2, 2, 0, 0), 3) == (2, "lone mtp")
    assert holder(2, (2, 2, 0, 0), 3) == (0, "mtp")
    assert holder(2, (2, 2, 0, 0), 3, Placement.V_SHAPED) == (1, "lone mtp")
    assert holder(2, (2, 2, 0, 0), 0, Placement.V_SHAPED) == (0, "shared mtp")


@given(
    layers=st.integers(1, 60), dense=st.integers(0, 5), pp=st.integers(1, 16), v=st.integers(1, 3)
)
def test_classes_stand_for_every_rank(layers, dense, pp, v):
    order = tuple(int(i >= dense) for i in range(layers))
    names = ("block 0", "block 1", "embedding", "head")
    chunks = chunk_layers(layers, pp, v, 0, 0, ())
    cut = Cut(order, names, pp, chunks)
    few, all_ranks, counts = layout(cut), every_rank(cut), rank_counts(cut)
    np.testing.assert_array_equal(all_ranks.counts, counts)
    np.testing.assert_array_equal(few.total_layers, counts.sum(axis=0))
    rows = {row.tobytes() for row in few.counts}
    assert rows == {row.tobytes() for row in counts}
    assert len(rows) == len(few.counts)
    for i, r in enumerate(few.rank.astype(int)):
        np.testing.assert_array_equal(few.counts[i], counts[r])
        np.testing.assert_array_equal(few.layers_before[i], counts[:r].sum(axis=0))
        assert r == min(j for j in range(pp) if (counts[j] == counts[r]).all())


# Every operation of a step, one after another


def warm_up(schedule, p, v, m, r):
    """Forward passes a rank runs before its first backward (Megatron-LM's schedules.py)."""
    if schedule == "gpipe":
        return m
    if schedule == "1f1b":
        return min(p - r - 1, m)
    return min(2 * (p - r - 1) + (v - 1) * p, m * v)


def order_of(schedule, p, v, m, r):
    """Operations of rank r: ('F' or 'B', chunk in model order, micro-batch)."""

    def nth(i, backward):
        group, place = divmod(i, p * v)
        turn, slot = divmod(place, p)
        turn = v - 1 - turn if backward else turn
        return turn * p + r, group * p + slot

    if v == 1:
        forward = backward = [(r, i) for i in range(m)]
    else:
        forward = [nth(i, False) for i in range(m * v)]
        backward = [nth(i, True) for i in range(m * v)]
    if schedule == "gpipe":
        backward = backward[::-1]
    ahead = warm_up(schedule, p, v, m, r)
    out = [("F", *f) for f in forward[:ahead]]
    for i in range(m * v - ahead):
        out += [("F", *forward[ahead + i]), ("B", *backward[i])]
    return out + [("B", *b) for b in backward[m * v - ahead :]]


def run(schedule, p, v, m, hop=0):
    """Finish time of every operation: each waits for its rank and for its input plus a hop."""
    orders = [order_of(schedule, p, v, m, r) for r in range(p)]
    finish, at, free = {}, [0] * p, [0.0] * p
    while any(at[r] < len(orders[r]) for r in range(p)):
        moved = False
        for r in range(p):
            while at[r] < len(orders[r]):
                what, chunk, micro = orders[r][at[r]]
                ready = arrival(finish, what, chunk, micro, p * v, hop if p > 1 else 0.0)
                if ready is None:
                    break
                free[r] = max(free[r], ready) + (FORWARD if what == "F" else BACKWARD)
                finish[what, chunk, micro] = free[r]
                at[r] += 1
                moved = True
        assert moved, "deadlock"
    return orders, max(finish.values())


def arrival(finish, what, chunk, micro, chunks, hop):
    """When an operation's input is there; None when it was not yet computed."""
    if what == "F" and chunk == 0:
        return 0
    if what == "B" and chunk == chunks - 1:
        return finish.get(("F", chunk, micro))
    done = finish.get((what, chunk - 1 if what == "F" else chunk + 1, micro))
    return None if done is None else done + hop


def most_kept(order):
    """Largest number of chunks whose forward is done and whose backward is not."""
    kept = most = 0
    for what, *_ in order:
        kept += 1 if what == "F" else -1
        most = max(most, kept)
    return most


CASES = [
    (schedule, p, 1, m)
    for schedule in ("gpipe", "1f1b")
    for p, m in ((1, 5), (2, 1), (2, 3), (4, 2), (4, 8), (5, 7), (8, 16))
] + [
    ("interleaved", p, v, m)
    for p, v, m in ((2, 2, 2), (2, 3, 4), (4, 2, 8), (4, 3, 16), (4, 4, 4), (8, 2, 8), (8, 3, 16))
]


@pytest.mark.parametrize(("schedule", "p", "v", "m"), CASES)
def test_closed_forms_equal_the_simulated_schedule(schedule, p, v, m):
    orders, makespan = run(schedule, p, v, m)
    rank = np.arange(p, dtype=float)
    same = Sizes(*(np.full(p, float(x)) for x in (p, v, p, m)))
    kept = in_flight(np.full(p, schedule_code(schedule)), same, rank) * v
    assert kept.tolist() == [most_kept(order) for order in orders]
    busy = m * v * (FORWARD + BACKWARD)
    share = v * (FORWARD + BACKWARD)
    assert makespan - busy == pytest.approx((p - 1) / v * share)


@pytest.mark.parametrize(("schedule", "p", "v", "m"), CASES)
@pytest.mark.parametrize("hop", [0, 0.25])
def test_the_event_simulation_ends_when_this_one_does(schedule, p, v, m, hop):
    orders_here, makespan = run(schedule, p, v, m, hop)
    g = graph(SCHEDULES[schedule], p, v, m)
    seconds = (np.full(p * v, float(x)) for x in (FORWARD, BACKWARD, 0))
    names = ("forward", "input_gradient", "weight_gradient")
    t = simulate(g, StageTimes(**dict(zip(names, seconds, strict=True)), hop=float(hop)))
    assert t.step_seconds == pytest.approx(makespan)
    assert t.peak(np.ones(p * v)).tolist() == [most_kept(order) for order in orders_here]


def test_logits_wait_where_every_forward_pass_comes_first():
    codes = np.array([schedule_code(name) for name in ("gpipe", "breadth-first", "zb-h1", "naive")])
    assert losses_in_flight(codes, np.full(4, 7.0)).tolist() == [7, 7, 1, 1]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_sends_of_every_schedule_lie_between_one_micro_batch_and_all(schedule):
    """Ledger T8, by the schedule's own closed form."""
    p, v, m = 4, SCHEDULES[schedule].chunks.least, 16
    for overlapped in (0, 1):
        assert 2 * (p - 1) <= hops(schedule, p, v, m, overlapped) <= 2 * (p * v - 1) * m


@pytest.mark.parametrize("m", [4, 8, 32])
def test_bubble_is_stages_less_one_over_micro_batches(m):
    """Ledger T6: idle over useful time is (N - 1) / m."""
    _, makespan = run("1f1b", 4, 1, m)
    assert (makespan - 3 * m) / (3 * m) == pytest.approx(3 / m)


def hops(schedule, p, v, m, overlapped):
    sizes = Sizes(*(np.array([float(x)]) for x in (p, v, p, m)))
    return sends(np.array([schedule_code(schedule)]), sizes, np.array([float(overlapped)]))[0]


@pytest.mark.parametrize(("schedule", "p", "v", "m"), CASES)
@pytest.mark.parametrize("overlapped", [0, 1])
def test_exposed_hops_lie_between_one_micro_batch_and_all(schedule, p, v, m, overlapped):
    """Ledger T8: from the boundaries one micro-batch crosses, there and back, to all of them."""
    one = 2 * (p * v - 1) * (p > 1)
    assert one <= hops(schedule, p, v, m, overlapped) <= one * m


@pytest.mark.parametrize(("schedule", "p", "v", "m"), CASES)
def test_exposed_hops_against_the_simulation(schedule, p, v, m):
    """Sends run beside compute; a hop is short, so what it adds is its place in the order."""
    hop = 1e-3
    added = (run(schedule, p, v, m, hop)[1] - run(schedule, p, v, m)[1]) / hop
    assert added <= 2 * (p * v - 1) * m + 1e-6
    if schedule == "interleaved":
        assert added == pytest.approx(hops(schedule, p, v, m, 1))
    elif schedule == "1f1b":
        assert added == pytest.approx(hops(schedule, p, v, m, 0), abs=1.5)
    else:
        assert added == pytest.approx(hops(schedule, p, v, m, 0))
