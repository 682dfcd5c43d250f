"""Bytes of pipeline ranks through a step, operation by operation.

Sources: Narayanan et al. 2021, section 2.2 (micro-batches in flight); Qi et al. 2024, section 2
(what waits for a weight gradient); torch.optim, zero_grad.
"""

from itertools import pairwise

import numpy as np
import pytest
import unit_pipelines
from round_numbers import PARAMETERS, stack, task

from plan3d.simulator.analysis.memory_timeline import TENANTS, memory_timeline
from plan3d.simulator.plan.plan import as_plan
from plan3d.simulator.step.evaluate import by_stage
from plan3d.simulator.step.memory import PARTS

SCHEDULES = (
    "pp=4 schedule=1f1b",
    "pp=4 schedule=1f1b recompute=full",
    "pp=4 schedule=gpipe",
    "pp=4 schedule=zb-h1",
    "pp=2 virtual_stages=2 schedule=breadth-first",
    "tp=2 dp=2 zero=3",
)


def timeline(text, question=None):
    return memory_timeline(question or task(4, 16), as_plan(f"micro_batch=1 {text}"))


@pytest.mark.parametrize("text", SCHEDULES)
def test_peaks_are_those_of_the_closed_form_on_every_rank(text):
    found = timeline(text)
    closed = by_stage(found.timeline.costs)["total"]
    assert [rank.peak_bytes for rank in found.ranks] == pytest.approx(closed.tolist())


@pytest.mark.parametrize("rate", [1.0, 1.25, 0.5])
@pytest.mark.parametrize("schedule", ["zb-h1", "zb-h2", "zb-h2-sync"])
@pytest.mark.parametrize("longest", [0, 1, 3])
def test_peaks_of_unlike_ranks_that_hold_back_weight_gradients(longest, schedule, rate):
    """One of four layers takes three seconds a pass, the others one."""
    layers = tuple(unit_pipelines.layer(3.0 if i == longest else 1.0) for i in range(4))
    question = unit_pipelines.task(4, 12, layers, wgrad_rate=rate)
    found = timeline(f"pp=4 schedule={schedule}", question)
    closed = by_stage(found.timeline.costs)["total"]
    assert [rank.peak_bytes for rank in found.ranks] == pytest.approx(closed.tolist())


def test_the_update_begins_when_all_else_is_done():
    found = timeline("dp=4 zero=1", task(4, 16))
    costs = found.timeline.costs
    (rank,) = found.ranks
    assert rank.moments[-1].seconds == pytest.approx(costs.step[0] - costs.seconds["optimizer"][0])


def test_rank_r_of_1f1b_keeps_p_minus_r_micro_batches():
    found = timeline("pp=4 schedule=1f1b")
    waiting = [[(one.stage, one.micro_batch) for one in rank.in_flight] for rank in found.ranks]
    assert waiting == [[(r, micro) for micro in range(4 - r)] for r in range(4)]
    held = [rank.bytes_at(rank.peak)["activations"] for rank in found.ranks]
    assert held == pytest.approx((4 - np.arange(4)) * found.timeline.activations)
    peaks = [str(rank.moments[rank.peak]) for rank in found.ranks]
    assert peaks == [f"backward of micro-batch 0, stage {r}" for r in range(4)]


def test_all_micro_batches_of_gpipe_wait_with_their_logits():
    found = timeline("pp=4 schedule=gpipe")
    last = found.ranks[-1]
    assert len(last.in_flight) == found.timeline.micro_batches
    one = found.timeline.logits[-1]
    held = [rank.bytes_at(rank.peak)["logits"] for rank in found.ranks]
    assert held == [0, 0, 0, found.timeline.micro_batches * one]
    assert one > 0


def test_activations_come_and_go_with_the_passes_of_a_rank():
    """1F1B on the last of two ranks: one micro-batch forward, then the same backward."""
    found = timeline("pp=2 dp=2 schedule=1f1b")
    last, one = found.ranks[1], found.timeline.activations[1]
    assert [moment.name for moment in last.moments[:4]] == ["forward", "backward"] * 2
    assert last.tenants["activations"][:-1] == pytest.approx(np.full(16, one))
    assert last.tenants["activations"][-1] == 0


def test_passes_that_run_together_hold_the_bytes_of_both():
    """DualPipe: a forward pass beside a backward pass counts from the start of the pair."""
    found = timeline("pp=4 schedule=dualpipe", task(4, 32))
    rank = found.ranks[0]
    pairs = [
        at
        for at, (one, after) in enumerate(pairwise(rank.moments))
        if (one.name, after.name) == ("forward", "backward") and one.seconds == after.seconds
    ]
    assert len(pairs) > 1
    assert rank.total[pairs].tolist() == rank.total[np.add(pairs, 1)].tolist()


def test_the_worst_rank_is_found():
    """Few layers on the first of two stages: the second holds more, though fewer in flight."""
    found = timeline("pp=2 dp=2 first_stage_layers=1 zero=0")
    assert found.worst.rank == 1
    assert found.leanest.rank == 0
    assert found.excess()["weights"] > 0
    assert sum(found.excess().values()) == pytest.approx(
        found.worst.peak_bytes - found.leanest.peak_bytes
    )


def test_the_update_is_the_peak_where_its_temporaries_are_larger():
    """Eight bytes a parameter of temporaries beside 2 + 4 + 12, one micro-batch of one rank whose
    gradients are freed before its loss."""
    lean = stack(frees_gradients=True, update_memory=8.0, allocator_slack=0.0, uncounted=0.0)
    found = timeline("dp=4 zero=0 recompute=full", task(4, 4, software=lean))
    (rank,) = found.ranks
    assert str(rank.moments[rank.peak]) == "update"
    assert rank.in_flight == ()
    at = rank.bytes_at(rank.peak)
    assert at["gradients"] == 4 * PARAMETERS
    assert at["buffers"] == 8 * PARAMETERS
    assert rank.bytes_at(0)["gradients"] == 0


def test_gradients_that_are_freed_stay_reserved_until_the_update():
    flags = {"frees_gradients": True, "gradient_pool": True}
    lean = stack(**flags, allocator_slack=0.0, uncounted=0.0)
    found = timeline("dp=4 zero=3", task(4, 4, software=lean))
    (rank,) = found.ranks
    assert rank.bytes_at(0)["fragmentation"] == 4 * PARAMETERS / 4 == rank.bytes_at(-1)["gradients"]
    assert rank.bytes_at(-1)["fragmentation"] == 0
    assert rank.peak_bytes == pytest.approx(found.timeline.costs.memory_total[0])


def test_tenants_are_the_parts_with_the_reserve_in_two():
    assert (*PARTS[:-1], "context", "fragmentation") == TENANTS
    lean = stack(allocator_slack=0.06, context_bytes=1e9, uncounted=0.0)
    found = timeline("pp=2 dp=2", task(4, 16, software=lean))
    at = found.worst.bytes_at(found.worst.peak)
    rest = sum(at[name] for name in PARTS[:-1])
    assert at["fragmentation"] == pytest.approx(0.06 * rest)
    assert at["context"] >= 1e9
