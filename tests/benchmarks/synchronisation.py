"""Published times of synchronisation of small networks, and their prediction.

    python tests/benchmarks/synchronisation.py

ResNet-50 and BERT-Large on V100 nodes of 8 with a 25 Gb/s network, all-reduced or averaged with
neighbours. A network is fitted to two communication times of ResNet-50 on 256 GPUs; hours and
iterations follow from it and one compute time. Of a model only its parameters count here.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.operators import collectives
from plan3d.simulator.plan.gossip_graphs import Topology
from plan3d.simulator.plan.synchronisation import Sync, SyncPolicy
from plan3d.simulator.runs.published_runs import PublishedRun, read_runs
from plan3d.simulator.runs.run_plan import ONE_PEER, RING, SYNC_POLICIES
from plan3d.simulator.step import gradient_exchange
from plan3d.simulator.step.slot_delays import added_seconds

PROFILE = "v100-16gb-sxm"
GPUS_A_NODE = 8
FP32 = 4.0
"""Bytes of a gradient or weight."""
RESNET_50, BERT_LARGE = 25.5e6, 340e6
"""Parameters (He et al. 2016 as the lectures count them; Devlin et al. 2019)."""
ALL_REDUCE_SECONDS, GOSSIP_SECONDS = 0.278, 0.150
"""Communication of ResNet-50 on 256 GPUs in one iteration: ring all-reduce, partial averaging."""
NODE_RATE, NODE_LATENCY = 3.125e9 / 8, 75e-6
"""Bytes/s of a GPU's share of 25 Gb/s, and the profile's seconds a node: where fits start."""

NEIGHBOURS = SyncPolicy(sync=Sync.GOSSIP, topology=Topology.RING)


class FittedNetwork(NamedTuple):
    """What a fit finds."""

    bandwidth: float
    """Bytes/s of a GPU's share of the NIC, before the profile's efficiency."""
    latency: float
    """Seconds of an exchange."""
    per_node: float
    """Seconds of each further node."""

    def cluster(self, gpus: int) -> Cluster:
        """Nodes with one adapter each."""
        return Cluster.profile(
            PROFILE,
            gpus=gpus,
            inter_node_bandwidth=self.bandwidth,
            network_latency=self.latency,
            latency_per_node=self.per_node,
            nic_gpus=GPUS_A_NODE,
        )


def wire(gpus: int) -> Cluster:
    """The published adapters, 25 Gb/s a node, and the profile's latencies."""
    return Cluster.profile(PROFILE, gpus=gpus, inter_node_bandwidth=NODE_RATE, nic_gpus=GPUS_A_NODE)


class Compared(NamedTuple):
    """One published figure and its prediction."""

    what: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def sync_seconds(policy: SyncPolicy, parameters: float, cluster: Cluster) -> float:
    """Seconds to synchronise fp32 parameters once among all GPUs of a cluster, nothing hidden."""
    group = collectives.place_group(np.array([float(cluster.gpus)]), 1.0, cluster)
    return float(gradient_exchange.exchange_seconds(FP32, policy, parameters, group, cluster)[0])


def fit_network(
    gpus: int = 256,
    parameters: float = RESNET_50,
    all_reduce: float = ALL_REDUCE_SECONDS,
    gossip: float = GOSSIP_SECONDS,
) -> FittedNetwork:
    """The network on which a ring all-reduce and averaging with two neighbours take so long.

    Both times are linear in seconds a byte and seconds a node: two equations, two unknowns.
    """

    def times(rate: float, latency: float) -> NDArray[np.float64]:
        cluster = FittedNetwork(rate, latency, latency).cluster(gpus)
        return np.array([sync_seconds(p, parameters, cluster) for p in (RING, NEIGHBOURS)])

    start = times(NODE_RATE, NODE_LATENCY)
    slower = times(NODE_RATE / 2, NODE_LATENCY) - start
    later = times(NODE_RATE, 2 * NODE_LATENCY) - start
    wanted = np.array([all_reduce, gossip]) - start
    bytes_, nodes = np.linalg.solve(np.stack([slower, later], axis=1), wanted)
    latency = NODE_LATENCY * (1 + float(nodes))
    return FittedNetwork(NODE_RATE / (1 + float(bytes_)), latency, latency)


def fit_latencies(rate: float, graph: SyncPolicy = ONE_PEER) -> FittedNetwork:
    """The latencies of an exchange and of a node with which a network of that rate takes
    ALL_REDUCE_SECONDS and GOSSIP_SECONDS: linear in both."""

    def times(latency: float, node: float) -> NDArray[np.float64]:
        cluster = FittedNetwork(rate, latency, node).cluster(256)
        return np.array([sync_seconds(p, RESNET_50, cluster) for p in (RING, graph)])

    start = times(NODE_LATENCY, NODE_LATENCY)
    wanted = np.array([ALL_REDUCE_SECONDS, GOSSIP_SECONDS]) - start
    slopes = [times(2 * NODE_LATENCY, NODE_LATENCY), times(NODE_LATENCY, 2 * NODE_LATENCY)]
    each = np.linalg.solve(np.stack(slopes, axis=1) - start[:, None], wanted)
    return FittedNetwork(rate, *(NODE_LATENCY * (1 + each)).tolist())


IMAGENET_IMAGES, EPOCHS, IMAGES_A_NODE = 1_281_167, 120, 256
"""ImageNet-1k; epochs and batch are not stated with the hours and taken to be these."""
IMAGENET_HOURS = {
    4: (11.6, 11.1),
    8: (6.3, 5.7),
    16: (3.7, 2.8),
    32: (2.2, 1.5),
}
"""Nodes: hours of parallel and of decentralised SGD."""


def imagenet_hours(
    network: FittedNetwork, epochs: int = EPOCHS, graph: SyncPolicy = NEIGHBOURS
) -> list[Compared]:
    """Hours of ResNet-50 on ImageNet; compute is what the first decentralised run leaves."""
    steps = {n: IMAGENET_IMAGES * epochs / (n * IMAGES_A_NODE) for n in IMAGENET_HOURS}
    first = sync_seconds(graph, RESNET_50, network.cluster(4 * 8))
    compute = IMAGENET_HOURS[4][1] * 3600 / steps[4] - first
    out = []
    for nodes, hours in IMAGENET_HOURS.items():
        cluster = network.cluster(8 * nodes)
        for name, policy, measured in zip(
            ("parallel", "decentralised"), (RING, graph), hours, strict=True
        ):
            step = compute + sync_seconds(policy, RESNET_50, cluster)
            out.append(Compared(f"{name}, {nodes} nodes", measured, step * steps[nodes] / 3600))
    return out


BERT_HOURS = (59.02, 30.4)
"""BERT-Large on 64 GPUs: parallel, decentralised."""
BERT_COMPUTE = 0.33
"""Seconds: 8,192 tokens a GPU, 6 FLOPs a parameter and token, 50 TFLOP/s of a V100 (stated)."""


def bert_hours(network: FittedNetwork) -> Compared:
    """Hours of decentralised BERT-Large with one peer a step, from those of parallel SGD."""
    cluster = network.cluster(64)
    parallel, one_peer = (
        BERT_COMPUTE + sync_seconds(policy, BERT_LARGE, cluster) for policy in (RING, ONE_PEER)
    )
    return Compared("decentralised, 64 GPUs", BERT_HOURS[1], BERT_HOURS[0] * one_peer / parallel)


BLUEFOG_COMPUTE = {64: 0.189, 32: 0.105}
"""Seconds of an iteration by images a GPU: the smallest run of each, on one node."""
BACKWARD, CONTENTION = 2 / 3, 0.15
"""Share of compute that is backward; software.contention."""


def bluefog(network: FittedNetwork) -> list[tuple[PublishedRun, Compared]]:
    """Iterations of BlueFog's benchmark, communication hidden behind compute; smallest runs, which
    give the compute time, left out."""
    out = []
    for run in read_runs():
        compute = BLUEFOG_COMPUTE.get(run["micro_batch"])
        if run.source != "bluefog21" or run["gpus_per_node"] != 8 or run["gpus"] <= 8:
            continue
        assert compute
        policy = SYNC_POLICIES[run["framework"]]
        spent = sync_seconds(policy, RESNET_50, network.cluster(run["gpus"]))
        averages = policy.averages_weights
        window = compute if averages else BACKWARD * compute
        tail = 0.0 if averages else spent / ceil(RESNET_50 / policy.bucket_parameters)
        shown = added_seconds(np.array([spent]), np.array([window]), np.array([tail]), CONTENTION)
        what = f"{run['framework']}, {run['gpus']} GPUs, {run['micro_batch']} images"
        out.append((run, Compared(what, run["step_seconds"], compute + float(shown[0]))))
    return out


def main() -> None:
    network = fit_network()
    rate, latency = network.bandwidth / 1e9, 1e3 * network.latency
    print(f"network: {rate:.3f} GB/s a GPU, {latency:.2f} ms a node")
    for row in (*imagenet_hours(network), bert_hours(network)):
        print(
            f"{row.what}: {row.measured:.2f} h measured, {row.predicted:.2f} h predicted, "
            f"{100 * row.error:+.1f} %"
        )
    errors = 100 * np.abs([row.error for _, row in bluefog(network)])
    print(f"BlueFog's benchmark, {errors.size} rows: median error {np.median(errors):.1f} %")


if __name__ == "__main__":
    main()
