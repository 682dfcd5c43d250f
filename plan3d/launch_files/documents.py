"""What does a nested document say beyond what was read? Its other keys, kept and put back.

TOML, JSON and YAML files are dicts of dicts; a key is named by its path, `$.training.steps`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from .launch_file import Kept

DEEPEST = 16
"""Levels of the deepest document."""


def unread(
    content: Mapping[str, Any], read: Collection[str], matters: Collection[str]
) -> list[Kept]:
    """Every value whose path is not among those that were read; null says nothing."""
    return [
        Kept(f"$.{'.'.join(keys)}", shown(value), ".".join(keys) in matters, keys, value)
        for keys, value in leaves(content)
        if ".".join(keys) not in read and value is not None
    ]


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The values of a nested dict by path; lists and empty dicts are values."""
    if isinstance(value, dict) and value and len(path) < DEEPEST:
        for key, inner in value.items():
            yield from leaves(inner, (*path, str(key)))
    else:
        yield path, value


def shown(value: Any) -> str:
    """A value on one line."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def with_kept(content: dict[str, Any], kept: Sequence[Kept]) -> dict[str, Any]:
    """The document with the kept values at their paths, where it says nothing itself."""
    out = json.loads(json.dumps(content, default=str))
    for part in kept:
        at = out
        for key in part.keys[:-1]:
            at = at.setdefault(key, {}) if isinstance(at, dict) else {}
        if part.keys and isinstance(at, dict):
            at.setdefault(part.keys[-1], part.value)
    return dict(out)


def comments(text: str) -> str:
    """The comment lines at the top of a file."""
    lines = text.splitlines(keepends=True)
    at = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return "".join(lines[:at])
