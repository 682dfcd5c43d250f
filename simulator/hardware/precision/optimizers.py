"""Optimizers: what each keeps for every parameter, and which matrices it orthogonalises."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...base.arrays import Value


class Optimizer(IntEnum):
    """Codes of optimizers."""

    ADAM = 0
    """Kingma and Ba 2015, algorithm 1; AdamW is the same in time and memory."""
    SGD = 1
    """With momentum."""
    ADAM_8BIT = 2
    """Adam with moments in 8 bits, a 32-bit scale for 256 of them (Dettmers et al. 2022, section
    2)."""
    ADAFACTOR = 3
    """No first moment, and of the second the sums of rows and columns (Shazeer and Stern 2018,
    algorithm 4), which count as nothing."""
    LION = 4
    """A first moment alone (Chen et al. 2023, algorithm 2)."""
    MUON = 5
    """A first moment of the matrices of hidden layers, orthogonalised by Newton-Schulz iterations;
    embedding and head have Adam (Jordan et al. 2024; Liu et al. 2025, arXiv:2502.16982)."""


MOMENTS = {
    Optimizer.ADAM: (0, 1),
    Optimizer.SGD: (0,),
    Optimizer.ADAFACTOR: (),
    Optimizer.LION: (0,),
    Optimizer.MUON: (0,),
}
"""Moments that an optimizer keeps, of those that a recipe gives the bytes of."""
BYTES_OF_8BIT = 2 * (1 + 4 / 256)
"""Of both moments in 8 bits with their scales."""
ITERATIONS = 5
"""Newton-Schulz iterations of Muon."""


def orthogonalisation_flops(rows: Value, columns: Value) -> Value:
    """FLOPs to orthogonalise a matrix of which `rows` is the shorter side.

        5 [ 2 n^2 m  (X X^T) + 2 n^3  (A A) + 2 n^2 m  (B X) ],    n <= m

    Source: Jordan et al. 2024, run time of Muon.
    """
    out: Value = ITERATIONS * (4 * rows * rows * columns + 2 * rows**3)
    return out
