"""Reports: records add up, sentences split the loss, HTML is safe."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import round_numbers

from plan3d.simulator.base.text_tables import Table, format_table, tables_html
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.plan import Plan, concat
from plan3d.simulator.reporting import explorer, report, why
from plan3d.simulator.reporting.assumptions import assumptions
from plan3d.simulator.reporting.why import layers_per_rank, loss_shares
from plan3d.simulator.step import costs_tables
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

DENSE = Task(
    Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=64), sequence=4096, global_batch=128
)
EXPERTS = Task(
    Model.preset("mixtral-8x7b"),
    Cluster.profile("h100-sxm", gpus=64),
    sequence=4096,
    global_batch=128,
)
PLANS = ["tp=8 pp=8 recompute=full", "tp=2 pp=4 virtual_stages=2", "dp=64 zero=3", "pp=5 dp=1"]


def costs_of(text: str, task: Task = DENSE) -> Costs:
    plan = Plan.parse(text)
    gpus = plan.tp * plan.pp * (plan.dp if plan.dp > 0 else 64 // (plan.tp * plan.pp))
    return evaluate(replace(task, cluster=replace(task.cluster, gpus=gpus)), plan)


@pytest.mark.parametrize("text", PLANS)
def test_shares_of_a_step_add_up_to_one(text: str) -> None:
    shares = loss_shares(costs_of(text))
    assert sum(shares.values()) == pytest.approx(1, rel=1e-12)
    assert shares["imbalance"] >= 0


@pytest.mark.parametrize("text", PLANS)
def test_a_record_is_json_and_adds_up(text: str) -> None:
    costs = costs_of(text)
    record = json.loads(json.dumps(report.plan_record(costs), allow_nan=False))
    assert sum(record["seconds"].values()) == pytest.approx(costs.step_seconds)
    memory = record["memory_bytes"]
    assert memory["limit"] == memory["capacity"] == costs.capacity
    plan = record["plan"]
    assert plan["dp"] * plan["micro_batch"] * plan["micro_batches"] == 128


def test_a_row_of_a_table_reports_as_that_plan_alone() -> None:
    table = evaluate(DENSE, concat([Plan(tp=2, pp=4), Plan(tp=4, pp=2, recompute="full")]))
    alone = report.plan_record(costs_of("tp=4 pp=2 recompute=full"))
    assert report.plan_record(table, 1) == alone


def test_why_names_what_the_plan_loses() -> None:
    said = " ".join(why.why(costs_of("tp=8 pp=8 recompute=full")))
    for words in ("MFU", "989 TFLOP/s (bf16, dense)", "Recompute (full)", "bubble", "GiB are left"):
        assert words in said
    said = " ".join(why.why(costs_of("pp=8 ep=8 dp=8", EXPERTS)))
    assert "all-to-all" in said


@pytest.mark.parametrize(("plan", "sizes"), [("etp=4", "etp=4"), ("ep=2 etp=2", "ep=2, etp=2")])
def test_why_says_over_what_experts_exchange(plan: str, sizes: str) -> None:
    costs = costs_of(f"tp=4 pp=8 {plan} sequence_parallel=1", EXPERTS)
    said = why.Cause("expert_comm", 0.1, costs).settings
    assert said.startswith(f"experts: all-to-alls over {sizes}, ")


def test_why_says_by_how_much_a_plan_does_not_fit() -> None:
    assert "exceeds the GPU by" in why.why(costs_of("dp=64 zero=0"))[-1]


def test_assumptions_name_profile_routing_and_padding() -> None:
    said = " ".join(assumptions(costs_of("tp=8 pp=8 dp=1 ep=8", EXPERTS)))
    for words in ("not calibrated", "h100-sxm", "megatron-core", "evenly", "padded from 32,000"):
        assert words in said
    cluster = Cluster.profile("h100-sxm", gpus=64, inter_node_bandwidth=25e9)
    own = evaluate(replace(DENSE, cluster=cluster), Plan(tp=8))
    assert "links.network.bandwidth given by the user" in " ".join(assumptions(own))


@pytest.mark.parametrize("text", ["pp=5 dp=1", "tp=2 pp=4 virtual_stages=2", "pp=4 dp=1"])
def test_ranks_hold_every_layer_once(text: str) -> None:
    costs = costs_of(text)
    layers = layers_per_rank(costs.task, costs.plans.take(0))
    assert sum(layers) == 32
    stages = report.stage_records(costs)
    assert [stage["layers"] for stage in stages] == layers
    fullest = max(stage["memory_bytes"]["total"] for stage in stages)
    assert fullest == pytest.approx(costs.memory_bytes)


def test_the_stage_table_is_short_and_keeps_the_fullest_rank() -> None:
    costs = costs_of("pp=32 dp=2")
    table = report.stage_table(costs)
    assert len(table.rows) <= report.STAGES_SHOWN + 1
    assert table.rows[table.highlighted][0].split("-")[0] == str(costs.worst_rank)


def test_cells_of_the_stage_table_are_gib_and_milliseconds() -> None:
    """One rank of round numbers: 12 bytes of optimizer state of each parameter."""
    costs = round_numbers.costs_of(round_numbers.task(), "tp=1")
    table = report.stage_table(costs)
    (row,) = table.rows
    cells = dict(zip(table.headers, row, strict=True))
    assert (cells["rank"], cells["layers"]) == ("0", "4")
    assert cells["optimizer"] == f"{12 * round_numbers.PARAMETERS / 2**30:.2f}"
    assert cells["total"] == f"{costs.memory_bytes / 2**30:.2f}"
    seconds = 3 * (4 * round_numbers.FORWARD + round_numbers.EMBEDDING + round_numbers.HEAD)
    assert float(cells["ms per micro-batch"]) == pytest.approx(1e3 * seconds, rel=0.01)


@pytest.mark.parametrize(("count", "fullest", "shown"), [
    (16, 3, [*range(16)]),
    (17, 3, [*range(8), *range(10, 17)]),
    (17, 9, [*range(8), 9, *range(10, 17)]),
    (40, 20, [*range(8), 20, *range(33, 40)]),
    (40, 32, [*range(8), 32, *range(33, 40)]),
    (40, 8, [*range(8), 8, *range(33, 40)]),
])  # fmt: skip
def test_of_many_runs_the_ends_and_the_fullest_are_shown(count, fullest, shown) -> None:
    runs = [[rank] for rank in range(count)]
    assert [run[0] for run in report._shown_runs(runs, fullest)] == shown


def test_host_needs_are_of_its_memory() -> None:
    """16 bytes of every parameter, of twice as many."""
    held = 16 * round_numbers.PARAMETERS
    host = replace(round_numbers.HOST, memory=2 * held)
    question = round_numbers.task(cluster=round_numbers.cluster(1, host=host))
    costs = round_numbers.costs_of(question, "offload_optimizer=100")
    assert report.host_needs(costs) == f"{held / 2**30:,.1f} of its {2 * held / 2**30:,.1f} GiB"


@pytest.mark.parametrize(("drives", "scarcer"), [(1.5, True), (1e6, False)])
def test_host_needs_are_of_its_drives_where_they_are_scarcer(drives: float, scarcer: bool) -> None:
    """Drives of so many times the 12 bytes of states, and a memory that is hardly used."""
    held = 12 * round_numbers.PARAMETERS
    host = replace(round_numbers.HOST, nvme_read=6e9, nvme_write=3e9, nvme=drives * held)
    machine = replace(Cluster.profile("h100-sxm", gpus=2), gpus_per_node=2, host=host)
    stack = round_numbers.stack(swaps_to_nvme=True)
    question = round_numbers.task(2, cluster=machine, software=stack)
    costs = round_numbers.costs_of(question, "dp=2 offload_optimizer=100 nvme=optimizer zero=3")
    assert report.host_needs(costs).endswith("of NVMe") is scarcer
    there = costs.nvme_capacity if scarcer else costs.node_capacity
    assert f" of its {there / 2**30:,.1f} GiB" in report.host_needs(costs)


def test_the_explorer_scales_what_a_cluster_has() -> None:
    """One GPU has no links, one fast domain of eight no network that is used."""

    def factors(gpus: int) -> tuple[tuple[float, ...], ...]:
        question = replace(DENSE, cluster=Cluster.profile("h100-sxm", gpus=gpus))
        return explorer.network_factors(question), explorer.link_factors(question)

    assert factors(1) == ((1.0,), (1.0,))
    assert factors(2) == factors(8) == ((1.0,), (0.5, 1.0, 2.0))
    assert factors(16) == ((0.25, 0.5, 1.0, 2.0), (0.5, 1.0, 2.0))
    positions = explorer._positions(DENSE.cluster.network, (0.5, 2.0))["positions"]
    own = DENSE.cluster.network.bandwidth
    assert positions == [{"factor": f, "bandwidth": f * own} for f in (0.5, 2.0)]
    scaled = explorer.scaled_task(DENSE, 0.5, 2.0).cluster
    assert scaled.network.bandwidth == own / 2
    assert scaled.fast_domain.bandwidth == 2 * DENSE.cluster.fast_domain.bandwidth


def test_parts_of_the_explorer_add_up_to_each_step() -> None:
    plans = concat([Plan(tp=2, pp=4), Plan(tp=4, pp=2, recompute="full")])
    costs = evaluate(DENSE, plans)
    parts = explorer._parts(costs, costs.mfu * costs.step)
    assert parts.sum(axis=1) == pytest.approx(costs.step)
    names = [*explorer.LABELS]
    assert parts[:, names.index("ideal")] == pytest.approx(costs.mfu * costs.step)
    assert parts[1, names.index("recompute")] == costs.compute_seconds["recompute"][1] > 0


def test_the_explorer_keeps_five_digits() -> None:
    table = np.array([[1 / 3, 12345678.0], [0.0, 2.0]])
    assert explorer._significant(table) == [[0.33333, 12346000], [0, 2]]


def test_training_is_tokens_over_speed() -> None:
    costs = costs_of("tp=2")
    record = report.training_record(costs, 0, 1e12, price=2.0)
    assert record["train_seconds"] == pytest.approx(1e12 / costs.tokens_per_second)
    assert record["gpu_hours"] * 3600 == pytest.approx(64 * record["train_seconds"])
    assert record["energy_joules"] == pytest.approx(700 * 3600 * record["gpu_hours"])
    assert record["cost_usd"] == pytest.approx(2 * record["gpu_hours"])
    assert "cost_usd" not in report.training_record(costs, 0, 1e12)


def test_frames_hold_fields_and_parts() -> None:
    table = evaluate(DENSE, concat([Plan(tp=2, pp=4), Plan(tp=4, pp=2)]))
    frame = costs_tables.frame(table)
    assert list(frame["tp"]) == [2, 4]
    parts = frame[[name for name in frame if name.startswith("seconds.")]].sum(axis=1)
    assert list(parts) == pytest.approx(list(frame["step_seconds"]))
    assert costs_tables.frame(None).empty
    assert len(costs_tables.frame(costs_of("tp=2"))) == 1


def test_text_and_html_show_step_peak_and_verdict() -> None:
    one = costs_of("tp=2 pp=4")
    assert "MFU" in str(one)
    assert "989 TFLOP/s (bf16, dense)" in str(one)
    assert "<table>" in one._repr_html_()
    table = evaluate(DENSE, concat([Plan(tp=2, pp=4), Plan(tp=4, pp=2)]))
    assert str(table).startswith("  rank")
    assert "<b>1</b>" in table._repr_html_()


def test_html_is_escaped_and_runs_nothing() -> None:
    table = Table(headers=("<x>",), rows=(("<script>alert(1)</script>",),), title="a & b")
    text = tables_html([table])
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "a &amp; b" in text


def test_plain_tables_align_numbers_right() -> None:
    table = Table(headers=("name", "GiB"), rows=(("a", "1.0"), ("bb", "10.0")), highlighted=1)
    assert format_table(table).splitlines() == ["  name   GiB", "  a      1.0", "* bb    10.0"]
