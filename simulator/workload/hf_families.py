"""Hugging Face model families: what a model_type means beyond the sizes in its config.json.

One record a model_type: biases, norms, which layers are experts or windowed, and what the file
must state because only the model's code knows its default. Facts of the model classes of
transformers 5.23, checked by exact parameter counts: of published configs, or of the defaults of
the configuration class (tests/simulator/workload).
"""

from __future__ import annotations

from dataclasses import replace

from .blocks import GATED_DELTA, KIMI_DELTA, LIGHTNING, MAMBA2
from .hf_family import LINEAR_ATTENTION, ConfigFamily

_KV = ("num_key_value_heads",)
_KV_DIM = (*_KV, "head_dim")
_NO_MLP_BIAS = (("mlp_bias", False),)
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
    fixed_values=(
        *_DEEPSEEK.fixed_values,
        *_NO_MLP_BIAS,
        ("index_topk_freq", 1),
        ("index_topk_pattern", None),
    ),
)

_QWEN_HYBRID = ConfigFamily(
    linear=GATED_DELTA,
    full_every=4,
    query_key_norm="head",
    output_gate="element",
    required_keys=_KV_DIM,
    fixed_values=(("attention_bias", False),),
)
_QWEN_HYBRID_EXPERTS = replace(
    _QWEN_HYBRID,
    experts=True,
    expert_ffn="moe_intermediate_size",
    shared_key="shared_expert_intermediate_size",
    shared_gate=True,
)
_MINIMAX = ConfigFamily(
    linear=LIGHTNING,
    experts=True,
    required_keys=_KV,
    fixed_values=(("shared_intermediate_size", 0),),
)
_KIMI_LINEAR = replace(
    _DEEPSEEK,
    linear=KIMI_DELTA,
    low_rank_gates=True,
    first_dense=1,
    shared_key="num_shared_experts",
    required_keys=("num_shared_experts",),
)

FAMILIES = {
    "afmoe": ConfigFamily(
        norms=4,
        query_key_norm="head",
        output_gate="element",
        windows="interval",
        full_every=4,
        experts=True,
        router_bias=True,
        expert_ffn="moe_intermediate_size",
        shared_key="num_shared_experts",
        required_keys=(*_KV_DIM, "num_shared_experts", "num_dense_layers"),
    ),
    "arcee": ConfigFamily(gated=False, required_keys=_KV),
    "axk1": replace(_DEEPSEEK, sparse_norms=1, required_keys=("q_lora_rank", "n_shared_experts")),
    "baichuan": _LLAMA,
    "bailing_hybrid": replace(
        _KIMI_LINEAR,
        low_rank_gates=False,
        output_gate="head",
        full_every=6,
        first_dense=2,
    ),
    "bailing_moe_v2": replace(
        _GLM_EXPERTS,
        query_key_norm="head",
        qkv_alone=False,
        shared_key="num_shared_experts",
        required_keys=(*_KV, "num_shared_experts", "first_k_dense_replace"),
    ),
    "bamba": ConfigFamily(linear=MAMBA2, required_keys=_KV),
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
        fixed_values=(("use_bias", False),),
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
    "flint": replace(
        _QWEN_EXPERTS,
        query_key_norm="head",
        sinks=True,
        windows="all",
        optional_window=False,
        shared_key="shared_expert_intermediate_size",
        required_keys=(*_KV_DIM, "layer_types", "shared_expert_intermediate_size"),
    ),
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
    "granite_swa": ConfigFamily(sinks=True, tied=True, windows="all", required_keys=_KV),
    "granitemoe": _GRANITE_EXPERTS,
    "granitemoe_swa": replace(
        _GRANITE_EXPERTS,
        sinks=True,
        windows="all",
        fixed_values=(("shared_intermediate_size", 0),),
    ),
    "granitemoehybrid": replace(
        _GRANITE_EXPERTS,
        linear=MAMBA2,
        shared_key="shared_intermediate_size",
        required_keys=(*_KV, "num_local_experts", "shared_intermediate_size"),
    ),
    "granitemoeshared": replace(_GRANITE_EXPERTS, shared_key="shared_intermediate_size"),
    "helium": ConfigFamily(qkv_alone=True, required_keys=_KV),
    "hy_v3": replace(
        _GLM_EXPERTS,
        query_key_norm="head",
        qkv_alone=False,
        first_dense=1,
        shared_key="num_shared_experts",
        required_keys=(*_KV_DIM, "num_shared_experts"),
        fixed_values=_NO_MLP_BIAS,
    ),
    "hunyuan_v1_dense": ConfigFamily(query_key_norm="head", required_keys=_KV),
    "internlm2": ConfigFamily(required_keys=_KV),
    "internlm3": ConfigFamily(required_keys=_KV),
    "iquestcoder": ConfigFamily(required_keys=_KV_DIM),
    "jais2": replace(_BIASED, required_keys=_KV),
    "kimi_k2": _DEEPSEEK,
    "kimi_linear": _KIMI_LINEAR,
    "kolibri1": ConfigFamily(
        norms=4,
        query_key_norm="head",
        windows="all",
        experts=True,
        expert_ffn="moe_intermediate_size",
        shared_key="shared_expert_intermediate_size",
        required_keys=(*_KV_DIM, "layer_types", "shared_expert_intermediate_size"),
    ),
    "laguna": ConfigFamily(
        query_key_norm="head",
        output_gate="head",
        windows="all",
        experts=True,
        router_bias=True,
        first_dense=1,
        expert_ffn="moe_intermediate_size",
        shared_key="shared_expert_intermediate_size",
        required_keys=(*_KV_DIM, "layer_types", "shared_expert_intermediate_size"),
        fixed_values=(("gating", True),),
    ),
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
    "mellum": replace(
        _MIXTRAL,
        query_key_norm="head",
        expert_ffn="moe_intermediate_size",
        required_keys=(*_KV_DIM, "layer_types"),
    ),
    "minicpm3": ConfigFamily(
        latent=True, required_keys=("q_lora_rank",), fixed_values=(("attention_bias", False),)
    ),
    "minimax": _MINIMAX,
    "minimax_m1": _MINIMAX,
    "minimax_m2": ConfigFamily(
        query_key_norm="full",
        experts=True,
        required_keys=_KV_DIM,
        fixed_values=(("shared_intermediate_size", 0),),
    ),
    "minimax_text_01": _MINIMAX,
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
    "nemotron_h": ConfigFamily(
        gated=False,
        linear=MAMBA2,
        lone_parts=True,
        norms=1,
        experts=True,
        expert_ffn="moe_intermediate_size",
        shared_key="moe_shared_expert_intermediate_size",
        required_keys=_KV,
        fixed_values=(
            *_NO_MLP_BIAS,
            ("use_bias", False),
            ("mamba_proj_bias", False),
            ("n_shared_experts", 1),
        ),
    ),
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
    "qwen3_5_text": _QWEN_HYBRID,
    "qwen3_5_moe_text": _QWEN_HYBRID_EXPERTS,
    "qwen3_next": _QWEN_HYBRID_EXPERTS,
    "qwen2_moe": replace(
        _QWEN_EXPERTS, qkv_bias=True, shared_key="shared_expert_intermediate_size", shared_gate=True
    ),
    "qwen3": replace(_QWEN, query_key_norm="head", required_keys=_KV_DIM),
    "qwen3_moe": replace(
        _QWEN_EXPERTS, windows="all", query_key_norm="head", required_keys=_KV_DIM
    ),
    "sarvam_mla": replace(_DEEPSEEK, required_keys=("n_shared_experts", "first_k_dense_replace")),
    "sarvam_moe": replace(_GLM_EXPERTS, query_key_norm="head", required_keys=_GLM_STATED),
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
    "youtu": replace(
        _DEEPSEEK, experts=False, shared_key="", tied=True, required_keys=("q_lora_rank",)
    ),
}

FAMILIES |= {
    text: FAMILIES[family]
    for family, texts in {
        "glm4": ("glm4v_text",),
        "solar_open": ("glm4v_moe_text",),
        "qwen2": ("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"),
        "qwen3": ("qwen3_vl_text",),
        "qwen3_moe": ("qwen3_vl_moe_text",),
        "qwen3_5_text": ("qwen3_5",),
        "qwen3_5_moe_text": ("qwen3_5_moe",),
    }.items()
    for text in texts
}
"""Text models beside a vision tower."""

_CORRECTED = (
    "afmoe axk1 bailing_hybrid bailing_moe_v2 deepseek_v3 deepseek_v32 dots1 exaone_moe glm4_moe "
    "glm4_moe_lite glm4v_moe_text glm_moe_dsa hy_v3 kimi_k2 kimi_linear laguna minimax_m2 "
    "nemotron_h sarvam_mla sarvam_moe solar_open"
)
FAMILIES |= {
    kind: replace(FAMILIES[kind], router_score="sigmoid", router_correction=True)
    for kind in _CORRECTED.split()
}
"""Routers of DeepSeek-V3: sigmoid scores, and a bias that balances experts."""
FAMILIES["ernie4_5_moe"] = replace(FAMILIES["ernie4_5_moe"], router_correction=True)
FAMILIES["llama4_text"] = replace(FAMILIES["llama4_text"], router_score="sigmoid")
FAMILIES |= {
    kind: replace(FAMILIES[kind], normalised_router=False)
    for kind in ("deepseek", "deepseek_v2", "olmoe", "qwen2_moe")
}

_LINEAR_TYPES = (
    "falcon_h1 falcon_mamba jamba mamba mamba2 olmo_hybrid plamo2 qwen4_exp recurrent_gemma rwkv "
    "xlstm zamba zamba2"
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
    | dict.fromkeys(("lfm2", "lfm2_moe", "lfm3"), "layers of short convolutions")
    | {
        "apertus": "activations with weights",
        "beam": "a gate of attention with biases",
        "bitnet": "weights of 1.58 bits, and norms inside attention and MLP",
        "diffllama": "differential attention",
        "jetmoe": "experts in place of the projections of attention",
        "deepseek_v4": "compressed attention and several residual streams",
        "longcat_flash": "two attentions a layer and experts that compute nothing",
        "mimo_v2_flash": "two widths of heads",
    }
)
"""Known model types that are not modelled, and the feature that is missing."""
