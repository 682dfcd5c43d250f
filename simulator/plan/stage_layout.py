"""Layers of the stages: counts, layout strings of Megatron-LM, runs with own strategies.

A layout says how many layers every stage has (Megatron-LM, pipeline-model-parallel-layout):

    11,12,12,11               layers of each stage
    Et*3|(tt|)*29|m|L         E embedding, t layer, m multi-token prediction, L loss, | next stage

A number after * repeats the letter or the bracket before it; commas have no meaning. Segments are
runs of layers with a strategy of their own:

    11:recompute=full+1|12:tp=4,dp=16|12*6

Stages are divided by |, the runs of a stage by +. A run is a number of layers and what differs
from the plan's own fields; *N repeats a stage. Stages are chunks in model order: with virtual
stages rank r holds stages r, r + pp, ... Arrays are [plan, run]; runs are in model order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError, did_you_mean
from ..base.units import is_whole
from .field_values import AUTO
from .fields import BY_RUN

_TOKEN = re.compile(r"([EtmL|])|\(|\)|\*([0-9]{1,9})")
LONGEST_LAYOUT = 65536
"""Symbols of the longest layout."""


def read_layout(value: Any) -> tuple[int, ...]:
    """Layers of every stage from either form, or from a sequence of numbers."""
    words = _words(value)
    text = _layout_text(words)
    if text:
        return tuple(stage.count("t") for stage in _layout_stages(text))
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
    stages = _layout_stages(text)
    return next((i for i, stage in enumerate(stages[:-1], 1) if "m" in stage), 0)


def _words(value: Any) -> list[str]:
    return [str(w).strip() for w in (value.split(",") if isinstance(value, str) else value)]


def _layout_text(words: list[str]) -> str:
    """The layout string of these words; '' when they are numbers."""
    return ",".join(words) if any(re.search(r"[A-Za-z|(]", word) for word in words) else ""


def _layout_stages(text: str) -> list[str]:
    stages = _expand(text).split("|")
    _check_ends(text, stages)
    return stages


def _check_ends(text: str, stages: Sequence[str]) -> None:
    """Embedding, loss and multi-token prediction where a stage can hold them."""
    joined = "|".join(stages)
    if joined.count("E") != 1 or not stages[0].startswith("E"):
        raise InputError(f"layout {text}: one E must come first")
    if joined.count("L") != 1 or not stages[-1].endswith("L"):
        raise InputError(f"layout {text}: one L must come last")
    at = joined.find("m")
    if joined.count("m") > 1 or (at >= 0 and "t" in joined[at:]):
        raise InputError(f"layout {text}: one m at most, and no layer t may come after it")
    if not all(re.fullmatch(r"E?t*m?L?", stage) for stage in stages):
        raise InputError(f"layout {text}: a stage must be layers, then m, then L")


def _expand(text: str) -> str:
    """The layout without repetition: 'Et*2|L' -> 'Ett|L'."""
    groups: list[list[str]] = [[]]
    at, symbols = 0, text.replace(",", "").replace(" ", "")
    while at < len(symbols):
        token = _TOKEN.match(symbols, at)
        if not token:
            raise InputError(f"layout {text}: {symbols[at]!r} is none of E t m L | ( ) *N")
        at, symbol = token.end(), token[0]
        if symbol == "(":
            groups.append([])
        elif symbol == ")":
            if len(groups) == 1:
                raise InputError(f"layout {text}: a bracket is closed that was not opened")
            inner = "".join(groups.pop())
            groups[-1].append(inner)
        elif token[2]:
            _check_repetition(groups[-1], int(token[2]), text)
            groups[-1][-1] *= int(token[2])
        else:
            groups[-1].append(symbol)
    if len(groups) > 1:
        raise InputError(f"layout {text}: a bracket is not closed")
    return "".join(groups[0])


def _check_repetition(group: Sequence[str], times: int, text: str) -> None:
    if not group:
        raise InputError(f"layout {text}: *{times} has nothing before it to repeat")
    if not 1 <= times <= LONGEST_LAYOUT or len(group[-1]) * times > LONGEST_LAYOUT:
        raise InputError(f"layout {text}: *{times} must be 1 to {LONGEST_LAYOUT} symbols")


Table = NDArray[np.int64]
Code = Callable[[str, Any], int]
"""The integer of a field's value, as fields.code returns it."""

PADDING = -1
"""Stage of the runs that pad a table."""
MOST_STAGES = 4096
"""Stages or runs of the longest plan."""
_RUN = re.compile(r"([0-9]{1,9})(?::([^+|*]*))?")
_COLUMNS = ("stage", "layers", *BY_RUN)


@dataclass(frozen=True, eq=False)
class Segments:
    """Runs of layers of every plan of a table [plan, run]."""

    stage: Table
    """Pipeline stage (a chunk where there are virtual stages) of the run; PADDING where there is
    none."""
    layers: Table
    tp: Table
    dp: Table
    zero: Table
    recompute: Table

    @property
    def is_run(self) -> NDArray[np.bool_]:
        """Which runs are not padding."""
        out: NDArray[np.bool_] = self.stage != PADDING
        return out

    def ranks(self, pp: Any) -> Table:
        """Pipeline rank of each run, stage modulo `pp`; PADDING where there is none."""
        return np.where(self.is_run, self.stage % np.reshape(pp, (-1, 1)), PADDING)

    def take(self, rows: Any) -> Segments:
        """The chosen plans."""
        return Segments(*(getattr(self, name)[rows] for name in _COLUMNS))

    def with_fields(self, **fields: Table) -> Segments:
        """The same runs with some fields replaced."""
        return Segments(*(fields.get(name, getattr(self, name)) for name in _COLUMNS))

    def stages(self, row: int = 0) -> Iterator[list[dict[str, int]]]:
        """The runs of each stage of one plan: layers, and the fields that it states."""
        for stage in range(int(self.stage[row].max()) + 1):
            runs = np.flatnonzero(self.stage[row] == stage)
            out = []
            for i in runs:
                fields = {name: int(getattr(self, name)[row, i]) for name in BY_RUN}
                stated = {name: value for name, value in fields.items() if value != AUTO}
                out.append({"layers": int(self.layers[row, i]), **stated})
            yield out


def segments_of_stages(stages: list[list[dict[str, int]]]) -> Segments:
    """One plan's table from the runs of its stages; a run may leave any field but layers out."""
    rows = [
        [at, *(run.get(name, AUTO) for name in _COLUMNS[1:])]
        for at, stage in enumerate(stages)
        for run in stage
    ]
    columns = np.array(rows, np.int64).T[:, None, :]
    return Segments(*columns)


def concat_segments(tables: list[Segments]) -> Segments:
    """One table of several, padded to the most runs."""
    shape = sum(t.stage.shape[0] for t in tables), max(t.stage.shape[1] for t in tables)
    columns = []
    for name in _COLUMNS:
        joined, start = np.full(shape, PADDING, np.int64), 0
        for column in (getattr(table, name) for table in tables):
            rows, runs = column.shape
            joined[start : start + rows, :runs] = column
            start += rows
        columns.append(joined)
    return Segments(*columns)


def read_segments(value: Any, code: Code) -> Segments:
    """Segments from their text, from lists of runs by stage (JSON), or as they are."""
    if isinstance(value, Segments):
        return value
    if isinstance(value, str):
        return segments_of_stages(_stages_of_text(value, code))
    try:
        stages = [[_run_of_fields(run, code) for run in stage] for stage in value]
    except (TypeError, KeyError, AttributeError):
        raise InputError(
            "segments must be a list of stages, each a list of runs such as {'layers': 12}"
        ) from None
    return segments_of_stages(stages)


def _stages_of_text(text: str, code: Code) -> list[list[dict[str, int]]]:
    stages: list[list[dict[str, int]]] = []
    for part in text.split("|"):
        stage, star, times = part.partition("*")
        if (star and not is_whole(times)) or len(stages) > MOST_STAGES:
            limit = f"must repeat a stage 1 to {MOST_STAGES} times"
            raise InputError(f"segments {text}: *{times} {limit}")
        runs = [_run_of_text(run, text, code) for run in stage.split("+")]
        stages += [runs] * min(int(times or 1), MOST_STAGES + 1)
    if len(stages) > MOST_STAGES:
        raise InputError(f"segments: at most {MOST_STAGES} stages")
    return stages


def _run_of_text(run: str, text: str, code: Code) -> dict[str, int]:
    match = _RUN.fullmatch(run.strip())
    if not match:
        raise InputError(f"segments {text}: {run!r} must be LAYERS or LAYERS:field=value,...")
    fields = {"layers": int(match[1])}
    for word in (match[2] or "").split(","):
        name, equals, value = word.partition("=")
        if word and not equals:
            raise InputError(f"segments {text}: {word!r} must be field=value")
        if word:
            fields[name.strip()] = _value(name.strip(), value, code)
    return fields


def _run_of_fields(run: Mapping[str, Any], code: Code) -> dict[str, int]:
    layers = run["layers"]
    if isinstance(layers, bool) or not isinstance(layers, int) or not 0 <= layers < 10**9:
        raise InputError(f"segments: layers {layers!r} must be a whole number")
    others = {name: _value(name, value, code) for name, value in run.items() if name != "layers"}
    return {"layers": layers, **others}


def _value(name: str, value: Any, code: Code) -> int:
    if name not in BY_RUN:
        raise InputError(
            f"segments cannot give {name!r} by run{did_you_mean(name, BY_RUN)}; "
            f"they can give {', '.join(BY_RUN)}"
        )
    return code(name, value)


def format_segments(segments: Segments, spell: Callable[[str, int], Any], row: int = 0) -> str:
    """One plan's runs as read_segments reads them; equal neighbouring stages are one."""
    out: list[tuple[str, int]] = []
    for runs in segments.stages(row):
        stage = "+".join(_format_run(run, spell) for run in runs)
        if out and out[-1][0] == stage:
            out[-1] = (stage, out[-1][1] + 1)
        else:
            out.append((stage, 1))
    return "|".join(stage if times == 1 else f"{stage}*{times}" for stage, times in out)


def _format_run(run: dict[str, int], spell: Callable[[str, int], Any]) -> str:
    fields = ",".join(f"{name}={spell(name, run[name])}" for name in BY_RUN if name in run)
    return f"{run['layers']}:{fields}" if fields else str(run["layers"])
