"""A pipeline schedule: one record of its order, its placement and its closed forms.

Legend: p pipeline ranks, v chunks a rank holds, m micro-batches, g micro-batches of a group, r the
rank from 0; f, i, w seconds per micro-batch of a rank's forward pass, input gradient and weight
gradient. A file of this folder makes one of these; `schedules` is their table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from ..base.arrays import Index, Value
from ..base.errors import InputError
from .operation_orders import Operations

Number = TypeVar("Number")


class Placement(IntEnum):
    """Which ranks run the chunks of a model."""

    LOOPED = 0
    """Chunk i on rank i mod p."""
    V_SHAPED = 1
    """Down the ranks and up again: rank r holds chunks r and 2 p - 1 - r."""
    TWO_WAY = 2
    """Two copies of the model, in opposite directions: rank r holds stages r and p - 1 - r."""


class Chunks(NamedTuple):
    """How many chunks of a model a rank may hold."""

    least: int
    most: int


ONE_CHUNK, TWO_CHUNKS, SEVERAL_CHUNKS = Chunks(1, 1), Chunks(2, 2), Chunks(2, 2**31)


class Sizes(NamedTuple, Generic[Number]):
    """What a pipeline is made of: numbers, or columns [row]."""

    p: Number
    v: Number
    g: Number
    m: Number


class Passes(NamedTuple):
    """Seconds per micro-batch of the passes of a rank, or of several ranks together [row]."""

    forward: Value
    input_gradient: Value
    weight_gradient: Value

    @property
    def total(self) -> Value:
        """Seconds of all three."""
        return self.forward + self.input_gradient + self.weight_gradient

    def mean(self, count: Value) -> Passes:
        """The mean of `count` of them."""
        return Passes(*(part / np.maximum(count, 1) for part in self))

    def take(self, rows: Index | slice) -> Passes:
        """The chosen rows."""
        return Passes(*(part[..., rows] for part in self))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Condition:
    """What the sizes of a pipeline must meet under a schedule."""

    name: str
    """The rule that it is part of; schedules may share one."""
    reads: str
    """The sizes it looks at, of 'pvgm'; others may be missing."""
    ok: Callable[[Sizes[Any]], Any]
    """Columns -> mask of legal rows."""
    message: Callable[[str, Sizes[int]], str]
    """A schedule's name and one pipeline -> what is wrong, and the nearest legal numbers."""
    to_run: bool = False
    """Whether there is no order without it; else its closed forms alone need it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """An order in which pipeline ranks run forward and backward passes, and what follows from it.

    Closed forms are those of equal ranks and equal chunks; the event simulation is what they equal.
    """

    name: str
    source: str
    """Paper, section and equation."""
    order: Callable[[Sizes[int], int, float], Operations]
    """The operations of rank r, which holds back the given number of weight gradients, over r."""
    in_flight: Callable[[Sizes[Value], Value], Value]
    """Micro-batches whose activations rank r [class, row] keeps at its peak, in units of its whole
    share; those that only lack a weight gradient count."""
    fuller_inside: bool = False
    """Whether ranks further inside keep more of them than outer ones."""
    aliases: tuple[str, ...] = ()
    placement: Placement = Placement.LOOPED
    chunks: Chunks = ONE_CHUNK
    idle: Callable[..., Value] | None = None
    """Seconds [.., row] that a rank, taken for the slowest, idles in a step, from the Sizes, its
    own Passes and those of all other ranks together; of a TWO_WAY placement also from both without
    the communication that they wait for. None: a chunk of each other rank, (f + i + w) / v."""
    idle_grows: bool = True
    """Whether longer passes never shorten idle seconds, so that bounds may be put on them."""
    idle_of_first: bool = False
    """Whether that is what the first rank idles, slowest or not. Any other idles at least while the
    first micro-batch comes from it and the last gradient goes to it."""
    uneven_paths: bool = False
    """Whether chunks of unequal size take as long as the paths of `uneven_chunks`; else their
    mean counts."""
    hidden_sends: Callable[[Sizes[Value]], Value] = lambda s: 2 * (s.p - 1) + 0 * s.m
    """Sends on the critical path of a step that overlap cannot hide, each one boundary tensor; by
    default the first micro-batch's way down and up."""
    steady_sends: Callable[[Sizes[Value]], Value] = lambda s: 0 * s.m
    """Further sends, of the steady state, that show when they are not overlapped."""
    end_sends: Callable[[Sizes[Value]], tuple[Value, Value]] | None = None
    """Both of them where the first rank sets the pace: all others hide in the time by which it is
    longer. None: not known to be fewer."""
    turns: Callable[[Sizes[Value]], tuple[Value, Value]] | None = None
    """Micro-batches of the first and of the last group, which are sent on before a rank turns to
    its next chunk (`turn_sends`). None: there is no such turn."""
    chunk_turn: Callable[[Sizes[Value]], Value] = lambda s: 1 + 0 * s.m
    """Passes of one direction from the last of one of a rank's chunks to the last of the next; the
    gradients of the first are final, and are reduced, while the others run."""
    forward_first: bool = False
    """Whether every forward pass comes before the first backward pass: all losses wait."""
    peak_bytes: Callable[[Sizes[Value], Value, Value, Value, Value], Value] | None = None
    """Bytes of activations rank r [class, row] keeps at its peak, from r, D, A and W: weight
    gradients that it holds back, over r [row], bytes of a micro-batch, and bytes that are left once
    only its weight gradient is missing [class, row]. None: no weight gradient is deferred."""
    held_back: int = 0
    """Weight gradients that rank r holds back, over r, as published."""
    fills_drain: bool = False
    """Whether it holds back more where those do not fill its drain."""
    steps_apart: bool = False
    """Whether ranks step their optimizer on their own and validate afterwards: a step is as long as
    its longest rank, not from the first start to the last end (Qi et al. 2024, section 4)."""
    pairs: bool = False
    """Whether a rank runs one micro-batch beside another, whose communication that hides."""
    groups: bool = False
    """Whether groups of micro-batches may be longer than the pipeline."""
    needs_stages: bool = True
    """Whether it differs from plain accumulation only where there are stages, and is refused
    without."""
    conditions: tuple[Condition, ...] = ()
    """What it cannot run, cheapest first."""
    frameworks: Mapping[str, str] = field(default_factory=dict)
    """What a framework calls it; absent where it cannot be launched."""

    @property
    def copies(self) -> int:
        """Copies of the model that one pipeline holds."""
        return 2 if self.placement == Placement.TWO_WAY else 1

    @property
    def defers(self) -> bool:
        """Whether weight gradients wait until after later input gradients."""
        return self.peak_bytes is not None

    @property
    def of_stages(self) -> bool:
        """Whether a step is what its stages add up to one by one: one chunk a rank, which idles
        for what the others do."""
        return self.idle is None and self.chunks == ONE_CHUNK and self.placement == Placement.LOOPED

    def deferred_weight_gradients(
        self, sizes: Sizes[Value], longest: Value, weight_gradient: Value
    ) -> Value:
        """Weight gradients that rank r holds back, over r.

        As published; a schedule that fills its drain holds back as many as take the `longest`
        forward pass and input gradient of a rank, so that none is missing there, but no more than
        there are.
        """
        published = np.full_like(longest, self.held_back)
        if not self.fills_drain:
            return published
        wanted = longest / np.maximum(weight_gradient, 1e-300)
        return np.maximum(np.minimum(wanted, most_held_back(sizes)), published)

    def orders(
        self, p: int, v: int, m: int, group: int = 0, held_back: float = 0
    ) -> list[Operations]:
        """The operations of every rank.

        `group` is the number of micro-batches a rank runs through one chunk before it turns to the
        next (0 is p), `held_back` the weight gradients that rank r holds back, over r (0 is what
        is published). Raises InputError where there is no order of these sizes.
        """
        sizes = Sizes(p, v, group or p, m)
        self._check(sizes)
        return [self.order(sizes, r, held_back or self.held_back) for r in range(p)]

    def _check(self, sizes: Sizes[int]) -> None:
        counts = {"pp": sizes.p, "virtual_stages": sizes.v, "micro-batches": sizes.m}
        for name, size in counts.items():
            if size < 1:
                raise InputError(f"{size} {name}: a pipeline needs at least 1")
        least, most = self.chunks
        if not least <= sizes.v <= most:
            wanted = f"={least}" if least == most else f" >= {least}"
            raise InputError(
                f"the {self.name} schedule needs virtual_stages{wanted}, not {sizes.v}"
            )
        for condition in self.conditions:
            if condition.to_run and not condition.ok(sizes):
                raise InputError(condition.message(self.name, sizes))


def most_held_back(s: Sizes[Value]) -> Value:
    """Weight gradients over the rank of which the last rank holds back all but one."""
    return (s.m - 1) / np.maximum(s.p - 1, 1)


def turn_sends(s: Sizes[Value], group: Value, passes: Value) -> Value:
    """Sends that ranks wait for at the turns of a group to the next chunk, with the `passes` of a
    chunk that take as long as a send.

        (v - 1) max(p - (g - p) passes, 0)

    A group of p micro-batches is back at the first rank just when that turns, so each boundary on
    the way is exposed; a longer one has g - p passes to come back in. As simulated with equal
    passes, in the order of Narayanan et al. 2021, section 2.2.2.
    """
    spare = np.maximum(group - s.p, 0.0) * np.minimum(passes, 1e18)
    out: Value = (s.v - 1) * np.maximum(s.p - spare, 0.0)
    return out


def fills_pipeline(rule: str, times: int, to_run: bool = False) -> Condition:
    """The condition of at least `times` p micro-batches."""
    ranks = "pp" if times == 1 else f"{times} pp"
    return Condition(
        name=rule,
        reads="pm",
        ok=lambda s: s.m >= times * s.p,
        message=lambda name, s: (
            f"{s.m} micro-batches are fewer than {ranks} = {times * s.p}, which the {name} "
            f"schedule needs; nearest: {times * s.p}"
        ),
        to_run=to_run,
    )
