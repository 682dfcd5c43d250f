"""DualPipe: micro-batches from both ends of the pipeline through two copies of the model.

Passes of both directions run beside each other, which hides the communication of experts.
Source: DeepSeek-AI 2024 (DeepSeek-V3), section 3.2.1 and table 2; the DualPipe repository.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.arrays import Value
from .chimera import PassesAlone, faster_ranks, headless
from .operation_orders import Operations, Pass, TwoSided
from .schedule import Condition, Passes, Placement, Schedule, Sizes, fills_pipeline


def phases(rank: TwoSided, half: int, place: int, each: int) -> Operations:
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
        rank.both_gradients(1)
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


def _drain(rank: TwoSided, left: int, place: int) -> None:
    """The last backward passes of both directions; half-way they begin to defer weights."""
    for i in range(2 * (place + 1)):
        late = i >= place + 1
        rank.add(Pass.INPUT if late else Pass.BACKWARD, 1 - i % 2)
    for _ in range(left):
        rank.weights()
        rank.add(Pass.INPUT, 0)
    while rank.waiting:
        rank.weights()


def idle_stages(half: Value, others: Passes, slower: Value, weight: Value) -> Value:
    """max(2nf, (n-1)f + ni) + n max(i-w, 0) with one stage's f, i, w and n = half the stages - 1.

    The published n (F&B + B - 3W) when all are equal (DeepSeek-AI 2024, table 2; the DualPipe
    repository); the conditions are those of the event simulation, which this equals. `others`: of
    one stage of a faster rank, on average. Where the slowest rank's stages take `slower` seconds
    more, it waits 2n + 1 of them less, down to n max(i-w, 0) with `weight` as w: within 2 % of a
    step of the event simulation with the head at an end.
    """
    f, i, w = others
    n = half - 1
    equal = np.maximum(2 * n * f, (n - 1) * f + n * i) + n * np.maximum(i - w, 0.0)
    least = np.minimum(n * np.maximum(i - weight, 0.0), equal)
    return np.maximum(equal - (2 * n + 1) * np.maximum(slower, 0.0), least)


def peak_stage_bytes(stages: Value, place: Value, a: Value, w: Value) -> Value:
    """Of P stages, with A, W of one, the largest of (P+1) A, (P-1) A + W, not on the ranks in the
    middle, and (r+1) W + (P/2-1-r) A, the peaks of `phases` before and after weight gradients wait
    (DualPipe's repository)."""
    filled = (stages - 1) * a + np.maximum(2 * a, w * (place < stages / 2 - 1))
    return np.maximum(filled, (place + 1) * w + (stages / 2 - 1 - place) * a)


def _order(s: Sizes[int], r: int, held_back: float) -> Operations:
    """The first m / 2 micro-batches enter at rank 0, the others at rank p - 1."""
    second = r >= s.p // 2
    stages = (s.p - 1 - r, r) if second else (r, s.p - 1 - r)
    first = (s.m // 2, 0) if second else (0, s.m // 2)
    return phases(TwoSided(stages, first), s.p // 2, min(stages), s.m // 2)


def _in_flight(s: Sizes[Value], r: Value) -> Value:
    """min(m, p + 1), of stages that are half of it each way (the DualPipe repository)."""
    return np.minimum(s.m, s.p + 1) + 0 * r


def _idle(s: Sizes[Value], slowest: Passes, others: Passes, alone: PassesAlone = None) -> Value:
    """Of p stages."""
    fast = faster_ranks(s, slowest, others)
    weight = headless(s, slowest, others, alone, lambda passes: passes.weight_gradient)
    # A rank has half of the micro-batches of either of its stages.
    slower = 2 * (slowest.total - fast.total)
    return idle_stages(s.p / 2, fast, slower, weight)


def _sends(s: Sizes[Value]) -> Value:
    """(p-1) m / p + max(3 p / 2 - 3, 1), as simulated with equal passes."""
    return 2 * (s.p - 1) * s.m / (2 * s.p) + np.maximum(1.5 * s.p - 3, 1)


def _peak_bytes(s: Sizes[Value], r: Value, late: Value, a: Value, w: Value) -> Value:
    """Of p stages, the same on both halves."""
    return peak_stage_bytes(s.p, np.minimum(r, s.p - 1 - r), a, w)


def _halves(s: Sizes[Any]) -> Any:
    """Half of the micro-batches enter at either end, and ranks are in pairs."""
    return (s.p % 2 == 0) & (s.m % 2 == 0)


SCHEDULE = Schedule(
    name="dualpipe",
    source="DeepSeek-AI 2024, section 3.2.1",
    order=_order,
    in_flight=_in_flight,
    placement=Placement.TWO_WAY,
    idle=_idle,
    idle_grows=False,
    hidden_sends=_sends,
    peak_bytes=_peak_bytes,
    pairs=True,
    conditions=(
        fills_pipeline("deep-schedule-micro-batches", 2, to_run=True),
        Condition(
            name="dualpipe-halves",
            reads="pm",
            ok=_halves,
            message=lambda name, s: (
                f"the {name} schedule needs an even pp and an even number of micro-batches, not "
                f"pp = {s.p} and {s.m}; nearest: pp = {s.p + s.p % 2} and {s.m + s.m % 2}"
            ),
            to_run=True,
        ),
    ),
)
