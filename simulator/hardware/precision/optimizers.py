"""Optimizers, and how many moments of a gradient each keeps for every parameter."""

from __future__ import annotations

from enum import IntEnum


class Optimizer(IntEnum):
    """Codes of optimizers."""

    ADAM = 0
    """Kingma and Ba 2015, algorithm 1; AdamW is the same in time and memory."""
    SGD = 1
    """With momentum."""


MOMENTS = {Optimizer.ADAM: 2, Optimizer.SGD: 1}
"""Moments that an optimizer keeps: the first of those that a recipe gives the bytes of."""
