"""Goodput: the share of a run's time that trains, when jobs fail and restart from checkpoints.

    M = 1 / (n f)                                                   seconds between failures
    tau = sqrt(2 d M) [1 + sqrt(d / 2M) / 3 + (d / 2M) / 9] - d     best interval; M where d >= 2 M
    g = tau / (M exp(R / M) (exp((tau + d) / M) - 1))               share that trains

Legend: n GPUs, f failures a GPU and second, d seconds that a checkpoint stops training, R seconds
from a failure until training goes on, tau seconds of training between checkpoints.
Failures come at random and one stops the whole job; the first term of tau is Young's.
Neglects: planned stops, slow GPUs that do not fail, spare nodes that run out.
Source: Young 1974; Daly 2006, A higher order estimate of the optimum checkpoint interval for
restart dumps, equations 20 and 37.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..base.errors import InputError

DAY = 86400.0
"""Seconds."""
LLAMA_3_FAILURES = 419 / (16384 * 54)
"""Failures a GPU and day: 419 unexpected interruptions in 54 days on 16,384 H100.
Source: Grattafiori et al. 2024 (arXiv:2407.21783), section 3.3.4. OPT-175B had 105 restarts in
60 days on 992 A100, 1.8e-3 (Zhang et al. 2022, arXiv:2205.01068, section 2.5)."""
CHECKPOINT_SECONDS = 10.0
"""Seconds that a checkpoint stops training: copies to the memory of hosts take several.
Source: Jiang et al. 2024, MegaScale (arXiv:2402.15627), section 4.4."""
RESTART_SECONDS = 600.0
"""Seconds from a failure until training goes on: detection and diagnosis took less than 10 minutes
on the mean. Source: MegaScale, section 6.3."""


@dataclass(frozen=True, kw_only=True)
class Reliability:
    """How often a job fails, and what that costs; or a share of time that is stated."""

    failures_per_gpu_day: float = LLAMA_3_FAILURES
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    restart_seconds: float = RESTART_SECONDS
    measured_goodput: float | None = None
    """A goodput that somebody has measured, which replaces the others."""

    def __post_init__(self) -> None:
        if self.measured_goodput is not None and not 0 < self.measured_goodput <= 1:
            raise InputError(
                f"goodput {self.measured_goodput:g} must be above 0 and at most 1, such as 0.9"
            )

    def seconds_between_failures(self, gpus: int) -> float:
        """M: seconds between failures of a job."""
        return DAY / (gpus * self.failures_per_gpu_day)

    def checkpoint_interval(self, gpus: int) -> float:
        """tau: seconds of training between checkpoints that lose least."""
        return best_interval(self.seconds_between_failures(gpus), self.checkpoint_seconds)

    def goodput(self, gpus: int) -> float:
        """g: share of time that trains; 0 where no job lives from one checkpoint to the next."""
        if self.measured_goodput is not None:
            return self.measured_goodput
        between = self.seconds_between_failures(gpus)
        tau = best_interval(between, self.checkpoint_seconds)
        lost = self.restart_seconds / between
        if lost + (tau + self.checkpoint_seconds) / between > MOST_EXPONENT:
            return 0.0
        held = math.expm1((tau + self.checkpoint_seconds) / between)
        return tau / (between * math.exp(lost) * held)


MOST_EXPONENT = 500.0
"""Failures in the time of one checkpoint and restart beyond which nothing is trained."""


def best_interval(between: float, checkpoint: float) -> float:
    """tau of Daly's equation 37, seconds."""
    if checkpoint >= 2 * between:
        return between
    ratio = checkpoint / (2 * between)
    young = math.sqrt(2 * checkpoint * between)
    return young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - checkpoint


@dataclass(frozen=True, kw_only=True)
class Training:
    """How much is trained, and what may limit it."""

    tokens: float
    price: float | None = None
    """USD of a GPU-hour."""
    days: float | None = None
    """The most that training may take: the fewest GPUs are looked for."""
    budget_usd: float | None = None
    """The most that it may cost; without days, the GPUs that are done first."""
    reliability: Reliability | None = None
    """Failures, where they are to be counted."""

    @property
    def sizes_cluster(self) -> bool:
        """Whether the number of GPUs is asked for."""
        return self.days is not None or self.budget_usd is not None
