"""The closed form of a step is the event simulation's, and a faster machine is never slower."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan3d import Cluster, Model, Plan, Task, evaluate
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import CollectiveTime
from plan3d.simulator.pipeline.schedules import SCHEDULES
from plan3d.simulator.step.plan_timeline import timeline_of

LIMIT = 0.02
MODELS = {
    "llama-3.1-8b": Model.preset("llama-3.1-8b"),
    "gpt3-175b": Model.preset("gpt3-175b"),
}
NAMES = [schedule.name for schedule in SCHEDULES.rows]


def task(model: str, ranks: int, micro_batches: int) -> Task:
    cluster = Cluster.profile("h100-sxm", 2 * ranks)
    return Task(MODELS[model], cluster, sequence=2048, global_batch=2 * micro_batches)


@pytest.mark.parametrize("schedule", NAMES)
def test_the_closed_form_is_the_event_simulation(schedule: str) -> None:
    """Vocabularies that make the last stage longer by up to two thirds, sends overlapped or not."""
    timed = 0
    for model in MODELS:
        for pp, tp, virtual in ((4, 1, 1), (8, 8, 1), (4, 8, 2), (8, 1, 2), (8, 8, 4)):
            for rounds, overlap in ((1, 0), (2, 1), (4, 0)):
                how = {"virtual_stages": virtual, "schedule": schedule, "overlap_p2p": overlap}
                try:
                    plan = Plan(tp=tp, pp=pp, zero=1, **how)
                    x = timeline_of(task(model, tp * pp, rounds * pp), plan)
                except InputError:
                    continue
                timed += 1
                assert x.closed_form == pytest.approx(x.step_seconds, rel=LIMIT), plan
    assert timed >= 4


def faster(cluster: Cluster, factors: tuple[float, float, float, float]) -> Cluster:
    """Arithmetic, memory, fast links and network faster by these factors."""
    peak, memory, links, network = factors
    gpu, fast = cluster.accelerator, cluster.fast_domain
    times = {
        name: replace(time, bandwidth=links * time.bandwidth)
        for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
        if isinstance(time := getattr(fast, name), CollectiveTime)
    }
    return replace(
        cluster,
        accelerator=replace(
            gpu,
            peak={name: peak * rate for name, rate in gpu.peak.items()},
            memory_bandwidth=memory * gpu.memory_bandwidth,
        ),
        fast_domain=replace(fast, **times),
        network=replace(cluster.network, bandwidth=network * cluster.network.bandwidth),
    )


factor = st.sampled_from([1.0, 1.1, 2.0, 10.0])


@given(
    schedule=st.sampled_from(NAMES),
    model=st.sampled_from(sorted(MODELS)),
    shape=st.tuples(st.sampled_from([2, 4, 8]), st.sampled_from([1, 8]), st.sampled_from([1, 2])),
    rounds=st.integers(1, 4),
    zero=st.integers(0, 3),
    factors=st.tuples(factor, factor, factor, factor),
)
def test_a_faster_machine_is_never_slower(schedule, model, shape, rounds, zero, factors):  # type: ignore[no-untyped-def]
    pp, tp, virtual = shape
    question = task(model, tp * pp, rounds * pp)
    try:
        plan = Plan(tp=tp, pp=pp, zero=zero, virtual_stages=virtual, schedule=schedule)
        now = evaluate(question, plan).step_seconds
    except InputError:
        return
    then = evaluate(replace(question, cluster=faster(question.cluster, factors)), plan).step_seconds
    assert then <= now * (1 + 1e-9)


def reduced_in_turn(
    seconds: float, backward: float, blocks: float, chunks: int, turn: int, waiting: float
) -> float:
    """Seconds by which reducing a rank's gradients outlasts its backward passes, chunk by chunk: a
    chunk's are reduced from its last pass on, which ends `turn` passes of blocks and the seconds
    for which sends are waited for before the next chunk's, and after those of the chunks before."""
    end, done = backward / chunks, float("-inf")
    for later in reversed(range(chunks)):
        start = -end - later * (turn * blocks / chunks + waiting)
        done = max(done, start) + seconds / chunks
    return max(done, 0.0)


@pytest.mark.parametrize("schedule", ["interleaved", "breadth-first"])
@pytest.mark.parametrize("gbps", [2, 20, 100, 400])
@pytest.mark.parametrize(("chunks", "micro_batches"), [(1, 8), (2, 8), (6, 8), (6, 32)])
def test_chunks_are_reduced_while_others_run(
    schedule: str, gbps: int, chunks: int, micro_batches: int
) -> None:
    """Megatron-Core starts to reduce a chunk's gradients when its last micro-batch is through."""
    if chunks == 1:
        schedule = "1f1b"
    cluster = Cluster.profile("a100-80gb-sxm", 128, inter_node_bandwidth=gbps / 8 * 1e9)
    # Bytes alone, cut finely, and nothing slows down what it hides behind: what is left is order.
    network = replace(cluster.network, latency=0.0, latency_per_node=0.0, root=0.0)
    cluster = replace(cluster, network=network)
    asked = Task(MODELS["gpt3-175b"], cluster, sequence=2048, global_batch=2 * micro_batches)
    stack = replace(asked.software, contention=0.0, bucket_parameters=1e5)
    stack = replace(stack, bucket_parameters_per_rank=0.0)
    asked = replace(asked, software=stack)
    how = {"tp": 8, "pp": 8, "virtual_stages": chunks, "schedule": schedule, "overlap_p2p": 0}
    group = evaluate(asked, Plan(**how, zero=0)).groups[0]
    alone, overlapped = (
        group.tables.sync[0, :, 0, 0] - group.stages.tied_embedding_seconds
    ).tolist()
    turn = micro_batches if schedule == "breadth-first" else 8
    backward = blocks = float(group.stages.backward[0, 0])
    if group.stages.end_seconds is not None:
        blocks -= float(group.stages.end_seconds[1, 0, 0])
    waiting = 8 * float(group.stages.hop_seconds[0]) * (turn == 8)
    shown = reduced_in_turn(alone, backward, blocks, chunks, turn, waiting)
    assert overlapped == pytest.approx(shown, rel=0.002, abs=1e-4)
