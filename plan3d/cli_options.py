"""Which options are there? One table, shared by the verbs; it feeds parser, help and completion.

Nothing here imports numpy, so that help is instant.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from .simulator import units
from .simulator.errors import InputError, did_you_mean

TASK = ("search", "estimate", "timeline")
ONE = ("estimate", "timeline")
"""Verbs about one plan."""
SEARCH = ("search",)
TOP = ("--help", "--version", "--print-completion")
"""Options before the verb."""
VALIDATE = ("validate",)
EVERY = ("search", "estimate", "timeline", "validate", "models", "clusters")


class Parser(argparse.ArgumentParser):
    """Raises InputError, one line, where argparse prints its usage and exits."""

    def error(self, message: str) -> NoReturn:
        raise InputError(message.replace("argument ", "", 1))

    def parse(self, arguments: Sequence[str], verb: str) -> argparse.Namespace:
        """Parse all arguments; an unknown option is answered with the nearest known."""
        known = [o.flag for o in OPTIONS if verb in o.verbs]
        known += ["--help", "--help-fields"] if verb else [*TOP]
        for word in arguments:
            flag = word.partition("=")[0]
            if flag.startswith("--") and flag not in (*known, *TOP, "--"):
                raise InputError(f"unknown option {flag!r}{did_you_mean(flag, known)}")
        args, unknown = self.parse_known_args(arguments)
        if unknown:
            raise InputError(f"unknown argument {unknown[0]!r}; see plan3d {verb} --help")
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
    return number


def seconds(text: str, what: str) -> float:
    """Seconds, with or without a unit: '30' or '500ms'."""
    try:
        number = float(text)
    except ValueError:
        number = units.parse_seconds(text, what)
    if not 0 < number < math.inf:
        raise InputError(f"{what} {text!r} must be above 0 seconds, for example 30")
    return number


def training_tokens(text: str, what: str) -> float | str:
    """'300B', or 'chinchilla' for 20 tokens a parameter."""
    if text.lower() == "chinchilla":
        return "chinchilla"
    tokens = units.parse_count(text, what)
    if tokens <= 0:
        raise InputError(f"{what} {text!r} must be above 0")
    return tokens


def _text(text: str, what: str) -> str:
    return text


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option of the command line."""

    flag: str
    help: str
    value: str = ""
    """What its value is called in help; '' for a switch."""
    read: Callable[[str, str], Any] = _text
    """Value from its text; the second argument names the option in errors."""
    verbs: tuple[str, ...] = TASK
    default: Any = None
    many: bool = False
    required: bool = False
    completes: str = ""
    """What a shell completes: 'file', 'model', 'cluster', 'software'."""

    @property
    def name(self) -> str:
        return self.flag.removeprefix("--").replace("-", "_")

    def add_to(self, parser: argparse._ActionsContainer) -> None:
        """Declare it on a parser."""
        if not self.value:
            parser.add_argument(self.flag, action="store_true", help=self.help)
            return
        action = parser.add_argument(
            self.flag,
            action="append" if self.many else "store",
            type=partial(_read, self),
            default=self.default,
            required=self.required,
            metavar=self.value,
            help=self.help,
        )
        setattr(action, "completes", self.completes)  # noqa: B010


def _read(option: Option, text: str) -> Any:
    return option.read(text, option.flag)


OPTIONS = (
    Option(
        flag="--model",
        value="M",
        required=True,
        completes="model",
        help="preset (see 'plan3d models') or path of a Hugging Face config.json",
    ),
    Option(
        flag="--cluster",
        value="C",
        required=True,
        completes="cluster",
        help="hardware profile (see 'plan3d clusters') or path of a TOML file",
    ),
    Option(flag="--gpus", value="N", read=whole, help="GPUs of the cluster"),
    Option(flag="--nodes", value="N", read=whole, help="nodes of the cluster"),
    Option(
        flag="--gpus-per-node", value="N", read=whole, help="GPUs a node (default: the profile's)"
    ),
    Option(
        flag="--sequence",
        value="S",
        read=whole,
        help="tokens of one sequence (default: the model's published one)",
    ),
    Option(
        flag="--global-batch",
        value="B",
        read=whole,
        help="sequences of one step (default: the model's published batch)",
    ),
    Option(
        flag="--global-batch-tokens",
        value="T",
        read=units.parse_count,
        help="the same in tokens; a multiple of the sequence",
    ),
    Option(flag="--precision", value="P", help="bf16 (default), fp16, fp8, fp32, mixed, pure-bf16"),
    Option(flag="--optimizer", value="O", help="adam (default) or sgd"),
    Option(
        flag="--layers-per-stage",
        value="LAYERS",
        help="layers of every stage: 11,12,12,11",
    ),
    Option(
        flag="--pipeline-model-parallel-layout",
        value="LAYOUT",
        help="the same as Megatron-LM writes it: 'Et*3|(tt|)*29|m|L'",
    ),
    Option(
        flag="--software",
        value="PROFILE",
        completes="software",
        help="training stack: megatron-core (default) or megatron-lm-2021",
    ),
    Option(
        flag="--inter-node-bandwidth",
        value="RATE",
        read=units.parse_bandwidth,
        help="of the network, for one GPU in one direction, such as 200Gb/s",
    ),
    Option(
        flag="--intra-node-bandwidth",
        value="RATE",
        read=units.parse_bandwidth,
        help="of NVLink or xGMI, for one GPU in one direction, such as 300GB/s",
    ),
    Option(
        flag="--network-latency",
        value="TIME",
        read=units.parse_seconds,
        help="to cross the network once, such as 5us",
    ),
    Option(
        flag="--latency-per-node",
        value="TIME",
        read=units.parse_seconds,
        help="of each further node of a collective",
    ),
    Option(
        flag="--memory", value="SIZE", read=units.parse_bytes, help="usable of one GPU: '80 GiB'"
    ),
    Option(
        flag="--plan",
        value="PLAN",
        required=True,
        completes="file",
        verbs=ONE,
        help="'tp=8 pp=8 recompute=full', a file, or result.json#3 (third plan of a saved search)",
    ),
    Option(
        flag="--fix",
        value="F=V",
        many=True,
        verbs=SEARCH,
        help="keep plan field F at V; repeatable (fields: --help-fields)",
    ),
    Option(
        flag="--choose",
        value="F=V1,V2",
        many=True,
        verbs=SEARCH,
        help="try only these values of plan field F; repeatable",
    ),
    Option(
        flag="--memory-headroom",
        value="SHARE",
        read=units.parse_fraction,
        verbs=SEARCH,
        help="of a GPU's memory to leave free (default 10%%)",
    ),
    Option(
        flag="--objective",
        value="O",
        verbs=SEARCH,
        help="step-time (default), memory or cost",
    ),
    Option(
        flag="--backend",
        value="B",
        verbs=SEARCH,
        help="exhaustive (default), branch-and-bound or integer-programming",
    ),
    Option(flag="--top", value="K", read=whole, default=10, verbs=SEARCH, help="plans shown (10)"),
    Option(flag="--pareto", verbs=SEARCH, help="also show the frontier of time against memory"),
    Option(
        flag="--budget", value="N", read=whole, verbs=SEARCH, help="stop after N plans were costed"
    ),
    Option(flag="--time-limit", value="S", read=seconds, verbs=SEARCH, help="stop after S seconds"),
    Option(
        flag="--seed", value="K", read=whole, verbs=SEARCH, help="of backends that draw at random"
    ),
    Option(
        flag="--trace",
        value="FILE",
        completes="file",
        verbs=("timeline",),
        help="write a trace for ui.perfetto.dev",
    ),
    Option(
        flag="--gantt",
        value="FILE",
        completes="file",
        verbs=("timeline",),
        help="draw the timeline: .png, .svg or .pdf",
    ),
    Option(
        flag="--tokens",
        value="T",
        verbs=("search", "estimate"),
        read=training_tokens,
        help="training tokens, '300B' or 'chinchilla' (20 a parameter): adds time, energy, cost",
    ),
    Option(
        flag="--price",
        value="P",
        read=positive,
        verbs=("search", "estimate"),
        help="USD per GPU-hour; with --tokens adds cost",
    ),
    Option(
        flag="--days",
        value="D",
        read=positive,
        verbs=SEARCH,
        help="instead of --gpus: the fewest GPUs that train --tokens in D days",
    ),
    Option(
        flag="--budget-usd",
        value="X",
        read=positive,
        verbs=SEARCH,
        help="instead of --gpus: the fewest GPUs that train --tokens for X USD at --price",
    ),
    Option(
        flag="--csv", value="FILE", completes="file", verbs=SEARCH, help="also write the plans here"
    ),
    Option(flag="--runs", value="FILE", completes="file", verbs=VALIDATE, help="CSV of own runs"),
    Option(flag="--source", value="NAME", verbs=VALIDATE, help="only the rows of this source"),
    Option(
        flag="--cross-validate",
        verbs=VALIDATE,
        help="fit scalars of the profiles and predict the runs held out (minutes)",
    ),
    Option(
        flag="--csv",
        value="FILE",
        completes="file",
        verbs=VALIDATE,
        help="also write every row here, measured and predicted",
    ),
    Option(
        flag="--plot",
        value="FILE",
        completes="file",
        verbs=VALIDATE,
        help="also draw predicted against measured: .png, .pdf or .svg",
    ),
    Option(flag="--json", verbs=EVERY, help="one JSON object on stdout, SI units"),
    Option(flag="--quiet", verbs=EVERY, help="no progress and no warnings"),
)
"""Every option of every verb, in the order of help."""
