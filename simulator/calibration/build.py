"""Which files does a calibration become? The profile, and tables that a measured step rescales."""

from __future__ import annotations

import datetime
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from .. import gemm_tables
from ..plan import Plan
from ..task import Task
from . import step_scale
from .fit import Calibration
from .profile_text import Changes, profile_text, scaled_table, table_paths, table_text
from .robust import Fit, errors


@dataclass(frozen=True, kw_only=True)
class Step:
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
    notes: tuple[str, ...] = ()


def build(
    base: str, calibration: Calibration, out: Path, step: Step | None = None, date: str = ""
) -> Result:
    """The profile to be written at `out`: fitted constants, then the scale of a measured step."""
    dropped, notes = _tables(base, calibration)
    date = date or datetime.date.today().isoformat()
    changes = Changes(
        numbers=calibration.numbers,
        citation=_citation(calibration, date),
        remarks=tuple(_remarks(base, calibration)),
        dropped_tables=dropped,
    )
    if step is None:
        return Result(profile=profile_text(base, changes, out.parent), notes=tuple(notes))
    scale = _scale(base, changes, step)
    tables = _scaled_tables(base, dropped, scale, out.stem)
    changes = replace(
        changes,
        scale=scale,
        scale_citation=_scale_citation(scale, step, date),
        table_files={width: name for width, (name, _) in tables.items()},
    )
    said = step_scale.remark(scale)
    return Result(
        profile=profile_text(base, changes, out.parent),
        tables=dict(tables.values()),
        scale=scale,
        notes=(*notes, said) if said else tuple(notes),
    )


def _citation(calibration: Calibration, date: str) -> str:
    files = ", ".join(dict.fromkeys(calibration.sources))
    gpu = f" ({calibration.gpu})" if calibration.gpu else ""
    return f"fitted to {files}{gpu} on {date} by plan3d calibrate"


def _scale_citation(scale: float, step: Step, date: str) -> str:
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


def _tables(base: str, calibration: Calibration) -> tuple[frozenset[str], list[str]]:
    """Widths whose table of the base predicts the rows worse than the fitted constants do."""
    paths = table_paths(base)
    dropped, notes = set(), []
    for fit in calibration.fits:
        width = fit.subject.section.removeprefix("kernels.gemm.")
        if width not in paths:
            continue
        table = _table_error(fit, paths[width])
        fitted = (fit.held_out or fit.in_sample).median
        if table is None or table > fitted:
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


def _table_error(fit: Fit, path: str) -> float | None:
    sides = fit.subject.sides
    if sides is None:
        return None
    seconds = gemm_tables.seconds(gemm_tables.load(path), sides[:, None, :])[0]
    return errors(seconds, fit.subject.seconds).median


def _scale(base: str, changes: Changes, step: Step) -> float:
    """The sustained share of the step on the profile without it."""
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder) / "draft.toml"
        draft.write_text(profile_text(base, changes, draft.parent), encoding="utf-8")
        return step_scale.sustained_scale(step.task(draft), step.plan, step.seconds)


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
