"""Arrays: A[1]=x, A[$i]=x, M[key]=x, ([0]=x [key]=y). An element that has no place among the others
is a word that begins with a part `[key]=`.

Source: Bash Reference Manual, 6.7 (arrays).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from plan3d.simulator.base.units import is_whole

from .conditions import Lookup, arithmetic
from .contents import Script
from .variables import Value
from .words import CONDITION, Part, Word, key_of

_KEYED = re.compile(r"(\[[^\[\]]{1,60}\]=)")
_COUNTED = re.compile(r"[\w ]*[-+*/][-+*/\w ]*")
"""A subscript that is arithmetic, rather than a name."""


def elements_of(words: Sequence[Word]) -> list[Word]:
    """The elements of ( ... ): those with keys 0, 1, 2, ... without them."""
    out = []
    for word in words:
        found = _KEYED.match(word.text)
        first = word.parts[0] if word.parts else None
        if found and first and not first.quoted:
            key = Part(found[1], first.line)
            word = Word((key, *word.without_prefix(found.end()).parts))
        out.append(word)
    if [key_of(word) for word in out] == [*map(str, range(len(out)))]:
        return [Word(word.parts[1:]) for word in out]
    return out


def place_of(key: str, is_map: bool, lookup: Lookup) -> int | None:
    """The place that a subscript is; None of a key."""
    if is_whole(key.removeprefix("-")):
        return None if is_map else int(key)
    if is_map or not (_COUNTED.fullmatch(key) or key.isidentifier()):
        return None
    return arithmetic(key, lookup)


def with_element(
    before: Value | None, key: str, place: int | None, added: Iterable[Part], appends: bool
) -> Value:
    """The array with another element, or with another one at that place or key."""
    words = list(before.words) if before else []
    parts, keys = tuple(added), [key_of(word) for word in words]
    at: int | None = None
    head: tuple[Part, ...]
    if any(keys) or place is None:
        at = keys.index(key) if key in keys else None
        head = (Part(f"[{key}]=", parts[0].line if parts else 1),)
    else:
        at, head = place if place >= 0 else len(words) + place, ()
        if not 0 <= at < len(words):
            head = () if at == len(words) else (Part(f"[{at}]=", 1),)
            at = None
    if at is not None:
        parts = (*words[at].parts, *parts) if appends else (*head, *parts)
        words[at] = Word(parts)
    else:
        words.append(Word((*head, *parts)))
    made = before or Value(())
    return replace(made, words=tuple(words), array=True)


def element(
    script: Script,
    name: str,
    subscript: Word,
    words: Sequence[Word],
    condition: str,
    appends: bool,
) -> tuple[Value, bool]:
    """What NAME[SUBSCRIPT]=WORDS gives the array, and whether that is added to its elements."""
    variables = script.variables
    key, before = variables.text(subscript), variables.values.get(name)
    place = place_of(key, "A" in script.attributes.get(name, ""), variables.number)
    if variables.dependences(subscript):
        condition = condition or CONDITION
    value = with_element(before, key, place, [p for word in words for p in word.parts], appends)
    count = len(before.words) if before else 0
    is_added = bool(condition) and len(value.words) > count
    value = replace(value, words=value.words[count if is_added else 0 :])
    return replace(value, condition=condition or value.condition), is_added
