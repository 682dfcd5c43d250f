"""fp8-rowwise: 8 bits with a scale for every row and column."""

from dataclasses import replace

from . import fp8
from .number_formats import FP8_ROWS
from .recipe import Quantisation

_ROWS = 2 + 2 + 1
_COLUMNS = _ROWS * 2.1 / 0.65
"""As many bytes of other kernels: on H100 torch.compile's kernel that scales along columns moves
0.6 to 0.7 TB/s and the one along rows 2.0 to 2.2 (pytorch/pytorch#149982)."""

RECIPE = replace(
    fp8.RECIPE,
    name="fp8-rowwise",
    source="torchao, float8 recipe rowwise (torchtitan: quantize.linear.float8): every operand is "
    "scaled along rows and again along columns, and each time is read for the largest values and "
    "read for the cast",
    linear=FP8_ROWS,
    quantisation=Quantisation(moved=(_ROWS + _COLUMNS, _ROWS + _COLUMNS), kept=1, copies=(2, 2)),
)
