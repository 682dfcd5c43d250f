"""fp8-blockwise: 8 bits with a scale for 1 x 128 activations and 128 x 128 weights."""

from dataclasses import replace

from . import fp8
from .number_formats import FP8_BLOCKS
from .recipe import Quantisation

RECIPE = replace(
    fp8.RECIPE,
    name="fp8-blockwise",
    source="DeepSeek-V3 report, section 3.3; Transformer Engine, Float8BlockScaling (Megatron-LM: "
    "fp8_recipe blockwise): one read, and copies scaled along rows and along columns",
    linear=FP8_BLOCKS,
    quantisation=Quantisation(moved=(2 + 1 + 1, 2 + 1 + 1), kept=1, copies=(2, 2)),
)
