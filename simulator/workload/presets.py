"""Published models by name or hub id: model_presets.toml, hub_models.toml, networks/*.csv."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple

from ..base.documents import parse_toml
from ..base.errors import InputError, did_you_mean
from ..base.files import read_text
from ..base.typed_objects import JsonObject
from .blocks import Attention, Block, Experts, Mlp
from .layer_list import network_arguments, read_layer_list
from .settings import ModelSettings

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
    "rotary_base",
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
    "settings",
)
FILE = "model_presets.toml"
MOST_TOKENS = 10**15


def preset_arguments(name: str) -> dict[str, Any]:
    """What the published Model, or Network, of that name or hub id is made of."""
    if not is_preset(name):
        name = preset_of_id(name) if is_hub_id(name) else _preset_called(name)
    tables = _preset_tables()
    if name in tables:
        return table_arguments(name, tables[name])
    if name in hub_models().configs:
        return hub_arguments(name)
    if name in network_names():
        with resources.as_file(_networks() / f"{name}.csv") as path:
            return network_arguments(*read_layer_list(path))
    raise InputError(f"no model is called {name!r}{_near(name, preset_names())}")


def _near(name: str, known: Iterable[str]) -> str:
    """The end of a line about an unknown model: the nearest names, of which there are many."""
    near = did_you_mean(name, known)
    return near if "did you mean" in near else "; 'plan3d models' lists all"


def _preset_called(name: str) -> str:
    """The preset of a name, whatever its case, separators and tuning, or of a hub id without its
    owner; the name itself where it means none."""
    ids = {hub.partition("/")[2]: preset for hub, preset in hub_models().ids.items()}
    known = ids | {preset: preset for preset in preset_names()}
    same = {preset for other, preset in known.items() if _joined(other) == _joined(name)}
    return same.pop() if len(same) == 1 else name


def _joined(name: str) -> str:
    return re.sub(r"[\s_-]+", "", untuned(name))


def is_preset(name: str) -> bool:
    """Whether a published model or network has that name."""
    tables = _preset_tables()
    return name in tables or name in network_names() or name in hub_models().configs


def preset_names() -> list[str]:
    """Every published model, as the file orders them, then the networks.

    >>> "llama-3.1-8b" in preset_names()
    True
    """
    return [*_preset_tables(), *hub_models().configs, *network_names()]


@cache
def network_names() -> tuple[str, ...]:
    """Networks that are no transformers layer by layer, by name."""
    return tuple(sorted(f.name.removesuffix(".csv") for f in _networks().iterdir()))


def _networks() -> Traversable:
    return resources.files(__package__) / "networks"


@cache
def _preset_tables() -> dict[str, dict[str, object]]:
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
        "rotary_base": float(table.size("rotary_base", default=0, least=0)),
        "settings": _settings(table),
        "mtp_layers": table.size("mtp_layers", default=0),
        "sequence": table.size("sequence", default=0),
        "batch_tokens": table.size("batch_tokens", default=0, most=MOST_TOKENS),
        "train_tokens": table.size("train_tokens", default=0, most=MOST_TOKENS),
        "source": table.string("source"),
    }


def _settings(table: JsonObject) -> ModelSettings:
    """The settings of a preset that change no time, in the words of ModelSettings."""
    stated = table.values.get("settings", {})
    assert isinstance(stated, dict)
    numbers = tuple(stated.get("rope_numbers", {}).items())
    return ModelSettings(**{**stated, "rope_numbers": numbers})


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


HUB_FILE = "hub_models.toml"
_ID = re.compile(r"\w[\w.-]*/[\w.-]+")
_TUNING = re.compile(r"-(instruct|it|pt|chat|base|hf|thinking|gptq|awq|gguf|bnb-4bit)(?=-|$)")
"""Parts of names of checkpoints whose sizes are those of the model."""


class HubModels(NamedTuple):
    """Models of HUB_FILE."""

    configs: Mapping[str, Mapping[str, Any]]
    """Keys of a config.json by preset."""
    ids: Mapping[str, str]
    """Preset by hub id, as it is spelled."""


@cache
def hub_models() -> HubModels:
    """Every model of HUB_FILE; there a 0 stands for null, which TOML has not."""
    families = parse_toml(read_text(resources.files(__package__) / HUB_FILE), HUB_FILE)
    ids: dict[str, str] = families.pop("ids")
    configs = {}
    for family in families.values():
        for name, table in family.pop("models").items():
            values = {**family, **table}
            ids[values.pop("id")] = name
            configs[name] = {
                key: None if value == 0 and value is not False else value
                for key, value in values.items()
            }
    return HubModels(configs, ids)


def hub_arguments(name: str) -> dict[str, Any]:
    """What the Model of a preset of HUB_FILE is made of."""
    from .hf_config import config_arguments

    values = dict(hub_models().configs[name])
    extra = {
        "sequence": values.pop("sequence", 0),
        "source": f"config.json of {hub_id_of(name)} on the Hugging Face Hub",
    }
    return config_arguments(values, name) | extra


def hub_id_of(preset: str) -> str:
    """The hub id that a preset has; empty where it has none."""
    return next((hub for hub, name in hub_models().ids.items() if name == preset), "")


def is_hub_id(name: str) -> bool:
    """Whether a name is spelled as that of a model on the Hub."""
    return bool(_ID.fullmatch(name)) and not name.endswith((".json", ".csv", ".toml"))


def preset_of_id(hub_id: str) -> str:
    """The preset that a hub id means, tuned or not, of its publisher or of another owner who gives
    the model the same name; InputError where there is none."""
    presets = {untuned(known): name for known, name in hub_models().ids.items()}
    if untuned(hub_id) in presets:
        return presets[untuned(hub_id)]
    copied = _plain_name(hub_id)
    same = {name for known, name in presets.items() if _plain_name(known) == copied}
    if len(same) == 1:
        return same.pop()
    called = _preset_called(copied)
    if is_preset(called):
        return called
    near = _near(hub_id, {known.lower(): known for known in hub_models().ids})
    raise InputError(f"no preset is {hub_id!r} of the Hub; give its config.json{near}")


def _plain_name(hub_id: str) -> str:
    """A hub id without its owner: Llama's older ids repeat a part of his name."""
    return untuned(hub_id).partition("/")[2].removeprefix("meta-")


def untuned(hub_id: str) -> str:
    """A hub id without case and what tuning adds to it."""
    return _TUNING.sub("", hub_id.lower())
