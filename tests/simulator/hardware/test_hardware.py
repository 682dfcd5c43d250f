"""Hardware profiles: shipped ones are complete and sourced, bad ones are refused in one line."""

from __future__ import annotations

import copy
import json
import math
import tempfile
import tomllib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from not_empty import not_empty

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster, CollectiveTime
from plan3d.simulator.hardware.leaves import PACKAGE
from plan3d.simulator.hardware.profile_file import ALIASES, AMBIGUOUS, profile_names, read_profile
from plan3d.simulator.hardware.profile_schema import OPTIONAL_NUMBERS, QUANTITIES

EXPECTED = {
    "a100-40gb-sxm",
    "a100-80gb-sxm",
    "a100-pcie-40gb",
    "a100-pcie-80gb",
    "a10",
    "a10g",
    "a30",
    "a40",
    "a800-80gb",
    "b200",
    "b300",
    "gb200",
    "gb300",
    "gh200-96gb",
    "h100-96gb",
    "h100-nvl",
    "h100-pcie",
    "h100-sxm",
    "h20",
    "h200-sxm",
    "h800-sxm",
    "l20",
    "l4",
    "l40",
    "l40s",
    "mi250x-gcd",
    "mi300x",
    "mi325x",
    "mi350x",
    "mi355x",
    "rtx-3090",
    "rtx-4090",
    "rtx-5090",
    "rtx-6000-ada",
    "rtx-a6000",
    "rtx-pro-6000",
    "t4",
    "v100-16gb-sxm",
    "v100-32gb-sxm",
}
TEXT = files(PACKAGE).joinpath("h100-sxm.toml").read_text()
TREE = tomllib.loads(TEXT)
B200 = {"bf16": 2250, "fp16": 2250, "fp8": 4500, "mxfp8": 4500, "nvfp4": 9000}


def leaves(tree: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, node in tree.items():
        yield (*path, key)
        if isinstance(node, dict):
            yield from leaves(node, (*path, key))


def write(node: Any) -> str:
    """A TOML value; tables are written inline."""
    if isinstance(node, dict):
        return "{" + ", ".join(f"{write(str(k))} = {write(v)}" for k, v in node.items()) + "}"
    if isinstance(node, list):
        return "[" + ", ".join(map(write, node)) + "]"
    if isinstance(node, bool):
        return str(node).lower()
    if isinstance(node, str):
        if node.isascii() and node.isprintable():
            return json.dumps(node)
        return '"' + "".join(f"\\U{ord(char):08X}" for char in node) + '"'
    return repr(node)


def dump(tree: dict[str, Any]) -> str:
    return "".join(f"{write(key)} = {write(node)}\n" for key, node in tree.items())


def load(content: str | bytes) -> Cluster:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "mine.toml")
        path.write_bytes(
            content.encode(errors="surrogatepass") if isinstance(content, str) else content
        )
        return Cluster.profile(path, 16)


def assert_one_line(error: InputError) -> None:
    assert len(str(error).splitlines()) == 1


def refusal(content: str | bytes) -> str:
    with pytest.raises(InputError) as error:
        load(content)
    message = str(error.value)
    assert_one_line(error.value)
    assert "mine.toml" in message
    return message


def changed(path: str, node: Any = None) -> str:
    """The text of a valid profile with one node replaced, or removed."""
    tree = copy.deepcopy(TREE)
    *parents, last = path.split("/")
    place = tree
    for parent in parents:
        place = place[parent]
    if node is None:
        del place[last]
    else:
        place[last] = node
    return dump(tree)


def test_the_shipped_profiles() -> None:
    assert set(profile_names()) == EXPECTED


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_every_number_has_a_source_and_an_origin(name: str) -> None:
    cluster = Cluster.profile(name, 64)
    numbers = read_profile(name).numbers
    assert set(numbers) == set(cluster.provenance)
    for key, origin in cluster.provenance.items():
        assert len(origin.source) > 20, key
        assert not (origin.measured and "prior" in origin.source.partition(":")[0]), key
        if not origin.measured:
            continue
        assert key.startswith(("kernels.", "links.fast.", "accelerator.memory", "host.nvme")), key


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_every_source_is_used(name: str) -> None:
    text = files(PACKAGE).joinpath(f"{name}.toml").read_text()
    for source in not_empty(tomllib.loads(text)["sources"]):
        assert f'source = "{source}"' in text


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_constants_are_physical(name: str) -> None:
    cluster = Cluster.profile(name, 64)
    gpu, fast = cluster.accelerator, cluster.fast_domain
    assert 10 * 2**30 < gpu.memory < 400 * 2**30
    assert 0.3e12 <= gpu.memory_bandwidth <= 8e12
    assert gpu.peak["fp32"] < gpu.peak["fp16"]
    assert set(gpu.gemm) == {"32bit", "16bit"}
    assert {"mxfp8", "nvfp4"} <= set(gpu.peak) or not {"mxfp8", "nvfp4"} & set(gpu.peak)
    assert cluster.gpus_per_node <= fast.gpus
    collectives = [
        fast.all_reduce,
        fast.all_gather,
        fast.reduce_scatter,
        fast.all_to_all,
        fast.send,
    ]
    for time in collectives:
        assert 0.1 * fast.bandwidth <= time.bandwidth <= fast.bandwidth
        assert time.latency + time.latency_per_step < 50e-6
        assert time.root < (1e-6 if math.isinf(time.root_bytes) else 3e-6) / math.sqrt(1000)
        assert time.own_bandwidth >= time.bandwidth
    assert cluster.network.bandwidth < fast.bandwidth


@pytest.mark.parametrize(
    ("name", "tera_flops"),
    [
        ("v100-32gb-sxm", {"fp16": 125, "fp32": 15.7}),
        ("a100-80gb-sxm", {"bf16": 312, "fp16": 312, "tf32": 156, "fp32": 19.5}),
        ("h100-sxm", {"bf16": 989, "fp16": 989, "fp8": 1979, "tf32": 494.5, "fp32": 67}),
        ("b200", {**B200, "tf32": 1125, "fp32": 80}),
        ("gb200", {**{name: rate / 0.9 for name, rate in B200.items()}, "tf32": 1250, "fp32": 80}),
        ("mi250x-gcd", {"bf16": 191.5, "fp16": 191.5, "fp32": 23.95}),
        ("mi300x", {"bf16": 1307, "fp16": 1307, "fp8": 2614, "tf32": 653.7, "fp32": 163.4}),
    ],
)
def test_datasheet_peaks(name: str, tera_flops: dict[str, float]) -> None:
    peak = Cluster.profile(name, 8).accelerator.peak
    assert peak == pytest.approx({key: value * 1e12 for key, value in tera_flops.items()})


@pytest.mark.parametrize(
    ("name", "memory_gib", "link", "nic"),
    [
        ("v100-16gb-sxm", 15.78, 150e9, 6.25e9),
        ("a100-40gb-sxm", 39.5, 300e9, 25e9),
        ("a100-80gb-sxm", 79.25, 300e9, 25e9),
        ("h100-sxm", 79.19, 450e9, 50e9),
        ("h800-sxm", 79.19, 200e9, 50e9),
        ("h200-sxm", 139.8, 450e9, 50e9),
        ("b300", 267.69, 900e9, 100e9),
        ("mi300x", 191.98, 448e9, 50e9),
    ],
)
def test_memory_and_links(name: str, memory_gib: float, link: float, nic: float) -> None:
    cluster = Cluster.profile(name, 8)
    assert cluster.accelerator.memory == pytest.approx(memory_gib * 2**30)
    assert cluster.fast_domain.bandwidth == pytest.approx(link)
    assert cluster.network.bandwidth == pytest.approx(nic)


def test_units_reach_si() -> None:
    assert Cluster.profile("h100-sxm", 8).fast_domain.switch_all_reduce == CollectiveTime(
        latency=pytest.approx(37.39e-6),
        latency_per_step=0.0,
        root=pytest.approx(0.155e-6 / math.sqrt(1000)),
        bandwidth=pytest.approx(494.2e9),
    )


def test_ranks_of_one_rack_share_the_fast_domain() -> None:
    rack = Cluster.profile("gb200", 144)
    assert (rack.gpus_per_node, rack.fast_domain.gpus, rack.nodes) == (4, 72, 36)


@pytest.mark.parametrize(("gpus", "nodes"), [(1, 1), (8, 1), (9, 2), (1024, 128), (1025, 129)])
def test_a_partial_last_node_counts(gpus: int, nodes: int) -> None:
    assert Cluster.profile("a100-80gb-sxm", gpus).nodes == nodes


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"nodes": 4}, (32, 8, 8)),
        ({"gpus": np.int64(32)}, (32, 8, 8)),
        ({"nodes": 4, "gpus_per_node": 4}, (16, 4, 4)),
        ({"gpus": 16, "nodes": 4}, (16, 4, 4)),
        ({"gpus": 10, "nodes": 4}, (10, 3, 3)),
        ({"gpus": 32, "gpus_per_node": 16}, (32, 16, 16)),
        ({"gpus": 32, "nodes": 4, "gpus_per_node": 8}, (32, 8, 8)),
    ],
)
def test_sizes(sizes: dict[str, int], expected: tuple[int, int, int]) -> None:
    cluster = Cluster.profile("h100-sxm", **sizes)  # type: ignore[arg-type]
    assert (cluster.gpus, cluster.gpus_per_node, cluster.fast_domain.gpus) == expected


@pytest.mark.parametrize(
    ("sizes", "hint"),
    [
        ({}, "gpus"),
        ({"gpus": 0}, "from 1 to 10,000,000"),
        ({"gpus": -8}, "gpus"),
        ({"gpus": 10_000_001}, "gpus"),
        ({"gpus": 8.0}, "gpus"),
        ({"gpus": True}, "gpus"),
        ({"gpus": "8"}, "gpus"),
        ({"gpus": math.nan}, "gpus"),
        ({"gpus": 10**5000}, "gpus"),
        ({"gpus": 8, "nodes": 0}, "nodes"),
        ({"gpus": 9, "nodes": 8}, "nearest: nodes 5 or gpus 16"),
        ({"gpus": 64, "nodes": 4, "gpus_per_node": 8}, "nearest: nodes 8 or gpus 32"),
        ({"gpus": 64, "gpus_per_node": 0}, "gpus_per_node"),
        ({"gpus": 64, "gpus_per_node": 200_000}, "node.gpus"),
        ({"nodes": 9_999_999, "gpus_per_node": 8}, "gpus"),
    ],
)
def test_bad_sizes(sizes: dict[str, Any], hint: str) -> None:
    with pytest.raises(InputError) as error:
        Cluster.profile("h100-sxm", **sizes)
    assert hint in str(error.value)
    assert_one_line(error.value)


def test_a_node_cannot_exceed_a_rack() -> None:
    assert Cluster.profile("gb200", 144, gpus_per_node=72).fast_domain.gpus == 72
    with pytest.raises(InputError, match="72 GPUs of the fast domain of gb200"):
        Cluster.profile("gb200", 144, gpus_per_node=73)


def test_racks_may_be_filled_in_part() -> None:
    filled = Cluster.profile("gb200", 128, gpus_per_domain=64)
    assert (filled.fast_domain.gpus, filled.gpus_per_node, filled.nodes) == (64, 4, 32)
    assert filled.provenance["links.fast.gpus"].source == "given by the user"


@pytest.mark.parametrize(
    ("name", "gpus", "hint"),
    [
        ("gb200", 66, "whole nodes of 4 .* nearest: 64"),
        ("gb200", 3, "nearest: 4"),
        ("gb200", 76, "72 GPUs .* nearest: 72"),
        ("gb200", 0, "gpus_per_domain"),
        ("h100-sxm", 4, "a fast domain of h100-sxm is a node: gpus_per_node"),
    ],
)
def test_a_rack_is_filled_by_whole_nodes(name: str, gpus: int, hint: str) -> None:
    with pytest.raises(InputError, match=hint) as error:
        Cluster.profile(name, 128, gpus_per_domain=gpus)
    assert_one_line(error.value)


def test_overrides_replace_numbers_and_say_so() -> None:
    cluster = Cluster.profile(
        "a100-40gb-sxm",
        64,
        inter_node_bandwidth=6.25e9,
        memory=38e9,
        network_latency=0.0,
        latency_per_node=300e-6,
    )
    plain = Cluster.profile("a100-40gb-sxm", 64)
    assert cluster.network.bandwidth == 6.25e9
    assert cluster.network.latency == 0.0
    assert cluster.network.latency_per_node == 300e-6
    assert cluster.accelerator.memory == 38e9
    assert cluster.fast_domain == plain.fast_domain
    user = {
        key for key, origin in cluster.provenance.items() if origin.source == "given by the user"
    }
    assert user == {
        "links.network.bandwidth",
        "links.network.latency",
        "links.network.latency_per_node",
        "accelerator.memory",
    }
    assert not any("user" in origin.source for origin in plain.provenance.values())


def test_intra_node_bandwidth_scales_the_collectives() -> None:
    plain = Cluster.profile("h100-sxm", 64).fast_domain
    cluster = Cluster.profile("h100-sxm", 64, intra_node_bandwidth=200e9)
    ratio = 200 / 450
    assert cluster.fast_domain.bandwidth == 200e9
    assert cluster.fast_domain.switch_all_reduce is not None
    assert plain.switch_all_reduce is not None
    for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"):
        before, after = getattr(plain, name), getattr(cluster.fast_domain, name)
        assert after.bandwidth == pytest.approx(before.bandwidth * ratio)
        assert after.latency == before.latency
        assert not cluster.provenance[f"links.fast.{name}.bandwidth"].measured
    switch = cluster.fast_domain.switch_all_reduce.bandwidth
    assert switch == pytest.approx(plain.switch_all_reduce.bandwidth * ratio)
    assert cluster.provenance["links.fast.bandwidth"].source == "given by the user"


@pytest.mark.parametrize(
    "option",
    [
        "inter_node_bandwidth",
        "intra_node_bandwidth",
        "memory",
        "network_latency",
        "latency_per_node",
    ],
)
@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -1.0, 1e300, "25 GB/s", True, pytest.param(10**5000, id="huge")]
)
def test_bad_overrides(option: str, value: Any) -> None:
    with pytest.raises(InputError) as error:
        Cluster.profile("h100-sxm", 64, **{option: value})
    assert_one_line(error.value)


@pytest.mark.parametrize("option", ["inter_node_bandwidth", "intra_node_bandwidth", "memory"])
def test_zero_where_positive_is_needed(option: str) -> None:
    with pytest.raises(InputError, match="above 0"):
        Cluster.profile("h100-sxm", 64, **{option: 0.0})


def test_latency_between_sites_is_that_of_a_link() -> None:
    with pytest.raises(InputError, match=r"needs links\.network\.site_bandwidth"):
        Cluster.profile("h100-sxm", 64, site_latency=0.05)
    network = Cluster.profile("h100-sxm", 64, site_latency=0.05, site_bandwidth=1e9).network
    assert (network.site_latency, network.site_bandwidth) == (0.05, 1e9)


def test_a_file_reads_as_the_profile_it_copies() -> None:
    for content in (TEXT, dump(TREE), TEXT.encode("utf-8-sig"), TEXT.replace("\n", "\r\n")):
        mine, shipped = load(content), Cluster.profile("h100-sxm", 16)
        assert mine.name.endswith("mine.toml")
        assert (mine.accelerator, mine.fast_domain, mine.network) == (
            shipped.accelerator,
            shipped.fast_domain,
            shipped.network,
        )


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("h100-s", "did you mean h100-sxm, h100-sxm5?"),
        ("h100-smx", "h100-sxm"),
        ("a100-8", "did you mean a100-80gb-sxm, a100-80gb-pcie, a100-80gb?"),
        ("a100", "means several profiles; name one: a100-40gb-sxm, a100-80gb-sxm, a100-pcie-40gb"),
        ("Tesla V100", "means several profiles; name one: v100-16gb-sxm, v100-32gb-sxm"),
        ("zzz", "known: a10, a100-40gb-sxm"),
        ("", "known:"),
        ("two\nlines", r"character \n cannot be in a name"),
        ("h100-sxm*64+a100-80gb-sxm*64", "mixed GPU types are not modelled"),
        ("h100+a100", "mixed GPU types are not modelled"),
        ("h100-sxm,a100-80gb-sxm", "mixed GPU types are not modelled"),
        ("+h100", "unknown profile"),
        ("nowhere/to/be/found.toml", "No such file"),
        ("nowhere.toml", "No such file"),
        ("/", "cannot be read"),
        ("nul\0.toml", r"character \x00 cannot be in a name"),
        ("x" * 5000 + ".toml", "has 5005 characters; at most 1000 can be read"),
    ],
)
def test_unknown_profiles(name: str, hint: str) -> None:
    with pytest.raises(InputError) as error:
        Cluster.profile(name, 8)
    assert hint in str(error.value)
    assert_one_line(error.value)


NUMBER = TREE["links"]["fast"]["bandwidth"]
SIXTEEN = {k: v for k, v in TREE["kernels"]["gemm"]["16bit"].items() if k != "table"}


@pytest.mark.parametrize(
    ("content", "hints"),
    [
        ("", ["missing"]),
        ("[accelerator", ["is not TOML"]),
        (b"\xff\xfe", ["is UTF-16"]),
        ("x = " + "[" * 5000, ["is not TOML"]),
        ("x = " + "9" * 5000, ["is not TOML"]),
        ("[[accelerator]]\n[[accelerator]]\n", ["mixed GPU types are not modelled"]),
        ("accelerators = []\n", ["mixed GPU types are not modelled"]),
        (changed("accelerator", 3), ["accelerator: must be a section"]),
        (changed("accelerator/memry", 3), ["accelerator.memry", "unknown", "did you mean memory"]),
        (changed("acelerator", {}), ["acelerator", "did you mean accelerator"]),
        (changed("links/fast/all_reduce/speed", NUMBER), ["speed: unknown field"]),
        (changed("links/fast/bandwidth"), ["links.fast.bandwidth: missing"]),
        (changed("links/fast/send/root"), ["links.fast.send.root: missing"]),
        (changed("links/fast/switch_all_reduce/root"), ["switch_all_reduce.root: missing"]),
        (changed("links/fast/all_gather"), ["links.fast.all_gather.latency: missing"]),
        (changed("kernels/gemm/16bit"), ["kernels.gemm.16bit.efficiency: missing"]),
        (changed("kernels/gemm/4bit", SIXTEEN), ["[kernels.gemm.4bit]: without accelerator.peak"]),
        (changed("accelerator/peak/fp32"), ["accelerator.peak.fp32: missing"]),
        (changed("accelerator/peak", {"fp32": TREE["accelerator"]["peak"]["fp32"]}), ["bf16"]),
        (changed("accelerator/name"), ["accelerator.name: missing"]),
        (changed("accelerator/name", 3), ["accelerator.name: must be a text"]),
        (changed("accelerator/name", " "), ["accelerator.name: must be a text"]),
        (changed("links/fast/bandwidth", 450), ["links.fast.bandwidth", 'unit = "GB/s"']),
        (changed("links/fast/bandwidth/unit"), ["links.fast.bandwidth: without unit"]),
        (changed("links/fast/bandwidth/unit", "GB"), ["'GB' is not a unit of bandwidth", "GB/s"]),
        (changed("links/fast/bandwidth/unit", 3), ["bandwidth.unit: must be a text"]),
        (changed("links/fast/bandwidth/units", "GB/s"), ["units: unknown", "did you mean unit"]),
        (changed("links/fast/bandwidth/value"), ["links.fast.bandwidth: without value"]),
        (changed("links/fast/bandwidth/value", "450"), ["'450' is not a number"]),
        (changed("links/fast/bandwidth/value", True), ["True is not a number"]),
        (changed("links/fast/bandwidth/value", [450]), ["is not a number"]),
        (changed("links/fast/bandwidth/value", math.nan), ["finite"]),
        (changed("links/fast/bandwidth/value", math.inf), ["finite"]),
        (changed("links/fast/bandwidth/value", -450), ["above 0"]),
        (changed("links/fast/bandwidth/value", 0), ["above 0"]),
        (changed("links/fast/bandwidth/value", 1e200), ["at most 1e+30"]),
        (changed("links/fast/bandwidth/value", 10**40), ["more than 40 digits"]),
        (changed("links/fast/bandwidth/source"), ["links.fast.bandwidth: without source"]),
        (changed("links/fast/bandwidth/source", "datashet"), ["did you mean datasheet"]),
        (changed("links/fast/bandwidth/measured"), ["links.fast.bandwidth: without kind"]),
        (changed("links/fast/bandwidth/measured", 1), ["measured: must be true or false"]),
        (changed("links/fast/send/latency/value", -1), ["at least 0"]),
        (changed("links/network/efficiency/value", 2.1), ["links.network.efficiency", "at most 2"]),
        (changed("kernels/gemm/16bit/efficiency/value", 78), ["efficiency", "at most 2"]),
        (changed("kernels/gemm/16bit/sharpness/value", 0.5), ["sharpness", "at least 1"]),
        (changed("node/gpus/value", 7.5), ["node.gpus: 7.5 is not a whole number"]),
        (changed("node/gpus/value", 0), ["node.gpus", "at least 1"]),
        (changed("node/gpus/value", 16), ["node.gpus: more than links.fast.gpus"]),
        (changed("sources"), ["is not in [sources]"]),
        (changed("sources", "x"), ["sources: must be a section"]),
        (changed("sources/datasheet", 3), ["sources.datasheet: must be a text"]),
    ],
)
def test_bad_files(content: str | bytes, hints: list[str]) -> None:
    message = refusal(content)
    for hint in hints:
        assert hint in message


def test_every_number_of_a_profile_is_needed_or_optional_by_name() -> None:
    for key in QUANTITIES:
        optional = ("accelerator.peak.", "kernels.training.", "kernels.formats.")
        optional += ("kernels.gemm.8bit.", "kernels.gemm.4bit.")
        if key.startswith(optional) or key in OPTIONAL_NUMBERS:
            continue
        assert f"{key}: missing" in refusal(changed(key.replace(".", "/")))


SCALARS = st.one_of(
    st.text(max_size=8),
    st.integers(),
    st.sampled_from([0, -1, 10**400, 2**70]),
    st.floats(),
    st.booleans(),
)
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=2),
    st.dictionaries(st.sampled_from(["value", "unit", "source", "x\ny", ""]), SCALARS, max_size=3),
    st.sampled_from(["GB/s", "us", "1", "datasheet", "GPUs"]),
)
PATHS = st.sampled_from(sorted(leaves(TREE)))


def check(content: str | bytes) -> None:
    try:
        cluster = load(content)
    except InputError as error:
        assert_one_line(error)
        return
    assert cluster.nodes >= 1
    assert math.isfinite(cluster.fast_domain.all_reduce.bandwidth)


@given(st.lists(st.tuples(PATHS, st.none() | VALUES, st.none() | st.text(max_size=4)), max_size=3))
def test_mutated_trees(mutations: list[tuple[tuple[str, ...], Any, str | None]]) -> None:
    tree: Any = copy.deepcopy(TREE)
    for path, value, name in mutations:
        place = tree
        for parent in path[:-1]:
            place = place.get(parent) if isinstance(place, dict) else None
        if not isinstance(place, dict) or path[-1] not in place:
            continue
        old = place.pop(path[-1])
        if name is not None:
            place[name] = old
        elif value is not None:
            place[path[-1]] = value
    try:
        content = dump(tree)
    except ValueError:
        return
    check(content)


@given(st.integers(0, len(TEXT)), st.integers(0, 60), st.text(max_size=6) | st.binary(max_size=6))
def test_mutated_texts(start: int, length: int, patch: str | bytes) -> None:
    middle = patch.encode() if isinstance(patch, str) else patch
    check(TEXT[:start].encode() + middle + TEXT[start + length :].encode())


@given(st.one_of(st.none(), SCALARS), st.one_of(st.none(), SCALARS), SCALARS)
def test_any_sizes_and_overrides(gpus: Any, nodes: Any, override: Any) -> None:
    try:
        Cluster.profile("gb200", gpus, nodes=nodes, intra_node_bandwidth=override)
    except InputError as error:
        assert_one_line(error)


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("h100", "h100-sxm"),
        ("A100-80GB-SXM", "a100-80gb-sxm"),
        ("4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 5090", "rtx-5090"),
        ("h100-80gb", "h100-sxm"),
        ("rtx4090", "rtx-4090"),
        ("H100 SXM5", "h100-sxm"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_aliases(name: str, profile: str) -> None:
    assert Cluster.profile(name, 8).name == profile


def test_every_alias_means_one_profile_that_there_is() -> None:
    names = [alias for aliases in ALIASES.values() for alias in aliases]
    assert len({*names, *AMBIGUOUS, *EXPECTED}) == len(names) + len(AMBIGUOUS) + len(EXPECTED)
    assert {*ALIASES, *(one for several in AMBIGUOUS.values() for one in several)} <= EXPECTED


@pytest.mark.parametrize(
    "file", ["../secret.csv", "/etc/passwd", "inside/../../secret.csv", "link"]
)
def test_a_table_stays_in_the_folder_of_its_profile(tmp_path, file):
    folder = tmp_path / "mine"
    folder.mkdir()
    (tmp_path / "secret.csv").write_text("secret\n")
    (folder / "link").symlink_to(tmp_path / "secret.csv")
    path = folder / "mine.toml"
    text = (files(PACKAGE) / "h100-sxm.toml").read_text(encoding="utf-8")
    assert "h100-gemm-16bit.csv" in text
    path.write_text(text.replace("h100-gemm-16bit.csv", file), encoding="utf-8")
    with pytest.raises(InputError, match="is not in the folder of the profile"):
        Cluster.profile(path, gpus=8)


def test_a_board_of_fewer_watts_sustains_what_a_limited_one_does() -> None:
    """An H100 of 500 W, and one of 700 W that is held to 500."""
    small, limited = (
        Cluster.profile(name, gpus=8, power_limit=watts).accelerator.training.sustained
        for name, watts in (("h100-96gb", None), ("h100-sxm", 500.0))
    )
    assert small == pytest.approx(limited, rel=1e-3)
