"""The table of schedules: codes, names, registration, and nothing that follows from the order."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from plan3d.launch_files.exporter import refusals
from plan3d.launch_files.registry import EXPORTERS
from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.pipeline import one_f_one_b, zb_h2
from plan3d.simulator.pipeline.interleaved import longer_group, shortest_group
from plan3d.simulator.pipeline.schedule import Condition, Passes, Sizes
from plan3d.simulator.pipeline.schedules import (
    BUILT_IN,
    SCHEDULES,
    ScheduleTable,
    launched_by,
    model_copies,
    register_schedule,
    schedule_code,
)
from plan3d.simulator.plan.fields import CHOICES, spell
from plan3d.simulator.plan.plan import Plan, concat, resolve
from plan3d.simulator.rules.validity import violations
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.step.plan_timeline import timeline_of
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

CODES = {
    **{"1f1b": 0, "interleaved": 1, "gpipe": 2, "naive": 3, "breadth-first": 4, "zb-h1": 5},
    **{"zb-h2": 6, "zb-h2-sync": 7, "zb-v": 8, "dualpipe": 9, "dualpipe-v": 10},
    **{"zb-1p": 5, "zb-2p": 6},
}
"""Codes that saved columns may hold."""
TASK = Task(
    Model.preset("gpt3-6.7b"),
    Cluster.profile("a100-80gb-sxm", gpus=64),
    sequence=2048,
    global_batch=256,
)
PLANS = [
    *(f"pp=4 schedule={name}" for name, s in SCHEDULES.items() if s.chunks.least == 1),
    *(f"pp=4 virtual_stages=2 schedule={n}" for n, s in SCHEDULES.items() if s.chunks.most > 1),
    "tp=2 pp=4",
    "tp=2 pp=4 virtual_stages=4 micro_batch_group=8",
    "tp=2 pp=4 layers_per_stage=9,8,8,7",
    "pp=4 segments=8|8|8|8:recompute=full",
]
REFUSED = [
    "pp=4 virtual_stages=2 schedule=gpipe",
    "pp=4 schedule=zb-v",
    "pp=1 schedule=zb-h2",
    "tp=2 pp=16 virtual_stages=2 micro_batch=16 schedule=breadth-first",
    "pp=4 schedule=1f1b micro_batch_group=8",
    "tp=2 pp=4 schedule=dualpipe micro_batch=32",
    "pp=4 schedule=zb-h1 offload_activations=50",
]


def put(monkeypatch, table):
    """Let another table of schedules stand where the package's does."""
    for name in ("_known", "rows", "aliases"):
        monkeypatch.setattr(SCHEDULES, name, getattr(table, name))


@pytest.fixture
def open_table(monkeypatch):
    """The package's schedules, to which a test may add."""
    put(monkeypatch, ScheduleTable(BUILT_IN))


def answers():
    """Seconds, bytes and messages of plans, and the best plans of a search."""
    found = {}
    for text in PLANS:
        costs = evaluate(TASK, Plan.parse(text))
        parts = (costs.step_seconds, costs.memory_bytes, *costs.seconds.values())
        found[text] = (*parts, timeline_of(TASK, Plan.parse(text)).step_seconds, str(costs.plans))
    for text in REFUSED:
        found[text] = violations(resolve(Plan.parse(text), TASK.gpus), TASK)
    rows = [resolve(Plan.parse(t), TASK.gpus).table() for t in PLANS if "s_per" not in t]
    rows = [row for row in rows if row.segments is None]
    found["table"] = evaluate(TASK, concat(rows)).step.tolist()
    for fixed in ({"schedule": ["gpipe", "1f1b", "zb-h1"], "virtual_stages": [1]}, {"tp": [2]}):
        result = rank_plans(TASK, Ranking(choose={**fixed, "pp": [4, 8]}))
        best = [
            (str(plan), step) for plan, step in zip(result.plans, result.costs.step, strict=True)
        ]
        found[str(fixed)] = best, dict(result.counts.removed)
    return found


@pytest.fixture(scope="module")
def usual():
    return answers()


@pytest.mark.parametrize("seed", range(2))
def test_the_order_of_registration_means_nothing(usual, monkeypatch, seed):
    """But for the first, which is the usual one: registered ones come behind those built in."""
    assert BUILT_IN[0].name == "1f1b"
    shuffled = [BUILT_IN[0], *random.Random(seed).sample(BUILT_IN[1:], len(BUILT_IN) - 1)]
    put(monkeypatch, ScheduleTable(tuple(shuffled)))
    assert [spell("schedule", i) for i in range(len(shuffled))] == [s.name for s in shuffled]
    assert answers() == usual


def test_codes_of_the_package_stay():
    assert CODES.items() <= dict(CHOICES["schedule"].names).items()
    assert list(CHOICES["schedule"].names)[:11] == list(CODES)[:11]
    assert [spell("schedule", number) for number in range(11)] == list(CODES)[:11]
    assert Plan.parse("schedule=zb-2p").to_dict()["schedule"] == "zb-h2"


def test_facts_of_one_code_are_plain_numbers():
    """A resolved plan of plain numbers stays one when it is resolved again."""
    plan = resolve(Plan(tp=2, pp=2, schedule="dualpipe"), 8)
    assert {type(value) for value in resolve(plan, 8).columns().values()} == {int}
    assert (
        model_copies(schedule_code("dualpipe")),
        model_copies(schedule_code("1f1b")),
        model_copies(-1),
    ) == (
        2,
        1,
        1,
    )
    assert model_copies(np.array([schedule_code("dualpipe"), -1, 0])).tolist() == [2, 1, 1]


def test_help_lists_the_names():
    assert CHOICES["schedule"].description == ", ".join((*SCHEDULES, "zb-1p", "zb-2p"))


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_record_cites_what_the_reference_cites(name):
    page = Path(__file__).parents[3] / "docs" / "model.md"
    (row,) = [line for line in page.read_text().splitlines() if line.startswith(f"| `{name}` |")]
    schedule = SCHEDULES[name]
    assert schedule.source.split(",")[0] in row


@pytest.mark.parametrize("framework", ["megatron-core", "torchtitan", "deepspeed", "nanotron"])
def test_what_a_framework_runs_ends_with_the_usual(framework):
    found = launched_by(framework)
    assert list(found)[-1] == schedule_code("1f1b")
    assert len(set(found.values())) == len(found)


MINE = replace(
    one_f_one_b.SCHEDULE,
    name="mine",
    aliases=("my-own",),
    frameworks={},
    conditions=(
        Condition(
            name="mine-in-fours",
            reads="m",
            ok=lambda s: s.m % 4 == 0,
            message=lambda name, s: f"{name} needs fours, not {s.m}; nearest: {s.m + -s.m % 4}",
        ),
    ),
)


@pytest.mark.usefixtures("open_table")
def test_a_schedule_of_ones_own():
    with pytest.raises(InputError, match="schedule=mine is not modelled"):
        Plan(schedule="mine")
    register_schedule(MINE)
    register_schedule(MINE)
    assert SCHEDULES.lookup("my-own") is SCHEDULES["mine"] is MINE
    plan = Plan.parse("pp=4 schedule=my-own")
    assert plan.schedule == len(BUILT_IN)
    assert plan.to_dict()["schedule"] == "mine"
    assert evaluate(TASK, plan).step_seconds == evaluate(TASK, Plan.parse("pp=4")).step_seconds
    assert timeline_of(TASK, plan).timeline.graph.schedule is MINE
    (broken,) = violations(resolve(Plan.parse("tp=8 pp=4 micro_batch=64 schedule=mine"), 64), TASK)
    assert broken == ("schedule-conditions", "mine needs fours, not 2; nearest: 4")
    with pytest.raises(InputError, match=f"must be at most {plan.schedule}"):
        Plan(schedule=np.array([plan.schedule + 1]))
    row = resolve(plan, TASK.gpus).take(0)
    for exporter in EXPORTERS.values():
        reasons = refusals(TASK, row, exporter.forms[0])
        assert any("schedule=mine" in why or "pp=4: " in why for why in reasons)
    found = rank_plans(
        TASK, Ranking(choose={"schedule": ["mine"], "pp": [4]}, backend="branch-and-bound")
    )
    same = rank_plans(
        TASK, Ranking(choose={"schedule": ["1f1b"], "pp": [4], "virtual_stages": [1]})
    )
    assert found.costs.step[0] == same.costs.step[0]


@pytest.mark.usefixtures("open_table")
@pytest.mark.parametrize("names", [{"name": "1f1b"}, {"name": "b", "aliases": ("zb-1p",)}])
def test_no_name_is_taken_twice(names):
    with pytest.raises(ValueError, match="is there already"):
        register_schedule(replace(MINE, **names))
    assert SCHEDULES.rows == BUILT_IN


@pytest.mark.parametrize(
    ("p", "m", "group"),
    [(8, 16, 8), (8, 12, 12), (8, 18, 9), (8, 125, 9), (16, 125, 18), (8, 7, 0)],
)
def test_the_shortest_groups_leave_no_rest_or_one_of_pp(p: int, m: int, group: int) -> None:
    """125 in groups of 9 leave 8 for the last; in groups of 16 they leave 13, of 17 6, of 18 17."""
    assert shortest_group(p, m) == group


@pytest.mark.parametrize(
    ("p", "m", "group"), [(8, 24, 12), (4, 8, 8), (8, 19, 10), (8, 125, 14), (8, 8, 0), (8, 9, 9)]
)
def test_the_least_longer_groups_are_all_of_more_than_pp(p: int, m: int, group: int) -> None:
    """24 in groups of 9, 10 and 11 leave 6, 4 and 2; 125 in groups of 9 leave 8, of 10 they leave
    5, of 11 4, of 12 5, of 13 8, of 14 13."""
    assert longer_group(p, m) == group


@pytest.mark.parametrize(
    ("p", "m", "shortest", "longer"),
    [(4, 3, 0, 0), (4, 4, 4, 0), (4, 5, 5, 5), (4, 8, 4, 8), (4, 9, 5, 9), (4, 10, 5, 5),
     (4, 11, 6, 6), (4, 12, 4, 6), (4, 14, 5, 7), (2, 3, 3, 3), (2, 5, 3, 5), (2, 7, 4, 4),
     (1, 1, 1, 0), (1, 2, 1, 2)],
)  # fmt: skip
def test_groups_that_micro_batches_can_be_cut_into(p, m, shortest, longer):
    """Of at least p, the last too; or all of more than p."""

    def groups(least):
        cuts = (g for g in range(least, m + 1) if m % g == 0 or m % g >= least)
        return next(cuts, 0)

    assert shortest_group(p, m) == shortest == groups(p)
    assert longer_group(p, m) == longer == groups(p + 1)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [((4, 2, 4, 10), "nearest: 8, or micro_batch_group=5"), ((4, 2, 4, 3), "needs; nearest: 4"),
     ((4, 2, 8, 10), "nearest: 8 micro-batches, or micro_batch_group=4"),
     ((4, 2, 8, 18), "nearest: 16 micro-batches, or micro_batch_group=4")],
)  # fmt: skip
def test_the_nearest_groups_are_named(sizes, said):
    (condition,) = SCHEDULES.rows[schedule_code("interleaved")].conditions
    assert condition.message("interleaved", Sizes(*sizes)).endswith(said)


def test_zb_h2_holds_back_as_much_as_ends_its_ranks_together():
    """Three ranks of passes of 1.5, 1.5 and 1, eight micro-batches: with three weight gradients a
    rank 2 x 3 + 1 - 7 = 0 and 3 + 4 - 7 = 0; with seven 3 + 8 - 8 = 3 at the second rank."""
    one = Passes(*(np.array([part]) for part in (1.5, 1.5, 1.0)))
    others = Passes(*(2 * part for part in one))
    s = Sizes(*(np.array([n]) for n in (3, 1, 3, 8)))
    assert zb_h2._idle(s, one, others) == pytest.approx([0])
    late = [zb_h2._ends_late(s, one, one, held, np.array([3.0])) for held in (3, 7)]
    assert np.ravel(late).tolist() == [0, 3]


def test_zb_h2_holds_back_less_where_the_slowest_has_short_weight_gradients():
    """Fifteen micro-batches and a slowest rank of 3, 3 and a quarter: with three weight gradients a
    rank 2 x 3 + 1 - 7 / 4 = 3 + 4 - 7 / 4 = 5.25; with seven, all that it has, 3 + 8 - 15 / 4."""
    slowest = Passes(*(np.array([part]) for part in (3.0, 3.0, 0.25)))
    others = Passes(*(np.array([2 * part]) for part in (1.5, 1.5, 1.0)))
    s = Sizes(*(np.array([n]) for n in (3, 1, 3, 15)))
    assert zb_h2._idle(s, slowest, others) == pytest.approx([5.25])
