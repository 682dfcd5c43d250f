"""amp: 16 bytes a parameter in fp32, whose products are of fp16 (automatic mixed precision)."""

from .number_formats import FP16
from .recipe import Quantisation, Recipe

RECIPE = Recipe(
    name="amp",
    source="PyTorch, automatic mixed precision: fp32 parameters and gradients, products of fp16",
    linear=FP16,
    head=FP16,
    attention=FP16,
    weight=4,
    gradient=4,
    master=0,
    moments=(4, 4),
    activation=2,
    sent=2,
    # The 16-bit copies of weights are cached from forward to backward pass; casts are not timed.
    quantisation=Quantisation(moved=(0.0, 0.0), kept=2, copies=(2.0, 2.0)),
)
