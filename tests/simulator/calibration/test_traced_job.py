"""Traces of our own event simulation, written and read back, give every part and the straggler."""

import json
from dataclasses import replace

import numpy as np
import pytest

from plan3d import Cluster, Model, Plan, Task
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.calibration.traces.breakdown import KernelUse
from plan3d.simulator.calibration.traces.comparison import compare, product_flops, sizes_of
from plan3d.simulator.calibration.traces.events import Collective
from plan3d.simulator.calibration.traces.groups import Sizes, axis_of
from plan3d.simulator.calibration.traces.job import traced_job
from plan3d.simulator.calibration.traces.reader import Kernel, read_trace, read_traces
from plan3d.simulator.pipeline.event_simulation import simulate
from plan3d.simulator.reporting.trace import replica_traces, trace
from plan3d.simulator.step.plan_timeline import timeline_of

OFFLOAD = "pp=2 zero=2 offload_activations=100 offload_optimizer=100"
PLANS = {
    "pp=4 tp=2 recompute=full": {},
    "pp=1 tp=2": {},
    "pp=4 tp=2 schedule=zb-h1": {},
    "pp=4 tp=4 virtual_stages=2": {},
    "pp=2 cp=2 tp=2": {},
    "pp=2 cp=2 tp=4 cp_comm=p2p overlap_tp=1 sequence_parallel=1": {},
    "pp=4 ep=4 tp=2": {"model": "mixtral-8x7b"},
    "pp=2 tp=2 virtual_stages=2 ep=8 overlap_ep=1": {"model": "mixtral-8x7b"},
    "pp=4 ep=4 tp=2 schedule=dualpipe": {"model": "mixtral-8x7b"},
    OFFLOAD: {},
}


def question(model="llama-7b", gpus=32):
    cluster = Cluster.profile("h100-sxm", gpus=gpus)
    return Task(Model.preset(model), cluster, sequence=2048, global_batch=48)


def written(path, document):
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("plan", PLANS)
def test_every_part_is_read_back(plan, tmp_path):
    """Of the cost model within 1 %; of the pipeline what the events leave."""
    x = timeline_of(question(**PLANS[plan]), Plan.parse(plan))
    traces = read_trace(written(tmp_path / "t.json", trace(x)))
    job = traced_job(traces, sizes_of(x.costs))
    assert job.wall == pytest.approx(x.step_seconds)
    assert job.classified == 1
    assert job.stages == list(range(len(traces)))
    found = compare(x.costs, job)
    assert sum(row.measured for row in found.rows) == pytest.approx(job.wall, rel=0.01)
    rows = {row.name: row for row in found.rows}
    pipeline = rows.pop("pipeline", None)
    for row in rows.values():
        assert row.measured == pytest.approx(row.predicted, rel=0.01), row.name
    rest = x.step_seconds - sum(row.predicted for row in rows.values())
    assert rest == pytest.approx(pipeline.measured if pipeline else 0, abs=0.01 * job.wall)


def test_what_runs_again_is_of_the_kernels_where_nothing_tells_it_apart(tmp_path):
    x = timeline_of(question(), Plan.parse("pp=4 tp=2 recompute=full"))
    document = trace(x)
    marks = [e for e in document["traceEvents"] if e["name"].endswith("CheckpointFunctionBackward")]
    assert marks
    document["traceEvents"] = [e for e in document["traceEvents"] if e not in marks]
    job = traced_job(read_trace(written(tmp_path / "t.json", document)), sizes_of(x.costs))
    found = compare(x.costs, job)
    rows = {row.name: row for row in found.rows}
    assert not {"matmul", "attention", "memory_bound", "recompute"} & set(rows)
    assert rows["kernels"].measured == pytest.approx(rows["kernels"].predicted, rel=0.01)
    assert found.kernels(rows["kernels"])[0].part == "matmul"


def slowed(x, stage, factor):
    """The timeline of a replica whose stage computes slower."""
    factors = np.ones(x.times.forward.size)
    factors[stage] = factor
    names = ("forward", "input_gradient", "weight_gradient")
    times = replace(x.times, **{name: getattr(x.times, name) * factors for name in names})
    parts = x.part_seconds * factors
    return replace(x, times=times, part_seconds=parts, timeline=simulate(x.timeline.graph, times))


@pytest.mark.parametrize("seed", range(9))
def test_the_straggler_is_named(seed, tmp_path):
    """One rank of one replica computes some per cent slower; the others wait for it."""
    draw = np.random.default_rng(seed)
    pp, dp, factor = [1, 2, 4][seed % 3], int(draw.integers(2, 5)), draw.uniform(1.03, 1.3)
    gpus = pp * dp
    plan = f"pp={pp} dp={dp} overlap_grad_reduce=0 overlap_param_gather=0"
    x = timeline_of(question(gpus=gpus), Plan.parse(plan))
    slow, stage = int(draw.integers(dp)), int(draw.integers(pp))
    replicas = [slowed(x, stage, factor) if i == slow else x for i in range(dp)]
    for i, document in enumerate(replica_traces(replicas)):
        written(tmp_path / f"rank{i}.json", document)
    job = traced_job(read_traces([str(tmp_path)]), sizes_of(x.costs))
    assert len(job.ranks) == gpus
    assert job.straggler is not None
    assert job.straggler.rank == stage * dp + slow
    assert job.straggler.stage == stage
    assert job.straggler.share == pytest.approx(factor - 1, rel=0.15)
    assert job.straggler.cause == "matmul"
    found = compare(x.costs, job)
    rows = {row.name: row for row in found.rows}
    assert rows["data_comm"].measured == pytest.approx(rows["data_comm"].predicted, rel=0.01)
    assert rows["waits"].measured == job.waits["data_comm"] > 0
    assert sum(row.measured for row in found.rows) == pytest.approx(job.wall, rel=0.01)


def test_transfer_and_wait_are_told_apart(tmp_path):
    """Two replicas, one of which comes 30 ms late to a synchronisation of 20 ms."""

    def rank(number, start, work):
        about = {"Collective name": "allreduce", "Process Group Name": "5", "Group size": 2}
        events = [
            kernel("nvjet", 0, work),
            kernel("ncclDevKernel_AllReduce_Sum", start, 100_000 - start, 8, **about),
        ]
        head = {"distributedInfo": {"rank": number, "world_size": 2}}
        return written(tmp_path / f"{number}.json", {**head, "traceEvents": events})

    paths = [rank(0, 50_000, 50_000), rank(1, 80_000, 80_000)]
    job = traced_job(read_traces(map(str, paths)), Sizes(dp=2))
    assert job.seconds["data_comm"] == pytest.approx(0.035)
    assert job.waits["data_comm"] == pytest.approx(0.015)
    assert (job.straggler.rank, job.straggler.seconds) == (1, pytest.approx(0.03))
    alone = traced_job(read_traces([str(paths[0])]), Sizes(dp=2))
    assert (alone.is_lone_rank, alone.waits, alone.straggler) == (True, None, None)
    with pytest.raises(InputError, match="of a job of 2 ranks, the plan has 4"):
        traced_job(read_traces([str(paths[0])]), Sizes(dp=4))


def kernel(name, start, length, stream=7, **args):
    return {
        "ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": start,
        "dur": length, "args": args,
    }  # fmt: skip


FOLDED = Sizes(tp=4, cp=2, ep=8, dp=8, pp=2)


@pytest.mark.parametrize(
    ("name", "about", "sizes", "wanted"),
    [
        ("AllGather", {"description": "TENSOR_MODEL_PARALLEL_GROUP"}, FOLDED, "tensor_comm"),
        ("AllReduce", {"description": "DATA_PARALLEL_GROUP_WITH_CP"}, FOLDED, "data_comm"),
        ("AllToAll", {"description": "EXPERT_MODEL_PARALLEL_GROUP"}, FOLDED, "expert_comm"),
        ("AllGather", {"description": "EXPERT_DATA_PARALLEL_GROUP"}, FOLDED, "data_comm"),
        ("AllGather", {"description": "mesh_dp_shard_cp"}, FOLDED, "data_comm"),
        ("AllGather", {"description": "mesh_tp"}, FOLDED, "tensor_comm"),
        ("SendRecv", {"description": "mesh_pp"}, FOLDED, "pipeline_comm"),
        ("AllGather", {"group_size": 4}, FOLDED, "tensor_comm"),
        ("AllGather", {"group_size": 16}, FOLDED, "data_comm"),
        ("SendRecv", {}, FOLDED, "unassigned_comm"),
        ("SendRecv", {}, Sizes(pp=4, dp=2), "pipeline_comm"),
        ("AllReduce", {}, Sizes(pp=4, dp=2), "data_comm"),
        ("AllGather", {"group_size": 4}, Sizes(tp=4, dp=4), "unassigned_comm"),
        ("AllGather", {"group_size": 4, "ranks": (0, 1, 2, 3)}, Sizes(tp=4, dp=4), "tensor_comm"),
        ("AllGather", {"group_size": 4, "ranks": (0, 4, 8, 12)}, Sizes(tp=4, dp=4), "data_comm"),
    ],
)
def test_axes_of_collectives(name, about, sizes, wanted):
    one = Kernel(f"ncclDevKernel_{name}_RING", "kernel", Collective(**about))
    assert axis_of(one, sizes) == wanted


@pytest.mark.parametrize(
    ("operator", "shapes", "wanted"),
    [
        ("aten::mm", [[4, 8], [8, 16]], 2 * 4 * 8 * 16),
        ("aten::addmm", [[16], [4, 8], [8, 16]], 2 * 4 * 8 * 16),
        ("aten::bmm", [[3, 4, 8], [3, 8, 16]], 3 * 2 * 4 * 8 * 16),
        ("aten::linear", [[2, 4, 8], [16, 8], []], 2 * 2 * 4 * 8 * 16),
        ("aten::mm", [[4, 8], [9, 16]], None),
        ("aten::add", [[4, 8], [8, 16]], None),
        ("aten::mm", "", None),
    ],
)
def test_flops_of_products(operator, shapes, wanted):
    one = Kernel("gemm", "kernel", Collective(), str(shapes), operator)
    assert product_flops(KernelUse("matmul", one, 1, 1)) == wanted


def job_of(tmp_path, *ranks, sizes=None, world=None):
    """A job of ranks with these events each."""
    for number, events in enumerate(ranks):
        about = {"rank": number, "world_size": world or len(ranks)}
        written(tmp_path / f"{number}.json", {"distributedInfo": about, "traceEvents": events})
    return traced_job(read_traces([str(tmp_path)]), sizes)


def marks(*steps):
    """Steps as the GPU's annotations mark them."""
    return [
        {"ph": "X", "cat": "gpu_user_annotation", "name": f"ProfilerStep#{i}", "pid": 0, "tid": 7,
         "ts": start, "dur": length}
        for i, (start, length) in enumerate(steps)
    ]  # fmt: skip


def test_two_steps_halve_every_sum(tmp_path):
    """100 us each: of products 40 and 60, of two gathers 30 each, 10 of them beside products; what
    runs before the first step is of none."""
    gather = {"Collective name": "allgather", "Process Group Description": "mesh_dp"}
    events = [
        kernel("nvjet", 0, 90),
        *(kernel("nvjet", 100, 40), kernel("nvjet", 200, 60)),
        *(kernel("ncclDevKernel_AllGather_RING", at, 30, 8, **gather) for at in (130, 250)),
        *marks((100, 100), (200, 100)),
    ]
    job = job_of(tmp_path, events)
    assert (job.steps, job.wall) == (2, pytest.approx(100e-6))
    assert job.seconds["matmul"] == pytest.approx(50e-6)
    assert job.seconds["data_comm"] == pytest.approx(20e-6)
    (use,) = job.collectives
    assert (use.launches, use.seconds, use.exposed) == pytest.approx((1, 30e-6, 20e-6))
    assert [(use.part, use.launches) for use in job.kernels] == [("matmul", 1), ("data_comm", 1)]
    assert [use.seconds for use in job.kernels] == pytest.approx([50e-6, 30e-6])
    assert (job.gaps["unknown"], job.gaps["host"]) == pytest.approx((20e-6, 10e-6))


def test_ranks_that_are_done_wait_for_the_slowest(tmp_path):
    """Steps of 5 and 3 seconds of products: the mean waits one."""
    job = job_of(tmp_path, [kernel("nvjet", 0, 5e6)], [kernel("nvjet", 0, 3e6)])
    assert (job.wall, job.seconds["matmul"], job.gaps["unknown"]) == pytest.approx((5, 4, 1))
    assert (job.straggler.rank, job.straggler.cause) == (0, "matmul")
    assert (job.straggler.share, job.straggler.seconds) == pytest.approx((2 / 3, 2))
    found = compare(timeline_of(question(gpus=2), Plan.parse("dp=2")).costs, job)
    measured = {row.name: row.measured for row in found.rows if row.measured}
    assert measured == pytest.approx({"matmul": 4, "launch": 1})


@pytest.mark.parametrize(("longer", "named"), [(0.9, False), (1.1, True)])
def test_a_straggler_is_a_hundredth_of_a_step_behind(tmp_path, longer, named):
    ranks = [[kernel("nvjet", 0, 100)], [kernel("nvjet", 0, 100 + longer)]]
    assert bool(job_of(tmp_path, *ranks).straggler) is named


def test_the_worst_of_several_stragglers_is_named_by_what_takes_longer(tmp_path):
    """Two stages of two ranks: 10 us longer in products, 20 in norms, of which its products are
    shorter by 5."""
    norm = "vectorized_layer_norm_kernel"
    ranks = [
        [kernel("nvjet", 0, 100)],
        [kernel("nvjet", 0, 110)],
        [kernel("nvjet", 0, 80), kernel(norm, 80, 20)],
        [kernel("nvjet", 0, 75), kernel(norm, 75, 45)],
    ]
    straggler = job_of(tmp_path, *ranks, sizes=Sizes(dp=2, pp=2)).straggler
    assert (straggler.rank, straggler.stage, straggler.cause) == (3, 1, "memory_bound")
    assert (straggler.share, straggler.seconds) == pytest.approx((0.2, 20e-6))


def test_a_pipeline_waits_for_its_sends(tmp_path):
    """Two stages: a send of 10 us, for which the second waits 50; nothing runs for 5."""
    send = {"Process Group Description": "pp", "Process Group Ranks": "[0, 1]", "Group size": 2,
            "Collective name": "send", "In msg nelems": 7}  # fmt: skip
    ranks = [
        [kernel("nvjet", 0, 50), kernel("ncclDevKernel_SendRecv", 50, 10, 8, **send),
         kernel("nvjet", 65, 45)],
        [kernel("ncclDevKernel_SendRecv", 0, 60, 8, **send), kernel("nvjet", 60, 50)],
    ]  # fmt: skip
    job = job_of(tmp_path, *ranks, sizes=Sizes(pp=2))
    assert job.stages == [0, 1]
    assert job.waits["pipeline_comm"] == pytest.approx(25e-6)
    assert job.bubble == pytest.approx(27.5e-6)
    assert job.seconds["pipeline_comm"] == pytest.approx(35e-6)


def test_rates_by_elements_tell_sends_apart(tmp_path):
    """Sends of 10 us and of 40 us, of other sizes: nobody waits."""

    def sent(start, length, elements):
        about = {"Collective name": "send", "Process Group Description": "pp"}
        more = {"In msg nelems": elements, "Out msg nelems": 1}
        return kernel("ncclDevKernel_SendRecv", start, length, 8, **about, **more)

    ranks = [[sent(0, 10, 7), sent(20, 40, 70)], [sent(0, 10, 7), sent(20, 40, 70)]]
    job = job_of(tmp_path, *ranks, sizes=Sizes(pp=2))
    assert job.waits["pipeline_comm"] == pytest.approx(0)
