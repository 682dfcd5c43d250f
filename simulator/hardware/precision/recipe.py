"""A precision recipe: bytes of what a training step keeps, and formats of what it multiplies.

Bytes a parameter: weight + gradient + master + moments. Source: Megatron-Core, distributed
optimizer guide, table of bytes per parameter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .number_formats import NumberFormat
from .optimizers import BYTES_OF_8BIT, MOMENTS, Optimizer


@dataclass(frozen=True, kw_only=True)
class Quantisation:
    """What it takes to scale the operands of linear layers into their format; bytes an element.

    `narrow` and `wide` are accelerators whose products of 8 bits want their operands along the
    summed side only (Hopper: a transposed copy is made for the backward pass) and those that take
    both sides of one copy.
    """

    moved: tuple[float, float]
    """Read and written to quantise an activation or a gradient once for all its products, on narrow
    and on wide accelerators."""
    kept: float
    """Of the copy of an input that waits for the weight gradient."""
    copies: tuple[float, float]
    """Of the copies of a weight that live beside it through all micro-batches, on narrow and on
    wide accelerators."""
    together: bool = False
    """One kernel scales what goes to all experts of a rank, where others need one for each."""
    kernels: int = 1
    """Kernels that scale one operand."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Number formats of a training step; all sizes are bytes."""

    name: str
    """As people write it: precision=bf16."""
    source: str
    """What says that training runs so."""
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
    sent: int
    """Of an activation or its gradient on its way to another rank."""
    quantisation: Quantisation | None = None
    """How operands are scaled; None where they are not."""
    gathered: float | None = None
    """Of a parameter of a linear layer as ranks gather it; None for that of `weight`."""

    @property
    def formats(self) -> tuple[NumberFormat, ...]:
        """The formats that an accelerator must compute in."""
        return tuple(dict.fromkeys((self.linear, self.attention, self.head)))

    @property
    def scaled(self) -> bool:
        """Operands of linear layers are scaled into their format."""
        return self.linear.scaled

    @property
    def operand_kept(self) -> float:
        """Bytes an element of an input that waits for the weight gradient."""
        return self.quantisation.kept if self.quantisation else self.activation

    def optimizer_bytes(self, optimizer: int) -> float:
        """Bytes a parameter of optimizer state; of Muon a parameter of a hidden matrix."""
        if optimizer == Optimizer.ADAM_8BIT:
            return self.master + BYTES_OF_8BIT
        return self.master + sum(self.moments[i] for i in MOMENTS[Optimizer(optimizer)])

    def bytes_of_ends(self, optimizer: int) -> float:
        """Bytes of optimizer state that a parameter of embedding or head has besides."""
        if optimizer != Optimizer.MUON:
            return 0.0
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
        copies = (how.copies[0] - self.weight, how.copies[1] - self.weight)
        whole = self.linear.operand == int(self.linear.operand)
        gathered = self.linear.operand if whole else float(self.weight)
        return replace(self, quantisation=replace(how, copies=copies), gathered=gathered)

    def of_head(self) -> Recipe:
        """The recipe of the GEMM that makes logits."""
        return self if self.head == self.linear else replace(self, linear=self.head)

    def wide(self) -> Recipe:
        """The recipe of layers whose operands are not scaled: their products are the head's."""
        return replace(self, linear=self.head, quantisation=None, gathered=None)
