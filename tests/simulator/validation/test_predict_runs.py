"""Do the scores score? Tiny cases by hand, a constant and a perfect predictor, units and ranks."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from not_empty import not_empty

from plan3d.simulator.base.units import GIB
from plan3d.simulator.reporting.report import step_bounds
from plan3d.simulator.runs.published_runs import PublishedRun, read_runs
from plan3d.simulator.runs.run_tasks import Question, questions
from plan3d.simulator.step.evaluate import by_stage, evaluate, simulate
from plan3d.simulator.step.memory import further_share
from plan3d.simulator.uncertainty.prior import START_SIGMA
from plan3d.simulator.validation import metrics
from plan3d.simulator.validation.predict_runs import (
    ASSUMED_SCALE,
    FEWEST_LAYOUTS,
    FLATTENING_STACKS,
    Prediction,
    half_widths,
    predict,
    rank_memory,
    ranking_groups,
    row_error_scale,
)
from plan3d.simulator.validation.source_scores import overall, score, validate

FEW = ("megatron_sc21", "vtrain24_multi", "zerobubble24", "bloom_prequel22")
Array = np.ndarray[tuple[int], np.dtype[np.float64]]


@pytest.fixture(scope="module")
def runs() -> list[PublishedRun]:
    every = read_runs()
    nanotron = [run for run in every if run.source == "hf_ultrascale"][:60]
    return [run for run in every if run.source in FEW] + nanotron


@pytest.fixture(scope="module")
def p(runs: list[PublishedRun]) -> Prediction:
    return predict([a for a in questions(runs) if isinstance(a, Question)])


def slack(q: Question) -> float:
    return 1 + further_share(q.task)


def array(*values: float) -> Array:
    return np.array(values, float)


def test_errors_by_hand() -> None:
    found = metrics.errors(array(1.1, 0.8, 1.0), array(1, 1, 1))
    assert found["median_abs"] == pytest.approx(0.1)
    assert found["mean_abs"] == pytest.approx(0.1)
    assert found["bias"] == pytest.approx(0.0)
    assert found["p90_abs"] == pytest.approx(0.18)
    assert set(metrics.errors(array(), array()).values()) == {None}


def test_kendall_tau_by_hand() -> None:
    assert metrics.kendall_tau(array(1, 2, 3), array(10, 20, 30)) == pytest.approx(1)
    assert metrics.kendall_tau(array(3, 2, 1), array(10, 20, 30)) == pytest.approx(-1)
    # Pairs 12, 13, 23: two agree and one does not.
    assert metrics.kendall_tau(array(1, 3, 2), array(10, 20, 30)) == pytest.approx(1 / 3)
    # One of three pairs is tied in the prediction: 2 / sqrt(2 * 3).
    assert metrics.kendall_tau(array(1, 1.0005, 2), array(10, 20, 30)) == pytest.approx(2 / 6**0.5)


def test_kendall_tau_is_that_of_scipy() -> None:
    from scipy.stats import kendalltau

    rng = np.random.default_rng(1)
    for _ in range(20):
        a, b = rng.integers(1, 6, (2, 12)).astype(float)
        assert metrics.kendall_tau(a, b) == pytest.approx(kendalltau(a, b).statistic)


def test_regret_by_hand() -> None:
    measured = array(3, 1, 2, 4)
    assert metrics.regret(array(1, 2, 3, 4), measured) == pytest.approx(2.0)
    assert metrics.regret(array(1, 2, 3, 4), measured, 3) == pytest.approx(0.0)
    assert metrics.regret(array(2, 1, 3, 4), measured) == pytest.approx(0.0)
    # The first two tie: their mean is (3 + 1) / 2.
    assert metrics.regret(array(1, 1.0004, 3, 4), measured) == pytest.approx(1.0)


def test_a_constant_predictor_scores_badly_whatever_the_order_of_rows() -> None:
    measured = np.geomspace(1, 16, 9)
    for order in (slice(None), slice(None, None, -1)):
        constant = np.full(9, 5.0)
        expected = measured.mean() / measured.min() - 1
        assert metrics.regret(constant, measured[order]) == pytest.approx(expected)
        assert metrics.regret(constant, measured[order], 3) == pytest.approx(expected)
        assert metrics.kendall_tau(constant, measured[order]) == 0.0


def test_a_constant_predictor_fails_on_published_runs(p: Prediction) -> None:
    constant = replace(p, step=np.full(len(p), float(np.nanmedian(p.measured_seconds))))
    found = score(constant, len(p))
    assert found["regret"]["groups"] > 5
    assert found["regret"]["kendall_tau"] == 0.0
    assert found["regret"]["top1_mean"] > 0.1
    assert found["regret"]["top3_mean"] == found["regret"]["top1_mean"]
    assert found["step"]["median_abs"] > 0.3


def test_a_perfect_predictor_scores_perfectly(p: Prediction) -> None:
    perfect = replace(p, step=p.measured_seconds, half_width=np.full(len(p), 0.1))
    found = score(perfect.take(p.is_timed), int(p.is_timed.sum()))
    assert set(found["step"].values()) == {0.0}
    assert found["regret"]["kendall_tau"] == pytest.approx(1.0)
    assert found["regret"]["top1_mean"] < metrics.TIE
    assert found["regret"]["top3_mean"] < metrics.TIE
    assert found["interval80_coverage"] == 1.0


def test_verdicts_by_hand() -> None:
    share = array(0.5, 0.95, 1.2, 0.8)
    ran_out = np.array([False, False, True, True])
    assert metrics.verdicts(share <= 0.9, ran_out) == {"false_fits": 0.5, "false_ooms": 0.5}
    assert metrics.verdicts(share <= 1.0, ran_out) == {"false_fits": 0.5, "false_ooms": 0.0}
    assert metrics.verdicts(share <= 1.0, ran_out & False)["false_fits"] is None


def test_coverage_by_hand() -> None:
    measured = array(1, 2, 3, 4)
    assert metrics.coverage(measured * 0.9, array(1.1, 1.9, 3, 5), measured) == 0.75
    assert metrics.coverage(array(), array(), array()) is None


def test_means_leave_out_what_is_not_known() -> None:
    parts = [{"a": 1.0, "b": {"c": None}}, {"a": 3.0, "b": {"c": 2.0}}, {"a": None, "b": None}]
    assert metrics.mean_of(parts) == {"a": 2.0, "b": {"c": 2.0}}


def test_batches_predict_what_single_plans_predict(p: Prediction) -> None:
    rows = [row for row in range(0, len(p), 17) if not p.questions[row].plan.layers_per_stage]
    for row in not_empty(rows):
        q = p.questions[row]
        costs = evaluate(q.task, q.plan)
        assert p.step[row] == pytest.approx(costs.step_seconds, rel=1e-12)
        assert p.capacity_share[row] == pytest.approx(
            costs.memory_bytes / costs.capacity, rel=1e-12
        )
        assert p.flops[row] / p.step[row] == pytest.approx(costs.mfu, rel=1e-12)
        stated = replace(q.run, cells={**q.run.cells, "assumed": None, "time_error": None})
        (width,) = half_widths([replace(q, run=stated)])
        low, high = costs.step_seconds * np.exp([-width, width])
        assert (low, high) == pytest.approx(step_bounds(costs))


def test_a_row_that_infers_what_decides_its_step_has_a_wider_interval(p: Prediction) -> None:
    def asked(*assumed: str) -> Question:
        run = p.questions[0].run
        return replace(p.questions[0], run=replace(run, cells={**run.cells, "assumed": assumed}))

    guessed = [asked("vocab", "dtype"), asked("vocab"), asked()]
    assert row_error_scale(guessed).tolist() == [ASSUMED_SCALE, 1.0, 1.0]
    rounded = replace(guessed[1].run, cells={**guessed[1].run.cells, "time_error": START_SIGMA})
    assert row_error_scale([replace(guessed[1], run=rounded)]) == pytest.approx(2**0.5)
    wide, narrow, same = half_widths(guessed)
    assert narrow == same < wide < ASSUMED_SCALE * narrow


def test_memory_is_that_of_the_rank_the_source_reports(p: Prediction) -> None:
    seen = set()
    for row in range(0, len(p), 5):
        q = p.questions[row]
        stages = by_stage(simulate(q.task, q.plan.table(), scalar=True))
        meter, rank = q.run.get("peak_meter", "device"), q.run["peak_rank"]
        held = stages["total"] - stages["reserve"]
        if meter != "allocated" and q.task.software.label in FLATTENING_STACKS:
            continue
        held = {"device": stages["total"], "allocated": held, "reserved": slack(q) * held}[meter]
        expected = held[0] if rank == "first" else held.max()
        assert p.memory[row] == pytest.approx(expected, rel=1e-9)
        seen.add((meter, rank))
    assert {meter for meter, _ in seen} == {"device", "allocated"}
    assert {rank for _, rank in seen} >= {"first", "max"}


def test_flat_copies_of_gradients_leave_blocks_of_their_own(p: Prediction) -> None:
    """DeepSpeed in fp16 under ZeRO 1: the driver shows fp32 gradients of a shard beside
    activations, which tensors of neither moment have together."""
    q = next(q for q in p.questions if q.run.source == "bloom_prequel22" and q.plan.zero == 1
             and q.run["dtype"] == "fp16")  # fmt: skip
    costs = simulate(q.task, q.plan.table())
    (group,) = costs.groups
    moments, by_meter = group.rank_moments(1), rank_memory(costs, "max")
    waiting, update = (sum(parts.values(), np.zeros(1)) for parts in moments)
    copies = 4 * group.stages.weights.dense / group.stages.weights.data_group.ranks
    device = (waiting + slack(q) * copies).max()
    assert by_meter["device"][0] == pytest.approx(device)
    assert device > np.maximum(waiting, update).max() == pytest.approx(costs.memory_total[0])


def test_all_kinds_of_memory_are_ordered(p: Prediction) -> None:
    q = p.questions[0]
    costs = simulate(q.task, q.plan.table())
    fullest, first = rank_memory(costs, "max"), rank_memory(costs, "first")
    for one in (fullest, first):
        assert one["allocated"] < one["reserved"] < one["device"]
    for meter, size in first.items():
        assert size <= fullest[meter]


def test_an_allocator_that_saw_many_lengths_holds_more_of_what_comes_and_goes() -> None:
    (asked,) = questions(run for run in read_runs() if run["run"] == "swift_benchmark-0019")
    costs = simulate(asked.task, asked.plan.table())
    parts = {name: part[0, 0] for name, part in costs.groups[0].rank_bytes(0).items()}
    passing = parts["activations"] + parts["logits"] + parts["buffers"]
    stay = parts["weights"] + parts["gradients"] + parts["optimizer"]
    memory = rank_memory(costs, "max")
    assert memory["varied"] == pytest.approx(stay + 3.7 * passing)
    assert predict([asked]).memory == memory["varied"]


def test_an_allocator_that_saw_many_lengths_holds_no_more_than_there_is(p: Prediction) -> None:
    """On a GPU of a MiB more than tensors and the context need: all of it but the context."""
    q = next(q for q in p.questions if q.run.source == "megatron_sc21")
    (held,) = rank_memory(simulate(q.task, q.plan.table()), "max")["allocated"]
    context = q.task.software.context_bytes
    assert context > 2**20
    gpu = replace(q.task.cluster.accelerator, memory=held + context + 2**20)
    small = replace(q.task, cluster=replace(q.task.cluster, accelerator=gpu))
    (varied,) = rank_memory(simulate(small, q.plan.table()), "max")["varied"]
    assert varied == pytest.approx(held + 2**20, rel=1e-9)


def test_published_memory_is_read_in_its_unit(p: Prediction) -> None:
    units = {"GB": 1e9, "GiB": GIB, "MiB": GIB / 1024, "MB": 1e6}
    every = [(q.run, size) for q, size in zip(p.questions, p.measured_memory, strict=True)]
    unknown = [size for run, size in every if not run.has_peak]
    assert np.isnan(not_empty(unknown)).all()
    stated = [
        (run["peak_stated"] * units[run["peak_unit"]], size)
        for run, size in every
        if run.has_peak and run["peak_stated"] and run["peak_unit"] in units
    ]
    for wanted, size in not_empty(stated):
        assert size == pytest.approx(wanted, rel=1e-3)


def test_ranking_groups_differ_in_layout_only(p: Prediction) -> None:
    groups = ranking_groups(p)
    assert groups
    for rows in groups:
        asked = [p.questions[row] for row in rows]
        assert len({id(q.task) for q in asked}) == 1
        assert len({q.run["framework"] for q in asked}) == 1
        assert len({str(q.plan) for q in asked}) >= FEWEST_LAYOUTS


def test_repeated_layouts_make_no_group(p: Prediction) -> None:
    row = int(np.flatnonzero(p.is_timed)[0])
    several = predict([p.questions[row]] * 6)
    assert ranking_groups(several) == []


def test_the_record_follows_the_contract(runs: list[PublishedRun]) -> None:
    runs = runs[::3]
    validation = validate(runs)
    record = json.loads(json.dumps(validation.record, allow_nan=False))
    assert set(record["sources"]) == {*FEW, "hf_ultrascale"}
    for r in (record["overall"], *record["sources"].values()):
        assert set(r["step"]) == {"median_abs", "mean_abs", "bias", "p90_abs"}
        names = {"groups", "top1_mean", "top1_p95", "top3_mean", "kendall_tau"}
        assert set(r["regret"]) == names
        assert r["supported"] <= r["rows"]
        assert 0 <= r["interval80_coverage"] <= 1
    unsupported = sum(part["rows"] for part in record["unsupported"])
    assert record["overall"]["rows"] == record["overall"]["supported"] + unsupported == len(runs)
    assert len(validation.answers) == len(runs)


@pytest.mark.slow
def test_overall_averages_over_sources(runs: list[PublishedRun]) -> None:
    record = validate(runs).record
    medians = [r["step"]["median_abs"] for r in record["sources"].values()]
    assert record["overall"]["step"]["median_abs"] == pytest.approx(np.mean(medians))
    one = record["sources"]["megatron_sc21"]
    assert overall([one])["step"] == pytest.approx(one["step"])


def test_labels_of_memory_make_a_curve(p: Prediction) -> None:
    rows = [q for q in p.questions if q.run.source == "bloom_prequel22"]
    marked = [
        replace(q, run=PublishedRun({**q.run.cells, "status": "oom" if i % 2 else "ok"}))
        for i, q in enumerate(rows)
    ]
    memory = score(predict(marked), len(marked))["memory"]
    assert memory["labelled"] == len(rows)
    for before, after in pairwise(memory["curve"]):
        assert before["limit"] < after["limit"]
        assert before["false_fits"] <= after["false_fits"]
        assert before["false_ooms"] >= after["false_ooms"]
    assert memory["ran_out"] + memory["ran"] == len(rows)
    assert memory["false_fits"] == memory["ran_out_said_to_fit"] / memory["ran_out"]


def test_nothing_supported_is_a_valid_answer() -> None:
    rows = [run for run in read_runs() if run.source == "dle_bert"]
    record = validate(rows).record
    assert record["overall"]["supported"] == 0
    assert record["overall"]["step"]["median_abs"] is None
    assert record["timed_transformers"] == {"rows": 11, "supported": 0}


def test_decentralised_runs_are_predicted_with_nothing_fitted_to_them() -> None:
    rows = [run for run in read_runs() if run.source == "bluefog21"]
    checked = validate(rows)
    assert checked.record["overall"]["supported"] == len(rows) == 22
    assert checked.record["overall"]["step"]["median_abs"] < 0.08
    step = {
        tuple(q.run[name] for name in ("framework", "gpus", "micro_batch")): float(seconds)
        for q, seconds in zip(checked.prediction.questions, checked.prediction.step, strict=True)
    }
    # What BlueFog shows: on 128 GPUs averaging with a peer hides, an all-reduce does not (its steps
    # are 0.45 of the other's).
    assert step["BlueFog N_AR", 128, 32] < 0.75 * step["Horovod", 128, 32]
