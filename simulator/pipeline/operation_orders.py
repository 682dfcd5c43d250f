"""In which order does a pipeline rank run its passes? One list of operations for each rank.

Legend: p pipeline ranks, v chunks a rank holds, m micro-batches, r rank from 0, g micro-batches
of a group. A stage is a chunk in model order, so there are p v of them.
Source: Huang et al. 2019; Narayanan et al. 2021; Lamy-Poirier 2023; Qi et al. 2024 (zero bubble,
and controllable memory for the V); DeepSeek-AI 2024, section 3.2.1, and the DualPipe repository.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from .schedule_names import Schedule, schedule_name
from .stage_placement import LOOPED, V_SHAPED

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
DEFERRED = {Schedule.ZB_H1: 1, Schedule.ZB_H2: 2, Schedule.ZB_H2_SYNC: 2}
"""Weight gradients that rank r holds back, over r."""


def orders(
    schedule: int, p: int, v: int, m: int, group: int = 0, deferred: int = 0
) -> list[Operations]:
    """The operations of every rank.

    `group` is the number of micro-batches a rank runs through one chunk before it turns to the
    next (interleaved; 0 is p). `deferred` is how many weight gradients rank r holds back, over r
    (ZB-H1 and ZB-H2; 0 is DEFERRED).
    """
    check_shape(schedule, p, v, m)
    make = _ORDERS[Schedule(schedule)]
    if schedule in DEFERRED:
        return [make(p, v, m, r, deferred or DEFERRED[Schedule(schedule)]) for r in range(p)]
    return [make(p, v, m, r, group or p) for r in range(p)]


def check_shape(schedule: int, p: int, v: int, m: int) -> None:
    """Raise InputError when a schedule cannot have these sizes, naming the nearest it can."""
    for name, size in (("pp", p), ("virtual_stages", v), ("micro-batches", m)):
        if size < 1:
            raise InputError(f"{size} {name}: a pipeline needs at least 1")
    name = schedule_name(schedule)
    chunks = 2 if schedule in V_SHAPED else max(v, 1) if schedule in LOOPED else 1
    if v != chunks:
        raise InputError(f"the {name} schedule needs virtual_stages={chunks}, not {v}")
    if schedule == Schedule.DUALPIPE and p % 2:
        near = ", ".join(str(n) for n in (p - 1, p + 1) if n)
        raise InputError(f"the {name} schedule needs an even pp, not {p}; nearest: {near}")
    if schedule not in (Schedule.DUALPIPE, Schedule.DUALPIPE_V):
        return
    odd = schedule == Schedule.DUALPIPE and m % 2
    if m < 2 * p or odd:
        least = max(2 * p, m + m % 2)
        raise InputError(
            f"the {name} schedule needs {'an even number of ' if odd else ''}at least 2 pp = "
            f"{2 * p} micro-batches, not {m}; nearest: {least}"
        )


def _passes(kind: Pass, stage: Operations | int, micro: Operations) -> Operations:
    out = np.zeros((micro.size, 4), np.int64)
    out[:, 0], out[:, 1], out[:, 2] = kind, stage, micro
    return out


def _weave(
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


_NONE = np.empty((0, 4), np.int64)


def _one_f_one_b(p: int, v: int, m: int, r: int, g: int) -> Operations:
    micro = np.arange(m)
    forward, backward = _passes(Pass.FORWARD, r, micro), _passes(Pass.BACKWARD, r, micro)
    return _weave(forward, backward, _NONE, p - r, 0)


def _gpipe(p: int, v: int, m: int, r: int, g: int) -> Operations:
    micro = np.arange(m)
    backward = _passes(Pass.BACKWARD, r, micro[::-1])
    return _weave(_passes(Pass.FORWARD, r, micro), backward, _NONE, m, 0)


def _naive(p: int, v: int, m: int, r: int, g: int) -> Operations:
    micro = np.arange(m)
    backward = _passes(Pass.BACKWARD, r, micro)
    return _weave(_passes(Pass.FORWARD, r, micro), backward, _NONE, 1, 0)


def _turns(p: int, v: int, m: int, r: int, g: int) -> tuple[Operations, Operations]:
    """Forward and backward passes of a looped placement: a group through all chunks, then the
    next group."""
    micro = np.concatenate([np.tile(np.arange(i, min(i + g, m)), v) for i in range(0, m, g)])
    sizes = [min(g, m - i) for i in range(0, m, g)]
    turn = np.concatenate([np.repeat(np.arange(v), size) for size in sizes])
    forward = _passes(Pass.FORWARD, turn * p + r, micro)
    return forward, _passes(Pass.BACKWARD, (v - 1 - turn) * p + r, micro)


def _interleaved(p: int, v: int, m: int, r: int, g: int) -> Operations:
    return _weave(*_turns(p, v, m, r, g), _NONE, 2 * (p - r - 1) + (v - 1) * g + 1, 0)


def _breadth_first(p: int, v: int, m: int, r: int, g: int) -> Operations:
    return _weave(*_turns(p, v, m, r, m), _NONE, m * v, 0)


def _zero_bubble(p: int, m: int, r: int, ahead: int, lag: int) -> Operations:
    micro = np.arange(m)
    backward, weight = _passes(Pass.INPUT, r, micro), _passes(Pass.WEIGHT, r, micro)
    return _weave(_passes(Pass.FORWARD, r, micro), backward, weight, ahead, min(lag, m))


def _zb_h1(p: int, v: int, m: int, r: int, deferred: int) -> Operations:
    return _zero_bubble(p, m, r, p - r, deferred * r)


def _zb_h2(p: int, v: int, m: int, r: int, deferred: int) -> Operations:
    return _zero_bubble(p, m, r, 2 * (p - r) - 1, deferred * r)


class _Rank:
    """Appends operations of one rank of a V or of two directions, counting its micro-batches.

    A *side* is 0 for the stage met first on the way down and 1 for the other.
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

    def array(self, most: int) -> Operations:
        """The rows of the first `most` micro-batches."""
        out = np.array(self.rows, np.int64)
        return out[out[:, 2] < most]


def _zb_v(p: int, v: int, m: int, r: int, g: int) -> Operations:
    """Fill both chunks, then each in turn forward, input and weight gradient; drain both."""
    rank, n = _Rank((r, 2 * p - 1 - r), (0, 0)), max(m, 2 * p)
    for _ in range(2 * (p - r) - 1):
        rank.add(Pass.FORWARD, 0)
    for _ in range(r):
        rank.add(Pass.FORWARD, 1)
        rank.add(Pass.FORWARD, 0)
    for _ in range(p - r):
        rank.add(Pass.FORWARD, 1)
        _both_gradients(rank, 1)
    while rank.done[Pass.FORWARD][1] < n:
        if rank.done[Pass.FORWARD][0] < n:
            rank.add(Pass.FORWARD, 0)
        _both_gradients(rank, 0)
        rank.add(Pass.FORWARD, 1)
        _both_gradients(rank, 1)
    for _ in range(r):
        rank.add(Pass.INPUT, 0)
        rank.add(Pass.INPUT, 1)
    for _ in range(p - r):
        rank.add(Pass.INPUT, 0)
        rank.weights()
    while rank.waiting:
        rank.weights()
    return rank.array(m)


def _both_gradients(rank: _Rank, side: int) -> None:
    rank.add(Pass.INPUT, side)
    rank.weights()


def _dual(rank: _Rank, half: int, place: int, each: int) -> Operations:
    """DualPipe's phases on the rank at `place` of `half`, for `each` micro-batches a direction.

    Filling, zero-bubble warm-up, the steady state of overlapped pairs, then draining.
    """
    left = half - place - 1
    for _ in range(2 * left):
        rank.add(Pass.FORWARD, 0)
    for _ in range(place + 1):
        rank.add(Pass.FORWARD, 0)
        rank.add(Pass.FORWARD, 1)
    for _ in range(left):
        _both_gradients(rank, 1)
        rank.add(Pass.FORWARD, 1)
    for i in range(each - 2 * half + place + 1):
        if i == 0 and place == half - 1:
            rank.add(Pass.FORWARD, 0)
            rank.add(Pass.BACKWARD, 1)
        else:
            rank.pair(0, 1)
        rank.pair(1, 0)
    for _ in range(left):
        rank.add(Pass.BACKWARD, 1)
        rank.pair(1, 0)
    _drain(rank, left, place)
    return rank.array(2 * each + rank.first[1])


def _drain(rank: _Rank, left: int, place: int) -> None:
    """The last backward passes of both directions; half-way they begin to defer weights."""
    for i in range(2 * (place + 1)):
        late = i >= place + 1
        rank.add(Pass.INPUT if late else Pass.BACKWARD, 1 - i % 2)
    for _ in range(left):
        rank.weights()
        rank.add(Pass.INPUT, 0)
    while rank.waiting:
        rank.weights()


def _dualpipe(p: int, v: int, m: int, r: int, g: int) -> Operations:
    """The first m / 2 micro-batches enter at rank 0, the others at rank p - 1."""
    second = r >= p // 2
    stages = (p - 1 - r, r) if second else (r, p - 1 - r)
    first = (m // 2, 0) if second else (0, m // 2)
    return _dual(_Rank(stages, first), p // 2, min(stages), m // 2)


def _dualpipe_v(p: int, v: int, m: int, r: int, g: int) -> Operations:
    return _dual(_Rank((r, 2 * p - 1 - r), (0, 0)), p, r, m)


_ORDERS: dict[Schedule, Callable[[int, int, int, int, int], Operations]] = {
    Schedule.ONE_F_ONE_B: _one_f_one_b,
    Schedule.INTERLEAVED: _interleaved,
    Schedule.GPIPE: _gpipe,
    Schedule.NAIVE: _naive,
    Schedule.BREADTH_FIRST: _breadth_first,
    Schedule.ZB_H1: _zb_h1,
    Schedule.ZB_H2: _zb_h2,
    Schedule.ZB_H2_SYNC: _zb_h2,
    Schedule.ZB_V: _zb_v,
    Schedule.DUALPIPE: _dualpipe,
    Schedule.DUALPIPE_V: _dualpipe_v,
}
