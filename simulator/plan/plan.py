"""Plans: a row of small integers, or a table of such rows, and the families of plans.

fields.py defines the fields. Each is an int or a one-dimensional int64 array; names such as 'full'
or '1f1b' are codes of an enumeration. AUTO (-1) in a field means "what a current training stack
does"; `resolve` replaces it, once the number of GPUs is known. Plans that split the model over
GPUs in the same ways, to any degree, are a family.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.arrays import Column, Index, is_broadcast
from ..base.errors import InputError
from ..base.printable import shorten
from ..base.text_tables import facts_html, html_text
from ..pipeline import schedules
from .field_values import AUTO, Cell
from .fields import (
    ALWAYS_WRITTEN,
    AXES,
    BY_RUN,
    FIELDS,
    RESOLVED_DEFAULTS,
    PlanFields,
    check_field,
    code,
    field_called,
    spell,
)
from .gossip_graphs import Topology
from .stage_layout import (
    Segments,
    concat_segments,
    format_segments,
    mtp_stage,
    read_layout,
    read_segments,
)
from .synchronisation import Sync, gossips


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan(PlanFields):
    """How a model is spread over GPUs: one row, or a table with equally long columns.

    Raises InputError for a field, name or number that no plan can have.

    >>> Plan(tp=8, pp=8, recompute="full")
    Plan('tp=8 pp=8 recompute=full')
    >>> Plan.parse("tp=8 pp=8").tp
    8
    """

    def __post_init__(self) -> None:
        lengths = set()
        for name in AXES:
            value, record = getattr(self, name), FIELDS[name]
            if type(value) is int and value == record.default:
                continue
            value = record.encode(value)
            object.__setattr__(self, name, value)
            if isinstance(value, np.ndarray):
                lengths.add(value.size)
        if len(lengths) > 1:
            raise InputError(f"columns of a plan have different lengths: {sorted(lengths)}")
        if not isinstance(self.layers_per_stage, tuple) or self.layers_per_stage:
            self._read_layout()
        if self.segments is not None:
            self._read_segments()

    def _read_layout(self) -> None:
        """Layers of every stage, and where a layout string puts multi-token prediction."""
        stage = mtp_stage(self.layers_per_stage)
        object.__setattr__(self, "layers_per_stage", read_layout(self.layers_per_stage))
        if stage and np.any((np.asarray(self.mtp_stage) != 0) & (self.mtp_stage != stage)):
            raise InputError(f"mtp_stage contradicts the layout, which has m in stage {stage}")
        if stage:
            object.__setattr__(self, "mtp_stage", 0 * self.mtp_stage + stage)

    def _read_segments(self) -> None:
        """Runs of layers of every plan."""
        segments = read_segments(self.segments, code)
        object.__setattr__(self, "segments", segments)
        if segments.stage.shape[0] != self.rows:
            raise InputError(
                f"segments are those of {segments.stage.shape[0]} plans, the table has {self.rows}"
            )

    @classmethod
    def parse(cls, text: str) -> Plan:
        """A plan from 'tp=8 pp=8 recompute=full layers_per_stage=11,12,12,11', or with commas
        between fields; a field may have the name that Megatron gives it."""
        values: dict[str, Any] = {**stated_fields(text)}
        return cls(**values)

    @property
    def rows(self) -> int:
        """Plans in the table; 1 for a plan of plain numbers."""
        if isinstance(self.tp, np.ndarray):
            return self.tp.size
        columns = self.columns().values()
        return max((c.size for c in columns if isinstance(c, np.ndarray)), default=1)

    @property
    def is_scalar(self) -> bool:
        """Whether this is one plan of plain numbers rather than a table."""
        return np.ndarray not in map(type, vars(self).values())

    def table(self) -> Plan:
        """The same plans with every field a column of equal length."""
        values = [getattr(self, name) for name in AXES]
        columns = [type(value) is np.ndarray for value in values]
        if all(columns):
            return self
        if not any(columns):
            row = np.array(values, np.int64)[:, None]
            return _unchecked(
                dict(zip(AXES, row, strict=True)), self.layers_per_stage, self.segments
            )
        n = self.rows
        full = {
            name: value if column else np.full(n, value, np.int64)
            for name, value, column in zip(AXES, values, columns, strict=True)
        }
        return _unchecked(full, self.layers_per_stage, self.segments)

    def columns(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in AXES}

    def take(self, rows: Any) -> Plan:
        """The chosen rows: an index, a slice, an index array or a mask."""
        segments = self.segments
        if isinstance(rows, (int, np.integer)):
            if rows == 0 and self.is_scalar:
                chosen = {name: int(value) for name, value in self.columns().items()}
            else:
                chosen = {name: int(c[rows]) for name, c in self.table().columns().items()}
            runs = segments.take([rows]) if segments else None
            return _unchecked(chosen, self.layers_per_stage, runs)
        columns = {
            name: _take_rows(column, rows) for name, column in self.table().columns().items()
        }
        runs = segments.take(rows) if segments else None
        return _unchecked(columns, self.layers_per_stage, runs)

    def __iter__(self) -> Iterator[Plan]:
        return (self.take(i) for i in range(self.rows))

    def to_dict(self) -> dict[str, Any]:
        """One plan as names and plain values."""
        out: dict[str, Any] = {
            name: spell(name, int(np.ravel(getattr(self, name))[0])) for name in AXES
        }
        if self.layers_per_stage:
            out["layers_per_stage"] = list(self.layers_per_stage)
        if self.segments:
            out["segments"] = [
                [{n: spell(n, v) if n in BY_RUN else v for n, v in run.items()} for run in stage]
                for stage in self.segments.stages()
            ]
        return out

    def to_record(self) -> dict[str, Any]:
        """One resolved plan as JSON holds it: the fields of WRITTEN, and the others where they are
        not at their defaults. `plan_of_record` reads it."""
        row, fields = self.take(0), self.to_dict()
        runs: dict[str, Any] = {"layers_per_stage": row.layers_per_stage, "segments": row.segments}
        own = {name: getattr(row, name) for name in AXES}
        written = {
            n for n in AXES if n in ALWAYS_WRITTEN or FIELDS[n].default not in (AUTO, own[n])
        }
        for name in AXES:
            if name not in written and FIELDS[name].default == AUTO:
                read = resolve(Plan(**{n: own[n] for n in written}, **runs), 1)
                written |= {name} if getattr(read, name) != own[name] else set()
        return {name: v for name, v in fields.items() if name in written or name not in AXES}

    @property
    def segments_text(self) -> str:
        """The runs of one plan as `parse` reads them, without what its own fields say; or ''."""
        if not self.segments:
            return ""
        columns = {}
        for name in BY_RUN:
            column = getattr(self.segments, name)
            columns[name] = np.where(column == np.int64(getattr(self, name)), AUTO, column)
        return format_segments(self.segments.with_fields(**columns), spell)

    def __str__(self) -> str:
        """The row as `parse` reads it, without what `resolve` would choose."""
        row = self.take(0)
        defaults = _row_defaults(row)
        words = [
            f"{name}={int(value) if isinstance(value, bool) else value}"
            for name, value in row.to_dict().items()
            if name in AXES and getattr(row, name) not in (AUTO, getattr(defaults, name))
        ]
        if self.layers_per_stage:
            words.append(f"layers_per_stage={','.join(map(str, self.layers_per_stage))}")
        if row.segments:
            words.append(f"segments={row.segments_text}")
        return " ".join(words) or "tp=1"

    def __repr__(self) -> str:
        first = "" if self.rows == 0 else shorten(str(self))
        return f"Plan({first!r})" if self.rows == 1 else f"Plan({self.rows} rows, first {first!r})"

    def _repr_html_(self) -> str:
        if self.rows != 1:
            return f"<div>{html_text(repr(self))}</div>"
        return facts_html("Plan", dict(word.split("=", 1) for word in str(self).split()))


def _row_defaults(row: Plan) -> Plan:
    """The defaults for a row's sizes, schedule, synchronisation, host copies and segments, dp
    aside."""
    names = ("tp", "cp", "pp", "dp", "virtual_stages")
    usual = {"schedule": schedules.default_code(row.virtual_stages)}
    usual |= {"offload_parameters": 0, "nvme": 0}
    sizes = {name: getattr(row, name) for name in (*names, *usual)}
    names_of_sync = ("tp_grid", "sync", "sync_period", "compression", "sites")
    sync = {name: getattr(row, name) for name in names_of_sync}
    defaults = resolve(Plan(**sizes, **sync, segments=row.segments), 1)
    stated = {name: getattr(row, name) for name in ("zero", "overlap_grad_reduce")}
    gather = defaults.overlap_param_gather
    if any(getattr(defaults, name) != value for name, value in stated.items()):
        again = resolve(Plan(**sizes, **sync, **stated, segments=row.segments), 1)
        gather = again.overlap_param_gather
    fixed = {**dict.fromkeys(names, 1), **usual, **dict.fromkeys(sync, 0), "sync_period": 1}
    return _unchecked({**defaults.columns(), **fixed, "overlap_param_gather": gather}, ())


def _take_rows(column: Column, rows: Any) -> Column:
    if is_broadcast(column) and isinstance(rows, np.ndarray):
        size = int(np.count_nonzero(rows)) if rows.dtype == bool else rows.size
        # A slice of a broadcast view is one too; only more rows than it has need a new array.
        return column[:size] if size <= column.size else np.repeat(column[:1], size)
    out: Column = column[rows]
    return out


def _unchecked(
    columns: Mapping[str, Any], layers_per_stage: tuple[int, ...], segments: Segments | None = None
) -> Plan:
    """A Plan from valid columns, without checks, which the hot path cannot afford."""
    plan = object.__new__(Plan)
    vars(plan).update(columns, layers_per_stage=layers_per_stage, segments=segments)
    return plan


USUAL_FIELDS = RESOLVED_DEFAULTS | {"schedule": schedules.default_code(1)}
"""The resolved defaults of all fields, which is 1f1b of schedules."""


def from_columns(
    columns: Mapping[str, Any],
    layers_per_stage: tuple[int, ...] = (),
    segments: Segments | None = None,
) -> Plan:
    """A table from the columns of a search space. Missing fields take their USUAL_FIELDS."""
    n = max(np.size(c) for c in columns.values())
    full = {
        name: columns[name] if name in columns else np.broadcast_to(np.int64(default), (n,))
        for name, default in USUAL_FIELDS.items()
    }
    return _unchecked(full, layers_per_stage, segments)


def concat(tables: list[Plan]) -> Plan:
    """One table of several; an explicit layout must be the same in all."""
    if len({t.layers_per_stage for t in tables}) > 1:
        raise InputError("plans with different layers_per_stage cannot share a table")
    runs = [t.segments for t in tables if t.segments]
    if 0 < len(runs) < len(tables):
        raise InputError("plans with and without segments cannot share a table")
    full = [t.table() for t in tables]
    joined = {name: np.concatenate([getattr(t, name) for t in full]) for name in AXES}
    segments = concat_segments(runs) if runs else None
    return _unchecked(joined, tables[0].layers_per_stage, segments)


def resolve(plan: Plan, gpus: int) -> Plan:
    """The plan with every AUTO replaced by what current training stacks do.

    dp = gpus / (tp cp pp); interleaved where there are virtual stages; sequence parallelism
    where tp > 1; ZeRO-1 and both data-parallel overlaps where there is something to shard (no
    ZeRO where replicas are not all-reduced every step in full, stage 3 with weights on the host,
    whose copies overlap, or anything on drives); overlapped sends where
    interleaved; the static exponential graph for gossip.
    """
    columns = plan.columns()
    replicas = gpus // (plan.tp * plan.cp * plan.pp)
    dp = _resolve_auto(plan.dp, replicas + (replicas == 0))
    segments = _resolved_segments(plan, dp) if plan.segments else None
    tp, widest = (
        (_largest_of_runs(plan, segments.tp), _largest_of_runs(plan, segments.dp))
        if segments
        else (plan.tp, dp)
    )
    sharded = 1 * (widest * plan.cp * schedules.model_copies(plan.schedule) > 1)
    every_step = (plan.sync_period == 1) | (plan.sites > 0)
    exact = (plan.sync == Sync.ALL_REDUCE) & every_step & (plan.compression == 0)
    fetched = 1 * (plan.offload_parameters > 0)
    offloaded = fetched | 1 * (plan.nvme > 0)
    zero = _resolve_auto(plan.zero, 3 * offloaded + (1 - offloaded) * sharded * exact)
    interleaved = 1 * (plan.virtual_stages > 1)
    reduce = _resolve_auto(plan.overlap_grad_reduce, sharded * every_step)
    columns["dp"], columns["zero"], columns["overlap_grad_reduce"] = dp, zero, reduce
    defaults = {
        "schedule": schedules.default_code(plan.virtual_stages),
        "sequence_parallel": 1 * (tp > 1) * (plan.tp_grid == 0),
        "overlap_param_gather": reduce * (zero > 0) * sharded + fetched * (1 - sharded),
        "overlap_p2p": interleaved,
        "topology": Topology.EXPONENTIAL * gossips(plan.sync),
    }
    for name, default in defaults.items():
        columns[name] = _resolve_auto(columns[name], default)
    return _unchecked(columns, plan.layers_per_stage, segments)


def _resolved_segments(plan: Plan, dp: Cell) -> Segments:
    """Runs with every field stated: the plan's fields, as many GPUs a stage as the plan has, and
    ZeRO only where there are ranks to shard over, unless the plan states it and no run has any."""
    assert plan.segments
    runs, fields = plan.segments, {**plan.columns(), "dp": dp}
    row = {name: np.reshape(fields[name], (-1, 1)) for name in (*BY_RUN, "cp")}
    tp = np.where(runs.tp == AUTO, row["tp"], runs.tp)
    dp = np.where(runs.dp == AUTO, np.maximum(row["tp"] * row["dp"] // tp, 1), runs.dp)
    shards = runs.is_run & (dp * row["cp"] > 1)
    alone = ~shards.any(axis=1, keepdims=True)
    default = np.where(row["zero"] == AUTO, shards, row["zero"] * (shards | alone))
    zero = np.where(runs.zero == AUTO, default, runs.zero)
    recompute = np.where(runs.recompute == AUTO, row["recompute"], runs.recompute)
    return runs.with_fields(tp=tp, dp=dp, zero=zero, recompute=recompute)


def _largest_of_runs(plan: Plan, values: NDArray[np.int64]) -> Cell:
    """The largest value among the runs of each plan."""
    most = values.max(axis=1)
    return int(most[0]) if plan.is_scalar else most


def _resolve_auto(value: Cell, default: Cell) -> Cell:
    """The default where the value is AUTO."""
    if isinstance(value, int):
        return default if value == AUTO else value
    return np.where(value == AUTO, default, value)


def stated_fields(text: str) -> dict[str, str]:
    """Values as they are written, by field, of the text of a plan: words between spaces or commas,
    of which runs of layers have their own."""
    values: dict[str, str] = {}
    words = (
        [part]
        if part.startswith("segments=")
        else re.split(r",(?=[A-Za-z][\w-]*=)", part.rstrip(","))
        for part in text.split()
    )
    for word in chain.from_iterable(words):
        name, equals, value = word.partition("=")
        name = field_called(name)
        if not equals or not value:
            raise InputError(f"plan {word!r} must be FIELD=VALUE, for example tp=8")
        if name in values:
            raise InputError(f"plan gives {name} twice")
        check_field(name)
        values[name] = value
    return values


PlanLike = Plan | str | Mapping[str, Any]
"""A plan, 'tp=2 pp=4', or {"tp": 2, "pp": 4}."""
DERIVED_KEYS = ("micro_batches",)
"""Keys of the record of a plan that are no fields."""


def as_plan(plan: PlanLike) -> Plan:
    """The plan itself, of a text as `Plan.parse` reads it, or of fields by name."""
    if isinstance(plan, str):
        return Plan.parse(plan)
    if isinstance(plan, Mapping):
        return Plan(**_fields(plan))
    if not isinstance(plan, Plan):
        raise InputError(
            f"a plan must be a Plan, its text or a dict of its fields, not {repr(plan)[:60]}; pass "
            "Plan(tp=2), 'tp=2' or {'tp': 2}"
        )
    return plan


def field_changes(given: str | Mapping[str, Any]) -> dict[str, Any]:
    """Values by field of 'tp=4' or {"tp": 4}; InputError as `Plan` raises it."""
    stated = as_plan(given)
    names = stated_fields(given) if isinstance(given, str) else _fields(given)
    return {name: getattr(stated, name) for name in names}


def is_record(fields: Mapping[str, Any]) -> bool:
    """Whether fields are those of a record, which leaves out what is at its default."""
    return all(name in fields for name in ALWAYS_WRITTEN)


def plan_of_record(fields: Mapping[str, Any]) -> Plan:
    """The resolved plan of a record that `Plan.to_record` wrote. Raises InputError for a list in
    place of a number, which is that of several plans."""
    for name, value in fields.items():
        if name in AXES and isinstance(value, list | tuple | dict):
            raise InputError(f"{name} of a plan must be one value, not {shorten(str(value), 40)}")
    return resolve(as_plan(fields), 1)


def _fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Values by field; a layout may be a list."""
    out: dict[str, Any] = {}
    for key, value in given.items():
        name = field_called(key)
        if name not in DERIVED_KEYS:
            check_field(name)
            layout = name == "layers_per_stage" and isinstance(value, list)
            out[name] = tuple(value) if layout else value
    return out


SPLIT_DEGREES = {"TP": "tp", "PP": "pp", "EP": "ep"}
"""Splits of a model, and the degree of each."""
ZERO_3 = "ZeRO-3"
"""Parameters sharded over data-parallel ranks."""
UNSPLIT = "DP"
"""Every GPU has the whole model."""
FAMILY_COUNT = 2 ** (len(SPLIT_DEGREES) + 1)


def families(plans: Plan) -> Index:
    """The family of each plan [row], a number below FAMILY_COUNT: a bit a split."""
    out: Index = (np.asarray(plans.zero) == 3).astype(np.intp) << len(SPLIT_DEGREES)
    for bit, degree in enumerate(SPLIT_DEGREES.values()):
        out |= (np.asarray(getattr(plans, degree)) > 1).astype(np.intp) << bit
    return out


def split_count(plans: Plan) -> Column:
    """In how many ways each plan splits the model [row]."""
    bits = families(plans)[:, None] >> np.arange(len(SPLIT_DEGREES) + 1) & 1
    return np.asarray(bits.sum(axis=1), np.int64)


def family_name(family: int) -> str:
    """The name of a family: 'TP+PP'."""
    names = [name for bit, name in enumerate((*SPLIT_DEGREES, ZERO_3)) if family >> bit & 1]
    return "+".join(names) or UNSPLIT
