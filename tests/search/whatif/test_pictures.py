"""Pictures of sweeps, systems and races: what is drawn, by hand."""

from dataclasses import replace

import numpy as np
import pytest
from not_empty import not_empty

from plan3d import Cluster, Model, Task, compare_backends, compare_systems
from plan3d.search.result.search_result import Trace
from plan3d.search.whatif import pictures
from plan3d.search.whatif.sweep import Sweep
from plan3d.search.whatif.sweep_file import varied
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.units import GIB
from plan3d.simulator.reporting.palette import CYCLE, figure

TASK = Task(
    Model.preset("gpt3-1.3b"), Cluster.profile("h100-sxm", gpus=8), sequence=2048, global_batch=8
)
FEW = {"cp": [1], "micro_batch": [1], "recompute": ["none"], "tp": [1, 2], "pp": [1]}


def row(gpus, speed, mfu, status="ok", **others):
    numbers = {"tokens_per_second": speed, "mfu": mfu, "memory_bytes": 2**30}
    numbers = numbers if status == "ok" else {}
    return {"gpus": gpus, **others, "status": status, **numbers}


def test_a_sweep_over_gpus_has_its_speed_and_its_mfu_in_percent():
    rows = [row(8, 100.0, 0.4), row(16, 190.0, 0.38), row(32, 0, 0, "no plan")]
    speed, mfu, _ = pictures.sweep_page(rows).axes
    ideal, found = speed.lines
    assert (found.get_xdata().tolist(), found.get_ydata().tolist()) == ([8, 16], [100, 190])
    assert (ideal.get_xdata().tolist(), ideal.get_ydata().tolist()) == ([8, 16], [100, 200])
    (only,) = mfu.lines
    assert only.get_ydata() == pytest.approx([40, 38])
    assert (speed.get_xlabel(), speed.get_ylabel()) == ("GPUs", "speed / (tokens/s)")
    assert mfu.get_ylabel() == "MFU / %"


def test_a_sweep_over_another_field_has_a_curve_for_each_value_of_the_next():
    rows = [row(8, 10.0 * b * s, 0.1, batch=b, sequence=s) for b in (1, 2) for s in (3, 4)]
    assert varied(rows) == ["batch", "sequence"]
    assert varied([*rows, row(9, 1, 1, batch=1, sequence=3)])[0] == "gpus"
    assert varied([]) == []
    speed, *_ = pictures.sweep_page(rows).axes
    assert speed.get_xlabel() == "batch"
    assert {line.get_label(): line.get_ydata().tolist() for line in speed.lines} == {
        "sequence=3": [30, 60],
        "sequence=4": [40, 80],
    }
    with pytest.raises(InputError, match="none has a plan"):
        pictures.sweep_page([row(8, 0, 0, "no plan")])


BETWEEN = {"step_seconds": 1.0, "step_seconds_low": 0.8, "step_seconds_high": 1.25}


def test_speed_and_mfu_of_a_sweep_lie_in_the_interval_of_the_step():
    """A step of 1 s between 0.8 and 1.25 s: rates between 0.8 and 1.25 of those at 1 s. Points of
    numbers are a line from the least, whatever their order; memory has no interval of a step."""
    rows = [row(16, 200.0, 0.4) | BETWEEN, row(8, 100.0, 0.4) | BETWEEN]
    drawn = pictures.sweep_page([*rows, row(4, 0, 0, "no plan")], title="7b")
    speed, mfu, memory = drawn.axes
    (band,) = speed.collections
    ends = {tuple(point) for point in band.get_paths()[0].vertices.tolist()}
    assert ends >= {(8, 80), (16, 160), (8, 125), (16, 250)}
    (band,) = mfu.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((32, 50))
    assert speed.get_ylim()[1] >= 250
    assert not memory.collections
    assert memory.lines[0].get_ydata().tolist() == [1, 1]
    (legend,) = drawn.legends
    said = [text.get_text() for text in legend.get_texts()]
    assert said == ["in proportion", "80 % interval of the step"]
    assert drawn._suptitle.get_text() == "7b\n1 of 3 points left out: no plan"


def test_intervals_of_points_over_words_are_bars():
    rows = [row(8, 100.0, 0.4, model=name) | BETWEEN for name in ("a", "b")]
    speed, *_ = pictures.sweep_page(rows).axes
    (bars,) = speed.collections
    assert [bar.tolist() for bar in bars.get_segments()] == [
        [[x, pytest.approx(80)], [x, pytest.approx(125)]] for x in (0, 1)
    ]


def test_capacity_is_a_line_where_all_points_share_it():
    rows = [{"capacity_bytes": 80 * GIB}, {"capacity_bytes": 80 * GIB}, {"gpus": 8}]
    axes = figure(4, 3).add_subplot()
    axes.set_ylim(0, 54)
    pictures._capacity(axes, rows)
    assert [line.get_ydata() for line in axes.lines] == [[80, 80]]
    assert axes.get_ylim() == pytest.approx((0, 86.4))
    axes.set_ylim(0, 108)
    pictures._capacity(axes, rows)
    assert axes.get_ylim() == pytest.approx((0, 108))
    pictures._capacity(axes, [*rows, {"capacity_bytes": 40 * GIB}])
    assert len(axes.lines) == 2


@pytest.fixture(scope="module")
def systems():
    return compare_systems(TASK, ["ddp", "megatron", "gpipe"])


def test_the_bars_of_a_system_are_the_parts_of_its_step(systems):
    """The slowest at the bottom; the axis has room for the seconds behind the longest."""
    drawn = pictures.systems_page(systems)
    (axes,) = drawn.axes
    best = {entry.system.name: entry.best for entry in systems.entries}
    order = sorted(best, key=lambda name: -best[name].step_seconds)
    steps = [best[name].step_seconds for name in order]
    assert len(set(steps)) == 3
    assert [tick.get_text() for tick in axes.get_yticklabels()] == order
    assert axes.get_xlim() == (0, pytest.approx(1.12 * steps[0]))
    assert drawn.get_size_inches().tolist() == [9, pytest.approx(1.6 + 0.3 * 3)]
    parts = {
        name: [best[one].seconds[name] for one in order]
        for name in best[order[0]].seconds
        if max(best[one].seconds[name] for one in order) > 0.002 * steps[0]
    }
    widths = [[bar.get_width() for bar in bars] for bars in axes.containers]
    np.testing.assert_allclose(widths, [*parts.values()], atol=1e-12)
    assert [bars[0].get_facecolor()[:3] for bars in axes.containers] == [
        pytest.approx(tuple(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)))
        for colour in CYCLE[: len(parts)]
    ]
    ends = np.cumsum([*parts.values()], axis=0)
    for bars, before in zip(axes.containers[1:], ends, strict=False):
        assert [bar.get_x() for bar in bars] == pytest.approx(before)
    assert [text.get_position() for text in not_empty(axes.texts)] == [
        (pytest.approx(end), at) for at, end in enumerate(ends[-1])
    ]
    assert [float(text.get_text().split()[0]) for text in axes.texts] == pytest.approx(
        steps, rel=1e-3
    )
    (legend,) = drawn.legends
    assert legend._ncols == min(5, len(parts))


def test_systems_that_do_not_fit_are_counted(systems):
    none = replace(systems.entries[0].result, costs=None)
    left = [replace(systems.entries[0], result=none), *systems.entries[1:]]
    drawn = pictures.systems_page(replace(systems, entries=left))
    assert drawn._suptitle.get_text().endswith("best plan of each, 1 others do not fit")


def test_the_shortest_step_is_the_least_of_all_systems(systems):
    steps = {entry.system.name: entry.best.step_seconds for entry in systems.entries}
    assert systems.shortest.system.name == min(steps, key=steps.get)
    assert systems.shortest_exact.best.step_seconds == min(steps.values())
    assert systems.fastest is systems.shortest_exact
    assert replace(systems, entries=[]).shortest is None


@pytest.fixture(scope="module")
def race():
    return compare_backends(TASK, ["random"], budget=30, seeds=3, choose=FEW)


def lines_of(race):
    (axes,) = pictures.race_page(race).axes
    return axes, [line for line in axes.lines if not line.get_label().startswith("_")]


def test_what_notebooks_show_has_the_units_that_people_read(systems, race):
    """GiB, per cent and thousands, in texts and pages alike."""
    fastest = systems.entries[1]
    numbers = (f"{fastest.best.step_seconds:.4g}", f"{fastest.best.memory_bytes / GIB:.1f}")
    for shown in (str(systems), systems._repr_html_()):
        assert all(head in shown for head in ("step s", "MFU %", "mem GiB", "fits %"))
        assert all(number in shown for number in numbers)
        assert "memory_bytes" not in shown
    assert systems.to_frame().memory_gib[1] == fastest.best.memory_bytes / GIB
    for shown in (str(race), race._repr_html_()):
        assert all(head in shown for head in ("backend", "regret %", "plans to 1 %", "search s"))
    points = [row(8, 1234.5, 0.4, detail="") | BETWEEN | {"plan": "dp=8"}]
    shown = Sweep(rows=points, complete=True)._repr_html_()
    assert all(text in shown for text in ("mem GiB", "1.0", "1,234", "40.0"))


@pytest.mark.parametrize(("budget", "left", "right"), [(30, 10, 30), (10, 10, 11), (1, 1, 2)])
def test_a_race_begins_at_ten_plans_or_at_its_budget(race, budget, left, right):
    axes, (line,) = lines_of(replace(race, budget=budget))
    assert axes.get_xlim() == (left, right)
    assert line.get_xdata().tolist() == list(range(left, budget + 1))
    assert axes.get_ylim()[0] == pytest.approx(-1e-4)


def test_a_race_shows_the_median_regret_between_the_quartiles(race):
    """Bests of 1, 2, 3, 4 and 5 optima: regrets of 2, between 1 and 3; ten where there is none."""
    (entry,) = race.entries
    traces = tuple(Trace(np.array([1]), np.array([n * race.best])) for n in (1, 2, 3, 4, 5))
    axes, (line,) = lines_of(replace(race, entries=[replace(entry, traces=traces)]))
    assert line.get_ydata() == pytest.approx(np.full(21, 2.0))
    (band,) = axes.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((1, 3))
    late = tuple(Trace(np.array([20]), np.array([race.best])) for _ in range(3))
    _, (line,) = lines_of(replace(race, entries=[replace(entry, traces=late)]))
    assert line.get_ydata() == pytest.approx([10.0] * 10 + [0.0] * 11)


def test_nine_backends_begin_with_the_first_colour_again(race):
    _, lines = lines_of(replace(race, entries=[*race.entries] * 9))
    colours = [line.get_color() for line in lines]
    assert len(set(colours)) == 8
    assert colours[8] == colours[0]
    assert lines[8].get_linestyle() == lines[0].get_linestyle()


def test_one_point_is_in_proportion_to_nothing():
    speed, mfu, _ = pictures.sweep_page([row(8, 100.0, 0.4)]).axes
    assert [line.get_xdata().tolist() for line in (*speed.lines, *mfu.lines)] == [[8], [8]]


def test_a_sweep_is_a_table_of_its_first_points_with_plans_at_the_left_of_their_column():
    numbers = {"step_seconds": 1.5, "memory_bytes": 2**30, "probability_fits": 1.0}
    rows = [row(8 * n, 100.0 * n, 0.4, plan=f"dp={8 * n}") | numbers for n in range(1, 20)]
    for row_of in rows:
        row_of["plan"] = row_of.pop("plan")
    for count, more in ((18, ""), (19, "... and 1 points more: to_frame()")):
        header, *lines = str(Sweep(rows=rows[:count], complete=True)).splitlines()
        place = header.index("plan")
        plans = [line for line in lines if "dp=" in line]
        assert len(plans) == 18
        assert {line.index("dp=") for line in plans} == {place}
        assert (lines[-1] if more else "") == more
