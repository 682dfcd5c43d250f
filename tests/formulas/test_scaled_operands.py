"""Bytes that scaling an operand moves, counted by hand from the kernels of each recipe."""

import pytest

from plan3d.simulator.hardware.precision import RECIPE_TABLE

MX, NV = 1 + 1 / 32, 0.5 + 1 / 16
"""Bytes of a value with its share of a scale: one of 32, of 8 bits; one of 16, of 4 bits."""


@pytest.mark.parametrize(
    ("name", "forward", "backward"),
    [
        # Reads 16 bits once, writes the values and those of the transpose, of gradients once.
        ("fp8-delayed", 2 + 1 + 1, 2 + 1),
        # Copies along rows and along columns in both passes.
        ("fp8-blockwise", 2 + 1 + 1, 2 + 1 + 1),
        ("mxfp8", 2 + MX + MX, 2 + MX + MX),
        # Read for the largest value, and again for the cast.
        ("nvfp4", 2 + 2 + NV + NV, 2 + 2 + NV + NV),
    ],
)
def test_bytes_an_operand(name, forward, backward):
    recipe = next(recipe for recipe in RECIPE_TABLE if recipe.name == name)
    assert recipe.quantisation.bytes_moved == pytest.approx((forward, backward))
