"""The ways to keep replicas together cost what they move, alone and in one table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from not_empty import not_empty

from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.simulator.analysis.traffic import traffic
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.software_stack import SOFTWARE
from plan3d.simulator.operators import collectives
from plan3d.simulator.plan.fields import POLICY
from plan3d.simulator.plan.gossip_graphs import Graph, Topology
from plan3d.simulator.plan.plan import Plan, concat, resolve
from plan3d.simulator.plan.synchronisation import DEFAULT_POLICY, Sync, SyncPolicy, gossips
from plan3d.simulator.reporting.assumptions import assumptions
from plan3d.simulator.rules.offload_rules import OFFLOAD_RULES
from plan3d.simulator.rules.sync_rules import SYNC_RULES
from plan3d.simulator.rules.validity import check
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.step.gradient_exchange import exchange_seconds
from plan3d.simulator.task import Goal, Task
from plan3d.simulator.workload.model import Model

TASK = Task(
    Model.preset("gpt3-1.3b"),
    Cluster.profile("a100-80gb-sxm", gpus=64),
    sequence=2048,
    global_batch=256,
)
RING_OF_64 = Graph(64, tuple((i, (i + 1) % 64) for i in range(64)))
WAYS = [
    {},
    {"sync": "ring"},
    {"sync": "tree"},
    {"sync": "hierarchical"},
    {"sync": "parameter-server"},
    {"sync": "sharded-parameter-server"},
    {"sync": "gossip"},
    {"sync": "gossip", "topology": "torus"},
    {"sync": "gossip", "topology": "inner-outer-exponential"},
    {"sync": "hierarchical-gossip", "topology": "one-peer-exponential"},
    {"sync_period": 4},
    {"sync": "parameter-server", "sync_period": 10},
    {"sync": "gossip", "topology": "ring", "sync_period": 2},
    {"compression": "qsgd", "levels": 16},
    {"compression": "one-bit", "sync": "parameter-server"},
    {"compression": "mem-sgd", "kept_per_thousand": 10},
    {"compression": "double-squeeze", "kept_per_thousand": 10},
    {"compression": "ef21-sgd", "kept_per_thousand": 50},
    {"compression": "neolithic", "kept_per_thousand": 50},
    {"bucket_parameters": 10_000_000, "zero": 0},
    {"shard": 4},
    {"shard": 4, "zero": 3},
    {"shard": 2, "zero": 2},
]
LAYOUTS = [{}, {"tp": 2}, {"pp": 4, "micro_batch": 2}, {"tp": 4, "pp": 2}]
plans = st.builds(lambda a, b: Plan(**(a | b)), st.sampled_from(WAYS), st.sampled_from(LAYOUTS))


def full(plan: Plan) -> Plan:
    return resolve(plan, TASK.gpus).table()


@given(st.lists(plans, min_size=2, max_size=6))
def test_a_table_of_policies_costs_what_each_plan_does(some):
    table = evaluate(TASK, concat([full(plan) for plan in some]))
    for row, plan in not_empty(enumerate(some)):
        alone = evaluate(TASK, plan)
        assert table.step[row] == pytest.approx(alone.step_seconds, rel=1e-12)
        assert table.memory_total[row] == pytest.approx(alone.memory_bytes, rel=1e-12)


@given(plans)
def test_parts_add_up(plan):
    costs = evaluate(TASK, plan)
    assert sum(costs.seconds.values()) == pytest.approx(costs.step_seconds)
    assert sum(costs.memory.values()) == pytest.approx(costs.memory_bytes)


@given(plans)
def test_a_plan_is_read_back_as_it_is_written(plan):
    row = full(plan).take(0)
    again = resolve(Plan.parse(str(row)), TASK.gpus)
    assert again.to_dict() == row.to_dict()


@given(plans)
def test_a_faster_network_is_never_slower(plan):
    faster = Cluster.profile("a100-80gb-sxm", gpus=64, inter_node_bandwidth=50e9)
    quick = evaluate(replace(TASK, cluster=faster), plan).step_seconds
    assert quick <= evaluate(TASK, plan).step_seconds * (1 + 1e-12)


@pytest.mark.parametrize("way", [way for way in WAYS if "sync_period" not in way], ids=str)
def test_overlap_is_never_slower(way):
    bucket = {k: v for k, v in way.items() if k != "bucket_parameters"}
    alone = evaluate(TASK, Plan(**bucket, overlap_grad_reduce=0)).step_seconds
    assert evaluate(TASK, Plan(**way)).step_seconds <= alone * (1 + 1e-12)


@given(plans)
def test_rules_of_policies_hold_for_plain_plans(plan):
    """A search of plain plans leaves these rules out."""
    row = resolve(plan, TASK.gpus)
    usual = dict(zip(POLICY, DEFAULT_POLICY, strict=True))
    plain = Plan(**{**row.columns(), **usual, "offload_activations": 0})
    assert all(np.all(rule.ok(plain, TASK)) for rule in (*SYNC_RULES, *OFFLOAD_RULES))


def test_a_given_ring_costs_what_the_ring_does():
    task = replace(TASK, graph=RING_OF_64)
    ring = evaluate(TASK, Plan(sync="gossip", topology="ring", overlap_grad_reduce=0))
    own = evaluate(task, Plan(sync="gossip", topology="given", overlap_grad_reduce=0))
    assert own.step_seconds == pytest.approx(ring.step_seconds)
    assert traffic(own).mixing.spectral_gap == pytest.approx(traffic(ring).mixing.spectral_gap)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_hybrid_sharding_keeps_the_states_of_its_shard(zero):
    eight = replace(TASK, cluster=Cluster.profile("a100-80gb-sxm", gpus=8), global_batch=32)
    small = evaluate(eight, Plan(zero=zero)).memory
    hybrid = evaluate(TASK, Plan(zero=zero, shard=8)).memory
    for name in ("weights", "gradients", "optimizer"):
        assert hybrid[name] == small[name]
    m, parameters = 4, 8 * small["weights"] / 2 if zero == 3 else small["weights"] / 2
    scatters, gathers = {1: (1, 1), 2: (m, 1), 3: (m, 2 * m)}[zero]
    # fp32 gradients, bf16 weights: 7/8 of them inside a shard, eight shards of an eighth beyond.
    wanted = 7 / 8 * (scatters * 4 + gathers * 2) + scatters * 2 * 7 / 8 * 4 / 8
    assert traffic(evaluate(TASK, Plan(zero=zero, shard=8))).bytes_sent == pytest.approx(
        wanted * parameters
    )


@given(st.integers(1, 5), st.integers(0, 3))
def test_split_groups_have_all_ranks(k, tp):
    cluster = Cluster.profile("a100-80gb-sxm", gpus=64)
    group = collectives.place_group(np.array([float(64 // 2**tp)]), float(2**tp), cluster)
    within, across = collectives.split_group(group, 2.0**k)
    assert within.ranks * across.ranks == group.ranks
    assert max(within.domains, across.domains) <= group.domains


def test_hierarchical_all_reduce_inside_a_node_is_scatter_and_gather():
    cluster = Cluster.profile("a100-80gb-sxm", gpus=8)
    group = collectives.place_group(np.array([8.0]), 1.0, cluster)
    both = collectives.reduce_scatter(1e9, group, cluster)
    both = both + collectives.all_gather(1e9, group, cluster)
    assert collectives.hierarchical_all_reduce(1e9, group, cluster) == pytest.approx(both)


@given(st.floats(1, 1e11), st.sampled_from([s for s in Sync if s not in (6, 7)]))
def test_more_bytes_take_longer(size, sync):
    cluster = Cluster.profile("a100-80gb-sxm", gpus=64)
    group = collectives.place_group(np.array([64.0]), 1.0, cluster)
    policy = SyncPolicy(sync=sync)
    less, more = (exchange_seconds(4.0, policy, x, group, cluster)[0] for x in (size, 1.1 * size))
    assert 0 < less < more


def test_one_rank_has_nothing_to_exchange():
    cluster = Cluster.profile("a100-80gb-sxm", gpus=1)
    group = collectives.place_group(np.array([1.0]), 1.0, cluster)
    for sync in not_empty(Sync):
        policy = SyncPolicy(sync=sync, topology=Topology.RING if gossips(sync) else Topology.NONE)
        assert exchange_seconds(4.0, policy, 1e9, group, cluster)[0] == 0


def test_feedback_and_received_weights_are_kept():
    plain = evaluate(TASK, Plan(zero=0)).memory
    gossip = evaluate(TASK, Plan(sync="gossip")).memory
    assert gossip["weights"] == 2 * plain["weights"]
    squeezed = evaluate(TASK, Plan(compression="mem-sgd", kept_per_thousand=10)).memory
    # Of the eighth that a GPU compresses after the sum inside its node.
    assert squeezed["gradients"] == (1 + 1 / 8) * plain["gradients"]
    assert evaluate(TASK, Plan(compression="qsgd", levels=9)).memory == plain


def test_a_search_may_choose_among_policies_and_judges_them_by_accuracy():
    noisy = replace(TASK, goal=Goal(accuracy=0.01, sequence_noise=10.0))
    choose = {"sync": ["all-reduce", "gossip"], "tp": [1, 2], "pp": [1], "micro_batch": [1, 2, 4]}
    by_step = rank_plans(TASK, Ranking(choose=choose)).best
    by_goal = rank_plans(noisy, Ranking(choose=choose, objective="time-to-accuracy")).best
    assert by_goal.accuracy_seconds == pytest.approx(by_goal.iterations * by_goal.step_seconds)
    every = evaluate(noisy, concat([full(by_step.plans), full(by_goal.plans)]))
    assert every.accuracy_seconds[1] <= every.accuracy_seconds[0]
    graphs = {**choose, "sync": ["gossip"], "topology": ["ring", "torus"]}
    found = rank_plans(TASK, Ranking(choose=graphs, top=12))
    assert {plan.topology for plan in found.plans} == {Topology.RING, Topology.TORUS}


def test_iterations_do_not_depend_on_how_a_batch_is_cut_where_averages_are_exact():
    noisy = replace(TASK, goal=Goal(accuracy=0.01, sequence_noise=10.0))
    cuts = [evaluate(noisy, Plan(**layout)).iterations for layout in LAYOUTS]
    assert cuts == pytest.approx([10.0 / (256 * 0.01**2) + 100] * len(cuts))
    often, seldom = (evaluate(noisy, Plan(sync_period=t)).iterations for t in (1, 16))
    assert often == pytest.approx(cuts[0])
    assert seldom > often


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_what_is_assumed_is_said(way):
    costs = evaluate(TASK, Plan(**way))
    said = " ".join(assumptions(costs))
    usual = not way or "bucket_parameters" in way
    assert ("a rank sends" in said) == (not usual)
    if way.get("sync", "").endswith("gossip"):
        assert "spectral gap" in said
    if "compression" in way:
        assert "delta =" in said or "omega =" in said


def test_a_table_of_given_graphs_is_checked():
    task = replace(TASK, graph=RING_OF_64)
    check(resolve(Plan(sync="gossip", topology="given"), 64), task)


def test_gossip_takes_at_least_one_message_through_one_nic() -> None:
    """6 GB to two neighbours of a ring, of which one is on another node of 64 A100s: 200 Gb/s of
    a NIC at the profile's share, whatever the other NICs of the node do."""
    cluster = Cluster.profile("a100-80gb-sxm", 64)
    group = collectives.place_group(np.array([64.0]), 1.0, cluster)
    policy = SyncPolicy(sync=Sync.GOSSIP, topology=Topology.RING)
    (took,) = exchange_seconds(1.0, policy, 6e9, group, cluster)
    (alone,) = collectives.send(np.array([6e9]), np.array([True]), cluster)
    assert alone <= took <= 1.01 * alone


def test_gathers_never_shorten_a_step():
    """ZB-H2 idles less behind the longer passes of ZeRO 3: not by more than they are longer."""
    cluster = Cluster.profile("rtx-6000-ada", gpus=12)
    task = Task(
        Model.preset("kimi-k2"),
        cluster,
        sequence=2048,
        global_batch=64,
        software=SOFTWARE["vtrain"],
    )
    plan = "pp=3 dp=4 ep=4 micro_batch=2 schedule=zb-h2 recompute=full zero=3"
    assert evaluate(task, Plan.parse(plan)).seconds["data_comm"] >= 0
