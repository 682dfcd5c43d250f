"""Layers of a Hugging Face configuration: what each is made of, by lists, periods and patterns.

A layer is its mixer of tokens (attention, attention with a window, linear attention, none), the
window, and what follows it (a dense MLP, experts, nothing).
"""

from __future__ import annotations

from typing import NamedTuple

from ..base.typed_objects import JsonObject, describe
from .blocks import (
    GATED_DELTA,
    KIMI_DELTA,
    LIGHTNING,
    MAMBA2,
    MOST_LAYERS,
    LinearAttention,
)
from .hf_family import LINEAR_ATTENTION, ConfigFamily

MOST_HEADS = 65_536
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
LAYER_TYPES = ("layer_types", "layers_block_type")
FULL, LINEAR = ("full_attention", "attention"), ("linear_attention", "mamba")
LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
"""Layers of hybrid_override_pattern."""
WINDOW_PERIODS = (
    "sliding_window_pattern",
    "no_rope_layer_interval",
    "global_attn_every_n_layers",
)
"""Keys of how often a layer comes that has no window."""
FIRST_EXPERTS = ("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers")


class LayerParts(NamedTuple):
    """What one layer is made of."""

    mixer: str
    """'attention', 'linear' or ''."""
    window: int
    """Keys that a query sees; 0 for all."""
    feed: str
    """'dense', 'sparse' or ''."""


def layer_parts(config: JsonObject, family: ConfigFamily) -> list[LayerParts]:
    """The layers from the input up."""
    if family.lone_parts:
        return _lone_parts(config)
    layers = config.size(*LAYERS, most=MOST_LAYERS)
    feeds = [
        "sparse" if is_sparse else "dense" for is_sparse in _expert_layers(config, family, layers)
    ]
    if family.linear:
        linear = _linear_layers(config, family, layers)
        mixers = ["linear" if is_linear else "attention" for is_linear in linear]
        return [LayerParts(mixer, 0, feed) for mixer, feed in zip(mixers, feeds, strict=True)]
    windows = _windows(config, family, layers)
    return [
        LayerParts("attention", window, feed) for window, feed in zip(windows, feeds, strict=True)
    ]


def _lone_parts(config: JsonObject) -> list[LayerParts]:
    """Layers that are one part each: a mixer, an MLP or a mixture of experts."""
    parts = {
        **dict.fromkeys(FULL, LayerParts("attention", 0, "")),
        **dict.fromkeys(LINEAR, LayerParts("linear", 0, "")),
        "mlp": LayerParts("", 0, "dense"),
        "moe": LayerParts("", 0, "sparse"),
    }
    listed = next((key for key in LAYER_TYPES if config.has_key(key)), "")
    if listed:
        types = config.values[listed]
        length = len(types) if isinstance(types, list) else 0
        found = config.per_layer(listed, min(length, MOST_LAYERS), tuple(parts))
        return [parts[str(kind)] for kind in found]
    key = "hybrid_override_pattern"
    pattern = config.string(key)
    layers = config.size(*LAYERS, default=min(len(pattern), MOST_LAYERS) or None, most=MOST_LAYERS)
    if set(pattern) - set(LETTERS) or len(pattern) != layers:
        problem = f"is {describe(pattern)}; it must be {layers} letters of {' '.join(LETTERS)}"
        raise config.error(key, problem)
    return [parts[LETTERS[letter]] for letter in pattern]


def _linear_layers(config: JsonObject, family: ConfigFamily, layers: int) -> list[bool]:
    """Which layers have a state in place of keys."""
    for key in LAYER_TYPES:
        types = config.per_layer(key, layers, (*FULL, *LINEAR))
        if types:
            return [kind in LINEAR for kind in types]
    full = config.per_layer("attn_type_list", layers, (0, 1))
    if full:
        return [not is_full for is_full in full]
    if config.has_key("attn_layer_indices"):
        listed = set(config.indices("attn_layer_indices", layers))
        return [layer not in listed for layer in range(layers)]
    nested = config.values.get("linear_attn_config")
    if isinstance(nested, dict):
        inner = JsonObject.from_value(nested, config.name, f"{config.path}.linear_attn_config")
        # Layers are counted from 1.
        numbers = inner.indices("full_attn_layers", layers + 1)
        if not numbers or 0 in numbers:
            problem = f"must be a list of layer numbers from 1 to {layers}"
            raise inner.error("full_attn_layers", problem)
        listed = {number - 1 for number in numbers}
        return [layer not in listed for layer in range(layers)]
    keys = ("full_attention_interval", "layer_group_size")
    every = config.size(*keys, default=family.full_every or None)
    return [(layer + 1) % every > 0 for layer in range(layers)]


def linear_attention(config: JsonObject, family: ConfigFamily, hidden: int) -> LinearAttention:
    """The state-space or linear-attention layer of a family."""
    if family.linear == MAMBA2:
        return _mamba2(config, hidden)
    if family.linear == GATED_DELTA:
        return LinearAttention(
            mixer=GATED_DELTA,
            heads=config.size("linear_num_value_heads", most=MOST_HEADS),
            kv_heads=config.size("linear_num_key_heads", most=MOST_HEADS),
            head_dim=config.size("linear_key_head_dim"),
            value_dim=config.size("linear_value_head_dim"),
            conv=config.size("linear_conv_kernel_dim"),
        )
    nested = config.values.get("linear_attn_config")
    inner = config
    if isinstance(nested, dict):
        inner = JsonObject.from_value(nested, config.name, f"{config.path}.linear_attn_config")
    names = ("linear_num_heads", "num_heads") if inner is not config else ("linear_num_heads",)
    heads = inner.size(*names, "num_attention_heads", most=MOST_HEADS)
    width = inner.size("linear_head_dim", default=0) or inner.size(
        "head_dim", default=hidden // heads if family.linear == LIGHTNING else None
    )
    conv = ("linear_conv_kernel_dim", "short_conv_kernel_size")
    kimi = family.linear == KIMI_DELTA
    return LinearAttention(
        mixer=family.linear,
        heads=heads,
        kv_heads=heads,
        head_dim=width,
        value_dim=width,
        conv=inner.size(*conv) if kimi else 0,
        gate_rank=width if family.low_rank_gates else 0,
    )


def _mamba2(config: JsonObject, hidden: int) -> LinearAttention:
    """Mamba-2: groups of a state in place of key heads."""
    heads = config.size("mamba_n_heads", "mamba_num_heads", most=MOST_HEADS)
    inner = config.size("mamba_expand", "expand", default=2) * hidden
    automatic = config.values.get("mamba_d_head") == "auto"
    width = inner // heads if automatic else config.size("mamba_d_head", "mamba_head_dim")
    bias = config.flag("mamba_proj_bias", config.flag("use_bias", False))
    return LinearAttention(
        mixer=MAMBA2,
        heads=heads,
        kv_heads=config.size("mamba_n_groups", "n_groups"),
        head_dim=config.size("mamba_d_state", "ssm_state_size"),
        value_dim=width,
        conv=config.size("mamba_d_conv", "conv_kernel"),
        conv_bias=config.flag("mamba_conv_bias", config.flag("use_conv_bias", True)),
        qkv_bias=bias,
        out_bias=bias,
    )


def _windows(config: JsonObject, family: ConfigFamily, layers: int) -> list[int]:
    """Each layer's window; 0 where attention sees everything."""
    limited = "chunked_attention" if has_chunked_window(family) else "sliding_attention"
    limited = "indexed_attention" if family.latent else limited
    listed = config.values.get("layer_types")
    if isinstance(listed, list) and set(LINEAR) & {
        kind for kind in listed if isinstance(kind, str)
    }:
        raise config.error(
            "layer_types", f"has {LINEAR_ATTENTION}, which this type is not known for"
        )
    types = config.per_layer("layer_types", layers, (*FULL, limited))
    window = _window(config, family)
    if types:
        local = [kind == limited for kind in types]
        if any(local) and not window and not family.latent:
            raise config.error("layer_types", f"has windows but {family.window_key} states none")
    else:
        local = _windowed_layers(config, family, layers) if window else [False] * layers
    return [window * is_local for is_local in local]


def has_chunked_window(family: ConfigFamily) -> bool:
    return family.window_key == "attention_chunk_size"


def _window(config: JsonObject, family: ConfigFamily) -> int:
    """The family's window; 0 when the config switches it off."""
    key = family.window_key
    switched_off = not config.flag("use_sliding_window", not family.optional_window)
    explicit_null = key in config.values and not config.has_key(key)
    if not family.windows or switched_off or explicit_null:
        return 0
    return config.size(key, default=family.window)


def _windowed_layers(config: JsonObject, family: ConfigFamily, layers: int) -> list[bool]:
    """Which layers have the window, by the family's rule."""
    numbers = range(layers)
    if family.windows == "upper":
        first = config.size("max_window_layers", least=0)
        return [layer >= first for layer in numbers]
    rotary = config.per_layer("no_rope_layers", layers, (0, 1))
    if rotary:
        return [bool(uses_rope) for uses_rope in rotary]
    if family.windows == "all":
        return [True] * layers
    every = config.size(*WINDOW_PERIODS, default=family.full_every)
    return [(layer + 1) % every > 0 for layer in numbers]


def _expert_layers(config: JsonObject, family: ConfigFamily, layers: int) -> list[bool]:
    """Which layers are mixtures of experts."""
    numbers = range(layers)
    if not family.experts:
        return [False] * layers
    types = config.per_layer("mlp_layer_types", layers, ("dense", "sparse"))
    if types:
        return [kind == "sparse" for kind in types]
    if config.has_key("moe_layers"):
        listed = set(config.indices("moe_layers", layers))
        return [layer in listed for layer in numbers]
    first = config.size(*FIRST_EXPERTS, default=family.first_dense, least=0, most=layers)
    last = config.size("moe_layer_end_index", default=-1, least=-1, most=layers)
    frequency = config.size("moe_layer_freq", default=1)
    step = config.size(
        "decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval", default=1
    )
    beyond = range(layers if last < 0 else last + 1, layers)
    dense = {*config.indices("mlp_only_layers", layers), *range(first), *beyond}
    return [
        layer not in dense and layer % frequency == 0 and (layer + 1) % step == 0
        for layer in numbers
    ]
