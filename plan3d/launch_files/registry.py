"""The frameworks that plans are written for, and those whose files are read.

Each is loaded when it is asked for. Others add theirs with `register_exporter`, or by entry points
in the groups `plan3d.exporters` and `plan3d.readers`.
"""

from __future__ import annotations

from collections.abc import Callable

from plan3d.simulator.base.registry import Registry

from .exporter import Exporter
from .launch_file import Given, Launch

Reader = Callable[[str, str, Given], Launch]
"""(text, file name, what the user says) -> what the file says."""
_HERE = __package__
EXPORTERS: Registry[Exporter] = Registry(
    "framework",
    "plan3d.exporters",
    {
        "megatron": f"{_HERE}.megatron.launch:EXPORTER",
        "megatron-bridge": f"{_HERE}.megatron_bridge.launch:EXPORTER",
        "torchtitan": f"{_HERE}.torchtitan.launch:EXPORTER",
        "deepspeed": f"{_HERE}.deepspeed.launch:EXPORTER",
        "nanotron": f"{_HERE}.nanotron.launch:EXPORTER",
    },
)
"""Writers by framework."""
READERS: Registry[Reader] = Registry(
    "framework",
    "plan3d.readers",
    {
        "megatron": f"{_HERE}.megatron.reader:read",
        "torchtitan": f"{_HERE}.torchtitan.launch:read",
        "deepspeed": f"{_HERE}.deepspeed.launch:read",
        "nanotron": f"{_HERE}.nanotron.launch:read",
    },
)
"""Readers by framework."""


def register_exporter(exporter: Exporter, read: Reader | None = None) -> None:
    """Add a framework, and the reader of its files; ValueError where its name is taken."""
    EXPORTERS.register(exporter.name, exporter)
    if read is not None:
        READERS.register(exporter.name, read)


def exporter(name: str, option: str = "--to") -> Exporter:
    """A writer by name; InputError with the nearest names when unknown."""
    return EXPORTERS.lookup(name, option)


def reader(text: str, file: str, wanted: str | None) -> Reader:
    """The reader of a named framework, or of the one whose file this looks like."""
    return READERS.lookup(wanted or looks_like(text, file), "--from")


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
