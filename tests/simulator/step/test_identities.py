"""Identities of the cost model: what must hold for every plan, model and machine."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from not_empty import not_empty

from plan3d.search.space.space import Space
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.precision import RECIPES, Precision
from plan3d.simulator.hardware.profile_file import profile_names
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.layers.cost_columns import Cost
from plan3d.simulator.layers.layer_costs import layer_costs
from plan3d.simulator.layers.layer_kinds import layer_kinds
from plan3d.simulator.operators import collectives, kernel_times, layer_work
from plan3d.simulator.operators.collectives import place_group, wire_bytes
from plan3d.simulator.operators.model_flops import model_flops_per_token
from plan3d.simulator.operators.work import Strategy
from plan3d.simulator.pipeline import stage_placement
from plan3d.simulator.pipeline.schedule import Sizes
from plan3d.simulator.pipeline.schedules import in_flight, schedule_code
from plan3d.simulator.plan.field_values import Recompute
from plan3d.simulator.plan.fields import AXES
from plan3d.simulator.plan.plan import Plan, concat, resolve
from plan3d.simulator.step import memory
from plan3d.simulator.step.evaluate import Skeletons, by_stage, evaluate, simulate
from plan3d.simulator.step.plan_groups import PARTS
from plan3d.simulator.step.ranks import uniform_ranks
from plan3d.simulator.step.stages import combine_ranks
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model, padded_vocabulary

TASKS = {
    "gpt3-1.3b": ("a100-80gb-sxm", 8, 2048, 16),
    "llama-3.1-70b": ("h100-sxm", 64, 8192, 128),
    "mixtral-8x7b": ("h100-sxm", 32, 4096, 128),
    "deepseek-v3": ("h800-sxm", 512, 4096, 1024),
}
LONE_NORMS = replace(software_profile("megatron-core"), norm_in_linear=False)
"""A stack whose selective recompute reaches every model."""
BF16 = RECIPES[Precision.BF16]


@cache
def task(name):
    cluster, gpus, sequence, batch = TASKS[name]
    return Task(
        Model.preset(name), Cluster.profile(cluster, gpus=gpus), sequence=sequence,
        global_batch=batch, software=LONE_NORMS,
    )  # fmt: skip


@cache
def sample(name):
    """About 500 legal plans of every kind, in the order of the space."""
    question = task(name)
    experts = any(kind.experts for kind in question.model.kinds)
    choose = {
        "micro_batch": (1, 2, 4),
        "cp": (1, 2, 4),
        "etp": (1, 2) if experts else (1,),
        "zero": (0, 1, 2, 3),
        "overlap_grad_reduce": (0, 1),
        "overlap_param_gather": (0, 1),
        "overlap_p2p": (0, 1),
        "overlap_tp": (0, 1),
    }
    draw = np.random.default_rng(0)
    tables = []
    for plans in Space.of(question, choose).chunks(4096):
        rows = np.flatnonzero(draw.random(plans.rows) < (0.3 if plans.rows < 100 else 0.02))
        if rows.size:
            tables.append(plans.take(rows))
    plans = concat(tables)
    return plans.take(np.sort(draw.permutation(plans.rows)[:500]))


def columns(costs):
    """Every column that costs can give."""
    out = {"step": costs.step, "memory": costs.memory_total, "mfu": costs.mfu}
    out |= {f"seconds {k}": v for k, v in costs.seconds.items()}
    out |= {f"compute {k}": v for k, v in costs.compute_seconds.items()}
    out |= {f"bytes {k}": v for k, v in costs.memory.items()}
    return {k: np.atleast_1d(v) for k, v in out.items()}


@cache
def whole(name):
    """Those of the sample as one table."""
    return columns(simulate(task(name), sample(name)))


def assert_same(left, right):
    """Equal to one unit in the last place; of the whole for parts, which may be differences."""
    wholes = {"seconds": "step", "compute": "step", "bytes": "memory"}
    for name in left:
        whole = wholes.get(name.split()[0], name)
        unit = np.spacing(np.abs(np.atleast_1d(right[whole])))
        assert (np.abs(left[name] - right[name]) <= unit).all(), name


def chosen(seed, name, count=120):
    """Random rows of the sample."""
    plans = sample(name)
    return plans.take(np.random.default_rng(seed).integers(0, plans.rows, count))


def never_above(low, high, plans):
    """Fails, naming the first plan, where a value of `low` is above that of `high`."""
    wrong = np.flatnonzero(low > high * (1 + 1e-12))
    assert not wrong.size, f"{plans.take(wrong[0])}: {low[wrong[0]]} > {high[wrong[0]]}"


models = st.sampled_from(sorted(TASKS))
seeds = st.integers(0, 2**32)


# One row, a column, chunks and any order are the same function


@pytest.mark.parametrize("name", TASKS)
def test_one_row_at_a_time_equals_the_table(name):
    for i in not_empty(range(0, sample(name).rows, 31)):
        row = evaluate(task(name), sample(name).take(i))
        assert isinstance(row.step_seconds, float)
        assert_same({k: v[i : i + 1] for k, v in whole(name).items()}, columns(row))


@given(seed=seeds, name=models)
@settings(deadline=None, max_examples=10)
def test_chunked_and_shuffled_tables_equal_the_table(seed, name):
    plans, table = sample(name), whole(name)
    order = np.random.default_rng(seed).permutation(plans.rows)
    pieces = np.array_split(order, 1 + seed % 9)
    parts = [columns(simulate(task(name), plans.take(piece))) for piece in pieces]
    joined = {k: np.concatenate([part[k] for part in parts]) for k in table}
    assert_same({k: v[order] for k, v in table.items()}, joined)


@given(seed=seeds, name=models)
@settings(deadline=None, max_examples=10)
def test_plans_within_a_limit_cost_what_they_do_without_one(seed, name):
    """Others take infinitely long, but for the one that needs least, and all have their bytes."""
    table, share = whole(name), (seed % 21 - 1) / 20
    memory = table["memory"]
    limit = float(np.quantile(memory, share)) if share >= 0 else 0.0
    costs = simulate(task(name), sample(name), limit=limit)
    assert (costs.memory_total == memory).all()
    rows = np.flatnonzero(np.isfinite(costs.step))
    assert rows.size
    assert set(rows) == set(np.flatnonzero(memory <= max(limit, memory.min())))
    assert_same({k: v[rows] for k, v in table.items()}, columns(costs.take(rows)))


def test_mixed_precisions_and_optimizers_in_one_table_do_not_mix():
    question = task("llama-3.1-70b")
    plans = [
        Plan(tp=8, pp=4, precision=precision, optimizer=optimizer)
        for precision in ("bf16", "fp8", "fp32", "mixed")
        for optimizer in ("adam", "sgd")
    ]
    table = concat([resolve(plan, question.gpus) for plan in plans])
    together = columns(simulate(question, table))
    for i, plan in enumerate(plans):
        alone = columns(evaluate(question, plan))
        assert_same({k: v[i : i + 1] for k, v in together.items()}, alone)


# A plan of ones is one device


def test_plan_of_ones_is_one_device():
    cluster = Cluster.profile("h100-sxm", gpus=1)
    question = Task(Model.preset("gpt3-1.3b"), cluster, sequence=1024, global_batch=6)
    costs = evaluate(question, Plan(micro_batch=2))
    seconds = costs.seconds
    assert [k for k, v in seconds.items() if v] == ["compute", "launch", "optimizer"]
    one = strategy(micro_batch=2)
    model, software = question.model, question.software
    share = kernel_times.sustained_share(software, cluster.accelerator, 1)
    gemms, cores, moved = 0.0, 0.0, np.zeros(1)
    (block,) = model.kinds
    head = layer_work.head_work(model.hidden, np.array([50304.0]), one, 1024)
    bottom = layer_work.embedding_work(model.hidden, one, 1024)
    body = layer_work.block_work(block, model.hidden, one, 1024, ())
    for work, times in ((body, model.layers), (head, 1), (bottom, 1)):
        moved += times * kernel_times.memory_bound_seconds(
            work.moved_bytes, cluster.accelerator, work.kernels
        )
        if work.gemms:
            each = kernel_times.gemm_seconds(work.gemms, 1, cluster.accelerator, BF16, share)
            gemms += times * each.sum()
        if work.attention:
            core = kernel_times.attention_seconds(
                work.attention, cluster.accelerator, BF16, software
            )
            cores += times * (core[0] + core[1])[0]
    expected = {
        "matmul": 3 * gemms * (2 + 1 / software.wgrad_rate),
        "attention": 3 * cores,
        "memory_bound": 3 * moved[0] * (1 + software.backward_bytes_ratio),
        "recompute": 0.0,
    }
    assert costs.compute_seconds == pytest.approx(expected, rel=1e-12)
    assert costs.memory["weights"] == 2 * held(model, 1, 1)


def without_kernel_latency(question):
    """The same question where memory-bound kernels take no time to start."""
    gpu = question.cluster.accelerator
    gpu = replace(gpu, memory_bound=replace(gpu.memory_bound, latency=0.0))
    return replace(question, cluster=replace(question.cluster, accelerator=gpu))


def test_fp32_moves_twice_the_bytes():
    question = without_kernel_latency(task("llama-3.1-70b"))
    plan = Plan(tp=8, pp=2)
    half, full = (evaluate(question, replace(plan, precision=p)) for p in ("bf16", "fp32"))
    moved = [costs.compute_seconds["memory_bound"] for costs in (half, full)]
    assert moved[1] == pytest.approx(2 * moved[0], rel=1e-12)


# Parameters and bytes over all ranks are those of the model


def held(model, tp, pp):
    """Parameters on all ranks of one copy of the model, replication counted by name."""
    parts, h = model.parameters_by_component, model.hidden
    down, repeated = 0, 0
    for kind in model.order:
        attn = model.kinds[kind].attention
        if attn.kv_rank:
            down += h * (attn.q_rank + attn.kv_rank + attn.rope_dim)
        else:
            copies = max(tp - attn.kv_heads, 0)
            repeated += copies * (attn.head_dim + attn.value_dim) * h
    tables = 1 if model.tied and pp == 1 else 2
    vocabulary = padded_vocabulary(model.vocabulary, 128 * tp)
    table = vocabulary * (h * tables + model.head_bias)
    whole = parts["norms"] + parts["router"] + parts["positions"] + down
    split = model.parameters - parts["embedding"] - parts["head"] - whole
    total = table + split + repeated + tp * whole
    if model.mtp_layers:
        block = model.kinds[model.order[-1]]
        counts = block.parameters(h, model.norm_width)
        attn = block.attention
        own = counts["norms"] + counts["router"] + 3 * model.norm_width
        own += h * (attn.q_rank + attn.kv_rank + attn.rope_dim)
        sliced = counts.total() + 3 * model.norm_width - own + 2 * h * h
        total += sliced + tp * own + (pp > 1) * vocabulary * h
    return total


def every_rank(question, plan):
    table = resolve(plan, question.gpus).table()
    _, _, costs, which, place = Skeletons.of(question, BF16, table, stage_placement.every_rank)
    return combine_ranks(question, BF16, table, uniform_ranks(question, table, costs, which, place))


@pytest.mark.parametrize("name", ["gpt3-1.3b", "llama-3.1-70b", "mixtral-8x7b", "deepseek-v3"])
@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("pp", [1, 2, 4])
@pytest.mark.parametrize(("ep", "etp"), [(1, 1), (2, 1), (4, 2)])
def test_parameters_over_all_ranks_are_those_of_the_model(name, tp, pp, ep, etp):
    model = Model.preset(name)
    if (ep * etp > 1) > any(kind.experts for kind in model.kinds):
        pytest.skip("a dense model")
    cluster = Cluster.profile("h100-sxm", gpus=tp * pp * 8)
    question = Task(model, cluster, sequence=2048, global_batch=8 * pp)
    ranks = every_rank(question, Plan(tp=tp, pp=pp, ep=ep, etp=etp))
    total = ranks.weights.dense.sum() * tp + ranks.weights.expert.sum() * ep * etp
    assert total == pytest.approx(held(model, tp, pp), rel=1e-12)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_bytes_over_all_shards_are_those_of_one_copy(name, zero):
    question = task(name)
    experts = any(kind.experts for kind in question.model.kinds)
    # In a pipeline ZeRO 2 keeps whole gradients between micro-batches, as ZeRO 1 does.
    pp = 1 if zero == 2 else 2
    plan = Plan(tp=2, pp=pp, zero=zero, ep=4 if experts else 1)
    costs = evaluate(question, plan)
    per_rank = by_stage(costs)
    ranks = question.gpus // pp
    copy = held(question.model, 2, pp)
    sizes = {"optimizer": 12, "gradients": 4, "weights": 2}
    for part, size in not_empty([*sizes.items()][:zero]):
        assert per_rank[part].sum() * ranks == pytest.approx(copy * size, rel=1e-12)


# Floating-point operations over all ranks are those of the model


def strategy(**values):
    return Strategy.of(**values)


def flops(gemms):
    return sum(float(np.sum(2 * g.m * g.n * g.k * g.batch)) for g in gemms)


def forward_flops(model, sequence, s):
    """GEMM and full-window attention FLOPs forward of one rank and micro-batch."""
    total = flops(layer_work.head_work(model.hidden, float(model.vocabulary), s, sequence).gemms)
    for kind in model.order:
        work = layer_work.block_work(model.kinds[kind], model.hidden, s, sequence, ())
        total += flops(work.gemms)
        window = min(model.kinds[kind].attention.window or sequence, sequence)
        total += float(2 * work.attention.rows[0] * work.attention.width * window)
    return total


@pytest.mark.parametrize("name", ["llama-3.1-70b", "mixtral-8x7b", "deepseek-v3", "llama-7b"])
@pytest.mark.parametrize(
    "split",
    [{}, {"tp": 2}, {"tp": 8}, {"cp": 4}, {"tp": 4, "cp": 2}]
    + [{"tp": 4, "ep": 8, "etp": e} for e in (1, 2, 4)],
)
def test_flops_over_all_ranks_are_those_of_the_model(name, split):
    model = replace(Model.preset(name), mtp_layers=0)
    experts = any(kind.experts for kind in model.kinds)
    if not experts and "ep" in split:
        pytest.skip("a dense model")
    s = strategy(sequence_parallel=split.get("tp", 1) > 1, micro_batch=2, **split)
    total = forward_flops(model, 4096, s) * split.get("tp", 1) * split.get("cp", 1)
    expected = model_flops_per_token(model, 4096) / 3 * 2 * 4096
    assert total == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", TASKS)
def test_backward_runs_every_gemm_twice(name):
    question = replace(task(name), software=replace(task(name).software, wgrad_rate=1.0))
    model, s = question.model, strategy(tp=2, sequence_parallel=1)
    share = kernel_times.sustained_share(
        question.software, question.cluster.accelerator, question.gpus
    )
    costs = layer_costs(question, BF16, s)
    kinds = enumerate(layer_kinds(model))
    for i, kind in not_empty((i, k) for i, k in kinds if k.block and "mtp" not in k.name):
        work = layer_work.block_work(kind.block, model.hidden, s, question.sequence, ())
        machine = question.cluster.accelerator
        forward = kernel_times.gemm_seconds(work.gemms, 1, machine, BF16, share).sum()
        assert costs.table[0, i, Cost.MATMUL] == pytest.approx(3 * forward, rel=1e-12)


# Collectives

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
profiles = st.sampled_from(profile_names())
sizes = st.floats(0, 1e11)
powers = st.integers(0, 10).map(lambda i: 2**i)


def took(operation, size, ranks, stride, cluster):
    """Seconds of one collective as a plain number."""
    group = place_group(np.array([float(ranks)]), np.array([float(stride)]), cluster)
    return float(getattr(collectives, operation)(np.array([float(size)]), group, cluster)[0])


@given(size=sizes, ranks=st.integers(1, 4096))
def test_all_reduce_moves_what_reduce_scatter_and_all_gather_move(size, ranks):
    two = wire_bytes("reduce_scatter", size, ranks) + wire_bytes("all_gather", size, ranks)
    assert wire_bytes("all_reduce", size, ranks) == pytest.approx(two, rel=1e-15)


@given(profile=profiles, operation=st.sampled_from(OPERATIONS), size=sizes, stride=powers)
def test_one_rank_communicates_nothing(profile, operation, size, stride):
    assert took(operation, size, 1, stride, Cluster.profile(profile, gpus=2048)) == 0.0
    assert wire_bytes(operation, size, 1) == 0


@given(profile=profiles, operation=st.sampled_from(OPERATIONS), ranks=powers, stride=powers,
       small=sizes, large=sizes)  # fmt: skip
def test_time_never_falls_when_bytes_grow(profile, operation, ranks, stride, small, large):
    cluster = Cluster.profile(profile, gpus=2**20)
    times = [took(operation, s, ranks, stride, cluster) for s in sorted((small, large))]
    assert times[0] <= times[1]


@given(profile=profiles, small=sizes, large=sizes, crosses=st.booleans())
def test_send_never_falls_when_bytes_grow(profile, small, large, crosses):
    cluster = Cluster.profile(profile, gpus=16)
    times = [float(collectives.send(s, crosses, cluster)) for s in sorted((small, large))]
    assert 0 < times[0] <= times[1]


@given(profile=profiles, operation=st.sampled_from(OPERATIONS), size=sizes, stride=powers)
def test_time_never_falls_when_a_group_grows_in_its_domain(profile, operation, size, stride):
    # The switch (NVLS) takes over above NVLS_RANKS and may be faster there: two branches.
    # Groups whose length does not divide the domain straddle two, unless there is only one.
    cluster = Cluster.profile(profile, gpus=2048)
    cluster = replace(cluster, gpus=cluster.fast_domain.gpus)
    n = [r for r in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64) if r * stride <= cluster.fast_domain.gpus]
    ring = [
        r for r in n if r <= collectives.NVLS_RANKS or not cluster.fast_domain.switch_all_reduce
    ]
    for ranks in (ring, [r for r in n if r > collectives.NVLS_RANKS]):
        times = [took(operation, size, r, stride, cluster) for r in ranks]
        assert times == sorted(times)


@given(profile=profiles, operation=st.sampled_from(OPERATIONS), size=sizes, ranks=powers,
       stride=powers, factor=st.floats(1, 16))  # fmt: skip
def test_more_bandwidth_is_never_slower(profile, operation, size, ranks, stride, factor):
    base = Cluster.profile(profile, gpus=2**20)
    wider = (
        {"inter_node_bandwidth": base.network.bandwidth * factor},
        {"intra_node_bandwidth": base.fast_domain.bandwidth * factor},
    )
    time = took(operation, size, ranks, stride, base)
    for change in wider:
        fast = Cluster.profile(profile, gpus=2**20, **change)
        assert took(operation, size, ranks, stride, fast) <= time * (1 + 1e-12)


@given(profile=profiles, operation=st.sampled_from(OPERATIONS), size=sizes)
def test_one_node_is_cheaper_than_eight(profile, operation, size):
    """Where the links of a node are faster than its adapters: cards on PCIe may have one each."""
    cluster = Cluster.profile(profile, gpus=2048)
    assume(cluster.fast_domain.bandwidth > 1.5 * cluster.network.bandwidth)
    domain = cluster.fast_domain.gpus
    inside = took(operation, size, min(8, domain), 1, cluster)
    assert inside < took(operation, size, min(8, domain), domain, cluster)


@given(profile=profiles, size=st.floats(1e6, 1e11))
def test_no_collective_beats_the_nic(profile, size):
    """One rank a domain: whatever leaves or enters it goes through one NIC share."""
    cluster = Cluster.profile(profile, gpus=2048)
    for operation in OPERATIONS:
        for ranks in (2, 4, 16):
            sent = float(wire_bytes(operation, size, ranks))
            time = took(operation, size, ranks, cluster.fast_domain.gpus, cluster)
            assert time >= sent / cluster.network.bandwidth


# Parts add up; overlap and faster hardware help


@given(seed=seeds, name=models)
def test_parts_add_up(seed, name):
    costs = simulate(task(name), chosen(seed, name))
    assert tuple(costs.seconds) == PARTS
    assert sum(costs.seconds.values()) == pytest.approx(costs.step_seconds, rel=1e-12)
    assert sum(costs.memory.values()) == pytest.approx(costs.memory_bytes, rel=1e-12)
    compute = sum(costs.compute_seconds.values())
    assert compute == pytest.approx(costs.seconds["compute"], rel=1e-12)
    for title, part in (costs.seconds | costs.memory).items():
        assert (part >= 0).all(), title


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize(
    "schedule", ["1f1b", "chimera", "dualpipe", "dualpipe-v", "zb-h1", "zb-h2", "zb-v"]
)
def test_the_rank_that_is_named_holds_most(schedule, recompute):
    """Of a class of ranks with as many layers an inner one may keep more than the first."""
    chunks = 2 if schedule.endswith("-v") else 1
    plan = f"pp=8 schedule={schedule} virtual_stages={chunks} zero=0 recompute={recompute}"
    for layers in (32, 64):
        model = replace(Model.preset("llama-7b"), order=(0,) * layers)
        cluster = Cluster.profile("h100-sxm", gpus=8)
        question = Task(model, cluster, sequence=2048, global_batch=64, software=LONE_NORMS)
        costs = evaluate(question, Plan.parse(plan))
        total = by_stage(costs)["total"]
        assert total[costs.worst_rank] == pytest.approx(total.max(), rel=1e-12)
        assert costs.memory_bytes == pytest.approx(total.max(), rel=1e-12)


@given(seed=seeds, name=models)
def test_worst_rank_is_the_largest_of_all_ranks(seed, name):
    costs = simulate(task(name), chosen(seed, name, 2))
    for i, plan in not_empty(enumerate(costs.plans)):
        stage = by_stage(simulate(task(name), plan.table()))
        assert stage["total"].size == plan.pp
        assert stage["total"].max() == pytest.approx(costs.memory_bytes[i], rel=1e-12)
        assert stage["total"][costs.worst_rank[i]] == pytest.approx(stage["total"].max())
        for part in memory.PARTS:
            assert stage[part][costs.worst_rank[i]] == pytest.approx(costs.memory[part][i])


def changed(plans, **values):
    """The same table with whole columns replaced."""
    full = {k: np.full(plans.rows, v, np.int64) for k, v in values.items()}
    return replace(plans, **full)


OVERLAPS = {
    "overlap_grad_reduce": {},
    "overlap_param_gather": {},
    "overlap_p2p": {},
    "overlap_tp": {"sequence_parallel": 1},
}


@given(seed=seeds, name=models, flag=st.sampled_from(sorted(OVERLAPS)))
def test_overlap_is_never_slower_without_contention(seed, name, flag):
    plans = changed(chosen(seed, name), **OVERLAPS[flag])
    quiet = replace(task(name).software, contention=0.0, fsdp_contention=0.0)
    question = replace(task(name), software=quiet)
    on, off = (simulate(question, changed(plans, **{flag: v})) for v in (1, 0))
    never_above(on.step, off.step, plans)
    np.testing.assert_array_equal(on.memory_total, off.memory_total)


def faster(question, what, factor):
    base = question.cluster
    if what == "peak":
        peak = {k: v * factor for k, v in base.accelerator.peak.items()}
        return replace(base, accelerator=replace(base.accelerator, peak=peak))
    if what == "memory_bandwidth":
        rate = base.accelerator.memory_bandwidth * factor
        return replace(base, accelerator=replace(base.accelerator, memory_bandwidth=rate))
    link = base.network if what == "inter_node_bandwidth" else base.fast_domain
    return Cluster.profile(base.name, gpus=base.gpus, **{what: link.bandwidth * factor})


@pytest.mark.parametrize(
    "what", ["peak", "memory_bandwidth", "inter_node_bandwidth", "intra_node_bandwidth"]
)
@given(seed=seeds, name=models, factor=st.floats(1, 10))
def test_faster_hardware_is_never_slower(what, seed, name, factor):
    question, plans = task(name), chosen(seed, name)
    better = replace(question, cluster=faster(question, what, factor))
    before, after = simulate(question, plans), simulate(better, plans)
    never_above(after.step, before.step, plans)


@pytest.mark.parametrize("name", ["gpt3-1.3b", "mixtral-8x7b"])
def test_one_node_does_not_use_the_network(name):
    cluster = Cluster.profile("h100-sxm", gpus=8)
    slow = Cluster.profile("h100-sxm", gpus=8, inter_node_bandwidth=1e6, network_latency=1.0)
    question = Task(Model.preset(name), cluster, sequence=2048, global_batch=16)
    plans = next(Space.of(question, {"micro_batch": (1,)}).chunks(10**6))
    before = simulate(question, plans)
    after = simulate(replace(question, cluster=slow), plans)
    never_above(after.step, before.step, plans)


@given(seed=seeds, name=models)
def test_time_and_memory_grow_with_tokens(seed, name):
    question, plans = task(name), chosen(seed, name)
    half = replace(question, sequence=question.sequence // 2)
    more = replace(question, global_batch=question.global_batch * 2)
    wider = replace(plans, micro_batch=plans.micro_batch * 2)
    base = simulate(question, plans)
    for fewer, bigger in (
        (simulate(half, plans), base),
        (base, simulate(more, wider)),
        (base, simulate(more, plans)),
    ):
        never_above(fewer.step * (1 + 1e-9), bigger.step, plans)
        never_above(fewer.memory_total, bigger.memory_total, plans)


# Memory


def larger(question, factor):
    """The question on more GPUs with as many micro-batches a rank."""
    cluster = replace(question.cluster, gpus=question.gpus * factor)
    return replace(question, cluster=cluster, global_batch=question.global_batch * factor)


@given(seed=seeds, name=models, factor=st.sampled_from((2, 4, 16)))
def test_memory_against_data_ranks(seed, name, factor):
    question, plans = task(name), chosen(seed, name)
    wide = replace(plans, dp=plans.dp * factor)
    before, after = simulate(question, plans), simulate(larger(question, factor), wide)
    alone = plans.dp * plans.cp == 1
    assume(not alone.all())
    plain = (plans.zero == 0) & ~alone
    # Buffers of NCCL follow how many nodes a group spans.
    kept = [(c.memory_total - c.memory["reserve"])[plain] for c in (after, before)]
    np.testing.assert_allclose(*kept, rtol=1e-12)
    sharded = plans.zero > 0
    left, right = after.memory_total[sharded], before.memory_total[sharded]
    never_above(left, right, plans.take(sharded))


@given(seed=seeds, name=models)
def test_states_shrink_with_the_zero_stage(seed, name):
    for row in not_empty(chosen(seed, name, 1)):
        before = np.inf
        for stage in range(4):
            ranks = by_stage(simulate(task(name), replace(row, zero=stage).table()))
            states = ranks["weights"] + ranks["gradients"] + ranks["optimizer"]
            assert (states <= before * (1 + 1e-12)).all()
            before = states


@given(seed=seeds, name=models)
def test_recompute_keeps_fewer_activations(seed, name):
    for row in not_empty(chosen(seed, name, 1)):
        full, some, none = (
            by_stage(simulate(task(name), replace(row, recompute=mode).table()))["activations"]
            for mode in (Recompute.FULL, Recompute.SELECTIVE, Recompute.NONE)
        )
        assert (full <= some).all()
        assert (some <= none).all()
        assert full.sum() < none.sum()


@given(seed=seeds, name=models)
def test_memory_grows_with_micro_batches_up_to_the_cap(seed, name):
    plans = chosen(seed, name)
    plans = plans.take(np.flatnonzero(plans.virtual_stages == 1))
    assume(plans.rows)
    # Those that a batch gives as many micro-batches.
    width = plans.dp * plans.micro_batch
    plans = plans.take(np.flatnonzero(width == width[0]))
    totals = [
        simulate(replace(task(name), global_batch=int(m * width[0])), plans).memory_total
        for m in (1, 2, 4, 8, 64, 128)
    ]
    for fewer, more in pairwise(totals):
        assert (fewer <= more).all()
    capped = plans.pp <= 64
    np.testing.assert_array_equal(totals[-1][capped], totals[-2][capped])


@pytest.mark.parametrize("name", TASKS)
def test_no_pipeline_no_bubble(name):
    plans = sample(name)
    seconds = simulate(task(name), plans).seconds
    alone = plans.pp == 1
    assert alone.any()
    assert (seconds["bubble"][alone] == 0).all()
    assert (seconds["pipeline_comm"][alone] == 0).all()
    assert (seconds["bubble"][~alone] > 0).all()


@given(p=st.integers(1, 64), m=st.integers(1, 256))
def test_one_f_one_b_keeps_the_stages_below(p, m):
    rank = np.arange(p, dtype=float)
    same = Sizes(*(np.full(p, float(x)) for x in (p, 1, p, m)))
    kept = in_flight(np.full(p, schedule_code("1f1b")), same, rank)
    assert kept.tolist() == [min(m, p - r) for r in range(p)]


def test_sample_has_every_kind_of_plan():
    for name in TASKS:
        plans = sample(name)
        for axis in AXES:
            values = set(getattr(plans, axis).tolist())
            assert values, axis
        assert set(plans.zero.tolist()) == {0, 1, 2, 3}
        assert set(plans.recompute.tolist()) == {0, 1, 2}
        assert max(plans.virtual_stages) > 1
        assert max(plans.tp) > 1
