"""Clusters of published rows: what they state of boards, networks and domains, by hand."""

from __future__ import annotations

import pytest

from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.runs.published_runs import PublishedRun
from plan3d.simulator.runs.run_cluster import (
    cluster_of,
    generation,
    machine_class,
    precision_class,
)


def cluster(accelerator: str = "a100-80gb-sxm", **cells: object) -> Cluster:
    """That of a row of two nodes."""
    stated = {"gpus": 16, "gpus_per_node": 8, "board_memory_gib": 0.0, "board_power_w": 0.0,
              "node_gbps": 0.0}  # fmt: skip
    return cluster_of(PublishedRun({**stated, "accelerator": accelerator, **cells}))


def test_a_row_that_states_nothing_has_the_machine_of_its_profile() -> None:
    found, shipped = cluster(), Cluster.profile("a100-80gb-sxm", gpus=16)
    assert found.gpus == 16
    assert found.accelerator.memory == shipped.accelerator.memory
    assert found.network.bandwidth == shipped.network.bandwidth
    assert found.fast_domain.gpus == 8


def test_boards_have_the_memory_and_power_that_are_stated() -> None:
    found = cluster(board_memory_gib=40.0, board_power_w=300.0).accelerator
    assert found.memory == 40 * 2**30
    assert found.power == 300


@pytest.mark.parametrize(
    ("gbps", "each", "sharing"),
    [(800.0, 12.5e9, 1), (1600.0, 25e9, 1), (101.0, 1.578125e9, 1), (100.0, 1.5625e9, 8)],
)
def test_gigabits_of_a_node_are_shared_by_its_gpus(gbps: float, each: float, sharing: int) -> None:
    """800 Gb/s are 100 GB/s, an eighth for each GPU; up to 100 are of one adapter."""
    network = cluster(node_gbps=gbps).network
    assert network.bandwidth == pytest.approx(each)
    assert (network.nic_gpus == 8) is (sharing == 8)


@pytest.mark.parametrize(
    ("accelerator", "memory", "is_slower"),
    [("h100-sxm", 96.0, True), ("h100-sxm", 90.0, False), ("h100-sxm", 0.0, False),
     ("a100-80gb-sxm", 96.0, False)],
)  # fmt: skip
def test_large_boards_of_an_h100_have_slower_memory(
    accelerator: str, memory: float, is_slower: bool
) -> None:
    found = cluster(accelerator, board_memory_gib=memory).accelerator.memory_bandwidth
    assert (found == 2.41e12) is is_slower


@pytest.mark.parametrize(("used", "gpus"), [(4, 4), (8, 8), (16, 8)])
def test_of_a_fast_domain_a_part_may_be_used(used: int, gpus: int) -> None:
    assert cluster(domain_gpus_used=used).fast_domain.gpus == gpus


@pytest.mark.parametrize(
    ("accelerator", "born", "where"),
    [
        ("a100-40gb-sxm", "Ampere", "Ampere"),
        ("h200-sxm", "Hopper", "Hopper"),
        ("gb200", "Blackwell", "Blackwell"),
        ("gh200", "Hopper", "Hopper"),
        ("mi300x", "CDNA", "CDNA"),
        ("l40s", "Ada", "PCIe"),
        ("rtx-3090", "Ampere", "PCIe"),
        ("a100-80gb-pcie", "Ampere", "PCIe"),
    ],
)
def test_names_of_machines_tell_their_class(accelerator: str, born: str, where: str) -> None:
    assert (generation(accelerator), machine_class(accelerator)) == (born, where)


def test_classes_of_number_formats() -> None:
    found = [precision_class(one) for one in ("bf16", "fp16", "tf32", "fp8")]
    assert found == ["16-bit", "16-bit", "fp32", "fp8"]
