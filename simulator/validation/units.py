"""Units of published runs: one stack on one kind of machine, which counts once however many rows.

Source: definitions of populations and votes in docs/accuracy.md.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..base.arrays import Index, Mask
from ..base.errors import InputError, did_you_mean
from ..runs.run_cluster import machine_class, precision_class

if TYPE_CHECKING:
    from ..runs.published_runs import PublishedRun
    from .predict_runs import Prediction

MOST_ROWS = 40
"""Rows of a unit that count: those of a large one, evenly spaced."""
FEWEST_ROWS = 6
"""Timed rows that make a unit."""
MOST_TOY_HIDDEN = 1024
"""Hidden sizes up to this are toys."""
LEAST_MFU = 0.05
"""Rows of the core population are predicted to use at least this share of the machine: what was
measured chooses none."""
SCORED_USES = ("score", "score-only")
"""Values of time_use of rows that are scored."""

FOLD_SEED, FOLD_SHARE = "0.1.0", 4
"""Seed of the outer fold, changed at each release, and one in how many origins it holds back."""

_KINDS = {"moe": "moe", "hybrid": "hybrid", "bert": "bert", "resnet": "resnet"}


class Unit(NamedTuple):
    """One source on one accelerator, precision class and kind of training."""

    source: str
    accelerator: str
    precision: str
    """16-bit, fp32, fp8, mxfp8 or nvfp4."""
    kind: str
    """dense, moe, hybrid, bert, resnet or fine-tuning."""

    def __str__(self) -> str:
        return " / ".join(self)


CORE = tuple(
    Unit(source, accelerator, "16-bit", "dense")
    for source, accelerator in (
        ("bigscience_gpt2_v100", "v100-32gb-sxm"),
        ("bloom_prequel22", "a100-80gb-sxm"),
        ("dgxc", "gb200"),
        ("dgxc", "h100-sxm"),
        ("hagemann24", "a100-80gb-sxm"),
        ("hf_ultrascale", "h100-sxm"),
        ("llmfoundry", "a100-40gb-sxm"),
        ("llmfoundry", "a100-80gb-sxm"),
        ("llmfoundry", "h100-sxm"),
        ("megatron_sc21", "a100-80gb-sxm"),
        ("vtrain24_multi", "a100-80gb-sxm"),
        ("vtrain24_single", "a100-80gb-sxm"),
        ("zerobubble24", "a100-80gb-sxm"),
    )
)
"""The frozen core; hagemann24 is there only where its runs are given."""
MICROBENCHMARK_SOURCES = ("aws_moe", "aws_pcs")
"""Sources whose steps are facts of microbenchmarks: they teach as origins of their own, and are in
no population that is scored."""
POPULATIONS = ("core", "all")


def unit_of(run: PublishedRun) -> Unit:
    """The unit of a run."""
    tuned = run["training"] != "pretrain"
    kind = "fine-tuning" if tuned else _KINDS.get(run.get("family", ""), "dense")
    if kind == "dense" and run["experts"]:
        kind = "moe"
    return Unit(run.source, run["accelerator"], precision_class(str(run["dtype"])), kind)


def class_of(run: PublishedRun) -> tuple[str, str, str, str]:
    """Kind of machine, precision, kind, and whether it ran on one node: a row of the table."""
    unit = unit_of(run)
    node = run.get("gpus_per_node", 8)
    return (
        machine_class(unit.accelerator),
        unit.precision,
        unit.kind,
        "one node" if run["gpus"] <= node else "many nodes",
    )


def is_held_back(origin: str) -> bool:
    """Whether an origin is in the outer fold: nothing is developed with its rows in sight until the
    release after that of FOLD_SEED. What decides is its name alone, so that new origins are drawn
    as they come."""
    return zlib.crc32(f"{FOLD_SEED}/{origin}".encode()) % FOLD_SHARE == 0


def check_population(name: str) -> None:
    """Raise InputError for a population that there is not."""
    if name not in POPULATIONS:
        raise InputError(f"unknown population {name!r}{did_you_mean(name, POPULATIONS)}")


def population(p: Prediction, name: str) -> Mask:
    """Which rows belong to the population of that name, whole units only."""
    check_population(name)
    units = [unit_of(q.run) for q in p.questions]
    scored = p.is_timed & np.array(
        [q.run.get("time_use", "score") in SCORED_USES for q in p.questions], bool
    )
    if name == "core":
        inside = np.array([unit in CORE for unit in units], bool)
        chosen: Mask = scored & inside & (p.predicted_mfu >= LEAST_MFU)
    else:
        wide = [q.run.get("hidden", 0) > MOST_TOY_HIDDEN for q in p.questions]
        facts = [q.run.source in MICROBENCHMARK_SOURCES for q in p.questions]
        chosen = scored & np.array(wide, bool) & ~np.array(facts, bool)
    counts: dict[Unit, int] = {}
    for unit, kept in zip(units, chosen, strict=True):
        counts[unit] = counts.get(unit, 0) + int(kept)
    enough = np.array([counts[unit] >= FEWEST_ROWS for unit in units], bool)
    whole: Mask = chosen & enough
    return whole


def microbenchmark_rows(unit: Unit, p: Prediction, rows: Sequence[int]) -> list[int]:
    """Timed rows of a unit of MICROBENCHMARK_SOURCES that is large enough to teach, predicted at
    LEAST_MFU and more."""
    used = p.is_timed & (p.predicted_mfu >= LEAST_MFU)
    timed = [row for row in rows if used[row]] if unit.source in MICROBENCHMARK_SOURCES else []
    return timed if len(timed) >= FEWEST_ROWS else []


def evenly_sampled(rows: Sequence[int]) -> Index:
    """At most MOST_ROWS of the rows, evenly spaced."""
    chosen = np.linspace(0, len(rows) - 1, min(len(rows), MOST_ROWS)).round().astype(int)
    some: Index = np.array(rows)[chosen]
    return some


def rows_by_unit(p: Prediction) -> dict[Unit, list[int]]:
    """Rows of each unit, in the order of their names."""
    found: dict[Unit, list[int]] = {}
    for row, q in enumerate(p.questions):
        found.setdefault(unit_of(q.run), []).append(row)
    return dict(sorted(found.items()))
