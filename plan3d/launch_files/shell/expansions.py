"""Expansions that change a value: `${X%.*}`, `${X/a/b}`, `${X^^}`, `${X:0:2}`, `${#X}`, `${X[1]}`,
`${X:+word}`, and the output of small commands: `$(basename $X)`, `$(cat FILE)`, `$(seq 4)`.

Source: Bash Reference Manual, 3.5.3 (shell parameter expansion); POSIX, XCU (utilities).
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence
from fnmatch import translate
from typing import Protocol

from plan3d.simulator.base.units import is_whole

from .conditions import arithmetic
from .lexer import HereDocument, Operator, Token
from .words import Word

_CHANGE = re.compile(
    r"\$\{(?P<mark>[#!]?)(?P<name>[A-Za-z_]\w*|\d+|[@*])(?:\[(?P<index>[^\[\]]{1,60})\])?"
    r"(?P<operation>%%?|##?|//?|\^\^?|,,?|:(?=[ \d$(])|:?[+?])?(?P<operand>.*)\}",
    re.S,
)
_NAMES = re.compile(r"\$\{?[#!]?([A-Za-z_]\w*|\d)")
_BACKSLASH = re.compile(r"\\([$`\\])")
"""What a backslash keeps from its meaning between backquotes."""
LONGEST_EXPANSION = 300
"""Characters of the longest expansion that is evaluated."""
LONGEST_DOCUMENT = 100_000
"""Characters of the longest here-document that is put in place of a command."""
LONGEST_CHANGED = 2000
"""Characters of the longest value that is changed."""
MOST_NUMBERS = 10_000
"""Numbers of the longest sequence of `seq`."""


class Values(Protocol):
    """The variables of a script (variables.Variables)."""

    def texts(self, name: str) -> list[str] | None:
        """The texts of the elements of a variable that is known; None of any other."""

    def element(self, name: str, key: str) -> str | None:
        """The text of one element of an array that is known."""

    def known_text(self, source: str) -> str | None:
        """The text of a word as between double quotes; None where it is not known."""

    def command_words(self, source: str) -> list[Token] | None:
        """The tokens of a command; None where they are none."""

    def known_words(self, word: Word) -> list[str] | None:
        """The words of an expanded word; None where they are not known."""

    def file_text(self, path: str) -> str | None:
        """The text of a file beside the script."""


def as_command(raw: str) -> str:
    """An expansion `...` as $(...); any other as it is."""
    if raw[:1] != "`" or len(raw) < 2:
        return raw
    inner = _BACKSLASH.sub(lambda found: found[1], raw[1:-1])
    return f"$({inner})"


_CAT = re.compile(r"\$\(\s*cat\s*<<-?\s*['\"\\\w]")


def document_source(raw: str) -> str:
    """The commands of `$(cat <<EOF ...)`; '' of another expansion."""
    inner = as_command(raw)
    return f"{inner[2:-1]}\n" if _CAT.match(inner) and len(inner) <= LONGEST_DOCUMENT else ""


def document_of(tokens: Sequence[Token]) -> Word | None:
    """The here-document of commands that have nothing else than `cat`."""
    given = [token for token in tokens if isinstance(token, HereDocument)]
    others = [token for token in tokens if not isinstance(token, HereDocument)]
    words = [token for token in others if token.text != "\n"]
    return Word(given[0].parts) if len(given) == len(words) == 1 else None


def names_in(raw: str) -> list[str]:
    """The variables that an expansion refers to, its own first."""
    raw = as_command(raw)
    if not raw.startswith(("${", "$(")) or raw.startswith("$(("):
        return []
    return list(dict.fromkeys(_NAMES.findall(raw)))


def changed_text(raw: str, values: Values, quoted: bool = True) -> str | None:
    """The text of an expansion; None where it is not known."""
    if len(raw) > LONGEST_EXPANSION:
        return None
    raw = as_command(raw)
    if raw.startswith("$(") and not raw.startswith("$(("):
        return _output(raw[2:-1], values)
    match = _CHANGE.fullmatch(raw)
    if match is None:
        return None
    name, operation, operand = match["name"], match["operation"] or "", match["operand"]
    if operation and (match["index"] in ("@", "*") or name in "@*"):
        return None
    texts = values.texts(name)
    if match["index"] and match["index"] not in "@*":
        key = values.known_text(match["index"])
        one = values.element(name, key) if key is not None else None
        texts = None if one is None else [one]
    if texts is None:
        return None
    text = texts[0] if texts else ""
    if match["mark"] == "#":
        return str(len(texts) if match["index"] else len(text))
    if match["mark"] == "!":
        indirect = values.texts(text)
        return indirect[0] if indirect else None
    if operation.endswith("+"):
        known = values.known_text(operand) if quoted else _joined_words(operand, values)
        return known if text or (texts and operation == "+") else ""
    if operation.endswith("?") or not operation:
        return text if not operand or operation else None
    if len(text) > LONGEST_CHANGED:
        return None
    return _changed(text, operation, operand, values)


def _joined_words(source: str, values: Values) -> str | None:
    """The words of a text outside quotes, which loses its own; None where they are not known."""
    words: list[str] = []
    for token in values.command_words(source) or ():
        own = values.known_words(token) if isinstance(token, Word) else None
        if own is None:
            return None
        words += own
    return " ".join(words)


def _changed(text: str, operation: str, operand: str, values: Values) -> str | None:
    """A text after one operation."""
    if operation in ("^", "^^", ",", ",,"):
        if operand:
            return None
        change: Callable[[str], str] = str.upper if operation[0] == "^" else str.lower
        return change(text) if len(operation) == 2 else change(text[:1]) + text[1:]
    if operation == ":":
        parts = [values.known_text(part) for part in operand.split(":")]
        if not all(part and is_whole(part.strip().removeprefix("-")) for part in parts):
            return None
        numbers = [int(part or 0) for part in parts]
        rest = text[numbers[0] if numbers[0] >= 0 else max(len(text) + numbers[0], 0) :]
        return rest[: numbers[1]] if len(numbers) > 1 else rest
    if operation in ("/", "//"):
        old, _, new = operand.partition("/")
        anchor = old[:1] if operation == "/" and old[:1] in ("#", "%") else ""
        pattern, by = values.known_text(old[len(anchor) :]), values.known_text(new)
        if not pattern or by is None:
            return None
        expression = _shell_pattern(pattern)
        ends = {"#": f"\\A(?:{expression})", "%": f"(?:{expression})\\Z"}
        found = re.compile(ends.get(anchor, expression))
        return found.sub(lambda _: by, text, count=0 if operation == "//" else 1)
    pattern = values.known_text(operand)
    if pattern is None or len(pattern) > 200:
        return None
    matches = re.compile(_shell_pattern(pattern)).fullmatch
    lengths = range(len(text) + 1)
    order = lengths if len(operation) == 1 else reversed(lengths)
    for length in order:
        if operation[0] == "#" and matches(text[:length]):
            return text[length:]
        if operation[0] == "%" and matches(text[len(text) - length :]):
            return text[: len(text) - length]
    return text


def _shell_pattern(pattern: str) -> str:
    """The regular expression of a pattern of file names."""
    expression = translate(pattern.replace("\\", "").replace("[^", "[!"))
    return expression.removesuffix("\\Z").removesuffix("\\z")


def _output(source: str, values: Values) -> str | None:
    """The output of commands in a pipe; None of one that is not known here."""
    stages: list[list[str]] = [[]]
    text: str | None = None
    tokens = [*(values.command_words(source) or ())]
    for place, token in enumerate(tokens):
        if isinstance(token, Operator) and token.text in ("|", "<<<"):
            stages += [[]] if token.text == "|" else []
            continue
        expanded = values.known_words(token) if isinstance(token, Word) else None
        if expanded is None:
            return None
        before = tokens[place - 1] if place else None
        if isinstance(before, Operator) and before.text == "<<<":
            text = " ".join(expanded)
        else:
            stages[-1] += expanded
    if len(stages) > 1 and stages[0][:2] == ["echo", "-n"]:
        return None
    for words in stages:
        if not words:
            return None
        if text is None:
            command = _COMMANDS.get(words[0])
            text = command(words[1:], values) if command else None
        else:
            follow = _FILTERS.get(words[0])
            text = follow(words[1:], text) if follow else None
        if text is None:
            return None
    return text


def _basename(words: Sequence[str], values: Values) -> str | None:
    if len(words) not in (1, 2):
        return None
    name = words[0].rstrip("/").rpartition("/")[2]
    return name.removesuffix(words[1]) if len(words) == 2 else name


def _dirname(words: Sequence[str], values: Values) -> str | None:
    names = [word for word in words if word != "--"]
    if len(names) != 1:
        return None
    root = "/" if names[0].startswith("/") else "."
    return names[0].rstrip("/").rpartition("/")[0] or root


def _path(words: Sequence[str], values: Values) -> str | None:
    """A path as `realpath` and `readlink -f` give it, from the folder of the script."""
    names = [word for word in words if not word.startswith("-")]
    if len(names) != 1:
        return None
    return names[0] if "/" in names[0] else f"./{names[0]}"


def _seq(words: Sequence[str], values: Values) -> str | None:
    numbers = [int(word) for word in words if is_whole(word.removeprefix("-")) and len(word) < 9]
    if len(numbers) != len(words) or not 1 <= len(words) <= 3:
        return None
    first, step = (1, 1) if len(numbers) == 1 else (numbers[0], 1)
    step = numbers[1] if len(numbers) == 3 else step
    listed = range(first, numbers[-1] + (1 if step > 0 else -1), step) if step else ()
    return "\n".join(map(str, listed)) if len(listed) <= MOST_NUMBERS else None


def _cat(words: Sequence[str], values: Values) -> str | None:
    text = values.file_text(words[0]) if len(words) == 1 else None
    return text.rstrip("\n") if text is not None and len(text) <= LONGEST_CHANGED else None


def _expr(words: Sequence[str], values: Values) -> str | None:
    value = arithmetic(" ".join(words), lambda name: None)
    return None if value is None else str(value)


def _bc(words: Sequence[str], text: str) -> str | None:
    """A number of `bc`, whose ^ is a power, as far as it counts like a shell."""
    value = None if words or set("^&|<>~") & {*text} else arithmetic(text, lambda name: None)
    return None if value is None else str(value)


_CASES = {"a-z": string.ascii_lowercase, "[:lower:]": string.ascii_lowercase}
_CASES |= {"A-Z": string.ascii_uppercase, "[:upper:]": string.ascii_uppercase, "\\n": "\n"}


def _tr(words: Sequence[str], text: str) -> str | None:
    """Letters of one set by those of another of the same size, or without those of -d."""
    sets = [_CASES.get(word, word) for word in words]
    if len(sets) != 2 or any(len(one) != 1 and one not in _CASES.values() for one in sets[-1:]):
        return None
    if sets[0] == "-d":
        return None if sets[1] == "\n" else text.translate(dict.fromkeys(map(ord, sets[1])))
    same = len(sets[0]) == len(sets[1]) and (len(sets[0]) == 1 or sets[0] in _CASES.values())
    return text.translate(str.maketrans(*sets)) if same else None


def _wc(words: Sequence[str], text: str) -> str | None:
    counts = {"-l": text.count("\n") + 1, "-w": len(text.split())}
    return str(counts[words[0]]) if len(words) == 1 and words[0] in counts else None


def _grep(words: Sequence[str], text: str) -> str | None:
    """Every place of one letter, a line each; None where there is none."""
    if len(words) != 2 or words[0] != "-o" or not re.fullmatch(r"[\w,;: ]", words[1]):
        return None
    return "\n".join(words[1] for _ in range(text.count(words[1]))) or None


_CUT = re.compile(r"-d ?(?P<mark>.) -f ?(?P<place>[1-9])")
_AWK = re.compile(
    r"(?:-F ?(?P<mark>\S) )?\{ ?print(?: ?(?=\$))?(?P<place>\$[1-9]|\$NF| NF) ?;? ?\}"
)


def _field(pattern: re.Pattern[str]) -> Callable[[Sequence[str], str], str | None]:
    """One field of a line, as `cut` and `awk` print it."""

    def field(words: Sequence[str], text: str) -> str | None:
        found = pattern.fullmatch(" ".join(words))
        if found is None or "\n" in text:
            return None
        fields = text.split(found["mark"] or None)
        if found["place"] == " NF":
            return str(len(fields))
        place = len(fields) if found["place"] == "$NF" else int(found["place"].lstrip("$"))
        return fields[place - 1] if 0 < place <= len(fields) else ""

    return field


_FILTERS: dict[str, Callable[[Sequence[str], str], str | None]] = {
    "bc": _bc,
    "cut": _field(_CUT),
    "awk": _field(_AWK),
    "tr": _tr,
    "wc": _wc,
    "grep": _grep,
    "xargs": lambda words, text: None if words else " ".join(text.split()),
}
"""Outputs of commands by name, of the text that they are given."""
_COMMANDS: dict[str, Callable[[Sequence[str], Values], str | None]] = {
    "echo": lambda words, values: (
        None if words[:1] in (["-e"], ["-ne"]) else " ".join(words[words[:1] == ["-n"] :])
    ),
    "basename": _basename,
    "dirname": _dirname,
    "realpath": _path,
    "readlink": lambda words, values: _path(words[1:], values) if words[:1] == ["-f"] else None,
    "which": lambda words, values: words[0] if len(words) == 1 else None,
    "command": lambda words, values: words[1] if words[:1] == ["-v"] and words[1:] else None,
    "seq": _seq,
    "cat": _cat,
    "expr": _expr,
}
"""Outputs of commands by name."""


_PLACE = re.compile(r"%(?:(%)|(-?0?\d{0,2})(\.\d)?([sdif]))")
_ESCAPE = re.compile(r"\\(.)", re.S)
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", '"': '"'}
_NUMBER = re.compile(r"-?\d{1,15}(?:\.\d{1,9})?")
MOST_TEXTS = 1000
"""Texts that one pattern is filled with."""


def formatted(pattern: str, texts: Sequence[str]) -> str | None:
    """A pattern with texts in its places, again while there are texts left; None of a pattern or a
    text that is not known here.

    Source: POSIX, XCU, printf; Bash Reference Manual, 4.2 (printf).

    >>> formatted("%s-%02d ", ["a", "3", "b", "10"])
    'a-03 b-10 '
    """
    places = [found for found in _PLACE.finditer(pattern) if not found[1]]
    if "%" in _PLACE.sub("", pattern) or len(texts) > MOST_TEXTS:
        return None
    left, out = list(texts), []
    while True:
        filled = _filled(pattern, left)
        if filled is None:
            return None
        out.append(filled)
        if not left or not places:
            return "".join(out)


def _filled(pattern: str, left: list[str]) -> str | None:
    """The pattern with the first of the texts, which are taken away."""
    pieces, end = [], 0
    for found in _PLACE.finditer(pattern):
        pieces.append(_unescaped(pattern[end : found.start()]))
        end = found.end()
        pieces.append("%" if found[1] else _placed(found, left.pop(0) if left else ""))
    pieces.append(_unescaped(pattern[end:]))
    known = [piece for piece in pieces if piece is not None]
    return "".join(known) if len(known) == len(pieces) else None


def _placed(found: re.Match[str], text: str) -> str | None:
    """One text in its place: as it is, or as a number."""
    width, digits, kind = found[2], found[3] or "", found[4]
    if kind == "s":
        size = int(width.lstrip("-0") or 0)
        text = text[: int(digits[1:])] if digits else text
        return text.ljust(size) if width.startswith("-") else text.rjust(size)
    text = text or "0"
    if kind == "f":
        return f"%{width}{digits}f" % float(text) if _NUMBER.fullmatch(text) else None
    if digits or not is_whole(text.removeprefix("-")) or (text[:1] == "0" and text != "0"):
        return None
    return f"%{width}d" % int(text)


def _unescaped(text: str) -> str | None:
    """A text with its escapes replaced; None where one is not known."""
    if any(found[1] not in _ESCAPES for found in _ESCAPE.finditer(text)):
        return None
    return _ESCAPE.sub(lambda found: _ESCAPES[found[1]], text)
