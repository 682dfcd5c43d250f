"""Low-rank adapters: trained matrices beside frozen ones.

    y = W x + B A x,    W frozen [n, k],    A [r, k] and B [n, r] trained

Source: Hu et al. 2021 (LoRA), section 4.1; Dettmers et al. 2023 (QLoRA), section 3.
Legend: h hidden, f ffn, r rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from ..base.errors import InputError, did_you_mean
from .blocks import Block, Matrix
from .model import Model, Network

if TYPE_CHECKING:
    from ..base.arrays import Value

ATTENTION = ("q", "k", "v", "o")
MLP = ("gate", "up", "down")
STATE = ("in_proj", "out_proj")
"""Of layers with a state in place of keys."""
TARGETS = (*ATTENTION, *MLP, *STATE)
"""Matrices that may have an adapter; `up` is the first matrix of an MLP without a gate."""
WORDS = {
    "attention": ATTENTION,
    "mlp": MLP,
    "all-linear": TARGETS,
    "all": TARGETS,
    **{f"{name}_proj": (name,) for name in (*ATTENTION, *MLP)},
    **{name: (name,) for name in TARGETS},
    "fc1": ("up",),
    "fc2": ("down",),
}
"""Targets by name: of groups, and of other frameworks."""
ROW_PARALLEL = ("o", "down", "out_proj")
"""Matrices whose inputs tensor parallelism splits."""
EMBEDDING, HEAD = "embed_tokens", "lm_head"
SAVED = {
    **dict.fromkeys(("embed_tokens", "wte", "word_embeddings", "embed_in"), EMBEDDING),
    **dict.fromkeys(("lm_head", "embed_out", "output_layer"), HEAD),
}
"""Modules that can be trained whole beside adapters, by the last word of their name."""
LARGEST_RANK = 4096


class FrozenFormat(NamedTuple):
    """How the frozen matrices of layers are stored."""

    bits: float
    """Of a weight, constants of its block included."""
    needs_unpacking: bool
    """Every use first writes the matrix in 16 bits."""
    operator_bytes: float = 0.0
    """That operators of PyTorch move for each weight to do so, where they do it one by one."""
    bitsandbytes: bool = False
    """The library that packs them is bitsandbytes."""
    constant_bytes: float = 0.0
    """Moved for each weight to unpack the constants of blocks, beyond those of `bits`."""
    kernels: int = 1
    """That unpack a matrix, where a kernel does and operators do not."""


FP8_BASE = "fp8"
"""The format of frozen weights that fp8 products read as they are stored."""
FORMATS = {
    "bf16": FrozenFormat(16, False),
    # Kept in 8 bits and multiplied so: Transformer Engine's fp8 weights.
    FP8_BASE: FrozenFormat(8, False),
    # A 32-bit scale a row of several thousand is left out. Source: Dettmers et al. 2022, section 2.
    "int8": FrozenFormat(8, True, bitsandbytes=True),
    # A 32-bit constant a block of 64. Source: Dettmers et al. 2023, section 3.
    "nf4": FrozenFormat(4 + 32 / 64, True, bitsandbytes=True),
    # Those constants in 8 bits, with one of 32 bits for 256 of them: 0.127 bits a weight. They are
    # unpacked first, and their mean is added (bitsandbytes 0.50, functional.py, dequantize_4bit):
    # 4 bytes written, 4 + 4 to add, 4 read.
    "nf4-dq": FrozenFormat(
        4 + 8 / 64 + 32 / (64 * 256), True, bitsandbytes=True, constant_bytes=16 / 64, kernels=3
    ),
    # A 16-bit scale and a zero point of the weights' width a group of 128 (Frantar et al. 2022).
    # By operators: shifted into 32 bits, made 8 bits (16 of 8), masked, less its zero point, scaled
    # (AutoGPTQ 9f7d370, qlinear_cuda_old.py, forward).
    "gptq4": FrozenFormat(4 + (16 + 4) / 128, True, (0.5 + 4) + (4 + 1) + 2 + 2 + (1 + 2)),
    "gptq8": FrozenFormat(8 + (16 + 8) / 128, True, (1 + 4) + (4 + 2) + 4 + 4 + (2 + 2)),
}
"""Formats of frozen matrices by name. Norms, embedding and head stay in 16 bits."""
ADAPTER_FORMATS = {"lora": "bf16", "qlora": "nf4-dq"}
"""Kinds of adapters on a command line, and the format of what they leave frozen."""


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """Low-rank adapters of some matrices of every layer; all other weights are frozen.

    >>> Adapters(rank=8, base="nf4-dq").name
    'qlora'
    """

    rank: int = 16
    targets: tuple[str, ...] = ATTENTION
    """Of TARGETS, in that order."""
    base: str = "bf16"
    """Format of the frozen matrices, a key of FORMATS."""
    dropout: float = 0.0
    """Share of the inputs of adapters that a dropout before them sets to zero: from 0 to below 1.
    Any share but 0 costs the same."""
    modules_to_save: tuple[str, ...] = ()
    """Of SAVED: modules of which a copy is trained whole beside the frozen one, also where the
    model ties them. Source: peft, utils/other.py (ModulesToSaveWrapper.update: a deep copy)."""

    def __post_init__(self) -> None:
        whole = isinstance(self.rank, int) and not isinstance(self.rank, bool)
        if not whole or not 0 < self.rank <= LARGEST_RANK:
            raise InputError(
                f"LoRA rank must be a whole number from 1 to {LARGEST_RANK}, not {self.rank!r}"
            )
        if self.base not in FORMATS:
            near = did_you_mean(str(self.base)[:60], FORMATS)
            raise InputError(f"unknown format of frozen weights {str(self.base)[:60]!r}{near}")
        share = isinstance(self.dropout, int | float) and not isinstance(self.dropout, bool)
        if not share or not 0 <= self.dropout < 1:
            raise InputError(
                f"the dropout of LoRA must be a number from 0 to below 1, not {self.dropout!r}"
            )
        object.__setattr__(self, "targets", targets_of(self.targets))
        object.__setattr__(self, "modules_to_save", saved_modules_of(self.modules_to_save))

    @property
    def name(self) -> str:
        """'lora', or 'qlora' where frozen matrices are stored in fewer than 16 bits."""
        return "lora" if FORMATS[self.base].bits == 16 else "qlora"

    @property
    def format(self) -> FrozenFormat:
        return FORMATS[self.base]

    def matrices(self, block: Block, hidden: int) -> list[Matrix]:
        """The matrices of a layer that have an adapter."""
        return [one for one in block.matrices(hidden) if one.name in self.targets]

    def inputs(self, block: Block, hidden: int, tp: Value) -> Value:
        """Elements that the adapters of a layer read of a token on one of tp ranks."""
        return inputs_of(self.matrices(block, hidden), tp)

    def of_block(self, block: Block, hidden: int) -> int:
        """Trained parameters of a layer: r (k + n) of every adapter."""
        return sum(self.rank * (m.inputs + m.outputs) for m in self.matrices(block, hidden))

    def of_layers(self, model: Model) -> int:
        """Parameters of the adapters of a model."""
        parameters = [self.of_block(kind, model.hidden) for kind in model.kinds]
        return sum(parameters[kind] for kind in model.order)

    def parameters(self, model: Model) -> int:
        """Trained parameters of a model: of adapters, and V h of each module trained whole."""
        return self.of_layers(model) + len(self.modules_to_save) * model.vocabulary * model.hidden

    def of_model(self, model: Model) -> Adapters:
        """The same without the matrices of STATE where a model has no such layers."""
        if model.linear_attention or not {*STATE} & {*self.targets}:
            return self
        left = tuple(name for name in self.targets if name not in STATE)
        if not left:
            raise InputError(f"{model.name} has none of the matrices {', '.join(self.targets)}")
        return replace(self, targets=left)

    def check(self, model: Model) -> None:
        """Raise InputError where a model's adapters are not modelled."""
        if isinstance(model, Network):
            raise InputError(f"adapters need attention layers; {model.name} is a layer list")
        if any(kind.attention.kv_rank for kind in model.kinds):
            raise InputError(
                f"adapters of multi-head latent attention ({model.name}) are not modelled"
            )
        if model.mtp_layers:
            raise InputError(
                f"adapters beside multi-token prediction ({model.name}) are not modelled"
            )
        experts = [name for name in self.targets if name in MLP]
        if experts and any(kind.experts for kind in model.kinds):
            raise InputError(
                f"adapters of experts are not modelled: {', '.join(experts)} of {model.name}; "
                "nearest targets: attention"
            )
        if not self.of_layers(model):
            raise InputError(f"{model.name} has none of the matrices {', '.join(self.targets)}")


def inputs_of(matrices: list[Matrix], tp: Value) -> Value:
    """Elements that matrices read of a token on one of tp ranks."""
    split = sum(one.inputs for one in matrices if one.name in ROW_PARALLEL)
    whole = sum(one.inputs for one in matrices) - split
    out: Value = whole + split / tp
    return out


def saved_modules_of(names: Iterable[str]) -> tuple[str, ...]:
    """EMBEDDING and HEAD, in this order, from names of modules that are trained whole."""
    given = [str(name) for name in names]
    for name in given:
        if name.rpartition(".")[2] not in SAVED:
            raise InputError(
                f"{name[:60]!r} trained whole beside adapters (modules_to_save) is not modelled; "
                f"nearest: {EMBEDDING}, {HEAD}"
            )
    chosen = {SAVED[name.rpartition(".")[2]] for name in given}
    return tuple(name for name in (EMBEDDING, HEAD) if name in chosen)


def targets_of(names: Iterable[str]) -> tuple[str, ...]:
    """Targets in the order of TARGETS from their names, groups and frameworks' spellings too."""
    chosen: set[str] = set()
    for name in names:
        if name not in WORDS:
            raise InputError(f"unknown LoRA target {name[:60]!r}{did_you_mean(name[:60], WORDS)}")
        chosen |= {*WORDS[name]}
    if not chosen:
        raise InputError(f"no LoRA targets; known: {', '.join(WORDS)}")
    return tuple(name for name in TARGETS if name in chosen)
