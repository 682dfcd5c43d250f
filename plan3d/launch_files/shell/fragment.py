"""Settings as the arrays of a bash script, and what an imported script had besides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..launch_file import UnreadSetting
from ..tables import KeyClasses
from .words import quote

OTHERS = "OTHER_ARGS"
"""The array of flags that are kept."""
Lines = list[tuple[str, str]]
"""Flags and how a shell is told them."""


def flag_lines(settings: Iterable[tuple[str, Any]]) -> Lines:
    """Flags as a shell reads them: true ones alone, false ones and None not at all."""
    return [
        (at, _flag_line(at, value))
        for at, value in settings
        if value is not None and value is not False
    ]


def _flag_line(at: str, value: Any) -> str:
    words = () if value is True else value if isinstance(value, tuple) else (value,)
    return " ".join([at, *(quote(str(word)) for word in words)])


def with_unread(
    groups: Mapping[str, Lines], kept: Sequence[UnreadSetting], key_classes: KeyClasses
) -> dict[str, list[str]]:
    """The lines of every array: kept flags in the place of those that yield, the others that the
    plan does not decide in an array of their own."""
    flags = {part.flag: part.text for part in kept if part.flag}
    settings_of = {at for group in groups.values() for at, _ in group} | key_classes.decided
    own = {
        name: [flags.get(at, text) if at in key_classes.overridable else text for at, text in group]
        for name, group in groups.items()
    }
    left = [part for part in kept if not part.path and not part.is_derived]
    others = [part.text for part in left if part.flag not in settings_of]
    return {**own, **({OTHERS: others} if others else {})}


def required_assignments(kept: Sequence[UnreadSetting]) -> list[str]:
    """The assignments that kept flags ask the shell for."""
    return list(dict.fromkeys(line for part in kept for line in part.assignments))


def bash_array(name: str, texts: Iterable[str]) -> list[str]:
    """The lines of a bash array."""
    return [f"{name}=(", *(f"  {text}" for text in texts), ")"]


def fragment_text(top: Sequence[str], arrays: Mapping[str, Sequence[str]], command: str) -> str:
    """A fragment that a launch script sources; how it goes on is a comment."""
    used = " ".join(f'"${{{name}[@]}}"' for name in arrays)
    own = {name: texts for name, texts in arrays.items() if name != OTHERS}
    others = bash_array(OTHERS, arrays[OTHERS]) if OTHERS in arrays else []
    return "\n".join(
        [
            *top,
            *(line for name, texts in own.items() for line in bash_array(name, texts)),
            *others,
            "# Add your data, tokenizer, learning rate and checkpoint flags:",
            f"# {command} {used}{'' if others else ' ...'}",
            "",
        ]
    )
