"""Which frameworks can plans be written for, and whose files can be read?"""

from __future__ import annotations

from collections.abc import Callable

from ...simulator.errors import InputError, did_you_mean
from . import (
    deepspeed,
    deepspeed_read,
    megatron,
    megatron_bridge,
    megatron_read,
    nanotron,
    nanotron_read,
    torchtitan_read,
    torchtitan_recipe,
)
from .exporter import Exporter
from .launch_file import Given, Launch

EXPORTERS: dict[str, Exporter] = {
    exporter.name: exporter
    for exporter in (
        megatron.EXPORTER,
        megatron_bridge.EXPORTER,
        torchtitan_recipe.EXPORTER,
        deepspeed.EXPORTER,
        nanotron.EXPORTER,
    )
}
"""Writers by framework."""

Reader = Callable[[str, str, Given], Launch]
READERS: dict[str, Reader] = {
    "megatron": megatron_read.read,
    "torchtitan": torchtitan_read.read,
    "deepspeed": deepspeed_read.read,
    "nanotron": nanotron_read.read,
}
"""Readers by framework: (text, file name, what the user says) -> what the file says."""


def exporter(name: str, option: str = "--to") -> Exporter:
    """A writer by name; InputError with the nearest names when unknown."""
    if name not in EXPORTERS:
        raise InputError(f"{option} {name} is not known{did_you_mean(name, EXPORTERS)}")
    return EXPORTERS[name]


def reader(text: str, file: str, wanted: str | None) -> Reader:
    """The reader of a named framework, or of the one whose file this looks like."""
    name = wanted or looks_like(text, file)
    if name not in READERS:
        raise InputError(f"--from {name} is not known{did_you_mean(name, READERS)}")
    return READERS[name]


def looks_like(text: str, file: str) -> str:
    """The framework of a file, by its ending and by what only that framework says."""
    ending = file.rpartition(".")[2].lower()
    if ending in ("yaml", "yml"):
        return "nanotron"
    if ending == "toml":
        return "torchtitan"
    if ending == "json" or text.lstrip().startswith("{") or "--deepspeed" in text:
        return "deepspeed"
    return "megatron"
