"""Placement of layers: the chunks that a model is cut into, and the ranks that hold them.

Legend: p pipeline ranks, v chunks a rank holds, r rank from 0, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.arrays import Value
from .schedule import Placement
from .uneven_chunks import LENGTH_GUESSES, PATH_GROUPS, longest_paths

MOST_CUTS = 4096
"""Placements that are remembered."""


@lru_cache(maxsize=MOST_CUTS)
def chunk_ranks(pp: int, chunks: int, place: int) -> NDArray[np.int64]:
    """The rank of each chunk in model order; of two copies, those of the first [chunk]."""
    turn, rank = np.divmod(np.arange(chunks), pp)
    upwards = (place == Placement.V_SHAPED) & (turn % 2 == 1)
    ranks = np.where(upwards, pp - 1 - rank, rank)
    ranks.flags.writeable = False
    return ranks


class Cut(NamedTuple):
    """A model cut into chunks, and where they go."""

    order: tuple[int, ...]
    """The kind of each block."""
    kinds: tuple[str, ...]
    """Names of the layer kinds."""
    pp: int
    chunks: tuple[int, ...]
    """Blocks of each chunk in model order."""
    place: int = Placement.LOOPED
    mtp_stage: int = 0
    """Stage of multi-token prediction, from 1; 0 the last."""
    group: int = 0
    """Micro-batches that run through a chunk before the next; 0 where all of them do."""
    lengths: tuple[float, ...] = ()
    """Relative seconds of layers of each kind; equal where it is empty."""

    @property
    def looped(self) -> bool:
        """Whether ranks hold several chunks in turn."""
        return self.place == Placement.LOOPED and 1 < self.pp < len(self.chunks)

    def ranks(self) -> NDArray[np.int64]:
        """The rank of each chunk."""
        return chunk_ranks(self.pp, len(self.chunks), self.place)


class StageLayout(NamedTuple):
    """Layers by rank; ranks with the same layers are one class, represented by its first rank.

    The first rank of a class keeps the most micro-batches in flight and has the shortest
    cool-down before it, so it is the worst of its class in every respect.
    """

    counts: Value
    """Layers of each kind [class, kind]."""
    rank: Value
    """First rank of each class [class]."""
    last_rank: Value
    """Its rank that defers most weight gradients: the last, of two copies the innermost [class]."""
    ranks_alike: Value
    """Ranks of each class [class]."""
    layers_before: Value
    """Layers of each kind on all earlier ranks [class, kind]."""
    total_layers: Value
    """Layers of each kind on all ranks [kind]."""
    boundaries: NDArray[np.bool_]
    """Kinds of a layer list behind which some rank of a class exchanges a tensor [class, kind]."""


@lru_cache(maxsize=MOST_CUTS)
def balanced_layers(layers: int, chunks: int) -> tuple[int, ...]:
    """Layers of each chunk, as equal as possible; the first and last chunk, which also hold the
    embedding and the head, are the last to get one more."""
    each, more = divmod(layers, chunks)
    order = [*range(1, chunks - 1), 0, chunks - 1][:chunks] if chunks > 1 else [0]
    extra = set(order[:more])
    return tuple(each + (i in extra) for i in range(chunks))


@lru_cache(maxsize=MOST_CUTS)
def chunk_layers(
    layers: int,
    pp: int,
    virtual: int,
    first: int,
    last: int,
    explicit: tuple[int, ...],
    place: int = Placement.LOOPED,
) -> tuple[int, ...]:
    """Layers of each chunk in model order.

    `explicit` gives every chunk, or every rank (each rank's layers are then spread over its
    chunks). `first` and `last` fix those of the first and last rank; 0 leaves them balanced. Of
    chunks in turn the embedding's and the head's have the fewest of their rank, or none.
    """
    chunks = pp * virtual
    if len(explicit) == chunks:
        return tuple(explicit)
    ranks = chunk_ranks(pp, chunks, place).tolist()
    if explicit:
        per_rank = [balanced_layers(n, virtual) for n in explicit]
        return tuple(per_rank[r][i // pp] for i, r in enumerate(ranks))
    if pp == 1 or (not first and not last):
        return balanced_layers(layers, chunks)
    ends = {r: balanced_layers(n, virtual) for r, n in ((0, first), (pp - 1, last)) if n}
    between = (pp - len(ends)) * virtual
    middle = balanced_layers(layers - first - last, between) if between else ()
    if 0 in ends and place == Placement.LOOPED:
        ends[0] = ends[0][::-1]
    left = iter(middle)
    return tuple(ends[r][i // pp] if r in ends else next(left) for i, r in enumerate(ranks))


def parameter_cut(layers: Sequence[float], head: float, chunks: int) -> tuple[int, ...]:
    """Layers of each chunk when a chunk ends as soon as its share of the parameters is passed.

    A layer goes to the current chunk, which ends once the running sum exceeds (i + 1) / chunks
    of the total, LM head included; the last chunk may hold the head alone (nanotron).
    """
    counts, running, total = [0] * chunks, 0.0, sum(layers) + head
    at = 0
    for parameters in layers:
        counts[at] += 1
        running += parameters
        if running > (at + 1) * total / chunks and at < chunks - 1:
            at += 1
    return tuple(counts)


def chunk_counts(cut: Cut) -> Value:
    """Layers of each kind [chunk, kind], ends included: the embedding on the first chunk, the head
    and, unless the cut names another stage, MTP on the last."""
    chunk = np.repeat(np.arange(len(cut.chunks)), cut.chunks)
    # A layer list may be longer than the blocks of the chunks.
    place = chunk * len(cut.kinds) + np.array(cut.order[: chunk.size], np.intp)
    shape = len(cut.chunks), len(cut.kinds)
    counts = np.bincount(place, minlength=shape[0] * shape[1]).reshape(shape).astype(float)
    if "embedding" in cut.kinds:
        counts[0, cut.kinds.index("embedding")] = 1
        # A head that is tied to an embedding on its rank needs no table of its own.
        shared = "shared head" in cut.kinds and _ends_share_rank(cut)
        counts[-1, cut.kinds.index("shared head" if shared else "head")] = 1
    if "mtp" in cut.kinds:
        counts[cut.mtp_stage - 1, cut.kinds.index(_mtp_kind(cut))] = 1
    return counts


def _ends_share_rank(cut: Cut) -> bool:
    """Whether one rank holds the embedding and the head."""
    ranks = cut.ranks()
    return bool(ranks[0] == ranks[-1]) or cut.place == Placement.TWO_WAY


def _mtp_kind(cut: Cut) -> str:
    """MTP with what it does not find on its rank, of embedding and head."""
    ranks = cut.ranks()
    if ranks[cut.mtp_stage - 1] not in (ranks[0], ranks[-1]):
        return "lone mtp"
    return "shared mtp" if _ends_share_rank(cut) else "mtp"


@lru_cache(maxsize=MOST_CUTS)
def rank_counts(cut: Cut) -> Value:
    """Layers of each kind [rank, kind]; of two copies of the model, their mean."""
    counts = np.zeros((cut.pp, len(cut.kinds)))
    np.add.at(counts, cut.ranks(), chunk_counts(cut))
    if cut.place == Placement.TWO_WAY:
        counts = (counts + counts[::-1]) / 2
    counts.flags.writeable = False
    return counts


@lru_cache(maxsize=MOST_CUTS)
def layout(cut: Cut) -> StageLayout:
    """The distinct ranks of a placement."""
    alike: dict[bytes, list[int]] = {}
    for rank, row in enumerate(rank_counts(cut)):
        alike.setdefault(row.tobytes(), []).append(rank)
    return _layout_of_classes(cut, list(alike.values()))


def every_rank(cut: Cut) -> StageLayout:
    """A placement with every rank on its own, for reports by stage."""
    return _layout_of_classes(cut, [[rank] for rank in range(cut.pp)])


def _layout_of_classes(cut: Cut, classes: list[list[int]]) -> StageLayout:
    """The layout of a placement whose ranks are in these classes.

    Where two copies of the model run in opposite directions, micro-batches enter at both ends, so
    that no rank is behind another, and the ranks in the middle defer most weight gradients.
    """
    counts, behind = rank_counts(cut), _boundaries(cut)
    first = [members[0] for members in classes]
    before = np.cumsum(counts, axis=0) - counts
    last = [members[-1] for members in classes]
    if cut.place == Placement.TWO_WAY:
        before, middle = 0 * before, (cut.pp - 1) / 2
        last = [min(members, key=lambda rank: abs(rank - middle)) for members in classes]
    return StageLayout(
        counts=counts[first],
        rank=np.array(first, float),
        last_rank=np.array(last, float),
        ranks_alike=np.array([len(members) for members in classes], float),
        layers_before=before[first],
        total_layers=counts.sum(axis=0),
        boundaries=np.array([behind[members].any(axis=0) for members in classes])
        if behind.any()
        else behind[first],
    )


@lru_cache(maxsize=MOST_CUTS)
def _boundaries(cut: Cut) -> NDArray[np.bool_]:
    """Kinds of the layers of a list behind which each rank exchanges a tensor [rank, kind]; none of
    other models, whose tensors are all alike."""
    out = np.zeros((cut.pp, len(cut.kinds)), bool)
    if "embedding" in cut.kinds:
        return out
    ends, ranks = np.cumsum(cut.chunks[:-1], dtype=np.int64), cut.ranks()
    crossed = np.flatnonzero((ranks[1:] != ranks[:-1]) & (ends > 0))
    behind = np.array(cut.order)[ends[crossed] - 1]
    out[ranks[crossed], behind] = out[ranks[crossed + 1], behind] = True
    return out | out[::-1] if cut.place == Placement.TWO_WAY else out


_LONGEST_PATHS: dict[Cut, Value] = {}
"""Longest paths that have been found."""


def longest_chunk_paths(cuts: Sequence[Cut]) -> Value:
    """Layers on the longest paths of looped chunks [cut, path, 2 kinds] (uneven_chunks), of cuts
    with the same kinds; zeros where chunks do not loop."""
    new = [cut for cut in dict.fromkeys(cuts) if cut.looped and cut not in _LONGEST_PATHS]
    if len(_LONGEST_PATHS) + len(new) > MOST_CUTS:
        _LONGEST_PATHS.clear()
        new = [cut for cut in dict.fromkeys(cuts) if cut.looped]
    alike: dict[tuple[tuple[str, ...], int, int, int, tuple[float, ...]], list[Cut]] = {}
    for cut in new:
        key = (cut.kinds, cut.pp, len(cut.chunks), cut.group, cut.lengths)
        alike.setdefault(key, []).append(cut)
    for (kinds, pp, _, group, lengths), its in alike.items():
        counts = np.array([chunk_counts(cut).reshape(-1, pp, len(kinds)) for cut in its])
        ends = np.array([not name.startswith("block") for name in kinds])
        found = longest_paths(counts, np.array(lengths or (1.0,) * len(kinds)), ends, group)
        _LONGEST_PATHS.update(zip(its, found, strict=True))
    none = np.zeros(((len(PATH_GROUPS) + 1) * len(LENGTH_GUESSES), 2 * len(cuts[0].kinds)))
    return np.array([_LONGEST_PATHS[cut] if cut.looped else none for cut in cuts])
