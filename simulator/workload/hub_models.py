"""Models of the Hugging Face Hub: presets of their configs, and which preset a hub id means."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from ..base.documents import parse_toml
from ..base.errors import InputError, did_you_mean
from ..base.files import read_text
from .hf_config import config_arguments

FILE = "hub_models.toml"
_ID = re.compile(r"[\w.-]+/[\w.-]+")
_TUNED = re.compile(r"-(instruct|it|pt|chat|base|hf|thinking)(?=-|$)")
"""Parts of names of checkpoints whose sizes are those of the model."""


class HubModels(NamedTuple):
    """What FILE holds."""

    configs: Mapping[str, Mapping[str, Any]]
    """Keys of a config.json by preset."""
    ids: Mapping[str, str]
    """Preset by hub id, as it is spelled."""


@cache
def hub_models() -> HubModels:
    """Every model of FILE; there a 0 stands for null, which TOML has not."""
    families = parse_toml(read_text(resources.files(__package__) / FILE), FILE)
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
    """What the Model of a preset of FILE is made of."""
    values = dict(hub_models().configs[name])
    said = {
        "sequence": values.pop("sequence", 0),
        "source": f"config.json of {hub_id_of(name)} on the Hugging Face Hub",
    }
    return config_arguments(values, name) | said


def hub_id_of(preset: str) -> str:
    """The hub id that a preset has; empty where it has none."""
    return next((hub for hub, name in hub_models().ids.items() if name == preset), "")


def is_hub_id(name: str) -> bool:
    """Whether a name is spelled as that of a model on the Hub."""
    return bool(_ID.fullmatch(name)) and not name.endswith((".json", ".csv", ".toml"))


def preset_of_id(hub_id: str) -> str:
    """The preset that a hub id means, tuned or not; InputError where there is none."""
    plain = {_plain(known): name for known, name in hub_models().ids.items()}
    if _plain(hub_id) in plain:
        return plain[_plain(hub_id)]
    near = did_you_mean(hub_id, {known.lower(): known for known in hub_models().ids})
    raise InputError(f"no preset is {hub_id!r} of the Hub; give its config.json{near}")


def _plain(hub_id: str) -> str:
    """A hub id without case and what tuning adds to it."""
    return _TUNED.sub("", hub_id.lower())
