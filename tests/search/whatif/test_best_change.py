"""The change that helps most: what may be proposed, and what it is said to give."""

import pytest

from plan3d import Cluster, Model, Plan, Task, evaluate
from plan3d.answers.question import Question
from plan3d.answers.search import SearchRequest, search
from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.search.whatif.best_change import (
    LOSS,
    NUMERICS,
    _is_in_want,
    _may,
    _odd,
    _of_the_task,
    _rounder_counts,
    best_change,
    does_not_fit,
    optimizer_on_host,
)
from plan3d.simulator.uncertainty.memory import FITS_PROBABILITY, probability_fits


def costs(plan: str, gpus: int = 64, model: str = "llama-3.1-8b", batch: int = 512):
    cluster = Cluster.profile("h100-sxm", gpus=gpus)
    task = Task(Model.preset(model), cluster, sequence=8192, global_batch=batch)
    return evaluate(task, Plan.parse(plan))


def test_fp8_comes_with_what_makes_room_for_it():
    plain = costs("zero=2")
    assert probability_fits(costs("zero=2 precision=fp8")) < FITS_PROBABILITY
    found = best_change(plain)
    assert found is not None
    assert found.description.startswith("precision=fp8 zero=3")
    after = costs("zero=3 precision=fp8")
    assert probability_fits(after) >= FITS_PROBABILITY
    gained = after.tokens_per_second / plain.tokens_per_second - 1
    assert found.gain == pytest.approx(gained, rel=1e-9)


def test_fp8_alone_where_it_fits_alone():
    found = best_change(costs("tp=8 pp=4 virtual_stages=5", 512, "llama-3.1-70b", 1024))
    assert found is not None
    assert found.description == "precision=fp8 (changes numerics)"


def test_what_is_proposed_is_sure_to_fit():
    one = costs("tp=2 pp=2 zero=2", model="llama-3.1-70b")
    assert does_not_fit(one)
    found = best_change(one)
    assert found is not None
    assert "=" in found.description
    field, value = found.description.split("=")
    again = costs(f"pp=2 zero=2 {field}={value}", model="llama-3.1-70b")
    assert probability_fits(again) >= FITS_PROBABILITY


@pytest.mark.parametrize(
    ("plan", "gpus", "share", "wants"),
    [
        # Seconds from 9 to 57 a step.
        ("tp=8 recompute=full", 64, 0.392, True),
        ("tp=4 recompute=full", 64, 0.224, False),
        ("tp=4 recompute=full", 16, 0.227, False),
        ("tp=8 cp=8 recompute=full", 64, 0.475, True),
        ("tp=8", 64, None, False),
        ("tp=8 recompute=full zero=2 offload_optimizer=100", 64, None, False),
    ],
)
def test_a_plan_is_in_want_of_memory_where_splitting_takes_three_tenths(plan, gpus, share, wants):
    """And it recomputes all."""
    one = costs(plan, gpus)
    split = sum(one.seconds[f"{name}_comm"] for name in ("tensor", "context", "pipeline"))
    assert share is None or split / one.step_seconds == pytest.approx(share, abs=0.03)
    assert _is_in_want(one) == wants


def test_a_plan_that_takes_just_the_limit_may_be_taken():
    one = costs("zero=2")
    assert _may(one, one.memory_bytes).tolist() == [True]
    assert _may(one, one.memory_bytes - 1).tolist() == [False]


def test_a_limit_of_bytes_stands_in_for_being_sure():
    plain = costs("zero=2")
    less = 0.9 * plain.memory_bytes
    assert does_not_fit(plain, less)
    assert not does_not_fit(plain)
    tight = best_change(plain, less)
    assert tight is not None
    assert NUMERICS not in tight.description
    close = costs("pp=2")
    assert probability_fits(costs("pp=2 precision=fp8")) < FITS_PROBABILITY
    loose = best_change(close, close.capacity)
    assert loose is not None
    assert loose.description == "precision=fp8 (changes numerics)"


def test_a_plan_that_does_not_fit_is_helped_by_the_plan_before_the_precision():
    one = costs("zero=1", batch=256)
    assert does_not_fit(one)
    found = best_change(one)
    assert found is not None
    assert found.description == "zero=3"
    assert probability_fits(costs("zero=3", batch=256)) >= FITS_PROBABILITY


def test_a_plan_that_splits_for_want_of_memory_is_told_of_the_host():
    """Eight cards on PCIe: tensor parallelism takes three quarters of the step, and no single
    change of it leads to data parallelism with the optimizer on the host."""
    cluster = Cluster.profile("rtx-4090", gpus=8)
    task = Task(Model.preset("llama-3.1-8b"), cluster, sequence=2048, global_batch=256)
    found = best_change(evaluate(task, Plan.parse("tp=8 recompute=full")))
    assert found is not None
    assert "--fix offload_optimizer=100" in found.description
    choose = {"offload_optimizer": [100]}
    fixed = rank_plans(task, Ranking(choose=choose, fits_probability=FITS_PROBABILITY, top=1)).best
    before = evaluate(task, Plan.parse("tp=8 recompute=full")).tokens_per_second
    assert found.gain == pytest.approx(fixed.tokens_per_second / before - 1)
    slower = best_change(evaluate(task, Plan.parse("tp=8 recompute=full sequence_parallel=0")))
    assert slower is None or "--fix" not in slower.description


def test_a_search_in_want_of_memory_is_told_of_the_host():
    """A mixture of experts whose weights fill eight GPUs: plan 1 splits its experts, as no other
    plan leaves memory for activations."""
    task = Task(
        Model.preset("qwen3-30b-a3b"),
        Cluster.profile("h100-sxm", gpus=8),
        sequence=4096,
        global_batch=64,
    )
    ranking = Ranking(top=1)
    best = rank_plans(task, ranking).best
    assert probability_fits(best) < FITS_PROBABILITY
    found = optimizer_on_host(best, ranking)
    choose = {"offload_optimizer": [100]}
    other = rank_plans(task, Ranking(choose=choose, fits_probability=FITS_PROBABILITY, top=1)).best
    assert found.description == "--fix offload_optimizer=100"
    assert found.gain == pytest.approx(other.tokens_per_second / best.tokens_per_second - 1)
    assert found.gain > 1
    step = best_change(best)
    assert "--fix offload_optimizer=100" in step.description
    assert step.gain == pytest.approx(found.gain)
    assert optimizer_on_host(best, Ranking(choose={"offload_optimizer": [0, 100]})) is None
    assert optimizer_on_host(other, ranking) is None


@pytest.mark.parametrize(
    ("gpus", "batch", "what", "rounder"),
    [
        # 25 divides 512 no more than 64, and layers only with stages that are uneven.
        (100, 512, "global batch 500", {"batch": 500}),
        (100, 64, "96 GPUs instead of 100", {"gpus": 96}),
    ],
)
def test_gpus_that_do_not_divide_the_batch(gpus, batch, what, rounder):
    def best(gpus, batch):
        cluster = Cluster.profile("h100-sxm", gpus=gpus)
        task = Task(Model.preset("llama-3.1-8b"), cluster, sequence=8192, global_batch=batch)
        return rank_plans(task, Ranking(fits_probability=FITS_PROBABILITY, top=1)).best

    asked = {"gpus": gpus, "batch": batch}
    plan = best(**asked)
    found = best_change(plan)
    assert found is not None
    assert found.description == what
    after = best(**(asked | rounder))
    assert found.gain == pytest.approx(after.tokens_per_second / plan.tokens_per_second - 1)
    assert best_change(costs("tp=4 pp=25", gpus, batch=batch)).description != what


@pytest.mark.parametrize(
    ("gpus", "description"), [(100, "96 GPUs instead of 100"), (96, None), (64, None)]
)
def test_a_search_says_what_odd_numbers_cost(gpus, description):
    cluster = Cluster.profile("h100-sxm", gpus=gpus)
    task = Task(Model.preset("llama-3.1-8b"), cluster, sequence=8192, global_batch=64)
    answer = search(SearchRequest(question=Question(task=task), ranking=Ranking(top=1)))
    change = answer.rounder
    assert (change and change.description) == description
    assert change is None or change.gain >= LOSS


@pytest.mark.parametrize("gpus", [96, 64])
def test_gpus_that_divide_are_left_alone(gpus):
    found = best_change(costs("tp=2 pp=2", gpus, batch=gpus * 4))
    assert found is None or "GPUs" not in found.description


@pytest.mark.parametrize(
    ("gpus", "batch", "counts"),
    [
        # 88 is 8 x 11, 96 is 32 x 3; a batch of 22 is shared by 11.
        (100, 512, [96, 88]),
        (100, 22, [96, 88]),
        (100, 33, [96, 88]),
        # 176, 184 and 192 have 11, 23 and 3.
        (200, 512, [192, 176]),
        (200, 46, [192, 176, 184]),
        # 56 and less are more than an eighth fewer than 72.
        (72, 64, [64]),
        (64, 64, []),
        (104, 104, [96]),
    ],
)
def test_rounder_counts_of_gpus(gpus, batch, counts):
    cluster = Cluster.profile("h100-sxm", gpus=gpus)
    task = Task(Model.preset("llama-3.1-8b"), cluster, sequence=8192, global_batch=batch)
    assert _rounder_counts(task) == list(dict.fromkeys(counts))


@pytest.mark.parametrize(("number", "odd"), [(1, 1), (12, 3), (64, 1), (100, 25), (7, 7)])
def test_the_largest_odd_divisor(number, odd):
    assert _odd(number) == odd


def test_a_network_is_doubled_in_words():
    """50 GB/s of a GPU."""
    slow = costs("dp=64 zero=3", batch=64)
    network = slow.task.cluster.network.bandwidth / 1e9
    said = [change.description for change in _of_the_task(slow.row(), slow.capacity)]
    assert f"network of {2 * network:g} GB/s a GPU instead of {network:g}" in said
    assert "global batch 128 (if convergence permits)" in said
