"""Labels drop only what can never be best; a chain is a bound of the event simulation."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from not_empty import not_empty

from plan3d.search.result.options import Deadline
from plan3d.search.stage_dp.labels import empty_label, extend
from plan3d.search.stages.dominance import group_elements, row_spans, undominated_rows
from plan3d.search.stages.stage_table import Entries
from plan3d.simulator.pipeline.dependency_graph import graph
from plan3d.simulator.pipeline.event_simulation import StageTimes
from plan3d.simulator.pipeline.event_simulation import simulate as run
from plan3d.simulator.pipeline.schedules import SCHEDULES


@given(counts=st.lists(st.integers(0, 4), min_size=1, max_size=8))
def test_ragged_numbers_the_elements_of_every_group(counts):
    owner, position = group_elements(np.array(counts))
    expected = [(i, j) for i, count in enumerate(counts) for j in range(count)]
    assert list(zip(owner.tolist(), position.tolist(), strict=True)) == expected


@given(sizes=st.lists(st.integers(0, 9), max_size=12), most=st.integers(1, 20))
def test_spans_cover_all_rows_and_are_no_larger_than_they_must_be(sizes, most):
    found = [*row_spans(np.array(sizes, int), most)]
    assert [i for start, stop in found for i in range(start, stop)] == [*range(len(sizes))]
    for start, stop in found:
        assert sum(sizes[start:stop]) <= most or stop == start + 1


rows = st.lists(
    st.tuples(st.integers(0, 1), *(st.integers(0, 6) for _ in range(4))), min_size=1, max_size=30
)


@given(rows=rows, later=st.tuples(*(st.integers(0, 6) for _ in range(6))))
def test_a_dropped_label_is_never_better_whatever_comes_before_it(rows, later):
    group, total, *tails = np.array(rows, float).T
    tails = np.array(tails)

    def excess(one, other):
        more = np.maximum(tails[:, one] - tails[:, other], 0).sum(axis=0)
        return total[one] + more

    upper = total + tails.sum(axis=0)
    kept = undominated_rows(group.astype(int), upper, total, excess, Deadline())
    reduce, gather, optimizer, b, f, seconds = later
    waits = np.array([[b], [f], [0]])
    ends = np.array([[reduce], [gather], [optimizer]])
    finished = total + seconds + np.maximum(ends, tails - waits).sum(axis=0)
    for one in not_empty(np.unique(group)):
        mine = np.flatnonzero(group == one)
        assert finished[mine].min() == finished[np.intersect1d(mine, kept)].min()


def one_choice(forward, backward, stage):
    """The entries of a stage of one layer that may be only one thing."""
    none = np.zeros(1, np.int64)
    both = forward[stage] + backward[stage]
    return Entries(
        start=np.array([stage]),
        end=np.array([stage + 1]),
        candidate=none,
        gpus=none,
        input_boundary=none,
        output_boundary=none,
        tp=none,
        costs=np.array([[both], [backward[stage]], [forward[stage]], [0.0], [0.0], [0.0]]),
    )


@given(
    forward=st.lists(st.floats(0.1, 1), min_size=2, max_size=8),
    ratio=st.floats(1, 3),
    m=st.integers(1, 20),
)
def test_a_chain_is_no_longer_than_the_simulated_pipeline(forward, ratio, m):
    forward = np.array(forward)
    backward, p = ratio * forward, forward.size
    labels = empty_label(p, 1)
    for stage in reversed(range(p)):
        runs = m, min(p - 1 - stage, m - 1)
        own = one_choice(forward, backward, stage)
        labels = extend(labels, own, np.zeros((2, 2)), p, runs)
    times = StageTimes(forward=forward, input_gradient=backward, weight_gradient=0 * backward)
    simulated = float(run(graph(SCHEDULES["1f1b"], p, 1, m), times).step_seconds)
    closed = (m - 1) * (forward + backward).max() + labels.total[0]
    assert labels.chain[0] <= simulated * (1 + 1e-12)
    assert simulated <= closed * (1 + 1e-12)
