"""Plans with segments are plans like any other, and uniform ones a special case of them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_runs import DENSE, mixed
from round_numbers import MODEL, TABLE, costs_of, exchange, gather, reduce, send, sparse, stack
from round_numbers import task as small
from unit_pipelines import layer
from unit_pipelines import task as unit_task

from plan3d.simulator.hardware.cluster import Cluster, CollectiveTime
from plan3d.simulator.hardware.software import ENDS
from plan3d.simulator.layers.placements import chunk_sizes
from plan3d.simulator.plan.plan import Plan, concat, resolve
from plan3d.simulator.reporting.report import plan_record, stage_records
from plan3d.simulator.reporting.why import layers_per_rank
from plan3d.simulator.rules.validity import legal_rows, violations
from plan3d.simulator.step.evaluate import by_stage, evaluate, simulate
from plan3d.simulator.step.memory import PARTS as MEMORY
from plan3d.simulator.step.plan_groups import PARTS
from plan3d.simulator.step.plan_timeline import timeline_of
from plan3d.simulator.task import Task
from plan3d.simulator.workload.adapters import Adapters
from plan3d.simulator.workload.model import Model

MIXTRAL = Model.preset("mixtral-8x7b")
SPARSE = Task(MIXTRAL, Cluster.profile("h100-sxm", gpus=64), sequence=4096, global_batch=64)
TIED = Task(Model.preset("gpt3-125m"), DENSE.cluster, sequence=2048, global_batch=64)

uniform = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2, 4]),
        "pp": st.sampled_from([1, 2, 4]),
        "micro_batch": st.sampled_from([1, 2]),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "zero": st.sampled_from([0, 1, 2, 3]),
        "schedule": st.sampled_from(["1f1b", "gpipe", "zb-h1"]),
        "overlap_grad_reduce": st.sampled_from([0, 1]),
    }
)


def cut(layers, pp, pieces):
    """Equal stages of `layers` over pp, each in `pieces` runs: '8+8|8+8'."""
    each = layers // pp
    run = [each // pieces] * pieces
    run[-1] += each - sum(run)
    return "|".join(["+".join(map(str, run))] * pp)


@pytest.mark.parametrize("question", [DENSE, SPARSE, TIED], ids=["dense", "moe", "tied"])
@given(fields=uniform, pieces=st.integers(1, 3))
def test_a_uniform_plan_written_as_segments_costs_the_same(question, fields, pieces):
    if fields["pp"] == 1:
        fields["schedule"] = "1f1b"
    plan = Plan(**fields)
    if violations(resolve(plan, question.gpus), question):
        return
    text = cut(question.model.layers, fields["pp"], pieces)
    whole, parted = evaluate(question, plan), evaluate(question, Plan(**fields, segments=text))
    assert parted.step_seconds == pytest.approx(whole.step_seconds, rel=1e-12)
    for name in PARTS:
        error = parted.seconds[name] - whole.seconds[name]
        assert abs(error) <= 1e-12 * whole.step_seconds, name
    for name in MEMORY:
        assert parted.memory[name] == pytest.approx(whole.memory[name], rel=1e-12), name
    assert parted.worst_rank == whole.worst_rank


@given(plans=st.lists(mixed(), min_size=1, max_size=3))
def test_a_table_equals_its_rows(plans):
    table = concat([resolve(plan, DENSE.gpus).table() for plan in plans])
    assert legal_rows(table, DENSE).all()
    costs = simulate(DENSE, table)
    for row, plan in enumerate(plans):
        one = evaluate(DENSE, plan)
        assert costs.step[row] == pytest.approx(one.step_seconds, rel=1e-14)
        assert costs.memory_total[row] == pytest.approx(one.memory_bytes, rel=1e-14)
        taken = costs.row(row)
        assert taken.step_seconds == pytest.approx(one.step_seconds, rel=1e-14)
        for part in ("seconds", "memory", "worst_rank"):
            assert getattr(taken, part) == pytest.approx(getattr(one, part), rel=1e-12)
        own, found = by_stage(one), by_stage(taken)
        assert own.keys() == found.keys()
        for name, column in own.items():
            np.testing.assert_allclose(found[name], column, rtol=1e-12)


@given(plan=mixed())
def test_parts_add_up_and_all_parameters_are_somewhere(plan):
    costs = evaluate(DENSE, plan)
    assert sum(costs.seconds.values()) == pytest.approx(costs.step_seconds, rel=1e-12)
    assert sum(costs.memory.values()) == pytest.approx(costs.memory_bytes, rel=1e-12)
    ranks = by_stage(costs)
    assert ranks["total"].max() == pytest.approx(costs.memory_bytes, rel=1e-12)
    (group,) = costs.groups
    s = group.segmented
    held = (s.shards.dense * (8 / (s.shards.data_group.ranks))).sum()
    # Norms are whole on every tensor rank; nothing else is held twice.
    assert DENSE.model.parameters <= held <= 1.001 * DENSE.model.parameters


@given(plan=mixed())
def test_more_recompute_needs_no_more_memory_and_no_less_time(plan):
    runs = plan.segments
    costs = [
        evaluate(DENSE, Plan(**{**plan.columns(), "segments": runs.with_fields(recompute=column)}))
        for column in (np.zeros_like(runs.recompute), np.full_like(runs.recompute, 2))
    ]
    assert costs[0].memory["activations"] >= costs[1].memory["activations"]
    assert costs[0].step_seconds <= costs[1].step_seconds


def test_changing_the_tensor_size_inside_a_stage_costs_an_exchange():
    wide = evaluate(DENSE, Plan.parse("tp=4 micro_batch=2"))
    narrow = evaluate(DENSE, Plan.parse("tp=2 micro_batch=1"))
    both = evaluate(DENSE, Plan.parse("tp=4 micro_batch=2 segments=16+16:tp=2"))
    work = [costs.compute_seconds["matmul"] for costs in (wide, narrow, both)]
    talk = [costs.seconds["tensor_comm"] for costs in (wide, narrow, both)]
    assert work[2] == pytest.approx((work[0] + work[1]) / 2, rel=0.02)
    assert talk[2] > (talk[0] + talk[1]) / 2


def test_stages_may_have_unequal_numbers_of_gpus():
    plan = Plan.parse("tp=4 pp=3 dp=2 micro_batch=2 segments=8|16:dp=4|8")
    costs = evaluate(DENSE, plan)
    (group,) = costs.groups
    seconds = (group.stages.forward + group.stages.backward)[:, 0]
    assert seconds[1] == pytest.approx(seconds[0], rel=0.1)


def test_an_uneven_plan_is_simulated_event_by_event():
    plan = Plan.parse("tp=2 pp=4 micro_batch=1 segments=6:recompute=full|10|10|6")
    timeline = timeline_of(DENSE, plan)
    assert timeline.step_seconds == pytest.approx(timeline.closed_form, rel=0.05)
    same = Plan.parse("tp=2 pp=4 micro_batch=1 segments=8*4")
    usual = Plan.parse("tp=2 pp=4 micro_batch=1")
    assert timeline_of(DENSE, same).step_seconds == timeline_of(DENSE, usual).step_seconds


def test_reports_tell_the_layers_of_each_stage():
    costs = evaluate(DENSE, Plan.parse("tp=2 pp=4 micro_batch=1 segments=5+2|9|9|7"))
    assert [stage["layers"] for stage in stage_records(costs)] == [7, 9, 9, 7]
    record = plan_record(costs)
    assert record["plan"]["segments"][0][1]["layers"] == 2
    assert sum(record["provenance"].values()) == pytest.approx(1)


INTERLEAVED = [
    (DENSE, "tp=2 pp=4 virtual_stages=4"),
    (DENSE, "tp=2 pp=4 virtual_stages=3 recompute=full zero=0"),
    (DENSE, "tp=4 pp=2 virtual_stages=5 zero=3 overlap_p2p=1"),
    (DENSE, "tp=2 pp=4 virtual_stages=2 schedule=breadth-first"),
    (SPARSE, "tp=2 ep=4 pp=4 virtual_stages=3 dp=8"),
    (TIED, "tp=1 pp=4 virtual_stages=3"),
]


@pytest.mark.parametrize(("question", "text"), INTERLEAVED)
def test_chunks_written_as_segments_cost_the_same(question, text):
    """Equal chunks and chunks that differ by a layer; ranks, sends and events too. What ranks wait
    for each other is exact where each chunk's seconds are known, and a bound otherwise."""
    plan = resolve(Plan.parse(text), question.gpus)
    chunks = chunk_sizes(question, plan)
    written = replace(plan, segments="|".join(map(str, chunks)))
    one, other = evaluate(question, plan), evaluate(question, written)
    assert one.step_seconds <= other.step_seconds * (1 + 1e-12)
    assert other.step_seconds <= 1.005 * one.step_seconds
    for name in set(PARTS) - {"bubble"}:
        assert other.seconds[name] == pytest.approx(one.seconds[name], rel=1e-9, abs=1e-12)
    assert other.memory == pytest.approx(one.memory, rel=1e-12)
    whole, cut_up = timeline_of(question, plan), timeline_of(question, written)
    assert cut_up.step_seconds == pytest.approx(whole.step_seconds, rel=1e-12)
    assert layers_per_rank(question, cut_up.plan) == layers_per_rank(question, plan)


def test_a_chunk_of_its_own_counts_on_its_rank_only():
    """Full recompute in both chunks of rank 2 of 4: its passes grow by a forward pass of 8 layers,
    and only it keeps the inputs of its layers alone."""
    text = "tp=2 pp=4 virtual_stages=2 segments=4|4:recompute={0}|4|4|4|4:recompute={0}|4|4"
    plain, heavy = (by_stage(evaluate(DENSE, Plan.parse(text.format(m)))) for m in ("none", "full"))
    longer = heavy["seconds"] / plain["seconds"]
    assert longer[[0, 2, 3]] == pytest.approx(1)
    assert 1.2 < longer[1] < 1.4
    smaller = heavy["activations"] < 0.2 * plain["activations"]
    assert smaller.tolist() == [False, True, False, False]


# Runs of other sizes, by hand


def _seconds(question, text, part, free):
    """Seconds of a part of a step that take those of one collective, `free` where it has none."""
    link = CollectiveTime(latency=0.0, latency_per_step=0.0, root=0.0, bandwidth=1e30)
    domain = replace(question.cluster.fast_domain, **{free: link})
    quick = replace(question, cluster=replace(question.cluster, fast_domain=domain))
    return costs_of(question, text).seconds[part] - costs_of(quick, text).seconds[part]


@pytest.mark.parametrize(("wide", "narrow", "ranks"), [(4, 2, 2), (4, 1, 4), (2, 1, 2), (2, 4, 2)])
@pytest.mark.parametrize(("precision", "size"), [("bf16", 2), ("fp32", 4)])
def test_runs_of_other_tensor_groups_exchange_their_shares(wide, narrow, ranks, precision, size):
    """Four GPUs, two micro-batches of four sequences: s h elements on every rank of either run,
    which those that hold a part of the same sequences exchange in both passes."""
    text = f"tp={wide} micro_batch={wide} precision={precision} segments=2+2:tp={narrow}"
    found = _seconds(small(4, 8), text, "tensor_comm", "all_to_all")
    assert found == pytest.approx(2 * 2 * exchange(size * 1024**2, ranks))


@pytest.mark.parametrize("cp", [1, 2])
@pytest.mark.parametrize(
    ("runs", "ranks"), [("2+2:tp=2", 2), ("2:tp=2+2", 2), ("2:tp=1+2", 4), ("1:tp=2+1+2:tp=2", 2)]
)
def test_without_sequence_parallelism_a_wider_group_gathers(runs, ranks, cp):
    """Two micro-batches of four sequences, whose hidden states are whole in groups of four and
    apart in narrower ones, in the pass that enters the wider group; each context rank has half."""
    text = f"tp=4 cp={cp} micro_batch=4 sequence_parallel=0 segments={runs}"
    found = _seconds(small(4 * cp, 8), text, "tensor_comm", "all_gather")
    assert found == pytest.approx(2 * runs.count("+") * gather(4 * 2 * 1024**2 / cp, ranks))


def test_sends_between_runs_take_their_mean():
    """50, 150 and 70 bytes behind the first three layers at 100 a second; of two stages the 150 in
    the middle."""
    layers = tuple(layer(boundary=size) for size in (50, 150, 70, 500))
    for text, mean in (("pp=4 segments=1|1|1|1", 90), ("pp=2 dp=2 segments=2|2", 150)):
        (group,) = evaluate(unit_task(4, 8, layers), Plan.parse(text)).groups
        assert group.stages.hop_seconds == pytest.approx(mean / 100)


@pytest.mark.parametrize(
    ("text", "sequences"),
    [("2:dp=4|2:dp=2", 2), ("2:dp=2|2:dp=4", 2), ("2:tp=1,dp=2|2:tp=2,dp=1", 4)],
)
def test_a_send_takes_as_long_as_the_larger_share(text, sequences):
    """Micro-batches of four sequences: two on the ranks of a stage of two replicas, one on those of
    a stage of four; two tensor ranks have all four without sequence parallelism."""
    text = f"pp=2 sequence_parallel=0 micro_batch=2 dp=2 segments={text}"
    (group,) = costs_of(small(6 if "dp=4" in text else 4, 8), text).groups
    assert group.stages.hop_seconds == pytest.approx(send(sequences * 2 * 1024**2))


LISTED = unit_task(4, 8, tuple(layer(1 + i % 3, 100 + 50 * (i % 2)) for i in range(8)))
TEXTS = [
    "pp=4 virtual_stages=2 segments=1|1|1|1|1|1|1|1",
    "pp=2 virtual_stages=2 dp=2 segments=3|2|1|2",
    "pp=2 dp=2 segments=3|5",
    "pp=4 segments=2|3|1|2",
    "dp=4 segments=8",
    "pp=2 virtual_stages=4 dp=2 segments=1|1|1|1|1|1|1|1",
]


@pytest.mark.parametrize("order", [TEXTS, TEXTS[::-1]])
def test_plans_of_other_sizes_in_one_table_do_not_mix(order):
    table = concat([resolve(Plan.parse(text), 4).table() for text in order])
    assert legal_rows(table, LISTED).all()
    together = simulate(LISTED, table)
    alone = [evaluate(LISTED, Plan.parse(text)) for text in order]
    assert together.step.tolist() == pytest.approx([one.step_seconds for one in alone])
    assert together.memory_total.tolist() == pytest.approx([one.memory_bytes for one in alone])
    for name, column in together.seconds.items():
        expected = [one.seconds[name] for one in alone]
        assert column.tolist() == pytest.approx(expected, abs=1e-9), name


# Runs of one strategy are the plan, with all that a stack can tell apart

TELLS = {
    "frees_gradients": True,
    "unreduced_gradients": True,
    "flat_gradients": True,
    "gradient_pool": True,
    "update_memory": 4.0,
    "sharded_inputs": 1.0,
    "copies_gathered": True,
    "bucket_memory": 2.0,
    "boundary_buffers": 2.0,
}
QUESTIONS = {
    "dense": {},
    "experts": {"model": sparse()},
    "tied": {"model": replace(MODEL, tied=True)},
    "predicts": {"model": replace(MODEL, mtp_layers=1)},
    "adapted": {"adapters": Adapters(rank=8)},
    "adapted and tied": {"adapters": Adapters(rank=8), "model": replace(MODEL, tied=True)},
}


@pytest.mark.parametrize("gathered", [(), ENDS[1:], ENDS])
@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize(
    ("batch", "text", "runs"),
    [
        (8, "pp=2 dp=2 zero=1", "2|2"),
        (8, "pp=2 dp=2 zero=3", "2|2"),
        (8, "pp=2 virtual_stages=2 dp=2 zero=1", "1|1|1|1"),
        (8, "tp=2 dp=2 zero=2", "1+3"),
        (8, "dp=4 zero=3", "1+3"),
        # A single micro-batch finds no gradients.
        (4, "dp=4 zero=3", "1+3"),
    ],
)
def test_runs_of_one_strategy_have_the_seconds_and_bytes_of_the_plan(
    batch, text, runs, name, gathered
):
    software = stack(**TELLS, gathered_ends=gathered)
    question = small(4, batch, software=software, **QUESTIONS[name])
    whole, parted = (costs_of(question, f"{text}{more}") for more in ("", f" segments={runs}"))
    # The longest way through chunks is found for each plan with runs, and in turns of a model else.
    found, expected = (
        {n: s for n, s in one.seconds.items() if n != "bubble" or "virtual" not in text}
        for one in (parted, whole)
    )
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert parted.memory_bytes == pytest.approx(whole.memory_bytes, rel=1e-9)


@pytest.mark.parametrize("adapters", [None, Adapters(rank=8)])
@pytest.mark.parametrize("gathered", [ENDS[1:], ENDS])
def test_each_stage_has_the_bytes_of_its_own_zero_stage(gathered, adapters):
    """Two stages of two layers: with ZeRO 3 as in a plan of ZeRO 3, with ZeRO 1 as in one of it."""
    software = stack(gathered_ends=gathered, accumulation_bytes=10.0)
    question = small(4, 8, software=software, adapters=adapters)
    mixed_up = by_stage(costs_of(question, "pp=2 dp=2 segments=2:zero=3|2:zero=1"))
    for rank, zero in enumerate((3, 1)):
        plain = by_stage(costs_of(question, f"pp=2 dp=2 zero={zero}"))
        for name in MEMORY:
            assert mixed_up[name][rank] == pytest.approx(plain[name][rank]), name


def test_gradients_whose_pool_nothing_takes_are_those_of_runs_under_zero_3():
    """Half of 400 bytes of one layer of four stay reserved while 100 samples of it and of three
    layers under ZeRO 1 wait."""
    question = unit_task(2, 200, frees_gradients=True, gradient_pool=True)
    text = "dp=2 zero=1 micro_batch=100 segments=1:zero=3+3:zero=1"
    memory = costs_of(question, text).memory
    assert (memory["activations"], memory["gradients"]) == (4000, 0)
    assert memory["reserve"] == 400 / 2


def test_ends_of_runs_with_other_tensor_groups_are_gathered_together():
    """Two tensor ranks with half of the embedding, then one with the whole head: both stay gathered
    beside a layer, whose gradients the head's are waiting with; else two layers are."""
    buffers = []
    for gathered in ((), ENDS):
        software = stack(gathered_ends=gathered)
        text = "tp=2 micro_batch=2 zero=3 segments=2+2:tp=1"
        buffers.append(costs_of(small(4, 8, software=software), text).memory["buffers"])
    head = TABLE + 1024
    assert buffers[1] - buffers[0] == 2 * (TABLE / 2 + head) + 2 * head


def test_stages_of_other_tensor_groups_send_and_do_not_exchange():
    text = "pp=2 tp=2 micro_batch=2 segments=2|2:tp=1"
    assert _seconds(small(4, 8), text, "tensor_comm", "all_to_all") == 0


@pytest.mark.parametrize(
    ("runs", "share"),
    [("2|2:tp=1", 1), ("2:tp=1|2", 1), ("2|2", 2), ("1+1:tp=1|2", 2), ("2|1:tp=1+1", 2)],
)
def test_tied_ends_are_reduced_in_shares_of_the_narrower(runs, share):
    question = small(4, 8, replace(MODEL, tied=True))
    (group,) = costs_of(question, f"pp=2 tp=2 micro_batch=2 segments={runs}").groups
    found = group.stages.tied_embedding_seconds.item()
    assert found == pytest.approx(reduce(4 * TABLE / share, 2))


def test_boundary_tensors_of_runs_are_as_wide_as_their_layers_hand_on():
    """Two buffers of 150 bytes for each of three and two micro-batches on the ranks in the middle,
    between 50 and 150, and between 150 and 70 bytes."""
    layers = tuple(layer(boundary=size) for size in (50, 150, 70, 500))
    question = unit_task(4, 8, layers, boundary_buffers=2.0)
    found = by_stage(costs_of(question, "pp=4 segments=1|1|1|1"))["buffers"]
    assert found[1:3].tolist() == [3 * 2 * 150, 2 * 2 * 150]
