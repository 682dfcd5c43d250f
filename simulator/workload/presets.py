"""Published models by name, from model_presets.toml, hub_models.toml and networks/*.csv."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from ..base.documents import parse_toml
from ..base.errors import InputError, did_you_mean
from ..base.files import read_text
from ..base.typed_objects import JsonObject
from .blocks import Attention, Block, Experts, Mlp
from .hub_models import hub_arguments, hub_models, is_hub_id, preset_of_id
from .layer_list import network_arguments, read_layer_list

FIELDS = (
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "head_dim",
    "value_dim",
    "rope_dim",
    "q_rank",
    "kv_rank",
    "query_key_norm",
    "vocabulary",
    "learned_positions",
    "ffn",
    "gated",
    "biases",
    "norm_bias",
    "tied",
    "experts",
    "top_k",
    "expert_ffn",
    "shared_ffn",
    "expert_groups",
    "group_limit",
    "dense_layers",
    "mtp_layers",
    "sequence",
    "batch_tokens",
    "train_tokens",
    "source",
)
FILE = "model_presets.toml"
MOST_TOKENS = 10**15


def preset_arguments(name: str) -> dict[str, Any]:
    """What the published Model, or Network, of that name or hub id is made of."""
    name = preset_of_id(name) if is_hub_id(name) else name
    tables = _published()
    if name in tables:
        return table_arguments(name, tables[name])
    if name in hub_models().configs:
        return hub_arguments(name)
    if name in network_names():
        with resources.as_file(_networks() / f"{name}.csv") as path:
            return network_arguments(*read_layer_list(path))
    raise InputError(f"no model is called {name!r}{did_you_mean(name, preset_names())}")


def preset_names() -> list[str]:
    """Every published model, as the file orders them, then the networks.

    >>> "llama-3.1-8b" in preset_names()
    True
    """
    return [*_published(), *hub_models().configs, *network_names()]


@cache
def network_names() -> tuple[str, ...]:
    """Networks that are no transformers layer by layer, by name."""
    return tuple(sorted(f.name.removesuffix(".csv") for f in _networks().iterdir()))


def _networks() -> Traversable:
    return resources.files(__package__) / "networks"


@cache
def _published() -> dict[str, dict[str, object]]:
    """Each model's table, its family's fields filled in."""
    text = read_text(resources.files(__package__) / FILE, FILE)
    models: dict[str, dict[str, object]] = {}
    for family in parse_toml(text, FILE).values():
        for name, table in family.pop("models").items():
            models[name] = {**family, **table}
    return models


def table_arguments(name: str, values: Mapping[str, object]) -> dict[str, Any]:
    """What the Model of a table of the presets file is made of."""
    table = JsonObject.from_value(values, name)
    table.refuse_unknown(FIELDS)
    layers = table.size("layers")
    dense = table.size("dense_layers", default=0, least=0, most=layers)
    dense = dense if table.has_key("experts") else layers
    attention = _attention(table)
    blocks = (
        Block(attention=attention, mlp=_mlp(table) if dense else None),
        Block(attention=attention, experts=_experts(table) if dense < layers else None),
    )
    kinds = tuple(block for block in blocks if block.mlp or block.experts)
    return {
        "name": name,
        "hidden": table.size("hidden"),
        "vocabulary": table.size("vocabulary"),
        "kinds": kinds,
        "order": (0,) * dense + (len(kinds) - 1,) * (layers - dense),
        "tied": table.flag("tied", False),
        "norm_bias": table.flag("norm_bias", False),
        "learned_positions": table.size("learned_positions", default=0),
        "mtp_layers": table.size("mtp_layers", default=0),
        "sequence": table.size("sequence", default=0),
        "batch_tokens": table.size("batch_tokens", default=0, most=MOST_TOKENS),
        "train_tokens": table.size("train_tokens", default=0, most=MOST_TOKENS),
        "source": table.string("source"),
    }


def _attention(table: JsonObject) -> Attention:
    heads, head_dim = table.size("heads"), table.size("head_dim")
    biases = table.flag("biases", False)
    return Attention(
        heads=heads,
        kv_heads=table.size("kv_heads", default=heads, most=heads),
        head_dim=head_dim,
        value_dim=table.size("value_dim", default=head_dim),
        qkv_bias=biases,
        out_bias=biases,
        query_key_norm=table.string("query_key_norm", ("", "head", "full"), default=""),
        kv_rank=table.size("kv_rank", default=0),
        q_rank=table.size("q_rank", default=0),
        rope_dim=table.size("rope_dim", default=0),
    )


def _mlp(table: JsonObject) -> Mlp:
    return Mlp(
        ffn=table.size("ffn"), gated=table.flag("gated", True), bias=table.flag("biases", False)
    )


def _experts(table: JsonObject) -> Experts:
    count = table.size("experts")
    return Experts(
        count=count,
        top_k=table.size("top_k", most=count),
        ffn=table.size("expert_ffn"),
        gated=table.flag("gated", True),
        shared_ffn=table.size("shared_ffn", default=0),
        groups=table.size("expert_groups", default=1, most=count),
        group_limit=table.size("group_limit", default=1, most=count),
    )
