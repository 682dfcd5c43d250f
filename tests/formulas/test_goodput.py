"""Goodput and checkpoints, worked out by hand from Daly 2006."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan3d.simulator.analysis.goodput import LLAMA_3_FAILURES, Reliability, best_interval
from plan3d.simulator.base.errors import InputError

TEN_HOURS = Reliability(
    failures_per_gpu_day=2.4 / 1000, checkpoint_seconds=50, restart_seconds=3600
)


def test_a_thousand_gpus_that_fail_every_ten_hours():
    """M = 36,000 s, d = 50 s: Young 1,897.4; sqrt(d / 2M) = .026352, d / 2M = 6.944e-4."""
    assert TEN_HOURS.seconds_between_failures(1000) == pytest.approx(36_000)
    young = 1897.366596
    tau = young * (1 + 0.02635231 / 3 + 6.94444e-4 / 9) - 50
    assert TEN_HOURS.checkpoint_interval(1000) == pytest.approx(tau, rel=1e-6)
    # exp(R / M) = exp(.1), exp((tau + d) / M) - 1 = exp(.053171...) - 1
    share = tau / (36_000 * math.exp(0.1) * (math.exp((tau + 50) / 36_000) - 1))
    assert TEN_HOURS.goodput(1000) == pytest.approx(share, rel=1e-6)
    assert TEN_HOURS.goodput(1000) == pytest.approx(0.858, abs=0.001)


def test_the_first_order_is_youngs():
    """1 - g = d / tau + tau / 2M + R / M where failures are rare."""
    rare = Reliability(failures_per_gpu_day=1e-6, checkpoint_seconds=20, restart_seconds=600)
    between = rare.seconds_between_failures(1000)
    tau = rare.checkpoint_interval(1000)
    assert tau == pytest.approx(math.sqrt(2 * 20 * between), rel=2e-3)
    lost = 20 / tau + tau / (2 * between) + 600 / between
    assert 1 - rare.goodput(1000) == pytest.approx(lost, rel=2e-3)


def test_a_checkpoint_that_takes_as_long_as_jobs_live():
    """Equation 37: tau = M where d >= 2 M."""
    assert best_interval(100.0, 200.0) == 100.0
    assert best_interval(100.0, 199.999) == pytest.approx(200 * (1 + 1 / 3 + 1 / 9) - 200, rel=1e-4)


def test_llama_3_trained_more_than_nine_tenths_of_the_time():
    """419 interruptions in 54 days on 16,384 GPUs, one in 3.1 hours; 90 % was reported."""
    published = Reliability()
    assert pytest.approx(4.736e-4, rel=1e-3) == LLAMA_3_FAILURES
    assert published.seconds_between_failures(16_384) == pytest.approx(54 * 86400 / 419)
    assert 0.90 < published.goodput(16_384) < 0.92


@given(
    gpus=st.integers(1, 200_000),
    rate=st.floats(1e-7, 1e-1),
    checkpoint=st.floats(0.1, 3600),
    restart=st.floats(0.1, 36_000),
)
def test_the_interval_is_the_best_one(gpus, rate, checkpoint, restart):
    """No share is above 1, more GPUs train no greater share, other intervals no more: within 1 %,
    what equation 37 leaves out where checkpoints are a tenth of the time between failures."""
    mine = Reliability(
        failures_per_gpu_day=rate, checkpoint_seconds=checkpoint, restart_seconds=restart
    )
    share = mine.goodput(gpus)
    assert 0 <= share < 1
    assert mine.goodput(2 * gpus) <= share
    between = mine.seconds_between_failures(gpus)
    if checkpoint < between / 10 and restart < between:
        tau = mine.checkpoint_interval(gpus)
        for other in (0.5 * tau, 2 * tau):
            held = math.exp(restart / between) * math.expm1((other + checkpoint) / between)
            assert other / (between * held) < 1.01 * share


@pytest.mark.parametrize("share", [0.0, -0.1, 1.2, 90.0])
def test_a_stated_goodput_is_a_share(share):
    with pytest.raises(InputError, match=r"above 0 and at most 1, such as 0\.9"):
        Reliability(measured_goodput=share)
    assert Reliability(measured_goodput=0.9).goodput(5) == 0.9
