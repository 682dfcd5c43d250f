"""Where pictures put what they draw, in inches and cells counted by hand."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from round_numbers import costs_of
from round_numbers import task as round_task
from unit_pipelines import task as unit_task

from plan3d.simulator.analysis.memory_timeline import memory_timeline
from plan3d.simulator.analysis.roofline import gemm_points
from plan3d.simulator.analysis.sensitivity import Sensitivity
from plan3d.simulator.analysis.time_breakdown import Loss
from plan3d.simulator.base.units import GIB
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.reporting import gantt, memory_plot, plots, plots_many
from plan3d.simulator.reporting.grid_map import grid_panels
from plan3d.simulator.reporting.palette import time_axis
from plan3d.simulator.reporting.rank_map import DrawnRanks, Group, group_sentence, rank_page
from plan3d.simulator.step.plan_timeline import timeline_of
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model


@pytest.fixture
def axes():
    return Figure().add_subplot()


def task(model="llama-7b", gpus=64, cluster="h100-sxm"):
    machine = Cluster.profile(cluster, gpus=gpus)
    return Task(Model.preset(model), machine, sequence=4096, global_batch=1024)


def boxes(axes):
    """(left, low, width, height) of each rectangle in the order of drawing."""
    return [(p.get_x(), p.get_y(), p.get_width(), p.get_height()) for p in axes.patches]


def near(expected):
    return pytest.approx(np.array(expected), abs=1e-9)


def said_at(axes):
    """Place of every text by what it says."""
    return {text.get_text(): text.get_position() for text in axes.texts}


def curves(axes):
    """x and y of every line."""
    return [np.array(line.get_xydata()).T.tolist() for line in axes.lines]


# Ranks on nodes, in inches


def test_cells_groups_and_arrows_of_two_pipeline_ranks():
    """Cells of 0.6 by 0.52 inches from 1.75, 1; three lanes of 0.2 and 0.3 below the first row."""
    page = rank_page(task(gpus=16), Plan.parse("tp=2 cp=2 pp=2 dp=2"))
    (axes,) = page.axes
    assert page.get_size_inches() == near([9, 1 + 0.9 + 0.52 + 0.42 + 0.52 + 0.45 + 0.3 + 4 * 0.22])
    drawn = boxes(axes)
    for row, top in enumerate((1, 2.84)):
        node, *cells = drawn[9 * row : 9 * row + 9]
        assert node == near([1.71, top - 0.04, 4.88, 0.6])
        assert cells == near([(1.75 + 0.6 * i, top, 0.6, 0.52) for i in range(8)])
    said = said_at(axes)
    assert said["pipeline rank 1\nGPUs 8 to 15"] == near([1.55, 3.1])
    assert said["node 1"] == near([1.87, 2.77])
    cells = [t for t in axes.texts if t.get_text() == "t1\nc0\nd1"]
    assert [t.get_position() for t in cells] == near([(5.05, 1.26), (5.05, 3.1)])
    groups = [(x, y) for x, y in curves(axes)[:6]]
    for lane, (line, dots) in enumerate(zip(groups[::2], groups[1::2], strict=True)):
        ends = {0: [2.05, 2.65], 1: [2.05, 3.25], 2: [2.05, 4.45]}[lane]
        assert line == dots == near([ends, [1.82 + 0.2 * lane] * 2])
        assert said[("tp 2", "cp 2", "dp 2")[lane]] == near([1.55, 1.82 + 0.2 * lane])
    (arrow,) = [t for t in axes.texts if t.get_text() == ""]
    assert (arrow.xyann, arrow.xy) == (near([1.75, 1.52]), near([1.75, 2.84]))
    assert [y[0] for _, y in curves(axes)[6:]] == near([3.81 + 0.22 * i for i in range(1, 5)])
    assert [line.get_linestyle() for line in axes.lines[6:]] == ["-", "-", "-", "--"]
    shades = [p.get_facecolor() for p in axes.patches[1:9]]
    assert len({*shades[:4]}) == len({*shades[4:]}) == 1
    assert shades[0] != shades[4]


def test_the_line_of_a_group_on_two_nodes_is_dashed():
    """Two tensor ranks lie on a node; eight replicas, every second GPU, on both."""
    (axes,) = rank_page(task(gpus=16), Plan.parse("tp=2")).axes
    assert [line.get_linestyle() for line in axes.lines[:4:2]] == ["-", "--"]


@pytest.mark.parametrize(
    ("stride", "where"),
    [
        (7, "some such groups leave their domain, over InfiniBand"),
        (8, "2 domains, over InfiniBand NDR, every 8th"),
    ],
)
def test_a_group_whose_last_gpu_is_the_first_of_the_next_node_leaves_its_own(stride, where):
    group = Group("dp", ranks=2, stride=stride, domains=2)
    assert where in group_sentence(group, task(gpus=16).cluster)


def test_what_of_a_large_cluster_is_left_out_is_said_where_it_would_stand():
    """Rows of 128 nodes: three are drawn, a gap of 1.8 cells, and the last; so of rows."""
    page = rank_page(task("llama-3.1-405b", 16384), Plan.parse("tp=8 cp=8 pp=16"))
    (axes,) = page.axes
    cell = (15 - 1.75 - 0.2) / 35
    nodes = [b for b in boxes(axes) if b[2] == pytest.approx(8 * cell + 0.08)]
    lefts = [1.71 + column * cell for column in (0, 8.6, 17.2, 27)]
    tops = [0.96, *(0.96 + 0.9 + 0.94 * i for i in (1, 2, 3))]
    assert [b[:2] for b in nodes] == near([(left, top) for top in tops for left in lefts])
    assert page.get_size_inches()[0] == pytest.approx(15)
    said = said_at(axes)
    assert said["… 12 more …"] == near([1.55, 4.72 - 0.2])
    assert sum(text.get_text().endswith("more …") for text in axes.texts) == 1
    dots = [t.get_position() for t in axes.texts if t.get_text() == "…"]
    assert dots == near([(1.75 + 26.1 * cell, top + 0.04 + 0.26) for top in tops])
    assert said[" to GPU 56"] == near([1.75 + cell * 25.7, 2.02])
    assert said[" to GPU 960"] == near([1.75 + cell * 25.7, 2.22])
    assert said["node 2,047"] == near([1.75 + 27 * cell + 0.12, 4.72 - 0.07])
    assert said["pipeline rank 15\nGPUs 15,360 to 16,383"][1] == pytest.approx(4.98)
    line = next(xy for xy in curves(axes) if xy[1][0] == pytest.approx(2.02))
    assert line[0] == near([1.75 + cell / 2, 1.75 + 25.7 * cell])
    dots = [xy[0] for xy in curves(axes) if xy[1][0] == pytest.approx(2.02)][1]
    assert dots == near([1.75 + (column + 0.5) * cell for column in (0, 8.6, 17.2)])


def test_rows_of_whole_nodes_where_stages_are_parts_of_them():
    """48 GPUs in twelve ranks of half a node: four nodes a row, two rows, no arrows."""
    page = rank_page(task(gpus=48), Plan.parse("pp=12"))
    (axes,) = page.axes
    unit = DrawnRanks.of_task(task(gpus=48), 12)
    assert (unit.length, unit.rows, unit.count, unit.of_stages) == (32, (0, 1), 2, False)
    assert unit.width == pytest.approx(3 * 8.6 + 8)
    cell = 13.05 / 33.8
    said = said_at(axes)
    assert said["to GPU 44"] == near([1.75 + 33.8 * cell, 1.52 + 0.3 + 0.2])
    assert said["GPUs 32 to 47"][1] == pytest.approx(1 + 0.7 + 0.94 + 0.26)
    assert said["d3\np4"] == near([1.75 + (2 * 8.6 + 3.5) * cell, 1.26])
    assert "" not in said
    rows = [t for t in axes.texts if t.get_text().startswith("node ")]
    assert [t.get_text() for t in rows] == [f"node {i}" for i in range(6)]


def test_a_row_alone_has_its_groups_and_its_legend_below():
    """Eight GPUs of one node, one lane: the legend is 0.3 + 0.2 + 0.3 below the cells."""
    page = rank_page(task(gpus=8), Plan.parse("tp=8"))
    (axes,) = page.axes
    (legend,) = [y for text, (_, y) in said_at(axes).items() if text.startswith("groups of GPU 0")]
    assert legend == pytest.approx(1.52 + 0.5 + 0.3)
    assert page.get_size_inches()[1] == pytest.approx(legend + 0.3 + 0.22)
    assert said_at(axes)["GPUs 0 to 7"] == near([1.55, 1.26])
    cells = [t.get_text() for t in axes.texts if len(t.get_text()) == 2]
    assert cells == [f"t{i}" for i in range(8)]


def test_one_gpu_is_named_alone():
    (axes,) = rank_page(task(gpus=1), Plan.parse("tp=1")).axes
    assert "GPU 0" in said_at(axes)


def test_experts_places_are_in_their_cells():
    """Four ranks of experts of two tensor ranks each: GPUs 0 and 1 have the first, 6 the fourth."""
    (axes,) = rank_page(task("mixtral-8x7b", 16), Plan.parse("tp=2 ep=4 etp=2")).axes
    cells = [t.get_text() for t in axes.texts if t.get_text().count("\n") == 2]
    assert cells[0] == "t0\nd0\ne0"
    assert cells[1] == "t1\nd0\ne0"
    assert cells[6] == "t0\nd3\ne3"
    assert cells[13] == "t1\nd6\ne2"


@pytest.mark.parametrize(
    ("number", "said"),
    [(2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (12, "12th"), (21, "21st"), (111, "111th"),
     (101, "101st"), (1023, "1,023rd"), (112, "112th")],
)  # fmt: skip
def test_neighbours_of_a_group_are_counted_in_ordinals(number, said):
    cluster = task(gpus=8).cluster
    group = Group("dp", ranks=2, stride=number, domains=1)
    assert group_sentence(group, cluster).endswith(f", every {said} GPU")


# Grids of tensor ranks, in cells


def test_a_grid_is_drawn_a_depth_beside_the_other():
    """2 x 2 x 4 ranks: depths three cells apart; of x a quarter of the tokens twice, of w half."""
    upper, lower = Figure().subplots(1, 2)
    plan = Plan.parse("tp=16 tp_grid=2.5d:2x2x4 micro_batch=16 dp=4")
    grid_panels(upper, lower, task(), plan)
    places = [
        (3 * depth + column, row) for depth in range(4) for row in (0, 1) for column in (0, 1)
    ]
    assert boxes(upper) == near([(x, y, 1, 1) for x, y in places])
    said = said_at(upper)
    assert [said[str(rank)] for rank in range(16)] == near([(x + 0.5, y + 0.5) for x, y in places])
    assert [said[f"depth {d}"] for d in range(4)] == near([(3 * d, -0.3) for d in range(4)])
    assert upper.get_xlim() + upper.get_ylim() == near([-0.5, 11.5, 2.3, -0.9])
    assert upper.get_title(loc="left").startswith(
        "Tensor ranks on the grid 2.5d:2x2x4: 2 rows, 2 columns, 4 depths\nnodes of 8 in turns"
    )
    first, second = (upper.patches[i].get_facecolor() for i in (1, 8))
    assert first != second
    assert {p.get_facecolor() for p in upper.patches[1:8]} == {first}
    assert {p.get_facecolor() for p in upper.patches[8:]} == {second}


def test_a_product_is_drawn_side_by_side_with_the_part_of_rank_0():
    """Matrices of two cells, 4.9 apart; what a depth keeps of w is gathered before."""
    upper, lower = Figure().subplots(1, 2)
    plan = Plan.parse("tp=16 tp_grid=2.5d:2x2x4 micro_batch=16 dp=4")
    grid_panels(upper, lower, task(), plan)
    lefts = [1.4, 6.3, 11.2]
    parts, wholes = boxes(lower)[::2], boxes(lower)[1::2]
    assert wholes == near([(left, 0, 2, 2) for left in lefts])
    assert [p[:2] for p in parts] == near([(left, 0) for left in lefts])
    assert parts[0][2:] == near([2, 0.25])
    assert parts[2][2:] == near([1, 0.25])
    said = said_at(lower)
    assert said["="] == near([10.3, 1])
    assert said["tokens / 8 rows x depth"] == near([11.12, 1])
    assert said["out / 2 columns"] == near([12.2, -0.08])
    assert said["x: kept divided over\ncolumns, gathered before"] == near([2.4, 2.12])
    assert [t for t in said if t.startswith("y")] == ["y"]
    cuts = [xy for xy in curves(lower) if xy[0][0] >= 11]
    across = [[[11.2, 13.2], [0.25 * i] * 2] for i in range(1, 8)]
    assert cuts == near([*across, [[12.2, 12.2], [0, 2]]])
    assert lower.get_xlim() + lower.get_ylim() == near([-0.2, 14.7, 3.1, -0.7])


def test_of_a_long_grid_sixteen_are_drawn():
    upper, lower = Figure().subplots(1, 2)
    grid_panels(upper, lower, task(), Plan.parse("tp=32 tp_grid=1x32"))
    assert [p.get_x() for p in upper.patches] == [*range(16)]
    title = "Tensor ranks on the grid 2d:1x32 (the first of them): 1 rows, 32 columns\nnodes of 8"
    assert upper.get_title(loc="left").startswith(title)
    assert "depth 0" not in said_at(upper)
    assert upper.get_xlim() + upper.get_ylim() == near([-0.5, 16.5, 1.3, -0.9])


@pytest.mark.parametrize(
    ("grid", "depths", "is_cut"), [("2.5d:2x2x2", 2, False), ("1x16", 0, False), ("1x17", 0, True)]
)
def test_grids_up_to_sixteen_are_whole_and_depths_are_named_where_there_are_two(
    grid, depths, is_cut
):
    upper, lower = Figure().subplots(1, 2)
    tp = {"2.5d:2x2x2": 8, "1x16": 16, "1x17": 17}[grid]
    grid_panels(upper, lower, task(gpus=tp), Plan.parse(f"tp={tp} tp_grid={grid} micro_batch=8"))
    assert sum(text.startswith("depth") for text in said_at(upper)) == depths
    assert ("(the first of them)" in upper.get_title(loc="left")) is is_cut
    assert said_at(lower)[""] == near([0.2, 2.95])
    # Cuts: three of tokens twice and one of columns twice; fifteen of columns twice.
    assert len(lower.lines) == {"2.5d:2x2x2": 8, "1x16": 30, "1x17": 0}[grid]


def test_only_replicas_have_shades():
    """Two replicas of two tensor ranks, and four tensor ranks of one replica."""
    colours = {}
    for text in ("tp=2 dp=2", "tp=4"):
        page = rank_page(task(gpus=4), Plan.parse(text))
        cells = [p for p in page.axes[0].patches if p.get_fill()]
        colours[text] = [p.get_facecolor() for p in cells[:4]]
    one, two = colours["tp=2 dp=2"][0], colours["tp=2 dp=2"][2]
    assert one != two
    assert len(set(colours["tp=4"])) == 1
    assert colours["tp=4"][0] not in (one, two)


# Bars, curves and roofs of one plan


def test_bars_of_a_waterfall_have_their_ends_joined(axes):
    """1, 2, -0.5 and a part of 0.04 points that is left out: 2.501 seconds."""
    bars = [
        Loss("ideal", "at peak", 1.0, 40.0, None),
        Loss("bubble", "bubble", 2.0, -24.0, None),
        Loss("matmul", "gain", -0.5, 6.0, None),
        Loss("launch", "little", 0.001, 0.04, None),
    ]
    plots.waterfall(axes, bars, 0.4)
    expected = [(0, -0.35, 1, 0.7), (1, 0.65, 2, 0.7), (3, 1.65, -0.5, 0.7), (0, 2.65, 2.501, 0.7)]
    assert boxes(axes) == near(expected)
    assert curves(axes) == near(
        [[[x] * 2, [y - 0.35, y + 1.35]] for y, x in enumerate([1, 3, 2.5])]
    )
    said = said_at(axes)
    assert said[" 1 s, 40.0 points"] == near([1, 0])
    assert said[" +2 s, -24.0 points"] == near([3, 1])
    assert said[" \N{MINUS SIGN}0.5 s, 6.0 points"] == near([3, 2])
    assert said[" 2.501 s, MFU 40.0 %"] == near([2.501, 3])
    assert axes.get_xlim() + axes.get_ylim() == near([0, 2.501 * 1.45, 3.6, -0.6])
    colours = [p.get_facecolor() for p in axes.patches]
    assert len(set(colours)) == 4


def test_memory_bars_stand_on_each_other(axes):
    """Two ranks of 1 to 7 GiB and twice that, a capacity of 30 GiB: the top is at 1.05 of 56."""
    sizes = {name: (i + 1) * GIB for i, name in enumerate(plots.MEMORY_COLOURS)}
    doubled = {name: 2 * size for name, size in sizes.items()}
    stages = [{"rank": 0, "memory_bytes": sizes}, {"rank": 1, "memory_bytes": doubled}]
    plots.memory_bars(axes, stages, 30 * GIB, 0.9)
    tops = np.cumsum([1, 2, 3, 4, 5, 6, 7])
    expected = [(-0.4 + r, (r + 1) * (tops[i] - i - 1), 0.8, (r + 1) * (i + 1))
                for i in range(7) for r in (0, 1)]  # fmt: skip
    assert boxes(axes) == near(expected)
    assert [y for _, y in curves(axes)] == near([[30, 30], [27, 27]])
    assert axes.get_xlim() + axes.get_ylim() == near([-0.6, 1.6, 0, 1.05 * 56])


@pytest.mark.parametrize(("ranks", "apart"), [(4, 1), (16, 1), (33, 2)])
def test_ranks_are_named_up_to_sixteen(axes, ranks, apart):
    stages = [{"rank": r, "memory_bytes": dict.fromkeys(plots.MEMORY_COLOURS, GIB)}
              for r in range(ranks)]  # fmt: skip
    plots.memory_bars(axes, stages, 80 * GIB, 1.0)
    assert axes.get_xticks().tolist() == [*range(0, ranks, apart)]
    assert axes.get_ylim() == near([0, 84])


def test_a_tornado_is_symmetric_in_nothing(axes):
    """A step of 10 seconds is 12 with half and 9 with twice a rate, 10.5 and 10 with another."""
    found = [
        Sensitivity("a", "small", True, -0.1, 10.5, 10.0),
        Sensitivity("b", "large", True, -0.3, 12.0, 9.0),
        Sensitivity("c", "falls", False, 0.2, 10.0, 8.5),
    ]
    plots.tornado(axes, found, 10.0)
    widths = [20, 0, 5, -10, -15, 0]
    assert boxes(axes) == near([(0, y % 3 - 0.35, w, 0.7) for y, w in enumerate(widths)])
    names = [tick.get_text() for tick in axes.get_yticklabels()]
    assert names == ["large (-0.30)", "falls (+0.20)", "small (-0.10)"]
    assert axes.get_xlim() + axes.get_ylim() == near([-16.2, 21.6, 2.5, -0.5])


@pytest.mark.parametrize(
    ("elasticities", "said"),
    [((-0.5, -0.3, 0.1), "\nmeasured tables hold 10 % of the step"), ((-0.6, -0.4, 0.0), "")],
)
def test_a_tornado_says_what_no_number_moves(axes, elasticities, said):
    """Rates of 0.5 and 0.3 and a time of 0.1 leave a tenth."""
    found = [
        Sensitivity("a", f"number {i}", i < 2, share, 10.5, 10.0)
        for i, share in enumerate(elasticities)
    ]
    plots.tornado(axes, found, 10.0)
    assert axes.get_title(loc="left") == f"Which hardware number matters (elasticity){said}"


def test_a_tornado_of_nothing_has_an_axis(axes):
    plots.tornado(axes, [Sensitivity("a", "none", True, 0.0, 10.0, 10.0)], 10.0)
    assert axes.get_xlim() == near([-1.08, 1.08])


def test_a_roofline_bends_at_its_ridge(axes):
    """100 TFLOP/s and 1 TB/s meet at 100 FLOP/byte; the axis is three times as wide as its points
    to both sides."""
    costs = costs_of(round_task(), "tp=1")
    plots.roofline(axes, costs)
    points = gemm_points(costs)
    (x, y), *dots = curves(axes)
    assert dots == near([[[p.intensity], [p.rate / 1e12]] for p in points])
    at = [100, *(p.intensity for p in points)]
    assert (x[0], x[-1]) == pytest.approx((min(at) / 3, 3 * max(at)))
    assert y == pytest.approx(np.minimum(100, np.array(x)))
    drawn = axes.lines[1:]
    assert len({(line.get_color(), line.get_marker()) for line in drawn}) == len(points) > 1
    said = [text.get_text() for text in axes.get_legend().get_texts()]
    batched = [p.batch > 1 for p in points]
    assert [text.count(" x ") == 3 for text in said[1:]] == batched


def test_points_over_words_stand_beside_each_other(axes):
    """Two series 0.12 apart, eight of them 0.075."""
    words = ["a", "b"]
    plots_many.curve(axes, {"one": (words, [1.0, 2.0]), "two": (words, [3.0, 4.0])}, "x", "y")
    assert curves(axes) == near([[[-0.06, 0.94], [1, 2]], [[0.06, 1.06], [3, 4]]])
    assert axes.get_ylim() == near([0, 1.08 * 4])
    many = Figure().add_subplot()
    plots_many.curve(many, {str(i): (words, [1.0, 2.0]) for i in range(8)}, "x", "y")
    assert len({line.get_marker() for line in many.lines}) == 8
    assert [x[0] for x, _ in curves(many)] == near([0.075 * (i - 3.5) for i in range(8)])


@pytest.mark.parametrize(
    ("values", "scale"), [([1, 7], "linear"), ([1, 8], "log"), ([0, 8], "linear"), ([2, 16], "log")]
)
def test_an_axis_is_logarithmic_from_a_factor_of_eight(axes, values, scale):
    plots_many.curve(axes, {"": (values, [1.0, 2.0])}, "x", "y")
    assert axes.get_xscale() == scale
    assert axes.get_yscale() == "linear"


def test_zero_has_no_logarithm(axes):
    plots_many.curve(axes, {"": ([1, 8], [0.0, 2.0])}, "x", "y", ideal=True)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "linear")


@pytest.mark.parametrize(("ticks", "rotation"), [(8, 0), (9, 60)])
def test_many_ticks_are_turned(axes, ticks, rotation):
    plots_many.curve(axes, {"": ([10 + i for i in range(ticks)], [1.0] * ticks)}, "x", "y")
    assert {tick.get_rotation() for tick in axes.get_xticklabels()} == {rotation}


@pytest.mark.parametrize(
    ("above", "covers"),
    [([1.0, 2.0, 3.0, 4.0], True), ([1.0, 2.0, 3.0, 9.0], True), ([1.0, 2.0, 9.0, 9.0], False),
     ([1.005, 1.985, 3.02, 9.0], True), ([1.02, 2.03, 3.0, 4.0], False)],
)  # fmt: skip
def test_a_line_covers_another_at_most_of_its_points(above, covers):
    below = ([1, 2, 3, 4], [1.0, 2.0, 3.0, 4.0])
    assert plots_many._covers(([1, 2, 3, 4], above), below) is covers


def test_numbers_stand_where_they_meet_nothing():
    """Digits of 6.6 by 8: 4 + 1.5 + 3.3 right of a point and 4 + 1.5 + 4 above; twice that away
    where every place beside it is taken."""
    inside = plots_many.Box(0, 0, 200, 200)
    place = plots_many._best_place("1", 100, 100, [], inside)
    assert place.offset == near([8.8, 9.5])
    assert place.box == near([105.5, 105.5, 112.1, 113.5])
    assert not place.detached
    wide = plots_many._best_place("12", 100, 100, [], inside)
    assert wide.offset == near([12.1, 9.5])
    corner = plots_many._best_place("1", 195, 100, [], inside)
    assert corner.offset == near([-8.8, 9.5])
    floor = plots_many._best_place("1", 3, 5, [plots_many.Box(0, 11, 50, 50)], inside)
    assert floor.offset == near([8.8, 0])
    marker = plots_many._marker_box(100, 100)
    assert marker == (96, 96, 104, 104)
    crowded = [plots_many.Box(x - 5, y - 5, x + 5, y + 5)
               for x in (91.2, 100, 108.8) for y in (90.5, 100, 109.5)]  # fmt: skip
    far = plots_many._best_place("1", 100, 100, crowded, inside)
    assert far.offset == near([17.6, 19])
    assert far.detached


@pytest.mark.parametrize(
    ("other", "overlaps"),
    [((2, 0, 3, 2), False), ((1.9, 0, 3, 2), True), ((0, 2, 2, 3), False), ((0, 1.9, 2, 3), True),
     ((-1, 0, 0, 2), False), ((0, -1, 2, 0), False), ((0.5, 0.5, 1, 1), True)],
)  # fmt: skip
def test_boxes_that_touch_do_not_overlap(other, overlaps):
    assert plots_many.Box(0, 0, 2, 2).overlaps(plots_many.Box(*other)) is overlaps


def test_edges_of_a_box_are_scaled():
    extent = Bbox.from_extents(10, 20, 30, 40)
    assert plots_many._box_in_points(extent, 0.5) == (5, 10, 15, 20)


# Memory through a step, and timelines


def test_memory_is_drawn_in_the_units_of_its_axes(monkeypatch):
    """The step of test_trace_and_chart: 35.6 seconds, tenants of 1,000 to 8,000 bytes."""
    monkeypatch.setattr(memory_plot, "GIB", 100.0)
    found = memory_timeline(unit_task(4, 4), Plan.parse("pp=2 dp=2 zero=0 overlap_grad_reduce=0"))
    axes = Figure().add_subplot()
    memory_plot._draw_step(axes, found)
    assert axes.get_xlim() == near([0, 35.6])
    assert axes.get_xlabel() == "time / s"
    worst = found.worst
    tops = [max(path.vertices[:, 1]) for c in axes.collections for path in c.get_paths()]
    assert tops[-1] == pytest.approx(max(worst.total) / 100)
    (said,) = axes.texts
    assert said.xy == pytest.approx((worst.moments[worst.peak].seconds, worst.peak_bytes / 100))
    assert said.get_text().startswith(f"{worst.peak_bytes / 100:.1f} GiB\n")
    bars = Figure().add_subplot()
    memory_plot._draw_peaks(bars, found)
    tops = {}
    for left, low, width, height in boxes(bars):
        assert width == pytest.approx(0.8)
        rank = round(left + 0.4)
        assert low == pytest.approx(tops.get(rank, 0))
        tops[rank] = low + height
    assert tops == pytest.approx({rank.rank: rank.peak_bytes / 100 for rank in found.ranks})


def test_frames_of_gantt_charts_name_idle_time_and_some_ranks(axes):
    """Ranks work 12 of 19 seconds."""
    x = timeline_of(unit_task(4, 4), Plan.parse("pp=2 dp=2 zero=0 overlap_grad_reduce=0"))
    gantt._background(axes, x, 10.0)
    gantt._frame(axes, x, 10.0, "ds", True)
    assert boxes(axes) == near([(0, -0.43, 190, 0.86), (0, 0.57, 190, 0.86)])
    assert axes.get_xlim() + axes.get_ylim() == near([0, 190, 1.5, -0.5])
    assert axes.get_yticks().tolist() == [0, 1]
    title = axes.get_title(loc="left")
    assert f"{100 * 7 / 19:.1f} % idle; height: share of an interval" in title
    numbers = Figure().add_subplot()
    gantt._numbers(numbers, x, 10.0)
    places = [(*t.get_position(), t.get_text()) for t in numbers.texts]
    expected = [(10, 0, "0"), (30, 0, "1"), (110, 0, "0"), (170, 0, "1")]
    expected += [(35, 1, "0"), (65, 1, "0"), (95, 1, "1"), (125, 1, "1")]
    assert sorted(places) == sorted(expected)


@pytest.mark.parametrize(("chunks", "said"), [(1, "idle"), (2, "idle; lighter: later chunks")])
def test_a_gantt_chart_says_what_its_shades_are(axes, chunks, said):
    plan = Plan.parse(f"pp=2 dp=2 virtual_stages={chunks}")
    x = timeline_of(unit_task(4, 4), plan)
    gantt._background(axes, x, 1.0)
    gantt._frame(axes, x, 1.0, "s", False)
    assert axes.get_title(loc="left").endswith(f" % {said}" + " of a rank" * (chunks > 1))


def test_shares_of_intervals_are_stacked(axes, monkeypatch):
    """Of three intervals of 19 / 3 seconds rank 0 runs forward for 4 seconds of the first."""
    monkeypatch.setattr(gantt, "INTERVALS", (3, 3))
    x = timeline_of(unit_task(4, 4), Plan.parse("pp=2 dp=2 zero=0 overlap_grad_reduce=0"))
    gantt._shares(axes, x, 10.0)
    forward, backward = axes.collections
    first = forward.get_paths()[0].get_extents().extents
    assert first == near([0, 0.43 - 0.86 * 4 * 3 / 19, 190 / 3, 0.43])
    second = backward.get_paths()[1].get_extents().extents
    share = (38 / 3 - 9) * 3 / 19
    assert second == near([190 / 3, 0.43 - 0.86 * share, 380 / 3, 0.43])


@pytest.mark.parametrize(("plan", "fits"), [("zero=3", True), ("zero=0", False)])
def test_the_axes_of_memory_reach_above_what_is_held_and_what_there_is(plan, fits):
    """By 8 %; the peak is named on the side where there is room."""
    found = memory_timeline(task(gpus=8), Plan.parse(plan))
    drawn = memory_plot.memory_page(found)
    assert drawn.get_size_inches().tolist() == [14, 5.2]
    capacity = found.timeline.costs.row().capacity
    peak = max(rank.peak_bytes for rank in found.ranks)
    assert (peak <= capacity) == fits
    assert len(drawn.axes) == 2
    for axes in drawn.axes[:2]:
        assert axes.get_ylim() == near([0, 1.08 * max(peak, capacity) / GIB])
        (line,) = axes.lines
        assert line.get_ydata() == near([capacity / GIB] * 2)
    moment = found.worst.moments[found.worst.peak].seconds
    late = 2 * moment > found.timeline.step_seconds
    (said,) = drawn.axes[0].texts
    assert said.get_horizontalalignment() == ("right" if late else "left")


@pytest.mark.parametrize(
    ("name", "seconds", "colour"),
    [
        ("ideal", 1.0, plots.BLUE),
        ("ideal", -1.0, plots.GREEN),
        ("matmul", 0.5, plots.ORANGE),
        ("matmul", 0.0, plots.ORANGE),
        ("recompute", 2.0, plots.ORANGE),
        ("contended", 0.1, plots.ORANGE),
        ("data_comm", 0.1, plots.SKY),
        ("data_comm", -0.1, plots.GREEN),
        ("bubble", 1.5, plots.PINK),
    ],
)
def test_bars_of_a_waterfall_are_coloured_by_what_they_are(name, seconds, colour):
    """What saves time is green, whatever it is."""
    assert plots._colour(Loss(name, name, seconds, 0.0, None)) == colour


def test_the_ninth_product_of_a_roofline_has_the_first_colour_again(axes):
    plots.roofline(axes, costs_of(task("deepseek-v3", 64), "tp=2 ep=8"))
    points = [line for line in axes.lines if line.get_label() != "datasheet roof"]
    assert len(points) > 8
    colours = [line.get_color() for line in points]
    assert len(set(colours[:8])) == 8
    assert colours[8:] == [colours[i % 8] for i in range(8, len(points))]
    markers = [line.get_marker() for line in points]
    assert markers == [plots.MARKERS[i % len(plots.MARKERS)] for i in range(len(points))]


@pytest.mark.parametrize(
    ("seconds", "factor", "unit"),
    [
        (90.0, 1, "s"), (1.0, 1, "s"), (0.999, 1e3, "ms"), (1e-3, 1e3, "ms"), (0.999e-3, 1e6, "µs"),
        (1e-6, 1e6, "µs"),
    ],
)  # fmt: skip
def test_times_are_in_the_unit_of_which_there_is_one(seconds, factor, unit):
    assert time_axis(seconds) == (factor, unit)
