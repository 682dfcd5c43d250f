"""The probability that a plan fits: that its peak of memory stays below the capacity.

    log(peak_i / predicted_i) = b + e_i,    b ~ N(mean, stack^2),    e_i ~ plan t_4

    P(fits) = P(b + e_i <= log(capacity / predicted_i))

b the error that all plans of a stack share. Peaks below 16 bits and of many experts are as far off
as others: 0.8 to 1.3 times as far as the 16-bit ones of four sources with 36 such peaks, and 0.8
and 1.2 times in two with 15 of many experts. Stacks hold more than is counted of them, in the mean
over them: predicted peaks hold that too (Software.uncounted), so that they are as often too low as
too high. A peak is what the allocator holds, slack and context included: a run that needs its slack
back to go on stalls, and does not count as fitting.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ..base.arrays import Value
from ..hardware.software import OF_PEAKS, Software
from ..pipeline.schedules import memory_follows_times
from ..plan.plan import Plan
from ..step.costs import Costs
from ..step.evaluate import simulate
from ..step.memory import PEAK_TOLERANCE, MeasuredPeak, largest_prediction_within
from ..task import Task
from .constants import with_constant_columns
from .learned import ADAPTERS, FITTED_KINDS, FITTED_STACKS, MEMORY, OTHER_STACKS, shipped_records

FITS_PROBABILITY, EDGE_PROBABILITY = 0.95, 0.5
"""Probabilities from which a plan is predicted to fit, and to be at the edge."""
VERDICTS = ("does not fit", "edge", "fits")
PEAK_FIELDS = (
    *("gradient_memory", "optimizer_memory", "bucket_memory", "boundary_buffers", "working_sets"),
    *("context_bytes", "connection_bytes", "allocator_slack", "logit_bytes"),
)
"""Numbers of a stack that peaks of memory teach."""
NODES = np.linspace(-5.0, 5.0, 101)
"""Values of b / stack that are summed over."""
WEIGHTS = np.exp(-0.5 * NODES**2) / np.exp(-0.5 * NODES**2).sum()
DRAWS = 16
"""Sets of constants at which memory that follows from times is predicted."""
LOG_MARGINS = np.linspace(0.0, 3.0, 601)
"""Logs of capacity over prediction among which `share_for_probability` looks."""


@dataclass(frozen=True)
class Spread:
    """How far off predicted peaks are, in log."""

    stack: Value | float
    """Standard deviation of what plans of a stack share; one, or one a row."""
    plan: Value | float
    """Scale of Student's t, 4 degrees of freedom, of what they do not."""
    mean: Value | float = 0.0
    """Of what plans of a stack share, over stacks."""


@dataclass(frozen=True)
class PeakPosterior:
    """What peaks of one stack say of the others."""

    log_bias: float
    """Mean of b: log of peaks over what the simulator says."""
    spread: Spread
    """How far off peaks are then."""
    runs: int
    """How many said it."""
    failed_share: float = math.inf
    """Share of a GPU, bias included, that was predicted of the leanest run that ran out, of those
    that need more than every run that ran."""
    overfull: tuple[MeasuredPeak, ...] = ()
    """Runs that held far more than is predicted of them, bias included."""


def student_cdf(z: Value) -> Value:
    """The distribution function of Student's t with 4 degrees of freedom.

    1/2 + 3/8 u (1 - u^2 / 12),    u = z / sqrt(1 + z^2 / 4)

    Source: Abramowitz and Stegun 1964, equation 26.7.4.
    """
    u = z / np.sqrt(1 + z**2 / 4)
    out: Value = 0.5 + 0.375 * u * (1 - u**2 / 12)
    return out


def probability_within(margin: Value, spread: Spread) -> Value:
    """P(b + e <= margin) [row], margin = log(capacity / predicted)."""
    stack, width = np.asarray(spread.stack)[..., None], np.asarray(spread.plan)[..., None]
    left = np.asarray(margin)[..., None] - np.asarray(spread.mean)[..., None]
    out: Value = student_cdf((left - stack * NODES) / width) @ WEIGHTS
    return out


@cache
def share_for_probability(wanted: float, spread: Spread) -> float:
    """The share of the capacity up to which a plan fits with a probability of at least `wanted`."""
    return float(np.exp(-np.interp(wanted, probability_within(LOG_MARGINS, spread), LOG_MARGINS)))


def has_fitted_peaks(software: Software) -> bool:
    """Whether a number of a stack that decides peaks was fitted to peaks of it, or measured."""
    return any(
        name in software.provenance and software.provenance[name].kind in FITTED_KINDS
        for name in PEAK_FIELDS
    )


def prior_spread(software: Software, adapters: bool = False) -> Spread:
    """How far off the peaks of a stack are, less where it is known, and those of adapters beside
    frozen weights; around what is predicted, which holds their mean."""
    whole = FITTED_STACKS if has_fitted_peaks(software) else OTHER_STACKS
    record = shipped_records()[MEMORY][ADAPTERS if adapters else whole]
    stack = dict(software.spreads).get(OF_PEAKS, record["stack"])
    return Spread(stack, record["plan"], record.get("mean", 0.0) - math.log1p(software.uncounted))


def spread_of(task: Task) -> Spread:
    """The same of a task, less where peaks of its own are known."""
    known: PeakPosterior | None = task.calibration.peaks if task.calibration else None
    return known.spread if known else prior_spread(task.software, task.adapters is not None)


def largest_share(task: Task) -> float:
    """Share of a GPU above which no plan fits, for a run that needed as much ran out."""
    known: PeakPosterior | None = task.calibration.peaks if task.calibration else None
    return PEAK_TOLERANCE * known.failed_share if known else math.inf


def exceeds_failed_run(costs: Costs) -> Any:
    """Whether plans need as much as a run that ran out of memory [row]."""
    out = costs.memory_bytes > largest_share(costs.task) * costs.capacity
    return bool(out) if costs.scalar else out


def probability_fits(costs: Costs) -> Any:
    """Probability that each plan fits [row], of the GPU or, where it is fuller, the host; 0 of
    what needs as much as a run that ran out.

    >>> task = Task(Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=8),
    ...             sequence=2048, global_batch=64)
    >>> costs = evaluate(task, Plan(tp=2, recompute="full"))
    >>> probability_fits(costs) > 0.95
    True
    """
    share = np.maximum(costs.memory_total / costs.capacity, np.atleast_1d(costs.host_share))
    plans = costs.plans.table()
    spread = spread_of(costs.task)
    out = probability_within(-np.log(share), spread)
    (timed,) = np.nonzero(memory_follows_times(plans.schedule))
    if timed.size:
        drawn = _shares_by_times(costs.task, plans.take(timed))
        drawn = np.maximum(drawn, np.broadcast_to(costs.host_share, share.shape)[timed])
        out[timed] = probability_within(-np.log(drawn), spread).mean(axis=0)
    out = out * (1 - np.atleast_1d(exceeds_failed_run(costs)))
    return float(out[0]) if costs.scalar else out


def _shares_by_times(task: Task, plans: Plan) -> Value:
    """Shares of a GPU that plans need [draw, row] where passes take as long as constants drawn from
    what is known of them say: the draws that its step is uncertain by (forecast)."""
    from .forecast import posterior_of

    known, rows = posterior_of(task), plans.rows
    random = np.random.default_rng(0).standard_normal((DRAWS, len(known.names)))
    constants = random @ np.linalg.cholesky(known.covariance).T
    varied = with_constant_columns(task, known.names, constants, np.repeat(np.arange(DRAWS), rows))
    costs = simulate(varied, plans.take(np.tile(np.arange(rows), DRAWS)))
    return (costs.memory_total / costs.capacity).reshape(DRAWS, rows)


def fitting_share(costs: Costs) -> float:
    """The share of the capacity up to which plans like one plan are predicted to fit."""
    return fitting_bytes(costs.task) / costs.capacity


def fitting_bytes(task: Task, probability: float = FITS_PROBABILITY) -> float:
    """Bytes of a GPU up to which plans fit with that probability."""
    share = min(share_for_probability(probability, spread_of(task)), largest_share(task))
    return largest_prediction_within(task, task.cluster.accelerator.memory * share)


def headroom_bytes(task: Task, headroom: float) -> float:
    """Bytes of a GPU that leave a share of it free; less where what needs as much holds more."""
    share = min(1 - headroom, largest_share(task))
    return largest_prediction_within(task, task.cluster.accelerator.memory * share)


def verdict(costs: Costs) -> Any:
    """'fits' from FITS_PROBABILITY, 'edge' from EDGE_PROBABILITY, else 'does not fit' [row]."""
    words = verdict_of(probability_fits(costs))
    return str(words) if costs.scalar else words


def fit_sentence(costs: Costs) -> str:
    """Whether one plan fits, and how likely that is."""
    probability = float(probability_fits(costs.row()))
    told = {"fits": "fits", "edge": "fits, at the edge"}.get(
        str(verdict_of(probability)), VERDICTS[0]
    )
    return f"{told} (probability {format_probability(probability)})"


def format_probability(probability: float) -> str:
    """A probability to a hundredth, rounded down so that 0.95 is one, and never as certain."""
    hundredths = int(100 * probability)
    return {0: "<0.01", 99: ">0.99", 100: ">0.99"}.get(hundredths, f"{hundredths / 100:.2f}")


def verdict_of(fits: Value | float) -> Any:
    """What a probability is called [row]."""
    return np.array(VERDICTS)[
        (np.asarray(fits) >= EDGE_PROBABILITY).astype(int) + (np.asarray(fits) >= FITS_PROBABILITY)
    ]
