"""Families of plans: brute force over whole spaces, and the same answer however it is asked."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plan3d.search.exact import exhaustive
from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.search.result import search_record
from plan3d.search.result.families import ALIKE, SIMPLER, fastest_first, simplest_first
from plan3d.search.result.options import SearchOptions
from plan3d.search.space.space import Space
from plan3d.search.whatif.climb import climbed
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.plan.plan import (
    FAMILY_COUNT,
    Plan,
    concat,
    families,
    resolve,
    split_count,
)
from plan3d.simulator.step.evaluate import simulate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

FEW = {"cp": [1, 2], "micro_batch": [1, 2], "virtual_stages": [1, 2, 4], "pp": [1, 2, 4]}


def task(gpus=16):
    cluster = Cluster.profile("h100-sxm", gpus=gpus)
    return Task(Model.preset("llama-3.1-8b"), cluster, sequence=4096, global_batch=64)


def simplicity(plan, memory):
    uneven = task().model.layers % (plan.pp * plan.virtual_stages) > 0
    groups = (plan.micro_batch_group > 0, plan.virtual_stages, not plan.overlap_grad_reduce)
    return (plan.cp, plan.tp > 8, uneven, *groups, plan.zero > 1, memory)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        # cp, tp beyond a node of 8, uneven chunks of 32 layers, longer groups, chunks, no overlap
        # of gradients, ZeRO beyond 1.
        ("dp=16", [1, 0, 0, 0, 1, 0, 0]),
        ("tp=8 dp=2 zero=1 overlap_grad_reduce=0", [1, 0, 0, 0, 1, 1, 0]),
        ("tp=16 dp=1 zero=2", [1, 1, 0, 0, 1, 0, 1]),
        ("cp=2 pp=4 dp=2 virtual_stages=2 micro_batch_group=5", [2, 0, 0, 1, 2, 0, 0]),
        ("pp=4 dp=4 virtual_stages=3 micro_batch_group=1", [1, 0, 1, 1, 3, 0, 0]),
        ("pp=4 dp=4 virtual_stages=8", [1, 0, 0, 0, 8, 0, 0]),
    ],
)
def test_what_makes_a_plan_simple_by_hand(text: str, values: list[int]) -> None:
    plans = concat([Plan.parse(text).table()])
    costs = SimpleNamespace(plans=plans, task=task())
    assert [int(rule(costs)[0]) for rule in SIMPLER[:-1]] == values  # type: ignore[arg-type]


MIXTRAL = Task(
    Model.preset("mixtral-8x7b"), Cluster.profile("b200", gpus=64), sequence=8192, global_batch=512
)
GPT3 = Task(
    Model.preset("gpt3-175b"),
    Cluster.profile("a100-80gb-sxm", gpus=256),
    sequence=2048,
    global_batch=1536,
)


@pytest.mark.parametrize("question", [task(), MIXTRAL, GPT3], ids=["dense", "moe", "gpt3"])
@pytest.mark.parametrize("memory", [1.0, 0.5])
def test_what_is_not_timed_changes_no_answer(
    question: Task, memory: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans that others beat whatever delays them beside their passes, and those that do not fit:
    lists, what they stand for, best plans by depth and counts are those of all plans timed."""
    space, capacity = Space.of(question), question.cluster.accelerator.memory * memory
    options = SearchOptions(limit=capacity, safe_limit=0.8 * capacity, families=True)
    answers, steps = [], []
    for rows in (10**9, 1):
        monkeypatch.setattr(search_record, "FEW", rows)
        record = search_record.SearchRecord(question, options)
        steps += [record.add(plans).step for plans in space.chunks()]
        answers.append(record.result("exhaustive", 0, {}))
    every, some = answers
    assert np.isfinite(steps[-1]).sum() < np.isfinite(steps[0]).sum()
    for name in ("costs", "depths", "safe"):
        one, other = getattr(every, name), getattr(some, name)
        assert (one is None) == (other is None)
        if one is not None:
            assert list(map(str, one.plans)) == list(map(str, other.plans))
            assert (one.step == other.step).all()
    assert (every.families is None) == (some.families is None)
    if every.families is not None and some.families is not None:
        assert (every.families.plans == some.families.plans).all()
        assert (every.families.fastest == some.families.fastest).all()
    assert every.counts == some.counts
    assert every.smallest is not None
    assert some.smallest is not None
    assert every.smallest.memory_bytes == some.smallest.memory_bytes


def test_a_list_begins_with_the_fastest_then_with_what_splits_least_of_those_alike():
    """Of steps of 1, 1.005, 1.008 and 1.2 s the second splits more ways than the third."""
    plans = [Plan(tp=2, pp=4), Plan(tp=4, zero=3), Plan(dp=16, zero=2), Plan(tp=2, zero=1)]
    table = concat([resolve(plan, 16).table() for plan in plans])
    costs = replace(simulate(task(), table), step=np.array([1.0, 1.005, 1.008, 1.2]))
    assert split_count(table).tolist() == [2, 2, 0, 1]
    assert fastest_first(costs).tolist() == [0, 2, 1, 3]


def test_each_listed_plan_is_the_simplest_of_its_family_by_brute_force():
    listed = rank_plans(task(), Ranking(choose=FEW, families=True, top=FAMILY_COUNT))
    whole = simulate(task(), concat(list(Space.of(task(), FEW).chunks(1000))))
    whole = whole.take(whole.memory_total <= listed.limit)
    of = families(whole.plans)
    assert {*families(listed.costs.plans)} == {*of}
    for row, plan in enumerate(listed.plans):
        mine = of == families(listed.costs.plans)[row]
        fastest = whole.step[mine].min()
        assert listed.families.fastest[row] == pytest.approx(fastest, rel=1e-12)
        near = np.flatnonzero(mine & (whole.step <= fastest * (1 + ALIKE)))
        least = min(simplicity(whole.plans.take(i), whole.memory_total[i]) for i in near)
        assert simplicity(plan, listed.costs.memory_total[row]) == pytest.approx(least)
        assert listed.families.plans[row] == near.size
    of, near = (
        split_count(listed.costs.plans),
        listed.costs.step <= whole.step.min() * (1 + ALIKE),
    )
    assert near[0]
    assert (np.diff(of[near]) >= 0).all()
    assert (np.diff(listed.costs.step[~near]) >= 0).all()


class SmallChunks(Space):
    """A space in tables of few rows."""

    size = 7

    def chunks(self, size):
        yield from super().chunks(self.size)


@given(size=st.integers(100, 900))
@settings(deadline=None, max_examples=4)
def test_the_size_of_chunks_changes_no_answer(size):
    whole = Space.of(task(), FEW)
    pieces = SmallChunks(whole.task, whole.axes, whole.layers_per_stage)
    pieces.size = size
    few = exhaustive.search(pieces, SearchOptions(limit=6e10, families=True))
    all_ = exhaustive.search(whole, SearchOptions(limit=6e10, families=True))
    assert [str(plan) for plan in few.plans] == [str(plan) for plan in all_.plans]
    assert few.families.plans.tolist() == all_.families.plans.tolist()


def test_the_order_of_values_changes_nothing():
    turned = {name: values[::-1] for name, values in FEW.items()}
    one, other = (rank_plans(task(), Ranking(choose=c, families=True)) for c in (FEW, turned))
    assert [str(plan) for plan in one.plans] == [str(plan) for plan in other.plans]


@pytest.mark.parametrize(
    "options", [{"backend": "random"}, {"objective": "memory"}, {"backend": "branch-and-bound"}]
)
def test_a_search_that_cannot_list_them_refuses(options):
    with pytest.raises(InputError, match="families need every plan costed"):
        rank_plans(task(), Ranking(families=True, **options))


def test_a_near_tie_is_settled_by_what_is_simpler():
    """Where context parallelism saves less than a hundredth, nobody would launch it."""
    cluster = Cluster.profile("a100-80gb-sxm", gpus=1024)
    gpt3 = Task(Model.preset("gpt3-175b"), cluster, sequence=2048, global_batch=1536)
    fastest, simplest = rank_plans(gpt3), rank_plans(gpt3, Ranking(families=True))
    assert simplest.plans[0].cp == 1
    assert simplest.best.step_seconds <= fastest.best.step_seconds * (1 + ALIKE)


def test_families_that_cannot_be_told_apart_begin_with_the_one_that_splits_least():
    """A pipeline of two stages of 26 and 22 layers in three chunks saves a thousandth beside
    experts alone: nobody would launch it. What is more than a hundredth faster stays first. Queries
    and keys without norms leave room for experts alone."""
    cluster = Cluster.profile("h100-sxm", gpus=64)
    stack = replace(software_profile("megatron-core"), norm_in_linear=False)
    model = Model.preset("qwen3-30b-a3b")
    (block,) = model.kinds
    attention = replace(block.attention, query_key_norm="")
    lean = replace(model, kinds=(replace(block, attention=attention),))
    question = Task(lean, cluster, sequence=4096, global_batch=512, software=stack)
    sure = Ranking(families=True, fits_probability=0.95)
    even = ("first_stage_layers", "last_stage_layers")
    listed = climbed(rank_plans(question, sure), even, FAMILY_COUNT)
    first, steps = listed.plans[0], listed.costs.step
    assert (first.pp, first.tp, first.ep > 1) == (1, 1, True)
    assert steps[0] <= steps.min() * (1 + ALIKE)
    assert (np.diff(steps[steps > steps.min() * (1 + ALIKE)]) >= 0).all()


def test_sharded_weights_are_less_simple_than_a_sharded_optimizer_which_is_as_simple_as_none():
    plans = [Plan.parse(f"zero={zero}").table() for zero in range(4)]
    costs = simulate(task(), resolve(concat(plans), 16))
    *keys, _ = (np.broadcast_to(of(costs), 4).tolist() for of in SIMPLER)
    none, optimizer, gradients, weights = zip(*keys, strict=True)
    assert none == optimizer < gradients == weights


def test_exchanges_of_gradients_that_overlap_are_simpler_than_those_that_are_held_back():
    plans = [Plan.parse(f"zero=1 overlap_grad_reduce={overlap}").table() for overlap in (0, 1)]
    costs = replace(simulate(task(), resolve(concat(plans), 16)), memory_total=np.array([1.0, 2.0]))
    assert simplest_first(costs).tolist() == [1, 0]
