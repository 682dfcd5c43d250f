"""Documents that are packed into a sequence: attention stays inside each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from ..base.errors import InputError

MOST = 100_000
"""Documents whose lengths may be given."""


def check(documents: tuple[int, ...], sequence: int) -> None:
    """Raise InputError for lengths that no sequence of so many tokens holds."""
    if len(documents) > MOST:
        raise InputError(f"{len(documents):,} lengths of documents are too many; at most {MOST:,}")
    for length in documents:
        whole = isinstance(length, int) and not isinstance(length, bool)
        if not whole or not 0 < length <= sequence:
            raise InputError(
                f"length of a document {str(length)[:60]} must be a whole number from 1 to the "
                f"sequence {sequence}"
            )


def mean_over_tokens(
    documents: tuple[int, ...], sequence: int, of_length: Callable[[int], float]
) -> float:
    """The mean over tokens of what depends on the length of a token's document; sequences are one
    document each where no lengths are given."""
    if not documents:
        return of_length(sequence)
    counts = Counter(documents)
    tokens = sum(documents)
    return sum(count * length * of_length(length) for length, count in counts.items()) / tokens
