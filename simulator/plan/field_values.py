"""Values of plan fields: their kinds, the enumerations that only plans have, how they are written.

A field is an int, or an int64 column. Its kind says which integers there are, and how people write
them. AUTO (-1) means "what a current training stack does".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

from numpy.typing import NDArray

from ..base.errors import InputError, did_you_mean
from ..base.registry import Codes
from . import tensor_grid

Cell = Any
"""A field of a plan: an int in one row, a Column in a table."""
AUTO = -1
LARGEST = 2**31 - 1
"""Of any count."""
PERCENT = "percent"
"""Unit of the fields that are a share of something that is on the host."""
_FLAG_WORDS = {"true": 1, "on": 1, "yes": 1, "1": 1, "false": 0, "off": 0, "no": 0, "0": 0}


class ValueKind(Protocol):
    """Which integers a field may be, and how people write them."""

    @property
    def minimum(self) -> int: ...

    @property
    def maximum(self) -> int: ...

    @property
    def description(self) -> str:
        """The values in a few words."""
        ...

    def accepts(self, code: int) -> bool:
        """Whether an integer is a value, where that can be told without check()."""
        ...

    def parse(self, name: str, text: str) -> int:
        """The integer that a text stands for. Raises InputError naming the field."""
        ...

    def spell(self, code: int) -> Any:
        """A value as people write it."""
        ...


def whole_number(name: str, value: object, maximum: int = LARGEST) -> int:
    """A whole number. Raises InputError naming the field for anything else."""
    try:
        number = int(str(value))
    except ValueError:
        raise InputError(f"{name}={value} must be a whole number") from None
    if abs(number) > maximum:
        raise InputError(f"{name}={value} is larger than any plan needs")
    return number


def check_range(name: str, codes: NDArray[Any], minimum: int, maximum: int) -> None:
    """Raise InputError, naming the field, for an integer outside a range."""
    if (codes < minimum).any():
        raise InputError(f"{name}={codes[codes < minimum].flat[0]} must be at least {minimum}")
    if (codes > maximum).any():
        raise InputError(f"{name}={codes[codes > maximum].flat[0]} must be at most {maximum}")


@dataclass(frozen=True, slots=True)
class Count:
    """A whole number."""

    minimum: int = 0
    maximum: int = LARGEST
    unit: str = ""

    @property
    def description(self) -> str:
        upper = "or more" if self.maximum == LARGEST else f"to {self.maximum}"
        return f"{self.minimum} {upper} {self.unit}".rstrip()

    def accepts(self, code: int) -> bool:
        return self.minimum <= code <= self.maximum

    def parse(self, name: str, text: str) -> int:
        return whole_number(name, text)

    def spell(self, code: int) -> int:
        return code


@dataclass(frozen=True, slots=True)
class Flag:
    """A switch: 0 or 1."""

    minimum = 0
    maximum = 1
    description = "0 or 1"

    def accepts(self, code: int) -> bool:
        return 0 <= code <= 1

    def parse(self, name: str, text: str) -> int:
        value = _FLAG_WORDS.get(text.strip().lower())
        return whole_number(name, text) if value is None else value

    def spell(self, code: int) -> bool:
        return bool(code)


OTHER_WORDS = {
    **{"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32"},
    **{"adamw": "adam", "ring": "p2p", "ulysses": "a2a"},
}
"""Values as other tools name them: number formats of PyTorch, Adam with decoupled decay."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several names; a code may have more than one, of which the first is written."""

    names: Mapping[str, int]
    ordered: bool = False
    """Whether neighbouring codes are more alike than others."""

    minimum = 0

    @property
    def maximum(self) -> int:
        return max(self.names.values())

    @property
    def description(self) -> str:
        return ", ".join(self.names)

    def accepts(self, code: int) -> bool:
        return code in self.names.values()

    def parse(self, name: str, text: str) -> int:
        word = text.strip().lower()
        word = word if word in self.names else word.removeprefix("torch.").replace("_", "-")
        word = word if word in self.names else OTHER_WORDS.get(word, word)
        if word not in self.names:
            raise InputError(f"{name}={text} is not modelled{did_you_mean(word, self.names)}")
        return int(self.names[word])

    def spell(self, code: int) -> str:
        if isinstance(self.names, Codes):
            return self.names.name_of(code)
        return next(name for name, value in self.names.items() if value == code)


@dataclass(frozen=True, slots=True)
class GridValue:
    """A grid of tensor ranks, as one integer (tensor_grid)."""

    minimum = 0
    maximum = 2**63 - 1
    description = "1d (Megatron-LM), 4x4 (2d, SUMMA), 2.5d:4x4x2 or 4x2x2 (3d)"

    def accepts(self, code: int) -> bool:
        return code == 0

    def parse(self, name: str, text: str) -> int:
        return tensor_grid.parse_grid(text.strip().lower())

    def check(self, name: str, codes: NDArray[Any]) -> None:
        """Raise InputError unless every integer stands for a grid."""
        if not tensor_grid.is_code(codes).all():
            raise InputError(
                f"{name} has a number that stands for no grid; write it as 4x4 or 4x2x2"
            )

    def spell(self, code: int) -> str:
        return tensor_grid.format_grid(code)


@dataclass(frozen=True, slots=True)
class TableText:
    """No number: what all plans of a table share, parsed by `Plan` itself."""

    description: str
    minimum = 0
    maximum = 0

    def accepts(self, code: int) -> bool:
        return False

    def parse(self, name: str, text: str) -> int:
        raise InputError(f"{name} is no number: it is stated for a whole plan")

    def spell(self, code: int) -> str:
        return str(code)


class Recompute(IntEnum):
    """Which activations are discarded and recomputed in the backward pass."""

    NONE = 0
    SELECTIVE = 1
    FULL = 2


class Loss(IntEnum):
    """How cross-entropy is computed from the hidden states."""

    USUAL = 0
    """The default of the stack."""
    UNFUSED = 1
    """Each of its steps is a kernel with a result of its own."""
    FUSED = 2
    """One kernel from logits to their gradient."""
    CHUNKED = 3
    """Head, loss and both backward passes of one piece of the tokens after the other."""
    FUSED_LINEAR = 4
    """The same in one function, of as many pieces as the vocabulary is wider than a hidden state
    (Liger)."""


class StateFormat(IntEnum):
    """Number formats of gradients, master weights and moments."""

    USUAL = 0
    """The default of the framework."""
    FP32 = 1
    BF16 = 2
    FP16 = 3
    FP8 = 4


class ContextComm(IntEnum):
    """How the ranks of a split sequence get each other's keys and values (Megatron-LM's names)."""

    P2P = 0
    """Passed round a ring while attention runs (Liu et al. 2023, Ring Attention)."""
    ALL_GATHER = 1
    """Gathered before attention (Llama 3)."""
    A2A = 2
    """Sequences exchanged for heads and back (Jacobs et al. 2023, DeepSpeed-Ulysses)."""


class Dispatch(IntEnum):
    """How tokens reach their experts."""

    ALLTOALL = 0
    """One all-to-all over all expert ranks: a copy for every expert."""
    HIERARCHICAL = 1
    """One copy to each node that has experts of the token, spread inside (DeepSeek's DeepEP)."""
    ALL_GATHER = 2
    """All ranks of the experts gather all their tokens, and scatter sums of outputs (the default of
    Megatron-LM)."""


class Nvme(IntEnum):
    """What of the offloaded state is on NVMe drives instead of host memory."""

    NONE = 0
    OPTIMIZER = 1
    PARAMETERS = 2
    BOTH = 3


def swaps_optimizer(nvme: Any) -> Any:
    """Whether the optimizer's state lies on NVMe drives."""
    return (nvme == Nvme.OPTIMIZER) | (nvme == Nvme.BOTH)


def swaps_parameters(nvme: Any) -> Any:
    """Whether weights lie on NVMe drives."""
    return (nvme == Nvme.PARAMETERS) | (nvme == Nvme.BOTH)


def names_of(codes: type[IntEnum]) -> dict[str, int]:
    """The written names of the members of an enumeration: 'all-gather' for ALL_GATHER."""
    return {member.name.lower().replace("_", "-"): member for member in codes}
