"""Which number formats does a training recipe use, and how many bytes do they take?

Bytes a parameter: bf16 18 = 2 weight + 4 gradient + 12 (fp32 master weight and two moments);
fp16 20 = 2 + 2 + 16 (the same and an fp32 copy of the gradient); fp32 16.
Source: Megatron-Core, distributed optimizer guide, table of bytes per parameter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum


class Precision(IntEnum):
    """Number formats of weights, gradients and optimizer state; see RECIPES."""

    BF16 = 0
    FP16 = 1
    FP8 = 2
    FP32 = 3
    MIXED = 4
    PURE_BF16 = 5


class Optimizer(IntEnum):
    """Adam keeps two moments a parameter, SGD one (momentum)."""

    ADAM = 0
    SGD = 1


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Bytes a parameter and the formats that GEMMs and activations use."""

    gemm_format: str
    """Key of Accelerator.peak for the linear layers."""
    gemm_width: str
    """Key of Accelerator.gemm."""
    attention_format: str
    weight: int
    gradient: int
    master: int
    """fp32 copies that the optimizer keeps besides its moments."""
    moments: tuple[int, int]
    """Bytes of Adam's first and second moment."""
    activation: int = 2
    """Bytes of one stored activation or communicated element."""

    def optimizer_bytes(self, optimizer: int) -> int:
        """Bytes a parameter of optimizer state: SGD keeps only the first moment."""
        kept = self.moments if optimizer == Optimizer.ADAM else self.moments[:1]
        return self.master + sum(kept)

    def in_sixteen_bits(self) -> Recipe:
        """What runs the LM head: fp8 recipes leave it in 16 bits."""
        if self.gemm_width != "8bit":
            return self
        return replace(self, gemm_width="16bit", gemm_format=self.attention_format)


def _sixteen_bit(number_format: str, gradient: int, master: int) -> Recipe:
    return Recipe(
        gemm_format=number_format,
        gemm_width="16bit",
        attention_format=number_format,
        weight=2,
        gradient=gradient,
        master=master,
        moments=(4, 4),
    )


RECIPES: dict[Precision, Recipe] = {
    Precision.BF16: _sixteen_bit("bf16", gradient=4, master=4),
    Precision.FP16: _sixteen_bit("fp16", gradient=2, master=8),
    # Linear layers in fp8 with bf16 weights and activations kept (Transformer Engine's default).
    Precision.FP8: Recipe(
        gemm_format="fp8",
        gemm_width="8bit",
        attention_format="bf16",
        weight=2,
        gradient=4,
        master=4,
        moments=(4, 4),
    ),
    Precision.FP32: Recipe(
        gemm_format="fp32",
        gemm_width="32bit",
        attention_format="fp32",
        weight=4,
        gradient=4,
        master=0,
        moments=(4, 4),
        activation=4,
    ),
    # fp32 weights, bf16 gradients and first moment, fp32 second moment: 12 bytes (ledger M3).
    Precision.MIXED: Recipe(
        gemm_format="bf16",
        gemm_width="16bit",
        attention_format="bf16",
        weight=4,
        gradient=2,
        master=0,
        moments=(2, 4),
    ),
    # Everything in 16 bits: 8 bytes (ledger M7).
    Precision.PURE_BF16: Recipe(
        gemm_format="bf16",
        gemm_width="16bit",
        attention_format="bf16",
        weight=2,
        gradient=2,
        master=0,
        moments=(2, 2),
    ),
}
