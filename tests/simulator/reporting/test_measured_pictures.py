"""Traced steps beside predicted ones and errors of published runs, as they are drawn."""

import json
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from not_empty import not_empty
from unit_pipelines import costs as unit_costs
from unit_pipelines import task as unit_task

from plan3d.simulator.calibration.traces.comparison import compare
from plan3d.simulator.calibration.traces.groups import Sizes
from plan3d.simulator.calibration.traces.job import traced_job
from plan3d.simulator.calibration.traces.reader import read_traces
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.reporting import traced_plot, validation_plot
from plan3d.simulator.reporting.measured_tracks import MEASURED, _threads, beside_measured
from plan3d.simulator.reporting.palette import BLACK, CYCLE
from plan3d.simulator.runs.published_runs import read_runs
from plan3d.simulator.runs.run_tasks import Question, questions
from plan3d.simulator.step.plan_timeline import timeline_of
from plan3d.simulator.validation.predict_runs import predict


def kernel(name, start, length, stream=7):
    return {
        "ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": start * 1e6,
        "dur": length * 1e6, "args": {"stream": stream},
    }  # fmt: skip


@pytest.fixture
def job(tmp_path):
    """A step of 10 seconds from second 5: products in 5-9, elementwise in 10-15 of which 1 second
    runs beside other products, on a second stream."""
    events = [
        kernel("nvjet", 5, 4),
        kernel("void at::native::vectorized_elementwise_kernel", 10, 5),
        kernel("nvjet", 11, 1, 8),
    ]
    path = tmp_path / "0.json"
    path.write_text(json.dumps({"distributedInfo": {"rank": 0}, "traceEvents": events}))
    return traced_job(read_traces([str(path)]), Sizes())


def spans(events, thread):
    return [(e["name"], e["ts"] / 1e6, e["dur"] / 1e6) for e in events if e["tid"] == thread]


def test_measured_parts_and_kernels_begin_with_their_step(job):
    x = timeline_of(unit_task(1, 2), Plan.parse("pp=1"))
    events = beside_measured(x, job)["traceEvents"]
    own = [e for e in events if e["pid"] == MEASURED and e["ph"] == "X"]
    parts = sorted(spans(own, 0), key=lambda span: span[1])
    assert parts == [
        ("matmul", 0, 4), ("gap", 4, 1), ("memory_bound", 5, 1), ("matmul", 6, 1),
        ("memory_bound", 7, 3),
    ]  # fmt: skip
    assert [span[1:] for span in spans(own, 1)] == [(0, 4), (5, 5)]
    assert [span[1:] for span in spans(own, 2)] == [(6, 1)]
    told = {e["pid"]: e["args"] for e in events if e["name"] == "process_name"}
    assert told == {
        0: {"name": "predicted, stage 0"},
        MEASURED: {"name": "measured, rank 0 (stage 0)"},
    }
    order = {e["pid"]: e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"}
    assert order == {0: 0, MEASURED: 1}


def test_measured_ranks_stand_below_their_stage(job):
    x = timeline_of(unit_task(2, 2), Plan.parse("pp=2"))
    events = beside_measured(x, job)["traceEvents"]
    order = {e["pid"]: e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"}
    assert order[0] < order[MEASURED] < order[1]
    assert order[1] == 100_001


def test_each_measured_rank_is_a_process_of_its_own(tmp_path):
    names = []
    for rank in (0, 1):
        path = tmp_path / f"{rank}.json"
        events = [kernel("nvjet", 5, 4), kernel("nvjet", 10, 1)]
        path.write_text(json.dumps({"distributedInfo": {"rank": rank}, "traceEvents": events}))
        names.append(str(path))
    job = traced_job(read_traces(names), Sizes())
    events = beside_measured(timeline_of(unit_task(2, 2), Plan.parse("pp=2")), job)["traceEvents"]
    told = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert sorted(told) == [0, 1, MEASURED, MEASURED + 1]
    assert told[MEASURED].startswith("measured, rank 0")
    assert told[MEASURED + 1].startswith("measured, rank 1")
    own = {e["pid"] for e in events if e["ph"] == "X" and e["name"] == "matmul"}
    assert own == {MEASURED, MEASURED + 1}


def test_kernels_of_a_stream_that_run_beside_each_other_have_threads_of_their_own():
    found = _threads([7, 7, 7, 8, 7], [0, 1, 2, 2, 4], [3, 4, 5, 3, 6])
    assert found == [(7, 0), (7, 1), (7, 2), (8, 0), (7, 0)]


def test_stacked_parts_reach_both_steps(job):
    axes = Figure().add_subplot()
    comparison = compare(unit_costs(unit_task(1, 2), "pp=1"), job)
    traced_plot._stacked_parts(axes, comparison)
    tops = {0: 0.0, 1: 0.0}
    for bar in not_empty(axes.patches):
        column = round(bar.get_x() + 0.3)
        assert bar.get_y() == pytest.approx(tops[column])
        tops[column] += bar.get_height()
    assert tops[0] == pytest.approx(comparison.costs.step_seconds, rel=1e-3)
    assert tops[1] == pytest.approx(10)
    assert axes.get_xlim() == (-0.5, 1.5)


def test_a_layer_is_drawn_from_its_start(job):
    """Of a layer from 8 to 12: products in 8-9 and 11-12, elementwise in 10-12, a gap in 9-10."""
    axes = Figure().add_subplot()
    traced_plot._layer_panel(axes, job.ranks[0], np.array([[8.0], [12.0]]), {})
    lines = {}
    for drawn, tick in zip(axes.collections, axes.get_yticklabels(), strict=True):
        boxes = [path.get_extents().extents for path in drawn.get_paths()]
        lines[tick.get_text()] = [(left, right) for left, _, right, _ in boxes]
        for _, low, _, high in boxes:
            assert (low, high) == pytest.approx((len(lines) - 1.4, len(lines) - 0.6))
    assert lines == {"matmul": [(0, 1), (3, 4)], "memory bound": [(2, 4)], "gaps": [(1, 2)]}
    assert axes.get_xlim() + axes.get_ylim() == (0, 4, 2.5, -0.5)


@pytest.fixture(scope="module")
def prediction():
    runs = [run for run in read_runs() if run.source in ("flagperf_paddle", "vtrain24_multi")]
    return predict([asked for asked in questions(runs) if isinstance(asked, Question)])


def test_errors_of_a_source_are_drawn_in_its_row(prediction):
    """All steps a tenth too long, one source's twice: medians at +10 % and at the end."""
    timed = prediction.take(prediction.is_timed)
    source = np.array([asked.run.source for asked in timed.questions])
    large = source == "vtrain24_multi"
    step = timed.measured_seconds * np.where(large, 1.1, 2.0)
    axes = Figure().add_subplot()
    validation_plot._errors(axes, replace(timed, step=step))
    for row, at in enumerate((10, 60)):
        x, y = axes.lines[row].get_data()
        assert [*x, *y] == pytest.approx([at, at, row - 0.4, row + 0.45])
        bins = axes.patches[row].get_data()
        assert np.diff(bins.edges) == pytest.approx(2)
        assert bins.baseline == pytest.approx(row + 0.45)
        (full,) = np.flatnonzero(bins.values < row + 0.45)
        assert bins.edges[full] <= at <= bins.edges[full + 1]
        assert bins.values[full] == pytest.approx(row - 0.4)
        assert axes.texts[row].get_position() == pytest.approx((61.8, row))
    assert [text.get_text() for text in axes.texts] == ["+10 %", "+100 %"]
    assert axes.get_title() == "Error by source (rows), median at the right"
    assert axes.get_xlim() + axes.get_ylim() == pytest.approx((-60, 60, 1.6, -0.6))
    band = axes.patches[2].get_extents().transformed(axes.transData.inverted())
    assert (band.x0, band.x1) == pytest.approx((-10, 10))


def test_runs_are_points_about_a_diagonal(prediction):
    timed = prediction.take(prediction.is_timed)
    axes = Figure().add_subplot()
    axes.set(xscale="log", yscale="log")
    validation_plot._points(axes, timed)
    measured, step = timed.measured_seconds, timed.step
    ends = (0.8 * min(*measured, *step), 1.25 * max(*measured, *step))
    assert axes.get_xlim() == axes.get_ylim() == pytest.approx(ends)
    band, *sources = axes.collections
    assert band.get_label() == "±10 %"
    corners = {tuple(np.round(corner / ends[1], 9)) for corner in band.get_paths()[0].vertices}
    assert {(1, 0.9), (1, 1.1)} <= corners
    drawn = np.concatenate([points.get_offsets() for points in sources])
    assert sorted(map(tuple, drawn.tolist())) == sorted(zip(measured, step, strict=True))
    assert len({tuple(points.get_facecolor()[0]) for points in sources}) == len(sources) == 2


def test_the_largest_sources_have_colours_of_their_own():
    """Those that people tell apart whose colour vision is weak, without black, which is a median's:
    seven."""
    colours = [validation_plot._colour(number) for number in range(9)]
    assert colours[7:] == ["0.5", "0.5"]
    assert len(set(colours)) == 8
    assert BLACK not in colours
    assert set(colours[:7]) < set(CYCLE)


@pytest.mark.parametrize(("layers", "panels"), [(0, 1), (1, 2)])
def test_a_traced_step_has_a_panel_for_its_slowest_layer_where_it_has_one(layers, panels, tmp_path):
    """2.6 inches each beside 2.2 for titles; a layer runs from an attention to the next."""
    events = [kernel("flash_fwd_kernel", 6 * at, 2) for at in range(2 * layers)]
    events += [kernel("nvjet", 6 * at + 2, 3) for at in range(3)]
    path = tmp_path / "0.json"
    path.write_text(json.dumps({"distributedInfo": {"rank": 0}, "traceEvents": events}))
    traced = traced_job(read_traces([str(path)]), Sizes())
    drawn = traced_plot.traced_page(compare(unit_costs(unit_task(1, 2), "pp=1"), traced))
    assert drawn.get_size_inches() == pytest.approx([7.5, 2.2 + 2.6 * panels])
    assert len(drawn.axes) == panels
    heights = [axes.get_subplotspec().get_gridspec().get_height_ratios() for axes in drawn.axes]
    assert heights == [(2, 1)[:panels]] * panels
    assert [axes.get_xlim() for axes in drawn.axes[1:]] == [pytest.approx((0, 6))] * layers
