"""Documents of JSON, TOML and YAML from text: bounded in size, depth and numbers.

What is none, or goes beyond, is an InputError that names the file. Aliases of YAML, which make a
document of millions of values from ten lines, are refused.
"""

from __future__ import annotations

import json
import re
from datetime import date, time
from functools import cache
from typing import Any

from .errors import InputError
from .printable import one_line

DEEPEST = 64
"""Levels of lists and objects."""
LARGEST_INTEGER = 10**40
"""A whole number is nearer to zero."""
MOST_VALUES = 3_000_000
"""Values of a JSON document: traces of a profiler have the most."""
LONGEST_TOML, LONGEST_YAML = 1_000_000, 100_000
"""Characters; the readers of both are slow."""
_PART = r"(?:[A-Za-z0-9_-]+|\"[^\"\n]*\"|'[^'\n]*')"
_LONG_KEY = re.compile(rf"(?<![A-Za-z0-9_-]){_PART}(?:[ \t]*\.[ \t]*{_PART}){{{DEEPEST}}}")
"""A dotted key of more parts than levels are read."""


def parse_json(text: str, where: str) -> Any:
    """The value of a JSON text."""
    if sum(map(text.count, ",[{")) > MOST_VALUES:
        raise InputError(f"{where}: is JSON of more than {MOST_VALUES:,} values")
    try:
        return _checked(json.loads(text), where)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: is not JSON ({_why(error)})") from None


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """The table of a TOML text."""
    import tomllib

    if len(text) > LONGEST_TOML:
        raise InputError(f"{where}: is TOML of more than {LONGEST_TOML:,} characters")
    try:
        if _LONG_KEY.search(text):
            raise ValueError(f"a key has more than {DEEPEST} parts")
        table: dict[str, Any] = _checked(tomllib.loads(text), where)
        return table
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: is not TOML ({_why(error)})") from None


def parse_yaml(text: str, where: str) -> Any:
    """The value of a YAML text of one document."""
    import yaml

    if len(text) > LONGEST_YAML:
        raise InputError(f"{where}: is YAML of more than {LONGEST_YAML:,} characters")
    try:
        return _checked(yaml.load(text, _loader()), where)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        why = getattr(error, "problem", None) or _why(error)
        line = f"line {mark.line + 1}: {why}" if mark else why
        raise InputError(f"{where}: is not YAML ({line})") from None


@cache
def _loader() -> Any:
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Plain values without aliases."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                event = self.peek_event()
                problem = f"the alias *{event.anchor} is not read: write out what it stands for"
                raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
            return super().compose_node(parent, index)

    return Loader


def _why(error: BaseException) -> str:
    return "nested too deep" if isinstance(error, RecursionError) else one_line(error)


def _checked(document: Any, where: str) -> Any:
    """The document, where it is of plain values, not too deep and without huge numbers."""
    level = [document]
    for _ in range(DEEPEST):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner += value.values()
                inner += [key for key in value if not isinstance(key, str)]
            elif isinstance(value, list):
                inner += value
            elif isinstance(value, int) and abs(value) >= LARGEST_INTEGER:
                digits = len(str(LARGEST_INTEGER)) - 1
                raise InputError(f"{where}: has a whole number of more than {digits} digits")
            elif not isinstance(value, (str, int, float, date, time, type(None))):
                raise InputError(f"{where}: has a {type(value).__name__}, which is not read")
        if not inner:
            return document
        level = inner
    raise InputError(f"{where}: is nested deeper than {DEEPEST} levels")
