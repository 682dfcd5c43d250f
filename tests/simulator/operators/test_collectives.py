"""The terms of a collective inside a fast domain, one by one."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan3d.simulator.hardware.cluster import Cluster, CollectiveTime
from plan3d.simulator.operators import collectives

NODE = Cluster.profile("h100-sxm", nodes=1)
TIME = CollectiveTime(latency=7e-6, latency_per_step=1e-6, root=5e-9, bandwidth=4e11)
RINGS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
sizes = st.floats(1.0, 1e11)
ranks = st.integers(2, 8)


def took(operation, size, n, time):
    """Seconds in a domain whose collective has these constants."""
    changes = {operation: time, "switch_all_reduce": None}
    cluster = replace(NODE, fast_domain=replace(NODE.fast_domain, **changes))
    group = collectives.place_group(np.array([float(n)]), 1.0, cluster)
    return float(getattr(collectives, operation)(np.array([size]), group, cluster)[0])


@given(operation=st.sampled_from(sorted(RINGS)), size=sizes, n=ranks)
def test_a_ring_copies_the_share_that_it_keeps(operation, size, n):
    plain = took(operation, size, n, TIME)
    steps, sent = RINGS[operation] * (n - 1), RINGS[operation] * (n - 1) / n * size
    root = TIME.root * math.sqrt(sent)
    assert plain == pytest.approx(7e-6 + steps * 1e-6 + root + sent / 4e11)
    kept = took(operation, size, n, replace(TIME, own_bandwidth=8e11))
    assert kept - plain == pytest.approx(size / n / 8e11, rel=1e-6, abs=1e-15)


@given(size=sizes, n=ranks)
def test_starting_the_sends_of_an_all_to_all_overlaps_with_their_bytes(size, n):
    start, sent = 7e-6 + (n - 1) * 1e-6, (n - 1) / n * size
    moved = TIME.root * math.sqrt(sent) + sent / 4e11
    seconds = took("all_to_all", size, n, TIME)
    assert max(start, moved) <= seconds <= start + moved
    # The root term stops growing at root_bytes: no more than root sqrt(root_bytes) is left of it.
    level = took("all_to_all", size, n, replace(TIME, root_bytes=1e6))
    assert level <= seconds
    assert level <= math.hypot(start, TIME.root * 1e3 + sent / 4e11) * (1 + 1e-12)
