"""The drawing of ranks on nodes: groups, the nodes that stand for all, and grids."""

import pytest
from not_empty import not_empty

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.reporting.grid_map import grid_panels
from plan3d.simulator.reporting.palette import figure
from plan3d.simulator.reporting.rank_map import (
    DrawnRanks,
    group_sentence,
    groups_of,
    indices,
    rank_page,
)
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model


def task(model="llama-7b", gpus=64, cluster="h100-sxm"):
    machine = Cluster.profile(cluster, gpus=gpus)
    return Task(Model.preset(model), machine, sequence=4096, global_batch=1024)


def members(question, text):
    return {g.name: (list(g.members), g.domains) for g in groups_of(question, Plan.parse(text))}


def test_groups_count_from_the_inside_out():
    """tp-cp-dp-pp: two tensor, two context, four data ranks of two pipeline ranks of 16 GPUs."""
    assert members(task(gpus=32), "tp=2 cp=2 pp=2") == {
        "tp": ([0, 1], 1),
        "cp": ([0, 2], 1),
        "dp": ([0, 4, 8, 12], 2),
        "pp": ([0, 16], 2),
    }


def test_experts_fold_into_context_and_data_ranks():
    """Megatron-Core: etp x ep x edp = tp x cp x dp; eight experts' ranks fill a node here."""
    found = members(task("mixtral-8x7b", 32), "tp=2 cp=2 ep=8")
    assert found["ep"] == (list(range(8)), 1)
    assert found["edp"] == ([0, 8, 16, 24], 4)
    assert found["dp"] == ([0, 4, 8, 12, 16, 20, 24, 28], 4)


@pytest.mark.parametrize("text", ["tp=2 cp=2 pp=2", "tp=8", "pp=4"])
def test_the_place_of_a_gpu_is_where_its_group_says(text):
    question = task(gpus=32)
    plan = resolve(Plan.parse(text), 32)
    for group in not_empty(groups_of(question, plan)):
        places = [indices(question, plan, gpu)[group.name] for gpu in group.members]
        assert places == list(range(group.ranks))


def test_a_large_cluster_is_drawn_by_its_ends():
    unit = DrawnRanks.of_task(task("llama-3.1-405b", 16384), 16)
    assert (unit.rows, unit.nodes, unit.length) == ((0, 1, 2, 15), (0, 1, 2, 127), 1024)
    assert unit.position(0) == (0, 0)
    assert unit.position(16383)[1] == 3
    assert unit.position(4 * 1024) is None
    assert unit.width < 45


@pytest.mark.parametrize(
    ("gpus", "text", "said_of"),
    [
        (1, "tp=1", "one GPU holds the whole model and every sequence"),
        (8, "tp=2 pp=4", "pp 4, pipeline parallel: within one domain"),
        (12, "pp=4", "dp 3, data parallel: some such groups leave their domain, over"),
        (96, "pp=16", "to GPU 90"),
        (96, "pp=16", "pp 16, pipeline parallel: 12 domains"),
        (1024, "tp=8 pp=8", "dp 16, data parallel: 16 domains, over InfiniBand"),
    ],
)
def test_every_size_of_cluster_has_its_drawing(gpus, text, said_of):
    drawn = rank_page(task(gpus=gpus), Plan.parse(text))
    (axes,) = drawn.axes
    texts = [each.get_text() for each in axes.texts]
    assert texts[0].startswith(f"llama-7b on {gpus} x H100")
    assert any(each.startswith(said_of) for each in texts)
    width, height = drawn.get_size_inches()
    assert width <= 15
    assert height < 8
    places = [each.get_position() for each in axes.texts]
    assert all(0 <= x <= width and 0 <= y <= height for x, y in not_empty(places))


def test_stages_that_differ_are_refused():
    with pytest.raises(InputError, match="whose stages are alike"):
        rank_page(task(gpus=4), Plan.parse("pp=2 segments=16:tp=2|16:tp=2"))


def test_racks_are_one_domain():
    (tensor, data) = groups_of(task(gpus=36, cluster="gb200"), Plan.parse("tp=4"))
    assert data.domains == 1
    assert "within one domain of NVLink5" in group_sentence(
        data, task(gpus=36, cluster="gb200").cluster
    )
    assert tensor.ranks == 4


def test_a_grid_says_who_holds_what():
    upper, lower = figure(8, 4).subplots(1, 2)
    plan = Plan.parse("tp=16 tp_grid=2.5d:2x2x4 micro_batch=16 dp=4")
    grid_panels(upper, lower, task(), plan)
    told = [text.get_text() for text in upper.texts]
    assert [text for text in told if text.isdigit()] == [str(rank) for rank in range(16)]
    texts = [text.get_text() for text in lower.texts]
    assert {"tokens / 8 rows x depth", "out / 2 columns", "in"} <= set(texts)
    assert "x: kept divided over\ncolumns, gathered before" in texts
