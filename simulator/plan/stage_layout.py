"""The layers of every stage as they are written: counts, or the layout string of Megatron-LM.

    11,12,12,11               layers of each stage
    Et*3|(tt|)*29|m|L         E embedding, t layer, m multi-token prediction, L loss, | next stage

A number after * repeats the letter or the bracket before it; commas only help the eye. Stages are
chunks in model order: chunk i runs on rank i mod pp.
Source: Megatron-LM, option pipeline-model-parallel-layout.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ..base.errors import InputError

_TOKEN = re.compile(r"([EtmL|])|\(|\)|\*([0-9]{1,9})")
LARGEST = 65536
"""Symbols of the longest layout."""


def read_layout(value: Any) -> tuple[int, ...]:
    """Layers of every stage from either form, or from a sequence of numbers."""
    words = _words(value)
    text = _layout_text(words)
    if text:
        return tuple(stage.count("t") for stage in _stages(text))
    try:
        layout = tuple(int(word) for word in words)
    except ValueError:
        shown = ",".join(words)
        raise InputError(
            f"layers_per_stage={shown} must be whole numbers, 11,12,12, or a layout, Ett|tt|ttL"
        ) from None
    if any(n < 0 for n in layout):
        raise InputError(f"layers_per_stage {layout} has a negative number of layers")
    return layout


def mtp_stage(value: Any) -> int:
    """The stage, from 1, in which a layout string has m; 0 for the last, or where it has none."""
    text = _layout_text(_words(value))
    if not text:
        return 0
    stages = _stages(text)
    return next((i for i, stage in enumerate(stages[:-1], 1) if "m" in stage), 0)


def _words(value: Any) -> list[str]:
    return [str(w).strip() for w in (value.split(",") if isinstance(value, str) else value)]


def _layout_text(words: list[str]) -> str:
    """The layout string of these words; '' when they are numbers."""
    return ",".join(words) if any(re.search(r"[A-Za-z|(]", word) for word in words) else ""


def _stages(text: str) -> list[str]:
    stages = _expand(text).split("|")
    _check_ends(text, stages)
    return stages


def _check_ends(text: str, stages: Sequence[str]) -> None:
    """Embedding, loss and multi-token prediction where a stage can hold them."""
    whole = "|".join(stages)
    if whole.count("E") != 1 or not stages[0].startswith("E"):
        raise InputError(f"layout {text}: one E must come first")
    if whole.count("L") != 1 or not stages[-1].endswith("L"):
        raise InputError(f"layout {text}: one L must come last")
    at = whole.find("m")
    if whole.count("m") > 1 or (at >= 0 and "t" in whole[at:]):
        raise InputError(f"layout {text}: one m at most, and no layer t may come after it")
    if not all(re.fullmatch(r"E?t*m?L?", stage) for stage in stages):
        raise InputError(f"layout {text}: a stage must be layers, then m, then L")


def _expand(text: str) -> str:
    """The layout without repetition: 'Et*2|L' -> 'Ett|L'."""
    groups: list[list[str]] = [[]]
    at, plain = 0, text.replace(",", "").replace(" ", "")
    while at < len(plain):
        token = _TOKEN.match(plain, at)
        if not token:
            raise InputError(f"layout {text}: {plain[at]!r} is none of E t m L | ( ) *N")
        at, symbol = token.end(), token[0]
        if symbol == "(":
            groups.append([])
        elif symbol == ")":
            if len(groups) == 1:
                raise InputError(f"layout {text}: a bracket is closed that was not opened")
            inner = "".join(groups.pop())
            groups[-1].append(inner)
        elif token[2]:
            _repeat(groups[-1], int(token[2]), text)
        else:
            groups[-1].append(symbol)
    if len(groups) > 1:
        raise InputError(f"layout {text}: a bracket is not closed")
    return "".join(groups[0])


def _repeat(group: list[str], times: int, text: str) -> None:
    if not group:
        raise InputError(f"layout {text}: *{times} has nothing before it to repeat")
    if not 1 <= times <= LARGEST or len(group[-1]) * times > LARGEST:
        raise InputError(f"layout {text}: *{times} must be 1 to {LARGEST} symbols")
    group[-1] *= times
