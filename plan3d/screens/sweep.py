"""The screens of a sweep: a table of points, its picture and its JSON object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from plan3d.search.whatif.crossings import SYSTEM, Crossing, crossings
from plan3d.search.whatif.row_tables import COLUMNS as ROW_COLUMNS
from plan3d.search.whatif.sweep import Row, Sweep
from plan3d.search.whatif.sweep_file import OK
from plan3d.simulator.base.text_tables import Table
from plan3d.simulator.base.units import format_flops, format_seconds
from plan3d.simulator.task import Task

from . import views
from .output import Screen

MWH = 3.6e9


class Axis(NamedTuple):
    """One varied field."""

    name: str
    texts: list[str]
    """Values as they were written."""
    unit: str = ""
    """The unit in which its numbers are shown; '' where they have none."""
    factor: float = 1.0
    """That unit in SI."""

    def number(self, value: Any) -> str:
        """A value in that unit, which is not said."""
        return f"{value / self.factor:.5g}" if self.unit else str(value)

    def text(self, value: Any) -> str:
        """A value with its unit."""
        return f"{self.number(value)} {self.unit}" if self.unit else str(value)


@dataclass(frozen=True, kw_only=True)
class SweepView:
    """How a sweep was asked, for its screens."""

    axes: Sequence[Axis]
    plan: str | None = None
    """The plan of every point; None where each has its best."""
    weak: bool = False
    """Whether the global batch grows with the GPUs."""
    energy: bool = False
    """Whether the energy of training is shown."""
    machine: str = ""
    """The model and the cluster, for the title of a picture."""


NEAR = 2.05
"""Ratio of two points up to which a crossing between them is a number."""


def sweep_record(done: Sweep, view: SweepView) -> dict[str, Any]:
    """The JSON object of a sweep."""
    crossed = [asdict(one) for one in _crossings(done.rows, view.axes)]
    return {
        "plan3d": views.version(),
        "over": [{"field": axis.name, "values": axis.texts} for axis in view.axes],
        "plans": "best" if view.plan is None else "given",
        "weak": view.weak,
        "complete": done.complete,
        **({"crossings": crossed} if crossed else {}),
        "points": done.rows,
    }


def _crossings(rows: list[Row], axes: Sequence[Axis]) -> list[Crossing]:
    """Where systems that are varied change places; none where they are not."""
    if len(axes) < 2 or axes[-1].name != SYSTEM:
        return []
    return crossings(rows, axes[0].name)


def _crossing_sentence(one: Crossing, axis: Axis) -> str:
    """'qsgd: a shorter step than horovod up to inter_node_bandwidth = 200 Gb/s, then a longer
    one.'"""
    what = "step" if one.measure == "step_seconds" else "time to the accuracy"
    if one.first_shorter is None:
        return f"{one.system}: the same {what} as {one.reference} at every point"
    words = ("a shorter", "a longer") if one.first_shorter else ("a longer", "a shorter")
    out = f"{one.system}: {words[0]} {what} than {one.reference}"
    if not one.values:
        return f"{out} at every point"
    for i, (value, points) in enumerate(zip(one.values, one.between, strict=True)):
        at, low, high = (axis.text(float(f"{x:.3g}")) for x in (value, *points))
        out += f" up to {axis.name} = {at}"
        if points[1] > NEAR * points[0]:
            out += f" (asked at {low} and {high} only)"
        out += f", then {words[(i + 1) % 2]} one"
    return out


def print_sweep(screen: Screen, done: Sweep, view: SweepView, first: Task) -> None:
    """A table of the points; `first` is the task of the first."""
    rows, axes = done.rows, view.axes
    varied = " and ".join(f"{axis.name} ({len(axis.texts)} values)" for axis in axes)
    how = "its best plan" if view.plan is None else f"the plan {view.plan}"
    batch = "; the global batch grows with the GPUs" if view.weak else ""
    screen.lines(_headline(rows, axes))
    screen.lines([f"Sweep over {varied}, each point with {how}{batch}"])
    screen.lines([f"first point: {line}" for line in views.header(first)[:1]])
    with_plan = [row for row in rows if "peak_flops" in row]
    peaks = {f"{format_flops(r['peak_flops'])} ({r['number_format']}, dense)": 0 for r in with_plan}
    screen.lines([f"MFU of {' or '.join(peaks)} per GPU"] if peaks else [])
    print()
    screen.table(_table(rows, axes))
    screen.lines([_crossing_sentence(one, axes[0]) for one in _crossings(rows, axes)])
    notes = [f"{_setting(row, axes)}: {row['detail']}" for row in rows if row.get("detail")]
    screen.section("Not possible", notes)
    if any("scaling_efficiency" in row for row in rows):
        screen.lines(["scaling %: tokens/s a GPU over that of the first point (of its series)"])
    if view.energy:
        screen.lines(["energy: board power x time, an estimate"])


def _headline(rows: list[Row], axes: Sequence[Axis]) -> list[str]:
    """Which point is the fastest that fits, and how far the slowest is behind."""
    every = [row for row in rows if row["status"] == OK]
    found = [row for row in every if not _too_large(row)]
    if len(every) < 2:
        return []
    if not found:
        return [f"none of {len(every)} points fits"]
    speed = {id(row): row["tokens_per_second"] for row in found}
    first, last = (of(found, key=lambda row: speed[id(row)]) for of in (max, min))
    lead = f"{_setting(first, axes)}: {speed[id(first)]:,.0f} tokens/s, the"
    if len(found) == 1:
        return [f"{lead} only one of {len(every)} points that fits"]
    fit = " that fit" if len(found) < len(every) else ""
    times = speed[id(first)] / speed[id(last)]
    return [f"{lead} most of {len(found)} points{fit}, {times:.3g} times {_setting(last, axes)}"]


def _too_large(row: Row) -> bool:
    return bool(row["verdict"] == "does not fit")


def _setting(row: Row, axes: Sequence[Axis]) -> str:
    return ", ".join(f"{axis.name}={axis.text(row[axis.name])}" for axis in axes)


_STEP, _, _SPEED, _MFU, _MEMORY, _FITS = ROW_COLUMNS
COLUMNS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    _STEP,
    ("exchange_seconds", "exchange s", lambda x: f"{x:.4g}"),
    _SPEED,
    _MFU,
    ("scaling_efficiency", "scaling %", lambda x: f"{100 * x:.1f}"),
    _MEMORY,
    _FITS,
    ("train_hours", "hours", lambda x: f"{x:.1f}"),
    ("train_days", "days", lambda x: f"{x:.1f}"),
    ("gpu_hours", "GPU-hours", lambda x: f"{x:,.0f}"),
    ("cost_usd", "USD", lambda x: f"{x:,.0f}"),
    ("iterations", "iterations", lambda x: f"{x:,.0f}"),
    ("accuracy_seconds", "to accuracy", format_seconds),
    ("energy_joules", "MWh", lambda x: f"{x / MWH:,.0f}"),
)
"""Columns of the table where a row has them: key, header with unit, how it is written."""


def _table(rows: list[Row], axes: Sequence[Axis]) -> Table:
    unit, name = views.time_unit([row["train_seconds"] for row in rows if "train_seconds" in row])
    timed = "train_seconds"
    rows = [{**r, f"train_{name}": r[timed] / unit} if timed in r else r for r in rows]
    exchanges = any(word in row.get("plan", "") for row in rows for word in ("sync", "compression"))
    shown = [
        column
        for column in COLUMNS
        if any(column[0] in row for row in rows) and (exchanges or column[0] != "exchange_seconds")
    ]
    heads = [f"{axis.name} {axis.unit}".rstrip() for axis in axes]
    cells = tuple(
        (
            *(axis.number(row[axis.name]) for axis in axes),
            *(write(row[key]) if key in row else "" for key, _, write in shown),
            _verdict(row),
        )
        for row in rows
    )
    headers = (*heads, *(head for _, head, _ in shown), "plan")
    return Table(headers=headers, rows=cells, words=frozenset({len(headers) - 1}))


def _verdict(row: Row) -> str:
    """The plan, or why there is none."""
    if "plan" not in row:
        return str(row["status"])
    large = " (does not fit)" if _too_large(row) else ""
    return f"{row['plan']}{large}"


def sweep_picture(rows: list[Row], view: SweepView, form: str) -> bytes:
    """Speed, MFU and memory over the first field, a line for each value of the second."""
    from plan3d.search.whatif.pictures import sweep_page
    from plan3d.simulator.reporting.palette import image_bytes

    first, *rest = view.axes
    drawn = [
        {
            **row,
            first.name: row[first.name] / first.factor if first.unit else row[first.name],
            **{axis.name: axis.text(row[axis.name]) for axis in rest},
        }
        for row in rows
    ]
    unit = f"({first.unit})" if "/" in first.unit else first.unit
    label = f"{first.name.replace('_', ' ')} / {unit}" if unit else ""
    how = "best plan at every point" if view.plan is None else f"plan {view.plan}"
    kind = "weak scaling, " if view.weak else ""
    title = f"{view.machine}: {kind}{how}"
    page = sweep_page(drawn, [axis.name for axis in view.axes], label, title)
    return image_bytes(page, form)
