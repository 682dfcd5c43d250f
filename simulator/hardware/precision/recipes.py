"""The table of precision recipes: by name, and by the code that a plan carries."""

from __future__ import annotations

from enum import IntEnum

from ...base.registry import ByCode, Codes, Registry
from . import (
    amp,
    bf16,
    fp8,
    fp8_blockwise,
    fp8_delayed,
    fp8_rowwise,
    fp16,
    fp32,
    mixed,
    mxfp8,
    nvfp4,
    pure_bf16,
)
from .recipe import Recipe


class Precision(IntEnum):
    """Codes of the shipped recipes; those that others add come after them."""

    BF16 = 0
    FP16 = 1
    FP8 = 2
    FP32 = 3
    MIXED = 4
    PURE_BF16 = 5
    FP8_DELAYED = 6
    FP8_BLOCKWISE = 7
    FP8_ROWWISE = 8
    MXFP8 = 9
    NVFP4 = 10
    AMP = 11


_SHIPPED = {
    Precision.BF16: bf16.RECIPE,
    Precision.FP16: fp16.RECIPE,
    Precision.FP8: fp8.RECIPE,
    Precision.FP32: fp32.RECIPE,
    Precision.MIXED: mixed.RECIPE,
    Precision.PURE_BF16: pure_bf16.RECIPE,
    Precision.FP8_DELAYED: fp8_delayed.RECIPE,
    Precision.FP8_BLOCKWISE: fp8_blockwise.RECIPE,
    Precision.FP8_ROWWISE: fp8_rowwise.RECIPE,
    Precision.MXFP8: mxfp8.RECIPE,
    Precision.NVFP4: nvfp4.RECIPE,
    Precision.AMP: amp.RECIPE,
}
_BY_NAME: Registry[Recipe] = Registry(
    "precision", "plan3d.precisions", {recipe.name: recipe for recipe in _SHIPPED.values()}
)
RECIPES = ByCode(_BY_NAME)
"""Every recipe by its code."""
CODES = Codes(_BY_NAME)
"""The code of every recipe by name."""


def register_recipe(recipe: Recipe) -> int:
    """Add a recipe, which plans then name like the shipped ones; its code, which holds for this
    process. ValueError where another recipe has its name."""
    _BY_NAME.register(recipe.name, recipe)
    return CODES[recipe.name]
