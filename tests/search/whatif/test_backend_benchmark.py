"""A comparison reports what its runs did, and its picture shows every backend."""

from functools import cache

import numpy as np
import pytest
from not_empty import not_empty

from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.search.sampling.samplers import SAMPLERS
from plan3d.search.space.staged_problem import StagedProblem
from plan3d.search.whatif.backend_benchmark import NEAR_OPTIMUM, BackendsRequest, compare_backends
from plan3d.search.whatif.pictures import race_page, race_picture
from plan3d.simulator.base.errors import InputError, NoFeasiblePlanError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

TASK = Task(
    Model.preset("gpt3-1.3b"),
    Cluster.profile("h100-sxm", gpus=16),
    sequence=2048,
    global_batch=64,
)
FEW = {"tp": [1, 2, 4], "cp": [1], "micro_batch": [1, 2]}


@cache
def race():
    backends = ["random", "annealing", "exhaustive"]
    return compare_backends(
        TASK, BackendsRequest(backends=backends, choose=FEW, budget=80, seeds=3)
    )


def test_entries_are_the_runs():
    found = race()
    optimum = rank_plans(TASK, Ranking(choose=FEW)).best.step_seconds
    assert found.complete
    assert found.best == optimum
    for entry in found.entries[:2]:
        for seed in range(3):
            options = {"backend": entry.backend, "seed": seed, "budget": 80, "choose": FEW}
            run = rank_plans(TASK, Ranking(**options))
            best = run.best.step_seconds
            assert entry.best[seed] == best
            assert entry.regret[seed] == best / optimum - 1
            assert entry.evaluations[seed] == run.counts.evaluated == 80
            assert entry.to_near[seed] == run.trace.until((1 + NEAR_OPTIMUM) * optimum)


def test_what_draws_nothing_runs_once_and_to_its_end():
    exact = race().entries[2]
    assert exact.regret.tolist() == [0.0]
    assert exact.evaluations.tolist() == exact.to_near.tolist()
    assert exact.evaluations[0] == rank_plans(TASK, Ranking(choose=FEW)).counts.evaluated


def test_regrets_fall():
    found = race()
    for entry in not_empty(found.entries[:2]):
        regrets = entry.regrets([1, 10, 50, 80], found.best)
        assert regrets.shape == (3, 4)
        assert not (regrets[:, 1:] > regrets[:, :-1]).any()
        assert regrets[:, -1] == pytest.approx(entry.regret)


def test_all_backends_run_unless_told():
    found = compare_backends(TASK, BackendsRequest(choose=FEW, budget=20, seeds=1))
    assert [entry.backend for entry in found.entries] == list(SAMPLERS)


STAGED = {"space": "staged", "choose": {"pp": [2, 4]}, "budget": 150, "seeds": 2}


@pytest.mark.slow
def test_staged_plans_are_held_against_the_dynamic_program():
    found = compare_backends(TASK, BackendsRequest(backends=["random", "annealing"], **STAGED))
    around = StagedProblem.of(TASK, STAGED["choose"]).constraints
    proof = rank_plans(TASK, Ranking(backend="dynamic-programming", choose=around))
    assert found.optimum.backend == "dynamic-programming"
    assert found.best == pytest.approx(proof.best.step_seconds, rel=1e-12)
    assert found.complete
    for entry in found.entries:
        assert (entry.regret >= -1e-9).all()
        assert (entry.evaluations == 150).all()
        options = {name: STAGED[name] for name in ("space", "choose", "budget")}
        run = rank_plans(TASK, Ranking(backend=entry.backend, seed=1, **options))
        assert entry.best[1] == run.best.step_seconds
    assert race_picture(found).startswith(b"\x89PNG")


def test_an_interrupted_proof_is_no_race():
    def stop(costed):
        raise KeyboardInterrupt

    found = compare_backends(TASK, BackendsRequest(backends=["random"], progress=stop, **STAGED))
    assert not found.complete
    assert found.entries == []


def test_an_interrupt_keeps_what_came_to_its_end():
    limit = rank_plans(TASK, Ranking(choose=FEW)).counts.evaluated + 3 * 80

    def stop(costed):
        if costed > limit:
            raise KeyboardInterrupt

    options = {"choose": FEW, "budget": 80, "seeds": 3, "progress": stop}
    found = compare_backends(TASK, BackendsRequest(backends=["random", "annealing"], **options))
    assert not found.complete
    assert [entry.backend for entry in found.entries] == ["random"]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"backends": ["randon"]}, InputError, "did you mean random"),
        ({"seeds": 0}, InputError, "at least 1"),
        ({"space": "stagd"}, InputError, "did you mean staged"),
        (
            {"space": "staged", "backends": ["random", "exhaustive"]},
            InputError,
            "exhaustive backend cannot search staged plans; random, ",
        ),
        ({"space": "staged"}, InputError, "on pp, not tp"),
        ({"budget": 0}, InputError, "at least 1"),
        ({"headroom": 0.99}, NoFeasiblePlanError, "no plan of the space fits"),
    ],
)
def test_what_cannot_be_compared(options, error, message):
    with pytest.raises(error, match=message):
        compare_backends(TASK, BackendsRequest(choose=FEW, **options))


@pytest.mark.parametrize(("form", "starts"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_the_picture_is_a_file_of_its_form(form, starts):
    drawn = race_picture(race(), form)
    assert drawn.startswith(starts)
    if form == "svg":
        assert all(
            f"<!-- {entry.backend} -->".encode() in drawn for entry in not_empty(race().entries)
        )


def test_medians_ignore_runs_that_found_nothing():
    few = {**FEW, "pp": [1]}
    found = compare_backends(
        TASK, BackendsRequest(backends=["random"], choose=few, headroom=0.85, budget=2, seeds=4)
    )
    assert np.isinf(found.entries[0].to_near).any()
    assert race_picture(found).startswith(b"\x89PNG")


def test_lines_of_backends_are_told_apart():
    """By the first colours and styles of the palette, in the order of the entries."""
    (axes,) = race_page(race()).axes
    named = [line for line in axes.lines if not line.get_label().startswith("_")]
    assert [line.get_label() for line in named] == [entry.backend for entry in race().entries]
    assert [line.get_color() for line in named] == ["#000000", "#0072B2", "#D55E00"]
    assert [line.get_linestyle() for line in named] == ["-", "--", "-."]
    assert axes.get_xlim() == (10, 80)
