"""Drawing of a grid of tensor ranks: the ranks, and the part of a product that rank 0 holds.

The grid is drawn a depth beside the other, ranks in their cells; each matrix of y = x w is cut
along the axes of the grid, and the part that rank 0 computes with is filled.
"""

from __future__ import annotations

from typing import Any

from ..plan.plan import Plan
from ..plan.tensor_grid import Grid, Product, Tensor, format_grid, grid_of, group_ranks
from ..task import Task
from .palette import BLUE, GREY, ORANGE, PALE

CELLS = 16
"""Rows, columns or depths, and cuts of a matrix, that are drawn; more are said in words."""
SIDE = 2.0
"""Length of a matrix's sides, in cells."""


def grid_panels(ranks_axes: Any, product_axes: Any, task: Task, plan: Plan) -> None:
    """The grid of a plan that has one, and the product up a layer."""
    grid = grid_of(plan.tp_grid, plan.tp)
    _ranks(ranks_axes, task, grid, format_grid(int(plan.tp_grid)))
    _product(product_axes, grid, grid.layout())


def _ranks(axes: Any, task: Task, grid: Grid, name: str) -> None:
    """The cells of the grid: columns are innermost, then rows, then depth."""
    from matplotlib.patches import Rectangle

    node, shown = task.cluster.gpus_per_node, min(grid.depth, CELLS)
    rows, columns = min(grid.rows, CELLS), min(grid.columns, CELLS)
    for depth in range(shown):
        left = depth * (columns + 1)
        axes.text(left, -0.3, f"depth {depth}" if grid.depth > 1 else "", va="bottom", fontsize=9)
        for row in range(rows):
            for column in range(columns):
                rank = column + grid.columns * (row + grid.rows * depth)
                colour = ORANGE if rank == 0 else PALE if rank // node % 2 == 0 else "#DCEBF5"
                cell: dict[str, Any] = {"facecolor": colour, "edgecolor": "white", "linewidth": 1.5}
                axes.add_patch(Rectangle((left + column, row), 1, 1, **cell))
                axes.text(
                    left + column + 0.5, row + 0.5, rank, ha="center", va="center", fontsize=8
                )
    wide = shown * (columns + 1) - 1
    more = " (the first of them)" if max(grid.rows, grid.columns, grid.depth) > CELLS else ""
    axes.set(xlim=(-0.5, max(wide, 8) + 0.5), ylim=(rows + 0.3, -0.9), aspect="equal")
    deep = f", {grid.depth} depths" if grid.depth > 1 else ""
    axes.set_title(
        f"Tensor ranks on the grid {name}{more}: {grid.rows} rows, {grid.columns} columns{deep}\n"
        f"nodes of {node} in turns of two colours", loc="left", fontsize=10,
    )  # fmt: skip
    axes.axis("off")


def _product(axes: Any, grid: Grid, product: Product) -> None:
    """x w = y side by side."""
    left = 0.0
    for sign, name in (("", "x"), (r"$\times$", "w"), ("=", "y")):
        tensor: Tensor = getattr(product, name)
        axes.text(left + 0.5, SIDE / 2, sign, fontsize=18, ha="center", va="center")
        _matrix(axes, grid, product, tensor, name, left + 1.4)
        left += SIDE + 2.9
    summed = product.split.get("in", ())
    partial = group_ranks(summed, grid.mesh) > 1
    after = f"y: partial sums, reduced over {' and '.join(summed)}" if partial else ""
    axes.set(xlim=(-0.2, left), ylim=(SIDE + 1.1, -0.7), aspect="equal")
    axes.set_title("A product that widens a layer, and the part of rank 0", loc="left", fontsize=10)
    axes.text(0.2, SIDE + 0.95, after, fontsize=9)
    axes.axis("off")


def _matrix(
    axes: Any, grid: Grid, product: Product, tensor: Tensor, name: str, left: float
) -> None:
    """One matrix, cut as it is computed with; what is kept divided further is said below."""
    from matplotlib.patches import Rectangle

    cuts = [group_ranks(product.split.get(d, ()), grid.mesh) for d in tensor.dimensions]
    down, across = (int(n) for n in cuts)
    axes.add_patch(Rectangle((left, 0), SIDE / across, SIDE / down, facecolor=ORANGE, alpha=0.8))
    for i in range(1, down if down <= CELLS else 1):
        axes.plot([left, left + SIDE], [SIDE * i / down] * 2, color=GREY, linewidth=0.8)
    for i in range(1, across if across <= CELLS else 1):
        axes.plot([left + SIDE * i / across] * 2, [0, SIDE], color=GREY, linewidth=0.8)
    axes.add_patch(Rectangle((left, 0), SIDE, SIDE, fill=False, linewidth=1.3))
    labels = [_cut_label(product, d, n) for d, n in zip(tensor.dimensions, cuts, strict=True)]
    axes.text(left - 0.08, SIDE / 2, labels[0], rotation=90, ha="right", va="center", fontsize=8)
    axes.text(left + SIDE / 2, -0.08, labels[1], ha="center", va="bottom", fontsize=8)
    kept = [axis for axis in tensor.stored_over if grid.mesh[axis] > 1]
    told = f"{name}: kept divided over\n{' and '.join(kept)}, gathered before" if kept else name
    axes.text(left + SIDE / 2, SIDE + 0.12, told, ha="center", va="top", fontsize=9, color=BLUE)


def _cut_label(product: Product, dimension: str, count: Any) -> str:
    """'tokens / 4 rows'."""
    over = " x ".join(product.split.get(dimension, ()))
    return f"{dimension} / {int(count)} {over}" if count > 1 else dimension
