"""Number formats of matrix products, and the measured kernels that each of them runs on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class NumberFormat:
    """A format that accelerators multiply in."""

    name: str
    """Key of Accelerator.peak."""
    width: str
    """Key of Accelerator.gemm: the kernels whose operands are that wide."""
    operand: int
    """Bytes of an operand as the constants of those kernels count them; products in 8 bits read
    16-bit activations, which they quantise."""
    scaled: bool = False
    """Operands are divided by scales of their own before the product."""


BF16 = NumberFormat(name="bf16", width="16bit", operand=2)
FP16 = NumberFormat(name="fp16", width="16bit", operand=2)
FP8 = NumberFormat(name="fp8", width="8bit", operand=2, scaled=True)
TF32 = NumberFormat(name="tf32", width="32bit", operand=4)
FP32 = NumberFormat(name="fp32", width="32bit", operand=4)

FORMATS = {form.name: form for form in (BF16, FP16, FP8, TF32, FP32)}
"""Every number format by name."""
WIDTHS = ("32bit", "16bit", "8bit")
"""Every width of operands."""
EVERYWHERE = (FP32.width, BF16.width)
"""Widths of which every accelerator has kernels; the others go with the peak of their format."""
