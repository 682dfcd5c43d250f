"""Stands in for GPU libraries that a framework imports and its configuration does not use.

Their modules are replaced by empty ones, whose every name is an empty class.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ClassVar


def _made(self: Any, *values: Any, **named: Any) -> None:
    """An object of an empty class, of whatever it is made."""


class _Names(type):
    """A class with every attribute."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Names(name, (), {"__init__": _made})

    def __getitem__(cls, parameters: Any) -> Any:
        return cls


class _Empty(ModuleType):
    """A module with every attribute."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(_Names("empty", (), {}), name)


class _Finder(MetaPathFinder, Loader):
    """Finds the replaced packages and everything below them."""

    def __init__(self, versions: dict[str, str]) -> None:
        self.versions = versions

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not self._package(name):
            return None
        return ModuleSpec(name, self, is_package=True)

    def _package(self, name: str) -> str:
        """The replaced package that a module is in; '' if none."""
        return next((p for p in self.versions if f"{name}.".startswith(f"{p}.")), "")

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = _Empty(spec.name)
        module.__version__ = self.versions[self._package(spec.name)]
        return module

    def exec_module(self, module: ModuleType) -> None:
        """An empty module has nothing to run."""


def replace(versions: dict[str, str]) -> None:
    """Replace packages, by name and the version that they shall have."""
    sys.meta_path.insert(0, _Finder(versions))
