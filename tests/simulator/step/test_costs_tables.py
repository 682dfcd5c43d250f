"""Costs as a data frame: a row a plan, numbered as a ranking is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import unit_pipelines
from round_numbers import ACCELERATOR, PARAMETERS, cluster, costs_of, stack, task

from plan3d import Cluster, Model, Plan, Task
from plan3d.simulator.plan.plan import concat, resolve
from plan3d.simulator.step.costs import concat_costs
from plan3d.simulator.step.costs_tables import (
    breakdown,
    host_table,
    number_format,
    ranking,
    shared_fields,
    summary,
    with_micro_batches,
)
from plan3d.simulator.step.evaluate import evaluate, simulate


def test_rows_of_a_frame_are_numbered_from_one_and_say_what_costs_say() -> None:
    question = Task(
        Model.preset("gpt3-125m"), Cluster.profile("h100-sxm", gpus=8),
        sequence=2048, global_batch=8,
    )  # fmt: skip
    costs = simulate(question, concat([resolve(Plan(tp=tp), 8).table() for tp in (1, 2, 4)]))
    frame = costs.to_frame()
    assert frame.index.tolist() == [1, 2, 3]
    assert frame["tp"].tolist() == [1, 2, 4]
    assert frame["step_seconds"].tolist() == costs.step.tolist()
    parts = frame.filter(like="seconds.").sum(axis=1)
    assert np.allclose(parts, costs.step, rtol=1e-12)


# Tables of round numbers


def test_a_ranking_counts_from_one_and_says_shares_in_percent():
    """12 FLOPs of each of 8 samples on 4 GPUs of 1 FLOP/s: in 48 and 60 seconds 50 and 40 %; 8
    micro-batches of one sample, or 4 of two."""
    table = concat([resolve(Plan.parse(f"pp=4 micro_batch={b}"), 4).table() for b in (1, 2)])
    costs = replace(
        simulate(unit_pipelines.task(4), table),
        step=np.array([48.0, 60.0]),
        memory_total=np.array([3.0, 1.5]) * 2**30,
    )
    found = ranking(costs, 10, {"fits %": ["90", "80"]})
    assert [row[:6] for row in found.rows] == [
        ("1", "48", "50.0", "3.0", "0", "90"),
        ("2", "60", "40.0", "1.5", "0", "80"),
    ]
    columns = dict(zip(found.headers, zip(*found.rows, strict=True), strict=True))
    assert columns["batches"] == ("8", "4")
    assert [name for i, name in enumerate(found.headers) if i in found.words] == ["recompute"]
    assert len(ranking(costs, 1).rows) == 1
    fields = with_micro_batches({"dp": 4, "micro_batch": 2, "tp": 8}, 64)
    assert list(fields.items()) == [("dp", 4), ("micro_batch", 2), ("micro_batches", 8), ("tp", 8)]


@pytest.mark.parametrize(("last", "shown"), [("1+10", None), ("10+10", 57)])
def test_long_runs_of_layers_are_cut(last, shown):
    """Sixty characters fit in a ranking, of sixty-one the first 57 and dots are shown."""
    text = "|".join([f"{1 + i % 2}+1+1+1" for i in range(7)] + [last])
    layers = sum(map(int, text.replace("|", "+").split("+")))
    question = unit_pipelines.task(8, 8, (unit_pipelines.layer(),) * layers)
    costs = evaluate(question, Plan.parse(f"pp=8 segments={text}"))
    expected = text if shown is None else f"{text[:shown]}..."
    assert shared_fields(costs)["segments"] == expected
    assert len(expected) == 60


def test_a_breakdown_says_seconds_and_bytes_with_their_shares():
    """Of 4 GiB: 12 bytes of state of 52,438,016 parameters, 2 of weights; no logits on the first of
    two ranks."""
    gpu = replace(ACCELERATOR, memory=2.0**32)
    costs = costs_of(task(cluster=cluster(1, accelerator=gpu)), "tp=1")
    time, memory = breakdown(costs)
    states = 12 * PARAMETERS
    sizes = {name: (size, share) for name, size, share in memory.rows}
    assert sizes["optimizer"] == (f"{states / 2**30:.2f}", f"{100 * states / 2**32:.1f}")
    assert sizes["weights"] == (f"{states / 6 / 2**30:.2f}", f"{100 * states / 6 / 2**32:.1f}")
    assert sizes["capacity"] == ("4.00", "100.0")
    used, margin = (float(sizes[name][1]) for name in ("total", "margin"))
    assert used + margin == pytest.approx(100, abs=0.11)
    assert memory.headers[0] == "memory of worst rank (0)"
    step = costs.step_seconds
    update = 30 * PARAMETERS / 1e12
    parts = {name: (seconds, share) for name, seconds, share in time.rows}
    assert parts["optimizer"] == (f"{update:.4g}", f"{100 * update / step:.1f}")
    assert parts["step"] == (f"{step:.4g}", "100.0")
    assert "bubble" not in parts
    first = dict(row[:2] for row in breakdown(costs_of(task(2), "pp=2"))[1].rows)
    assert "logits" not in first


def test_a_summary_is_a_step_its_utilisation_and_its_memory():
    """Per token 6 FLOPs of each of 49 x 1024^2 weights of layers and head, and 12 s h of attention
    in each of four layers, half of it under the causal mask."""
    costs = costs_of(task(), "tp=1")
    step = costs.step_seconds
    whole, causal = (4 * 1024 * 1024**2 * (6 * 49 + 12 * 4 * half) for half in (1, 0.5))
    shares = [100 * flops / step / 100e12 for flops in (whole, causal)]
    assert costs.mfu == pytest.approx(shares[0] / 100)
    assert costs.mfu_causal == pytest.approx(shares[1] / 100)
    line = summary(costs)
    assert f"{step:.4g} s a step, MFU {shares[0]:.1f} % ({shares[1]:.1f} % causal)" in line
    assert "of 100 TFLOP/s (bf16, dense)" in line
    assert not line.endswith("does not fit")
    assert summary(replace(costs, memory_total=np.array([81e9]))).endswith("does not fit")


def test_the_fullest_node_is_shown_with_its_drives():
    """18 bytes of every parameter on a host of 1 TB."""
    both = "dp=8 offload_optimizer=100 offload_parameters=100"
    software = stack(offloads_parameters=True, swaps_to_nvme=True)
    costs = costs_of(task(8, 8, software=software), both)
    rows = {name: cells for name, *cells in host_table(costs.row()).rows}
    held = 18 * PARAMETERS
    assert rows["total"] == [f"{held / 2**30:.2f}", f"{100 * held / 1e12:.1f}"]
    assert rows["margin"] == [f"{(1e12 - held) / 2**30:.2f}", f"{100 - 100 * held / 1e12:.1f}"]
    assert "on NVMe drives" not in rows


@pytest.mark.parametrize(("rows", "head"), [(1, "part of a step"), (2, "MFU %")])
def test_one_plan_is_broken_down_and_several_are_ranked(rows, head):
    table = concat([resolve(Plan(pp=pp), 4).table() for pp in (4, 2)][:rows])
    costs = simulate(unit_pipelines.task(4), table)
    for shown in (str(costs), costs._repr_html_()):
        assert head in shown
    assert ("plans of" in repr(costs)) == (rows == 2)


def test_tables_one_after_another_are_that_of_all_plans():
    """Of two formats, whose rows stand apart in the whole table."""
    texts = ("tp=1", "tp=2 precision=fp16", "dp=4 zero=2", "pp=2 precision=fp16", "pp=4")
    rows = [resolve(Plan.parse(text), 4).table() for text in texts]
    whole = simulate(task(4), concat(rows))
    parts = [simulate(task(4), concat(rows[a:b])) for a, b in ((0, 2), (2, 4), (4, 5))]
    joined = concat_costs(parts)
    assert joined.step.tolist() == whole.step.tolist()
    for name, column in whole.seconds.items():
        assert joined.seconds[name].tolist() == column.tolist(), name
    for name, column in whole.memory.items():
        assert joined.memory[name].tolist() == column.tolist(), name


@pytest.mark.parametrize(
    ("precision", "name"),
    # Autocast over fp32 weights takes either: `bf16: true` of a Trainer is no fp16.
    [("bf16", "bf16"), ("fp16", "fp16"), ("fp32", "fp32"), ("fp8", "fp8"), ("amp", "16-bit")],
)
def test_the_format_of_products_as_people_call_it(precision: str, name: str) -> None:
    assert number_format(Plan.parse(f"precision={precision}")) == name
