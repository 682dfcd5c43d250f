"""Pictures have their axes labelled with units, and show what they are given."""

import re
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from not_empty import not_empty

from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.simulator.analysis.memory_timeline import memory_timeline
from plan3d.simulator.analysis.roofline import gemm_points
from plan3d.simulator.analysis.sensitivity import KNOBS, sensitivities
from plan3d.simulator.analysis.time_breakdown import waterfall
from plan3d.simulator.base.units import GIB
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.reporting import plots, plots_many
from plan3d.simulator.reporting.gantt import gantt_page
from plan3d.simulator.reporting.memory_plot import memory_page
from plan3d.simulator.reporting.palette import CYCLE, image_bytes, time_axis
from plan3d.simulator.reporting.report import stage_records
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task
from plan3d.simulator.uncertainty.forecast import step_interval
from plan3d.simulator.workload.model import Model
from plan3d.simulator.workload.presets import preset_names

TASK = Task(
    Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=16), sequence=4096, global_batch=64
)
COSTS = evaluate(TASK, Plan(tp=2, pp=4))


@pytest.fixture
def axes():
    return Figure().add_subplot()


def labels(axes):
    return axes.get_xlabel(), axes.get_ylabel()


def names(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_the_waterfall_ends_at_the_step(axes):
    bars = waterfall(COSTS)
    assert plots.waterfall(axes, bars, COSTS.mfu) is axes
    scale, unit = time_axis(COSTS.step_seconds)
    assert labels(axes) == (f"time of a step / {unit}", "")
    *steps, last = axes.patches
    assert last.get_width() == pytest.approx(scale * COSTS.step_seconds)
    for above, below in pairwise(steps):
        assert below.get_x() == pytest.approx(above.get_x() + above.get_width())
    said = [tick.get_text() for tick in axes.get_yticklabels()]
    assert said[0] == "arithmetic at peak"
    assert said[-1] == "predicted step"


def test_memory_bars_reach_the_total_of_every_rank(axes):
    stages = stage_records(COSTS)
    plots.memory_bars(axes, stages, COSTS.capacity, 0.8)
    assert labels(axes) == ("pipeline rank", "memory of a GPU / GiB")
    for stage in stages:
        tops = [p.get_y() + p.get_height() for p in axes.patches
                if p.get_x() < stage["rank"] < p.get_x() + p.get_width()]  # fmt: skip
        assert max(tops) == pytest.approx(stage["memory_bytes"]["total"] / GIB)
    assert {"capacity", "fits with probability 0.95"} <= set(names(axes))
    assert axes.get_ylim()[1] > COSTS.capacity / GIB


def test_the_tornado_has_a_row_for_every_number(axes):
    plots.tornado(axes, sensitivities(COSTS), COSTS.step_seconds)
    assert labels(axes) == ("change of the step / %", "")
    assert len(axes.get_yticklabels()) == len(KNOBS)
    widths = [abs(patch.get_width()) for patch in axes.patches[: len(KNOBS)]]
    assert widths[0] == max(widths)


def test_the_roofline_holds_every_gemm(axes):
    plots.roofline(axes, COSTS)
    assert labels(axes) == ("intensity / (FLOP/byte)", "rate of one GPU / (TFLOP/s)")
    points = gemm_points(COSTS)
    assert len(names(axes)) == 1 + len(points)
    roof = axes.lines[0].get_ydata()
    assert roof.max() == pytest.approx(COSTS.peak_flops / 1e12)
    assert max(p.rate for p in points) / 1e12 < roof.max()


def test_the_frontier_falls(axes):
    found = rank_plans(
        TASK, Ranking(choose={"cp": [1], "micro_batch": [1, 2]}, top=5, frontier=True)
    )
    plots_many.pareto(axes, found.frontier, found.costs, found.limit)
    assert labels(axes) == ("memory of the fullest rank / GiB", "step / s")
    line = axes.lines[0]
    order = np.argsort(line.get_xdata())
    assert (np.diff(line.get_ydata()[order]) <= 0).all()
    assert names(axes)[1] == "the 5 listed plans by rank"
    _, high = step_interval(found.costs)
    for rank, plan in enumerate(found.plans, 1):
        (label,) = (text for text in axes.texts if text.get_text() == str(rank))
        assert label.xy == (found.costs.memory_total[rank - 1] / GIB, high[rank - 1])
        assert f"{rank}: {plan}" in names(axes)
    ends = [tuple(bar.get_ydata()) for bar in axes.lines[3:8]]
    assert ends == [*zip(*step_interval(found.costs), strict=True)]
    assert names(axes)[2] == "80 % interval of the step, of those with a number"


@pytest.mark.parametrize("top", [6, 10, 11])
def test_every_numbered_plan_is_spelled_out(axes, top):
    found = rank_plans(TASK, Ranking(choose={"cp": [1], "micro_batch": [1, 2]}, top=top))
    costs = found.costs
    plots_many.pareto(axes, costs, costs, found.limit)
    numbers = [text.get_text() for text in axes.texts if text.get_text().isdigit()]
    named = min(top, plots_many.MOST_NAMED)
    assert numbers == [str(rank) for rank in range(1, named + 1)]
    assert [name.partition(":")[0] for name in names(axes)[3:]] == numbers
    first = ", the first 10" if top > 10 else ""
    assert names(axes)[1] == f"the {top} listed plans{first} by rank"


@cache
def long_plan():
    """Costs of a plan that is longer than a picture is wide."""
    fields = {"recompute": "selective", "expert_dispatch": "hierarchical", "micro_batch": 4}
    plan = Plan(tp=2, pp=2, ep=16, virtual_stages=3, overlap_ep=1, last_stage_layers=19, **fields)
    moe = Task(Model.preset("qwen3.5-35b-a3b"), Cluster.profile("h100-sxm", gpus=64),
               sequence=4096, global_batch=1024)  # fmt: skip
    return evaluate(moe, plan)


def assert_inside(page, texts):
    """Draw a page, and assert that all of its texts are on it."""
    canvas = FigureCanvasAgg(page)
    canvas.draw()
    boxes = [one.get_window_extent(canvas.get_renderer()) for one in not_empty(texts)]
    assert all(box.x0 >= 0 and box.x1 <= page.bbox.x1 for box in boxes)


def test_long_plans_fit_below_the_frontier():
    """Their lines are no wider than the picture, whose axes keep their width, and its title."""
    costs = long_plan()
    page = plots_many.frontier_page(costs, costs, costs.capacity)
    (axes,) = page.axes
    assert_inside(page, [axes.get_legend(), axes._left_title])
    assert axes.get_window_extent().width > page.bbox.width * 0.8
    plan = next(iter(costs.plans))
    assert " ".join(names(axes)[3].split()) == f"1: {plan}"


def test_long_plans_fit_into_titles():
    costs = long_plan()
    found = memory_timeline(costs.task, costs.plans)
    pages = (
        plots.explanation_page(costs, waterfall(costs), sensitivities(costs)),
        plots.time_and_memory_page(costs, waterfall(costs)),
        memory_page(found),
    )
    for page in pages:
        assert_inside(page, page.texts)
        assert "last_stage_layers=19" in page.get_suptitle()
    page = gantt_page(found.timeline)
    assert_inside(page, [page.axes[0]._left_title])


def boxes_of(page):
    """Boxes of the numbers of plans, and what they may not cover: markers, intervals, the limit and
    its text."""
    canvas = FigureCanvasAgg(page)
    canvas.draw()
    (axes,) = page.axes
    # Of the text alone: that of an annotation holds what leads to its point.
    texts = [(t.get_text(), Text.get_window_extent(t, canvas.get_renderer())) for t in axes.texts]
    numbers = [box for name, box in texts if name.isdigit()]
    drawn = np.concatenate([line.get_xydata() for line in axes.lines[1:3]])
    at = axes.transData.transform(drawn)
    others = [box for name, box in texts if not name.isdigit()]
    others += [Bbox.from_extents(x - 5, y - 5, x + 5, y + 5) for x, y in at]
    bars = axes.lines[3 : 3 + len(numbers)]
    others += [bar.get_window_extent(canvas.get_renderer()) for bar in bars]
    (line,) = (line for line in axes.lines if line.get_linestyle() == "--")
    limit, _ = axes.transData.transform((line.get_xdata()[0], 1))
    return numbers, [*others, Bbox.from_extents(limit - 1, 0, limit + 1, page.bbox.y1)]


@cache
def nine_plans():
    choose = {"cp": [1], "micro_batch": [1, 2]}
    return rank_plans(TASK, Ranking(choose=choose, top=9, frontier=True))


@pytest.mark.parametrize("room", [1.0, 1.02])
def test_numbers_of_plans_cover_nothing(room):
    """The limit of memory is just right of the fullest plan, others stand close together."""
    found = nine_plans()
    limit = room * float(found.costs.memory_total.max())
    numbers, others = boxes_of(plots_many.frontier_page(found.frontier, found.costs, limit))
    assert len(numbers) == 9
    assert not any(one.overlaps(other) for one, other in combinations(numbers, 2))
    assert not any(one.overlaps(other) for one in numbers for other in others)


def test_curves_are_labelled_by_series(axes):
    series = {"tp=1": ([8, 16, 64], [1.0, 1.9, 7.0]), "tp=2": ([8, 16], [0.9, 1.7])}
    plots_many.curve(axes, series, "GPUs", "speed / (tokens/s)", ideal=True)
    assert labels(axes) == ("GPUs", "speed / (tokens/s)")
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    ideal = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert [list(line.get_ydata()) for line in ideal] == [[1, 2, 8], [0.9, 1.8]]


def test_a_curve_under_another_is_wider(axes):
    """An equal line would otherwise be hidden, and a reader would take it for left out."""
    same = ([2, 4, 8], [3.0, 2.0, 1.0])
    series = {"1d": same, "auto": same, "other": ([2, 4, 8], [1.0, 2.0, 3.0])}
    plots_many.curve(axes, series, "tp", "speed / (tokens/s)")
    below, above, apart = (line.get_linewidth() for line in axes.lines)
    assert below > above == apart


def test_words_make_a_categorical_axis(axes):
    series = {"": (["llama-7b", "llama-13b"], [3.0, 2.0])}
    plots_many.curve(axes, series, "model", "MFU / %")
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["llama-7b", "llama-13b"]
    assert axes.get_ylim()[0] == 0
    (line,) = axes.lines
    assert line.get_linestyle() == "None"
    assert axes.get_xlim() == (-0.5, 1.5)


@pytest.mark.parametrize("ideal", [True, False])
@pytest.mark.parametrize("values", [[64, 128, 256], [1, 2, 3, 4], [8, 16, 64, 512]])
def test_ticks_are_the_swept_values(axes, values, ideal):
    series = {"": (values, [float(x) for x in values])}
    plots_many.curve(axes, series, "GPUs", "speed / (tokens/s)", ideal)
    assert axes.get_xticks().tolist() == values
    assert [tick.get_text() for tick in axes.get_xticklabels()] == list(map(str, values))


def test_ticks_are_apart(axes):
    values = [100, 101, 102, 200, 300]
    plots_many.curve(axes, {"": (values, [1.0] * 5)}, "sequence / tokens", "MFU / %")
    assert axes.get_xticks().tolist() == [100, 200, 300]


def test_names_are_no_formulas(axes):
    """A dollar begins no mathematics, which would change the name or fail."""
    hostile = (r"$\\frac$", "a$b^c$d", "5$", "\u202e$x$")
    plots_many.curve(axes, {name: ([1, name], [1.0, 2.0]) for name in hostile}, "x", "y")
    shown = [text.get_text() for text in axes.get_xticklabels()]
    shown += [line.get_label() for line in axes.lines]
    assert all(text.replace(r"\$", "").count("$") == 0 for text in not_empty(shown))
    axes.figure.canvas.draw()


@pytest.mark.parametrize(
    ("model", "cluster", "plan"),
    [
        ("llama-7b", "h100-sxm", "tp=2 pp=2 segments=16:recompute=full|16"),
        pytest.param("mixtral-8x7b", "mi300x", "ep=8 tp=1", marks=pytest.mark.slow),
        pytest.param("resnet-50", "h100-sxm", "pp=2", marks=pytest.mark.slow),
    ],
)
def test_every_kind_of_plan_has_its_page(model, cluster, plan):
    assert model in preset_names()
    machine = Cluster.profile(cluster, gpus=16)
    network = Model.preset(model)
    task = Task(network, machine, sequence=network.sequence or 2048, global_batch=64)
    costs = evaluate(task, Plan.parse(plan))
    page = plots.explanation(costs, waterfall(costs), sensitivities(costs), "svg")
    assert page.startswith(b"<?xml")
    assert plots.time_and_memory(costs, waterfall(costs), "png").startswith(b"\x89PNG")


def overlapping(page):
    """Pairs of texts of a drawn figure whose boxes overlap by more than a pixel, and texts that
    reach beyond it; numbers of ticks are left out, some of which lie outside the axes, undrawn."""
    canvas = FigureCanvasAgg(page)
    canvas.draw()
    renderer = canvas.get_renderer()
    texts = [t for t in page.findobj(Text) if t.get_visible()]
    texts = [t for t in texts if re.search("[A-Za-z]", t.get_text())]
    boxes = [(t.get_text(), t.get_window_extent(renderer).padded(-1)) for t in texts]
    whole = page.bbox
    found = [(a, b) for (a, x), (b, y) in combinations(boxes, 2) if x.overlaps(y) and a != b]
    return found + [(a, "edge") for a, x in boxes if x.x0 < whole.x0 or x.x1 > whole.x1 + 1]


@pytest.mark.parametrize(
    ("cluster", "plan"),
    [
        pytest.param("h100-sxm", "tp=2 pp=2", marks=pytest.mark.slow),
        ("mi300x", "pp=16 recompute=full"),
    ],
)
def test_nothing_overlaps(cluster, plan):
    task = replace(TASK, cluster=Cluster.profile(cluster, gpus=16))
    costs = evaluate(task, Plan.parse(plan))
    page = plots.explanation_page(costs, waterfall(costs), sensitivities(costs))
    assert overlapping(page) == []


def test_overlaps_would_be_seen():
    page = Figure()
    page.text(0.5, 0.5, "one")
    page.text(0.51, 0.5, "two")
    page.text(-0.1, 0.9, "outside")
    assert overlapping(page) == [("one", "two"), ("outside", "edge")]


def test_colours_differ_and_formats_are_written():
    assert len(set(CYCLE)) == len(CYCLE)
    assert image_bytes(Figure(), "pdf").startswith(b"%PDF")
