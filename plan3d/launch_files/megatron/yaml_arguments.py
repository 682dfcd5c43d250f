"""Arguments of Megatron-LM in YAML: MODEL_ARGS, from which a script makes the flags of a command.

Source: Megatron-LM, tests/functional_tests/shell_test_utils/_run_training.sh, and Megatron MoE
Model Zoo, sbatch_benchmarking.sh, as of 2026-04: `true` is a flag alone, `false` is left out,
[a b] are several words, and variables are those of the shell around.
"""

from __future__ import annotations

import re
from typing import Any

from plan3d.simulator.base.documents import parse_yaml

from ..launch_file import NO_OPTIONS, Launch, ReaderOptions
from ..shell.words import quote
from .launch import read as read_script

PROGRAM, SECTION = "PROGRAM", "MODEL_ARGS"
NO_TRAINING = ("inference", "rl")
"""Modes that are no training on given tokens."""
_LIST = re.compile(r"\[([^\[\]]*)\]")
_SPECIAL = re.compile(r'(["\\`])')


def read(text: str, file: str, options: ReaderOptions = NO_OPTIONS) -> Launch:
    """The launch of a file with the program that the user names, as GPT, BERT and vision models
    have the same flags. Raises InputError naming the line that is wrong."""
    content, launch = parse_yaml(text, file), Launch(file, "megatron")
    stated = content.get(SECTION) if isinstance(content, dict) else None
    if not isinstance(stated, dict) or not all(str(key).startswith("--") for key in stated):
        raise launch.refuse(f"has a {SECTION} that is no object of flags (--name: value)")
    mode = content.get("MODE") if isinstance(content, dict) else None
    if mode in NO_TRAINING:
        raise launch.refuse(f"has MODE: {mode}, which is no training on given tokens")
    if PROGRAM not in options.inputs.values:
        raise launch.refuse(
            f"has the flags of a program that it does not name: --set {PROGRAM}=pretrain_gpt.py, "
            "where they are that one's"
        )
    launch = read_script(_as_script(text, stated), file, options)
    launch.left_out.append("flags that are added where this file is used, which it does not show")
    return launch


def _as_script(text: str, stated: dict[str, Any]) -> str:
    """A command with these flags, each in its line of the file."""
    lines = [f"python ${PROGRAM}", *("" for _ in text.splitlines()[1:])]
    keys = [line.partition(":")[0].strip(" '\"") for line in text.splitlines()]
    places = dict(zip(keys, range(len(keys)), strict=True))
    for key, value in stated.items():
        if value is not False and value != "":
            lines[places.get(key, 0)] += f" {key} {_words(value)}"
    return " \\\n".join(lines) + "\n"


def _words(value: Any) -> str:
    """A value as words of a command, in which variables stay."""
    if value is True or value is None:
        return ""
    if isinstance(value, list):
        return " ".join(map(_words, value))
    text = str(value)
    listed = _LIST.fullmatch(text)
    if listed:
        return listed[1]
    return '"' + _SPECIAL.sub(r"\\\1", text) + '"' if "$" in text else quote(text)
