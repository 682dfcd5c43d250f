"""Columns of a layer's cost, and the table from which placements gather rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from ..base.arrays import Index, Value


class Cost(IntEnum):
    """Columns of a layer's cost; all of them add up over the layers of a stage."""

    MATMUL = 0
    ATTENTION = 1
    MEMORY_BOUND = 2
    RECOMPUTE = 3
    TENSOR_COMM = 4
    CONTEXT_COMM = 5
    EXPERT_COMM = 6
    HOST_COMM = 7
    LAUNCH = 8
    FORWARD = 9
    """Seconds of the forward pass alone, contained in the parts above."""
    DENSE_PARAMETERS = 10
    EXPERT_PARAMETERS = 11
    ACTIVATIONS = 12
    """Bytes kept per micro-batch in flight."""
    UNITS = 13
    """Layers that gather and scatter their parameters on their own."""
    TOTAL = 14
    """Seconds of all parts."""
    LOGITS = 15
    """Bytes of logits that wait for the backward pass."""
    GATHERED_INPUTS = 16
    """Bytes of gathered inputs that a stack may keep in addition, per micro-batch in flight."""
    WEIGHT_GRADIENT_INPUTS = 17
    """Bytes kept per micro-batch of which only the weight gradients are missing."""
    HOST_ACTIVATIONS = 18
    """Bytes kept per micro-batch in host memory instead."""
    SCALED_COPIES = 19
    """Bytes of copies of weights in the format that products read."""
    MATRIX_PARAMETERS = 20
    """Parameters of hidden layers: those that are neither of embedding nor of head."""
    SCALED_PARAMETERS = 21
    """Those of them whose products read a scaled format."""
    ORTHOGONALISATION = 22
    """FLOPs to orthogonalise their matrices once, each rank its part of them (Megatron-Core's
    muon_tp_mode blockwise)."""
    FROZEN_WEIGHTS = 23
    """Bytes of weights that are not trained; the parameters above are those that are."""
    EXPERT_ORTHOGONALISATION = 24
    """The FLOPs of ORTHOGONAL that are of routed experts."""
    OVERLAPPED_A2A = 25
    """Seconds of exchanges of experts that hide beside another micro-batch, where there is one."""


SECONDS = slice(Cost.MATMUL, Cost.LAUNCH + 1)
"""The columns that are seconds and add up to a micro-batch's time."""

COMPUTE = slice(Cost.MATMUL, Cost.RECOMPUTE)
"""Those of them that are kernels of one pass."""
COMMUNICATION = slice(Cost.TENSOR_COMM, Cost.LAUNCH + 1)
"""Those of them that are collectives, copies or launches."""


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """Costs [strategy, kind, Cost], and what recompute and sharding need of one layer."""

    table: Value
    working_set: Value
    """Bytes alive while one layer runs alone: inputs gathered, and its activations where it is run
    again or the temporaries of its loss, whichever are more [kind, strategy]."""
    unit_parameters: Value
    """Parameters of one layer on a rank [kind, strategy]."""
    boundary_bytes: Value
    """Bytes of a micro-batch's hidden states on a rank as stages exchange them [kind, strategy];
    a single row where all layers hand on the same."""

    def take(self, rows: Index) -> LayerCosts:
        """Those of the chosen strategies."""
        return LayerCosts(
            self.table.take(rows, axis=0),
            self.working_set[:, rows],
            self.unit_parameters[:, rows],
            self.boundary_bytes[:, rows],
        )


def joined(parts: Sequence[LayerCosts]) -> LayerCosts:
    """The strategies of several tables, one table after the other."""
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts], axis=-1)
        for name in ("working_set", "unit_parameters", "boundary_bytes")
    }
    return LayerCosts(np.concatenate([part.table for part in parts]), **columns)
