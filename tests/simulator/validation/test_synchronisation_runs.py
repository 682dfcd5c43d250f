"""Does one fitted network explain published times of synchronisation?"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plan3d.simulator.runs.run_synchronisation import FRAMEWORKS
from plan3d.simulator.validation import synchronisation_runs
from plan3d.simulator.validation.synchronisation_runs import (
    NEIGHBOURS,
    RING,
    Compared,
    FittedNetwork,
    fit_network,
)


@settings(max_examples=20, deadline=None)
@given(st.floats(1e8, 2e9), st.floats(1e-5, 5e-3), st.sampled_from([64, 128, 256]))
def test_a_fit_finds_the_network_that_made_the_times(bandwidth, latency, gpus):
    cluster = FittedNetwork(bandwidth, latency).cluster(gpus)
    made = [synchronisation_runs.sync_seconds(p, 25.5e6, cluster) for p in (RING, NEIGHBOURS)]
    found = fit_network(gpus, 25.5e6, *made)
    assert found == pytest.approx((bandwidth, latency), rel=1e-4)


def test_more_latency_hurts_long_rings_more_than_neighbours():
    slow, quick = FittedNetwork(2e8, 2e-3), FittedNetwork(2e8, 1e-3)

    def gain(policy, gpus):
        times = [
            synchronisation_runs.sync_seconds(policy, 25.5e6, net.cluster(gpus))
            for net in (slow, quick)
        ]
        return times[0] - times[1]

    assert gain(RING, 256) > 3 * gain(RING, 64) > gain(NEIGHBOURS, 64) > 0
    assert gain(NEIGHBOURS, 256) == pytest.approx(gain(NEIGHBOURS, 64))


def test_an_error_is_relative_to_what_was_measured():
    assert Compared("a run", 2.0, 1.5).error == -0.25


def test_rows_of_a_node_give_the_compute_time_and_are_not_scored():
    rows = synchronisation_runs.bluefog(fit_network())
    assert min(run["gpus"] for run, _ in rows) == 16
    assert {run["framework"] for run, _ in rows} == set(FRAMEWORKS)
