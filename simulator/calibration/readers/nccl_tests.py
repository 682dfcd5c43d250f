"""Output of nccl-tests as rows: its text (also with -S and -I columns) and its JSON.

The out-of-place time is kept. `size` is the larger buffer, as in columns.py. Forms of the output:
NVIDIA/nccl-tests src/util.cu (header line names the columns; one '#  Rank' line for each GPU).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...base.errors import InputError

OPERATIONS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "send",
}
"""Collective by the name of its test program; the others (broadcast, gather ...) are not fitted."""
TYPES = {"float": "fp32", "half": "fp16", "bfloat16": "bf16", "double": "fp64"}
_RANK = re.compile(
    r"#\s+Rank\s+\d+\s+(?:Group\s+(\d+)\s+)?.*?\bon\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*)"
)
_PROGRAM = re.compile(r"\b([a-z_]+)_perf")
Row = dict[str, object]


@dataclass
class NcclRun:
    """What the header of a run says."""

    op: str
    """'' until it is known."""
    ranks: int = 0
    nodes: int = 1
    gpu: str = ""


@dataclass(frozen=True)
class NcclHints:
    """What the user says where the output does not."""

    op: str | None = None
    ranks: int | None = None
    nodes: int | None = None


def is_text(text: str) -> bool:
    """Whether this is the text output of nccl-tests."""
    return "busbw" in text and "algbw" in text and bool(re.search(r"^#.*\bredop\b", text, re.M))


def read_text(text: str, said: NcclHints, name: str) -> list[Row]:
    """Rows of one or several runs in one text."""
    run, columns = NcclRun(said.op or _operation_in_name(name)), [""]
    rows: list[Row] = []
    devices: list[tuple[str, str, str]] = []
    for line in text.splitlines():
        found, program = _RANK.match(line), _PROGRAM.search(line)
        if found:
            devices.append((found[1] or "0", found[2], found[3].strip()))
        elif "Using devices" in line:
            devices = []
        elif program and not said.op:
            run.op = OPERATIONS.get(program[1], "not fitted")
        elif re.match(r"#\s+size\s+count", line):
            columns = line.lstrip("# ").split()
            _set_ranks(run, devices, said)
        elif columns != [""] and re.match(r"\s*\d+\s+\d+\s", line):
            rows += _row(line.split(), columns, run, name)
    return rows


def _operation_in_name(name: str) -> str:
    """The collective that a file's name holds; ''."""
    return next((known for program, known in OPERATIONS.items() if program in name), "")


def _set_ranks(run: NcclRun, devices: list[tuple[str, str, str]], said: NcclHints) -> None:
    """Ranks of the first group of a run, its nodes and its GPU."""
    group = [device for device in devices if device[0] == devices[0][0]]
    run.ranks = len(group) or said.ranks or 0
    run.nodes = len({host for _, host, _ in group}) or said.nodes or 1
    run.gpu = group[0][2] if group else ""


def _row(cells: list[str], columns: list[str], run: NcclRun, name: str) -> Iterator[Row]:
    """The row of one line; nothing where it was not measured out of place."""
    time = next((i for i, column in enumerate(columns) if column in ("time", "cputime")), 0)
    if not time or len(cells) <= time or run.op == "not fitted":
        return
    if "#wrong" in columns[: len(cells)]:
        _check_results(cells[columns.index("#wrong")], cells[0], name)
    try:
        size, seconds = int(cells[0]), float(cells[time]) * 1e-6
    except ValueError:
        return
    if size > 0 and seconds > 0:
        yield _record(run, size, cells[2], seconds, name)


def _check_results(wrong: str, size: str, name: str) -> None:
    """InputError where a result was wrong: what is measured is then no collective. 'N/A' is what
    a run without checks (-c 0) prints."""
    if wrong not in ("0", "N/A", "0e+00", "0.0"):
        raise InputError(
            f"{name}: {wrong} wrong values at {size} bytes (#wrong): the run is broken, its times "
            "are not used"
        )


def _record(run: NcclRun, size: int, element: str, seconds: float, name: str) -> Row:
    """One row in the shared columns."""
    if not run.op:
        raise InputError(f"{name}: does not say which collective it measured: give --op")
    if run.ranks < 2:
        raise InputError(f"{name}: has no '#  Rank' lines: give --gpus (and --nodes)")
    return {
        "suite": "collective",
        "op": run.op,
        "dtype": TYPES.get(element, element),
        "ranks": run.ranks,
        "nodes": run.nodes,
        "bytes": size,
        "seconds": seconds,
        "gpu": run.gpu,
    }


def is_json(content: object) -> bool:
    """Whether this is the JSON report of nccl-tests (-J)."""
    return isinstance(content, dict) and "results" in content and "nccl_version" in content


def read_json(content: Mapping[str, Any], said: NcclHints, name: str) -> list[Row]:
    """Rows of the JSON report of one run; it lists one device for each process."""
    config = content.get("config") or {}
    devices = config.get("devices") or content.get("devices") or []
    program = _PROGRAM.search(" ".join(str(word) for word in content.get("args") or []))
    op = OPERATIONS.get(program[1], "") if program else _operation_in_name(name)
    each = int(config.get("nthreads", 1)) * int(config.get("ngpus", 1))
    run = NcclRun(
        op=said.op or op,
        ranks=said.ranks or each * max(len(devices), 1),
        nodes=said.nodes or max(len({device.get("hostname") for device in devices}), 1),
        gpu=str(devices[0].get("device_info", "")).strip() if devices else "",
    )
    rows = []
    for entry in content["results"]:
        body = entry.get("out_of_place") or {}
        seconds = float(body.get("time", body.get("cpu_time")) or 0.0) * 1e-6
        _check_results(f"{float(body.get('nwrong') or 0.0):g}", str(entry["size"]), name)
        if int(entry["size"]) > 0 and seconds > 0:
            rows.append(_record(run, int(entry["size"]), str(entry.get("type")), seconds, name))
    return rows
