"""An empty space says which chosen values empty it, and the nearest that leave a plan."""

from __future__ import annotations

from dataclasses import replace
from math import log2

import pytest

from plan3d import Cluster, Model, Task, find_plans, sweep
from plan3d.search.space import nearest_choices
from plan3d.search.space.nearest_choices import _has_plan, _values
from plan3d.search.space.space import Space
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.step.evaluate import simulate

TASK = Task(
    Model.preset("llama-3.1-8b"),
    Cluster.profile("h100-sxm", gpus=64),
    sequence=8192,
    global_batch=512,
)
"""32 heads, 8 key/value heads, 32 layers."""


@pytest.mark.parametrize(
    ("choose", "line"),
    [
        # 16 x 5 = 80 ranks; 16 x 4 = 64
        (
            {"tp": [16], "pp": [5]},
            ": tp(16) x cp(1) x dp(1) x pp(5) = 80 != 64 GPUs; nearest: pp=4",
        ),
        # neither 3 nor 5 divides 64: one of them alone does not help
        ({"tp": [3, 5], "pp": [3, 5]}, "; nearest: tp=4 pp=4"),
        # 7 divides no batch of 512
        ({"micro_batch": [7], "cp": [1]}, "micro_batch(7) x dp(64) = 448; nearest: micro_batch=8"),
        # two stages at least, of 32 layers
        ({"virtual_stages": [33], "tp": [1]}, "; nearest: virtual_stages=16"),
    ],
)
def test_a_space_without_a_legal_plan_names_the_field(choose, line) -> None:
    assert str(find_plans(TASK, choose=choose)).endswith(line)


def test_a_space_where_none_fits_names_the_nearest_value_that_does() -> None:
    # 18 bytes a parameter of 8.03 billion are 145 GB on a GPU of 85, and half of them with all that
    # is beside them more than 85; 6 and shares of 12 fit
    large = {"tp": [1], "pp": [1], "zero": [0], "micro_batch": [1]}
    found = str(find_plans(TASK, choose=large))
    assert "no plan fits: the smallest (" in found
    assert found.endswith("; nearest that fits: zero=1 in place of zero=0")


def test_a_sweep_names_it_too() -> None:
    rows = sweep(TASK, {"sequence": [8192]}, choose={"ep": [2], "tp": [2]}).rows
    assert "no legal plan with ep=2: " in rows[0]["detail"]
    assert rows[0]["detail"].endswith("; nearest: ep=1")


def test_what_no_chosen_field_empties_is_said_as_before() -> None:
    # 37 divides neither heads, layers, sequence nor batch
    odd = Task(TASK.model, Cluster.profile("h100-sxm", gpus=296), sequence=8192, global_batch=512)
    found = str(find_plans(odd, choose={"recompute": ["full"], "micro_batch": [1]}))
    assert "no legal plan among" in found
    assert "; of dp=296: global batch 512 is not a multiple of micro_batch(1) x dp(296)" in found


def test_a_dp_that_does_not_divide_the_gpus_is_refused_before_the_batch() -> None:
    with pytest.raises(InputError, match=r"^dp=3 does not divide 64 GPUs; nearest: 2, 4$"):
        find_plans(TASK, choose={"dp": [3]})


def test_values_are_as_far_as_their_doublings() -> None:
    """Of n + 1, as a field may be 0: 7 is a doubling from 3, 1 one from 0, 5 log2(6/4) from 3."""
    space = Space.of(TASK, {"first_stage_layers": [0, 3]})
    far = {value: distance for distance, value in _values(space, "first_stage_layers")}
    assert (far[7], far[1]) == pytest.approx((1.0, 1.0))
    assert (far[2], far[5]) == pytest.approx((log2(4 / 3), log2(6 / 4)))
    other = Space.of(TASK, {"first_stage_layers": [3]})
    far = {value: distance for distance, value in _values(other, "first_stage_layers")}
    assert far[0] == pytest.approx(2.0)


def test_a_plan_fits_a_gpu_and_the_limit(monkeypatch) -> None:
    """Of tp = 1, 2, 4, each a table, the last needs least; the search for one ends after two."""
    cluster = Cluster.profile("h100-sxm", gpus=4)
    task = Task(Model.preset("gpt3-1.3b"), cluster, sequence=2048, global_batch=4)
    one = {"pp": [1], "cp": [1], "micro_batch": [1], "recompute": ["none"], "zero": [0]}
    space = Space.of(task, {**one, "tp": [1, 2, 4], "overlap_tp": [0], "sequence_parallel": [1]})
    (*_, last) = space.chunks(1)
    assert last.tp.tolist() == [4]
    least = float(simulate(task, last).memory_total[0])
    assert _has_plan(space, least * 1.001)
    assert not _has_plan(space, least * 0.999)
    tiny = replace(task, cluster=Cluster.profile("h100-sxm", gpus=4, memory=0.9 * least))
    assert not _has_plan(replace(space, task=tiny), least * 1.001)
    monkeypatch.setattr(nearest_choices, "ROWS", 1)
    assert _has_plan(space, least * 1.001)
    monkeypatch.setattr(nearest_choices, "MOST_COSTED", 1)
    assert not _has_plan(space, least * 1.001)
