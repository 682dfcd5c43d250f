"""Gradient compressors: functions, error bounds, bytes on the wire.

An unbiased compressor has E Q(x) = x and E |Q(x) - x|^2 <= omega |x|^2; a contractive one has
|C(x) - x|^2 <= (1 - delta) |x|^2. No compression is omega = 0 and delta = 1.
Legend: d entries of a vector, s = levels - 1 steps between 0 and the norm, k entries kept.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from math import ceil, log2, pi, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError

Vector = NDArray[np.float64]
Compressor = Callable[[Vector], Vector]

BUCKET = 512
"""Entries quantised with one norm (Alistarh et al. 2017, section 5)."""
SCALE_BYTES = 4.0
"""Bytes of a norm or scale, fp32."""
INDEX_BYTES = 4.0
"""Bytes of the index of a kept entry."""
GAUSSIAN_SIGN = 2 / pi
"""delta of one-bit compression of Gaussian entries, (E|x|)^2 / E x^2; 1/d at worst."""


class Compression(IntEnum):
    """A published method: a compressor, where it is applied and what is remembered."""

    NONE = 0
    QSGD = 1
    """Random quantisation of what workers send (Alistarh et al. 2017)."""
    ONE_BIT = 2
    """Sign and mean size of what workers send, error feedback (Seide et al. 2014)."""
    MEM_SGD = 3
    """Top-k of what workers send, error feedback (Stich et al. 2018)."""
    DOUBLE_SQUEEZE = 4
    """Top-k with error feedback of both directions (Tang et al. 2019)."""
    EF21_SGD = 5
    """Top-k of the change since the last message (Fatkhullin et al. 2021)."""
    NEOLITHIC = 6
    """Top-k of both directions, the rest compressed again in a second round (Huang et al. 2022)."""


class Method(NamedTuple):
    """The settings that make one of Compression."""

    scheme: str
    """'quantise', 'sign' or 'top-k'."""
    both_ways: bool = False
    """The answer is compressed too; otherwise it is sent in full."""
    rounds: int = 1
    """Compressions of a step, each of the error of those before."""
    memories: int = 1
    """Vectors a worker keeps from step to step."""


METHODS = {
    Compression.QSGD: Method("quantise", memories=0),
    Compression.ONE_BIT: Method("sign"),
    Compression.MEM_SGD: Method("top-k"),
    Compression.DOUBLE_SQUEEZE: Method("top-k", both_ways=True),
    Compression.EF21_SGD: Method("top-k"),
    Compression.NEOLITHIC: Method("top-k", both_ways=True, rounds=2),
}


def quantise(x: Vector, levels: int, rng: np.random.Generator) -> Vector:
    """Entries rounded at random to one of `levels` sizes from 0 to the norm, unbiased.

    |x_i| / |x| between two levels goes to the upper one with the probability that keeps its mean.
    Source: Alistarh et al. 2017 (QSGD), section 3.1, by buckets of BUCKET entries.
    """
    if levels < 2:
        raise InputError(f"levels={levels} must be at least 2: nothing and the norm")
    parts = np.split(x, range(BUCKET, x.size, BUCKET))
    return np.concatenate([_quantise_bucket(part, levels - 1, rng) for part in parts])


def _quantise_bucket(x: Vector, steps: int, rng: np.random.Generator) -> Vector:
    norm = float(np.linalg.norm(x))
    if norm == 0:
        return np.zeros_like(x)
    exact = np.abs(x) / norm * steps
    low = np.floor(exact)
    up = rng.random(x.size) < exact - low
    out: Vector = np.sign(x) * norm * (low + up) / steps
    return out


def one_bit(x: Vector) -> Vector:
    """Every entry as its sign times the mean size, one scale a vector (Seide et al. 2014)."""
    out: Vector = np.where(x < 0, -1.0, 1.0) * np.abs(x).mean()
    return out


def top_k(x: Vector, k: int) -> Vector:
    """The k entries largest in size; the others become 0."""
    if not 1 <= k <= x.size:
        raise InputError(f"k={k} must be from 1 to the {x.size} entries of the vector")
    out = np.zeros_like(x)
    kept = np.argpartition(np.abs(x), x.size - k)[x.size - k :]
    out[kept] = x[kept]
    return out


def with_memory(gradient: Vector, memory: Vector, compress: Compressor) -> tuple[Vector, Vector]:
    """Error feedback: the message, and its error, which the next step adds.

    Source: Stich et al. 2018, algorithm 1.
    """
    corrected = gradient + memory
    message = compress(corrected)
    return message, corrected - message


def ef21(gradient: Vector, state: Vector, compress: Compressor) -> tuple[Vector, Vector]:
    """EF21: the compressed change of the gradient, and the estimate that it updates.

    Source: Richtarik et al. 2021, algorithm 1.
    """
    message = compress(gradient - state)
    return message, state + message


def in_rounds(x: Vector, compress: Compressor, rounds: int) -> Vector:
    """The sum of messages that each compress what the earlier ones left: 1 - delta becomes
    (1 - delta)^rounds. Source: Huang et al. 2022 (NEOLITHIC), algorithm 1."""
    sent = np.zeros_like(x)
    for _ in range(rounds):
        sent = sent + compress(x - sent)
    return sent


def omega(levels: int, entries: int = BUCKET) -> float:
    """min(d / s^2, sqrt(d) / s) of random quantisation by buckets. Source: QSGD, lemma 3.1."""
    d, steps = float(min(entries, BUCKET)), levels - 1
    return min(d / steps**2, sqrt(d) / steps)


def delta(method: Method, kept_per_thousand: int) -> float:
    """The contraction of a whole step: k / d of top-k, over the rounds of the method."""
    once = GAUSSIAN_SIGN if method.scheme == "sign" else kept_per_thousand / 1000
    error: float = (1.0 - once) ** method.rounds
    return 1.0 - error


def bytes_of_entry(method: Method, levels: int, kept_per_thousand: int, element: float) -> float:
    """Bytes on the wire for each entry of a compressed vector, all rounds; `element` in full.

    Quantised: the bits of a signed level and a norm a bucket; 1-bit: a bit; top-k: value and
    index. Neglects entropy coding.
    """
    if method.scheme == "quantise":
        once = ceil(log2(2 * levels - 1)) / 8 + SCALE_BYTES / BUCKET
    elif method.scheme == "sign":
        once = 1 / 8
    else:
        once = kept_per_thousand / 1000 * (element + INDEX_BYTES)
    return once * method.rounds
