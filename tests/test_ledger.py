"""What the lectures claim beyond single numbers, which lectures/statements.csv has: identities,
orders and shapes, each test named after its row."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plan3d.search.layer_ilp import operator_graph
from plan3d.search.layer_ilp.block_partition import chain_of_products
from plan3d.search.layer_ilp.tensor_partition import partition
from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.simulator.analysis import closed_forms
from plan3d.simulator.analysis.traffic import traffic
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.precision import RECIPES, Optimizer, Precision
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.pipeline.event_simulation import simulate
from plan3d.simulator.plan.gossip_graphs import Topology
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.plan.synchronisation import Sync, SyncPolicy
from plan3d.simulator.reporting.why import loss_shares
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.step.evaluate import by_stage, evaluate
from plan3d.simulator.step.plan_timeline import timeline_of
from plan3d.simulator.task import Goal, Task
from plan3d.simulator.workload.model import Model

_SPEC = importlib.util.spec_from_file_location(
    "synchronisation", Path(__file__).parent / "benchmarks" / "synchronisation.py"
)
assert _SPEC is not None
assert _SPEC.loader is not None
synchronisation = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(synchronisation)

A100 = "a100-80gb-sxm"
A100_PEAK = 312e12
MEGATRON = {
    "megatron-1.7b": (1.7, 24, 2304, 24),
    "megatron-3.6b": (3.6, 32, 3072, 30),
    "megatron-7.5b": (7.5, 32, 4096, 36),
    "megatron-18.4b": (18.4, 48, 6144, 40),
    "megatron-39.1b": (39.1, 64, 8192, 48),
    "megatron-76.1b": (76.1, 80, 10240, 60),
    "megatron-145.6b": (145.6, 96, 12288, 80),
    "megatron-310.1b": (310.1, 128, 16384, 96),
    "megatron-529.6b": (529.6, 128, 20480, 105),
    "megatron-1008b": (1008.0, 160, 25600, 128),
}
# tp, pp, virtual stages, GPUs, batch, micro-batch, TFLOP/s a GPU: table 1 of Narayanan et al.
# 2021; micro-batch and virtual stages from the authors' launch scripts.
SC21 = {
    "megatron-1.7b": (1, 1, 1, 32, 512, 16, 137),
    "megatron-3.6b": (2, 1, 1, 64, 512, 16, 138),
    "megatron-7.5b": (4, 1, 1, 128, 512, 16, 142),
    "megatron-18.4b": (8, 1, 1, 256, 1024, 8, 135),
    "megatron-39.1b": (8, 2, 1, 512, 1536, 4, 138),
    "megatron-76.1b": (8, 4, 3, 1024, 1792, 2, 143.8e3 / 1024),
    "megatron-145.6b": (8, 8, 2, 1536, 2304, 2, 227.1e3 / 1536),
    "megatron-310.1b": (8, 16, 2, 1920, 2160, 1, 297.4e3 / 1920),
    "megatron-529.6b": (8, 35, 3, 2520, 2520, 1, 410.2e3 / 2520),
    "megatron-1008b": (8, 64, 1, 3072, 3072, 1, 502.0e3 / 3072),
}


def task(model: str, gpus: int, batch: int, **options: object) -> Task:
    software = software_profile(str(options.pop("software", "megatron-core")))
    cluster = Cluster.profile(str(options.pop("cluster", A100)), gpus=gpus)
    preset = Model.preset(model)
    sequence = int(str(options.pop("sequence", 2048)))
    return Task(preset, cluster, sequence=sequence, global_batch=batch, software=software)


def state_bytes(precision: Precision) -> int:
    recipe = RECIPES[precision]
    return recipe.weight + recipe.gradient + recipe.optimizer_bytes(Optimizer.ADAM)


def test_m2_adam_in_fp32_takes_16_bytes_a_parameter() -> None:
    assert state_bytes(Precision.FP32) == 16


def test_m3_mixed_takes_12_bytes_a_parameter() -> None:
    assert state_bytes(Precision.MIXED) == 12


def test_m4_training_memory_term_by_term() -> None:
    layers, hidden, heads, sequence, batch = 7, 64, 4, 32, 3
    states = 48 * layers * hidden**2
    scores = batch * layers * 2 * sequence**2 * heads
    rest = batch * layers * 14 * sequence * hidden
    total = closed_forms.training_bytes(layers, hidden, heads, sequence, batch)
    assert total == 4 * (states + scores + rest)


def test_m7_data_parallelism_divides_only_activations() -> None:
    assert closed_forms.data_parallel_bytes(100.0, 80.0, 8) == 2 * (4 * 100 + 10)
    several = task("gpt3-1.3b", 8, 64)
    alone = task("gpt3-1.3b", 1, 8)
    plan = {"precision": "pure-bf16", "zero": 0}
    split = evaluate(several, Plan(dp=8, **plan)).memory
    whole = evaluate(alone, Plan(dp=1, **plan)).memory
    states = sum(split[name] for name in ("weights", "gradients", "optimizer"))
    assert states == sum(whole[name] for name in ("weights", "gradients", "optimizer"))
    padded = whole["weights"] / 2
    assert states == pytest.approx(2 * 4 * padded)


def test_m8_model_parallelism_divides_states() -> None:
    assert closed_forms.model_parallel_bytes(175e9, 1024) == pytest.approx(16 * 175e9 / 1024)
    plan = {"precision": "fp32", "zero": 0, "recompute": "full"}
    for sizes in ({"tp": 8}, {"pp": 8}):
        stages = by_stage(evaluate(task("llama-65b", 8, 8), Plan(**sizes, **plan)))
        states = sum(stages[name].mean() for name in ("weights", "gradients", "optimizer"))
        ideal = closed_forms.model_parallel_bytes(Model.preset("llama-65b").parameters, 8)
        assert states == pytest.approx(ideal, rel=0.01)


def test_m9_xl_row_is_17_percent_larger_than_its_name() -> None:
    printed = Model.preset("gpt3-1.3b").parameters
    assert printed == pytest.approx(1.516e9, rel=1e-3)
    assert printed / 1.3e9 == pytest.approx(1.17, abs=0.005)
    # 16 heads of 128 instead of 24: 8 x 128 columns fewer in four matrices of every layer.
    fewer = printed - 24 * 8 * 128 * (4 * 2048 + 3)
    assert fewer == pytest.approx(1.315e9, rel=1e-3)


@pytest.mark.parametrize("name", MEGATRON)
def test_t4_megatron_table_models(name: str) -> None:
    billions, heads, hidden, layers = MEGATRON[name]
    model = Model.preset(name)
    assert (model.kinds[0].attention.heads, model.hidden, model.layers) == (heads, hidden, layers)
    # The paper's formula, equation 2; it prints one digit.
    formula = (
        12 * layers * hidden**2 * (1 + 13 / (12 * hidden) + (51200 + 2048) / (12 * layers * hidden))
    )
    assert model.parameters == pytest.approx(formula, rel=1e-4)
    assert model.parameters / 1e9 == pytest.approx(billions, abs=0.06)


def uniform(stages: int, micro_batches: int) -> Task:
    """A model whose stages are equal: its vocabulary is too small to weigh."""
    model = replace(Model.preset("megatron-145.6b"), vocabulary=1, learned_positions=0)
    alike = {"vocabulary_multiple": 1, "rank_spread": 0.0}
    software = replace(software_profile("megatron-core"), **alike)
    cluster = Cluster.profile(A100, gpus=stages)
    return Task(model, cluster, sequence=2048, global_batch=micro_batches, software=software)


def busy(costs: Costs) -> float:
    """Seconds that the mean rank computes in a step."""
    seconds = costs.row().seconds
    return float(seconds["compute"] + seconds["launch"])


def idle(costs: Costs) -> float:
    """Seconds that the mean rank waits for others in a step."""
    seconds = costs.row().seconds
    return float(seconds["bubble"] + seconds["imbalance"])


def test_t5_naive_model_parallelism_uses_one_device_at_a_time() -> None:
    # One micro-batch in flight: of p stages p - 1 are always idle.
    naive = evaluate(uniform(4, 8), Plan(pp=4, recompute="full", schedule="naive"))
    one = evaluate(uniform(4, 1), Plan(pp=4, recompute="full"))
    for costs in (one, naive):
        assert busy(costs) / (busy(costs) + idle(costs)) == pytest.approx(1 / 4, rel=1e-3)
    alone = evaluate(uniform(1, 8), Plan(recompute="full"))
    assert busy(alone) / (busy(naive) + idle(naive)) == pytest.approx(1, rel=2e-3)


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 8), (8, 64), (16, 16)])
def test_t6_idle_over_useful_is_n_minus_1_over_m(stages: int, micro_batches: int) -> None:
    even = timeline_of(uniform(stages, micro_batches), Plan(pp=stages))
    share = (stages - 1) / micro_batches
    assert idle(even.costs) / busy(even.costs) == pytest.approx(share, rel=4e-3)
    events = replace(even.times, hop=0.0)
    ranks = simulate(even.timeline.graph, events)
    assert ranks.idle / ranks.busy == pytest.approx(share, rel=4e-3)


@pytest.mark.parametrize("layers", [(21, 19, 20, 20), (20, 20, 20, 20), (18, 20, 20, 22)])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_t7_uneven_stages_enlarge_the_idle_fraction(layers: tuple[int, ...], schedule: str) -> None:
    """Against even stages; a head on the last rank makes them uneven as well."""
    model = uniform(4, 16) if len(set(layers)) > 1 else task("megatron-145.6b", 4, 16)
    share = []
    for question, cut in ((uniform(4, 16), (20, 20, 20, 20)), (model, layers)):
        found = timeline_of(question, Plan(pp=4, schedule=schedule, layers_per_stage=cut))
        ranks = simulate(found.timeline.graph, replace(found.times, hop=0.0))
        share.append([idle(found.costs) / busy(found.costs), ranks.idle.sum() / ranks.busy.sum()])
    even, uneven = np.array(share)
    assert even == pytest.approx([3 / 16, 3 / 16], rel=2e-3)
    assert (uneven > even * 1.02).all()
    # The closed form does not see where the slow stage is.
    assert uneven[0] == pytest.approx(uneven[1], rel=0.06)


@pytest.mark.parametrize("text", ["", "schedule=gpipe", "virtual_stages=2", "virtual_stages=5"])
def test_t8_exposed_sends_lie_between_one_micro_batch_and_the_whole_batch(text: str) -> None:
    """In the event simulation, with a network that is slow enough to see them."""
    p, m = 4, 16
    question = uniform(p, m)
    slow = replace(
        question.cluster.fast_domain, bandwidth=question.cluster.fast_domain.bandwidth / 10
    )
    question = replace(question, cluster=replace(question.cluster, fast_domain=slow))
    found = timeline_of(question, Plan.parse(f"pp={p} overlap_p2p=0 {text}"))
    without = simulate(found.timeline.graph, replace(found.times, hop=0.0)).step_seconds
    hops = (found.pipeline_seconds - float(without)) / float(found.times.hop)
    assert 2 * (p - 1) <= hops + 1e-6
    assert hops <= 2 * (p - 1) * m * found.plan.virtual_stages
    closed = found.costs.seconds["pipeline_comm"] / float(found.times.hop)
    assert 2 * (p - 1) <= closed + 1e-6
    assert closed <= 2 * (p - 1) * m * found.plan.virtual_stages


T10_FIRST, T10_SECOND = ("rows", "columns", "columns"), ("rows", "rows", "columns")
T10 = {
    # (h1, h2, y): ring units of T10_FIRST and T10_SECOND
    (4, 1, 1): (3, 6),
    (1, 4, 1): (6, 3),
    (1, 1, 1): (3, 3),
}


def t10_cost(graph: Any, prices: Any, names: tuple[str, ...]) -> float:
    """Cost of three partitions by name."""
    index = {"rows": 0, "columns": 1}
    choice = {f"W{i}": index[name] for i, name in enumerate(names, start=1)}
    return operator_graph.cost(graph, prices, {"x": 0, "y": 0, **choice})


@pytest.mark.parametrize("widths", T10)
def test_t10_tensor_partition(widths: tuple[int, int, int]) -> None:
    graph, ring = chain_of_products(widths, 8), operator_graph.ring_units(8)
    first, second = T10[widths]
    assert t10_cost(graph, ring, T10_FIRST) == first
    assert t10_cost(graph, ring, T10_SECOND) == second
    h1, h2, y = widths
    moves = list(operator_graph.changes(graph, ring, dict.fromkeys(graph.nodes, 0), False))
    assert [c.collective for c in moves] == 3 * ["all_gather"]
    assert (first, second) == (h2 + 2 * y, h1 + 2 * y)
    every = [t10_cost(graph, ring, names) for names in product(("rows", "columns"), repeat=3)]
    found = partition(graph, ring)
    assert found.cost == min(every) == min(first, second)
    assert found.complete
    assert found.gap < 1e-6


@pytest.mark.parametrize("name", ["gpt3-6.7b", "gpt3-175b", "llama-65b"])
def test_t12_backward_takes_about_twice_the_forward(name: str) -> None:
    times = timeline_of(task(name, 1, 1), Plan(sequence_parallel=0, zero=0)).times
    backward = times.input_gradient + times.weight_gradient
    assert 1.9 <= float((backward / times.forward)[0]) <= 2.1


T14_ROWS = {
    # model: GPUs, batch in sequences (the published batch, made divisible)
    "gpt3-760m": (64, 256),
    "gpt3-1.3b": (64, 512),
    "gpt3-2.7b": (64, 512),
    "gpt3-6.7b": (128, 1024),
    "gpt3-13b": (128, 1024),
    "llama-7b": (256, 2048),
    "llama-13b": (512, 2048),
    "llama-33b": (2048, 2048),
}


@pytest.mark.parametrize("name", T14_ROWS)
def test_t14_searched_plans_reach_30_to_55_percent_of_peak(name: str) -> None:
    gpus, batch = T14_ROWS[name]
    question = task(name, gpus, batch, software="megatron-lm-2021")
    best = rank_plans(question, Ranking(fits_probability=0.95, top=1)).best
    assert best is not None
    assert 0.30 <= best.mfu <= 0.55
    # The report splits the loss: idle time and communication have parts of their own.
    lost = loss_shares(best)
    assert sum(lost.values()) == pytest.approx(1)
    waits = ("bubble", "imbalance", "pipeline_comm", "tensor_comm", "data_comm")
    assert sum(lost[part] for part in waits) > 0


def test_memory_of_the_worst_stage_is_reported() -> None:
    costs = evaluate(task("megatron-39.1b", 64, 64), Plan(tp=8, pp=4))
    assert costs.memory_bytes == pytest.approx(by_stage(costs)["total"].max())


def test_t4_utilisation_with_recompute_counted_is_the_papers() -> None:
    tp, pp, virtual, gpus, batch, micro, tflops = SC21["megatron-145.6b"]
    costs = evaluate(
        task("megatron-145.6b", gpus, batch, software="megatron-lm-2021"),
        Plan(tp=tp, pp=pp, virtual_stages=virtual, micro_batch=micro, recompute="full"),
    )
    assert costs.hfu == pytest.approx(tflops / 312, rel=0.12)
    assert costs.hfu / costs.mfu == pytest.approx(4 / 3, rel=0.01)


RESNET_50 = 25.5e6


def sync_time(policy: SyncPolicy, gpus: int, parameters: float = RESNET_50) -> float:
    cluster = Cluster.profile("v100-16gb-sxm", gpus=gpus)
    return synchronisation.sync_seconds(policy, parameters, cluster)


def test_d1_a_parameter_server_costs_more_with_every_worker() -> None:
    server = SyncPolicy(sync=Sync.PARAMETER_SERVER)
    times = [sync_time(server, n) for n in (64, 128, 256, 512)]
    slopes = np.diff(times) / np.array([64, 128, 256])
    # 2 x weights for every worker through the NICs of one node, 8 x 50 Gb/s at 85 %.
    assert slopes == pytest.approx(2 * 4 * RESNET_50 / (8 * 6.25e9 * 0.85), rel=0.02)


def test_d1_a_worker_keeps_8_bytes_a_parameter_and_sends_its_gradients() -> None:
    question = task("gpt3-1.3b", 16, 16, cluster="v100-32gb-sxm")
    costs = evaluate(question, Plan(precision="fp32", sync="parameter-server"))
    parameters = costs.memory["weights"] / 4
    assert costs.memory["weights"] + costs.memory["gradients"] == 8 * parameters
    assert costs.memory["optimizer"] == 0
    assert costs.seconds["optimizer"] == question.software.step_seconds
    found = traffic(costs)
    assert found.bytes_sent == 4 * parameters
    assert found.server_bytes == 16 * found.bytes_sent


def test_d1_asynchronous_updates_hide_behind_compute_and_are_stale() -> None:
    """Downpour SGD: a step lasts as long as compute or the servers, whichever is longer; n updates
    of one worker take v / (n e^2) + (1 + n) / (n e) such steps."""
    cluster = Cluster.profile("v100-32gb-sxm", gpus=16, inter_node_bandwidth=1e9)
    question = replace(
        task("gpt3-1.3b", 16, 64), cluster=cluster, goal=Goal(accuracy=1e-2, sequence_noise=1.0)
    )
    plan = {"precision": "fp32", "overlap_grad_reduce": 0}
    waits, stale = (
        evaluate(question, Plan(**plan, sync=f"{way}-parameter-server"))
        for way in ("sharded", "asynchronous")
    )
    both = waits.seconds["data_comm"]
    alone = waits.step_seconds - both - waits.seconds["optimizer"]
    assert stale.seconds["data_comm"] == pytest.approx(max(both - alone, 0), rel=0.01)
    slowed = question.software.contention * min(alone, both)
    assert stale.seconds["contended"] == pytest.approx(slowed, rel=0.01)
    assert stale.step_seconds < waits.step_seconds
    assert traffic(stale).staleness == 16
    assert stale.iterations == pytest.approx(0.25 / (16 * 1e-4) + 17 / (16 * 1e-2))
    assert stale.memory["optimizer"] == 0


def test_d2_a_ring_sends_2_n_minus_1_over_n_of_the_weights() -> None:
    for n in (2, 16, 256):
        question = task("gpt3-125m", n, n, cluster="v100-32gb-sxm")
        found = traffic(evaluate(question, Plan(precision="fp32", sync="ring")))
        weights = evaluate(question, Plan(precision="fp32", zero=0)).memory["weights"]
        assert found.bytes_sent == pytest.approx(2 * (n - 1) / n * weights)
        assert found.messages == 2 * (n - 1)
    ring = SyncPolicy(sync=Sync.RING)
    latency = [sync_time(ring, n, 1.0) for n in (64, 128, 256, 512)]
    assert np.diff(latency)[1:] / np.diff(latency)[:-1] == pytest.approx(2, rel=0.01)


@pytest.mark.parametrize("topology", ["ring", "torus", "grid"])
def test_d3_averaging_with_neighbours_costs_the_same_at_any_size(topology: str) -> None:
    plan = Plan(sync="gossip", topology=topology, overlap_grad_reduce=0, precision="fp32")
    every = [
        traffic(evaluate(task("gpt3-125m", n, n, cluster="v100-32gb-sxm"), plan))
        for n in (64, 256, 1024)
    ]
    degree = {"ring": 2, "torus": 4, "grid": 4}[topology]
    weights = Model.preset("gpt3-125m").parameters * 4
    assert [found.messages for found in every] == [degree] * 3
    assert [f.bytes_sent for f in every] == pytest.approx([degree * weights] * 3, rel=2e-3)
    times = [
        sync_time(SyncPolicy(sync=Sync.GOSSIP, topology=Topology[topology.upper()]), n)
        for n in (1024, 4096, 16384)
    ]
    assert times == pytest.approx([times[0]] * 3)


def test_d4_one_network_has_both_published_times() -> None:
    network = synchronisation.fit_network()
    cluster = network.cluster(256)
    ring = synchronisation.sync_seconds(SyncPolicy(sync=Sync.RING), RESNET_50, cluster)
    neighbours = SyncPolicy(sync=Sync.GOSSIP, topology=Topology.RING)
    assert ring == pytest.approx(0.278)
    assert synchronisation.sync_seconds(neighbours, RESNET_50, cluster) == pytest.approx(0.150)
    # Below the 25 Gb/s of a node, as TCP is.
    assert 5e9 < network.bandwidth * 0.85 * 8 * 8 < 25e9
    assert 0 < network.latency < 5e-3


def test_d4_a_plan_of_the_layer_list_has_the_same_times() -> None:
    model, cluster = Model.preset("resnet-50"), synchronisation.fit_network().cluster(256)
    question = Task(model, cluster, sequence=1, global_batch=8192)
    plan = {"precision": "fp32", "micro_batch": 32, "overlap_grad_reduce": 0}
    for way, wanted in (({"sync": "ring"}, 0.278), ({"sync": "gossip", "topology": "ring"}, 0.15)):
        shown = evaluate(question, Plan(**plan, **way)).seconds["data_comm"]
        # 25.56 M parameters in the list, 25.5 M in the source.
        assert shown == pytest.approx(wanted, rel=0.005)


def test_d5_imagenet_hours_follow_from_that_network() -> None:
    compared = synchronisation.imagenet_hours(synchronisation.fit_network())
    assert len(compared) == 8
    assert max(abs(row.error) for row in compared) < 0.10
    # The epochs are not published with the hours; with 90 the row holds too.
    fewer = synchronisation.imagenet_hours(synchronisation.fit_network(), epochs=90)
    assert max(abs(row.error) for row in fewer) < 0.15


def test_d6_bert_hours_are_missed_by_an_eighth() -> None:
    row = synchronisation.bert_hours(synchronisation.fit_network())
    assert row.measured == 30.4
    assert row.error == pytest.approx(0.116, abs=0.01)


def test_bluefog_rows_are_within_their_reported_error() -> None:
    rows = synchronisation.bluefog(synchronisation.fit_network())
    errors = np.abs([row.error for _, row in rows])
    assert len(rows) == 12
    assert np.median(errors) < 0.12
    gossip = [row for run, row in rows if run["framework"] == "BlueFog N_AR"]
    assert max(abs(row.error) for row in gossip) < 0.10


@pytest.mark.parametrize("tau", [2, 8, 100])
@pytest.mark.parametrize("sync", ["sync=ring", "sync=gossip topology=one-peer-exponential"])
@pytest.mark.parametrize("precision", ["bf16", "fp32", "pure-bf16"])
def test_d7_local_steps_divide_communication(tau: int, sync: str, precision: str) -> None:
    """What is averaged has the bytes of the gradients that are reduced every step."""
    question = task("gpt3-1.3b", 64, 64)
    text = f"{sync} zero=0 overlap_grad_reduce=0 precision={precision} recompute=full"
    often, seldom = (evaluate(question, Plan.parse(f"{text} sync_period={t}")) for t in (1, tau))
    assert seldom.seconds["data_comm"] == pytest.approx(often.seconds["data_comm"] / tau)
    assert traffic(seldom).bytes_sent == pytest.approx(traffic(often).bytes_sent / tau)


def test_d8_compression_on_the_wire() -> None:
    question = task("gpt3-1.3b", 64, 64)
    plan = {"precision": "fp32", "sync": "parameter-server"}
    full = traffic(evaluate(question, Plan(**plan))).bytes_sent

    def share(**compression: object) -> float:
        return traffic(evaluate(question, Plan(**plan, **compression))).bytes_sent / full

    # A value and an index for every entry kept: twice its share.
    assert share(compression="mem-sgd", kept_per_thousand=10) == pytest.approx(0.02)
    assert share(compression="mem-sgd", kept_per_thousand=50) == pytest.approx(0.10)
    assert share(compression="neolithic", kept_per_thousand=10) == pytest.approx(0.04)
    assert share(compression="1-bit") == pytest.approx(1 / 32)
    # Five levels and a sign: nine values, four bits, and a norm for 512 of them.
    assert share(compression="qsgd", levels=5) == pytest.approx(4 / 32 + 1 / 512)


def test_d9_linear_speed_up() -> None:
    """Noise of one worker's gradient 100, error 1e-3; a fixed share of the batch a worker."""

    def steps(n: int, text: str = "") -> float:
        question = replace(task("gpt3-125m", n, n), goal=Goal(accuracy=1e-3, sequence_noise=100.0))
        return float(evaluate(question, Plan.parse(f"zero=0 {text}")).iterations)

    assert steps(1) >= 100.0 / 1e-3**2
    assert steps(1) / steps(64) == pytest.approx(64, rel=0.01)
    # A graph enters through its spectral gap: the smaller, the more steps.
    graphs = ("ring", "torus", "exponential", "complete")
    every = [steps(64, f"sync=gossip topology={graph}") for graph in graphs]
    assert every == sorted(every, reverse=True)
    assert every[0] > 1.5 * every[-1]


def test_d10_after_backward_as_ready_and_in_buckets() -> None:
    question = task("gpt3-1.3b", 16, 64)
    plan = {"zero": 0, "micro_batch": 4}
    after = evaluate(question, Plan(**plan, overlap_grad_reduce=0)).step_seconds
    ready, *buckets = (
        evaluate(question, Plan(**plan, bucket_parameters=size)).step_seconds
        for size in (1, 25_000_000, 200_000_000)
    )
    assert after > ready > min(buckets)
    assert len({after, ready, *buckets}) == 4


def test_d11_fsdp_by_unit_and_the_stages_of_zero() -> None:
    question = task("gpt3-1.3b", 64, 64)
    plans = [evaluate(question, Plan(zero=zero)) for zero in range(4)]
    parameters = plans[0].memory["weights"] / 2
    n, kept = 64, 63 / 64
    # bf16 weights, fp32 gradients; one micro-batch: gradients scattered, weights gathered.
    sent = [traffic(costs).bytes_sent for costs in plans]
    wanted = [2 * 4 * kept, (4 + 2) * kept, (4 + 2) * kept, (4 + 2 * 2) * kept]
    assert sent == pytest.approx([w * parameters for w in wanted], rel=1e-6)
    states = [sum(c.memory[k] for k in ("weights", "gradients", "optimizer")) for c in plans]
    assert states == sorted(states, reverse=True)
    assert states[3] == pytest.approx(states[0] / n)


def test_d12_more_communication_scales_worse_and_16_bits_send_two_bytes() -> None:
    def efficiency(bandwidth: float, gpus: int) -> float:
        cluster = Cluster.profile(A100, gpus=gpus, inter_node_bandwidth=bandwidth)
        question = replace(task("gpt3-1.3b", gpus, 4 * gpus), cluster=cluster)
        return float(evaluate(question, Plan(micro_batch=4, zero=0)).mfu)

    slower = [efficiency(rate, 64) / efficiency(rate, 8) for rate in (25e9, 12.5e9, 6.25e9, 3e9)]
    assert slower == sorted(slower, reverse=True)
    assert slower[-1] < slower[0]
    question = task("gpt3-1.3b", 64, 64)
    costs = evaluate(question, Plan(precision="pure-bf16", sync="parameter-server"))
    assert traffic(costs).bytes_sent == costs.memory["weights"]
    assert RECIPES[Precision.PURE_BF16].gradient == 2


S1 = {
    # GPUs: sequence, sequences, further fields, TFLOP/s a GPU, ours, GiB that do not fit in 79
    8192: (8192, 2048, "", 430, 436, 112.5),
    16384: (8192, 2048, "", 400, 387, 97.4),
    -16384: (131072, 128, " cp=16 cp_comm=all-gather", 380, 347, 97.5),
}


@pytest.mark.parametrize("gpus", S1)
def test_s1_llama_3_405b(gpus: int) -> None:
    """Table 4 of its paper: tp 8, pp 16, 16 M tokens a step; the 128k row is counted causally.

    The rates are within 4 % at 8k tokens and 9 % below at 128k. Memory misses: without recompute
    the layouts need 97 to 112 GiB of 80 here; the paper frees tensors early in its pipeline."""
    sequence, batch, more, published, ours, needs = S1[gpus]
    question = task("llama-3.1-405b", abs(gpus), batch, cluster="h100-sxm", sequence=sequence)
    costs = evaluate(question, Plan.parse(f"tp=8 pp=16 virtual_stages=4 zero=2{more}"))
    share = costs.mfu_causal if more else costs.mfu
    assert share * 989 == pytest.approx(ours, rel=0.01)
    assert share * 989 == pytest.approx(published, rel=0.15 if more else 0.10)
    assert costs.memory_bytes / 2**30 == pytest.approx(needs, abs=1)


MEGASCALE = {
    # GPUs: seconds of a step of Megatron-LM and of MegaScale, batch 6,144; the share of
    # MegaScale's lead that is predicted
    3072: (29.02, 23.66, 0.67),
    6144: (14.78, 12.21, 0.81),
    8192: (12.24, 9.56, 0.66),
    12288: (8.57, 6.34, 0.59),
}


@pytest.mark.parametrize("gpus", MEGASCALE)
def test_s2_megascale_scales_strongly(gpus: int) -> None:
    """175B, tp 8, pp 8, v 6, parallel blocks and all overlaps: within 5 % on every size.

    Megatron-LM without any overlap is 2 to 11 % too fast here, so that of the published lead
    (21 to 35 %) 81 to 59 % is left: two thirds, as wanted, up to 8,192 GPUs, and less above."""
    shape = {"tp": 8, "pp": 8, "virtual_stages": 6, "zero": 1, "recompute": "none"}
    names = ("overlap_tp", "overlap_p2p", "overlap_grad_reduce", "overlap_param_gather")
    model = replace(Model.preset("gpt3-175b"), vocabulary=64000)
    kinds = tuple(replace(kind, parallel=True) for kind in model.kinds)
    cluster = Cluster.profile(A100, gpus=gpus)
    megatron, megascale = (
        evaluate(
            Task(built, cluster, sequence=2048, global_batch=6144),
            Plan(**shape, **dict.fromkeys(names, on)),
        ).step_seconds
        for built, on in ((model, 0), (replace(model, kinds=kinds), 1))
    )
    theirs, ours, kept = MEGASCALE[gpus]
    assert megascale == pytest.approx(ours, rel=0.05)
    assert 0.88 * theirs < megatron < 0.98 * theirs
    lead, published = megatron / megascale - 1, theirs / ours - 1
    assert lead / published == pytest.approx(kept, abs=0.02)


def test_the_ladder_of_overlaps_of_megascale() -> None:
    """MegaScale (NSDI 2024), table 3: 175B on 256 A100, batch 256, tp 8, pp 8, v 6.

    From 53.3 % MFU, with parallel blocks and a sliding window of unstated width, throughput rises
    by 4.1, 4.5 and 2.6 % with the overlap of TP, PP and DP. Nothing was fitted to it, and each
    prediction is off by the points stated here: 1.5 are wanted, which PP misses."""
    model = replace(Model.preset("gpt3-175b"), vocabulary=64000)
    model = replace(model, kinds=tuple(replace(kind, parallel=True) for kind in model.kinds))
    cluster = Cluster.profile("a100-80gb-sxm", gpus=256)
    question = Task(model, cluster, sequence=2048, global_batch=256)
    shape = {"tp": 8, "pp": 8, "virtual_stages": 6, "zero": 1, "sequence_parallel": 1}
    names = ("overlap_tp", "overlap_p2p", "overlap_grad_reduce", "overlap_param_gather")
    seconds = []
    for on in (0, 1, 2, 4):
        plan = Plan(**shape, **{name: int(i < on) for i, name in enumerate(names)})
        seconds.append(evaluate(question, plan).step_seconds)
    gains = [100 * (a / b - 1) for a, b in pairwise(seconds)]
    missed = np.array(gains) - [4.1, 4.5, 2.6]
    assert missed == pytest.approx([-0.5, -2.9, 1.1], abs=0.2)
