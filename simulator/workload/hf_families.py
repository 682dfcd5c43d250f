"""Hugging Face model families: what a model_type means beyond the sizes in its config.json.

One record a model_type: biases, norms, which layers are experts or windowed, and what the file
must state because only the model's code knows its default. Facts of the model classes of
transformers 5.23, checked by exact parameter counts: of published configs, or of the defaults of
the configuration class (tests/simulator/workload).
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigFamily:
    """What a model_type means beyond the sizes in its config; switches in the file overrule it."""

    gated: bool = True
    tied: bool = False
    parallel: bool = False
    norms: int = 2
    """Norms a layer, after one another ..."""
    parallel_norms: int = 2
    """... and when attention and MLP are parallel."""
    norm_bias: bool = False
    norm_weights: bool = True
    """Norms have weights."""
    embedding_norm: bool = False
    query_key_norm: str = ""
    has_query_key_norm: bool = True
    """Queries and keys are normed, in the way of query_key_norm."""
    qkv_bias: bool = False
    out_bias: bool = False
    qkv_alone: bool = False
    """`attention_bias` is of queries, keys and values; `attention_out_bias` of the output."""
    mlp_bias: bool = False
    head_bias: bool = False
    sinks: bool = False
    multi_query: bool = False
    latent: bool = False
    """Multi-head latent attention (kv_lora_rank)."""
    positions: str = ""
    """Key of the learned position table's rows; none for rotary and ALiBi."""
    extra_positions: int = 0
    """Rows of that table before the one of the first token."""
    ffn: tuple[str, ...] = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size")
    ffn_of_hidden: int = 0
    """Width of the MLP over hidden when the file does not say."""
    windows: str = ""
    """Layers with a window: 'all', 'upper' (from max_window_layers), 'interval' (but every nth)."""
    window_key: str = "sliding_window"
    window: int | None = None
    """The window when the key is absent: 0 for none; None where the file must state it."""
    optional_window: bool = False
    """There are windows only with use_sliding_window."""
    full_every: int = 0
    experts: bool = False
    expert_ffn: str = "intermediate_size"
    expert_bias: bool = False
    """Of the routed experts and of the router."""
    router_bias: bool = False
    """Of the router alone."""
    shared_key: str = ""
    """Key of the shared experts' number (SHARED_COUNTS) or total width."""
    shared_gate: bool = False
    required_keys: tuple[str, ...] = ()
    """Keys whose absence would mean a size that only the model's code knows."""
    fixed_values: tuple[tuple[str, object], ...] = ()
    """Keys whose other values are not modelled."""


SHARED_COUNTS = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
"""Keys of a number of shared experts, each as wide as a routed one."""

SWITCHES = {
    "tie_word_embeddings": ("tied",),
    "attention_bias": ("qkv_bias", "out_bias"),
    "mlp_bias": ("mlp_bias",),
    "bias": ("qkv_bias", "out_bias", "mlp_bias"),
    "use_bias": ("qkv_bias", "out_bias", "mlp_bias"),
    "enable_bias": ("qkv_bias", "out_bias", "mlp_bias"),
    "qkv_bias": ("qkv_bias",),
    "use_qkv_bias": ("qkv_bias",),
    "lm_head_bias": ("head_bias",),
    "use_parallel_residual": ("parallel",),
    "parallel_attn": ("parallel",),
    "use_qk_norm": ("has_query_key_norm",),
    "qk_layernorm": ("has_query_key_norm",),
    "multi_query": ("multi_query",),
}
"""Booleans of a config and the Family fields they set."""

NONE_WHEN_NULL = (
    "n_shared_experts",
    "num_key_value_heads",
    "q_lora_rank",
)
"""Required keys in which null is a statement: no shared experts, no grouping, no compression."""

_KV = ("num_key_value_heads",)
_KV_DIM = (*_KV, "head_dim")
_LLAMA = ConfigFamily()
_BIASED = ConfigFamily(gated=False, norm_bias=True, qkv_bias=True, out_bias=True, mlp_bias=True)
_GPT = replace(_BIASED, tied=True, ffn_of_hidden=4)
_GPTJ = ConfigFamily(gated=False, norm_bias=True, mlp_bias=True, head_bias=True, parallel=True)
_OPT_FORM = (("do_layer_norm_before", True), ("layer_norm_elementwise_affine", True))
_QWEN = ConfigFamily(windows="upper", optional_window=True, required_keys=_KV)
_QWEN_EXPERTS = replace(_QWEN, experts=True, expert_ffn="moe_intermediate_size")
_GEMMA = ConfigFamily(tied=True, required_keys=_KV_DIM)
_GEMMA2 = replace(_GEMMA, norms=4, windows="interval")
_OLMO2 = ConfigFamily(query_key_norm="full")
_COHERE = replace(_OLMO2, tied=True, parallel=True, parallel_norms=1, has_query_key_norm=False)
_MIXTRAL = ConfigFamily(experts=True, windows="all", window=0, required_keys=_KV)
_DEEPSEEK = ConfigFamily(
    latent=True,
    experts=True,
    expert_ffn="moe_intermediate_size",
    shared_key="n_shared_experts",
    required_keys=("q_lora_rank", "n_shared_experts", "first_k_dense_replace"),
    fixed_values=(("attention_bias", False),),
)
_GLM = ConfigFamily(qkv_bias=True, qkv_alone=True, required_keys=_KV)
_GLM_EXPERTS = ConfigFamily(
    qkv_alone=True,
    experts=True,
    expert_ffn="moe_intermediate_size",
    shared_key="n_shared_experts",
    required_keys=(*_KV, "n_shared_experts"),
)
_GLM_STATED = (*_GLM_EXPERTS.required_keys, "use_qk_norm", "first_k_dense_replace")
_GRANITE_EXPERTS = ConfigFamily(experts=True, required_keys=_KV)
_ERNIE = ConfigFamily(tied=True, required_keys=_KV)
_DEEPSEEK_SPARSE = replace(
    _DEEPSEEK,
    required_keys=(*_DEEPSEEK.required_keys, "index_n_heads"),
    fixed_values=(*_DEEPSEEK.fixed_values, ("index_topk_freq", 1), ("index_topk_pattern", None)),
)

FAMILIES = {
    "arcee": ConfigFamily(gated=False, required_keys=_KV),
    "baichuan": _LLAMA,
    "bloom": replace(_GPT, embedding_norm=True),
    "codegen": replace(_GPTJ, parallel_norms=1, ffn_of_hidden=4),
    "cohere": _COHERE,
    "cohere2": replace(_COHERE, windows="interval", full_every=4),
    "cwm": ConfigFamily(windows="interval", full_every=4, required_keys=_KV),
    "deepseek": replace(_GLM_EXPERTS, qkv_alone=False),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v32": _DEEPSEEK_SPARSE,
    "dots1": replace(_GLM_EXPERTS, windows="upper", query_key_norm="head"),
    "ernie4_5": _ERNIE,
    "ernie4_5_moe": replace(
        _ERNIE,
        experts=True,
        router_bias=True,
        expert_ffn="moe_intermediate_size",
        shared_key="moe_num_shared_experts",
        required_keys=(*_KV, "moe_num_shared_experts", "moe_layer_start_index"),
    ),
    "exaone4": ConfigFamily(
        windows="interval", full_every=4, query_key_norm="head", required_keys=_KV
    ),
    "exaone_moe": ConfigFamily(
        windows="interval",
        full_every=4,
        query_key_norm="head",
        experts=True,
        expert_ffn="moe_intermediate_size",
        shared_key="num_shared_experts",
        required_keys=(*_KV, "num_shared_experts"),
    ),
    "falcon": ConfigFamily(
        gated=False,
        tied=True,
        norm_bias=True,
        parallel=True,
        parallel_norms=1,
        multi_query=True,
        ffn_of_hidden=4,
    ),
    "flex_olmo": replace(_OLMO2, experts=True),
    "gemma": _GEMMA,
    "gemma2": replace(_GEMMA2, full_every=2),
    "gemma3_text": replace(_GEMMA2, full_every=6, query_key_norm="head"),
    "glm": _GLM,
    "glm4": replace(_GLM, norms=4),
    "glm4_moe": replace(_GLM_EXPERTS, query_key_norm="head", required_keys=_GLM_STATED),
    "glm4_moe_lite": replace(_DEEPSEEK, required_keys=("q_lora_rank", "n_shared_experts")),
    "glm_moe_dsa": _DEEPSEEK_SPARSE,
    "gpt2": replace(_GPT, positions="n_positions"),
    "gpt_bigcode": replace(_GPT, positions="n_positions", multi_query=True),
    "gpt_neox": replace(_BIASED, parallel=True),
    "gpt_oss": replace(
        _MIXTRAL,
        qkv_bias=True,
        out_bias=True,
        sinks=True,
        expert_bias=True,
        windows="interval",
        window=None,
        full_every=2,
        required_keys=_KV_DIM,
    ),
    "gptj": replace(_GPTJ, parallel_norms=1, ffn_of_hidden=4),
    "granite": _LLAMA,
    "granitemoe": _GRANITE_EXPERTS,
    "granitemoeshared": replace(_GRANITE_EXPERTS, shared_key="shared_intermediate_size"),
    "helium": ConfigFamily(required_keys=_KV),
    "hunyuan_v1_dense": ConfigFamily(query_key_norm="head", required_keys=_KV),
    "internlm2": ConfigFamily(required_keys=_KV),
    "internlm3": ConfigFamily(required_keys=_KV),
    "kimi_k2": _DEEPSEEK,
    "llama": _LLAMA,
    "llama4_text": ConfigFamily(
        ffn=("intermediate_size_mlp",),
        windows="interval",
        window_key="attention_chunk_size",
        full_every=4,
        experts=True,
        shared_key="intermediate_size",
        required_keys=(*_KV, "interleave_moe_layer_step"),
    ),
    "minicpm3": ConfigFamily(latent=True, required_keys=("q_lora_rank",)),
    "minimax_m2": ConfigFamily(
        query_key_norm="full",
        experts=True,
        required_keys=_KV_DIM,
        fixed_values=(("shared_intermediate_size", 0),),
    ),
    "ministral": ConfigFamily(windows="all", window=4096, required_keys=_KV_DIM),
    "ministral3": ConfigFamily(windows="all", window=0, required_keys=_KV_DIM),
    "mistral": ConfigFamily(windows="all", window=4096, required_keys=_KV),
    "mixtral": _MIXTRAL,
    "mpt": ConfigFamily(
        gated=False,
        tied=True,
        ffn_of_hidden=4,
        fixed_values=(("expansion_ratio", 4), ("no_bias", True)),
    ),
    "nanochat": ConfigFamily(gated=False, norm_weights=False, required_keys=_KV),
    "nemotron": ConfigFamily(gated=False, norm_bias=True),
    "olmo": ConfigFamily(norm_weights=False),
    "olmo2": _OLMO2,
    "olmo3": replace(_OLMO2, windows="interval", full_every=4),
    "olmoe": replace(_OLMO2, experts=True),
    "opt": replace(
        _BIASED,
        tied=True,
        positions="max_position_embeddings",
        extra_positions=2,
        fixed_values=(*_OPT_FORM, ("_remove_final_layer_norm", False)),
    ),
    "phi": replace(
        _BIASED,
        head_bias=True,
        parallel=True,
        parallel_norms=1,
        fixed_values=(("qk_layernorm", False),),
    ),
    "phi3": ConfigFamily(windows="all", window=0),
    "phimoe": replace(_MIXTRAL, norm_bias=True),
    "qwen2": replace(_QWEN, qkv_bias=True),
    "qwen2_moe": replace(
        _QWEN_EXPERTS, qkv_bias=True, shared_key="shared_expert_intermediate_size", shared_gate=True
    ),
    "qwen3": replace(_QWEN, query_key_norm="head", required_keys=_KV_DIM),
    "qwen3_moe": replace(
        _QWEN_EXPERTS, windows="all", query_key_norm="head", required_keys=_KV_DIM
    ),
    "seed_oss": replace(_GLM, required_keys=_KV_DIM),
    "smollm3": ConfigFamily(tied=True, windows="all", optional_window=True, required_keys=_KV),
    "solar_open": _GLM_EXPERTS,
    "stablelm": ConfigFamily(
        norm_bias=True,
        parallel_norms=1,
        query_key_norm="full",
        has_query_key_norm=False,
        required_keys=_KV,
    ),
    "starcoder2": replace(_BIASED, tied=True, windows="all", window=0, required_keys=_KV),
    "vaultgemma": replace(_GEMMA, windows="interval", full_every=2),
}

FAMILIES |= {
    text: FAMILIES[family]
    for family, texts in {
        "glm4": ("glm4v_text",),
        "solar_open": ("glm4v_moe_text",),
        "qwen2": ("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"),
        "qwen3": ("qwen3_vl_text",),
        "qwen3_moe": ("qwen3_vl_moe_text",),
    }.items()
    for text in texts
}
"""Text models beside a vision tower."""

LINEAR_ATTENTION = "state-space (Mamba) or linear-attention layers"
_LINEAR_TYPES = (
    "bailing_hybrid bamba falcon_h1 falcon_mamba granitemoehybrid jamba kimi_linear lfm2 lfm2_moe "
    "mamba mamba2 minimax minimax_m1 minimax_text_01 nemotron_h olmo_hybrid plamo2 qwen3_5 "
    "qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen3_next recurrent_gemma rwkv xlstm zamba zamba2"
)
_ENCODER_TYPES = (
    "albert bart bert blenderbot clip deberta distilbert electra longt5 mbart modernbert mt5 "
    "pegasus roberta siglip t5 t5gemma umt5 vit whisper xlm-roberta"
)
UNSUPPORTED_TYPES = (
    dict.fromkeys(_LINEAR_TYPES.split(), LINEAR_ATTENTION)
    | dict.fromkeys(_ENCODER_TYPES.split(), "an encoder")
    | dict.fromkeys(("gemma3n", "gemma3n_text"), "embeddings in every layer and parallel streams")
    | dict.fromkeys(("gemma4", "gemma4_text"), "embeddings in every layer, or two widths of heads")
    | dict.fromkeys(("deci", "nemotron-nas", "openelm"), "layers of different widths")
    | {
        "apertus": "activations with weights",
        "deepseek_v4": "compressed attention and several residual streams",
        "longcat_flash": "two attentions a layer and experts that compute nothing",
        "mimo_v2_flash": "two widths of heads",
    }
)
"""Known model types that are not modelled, and the feature that is missing."""
