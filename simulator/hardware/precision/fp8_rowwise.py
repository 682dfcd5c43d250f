"""fp8-rowwise: 8 bits with a scale for every row and column."""

from dataclasses import replace

from . import fp8
from .number_formats import FP8_ROWS
from .recipe import Quantisation

RECIPE = replace(
    fp8.RECIPE,
    name="fp8-rowwise",
    source="torchao, float8 recipe rowwise (torchtitan: quantize.linear.float8): every operand is "
    "scaled along rows and again along columns, and each time is read for the largest values and "
    "read for the cast",
    linear=FP8_ROWS,
    quantisation=Quantisation(moved=(2 * (2 + 2 + 1), 2 * (2 + 2 + 1)), kept=1, copies=(2, 2)),
)
