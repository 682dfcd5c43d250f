"""mxfp8: linear layers in 8 bits with a scale for 32 elements."""

from dataclasses import replace

from . import bf16
from .number_formats import MXFP8
from .recipe import Quantisation

_COPY = MXFP8.operand

RECIPE = replace(
    bf16.RECIPE,
    name="mxfp8",
    source="Transformer Engine, MXFP8BlockScaling (Megatron-LM: fp8_recipe mxfp8): one read, and "
    "copies scaled along rows and along columns, of weights too",
    linear=MXFP8,
    quantisation=Quantisation(
        moved=(2 + 2 * _COPY, 2 + 2 * _COPY), kept=_COPY, copies=(2 * _COPY, 2 * _COPY)
    ),
)
