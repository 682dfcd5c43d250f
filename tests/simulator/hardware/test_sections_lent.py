"""Sections of links that another machine, or a network of its own, lends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.profile_file import network_names, read_profile
from plan3d.simulator.hardware.provenance import neutral
from plan3d.simulator.operators.collectives import ProcessGroup, all_reduce

TEXT = """
base = "a100-80gb-sxm"
[links.fast]
base = "mi300x"
bandwidth = { value = 44.8, unit = "GB/s", source = "s", kind = "datasheet" }
[links.network]
base = "efa"
[sources]
s = "a sheet"
"""


def write(folder: Path, text: str) -> str:
    path = folder / "mine.toml"
    path.write_text(text)
    return str(path)


def test_a_domain_and_a_network_of_others(tmp_path: Path) -> None:
    """A tenth of the link of an MI300X, 448 GB/s, has a tenth of its collectives."""
    mine = read_profile(write(tmp_path, TEXT))
    base, other = read_profile("a100-80gb-sxm"), read_profile("mi300x")
    for key, value in other.section("links.fast.all_gather").items():
        scale = 0.1 if key.endswith("bandwidth") else 1.0
        assert mine.numbers[f"links.fast.all_gather.{key}"] == pytest.approx(scale * value)
    assert mine.texts["links.fast.name"] == other.texts["links.fast.name"]
    assert mine.numbers["accelerator.power"] == base.numbers["accelerator.power"]
    assert mine.numbers["links.network.bandwidth"] == base.numbers["links.network.bandwidth"]
    assert mine.numbers["links.network.latency"] == 51e-6
    sources = {key: origin.source for key, origin in mine.provenance.items()}
    assert sources["links.fast.all_gather.bandwidth"].startswith("as mi300x in proportion to")
    assert sources["links.network.latency"].startswith("as efa, curves")
    assert sources["accelerator.power"].startswith("as a100-80gb-sxm, ")


def test_what_the_lender_of_a_domain_has_not_is_gone(tmp_path: Path) -> None:
    text = TEXT.replace("a100-80gb-sxm", "h100-sxm")
    assert Cluster.profile(write(tmp_path, text), gpus=8).fast_domain.switch_all_reduce is None


def test_a_cluster_on_a_network(tmp_path: Path) -> None:
    plain, efa = (Cluster.profile("h100-sxm", gpus=16, network=n) for n in (None, "efa"))
    assert (efa.network.name, efa.network.latency_per_node) == ("EFA", 300e-6)
    assert efa.network.bandwidth == plain.network.bandwidth
    assert efa.fast_domain == plain.fast_domain
    unseen = Cluster.profile("h100-sxm", gpus=16, network="efa", learned=False)
    assert unseen.network.latency_per_node == 75e-6
    assert network_names() == ("efa", "omni-path")
    assert neutral(read_profile(write(tmp_path, TEXT))).numbers["links.network.latency"] == 51e-6


@pytest.mark.parametrize(
    ("profile", "nodes", "per_node", "measured"),
    [
        ("a100-80gb-sxm", 4, 8, 1.5309),
        ("a100-80gb-sxm", 4, 4, 1.5051),
        ("v100-32gb-sxm", 4, 4, 0.7083),
        ("v100-32gb-sxm", 16, 4, 1.1621),
    ],
)
def test_omni_path_is_as_measured(profile: str, nodes: int, per_node: int, measured: float) -> None:
    """All-reduces of 4 GB (bigscience, experiments/bandwidth): one bandwidth of a ring stands for
    nodes that reach 40 to 85 Gb/s of 400, and is within a factor of 1.7 of each."""
    how = {"gpus_per_node": per_node, "inter_node_bandwidth": 50e9 / per_node}
    cluster = Cluster.profile(profile, nodes=nodes, network="omni-path", **how)
    ranks = nodes * per_node
    group = ProcessGroup(*(np.array([float(n)]) for n in (ranks, per_node, nodes)))
    seconds = float(all_reduce(4e9, group, cluster)[0])
    assert seconds == pytest.approx(2 * (1 - 1 / ranks) * 4e9 / 6.5e9, rel=0.03)
    assert 1 / 1.7 < seconds / measured < 1.7
    own = ProcessGroup(*(np.array([float(n)]) for n in (nodes, 1, nodes)))
    share = min(0.37 * cluster.network.bandwidth, 6.5e9)
    alone = 2 * (1 - 1 / nodes) * 4e9 / share
    assert float(all_reduce(4e9, own, cluster)[0]) == pytest.approx(alone, rel=0.03)
    assert cluster.network.latency == Cluster.profile(profile, gpus=16).network.latency


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('[links.fast]\nbase = "h100-sxm"', "links.fast.base: needs a base of the machine"),
        ('base = "h100-sxm"\n[links.fast]\nbase = 3', "links.fast.base: must be a text in quotes"),
        ('base = "h100-sxm"\n[links.network]\nbase = "efb"', "efb: unknown profile"),
        ('base = "h100-sxm"\n[links.fast]\nbase = "efa"', "efa: unknown profile"),
    ],
)
def test_bad_bases_of_sections(text: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        read_profile(write(tmp_path, text))
    assert hint in str(error.value)


def test_an_unknown_network() -> None:
    with pytest.raises(InputError, match="infiniband: unknown network; known: efa, omni-path"):
        Cluster.profile("h100-sxm", gpus=16, network="infiniband")
