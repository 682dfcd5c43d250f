"""bf16: 18 bytes a parameter, with fp32 gradients, master weights and moments."""

from .number_formats import BF16
from .recipe import Recipe

RECIPE = Recipe(
    name="bf16",
    source="Megatron-Core, distributed optimizer guide: bf16 parameters, fp32 gradients",
    linear=BF16,
    head=BF16,
    attention=BF16,
    weight=2,
    gradient=4,
    master=4,
    moments=(4, 4),
    activation=2,
    sent=2,
)
