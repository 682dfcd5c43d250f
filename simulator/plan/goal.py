"""What a training run must reach, where the time to an accuracy is asked."""

from __future__ import annotations

from typing import NamedTuple


class Goal(NamedTuple):
    """What a training run must reach.

    >>> Goal(accuracy=0.1, sequence_noise=1.0)
    Goal(accuracy=0.1, sequence_noise=1.0)
    """

    accuracy: float
    """Mean squared gradient norm e."""
    sequence_noise: float
    """Variance of the gradient of one sequence."""
