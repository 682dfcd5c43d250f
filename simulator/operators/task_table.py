"""Tasks whose constants are columns: one pass over a table of plans for many sets of constants.

Rates, latencies and bandwidths of the stack and the cluster have a value for each row of the table,
beside its plans; everything that broadcasts costs such rows as any others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np

from ..base.arrays import Column, Index
from ..hardware.cluster import Cluster
from ..hardware.software import Software
from ..task import Task

_SINGLE = (int, float, str, tuple, type(None))
"""What is no column and has none inside."""


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class TaskTable(Task):
    """A task whose stack and cluster have numbers that are columns [row]."""

    variant: Column
    """Which set of constants each row has."""

    @classmethod
    def of_task(
        cls, task: Task, variant: Column, software: Software, cluster: Cluster
    ) -> TaskTable:
        """The task with these columns."""
        shared = {f.name: getattr(task, f.name) for f in fields(Task)}
        changed = {"software": software, "cluster": cluster, "variant": variant}
        return cls(**{**shared, **changed})


def at_rows(task: Task, rows: Index) -> Task:
    """The task with its columns at these rows; one without columns is itself."""
    if not isinstance(task, TaskTable) or np.array_equal(rows, np.arange(task.variant.size)):
        return task
    taken = {name: _take(getattr(task, name), rows) for name in ("software", "cluster", "variant")}
    return replace(task, **taken)


def variant_keys(task: Task) -> Sequence[Column]:
    """Columns in which rows differ whose plans are alike."""
    return [task.variant] if isinstance(task, TaskTable) else []


def _take(record: Any, rows: Index) -> Any:
    """What is a column at these rows, also inside a record."""
    if isinstance(record, np.ndarray):
        return record[rows]
    parts = vars(record).items() if is_dataclass(record) else ()
    inside = ((name, part) for name, part in parts if not isinstance(part, _SINGLE))
    taken = ((name, part, _take(part, rows)) for name, part in inside)
    changed = {name: new for name, part, new in taken if new is not part}
    return replace(record, **changed) if changed else record
