"""Which frameworks can plans be written for, and whose files can be read?"""

from __future__ import annotations

from collections.abc import Callable

from plan3d.simulator.base.errors import InputError, did_you_mean

from .deepspeed import reader as deepspeed_reader
from .deepspeed import writer as deepspeed
from .exporter import Exporter
from .launch_file import Given, Launch
from .megatron import reader as megatron_reader
from .megatron import writer as megatron
from .megatron_bridge import writer as megatron_bridge
from .nanotron import reader as nanotron_reader
from .nanotron import writer as nanotron
from .torchtitan import reader as torchtitan_reader
from .torchtitan import recipe

EXPORTERS: dict[str, Exporter] = {
    exporter.name: exporter
    for exporter in (
        megatron.EXPORTER,
        megatron_bridge.EXPORTER,
        recipe.EXPORTER,
        deepspeed.EXPORTER,
        nanotron.EXPORTER,
    )
}
"""Writers by framework."""

Reader = Callable[[str, str, Given], Launch]
READERS: dict[str, Reader] = {
    "megatron": megatron_reader.read,
    "torchtitan": torchtitan_reader.read,
    "deepspeed": deepspeed_reader.read,
    "nanotron": nanotron_reader.read,
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
