"""Convergence: published rates of synchronisation policies, as iterations to an accuracy.

Accuracy e means a mean squared gradient norm of at most e, in units where the loss to go times
the smoothness L (f(x0) - f*) L is 1; v is the variance of one worker's gradient in the same
units. Constants of the bounds are left out, as their sources do, so that iterations compare
ways to synchronise and do not predict a count. Every function broadcasts.
Legend: n workers, tau steps between synchronisations, q steps until a graph repeats, s second
singular value of that many mixing steps, omega and delta of a compressor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..base.arrays import Value
from .compressors import METHODS, Compression, delta, omega


class IterationTerms(NamedTuple):
    """Iterations by cause; a run takes their sum."""

    noise: Value | float
    """Averaging out the noise of gradients: shared by all workers."""
    disagreement: Value | float
    """Workers that are not at one point, or gradients that come later."""
    descent: Value | float
    """What even exact gradients need."""

    @property
    def total(self) -> Value | float:
        return self.noise + self.disagreement + self.descent


@dataclass(frozen=True)
class Rate:
    """A published rate: what it assumes, and where it stands."""

    assumption: str
    source: str

    def __str__(self) -> str:
        return f"{self.assumption} ({self.source})"


PARALLEL_SGD = Rate(
    "iterations from v / (n e^2) + 1 / e: smooth non-convex loss, unbiased gradients of bounded "
    "variance, workers draw from the same data",
    "Ghadimi and Lan 2013; Dekel et al. 2012",
)
COOPERATIVE_SGD = Rate(
    "iterations from v / (n e^2) + sqrt(v ((1 + s^2) / (1 - s^2) tau q - 1)) / e^1.5 + 1 / e: "
    "smooth non-convex loss, bounded variance, workers draw from the same data",
    "Wang and Joshi 2021, Cooperative SGD, theorem 1; Koloskova et al. 2020, theorem 2",
)
ASYNCHRONOUS_SGD = Rate(
    "iterations from v / (n e^2) + (1 + T) / (n e), each of n updates by one worker, T = n of them "
    "between the weights of a gradient and its update: smooth non-convex loss, bounded variance, "
    "workers draw from the same data and are equally fast",
    "Koloskova et al. 2022, Sharper convergence guarantees for asynchronous SGD, theorem 8",
)
_BOUNDED = "gradients bounded by the standard deviation of a worker's noise"
COMPRESSED_SGD = {
    Compression.QSGD: Rate(
        "iterations from (1 + omega) v / (n e^2) + (1 + omega / n) / e: the quantiser's variance "
        "is independent on every worker",
        "Alistarh et al. 2017, lemma 3.1, in the bound of SGD; comparison in Huang et al. 2022",
    ),
    Compression.ONE_BIT: Rate(
        "iterations from v / (n e^2) + sqrt(v) / (delta e^1.5) + 1 / e with delta = 2 / pi of "
        f"Gaussian entries, {_BOUNDED}",
        "Seide et al. 2014; Karimireddy et al. 2019; comparison in Huang et al. 2022",
    ),
    Compression.MEM_SGD: Rate(
        f"iterations from v / (n e^2) + sqrt(v) / (delta e^1.5) + 1 / e, {_BOUNDED}",
        "Stich et al. 2018; comparison in Huang et al. 2022",
    ),
    Compression.DOUBLE_SQUEEZE: Rate(
        f"iterations from v / (n e^2) + sqrt(v) / (delta^2 e^1.5) + 1 / e, {_BOUNDED}",
        "Tang et al. 2019; comparison in Huang et al. 2022",
    ),
    Compression.EF21_SGD: Rate(
        "iterations from v / (delta^3 e^2) + 1 / (delta e): no gain from more workers is proven",
        "Fatkhullin et al. 2021; comparison in Huang et al. 2022",
    ),
    Compression.NEOLITHIC: Rate(
        "iterations from v / (n e^2) + 1 / (delta e) up to logarithms, delta of two rounds",
        "Huang et al. 2022 (NEOLITHIC), main theorem",
    ),
}
"""What the rate of each method rests on."""


def parallel_sgd(
    workers: Value | float, variance: Value | float, accuracy: float
) -> IterationTerms:
    """Iterations of parallel SGD: v / (n e^2) is the noise term, n times less for n workers.

    Source: Ghadimi and Lan 2013; Dekel et al. 2012 (PARALLEL_SGD).
    """
    noise = variance / (workers * accuracy**2)
    return IterationTerms(noise, 0.0 * noise, 1 / accuracy)


def asynchronous_sgd(
    workers: Value | float, variance: Value | float, accuracy: float
) -> IterationTerms:
    """Iterations of n updates each, where weights are n updates old: one of every worker.

        (v / e^2 + (1 + T) / e) / n,    T = n

    Source: Koloskova et al. 2022 (ASYNCHRONOUS_SGD).
    """
    exact = parallel_sgd(workers, variance, accuracy)
    old = gradient_delay(workers) / (workers * accuracy)
    return exact._replace(disagreement=old, descent=1 / (workers * accuracy))


def gradient_delay(workers: Value | float) -> Value | float:
    """Updates between the weights that a gradient was computed with and its own: one of every
    worker that is as fast, its own last one too, since it fetches while it computes."""
    return workers


def cooperative_sgd(
    workers: Value | float,
    variance: Value | float,
    accuracy: float,
    tau: Value | float,
    second: Value | float,
) -> IterationTerms:
    """Iterations when workers average every tau steps over a graph with second singular value s.

        extra = sqrt(v ((1 + s^2) / (1 - s^2) tau - 1)) / e^1.5

    tau = 1 and s = 0 is parallel SGD; s = 0 local SGD; tau = 1 decentralised SGD. A graph that
    changes with period q counts as one that averages every tau q steps.
    Source: Wang and Joshi 2021, theorem 1; Koloskova et al. 2020, theorem 2 (COOPERATIVE_SGD).
    """
    spread = (1 + second**2) / (1 - second**2) * tau - 1
    exact = parallel_sgd(workers, variance, accuracy)
    return exact._replace(disagreement=np.sqrt(variance * spread) / accuracy**1.5)


def compressed_sgd(
    method: Compression,
    workers: Value | float,
    variance: Value | float,
    accuracy: float,
    levels: int = 0,
    kept_per_thousand: int = 0,
) -> IterationTerms:
    """Iterations of one of COMPRESSED_SGD; the rates are stated there."""
    exact = parallel_sgd(workers, variance, accuracy)
    if method is Compression.QSGD:
        w = omega(levels)
        return IterationTerms(
            (1 + w) * exact.noise, exact.disagreement, (1 + w / workers) / accuracy
        )
    d = delta(METHODS[method], kept_per_thousand)
    if method is Compression.EF21_SGD:
        noise = exact.noise * workers / d**3
        return IterationTerms(noise, exact.disagreement, 1 / (d * accuracy))
    if method is Compression.NEOLITHIC:
        return exact._replace(descent=1 / (d * accuracy))
    power = 2 if method is Compression.DOUBLE_SQUEEZE else 1
    return exact._replace(disagreement=np.sqrt(variance) / (d**power * accuracy**1.5))
