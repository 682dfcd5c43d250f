"""Options: flag, help and how a text is read; and a parser that says what is wrong.

Nothing here imports numpy, so that help is instant.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from plan3d.simulator.base import names, units
from plan3d.simulator.base.errors import InputError, did_you_mean

TOP = ("--help", "--version", "--traceback")
"""Options before the verb."""
LARGEST = 1e30
"""Of any number that is no count, in SI units; its inverse is the least."""
LONGEST_PLAN = 100_000
"""Characters of a plan that is written out."""


class Parser(argparse.ArgumentParser):
    """Raises InputError, one line, where argparse prints its usage and exits."""

    def error(self, message: str) -> NoReturn:
        raise InputError(message.replace("argument ", "", 1))

    def parse(
        self,
        arguments: Sequence[str],
        verb: str,
        options: Sequence[Option],
        takes_words: bool = False,
    ) -> argparse.Namespace:
        """Parse all arguments, words without a flag into `words` where a verb takes them; an
        unknown option is answered with the nearest known."""
        known = [o.flag for o in options if verb in o.verbs]
        known += ["--help", "--help-fields"] if verb else [*TOP]
        for word in arguments:
            flag = word.partition("=")[0]
            if flag.startswith("--") and flag not in (*known, *TOP, "--"):
                raise InputError(f"unknown option {flag!r}{did_you_mean(flag, known)}")
        args, rest = self.parse_known_args(arguments)
        unknown = [word for word in rest if word.startswith("-") or not takes_words]
        if unknown:
            raise InputError(f"unknown argument {unknown[0]!r}; see plan3d {verb} --help")
        args.words = [text(word, "argument") for word in rest]
        return args


def whole(text: str, what: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{what} {text!r} must be a whole number") from None


def positive(text: str, what: str) -> float:
    """A finite number above zero."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise InputError(f"{what} {text!r} must be a number above 0")
    return possible(number, text, what)


def possible(number: float, text: str, what: str) -> float:
    """A number whose products are numbers."""
    if not 1 / LARGEST <= number <= LARGEST:
        raise InputError(f"{what} {text!r} must be from {1 / LARGEST:g} to {LARGEST:g}")
    return number


def percents(text: str, what: str) -> str:
    """Whole percents as plan fields have them: '50%' or '0,50,100'; or 'auto'."""
    parts = [part.strip().removesuffix("%").strip() for part in text.split(",")]
    if text != "auto" and not all(units.is_whole(part) and int(part) <= 100 for part in parts):
        raise InputError(f"{what} {text!r} must be whole percents up to 100, such as 50, or auto")
    return ",".join(parts)


def seconds(text: str, what: str) -> float:
    """Seconds, with or without a unit: '30' or '500ms'."""
    try:
        number = float(text)
    except ValueError:
        number = units.parse_seconds(text, what)
    if not 0 < number < math.inf:
        raise InputError(f"{what} {text!r} must be above 0 seconds, for example 30")
    return possible(number, text, what)


def training_tokens(text: str, what: str) -> float | str:
    """'300B', or 'chinchilla' for 20 tokens a parameter."""
    return "chinchilla" if text.lower() == "chinchilla" else counted(text, what, "300B")


def dollars(text: str, what: str) -> float:
    """'1.3M'."""
    return counted(text, what, "1.3M")


def counted(text: str, what: str, example: str) -> float:
    """A count above zero, with k, M, B or T."""
    number = units.parse_count(text, what, example)
    if number <= 0:
        raise InputError(f"{what} {text!r} must be above 0")
    return possible(number, text, what)


def text(given: str, what: str) -> str:
    """A name, or that of a file: one printable line."""
    return names.path(given, what)


def words(given: str, what: str) -> str:
    """Fields of plans, which white space separates; or the name of a file that holds some."""
    names.name(re.sub(r"[ \t\n]+", " ", given), what, LONGEST_PLAN)
    return given


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option of the command line."""

    flag: str
    help: str
    value: str = ""
    """What its value is called in help; '' for a switch."""
    alone: str = ""
    """The text it has where the value may be left out, and is."""
    read: Callable[[str, str], Any] = text
    """Value from its text; the second argument names the option in errors."""
    verbs: tuple[str, ...] = ("search", "estimate", "timeline", "compare")
    default: Any = None
    many: bool = False
    required: bool = False
    completes: str = ""
    """What a shell completes: 'file', 'model', 'cluster', 'software'."""
    short: str = ""
    """Another name of one letter, '-o'."""

    @property
    def name(self) -> str:
        return self.flag.removeprefix("--").replace("-", "_")

    def add_to(self, parser: argparse._ActionsContainer) -> None:
        """Declare it on a parser."""
        if not self.value:
            names = filter(None, (self.short, self.flag))
            parser.add_argument(*names, action="store_true", help=self.help)
            return
        action = parser.add_argument(
            *filter(None, (self.short, self.flag)),
            action="append" if self.many else "store",
            type=partial(_read, self),
            default=self.default,
            required=self.required,
            metavar=self.value,
            help=self.help,
            **({"nargs": "?", "const": self.alone} if self.alone else {}),
        )
        setattr(action, "completes", self.completes)  # noqa: B010


def _read(option: Option, text: str) -> Any:
    return option.read(text, option.flag)
