"""The flags of Megatron-LM that no row reads: what each of them changes.

Four classes (other_flags.toml): the model (the file is refused), a part that the prediction leaves
out (said on the screen), time or memory (said on the screen), neither (with the reason). A flag
that is neither there nor in the tables of rows is unknown, and shown as such.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache

from plan3d.simulator.base.errors import InputError

from ..launch_file import Launch
from ..shell.contents import is_auxiliary
from ..shell.flags import Flags
from ..tables import Effect, Table, UnreadGroup, unread_groups


@cache
def groups() -> tuple[UnreadGroup, ...]:
    """Every flag by its effect, without dashes in front."""
    return unread_groups(__package__, "other_flags.toml")


@cache
def _by_name() -> dict[str, tuple[UnreadGroup, tuple[str, ...]]]:
    """The group and the values without effect of every flag, with dashes."""
    out = {}
    for group in groups():
        for entry in group.keys.split():
            name, _, values = entry.partition("=")
            out[f"--{name}"] = (group, tuple(filter(None, values.split(","))))
    return out


@cache
def _prefixes() -> tuple[str, ...]:
    return tuple(name[:-1] for name in _by_name() if name.endswith("*"))


_NEGATED = re.compile(r"^--(?:no|disable)-")
_NONE: tuple[UnreadGroup | None, tuple[str, ...]] = (None, ())
WITHOUT_EFFECT = UnreadGroup(Effect.NONE, "defaults, or without effect here", "")


def group_of(name: str, values: Sequence[str] = ()) -> UnreadGroup | None:
    """The group of a flag with these values; None of an unknown flag. A switch that is on is turned
    off by --no-NAME or --disable-NAME (training/argument_utils.py, ArgumentGroupFactory), and the
    negation of one without effect has none.

    >>> group_of("--log-interval", ["10"]).what
    'logs and profiles'
    """
    known = _by_name()
    negated = _NEGATED.sub("--", name)
    spellings = (name, f"--no-{negated[2:]}") if name.startswith("--disable-") else (name,)
    prefixes = [f"{begin}*" for begin in _prefixes() if name.startswith(begin)]
    group, neutral = next((known[one] for one in (*spellings, *prefixes) if one in known), _NONE)
    if group is None and negated != name:
        positive = group_of(negated)
        group = positive if positive and positive.effect is Effect.NONE else None
    if group and group.effect is not Effect.NONE and len(values) == 1 and values[0] in neutral:
        return WITHOUT_EFFECT
    return group


def check_flags(flags: Flags, launch: Launch, table: Table, program: str) -> None:
    """Note the parts of the run that the prediction leaves out. Raises InputError for a program or
    a flag of another model than rows describe."""
    check_program(program, launch)
    rows = {row.key for row in table}
    parts: dict[str, list[str]] = {}
    for flag in flags.in_order:
        group = None if flag.name in rows else group_of(flag.name, flag.texts)
        if group and group.effect is Effect.MODEL:
            raise InputError(
                f"{launch.file}: line {flag.line}: {flag} is not modelled: {group.what}"
            )
        if group and group.effect is Effect.PART:
            parts.setdefault(group.what, []).append(f"line {flag.line}: {flag}")
    launch.left_out += [f"{what} ({', '.join(places)})" for what, places in parts.items()]


RECURRENT = "state-space or linear-attention layers"
PROGRAMS = {
    "bert": "BERT, an encoder",
    "yuan": "Yuan, whose attention has convolutions",
    "t5": "T5, an encoder and a decoder",
    **dict.fromkeys(("mamba", "hybrid", "griffin", "hyena"), RECURRENT),
    **dict.fromkeys(("ict", "retro", "realm", "biencoder", "retriever"), "a retriever"),
    **dict.fromkeys(("vision", "dino", "swin", "vit", "inpaint"), "a model for images"),
    **dict.fromkeys(("rl", "grpo", "ppo"), "reinforcement learning"),
    **dict.fromkeys(("wan", "flux", "dit", "diffusion"), "a diffusion model"),
}
"""Models of training programs that are not modelled, by a word of the program's name."""
VISION = frozenset(("vlm", "multimodal", "llava", "vl", "clip", "omni"))
"""Words of the names of programs that train a decoder behind a vision tower."""


def check_program(program: str, launch: Launch) -> None:
    """Raise InputError for a program that trains another model, or none, by the words of its name;
    note a vision tower."""
    path, _, name = program.rpartition("/")
    words = re.split(r"[^a-z0-9]+", name.removesuffix(".py").lower())
    if is_auxiliary(program):
        raise launch.refuse(f"{name} does not train a language model")
    for word in words:
        if word in PROGRAMS:
            raise launch.refuse(f"{name} is not modelled: {PROGRAMS[word]}")
    if {"tasks", "tools"} & {*path.split("/")}:
        raise launch.refuse(f"{program} trains no language model, or a head for a task")
    if VISION & {*words}:
        launch.left_out.append(f"a vision tower, which is left out ({name})")


def unread_effect(flag: str, values: Sequence[str], rows: Iterable[str]) -> tuple[bool, str]:
    """Whether a flag that no row took changes time or memory, and what it sets where it changes
    nothing; `rows`: the flags that rows read, which have no effect where they did not."""
    group = group_of(flag, values)
    if group is None:
        return False, WITHOUT_EFFECT.what if flag in rows else ""
    return group.effect is Effect.COST, "" if group.effect is Effect.COST else group.what
