"""fp8-delayed: as fp8, with scales from the largest values of earlier steps (delayed scaling)."""

from dataclasses import replace

from . import fp8
from .recipe import Quantisation

RECIPE = replace(
    fp8.RECIPE,
    name="fp8-delayed",
    source="Transformer Engine, DelayedScaling (Megatron-LM: fp8_recipe delayed): the cast reads a "
    "tensor once, since its scale is known before",
    quantisation=Quantisation(moved=(2 + 1 + 1, 2 + 1), kept=1, copies=(2, 1), together=True),
)
