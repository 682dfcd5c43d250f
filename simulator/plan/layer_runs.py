"""Runs of layers with a strategy of their own: the stages of a plan that is not uniform.

    11:recompute=full+1|12:tp=4,dp=16|12*6

Stages are divided by |, the runs of a stage by +. A run is a number of layers and what differs
from the plan's own fields; *N repeats a stage. With virtual stages every chunk is a stage, and
rank r holds stages r, r + pp, ... Arrays are [plan, run]; runs are in model order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError, did_you_mean
from ..base.units import is_whole
from .fields import BY_RUN

Table = NDArray[np.int64]
Code = Callable[[str, Any], int]
"""The integer of a field's value, as values.code gives it."""

ABSENT = -1
"""Stage of what pads a table; also the value of a field that is left to the plan."""
LARGEST = 4096
"""Stages or runs of the longest plan."""
_RUN = re.compile(r"([0-9]{1,9})(?::([^+|*]*))?")
_COLUMNS = ("stage", "layers", *BY_RUN)


@dataclass(frozen=True, eq=False)
class Segments:
    """Runs of layers of every plan of a table [plan, run]."""

    stage: Table
    """Pipeline stage that holds the run, a chunk where there are virtual ones; ABSENT where it pads
    the table."""
    layers: Table
    tp: Table
    dp: Table
    zero: Table
    recompute: Table

    @property
    def present(self) -> NDArray[np.bool_]:
        """Which runs are not padding."""
        out: NDArray[np.bool_] = self.stage != ABSENT
        return out

    def ranks(self, pp: Any) -> Table:
        """Pipeline rank that holds each run: stages of a pipeline of `pp` ranks are placed in turn;
        ABSENT where it pads the table."""
        held = self.stage % np.reshape(pp, (-1, 1))
        return np.where(self.present, held, ABSENT)

    def take(self, rows: Any) -> Segments:
        """The chosen plans."""
        return Segments(*(getattr(self, name)[rows] for name in _COLUMNS))

    def filled(self, **fields: Table) -> Segments:
        """The same runs with some fields replaced."""
        return Segments(*(fields.get(name, getattr(self, name)) for name in _COLUMNS))

    def stages(self, row: int = 0) -> Iterator[list[dict[str, int]]]:
        """The runs of each stage of one plan: layers, and the fields that it states."""
        for stage in range(int(self.stage[row].max()) + 1):
            runs = np.flatnonzero(self.stage[row] == stage)
            yield [self._run(row, int(i)) for i in runs]

    def _run(self, row: int, i: int) -> dict[str, int]:
        stated = {name: int(getattr(self, name)[row, i]) for name in BY_RUN}
        fields = {name: value for name, value in stated.items() if value != ABSENT}
        return {"layers": int(self.layers[row, i]), **fields}


def of_stages(stages: list[list[dict[str, int]]]) -> Segments:
    """One plan's table from the runs of its stages; a run may leave any field but layers out."""
    rows = [
        [at, *(run.get(name, ABSENT) for name in _COLUMNS[1:])]
        for at, stage in enumerate(stages)
        for run in stage
    ]
    columns = np.array(rows, np.int64).T[:, None, :]
    return Segments(*columns)


def concat(tables: list[Segments]) -> Segments:
    """One table of several, padded to the most runs."""
    width = max(t.stage.shape[1] for t in tables)
    columns = (
        np.concatenate([_padded(getattr(t, name), width) for t in tables]) for name in _COLUMNS
    )
    return Segments(*columns)


def _padded(column: Table, width: int) -> Table:
    missing = ((0, 0), (0, width - column.shape[1]))
    return np.pad(column, missing, constant_values=ABSENT)


def read_segments(value: Any, code: Code) -> Segments | None:
    """Segments from their text, from lists of runs by stage (JSON), or as they are."""
    if value is None or isinstance(value, Segments):
        return value
    if isinstance(value, str):
        return of_stages(_stages_of_text(value, code))
    return of_stages(_stages_of_lists(value, code))


def _stages_of_text(text: str, code: Code) -> list[list[dict[str, int]]]:
    stages: list[list[dict[str, int]]] = []
    for part in text.split("|"):
        stage, star, times = part.partition("*")
        if (star and not is_whole(times)) or len(stages) > LARGEST:
            raise InputError(f"segments {text}: *{times} must repeat a stage 1 to {LARGEST} times")
        runs = [_run_of_text(run, text, code) for run in stage.split("+")]
        stages += [runs] * min(int(times or 1), LARGEST + 1)
    if len(stages) > LARGEST:
        raise InputError(f"segments: at most {LARGEST} stages")
    return stages


def _run_of_text(run: str, text: str, code: Code) -> dict[str, int]:
    found = _RUN.fullmatch(run.strip())
    if not found:
        raise InputError(f"segments {text}: {run!r} must be LAYERS or LAYERS:field=value,...")
    fields = {"layers": int(found[1])}
    for word in (found[2] or "").split(","):
        name, equals, value = word.partition("=")
        if word and not equals:
            raise InputError(f"segments {text}: {word!r} must be field=value")
        if word:
            fields[name.strip()] = _value(name.strip(), value, code)
    return fields


def _stages_of_lists(stages: Any, code: Code) -> list[list[dict[str, int]]]:
    try:
        return [[_run_of_fields(run, code) for run in stage] for stage in stages]
    except (TypeError, KeyError, AttributeError):
        raise InputError(
            "segments must be a list of stages, each a list of runs such as {'layers': 12}"
        ) from None


def _run_of_fields(run: dict[str, Any], code: Code) -> dict[str, int]:
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


def text_of(segments: Segments, spell: Callable[[str, int], Any], row: int = 0) -> str:
    """One plan's runs as read_segments reads them; equal neighbouring stages are one."""
    stages = ["+".join(_text_of_run(run, spell) for run in s) for s in segments.stages(row)]
    out: list[tuple[str, int]] = []
    for stage in stages:
        if out and out[-1][0] == stage:
            out[-1] = (stage, out[-1][1] + 1)
        else:
            out.append((stage, 1))
    return "|".join(stage if times == 1 else f"{stage}*{times}" for stage, times in out)


def _text_of_run(run: dict[str, int], spell: Callable[[str, int], Any]) -> str:
    fields = ",".join(f"{name}={spell(name, run[name])}" for name in BY_RUN if name in run)
    return f"{run['layers']}:{fields}" if fields else str(run["layers"])
