"""mixed: 12 bytes a parameter: fp32 weights and second moment, bf16 gradients and first moment."""

from .number_formats import BF16
from .recipe import Recipe

RECIPE = Recipe(
    name="mixed",
    source="12 N bytes of mixed-precision Adam, as textbooks count them (ledger M3)",
    linear=BF16,
    head=BF16,
    attention=BF16,
    weight=4,
    gradient=2,
    master=0,
    moments=(2, 4),
    activation=2,
    sent=2,
)
