"""How many GPUs a deadline needs or a budget buys, and what fits nearby, by asking every size.

1,000 steps of 384 sequences, one of a GPU at a time; nodes of 8: 8, 16, 24, 32, 48, 64 GPUs and on.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.search.whatif import cluster_size
from plan3d.search.whatif.cluster_size import (
    _sizes,
    find_cluster,
    why_infeasible,
    with_gpus,
)
from plan3d.simulator.analysis.goodput import Reliability, Training
from plan3d.simulator.base.errors import InputError, NoFeasiblePlanError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.operators.model_flops import model_flops_per_token
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

CHOOSE = {
    **{name: [1] for name in ("tp", "pp", "cp", "micro_batch", "virtual_stages", "zero")},
    **{"recompute": ["none"], "overlap_grad_reduce": [1], "overlap_param_gather": [0]},
}
ASKED = Ranking(choose=CHOOSE)
SIZES = (8, 16, 24, 32, 48, 64, 96, 128, 192)
TOKENS = 1000 * 384 * 2048.0
DAY = 86400


def task(batch: int = 384, model: str = "gpt3-1.3b", gpus: int = 8) -> Task:
    cluster = Cluster.profile("h100-sxm", gpus=gpus)
    return Task(Model.preset(model), cluster, sequence=2048, global_batch=batch)


@cache
def seconds(gpus: int, goodput: float = 1.0) -> float:
    """Seconds of a thousand steps on so many GPUs."""
    best = rank_plans(with_gpus(task(), gpus), ASKED).best
    assert best is not None
    return 1000 * best.step_seconds / goodput


def found(**training: float) -> int:
    goodput = training.pop("goodput", None)
    reliability = None if goodput is None else Reliability(measured_goodput=goodput)
    asked = Training(tokens=TOKENS, reliability=reliability, **training)
    return find_cluster(task(), asked, ASKED).task.gpus


@pytest.mark.parametrize(("gpus", "more"), list(pairwise(SIZES))[:5])
def test_a_deadline_takes_the_fewest_gpus_that_keep_it(gpus: int, more: int) -> None:
    """The time of a size is kept by it, a millionth less by the next one."""
    assert seconds(more) < seconds(gpus)
    assert found(days=seconds(gpus) * (1 + 1e-9) / DAY) == gpus
    assert found(days=seconds(gpus) * (1 - 1e-6) / DAY) == more


def test_failures_take_their_share_of_the_days() -> None:
    assert found(days=seconds(24, 0.8) / DAY, goodput=0.8) == 24
    assert found(days=seconds(24, 0.8) / DAY, goodput=0.79) == 32


def test_a_budget_takes_the_size_that_is_done_first() -> None:
    """GPU-hours grow with the GPUs: those of 24 pay 24, and a millionth less 16."""
    hours = {gpus: seconds(gpus) * gpus / 3600 for gpus in SIZES}
    assert sorted(hours.values()) == list(hours.values())
    assert found(budget_usd=3 * hours[24], price=3) == 24
    assert found(budget_usd=3 * hours[24] * (1 - 1e-6), price=3) == 16


def test_sizes_that_bounds_prove_to_cost_more_are_not_searched() -> None:
    """A millionth less than 24 GPUs cost buys 8 or 16: a plan of each is costed."""
    costed: list[int] = []
    budget = seconds(24) * 24 / 3600 * (1 - 1e-6)
    asked = replace(ASKED, progress=costed.append)
    result = find_cluster(task(), Training(tokens=TOKENS, budget_usd=budget, price=1), asked)
    assert result.task.gpus == 16
    assert costed == [1, 1]


def test_a_budget_and_a_deadline_are_both_kept() -> None:
    """48 GPUs are fast enough for the days of 48, with or without money for 64."""
    hours = {gpus: seconds(gpus) * gpus / 3600 for gpus in SIZES}
    days = seconds(48) * (1 + 1e-9) / DAY
    assert found(days=days, budget_usd=hours[64], price=1) == 48
    with pytest.raises(NoFeasiblePlanError, match=f"within .* days and {hours[32]:,.0f} GPU-hours"):
        found(days=days, budget_usd=hours[32], price=1)


def test_what_came_nearest_is_said() -> None:
    """No size keeps 0.9 of what 8 GPUs cost, which is least."""
    hours = seconds(8) * 8 / 3600
    took = f"; 8 GPUs need {seconds(8) / DAY:.1f} days and {hours:,.0f} GPU-hours"
    with pytest.raises(NoFeasiblePlanError, match=took):
        found(budget_usd=0.9 * hours, price=1)


@pytest.mark.parametrize(
    ("training", "ranking", "why"),
    [
        (Training(tokens=TOKENS, budget_usd=1), ASKED, "needs a price"),
        (Training(tokens=TOKENS, days=1), Ranking(risk=0.1), "risk does not go with days"),
    ],
)
def test_questions_without_an_answer_are_refused(
    training: Training, ranking: Ranking, why: str
) -> None:
    with pytest.raises(InputError, match=why):
        find_cluster(task(), training, ranking)


def nearby(batch: int, gpus: int, **choose: list[int]) -> list[str]:
    """What is said to fit, without the plans."""
    result = rank_plans(task(batch, gpus=gpus), Ranking(choose={**CHOOSE, **choose}))
    assert result.best is None
    return [line.partition(":")[0] for line in why_infeasible(result, {**CHOOSE, **choose})[1:]]


@pytest.mark.parametrize(
    ("batch", "gpus", "said"),
    [
        (48, 40, ["on 24 GPUs it fits", "on 48 GPUs it fits"]),
        (80, 24, ["on 16 GPUs it fits", "on 40 GPUs it fits"]),
        # 13 nodes are eight more than five, and nine more than four.
        (104, 40, ["on 8 GPUs it fits", "on 104 GPUs it fits"]),
        (104, 32, ["on 8 GPUs it fits"]),
    ],
)
def test_the_nearest_nodes_whose_gpus_divide_the_batch(
    batch: int, gpus: int, said: list[str]
) -> None:
    assert [line for line in nearby(batch, gpus) if line.startswith("on ")] == said


@pytest.mark.parametrize(("batch", "below", "above"), [(10, 8, 12), (13, 12, 16)])
def test_the_nearest_batches_that_the_nodes_divide(batch: int, below: int, above: int) -> None:
    """Four nodes, each a copy of the model."""
    said = nearby(batch, 32, tp=[8])
    assert said[-2:] == [f"with a global batch of {n} it fits" for n in (below, above)]


def too_small(memory: float, gpus: int = 8) -> list[str]:
    """What is said of GPUs with so little memory, without the plans."""
    asked = task(gpus=gpus, batch=8 * 2**8)
    cluster = replace(asked.cluster, host=None)
    cluster = replace(cluster, accelerator=replace(cluster.accelerator, memory=memory))
    result = rank_plans(replace(asked, cluster=cluster), Ranking(choose=SHARDED))
    assert result.best is None
    return [line.partition(":")[0] for line in why_infeasible(result, {})[1:]]


SHARDED = {**{name: [1] for name in ("cp", "micro_batch", "virtual_stages")}, "zero": [0, 1]}


def test_gpus_are_doubled_until_the_model_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sharded over 32 GPUs it needs less than four gigabytes; no number needs a megabyte."""
    assert too_small(4e9) == ["on 32 GPUs it fits"]
    assert too_small(3.8e9) == ["on 64 GPUs it fits"]
    monkeypatch.setattr(cluster_size, "MOST_DOUBLINGS", 3)
    assert too_small(1e6) == ["not even 64 GPUs would do"]


def test_sizes_begin_where_the_peak_would_do() -> None:
    """A thousand steps of 786,432 tokens at the highest peak of a GPU, in the seconds of 24."""
    asked = task()
    flops = TOKENS * model_flops_per_token(asked.model, asked.sequence)
    peak = max(asked.cluster.accelerator.peak.values())
    sizes = list(_sizes(asked, TOKENS, flops / (24 * peak)))
    assert sizes[:7] == [24, 32, 48, 64, 96, 128, 192]
    assert next(iter(_sizes(asked, TOKENS, flops / (24.1 * peak)))) == 32
    assert sizes[-1] == 131072


def test_the_headroom_that_would_let_a_plan_fit_is_the_largest_of_tenths_of_a_percent() -> None:
    asked = replace(ASKED, headroom=0.9)
    lines = why_infeasible(rank_plans(task(), asked), CHOOSE)
    (percent,) = [
        float(line.split()[5])
        for line in lines
        if line.startswith("a headroom of at most ") and line.endswith(" % would let it fit")
    ]
    for headroom, fits in ((percent, True), (percent + 0.1, False)):
        found = rank_plans(task(), replace(asked, headroom=headroom / 100))
        assert bool(found.plans) is fits
