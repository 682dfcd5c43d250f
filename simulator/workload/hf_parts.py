"""Configurations of an unknown model_type: a family by the keys and values of the file alone.

Every size, list and switch of the file must be one that is read, or one that changes no part of
the model; any other is refused by name, since it may stand for a part that is not modelled. What
no file states (two norms a layer) is said in the source of the model.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ..base.typed_objects import JsonObject, describe
from .hf_family import LINEAR_ATTENTION, SHARED_COUNTS, SHARED_WIDTHS, SWITCHES, ConfigFamily
from .hf_layers import FIRST_EXPERTS, FULL, LAYER_TYPES, LAYERS, WINDOW_PERIODS

ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function")
GATED, UNGATED = ("silu", "swish", "swiglu", "geglu"), ("relu2", "relu", "squared_relu")
EXPERT_COUNTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
TOP_K = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_top_k", "moe_k")
LATENT = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
NORM_SWITCHES = ("use_qk_norm", "qk_layernorm", "qk_norm")
RMS_KEYS, LAYER_NORM_KEYS = ("rms_norm_eps",), ("layer_norm_eps", "layer_norm_epsilon", "norm_eps")

_SIZES = (
    "model_type hidden_size n_embd d_model vocab_size num_attention_heads n_head n_heads "
    "num_key_value_heads num_kv_heads head_dim kv_channels intermediate_size ffn_hidden_size "
    "moe_intermediate_size sliding_window use_sliding_window mlp_layer_types moe_layers "
    "moe_layer_end_index moe_layer_freq decoder_sparse_step moe_layer_interval mlp_only_layers "
    "num_nextn_predict_layers num_mtp_modules num_mtp_layers n_group topk_group qk_head_dim"
)
_LISTS = (LAYERS, ACTIVATIONS, EXPERT_COUNTS, TOP_K, LATENT, NORM_SWITCHES, SHARED_COUNTS)
_OTHERS = (SHARED_WIDTHS, FIRST_EXPERTS, WINDOW_PERIODS, LAYER_TYPES, (*SWITCHES,))
READ = frozenset([key for keys in (*_LISTS, *_OTHERS) for key in keys] + _SIZES.split())
"""Keys that are read."""

NEUTRAL = re.compile(
    r"(_token_id|_token_ids|_token_index|_eps|_epsilon|_std|_coef|_coeff|_coefficient|_alpha|_beta)$"
    r"|dropout|_loss|loss_|use_cache|^rope|rope_|rotary|max_position|seq_len|^max_length|model_max"
    r"|model_length|version|dtype|initializer|scaling|_scale$|multiplier|temperature|softcap"
    r"|^output_|^return_|attn_implementation|auto_map|architectures|quantization|compression_config"
    r"|^norm_topk|renormalize|^routed_|^route_|router_(aux|jitter|z_|logits|score|enable_expert_bias)"
    r"|score_func|scoring_func|topk_method|pretraining_tp|chunk_size_feed|^id2label|^label2id"
    r"|^num_labels|max_window_layers|^is_decoder|^pad_|^bos_|^eos_|^_|fp32|flash|capacity"
    r"|group_limited|num_logits_to_keep|^transformers|^use_return|^torchscript|^tokenizer|^unsloth"
)
"""Keys that change no part of a model: tokens, rates, scales, formats, positions, routing."""


class PartsFamily(NamedTuple):
    """What the keys of a file say, and what is assumed where no file says it."""

    family: ConfigFamily
    notes: tuple[str, ...]


def family_of_parts(config: JsonObject) -> PartsFamily:
    """The family of a file of an unknown type. Raises InputError for a part that is not known."""
    kind = f"model_type {describe(config.values['model_type'])} is unknown"
    _check_keys(config, kind)
    latent, tied = config.has_key("kv_lora_rank"), "tie_word_embeddings"
    grouped = config.has_key("num_key_value_heads") or config.has_key("num_kv_heads")
    missing = "" if latent or grouped else "num_key_value_heads"
    missing = missing if config.has_key(tied) else tied
    if missing:
        raise config.missing_error(missing, f"is missing; {kind}, so the file must state it")
    gated, activation = _gating(config, kind)
    layer_norm = not config.has_key(RMS_KEYS[0]) and any(map(config.has_key, LAYER_NORM_KEYS))
    experts = next((key for key in EXPERT_COUNTS if config.values.get(key) not in (None, 0)), "")
    if experts and config.has_key("kv_channels"):
        problem = "beside experts; with a model_type that is unknown they may be in attention too"
        raise config.error(
            "kv_channels", f"stands {problem}, as those of jetmoe are: it is not read"
        )
    has_norm = any(config.flag(key, False) for key in NORM_SWITCHES)
    shared = _shared_key(config)
    if shared and not experts:
        raise config.error(shared, f"is {config.values[shared]} without experts; {kind}")
    own_width = config.has_key("moe_intermediate_size")
    notes = (
        f"two {'LayerNorms' if layer_norm else 'RMSNorms'} a layer",
        f"{'a gated MLP' if gated else 'an MLP without gate'} ({activation})",
        "queries and keys normed per head" if has_norm else "no norms of queries and keys",
        "no gate of attention",
        *(["no gate of the shared experts"] if shared else []),
        *(
            ["biases of queries, keys, values and output"]
            if config.values.get("attention_bias")
            else []
        ),
    )
    family = ConfigFamily(
        gated=gated,
        norm_bias=layer_norm,
        query_key_norm="head" if has_norm else "",
        latent=latent,
        experts=bool(experts),
        expert_ffn="moe_intermediate_size" if own_width else "intermediate_size",
        shared_key=shared,
        windows=_windows_rule(config),
        window=0,
    )
    return PartsFamily(family, notes)


def _check_keys(config: JsonObject, kind: str) -> None:
    """Raise InputError for a size, list or switch that may stand for a part that is not known."""
    for key, value in config.values.items():
        width = isinstance(value, float) and re.search("ffn|mlp|expan", str(key))
        if key in READ or (NEUTRAL.search(str(key)) and not width):
            continue
        if not width and (isinstance(value, float | str) or value in (None, 0, [], {})):
            continue
        linear = re.search("mamba|ssm|linear|conv|delta|state_size", str(key))
        what = LINEAR_ATTENTION if linear else "a part that is not known"
        problem = f"is {describe(value)}; {kind}, and this may be {what}: it is not read"
        raise config.error(str(key)[:60], problem)
    for key in LAYER_TYPES:
        listed = config.values.get(key)
        names = {str(kind)[:40] for kind in listed} if isinstance(listed, list) else set()
        other = sorted(names - {*FULL, "sliding_attention"})
        if other:
            problem = f"has {other[0]} layers; {kind}, so only attention is read"
            raise config.error(key, f"{problem} ({LINEAR_ATTENTION} are not)")


def _gating(config: JsonObject, kind: str) -> tuple[bool, str]:
    """Whether an MLP is gated, by its activation, and that."""
    key = next((key for key in ACTIVATIONS if config.has_key(key)), "")
    if not key:
        return True, "silu, as no activation is stated"
    name = config.string(key)
    if name not in (*GATED, *UNGATED):
        problem = f"is {describe(name)}; {kind}, and whether its MLP is gated is not stated"
        raise config.error(key, problem)
    return name in GATED, name


def _shared_key(config: JsonObject) -> str:
    """The key of the shared experts; where their number and a width are given, they must agree."""
    counts = [key for key in SHARED_COUNTS if config.values.get(key) not in (None, 0)]
    widths = [key for key in SHARED_WIDTHS if config.values.get(key) not in (None, 0)]
    if counts and widths and config.has_key("moe_intermediate_size"):
        number, each = config.size(counts[0]), config.size("moe_intermediate_size")
        width = config.size(widths[0])
        if width not in (each, number * each):
            problem = f"is {width}, neither {each} nor {number} times as much; which is not known"
            raise config.error(widths[0], problem)
    return (*counts, *widths, "")[0]


def _windows_rule(config: JsonObject) -> str:
    """How layers with a window are chosen."""
    if config.has_key("layer_types") or not config.has_key("sliding_window"):
        return "all"
    if any(map(config.has_key, WINDOW_PERIODS)):
        return "interval"
    if not config.flag("use_sliding_window", True):
        return ""
    problem = "states a window but not which layers have it; state layer_types, or null here"
    raise config.error("sliding_window", problem)
