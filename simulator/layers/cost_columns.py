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
    TENSOR_CONTENTION = 7
    """Seconds by which those collectives slow the GEMMs that hide them."""
    CONTEXT_CONTENTION = 8
    """The same of a ring and the attention that hides it."""
    EXPERT_CONTENTION = 9
    """The same of exchanges of experts and the kernels that hide them."""
    HOST_COMM = 10
    LAUNCH = 11
    FORWARD = 12
    """Seconds of the forward pass alone, contained in the parts above."""
    DENSE_PARAMETERS = 13
    EXPERT_PARAMETERS = 14
    ACTIVATIONS = 15
    """Bytes kept per micro-batch in flight."""
    UNITS = 16
    """Layers that gather and scatter their parameters on their own."""
    TOTAL = 17
    """Seconds of all parts."""
    LOGITS = 18
    """Bytes of logits that wait for the backward pass."""
    GATHERED_INPUTS = 19
    """Bytes of gathered inputs that a stack may keep in addition, per micro-batch in flight."""
    WEIGHT_GRADIENT_INPUTS = 20
    """Bytes kept per micro-batch of which only the weight gradients are missing."""
    HOST_ACTIVATIONS = 21
    """Bytes kept per micro-batch in host memory instead."""
    SCALED_COPIES = 22
    """Bytes of copies of weights in the format that products read."""
    MATRIX_PARAMETERS = 23
    """Parameters of hidden layers: those that are neither of embedding nor of head."""
    SCALED_PARAMETERS = 24
    """Those of them whose products read a scaled format."""
    ORTHOGONALISATION = 25
    """FLOPs to orthogonalise their matrices once, each rank its part of them (Megatron-Core's
    muon_tp_mode blockwise)."""
    FROZEN_WEIGHTS = 26
    """Bytes of weights that are not trained; the parameters above are those that are."""
    EXPERT_ORTHOGONALISATION = 27
    """The FLOPs of ORTHOGONAL that are of routed experts."""
    OVERLAPPED_A2A = 28
    """Seconds that exchanges of experts save by hiding beside another micro-batch, where there is
    one."""
    WEIGHT_GRADIENT = 29
    """Seconds of weight gradients, launches included, where they are a pass of their own."""
    SPLIT_LAUNCH = 30
    """Seconds that launches then add, as either part of the backward pass waits for its own; not
    among the parts above."""
    FORWARD_HOOKS = 31
    BACKWARD_HOOKS = 32
    """Seconds that hooks of the host around modules and gradients add to either pass under ZeRO 3;
    not among the parts above."""
    GRADIENT_HOOKS = 33
    """Those of gradients alone, under ZeRO 2."""
    TRAINED_TENSORS = 34
    """Tensors of hidden layers that have a gradient."""
    FORWARD_A2A = 35
    BACKWARD_A2A = 36
    """Seconds of exchanges of experts in either pass, those that hide included."""


SECONDS = slice(Cost.MATMUL, Cost.LAUNCH + 1)
"""The columns that are seconds and add up to a micro-batch's time."""

COMPUTE = slice(Cost.MATMUL, Cost.RECOMPUTE)
"""Those of them that are kernels of one pass."""
COMMUNICATION = slice(Cost.TENSOR_COMM, Cost.LAUNCH + 1)
"""Those of them that are collectives and what they slow, copies or launches."""
COLLECTIVES = slice(Cost.TENSOR_COMM, Cost.EXPERT_CONTENTION + 1)
"""Those of them that follow from collectives."""
HOOKS = slice(Cost.FORWARD_HOOKS, Cost.GRADIENT_HOOKS + 1)
"""The columns of what hooks add."""
A2A = slice(Cost.FORWARD_A2A, Cost.BACKWARD_A2A + 1)
"""Those of exchanges of experts."""


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
