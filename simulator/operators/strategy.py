"""What one layer sees of a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.arrays import Value
from ..plan.fields import STATED, STRATEGY


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """What one layer can see of a plan; float columns of equal length."""

    tp: Value
    cp: Value
    ep: Value
    etp: Value
    micro_batch: Value
    sequence_parallel: Value
    recompute: Value
    overlap_tp: Value
    overlap_ep: Value
    cp_comm: Value
    expert_dispatch: Value
    offload_activations: Value
    """Percent of what is kept."""
    loss: Value
    tp_grid: Value
    """Code of the grid of tensor_grid; 0 in what is not on one."""

    @classmethod
    def of(cls, **stated: Any) -> Strategy:
        """The strategies of these columns or numbers; the other fields have their defaults."""
        fields = {**{name: STATED[name] for name in STRATEGY}, **stated}
        columns = np.broadcast_arrays(*(np.array(v, float, ndmin=1) for v in fields.values()))
        return cls(**dict(zip(fields, columns, strict=True)))

    def take(self, rows: NDArray[np.intp]) -> Strategy:
        """The chosen strategies."""
        return Strategy(**{name: column[rows] for name, column in vars(self).items()})

    def tokens(self, sequence: int) -> Value:
        """Tokens a rank holds of one micro-batch: b s / c."""
        return self.micro_batch * (sequence / self.cp)

    @property
    def norm_split(self) -> Value:
        """Ranks that share the norms and residuals: t with sequence parallelism, else 1."""
        return 1 + self.sequence_parallel * (self.tp - 1)


@dataclass(frozen=True, kw_only=True)
class GridStrategy(Strategy):
    """What a layer sees whose matrices are on a grid: tp shares its features, micro_batch is what
    a rank has."""

    hidden_split: Value
    """Ranks that share hidden states."""

    @property
    def norm_split(self) -> Value:
        return self.hidden_split
