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
from ..base.errors import InputError, check_name, check_path, did_you_mean, intended_name
from ..base.files import read_text
from ..base.typed_objects import LARGEST_SIZE, JsonObject, describe
from .blocks import MOST_LAYERS, NO_ATTENTION, Attention, Block, Experts, Mlp
from .hf_families import FAMILIES, UNSUPPORTED_TYPES
from .hf_family import (
    LINEAR_ATTENTION,
    NONE_WHEN_NULL,
    SHARED_COUNTS,
    SHARED_WIDTHS,
    SWITCHES,
    ConfigFamily,
)
from .hf_layers import (
    LAYERS,
    MOST_HEADS,
    LayerParts,
    has_chunked_window,
    layer_parts,
    linear_attention,
)
from .hf_parts import EXPERT_COUNTS, TOP_K, family_of_parts
from .settings import settings_of

HYBRID_PATTERN = "hybrid_override_pattern"
TOWERS = ("vision_config", "audio_config", "speech_config", "vision_tower", "audio_tower")
"""Encoders beside the text model."""
HEADS_BY_LAYER = "num_attention_heads_per_layer"
TEXT_PARTS = ("text_config", "llm_config", "language_config")


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
    nested = next((key for key in TEXT_PARTS if outer.has_key(key)), "")
    text = JsonObject.from_value(outer.values[nested], name, f"$.{nested}") if nested else outer
    if nested and outer.has_key("tie_word_embeddings"):
        tied = {"tie_word_embeddings": outer.values["tie_word_embeddings"]}
        text = replace(text, values={**text.values, **tied})
    _check_decoder_only(outer)
    family, source = _family(text)
    arguments = _arguments(text, family) | {"source": source}
    for read in (text, outer):
        read.refuse_slips()
    return arguments | {"left_out": tuple(key for key in TOWERS if outer.has_key(key))}


def _check_decoder_only(config: JsonObject) -> None:
    for key in ("is_encoder_decoder", "add_cross_attention"):
        if config.flag(key, False):
            raise config.error(key, "is true; only decoder-only transformers are supported")


def _family(config: JsonObject) -> tuple[ConfigFamily, str]:
    """The family of the model_type, or of the file's parts where that is unknown, with the file's
    switches applied; and what a screen says of it."""
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
    source = f"Hugging Face config.json, model_type {kind}"
    if kind in FAMILIES:
        family = FAMILIES[kind]
        _check_family(config, family, kind)
    else:
        meant = intended_name(kind[:60], FAMILIES)
        if meant:
            raise config.error("model_type", f"{describe(kind)} is unknown; did you mean {meant}?")
        family, notes = family_of_parts(config)
        source = f"{source[:120]}, unknown and read by its parts: {', '.join(notes)}"
    if family.experts and all(config.values.get(key) in (None, 0) for key in EXPERT_COUNTS):
        family = _without_experts(config, family)
    switches = {
        field: config.flag(key, False)
        for key, fields in SWITCHES.items()
        if config.has_key(key)
        for field in fields
    }
    if family.qkv_alone:
        switches["out_bias"] = config.flag("attention_out_bias", False)
    return replace(family, **switches), source  # type: ignore[arg-type]


def _without_experts(config: JsonObject, family: ConfigFamily) -> ConfigFamily:
    """The family of a file whose number of experts is 0: the shared ones are then the MLP
    (Granite 4)."""
    if all(key not in config.values or config.values[key] is None for key in EXPERT_COUNTS):
        return family
    is_width = family.shared_key in SHARED_WIDTHS and config.has_key(family.shared_key)
    ffn = (family.shared_key,) if is_width else family.ffn
    return replace(family, experts=False, shared_key="", ffn=ffn)


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
    absent[HYBRID_PATTERN] = family.lone_parts
    for key, known in absent.items():
        if not known and config.has_key(key) and config.values[key] != 0:
            means = f" and means {LINEAR_ATTENTION}" if key == HYBRID_PATTERN else ""
            problem = f"does not belong to {kind}{means}; remove it or set it to null"
            raise config.error(key, problem)


def _arguments(config: JsonObject, family: ConfigFamily) -> dict[str, Any]:
    hidden = config.size("hidden_size", "n_embd", "n_embed", "d_model")
    if config.size("word_embed_proj_dim", default=hidden) != hidden:
        problem = f"differs from hidden size {hidden}; projections in and out are not supported"
        raise config.error("word_embed_proj_dim", problem)
    shapes = layer_parts(config, family)
    distinct = list(dict.fromkeys(shapes))
    positions = config.size(family.positions) if family.positions else 0
    return {
        "name": config.name,
        "hidden": hidden,
        "vocabulary": config.size("vocab_size", "vocabulary_size"),
        "kinds": tuple(_block(config, family, hidden, parts) for parts in distinct),
        "order": tuple(distinct.index(shape) for shape in shapes),
        "tied": family.tied,
        "norm_bias": family.norm_bias,
        "norm_weights": family.norm_weights,
        "learned_positions": positions + family.extra_positions,
        "idle_positions": family.extra_positions,
        "rotary_base": _rotary_base(config),
        "settings": settings_of(config, family),
        "embedding_norm": family.embedding_norm,
        "head_bias": family.head_bias,
        "mtp_layers": config.size(
            "num_nextn_predict_layers",
            "num_mtp_modules",
            "num_mtp_layers",
            default=0,
            least=0,
            most=MOST_LAYERS,
        ),
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


def _block(config: JsonObject, family: ConfigFamily, hidden: int, parts: LayerParts) -> Block:
    attention = NO_ATTENTION
    if parts.mixer == "linear":
        attention = linear_attention(config, family, hidden)
    elif parts.mixer:
        of = _latent_attention if family.latent else _attention
        attention = of(config, family, hidden, parts.window)
    sparse = parts.feed == "sparse"
    return Block(
        attention=attention,
        mlp=_mlp(config, family, hidden) if parts.feed == "dense" else None,
        experts=_experts(config, family) if sparse else None,
        norms=_norms(config, family) + sparse * family.sparse_norms,
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
    if config.has_key(HEADS_BY_LAYER):
        config.per_layer(HEADS_BY_LAYER, config.size(*LAYERS), (heads,))
    return Attention(
        heads=heads,
        kv_heads=_kv_heads(config, family, heads),
        head_dim=head_dim,
        value_dim=head_dim,
        window=window,
        chunked=window > 0 and has_chunked_window(family),
        qkv_bias=family.qkv_bias,
        out_bias=family.out_bias,
        query_key_norm=family.query_key_norm if family.has_query_key_norm else "",
        sinks=family.sinks,
        output_gate=_output_gate(family, head_dim),
    )


def _output_gate(family: ConfigFamily, value_dim: int) -> int:
    """Width a head of the gate of the output."""
    return {"": 0, "head": 1, "element": value_dim}[family.output_gate]


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
        output_gate=_output_gate(family, config.size("v_head_dim")),
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
        groups=config.size("n_group", "num_expert_group", default=1, most=count),
        group_limit=config.size("topk_group", default=1, most=count),
        latent=config.size("moe_latent_size", default=0),
    )
