"""Registries: things by name, those of the package loaded on demand, and plug-ins.

A plug-in is added by `register`, or by an entry point in the registry's group; entry points are
read when a name is not registered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Generic, TypeVar

from .errors import InputError, did_you_mean

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """Name -> thing, in the order in which they were added; a thing of the package may be given as
    the text that `load` turns into it, 'module:attribute' unless said otherwise."""

    def __init__(
        self,
        what: str,
        group: str,
        known: Mapping[str, T | str],
        load: Callable[[str], T] | None = None,
    ) -> None:
        self.what, self.group, self._load = what, group, load or _import_attribute
        self._known: dict[str, T | str] = dict(known)
        self.aliases: dict[str, str] = {}
        """Further names of things."""
        self._plugged = False

    def __getitem__(self, name: str) -> T:
        found = self._known[name]
        if isinstance(found, str):
            found = self._known[name] = self._load(found)
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def register(self, name: str, thing: T, aliases: Sequence[str] = ()) -> None:
        """Add a thing, by further names too; ValueError where one is taken by another thing."""
        if self._known.get(name) is thing:
            return
        taken = [word for word in (name, *aliases) if word in self._known or word in self.aliases]
        if taken:
            raise ValueError(f"{self.what} {taken[0]!r} is there already")
        self._known[name] = thing
        self.aliases |= dict.fromkeys(aliases, name)

    def is_registered(self, name: str) -> bool:
        """Whether there is such a thing, here or in what installed packages declare."""
        if name not in self._known and name not in self.aliases:
            self._plug_in()
        return name in self._known or name in self.aliases

    def lookup(self, name: str, option: str = "") -> T:
        """The thing of that name, in any case; InputError with the nearest names, after the option
        it was given to, when it is unknown."""
        for word in (name, name.lower()):
            if self.is_registered(word):
                return self[self.aliases.get(word, word)]
        before = f"{option} {name} is not known" if option else f"unknown {self.what} {name!r}"
        raise InputError(f"{before}{did_you_mean(name, self)}")

    def _plug_in(self) -> None:
        """Add what installed packages declare; the package's own names are not replaced."""
        if self._plugged:
            return
        self._plugged = True
        from importlib.metadata import entry_points

        for point in entry_points(group=self.group):
            if point.name not in self._known:
                self.register(point.name, point.load())


def _import_attribute(text: str) -> Any:
    """The object that 'module:attribute' names."""
    module, _, attribute = text.partition(":")
    return getattr(import_module(module), attribute)


class Codes(Mapping[str, int]):
    """Name -> code of what a registry holds: its place there, which never changes. Aliases, which
    have the code of their thing, come after the names."""

    def __init__(self, registry: Registry[T]) -> None:
        self._registry = registry

    def __getitem__(self, name: str) -> int:
        if not self._registry.is_registered(name):
            raise KeyError(name)
        return list(self._registry).index(self._registry.aliases.get(name, name))

    def name_of(self, code: int) -> str:
        """The name of a code that there is."""
        return list(self._registry)[code]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._registry.is_registered(name)

    def __iter__(self) -> Iterator[str]:
        yield from self._registry
        yield from self._registry.aliases

    def __len__(self) -> int:
        return len(self._registry) + len(self._registry.aliases)


class ByCode(Mapping[int, T], Generic[T]):
    """Code -> thing of a registry."""

    def __init__(self, registry: Registry[T]) -> None:
        self._registry = registry

    def __getitem__(self, code: int) -> T:
        names = list(self._registry)
        if not 0 <= code < len(names):
            raise KeyError(code)
        return self._registry[names[code]]

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return len(self._registry)
