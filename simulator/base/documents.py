"""Documents of JSON, TOML and YAML: read within bounds of size, depth and numbers; TOML written.

Text that is not such a document, or exceeds a bound, is an InputError that names the file. Aliases
of YAML, which expand ten lines to millions of values, count as what they stand for.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date, time
from functools import cache
from typing import Any

from .errors import InputError
from .printable import one_line

SCHEMA = "plan3d/1"
"""Version of the JSON objects that answers are (docs/json.md); another is not read."""
DEEPEST = 64
"""Levels of lists and objects."""
LARGEST_INTEGER = 10**40
"""Bound of the size of a whole number."""
MOST_VALUES = 3_000_000
"""Values of a JSON document: traces of a profiler have the most."""
LONGEST_TOML, LONGEST_YAML = 1_000_000, 100_000
"""Characters; the parsers of both are slow."""
Node = Mapping[str, Any]
_KEY_PART = r"(?:[A-Za-z0-9_-]++|\"[^\"\n]*+\"|'[^'\n]*+')"
_LONG_KEY = re.compile(
    rf"(?<![A-Za-z0-9_-]){_KEY_PART}(?:[ \t]*+\.[ \t]*+{_KEY_PART}){{{DEEPEST}}}"
)
"""A dotted key of more parts than DEEPEST."""


def parse_json(text: str, where: str) -> Any:
    """The value of a JSON text."""
    if sum(map(text.count, ",[{")) > MOST_VALUES:
        raise InputError(f"{where}: is JSON of more than {MOST_VALUES:,} values")
    try:
        return _within_bounds(json.loads(text), where)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: is not JSON ({_reason(error)})") from None


class JsonStream:
    """Elements of one long list of a JSON document, read piece by piece: of the list under `key`
    where the document is an object, else of the document itself.

    Memory holds one element and one piece. What follows the last whole element of a broken document
    is left out, and `broken` says so; InputError where there is no such list.
    """

    def __init__(self, pieces: Iterator[str], where: str, key: str, most: int = 64_000_000) -> None:
        self.head: dict[str, Any] = {}
        """Values under the other keys, those behind the list once all elements are read."""
        self.broken = ""
        """Why elements are missing; '' where none are."""
        self._pieces, self._where, self._key, self._most = pieces, where, key, most
        self._scan: Callable[[str, int], tuple[Any, int]]
        self._scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
        self._text, self._at = "", 0

    def __iter__(self) -> Iterator[Any]:
        elements = 0
        try:
            for value in self._elements():
                elements += 1
                yield value
        except (_BrokenJson, InputError) as error:
            if not elements:
                reason = f"{self._where}: {error}"
                raise InputError(str(error) if isinstance(error, InputError) else reason) from None
            why = str(error).removeprefix(f"{self._where}: ")
            self.broken = f"{why}; the {elements:,} events before that are used"

    def _elements(self) -> Iterator[Any]:
        first = self._next_character()
        if first == "[":
            yield from self._list()
            return
        if first != "{":
            raise _BrokenJson("is empty" if not first else "is not a JSON object or list")
        present = False
        while (separator := self._next_character()) in (",", '"'):
            if separator == '"':
                self._at -= 1
            name = self._value()
            if not isinstance(name, str) or self._next_character() != ":":
                raise _BrokenJson("is not JSON")
            if name == self._key and self._next_character(peek=True) == "[":
                self._at, present = self._at + 1, True
                yield from self._list()
            else:
                self.head[name] = self._value()
        if separator != "}":
            raise _BrokenJson("breaks off" if not separator else "is not JSON")
        if not present:
            raise _BrokenJson(f"has no list {self._key!r}")

    def _list(self) -> Iterator[Any]:
        """Elements up to the closing bracket."""
        if self._next_character(peek=True) == "]":
            self._at += 1
            return
        while True:
            yield self._value()
            # The way of nearly all elements: the piece holds the next one's begin.
            match = _SEPARATOR.match(self._text, self._at)
            if match:
                self._at = match.end() - 1
                continue
            separator = self._next_character()
            if separator == "]":
                return
            if separator != ",":
                raise _BrokenJson("breaks off" if not separator else "is not JSON")

    def _next_character(self, peek: bool = False) -> str:
        """The next one that is no white space; '' at the end."""
        while True:
            match = _NOT_SPACE.search(self._text, self._at)
            if match:
                self._at = match.start() + (not peek)
                return match.group()
            self._at = len(self._text)
            if not self._read_more():
                return ""

    def _value(self) -> Any:
        """The value that begins at the next character that is no white space."""
        first = self._text[self._at : self._at + 1]
        if first != "{":
            first = self._next_character(peek=True)
        if first not in ("{", "[", '"'):
            # A number may go on in the next piece.
            while not _AFTER_VALUE.search(self._text, self._at):
                rest = len(self._text) - self._at
                if rest > self._most or not self._read_more(rest):
                    break
        while True:
            try:
                value, self._at = self._scan(self._text, self._at)
                return value
            except RecursionError:
                raise _BrokenJson("is nested too deep") from None
            except (StopIteration, ValueError):
                rest = len(self._text) - self._at
                if rest > self._most:
                    raise _BrokenJson("is not JSON, or one value of it is too long") from None
                if not self._read_more(rest):
                    raise _BrokenJson("breaks off" if rest else "ends early") from None

    def _read_more(self, least: int = 1) -> bool:
        """Append at least so many characters, as far as there are any."""
        added = [self._text[self._at :]]
        while least > 0 and (piece := next(self._pieces, "")):
            added.append(piece)
            least -= len(piece)
        self._text, self._at = "".join(added), 0
        return len(added) > 1


class _BrokenJson(Exception):
    """Where a stream of JSON ends early."""


_AFTER_VALUE = re.compile(r"[,\]} \t\r\n]")
_SEPARATOR = re.compile(r"[ \t\r\n]*,[ \t\r\n]*{")
_NOT_SPACE = re.compile(r"[^ \t\r\n]")


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """The table of a TOML text."""
    import tomllib

    if len(text) > LONGEST_TOML:
        raise InputError(f"{where}: is TOML of more than {LONGEST_TOML:,} characters")
    try:
        if _LONG_KEY.search(text):
            raise ValueError(f"a key has more than {DEEPEST} parts")
        table: dict[str, Any] = _within_bounds(tomllib.loads(text), where)
        return table
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: is not TOML ({_reason(error)})") from None


def parse_yaml(text: str, where: str) -> Any:
    """The value of a YAML text of one document."""
    import yaml

    if len(text) > LONGEST_YAML:
        raise InputError(f"{where}: is YAML of more than {LONGEST_YAML:,} characters")
    try:
        return _within_bounds(yaml.load(text, _yaml_loader()), where)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        why = getattr(error, "problem", None) or _reason(error)
        line = f"line {mark.line + 1}: {why}" if mark else why
        raise InputError(f"{where}: is not YAML ({line})") from None


@cache
def _yaml_loader() -> Any:
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """The safe loader, of bounded depth and number of values; it names tags of others."""

        depth = values = 0

        def __init__(self, stream: str) -> None:
            super().__init__(stream)
            self.sizes: dict[str, int] = {}
            """Values that an anchor stands for; those around an alias have none yet."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            event = self.peek_event()
            is_alias = isinstance(event, yaml.AliasEvent)
            is_inside = is_alias and event.anchor in self.anchors.keys() - self.sizes.keys()
            before = self.values
            self.values += self.sizes.get(event.anchor, 0) if is_alias else 1
            self.depth += 1
            if is_inside or self.values > LONGEST_YAML:
                raise _problem(f"the alias *{event.anchor} stands for too much to be read", event)
            if self.depth > DEEPEST + 1:
                raise _problem(f"it is nested deeper than {DEEPEST} levels", event)
            node = super().compose_node(parent, index)
            self.depth -= 1
            if event.anchor and not is_alias:
                self.sizes[event.anchor] = self.values - before
            return node

        def construct_undefined(self, node: Any) -> None:
            raise _problem(f"the tag {node.tag} is not read: write out what it stands for", node)

    Loader.add_constructor(None, Loader.construct_undefined)

    def _problem(problem: str, place: Any) -> Any:
        return yaml.MarkedYAMLError(None, None, problem, place.start_mark)

    return Loader


def _reason(error: BaseException) -> str:
    return "nested too deep" if isinstance(error, RecursionError) else one_line(error)


def _within_bounds(document: Any, where: str) -> Any:
    """The document; InputError where its depth, a number or a type is out of bounds."""
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


_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SHORT = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def format_toml(tree: Node, inline: Callable[[Node], bool] | None = None) -> str:
    """Nested tables as sections; those that `inline` names as { key = value } in their section."""
    return "\n".join(_sections(tree, "", inline or (lambda node: False))).strip() + "\n"


def _sections(tree: Node, prefix: str, inline: Callable[[Node], bool]) -> Iterator[str]:
    """Lines of a section, then of those inside it."""
    inner = {k: v for k, v in tree.items() if isinstance(v, dict) and v and not inline(v)}
    direct = {k: v for k, v in tree.items() if k not in inner}
    if prefix and direct:
        yield f"[{prefix}]"
    for name, node in direct.items():
        yield f"{toml_key(name)} = {toml_value(node)}"
    if direct:
        yield ""
    for name, node in inner.items():
        yield from _sections(
            node, f"{prefix}.{toml_key(name)}" if prefix else toml_key(name), inline
        )


def toml_key(name: str) -> str:
    """A key, in quotes unless it is bare."""
    return name if _BARE.fullmatch(name) else toml_string(name)


def toml_value(node: Any) -> str:
    """A value on one line; a list of lists on one line each."""
    if isinstance(node, bool):
        return "true" if node else "false"
    if isinstance(node, str):
        return toml_string(node)
    if isinstance(node, float) and not math.isfinite(node):
        return "nan" if math.isnan(node) else "inf" if node > 0 else "-inf"
    if isinstance(node, date | time):
        return node.isoformat()
    if isinstance(node, dict):
        return "{ " + ", ".join(f"{toml_key(k)} = {toml_value(v)}" for k, v in node.items()) + " }"
    if isinstance(node, list) and node and isinstance(node[0], list):
        return "[\n" + ",\n".join(f"  {toml_value(row)}" for row in node) + ",\n]"
    if isinstance(node, list | tuple):
        return f"[{', '.join(map(toml_value, node))}]"
    return repr(node)


def toml_string(content: str) -> str:
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
