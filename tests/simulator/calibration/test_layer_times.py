"""Timed layers, and runs, become a table that a profile uses; times the simulator made."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from plan3d.simulator.base.errors import CalibrationError
from plan3d.simulator.calibration.fit import layer_times
from plan3d.simulator.calibration.fit.build import Result, build
from plan3d.simulator.calibration.fit.comparison import compare
from plan3d.simulator.calibration.fit.fit import fit
from plan3d.simulator.calibration.fit.layer_times import LayerTimes, check_generalises
from plan3d.simulator.calibration.fit.robust import Errors
from plan3d.simulator.calibration.readers.measurements import Measurements, as_rows
from plan3d.simulator.hardware import layer_tables
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.runs.published_runs import read_runs

BASE = "h200-sxm"
SHAPES = list(itertools.product((2048, 4096), (1, 4), ((1, 2048), (4, 2048), (1, 8192))))
NONE = as_rows([], "none")


def slower(hidden: int, tp: int) -> float:
    """What the made machine takes over the model: smooth in the logarithms of the sizes."""
    return 1.2 * (hidden / 2048) ** 0.1 * tp**0.05


def measured(keep: int = len(SHAPES)) -> Measurements:
    """Rows as `measure` writes them."""
    rows: list[dict[str, object]] = []
    for hidden, tp, (batch, sequence) in SHAPES[:keep]:
        shape = {"hidden": hidden, "ffn": 4 * hidden, "heads": hidden // 128, "kv_heads": 8}
        shape |= {"head_dim": 128, "tp": tp, "batch": batch, "sequence": sequence}
        column = np.array([[float(x)] for x in shape.values()])
        order = [list(shape).index(name) for name in layer_times._SHAPE_COLUMNS]
        software = software_profile("megatron-core")
        modelled = layer_times._modelled_alike(Path(BASE), software, column[order])[:, 0]
        times = slower(hidden, tp) * modelled
        row = {"suite": "layer", "dtype": "bf16", **shape}
        rows.append({**row, "op": "forward", "seconds": times[0]})
        rows.append({**row, "op": "forward_backward", "seconds": times.sum()})
    return as_rows(rows, "layers.csv")


def written(folder: Path, table: Measurements) -> tuple[Path, Result]:
    out = folder / "mine.toml"
    result = build(BASE, fit(table, BASE), out, date="2026-01-02")
    out.write_text(result.profile)
    for name, text in result.tables.items():
        (folder / name).write_text(text)
    return out, result


def test_timed_layers_are_shown(tmp_path: Path) -> None:
    ratios = [slower(hidden, tp) for hidden, tp, _ in SHAPES]
    (base,) = compare(measured(), BASE)
    assert base.subject.name == "whole layers, megatron-core"
    assert base.in_sample.rows == len(SHAPES)
    assert base.in_sample.median == pytest.approx(np.median(1 - 1 / np.array(ratios)))
    path, _ = written(tmp_path, measured())
    (mine,) = compare(measured(), str(path))
    assert mine.in_sample.median < 0.01
    (other,) = compare(measured(2), BASE, stack="nanotron")
    assert other.subject.name == "whole layers, nanotron"


def test_timed_layers_become_a_table(tmp_path: Path) -> None:
    path, result = written(tmp_path, measured())
    assert sorted(file.name for file in tmp_path.iterdir()) == ["mine-layers.csv", "mine.toml"]
    assert result.layers is not None
    assert result.layers.without_table.median > 0.15
    assert result.layers.held_out.median < 0.1
    entry = Cluster.profile(path, nodes=1).accelerator.layer_tables["megatron-core"]
    table = layer_tables.table_of(entry)
    for hidden, tp, (batch, sequence) in SHAPES:
        at = np.array([[hidden], [tp], [batch], [sequence]], float)
        assert layer_tables.ratios(table, at) == pytest.approx(slower(hidden, tp), rel=1e-4)


def test_too_few_layers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="3 with a forward"):
        fit(measured(3), BASE)


def test_runs_become_a_table_for_their_stack(tmp_path: Path) -> None:
    runs = [run for run in read_runs() if run.source == "vtrain24_single"]
    alike = [run for run in runs if run["layers"] == 12 and run["global_batch"] == 16]
    found = fit(NONE, "a100-80gb-sxm", runs=alike)
    result = build("a100-80gb-sxm", found, tmp_path / "mine.toml")
    layers = result.layers
    assert layers is not None
    assert layers.stack == "vtrain"
    assert not layers.timed_alone
    assert layers.held_out.median < 0.6 * layers.without_table.median
    assert "held for its constants" in result.notes[0]


@pytest.mark.slow
def test_the_error_held_out_does_not_depend_on_where_the_profile_lies(tmp_path: Path) -> None:
    runs = [run for run in read_runs() if run.source == "vtrain24_single"]
    alike = [run for run in runs if run["layers"] == 12 and run["global_batch"] == 16]
    explain = fit(NONE, "a100-80gb-sxm", runs=alike).layers
    assert explain is not None
    found = set()
    for name in ("one", "two"):
        profile = tmp_path / f"{name}.toml"
        profile.write_text('base = "a100-80gb-sxm"\n')
        found.add(explain(profile).held_out)
    assert len(found) == 1


@pytest.mark.parametrize(("held_out", "refused"), [(0.04, False), (0.06, True)])
def test_a_table_that_predicts_no_other_run_is_refused(held_out: float, refused: bool) -> None:
    layers = LayerTimes(
        stack="vtrain",
        sizes=np.ones((4, 1)),
        seconds=np.ones((4, 1)),
        origins=("vtrain24_single",),
        without_table=Errors(rows=20, median=0.05, p90=0.1, bias=0.0),
        held_out=Errors(rows=20, median=held_out, p90=0.1, bias=0.0),
        split="runs",
    )
    if refused:
        with pytest.raises(CalibrationError, match="did not see"):
            check_generalises(layers)
    else:
        check_generalises(layers)


@pytest.mark.parametrize(
    ("source", "stack", "problem"),
    [
        ("zerobubble24", None, "needs at least 16"),
        ("vtrain24_single", "nanotron", "the runs are of vtrain"),
    ],
)
def test_runs_that_cannot_make_a_table(source: str, stack: str | None, problem: str) -> None:
    runs = [run for run in read_runs() if run.source == source][:100]
    with pytest.raises(CalibrationError, match=problem):
        fit(NONE, "a100-80gb-sxm", runs=runs, stack=stack)


def test_runs_of_several_stacks_make_no_table() -> None:
    every = read_runs()
    some = [
        [r for r in every if r.source == name][:5] for name in ("vtrain24_single", "zerobubble24")
    ]
    with pytest.raises(CalibrationError, match=r"runs of vtrain, zero-bubble: .* is for one stack"):
        fit(NONE, "a100-80gb-sxm", runs=[*some[0], *some[1]])
