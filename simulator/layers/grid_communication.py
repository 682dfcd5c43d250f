"""Communication of a layer on a grid of tensor ranks: seconds, and how much of them shows.

Gathered weights, their gradients and sums of input gradients may hide behind the products of
their pass (overlap_tp; the three overlaps of axonn-ai/axonn, intra_layer/fully_connected.py); what
a product reads or hands on never does. All elements are sent in the format of activations.
Neglected: that groups along different axes share links at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from ..base.arrays import Value
from ..hardware.cluster import Cluster
from ..operators import collectives, grid_gemms
from ..operators.grid_gemms import Messages
from ..plan.codes import Recompute
from ..plan.tensor_grid import Grid
from ..plan.tensor_mesh import MeshCollective
from .communication import expert_exposed
from .layer_kinds import LayerKind, Local, matrices_of

_TIMES: dict[str, Callable[[Value, collectives.ProcessGroup, Cluster], Value]] = {
    "all_gather": collectives.all_gather,
    "reduce_scatter": collectives.reduce_scatter,
    "all_reduce": collectives.all_reduce,
}


def group(grid: Grid, axis: str, cluster: Cluster) -> collectives.ProcessGroup:
    """The ranks along an axis; those of inner axes lie between two neighbours."""
    stride = 1.0
    for name, size in grid.mesh.items():
        if name == axis:
            break
        stride = stride * size
    return collectives.place(grid.mesh[axis], stride, cluster)


def passes(kind: LayerKind, local: Local) -> tuple[list[Messages], list[Messages]]:
    """What every matrix of a layer sends forward, and backward."""
    assert local.grid
    tokens, matrices = local.tokens * local.grid.tokens, matrices_of(kind, local)
    return (
        [grid_gemms.forward(m, tokens, local.grid) for m in matrices],
        [grid_gemms.backward(m, tokens, local.grid) for m in matrices],
    )


def seconds(found: Iterable[MeshCollective], local: Local) -> Value:
    """Seconds of collectives one after another."""
    assert local.grid
    cluster, out = local.task.cluster, np.zeros(local.tokens.shape)
    groups = {axis: group(local.grid, axis, cluster) for axis in local.grid.mesh}
    for c in found:
        if np.max(local.grid.mesh[c.axis]) > 1:
            size = c.size * local.recipe.sent
            out = out + _TIMES[c.operation](size, groups[c.axis], cluster)
    return out


def exposed(kind: LayerKind, local: Local, forward: Value, backward: Value) -> tuple[Value, Value]:
    """Exposed seconds of a layer's collectives in both passes, whose products take `forward` and
    `backward` seconds. Weights that full recompute gathers again serve the backward pass too."""
    ahead, behind = passes(kind, local)
    again = 1.0 * ((local.s.recompute != Recompute.FULL) | (kind.block is None))
    return _shown(ahead, forward, 1.0, local), _shown(behind, backward, again, local)


def _shown(found: list[Messages], window: Value, gathers: Value | float, local: Local) -> Value:
    """What shows of a pass whose products take `window` seconds, and which gathers weights
    `gathers` times.

    Weights slow what they hide behind as the gathers of ZeRO 3 do, which they resemble.
    """
    software, overlapped = local.task.software, local.s.overlap_tp
    weights = [c for one in found for c in one.weights]
    gathered = seconds((c for c in weights if c.operation == "all_gather"), local)
    moved = gathers * gathered
    moved = moved + seconds((c for c in weights if c.operation != "all_gather"), local)
    sums = seconds((c for one in found for c in one.inputs), local)
    out = seconds((c for one in found for c in one.waited_for), local)
    out = out + expert_exposed(sums, window, software.contention, overlapped)
    left = np.maximum(window - sums, 0.0)
    return out + expert_exposed(moved, left, software.fsdp_contention, overlapped)


def gathered_bytes(kind: LayerKind, local: Local) -> Value:
    """Bytes that are whole on a rank only while the largest product of a layer runs."""
    assert local.grid
    tokens, grid = local.tokens * local.grid.tokens, local.grid
    sizes = [grid_gemms.gathered(m, tokens, grid) for m in matrices_of(kind, local)]
    largest = np.maximum.reduce([np.broadcast_to(size, local.tokens.shape) for size in sizes])
    out: Value = largest * local.recipe.activation
    return out


def kept_bytes(kind: LayerKind, local: Local) -> Value:
    """Bytes of the inputs and outputs of a layer's products on a rank, which their weight
    gradients need."""
    assert local.grid
    tokens, grid = local.tokens * local.grid.tokens, local.grid
    sizes = [grid_gemms.kept(m, tokens, grid) for m in matrices_of(kind, local)]
    return np.asarray(local.recipe.activation * sum(sizes))
