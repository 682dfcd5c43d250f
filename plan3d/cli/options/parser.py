"""Options of the command line: how a value is read, and what is refused.

Nothing here imports numpy, so that help is instant.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise
from typing import NoReturn

from plan3d.simulator.base import units
from plan3d.simulator.base.errors import (
    InputError,
    check_name,
    check_path,
    did_you_mean,
    intended_name,
)

GLOBAL_FLAGS = ("--help", "--version", "--traceback")
"""Options before the verb."""
LARGEST_VALUE = 1e30
"""Of any number that is no count, in SI units; its inverse is the least."""
LONGEST_PLAN = 100_000
"""Characters of a plan that is written out."""
OUT_OF_MEMORY = "oom"
"""Seconds of a run that ran out of memory."""
MEMORY_TIMELINE = "timeline"
"""What `--memory` of `explain` asks for where it has no size."""
COMPLETION_BY_METAVAR = {
    **dict.fromkeys(("FILE", "DIR", "PLAN"), "file"),
    **{"M": "model", "C": "cluster", "PROFILE": "software", "SYSTEM": "system"},
}
"""What a shell completes after an option, by the metavar of its value."""


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
        known += ["--help", "--help-fields"] if verb else [*GLOBAL_FLAGS]
        for word, following in pairwise([*arguments, ""]):
            flag, equals, value = word.partition("=")
            if flag.startswith("--") and flag not in (*known, *GLOBAL_FLAGS, "--"):
                value = value if equals else following
                others = [v for option in options if option.flag == flag for v in option.verbs]
                near = _suggestion(flag, value, known, others)
                raise InputError(f"unknown option {flag!r}{near}")
        args, rest = self.parse_known_args(arguments)
        unknown = [word for word in rest if word.startswith("-") or not takes_words]
        if unknown:
            raise InputError(f"unknown argument {unknown[0]!r}; see plan3d {verb} --help")
        args.words = [text(word, "argument") for word in rest]
        return args


OTHER_NAMES = {
    **dict.fromkeys(("--batch", "--batch-size", "--gbs", "--train-batch-size"), "--global-batch"),
    **dict.fromkeys(("--global-batch-size", "--global-bs"), "--global-batch"),
    **dict.fromkeys(("--gradient-accumulation-steps", "--grad-accum"), "--global-batch"),
    **dict.fromkeys(("--dtype", "--mixed-precision", "--torch-dtype"), "--precision"),
    **dict.fromkeys(("--fp8", "--fp16", "--bf16", "--fp32"), "--precision"),
    **dict.fromkeys(("--max-seq-len", "--context-length", "--block-size"), "--sequence"),
    **dict.fromkeys(("--ctx", "--context", "--seq-length", "--cutoff-len"), "--sequence"),
    **dict.fromkeys(("--seq", "--seq-len", "--seqlen", "--max-length"), "--sequence"),
    **dict.fromkeys(("--num-gpus", "--n-gpus", "--ngpus", "--world-size"), "--gpus"),
    **dict.fromkeys(("--num-nodes", "--nnodes"), "--nodes"),
    **dict.fromkeys(("--nproc-per-node", "--node-size"), "--gpus-per-node"),
    **dict.fromkeys(("--gpu", "--gpu-type", "--hardware", "--machine"), "--cluster"),
    **dict.fromkeys(("--vram", "--gpu-memory", "--hbm"), "--memory"),
    **dict.fromkeys(("--lora", "--qlora", "--peft"), "--adapter"),
    **dict.fromkeys(("--quantization", "--load-in-4bit", "--load-in-8bit"), "--adapter"),
    **dict.fromkeys(("--rank", "--lora-r"), "--lora-rank"),
    **dict.fromkeys(("--bandwidth", "--interconnect", "--ib"), "--inter-node-bandwidth"),
    **dict.fromkeys(("--network-bandwidth", "--nic-bandwidth"), "--inter-node-bandwidth"),
    **dict.fromkeys(("--nvlink", "--nvlink-bandwidth"), "--intra-node-bandwidth"),
    **dict.fromkeys(("--compile", "--flash-attention", "--stack"), "--software"),
    **dict.fromkeys(("--framework", "--format"), "--to"),
    **{"--epochs": "--tokens", "--deadline": "--days", "--top-k": "--top", "--output": "--out"},
}
"""Options by what other tools call them."""


def _suggestion(flag: str, value: str, known: Sequence[str], others: Sequence[str]) -> str:
    """The end of a line about an unknown option: how a field of a plan is given, which other verbs
    have it, or the nearest option."""
    from plan3d.simulator.plan.fields import FIELDS, SYNONYMS

    name = flag.removeprefix("--").replace("-", "_").lower()
    name = SYNONYMS.get(name, name)
    field = f"{name}={value if value and not value.startswith('-') else 'V'}"
    if f"--{name}" not in known and name in FIELDS and {"--fix", "--plan"} & {*known}:
        return f": a field of a plan, {'--fix' if '--fix' in known else '--plan'} {field}"
    named = {o: n for o, n in OTHER_NAMES.items() if n in known}
    if others and flag not in named and not intended_name(flag, known):
        return f": an option of {', '.join(dict.fromkeys(others))}"
    return did_you_mean(flag, known, named)


def integer(text: str, what: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError:
        pass
    several = text.replace("..", ",").split(",")
    if len(several) > 1 and all(units.is_whole(part) for part in several):
        over = f"--over {what.lower().removeprefix('--')}={text}"
        raise InputError(f"{what} {text!r} must be one whole number; several: plan3d sweep {over}")
    raise InputError(f"{what} {text!r} must be a whole number")


def number(text: str, what: str) -> float:
    """A finite number above zero."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise InputError(f"{what} {text!r} must be a number above 0")
    return check_range(value, text, what)


def check_range(value: float, text: str, what: str) -> float:
    """A number whose products are finite; InputError for another."""
    if not 1 / LARGEST_VALUE <= value <= LARGEST_VALUE:
        raise InputError(f"{what} {text!r} must be from {1 / LARGEST_VALUE:g} to {LARGEST_VALUE:g}")
    return value


def share(text: str, what: str) -> float:
    """A number from 0 to below 1."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1:
        raise InputError(f"{what} {text!r} must be a number from 0 to below 1")
    return value


def percents(text: str, what: str) -> str:
    """Whole percents as plan fields have them: '50%' or '0,50,100'; or 'auto'."""
    parts = [part.strip().removesuffix("%").strip() for part in text.split(",")]
    if text != "auto" and not all(units.is_whole(part) and int(part) <= 100 for part in parts):
        raise InputError(f"{what} {text!r} must be whole percents up to 100, such as 50, or auto")
    return ",".join(parts)


def seconds(text: str, what: str) -> float:
    """Seconds, with or without a unit: '30' or '500ms'."""
    try:
        value = float(text)
    except ValueError:
        value = units.parse_seconds(text, what)
    if not 0 < value < math.inf:
        raise InputError(f"{what} {text!r} must be above 0 seconds, for example 30")
    return check_range(value, text, what)


def seconds_or_oom(text: str, what: str) -> float | str:
    """Seconds, or OUT_OF_MEMORY."""
    return OUT_OF_MEMORY if text.strip().lower() == OUT_OF_MEMORY else seconds(text, what)


def memory(text: str, what: str) -> float:
    """Bytes above zero, with their unit."""
    size = units.parse_bytes(text, what)
    if size <= 0:
        raise InputError(f"{what} {text!r} must be above 0, for example 61.5GiB")
    return size


def memory_or_timeline(text: str, what: str) -> float | str:
    """Bytes, or MEMORY_TIMELINE."""
    if text == MEMORY_TIMELINE:
        return text
    try:
        return units.parse_bytes(text, what)
    except InputError as error:
        raise InputError(f"{error}; without a size it stands last") from None


def training_tokens(text: str, what: str) -> float | str:
    """'300B', or 'chinchilla' for 20 tokens a parameter."""
    return "chinchilla" if text.lower() == "chinchilla" else _count(text, what, "300B")


def dollars(text: str, what: str) -> float:
    """'1.3M', or '$1.3M'."""
    return _count(text.strip().removeprefix("$"), what, "1.3M")


def price(text: str, what: str) -> float:
    """'2.5', or '$2.5'."""
    return number(text.strip().removeprefix("$"), what)


def watts(text: str, what: str) -> float:
    """'500', or '500W'."""
    return number(text.strip().removesuffix("W"), what)


def days(text: str, what: str) -> float:
    """'60', or with another unit of time, '36h'."""
    from plan3d.simulator.analysis.goodput import DAY

    try:
        return number(text, what)
    except InputError:
        return check_range(units.parse_seconds(text, what, "60 or 36h") / DAY, text, what)


def _count(text: str, what: str, example: str) -> float:
    """A count above zero, with k, M, B or T."""
    value = units.parse_count(text, what, example)
    if value <= 0:
        raise InputError(f"{what} {text!r} must be above 0")
    return check_range(value, text, what)


def text(value: str, what: str) -> str:
    """A name, or that of a file: one printable line."""
    return check_path(value, what)


def plan_text(value: str, what: str) -> str:
    """Fields of plans, which white space separates; or the name of a file that holds some."""
    check_name(re.sub(r"[ \t\n]+", " ", value), what, LONGEST_PLAN)
    return value


@dataclass(frozen=True)
class Option:
    """One option of the command line."""

    flag: str
    metavar: str
    """What its value is called in help; '' for a switch."""
    read: Callable[[str, str], str | float]
    """Value from its text; the second argument names the option in errors."""
    verbs: tuple[str, ...]
    """Verbs that take it."""
    help: str
    _: KW_ONLY
    value_if_bare: str = ""
    """The text it has where the value may be left out, and is."""
    default: int | None = None
    repeatable: bool = False
    several: bool = False
    """Whether several values follow it."""
    required: bool = False
    completes: str = ""
    """What a shell completes where COMPLETION_BY_METAVAR does not say it."""
    short: str = ""
    """Its name of one letter, '-o'."""

    @property
    def name(self) -> str:
        return self.flag.removeprefix("--").replace("-", "_")

    def add_to(self, parser: argparse._ActionsContainer) -> None:
        """Declare it on a parser."""
        flags = [*filter(None, (self.short, self.flag))]
        if not self.metavar:
            parser.add_argument(*flags, action="store_true", help=self.help)
            return
        action = parser.add_argument(
            *flags,
            action="extend" if self.several else "append" if self.repeatable else "store",
            type=self._parse,
            default=self.default,
            required=self.required,
            metavar=self.metavar,
            help=self.help,
            **({"nargs": "?", "const": self.value_if_bare} if self.value_if_bare else {}),
            **({"nargs": "+"} if self.several else {}),
        )
        completed = self.completes or COMPLETION_BY_METAVAR.get(self.metavar, "")
        setattr(action, "completes", completed)  # noqa: B010

    def _parse(self, text: str) -> str | float:
        return self.read(text, self.flag)


def switch(flag: str, verbs: tuple[str, ...], help: str, short: str = "") -> Option:
    """An option without a value."""
    return Option(flag, "", text, verbs, help, short=short)
