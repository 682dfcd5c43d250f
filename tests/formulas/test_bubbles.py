"""Idle seconds of every pipeline schedule, worked out by hand.

f, i, w are seconds per micro-batch of a rank's forward pass, input gradient and weight gradient,
p ranks, m micro-batches. Idle seconds are what a rank does not compute between two steps.
"""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from plan3d.simulator.pipeline.dependency_graph import graph
from plan3d.simulator.pipeline.event_simulation import StageTimes, simulate
from plan3d.simulator.pipeline.rank_waits import Pipeline
from plan3d.simulator.pipeline.schedule import Passes, Sizes
from plan3d.simulator.pipeline.schedules import (
    SCHEDULES,
    deferred_weight_gradients,
    idle_seconds,
    schedule_code,
)

USUAL = 77.0
"""What 1F1B makes of it: handed through by the schedules that idle as it does."""


def column(*values):
    return np.array(values, float)


def passes(f, i, w):
    return Passes(column(f), column(i), column(w))


def idle(schedule, p, m, slowest, others):
    """Idle seconds of a rank with passes `slowest`; `others` are those of all other ranks."""
    each = (passes(*slowest), passes(*others), column(USUAL))
    (out,) = idle_seconds(np.array([schedule_code(schedule)]), sizes(p, m), *each)
    return out


def sizes(p, m):
    """Of pipelines with one chunk a rank: how many there are is the caller's."""
    return Sizes(*(np.atleast_1d(np.array(n, float)) for n in (p, 1, p, m)))


def uniform(schedule, p, m, f, i, w):
    return idle(schedule, p, m, (f, i, w), ((p - 1) * f, (p - 1) * i, (p - 1) * w))


def test_a_rank_alone_waits_for_every_pass_of_all_others():
    """Naive model parallelism, m (p-1)(f+i+w): Huang et al. 2019 (GPipe), figure 2b."""
    assert uniform("naive", 4, 5, 2, 3, 1) == 5 * 3 * (2 + 3 + 1)
    assert idle("naive", 3, 2, (9, 9, 9), (1, 2, 4)) == 2 * (1 + 2 + 4)


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "gpipe", "breadth-first"])
def test_schedules_that_split_no_backward_pass_idle_as_1f1b_does(schedule):
    """(p-1)(f+i+w), over v with v chunks a rank: Narayanan et al. 2021, section 2.2; the caller
    knows v (test_step_composition has the numbers)."""
    assert uniform(schedule, 4, 8, 1, 1, 1) == USUAL


@pytest.mark.parametrize(
    ("f", "i", "w", "seconds"),
    [
        (1, 1, 1, 3 * (1 + 1 - 1)),
        (2, 3, 1, 3 * (2 + 3 - 1)),
        # Weight gradients longer than input gradients cannot fill more than those leave.
        (2, 1, 3, 3 * 2),
        # Input gradients follow one another down the pipeline whatever else is done.
        (1, 5, 5, 3 * 5),
    ],
)
def test_zb_h1(f, i, w, seconds):
    """(p-1)(f+i-w): Qi et al. 2024 (zero bubble), table 1."""
    assert uniform("zb-h1", 4, 4, f, i, w) == seconds
    assert uniform("zb-h1", 4, 40, f, i, w) == seconds


def test_zb_h1_with_fewer_micro_batches_than_ranks():
    """Four ranks, two micro-batches, passes of a second. The last rank runs F0 at 3, I0 at 4, F1
    and I1 until 7, W0 and W1 until 9; I1 comes up to the first rank at 9, W1 ends at 11. A rank
    works for 6 of 11 seconds."""
    assert uniform("zb-h1", 4, 2, 1, 1, 1) == pytest.approx(11 - 6)


def test_zb_h2():
    """Nothing for equal passes and 2p - 1 micro-batches: (p-1)(f+i-2w), Qi et al. 2024, table 1.

    What is left is the fill less the n - 1 = 2(p-1) forward passes run meanwhile, or the drain
    less the m - 1 weight gradients there are to fill it."""
    assert uniform("zb-h2", 4, 7, 1, 1, 1) == 0
    assert uniform("zb-h2", 4, 12, 2, 3, 1) == 3 * (2 + 3) - (12 - 1) * 1
    assert uniform("zb-h2", 4, 40, 2, 3, 1) == 3 * (2 + 3) - 6 * 2
    # Four micro-batches: three forward passes, three weight gradients.
    assert uniform("zb-h2", 4, 4, 1, 1, 1) == 3 * (1 + 1) - 3


def test_zb_h2_holds_back_no_more_than_ends_all_ranks_together():
    """Passes of a second on four ranks, of 1.5, 1.5 and 1 on the last. Of seven micro-batches the
    last holds back all but one, rank r 2 r: the last takes 28 seconds, 7 of them for what it holds
    back. Ranks 2, 1 and 0 begin 1, 2 and 3 before it, end their last input gradient 1, 2 and 3
    after its and have 5, 3 and 1 weight gradients left: 28 seconds as well. With 3 r rank 2 would
    have all 7 left: 30."""
    last = (1.5, 1.5, 1.0)
    assert idle("zb-h2", 4, 7, last, (3, 3, 3)) == pytest.approx(0)
    # Four micro-batches: the last rank takes 16, 4 of them for what it holds back. Rank 0 ends its
    # last input gradient 3 after its, began 3 before it and has one left: 12 + 3 + 3 + 1.
    assert idle("zb-h2", 4, 4, last, (3, 3, 3)) == pytest.approx(19 - 16)


@pytest.mark.parametrize("schedule", ["zb-h2", "zb-h2-sync"])
@pytest.mark.parametrize("p", [2, 5, 12])
@pytest.mark.parametrize("m", [1, 4, 9, 16, 40])
def test_zb_h2_with_a_longer_last_rank_is_the_event_simulation(schedule, p, m):
    for head, passes in product((0.0, 0.15, 0.6), ((1, 1.1, 0.6), (1, 1.3, 0.9), (1, 1, 1))):
        each = [np.full(p, float(seconds)) for seconds in passes]
        for seconds in each:
            seconds[-1] *= 1 + head
        forward, gradient, weight = each
        busy = (forward + gradient)[-1]
        held = SCHEDULES[schedule].deferred_weight_gradients(Sizes(p, 1, p, m), busy, weight[-1])
        order = graph(SCHEDULES[schedule], p, 1, m, 0, float(held))
        times = StageTimes(forward=forward, input_gradient=gradient, weight_gradient=weight)
        last = [seconds[-1] for seconds in each]
        closed = idle(schedule, p, m, last, [seconds[:-1].sum() for seconds in each])
        step = float(simulate(order, times).step_seconds)
        assert m * sum(last) + closed == pytest.approx(step, rel=0.015), (head, passes)


def test_zb_h2_with_one_optimizer_step_for_all():
    """(p-1) f more than without post-validation for equal passes, for the last rank begins that
    much later; with the two deferred weight gradients a rank of table 1, (p-1)(f+i-2w)."""
    assert uniform("zb-h2-sync", 4, 12, 1, 1, 1) == 3 * 1
    assert uniform("zb-h2-sync", 4, 12, 2, 3, 1) == 3 * (2 + 3 - 2 * 1)
    # Three micro-batches on four ranks: 9 seconds of work, and the Gantt chart ends at 14.
    assert uniform("zb-h2-sync", 4, 3, 1, 1, 1) == pytest.approx(14 - 9)


@pytest.mark.parametrize(
    ("f", "i", "w", "seconds"),
    [
        (1, 1, 1, 0),
        (1, 2, 1, 2 * 3 * (2 - 1)),
        (2, 1, 1, 3 * (2 * 2 - 1 - 1)),
        (4, 2, 1, 2 * 3 * 4 - 7 * 1),
        (4, 3, 2, 5 * 4 + 3 - 2 * 3 * 2),
        (1, 2, 3, 2 + 2 * 3 - 3 * 1),
        (2, 1, 4, 2 * (4 - 2)),
        (3, 1, 4, 2 * (3 - 1)),
        (1, 4, 3, 3 * (4 - 1)),
    ],
)
def test_zb_v(f, i, w, seconds):
    """Four ranks with two chunks each, f, i, w of one chunk: nothing when all are equal (Qi et al.
    2024, controllable memory, section 3.2), else the longest of eight ways to wait."""
    assert uniform("zb-v", 4, 8, 2 * f, 2 * i, 2 * w) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("f", "i", "w", "seconds"),
    [
        # (p/2 - 1)(F&B + B - 3W) with B both gradients, F&B a pair: (4 - 1)(3 + 2 - 3).
        (1, 1, 1, (4 - 1) * (3 + 2 - 3)),
        # 2nf + n (i - w) with n = 3.
        (4, 3, 1, 6 * 4 + 3 * (3 - 1)),
        # (n - 1) f + ni + n (i - w): input gradients are the longer passes.
        (2, 3, 1, 2 * 2 + 3 * 3 + 3 * (3 - 1)),
        # Weight gradients longer than input gradients bring nothing more.
        (3, 1, 2, 6 * 3),
    ],
)
def test_dualpipe(f, i, w, seconds):
    """Eight ranks, or four with a V of eight stages: DeepSeek-AI 2024 (V3), table 2, and the
    DualPipe repository's README (the same numbers for DualPipeV with twice the stages)."""
    assert uniform("dualpipe", 8, 16, f, i, w) == pytest.approx(seconds)
    assert uniform("dualpipe-v", 4, 8, 2 * f, 2 * i, 2 * w) == pytest.approx(seconds)


def test_zb_h1_with_a_slow_last_rank():
    """Passes of 1, 2 and 1 seconds, the last rank's weight gradients of 1.5: it begins at 3, and
    after its last input gradient 4 weight gradients take 6 seconds, while that gradient comes up
    in 3 x 2 and the first rank's last weight gradient takes 1."""
    assert idle("zb-h1", 4, 8, (1, 2, 1.5), (3, 6, 3)) == pytest.approx(3 + 1)
    assert idle("zb-h1", 4, 8, (1, 2, 3), (3, 6, 3)) == pytest.approx(3)
    # All wait for weight gradients of 3 seconds, 6 = (p-1) i; a last rank slower by 0.2 s a
    # micro-batch for 8 x 0.2 less.
    assert idle("zb-h1", 4, 8, (1, 2, 3.2), (3, 6, 9)) == pytest.approx(6 - 8 * 0.2)


def test_zb_v_waits_less_for_ranks_that_are_faster():
    """Chunks of 1, 2 and 1 seconds on four ranks: 6 = 2 (p-1)(i-w). A rank slower by 0.2 a
    micro-batch works 7 x 0.2 of that: the eighth fills and drains the V through it; whatever it
    takes, it waits (p-1)(i-w)."""
    others = (3 * 2, 3 * 4, 3 * 2)
    assert idle("zb-v", 4, 8, (2, 4, 2), others) == pytest.approx(6)
    assert idle("zb-v", 4, 8, (2.1, 4.1, 2), others) == pytest.approx(6 - 7 * 0.2)
    assert idle("zb-v", 4, 8, (3, 5, 2), others) == pytest.approx(3)
    # Weight gradients half a second longer leave two of those less.
    assert idle("zb-v", 4, 8, (3, 5, 2.5), others) == pytest.approx(3 - 2 * 0.5)


@pytest.mark.parametrize("schedule", ["zb-v", "dualpipe-v"])
def test_a_slow_rank_has_its_own_weight_gradients_to_do_while_it_waits(schedule):
    """As long as its input gradients: those of others make it wait neither more nor less."""
    for w in (1.0, 1.4, 2.0):
        assert idle(schedule, 8, 16, (3, 4, 4), (7 * 2, 7 * 4, 7 * w)) == 0


def test_dualpipe_with_a_slow_stage_at_an_end():
    """Eight stages of three seconds, n = 3: 6 s. A last stage slower by 0.3 s makes its rank wait
    (2n + 1) x 0.3 less; under DualPipe half of its micro-batches run there, and half on the rank
    at the other end, which is as slow."""
    others = (6 + 1.05, 6 + 1.05, 6 + 1.05)
    assert idle("dualpipe", 8, 16, (1.05, 1.05, 1.05), others) == pytest.approx(6 - 7 * 0.3)
    assert idle("dualpipe-v", 4, 8, (2.1, 2.1, 2.1), (6, 6, 6)) == pytest.approx(6 - 7 * 0.3)
    # Not below n (i - w) of the others.
    assert idle("dualpipe", 8, 16, (3, 3, 3), (6 + 3, 12 + 3, 6 + 3)) == pytest.approx(3 * 1)


def test_schedules_of_one_table_do_not_mix():
    codes = np.array([schedule_code(name) for name in ("naive", "gpipe", "zb-h1")])
    three = passes([1, 1, 1], [1, 1, 1], [1, 1, 1])
    each = Passes(*(np.ravel(part) for part in three))
    others = Passes(*(3 * part for part in each))
    three = Sizes(*(column(n, n, n) for n in (4, 1, 4, 8)))
    found = idle_seconds(codes, three, each, others, column(USUAL, USUAL, USUAL))
    assert found.tolist() == [8 * 9, USUAL, 3]


def test_weight_gradients_that_zb_h2_holds_back():
    """As many a rank as fill the longest forward pass and input gradient, at least the two of Qi
    et al. 2024, table 1; no more over the rank than leave one of 40 micro-batches on four."""
    names = [*["zb-h2"] * 5, "zb-h1", "zb-h2-sync", "gpipe"]
    codes = np.array([schedule_code(name) for name in names])
    longest, weight = column(5, 2, 2.5, 1, 1, 9, 9, 9), column(1, 1, 1, 2, 0, 1, 1, 1)
    found = deferred_weight_gradients(
        codes, Sizes(*np.full((3, 8), 4.0), m=np.full(8, 40.0)), longest, weight
    )
    assert found.tolist() == [5, 2, 2.5, 2, 13, 1, 2, 0]


@given(
    schedule=st.sampled_from(["naive", "zb-h1", "zb-h2", "zb-h2-sync"]),
    p=st.integers(2, 6),
    m=st.integers(1, 40),
    seconds=arrays(float, (3, 6), elements=st.floats(0.1, 2)),
    longer=arrays(float, (3, 6), elements=st.floats(0, 1)),
)
def test_longer_passes_never_make_a_step_shorter(schedule, p, m, seconds, longer):
    """Of any rank, also where another becomes the slowest."""

    def step(each):
        each = each[:, :p, None]
        codes, one = np.array([schedule_code(schedule)]), np.ones((p, 1))
        size = Sizes(*(np.array([float(n)]) for n in (p, 1, p, m)))
        pipeline = Pipeline(codes, size, one, 0 * one)
        return float(pipeline.rank_steps(Passes(*each), np.zeros(1)).max())

    assert step(seconds + longer) >= step(seconds) * (1 - 1e-9)


def test_passes_add_up_and_average():
    three = passes(2, 4, 6)
    assert three.total == 2 + 4 + 6
    assert [float(part[0]) for part in three.mean(column(2))] == [1, 2, 3]
    assert [float(part[0]) for part in three.mean(column(0))] == [2, 4, 6]
