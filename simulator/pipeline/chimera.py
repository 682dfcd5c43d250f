"""Chimera: micro-batches from both ends of the pipeline through two copies of the model.

Every p micro-batches are a unit, half of them from either end, each half under 1F1B; where passes
take equally long both merge without a conflict. Units follow one another (direct concatenation).
Backward passes are one operation. Legend in addition to that of `schedule`: b = i + w, u = m / p
units.
Source: Li and Hoefler 2021 (Chimera, SC'21), section 3.1, figure 3 and table 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.arrays import Value
from .operation_orders import Operations, Pass, passes
from .schedule import Condition, Passes, Placement, Schedule, Sizes

PassesAlone = tuple[Passes, Passes] | None
"""Passes of the slowest rank, and of all others together, without the communication that they wait
for; None where they wait for none."""


def _order(s: Sizes[int], r: int, held_back: float) -> Operations:
    """With slots of one pass, stage k runs its j-th micro-batch of a unit forward in slot k + 2 j
    and backward in slot 2 p - 1 - k + 2 j of the unit's 2 p; a rank has stages r and p - 1 - r, and
    no two passes of it share a slot. The first m / 2 micro-batches enter at rank 0."""
    micro = np.arange(s.m // 2)
    unit, place = np.divmod(micro, s.p // 2)
    begin = 2 * (s.p * unit + place)
    slots, runs = [], []
    for stage, entering in ((r, micro), (s.p - 1 - r, micro + s.m // 2)):
        slots += [begin + stage, begin + 2 * s.p - 1 - stage]
        runs += [passes(Pass.FORWARD, stage, entering), passes(Pass.BACKWARD, stage, entering)]
    out: Operations = np.concatenate(runs)[np.argsort(np.concatenate(slots))]
    return out


def _in_flight(s: Sizes[Value], r: Value) -> Value:
    """p / 2 + 1 on the outer ranks to p in the middle (table 2)."""
    return s.p / 2 + 1 + np.minimum(r, s.p - 1 - r)


def faster_ranks(s: Sizes[Value], slowest: Passes, others: Passes) -> Passes:
    """The mean of the ranks that are not of the slowest pair: ranks r and p - 1 - r hold the same
    two stages."""
    pairs = (other - own for other, own in zip(others, slowest, strict=True))
    return Passes(*pairs).mean(s.p - 2)


def headless(
    s: Sizes[Value],
    slowest: Passes,
    others: Passes,
    alone: PassesAlone,
    part: Callable[[Passes], Value],
) -> Value:
    """Seconds of a part of the slowest rank's passes on that of its two stages that has no head.

    The head is what makes it slower than the others. Communication that passes `alone` do not wait
    for is in both of its stages.
    """
    own, rest = alone or (slowest, others)
    head = np.maximum(part(own) - part(faster_ranks(s, own, rest)), 0.0)
    out: Value = part(slowest) - head
    return out


def _idle(s: Sizes[Value], slowest: Passes, others: Passes, alone: PassesAlone = None) -> Value:
    """The longest path through a step, less what an outer rank works: of outer ranks with F and B,
    n = (p-2)/2 pairs of inner ranks with f and b each, and F' and B' of the stage of an outer rank
    that has no head, the largest of

        n [max(2 f - F, 0) + max(2 b - B, 0)]
        2 n u (2 f - F - B) + n max(2 b, B)
        2 n u (2 b - F - B) + n max(2 f, F)
        4 n u max(f, b) + (4 u + 2 n - 2) min(f, b) - (m-1)(F+B)
        n u [2 max(f, b) - F' - B'] + 2 n min(f, b)

    The first is of outer ranks that work all the time once the inner ones have let them begin, and
    until these let them end; the next two are of outer and inner ranks in turn, of which either
    pass waits for the longer one between units; the fourth of inner ranks that wait for outer ones
    but once. An outer rank is slower by the head, which one of its two stages has: micro-batches of
    the other wait as those of equal ranks do, the last of the five, with F' = f where no rank waits
    for communication (`headless`). Of equal ranks (p-2) [max(f, b) + (u-1) |f-b|]: where f = b the
    published share (p-2) / (2m + p-2) of a step (table 2), of one unit with b >= f a step of p f +
    (2p-2) b, the longest path of section 3.4. That the paper doubles forward passes not to wait
    between units is not modelled. Equals the event simulation where inner ranks are alike and no
    slower rank is so in both of its stages; of other inner ranks their mean counts.
    """
    fast = faster_ranks(s, slowest, others)
    f, b, units = fast.forward, fast.input_gradient + fast.weight_gradient, s.m / s.p
    own, back = slowest.forward, slowest.input_gradient + slowest.weight_gradient
    pairs, both = (s.p - 2) / 2, own + back
    ends = np.maximum(2 * f - own, 0.0) + np.maximum(2 * b - back, 0.0)
    turns = 2 * pairs * units
    forward = turns * (2 * f - both) + pairs * np.maximum(2 * b, back)
    backward = turns * (2 * b - both) + pairs * np.maximum(2 * f, own)
    inside = 2 * turns * np.maximum(f, b) + (4 * units + s.p - 4) * np.minimum(f, b)
    inside = inside - (s.m - 1) * both
    other = headless(s, slowest, others, alone, lambda passes: passes.total)
    half = pairs * (units * (2 * np.maximum(f, b) - other) + 2 * np.minimum(f, b))
    paths = np.stack([pairs * ends, forward, backward, inside, half])
    out: Value = paths.max(axis=0)
    return out


def _sends(s: Sizes[Value]) -> Value:
    """max(3p - 5, 2) + (u-1) max(2p - 4, 2), as simulated with equal passes."""
    return np.maximum(3 * s.p - 5, 2) + (s.m / s.p - 1) * np.maximum(2 * s.p - 4, 2)


def _whole_units(s: Sizes[Any]) -> Any:
    """Ranks are in pairs, and micro-batches fill units."""
    return (s.p % 2 == 0) & (s.m % s.p == 0)


def _message(name: str, s: Sizes[int]) -> str:
    pairs = s.p + s.p % 2
    near = max((s.m + pairs // 2) // pairs, 1) * pairs
    return (
        f"the {name} schedule needs an even pp and a multiple of pp micro-batches, not "
        f"pp = {s.p} and {s.m}; nearest: pp = {pairs} and {near}"
    )


SCHEDULE = Schedule(
    name="chimera",
    source="Li and Hoefler 2021, section 3.1",
    order=_order,
    in_flight=_in_flight,
    fuller_inside=True,
    placement=Placement.TWO_WAY,
    idle=_idle,
    idle_grows=False,
    idle_of_first=True,
    hidden_sends=_sends,
    conditions=(
        Condition(name="chimera-units", reads="pm", ok=_whole_units, message=_message, to_run=True),
    ),
)
