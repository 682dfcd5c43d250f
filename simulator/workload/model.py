"""Models: layer kinds with counts, exact parameters by component.

Symbols: h hidden, L layers, V vocabulary. A model is a sequence of blocks; equal blocks are one
*kind* and are costed once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from ..base.errors import InputError
from ..base.text_tables import facts_html
from ..base.units import format_count
from .blocks import Block, LinearAttention, ListedLayer
from .layer_list import network_arguments, read_layer_list
from .presets import preset_arguments
from .settings import ModelSettings

MOST_PARAMETERS = 10**16
"""Parameters, and their bytes, then stay exact in 64-bit columns."""

COMPONENTS = (
    "embedding",
    "positions",
    "head",
    "attention",
    "mlp",
    "experts",
    "router",
    "shared_experts",
    "norms",
)
"""The parts of a parameter count; they add up to Model.parameters."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A decoder-only transformer, its layers as kinds and an order.

    >>> Model.preset("llama-7b")
    Model('llama-7b', 6.738 B parameters)
    """

    name: str
    hidden: int
    vocabulary: int
    """Tokens as published; frameworks pad it, see padded_vocabulary()."""
    kinds: tuple[Block, ...]
    """The distinct layers."""
    order: tuple[int, ...]
    """For each layer, from the input up, its index into kinds."""
    tied: bool = False
    """Input embedding and output head share their weights."""
    norm_bias: bool = False
    """LayerNorm (weight and bias) rather than RMSNorm."""
    norm_weights: bool = True
    """Norms have weights; those of OLMo have none."""
    learned_positions: int = 0
    """Rows of a learned position table; 0 for rotary or ALiBi."""
    idle_positions: int = 0
    """Rows of it that are no token's: the first two of OPT."""
    rotary_base: float = field(default=0.0, compare=False)
    """Base of the rotary frequencies (rope_theta); 0 when not stated. Changes no time or memory."""
    settings: ModelSettings = field(default=ModelSettings(), compare=False)
    """What else makes it this model and changes no time or memory."""
    embedding_norm: bool = False
    head_bias: bool = False
    mtp_layers: int = 0
    """Multi-token-prediction layers (DeepSeek V3): trained, not in `parameters`."""
    sequence: int = 0
    """Sequence length it was trained on; 0 when not stated."""
    batch_tokens: int = 0
    """Tokens a step in the published run; 0 when not stated."""
    train_tokens: int = 0
    """Tokens of the published run; 0 when not stated."""
    source: str = ""
    left_out: tuple[str, ...] = ()
    """Parts of its file that are not modelled: encoders of images and sound, by their keys."""
    unit: ClassVar[str] = "tokens"
    """What a sequence is counted in."""

    @classmethod
    def preset(cls, name: str) -> Model:
        """A published model by name; presets.preset_names() lists them."""
        arguments = preset_arguments(name)
        return Network(**arguments) if "listed_layers" in arguments else Model(**arguments)

    @classmethod
    def from_config(cls, config: str | Path | Mapping[str, object], name: str = "") -> Model:
        """The model of a Hugging Face config.json, its path or a dict of what it holds (as
        `config.to_dict()` of transformers gives it); InputError where it is not one."""
        from .hf_config import name_of, read_json

        if isinstance(config, Mapping):
            return cls.from_config_values(dict(config), name or name_of(config))
        values, file_name = read_json(config)
        return cls.from_config_values(values, name or file_name)

    @classmethod
    def from_config_values(cls, config: object, name: str) -> Model:
        """The model of a parsed config.json; its text part when there are several."""
        from .hf_config import config_arguments

        model = Model(**config_arguments(config, name))
        if model.parameters > MOST_PARAMETERS:
            sizes = f"its sizes give {model.parameters:.3g} parameters"
            raise InputError(f"{model.name}: $: {sizes}; at most {MOST_PARAMETERS:.0e}")
        return model

    def __repr__(self) -> str:
        size = format_count(self.parameters)
        return f"{type(self).__name__}({self.name!r}, {size} parameters)"

    def _repr_html_(self) -> str:
        facts = {"parameters": format_count(self.parameters), "layers": self.layers}
        if self.kinds:
            facts |= {"hidden size": self.hidden, "vocabulary": f"{self.vocabulary:,}"}
        return facts_html(self.name, facts)

    @property
    def layers(self) -> int:
        return len(self.order)

    @property
    def longest_sequence(self) -> int:
        """Tokens that its learned positions are enough for; 0 where it has none."""
        return self.learned_positions - self.idle_positions

    @property
    def layer_parameters(self) -> tuple[float, ...]:
        """Weights of each layer from the input up, biases of norms left out."""
        each = [float(sum(kind.parameters(self.hidden, 0).values())) for kind in self.kinds]
        return tuple(each[kind] for kind in self.order)

    def with_16_bit_ends(self, first: int, last: int) -> Model:
        """The model whose `first` and `last` layers keep their products in 16 bits."""
        kinds, order = list(self.kinds), list(self.order)
        for at in {*range(first), *range(self.layers - last, self.layers)}:
            block = replace(kinds[order[at]], stays_16_bit=True)
            if block not in kinds:
                kinds.append(block)
            order[at] = kinds.index(block)
        return replace(self, kinds=tuple(kinds), order=tuple(order))

    @property
    def norm_width(self) -> int:
        return self.hidden * (self.norm_weights + self.norm_bias)

    @cached_property
    def parameters_by_component(self) -> dict[str, int]:
        """Exact parameters by component (COMPONENTS); tied weights once, MTP layers excluded."""
        total = Counter(
            embedding=self.vocabulary * self.hidden,
            positions=self.learned_positions * self.hidden,
            head=0 if self.tied else self.vocabulary * self.hidden,
            norms=self.norm_width * (1 + self.embedding_norm),
        )
        total["head"] += self.head_bias * self.vocabulary
        for kind, layers in Counter(self.order).items():
            block = self.kinds[kind].parameters(self.hidden, self.norm_width)
            for component, count in block.items():
                total[component] += layers * count
        return {component: total[component] for component in COMPONENTS}

    @property
    def parameters(self) -> int:
        """Exact parameters, tied weights once, MTP layers excluded (as checkpoints count)."""
        return sum(self.parameters_by_component.values())

    @property
    def linear_attention(self) -> tuple[LinearAttention, ...]:
        """Those of its kinds of layers with a state in place of keys."""
        each = (kind.attention for kind in self.kinds)
        return tuple(one for one in each if isinstance(one, LinearAttention))

    @property
    def active_parameters(self) -> int:
        """Parameters a token passes through: routed experts at top_k of count."""
        idle = 0
        for kind in self.order:
            e = self.kinds[kind].experts
            if e:
                idle += (e.count - e.top_k) * e.expert_mlp.parameters(e.width(self.hidden))
        return self.parameters - idle


@dataclass(frozen=True, kw_only=True, repr=False)
class Network(Model):
    """Any network as a list of layers: distinct ones and their order.

    A sample counts as one token (sequence 1). It cannot be split inside a layer (tp = cp = ep = 1).
    """

    listed_layers: tuple[ListedLayer, ...]
    """The distinct layers; `order` indexes them."""
    unit: ClassVar[str] = "samples"

    @classmethod
    def from_layers(cls, name: str, layers: Iterable[ListedLayer], source: str = "") -> Network:
        """A network of layers in order; equal layers become one kind."""
        return cls(**network_arguments(name, layers, source))

    @classmethod
    def from_file(cls, path: str | Path) -> Network:
        """The network of a layer list; InputError with file, layer and column otherwise."""
        return cls.from_layers(*read_layer_list(path))

    @cached_property
    def parameters_by_component(self) -> dict[str, int]:
        return {"layers": sum(self.listed_layers[kind].parameters for kind in self.order)}

    @property
    def active_parameters(self) -> int:
        return self.parameters

    @property
    def layer_parameters(self) -> tuple[float, ...]:
        return tuple(float(self.listed_layers[kind].parameters) for kind in self.order)

    @property
    def forward_flops(self) -> float:
        """FLOPs of a forward pass of one sample."""
        return sum(self.listed_layers[kind].forward_flops for kind in self.order)


def imbalance(model: Model) -> float:
    """The load of the busiest rank of experts over the mean; 1 without experts."""
    return max((kind.experts.imbalance for kind in model.kinds if kind.experts), default=1.0)


def with_imbalance(model: Model, factor: float) -> Model:
    """The model with `factor` times the mean of tokens on the busiest rank of experts.

    Raises InputError for a factor below 1, and for a model without experts.
    """
    if factor < 1:
        raise InputError(f"expert imbalance {factor:g} must be at least 1, which is an even load")
    if not any(kind.experts for kind in model.kinds):
        raise InputError(f"expert imbalance needs experts, which {model.name} has none of")
    kinds = tuple(
        replace(kind, experts=replace(kind.experts, imbalance=factor)) if kind.experts else kind
        for kind in model.kinds
    )
    return replace(model, kinds=kinds)


def padded_vocabulary(vocabulary: int, multiple: int) -> int:
    """The vocabulary rounded up to a multiple, as frameworks do (Megatron: 128 tp)."""
    return -(-vocabulary // multiple) * multiple
