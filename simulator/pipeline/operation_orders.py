"""Orders of passes: building blocks of the operation lists of ranks.

Legend: p pipeline ranks, v chunks a rank holds, m micro-batches, r rank from 0, g micro-batches
of a group. A stage is a chunk in model order, so there are p v of them.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Operations = NDArray[np.int64]
"""Rows of (Pass, stage, micro-batch, runs together with the next row)."""


class Pass(IntEnum):
    """What an operation computes for one micro-batch of one stage."""

    FORWARD = 0
    BACKWARD = 1
    """Gradients of inputs and weights together."""
    INPUT = 2
    """The gradient of the inputs alone."""
    WEIGHT = 3
    """The gradient of the weights, which no other stage waits for."""


LETTERS = "FBBW"
"""How timelines call the passes."""
NO_PASSES: Operations = np.empty((0, 4), np.int64)


def passes(kind: Pass, stage: Operations | int, micro: Operations) -> Operations:
    """One pass of every micro-batch, in turn."""
    out = np.zeros((micro.size, 4), np.int64)
    out[:, 0], out[:, 1], out[:, 2] = kind, stage, micro
    return out


def weave(
    forward: Operations, backward: Operations, weight: Operations, ahead: int, lag: int
) -> Operations:
    """`ahead` forward passes, then after each backward pass the weight gradient of the one `lag`
    before it and one more forward pass, while there are any."""
    n, ahead = len(backward), min(ahead, len(forward))
    turns = np.full((n, 3), -1)
    turns[:, 0] = len(forward) + np.arange(n)
    if len(weight) > lag:
        turns[lag:, 1] = len(forward) + n + np.arange(n - lag)
    turns[: len(forward) - ahead, 2] = np.arange(ahead, len(forward))
    tail = len(forward) + n + np.arange(max(n - lag, 0), len(weight))
    index = np.concatenate([np.arange(ahead), turns[turns >= 0], tail])
    out: Operations = np.concatenate([forward, backward, weight])[index]
    return out


def grouped_passes(p: int, v: int, m: int, r: int, g: int) -> tuple[Operations, Operations]:
    """Forward and backward passes of a looped placement: a group through all chunks, then the
    next group."""
    micro = np.concatenate([np.tile(np.arange(i, min(i + g, m)), v) for i in range(0, m, g)])
    sizes = [min(g, m - i) for i in range(0, m, g)]
    turn = np.concatenate([np.repeat(np.arange(v), size) for size in sizes])
    forward = passes(Pass.FORWARD, turn * p + r, micro)
    return forward, passes(Pass.BACKWARD, (v - 1 - turn) * p + r, micro)


class TwoSided:
    """The operations of one rank of a V or of two directions, as they are appended.

    A *side* is 0 for the stage met first on the way down and 1 for the other; the micro-batches of
    a side run in turn.
    """

    def __init__(self, stages: tuple[int, int], first: tuple[int, int]) -> None:
        self.stages, self.first = stages, first
        self.done = {kind: [0, 0] for kind in Pass}
        self.rows: list[tuple[int, int, int, int]] = []
        self.waiting: list[tuple[int, int]] = []

    def add(self, kind: Pass, side: int, paired: int = 0) -> None:
        """The next micro-batch of a side; what its backward pass leaves waits for `weights`."""
        counted = Pass.INPUT if kind == Pass.BACKWARD else kind
        micro = self.first[side] + self.done[counted][side]
        self.done[counted][side] += 1
        self.rows.append((kind, self.stages[side], micro, paired))
        if kind == Pass.INPUT:
            self.waiting.append((self.stages[side], micro))

    def pair(self, forward: int, backward: int) -> None:
        """A forward pass of one side beside a backward pass of the other."""
        self.add(Pass.FORWARD, forward, 1)
        self.add(Pass.BACKWARD, backward)

    def weights(self) -> None:
        """The weight gradient that has waited longest."""
        self.rows.append((Pass.WEIGHT, *self.waiting.pop(0), 0))

    def both_gradients(self, side: int) -> None:
        """The input gradient of a side, then the weight gradient that has waited longest."""
        self.add(Pass.INPUT, side)
        self.weights()

    def array(self, most: int) -> Operations:
        """The rows of the first `most` micro-batches."""
        out = np.array(self.rows, np.int64)
        return out[out[:, 2] < most]
