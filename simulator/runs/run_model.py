"""Models of published runs, built from their sizes, and the adapters that are trained."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ..base.errors import InputError
from ..base.typed_objects import LARGEST_SIZE
from ..workload.adapters import ADAPTER_FORMATS, Adapters
from ..workload.blocks import (
    MAMBA2,
    MOST_LAYERS,
    NO_ATTENTION,
    Attention,
    Block,
    Experts,
    LinearAttention,
    Mlp,
)
from ..workload.model import Model
from .published_runs import PublishedRun
from .run_stack import STACKS, stack_of

LISTED = {"resnet": "resnet-50"}
"""Presets that are layer lists, by the family of a row."""
SIZE_AGREES = (0.75, 1.33)
"""Built over stated parameters: outside, the columns leave out part of the model's shape
(rounded names and renamed vocabularies stay inside)."""
_NEEDED_SIZES = ("layers", "hidden", "heads", "vocab")
_LARGEST = {"layers": MOST_LAYERS, "moe_every": MOST_LAYERS}
_LARGEST |= dict.fromkeys((*_NEEDED_SIZES[1:], "kv_heads", "head_dim", "ffn_hidden"), LARGEST_SIZE)
"""Sizes that a model cannot do without, and the largest that it can have."""


@dataclass(frozen=True, kw_only=True)
class ModelFamily:
    """What rows of a family have where their cells do not say otherwise."""

    mlp: str = "gelu"
    biases: str = "all"
    norm: str = "layernorm"
    positions: str = "learned"
    tied: bool = True
    embedding_norm: bool = False


FAMILIES = {
    "gpt": ModelFamily(),
    "mpt": ModelFamily(biases="none"),
    "bloom": ModelFamily(positions="alibi", embedding_norm=True),
    "llama": ModelFamily(mlp="swiglu", biases="none", norm="rmsnorm", positions="rope", tied=False),
}
FAMILIES["moe"] = FAMILIES["hybrid"] = FAMILIES["llama"]
"""Families of decoders by name."""
GATED = ("swiglu", "geglu")
"""Activations behind a gate."""
CONVOLUTION = 4
"""Width of the convolution of Mamba-2 layers (Megatron-Core, d_conv)."""
CONVENTIONS = ("mlp", "biases", "norm", "positions", "tied", "embedding_norm")
"""Columns that replace what is usual in a family."""


def model_of(run: PublishedRun) -> Model:
    """The model of a row; InputError for what is no decoder that the simulator knows."""
    name = run["family"] or "gpt"
    if name in LISTED:
        return Model.preset(LISTED[name])
    if name not in FAMILIES:
        raise InputError(f"family {name!r} is no decoder-only transformer")
    absent = [column for column in _NEEDED_SIZES if run[column] is None]
    if run["ffn_hidden"] is None and run["expert_ffn"] is None:
        absent.append("ffn_hidden")
    if absent:
        raise InputError(f"{', '.join(absent)} not stated")
    for column, most in _LARGEST.items():
        if run[column] is not None and not 1 <= run[column] <= most:
            raise InputError(f"{column} is {run[column]}; it must be 1 to {most}")
    stated = {column: run[column] for column in CONVENTIONS if run.states(column)}
    family = replace(FAMILIES[name], **stated)
    kinds, order = _layers(run, family)
    model = Model(
        name=run.get("model", "unnamed"),
        hidden=run["hidden"],
        vocabulary=run["vocab"],
        kinds=kinds,
        order=order,
        tied=family.tied,
        norm_bias=family.norm == "layernorm",
        learned_positions=_positions(run, family),
        embedding_norm=family.embedding_norm,
        mtp_layers=run["mtp_layers"],
    )
    billions = run["n_params_b"]
    low, high = SIZE_AGREES
    if billions and not low < model.parameters / (1e9 * billions) < high:
        raise InputError("its sizes do not give the parameters it states")
    return model


def _positions(run: PublishedRun, family: ModelFamily) -> int:
    if family.positions != "learned":
        return 0
    longest = max(int(run.get("sequence", 0)), int(run.get("peak_sequence", 0)))
    return max(int(run.get("learned_positions", longest)), longest)


def _layers(run: PublishedRun, family: ModelFamily) -> tuple[tuple[Block, ...], tuple[int, ...]]:
    """The distinct blocks, and the block of every layer."""
    if run["layer_pattern"]:
        return _lone_parts(run, family)
    dense, step = run["dense_layers"], run["moe_every"]
    every, window = run.get("window_every", 0), run.get("attention_window", 0)
    shapes = []
    for layer in range(run["layers"]):
        routed = run["experts"] > 0 and layer >= dense and (layer - dense) % step == step - 1
        full = bool(every) and layer % every == every - 1
        shapes.append((routed, 0 if full else window))
    distinct = list(dict.fromkeys(shapes))
    kinds = tuple(_block(run, family, *shape) for shape in distinct)
    return kinds, tuple(distinct.index(shape) for shape in shapes)


def _lone_parts(
    run: PublishedRun, family: ModelFamily
) -> tuple[tuple[Block, ...], tuple[int, ...]]:
    """The same of a hybrid whose layers are one part each, by its `layer_pattern`."""
    main = run["layer_pattern"].partition("/")[0]
    letters = "".join(letter * int(count or 1) for count, letter in _PARTS.findall(main))
    if len(letters) != run["layers"] or _PARTS.sub("", main).strip():
        raise InputError(f"layer_pattern {main} is not of {run['layers']} layers M, E, * or -")
    if run["pp"] > 1 and any(map(str.isdigit, main)):
        raise InputError("layer_pattern counts layers, whose order decides the stages of pp > 1")
    distinct = sorted(set(letters))
    parts = {
        "M": lambda: Block(attention=_mamba2(run), norms=1),
        "*": lambda: Block(attention=_attention(run, family, 0), norms=1),
        "E": lambda: Block(attention=NO_ATTENTION, experts=_experts(run, family), norms=1),
        "-": lambda: Block(attention=NO_ATTENTION, mlp=_mlp(run, family), norms=1),
    }
    return tuple(parts[letter]() for letter in distinct), tuple(map(distinct.index, letters))


_PARTS = re.compile(r"(\d*)([ME*-])")
"""Layers of a `layer_pattern`: a letter, and how many of them."""


def _mamba2(run: PublishedRun) -> LinearAttention:
    if not run["mamba_heads"]:
        raise InputError("mamba_heads not stated")
    return LinearAttention(
        mixer=MAMBA2,
        heads=run["mamba_heads"],
        kv_heads=run["mamba_groups"],
        head_dim=run["mamba_state_dim"],
        value_dim=run["mamba_head_dim"],
        conv=CONVOLUTION,
        conv_bias=True,
    )


def _block(run: PublishedRun, family: ModelFamily, routed: bool, window: int) -> Block:
    return Block(
        attention=_attention(run, family, window),
        mlp=None if routed else _mlp(run, family),
        experts=_experts(run, family) if routed else None,
        norms=1 if run["parallel_block"] else 2,
        parallel=run["parallel_block"],
    )


def _mlp(run: PublishedRun, family: ModelFamily) -> Mlp:
    if run["ffn_hidden"] is None:
        raise InputError("ffn_hidden of the layers without experts is not stated")
    return Mlp(ffn=run["ffn_hidden"], gated=family.mlp in GATED, bias=family.biases == "all")


def _experts(run: PublishedRun, family: ModelFamily) -> Experts:
    return Experts(
        count=run["experts"],
        top_k=run["experts_per_token"],
        ffn=run.get("expert_ffn", run["ffn_hidden"]),
        gated=family.mlp in GATED,
        bias=run["expert_biases"],
        shared_ffn=run["shared_expert_ffn"],
        latent=run["moe_latent"] or 0,
        imbalance=_imbalance(run),
    )


def _imbalance(run: PublishedRun) -> float:
    """Tokens of the busiest rank's experts over an even load: inputs are padded to their capacity.

    HybridEP's is the size of a buffer, of which kernels read what is filled (Megatron-Core, guide
    of paged stash: factors are multipliers on buffer size).
    """
    padded: float = 1.0 if run["dispatcher"] == "hybridep" else run.get("capacity_factor", 1.0)
    return max(padded, 1.0)


def _attention(run: PublishedRun, family: ModelFamily, window: int) -> Attention:
    heads, norm = run["heads"], "head" if run["qk_norm"] else ""
    if run["mla_kv_rank"]:
        rope = run.get("mla_rope_dim", 64)
        return Attention(
            heads=heads,
            kv_heads=heads,
            head_dim=run.get("mla_nope_dim", 128) + rope,
            value_dim=run.get("mla_value_dim", 128),
            kv_rank=run["mla_kv_rank"],
            q_rank=run.get("mla_q_rank", 0),
            rope_dim=rope,
            window=window,
        )
    width = run.get("head_dim", run["hidden"] // heads)
    return Attention(
        heads=heads,
        kv_heads=run.get("kv_heads", heads),
        head_dim=width,
        value_dim=width,
        qkv_bias=family.biases in ("all", "qkv"),
        out_bias=family.biases == "all",
        query_key_norm=norm,
        window=window,
    )


LOW_RANK = ("lora", "qlora")
"""Adapters that are modelled."""
BASE_FORMATS = {"fp16": "bf16", "fp4": "nf4", "int4": "nf4", "awq4": "gptq4"}
"""Formats of frozen weights that are as large as one that is modelled."""


def adapters_of(run: PublishedRun) -> Adapters | None:
    """The adapters of a row; None where all weights are trained. InputError for other kinds.

    Where a row says nothing else, QLoRA packs frozen weights, and every matrix of a layer has an
    adapter: Dettmers et al. 2023, section 4; the defaults of LLaMA-Factory (lora_target: all) and
    ms-swift (target_modules: all-linear).
    """
    if run["training"] != "peft":
        return None
    kind = run.get("peft", "lora")
    if kind not in LOW_RANK:
        raise InputError(f"{kind} is not modelled: only LoRA and QLoRA are")
    base = run.get("base_format", ADAPTER_FORMATS[kind])
    return Adapters(
        rank=run.get("lora_rank", 16),
        targets=run.get("lora_targets", ("all",)),
        base=BASE_FORMATS.get(base, base),
        dropout=STACKS[stack_of(run)].lora_dropout,
        modules_to_save=run.get("modules_to_save", ()),
    )
