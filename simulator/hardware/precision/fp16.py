"""fp16: 20 bytes a parameter, with fp16 gradients, fp32 copies of both and fp32 moments."""

from .number_formats import FP16
from .recipe import Recipe

RECIPE = Recipe(
    name="fp16",
    source="Megatron-Core, distributed optimizer guide: fp16 parameters, fp16 gradients",
    linear=FP16,
    head=FP16,
    attention=FP16,
    weight=2,
    gradient=2,
    # fp32 copies of the weight and, while the optimizer runs, of the gradient.
    master=8,
    moments=(4, 4),
    activation=2,
    sent=2,
)
