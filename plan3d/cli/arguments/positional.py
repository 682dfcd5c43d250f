"""What is asked without flags: plan3d VERB MODEL CLUSTER GPUS.

Everything that is missing is asked for at once, as a command with suggested values. Names are
resolved by task_arguments.model_of and cluster_of, wherever they were given.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.files import exists, is_file, read_bytes
from plan3d.simulator.base.units import parse_length

from ..options.parser import integer
from ..options.table import ONE_PLAN, SPACES
from .launch_file_arguments import TAKES_SIZES, fill_sizes, is_launch_file


@dataclass(frozen=True)
class Place:
    """What one word without a flag may say."""

    name: str
    said: str
    suggested: str
    also: tuple[str, ...] = ()
    """Options that say it too, or ask for it."""


MODEL = Place("model", "a model (see 'plan3d models', or a config.json)", "llama-3.1-8b")
CLUSTER = Place("cluster", "a cluster (see 'plan3d clusters')", "h100-sxm")
GPUS = Place("gpus", "a number of GPUs", "64", ("nodes", "days", "budget_usd"))
FILE = Place("file", "a launch file", "pretrain.sh")
PLAN = Place("plan", "a plan", "tp=2 pp=2")
PLACES = {
    "search": (MODEL, CLUSTER, GPUS),
    "estimate": (MODEL, CLUSTER, GPUS),
    "timeline": (MODEL, CLUSTER, GPUS),
    "compare": (MODEL, CLUSTER, GPUS),
    "tune": (MODEL, CLUSTER, GPUS),
    "sweep": (MODEL, CLUSTER, GPUS),
    "explain": (MODEL, CLUSTER, GPUS),
    "fits": (MODEL, CLUSTER, GPUS),
    "textbook": (MODEL, CLUSTER, GPUS),
}
"""Words without a flag by verb; `explain` takes a launch file in place of a model."""
NEEDED = {
    "search": (MODEL, CLUSTER, GPUS),
    "estimate": (MODEL, CLUSTER, GPUS, PLAN),
    "timeline": (MODEL, CLUSTER, GPUS, PLAN),
    "compare": (MODEL, CLUSTER, GPUS),
    "tune": (MODEL, CLUSTER, GPUS),
    "explain": (MODEL, CLUSTER, GPUS, PLAN),
    "fits": (MODEL, CLUSTER),
    "textbook": (MODEL, CLUSTER, GPUS),
}
"""What a verb cannot do without."""
VARIES = {"sweep": (MODEL, CLUSTER, GPUS)}
"""The same of a verb that may vary it: asked for point by point."""
OF_MODELS = (".json", ".csv")
"""Endings of files that may describe a model."""
OF_FILES = (*OF_MODELS, ".sh", ".slurm", ".py", ".toml", ".yaml", ".yml", ".log", ".out", ".err")
"""Endings of all files that stand in place of a name."""


def placed(args: argparse.Namespace) -> None:
    """Put the words without a flag where their options stand; InputError for a file that is not
    there, for one word too many, for what is said twice, and for everything that is missing."""
    words, places = args.words, PLACES.get(args.verb, ())
    if args.verb in ONE_PLAN:
        from . import plan_arguments

        if words and args.plan is None and plan_arguments.is_handle(words[0]):
            args.plan, words = " ".join(words), []
        plan_arguments.fill_from_saved(args)
    if args.verb == "explain":
        args.file = None
        places = (FILE if _states_a_plan(words, args.plan) else MODEL, *places[1:])
    if args.verb in ONE_PLAN and args.plan is None:
        fields = [word for word in words if FIELD.match(word) and not exists(word)]
        words = [word for word in words if word not in fields]
        args.plan = " ".join(fields) or None
    if CLUSTER in places and GPUS in places and len(words) > (at := places.index(CLUSTER)):
        _check_one_kind(words[at])
        count, cluster = split_count(words[at])
        if count and len(words) > at + 1:
            raise InputError(f"{words[at]!r} and {words[at + 1]!r} both say the gpus: give one")
        words = [*words[:at], cluster, *([count] if count else words[at + 1 :])]
    if len(words) > len(places):
        names, extra = " ".join(place.name.upper() for place in places), words[len(places)]
        fixed = args.verb in SPACES and FIELD.match(extra)
        field = f"; a field of a plan: --fix {extra}" if fixed else ""
        raise InputError(f"unknown argument {extra!r}: after {args.verb} comes {names}{field}")
    for word in words:
        if word.endswith(OF_FILES) and not exists(word):
            read_bytes(Path(word))  # says why it cannot be read
    if places[:1] == (MODEL,) and words and _is_cluster(words[0]):
        names = " ".join(place.name.upper() for place in places)
        raise InputError(f"{words[0]!r} is a cluster: after {args.verb} comes {names}")
    for place, word in zip(places, words, strict=False):
        if getattr(args, place.name, None) is not None:
            raise InputError(f"{word!r} and --{place.name} both say the {place.name}: give one")
        read = _gpus(word) if place is GPUS else word
        setattr(args, place.name, read)
    if args.verb in TAKES_SIZES and args.model and is_launch_file(args.model):
        fill_sizes(args, args.model)
        if args.verb == "estimate" and args.plan is None:
            check_complete(args, {args.verb: (MODEL, CLUSTER, GPUS)})
            return
    if getattr(args, "widths", None) is not None:
        return
    if args.verb != "explain" or args.file is None:
        check_complete(args, NEEDED)


FIELD = re.compile(r"[A-Za-z][\w-]*=")
"""The start of a field of a plan."""
COUNTED = (
    re.compile(r"(?P<count>\d{1,7})\s*[xX*]\s*(?P<cluster>\S.*)"),
    re.compile(r"(?P<cluster>.*\S)\s*[xX*:]\s*(?P<count>\d{1,7})"),
)
"""A number of GPUs before their name, or after it: 8xH100, "2 x RTX 4090", h100:8."""


def _is_cluster(name: str) -> bool:
    from plan3d.simulator.hardware.profile_file import profile_names, profile_of

    return profile_of(name, profile_names()) in profile_names()


def split_count(word: str) -> tuple[str, str]:
    """The number of GPUs in a word, '' without one, and the name of their cluster."""
    for found in filter(None, (form.fullmatch(word) for form in COUNTED)):
        if _is_cluster(found["cluster"]):
            return found["count"], found["cluster"]
    return "", word


def _check_one_kind(word: str) -> None:
    """Refuse GPUs of several kinds in one word: 8xH100+8xA100."""
    each = [split_count(part.strip()) for part in re.split("[,+]", word)]
    if len(each) > 1 and all(count for count, _ in each):
        (count, cluster), (more, other), *_ = each
        raise InputError(
            f"{word!r} names GPUs of {len(each)} kinds; of two, as search and export have it: "
            f"{count}x{cluster} --second-pool {other}:{more}"
        )


def _gpus(word: str) -> int:
    """A number of GPUs, or 1k as a sequence has it."""
    return (
        parse_length(word) if word[-1:] in "kK" and word[:-1].isdigit() else integer(word, "GPUS")
    )


def _states_a_plan(words: list[str], plan: str | None) -> bool:
    """Whether the first word is a launch file: a file, and not that of a model beside --plan."""
    if not words or not is_file(words[0]):
        return False
    return plan is None or not words[0].endswith(OF_MODELS)


def check_complete(
    args: argparse.Namespace, needs: Mapping[str, tuple[Place, ...]] = VARIES
) -> None:
    """InputError that asks for everything that is missing."""
    needed = needs.get(args.verb, ())
    missing = [place for place in needed if not _is_given(args, place)]
    if not missing:
        return
    said = [place.said for place in missing]
    told = f"{', '.join(said[:-1])} and {said[-1]}" if len(said) > 1 else said[0]
    raise InputError(f"{args.verb} needs {told}: for example {_example(args, needed)}")


def _is_given(args: argparse.Namespace, place: Place) -> bool:
    names = (place.name, *place.also)
    return any(getattr(args, name, None) is not None for name in names)


def _example(args: argparse.Namespace, needed: tuple[Place, ...]) -> str:
    """The command with what was given, and suggestions for the rest."""
    words = ["plan3d", args.verb]
    few = getattr(args, "gpus", None) in (1, 2, 3)
    for place in needed:
        given = getattr(args, place.name, None)
        suggested = "recompute=full" if place is PLAN and few else place.suggested
        value = suggested if given is None else str(given)
        skipped = place is GPUS and _is_given(args, GPUS) and given is None
        words += [] if skipped else ["--plan", value] if place is PLAN else [value]
    return shlex.join(words)
