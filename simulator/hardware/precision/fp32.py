"""fp32: 16 bytes a parameter, everything in 32 bits."""

from .number_formats import FP32
from .recipe import Recipe

RECIPE = Recipe(
    name="fp32",
    source="Megatron-Core, distributed optimizer guide: fp32 parameters, fp32 gradients",
    linear=FP32,
    head=FP32,
    attention=FP32,
    weight=4,
    gradient=4,
    master=0,
    moments=(4, 4),
    activation=4,
    sent=4,
)
