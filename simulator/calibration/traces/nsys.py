"""Reports of Nsight Systems, exported to SQLite, as the columns that traces of torch have.

    nsys export --type sqlite report.nsys-rep

Read are kernels, copies and fills of GPUs, the calls that launched them, and NVTX ranges: steps by
their numbers, passes and shapes where torch.autograd.profiler.emit_nvtx wrote them. A correlation
is of one process; the process stands in bits 24 to 47 of a global identifier.
Source: SQLite Export Schema Reference of Nsight Systems (tables, ENUM_CUDA_MEMCPY_OPER,
"Serialized process and thread identifiers"); PyTorch, torch/csrc/autograd/profiler_legacy.cpp.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from ...base.errors import InputError
from ...base.files import read_database
from .events import NO_COLLECTIVE, STEP, EventColumns, add_kernel, add_launch, keep_mark

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES = {"CUPTI_ACTIVITY_KIND_MEMCPY": "memcpy", "CUPTI_ACTIVITY_KIND_MEMSET": "memset"}
CALLS = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
RANGES, STRINGS, GPUS = "NVTX_EVENTS", "StringIds", "TARGET_INFO_GPU"
COPY_KINDS = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
"""Directions of copies by CUpti_ActivityMemcpyKind."""
_STEP = re.compile(r"(?:train\w*[ _-])?(?:iteration|iter|step|batch)[ _:#=-]*(\d{1,9})", re.I)
_EMITTED = re.compile(r"(.+?), (?:seq|op_id) = ")
"""Ranges of emit_nvtx: 'aten::mm, seq = 12, op_id = 34, sizes = [[8, 16], [16, 4]]'."""
MICROSECONDS = 1e-3
"""Of a nanosecond."""
PROCESS, MOST_CORRELATIONS = 24, 2.0**32


def read_report(path: Path) -> tuple[EventColumns, dict[str, Any], list[str]]:
    """Columns, what the head of a trace says, and what was left out. InputError for another file
    and one that breaks off."""
    columns, left_out = EventColumns(), []
    try:
        with closing(read_database(path)) as database:
            tables = _tables(database)
            if KERNELS not in tables:
                raise InputError(
                    f"{path}: holds no GPU kernels ({KERNELS}): profile with nsys --trace=cuda,nvtx"
                )
            strings = dict(_rows(database, tables, STRINGS, ("id", "value")))
            numbers = _numbers(database, tables)
            for table in (KERNELS, *COPIES):
                _add_activities(database, tables, table, strings, numbers, columns)
            for table in CALLS:
                for row in _rows(database, tables, table, ("start", "globalTid", "correlationId")):
                    _add_row(columns, _add_call, *row)
            names = ("start", "end", "text", "textId", "globalTid")
            for start, end, text, number, thread in _rows(database, tables, RANGES, names):
                name = text or strings.get(number)
                if name and end is not None:
                    _add_row(columns, _add_range, str(name), start, end, thread)
            graphs = sum(1 for _ in _rows(database, tables, GRAPHS, ("start",)))
            gpus = [*_rows(database, tables, GPUS, ("id", "name"))]
    except sqlite3.Error as error:
        raise InputError(f"{path}: cannot be read as SQLite ({error})") from None
    if graphs:
        left_out.append(
            f"{graphs:,} CUDA graphs without their kernels (nsys --cuda-graph-trace=node has them)"
        )
    return columns, {"deviceProperties": [{"id": i, "name": n} for i, n in gpus]}, left_out


def _tables(database: sqlite3.Connection) -> dict[str, set[str]]:
    """Columns of the tables that are read; a view is none."""
    names = (KERNELS, *COPIES, *CALLS, GRAPHS, RANGES, STRINGS, GPUS)
    present = {
        name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    }
    return {
        name: {row[1] for row in database.execute(f'PRAGMA table_info("{name}")')}
        for name in names
        if name in present
    }


def _rows(
    database: sqlite3.Connection,
    tables: dict[str, set[str]],
    table: str,
    columns: tuple[str, ...],
) -> Iterator[tuple[Any, ...]]:
    """Rows of a table, None for columns that this version of the export does not have; none where
    it has no such table."""
    if table not in tables:
        return
    cells = [f'"{name}"' if name in tables[table] else "NULL" for name in columns]
    yield from database.execute(f'SELECT {", ".join(cells)} FROM "{table}"')


def _add_row(columns: EventColumns, add: Any, *cells: Any) -> None:
    """Add one row; one that is not of numbers is counted."""
    columns.events += 1
    try:
        add(columns, *cells)
    except (TypeError, ValueError, OverflowError):
        columns.unreadable += 1


Numbers = dict[tuple[Any, Any], int]
"""The number of each process's device."""


def _numbers(database: sqlite3.Connection, tables: dict[str, set[str]]) -> Numbers:
    """The device's own, or one after the other where several processes see one of theirs as the
    same."""
    every = {*_rows(database, tables, KERNELS, ("globalPid", "deviceId"))}
    pairs = {
        (process, device)
        for process, device in every
        if isinstance(device, int) and isinstance(process, int | None)
    }
    ordered = sorted(pairs, key=lambda pair: (str(pair[1]), pair[0] or 0))
    if len({device for _, device in pairs}) == len(pairs):
        return {pair: int(pair[1]) for pair in ordered}
    return {pair: number for number, pair in enumerate(ordered)}


def _add_activities(
    database: sqlite3.Connection,
    tables: dict[str, set[str]],
    table: str,
    strings: dict[Any, Any],
    numbers: Numbers,
    columns: EventColumns,
) -> None:
    """What GPUs ran, by the rows of one table; a device without kernels is left out."""
    names = ("globalPid", "deviceId", "start", "end", "streamId", "correlationId")
    about = ("demangledName", "shortName") if table == KERNELS else ("copyKind",)
    category = COPIES.get(table, "kernel")
    for process, device, *cells, kind in (
        (*row[:6], row[6:]) for row in _rows(database, tables, table, (*names, *about))
    ):
        name = next((strings[at] for at in kind if at in strings), None)
        if category != "kernel":
            name = f"{category} {COPY_KINDS.get(kind[0], '')}".strip()
        number = numbers.get((process, device))
        if name is None:
            columns.unreadable += 1
        elif number is not None:
            _add_row(columns, _add_activity, str(name), category, number, process, *cells)


def _add_activity(
    columns: EventColumns,
    name: str,
    category: str,
    number: int,
    process: int | None,
    start: int,
    end: int,
    stream: int,
    correlation: int | None,
) -> None:
    """One event of a GPU."""
    add_kernel(
        columns,
        (name, category, NO_COLLECTIVE),
        device=number,
        start=MICROSECONDS * start,
        length=MICROSECONDS * (end - start),
        stream=float(stream),
        correlation=_correlation(correlation, process),
    )


def _correlation(number: int | None, identifier: int | None) -> float:
    """A number that one process alone has; -1 where the row has none."""
    if number is None:
        return -1.0
    return (int(identifier or 0) >> PROCESS) % 2**20 * MOST_CORRELATIONS + float(number)


def _add_call(columns: EventColumns, start: int, thread: int, correlation: int | None) -> None:
    """A call that may have launched something."""
    if correlation is not None:
        number = _correlation(correlation, thread)
        add_launch(columns, number, MICROSECONDS * start, ("thread", 0, thread))


def _add_range(columns: EventColumns, name: str, start: int, end: int, thread: int) -> None:
    """A step, a pass or the loading of data."""
    emitted, step = _EMITTED.match(name), _STEP.fullmatch(name)
    mark = {
        "ts": MICROSECONDS * start,
        "dur": MICROSECONDS * (end - start),
        "pid": 0,
        "tid": thread,
    }
    title = f"{STEP}{step.group(1)}" if step else emitted.group(1) if emitted else name
    keep_mark(mark, title, "user_annotation", columns)
