"""Hugging Face configurations: the Model that a config.json describes.

Sizes come from the file only: a missing one is refused, never guessed. What the file leaves to
the model's code comes from hf_families. Vision and speech towers are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..base.documents import parse_json
from ..base.errors import InputError, check_name, check_path, did_you_mean
from ..base.files import read_text
from ..base.typed_objects import LARGEST_SIZE, JsonObject, describe
from .blocks import MOST_LAYERS, Attention, Block, Experts, Mlp
from .hf_families import (
    FAMILIES,
    LINEAR_ATTENTION,
    NONE_WHEN_NULL,
    SHARED_COUNTS,
    SWITCHES,
    UNSUPPORTED_TYPES,
    ConfigFamily,
)

MOST_HEADS = 65_536

TOWERS = ("vision_config", "audio_config", "speech_config")
"""Encoders beside the text model."""
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
EXPERT_COUNTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
TOP_K = ("num_experts_per_tok", "experts_per_token", "moe_top_k", "moe_k")


def read_json(path: str | Path) -> tuple[object, str]:
    """What a config.json holds, and the model's name: the file's, or its folder's for
    `config.json`."""
    file = Path(check_path(str(path), "model"))
    name = ascii(str(path))
    try:
        config = parse_json(read_text(file, name), name)
    except InputError as error:
        raise InputError(f"{error}; name a config.json") from None
    stem = file.resolve().parent.name if file.stem == "config" else file.stem
    return config, check_name(stem, "name of the model")


def name_of(config: Mapping[str, object]) -> str:
    """A name for a parsed config.json: where it was loaded from, or its model_type."""
    text = str(config.get("_name_or_path") or config.get("model_type") or "config")
    return check_name(text.rstrip("/").rpartition("/")[2], "name of the model")


def config_arguments(config: object, name: str) -> dict[str, Any]:
    """What the Model of a parsed config.json is made of: of its text part, where it has others."""
    outer = JsonObject.from_value(config, name)
    nested = next((key for key in ("text_config", "llm_config") if outer.has_key(key)), "")
    text = JsonObject.from_value(outer.values[nested], name, f"$.{nested}") if nested else outer
    if nested and outer.has_key("tie_word_embeddings"):
        tied = {"tie_word_embeddings": outer.values["tie_word_embeddings"]}
        text = replace(text, values={**text.values, **tied})
    _check_decoder_only(outer)
    arguments = _arguments(text, _family(text))
    for read in (text, outer):
        read.refuse_slips()
    return arguments | {"left_out": tuple(key for key in TOWERS if outer.has_key(key))}


def _check_decoder_only(config: JsonObject) -> None:
    for key in ("is_encoder_decoder", "add_cross_attention"):
        if config.flag(key, False):
            raise config.error(key, "is true; only decoder-only transformers are supported")


def _family(config: JsonObject) -> ConfigFamily:
    """The family of the model_type with the file's switches applied."""
    kind = config.values.get("model_type")
    if not config.has_key("model_type"):
        config.refuse_slips()
    if not isinstance(kind, str):
        state = f"is {describe(kind)}" if "model_type" in config.values else "is missing"
        example = "it must be a name such as llama"
        raise config.error("model_type", f"{state}; {example}{did_you_mean('', FAMILIES)}")
    if kind in UNSUPPORTED_TYPES:
        problem = f"{kind} has {UNSUPPORTED_TYPES[kind]}, which is not modelled"
        raise config.error("model_type", problem)
    if kind not in FAMILIES:
        near = did_you_mean(kind[:60], FAMILIES)
        raise config.error("model_type", f"{describe(kind)} is not supported{near}")
    family = FAMILIES[kind]
    _check_family(config, family, kind)
    switches = {
        field: config.flag(key, False)
        for key, fields in SWITCHES.items()
        if config.has_key(key)
        for field in fields
    }
    if family.qkv_alone:
        switches["out_bias"] = config.flag("attention_out_bias", False)
    return replace(family, **switches)  # type: ignore[arg-type]


def _check_family(config: JsonObject, family: ConfigFamily, kind: str) -> None:
    _check_decoder_only(config)
    for key in family.required_keys:
        if not config.has_key(key) and (key not in config.values or key not in NONE_WHEN_NULL):
            state = "null" if key in config.values else "missing"
            raise config.missing_error(key, f"is {state}; a {kind} config must state it")
    for key, value in family.fixed_values:
        if config.has_key(key) and config.values[key] != value:
            problem = (
                f"is {describe(config.values[key])}; for {kind} only {describe(value)} is supported"
            )
            raise config.error(key, problem)
    absent = {"sliding_window": family.windows, "kv_lora_rank": family.latent}
    absent |= dict.fromkeys(EXPERT_COUNTS, family.experts)
    for key, known in absent.items():
        if not known and config.has_key(key):
            raise config.error(key, f"does not belong to {kind}; remove it or set it to null")
    if config.has_key("hybrid_override_pattern"):
        raise config.error(
            "hybrid_override_pattern", f"means {LINEAR_ATTENTION}, which is not supported"
        )


def _arguments(config: JsonObject, family: ConfigFamily) -> dict[str, Any]:
    hidden = config.size("hidden_size", "n_embd", "n_embed", "d_model")
    layers = config.size(*LAYERS, most=MOST_LAYERS)
    if config.size("word_embed_proj_dim", default=hidden) != hidden:
        problem = f"differs from hidden size {hidden}; projections in and out are not supported"
        raise config.error("word_embed_proj_dim", problem)
    shapes = list(
        zip(_windows(config, family, layers), _expert_layers(config, family, layers), strict=True)
    )
    distinct = list(dict.fromkeys(shapes))
    positions = config.size(family.positions) if family.positions else 0
    return {
        "name": config.name,
        "hidden": hidden,
        "vocabulary": config.size("vocab_size", "vocabulary_size"),
        "kinds": tuple(
            _block(config, family, hidden, window, sparse) for window, sparse in distinct
        ),
        "order": tuple(distinct.index(shape) for shape in shapes),
        "tied": family.tied,
        "norm_bias": family.norm_bias,
        "norm_weights": family.norm_weights,
        "learned_positions": positions + family.extra_positions,
        "idle_positions": family.extra_positions,
        "rotary_base": _rotary_base(config),
        "embedding_norm": family.embedding_norm,
        "head_bias": family.head_bias,
        "mtp_layers": config.size(
            "num_nextn_predict_layers", "num_mtp_modules", default=0, least=0, most=MOST_LAYERS
        ),
        "source": f"Hugging Face config.json, model_type {config.values['model_type']}",
    }


def _rotary_base(config: JsonObject) -> float:
    """Base of the rotary frequencies; 0 where the file states none, or different ones by layer."""
    nested = config.values.get("rope_parameters")
    values = {**config.values, **(nested if isinstance(nested, dict) else {})}
    if "rope_local_base_freq" in values:
        return 0.0
    for key in ("rope_theta", "rotary_emb_base"):
        base = values.get(key)
        if isinstance(base, int | float) and base is not True and 0 < base < LARGEST_SIZE:
            return float(base)
    return 0.0


def _windows(config: JsonObject, family: ConfigFamily, layers: int) -> list[int]:
    """Each layer's window; 0 where attention sees everything."""
    limited = "chunked_attention" if _has_chunked_window(family) else "sliding_attention"
    limited = "indexed_attention" if family.latent else limited
    types = config.per_layer("layer_types", layers, ("full_attention", limited))
    window = _window(config, family)
    if types:
        local = [kind == limited for kind in types]
        if any(local) and not window and not family.latent:
            raise config.error("layer_types", f"has windows but {family.window_key} states none")
    else:
        local = _windowed_layers(config, family, layers) if window else [False] * layers
    return [window * is_local for is_local in local]


def _has_chunked_window(family: ConfigFamily) -> bool:
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
    every = config.size(
        "sliding_window_pattern", "no_rope_layer_interval", default=family.full_every
    )
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
    first = config.size(
        "first_k_dense_replace", "moe_layer_start_index", default=0, least=0, most=layers
    )
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


def _block(
    config: JsonObject, family: ConfigFamily, hidden: int, window: int, sparse: bool
) -> Block:
    attention = _latent_attention if family.latent else _attention
    return Block(
        attention=attention(config, family, hidden, window),
        mlp=None if sparse else _mlp(config, family, hidden),
        experts=_experts(config, family) if sparse else None,
        norms=_norms(config, family),
        parallel=family.parallel,
    )


def _norms(config: JsonObject, family: ConfigFamily) -> int:
    if not family.parallel:
        return family.norms
    both = 2 if config.flag("new_decoder_architecture", False) else family.parallel_norms
    return config.size("num_ln_in_parallel_attn", default=both, most=2)


def _heads(config: JsonObject) -> int:
    return config.size("num_attention_heads", "n_head", "n_heads", "num_heads", most=MOST_HEADS)


def _attention(config: JsonObject, family: ConfigFamily, hidden: int, window: int) -> Attention:
    heads = _heads(config)
    head_dim = config.size("head_dim", "attention_head_dim", "kv_channels", default=0)
    if not head_dim and hidden % heads:
        problem = f"is {heads}, which does not divide hidden size {hidden}; state head_dim"
        raise config.error("num_attention_heads", problem)
    head_dim = head_dim or hidden // heads
    return Attention(
        heads=heads,
        kv_heads=_kv_heads(config, family, heads),
        head_dim=head_dim,
        value_dim=head_dim,
        window=window,
        chunked=window > 0 and _has_chunked_window(family),
        qkv_bias=family.qkv_bias,
        out_bias=family.out_bias,
        query_key_norm=family.query_key_norm if family.has_query_key_norm else "",
        sinks=family.sinks,
    )


def _kv_heads(config: JsonObject, family: ConfigFamily, heads: int) -> int:
    if family.multi_query and not config.flag("new_decoder_architecture", False):
        return 1
    keys = ("num_key_value_heads", "num_kv_heads")
    kv_heads = config.size(*keys, default=heads, most=heads, limit=", the number of heads")
    if heads % kv_heads:
        divisors = [n for n in range(1, heads + 1) if heads % n == 0]
        below = max(n for n in divisors if n < kv_heads)
        above = min(n for n in divisors if n > kv_heads)
        problem = f"is {kv_heads}, which does not divide {heads} heads; nearest: {below}, {above}"
        raise config.error(next(key for key in keys if config.has_key(key)), problem)
    return kv_heads


def _latent_attention(
    config: JsonObject, family: ConfigFamily, hidden: int, window: int
) -> Attention:
    """Multi-head latent attention; `q_lora_rank: null` means uncompressed queries."""
    heads = _heads(config)
    rope = config.size("qk_rope_head_dim")
    head_dim = config.size("qk_nope_head_dim") + rope
    if config.size("qk_head_dim", default=head_dim) != head_dim:
        problem = f"must be qk_nope_head_dim + qk_rope_head_dim = {head_dim}"
        raise config.error("qk_head_dim", problem)
    if config.size("num_key_value_heads", default=heads) != heads:
        problem = f"must equal the {heads} heads: latent attention has no grouped queries"
        raise config.error("num_key_value_heads", problem)
    config.per_layer("indexer_types", config.size(*LAYERS), ("full",))
    index_heads = config.size("index_n_heads", default=0)
    attention = Attention(
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        value_dim=config.size("v_head_dim"),
        kv_rank=config.size("kv_lora_rank"),
        q_rank=config.size("q_lora_rank", default=0),
        rope_dim=rope,
        index_heads=index_heads,
        index_dim=config.size("index_head_dim") if index_heads else 0,
        index_topk=config.size("index_topk") if index_heads else 0,
    )
    if index_heads and not attention.q_rank:
        raise config.error("q_lora_rank", "is null; the indexer needs compressed queries")
    return attention


def _mlp(config: JsonObject, family: ConfigFamily, hidden: int) -> Mlp:
    ffn = config.size(*family.ffn, default=family.ffn_of_hidden * hidden or None)
    return Mlp(ffn=ffn, gated=family.gated, bias=family.mlp_bias)


def _experts(config: JsonObject, family: ConfigFamily) -> Experts:
    count = config.size(*EXPERT_COUNTS)
    shared = config.size(family.shared_key, default=0, least=0) if family.shared_key else 0
    ffn = config.size(family.expert_ffn)
    return Experts(
        count=count,
        top_k=config.size(*TOP_K, most=count, limit=", the number of experts"),
        ffn=ffn,
        gated=family.gated,
        bias=family.expert_bias,
        shared_ffn=shared * ffn if family.shared_key in SHARED_COUNTS else shared,
        shared_gate=family.shared_gate,
        router_bias=family.expert_bias or family.router_bias,
        groups=config.size("n_group", default=1, most=count),
        group_limit=config.size("topk_group", default=1, most=count),
    )
