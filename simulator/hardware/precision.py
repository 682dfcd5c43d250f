"""Precision of a training step: number formats, optimizers, and one table of recipes.

A recipe gives the bytes of what a step keeps and the formats of what it multiplies. Bytes a
parameter: weight + gradient + master + moments. Source: Megatron-Core, distributed optimizer guide,
table of bytes per parameter. A new recipe is a line of RECIPE_TABLE.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING

from ..base.registry import ByCode, Codes, Registry

if TYPE_CHECKING:
    from ..base.arrays import Value


@dataclass(frozen=True, kw_only=True, slots=True)
class NumberFormat:
    """A number format of matrix products, and the measured kernels that it runs on."""

    name: str
    """Key of Accelerator.format_rates."""
    width: str
    """Key of Accelerator.gemm: the kernels whose operands are that wide."""
    operand: float
    """Bytes of an operand as it is read."""
    arithmetic: str = ""
    """Key of Accelerator.peak, where that is another name: the scales differ, the arithmetic is
    the same."""
    is_scaled: bool = False
    """Operands are divided by scales of their own before the product."""

    def bytes_moved(self, m: Value, n: Value, k: Value) -> Value:
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
FP8 = NumberFormat(name="fp8", width="8bit", operand=1, is_scaled=True)
"""One scale a tensor."""
FP8_ROWS = NumberFormat(
    name="fp8-rowwise", width="8bit", operand=1, arithmetic="fp8", is_scaled=True
)
"""One scale a row of the left and a column of the right operand."""
FP8_BLOCKS = NumberFormat(
    name="fp8-blockwise", width="8bit", operand=1, arithmetic="fp8", is_scaled=True
)
"""One scale for 1 x 128 activations and 128 x 128 weights."""
MXFP8 = NumberFormat(name="mxfp8", width="8bit", operand=1 + 1 / 32, is_scaled=True)
"""One 8-bit scale for 32 elements (OCP Microscaling Formats 1.0, section 5.2)."""
NVFP4 = NumberFormat(name="nvfp4", width="4bit", operand=1 / 2 + 1 / 16, is_scaled=True)
"""4 bits, one 8-bit scale for 16 elements."""
TF32 = NumberFormat(name="tf32", width="32bit", operand=4)
FP32 = NumberFormat(name="fp32", width="32bit", operand=4)

_FORMATS = (BF16, FP16, FP8, FP8_ROWS, FP8_BLOCKS, MXFP8, NVFP4, TF32, FP32)
FORMATS = {form.name: form for form in _FORMATS if form.peak == form.name}
"""Every number format that has a peak of its own, by name."""
SCALED_FORMATS = tuple(form.name for form in _FORMATS if form.is_scaled)
"""Names of the formats whose operands are scaled."""
WIDTHS = ("32bit", "16bit", "8bit", "4bit")
"""Every width of operands."""
UNIVERSAL_WIDTHS = (FP32.width, BF16.width)
"""Widths of which every accelerator has kernels; the others go with the peak of their format."""
RATE_OF_PEAK = 0.93
"""Rate of a scaled product over the 16-bit one of the same sizes, as a share of the ratio of their
peaks, where none was measured: 0.95 (fp8) on H200 NVL, 0.95 (fp8), 0.90 (mxfp8) and 0.86 (nvfp4) on
B300, medians 0.94 to 0.98 of 128 x 128 blocks on H100 to GB300. Source: Transformer Engine
d0067d0, docs/examples/gemm_profiling, operands already quantised; GEMM tables of
aiconfigurator-core 0.12.0 (sglang), less the quantisation of the activation."""


class Optimizer(IntEnum):
    """Codes of optimizers."""

    ADAM = 0
    """Kingma and Ba 2015, algorithm 1; AdamW is the same in time and memory."""
    SGD = 1
    """With momentum."""
    ADAM_8BIT = 2
    """Adam with moments in 8 bits, a 32-bit scale for 256 of them (Dettmers et al. 2022, section
    2)."""
    ADAFACTOR = 3
    """No first moment, and of the second the sums of rows and columns (Shazeer and Stern 2018,
    algorithm 4), which count as nothing."""
    LION = 4
    """A first moment alone (Chen et al. 2023, algorithm 2)."""
    MUON = 5
    """A first moment of the matrices of hidden layers, orthogonalised by Newton-Schulz iterations;
    embedding and head have Adam (Jordan et al. 2024; Liu et al. 2025, arXiv:2502.16982)."""


MOMENTS = {
    Optimizer.ADAM: (0, 1),
    Optimizer.SGD: (0,),
    Optimizer.ADAFACTOR: (),
    Optimizer.LION: (0,),
    Optimizer.MUON: (0,),
}
"""Moments that an optimizer keeps, of those that a recipe gives the bytes of."""
BYTES_OF_8BIT = 2 * (1 + 4 / 256)
"""Of both moments in 8 bits with their scales."""
ITERATIONS = 5
"""Newton-Schulz iterations of Muon."""


def orthogonalisation_flops(rows: Value, columns: Value) -> Value:
    """FLOPs to orthogonalise a matrix of which `rows` is the shorter side.

        5 [ 2 n^2 m  (X X^T) + 2 n^3  (A A) + 2 n^2 m  (B X) ],    n <= m

    Source: Jordan et al. 2024, run time of Muon.
    """
    out: Value = ITERATIONS * rows * rows * (4 * columns + 2 * rows)
    return out


@dataclass(frozen=True, kw_only=True)
class Quantisation:
    """Cost of scaling the operands of linear layers into their format; bytes an element.

    `narrow` and `wide` are accelerators whose products of 8 bits want their operands along the
    summed side only (Hopper: a transposed copy is made for the backward pass) and those that take
    both sides of one copy.
    """

    bytes_moved: tuple[float, float]
    """Read and written to quantise an activation or a gradient once for all its products, on narrow
    and on wide accelerators."""
    kept_bytes: float
    """Of the copy of an input that waits for the weight gradient."""
    copy_bytes: tuple[float, float]
    """Of the copies of a weight that live beside it through all micro-batches, on narrow and on
    wide accelerators."""
    fuses_experts: bool = False
    """One kernel scales the inputs of all experts of a rank; otherwise each has its own."""
    kernels: int = 1
    """Kernels that scale one operand."""
    recasts_weights: bool = False
    """Weights are cast in every forward pass and their gradients in every backward pass, wherever
    copies are kept; hidden states are fp32."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Number formats of a training step; all sizes are bytes."""

    name: str
    """The value of precision=NAME."""
    source: str
    """Where the recipe is defined."""
    linear: NumberFormat
    """Of the GEMMs of linear layers, forward and backward."""
    head: NumberFormat
    """Of the GEMM that makes logits."""
    attention: NumberFormat
    """Of the products of attention."""
    weight: int
    """Of a parameter as GEMMs read it and ranks gather it."""
    gradient: int
    """Of a gradient as it is accumulated and reduced."""
    master: int
    """Copies in fp32 that the optimizer keeps of a parameter besides its moments."""
    moments: tuple[int, ...]
    """Of each moment that Adam keeps, the first one first."""
    activation: int
    """Of an activation that waits for the backward pass, or that a kernel between GEMMs moves."""
    wire: int
    """Of an activation or its gradient on its way to another rank."""
    quantisation: Quantisation | None = None
    """How operands are scaled; None where they are not."""
    gather: float | None = None
    """Of a parameter of a linear layer as ranks gather it; None for that of `weight`."""
    gradient_copy: int = 0
    """Of the wider copy of a gradient that the update makes of what it updates."""

    @property
    def formats(self) -> tuple[NumberFormat, ...]:
        """The formats that an accelerator must compute in."""
        return tuple(dict.fromkeys((self.linear, self.attention, self.head)))

    @property
    def is_scaled(self) -> bool:
        """Operands of linear layers are scaled into their format."""
        return self.linear.is_scaled

    def optimizer_bytes(self, optimizer: int) -> float:
        """Bytes a parameter of optimizer state; of Muon a parameter of a hidden matrix."""
        if optimizer == Optimizer.ADAM_8BIT:
            return self.master + BYTES_OF_8BIT
        return self.master + sum(self.moments[i] for i in MOMENTS[Optimizer(optimizer)])

    def bytes_of_ends(self, optimizer: int) -> float:
        """Bytes of optimizer state that a parameter of embedding or head, whose optimizer is Adam,
        has besides those of another."""
        return self.optimizer_bytes(Optimizer.ADAM) - self.optimizer_bytes(optimizer)

    def with_scaled_parameters(self) -> Recipe:
        """The recipe whose linear layers have no 16-bit weight beside the copies that products
        read: it is made from the optimizer's, and gathered as it is multiplied. Formats with a
        scale a block gather 16 bits, from which both copies are made.

        Source: Megatron-Core, fp8_param_gather; Transformer Engine, quantized_model_init.
        """
        how = self.quantisation
        if how is None:
            return self
        copy_bytes = (how.copy_bytes[0] - self.weight, how.copy_bytes[1] - self.weight)
        one_scale = self.linear.operand == int(self.linear.operand)
        gather = self.linear.operand if one_scale else float(self.weight)
        return replace(self, quantisation=replace(how, copy_bytes=copy_bytes), gather=gather)

    def of_head(self) -> Recipe:
        """The recipe of the GEMM that makes logits."""
        return self if self.head == self.linear else replace(self, linear=self.head)

    def without_scaling(self) -> Recipe:
        """The recipe of layers whose operands are not scaled: their products are the head's."""
        return replace(self, linear=self.head, quantisation=None, gather=None)


def _recipe(
    name: str,
    form: NumberFormat,
    *,
    weight: int,
    gradient: int,
    master: int,
    moments: tuple[int, ...],
    source: str,
    quantisation: Quantisation | None = None,
    gradient_copy: int = 0,
) -> Recipe:
    """A recipe whose products are all of one format, in which activations are kept and sent."""
    return Recipe(
        name=name,
        source=source,
        linear=form,
        head=form,
        attention=form,
        weight=weight,
        gradient=gradient,
        master=master,
        moments=moments,
        gradient_copy=gradient_copy,
        activation=int(form.operand),
        wire=int(form.operand),
        quantisation=quantisation,
    )


_BF16 = _recipe(
    "bf16",
    BF16,
    weight=2,
    gradient=4,
    master=4,
    moments=(4, 4),
    source="Megatron-Core, distributed optimizer guide: bf16 parameters, fp32 gradients",
)


def _scaled_recipe(
    name: str, form: NumberFormat, quantisation: Quantisation, source: str
) -> Recipe:
    """bf16 with linear layers whose operands are scaled into another format; LM head and attention
    stay in bf16."""
    return replace(_BF16, name=name, linear=form, source=source, quantisation=quantisation)


_ROWS = 2 + 2 + 1
_COLUMNS = _ROWS * 2.1 / 0.65
"""As many bytes of other kernels: on H100 torch.compile's kernel that scales along columns moves
0.6 to 0.7 TB/s and the one along rows 2.0 to 2.2 (pytorch/pytorch#149982)."""
_MX, _NV = MXFP8.operand, NVFP4.operand

RECIPE_TABLE = (
    _BF16,
    _recipe(
        "fp16",
        FP16,
        weight=2,
        gradient=2,
        master=4,
        moments=(4, 4),
        # Megatron-LM, optimizer.py (_copy_model_grads_to_main_grads, zero_grad with set_to_none);
        # DeepSpeed, stage_1_and_2.py (step: single_grad_partition): made and freed by the update.
        gradient_copy=4,
        source="Megatron-Core, distributed optimizer guide: fp16 parameters, fp16 gradients",
    ),
    _scaled_recipe(
        "fp8",
        FP8,
        # 4 kernels: the largest value is set to zero and found, the scale follows from it, then
        # the cast. Source: Transformer Engine d0067d0, quantizer.cpp,
        # Float8CurrentScalingQuantizer, and current_scaling.cu.
        Quantisation(
            bytes_moved=(2 + 2 + 1 + 1, 2 + 2 + 1), kept_bytes=1, copy_bytes=(2, 1), kernels=4
        ),
        source="Transformer Engine, Float8CurrentScaling (Megatron-LM: fp8_recipe tensorwise): "
        "linear layers alone, LM head and attention stay in bf16; a tensor is read for its largest "
        "value and read again for the cast; Hopper's products of 8 bits want a transposed copy for "
        "the backward pass, Blackwell's do not",
    ),
    _recipe(
        "fp32",
        FP32,
        weight=4,
        gradient=4,
        master=0,
        moments=(4, 4),
        source="Megatron-Core, distributed optimizer guide: fp32 parameters, fp32 gradients",
    ),
    _recipe(
        "mixed",
        BF16,
        weight=4,
        gradient=2,
        master=0,
        moments=(2, 4),
        source="12 N bytes of mixed-precision Adam, as textbooks count them (ledger M3)",
    ),
    _recipe(
        "pure-bf16",
        BF16,
        weight=2,
        gradient=2,
        master=0,
        moments=(2, 2),
        source="8 N bytes of Adam in 16 bits, as textbooks count them (ledger M7)",
    ),
    _scaled_recipe(
        "fp8-delayed",
        FP8,
        Quantisation(
            bytes_moved=(2 + 1 + 1, 2 + 1), kept_bytes=1, copy_bytes=(2, 1), fuses_experts=True
        ),
        source="Transformer Engine, DelayedScaling (Megatron-LM: fp8_recipe delayed): the cast "
        "reads a tensor once, since its scale is known before",
    ),
    _scaled_recipe(
        "fp8-blockwise",
        FP8_BLOCKS,
        Quantisation(bytes_moved=(2 + 1 + 1, 2 + 1 + 1), kept_bytes=1, copy_bytes=(2, 2)),
        source="DeepSeek-V3 report, section 3.3; Transformer Engine, Float8BlockScaling "
        "(Megatron-LM: fp8_recipe blockwise): one read, and copies scaled along rows and along "
        "columns",
    ),
    _scaled_recipe(
        "fp8-rowwise",
        FP8_ROWS,
        Quantisation(
            bytes_moved=(_ROWS + _COLUMNS, _ROWS + _COLUMNS), kept_bytes=1, copy_bytes=(2, 2)
        ),
        source="torchao, float8 recipe rowwise (torchtitan: quantize.linear.float8): every operand "
        "is scaled along rows and again along columns, and each time is read for the largest "
        "values and read for the cast",
    ),
    _scaled_recipe(
        "mxfp8",
        MXFP8,
        Quantisation(
            bytes_moved=(2 + 2 * _MX, 2 + 2 * _MX), kept_bytes=_MX, copy_bytes=(2 * _MX, 2 * _MX)
        ),
        source="Transformer Engine, MXFP8BlockScaling (Megatron-LM: fp8_recipe mxfp8): one read, "
        "and copies scaled along rows and along columns, of weights too",
    ),
    _scaled_recipe(
        "nvfp4",
        NVFP4,
        Quantisation(
            bytes_moved=(2 + 2 + 2 * _NV, 2 + 2 + 2 * _NV),
            kept_bytes=_NV,
            copy_bytes=(2 * _NV, 2 * _NV),
        ),
        source="Transformer Engine, NVFP4BlockScaling (Megatron-LM: fp4_recipe nvfp4): a tensor is "
        "read for its largest value and read for the cast, and copies are scaled along rows and, "
        "after a Hadamard transform, along columns",
    ),
    _recipe(
        "amp",
        FP16,
        weight=4,
        gradient=4,
        master=0,
        moments=(4, 4),
        # What is cast is read in fp32 and written in 16 bits, or the other way round; copies of
        # weights are cached from the forward to the backward pass.
        quantisation=Quantisation(
            bytes_moved=(4.0 + 2.0, 4.0 + 2.0),
            kept_bytes=2,
            copy_bytes=(2.0, 2.0),
            recasts_weights=True,
        ),
        source="PyTorch, automatic mixed precision (aten/src/ATen/autocast_mode.cpp): fp32 "
        "parameters and gradients, products of fp16",
    ),
)
"""The shipped recipes in the order of Precision."""


class Precision(IntEnum):
    """Codes of the shipped recipes; those that others add come after them."""

    BF16 = 0
    FP16 = 1
    FP8 = 2
    FP32 = 3
    MIXED = 4
    PURE_BF16 = 5
    FP8_DELAYED = 6
    FP8_BLOCKWISE = 7
    FP8_ROWWISE = 8
    MXFP8 = 9
    NVFP4 = 10
    AMP = 11


_BY_NAME: Registry[Recipe] = Registry(
    "precision", "plan3d.precisions", {recipe.name: recipe for recipe in RECIPE_TABLE}
)
RECIPES = ByCode(_BY_NAME)
"""Every recipe by its code."""
CODES = Codes(_BY_NAME)
"""The code of every recipe by name."""


def register_recipe(recipe: Recipe) -> int:
    """Add a recipe, which plans then name like the shipped ones; its code, which holds for this
    process. ValueError where another recipe has its name."""
    _BY_NAME.register(recipe.name, recipe)
    return CODES[recipe.name]
