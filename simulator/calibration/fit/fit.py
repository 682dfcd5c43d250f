"""Fitted constants of a machine from measurements, each with its errors and flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...base.arrays import Value
from ...base.errors import CalibrationError
from ...hardware import gemm_tables
from ...hardware.accelerator import Accelerator, GemmTime, chip_of
from ...hardware.cluster import Cluster, CollectiveTime
from ...hardware.precision import FORMATS
from ...hardware.profile_file import profile_names
from ...hardware.profile_schema import QUANTITIES
from ...hardware.software_stack import DEFAULT_SOFTWARE
from ...operators import kernel_times
from ...runs.published_runs import PublishedRun
from ..readers.measurements import Measurements, usable
from . import layer_times
from .layer_times import LayerComparison
from .links import fast_subjects, fit_links, followers, network_subjects
from .robust import Constant, Fit, Subject, errors, fit_subject
from .subjects import (
    TRAINING_SECTION,
    host_subjects,
    kernel_subjects,
    layer_floor,
    training_subjects,
)
from .whole_steps import STACKS

UNUSED_ROWS = {
    "products beside collectives (what overlap costs is a stack's number)": ("contention", ""),
    "launches from CUDA graphs (no stack is modelled with them)": ("launch", "_graph"),
    "single launches (a layer's are used)": ("launch", "kernel_eager"),
    "backward passes of grouped GEMMs (taken at the rates of the others)": ("grouped", "backward"),
    "products with their quantisation (a step counts it apart)": ("gemm", "forward_quantised"),
    "products scaled by rows (kernels.formats is not fitted)": ("gemm", "forward_rowwise"),
    "weight gradients in fp32 (a stack's number)": ("gemm", "wgrad_fp32"),
    "attention of narrower values (at the rate of the others)": ("attention", "latent_forward"),
    "SwiGLU by eager kernels (a stack's number)": ("memory", "swiglu_forward"),
}
"""Rows that nothing in the cost model could use: suite, and how their op ends."""
_STEPS = "training steps are not fitted: calibrate show compares them"


RELATED_CHIPS = (
    {"A100", "A800"},
    {"H100", "H200", "H800", "H20", "GH200"},
    {"B200", "GB200", "B300", "GB300"},
    {"MI300X", "MI325X"},
    {"MI350X", "MI355X"},
)
"""Chips of one die, with other memory or links: rows of one may be fitted onto another."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Fitted constants by dotted key of the profile, the fits behind them, and remarks."""

    fits: tuple[Fit, ...]
    numbers: Mapping[str, Constant]
    notes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    gpu: str = ""
    layers: LayerComparison | None = None
    """Timed layers, to be compared with what the fitted profile predicts of them."""


def fit(
    table: Measurements,
    base: str,
    *,
    gpu: str | None = None,
    runs: Sequence[PublishedRun] = (),
    stack: str | None = None,
    links: tuple[str, ...] = (),
) -> Calibration:
    """Fit what the rows can determine, starting from the machine of a base profile.

    `runs` are timed training runs in the columns of published ones; `stack` names the software
    profile that timed layers stand for; the bandwidths of `links` are fitted as well. Raises
    CalibrationError where nothing can be fitted, or a link cannot; another part that cannot is
    noted.
    """
    table, apart = _fittable_rows(usable(table, gpu))
    machine = Cluster.profile(base, nodes=1)
    if processors := _processors(table):
        raise CalibrationError(
            f"the rows were measured on {processors[0]}, which is no GPU, and make no profile; "
            "plan3d calibrate show compares such rows with a prediction"
        )
    _check_gpu(table.gpus(), base, machine)
    cluster, linked = fit_links(table, machine, links)
    fits, notes = _fits(table, cluster)
    fits = [*linked, *fits]
    notes += apart
    if np.isin(table.text("suite"), list(STACKS)).any():
        notes.append(_STEPS)
    layers, floor = _layers(table, runs, stack, notes), layer_floor(table)
    if not fits and not layers and not floor and not len(table.matching(suite="step")):
        raise CalibrationError("; ".join(notes) or "no row that a constant is fitted to")
    numbers = dict(followers(machine, cluster))
    numbers |= {
        key: constant
        for one in fits
        for name, constant in one.constants.items()
        for key in [key_of(one.subject, name)]
        if key in QUANTITIES
    }
    numbers |= {f"{TRAINING_SECTION}.{name}": constant for name, constant in floor.items()}
    return Calibration(
        fits=tuple(fits),
        numbers=numbers,
        notes=(*notes, *remarks(table)),
        sources=table.sources,
        gpu=", ".join(table.gpus()),
        layers=layers,
    )


def _check_gpu(gpus: tuple[str, ...], base: str, machine: Cluster) -> None:
    """CalibrationError where rows name a GPU that has a profile of its own, and the base is of an
    unrelated one; a GPU that no profile is of may have any base."""
    own = chip_of(machine.accelerator.name)
    for gpu in gpus:
        measured = chip_of(gpu)
        alike = any({measured, own} <= chips for chips in RELATED_CHIPS)
        if not measured or not own or measured == own or alike:
            continue
        of = [
            name
            for name in profile_names()
            if chip_of(Cluster.profile(name, nodes=1).accelerator.name) == measured
        ]
        if of:
            raise CalibrationError(
                f"the rows were measured on {gpu}, and --base {base} is of {own}: give --base "
                f"{' or '.join(of)}"
            )


def _fittable_rows(table: Measurements) -> tuple[Measurements, list[str]]:
    """Rows of one group and of caches as they are, and notes on the others: no constant is of
    several groups at once, and a step's kernels find some of their operands in the caches."""
    several, cold = table.number("groups") > 1, table.number("cold_cache") > 0
    told = {"several groups at once": several, "emptied caches": cold & ~several}
    notes = [
        f"{int(n)} rows of {what} are not fitted" for what, at in told.items() if (n := at.sum())
    ]
    return table.take(~(several | cold)), notes


def _layers(
    table: Measurements, runs: Sequence[PublishedRun], stack: str | None, notes: list[str]
) -> LayerComparison | None:
    """Layers timed alone, else those of runs."""
    try:
        alone = layer_times.timed_layers(table, stack or DEFAULT_SOFTWARE)
        return alone or layer_times.run_layers(runs, stack)
    except CalibrationError as error:
        notes.append(str(error))
        return None


def key_of(subject: Subject, name: str) -> str:
    """Dotted key of a constant in the profile."""
    head, dot, tail = name.partition(".")
    return f"links.fast.switch_all_reduce.{tail}" if dot else f"{subject.section}.{head}"


def _fits(table: Measurements, cluster: Cluster) -> tuple[list[Fit], list[str]]:
    """Kernels and collectives inside the fast domain first, then what is on top of them."""
    fits: list[Fit] = []
    notes: list[str] = []
    for subject in kernel_subjects(table, cluster):
        _fit_or_note(subject, fits, notes)
    for subject in training_subjects(table, with_gemms(cluster.accelerator, fits)):
        _fit_or_note(subject, fits, notes)
    for subject in host_subjects(table, cluster):
        _fit_or_note(subject, fits, notes)
    if cluster.host is None and len(table.matching(suite="copy")):
        notes.append("host copies: the base has no [host]")
    for subject in fast_subjects(table, cluster):
        _fit_or_note(subject, fits, notes)
    for subject in network_subjects(table, _with_fast(cluster, fits)):
        _fit_or_note(subject, fits, notes)
    return fits, notes


def with_gemms(accelerator: Accelerator, fits: Sequence[Fit]) -> Accelerator:
    """The accelerator with the fitted GEMM constants, without the tables that are worse."""
    constants, tables = dict(accelerator.gemm), dict(accelerator.gemm_tables)
    for one in fits:
        width = one.subject.section.removeprefix("kernels.gemm.")
        if width in constants:
            values = {name: constant.value for name, constant in one.constants.items()}
            constants[width] = GemmTime(**values)
            if width in tables and not table_serves(one, accelerator):
                del tables[width]
    return replace(accelerator, gemm=constants, gemm_tables=tables)


def table_error(fit: Fit, accelerator: Accelerator) -> float | None:
    """Median error of the accelerator's table on the rows; None where they cannot be compared."""
    predicted = tabled_seconds(fit.subject, accelerator)
    return None if predicted is None else errors(predicted, fit.subject.seconds).median


def table_serves(fit: Fit, accelerator: Accelerator) -> bool:
    """Whether the accelerator's table predicts the rows as well as the fitted constants do."""
    found = table_error(fit, accelerator)
    return found is not None and found <= (fit.held_out or fit.in_sample).median


def _fit_or_note(subject: Subject, fits: list[Fit], notes: list[str]) -> None:
    try:
        fits.append(fit_subject(subject))
    except CalibrationError as error:
        notes.append(str(error))


def _with_fast(cluster: Cluster, fits: list[Fit]) -> Cluster:
    """The cluster with the collectives that were fitted inside its fast domain."""
    changes: dict[str, Any] = {}
    for one in fits:
        section, _, op = one.subject.section.rpartition(".")
        if section == "links.fast":
            plain = {n: c.value for n, c in one.constants.items() if "." not in n}
            changes[op] = CollectiveTime(**plain)
    return replace(cluster, fast_domain=replace(cluster.fast_domain, **changes))


def remarks(table: Measurements) -> tuple[str, ...]:
    """On rows of a processor, and on rows that no constant is fitted to and nothing predicts."""
    found = [f"measured on {name}: a test of the code, of no GPU" for name in _processors(table)]
    return (*found, *_unused_remarks(table))


def _processors(table: Measurements) -> list[str]:
    """Names of the processors, no GPUs, that rows were measured on."""
    return [name for name in table.gpus() if name.startswith("cpu ")]


def _unused_remarks(table: Measurements) -> tuple[str, ...]:
    suites, ops = table.text("suite"), table.text("op")
    found = [
        what
        for what, (suite, end) in UNUSED_ROWS.items()
        if ((suites == suite) & np.char.endswith(ops, end)).any()
    ]
    return (f"rows not used: {', '.join(found)}",) if found else ()


def tabled_seconds(subject: Subject, accelerator: Accelerator) -> Value | None:
    """Seconds of GEMMs from the accelerator's table; None for anything else."""
    width = subject.section.removeprefix("kernels.gemm.")
    if width not in accelerator.gemm_tables or subject.sides is None:
        return None
    form = FORMATS[subject.name.removeprefix("GEMM ")]
    table = kernel_times.gemm_table(accelerator, form)
    seconds: Value = gemm_tables.seconds(table, subject.sides[:, None, :])[0]
    return seconds
