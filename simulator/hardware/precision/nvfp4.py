"""nvfp4: linear layers in 4 bits with a scale for 16 elements and one for the tensor."""

from dataclasses import replace

from . import bf16
from .number_formats import NVFP4
from .recipe import Quantisation

_COPY = NVFP4.operand

RECIPE = replace(
    bf16.RECIPE,
    name="nvfp4",
    source="Transformer Engine, NVFP4BlockScaling (Megatron-LM: fp4_recipe nvfp4): a tensor is "
    "read for its largest value and read for the cast, and copies are scaled along rows and, after "
    "a Hadamard transform, along columns",
    linear=NVFP4,
    quantisation=Quantisation(
        moved=(2 + 2 + 2 * _COPY, 2 + 2 + 2 * _COPY), kept=_COPY, copies=(2 * _COPY, 2 * _COPY)
    ),
)
