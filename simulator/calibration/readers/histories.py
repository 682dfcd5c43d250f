"""Metrics by step as CSV: exports of Weights & Biases and of TensorBoard, as lines of a log.

Source: wandb, charts and tables of runs ("Export CSV": Step, then `RUN - METRIC`, with __MIN and
__MAX); TensorBoard, plugins/scalar/scalars_plugin.py (Wall time, Step, Value). Names of metrics:
Megatron-LM, training_log; torchtitan, components/metrics.py; nanotron, trainer.py; NeMo,
train_step_timing; Composer, callbacks/speed_monitor.py; OLMo-core, speed_monitor.py; Levanter,
callbacks/_metrics.py; MaxText, metric_logger.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from ...base.csv_files import parse_csv
from ...base.errors import InputError

SIGN = "history: "
"""Before each line."""
METRICS = {
    "iteration-time": "seconds",
    "train_step_timing in s": "seconds",
    "time_metrics/end_to_end(s)": "seconds",
    "throughput/duration": "seconds",
    "perf/step_time_seconds": "seconds",
    "time_per_iteration_ms": "milliseconds",
    "throughput/batches_per_sec": "steps_per_second",
    "throughput/device/BPS": "steps_per_second",
    "throughput(tps)": "tokens_per_gpu",
    "tokens_per_sec_per_gpu": "tokens_per_gpu",
    "throughput/device/tokens_per_sec": "tokens_per_gpu",
    "throughput/device/TPS": "tokens_per_gpu",
    "perf/per_device_tokens_per_sec": "tokens_per_gpu",
    "memory/max_reserved(GiB)": "reserved_gib",
    "memory/peak_reserved_mem": "reserved_gb",
}
"""What metrics of trainers are, by name."""
STEPS = ("trainer/global_step", "train/global_step", "global_step", "Step", "_step", "step")
"""Columns of the number of a step, the most exact first."""
CLOCKS = ("Wall time", "_timestamp", "_runtime", "Relative Time (Wall)", "Relative Time (Process)")
"""Columns of seconds since some time."""
BOUNDS = ("__MIN", "__MAX")
"""Ends of columns that W&B adds to each metric."""


def is_history(text: str) -> bool:
    """Whether a text is such an export: a number of the step, and a clock or a known metric."""
    header = _header(text)
    metrics = {_metric(column) for column in header}
    return bool(metrics & {*STEPS} and metrics & {*CLOCKS, *METRICS})


def log_of_history(text: str, name: str) -> str:
    """The lines of a log with the values of an export, a step each. Raises InputError for several
    runs in one file."""
    columns: dict[str, int] = {}
    for place, column in enumerate(_header(text)):
        metric = _metric(column)
        if column.endswith(BOUNDS) or metric not in (*STEPS, *CLOCKS, *METRICS):
            continue
        if metric in columns:
            raise InputError(f"{name}: has {metric} of several runs: export one run")
        columns[metric] = place
    rows = [row for _, row in parse_csv(text, name).rows]
    step = next(column for column in STEPS if column in columns)
    values = [{metric: _number(row, at) for metric, at in columns.items()} for row in rows]
    known = [row for row in values if row[step] is not None]
    timed = any(METRICS.get(metric, "") not in ("", *_MEMORY) for metric in columns)
    lines = _metric_lines(known, step) if timed else _clock_lines(known, step)
    return "\n".join(lines)


_MEMORY = ("reserved_gib", "reserved_gb")


def _metric_lines(rows: Sequence[Mapping[str, float | None]], step: str) -> Iterator[str]:
    """Lines of the known metrics."""
    for row in rows:
        words = []
        for metric, value in row.items():
            kind = METRICS.get(metric, "") if value is not None else ""
            if kind == "milliseconds":
                words.append(f"seconds={(value or 0) / 1e3:.9g}")
            elif kind:
                words.append(f"{kind}={value:.9g}")
        if words:
            yield f"{SIGN}step={row[step]:.0f} {' '.join(words)}"


def _clock_lines(rows: Sequence[Mapping[str, float | None]], step: str) -> Iterator[str]:
    """Lines of the time between steps, of the first clock that there is."""
    clock = next((column for column in CLOCKS if rows and column in rows[0]), "")
    points = [(row[step], row[clock]) for row in rows if clock and row[clock] is not None]
    for (before, began), (after, ended) in pairwise(points):
        steps, seconds = (after or 0) - (before or 0), (ended or 0) - (began or 0)
        if steps >= 1 and seconds > 0:
            yield f"{SIGN}step={after:.0f} seconds={seconds / steps:.9g}"


def _header(text: str) -> list[str]:
    """The columns of the first line; none of what is no table."""
    first = text[:20_000].lstrip("\ufeff").partition("\n")[0].strip("\r")
    try:
        return parse_csv(first, "").header if "," in first else []
    except InputError:
        return []


def _metric(column: str) -> str:
    """The metric of a column `RUN - METRIC`, or the column."""
    for bound in BOUNDS:
        column = column.removesuffix(bound)
    return column.rpartition(" - ")[2]


def _number(row: Sequence[str], place: int) -> float | None:
    """The number of a cell; None where it has none."""
    try:
        value = float(row[place])
    except (ValueError, IndexError):
        return None
    return value if abs(value) < 1e15 else None
