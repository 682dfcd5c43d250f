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
from .communication import exposed_exchange
from .layer_kinds import LayerContext, LayerKind, matrices_of

_TIMES: dict[str, Callable[[Value, collectives.ProcessGroup, Cluster], Value]] = {
    "all_gather": collectives.all_gather,
    "reduce_scatter": collectives.reduce_scatter,
    "all_reduce": collectives.all_reduce,
}


def axis_group(grid: Grid, axis: str, cluster: Cluster) -> collectives.ProcessGroup:
    """The ranks along an axis; those of inner axes lie between two neighbours."""
    stride = 1.0
    for name, size in grid.mesh.items():
        if name == axis:
            break
        stride = stride * size
    return collectives.place_group(grid.mesh[axis], stride, cluster)


def grid_messages(kind: LayerKind, local: LayerContext) -> tuple[list[Messages], list[Messages]]:
    """What every matrix of a layer sends forward, and backward."""
    assert local.grid
    tokens, matrices = local.tokens * local.grid.tokens, matrices_of(kind, local)
    return (
        [grid_gemms.forward_messages(m, tokens, local.grid) for m in matrices],
        [grid_gemms.backward_messages(m, tokens, local.grid) for m in matrices],
    )


def mesh_seconds(found: Iterable[MeshCollective], local: LayerContext) -> Value:
    """Seconds of collectives one after another."""
    assert local.grid
    cluster, out = local.task.cluster, np.zeros(local.tokens.shape)
    groups = {axis: axis_group(local.grid, axis, cluster) for axis in local.grid.mesh}
    for c in found:
        if np.max(local.grid.mesh[c.axis]) > 1:
            size = c.size * local.recipe.sent
            out = out + _TIMES[c.operation](size, groups[c.axis], cluster)
    return out


def grid_exposed(
    kind: LayerKind, local: LayerContext, forward: Value, backward: Value
) -> tuple[Value, Value]:
    """Exposed seconds of a layer's collectives in both passes, whose products take `forward` and
    `backward` seconds. Weights that full recompute gathers again serve the backward pass too."""
    ahead, behind = grid_messages(kind, local)
    again = 1.0 * ((local.s.recompute != Recompute.FULL) | (kind.block is None))
    return _exposed_in_pass(ahead, forward, 1.0, local), _exposed_in_pass(
        behind, backward, again, local
    )


def _exposed_in_pass(
    found: list[Messages], window: Value, gathers: Value | float, local: LayerContext
) -> Value:
    """What shows of a pass whose products take `window` seconds, and which gathers weights
    `gathers` times.

    Weights slow what they hide behind as the gathers of ZeRO 3 do, which they resemble.
    """
    software, overlapped = local.task.software, local.s.overlap_tp
    weights = [c for one in found for c in one.weights]
    gathered = mesh_seconds((c for c in weights if c.operation == "all_gather"), local)
    moved = gathers * gathered
    moved = moved + mesh_seconds((c for c in weights if c.operation != "all_gather"), local)
    sums = mesh_seconds((c for one in found for c in one.inputs), local)
    out = mesh_seconds((c for one in found for c in one.blocking), local)
    out = out + exposed_exchange(sums, window, software.contention, overlapped)
    left = np.maximum(window - sums, 0.0)
    return out + exposed_exchange(moved, left, software.fsdp_contention, overlapped)


def gathered_bytes(kind: LayerKind, local: LayerContext) -> Value:
    """Bytes that are whole on a rank only while the largest product of a layer runs."""
    assert local.grid
    tokens, grid = local.tokens * local.grid.tokens, local.grid
    sizes = [grid_gemms.gathered_elements(m, tokens, grid) for m in matrices_of(kind, local)]
    largest = np.maximum.reduce([np.broadcast_to(size, local.tokens.shape) for size in sizes])
    out: Value = largest * local.recipe.activation
    return out


def kept_bytes(kind: LayerKind, local: LayerContext) -> Value:
    """Bytes of the inputs and outputs of a layer's products on a rank, which their weight
    gradients need."""
    assert local.grid
    tokens, grid = local.tokens * local.grid.tokens, local.grid
    sizes = [grid_gemms.kept_elements(m, tokens, grid) for m in matrices_of(kind, local)]
    return np.asarray(local.recipe.activation * sum(sizes))
