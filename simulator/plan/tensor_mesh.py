"""What the ranks of a mesh hold and send when named dimensions are split over its axes.

Ranks form a mesh with named axes; tensors have named dimensions; a *split* says over which axes
a dimension is divided while a product is computed. Everything else follows:

    a rank's part     every dimension divided by the axes it is split over
    an operand that is kept divided over more axes than that is gathered over them before
    a dimension that the result lacks was summed: the ranks it is split over hold partial sums,
    which are scattered over an axis that keeps the result divided, and reduced over any other

Data parallelism is a split of the tokens, Megatron's tensor parallelism one of the features, and
2-D, 2.5-D and 3-D matrix products are splits over several axes (tensor_grid).
Source: Shazeer et al. 2018, Mesh-TensorFlow: deep learning for supercomputers.
Sizes and axes may be columns of numbers; all sizes are in elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, NamedTuple

Number = Any
"""A number, or a column of them."""
Mesh = Mapping[str, Number]
"""Ranks along each axis."""
Sizes = Mapping[str, Number]
"""The whole size of each dimension."""
Split = Mapping[str, tuple[str, ...]]
"""Axes that each dimension is divided over while a product is computed; () when left out."""


class Tensor(NamedTuple):
    """A tensor of a product, and the axes it is kept divided over besides those of the split."""

    dimensions: tuple[str, ...]
    kept: tuple[str, ...] = ()


class MeshCollective(NamedTuple):
    """A collective that every rank takes part in."""

    operation: str
    """all_gather, reduce_scatter or all_reduce, as functions of `collectives`."""
    tensor: Tensor
    axis: str
    size: Number
    """Elements of the whole buffer: gathered, or before scattering."""


class Product(NamedTuple):
    """y = x w, summed over the dimensions that y lacks, and how it is split."""

    x: Tensor
    w: Tensor
    y: Tensor
    split: Split


def ranks(axes: Iterable[str], mesh: Mesh) -> Number:
    """Ranks of the group along some axes."""
    return prod(mesh[axis] for axis in axes)


def local(tensor: Tensor, split: Split, sizes: Sizes, mesh: Mesh) -> Number:
    """Elements of a rank's part while a product is computed."""
    parts = (sizes[name] / ranks(split.get(name, ()), mesh) for name in tensor.dimensions)
    return prod(parts)


def held(tensor: Tensor, split: Split, sizes: Sizes, mesh: Mesh) -> Number:
    """Elements of a rank's part between products."""
    return local(tensor, split, sizes, mesh) / ranks(tensor.kept, mesh)


def gathers(tensor: Tensor, split: Split, sizes: Sizes, mesh: Mesh) -> list[MeshCollective]:
    """What brings an operand into the split, the last axis first."""
    whole = local(tensor, split, sizes, mesh)
    out = []
    for i, axis in enumerate(tensor.kept):
        size = whole / ranks(tensor.kept[:i], mesh)
        out.append(MeshCollective("all_gather", tensor, axis, size))
    return out[::-1]


def reductions(
    tensor: Tensor, operands: tuple[Tensor, Tensor], split: Split, sizes: Sizes, mesh: Mesh
) -> list[MeshCollective]:
    """What adds up the partial sums of a result and leaves it as it is kept."""
    summed = {name for operand in operands for name in operand.dimensions} - {*tensor.dimensions}
    axes = [axis for name, over in split.items() if name in summed for axis in over]
    size, out = local(tensor, split, sizes, mesh), []
    for axis in sorted(axes, key=lambda axis: axis not in tensor.kept):
        scattered = axis in tensor.kept
        operation = "reduce_scatter" if scattered else "all_reduce"
        out.append(MeshCollective(operation, tensor, axis, size))
        if scattered:
            size = size / mesh[axis]
    return out


def sent(
    result: Tensor, operands: tuple[Tensor, Tensor], split: Split, sizes: Sizes, mesh: Mesh
) -> list[MeshCollective]:
    """The collectives of one product of two tensors."""
    gathered = [c for operand in operands for c in gathers(operand, split, sizes, mesh)]
    return gathered + reductions(result, operands, split, sizes, mesh)


def forward(p: Product, sizes: Sizes, mesh: Mesh) -> list[MeshCollective]:
    """Collectives of y = x w."""
    return sent(p.y, (p.x, p.w), p.split, sizes, mesh)


def input_gradient(p: Product, sizes: Sizes, mesh: Mesh) -> list[MeshCollective]:
    """Collectives of dx = dy w', under the same split."""
    return sent(p.x, (p.y, p.w), p.split, sizes, mesh)


def weight_gradient(p: Product, sizes: Sizes, mesh: Mesh) -> list[MeshCollective]:
    """Collectives of dw = x' dy, under the same split."""
    return sent(p.w, (p.x, p.y), p.split, sizes, mesh)


def elements_sent(found: Iterable[MeshCollective], mesh: Mesh) -> Number:
    """Elements that a rank sends by rings: (n-1)/n of a buffer, twice that to reduce it
    (Patarasuk and Yuan 2009)."""
    times = {"all_reduce": 2}
    return sum(times.get(c.operation, 1) * (1 - 1 / mesh[c.axis]) * c.size for c in found)
