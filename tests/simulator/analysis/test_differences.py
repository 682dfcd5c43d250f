"""What is said of two plans, of where times come from and of rates, with numbers by hand."""

import numpy as np
import pytest
from round_numbers import FORWARD, PARAMETERS, costs_of, sparse, stack, task

from plan3d.simulator.analysis.plan_difference import contrast_sentences
from plan3d.simulator.analysis.provenance import ORIGINS, provenance_sentence, time_provenance
from plan3d.simulator.analysis.roofline import gemm_points
from plan3d.simulator.analysis.textbook import (
    _activations,
    _layer_rows,
    _model_parallel_row,
    in_16_bits,
)
from plan3d.simulator.analysis.textbook_pipeline import _bubble_rows, idle_share, unit_timeline
from plan3d.simulator.analysis.traffic import traffic
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.plan import Plan, concat, resolve
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

GIB = 2**30


def test_two_plans_differ_by_their_optimizer_state():
    """12 bytes a parameter, or six on each of two ranks."""
    whole, halved = (costs_of(task(2, 8), f"dp=2 zero={zero}") for zero in (0, 1))
    first, *_, memory = contrast_sentences(whole, halved)
    change = f"{abs(100 * (halved.step_seconds / whole.step_seconds - 1)):.1f} %"
    assert f"{halved.step_seconds:.4g} s a step, {change}" in first
    assert "zero 1 (was 0)" in first
    assert f"optimizer {-6 * PARAMETERS / GIB:+.1f} GiB" in memory
    held = (whole.memory_bytes - halved.memory_bytes) / PARAMETERS
    assert held == pytest.approx(6, rel=1e-6)
    assert contrast_sentences(whole, whole) == ["It is the same plan."]


def test_what_a_plan_spends_more_on_is_said_in_time():
    """Recompute takes a forward pass of four layers for each of eight sequences."""
    plain, again = (costs_of(task(1, 8), f"recompute={mode}") for mode in ("none", "full"))
    said = contrast_sentences(plain, again)
    more = 1e3 * 8 * 4 * FORWARD
    assert f"It spends more on recompute +{more:.3g} ms." in said
    back = contrast_sentences(again, plain)
    assert f"It spends less on recompute -{more:.3g} ms." in back
    assert again.step_seconds - plain.step_seconds == pytest.approx(8 * 4 * FORWARD)
    slower = 100 * 8 * 4 * FORWARD / plain.step_seconds
    assert f"{slower:.1f} % slower" in said[0]


@pytest.mark.parametrize(
    ("first", "second", "told", "hidden"),
    [
        # Of activations 0.13 GiB, of logits and buffers 0.006 and 0.004.
        ("micro_batch=1", "micro_batch=2", "activations +0.1 GiB", ("logits", "buffers")),
        # Buffers of 0.0586.
        ("recompute=none", "recompute=full", "buffers +0.1 GiB", ("logits",)),
    ],
)
def test_bytes_are_told_from_a_twentieth_of_a_gibibyte(first, second, told, hidden):
    said = contrast_sentences(*(costs_of(task(1, 8), text) for text in (first, second)))[-1]
    assert told in said
    assert not any(name in said for name in hidden)


def test_where_times_of_a_row_come_from():
    question = Task(Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=8), sequence=2048,
                    global_batch=64)  # fmt: skip
    texts = ("tp=1", "tp=8 recompute=full")
    both = evaluate(question, concat([resolve(Plan.parse(t), 8).table() for t in texts]))
    alone = [time_provenance(evaluate(question, Plan.parse(text))) for text in texts]
    for row, expected in enumerate(alone):
        assert time_provenance(both, row) == pytest.approx(expected)
        assert sum(expected.values()) == pytest.approx(1)
    assert alone[0] != alone[1]


def test_shares_of_half_a_percent_are_said():
    shares = dict(zip(ORIGINS, (0.6, 0.396, 0.004, 0.0), strict=True))
    said = provenance_sentence(shares)
    assert "60 % at measured points" in said
    assert "40 % between them" in said
    assert "sibling" not in said
    rounded = dict(zip(ORIGINS, (0.995, 0.0, 0.005, 0.0), strict=True))
    assert "0 % outside them" in provenance_sentence(rounded)


def test_activations_of_a_batch_count_its_logits():
    """In fp32, of one sequence: logits of 1024 tokens and 1024 words beside the layers."""
    memory = evaluate(task(1, 1), Plan(precision="fp32")).memory
    found, states = _activations(task(), 1)
    assert found == memory["activations"] + memory["logits"] > memory["activations"]
    assert states == pytest.approx(16 * PARAMETERS)


def test_layers_of_a_textbook_are_split_over_tensor_ranks():
    """2 bytes of 2 s^2 a + 14 s h and of s h; halved by two ranks."""
    values = 2 * 1024**2 * 8 + 14 * 1024 * 1024
    for tp in (1, 2):
        plan = resolve(Plan(tp=tp), 2).take(0)
        none, full = _layer_rows(task(2, 4), plan)
        assert none.textbook == pytest.approx(2 * values / tp)
        assert full.textbook == pytest.approx(2 * 1024 * 1024 / tp)
        assert none.formula == "2 b (2s^2 a + 14sh)" + "/tp" * (tp == 2)
        assert ("every rank" in none.why) is (tp == 2)


def test_the_fullest_rank_of_a_model_that_is_cut_holds_an_end():
    """16 bytes of two layers and of the embedding, or the head and the last norm."""
    row = _model_parallel_row(task(2, 4), resolve(Plan(pp=2), 2).take(0))
    layers = (PARAMETERS - 2 * 1024**2 - 1024) / 2
    assert row.textbook == pytest.approx(16 * PARAMETERS / 2)
    assert row.simulator == pytest.approx(16 * (layers + 1024**2 + 1024))


def test_gpus_of_fp16_alone_compute_in_bf16_as_fast():
    old = Cluster.profile("v100-32gb-sxm", gpus=1)
    question = task(cluster=old, software=stack())
    peak = in_16_bits(question).cluster.accelerator.peak
    assert peak["bf16"] == old.accelerator.peak["fp16"]
    assert in_16_bits(task()) == task()


def test_bubbles_of_even_stages_are_those_of_the_formula():
    """(p - 1) / m and (p - 1) / (v m) of 4 ranks and 8 micro-batches; one stage at a time."""
    plan = resolve(Plan(pp=4, virtual_stages=2, dp=1), 4).take(0)
    rows = {row.name: row for row in _bubble_rows(plan, 8)}
    expected = {"one stage at a time": 3, "bubble, even stages": 3 / 8, "bubble, v = 2": 3 / 16}
    assert {name: row.textbook for name, row in rows.items()} == pytest.approx(expected)
    assert {name: row.simulator for name, row in rows.items()} == pytest.approx(expected)
    plain = _bubble_rows(resolve(Plan(pp=4, dp=1), 4).take(0), 8)
    assert [row.name for row in plain] == ["one stage at a time", "bubble, even stages"]
    timeline = unit_timeline("1f1b", 4, 1, 8)
    assert np.asarray(timeline.busy).tolist() == [24] * 4
    assert idle_share(timeline) == pytest.approx(3 / 8)


def test_shares_add_up_beside_a_table_of_layers():
    cluster = Cluster.profile("a100-80gb-sxm", gpus=8)
    question = Task(Model.preset("gpt3-13b"), cluster, sequence=2048, global_batch=64,
                    software="vtrain")  # fmt: skip
    found = time_provenance(evaluate(question, Plan.parse("tp=4 micro_batch=4")))
    assert sum(found.values()) == pytest.approx(1)
    assert found["extrapolated"] > 0.9


def test_products_lie_on_the_roof_where_kernels_reach_it():
    """Of 1024 x 3072 x 1024 in 16 bits: 6.44 GFLOP over 2 x (1 + 3 + 3) MiB. Memory binds none of
    these products, so that each takes its FLOPs over 100 TFLOP/s; two experts are one batch."""
    points = {point.sides: point for point in gemm_points(costs_of(task(), "tp=1"))}
    one = points[1024, 3072, 1024]
    assert one.intensity == pytest.approx(2 * 1024 * 3072 * 1024 / (2 * 7 * 2**20))
    rates = [point.rate for point in points.values()]
    assert rates == pytest.approx([100e12] * len(rates))
    assert one.roof == 100e12
    experts = gemm_points(costs_of(task(4, 8, sparse()), "dp=4 ep=4"))
    batched = [point for point in experts if point.batch == 2]
    assert len(batched) == 2
    assert [point.rate for point in batched] == pytest.approx([100e12] * 2)
    m, n, k = batched[0].sides
    assert batched[0].intensity == pytest.approx(m * n * k / (m * k + n * k + m * n))


def test_shards_of_replicas_are_summed_between_them():
    """Two groups of four ranks: gradients of 4 bytes are scattered in a group, 3/4 of them, weights
    of 2 gathered; a quarter of the gradients is summed between two, 2 x 1/2 of it."""
    question = task(8, 8)
    whole, split = (
        traffic(costs_of(question, f"dp=8 zero=1{shard}")) for shard in ("", " shard=4")
    )
    assert whole.bytes_sent == pytest.approx(7 / 8 * (4 + 2) * PARAMETERS)
    assert split.bytes_sent == pytest.approx((3 / 4 * (4 + 2) + 4 / 4) * PARAMETERS)
