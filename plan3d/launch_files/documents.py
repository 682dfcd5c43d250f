"""Nested documents (TOML, JSON, YAML): values by path, and what was not read, kept and put back.

A key is named by its path, `training.steps`; `$.training.steps` where it is shown.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from plan3d.simulator.base.errors import InputError, intended_name
from plan3d.simulator.base.typed_objects import LARGEST_SIZE, JsonObject

from .launch_file import Kept
from .tables import Places

DEEPEST = 16
"""Levels of the deepest document."""
Path = tuple[str, ...]


@dataclass(frozen=True)
class Document:
    """The values of a document; what is asked for counts as read."""

    content: dict[str, Any]
    file: str
    used: set[Path] = field(default_factory=set)
    """Paths that were read."""
    asked: set[Path] = field(default_factory=set)
    """Paths that were looked for, read or not."""

    def section(self, at: str = "") -> JsonObject:
        """The object at a path, empty where there is none. InputError where it is none."""
        here = JsonObject.from_value(self.content, self.file)
        for name in filter(None, at.split(".")):
            inner = here.values.get(name)
            path = f"{here.path}.{name}"
            here = JsonObject.from_value({} if inner is None else inner, self.file, path)
        return here

    def _place(self, at: str) -> tuple[JsonObject, str]:
        self.asked.add(tuple(at.split(".")))
        section, _, key = at.rpartition(".")
        return self.section(section), key

    def there(self, at: str) -> bool:
        """Whether a value is there, without reading it; null is not."""
        section, key = self._place(at)
        return section.has_key(key)

    def has(self, at: str) -> bool:
        """Whether a value is there; it counts as read."""
        self.used.add(tuple(at.split(".")))
        return self.there(at)

    def value(self, at: str) -> Any:
        """A value of any type; None where there is none."""
        section, key = self._place(at)
        return section.values.get(key) if self.has(at) else None

    def text(self, at: str) -> str:
        section, key = self._place(at)
        return section.string(key)

    def words(self, at: str) -> tuple[str, ...]:
        """A list of texts; anything else is none."""
        found = self.value(at)
        return tuple(map(str, found)) if isinstance(found, list) else ()

    def size(self, at: str, *, least: int = 1, most: int = LARGEST_SIZE) -> int:
        section, key = self._place(at)
        return section.size(key, least=least, most=most)

    def switch(self, at: str) -> bool:
        section, key = self._place(at)
        return section.flag(key, False)

    def choice(self, at: str, known: tuple[str, ...]) -> str:
        section, key = self._place(at)
        return section.string(key, known)

    def says(self, at: str, value: Any) -> bool:
        """Whether just this value is there; only then it counts as read."""
        section, key = self._place(at)
        same = type(section.values.get(key)) is type(value) and section.values[key] == value
        return same and self.has(at)

    def wrong(self, at: str, problem: str) -> InputError:
        """The error about a value."""
        section, key = self._place(at)
        return section.error(key, problem)

    def rest(self, matters: Collection[str], follow: Collection[str]) -> list[Kept]:
        """Every value that was not read; null says nothing. Those at the places `follow` stand for
        settings that follow from the plan."""
        known = {path[:length] for path in self.asked for length in range(1, len(path) + 1)}
        kept = []
        for path, value in leaves(self.content):
            if path in self.used or value is None:
                continue
            at, near = ".".join(path), nearest(path, known)
            part = Kept(f"$.{at}", shown(value), at in matters or bool(near), at in follow)
            kept.append(replace(part, keys=path, value=value, near=near))
        return kept


def nearest(path: Path, known: Collection[Path]) -> str:
    """The known place of which a path misspells the key or a section; '' where there is none."""
    depth = next((at for at in range(len(path)) if path[: at + 1] not in known), len(path))
    inside = {place[depth] for place in known if place[:depth] == path[:depth] != place}
    name = intended_name(path[depth], inside) if depth < len(path) else ""
    return f"$.{'.'.join((*path[:depth], name))}" if name else ""


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
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


def nested(settings: Iterator[tuple[str, Any]]) -> dict[str, Any]:
    """Settings by path as a document; None is not stated."""
    out: dict[str, Any] = {}
    for at, value in settings:
        if value is not None:
            _put(out, tuple(at.split(".")), value)
    return out


def _put(content: dict[str, Any], path: Path, value: Any) -> None:
    """A value at a path; nothing where the document has no section of that name."""
    at: Any = content
    for name in path[:-1]:
        at = at.setdefault(name, {}) if isinstance(at, dict) else None
    if path and isinstance(at, dict):
        at[path[-1]] = value


def with_kept(content: Mapping[str, Any], kept: Sequence[Kept], places: Places) -> dict[str, Any]:
    """The document with the kept values at their paths, where it yields or nothing is decided."""
    out: dict[str, Any] = copy.deepcopy(dict(content))
    stated = {path for path, _ in leaves(content)}
    stated |= {tuple(at.split(".")) for at in places.decided}
    for part in kept:
        yields = ".".join(part.keys) in places.yielding
        if part.keys and (yields if part.keys in stated else not part.follows):
            _put(out, part.keys, part.value)
    return out
