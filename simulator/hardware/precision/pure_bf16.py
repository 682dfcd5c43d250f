"""pure-bf16: 8 bytes a parameter, everything in 16 bits."""

from .number_formats import BF16
from .recipe import Recipe

RECIPE = Recipe(
    name="pure-bf16",
    source="8 N bytes of Adam in 16 bits, as textbooks count them (ledger M7)",
    linear=BF16,
    head=BF16,
    attention=BF16,
    weight=2,
    gradient=2,
    master=0,
    moments=(2, 2),
    activation=2,
    sent=2,
)
