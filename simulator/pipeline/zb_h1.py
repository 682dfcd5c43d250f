"""ZB-H1 (ZB1P): 1F1B with weight gradients deferred as far as its memory allows.

Source: Qi et al. 2024 (Zero Bubble Pipeline Parallelism), section 2.1 and table 2.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.arrays import Value
from .operation_orders import Operations, Pass, passes, weave
from .schedule import Passes, Schedule, Sizes


def zero_bubble(s: Sizes[int], r: int, ahead: int, held_back: float) -> Operations:
    """`ahead` forward passes, then input gradients and forward passes in turn; weight gradients
    come as many passes late as rank r holds back."""
    lag, micro = int(held_back_by(s, r, held_back)), np.arange(s.m)
    backward, weight = passes(Pass.INPUT, r, micro), passes(Pass.WEIGHT, r, micro)
    return weave(passes(Pass.FORWARD, r, micro), backward, weight, ahead, min(lag, s.m))


def held_back_by(s: Sizes[Any], r: Any, each: Any) -> Any:
    """Whole weight gradients that rank r holds back, of `each` a rank: as many fewer than the last
    as it ends later."""
    most, fewer = (np.ceil(each * ranks - 1e-9) for ranks in (s.p - 1, s.p - 1 - r))
    return most - fewer


def zero_bubble_bytes(
    s: Sizes[Value], r: Value, whole: Value, each: Value, a: Value, w: Value
) -> Value:
    """Bytes of `whole` micro-batches and of those that rank r holds back, at most all others: the
    last of them adds W - A, where that is more, before a weight gradient goes."""
    late = np.minimum(held_back_by(s, r, each), s.m - whole)
    out: Value = whole * a + late * w + np.maximum(w - a, 0.0)
    return out


def _order(s: Sizes[int], r: int, held_back: float) -> Operations:
    """Qi et al. 2024, figure 3, top: rank r's weight gradients come r passes late."""
    return zero_bubble(s, r, s.p - r, held_back)


def in_flight(s: Sizes[Value], r: Value) -> Value:
    """min(m, p): as much as the first rank of 1F1B, on all ranks (Qi et al. 2024, table 2)."""
    return np.minimum(s.m, s.p) + 0 * r


def _idle(s: Sizes[Value], slowest: Passes, others: Passes) -> Value:
    """(p-1) max(f + max(i - w, 0), i) for m >= p; published (p-1)(f + i - w).

    Source: Qi et al. 2024, table 2; the conditions are those of the event simulation. The drain
    is filled by the weight gradients of the slowest rank, taken for the last, and ranks that are
    faster by d have m d to spare.
    """
    n = np.maximum(s.p - 1, 1)
    q = np.minimum(s.m, s.p)
    short = (s.p - q) / n
    f, i = others.forward, others.input_gradient
    slack = s.m * np.maximum(slowest.total - others.total / n, 0.0)
    hidden = q * slowest.weight_gradient - others.weight_gradient / n
    return np.maximum(f + np.maximum(i - hidden, short * i), i + short * f - slack)


def _sends(s: Sizes[Value]) -> Value:
    """4 (p-1), or 2 (p-1) for a single micro-batch: the second's input gradients wait too."""
    return 2 * (s.p - 1) * np.minimum(s.m, 2.0)


def _peak_bytes(s: Sizes[Value], r: Value, late: Value, a: Value, w: Value) -> Value:
    """(p-r) A + r W, and W - A more where W is larger; at most m micro-batches (section 2.1)."""
    return zero_bubble_bytes(s, r, np.minimum(s.m, s.p - r), late, a, w)


SCHEDULE = Schedule(
    name="zb-h1",
    source="Qi et al. 2024, section 2.1",
    order=_order,
    in_flight=in_flight,
    aliases=("zb-1p",),
    idle=_idle,
    idle_grows=False,
    hidden_sends=_sends,
    peak_bytes=_peak_bytes,
    held_back=1,
    frameworks={"deepspeed": "--enable-zbh1-pipeline"},
)
