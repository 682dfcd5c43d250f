"""What a model_type of Hugging Face means beyond the sizes in its config.json, as one record.

hf_families holds the record of every known type, hf_parts makes one from the keys of a file.
"""

from __future__ import annotations

from dataclasses import dataclass


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
    linear: str = ""
    """The mixer of layers without keys (blocks.MAMBA2 ...); '' where every layer is attention."""
    low_rank_gates: bool = False
    """The gates of Kimi delta attention are two matrices."""
    lone_parts: bool = False
    """Every layer is one part, a mixer, an MLP or experts, under one norm (Nemotron-H)."""
    output_gate: str = ""
    """A gate of the output of attention: 'head' a number a head, 'element' one an element."""
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
    """Every nth layer has no window, or is attention in a hybrid, where the file states no n."""
    first_dense: int = 0
    """Dense layers before those of experts, where the file does not say."""
    sparse_norms: int = 0
    """Norms more in a layer of experts."""
    experts: bool = False
    expert_ffn: str = "intermediate_size"
    expert_bias: bool = False
    """Of the routed experts and of the router."""
    router_bias: bool = False
    """Of the router alone."""
    shared_key: str = ""
    """Key of the shared experts' number (SHARED_COUNTS) or total width."""
    shared_gate: bool = False
    router_score: str = "softmax"
    """How the router scores experts, where the file does not say."""
    router_correction: bool = False
    """A bias that no gradient moves chooses experts, where the file does not say."""
    normalised_router: bool = True
    """The weights of the chosen experts add up to one, where the file does not say."""
    required_keys: tuple[str, ...] = ()
    """Keys whose absence would mean a size that only the model's code knows."""
    fixed_values: tuple[tuple[str, object], ...] = ()
    """Keys whose other values are not modelled."""


SHARED_COUNTS = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
"""Keys of a number of shared experts, each as wide as a routed one."""
SHARED_WIDTHS = (
    "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "shared_intermediate_size",
)
"""Keys of the width of all shared experts together."""

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

LINEAR_ATTENTION = "state-space (Mamba) or linear-attention layers"
