"""The launchable space: its fields and values, and an optimum that enumeration finds too."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from plan3d.answers.search import find_plans
from plan3d.launch_files.frameworks import for_framework
from plan3d.search.exact import exhaustive
from plan3d.search.exact.branch_and_bound import better_than
from plan3d.search.exact.launchable_optimum import _listed
from plan3d.search.exact.launchable_space import (
    FIELDS_OPENED,
    SEARCH_RULES,
    _shared_evenly,
    _virtual_stages,
    launchable_space,
)
from plan3d.search.result.families import ALIKE, Families
from plan3d.search.result.options import SearchOptions
from plan3d.search.space.axes import LONGER
from plan3d.search.space.space import Space
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.plan.field_values import AUTO, Dispatch
from plan3d.simulator.plan.fields import code
from plan3d.simulator.plan.plan import Plan, concat, resolve
from plan3d.simulator.step.evaluate import simulate
from plan3d.simulator.task import Task
from plan3d.simulator.uncertainty.memory import FITS_PROBABILITY, probability_fits
from plan3d.simulator.workload.model import Model


def question(model, cluster, gpus, framework="megatron", batch=16):
    machine = Cluster.profile(cluster, gpus=gpus)
    task = Task(Model.preset(model), machine, sequence=2048, global_batch=batch)
    return for_framework(task, framework)


DENSE, EXPERTS = (
    question("gpt3-1.3b", "h100-sxm", 8),
    question("mixtral-8x7b", "b200", 16),
)
TASKS = {
    "dense": DENSE,
    "experts": EXPERTS,
    "torchtitan": question("llama-3.1-8b", "h100-sxm", 8, "torchtitan"),
    "head": question("llama-3.1-8b", "h100-sxm", 8),
}
VALUES = {
    "tp": (1, 2, 4),
    "cp": (1, 2),
    "pp": (1, 2, 4, 8),
    "ep": (1, 2, 8),
    "micro_batch": (1, 2),
    "virtual_stages": (1, 2, 4, 13),
    "recompute": (0, 1, 2),
    "zero": (0, 1, 2, 3),
}


@st.composite
def questions(draw):
    """A task, and one or two values on each axis that a default search enumerates."""
    chosen = {
        name: draw(st.lists(st.sampled_from(values), min_size=1, max_size=2, unique=True))
        for name, values in VALUES.items()
    }
    task = TASKS[draw(st.sampled_from(sorted(TASKS)))]
    if not any(kind.experts for kind in task.model.kinds):
        chosen["ep"] = [1]
    return task, chosen


@given(asked=questions(), safe_limit=st.sampled_from([2e10, 4e10, 7e10]))
@settings(deadline=None, max_examples=6)
def test_the_optimum_is_that_of_enumerating_every_combination(asked, safe_limit):
    """Of all plans that fit, and of those that fit in less, from one tree."""
    task, chosen = asked
    space = launchable_space(Space.of(task, chosen), chosen)
    options = SearchOptions(limit=7e10, safe_limit=safe_limit, top=1)
    every = exhaustive.search(space, options)
    found = better_than(space, options, np.inf, np.inf)
    assert (found.costs is None, found.safe is None) == (every.costs is None, every.safe is None)
    assume(every.costs is not None)
    best = every.costs.step[0]
    assert found.costs.step[0] == pytest.approx(best, rel=1e-9)
    if every.safe is not None:
        assert found.safe.step[0] == pytest.approx(every.safe.step[0], rel=1e-9)
    assert found.counts.evaluated <= every.counts.evaluated
    left_out = sum(n for name, n in found.counts.removed.items() if name != "memory")
    assert found.counts.evaluated + left_out == found.counts.candidates
    below = better_than(space, options, best * (1 - 1e-6), 0.0)
    assert (below.costs, below.safe) == (None, None)


def axes_of(task):
    space = launchable_space(Space.of(task), ())
    return {name: space.axes[name] for name in FIELDS_OPENED}


def test_what_is_opened_of_a_dense_model_are_exchanges_overlaps_and_end_stages():
    axes = axes_of(DENSE)
    # 24 layers in 2, 4 and 8 stages: 12, 6 and 3 layers, up to 3 fewer and 2 more.
    ends = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14)
    assert axes == {
        "etp": (1,),
        "schedule": (AUTO,),
        "micro_batch_group": (AUTO, LONGER),
        "cp_comm": (0, 1, 2),
        "expert_dispatch": (0,),
        "first_stage_layers": ends,
        "last_stage_layers": ends,
        "overlap_ep": (0,),
        "overlap_param_gather": (0, 1),
        "overlap_p2p": (0, 1),
    }


def test_what_is_opened_of_experts():
    axes = axes_of(EXPERTS)
    assert (axes["etp"], axes["expert_dispatch"], axes["overlap_ep"]) == (
        (1, 2, 4, 8),
        (Dispatch.ALLTOALL, Dispatch.HIERARCHICAL, Dispatch.ALL_GATHER),
        (0, 1),
    )


def test_no_token_is_sent_once_to_a_node_where_no_kernel_does_so():
    axes = axes_of(question("mixtral-8x7b", "a100-80gb-sxm", 16))
    assert axes["expert_dispatch"] == (Dispatch.ALLTOALL, Dispatch.ALL_GATHER)


def test_a_few_ranks_gather_the_tokens_of_many_experts():
    """Of eight choices of a token each goes to one of two ranks: one copy, not four."""
    task = question("qwen3-30b-a3b", "mi300x", 8, batch=128)
    best = find_plans(task).plans[0]
    assert (best.ep, best.expert_dispatch) == (2, Dispatch.ALL_GATHER)


def test_the_schedules_of_torchtitan_that_are_placed_in_turn():
    names = ("1f1b", "interleaved", "gpipe", "breadth-first")
    assert set(axes_of(TASKS["torchtitan"])["schedule"]) == {code("schedule", n) for n in names}


def test_every_micro_batch_that_divides_the_batch():
    """The enumeration tries powers of two and 3, up to 64 sequences."""
    task = question("gpt3-1.3b", "h100-sxm", 8, batch=390)
    space = Space.of(task)
    assert space.axes["micro_batch"] == (1, 2, 3)
    assert launchable_space(space, ()).axes["micro_batch"] == (
        1,
        2,
        3,
        5,
        6,
        10,
        13,
        15,
        26,
        30,
        39,
    )
    assert launchable_space(space, {"micro_batch"}).axes["micro_batch"] == (1, 2, 3)


def test_values_of_a_framework_and_of_the_user_stay():
    titan = launchable_space(Space.of(TASKS["torchtitan"]), ())
    assert titan.axes["cp_comm"] == (0, 1)
    chosen = {"cp_comm": ["a2a"], "overlap_p2p": [0]}
    stays = launchable_space(Space.of(DENSE, chosen), chosen)
    assert (stays.axes["cp_comm"], stays.axes["overlap_p2p"]) == ((2,), (0,))


def test_stages_that_are_given_are_not_cut_again():
    layout = {"pp": [2], "layers_per_stage": [[11, 13]]}
    opened = launchable_space(Space.of(DENSE, layout), layout)
    assert opened.axes["first_stage_layers"] == opened.axes["last_stage_layers"] == (0,)


def test_given_stages_are_bounded_at_every_depth():
    chosen = {"pp": [2, 4], "virtual_stages": [1, 2], "tp": [1], "layers_per_stage": [[5, 7, 7, 5]]}
    space = launchable_space(Space.of(DENSE, chosen), chosen)
    options = SearchOptions(limit=7e10, top=1)
    every = exhaustive.search(space, options)
    found = better_than(space, options, np.inf, np.inf)
    assert found.costs.step[0] == pytest.approx(every.costs.step[0], rel=1e-9)


def test_end_stages_of_any_size_near_an_even_share():
    chosen = {"pp": [4], "virtual_stages": [1, 2], "tp": [1], "micro_batch": [1]}
    space = launchable_space(Space.of(DENSE, chosen), chosen)
    plans = next(space.chunks())
    names = ("virtual_stages", "first_stage_layers", "last_stage_layers")
    ends = set(zip(*(getattr(plans, name).tolist() for name in names), strict=True))
    # Of 24 layers 12 to 16 are left between two ends, 15 to 21 after one: equally many or not.
    assert {(1, 6, 6), (1, 5, 5), (1, 3, 5), (1, 0, 3), (1, 6, 0), (2, 4, 4)} <= ends
    assert {(1, 5, 4), (1, 8, 3), (1, 0, 4), (2, 5, 5), (2, 4, 7)} <= ends
    assert not ends & {(1, 9, 3), (1, 2, 6)}


@pytest.mark.parametrize(
    ("pp", "chunks", "near"),
    [
        # As many as the enumeration has, whatever they hold.
        (5, 1, True), (5, 2, True), (5, 4, True),
        # 24 layers, 25 with the embedding or the head, 26 with both.
        (4, 6, True), (5, 5, True), (2, 13, True), (1, 24, True), (1, 25, True), (1, 26, True),
        (1, 23, False), (1, 27, False), (4, 7, False), (3, 9, False), (2, 11, False),
    ],
)  # fmt: skip
def test_chunks_are_equal_with_or_without_the_ends(pp, chunks, near):
    (rule,) = [rule for rule in SEARCH_RULES if rule.name == "chunks-near-even"]
    plan = resolve(Plan(pp=pp, virtual_stages=chunks), 60).table()
    assert bool(rule.ok(plan, DENSE)) == near


@pytest.mark.parametrize(
    ("pp", "layers", "near"),
    [
        *[(2, 8, False), (2, 9, True), (2, 14, True), (2, 15, False)],
        *[(5, 0, True), (5, 1, True), (5, 6, True), (5, 7, False)],
    ],
)
@pytest.mark.parametrize("end", ["first", "last"])
def test_end_stages_are_near_an_even_share(end, pp, layers, near):
    """Of 24 layers 12, or 4 of five: up to three fewer, and one more than rounded up."""
    (rule,) = [rule for rule in SEARCH_RULES if rule.name == f"{end}-stage-near-even"]
    plan = resolve(Plan(pp=pp, **{f"{end}_stage_layers": layers}), 60).table()
    assert bool(rule.ok(plan, DENSE)) == near


def test_groups_longer_than_pp_are_bounded_with_the_rest():
    """24 micro-batches of tp=2 in groups of 12 are faster than in groups of 8, and than the 12 of
    tp=4 in one group, which is the fastest of the shortest groups."""
    task = question("gpt3-175b", "b200", 1024, batch=1536)
    pipelines = {"tp": [2, 4], "pp": [8], "virtual_stages": [12], "cp": [1], "zero": [1]}
    found = find_plans(task, choose={**pipelines, "recompute": ["none"]})
    narrow = find_plans(task, choose={**pipelines, "recompute": ["none"], "micro_batch": [1, 2]})
    assert found.best.step_seconds <= narrow.best.step_seconds * (1 + 1e-9)
    assert (found.plans[0].tp, found.plans[0].micro_batch_group) == (2, 12)


@pytest.mark.parametrize("choose", [{"cp_comm": ["a2a"]}, {"last_stage_layers": [3]}, {"tp": [2]}])
def test_a_value_that_is_fixed_never_makes_plan_1_faster(choose):
    best = find_plans(TASKS["head"]).best.step_seconds
    assert find_plans(TASKS["head"], choose=choose).best.step_seconds >= best


def test_the_plan_beside_plan_1_is_the_fastest_that_surely_fits():
    """Of a search with that probability: the same plan."""
    task = question("llama-3.1-70b", "h100-sxm", 32, batch=32)
    found = find_plans(task)
    sure = find_plans(task, fits_probability=FITS_PROBABILITY)
    assert found.best.step_seconds < sure.best.step_seconds
    assert found.safe.step[0] == pytest.approx(sure.best.step_seconds, rel=1e-9)
    assert probability_fits(found.safe)[0] >= FITS_PROBABILITY > probability_fits(found.costs)[0]


def test_schedules_without_bounds_are_tried_near_the_best():
    """No framework launches this stack's plans: V-shaped schedules are legal, and plan 1 is behind
    none of them that a search of their own finds."""
    task = Task(
        Model.preset("gpt3-6.7b"),
        Cluster.profile("a100-80gb-sxm", gpus=32),
        sequence=2048,
        global_batch=64,
        software=software_profile("megatron-deepspeed-bf16"),
    )
    pipelines = {"tp": [1, 2], "pp": [4, 8], "cp": [1], "zero": [1]}
    best = find_plans(task, choose=pipelines).best
    for schedule in ("zb-v", "dualpipe-v"):
        other = find_plans(task, choose=pipelines | {"schedule": [schedule]}).best
        assert best.step_seconds <= other.step_seconds * (1 + 1e-9)


@pytest.mark.parametrize(
    ("model", "shared"), [("llama-3.1-8b", (32, 34)), ("deepseek-v3", (61, 64))]
)
def test_chunks_may_share_layers_and_ends(model, shared):
    """The embedding, the layers of multi-token prediction and the head count as one each."""
    task = question(model, "h100-sxm", 64)
    least, most = shared
    divisors = {d for n in range(least, most + 1) for d in range(1, least + 1) if n % d == 0}
    assert set(_virtual_stages(task)) >= divisors
    assert set(_virtual_stages(task)) - divisors <= set(range(1, least + 1))
    assert _shared_evenly(task) == tuple(range(least, most + 1))


def test_a_listed_plan_gives_way_to_one_of_its_family_that_is_much_faster():
    """Two tensor plans and two pipelines: the faster of the first is so by half of ALIKE, that of
    the second by twice as much, and then stands for itself alone."""
    cluster = Cluster.profile("h100-sxm", gpus=8)
    task = Task(Model.preset("gpt3-1.3b"), cluster, sequence=2048, global_batch=8)
    plans = concat([Plan.parse(text).table() for text in ("tp=2", "pp=2", "tp=4", "pp=4")])
    step = np.array([1.0, 2.0, 1 - ALIKE / 2, 2 - 4 * ALIKE])
    every = replace(simulate(task, resolve(plans, 8)), step=step)
    standing = Families(np.array([3, 2]), np.array([1.0, 2.0]))
    rows, families = _listed(every, np.array([2, 3]), standing)
    assert rows.tolist() == [0, 3]
    assert families.plans.tolist() == [3, 1]
    assert families.fastest.tolist() == step[2:].tolist()
