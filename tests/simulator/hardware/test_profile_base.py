"""Machines that stand on another profile, and what every number says of where it comes from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.calibration.fit.fit import Calibration
from plan3d.simulator.calibration.fit.profile_text import Changes, base_tree, emit, profile_text
from plan3d.simulator.hardware.accelerator import Accelerator
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.profile_file import profile_names, read_profile
from plan3d.simulator.hardware.provenance import Provenance
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

PAIRS = Path(__file__).parents[3] / "docs/examples/h100_nvl_pairs.toml"
SIX = """
base = "h100-sxm"

[accelerator]
name = "H100-PCIe"
memory = { value = 79.1, unit = "GiB", source = "sheet", kind = "datasheet" }
memory_bandwidth = { value = 2.0, unit = "TB/s", source = "sheet", kind = "datasheet" }

[accelerator.peak]
bf16 = { value = 756, unit = "TFLOP/s", source = "sheet", kind = "datasheet" }

[node]
gpus = { value = 4, unit = "GPUs", source = "sheet", kind = "datasheet" }

[links.fast]
bandwidth = { value = 64, unit = "GB/s", source = "sheet", measured = false }

[links.network]
bandwidth = { value = 12.5, unit = "GB/s", source = "sheet", measured = false }

[sources]
sheet = "the datasheet of a card"
"""


def write(folder: Path, text: str, name: str = "mine.toml") -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(InputError) as error:
        Cluster.profile(write(folder, text), 8)
    message = str(error.value)
    assert len(message.splitlines()) == 1
    assert message.startswith(f"{folder}/mine.toml: ")
    return message.removeprefix(f"{folder}/mine.toml: ")


def seconds(cluster: Cluster, plan: str = "tp=2 micro_batch=2") -> float:
    task = Task(Model.preset("llama-7b"), cluster, sequence=2048, global_batch=64)
    return float(evaluate(task, Plan.parse(plan)).step_seconds)


def bare(accelerator: Accelerator) -> Accelerator:
    """Without where tables come from."""
    unknown = Provenance(source="", measured=False, kind="datasheet")
    tables = {k: t._replace(provenance=unknown) for k, t in accelerator.gemm_tables.items()}
    return replace(accelerator, gemm_tables=tables, layer_tables={})


def test_six_numbers_make_a_profile(tmp_path: Path) -> None:
    mine = read_profile(write(tmp_path, SIX))
    h100 = read_profile("h100-sxm").numbers
    expected = {
        "accelerator.memory": 79.1 * 2**30,
        "accelerator.memory_bandwidth": 2e12,
        "accelerator.power": 700.0,
        # Peaks in proportion to 756 of 989.
        "accelerator.peak.fp16": 756e12,
        "accelerator.peak.fp8": 1979e12 * 756 / 989,
        "accelerator.peak.fp32": 67e12 * 756 / 989,
        # Collectives in proportion to 64 of 450, latencies as they were.
        "links.fast.all_reduce.bandwidth": 351.6e9 * 64 / 450,
        "links.fast.all_to_all.own_bandwidth": 1600e9 * 64 / 450,
        "links.fast.all_reduce.latency": 4.423e-6,
        # A domain is a node, whose GPUs share the memory of the host.
        "links.fast.gpus": 4,
        "host.memory": 1024 * 2**30,
        "host.link_bandwidth": 63e9,
        "links.network.bandwidth": 12.5e9,
        "links.network.efficiency": 0.85,
        "kernels.gemm.16bit.efficiency": 0.779,
    }
    assert {key: mine.numbers[key] for key in expected} == pytest.approx(expected)
    assert mine.numbers.keys() == h100.keys()
    assert mine.texts["accelerator.title"] == "H100-PCIe"
    assert mine.texts["links.network.name"] == "InfiniBand NDR"


def test_what_is_inherited_says_so(tmp_path: Path) -> None:
    mine = read_profile(write(tmp_path, SIX))
    own = {key for key, origin in mine.provenance.items() if origin.kind == "datasheet"}
    assert own == {
        *("accelerator.memory", "accelerator.memory_bandwidth", "accelerator.peak.bf16"),
        *("node.gpus", "links.fast.bandwidth", "links.network.bandwidth"),
    }
    for key in mine.numbers.keys() - own:
        origin = mine.provenance[key]
        assert (origin.kind, origin.measured) == ("prior", False)
        assert origin.source.startswith("as h100-sxm")
    assert "as h100-sxm in proportion to the peak" in mine.provenance["accelerator.peak.fp8"].source
    assert "in proportion" not in mine.provenance["kernels.gemm.16bit.efficiency"].source
    assert mine.provenance["kernels.memory_bound.efficiency"].origins == ()
    for table in mine.tables.values():
        assert (table.provenance.kind, table.provenance.measured) == ("prior", False)


@pytest.mark.parametrize("name", profile_names())
def test_a_base_alone_is_the_same_machine(name: str, tmp_path: Path) -> None:
    mine = Cluster.profile(write(tmp_path, f'base = "{name}"'), 16)
    shipped = Cluster.profile(name, 16)
    assert bare(mine.accelerator) == bare(shipped.accelerator)
    assert (mine.fast_domain, mine.network, mine.host) == (
        shipped.fast_domain,
        shipped.network,
        shipped.host,
    )
    assert mine.accelerator.layer_tables == {}


def test_tables_of_gemms_move_with_the_machine(tmp_path: Path) -> None:
    text = 'base = "h100-sxm"\n[accelerator.peak]\nbf16 = '
    text += '{ value = 494.5, unit = "TFLOP/s", source = "s", kind = "datasheet" }\n'
    mine = Cluster.profile(write(tmp_path, f'{text}[sources]\ns = "half of it"'), 16)
    h100 = Cluster.profile("h100-sxm", 16)
    peaks = {name: peak / 2 for name, peak in h100.accelerator.peak.items()}
    halved = replace(h100, accelerator=replace(h100.accelerator, peak=peaks))
    assert mine.accelerator.peak == pytest.approx(peaks)
    assert seconds(mine) == pytest.approx(seconds(halved), rel=1e-12)
    assert seconds(mine) > 1.5 * seconds(h100)


def test_own_constants_replace_the_table_of_their_width(tmp_path: Path) -> None:
    own = 'base = "h100-sxm"\n[kernels.gemm.16bit]\nefficiency = '
    own += '{ value = 0.4, unit = "1", source = "s", kind = "prior" }\n[sources]\ns = "a guess"'
    mine = Cluster.profile(write(tmp_path, own), 16)
    assert not mine.accelerator.gemm_tables
    assert mine.accelerator.gemm["16bit"].efficiency == 0.4
    assert mine.accelerator.gemm["16bit"].latency == pytest.approx(2.945e-6)


def test_a_rack_stays_a_rack(tmp_path: Path) -> None:
    text = 'base = "gb200"\n[node]\n'
    text += 'gpus = { value = 8, unit = "GPUs", source = "s", kind = "datasheet" }\n'
    mine = Cluster.profile(write(tmp_path, f'{text}[sources]\ns = "two trays"'), 144)
    assert (mine.gpus_per_node, mine.fast_domain.gpus) == (8, 72)


def test_bases_of_files_are_found_beside_them(tmp_path: Path) -> None:
    write(tmp_path, SIX, "cards/pcie.toml")
    two = 'base = "cards/pcie.toml"\n[links.network]\nbandwidth = '
    two += '{ value = 25, unit = "GB/s", source = "s", kind = "datasheet" }\n[sources]\ns = "a NIC"'
    mine = read_profile(write(tmp_path, two))
    assert mine.numbers["links.network.bandwidth"] == 25e9
    assert mine.numbers["accelerator.memory_bandwidth"] == 2e12
    origins = mine.provenance
    assert origins["accelerator.memory_bandwidth"].source.startswith("as pcie.toml, sheet: ")
    assert origins["accelerator.power"].source.startswith("as h100-sxm, datasheet: ")


def test_what_a_machine_is_without(tmp_path: Path) -> None:
    text = 'base = "h100-sxm"\nwithout = ["links.fast.switch_all_reduce", "host", '
    text += '"accelerator.peak.fp8", "kernels.formats"]'
    mine = Cluster.profile(write(tmp_path, text), 16)
    assert mine.fast_domain.switch_all_reduce is None
    assert mine.host is None
    assert "fp8" not in mine.accelerator.peak
    assert set(mine.accelerator.gemm) == set(mine.accelerator.gemm_tables) | {"32bit"}


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('base = "h100"', "base: h100: unknown profile, and not the path of a .toml file; did you"),
        ('base = "h101-sxm"', "did you mean h100-sxm"),
        ("base = 3", "base: must be a text in quotes"),
        ('base = "gone.toml"', "gone.toml: cannot be read (No such file or directory)"),
        ('base = "mine.toml"', "base: goes in a circle, mine.toml -> mine.toml"),
        ('bas = "h100-sxm"', "bas: unknown field; did you mean base?"),
        ("", "accelerator.memory: missing; give it, or a base that has it"),
        ('without = ["host"]', "without: needs a base"),
        ('base = "h100-sxm"\nwithout = "host"', "without: must be a list of fields"),
        ('base = "h100-sxm"\nwithout = ["hots"]', "'hots' is nothing that h100-sxm has; did you"),
        ('base = "h100-sxm"\nwithout = ["node"]', "node.gpus: missing"),
        (SIX.replace("\n\n", '\nwithout = ["node"]\n\n', 1), "without: node is given below"),
        (SIX.replace('"H100-PCIe"', '"H100\\nPCIe"'), "character \\n cannot be in a name"),
        (SIX.replace('"H100-PCIe"', f'"{"x" * 201}"'), "has 201 characters; at most 200"),
    ],
)
def test_bad_bases(text: str, hint: str, tmp_path: Path) -> None:
    assert hint in refusal(tmp_path, text)


def test_a_circle_of_files(tmp_path: Path) -> None:
    write(tmp_path, 'base = "mine.toml"', "other.toml")
    assert "a circle, mine.toml -> other.toml -> mine.toml" in refusal(
        tmp_path, 'base = "other.toml"'
    )


LEAF = 'base = "h100-sxm"\n[node]\ngpus = {{ value = 8, unit = "GPUs", source = "s", {} }}\n'
LEAF += '[sources]\ns = "a citation"'


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("measured = true", (True, "measured", ())),
        ("measured = false", (False, "datasheet", ())),
        ('kind = "measured"', (True, "measured", ())),
        ('kind = "prior"', (False, "prior", ())),
        ('kind = "prior", origins = ["a", "b", "a"]', (False, "prior", ("a", "b"))),
        ('kind = "fitted", origins = ["nvidia"]', (False, "fitted", ("nvidia",))),
        ('kind = "fitted", measured = true, origins = ["n-1"]', (True, "fitted", ("n-1",))),
    ],
)
def test_kinds_and_origins(said: str, expected: tuple[Any, ...], tmp_path: Path) -> None:
    origin = read_profile(write(tmp_path, LEAF.format(said))).provenance["node.gpus"]
    assert (origin.measured, origin.kind, origin.origins) == expected
    assert (origin.id, origin.citation) == ("s", "a citation")


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ('unit = "GPUs"', "is not TOML"),
        ("origins = []", "node.gpus: without kind; write { value = ..., unit ="),
        ('kind = "mesured"', "kind: 'mesured' is no kind of number here; did you mean measured?"),
        ('kind = "rule"', "'rule' is no kind of number here; known: measured, fitted, prior, data"),
        ("kind = 3", "node.gpus.kind: 3 is no kind"),
        ('kind = "prior", measured = true', 'kind = "prior" contradicts measured = true'),
        ('kind = "measured", measured = false', 'kind = "measured" contradicts measured = false'),
        ('kind = "fitted"', 'kind = "fitted" needs origins = [...], those of the runs'),
        ('kind = "datasheet", origins = ["a"]', "was learned from no run: leave origins out"),
        ('kind = "prior", origins = "a"', "node.gpus.origins: must be a list of names"),
        ('kind = "prior", origins = ["a b"]', "node.gpus.origins: must be a list of names"),
        ('kind = "prior", origin = ["a"]', "node.gpus.origin: unknown field; did you mean origins"),
    ],
)
def test_bad_kinds_and_origins(said: str, hint: str, tmp_path: Path) -> None:
    assert hint in refusal(tmp_path, LEAF.format(said))


def test_numbers_that_published_runs_taught_name_their_origins() -> None:
    found = {
        (name, key): (origin.kind, origin.measured, origin.origins)
        for name in profile_names()
        for key, origin in read_profile(name).provenance.items()
        if origin.origins and key != "kernels.memory_bound.efficiency"
    }
    sustained = ("fitted", True, ("bigscience",))
    assert found == {
        ("v100-16gb-sxm", "kernels.training.sustained"): sustained,
        ("v100-32gb-sxm", "kernels.training.sustained"): sustained,
        ("t4", "kernels.training.sustained"): ("prior", False, ("bigscience",)),
        ("a10g", "links.network.latency_per_node"): ("prior", False, ("hf_ultrascale",)),
    }
    table = read_profile("a100-80gb-sxm").tables["kernels.layer.vtrain.table"].provenance
    assert (table.kind, table.measured, table.origins) == ("fitted", False, ("vtrain",))


def test_numbers_of_the_user_are_no_measurements() -> None:
    cluster = Cluster.profile("h100-sxm", 64, intra_node_bandwidth=200e9, gpus_per_node=4)
    kinds = {key: origin.kind for key, origin in cluster.provenance.items()}
    assert kinds["links.fast.bandwidth"] == kinds["node.gpus"] == "datasheet"
    assert kinds["links.fast.all_reduce.bandwidth"] == kinds["host.memory"] == "prior"
    assert kinds["links.fast.all_reduce.latency"] == "measured"


def test_a_calibration_of_a_profile_with_a_base_is_whole(tmp_path: Path) -> None:
    base = write(tmp_path, SIX, "cards/pcie.toml")
    text = profile_text(str(base), Changes(numbers={}, citation="none"), tmp_path / "out.toml")
    copy, original = read_profile(write(tmp_path, text)), read_profile(base)
    assert copy.numbers == original.numbers
    assert copy.texts == original.texts
    assert copy.provenance == original.provenance
    assert copy.tables == original.tables
    assert "base" not in base_tree(str(base))
    assert emit({"a": {"origins": ["x", "y"], "unit": "1"}}) == (
        'a = { origins = ["x", "y"], unit = "1" }\n'
    )
    assert Calibration(fits=(), numbers={}).numbers == {}


def test_the_pairs_of_the_example_keep_tensor_parallelism_on_their_bridge() -> None:
    def tensor_seconds(machine: str, tp: int) -> float:
        cluster = Cluster.profile(machine, gpus=8)
        task = Task(Model.preset("llama-3.1-8b"), cluster, sequence=4096, global_batch=64)
        return float(evaluate(task, Plan(tp=tp, dp=8 // tp)).seconds["tensor_comm"])

    pairs, plain = ([tensor_seconds(one, tp) for tp in (2, 8)] for one in (str(PAIRS), "h100-nvl"))
    # 300 instead of 63 GB/s in a pair, latencies aside; between pairs each card moves half.
    assert 3.5 < plain[0] / pairs[0] < 300 / 63
    assert pairs[1] == pytest.approx(plain[1] / 2, rel=0.05)
