"""Events of a trace as columns that grow as a file is read: kernels, launches, operators, passes.

Names stand once, numbers in arrays, so that memory stays bounded. Times are microseconds, as in the
file. Source: pytorch/kineto, output_json.cpp (ChromeTraceLogger) and ParamCommsUtils.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...base.printable import one_line

GPU_CATEGORIES = {
    "kernel": "kernel",
    "concurrent_kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
}
"""What a GPU runs, by the category of an event in lower case; the short ones are of Kineto before
PyTorch 1.12."""
RUNTIME = ("cuda_runtime", "cuda_driver", "runtime", "hip_runtime")
ANNOTATIONS = ("user_annotation", "gpu_user_annotation", "cpu_op", "operator")
STEP = "ProfilerStep#"
BACKWARD = "autograd::engine::evaluate_function"
CHECKPOINT = "CheckpointFunctionBackward"
UPDATE = ("Optimizer.step", "Optimizer.zero_grad")
LOADING = ("enumerate(DataLoader)", "enumerate(DataPipe)", "dataloader")
LATEST = 1e18
"""Microseconds that no clock shows."""
LONGEST_NAME = 400
"""Characters of a kernel's name."""


class Collective(NamedTuple):
    """What NCCL's metadata says of a collective; '' and 0 where it says nothing."""

    operation: str = ""
    group_size: int = 0
    group: str = ""
    """Name of the process group."""
    description: str = ""
    """What the framework calls it: 'TENSOR_MODEL_PARALLEL_GROUP', 'mesh_tp'."""
    ranks: tuple[int, ...] = ()
    elements: int = 0
    """The larger of those that go in and those that come out."""
    number_format: str = ""


NO_COLLECTIVE = Collective()


@dataclass
class EventColumns:
    """Columns that grow as a file is read; kernels and operators by their index of names."""

    names: dict[Any, int] = field(default_factory=dict)
    gpu: dict[int, tuple[array[float], ...]] = field(default_factory=dict)
    """Of a device: start, length, stream, kind, correlation and operator."""
    launches: tuple[array[float], ...] = field(default_factory=lambda: _arrays(3))
    """Correlation, time and thread of calls of the runtime."""
    operators: tuple[array[float], ...] = field(default_factory=lambda: _arrays(2))
    """External id and index of the operator's name and shapes."""
    recorded: tuple[array[float], ...] = field(default_factory=lambda: _arrays(3))
    """Start, end and thread of operators that record a graph: of forward passes, and of what is run
    again in backward passes."""
    phases: dict[str, list[tuple[float, float, float]]] = field(default_factory=dict)
    """Start, end and thread of passes."""
    steps: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)
    """Start and end of steps by where they are marked, then by name."""
    memory: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Most bytes allocated and reserved, by device."""
    events: int = 0
    negative: int = 0
    unreadable: int = 0

    def index(self, key: Any) -> int:
        return self.names.setdefault(key, len(self.names))


def keep_event(event: Mapping[str, Any], columns: EventColumns) -> None:
    """Put one event into the columns."""
    if event.get("ph") != "X":
        if event.get("name") == "[memory]":
            _keep_memory(event["args"], columns)
        return
    columns.events += 1
    category = event.get("cat", "")
    if category == "python_function":
        return
    category = str(category).lower()
    on_gpu = GPU_CATEGORIES.get(category)
    if on_gpu:
        _keep_kernel(event, on_gpu, columns)
    elif category in RUNTIME:
        correlation = (event.get("args") or {}).get("correlation")
        if correlation is not None:
            thread = ("thread", event.get("pid"), event.get("tid"))
            add_launch(columns, correlation, event["ts"], thread)
    elif category in ANNOTATIONS:
        _keep_operator(event, category, columns)


def _keep_memory(args: Mapping[str, Any], columns: EventColumns) -> None:
    """What the allocator of a device holds; devices of type 0 are CPUs."""
    if args.get("Device Type"):
        device = int(args["Device Id"])
        held = float(args["Total Allocated"]), float(args.get("Total Reserved", 0.0))
        most = columns.memory.get(device, (0.0, 0.0))
        columns.memory[device] = max(most[0], held[0]), max(most[1], held[1])


def _keep_kernel(event: Mapping[str, Any], category: str, columns: EventColumns) -> None:
    args = event.get("args") or {}
    device = args.get("device", event.get("pid"))
    add_kernel(
        columns,
        (event["name"], category, _collective(args)),
        device=device if isinstance(device, int) else 0,
        start=float(event["ts"]),
        length=float(event["dur"]),
        stream=_stream(event.get("tid"), columns),
        correlation=args.get("correlation", -1),
        operator=args.get("External id", args.get("external id", -1)),
    )


def add_kernel(
    columns: EventColumns,
    kind: tuple[str, str, Collective],
    *,
    device: int,
    start: float,
    length: float,
    stream: float,
    correlation: Any,
    operator: Any = -1,
) -> None:
    """One event of a GPU; `kind` is its name, category and collective. Lengths that no event has
    are counted."""
    if not (0 <= length < LATEST and abs(start) < LATEST):
        columns.negative += 1
        return
    number = max(device, 0)
    cells = columns.gpu.get(number)
    if cells is None:
        cells = columns.gpu[number] = _arrays(6)
    name, category, collective = kind
    index = columns.index((one_line(name, LONGEST_NAME), category, collective))
    _append(cells, start, length, stream, index, correlation, operator)


def add_launch(columns: EventColumns, correlation: Any, moment: Any, thread: Any) -> None:
    """A call of the runtime that may have launched something."""
    _append(columns.launches, correlation, moment, columns.index(thread))


def _arrays(number: int) -> tuple[array[float], ...]:
    """Empty columns."""
    return tuple(array("d") for _ in range(number))


def _append(columns: tuple[array[float], ...], *values: Any) -> None:
    """One row; all of it or, where a value is no number, nothing."""
    for column, number in zip(columns, [float(value) for value in values], strict=True):
        column.append(number)


def _stream(value: object, columns: EventColumns) -> float:
    """The number of a stream; one below zero for each that has a name."""
    return float(value) if isinstance(value, int | float) else -1.0 - columns.index(value)


def _collective(args: Mapping[str, Any]) -> Collective:
    """What a kernel or the call of a collective says of it."""
    operation = args.get("Collective name")
    if operation is None:
        return NO_COLLECTIVE
    ranks = args.get("Process Group Ranks", "")
    numbers = [part for part in str(ranks).strip("[]").split(",") if part.strip().isdecimal()]
    elements = (args.get("In msg nelems", 0), args.get("Out msg nelems", 0))
    return Collective(
        operation=str(operation).lower().strip("_"),
        group_size=int(args.get("Group size", len(numbers)) or 0),
        group=str(args.get("Process Group Name", "")),
        description=str(args.get("Process Group Description", "")),
        ranks=tuple(map(int, numbers)),
        elements=max((int(n) for n in elements if isinstance(n, int)), default=0),
        number_format=str(args.get("dtype", "")),
    )


def keep_mark(event: Mapping[str, Any], name: str, category: str, columns: EventColumns) -> None:
    """A step, a pass or the loading of data."""
    start = float(event["ts"])
    end = start + float(event.get("dur", 0.0))
    if not -LATEST < start <= end < LATEST:
        return
    if name.startswith(STEP):
        marks = columns.steps.setdefault(category, {})
        low, high = marks.get(name, (start, end))
        marks[name] = min(low, start), max(high, end)
        return
    phase = ""
    if name.startswith(BACKWARD):
        phase = "recompute" if name.endswith(CHECKPOINT) else "backward"
    elif name.startswith(UPDATE):
        phase = "update"
    elif name.startswith(LOADING):
        phase = "loading"
    if phase and category != "gpu_user_annotation":
        thread = columns.index(("thread", event.get("pid"), event.get("tid")))
        columns.phases.setdefault(phase, []).append((start, end, float(thread)))


def _keep_operator(event: Mapping[str, Any], category: str, columns: EventColumns) -> None:
    """Operators with shapes or a collective, passes, steps and the loading of data."""
    name, args = str(event["name"]), event.get("args") or {}
    if not name.startswith("aten::"):
        keep_mark(event, name, category, columns)
    if category == "gpu_user_annotation":
        return
    # PyTorch numbers operators only where they record a graph (Dispatcher.h, runRecordFunction).
    if "Sequence number" in args and args.get("Fwd thread id") == 0:
        start, thread = float(event["ts"]), ("thread", event.get("pid"), event.get("tid"))
        _append(columns.recorded, start, start + float(event["dur"]), columns.index(thread))
    external, shapes = args.get("External id"), args.get("Input Dims")
    if external is not None and (shapes or "Collective name" in args or name.startswith("nccl:")):
        collective, dims = _collective(args), str(shapes)[:LONGEST_NAME] if shapes else ""
        if name.startswith("nccl:") and collective is NO_COLLECTIVE:
            collective = Collective(operation=name.removeprefix("nccl:").lower().strip("_"))
        key = ("operator", name[:LONGEST_NAME], dims, collective)
        _append(columns.operators, external, columns.index(key))
