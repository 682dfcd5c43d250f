"""Posterior and prior of constants against values worked out by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from plan3d.simulator.base.arrays import Value
from plan3d.simulator.uncertainty.posterior import (
    LONGEST_STALL,
    SPREAD_SHARE,
    Modes,
    Prior,
    TimedRows,
    _log_row,
    _log_t,
    modes,
    prior_as_posterior,
    side_by_side,
    solve,
    solve_units,
    squared_errors,
    stall_probability,
)
from plan3d.simulator.uncertainty.predictive import (
    further_variance,
    half_width,
    student_quantile,
)
from plan3d.simulator.uncertainty.prior import (
    START_STALLS,
    UnitKind,
    fit_prior,
    fit_scatter,
    fit_unit_freedom,
)
from plan3d.simulator.uncertainty.response import TabulatedResponse


@dataclass(frozen=True)
class Straight:
    """A response that is a straight line: f(d) = slopes d."""

    slopes: Value

    def steps(self, d: Value) -> Value:
        return d @ self.slopes.T

    def linearised(self, d: Value) -> tuple[Value, Value]:
        return self.steps(d), self.slopes + np.zeros((*d.shape[:-1], 1, 1))

    def tabulate(self, spreads: Value) -> TabulatedResponse:
        """Exact, as it is straight."""
        nodes = np.array([-10.0, 10.0]) * np.ones((self.slopes.shape[1], 1))
        return TabulatedResponse(
            np.zeros(len(self.slopes)), nodes[..., None] * self.slopes.T[:, None], nodes
        )


def rows(measured, slopes, scale=1.0):
    measured = np.array(measured, float)
    return TimedRows(measured, Straight(np.array(slopes, float)), np.full(measured.size, scale))


def tabled(measured, slopes, scale=1.0):
    some = rows(measured, slopes, scale)
    return TimedRows(some.log_seconds, some.response.tabulate(np.ones(2)), some.scale)


def mode(prior, some, rounds=60, alike=False):
    """The posterior of one unit near the prior's mean."""
    return modes(prior, some, prior.mean[None], rounds, alike).posterior(0)


def one(spread=0.1, sigma=0.05, freedom=1e9):
    """A prior of the common factor; with so much freedom errors are normal."""
    return Prior(("common",), np.zeros(1), np.array([[spread**2]]), sigma, freedom)


def test_a_step_moves_the_common_factor_by_its_share_of_what_is_known():
    """Normal prior N(0, .1^2), a step 12 % slower with an error of .05:
    mean .12 (1/.05^2) / (1/.05^2 + 1/.1^2) = .12 x 400 / 500, variance 1/500."""
    found = mode(one(), rows([0.12], [[1.0]]), rounds=60)
    assert found.mean == pytest.approx([0.12 * 400 / 500], rel=1e-6)
    assert found.covariance == pytest.approx(np.array([[1 / 500]]), rel=1e-6)


def test_three_steps_weigh_three_times():
    """3 x 400 of 1,300."""
    found = mode(one(), rows([0.1, 0.12, 0.14], [[1.0]] * 3), rounds=60)
    assert found.mean == pytest.approx([0.12 * 1200 / 1300], rel=1e-6)


def test_a_wider_error_weighs_less():
    """Twice the error: 100 of 200."""
    found = mode(one(), rows([0.12], [[1.0]], scale=2.0), rounds=60)
    assert found.mean == pytest.approx([0.06], rel=1e-6)


def test_a_step_that_contradicts_the_others_is_named_by_its_weight():
    found = mode(one(freedom=4.0), rows([0.1] * 6 + [1.5], [[1.0]] * 7), rounds=40)
    assert found.weights[:6].min() > 0.9
    assert found.weights[6] < 0.02
    assert found.mean[0] == pytest.approx(0.1, abs=0.01)


def test_two_constants_are_told_apart_by_rows_that_differ():
    """Rows of the one, of the other and of both: y = d with little error."""
    prior = Prior(("gemm", "floor"), np.zeros(2), np.eye(2), 0.001, 1e9)
    found = mode(prior, rows([0.3, -0.2, 0.05], [[1, 0], [0, 1], [0.5, 0.5]]), rounds=60)
    assert found.mean == pytest.approx([0.3, -0.2], abs=1e-5)


def test_rows_that_contradict_each_other_have_a_wider_spread():
    """Two rows at +x and -x of a constant that is known: r^2 = x^2, w = 5 / (4 + x^2 / sigma_u^2),
    sigma_u^2 = (2 sigma^2 + 2 w x^2) / 4. For x = 6 sigma and q = (sigma_u / sigma)^2 that is
    2 q^2 - 28 q - 9 = 0: q = 14.314, w = 0.7675. Rows that agree: q = 2 / 4."""
    prior = Prior(("common",), np.zeros(1), np.array([[1e-12]]), 0.05, 4.0)
    found = mode(prior, rows([0.3, -0.3], [[1.0], [1.0]]), rounds=200)
    assert found.mean == pytest.approx([0.0], abs=1e-9)
    assert found.sigma == pytest.approx(0.05 * 14.314**0.5, rel=1e-3)
    assert found.weights == pytest.approx([0.7675] * 2, rel=1e-3)
    agreeing = mode(prior, rows([0.0, 0.0], [[1.0], [1.0]]), rounds=200)
    assert agreeing.sigma == pytest.approx(0.05 * (2 / 4) ** 0.5, rel=1e-3)
    alike = mode(prior, rows([0.3, -0.3], [[1.0], [1.0]]), alike=True)
    assert alike.sigma == 0.05


def test_rows_that_contradict_each_other_say_less_of_constants():
    prior = Prior(("common", "floor"), np.zeros(2), np.diag([0.01, 0.25]), 0.05, 4.0)
    some = rows([0.9, -0.2, 0.4], [[1.0, 0.9], [1.0, 0.1], [1.0, 0.2]])
    own, common = mode(prior, some), mode(prior, some, alike=True)
    assert np.diag(own.covariance).sum() > 1.5 * np.diag(common.covariance).sum()


def test_nothing_known_is_the_prior():
    known = prior_as_posterior(one())
    assert known.mean == one().mean
    assert known.covariance == one().covariance


def test_means_are_learned_where_constants_may_be_off():
    """Units whose matrix products take exp(.2) as long, which nothing but gemm explains."""
    random = np.random.default_rng(1)
    names = ("common", "gemm")
    units = [tabled(0.2 + 0.01 * random.standard_normal(8), [[0.0, 1.0]] * 8) for _ in range(30)]
    learned = fit_prior(names, units)
    assert learned.mean[0] == pytest.approx(0, abs=1e-3)
    assert learned.mean[1] == pytest.approx(0.2, abs=0.01)
    assert fit_prior(names, units, off=False).mean == pytest.approx([0, 0], abs=1e-3)
    assert learned.covariance[1, 1] < 0.1**2


def test_no_units_leave_the_spreads():
    assert fit_prior(("common", "floor"), []).covariance == pytest.approx(np.diag([0.1**2, 0.5**2]))


def test_half_width_adds_constants_and_rows_in_squares():
    """Normal 90th percentile 1.2816; Student's t with 4 degrees of freedom 1.5332."""
    prior = one(freedom=4.0)
    width = half_width(prior_as_posterior(prior), np.array([[1.0], [0.0]]), 1.0, 0.8)
    assert width == pytest.approx([np.hypot(1.2816 * 0.1, 1.5332 * 0.05), 1.5332 * 0.05], rel=1e-4)


def test_rows_of_stacks_that_scatter_are_as_wide_as_with_a_prior_of_f_sigma():
    """f = 3 of sigma 0.05: 1.5332 x 0.15. After two steps half of the prior's share is left, of
    k = 2 degrees: v = 8 x 0.05^2 x 2 / 4 = 0.01. Of other stacks none."""
    prior = replace(one(freedom=4.0), scatter=3.0)
    known, flat = prior_as_posterior(prior), np.array([[0.0]])
    wide = half_width(known, flat, 1.0, 0.8, further_variance(prior, scatters=True, steps=0))
    assert wide == pytest.approx(1.5332 * 0.15, rel=1e-4)
    assert further_variance(prior, scatters=True, steps=2) == pytest.approx(0.01)
    assert further_variance(prior, scatters=False, steps=2) == 0


def test_how_far_rows_scatter_is_learned_from_what_intervals_held():
    """Rows at the quantiles of Student's t, of 4 sigma; of one unit nothing is told."""
    shares = (np.arange(20) + 0.5) / 20
    far = np.array([student_quantile(p, 4.0) for p in np.maximum(shares, 1 - shares)])
    errors = 4 * 0.05 * np.sign(shares - 0.5) * far
    unit = (one(spread=1e-6, freedom=4.0), rows(errors.tolist(), [[1.0]] * 20))
    assert fit_scatter([unit] * 2) == 4.0
    assert fit_scatter([unit]) == 1.0


@pytest.mark.parametrize(
    ("p", "freedom", "t"),
    [(0.75, 4, 0.7407), (0.9, 4, 1.5332), (0.975, 4, 2.7764), (0.9, 1, 3.0777), (0.9, 30, 1.3104)],
)
def test_quantiles_of_students_t(p, freedom, t):
    """Tables of the t distribution."""
    assert student_quantile(p, freedom) == pytest.approx(t, abs=1e-4)


def test_constants_of_units_have_the_tails_that_units_had():
    """Variance 0.01 of Student's t with 3 degrees of freedom: 0.1 x 1.6377 / sqrt(3)."""
    prior = replace(one(sigma=1e-6), unit_freedom=3.0)
    known, slopes = prior_as_posterior(prior), np.array([[1.0]])
    assert half_width(known, slopes, 1.0, 0.8) == pytest.approx(0.1 * 1.6377 / 3**0.5, rel=1e-4)
    # Two rows of the unit are two degrees more.
    assert mode(prior, rows([0.0, 0.0], [[1.0], [1.0]])).unit_freedom == 5.0


def test_tails_of_units_are_learned_from_what_intervals_held():
    """Twenty units at the quantiles of a distribution of spread 0.1."""
    shares = (np.arange(20) + 0.5) / 20
    upper = np.maximum(shares, 1 - shares)
    for freedom in (3.0, np.inf):
        scale = 0.1 if np.isinf(freedom) else 0.1 / 3**0.5
        far = scale * np.array([student_quantile(p, freedom) for p in upper])
        units = [(one(sigma=1e-4), rows([x], [[1.0]])) for x in np.sign(shares - 0.5) * far]
        learned = fit_unit_freedom(units)
        assert learned < 4 if freedom == 3 else learned > 6


@dataclass(frozen=True)
class Bent:
    """log of a part that a constant multiplies and of one that it does not, in seconds."""

    moved: float
    fixed: float

    def steps(self, d: Value) -> Value:
        return np.log(self.moved * np.exp(d[..., :1]) + self.fixed)

    def linearised(self, d: Value) -> tuple[Value, Value]:
        values = self.steps(d)
        return values, (self.moved * np.exp(d) / np.exp(values))[..., None]


def test_a_small_part_that_explains_a_large_step_is_found():
    """One hundredth of a step is of the constant and the step takes six seconds: with little error
    and much spread .01 e^d + .99 = 6, d = log 501. A whole first step would go to log 6 / .01."""
    prior = Prior(("common",), np.zeros(1), np.array([[4.0]]), 1e-4, 1e9)
    found = mode(prior, TimedRows(np.log([6.0]), Bent(0.01, 0.99), np.ones(1)), alike=True)
    assert found.mean == pytest.approx([np.log(501)], rel=1e-3)


def test_a_stalled_row_is_told_from_a_slow_stack():
    """Six rows at 0 and one four times as long, with little spread: the seventh stalled, and moves
    neither the constant nor the spread of the unit. q / log 10 against the density of t."""
    prior = Prior(("common",), np.zeros(1), np.array([[0.01]]), 0.05, 4.0, stalls=0.05)
    found = mode(prior, rows([0.0] * 6 + [np.log(4)], [[1.0]] * 7))
    assert found.weights[6] < 1e-3
    assert abs(found.mean[0]) < 1e-3
    assert found.sigma < 0.05
    z = 2.0
    t = 0.375 * (1 + z**2 / 4) ** -2.5 / 0.05  # density of t with 4 degrees: 3/8 at 0
    share = (0.05 / LONGEST_STALL) / (0.05 / LONGEST_STALL + 0.95 * t)
    of = stall_probability(prior, np.array([0.1, -0.1, 3.0]), np.full(3, 0.05))
    assert of == pytest.approx([share, 0.0, 0.0])


def test_units_side_by_side_are_each_of_them_alone():
    """Of one, three and two rows; what is filled up counts for nothing."""
    prior = Prior(("common", "gemm"), np.zeros(2), np.diag([0.01, 0.04]), 0.05, 4.0, stalls=0.02)
    each = [
        tabled([0.3], [[1.0, 0.5]]),
        tabled([0.1, 0.9, 0.1], [[1.0, 0.5], [1.0, 0.2], [1.0, 0.9]]),
        tabled([-0.2, -0.3], [[1.0, 0.1], [1.0, 0.8]], scale=2.0),
    ]
    together = solve_units(prior, side_by_side(each))
    for at, unit in enumerate(each):
        alone, found = solve(prior, unit), together.posterior(at)
        assert found.mean == pytest.approx(alone.mean, abs=1e-4)
        assert found.covariance == pytest.approx(alone.covariance, rel=1e-2)
        assert found.sigma == pytest.approx(alone.sigma, rel=1e-3)
        assert found.weights == pytest.approx(alone.weights, abs=1e-3)


def test_stalls_are_learned():
    """One of ten rows of each unit takes three times as long: more than are expected of none."""
    random = np.random.default_rng(2)
    noise = 0.02 * random.standard_normal((20, 10))
    noise[:, 3] += np.log(3)
    some = [tabled(row, [[1.0, 0.5]] * 10) for row in noise]
    learned = fit_prior(("common", "gemm"), some).stalls
    assert learned == pytest.approx((10 * START_STALLS + 20 / 10) / 30, rel=0.05)


def test_constants_of_strange_units_spread_wider():
    """Units one part of which nobody showed lie twice as far, four times in squares: b is 3."""
    slopes = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    corners = [0.1 * np.array([x, y]) for x in (-1, 1) for y in (-1, 1)]
    new = [0, 1] * 20
    units = [tabled(slopes @ ((1 + n) * corners[k // 2 % 4]), slopes) for k, n in enumerate(new)]
    learned = fit_prior(("common", "gemm"), units, kinds=[UnitKind(n) for n in new])
    assert learned.novelty == pytest.approx(3, abs=0.2)
    assert learned.spread == pytest.approx([0.1, 0.1], rel=0.05)
    assert fit_prior(("common", "gemm"), units).novelty == 0
    twice = learned.of_unit(2)
    assert twice.covariance == pytest.approx((1 + 2 * learned.novelty) * learned.covariance)


def test_what_a_stack_counted_is_not_off_as_that_of_others_is():
    """Ten units want twice the floor of their stacks, ten more their own: the mean of the first is
    theirs alone."""
    rows = [tabled(np.full(4, y), [[1.0]] * 4) for y in [math.log(2)] * 10 + [0.0] * 10]
    kinds = [UnitKind()] * 10 + [UnitKind(own=("floor",))] * 10
    together, apart = (fit_prior(("floor",), rows, kinds=of) for of in (None, kinds))
    assert together.mean[0] < 0.4 < apart.mean[0] == pytest.approx(math.log(2), rel=0.1)
    assert apart.of_unit(0, ("floor",)).mean[0] == 0
    assert apart.spread[0] < together.spread[0]


# Densities, and where else a mode is looked for


def density(prior, some, mean, sigma, weights=1.0):
    """What `modes` would have found there."""
    size = some.log_seconds.size
    return Modes(
        prior,
        some,
        np.array([mean], float),
        prior.covariance[None],
        np.full((1, size), weights),
        np.array([sigma]),
    )


@pytest.mark.parametrize(("stalls", "share"), [(0.0, 1.0), (0.05, 0.95)])
def test_a_density_is_that_of_constants_rows_and_their_spread(stalls, share):
    """Half of d^2 / spread^2, Student's t of each row, 3/8 (1 + z^2 / 4)^-2.5 / sigma, and of sigma
    the inverse chi-squared of k = 2 rows: k (r^2 / 2 - log r), r = sigma_prior / sigma. A row may
    have stalled instead, by up to log 10."""
    prior = Prior(("common",), np.array([0.05]), np.array([[0.01]]), 0.05, 4.0, stalls)
    some = rows([0.1, 0.4], [[1.0], [0.5]])
    found = []
    for mean, sigma in ((0.05, 0.05), (0.2, 0.1)):
        constants = 0.5 * ((mean - 0.05) / 0.1) ** 2
        errors = 0.0
        for y, slope in ((0.1, 1.0), (0.4, 0.5)):
            left = y - slope * mean
            t = 0.375 * (1 + (left / sigma) ** 2 / 4) ** -2.5 / sigma
            stalled = stalls / math.log(10) * (0 < left < math.log(10))
            errors -= math.log(share * t + stalled)
        ratio = 0.05 / sigma
        expected = constants + errors + 2 * (ratio**2 / 2 - math.log(ratio))
        here = density(prior, some, [mean], sigma).negative_log_density.item()
        found.append((here, expected))
    # Up to a constant.
    assert found[1][0] - found[0][0] == pytest.approx(found[1][1] - found[0][1])


@pytest.mark.parametrize(
    ("mean", "sigma", "weight", "unusual"),
    [
        (0.0, 0.05, 1.0, False),
        # Two spreads of a constant of 0.1 and of the rows of 0.05.
        (0.19, 0.05, 1.0, False),
        (-0.21, 0.05, 1.0, True),
        (0.0, 0.099, 1.0, False),
        (0.0, 0.101, 1.0, True),
        (0.0, 0.05, 0.31, False),
        (0.0, 0.05, 0.29, True),
    ],
)
def test_modes_that_are_far_wide_or_odd_are_looked_for_elsewhere(mean, sigma, weight, unusual):
    prior = Prior(("common",), np.zeros(1), np.array([[0.01]]), 0.05, 4.0)
    found = density(prior, rows([0.0, 0.0], [[1.0], [1.0]]), [mean], sigma, weight)
    assert found.is_unusual.tolist() == [unusual]


@pytest.mark.parametrize(
    ("timed", "scatters", "further"),
    [
        (0, False, 0.0),
        (0, True, 3 * 0.05**2),
        (2, True, 3 * 0.05**2 / 2),
        (6, True, 3 * 0.05**2 / 4),
    ],
)
def test_what_scattered_steps_have_besides_shrinks_with_those_that_are_timed(
    timed, scatters, further
):
    """(f^2 - 1) sigma^2 k / (k + n), f = 2 and k = 2 rows of four degrees of freedom."""
    prior = replace(one(freedom=4.0), scatter=2.0)
    assert further_variance(prior, scatters, timed) == pytest.approx(further)


def test_a_unit_of_new_parts_has_wider_constants_around_its_own():
    """b = 0.5 of the covariance for each of two parts; what a stack counted is not off."""
    prior = Prior(
        ("common", "gemm"), np.array([0.1, 0.2]), np.diag([0.01, 0.04]), 0.05, novelty=0.5
    )
    found = prior.of_unit(2, ("gemm",))
    assert found.mean.tolist() == [0.1, 0.0]
    assert found.covariance == pytest.approx(2 * np.diag([0.01, 0.04]))
    assert prior.of_unit(0).covariance == pytest.approx(prior.covariance)
    assert prior.spread == pytest.approx([0.1, 0.2])


def test_a_table_is_straight_between_its_nodes_and_beyond_them():
    """Gains of 2 and 3 at nodes of -1, 0 and 2: slopes of 2 and 1.5, which go on."""
    gains = np.array([[[-2.0], [0.0], [3.0]], [[-1.0], [0.0], [4.0]]])
    table = TabulatedResponse(np.array([0.5]), gains, np.array([[-1.0, 0.0, 2.0]] * 2))
    for d, steps, slopes in (
        ([-0.5, 1.0], 0.5 - 1.0 + 2.0, [2.0, 2.0]),
        ([1.0, -0.5], 0.5 + 1.5 - 0.5, [1.5, 1.0]),
        ([4.0, -3.0], 0.5 + 6.0 - 3.0, [1.5, 1.0]),
    ):
        found = table.linearised(np.array(d))
        assert found[0].tolist() == [steps]
        assert found[1].tolist() == [slopes]
    two = replace(table, start=np.array([[0.5], [1.5]]), gains=np.array([gains, 2 * gains]))
    found = two.linearised(np.array([[-0.5, 1.0], [1.0, -0.5]]))
    assert found[0].tolist() == [[1.5], [1.5 + 2 * 1.0]]
    assert found[1].tolist() == [[[2.0, 2.0]], [[3.0, 2.0]]]


@pytest.mark.parametrize(("freedom", "scale"), [(4.0, 0.1), (7.0, 0.3), (1e7, 0.2)])
def test_densities_of_rows_are_densities(freedom, scale):
    """Those of rows that did not stall have their share, 7 in 10; with stalls, up to ten times as
    long, all of it."""
    prior = Prior(("a",), np.zeros(1), np.eye(1), 0.1, freedom=freedom, stalls=0.3)
    most = 40.0 if freedom < 10 else 30 * scale
    left = np.linspace(-most, most, 800_001)
    whole = np.exp(_log_t(prior, left, np.array(scale)))
    assert np.trapezoid(whole, left) == pytest.approx(0.7, abs=2e-4)
    assert np.trapezoid(np.exp(_log_row(prior, left, np.array(scale))), left) == pytest.approx(
        1, abs=2e-4
    )
    np.testing.assert_allclose(whole, whole[::-1], rtol=1e-6)
    chance = stall_probability(prior, np.array([-0.5, 0.5, LONGEST_STALL + 0.1]), np.array(scale))
    assert (chance[0], chance[2]) == (0, 0)
    ordinary = float(np.exp(_log_t(prior, np.array(0.5), np.array(scale))))
    assert chance[1] == pytest.approx(1 - ordinary / (ordinary + 0.3 / math.log(10)))


def modes_at(mean=(0.0, 0.0), weights=(1.0, 1.0), sigma=0.1, **of_rows):
    prior = Prior(("a", "b"), np.zeros(2), np.diag([0.01, 0.04]), 0.1)
    own = rows([0.0, 0.0], np.eye(2), **of_rows)
    return Modes(prior, own, np.array([mean]), np.zeros((1, 2, 2)), np.array([weights]),
                 np.array([sigma]))  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "unusual"),
    [
        ({}, False),
        # Two spreads of 0.1 and of 0.2, to either side.
        ({"mean": (0.199, -0.399)}, False),
        ({"mean": (0.201, 0.0)}, True),
        ({"mean": (0.0, -0.401)}, True),
        ({"weights": (1.0, 0.31)}, False),
        ({"weights": (1.0, 0.29)}, True),
        ({"weights": (1.0, 0.29), "scale": np.array([1.0, np.inf])}, False),
        ({"sigma": 0.199}, False),
        ({"sigma": 0.201}, True),
    ],
)
def test_modes_are_unusual_from_two_spreads(changes, unusual):
    assert modes_at(**changes).is_unusual.tolist() == [unusual]


def test_log_densities_of_modes_by_hand():
    """Constants two and one spreads off, half of 4 + 1; rows that are met; a spread of rows that is
    twice the prior's, k (1/4 / 2 + log 2)."""
    here, far = modes_at(), modes_at(mean=(0.2, 0.2))
    moved = far.negative_log_density - replace(here, rows=replace(
        here.rows, log_seconds=np.array([-0.2, -0.2]))).negative_log_density  # fmt: skip
    assert moved == pytest.approx(2.5)
    wide = modes_at(sigma=0.2).negative_log_density - here.negative_log_density
    k = SPREAD_SHARE * here.prior.freedom
    assert wide == pytest.approx(2 * math.log(2) + k * (1 / 8 - 1 / 2 + math.log(2)))


def test_squares_have_the_error_of_the_constants():
    """A row 0.3 off with slopes 1 and 2 at constants of variance 0.01 and 0.04: 0.09 + 0.17."""
    found = squared_errors(np.array([0.3]), np.array([[1.0, 2.0]]), np.diag([0.01, 0.04]))
    assert found == pytest.approx([0.26])
