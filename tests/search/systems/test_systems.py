"""Every plan of a named system does what the system does, and only that."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from not_empty import not_empty

from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.search.space.space import Space
from plan3d.search.systems.system_plans import complete_plan, constraints
from plan3d.search.systems.systems import (
    ONE_OR_MORE,
    SYSTEMS,
    TWO_OR_MORE,
    ValueSet,
    system,
)
from plan3d.search.whatif.cluster_size import find_cluster, why_infeasible, with_gpus
from plan3d.search.whatif.compare_systems import BySystem, SystemsRequest, compare_systems
from plan3d.search.whatif.sweep import PointOptions
from plan3d.search.whatif.variation import points_over
from plan3d.simulator.analysis.goodput import Training
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.field_values import AUTO
from plan3d.simulator.plan.fields import code, spell
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.rules.validity import violations
from plan3d.simulator.task import Goal, Task
from plan3d.simulator.uncertainty.memory import EDGE_PROBABILITY, probability_fits
from plan3d.simulator.workload.model import Model

CLUSTER = Cluster.profile("a100-80gb-sxm", gpus=32)
TASK = Task(Model.preset("gpt3-1.3b"), CLUSTER, sequence=2048, global_batch=128)
EXPERTS = Task(Model.preset("mixtral-8x7b"), CLUSTER, sequence=2048, global_batch=128)
NAMES = list(SYSTEMS)
FROM_ONE = ("tp", "pp", "cp", "ep", "virtual_stages", "sync_period", "fragments")
GRIDS = [code("tp_grid", text) for text in ("1d", "2x2", "2.5d:2x2x2", "2x2x2")]


def of(name: str, task: Task) -> tuple[Task, dict]:
    """The task that a system trains and the constraints of its search."""
    named = system(name)
    own = task if named.gpus is None else with_gpus(task, named.gpus)
    return own, constraints(named, own, {})


def held(name: str, field: str, value: int) -> bool:
    values = system(name).held_values[field]
    if isinstance(values, ValueSet):
        return values.contains(spell(field, value))
    return value in codes(field, values)


def codes(field: str, values: tuple[str | int, ...]) -> list[int]:
    return [code(field, value) for value in values]


@pytest.mark.parametrize("name", NAMES)
def test_every_legal_plan_holds_the_fields(name: str) -> None:
    task, choose = of(name, TASK)
    seen = 0
    for plans in Space.of(task, choose).chunks():
        seen += plans.rows
        for field in system(name).held_values:
            values = np.unique(getattr(plans, field))
            assert all(held(name, field, int(v)) for v in not_empty(values)), field
    assert seen > 3


@pytest.mark.parametrize("name", NAMES)
def test_what_a_system_holds_is_refused_otherwise(name: str) -> None:
    named = system(name)
    for field in not_empty(named.held_values):
        least = 1 if field in FROM_ONE else 0
        values = GRIDS if field == "tp_grid" else range(least, 3)
        wrong = next(spell(field, v) for v in values if not held(name, field, v))
        with pytest.raises(InputError, match=f"{field}=.* contradicts the system {name}"):
            constraints(named, TASK, {field: [wrong]})
        with pytest.raises(InputError, match=f"{field}=.* contradicts the system {name}"):
            complete_plan(named, Plan(**{field: wrong}), frozenset({field}))


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_that_states_nothing_gets_the_fields(name: str) -> None:
    task, _ = of(name, TASK)
    stated = Plan(micro_batch=2, tp=2, tp_grid="1x1x2") if name == "axonn" else Plan(micro_batch=2)
    said = frozenset({"micro_batch", *(("tp", "tp_grid") if name == "axonn" else ())})
    plan = resolve(complete_plan(system(name), stated, said), 32)
    assert plan.micro_batch == 2
    for field in system(name).held_values:
        assert held(name, field, getattr(plan, field)), field
    if system(name).gpus is None:
        assert violations(plan, task) == []


def test_what_is_usual_may_be_replaced() -> None:
    assert constraints(system("local-sgd"), TASK, {})["sync_period"] == (8,)
    assert constraints(system("local-sgd"), TASK, {"sync_period": [32]})["sync_period"] == [32]
    gossip = complete_plan(system("gossip"), Plan(topology="ring"), frozenset({"topology"}))
    assert spell("topology", gossip.topology) == "ring"
    narrowed = constraints(system("parameter-server"), TASK, {"sync": ["parameter-server"]})
    assert narrowed["sync"] == ["parameter-server"]


def test_fields_of_no_system_are_free() -> None:
    chosen = constraints(system("megatron"), TASK, {"tp": ["4"], "schedule": ["auto"]})
    assert chosen["tp"] == ["4"]
    assert complete_plan(system("megatron"), Plan(tp=4), frozenset({"tp"})).schedule == AUTO


def test_a_grid_of_one_plan_is_named() -> None:
    plan = complete_plan(system("axonn"), Plan(tp=4), frozenset({"tp"}))
    assert any("name a grid of one plan" in text for _, text in violations(resolve(plan, 32), TASK))
    chosen = constraints(system("axonn"), TASK, {"tp": [8]})["tp_grid"]
    assert {spell("tp_grid", grid).partition(":")[0] for grid in chosen} == {"3d"}
    with pytest.raises(InputError, match="tp_grid=4x4 contradicts the system axonn, which has"):
        constraints(system("axonn"), TASK, {"tp_grid": ["4x4"]})


def test_a_mesh_splits_dimensions_and_gathers_no_weights() -> None:
    for grid in ("4x4", "2x2x2"):
        with pytest.raises(InputError, match="contradicts the system mesh-tf"):
            constraints(system("mesh-tf"), TASK, {"tp_grid": [grid]})
    grids = [spell("tp_grid", grid) for grid in of("mesh-tf", TASK)[1]["tp_grid"]]
    assert grids[0] == "1d"
    assert "3d:4x2x1" in grids
    assert not any(grid.startswith("2") for grid in grids)
    found = compared_on(TASK, [system("tensor"), system("mesh-tf")])
    tensor, mesh = (entry.best.step_seconds for entry in found.entries)
    assert mesh <= tensor


def test_segments_are_refused() -> None:
    plan = Plan(pp=2, segments="12|12")
    with pytest.raises(InputError, match="segments contradict the system gpipe"):
        complete_plan(system("gpipe"), plan, frozenset({"pp", "segments"}))


def test_an_unknown_system_names_the_nearest() -> None:
    with pytest.raises(InputError, match="unknown system 'megatorn'; did you mean megatron"):
        system("megatorn")


def compared_on(task: Task, systems: list[Any], **options: Any) -> BySystem:
    """Systems on one task."""
    return compare_systems(task, SystemsRequest(systems=systems, **options))


@pytest.fixture(scope="module")
def compared() -> BySystem:
    return compared_on(TASK, list(SYSTEMS.values()))


def test_systems_differ_as_their_papers_say(compared: BySystem) -> None:
    best = {entry.system.name: entry.best for entry in compared.entries}
    assert list(best) == NAMES
    assert all(best.values())
    smallest = {e.system.name: e.result.smallest.memory_bytes for e in compared.entries}
    assert smallest["zero3"] < smallest["zero2"] <= smallest["zero1"] < smallest["ddp"]
    assert best["gpipe"].seconds["bubble"] > 0 == best["ddp"].seconds["bubble"]
    assert best["tensor"].seconds["tensor_comm"] > 0 == best["pipedream"].seconds["tensor_comm"]
    assert best["local-sgd"].step_seconds < best["ddp"].step_seconds
    assert compared.speed_up(best["sequential"]) == pytest.approx(1)
    speed_ups = [compared.speed_up(costs) for costs in best.values()]
    assert 1 < min(speed_ups[1:]) <= max(speed_ups) <= 32


def test_a_sweep_varies_systems_by_name() -> None:
    """Of one plan, completed as each has it, and of searches that each constrains."""
    over = {"gpus": [16, 32], "system": ["ddp", "zero1"]}
    given = points_over(TASK, over, "micro_batch=2", PointOptions())
    assert [point.settings["system"] for point in given] == ["ddp", "zero1"] * 2
    plans = [point.plan for point in given if point.plan is not None]
    assert [(plan.zero, plan.dp, plan.micro_batch) for plan in plans] == [
        *((0, 16, 2), (1, 16, 2)),
        *((0, 32, 2), (1, 32, 2)),
    ]
    searched = points_over(TASK, {**over, "micro_batch": [2]}, None, PointOptions())
    assert [point.options.choose["zero"] for point in searched] == [(0,), (1,)] * 2
    for plan in ("micro_batch=2", None):
        with pytest.raises(InputError, match="tp=2 contradicts the system ddp"):
            points_over(TASK, {"system": ["ddp"], "tp": [2]}, plan, PointOptions())
    with pytest.raises(InputError, match="unknown system 'dpp'; did you mean ddp"):
        points_over(TASK, {"system": ["dpp"]}, None, PointOptions())


def test_no_two_systems_are_one(compared: BySystem) -> None:
    """On all of several comparisons: gpt3-1.3b on four nodes; where ZeRO 1 keeps more than it may;
    on slow links, where FSDP shards inside a node; of long sequences, which Llama 3 splits."""
    slow = replace(
        TASK, cluster=Cluster.profile("a100-80gb-sxm", gpus=32, inter_node_bandwidth=2e9)
    )
    large = replace(TASK, model=Model.preset("gpt3-6.7b"), global_batch=256)
    hopper = Cluster.profile("h100-sxm", gpus=32)
    long = Task(Model.preset("llama-3.1-8b"), hopper, sequence=65536, global_batch=8)
    seconds: dict[str, dict[int, float]] = {}
    found = [
        compared,
        compared_on(large, [system(name) for name in ("zero1", "zero2")]),
        compared_on(slow, [system(name) for name in ("zero3", "fsdp")]),
        compared_on(long, [system(name) for name in ("megascale", "llama3")]),
    ]
    for i, one in enumerate(found):
        for entry in one.entries:
            if entry.best is not None:
                seconds.setdefault(entry.system.name, {})[i] = entry.best.step_seconds
    same = [
        (a, b)
        for a, b in combinations(SYSTEMS, 2)
        if all(seconds[a][i] == seconds[b][i] for i in seconds[a].keys() & seconds[b].keys())
    ]
    assert same == []


def test_the_fastest_is_one_that_trains_as_one_device_would(
    compared: BySystem,
) -> None:
    assert compared.fastest.system.name == "megatron"
    inexact = compare_systems(
        TASK, SystemsRequest(systems=[system("local-sgd"), system("parameter-server")])
    )
    assert inexact.fastest.system.name == "parameter-server"


def test_a_goal_makes_steps_comparable() -> None:
    task = replace(TASK, goal=Goal(0.01, 10.0))
    found = compare_systems(
        task, SystemsRequest(systems=[system(name) for name in ("ddp", "gossip", "local-sgd")])
    )
    ddp, gossip, local = (entry.best for entry in found.entries)
    assert found.objective == "time-to-accuracy"
    assert ddp.iterations < min(gossip.iterations, local.iterations)
    assert local.step_seconds < ddp.step_seconds
    assert found.fastest.system.name == "ddp"


def test_one_device_is_the_measure_even_where_it_does_not_fit() -> None:
    task = Task(Model.preset("gpt3-6.7b"), CLUSTER, sequence=2048, global_batch=128)
    found = compare_systems(
        task, SystemsRequest(systems=[system("sequential"), system("ddp"), system("zero3")])
    )
    alone, ddp, zero3 = found.entries
    assert alone.best is None is ddp.best
    assert "GiB over the limit" in ddp.obstacle
    assert alone.result.task.gpus == 1
    assert found.one_device.memory_bytes > found.limit
    assert 1 < found.speed_up(zero3.best) <= 32


def test_the_limit_is_that_of_a_search() -> None:
    """The plan of each system is the best of its search, which is likelier to fit than not."""
    task = Task(Model.preset("gpt3-2.7b"), CLUSTER, sequence=2048, global_batch=512)
    found = compare_systems(
        task, SystemsRequest(systems=[system("sequential"), system("ddp"), system("zero1")])
    )
    assert found.limit == rank_plans(task).limit
    for entry in found.entries:
        best = rank_plans(entry.result.task, Ranking(system=entry.system.name)).best
        assert entry.best.step_seconds == best.step_seconds
        assert probability_fits(entry.best) >= EDGE_PROBABILITY
    assert found.speed_up(found.entries[0].best) == pytest.approx(1)
    assert set(found.to_frame()["probability_fits"] >= EDGE_PROBABILITY) == {True}


def test_the_limit_of_one_device_is_that_of_the_systems() -> None:
    choose = {"micro_batch": ["1"], "recompute": ["full"]}
    names = [system("sequential")]
    (entry,) = compared_on(TASK, names, choose=choose).entries
    memory = entry.best.memory_bytes / 0.9
    small = replace(TASK, cluster=Cluster.profile("a100-80gb-sxm", gpus=32, memory=memory))
    found = compared_on(small, names, choose=choose)
    assert found.speed_up(found.entries[0].best) == pytest.approx(1)
    assert found.one_device.memory_bytes <= found.limit == found.entries[0].result.limit
    tenth = compared_on(small, names, choose=choose, headroom=0.1)
    assert tenth.limit == pytest.approx(0.9 * small.cluster.accelerator.memory)


def test_experts_are_split_only_by_systems_that_split_them() -> None:
    found = compared_on(EXPERTS, [system("zero3"), system("megatron")])
    zero3, megatron = (entry.result.plans[0] for entry in found.entries)
    assert zero3.ep == 1 < megatron.ep * megatron.tp * megatron.pp


def test_a_constraint_narrows_every_system() -> None:
    choose = {"recompute": ["full"], "micro_batch": ["1"]}
    found = compare_systems(
        TASK, SystemsRequest(systems=[system("ddp"), system("gpipe")], choose=choose)
    )
    for entry in found.entries:
        assert (entry.result.plans[0].recompute, entry.result.plans[0].micro_batch) == (2, 1)
    with pytest.raises(InputError, match="tp=2 contradicts the system ddp"):
        compared_on(TASK, [system("ddp")], choose={"tp": ["2"]})


def test_what_would_fit_says_that_the_system_is_in_the_way() -> None:
    task = Task(Model.preset("gpt3-6.7b"), CLUSTER, sequence=2048, global_batch=128)
    lines = why_infeasible(rank_plans(task, Ranking(system="ddp")))
    assert any(line.startswith("without the system ddp it fits") for line in lines)
    assert not any("constraint on" in line for line in lines)


def test_more_gpus_are_searched_within_the_system() -> None:
    task = Task(Model.preset("gpt3-6.7b"), CLUSTER, sequence=2048, global_batch=128)
    small = replace(CLUSTER, accelerator=replace(CLUSTER.accelerator, memory=8.0e9))
    found = rank_plans(replace(task, cluster=small), Ranking(system="zero3", top=3))
    assert found.costs is None
    (line,) = (text for text in why_infeasible(found) if text.startswith("on "))
    plan = Plan.parse(line.partition(": ")[2])
    assert plan.zero == 3
    assert plan.dp == int(line.split()[1]) > 32


def test_the_fewest_gpus_are_those_of_the_system() -> None:
    found = find_cluster(TASK, Training(tokens=1e9, days=1.0), Ranking(system="pipedream"))
    assert found.system == "pipedream"
    assert all(plan.pp > 1 and plan.zero == 0 for plan in not_empty(found.plans))
    with pytest.raises(InputError, match="unknown system"):
        rank_plans(TASK, Ranking(system="pipedreem"))


@pytest.mark.parametrize(("name", "parameters"), [("ddp", 6_553_600), ("horovod", 16_777_216)])
def test_buckets_of_data_parallelism_are_as_published(name: str, parameters: int) -> None:
    """25 MiB (bucket_cap_mb) and 64 MiB (HOROVOD_FUSION_THRESHOLD) of 4 bytes each."""
    assert system(name).usual_settings["bucket_parameters"] == (parameters,)


@pytest.mark.parametrize(
    ("values", "inside"), [(TWO_OR_MORE, [False, False, True]), (ONE_OR_MORE, [False, True, True])]
)
def test_counts_that_a_system_may_have(values: ValueSet, inside: list[bool]) -> None:
    assert [values.contains(number) for number in range(3)] == inside


@pytest.mark.parametrize(("values", "least"), [(ONE_OR_MORE, 1), (TWO_OR_MORE, 2)])
def test_counts_begin_with_the_least(values, least):
    assert [values.contains(n) for n in (least - 1, least, least + 1)] == [False, True, True]
    assert values.default == least
