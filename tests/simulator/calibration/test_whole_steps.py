"""Measured training steps are compared with what the public cost model says of the same plan."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from not_empty import not_empty

from plan3d import Model, Plan, Task, evaluate, software_profile
from plan3d.simulator.base.errors import CalibrationError
from plan3d.simulator.calibration.fit.build import build
from plan3d.simulator.calibration.fit.comparison import compare
from plan3d.simulator.calibration.fit.fit import fit
from plan3d.simulator.calibration.fit.layer_times import modelled_layers
from plan3d.simulator.calibration.fit.view import comparison_csv, show_record
from plan3d.simulator.calibration.fit.whole_steps import predicted_steps
from plan3d.simulator.calibration.measure.cases_training import training
from plan3d.simulator.calibration.measure.timing import FEWEST_BATCHES
from plan3d.simulator.calibration.readers.measurements import Measurements, as_rows
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.workload.blocks import Attention, Block, Mlp

GPU = Cluster.profile("h200-sxm", gpus=1)
TORCH = software_profile("torch")
SHAPE = {
    **{"hidden": 4096, "ffn": 14336, "heads": 32, "kv_heads": 8, "head_dim": 128},
    **{"layers": 4, "vocabulary": 32000, "batch": 2, "sequence": 4096, "micro_batches": 3},
    "recompute": 0,
}
LAYER = {name: SHAPE[name] for name in ("hidden", "ffn", "heads", "kv_heads", "head_dim")}
PEAKS = ("memory_bytes", "reserved_bytes")


def rows(*shapes: Mapping[str, object]) -> Measurements:
    kind = {"suite": "training", "op": "step", "dtype": "bf16", "gpu": "one"}
    return as_rows([{**kind, "seconds": 1.0, **shape} for shape in shapes], "made.csv")


def predicted(**changes: int) -> dict[str, float]:
    found = predicted_steps(rows({**SHAPE, **changes}), GPU, TORCH)
    return {name: float(column[0]) for name, column in found.items()}


@pytest.mark.parametrize(("recompute", "name"), [(0, "none"), (1, "full")])
def test_a_row_is_predicted_as_its_plan_is(recompute: int, name: str) -> None:
    attention = Attention(heads=32, kv_heads=8, head_dim=128, value_dim=128)
    block = Block(attention=attention, mlp=Mlp(ffn=14336, gated=True))
    model = Model(name="four", hidden=4096, vocabulary=32000, kinds=(block,), order=(0,) * 4)
    task = Task(model, GPU, sequence=4096, global_batch=6, software=TORCH)
    costs = evaluate(task, Plan(micro_batch=2, recompute=name))
    found = predicted(recompute=recompute)
    assert found["seconds"] == costs.step_seconds
    assert found["memory_bytes"] == pytest.approx(costs.memory_bytes - costs.memory["reserve"])
    assert found["reserved_bytes"] == pytest.approx(costs.memory_bytes - TORCH.context_bytes)
    assert found["memory_bytes"] > 18 * model.parameters


@pytest.mark.parametrize("size", ["batch", "sequence", "layers", "vocabulary", "ffn"])
def test_more_work_takes_more(size: str) -> None:
    less, more = predicted(), predicted(**{size: 2 * int(SHAPE[size])})
    assert all(more[name] > less[name] for name in not_empty(less))


def test_micro_batches_take_time_and_recompute_saves_memory() -> None:
    plain, longer, again = predicted(), predicted(micro_batches=6), predicted(recompute=1)
    assert longer["seconds"] > 1.8 * plain["seconds"]
    assert all(longer[name] == plain[name] for name in PEAKS)
    assert 1.1 < again["seconds"] / plain["seconds"] < 4 / 3
    assert all(again[name] < plain[name] for name in PEAKS)


def measured() -> Measurements:
    """Steps 10 % longer, 2 % less and 4 % more memory than predicted; one row twice as long."""
    shapes = [{**SHAPE, "batch": b, "recompute": r} for b in (1, 2, 4) for r in (0, 1)]
    found = predicted_steps(rows(*shapes), GPU, TORCH)
    found["seconds"] *= np.array([1.1, 1.1, 1.1, 1.1, 1.1, 2.0])
    found["memory_bytes"] /= 1.02
    found["reserved_bytes"] *= 1.04
    results = [dict(zip(found, each, strict=True)) for each in zip(*found.values(), strict=True)]
    return rows(*({**shape, **result} for shape, result in zip(shapes, results, strict=True)))


def test_three_subjects_with_their_errors() -> None:
    fits = compare(measured(), "h200-sxm")
    told = {subject["quantity"]: subject for subject in show_record("h200-sxm", fits)["subjects"]}
    assert list(told) == ["seconds", *PEAKS]
    assert all(subject["rows"] == 6 for subject in told.values())
    assert told["seconds"]["name"] == "training steps, torch"
    medians = {name: subject["median"] for name, subject in told.items()}
    assert medians == pytest.approx(
        {"seconds": 1 - 1 / 1.1, "memory_bytes": 0.02, "reserved_bytes": 1 - 1 / 1.04}
    )
    assert told["seconds"]["p90"] == pytest.approx(((1 - 1 / 1.1) + 0.5) / 2)
    assert told["memory_bytes"]["bias"] == pytest.approx(0.02)


def test_another_stack_is_predicted_when_it_is_named() -> None:
    own, other = compare(measured(), "h200-sxm"), compare(measured(), "h200-sxm", stack="fsdp")
    assert other[0].subject.name == "training steps, fsdp"
    assert own[1].in_sample.median < other[1].in_sample.median


def test_rows_without_peaks_are_compared_in_time_only() -> None:
    (only,) = compare(rows(SHAPE), "h200-sxm")
    assert only.subject.quantity == "seconds"


def test_predictions_stand_beside_what_was_measured() -> None:
    launch = {"suite": "launch", "op": "layer_forward_eager", "seconds": 2e-4, "gpu": "one"}
    copy = {"suite": "copy", "op": "host_to_device", "seconds": 1e-4, "gpu": "one", "bytes": 1e6}
    table = measured()
    extra = as_rows([launch, copy], "made.csv")
    table = Measurements(rows=(*extra.rows, *table.rows))
    text = comparison_csv("h200-sxm", table, compare(table, "h200-sxm"))
    (first, second, *steps) = csv.DictReader(io.StringIO(text))
    floor = software_profile("megatron-core").layer_floor
    assert float(first["seconds_ratio"]) == pytest.approx(floor / 2e-4)
    assert float(second["seconds_predicted"]) == pytest.approx(1e6 / 50.4e9, rel=1e-3)
    assert len(steps) == 6
    for step in steps:
        assert step["profile"] == "h200-sxm"
        for name in ("seconds", *PEAKS):
            ratio = float(step[f"{name}_predicted"]) / float(step[name])
            assert float(step[f"{name}_ratio"]) == pytest.approx(ratio, rel=1e-4)
        assert float(step["reserved_bytes_ratio"]) == pytest.approx(1 / 1.04, rel=1e-4)
    assert "experts" not in first


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"layers": ""},
            "made.csv row 2: layers must be a whole number of at least 1",
        ),
        ({"batch": 1.5}, "batch must be a whole number of at least 1, not 1.5"),
        ({"hidden": ""}, "hidden must be a whole number of at least 1, not nothing"),
        ({"hidden": -4096}, "hidden must be a whole number"),
        ({"sequence": "inf"}, "sequence 'inf' is no size that can be measured"),
        ({"recompute": 2}, "recompute must be 0 or 1, not 2"),
        ({"recompute": ""}, "recompute must be 0 or 1, not nothing"),
        ({"sequence": 2**31}, "made.csv row 2: sequence must be"),
    ],
)
def test_a_row_that_does_not_say_what_was_trained(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(CalibrationError) as refused:
        compare(rows(SHAPE, {**SHAPE, **changes}), "h200-sxm")
    assert problem in str(refused.value)


def test_steps_are_not_fitted_and_it_is_said() -> None:
    with pytest.raises(CalibrationError, match="training steps are not fitted"):
        fit(measured(), "h200-sxm")


def test_slower_layers_make_slower_steps(tmp_path: Path) -> None:
    batches = itertools.product((2048, 4096), (1,), (1, 2))
    shapes = [{**LAYER, "sequence": s, "tp": t, "batch": b} for s, t, b in batches]
    sizes = np.array([list(shape.values()) for shape in shapes], float).T
    forward, backward = 1.3 * modelled_layers(Path("h200-sxm"), TORCH, sizes)
    timed = [
        {"suite": "layer", "op": op, "gpu": "one", **shape, "seconds": seconds}
        for shape, f, both in zip(shapes, forward, forward + backward, strict=True)
        for op, seconds in (("forward", f), ("forward_backward", both))
    ]
    table, profile = as_rows(timed, "layers.csv"), tmp_path / "mine.toml"
    result = build("h200-sxm", fit(table, "h200-sxm", stack="torch"), profile)
    profile.write_text(result.profile)
    for name, text in result.tables.items():
        (tmp_path / name).write_text(text)
    mine = Cluster.profile(profile, gpus=1)
    slower = predicted_steps(rows(SHAPE), mine, TORCH)["seconds"][0]
    assert 1.15 < slower / predicted()["seconds"] < 1.3


def test_the_suite_is_made_for_a_card_of_80_gb_and_a_few_minutes() -> None:
    cases = list(training(quick=False))
    shapes = [case.shape for case in cases]
    assert {shape["hidden"] for shape in shapes} == {2048, 4096, 8192}
    assert {shape["batch"] for shape in shapes} >= {1, 8}
    assert {shape["sequence"] for shape in shapes} >= {2048, 32768}
    found = predicted_steps(rows(*shapes), GPU, TORCH)
    card = Cluster.profile("h100-sxm", gpus=1).accelerator.memory
    assert (found["reserved_bytes"] + TORCH.context_bytes).max() < card
    # Three calls to warm up, one to count, and the batches.
    assert (4 + FEWEST_BATCHES) * found["seconds"].sum() < 180
