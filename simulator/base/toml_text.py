"""TOML as text: tables of plain values, every key and text quoted as TOML wants it (TOML 1.0)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date, time
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SHORT = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def emit(tree: Mapping[str, Any], inline: Callable[[Mapping[str, Any]], bool] | None = None) -> str:
    """Nested tables as sections; those that `inline` names as { key = value } in their section."""
    return "\n".join(_sections(tree, "", inline or (lambda node: False))).strip() + "\n"


def _sections(
    tree: Mapping[str, Any], prefix: str, inline: Callable[[Mapping[str, Any]], bool]
) -> Iterator[str]:
    """Lines of a section, then of those inside it."""
    inner = {k: v for k, v in tree.items() if isinstance(v, dict) and v and not inline(v)}
    plain = {k: v for k, v in tree.items() if k not in inner}
    if prefix and plain:
        yield f"[{prefix}]"
    for name, node in plain.items():
        yield f"{key(name)} = {value(node)}"
    if plain:
        yield ""
    for name, node in inner.items():
        yield from _sections(node, f"{prefix}.{key(name)}" if prefix else key(name), inline)


def key(name: str) -> str:
    """A key, in quotes unless it is bare."""
    return name if _BARE.fullmatch(name) else text(name)


def value(node: Any) -> str:
    """A value on one line; a list of lists on one line each."""
    if isinstance(node, bool):
        return "true" if node else "false"
    if isinstance(node, str):
        return text(node)
    if isinstance(node, float) and not math.isfinite(node):
        return "nan" if math.isnan(node) else "inf" if node > 0 else "-inf"
    if isinstance(node, date | time):
        return node.isoformat()
    if isinstance(node, dict):
        return "{ " + ", ".join(f"{key(k)} = {value(v)}" for k, v in node.items()) + " }"
    if isinstance(node, list) and node and isinstance(node[0], list):
        return "[\n" + ",\n".join(f"  {value(row)}" for row in node) + ",\n]"
    if isinstance(node, list | tuple):
        return f"[{', '.join(map(value, node))}]"
    return repr(node)


def text(content: str) -> str:
    """A basic string: what is not printable is escaped."""
    return f'"{"".join(map(_character, content))}"'


def _character(char: str) -> str:
    if char in _SHORT:
        return _SHORT[char]
    if char.isprintable():
        return char
    code = ord(char)
    if 0xD800 <= code < 0xE000:
        return "\\ufffd"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
