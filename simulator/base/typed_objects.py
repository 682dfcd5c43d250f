"""Typed access to JSON and TOML objects; errors name the path of a value."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .errors import InputError, did_you_mean, intended_name

LARGEST_SIZE = 2**31


@dataclass(frozen=True, slots=True)
class JsonObject:
    """Typed access to the values of one object; null means absent."""

    values: Mapping[str, object]
    name: str
    path: str = "$"
    missing: set[str] = field(default_factory=set, compare=False, repr=False)
    """Keys that were asked for and are absent."""
    read: set[str] = field(default_factory=set, compare=False, repr=False)
    """Keys that were asked for and are there."""

    @classmethod
    def from_value(cls, value: object, name: str, path: str = "$") -> JsonObject:
        """The value, which must be an object; name says whose it is."""
        if not isinstance(value, dict):
            raise InputError(f"{name}: {path} is {describe(value)}; it must be an object")
        return cls(value, name, path)

    def has_key(self, key: str) -> bool:
        if self.values.get(key) is None:
            self.missing.add(key)
            return False
        self.read.add(key)
        return True

    def error(self, key: str, problem: str) -> InputError:
        return InputError(f"{self.name}: {self.path}.{key} {problem}")

    def size(
        self,
        *keys: str,
        default: int | None = None,
        least: int = 1,
        most: int = LARGEST_SIZE,
        limit: str = "",
    ) -> int:
        """The whole number under any of the keys, which must agree."""
        valid = f"it must be a whole number from {least} to {most}{limit}"
        found = [key for key in keys if self.values.get(key) is not None]
        self.read.update(found)
        if not found:
            self.missing.update(keys)
        if not found and default is None:
            state = "null" if keys[0] in self.values else "missing"
            raise self.missing_error(keys[0], f"is {state}; {valid}")
        for key in found:
            value = self.values[key]
            if type(value) is not int or not least <= value <= most:
                raise self.error(key, f"is {describe(value)}; {valid}")
            if value != self.values[found[0]]:
                raise self.error(key, f"is {value} but {found[0]} is {self.values[found[0]]}")
        value = self.values[found[0]] if found else default
        assert isinstance(value, int)
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.values[key] if self.has_key(key) else default
        if not isinstance(value, bool):
            raise self.error(key, f"is {describe(value)}; it must be true or false")
        return value

    def string(self, key: str, known: Sequence[str] = (), default: str | None = None) -> str:
        """The string under the key; one of the known ones when these are given."""
        value = self.values[key] if self.has_key(key) else default
        valid = f"one of {', '.join(map(repr, known))}" if known else "a text"
        if not isinstance(value, str) or (known and value not in known):
            state = f"is {describe(value)}" if self.has_key(key) else "is missing"
            raise self.error(key, f"{state}; it must be {valid}")
        return value

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """Raise InputError for a key that is not known, with the nearest known ones."""
        known = list(known)
        for key in self.values:
            if key not in known:
                raise self.error(key, f"is unknown{did_you_mean(key, known)}")

    def missing_error(self, key: str, problem: str) -> InputError:
        """The error of an absent key; raises that of a misspelt key where there is one."""
        self.refuse_slips()
        return self.error(key, problem)

    def refuse_slips(self) -> None:
        """Raise InputError for a key that is one slip off an absent one."""
        for key in self.values:
            meant = intended_name(str(key), self.missing)
            if meant and meant not in self.values and key not in self.read and self.has_key(key):
                raise self.error(key, f"is unknown; did you mean {meant}?")

    def per_layer(self, key: str, layers: int, known: Sequence[object]) -> list[object]:
        """One of the known values a layer; empty when the key is absent."""
        values = self.values[key] if self.has_key(key) else []
        if not isinstance(values, list) or len(values) not in (0, layers):
            raise self.error(key, f"is {describe(values)}; it must be a list of {layers} layers")
        for index, value in enumerate(values):
            if value not in known:
                choices = ", ".join(map(str, known))
                raise self.error(f"{key}[{index}]", f"is {describe(value)}; supported: {choices}")
        return values

    def indices(self, key: str, layers: int) -> list[int]:
        """Layer numbers from 0; empty when the key is absent."""
        values = self.values[key] if self.has_key(key) else []
        if not isinstance(values, list):
            raise self.error(key, f"is {describe(values)}; it must be a list of layer numbers")
        for index, value in enumerate(values):
            if type(value) is not int or not 0 <= value < layers:
                problem = f"is {describe(value)}; it must be a layer number from 0 to {layers - 1}"
                raise self.error(f"{key}[{index}]", problem)
        return values


def describe(value: object) -> str:
    """A JSON value in a few words on one line."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, int) and abs(value) > 2**64:
        return "a number beyond 2^64"
    text = json.dumps(value, default=repr)
    return text if len(text) <= 60 else f"{text[:57]}..."
