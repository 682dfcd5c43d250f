"""Which Megatron-LM flags describe a model, and which model do flags describe?

Source: Megatron-LM, megatron/training/arguments.py and megatron/core 0.16,
transformer/transformer_config.py: names, defaults and what a default is derived from.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from plan3d.simulator.workload.blocks import Attention, Block, Experts, Mlp
from plan3d.simulator.workload.model import Model

from .. import shape
from ..shape import Shape, model_of_shape, shape_of
from ..shell.flags import Flags

EXPRESSES = (
    shape.LATENT,
    shape.HEAD_NORM,
    shape.HEAD_WIDTH,
    shape.GROUPED,
    shape.QKV_BIAS,
    shape.BIASES,
    shape.LAYER_NORM,
    shape.RMS_NORM,
    shape.PLAIN_MLP,
    shape.GATED_MLP,
    shape.EXPERTS,
    shape.DENSE_LAYERS,
    shape.SHARED,
    shape.LEARNED,
    shape.ROTARY,
    shape.TIED,
    shape.UNTIED,
    shape.MTP,
)
"""Features of a model that Megatron-LM has flags for."""
GPT2_VOCABULARY = 50257
"""Tokens of GPT2BPETokenizer, which pretrain_gpt.py takes by default."""
LATENT_DEFAULTS = {
    "--kv-lora-rank": 512,
    "--qk-head-dim": 128,
    "--qk-pos-emb-head-dim": 64,
    "--v-head-dim": 128,
}
"""Widths of latent attention that a script may leave out."""
LONGEST_PATTERN = 10_000
"""Layers of the longest --moe-layer-freq list."""

Lines = list[tuple[str, ...]]


def model_flags(model: Model, sequence: int) -> Lines:
    """The flags of a model whose features are all in EXPRESSES."""
    s = shape_of(model)
    dense, experts = s.mlp, s.experts
    ffn = dense.ffn if dense else experts.ffn if experts else 0
    gated = dense.gated if dense else experts is not None and experts.gated
    out: Lines = [
        ("--num-layers", str(model.layers)),
        ("--hidden-size", str(model.hidden)),
        ("--ffn-hidden-size", str(ffn)),
        ("--num-attention-heads", str(s.attention.heads)),
        *_attention_flags(s.attention, model.hidden),
        *_positions(model, sequence),
        ("--vocab-size", str(model.vocabulary)),
        ("--normalization", "LayerNorm" if model.norm_bias else "RMSNorm"),
    ]
    if gated:
        out.append(("--swiglu",))
    if not model.tied:
        out.append(("--untie-embeddings-and-output-weights",))
    if not s.attention.out_bias:
        out.append(("--disable-bias-linear",))
        if s.attention.qkv_bias:
            out.append(("--add-qkv-bias",))
    if model.mtp_layers:
        out.append(("--mtp-num-layers", str(model.mtp_layers)))
    return [*out, *(_expert_flags(experts, s.sparse) if experts else [])]


def _attention_flags(a: Attention, hidden: int) -> Lines:
    if a.kv_rank:
        return [
            ("--multi-latent-attention",),
            *([("--q-lora-rank", str(a.q_rank))] if a.q_rank else []),
            ("--kv-lora-rank", str(a.kv_rank)),
            ("--qk-head-dim", str(a.head_dim - a.rope_dim)),
            ("--qk-pos-emb-head-dim", str(a.rope_dim)),
            ("--v-head-dim", str(a.value_dim)),
            ("--qk-layernorm",),
        ]
    out: Lines = []
    if a.kv_heads < a.heads:
        out += [("--group-query-attention",), ("--num-query-groups", str(a.kv_heads))]
    if a.head_dim * a.heads != hidden:
        out.append(("--kv-channels", str(a.head_dim)))
    return [*out, ("--qk-layernorm",)] if a.query_key_norm else out


def _positions(model: Model, sequence: int) -> Lines:
    kind = "learned_absolute" if model.learned_positions else "rope"
    rows = model.learned_positions or max(sequence, model.sequence)
    return [("--position-embedding-type", kind), ("--max-position-embeddings", str(rows))]


def _expert_flags(e: Experts, sparse: Sequence[bool]) -> Lines:
    out: Lines = [
        ("--num-experts", str(e.count)),
        ("--moe-router-topk", str(e.top_k)),
        ("--moe-ffn-hidden-size", str(e.ffn)),
    ]
    if e.groups > 1:
        out += [("--moe-router-num-groups", str(e.groups))]
        out += [("--moe-router-group-topk", str(e.group_limit))]
    if e.shared_ffn:
        out.append(("--moe-shared-expert-intermediate-size", str(e.shared_ffn)))
    return out if all(sparse) else [*out, ("--moe-layer-freq", layer_pattern(sparse))]


def layer_pattern(sparse: Sequence[bool]) -> str:
    """'([0]*3+[1]*58)': 1 for a layer of experts; a pattern that repeats is multiplied."""
    n = len(sparse)
    period = next(
        p
        for p in range(1, n + 1)
        if n % p == 0 and all(sparse[i] == sparse[i % p] for i in range(n))
    )
    runs = [(int(kind), len(list(run))) for kind, run in groupby(sparse[:period])]
    inner = "+".join(f"[{kind}]*{length}" for kind, length in runs)
    return f"({inner})" if period == n else f"({inner})*{n // period}"


def model_of(flags: Flags, name: str, vocabulary: int | None = None) -> Model:
    """The model that flags describe. Raises InputError naming the line or the missing flag."""
    layers = flags.size("--num-layers")
    hidden = flags.size("--hidden-size")
    gated = flags.switch("--swiglu")
    bias = not flags.switch("--disable-bias-linear")
    usual = hidden * 8 // 3 // 64 * 64 if gated else 4 * hidden
    ffn = flags.size("--ffn-hidden-size", usual)
    layer_norm = flags.choice("--normalization", ("LayerNorm", "RMSNorm"), "LayerNorm")
    attention = _attention_of(flags, hidden, bias)
    experts = _experts_of(flags, ffn, gated, bias)
    sparse = _sparse_of(flags, layers) if experts else (False,) * layers
    rest = Model(
        name=name,
        hidden=hidden,
        vocabulary=_vocabulary(flags, vocabulary),
        kinds=(),
        order=(),
        tied=not flags.switch("--untie-embeddings-and-output-weights"),
        norm_bias=layer_norm == "LayerNorm",
        learned_positions=_learned(flags),
        mtp_layers=flags.size("--mtp-num-layers", 0, least=0),
        source="flags of a Megatron-LM script",
    )
    parts = Shape(attention, Mlp(ffn=ffn, gated=gated, bias=bias), experts, sparse)
    return model_of_shape(name, parts, Block(attention=attention), rest)


def _vocabulary(flags: Flags, given: int | None) -> int:
    stated = flags.size("--vocab-size", 0, least=0)
    if stated:
        if given not in (None, stated):
            raise flags.wrong("--vocab-size", f"{stated} contradicts --vocabulary {given}")
        return stated
    if given is not None:
        return given
    if flags.text("--tokenizer-type") in ("", "GPT2BPETokenizer"):
        return GPT2_VOCABULARY
    raise flags.missing("--vocab-size", "the tokenizer decides it: give --vocabulary N")


def _learned(flags: Flags) -> int:
    """Rows of the position table; learned positions are the default."""
    kinds = ("learned_absolute", "rope", "none", "mrope", "relative", "yarn")
    kind = flags.choice("--position-embedding-type", kinds, "learned_absolute")
    rotary = flags.switch("--use-rotary-position-embeddings")
    if kind in ("mrope", "relative"):
        raise flags.wrong("--position-embedding-type", f"{kind} is not modelled")
    if kind != "learned_absolute" or rotary:
        return 0
    return flags.size("--max-position-embeddings")


def _attention_of(flags: Flags, hidden: int, bias: bool) -> Attention:
    heads = flags.size("--num-attention-heads")
    normed = flags.switch("--qk-layernorm")
    plain = Attention(
        heads=heads,
        kv_heads=heads,
        head_dim=1,
        value_dim=1,
        qkv_bias=bias or flags.switch("--add-qkv-bias"),
        out_bias=bias,
    )
    if flags.switch("--multi-latent-attention"):
        return _latent(flags, plain)
    if not flags.has("--kv-channels") and hidden % heads:
        raise flags.wrong("--num-attention-heads", f"{heads} does not divide hidden size {hidden}")
    width = flags.size("--kv-channels", hidden // heads)
    groups, norm = _groups(flags, heads), "head" if normed else ""
    return replace(plain, kv_heads=groups, head_dim=width, value_dim=width, query_key_norm=norm)


def _latent(flags: Flags, plain: Attention) -> Attention:
    """Multi-head latent attention."""
    rank, width, rope, value = (flags.size(name, usual) for name, usual in LATENT_DEFAULTS.items())
    compressed = flags.size("--q-lora-rank", 0)
    return replace(
        plain,
        head_dim=width + rope,
        value_dim=value,
        kv_rank=rank,
        q_rank=compressed,
        rope_dim=rope,
    )


def _groups(flags: Flags, heads: int) -> int:
    """Key/value heads, in the flags of Megatron-LM or of Megatron-DeepSpeed."""
    grouped = flags.switch("--group-query-attention")
    if flags.has("--num-query-groups") and not grouped:
        raise flags.wrong("--num-query-groups", "has no effect without --group-query-attention")
    groups = flags.size("--num-query-groups", 1) if grouped else heads
    groups = flags.size("--num-key-value-heads", groups)
    if heads % groups:
        raise flags.wrong("--num-attention-heads", f"{heads} is not a multiple of {groups} groups")
    return groups


def _experts_of(flags: Flags, ffn: int, gated: bool, bias: bool) -> Experts | None:
    count = flags.size("--num-experts", 0, least=0)
    if not count:
        return None
    return Experts(
        count=count,
        top_k=flags.size("--moe-router-topk", 2, most=count),
        ffn=flags.size("--moe-ffn-hidden-size", ffn),
        gated=gated,
        bias=bias,
        shared_ffn=flags.size("--moe-shared-expert-intermediate-size", 0, least=0),
        groups=flags.size("--moe-router-num-groups", 1, most=count),
        group_limit=flags.size("--moe-router-group-topk", 1, most=count),
    )


def _sparse_of(flags: Flags, layers: int) -> tuple[bool, ...]:
    """Layers with experts, from N (every Nth, the first included) or a list expression."""
    text = flags.text("--moe-layer-freq") or "1"
    if text.isdecimal() and int(text) > 0:
        return tuple(i % int(text) == 0 for i in range(layers))
    try:
        pattern = _value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError):
        pattern = []
    if len(pattern) != layers or not set(pattern) <= {0, 1}:
        need = f"must be a whole number or a list of {layers} zeros and ones: ([0]*3+[1]*29)"
        raise flags.wrong("--moe-layer-freq", f"{text} {need}")
    return tuple(bool(kind) for kind in pattern)


def _value(node: ast.expr) -> list[int]:
    """A list made of numbers, + and *."""
    if isinstance(node, ast.List):
        return [_number(item) for item in node.elts]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _value(node.left) + _value(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        inner, times = _value(node.left), _number(node.right)
        if len(inner) * times <= LONGEST_PATTERN:
            return inner * times
    raise ValueError(node)


def _number(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    raise ValueError(node)
