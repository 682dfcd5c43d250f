"""Number formats of matrix products, and the measured kernels that each of them runs on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...base.arrays import Value


@dataclass(frozen=True, kw_only=True, slots=True)
class NumberFormat:
    """A format that accelerators multiply in."""

    name: str
    """Key of Accelerator.format_rates."""
    width: str
    """Key of Accelerator.gemm: the kernels whose operands are that wide."""
    operand: float
    """Bytes of an operand as it is read."""
    arithmetic: str = ""
    """Key of Accelerator.peak, where that is another name: the scales differ, the arithmetic is
    the same."""
    scaled: bool = False
    """Operands are divided by scales of their own before the product."""

    def moved(self, m: Value, n: Value, k: Value) -> Value:
        """Bytes of both operands and the result of [m, k] times [k, n]; results have 16 bits at
        least."""
        out: Value = self.operand * (m * k + k * n) + max(self.operand, 2.0) * (m * n)
        return out

    @property
    def peak(self) -> str:
        """Key of Accelerator.peak."""
        return self.arithmetic or self.name


BF16 = NumberFormat(name="bf16", width="16bit", operand=2)
FP16 = NumberFormat(name="fp16", width="16bit", operand=2)
FP8 = NumberFormat(name="fp8", width="8bit", operand=1, scaled=True)
"""One scale a tensor."""
FP8_ROWS = NumberFormat(name="fp8-rowwise", width="8bit", operand=1, arithmetic="fp8", scaled=True)
"""One scale a row of the left and a column of the right operand."""
FP8_BLOCKS = NumberFormat(
    name="fp8-blockwise", width="8bit", operand=1, arithmetic="fp8", scaled=True
)
"""One scale for 1 x 128 activations and 128 x 128 weights."""
MXFP8 = NumberFormat(name="mxfp8", width="8bit", operand=1 + 1 / 32, scaled=True)
"""One 8-bit scale for 32 elements (OCP Microscaling Formats 1.0, section 5.2)."""
NVFP4 = NumberFormat(name="nvfp4", width="4bit", operand=1 / 2 + 1 / 16, scaled=True)
"""4 bits, one 8-bit scale for 16 elements."""
TF32 = NumberFormat(name="tf32", width="32bit", operand=4)
FP32 = NumberFormat(name="fp32", width="32bit", operand=4)

_EVERY = (BF16, FP16, FP8, FP8_ROWS, FP8_BLOCKS, MXFP8, NVFP4, TF32, FP32)
FORMATS = {form.name: form for form in _EVERY if form.peak == form.name}
"""Every number format that has a peak of its own, by name."""
SCALED = tuple(form.name for form in _EVERY if form.scaled)
"""Names of the formats whose operands are scaled."""
WIDTHS = ("32bit", "16bit", "8bit", "4bit")
"""Every width of operands."""
EVERYWHERE = (FP32.width, BF16.width)
"""Widths of which every accelerator has kernels; the others go with the peak of their format."""
RATE_OF_PEAK = 0.93
"""Rate of a scaled product over the 16-bit one of the same sizes, as a share of the ratio of their
peaks, where none was measured: 0.95 (fp8) on H200 NVL, 0.95 (fp8), 0.90 (mxfp8) and 0.86 (nvfp4) on
B300, medians 0.94 to 0.98 of 128 x 128 blocks on H100 to GB300. Source: Transformer Engine
d0067d0, docs/examples/gemm_profiling, operands already quantised; GEMM tables of
aiconfigurator-core 0.12.0 (sglang), less the quantisation of the activation."""
