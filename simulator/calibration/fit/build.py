"""The files of a calibration: the profile, and tables that a measured step rescales."""

from __future__ import annotations

import datetime
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from ...hardware import layer_tables
from ...hardware.accelerator import chip_of
from ...hardware.cluster import Cluster
from ...plan.plan import Plan
from ...task import Task
from .fit import Calibration, table_error, table_serves
from .layer_times import LayerTimes, check_generalises
from .profile_text import (
    Changes,
    LayerFile,
    copied_tables,
    keeps_layers,
    layer_paths,
    profile_text,
    scaled_table,
    table_paths,
    table_text,
)
from .whole_steps import scale_remark, sustained_scale

Answer = TypeVar("Answer")

LAYER_FILE_REMARK = (
    "times: of a rank's share without communication and recompute; plan3d uses measured / modelled"
)


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """A training step that was measured."""

    task: Callable[[Path], Task]
    """The question, on the cluster of a profile file."""
    plan: Plan
    seconds: float
    source: str


@dataclass(frozen=True, kw_only=True)
class Result:
    """What to write and to say."""

    profile: str
    tables: Mapping[str, str] = field(default_factory=dict)
    """Text by file name, to be put beside the profile."""
    scale: float | None = None
    layers: LayerTimes | None = None
    """Where a table of layers was made."""
    notes: tuple[str, ...] = ()


def build(
    base: str, calibration: Calibration, out: Path, step: MeasuredStep | None = None, date: str = ""
) -> Result:
    """The profile to be written at `out`: fitted constants, a table of layers over them, then the
    scale of a measured step over both."""
    dropped, notes = _worse_tables(base, calibration)
    date = date or datetime.date.today().isoformat()
    changes = Changes(
        numbers=calibration.numbers,
        citation=_citation(calibration, date),
        remarks=tuple(_remarks(base, calibration)),
        dropped_tables=dropped,
        gpu=_another_gpu(base, calibration),
    )
    layers: LayerTimes | None = None
    tables: dict[str, str] = {}
    if calibration.layers is not None:
        layers = _on_draft(base, changes, {}, calibration.layers)
        check_generalises(layers)
        changes, tables = _with_layers(base, changes, layers, out.stem, date)
    if not keeps_layers(changes) and layer_paths(base):
        stacks = ", ".join(layer_paths(base))
        notes.append(f"the base's table of layers ({stacks}) held for its constants: left out")
    scale = None
    if step is not None:
        scale = _on_draft(base, changes, tables, partial(_sustained_scale, step))
        changes, scaled = _with_scale(base, changes, scale, step, out.stem, date)
        tables = {**tables, **scaled}
        notes += [said] if (said := scale_remark(scale)) else []
    return Result(
        profile=profile_text(base, changes, out),
        tables={**copied_tables(base, changes, out), **tables},
        scale=scale,
        layers=layers,
        notes=tuple(notes),
    )


def _on_draft(
    base: str, changes: Changes, tables: Mapping[str, str], use: Callable[[Path], Answer]
) -> Answer:
    """What `use` makes of the profile so far, in a file of its own."""
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder) / "draft.toml"
        draft.write_text(profile_text(base, changes, draft), encoding="utf-8")
        beside = {**copied_tables(base, changes, draft), **tables}
        for name, text in beside.items():
            draft.with_name(name).write_text(text, encoding="utf-8")
        return use(draft)


def _with_layers(
    base: str, changes: Changes, layers: LayerTimes, stem: str, date: str
) -> tuple[Changes, dict[str, str]]:
    """The changes with a table of layers, and its text by file name."""
    name = f"{stem}-layers.csv"
    how = "timed alone" if layers.timed_alone else "fitted to whole steps, not timed alone"
    citation = (
        f"{layers.seconds.shape[1]} layers of {layers.stack}, {how} ({layers.held_out.rows} "
        f"{layers.split}); off by {layers.held_out.median:.1%} (median) on {layers.split} that it "
        f"did not see, {layers.without_table.median:.1%} without it; plan3d calibrate fit, {date}"
    )
    remarks = (
        citation,
        f"modelled: with profile {Path(base).name}, as calibrated",
        LAYER_FILE_REMARK,
    )
    file = LayerFile(stack=layers.stack, file=name, citation=citation, origins=layers.origins)
    text = layer_tables.format_table(layers.sizes, layers.seconds, remarks)
    return replace(changes, layer_file=file), {name: text}


def _with_scale(
    base: str, changes: Changes, scale: float, step: MeasuredStep, stem: str, date: str
) -> tuple[Changes, dict[str, str]]:
    """The changes with the scale of a step, and tables of GEMMs at that scale by file name."""
    scaled = _scaled_tables(base, changes.dropped_tables, scale, stem)
    new = replace(
        changes,
        scale=scale,
        scale_citation=_scale_citation(scale, step, date),
        table_files={width: name for width, (name, _) in scaled.items()},
    )
    return new, dict(scaled.values())


def _another_gpu(base: str, calibration: Calibration) -> str:
    """The GPU that was measured, where the base is of another: a profile has no other's name."""
    own = Cluster.profile(base, nodes=1).accelerator.name
    measured = calibration.gpu
    several = "," in measured
    return "" if several or chip_of(measured) == chip_of(own) else measured


def _citation(calibration: Calibration, date: str) -> str:
    files = ", ".join(dict.fromkeys(calibration.sources))
    gpu = f" ({calibration.gpu})" if calibration.gpu else ""
    return f"fitted to {files}{gpu} on {date} by plan3d calibrate"


def _scale_citation(scale: float, step: MeasuredStep, date: str) -> str:
    return (
        f"the number before, times {scale:.4g}: the share of the kernels' rate that the step of "
        f"{step.seconds:.4g} s in {step.source} keeps; plan3d calibrate fit, {date}"
    )


def _remarks(base: str, calibration: Calibration) -> list[str]:
    """What was fitted and how well, for the top of the file."""
    out = [f"Profile {Path(base).name}, calibrated by plan3d. Errors are medians (p90)."]
    for fit in calibration.fits:
        found = fit.held_out
        held = f", held out {found.median:.1%} ({found.p90:.1%})" if found else ""
        sample = f"in sample {fit.in_sample.median:.1%} ({fit.in_sample.p90:.1%})"
        out.append(f"{fit.subject.name}: {fit.in_sample.rows} rows, {sample}{held}")
    return out


def _worse_tables(base: str, calibration: Calibration) -> tuple[frozenset[str], list[str]]:
    """Widths whose table of the base predicts the rows worse than the fitted constants do."""
    accelerator = Cluster.profile(base, nodes=1).accelerator
    dropped, notes = set(), []
    for fit in calibration.fits:
        width = fit.subject.section.removeprefix("kernels.gemm.")
        if width not in accelerator.gemm_tables:
            continue
        table, fitted = table_error(fit, accelerator), (fit.held_out or fit.in_sample).median
        if not table_serves(fit, accelerator):
            dropped.add(width)
            told = "cannot be compared with" if table is None else f"is {table:.1%} off on"
            notes.append(
                f"the base's table of {width} GEMMs {told} these rows and is left out; the fitted "
                f"constants are {fitted:.1%} off"
            )
        else:
            notes.append(
                f"the base's table of {width} GEMMs is kept: it is {table:.1%} off on these rows, "
                f"the fitted constants {fitted:.1%}"
            )
    return frozenset(dropped), notes


def _sustained_scale(step: MeasuredStep, profile: Path) -> float:
    """The sustained share of the step on a profile without it."""
    return sustained_scale(step.task(profile), step.plan, step.seconds)


def _scaled_tables(
    base: str, dropped: frozenset[str], scale: float, stem: str
) -> dict[str, tuple[str, str]]:
    """File name and text, by operand width, of the tables that stay."""
    out = {}
    for width, path in table_paths(base).items():
        if width not in dropped:
            name = f"{stem}-gemm-{width}.csv"
            out[width] = (name, scaled_table(table_text(path), scale))
    return out
