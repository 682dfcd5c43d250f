"""Sites that train on their own, by hand: seconds of outer steps, bytes that they keep.

A site of eight GPUs trains its half of the batch as it would alone; what sites exchange adds.
Sources: Douillard et al. 2023 (DiLoCo), algorithm 1; Douillard et al. 2025 (Streaming DiLoCo);
Charles et al. 2025 (2 N (1 - 1 / M) / W of an exchange among M sites).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from round_numbers import NETWORK, PARAMETERS, cluster, costs_of, gather, stack, task

from plan3d.simulator.analysis.sensitivity import sensitivities
from plan3d.simulator.analysis.traffic import traffic, traffic_sentences
from plan3d.simulator.operators import collectives
from plan3d.simulator.step import outer_steps
from plan3d.simulator.task import Goal

LINK, LATENCY = 1e9, 0.01
"""Bytes/s and seconds between sites."""
LINKED = replace(NETWORK, site_bandwidth=LINK, site_latency=LATENCY)
ALONE = "zero=0 overlap_grad_reduce=0"
GATHER = gather(2 * PARAMETERS, 8)
"""Seconds in which a site gathers the weights, two bytes each."""


def near(expected):
    return pytest.approx(expected, rel=1e-12)


def sites(words, network=LINKED, count=2, **changes):
    gpus = 8 * count
    question = task(gpus, gpus, cluster=cluster(gpus, network=network), **changes)
    return costs_of(question, f"dp={gpus} sites={count} {words}")


def alone(words=ALONE):
    return costs_of(task(8, 8), f"dp=8 {words}")


def added(costs, words=ALONE):
    """Seconds that sites add to the step of one."""
    return costs.step_seconds - alone(words).step_seconds


@pytest.mark.parametrize(("count", "bytes_sent", "hops"), [(2, 1.0, 2), (4, 1.5, 6)])
@pytest.mark.parametrize("period", [2, 10])
def test_weights_are_averaged_now_and_then(count, bytes_sent, hops, period):
    """2 (k - 1) / k of four bytes a parameter over a site's link, 2 (k - 1) times its latency."""
    costs = sites(f"{ALONE} sync_period={period}", count=count)
    once = bytes_sent * 4 * PARAMETERS / LINK + hops * LATENCY
    assert added(costs) == near((once + GATHER) / period)


def test_sites_of_one_network_use_its_adapters():
    """An eighth of the weights from every GPU to its like in the other node, all eight at once."""
    costs = sites(f"{ALONE} sync_period=10", network=NETWORK)
    assert added(costs) == near((100e-6 + PARAMETERS / 8 * 4 / 10e9 + GATHER) / 10)


def test_weights_that_zero_3_shards_stay_so():
    words = "zero=3 overlap_grad_reduce=0 overlap_param_gather=0"
    costs = sites(f"{words} sync_period=10")
    assert added(costs, words) == near((4 * PARAMETERS / LINK + 2 * LATENCY) / 10)


@pytest.mark.parametrize("delay", [0, 1, 2])
def test_fragments_take_turns_beside_compute(delay):
    """Two fragments of 4 bits in ten steps, each hidden behind so many steps of compute."""
    words = f"{ALONE} sync_period=10 fragments=2 outer_bits=4 outer_delay={delay}"
    costs = sites(words)
    one = PARAMETERS / 2 / 2 / LINK + 2 * LATENCY
    exposed = one - delay * alone().seconds["compute"]
    assert exposed > 0
    assert added(costs) == near((2 * exposed + GATHER) / 10)


def test_what_compute_hides_costs_nothing():
    """8 Tb/s without latency: a fragment of 13 MB takes less than two steps."""
    fast = replace(LINKED, site_bandwidth=1e12, site_latency=0.0)
    words = f"{ALONE} sync_period=10 fragments=2 outer_bits=4 outer_delay=2"
    assert added(sites(words, network=fast)) == near(GATHER / 10)


def test_gradients_may_cross_every_step():
    """Four bytes each way round two sites, behind the last backward pass where it is overlapped."""
    once = 4 * PARAMETERS / LINK + 2 * LATENCY
    assert added(sites(ALONE)) == near(once)
    words = "zero=0 overlap_grad_reduce=1"
    calm = {"software": stack(contention=0.0)}
    costs, one = sites(words, **calm), costs_of(task(8, 8, **calm), f"dp=8 {words}")
    (group,) = costs.groups
    hidden = float(group.stages.backward.max())
    assert costs.step_seconds - one.step_seconds == near(once - hidden)


@pytest.mark.parametrize(
    ("words", "each"),
    [
        ("", 0.0),
        # Weights and momentum of the last outer step in fp32, and a copy of a half on its way.
        ("outer_optimizer=nesterov", 8.0),
        ("outer_optimizer=nesterov fragments=2 outer_delay=1", 10.0),
        ("fragments=2", 0.0),
    ],
)
def test_a_rank_keeps_the_outer_state_of_its_share(words, each):
    costs = sites(f"{ALONE} sync_period=10 {words}")
    kept = costs.memory["optimizer"] - alone().memory["optimizer"]
    assert kept == near(each * PARAMETERS / 8)
    assert costs.memory_bytes == near(sum(costs.memory.values()))


def test_what_is_sent_between_sites_is_on_record():
    """A rank's eighth of a half of the weights, 4 bits each, to the other of two sites; its site's
    gradients in 14 messages a step."""
    words = f"{ALONE} sync_period=10 fragments=2 outer_bits=4 outer_delay=1"
    costs = sites(words)
    found = traffic(costs).record()
    assert found["site_bytes_sent"] == near(PARAMETERS / 2 / 2 / 8)
    assert found["site_seconds"] == near(PARAMETERS / 2 / 2 / LINK + 2 * LATENCY)
    hidden = found["site_seconds"] - found["site_exposed_seconds"]
    assert hidden == near(alone().seconds["compute"])
    assert (found["replicas"], found["messages"]) == (8, 14)
    (sentence,) = [text for text in traffic_sentences(costs) if "2 sites" in text]
    assert "a fragment of 2 every 10 steps in 4 bits a parameter" in sentence


def test_the_step_reacts_to_the_link_by_its_share() -> None:
    """A tenth of bytes and of latencies a step; one per cent more bandwidth saves its share."""
    costs = sites(f"{ALONE} sync_period=10")
    found = {s.name: s.elasticity for s in sensitivities(costs)}
    moved, waited = 4 * PARAMETERS / LINK / 10, 2 * LATENCY / 10
    step = costs.step_seconds
    assert found["site_bandwidth"] == pytest.approx(-moved / step, rel=0.01)
    assert found["site_latency"] == pytest.approx(waited / step, rel=0.01)
    assert "site_latency" not in {s.name for s in sensitivities(alone())}


def test_sites_are_the_workers_of_local_sgd():
    """Two workers of 8 sequences, noise 80: v = 10; ten steps apart, s = 0, e = 0.1."""
    goal = Goal(accuracy=0.1, sequence_noise=80.0)
    costs = sites(f"{ALONE} sync_period=10", goal=goal)
    assert costs.iterations == near(10 / 0.02 + (10 * 9) ** 0.5 / 0.1**1.5 + 10)
    assert sites(ALONE, goal=goal).iterations == near(10 / 0.02 + 10)


def two_ranks(costs):
    """The stages of a plan of sites with the passes and parameters of two unlike ranks."""

    def column(*values):
        return np.array(values, float)[:, None]

    (group,) = costs.groups
    s = group.stages
    weights = replace(s.weights, dense=column(4e8, 8e8))
    return group, replace(
        s, weights=weights, forward=column(0.001, 0.002), backward=column(0.003, 0.004)
    )


@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize("delay", [0, 1])
def test_the_fullest_and_the_longest_rank_decide(linked, delay):
    """Four sites, a fragment of two in 8 bits: three halves of the shard of 10^8 parameters of the
    second rank; over links of sites all of the model. One step of its 8 x 6 ms hides them."""
    words = f"{ALONE} sync_period=10 fragments=2 outer_bits=8 outer_delay={delay}"
    fast = replace(LINKED, site_bandwidth=1e9 if linked else 0.0)
    group, stages = two_ranks(sites(words, network=fast, count=4))
    stages = replace(stages, micro_batches=np.array([8.0]))
    asked = group.task, group.recipe, group.policy, stages
    found = outer_steps.exchange(*asked)
    assert found.sent == near([1.5 * 1e8 / 2])
    # Beside links the network: a ring of four nodes, 1.5 times the shard at 10 GB/s.
    across = 2 * 3 / 4 * PARAMETERS / 2 / LINK + 6 * LATENCY
    if not linked:
        assert found.seconds == near(
            collectives.all_reduce(
                np.array([5e7]), group.stages.weights.site_group, group.task.cluster
            )
        )
    else:
        assert found.seconds == near([across])
    exposed = np.maximum(found.seconds - delay * 8 * 0.006, 0.0)
    assert found.exposed == near(exposed)
    gathered = gather(2 * 8e8, 8)
    added = outer_steps.step_seconds(*asked)[:, 0, 0, 0]
    whole = (2 * exposed[0] + gathered) / 10
    assert added == near([whole, whole, whole, 2 * exposed[0] / 10])
