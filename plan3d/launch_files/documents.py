"""Nested documents (TOML, JSON, YAML): values by path, and settings that were not read.

A key is named by its path, `training.steps`, and shown as `$.training.steps`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plan3d.simulator.base.errors import InputError, intended_name
from plan3d.simulator.base.typed_objects import LARGEST_SIZE, JsonObject

from .launch_file import UnreadSetting
from .tables import OFF as SWITCHED_OFF
from .tables import TRUTHS, Effect, KeyClasses, Row, Table, Unmodelled, UnmodelledKeys

DEEPEST = 16
"""Levels of the deepest document."""
Path = tuple[str, ...]
OFF = "what is switched off"
DEFAULT = "defaults, or without effect here"
WITHOUT_EFFECT = "without effect beside the others"


@dataclass(frozen=True)
class Document:
    """The values of a document by path (tables.Source); what is claimed counts as read."""

    content: dict[str, Any]
    file: str
    read_paths: set[Path] = field(default_factory=set)
    """Paths that were read."""
    requested_paths: set[Path] = field(default_factory=set)
    """Paths that were looked for, read or not."""

    def section(self, path: str = "") -> JsonObject:
        """The object at a path, empty where there is none. InputError where it is no object."""
        here = JsonObject.from_value(self.content, self.file)
        for name in filter(None, path.split(".")):
            inner = here.values.get(name)
            here = JsonObject.from_value(
                {} if inner is None else inner, self.file, f"{here.path}.{name}"
            )
        return here

    def _section_and_key(self, path: str) -> tuple[JsonObject, str]:
        self.requested_paths.add(tuple(path.split(".")))
        section, _, key = path.rpartition(".")
        return self.section(section), key

    def contains(self, key: str) -> bool:
        """Whether a value is stated, without reading it; null is not."""
        section, name = self._section_and_key(key)
        return section.has_key(name)

    def claim(self, key: str) -> bool:
        """Whether a value is stated; it counts as read."""
        self.read_paths.add(tuple(key.split(".")))
        return self.contains(key)

    def value(self, key: str) -> Any:
        """A value of any type; None where there is none."""
        section, name = self._section_and_key(key)
        return section.values.get(name) if self.claim(key) else None

    def text(self, key: str) -> str:
        """A text."""
        section, name = self._section_and_key(key)
        return section.string(name)

    def words(self, key: str) -> tuple[str, ...]:
        """A list as texts; no words where the value is no list."""
        value = self.value(key)
        return tuple(map(str, value)) if isinstance(value, list) else ()

    def size(self, key: str, *, least: int = 1, most: int = LARGEST_SIZE) -> int:
        """A whole number in these bounds."""
        section, name = self._section_and_key(key)
        return section.size(name, least=least, most=most)

    def switch(self, key: str) -> bool:
        """A truth; false where there is none."""
        section, name = self._section_and_key(key)
        return section.flag(name, False)

    def choice(self, key: str, known: tuple[str, ...]) -> str:
        """One of several known words."""
        section, name = self._section_and_key(key)
        return section.string(name, known)

    def claim_value(self, key: str, value: Any) -> bool:
        """Whether just this value is stated; only then it counts as read."""
        section, name = self._section_and_key(key)
        same = type(section.values.get(name)) is type(value) and section.values[name] == value
        return same and self.claim(key)

    def value_error(self, key: str, problem: str) -> InputError:
        """The error about a value."""
        section, name = self._section_and_key(key)
        return section.error(name, problem)

    def is_on(self, key: str) -> bool:
        """Whether a switch is set, or names something."""
        value = self.content.get(key)
        return bool(value) and TRUTHS.get(str(value).lower(), True)

    def acting(self, table: Table, effect: Effect) -> list[tuple[str, Unmodelled]]:
        """The settings with values of this effect, and their rows."""
        rows, found = UnmodelledKeys(table), []
        for path, value in leaves(self.content):
            row = rows.row_of(path, json_text(value))
            if row and row.effect is effect and row.acts(value):
                found.append((".".join(path), row))
        return found

    def check_model(self, table: Table) -> None:
        """Raise InputError for a setting that changes the model and is not modelled."""
        for key, row in self.acting(table, Effect.MODEL):
            name = key if row.key.endswith("*") else row.key
            raise self.value_error(name, f"is not modelled; {row.advice}")

    def unread(self, table: Table, derived: Collection[str]) -> list[UnreadSetting]:
        """Every value that was not read, but null.

        `table`: which keys and sections change time or memory, or nothing; `derived`: keys of
        settings that follow from the plan (tables.read_implied).
        """
        rows = UnmodelledKeys(table)
        keys_of_rows = {row.key for row in table if isinstance(row, Row)}
        known = {
            path[:length] for path in self.requested_paths for length in range(1, len(path) + 1)
        }
        settings = []
        for path, value in leaves(self.content):
            if path in self.read_paths or value is None or not path:
                continue
            key, suggestion = ".".join(path), nearest_path(path, known)
            row = rows.row_of(path, json_text(value))
            why_neutral = OFF if self._is_off(path) else ""
            if row is None and key in keys_of_rows:
                why_neutral = WITHOUT_EFFECT
            elif row and not row.acts(value):
                why_neutral = OFF if row.idle is SWITCHED_OFF else DEFAULT
            elif row and row.effect in (Effect.NONE, Effect.PART):
                why_neutral = row.advice
            suggestion = "" if row else suggestion
            is_cost = row is not None and row.effect is Effect.COST
            settings.append(
                UnreadSetting(
                    f"$.{key}",
                    json_text(value),
                    affects_cost=bool(suggestion) or (is_cost and not why_neutral),
                    why_neutral=why_neutral,
                    is_derived=key in derived,
                    path=path,
                    value=value,
                    suggestion=suggestion,
                )
            )
        return settings

    def _is_off(self, path: Path) -> bool:
        """Whether a section around a value has `enabled` as false."""
        here: Any = self.content
        for name in path[:-1]:
            here = here.get(name) if isinstance(here, dict) else None
            if isinstance(here, dict) and here.get("enabled") is False:
                return True
        return False


def nearest_path(path: Path, known: Collection[Path]) -> str:
    """The known path of which a path misspells the key or a section; '' where there is none."""
    depth = next((at for at in range(len(path)) if path[: at + 1] not in known), len(path))
    inside = {other[depth] for other in known if other[:depth] == path[:depth] != other}
    name = intended_name(path[depth], inside) if depth < len(path) else ""
    return f"$.{'.'.join((*path[:depth], name))}" if name else ""


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The values of a nested dict by path; lists and empty dicts are values."""
    if isinstance(value, dict) and value and len(path) < DEEPEST:
        for key, inner in value.items():
            yield from leaves(inner, (*path, str(key)))
    else:
        yield path, value


def json_text(value: Any) -> str:
    """A value as JSON on one line, shortened."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def nested_document(settings: Iterator[tuple[str, Any]]) -> dict[str, Any]:
    """Settings by path as a document; those that are None are left out."""
    out: dict[str, Any] = {}
    for key, value in settings:
        if value is not None:
            _set_path(out, tuple(key.split(".")), value)
    return out


def with_unread(
    content: Mapping[str, Any], unread: Sequence[UnreadSetting], classes: KeyClasses
) -> dict[str, Any]:
    """The document with the unread values of an imported one, in place of settings that give way
    and where nothing is decided."""
    out: dict[str, Any] = copy.deepcopy(dict(content))
    stated = {path for path, _ in leaves(content)}
    stated |= {tuple(key.split(".")) for key in classes.decided}
    for setting in unread:
        overrides = setting.overrides or ".".join(setting.path) in classes.overridable
        if setting.path and (overrides if setting.path in stated else not setting.is_derived):
            _set_path(out, setting.path, setting.value)
    return out


def _set_path(content: dict[str, Any], path: Path, value: Any) -> None:
    """Put a value at a path; nothing where the document has no section of that name."""
    here: Any = content
    for name in path[:-1]:
        here = here.setdefault(name, {}) if isinstance(here, dict) else None
    if path and isinstance(here, dict):
        here[path[-1]] = value
