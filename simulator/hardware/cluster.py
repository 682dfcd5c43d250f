"""Clusters: accelerator, links, nodes and host, from hardware profiles.

Bandwidths are bytes/s in one direction for one GPU, the convention of NCCL's bus bandwidth.
Neglected: GPUs of different kinds in one job (refused), failures, other jobs on the network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from ..base.files import is_file
from ..base.text_tables import facts_html
from ..base.units import format_bytes
from . import profile_changes
from .accelerator import Accelerator, AttentionTime, GemmTime, MemoryBoundTime, TrainingTime
from .leaves import PACKAGE, describe, problem
from .precision import WIDTHS
from .profile_file import MEASUREMENTS, read_profile, with_network
from .profile_schema import LAYERS
from .provenance import Profile, Provenance, TableFile, neutral

_TABLE = "kernels.gemm.{}.table"
_ARGUMENTS = {
    "accelerator.memory": "memory",
    "links.fast.bandwidth": "intra_node_bandwidth",
    "links.network.bandwidth": "inter_node_bandwidth",
    "links.network.latency": "network_latency",
    "links.network.latency_per_node": "latency_per_node",
    "links.network.nic_gpus": "nic_gpus",
    "links.network.site_bandwidth": "site_bandwidth",
    "links.network.site_latency": "site_latency",
    profile_changes.POWER: "power_limit",
}
"""Arguments of Cluster.profile by the number of the profile that they replace."""


@dataclass(frozen=True, kw_only=True)
class CollectiveTime:
    """Constants of t = latency + steps latency_per_step + root sqrt(x) + x / bandwidth + o /
    own_bandwidth, where x is the bytes one rank sends, o the share of the buffer that it keeps and
    steps the rounds of a ring."""

    latency: float
    latency_per_step: float
    root: float
    """Seconds per square root of a byte."""
    bandwidth: float
    own_bandwidth: float = math.inf
    """Bytes/s at which a rank copies or adds what it does not send."""
    root_bytes: float = math.inf
    """Bytes around which the root term of an all-to-all stops growing."""


@dataclass(frozen=True, kw_only=True)
class FastDomain:
    """GPUs joined by NVLink, xGMI or PCIe."""

    name: str
    gpus: int
    bandwidth: float
    """Datasheet bytes/s."""
    all_reduce: CollectiveTime
    all_gather: CollectiveTime
    reduce_scatter: CollectiveTime
    all_to_all: CollectiveTime
    send: CollectiveTime
    switch_all_reduce: CollectiveTime | None = None
    """All-reduce inside the switch (NVLS), for more than four ranks; None where there is none."""
    peer_memory: bool = True
    """Kernels write into each other's memory (NVLink, xGMI), as overlapped tensor parallelism does;
    not across PCIe."""


@dataclass(frozen=True, kw_only=True)
class InterNodeNetwork:
    """The network between fast domains: one NIC share a GPU."""

    name: str
    bandwidth: float
    """Datasheet bytes/s of the NICs of a domain divided by its GPUs."""
    efficiency: float
    """Share of that which a collective reaches."""
    latency: float
    """Seconds to cross the fabric once."""
    latency_per_node: float
    """Seconds for each further node of a ring, all of whose GPUs pass on (each doubling of a tree:
    TREE_HOPS_PER_DOUBLING of collectives.py)."""
    root: float
    """Seconds per square root of a byte."""
    nic_gpus: float = 1.0
    """GPUs that share a NIC: one of them alone sends at their shares together."""
    ring_bandwidth: float = math.inf
    """Bytes/s that one ring carries from node to node, however many NICs its ranks have."""
    site_bandwidth: float = 0.0
    """Bytes/s of the link that all GPUs of a site share to other sites; 0 where sites are parts of
    one network."""
    site_latency: float = 0.0
    """Seconds of that link."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """Host memory, links and drives of a node."""

    link_bandwidth: float
    """Datasheet bytes/s of one link (PCIe, NVLink-C2C) in one direction."""
    link_gpus: float
    """GPUs that share a link."""
    memory_bandwidth: float
    """Datasheet bytes/s of a node's memory."""
    memory: float
    """Bytes of a node's memory."""
    nvme: float | None = None
    """Bytes of a node's NVMe drives; None where the profile does not say, as below."""
    nvme_read: float | None = None
    """Bytes/s at which all of them are read."""
    nvme_write: float | None = None

    @property
    def has_drives(self) -> bool:
        """Whether the drives are known."""
        return None not in (self.nvme, self.nvme_read, self.nvme_write)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Accelerators of one kind, in fast domains joined by a network.

    >>> cluster = Cluster.profile("h100-sxm", gpus=64)
    >>> cluster, cluster.nodes
    (Cluster('h100-sxm', 64 x H100-80GB-SXM5), 8)
    """

    name: str
    """Name of the profile, or path of its file."""
    accelerator: Accelerator
    gpus: int
    gpus_per_node: int
    fast_domain: FastDomain
    network: InterNodeNetwork
    host: Host | None
    """None where the profile has none."""
    provenance: Mapping[str, Provenance]
    """By dotted key of the profile; overridden numbers say so."""
    settings: Mapping[str, float | str] = field(default_factory=dict)
    """Changes of the profile besides the size of nodes, by argument of `profile`."""

    def __repr__(self) -> str:
        return f"Cluster({self.name!r}, {self.gpus} x {self.accelerator.name})"

    def _repr_html_(self) -> str:
        facts = {
            "GPUs": f"{self.gpus} x {self.accelerator.name}",
            "nodes": f"{self.nodes} of {self.gpus_per_node} GPUs",
            "memory of a GPU": format_bytes(self.accelerator.memory),
            "fast domain": f"{self.fast_domain.gpus} GPUs",
            "network of a GPU": f"{self.network.bandwidth / 1e9:.4g} GB/s",
        }
        return facts_html(self.name, facts)

    @property
    def nodes(self) -> int:
        """Nodes the GPUs fill; the last one may be partly used."""
        return -(-self.gpus // self.gpus_per_node)

    @classmethod
    def profile(
        cls,
        name_or_path: str | Path,
        gpus: int | None = None,
        *,
        nodes: int | None = None,
        gpus_per_node: int | None = None,
        gpus_per_domain: int | None = None,
        inter_node_bandwidth: float | None = None,
        intra_node_bandwidth: float | None = None,
        memory: float | None = None,
        network_latency: float | None = None,
        latency_per_node: float | None = None,
        nic_gpus: int | None = None,
        site_bandwidth: float | None = None,
        site_latency: float | None = None,
        network: str | None = None,
        power_limit: float | None = None,
        learned: bool = True,
    ) -> Cluster:
        """A cluster of `gpus` GPUs (or of full `nodes`) of a shipped profile or a TOML file.

        `gpus_per_domain` are those that a job fills of a domain of several nodes: 64 of 72;
        `nic_gpus` GPUs share one network adapter, all of which one of them may use alone;
        `site_bandwidth` and `site_latency` are of the link of a whole site to others. The other
        arguments replace numbers of the profile: SI units, bandwidths in one direction for
        one GPU. The collectives follow intra_node_bandwidth in proportion, what GEMMs sustain a
        power_limit below the board's (watts). `network` names one with constants of its own
        (EFA), at the machine's bandwidth. Not `learned`: without what published runs taught
        (provenance.neutral).
        """
        numbers = {
            "memory": memory,
            "intra_node_bandwidth": intra_node_bandwidth,
            "inter_node_bandwidth": inter_node_bandwidth,
            "network_latency": network_latency,
            "latency_per_node": latency_per_node,
            "nic_gpus": nic_gpus,
            "site_bandwidth": site_bandwidth,
            "site_latency": site_latency,
            "power_limit": power_limit,
        }
        changes = {key: numbers[name] for key, name in _ARGUMENTS.items()}
        given = {key: value for key, value in changes.items() if value is not None}
        original = file = read_profile(name_or_path)
        file = file if network is None else with_network(file, network)
        file = file if learned else neutral(file)
        file, total = profile_changes.resize_cluster(file, gpus, nodes, gpus_per_node)
        if gpus_per_domain is not None:
            file = profile_changes.with_domains(file, gpus_per_domain)
        file = profile_changes.with_numbers(file, given)
        link = file.section("links.network")
        if link.get("site_latency") and not link.get("site_bandwidth"):
            where = "links.network.site"
            raise problem(file.name, f"{where}_latency needs {where}_bandwidth, such as 10Gb/s")
        return cls(
            name=file.name,
            accelerator=_accelerator(file),
            gpus=total,
            gpus_per_node=int(file.numbers["node.gpus"]),
            fast_domain=_fast_domain(file),
            network=InterNodeNetwork(name=file.texts["links.network.name"], **link),
            host=Host(**host) if (host := file.section("host")) else None,
            provenance=file.provenance,
            settings=_settings(original, file, given, gpus_per_domain),
        )


def _settings(
    original: Profile, file: Profile, given: Mapping[str, float], gpus_per_domain: int | None
) -> dict[str, float | str]:
    """The arguments that differ from the original profile."""
    out: dict[str, float | str] = {
        _ARGUMENTS[key]: file.numbers[key]
        for key in given
        if file.numbers[key] != original.numbers.get(key)
    }
    if gpus_per_domain not in (None, original.numbers["links.fast.gpus"]):
        out["gpus_per_domain"] = file.numbers["links.fast.gpus"]
    name = file.texts["links.network.name"]
    return out if name == original.texts["links.network.name"] else {**out, "network": name}


def _accelerator(file: Profile) -> Accelerator:
    gemms = {width: file.section(f"kernels.gemm.{width}") for width in WIDTHS}
    return Accelerator(
        name=file.texts["accelerator.name"],
        title=file.texts["accelerator.title"],
        **file.section("accelerator"),
        peak=file.section("accelerator.peak"),
        gemm={width: GemmTime(**constants) for width, constants in gemms.items() if constants},
        attention=AttentionTime(**file.section("kernels.attention")),
        memory_bound=MemoryBoundTime(**file.section("kernels.memory_bound")),
        training=TrainingTime(**file.section("kernels.training")),
        format_shares=file.section("kernels.formats"),
        gemm_tables={w: _table(file, k) for w in WIDTHS if (k := _TABLE.format(w)) in file.tables},
        layer_tables={
            key.removeprefix(LAYERS).removesuffix(".table"): _table(file, key)
            for key in file.tables
            if key.startswith(LAYERS)
        },
    )


def _table(file: Profile, key: str) -> TableFile:
    """A table beside the user's profile, or one of the shipped."""
    table = file.tables[key]
    beside = Path(file.name).parent / table.path
    if file.name.endswith(".toml") and is_file(beside):
        return table._replace(path=str(beside.resolve()))
    if not files(PACKAGE).joinpath(MEASUREMENTS, table.path).is_file():
        raise problem(file.name, f"{key}.file: no {describe(table.path)} beside it or shipped")
    return table


def _fast_domain(file: Profile) -> FastDomain:
    names = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]
    if "links.fast.switch_all_reduce.bandwidth" in file.numbers:
        names.append("switch_all_reduce")
    return FastDomain(
        name=file.texts["links.fast.name"],
        gpus=int(file.numbers["links.fast.gpus"]),
        bandwidth=file.numbers["links.fast.bandwidth"],
        **{name: CollectiveTime(**file.section(f"links.fast.{name}")) for name in names},
        peer_memory=bool(file.numbers.get("links.fast.peer_memory", 1)),
    )
