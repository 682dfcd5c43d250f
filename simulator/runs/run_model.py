"""The model of a published run, built from its sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..base.errors import InputError
from ..base.typed_objects import LARGEST_SIZE
from ..workload.blocks import MOST_LAYERS, Attention, Block, Experts, Mlp
from ..workload.model import Model
from .published_runs import PublishedRun

LISTED = {"resnet": "resnet-50"}
"""Presets that are layer lists, by the family of a row."""
SIZE_AGREES = (0.75, 1.33)
"""Built over stated parameters: outside, the columns leave out part of the model's shape
(rounded names and renamed vocabularies stay inside)."""
_NEEDED = ("layers", "hidden", "heads", "vocab")
_POSSIBLE = {"layers": MOST_LAYERS, "moe_every": MOST_LAYERS}
_POSSIBLE |= dict.fromkeys((*_NEEDED[1:], "kv_heads", "head_dim", "ffn_hidden"), LARGEST_SIZE)
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
FAMILIES["moe"] = FAMILIES["llama"]
"""Families of decoders by name."""


def model_of(run: PublishedRun) -> Model:
    """The model of a row; InputError for what is no decoder that the simulator knows."""
    family = run["family"] or "gpt"
    if family in LISTED:
        return Model.preset(LISTED[family])
    if family not in FAMILIES:
        raise InputError(f"family {family!r} is no decoder-only transformer")
    absent = [column for column in _NEEDED if run[column] is None]
    if run["ffn_hidden"] is None and run["expert_ffn"] is None:
        absent.append("ffn_hidden")
    if absent:
        raise InputError(f"{', '.join(absent)} not stated")
    for column, most in _POSSIBLE.items():
        if run[column] is not None and not 1 <= run[column] <= most:
            raise InputError(f"{column} is {run[column]}; it must be 1 to {most}")
    look = _look(run, FAMILIES[family])
    kinds, order = _layers(run, look)
    model = Model(
        name=run.given("model", "unnamed"),
        hidden=run["hidden"],
        vocabulary=run["vocab"],
        kinds=kinds,
        order=order,
        tied=look.tied,
        norm_bias=look.norm == "layernorm",
        learned_positions=_positions(run, look),
        embedding_norm=look.embedding_norm,
        mtp_layers=run["mtp_layers"],
    )
    _check_size(run, model)
    return model


def _look(run: PublishedRun, usual: ModelFamily) -> ModelFamily:
    """The family's look with what the row states."""
    names = ("mlp", "biases", "norm", "positions", "tied", "embedding_norm")
    return replace(usual, **{name: run[name] for name in names if run.stated(name)})


def _positions(run: PublishedRun, look: ModelFamily) -> int:
    if look.positions != "learned":
        return 0
    longest = max(int(run.given("sequence", 0)), int(run.given("peak_sequence", 0)))
    return max(int(run.given("learned_positions", longest)), longest)


def _layers(run: PublishedRun, look: ModelFamily) -> tuple[tuple[Block, ...], tuple[int, ...]]:
    """The distinct blocks, and the block of every layer."""
    dense, step = run["dense_layers"], run["moe_every"]
    every, window = run.given("window_every", 0), run.given("attention_window", 0)
    shapes = []
    for layer in range(run["layers"]):
        routed = run["experts"] > 0 and layer >= dense and (layer - dense) % step == step - 1
        whole = bool(every) and layer % every == every - 1
        shapes.append((routed, 0 if whole else window))
    distinct = list(dict.fromkeys(shapes))
    kinds = tuple(_block(run, look, *shape) for shape in distinct)
    return kinds, tuple(distinct.index(shape) for shape in shapes)


def _block(run: PublishedRun, look: ModelFamily, routed: bool, window: int) -> Block:
    gated, bias = look.mlp in ("swiglu", "geglu"), look.biases == "all"
    experts = None
    if routed:
        if run["moe_latent"]:
            raise InputError("experts behind a latent projection are not modelled")
        experts = Experts(
            count=run["experts"],
            top_k=run["experts_per_token"],
            ffn=run.given("expert_ffn", run["ffn_hidden"]),
            gated=gated,
            bias=run["expert_biases"],
            shared_ffn=run["shared_expert_ffn"],
            imbalance=_imbalance(run),
        )
    elif run["ffn_hidden"] is None:
        raise InputError("ffn_hidden of the layers without experts is not stated")
    return Block(
        attention=_attention(run, look, window),
        mlp=None if routed else Mlp(ffn=run["ffn_hidden"], gated=gated, bias=bias),
        experts=experts,
        norms=1 if run["parallel_block"] else 2,
        parallel=run["parallel_block"],
    )


def _imbalance(run: PublishedRun) -> float:
    """Tokens of the busiest rank over their mean: experts are padded to their capacity, but behind
    HybridEP it is the room of buffers, of which kernels work on what came (Megatron-Core,
    paged_stash.md, moe_expert_rank_capacity_factor)."""
    if run["dispatcher"] == "hybridep":
        return 1.0
    return max(float(run.given("capacity_factor", 1.0)), 1.0)


def _attention(run: PublishedRun, look: ModelFamily, window: int) -> Attention:
    heads, norm = run["heads"], "head" if run["qk_norm"] else ""
    if run["mla_kv_rank"]:
        rope = run.given("mla_rope_dim", 64)
        return Attention(
            heads=heads,
            kv_heads=heads,
            head_dim=run.given("mla_nope_dim", 128) + rope,
            value_dim=run.given("mla_value_dim", 128),
            kv_rank=run["mla_kv_rank"],
            q_rank=run.given("mla_q_rank", 0),
            rope_dim=rope,
            window=window,
        )
    width = run.given("head_dim", run["hidden"] // heads)
    return Attention(
        heads=heads,
        kv_heads=run.given("kv_heads", heads),
        head_dim=width,
        value_dim=width,
        qkv_bias=look.biases in ("all", "qkv"),
        out_bias=look.biases == "all",
        query_key_norm=norm,
        window=window,
    )


def _check_size(run: PublishedRun, model: Model) -> None:
    stated = run["n_params_b"]
    low, high = SIZE_AGREES
    if stated and not low < model.parameters / (1e9 * stated) < high:
        raise InputError("its sizes do not give the parameters it states")
