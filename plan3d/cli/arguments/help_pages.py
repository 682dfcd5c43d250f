"""Help of a verb on one screen: examples, the options that people use, and the names of the rest.

plan3d VERB --help is short, plan3d help VERB has every option in full.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from ..options.parser import Option
from .positional import PLACES

WIDTH, COLUMN = 80, 25
"""Columns of a line, and where the help of an option begins."""
GROUPS = {
    "The question": (
        *("--model", "--cluster", "--gpus", "--sequence", "--global-batch", "--precision"),
        *("--framework", "--calibration", "--over", "--to", "--runs", "--leave-origin-out"),
    ),
    "One plan": (
        *("--plan", "--against", "--measured-step", "--with", "--vocabulary"),
        *("--seconds", "--peak"),
    ),
    "Which plans": (
        *("--fix", "--choose", "--system", "--systems", "--objective"),
        *("--backends", "--seeds", "--logs", "--next", "--launch"),
    ),
    "Training": ("--tokens", "--days", "--price"),
    "The server": ("--host", "--port", "--workers", "--memory-limit"),
    "The answer": (
        *("--top", "--csv", "--plot", "--tracks", "--ranks", "--report", "--trace", "--output"),
        *("--out", "--estimate", "--verbose", "--json"),
    ),
}
"""Options that a short help explains, by group; the others are named."""
OTHER_OPTIONS = "Other options"


def help_page(
    verb: str, about: str, options: Sequence[Option], full: bool = False, others: str = ""
) -> str:
    """The help of a verb: every option in full, or those of GROUPS and the names of the others,
    which the help of the verb `others` explains."""
    known = {option.flag: option for option in options}
    out = [usage(verb), "", about.strip()]
    for title, flags in GROUPS.items():
        shown = [known.pop(flag) for flag in flags if flag in known]
        if shown:
            out += ["", f"{title}:", *(line for option in shown for line in _lines(option))]
    if full:
        rest = [line for option in known.values() for line in _lines(option)]
        return "\n".join([*out, *(["", f"{OTHER_OPTIONS}:", *rest] if rest else [])])
    names = ", ".join(known)
    said = textwrap.wrap(names, WIDTH - 4, break_on_hyphens=False)
    where = f"{OTHER_OPTIONS} (plan3d help {others or verb}):"
    return "\n".join([*out, "", where, *(f"  {line}" for line in said)])


def usage(verb: str, word: str = "") -> str:
    """How a verb is called."""
    places = [place.name.upper() for place in PLACES.get(verb, ())]
    if verb == "explain":
        places[0] = "FILE|MODEL"
    return " ".join(filter(None, ("usage: plan3d", verb, *places, word, "[options]")))


def _lines(option: Option) -> list[str]:
    names = ", ".join(filter(None, (option.short, option.flag)))
    left = f"  {names} {option.metavar}".rstrip()
    text = textwrap.wrap(option.help.replace("%%", "%"), WIDTH - COLUMN, break_on_hyphens=False)
    if len(left) >= COLUMN:
        return [left, *(" " * COLUMN + line for line in text)]
    return [f"{left.ljust(COLUMN)}{text[0]}", *(" " * COLUMN + line for line in text[1:])]
