"""fp8: linear layers in 8 bits; weights, activations and all that is kept as in bf16."""

from dataclasses import replace

from . import bf16
from .number_formats import FP8

RECIPE = replace(
    bf16.RECIPE,
    name="fp8",
    source="Transformer Engine: fp8 inside linear layers, weights and activations in bf16 between "
    "them; Megatron-LM leaves the LM head and attention in bf16",
    linear=FP8,
)
