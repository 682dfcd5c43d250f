"""Traces of the torch profiler (Kineto, Chrome's format) and of Nsight Systems as columns: what
each GPU ran, and what its host launched when.

Files are read piece by piece. Times are seconds. A file of several GPUs gives one rank each.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...base.arrays import Index, Value
from ...base.documents import JsonStream
from ...base.errors import InputError
from ...base.files import read_pieces
from ...base.printable import one_line
from .events import NO_COLLECTIVE, Collective, EventColumns, keep_event
from .intervals import Intervals, lies_within, union
from .nsys import read_report

REPORTS = (".sqlite",)
TRACES = (".json", ".json.gz", ".trace", ".trace.gz", *REPORTS)
"""Endings of the traces of a folder."""
PROFILE_WITH_TORCH = "profile with torch.profiler"
OTHER_PROFILES = {
    **dict.fromkeys(
        (".nsys-rep", ".qdrep"), ("Nsight Systems", "convert it: nsys export --type sqlite {}")
    ),
    **dict.fromkeys(
        (".pickle", ".pkl"), ("pickle, a format that runs what it holds", PROFILE_WITH_TORCH)
    ),
    **dict.fromkeys((".rpd", ".pftrace"), ("ROCm's own profilers", PROFILE_WITH_TORCH)),
}
"""Endings of profiles that are not read: what writes them, and what to do."""
MOST_RANKS = 1024
"""Files of one question."""
MICROSECOND = 1e-6
_RANK = re.compile(r"rank[-_ ]?(\d{1,7})(?!\d)", re.I)

FORWARD_PASS, BACKWARD_PASS, RECOMPUTE_PASS, UPDATE_PASS, UNKNOWN_PASS = range(5)
"""What launched a kernel."""


class Kernel(NamedTuple):
    """A kind of kernel: one name with one metadata."""

    name: str
    category: str
    """kernel, memcpy or memset."""
    collective: Collective
    shapes: str = ""
    """Dimensions of the tensors of the operator that launched it: '[[4096, 1024], [1024, 512]]'."""
    operator: str = ""


@dataclass(frozen=True, eq=False)
class RankTrace:
    """What one GPU ran, in the order of starts."""

    source: str
    """Name of the file."""
    rank: int | None
    ranks: int | None
    """Ranks of the job, where the file says."""
    gpu: str
    kinds: tuple[Kernel, ...]
    start: Value
    end: Value
    stream: Value
    kind: Index
    """Index into `kinds` [event]."""
    launched: Value
    """When the host launched it; nan where the file does not say, -inf for what was launched before
    it was recorded [event]."""
    phase: Value
    """One of FORWARD_PASS .. UNKNOWN_PASS [event]."""
    steps: tuple[tuple[str, float, float], ...]
    """Name, start and end of every marked step."""
    marked_by_host: bool
    """Whether steps are marked where the host is, which runs ahead of its GPU."""
    loading: Intervals
    """When the host loaded data."""
    left_out: tuple[str, ...] = ()
    """What was left out, in words."""
    is_whole: bool = True
    """Whether nothing that ran is missing in what was read."""
    allocated: float = 0.0
    """Bytes of tensors at the peak; 0 where memory was not profiled."""
    reserved: float = 0.0
    """Bytes that PyTorch's allocator held at its peak."""


def trace_files(paths: Iterable[str]) -> list[Path]:
    """The files of traces and of folders of traces. InputError where a folder holds none."""
    out: list[Path] = []
    for name in paths:
        path = Path(name)
        if path.is_dir():
            inside = sorted(one for one in path.iterdir() if one.name.endswith(TRACES))
            if not inside:
                raise InputError(f"{name}: the folder holds no trace ({', '.join(TRACES)})")
            out += inside
        else:
            out.append(path)
    if len(out) > MOST_RANKS:
        raise InputError(f"{len(out):,} traces; at most {MOST_RANKS:,} are read together")
    return out


def read_traces(paths: Iterable[str]) -> list[RankTrace]:
    """The ranks of traces, in their order. InputError for what is no trace and for two of one
    rank."""
    out = [rank for path in trace_files(paths) for rank in read_trace(path)]
    out.sort(key=lambda one: -1 if one.rank is None else one.rank)
    known: dict[int | None, RankTrace] = {}
    for one in out:
        if len(out) > 1 and one.rank in known:
            other, what = known[one.rank].source, f"rank {one.rank}"
            if one.rank is None:
                what = "a rank that the file does not name"
            raise InputError(f"{one.source} and {other} are both of {what}: give one")
        known[one.rank] = one
    return out


def read_trace(path: Path) -> list[RankTrace]:
    """The ranks of one trace, one for each GPU that ran kernels. InputError where none did."""
    for ending, (writer, remedy) in OTHER_PROFILES.items():
        if path.name.endswith(ending):
            raise InputError(f"{path}: is of {writer}, not read: {remedy.format(path.name)}")
    columns, head, left_out = (
        read_report(path) if path.name.endswith(REPORTS) else _read_events(path)
    )
    if not columns.gpu:
        raise InputError(f"{path}: {'; '.join([_nothing(columns), *left_out])}")
    if columns.negative:
        left_out.append(f"{columns.negative:,} events of negative or endless length")
    if columns.unreadable:
        left_out.append(f"{columns.unreadable:,} events without name or time")
    return [
        _rank_trace(path.name, device, columns, head, left_out) for device in sorted(columns.gpu)
    ]


def _read_events(path: Path) -> tuple[EventColumns, dict[str, Any], list[str]]:
    """Columns, head and what was left out of a file of Chrome's format."""
    stream, columns = JsonStream(read_pieces(path), str(path), "traceEvents"), EventColumns()
    for event in stream:
        try:
            keep_event(event, columns)
        except (TypeError, ValueError, AttributeError, OverflowError, KeyError):
            columns.unreadable += 1
    return columns, stream.head, [stream.broken] if stream.broken else []


def _nothing(columns: EventColumns) -> str:
    if not columns.events:
        return "the trace holds no events"
    return (
        f"the trace holds no GPU kernels among {columns.events:,} events: profile with "
        "ProfilerActivity.CUDA"
    )


def _rank_trace(
    source: str,
    device: int,
    columns: EventColumns,
    head: Mapping[str, Any],
    left_out: list[str],
) -> RankTrace:
    """One GPU's columns: sorted, without duplicates, with launches, operators and passes."""
    is_whole = not left_out
    start, length, stream, kind, correlation, external = (
        np.frombuffer(cells, float) for cells in columns.gpu[device]
    )
    order = np.lexsort((kind, stream, length, start))
    rows = np.stack([start, length, stream, kind])[:, order]
    new = np.ones(order.size, bool)
    new[1:] = (rows[:, 1:] != rows[:, :-1]).any(axis=0)
    if not new.all():
        left_out = [*left_out, f"{int((~new).sum()):,} events that stand twice"]
    order = order[new]
    launched, thread = _launches(correlation[order], columns.launches)
    launched = _before_recording(launched, stream[order])
    operator = _matches(external[order], *columns.operators)
    keys = list(columns.names)
    kinds, which = _kinds(keys, kind[order].astype(int), operator)
    name, ranks, gpu = _identity(head, source, device, len(columns.gpu))
    return RankTrace(
        source=source,
        rank=name,
        ranks=ranks,
        gpu=gpu,
        kinds=kinds,
        start=start[order] * MICROSECOND,
        end=(start + length)[order] * MICROSECOND,
        stream=stream[order],
        kind=which,
        launched=launched * MICROSECOND,
        phase=_phases(launched, thread, columns.phases, columns.recorded),
        steps=_steps(columns.steps),
        marked_by_host=any(name != "gpu_user_annotation" for name in columns.steps),
        loading=_loading(columns.phases.get("loading", [])),
        left_out=tuple(left_out),
        is_whole=is_whole,
        allocated=columns.memory.get(device, (0.0, 0.0))[0],
        reserved=columns.memory.get(device, (0.0, 0.0))[1],
    )


def _matches(keys: Value, of: Iterable[float], values: Iterable[float]) -> Value:
    """The value of each key by a table of keys and values, the last of equal ones; -1 where it has
    none."""
    table = np.asarray(of, float)
    if not table.size:
        return np.full(keys.size, -1.0)
    order = np.argsort(table, kind="stable")
    at = np.searchsorted(table[order], keys, side="right") - 1
    row = order[np.maximum(at, 0)]
    out: Value = np.where((at >= 0) & (table[row] == keys), np.asarray(values, float)[row], -1.0)
    return out


def _launches(correlation: Value, launches: tuple[array[float], ...]) -> tuple[Value, Value]:
    """When, in microseconds, and from which thread each event was launched; nan and -1 where the
    file does not say."""
    numbers, times, threads = launches
    thread = np.where(correlation >= 0, _matches(correlation, numbers, threads), -1.0)
    when = np.where(thread >= 0, _matches(correlation, numbers, times), np.nan)
    return when, thread


def _before_recording(launched: Value, stream: Value) -> Value:
    """-inf for the first events of a stream up to one whose launch is known: streams run what they
    are given in its order."""
    out = launched.copy()
    for one in np.unique(stream):
        own = np.flatnonzero(stream == one)
        known = np.flatnonzero(~np.isnan(launched[own]))
        if known.size:
            out[own[: known[0]]] = -np.inf
    return out


def _kinds(keys: list[Any], kind: Value, operator: Value) -> tuple[tuple[Kernel, ...], Index]:
    """Kinds of kernels with what their operators say of them, and each event's index."""
    pairs, which = np.unique(np.stack([kind, operator.astype(int)]), axis=1, return_inverse=True)
    kinds = []
    for at, by in pairs.T.tolist():
        name, category, collective = keys[at]
        title, shapes, of_operator = ("", "", NO_COLLECTIVE) if by < 0 else keys[by][1:]
        known = collective if collective is not NO_COLLECTIVE else of_operator
        kinds.append(Kernel(name, category, known, shapes, title))
    return tuple(kinds), which.ravel()


def _identity(
    head: Mapping[str, Any], source: str, device: int, devices: int
) -> tuple[int | None, int | None, str]:
    """Rank, ranks and GPU as the head of a file says them, the rank else as its name does; the
    number of the device where it holds several."""
    about, properties = head.get("distributedInfo"), head.get("deviceProperties")
    about = about if isinstance(about, dict) else {}
    rank, ranks = about.get("rank"), about.get("world_size")
    entries = [one for one in properties or [] if isinstance(one, dict)] if properties else []
    mine = [one for one in entries if one.get("id") == device] or entries
    gpu = one_line(mine[0].get("name", "")) if mine else ""
    if devices > 1:
        return device, None, gpu
    if not isinstance(rank, int):
        named = _RANK.search(source)
        rank = int(named.group(1)) if named else None
    return rank, ranks if isinstance(ranks, int) else None, gpu


def _phases(
    launched: Value,
    thread: Value,
    phases: Mapping[str, list[tuple[float, float, float]]],
    recorded: tuple[array[float], ...],
) -> Value:
    """The pass of each event: the innermost that its launch lies in, on the thread that launched
    it. What records a graph inside a backward pass is run again."""
    out = np.where(np.isfinite(launched), FORWARD_PASS, UNKNOWN_PASS)
    codes = {"recompute": RECOMPUTE_PASS, "backward": BACKWARD_PASS, "update": UPDATE_PASS}
    for name, code in codes.items():
        rows = np.array(phases.get(name, []), float).reshape(-1, 3)
        for one in np.unique(rows[:, 2]):
            mine = rows[rows[:, 2] == one]
            covered = lies_within(launched, union(mine[:, 0], mine[:, 1])) & (thread == one)
            out = np.where(covered, code, out)
    start, end, of = (np.asarray(column, float) for column in recorded)
    backward = (out == BACKWARD_PASS) | (out == RECOMPUTE_PASS)
    for one in np.unique(thread[backward]):
        again = lies_within(launched, union(start[of == one], end[of == one]))
        out = np.where(backward & (thread == one) & again, RECOMPUTE_PASS, out)
    return out


def _steps(
    marks: Mapping[str, Mapping[str, tuple[float, float]]],
) -> tuple[tuple[str, float, float], ...]:
    """Steps as the host marked them, in the order of their starts."""
    of_host = [marks[name] for name in marks if name != "gpu_user_annotation"]
    chosen = of_host[0] if of_host else next(iter(marks.values()), {})
    rows = [(name, low * MICROSECOND, high * MICROSECOND) for name, (low, high) in chosen.items()]
    return tuple(sorted(rows, key=lambda row: row[1]))


def _loading(rows: list[tuple[float, float, float]]) -> Intervals:
    cells = np.array(rows, float).reshape(-1, 3)
    return union(cells[:, 0] * MICROSECOND, cells[:, 1] * MICROSECOND)
