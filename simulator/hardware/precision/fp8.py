"""fp8: linear layers in 8 bits, one scale a tensor, found before each product (current scaling)."""

from dataclasses import replace

from . import bf16
from .number_formats import FP8
from .recipe import Quantisation

_KERNELS = 4
"""The largest value is set to zero and found, the scale follows from it, then the cast. Source:
Transformer Engine d0067d0, quantizer.cpp, Float8CurrentScalingQuantizer, and current_scaling.cu."""

RECIPE = replace(
    bf16.RECIPE,
    name="fp8",
    source="Transformer Engine, Float8CurrentScaling (Megatron-LM: fp8_recipe tensorwise): linear "
    "layers alone, LM head and attention stay in bf16; a tensor is read for its largest value and "
    "read again for the cast; Hopper's products of 8 bits want a transposed copy for the backward "
    "pass, Blackwell's do not",
    linear=FP8,
    quantisation=Quantisation(
        moved=(2 + 2 + 1 + 1, 2 + 2 + 1), kept=1, copies=(2, 1), kernels=_KERNELS
    ),
)
