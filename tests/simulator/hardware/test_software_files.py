"""Stacks from TOML files: shipped ones are sourced, one's own work, bad ones are refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import fields, replace
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from not_empty import not_empty

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.leaves import PACKAGE
from plan3d.simulator.hardware.software import ALIVE
from plan3d.simulator.hardware.software_stack import (
    FLAGS,
    LEAVES,
    NAMES,
    QUANTITIES,
    SOFTWARE,
    Software,
    software_profile,
)
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

SHIPPED = {
    *("fsdp", "megatron-core", "megatron-deepspeed-bf16", "megatron-deepspeed-fp16"),
    *("megatron-lm-2021", "nanotron", "torch", "vtrain", "zero-bubble", "torchtitan", "deepspeed"),
    *("hf-trainer", "hf-deepspeed", "automodel"),
}
ORIGINS = {
    *("nvidia", "nvidia_papers", "hagemann24", "hf_ultrascale", "vtrain", "llmfoundry"),
    *("bigscience", "zerobubble24", "flagperf", "ibm", "internevo24", "lumi_mi250x"),
    *("megascale24", "fsdp_qlora", "aws", "pytorch", "mlperf_more"),
}
"""Names of origins of published runs."""
WHOLE = files(PACKAGE).joinpath("software/megatron-core.toml").read_text(encoding="utf-8")
MINE = """
base = "megatron-core"
title = "our stack"
sustained = { value = 90, unit = "%", source = "loop", kind = "measured" }
layer_floor = { value = 0.2, unit = "ms", source = "runs", kind = "fitted", origins = ["ours"] }
flash_attention = { value = false, source = "loop", kind = "rule" }
selective = { value = ["layernorm"], source = "loop", kind = "rule" }

[sources]
loop = "a loop of GEMMs on one node"
runs = "twelve steps of last week"
"""


def write(folder: Path, text: str, name: str = "mystack.toml") -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def refusal(folder: Path, text: str) -> str:
    path = write(folder, text)
    with pytest.raises(InputError) as error:
        software_profile(path)
    message = str(error.value)
    assert len(message.splitlines()) == 1
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


def task(software: object = "megatron-core", cluster: Cluster | None = None) -> Task:
    machine = cluster or Cluster.profile("h100-sxm", gpus=16)
    model = Model.preset("llama-7b")
    return Task(model, machine, sequence=2048, global_batch=64, software=software)  # type: ignore[arg-type]


def seconds(question: Task) -> float:
    return float(evaluate(question, Plan(tp=2, micro_batch=2)).step_seconds)


def values(stack: Software) -> dict[str, object]:
    return {name: getattr(stack, name) for name in LEAVES}


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_what_is_in_memory_when_was_read_in_a_file(name):
    found = software_profile(name).provenance
    rules = {field: found[field].source for field in ALIVE if found[field].kind == "rule"}
    named = re.compile(r"\.(py|cpp)\b|torch\.\w+\.\w+")
    assert {field: source for field, source in rules.items() if not named.search(source)} == {}


def test_every_field_is_a_number_a_flag_or_a_list_of_modules() -> None:
    about = {"name", "title", "framework", "base", "provenance", "spreads"}
    assert set(LEAVES) | about == {field.name for field in fields(Software)}
    assert set(LEAVES) == {*QUANTITIES, *FLAGS, *NAMES}


def test_the_shipped_stacks() -> None:
    assert set(SOFTWARE) == SHIPPED
    assert [name for name in SHIPPED if SOFTWARE[name].framework == "megatron"] == [
        name for name in SHIPPED if name in ("megatron-core", "megatron-lm-2021")
    ]


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_every_field_has_a_source(name: str) -> None:
    stack = software_profile(name)
    assert set(stack.provenance) == set(LEAVES)
    for field, origin in stack.provenance.items():
        assert len(origin.citation) > 15, field
        assert origin.kind in ("measured", "fitted", "rule", "prior")
        assert set(origin.origins) <= ORIGINS, field
        assert origin.origins or origin.kind != "fitted", field


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_every_source_is_used(name: str) -> None:
    text = files(PACKAGE).joinpath(f"software/{name}.toml").read_text(encoding="utf-8")
    sources = text.partition("[sources]")[2]
    for line in not_empty(filter(None, sources.splitlines())):
        assert f'source = "{line.partition(" = ")[0]}"' in text, line


def test_numbers_that_are_fitted_know_to_what() -> None:
    found = {
        (name, field): origin.origins
        for name, stack in SOFTWARE.items()
        for field, origin in stack.provenance.items()
        if origin.kind == "fitted"
    }
    assert found == {
        ("fsdp", "sustained"): ("llmfoundry",),
        ("fsdp", "attention_rate"): ("llmfoundry",),
        ("fsdp", "memory_bound_rate"): ("llmfoundry",),
        ("fsdp", "fsdp_contention"): ("llmfoundry",),
        ("megatron-deepspeed-bf16", "sustained"): ("bigscience",),
        ("megatron-deepspeed-bf16", "memory_bound_rate"): ("bigscience",),
        ("megatron-deepspeed-bf16", "gradient_memory"): ("bigscience",),
        ("megatron-deepspeed-bf16", "optimizer_memory"): ("bigscience",),
        ("megatron-deepspeed-fp16", "layer_floor"): ("vtrain",),
        ("megatron-deepspeed-fp16", "connection_bytes"): ("bigscience",),
        ("nanotron", "sustained"): ("hf_ultrascale",),
        ("nanotron", "memory_bound_rate"): ("vtrain", "hf_ultrascale", "llmfoundry", "nvidia"),
        ("nanotron", "layer_floor"): ("hf_ultrascale",),
        ("nanotron", "pipeline_floor"): ("hf_ultrascale",),
        ("nanotron", "slice_seconds"): ("hf_ultrascale",),
        ("nanotron", "step_seconds"): ("hf_ultrascale",),
        ("nanotron", "lone_step_seconds"): ("hf_ultrascale",),
        ("vtrain", "step_seconds"): ("vtrain",),
        ("vtrain", "lone_step_seconds"): ("vtrain",),
        ("nanotron", "gradient_memory"): ("hf_ultrascale",),
        ("nanotron", "boundary_buffers"): ("hf_ultrascale",),
        ("vtrain", "layer_floor"): ("vtrain",),
        ("zero-bubble", "sustained"): ("zerobubble24",),
        ("zero-bubble", "memory_bound_rate"): ("zerobubble24",),
        ("zero-bubble", "gradient_memory"): ("zerobubble24",),
        ("zero-bubble", "optimizer_memory"): ("zerobubble24",),
    }


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("megatron-core", "layer_floor", 411e-6),
        ("megatron-core", "bucket_parameters", 40e6),
        ("megatron-core", "connection_bytes", 12.0 * 2**20),
        ("megatron-core", "vocabulary_multiple", 128),
        # A context, and two buckets of 5e8 elements of two bytes.
        ("megatron-deepspeed-fp16", "context_bytes", 0.5 * 2**30 + 2 * 5e8 * 2),
        ("vtrain", "context_bytes", 0.5 * 2**30 + 2 * 5e8 * 2),
        ("megatron-deepspeed-bf16", "context_bytes", 0.5 * 2**30),
        ("megatron-deepspeed-bf16", "layer_floor", 990e-6),
        ("megatron-deepspeed-bf16", "connection_bytes", 0.033 * 2**30),
        ("nanotron", "slice_seconds", 80e-6),
        ("nanotron", "selective", ()),
        ("zero-bubble", "selective", ("core_attn",)),
        ("torch", "layer_floor", 110e-6),
    ],
)
def test_units_reach_si(name: str, field: str, value: object) -> None:
    found = getattr(software_profile(name), field)
    assert found == value
    assert type(found) is type(value)


def test_what_a_base_lends_is_a_prior_of_the_same_origins() -> None:
    core, nanotron = software_profile("megatron-core"), software_profile("nanotron")
    assert nanotron.base == "megatron-core"
    for field, origin in nanotron.provenance.items():
        if origin.source.startswith("as "):
            assert origin.source == f"as megatron-core, {core.provenance[field].source}"
            assert (origin.kind, origin.origins) == ("prior", core.provenance[field].origins)
            assert getattr(nanotron, field) == getattr(core, field)
    lent = software_profile("vtrain").provenance
    assert lent["connection_bytes"].source.startswith("as megatron-deepspeed-fp16, peaks: ")
    assert lent["contention"].source.startswith("as megatron-core, contention: ")


def test_a_stack_of_ones_own(tmp_path: Path) -> None:
    path = write(tmp_path, MINE)
    stack, core = software_profile(path), software_profile("megatron-core")
    own = {"sustained": 0.9, "layer_floor": 0.2e-3, "flash_attention": False}
    own |= {"selective": ("layernorm",)}
    assert values(stack) == values(core) | own
    assert (stack.name, stack.label, stack.title) == (str(path), "mystack", "our stack")
    assert (stack.base, stack.framework) == ("megatron-core", "megatron")
    kinds = {field: stack.provenance[field].kind for field in own}
    assert list(kinds.values()) == ["measured", "fitted", "rule", "rule"]
    assert stack.provenance["layer_floor"].origins == ("ours",)
    same = replace(core, **own)
    assert seconds(task(path)) == seconds(task(same))
    assert seconds(task(path)) != seconds(task(core))


def test_a_whole_file_needs_no_base(tmp_path: Path) -> None:
    mine = software_profile(write(tmp_path, WHOLE))
    core = software_profile("megatron-core")
    assert values(mine) == values(core)
    assert mine.provenance == core.provenance
    assert mine.base == ""


def test_bases_of_files_are_found_beside_them(tmp_path: Path) -> None:
    write(tmp_path, MINE, "stacks/first.toml")
    stack = software_profile(write(tmp_path, 'base = "stacks/first.toml"'))
    first = software_profile(tmp_path / "stacks" / "first.toml")
    assert values(stack) == values(first)
    assert stack.title == "as first"
    assert stack.provenance["sustained"].source.startswith("as first, loop: ")
    assert stack.provenance["contention"].source.startswith("as megatron-core, contention: ")


def test_a_task_takes_a_stack_a_name_or_a_path(tmp_path: Path) -> None:
    torch = software_profile("torch")
    assert task("torch").software is task(torch).software is torch
    assert replace(task(), software="torch").software is torch
    path = write(tmp_path, MINE)
    assert task(path).software == task(str(path)).software == software_profile(path)


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (
            "megatron-cor",
            "unknown software profile 'megatron-cor', and not the path of a .toml file",
        ),
        ("megatron-cor", "did you mean megatron-core"),
        ("", "unknown software profile ''"),
        ("x" * 5000, "known: automodel, deepspeed, fsdp, hf-deepspeed, hf-trainer, megatron"),
        ("gone.toml", "gone.toml: cannot be read (No such file or directory)"),
        ("/", "cannot be read"),
        ("nul\0.toml", "nul"),
        (3, "software must be a Software, its name or a path, not 3"),
    ],
)
def test_a_task_refuses_what_is_no_stack_at_once(given: object, hint: str) -> None:
    with pytest.raises(InputError) as error:
        task(given)
    assert hint in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert len(str(error.value)) < 330


def changed(old: str, new: str) -> str:
    assert old in MINE
    return MINE.replace(old, new)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("[sources", "is not TOML"),
        ("", "sustained: missing; give it, or a base that has it"),
        (WHOLE.replace('title = "', '# "', 1), "title: missing"),
        (WHOLE.replace("contention = ", "# ", 1), "contention: missing"),
        ('base = "megatron"', "base: unknown software profile 'megatron', and not the path"),
        ('base = "mystack.toml"', "base: goes in a circle, mystack.toml -> mystack.toml"),
        ("base = 3", "base: must be a text in quotes"),
        (changed("layer_floor", "layer_flor"), "layer_flor: unknown field; did you mean layer_fl"),
        (changed("[sources]", "[source]"), "source: unknown field; did you mean sources"),
        (changed("value = 90, ", ""), 'sustained: without value; write { value = ..., unit = "1"'),
        (changed("value = 90", 'value = "90"'), "sustained.value: '90' is not a number"),
        (changed("value = 90", "value = 300"), "sustained: 3.0 must be above 0 and at most 2"),
        (changed("value = 90", "value = -1"), "sustained: -0.01 must be above 0"),
        (changed("value = 90", "value = nan"), "the ratio must be a finite number"),
        (changed('"%"', '"percent"'), "sustained: 'percent' is not a unit of ratio; known: 1, %"),
        (changed('"ms"', '"m"'), "layer_floor: 'm' is not a unit of time; did you mean ms"),
        (changed('"loop", kind = "me', '"lop", kind = "me'), "'lop' is not in [sources]; did you"),
        (changed('kind = "measured"', 'kind = "datasheet"'), "'datasheet' is no kind of number"),
        (changed(', kind = "measured"', ""), "sustained: without kind; write { value"),
        (changed('kind = "measured"', "measured = true"), "sustained.measured: unknown field"),
        (changed(', origins = ["ours"]', ""), 'kind = "fitted" needs origins'),
        (changed("value = false", "value = 0"), "flash_attention.value: 0 must be true or false"),
        (changed('value = ["lay', 'unit = "1", value = ["lay'), "selective.unit: unknown field"),
        (changed('["layernorm"]', '"layernorm"'), "selective.value: 'layernorm' must be a list"),
        (changed('["layernorm"]', '["layer"]'), "'layer' is no module; did you mean layernorm"),
        (changed('["layernorm"]', "[[1]]"), "selective.value: [1] is no module"),
        (changed('"our stack"', '"our\\u202estack"'), "character \\u202e cannot be in a name"),
        (
            changed('sustained = { value = 90, unit = "%"', 'sustained = 90 # "'),
            "sustained: must be",
        ),
        (
            changed(
                'sustained = { value = 90, unit = "%"',
                'logit_bytes = { value = 1, unit = "B/logit"',
            ),
            "kept_logit_bytes: more than logit_bytes",
        ),
    ],
)
def test_bad_files(text: str, hint: str, tmp_path: Path) -> None:
    assert hint in refusal(tmp_path, text)


def check(path: Path) -> None:
    try:
        stack = software_profile(path)
    except InputError as error:
        if len(str(error).splitlines()) != 1:
            raise
        return
    assert set(stack.provenance) == set(LEAVES)
    assert 0 < stack.sustained <= 2


@given(st.integers(0, len(MINE)), st.integers(0, 60), st.text(max_size=6) | st.binary(max_size=6))
def test_mutated_files(start: int, length: int, patch: str | bytes) -> None:
    middle = patch.encode() if isinstance(patch, str) else patch
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "mystack.toml")
        path.write_bytes(MINE[:start].encode() + middle + MINE[start + length :].encode())
        check(path)


def test_a_file_needs_a_name_of_its_own(tmp_path: Path) -> None:
    path = write(tmp_path, MINE, "vtrain.toml")
    with pytest.raises(InputError, match="a shipped stack is called vtrain: rename the file"):
        software_profile(path)


def test_tables_of_layers_go_by_the_name_of_the_file(tmp_path: Path) -> None:
    stack = write(tmp_path, MINE.replace("false", "true"), "my.stack.toml")
    table = "hidden,tp,micro_batch,sequence,forward_us,backward_us,"
    table += "modelled_forward_us,modelled_backward_us\n4096,2,2,2048,3,6,1,2\n"
    (tmp_path / "layers.csv").write_text(table)
    leaf = '{ file = "layers.csv", source = "s", kind = "fitted", origins = ["ours"] }'
    text = f'base = "h100-sxm"\n[kernels.layer."my.stack"]\ntable = {leaf}\n[sources]\ns = "steps"'
    with_table = Cluster.profile(write(tmp_path, text, "machine.toml"), gpus=16)
    assert set(with_table.accelerator.layer_tables) == {"my.stack"}
    without = Cluster.profile(write(tmp_path, 'base = "h100-sxm"', "plain.toml"), gpus=16)
    slow, plain = (seconds(task(stack, machine)) for machine in (with_table, without))
    assert slow > 2 * plain
    assert seconds(task("megatron-core", with_table)) == seconds(task("megatron-core", without))


READS = """
import sys
opened = []
sys.addaudithook(lambda event, given: event == "open" and opened.append(str(given[0])))
{}
print(sorted(name.rpartition("/")[2] for name in opened if name.endswith(".toml")))
"""


@pytest.mark.parametrize(
    ("code", "read"),
    [
        ("from plan3d.cli.main import main; main(['--help'])", []),
        ("from plan3d.cli.main import main; main(['search', '--help'])", []),
        ("import plan3d.simulator.task, plan3d.search.rank_plans", []),
        (
            "from plan3d import software_profile; software_profile('megatron-core')",
            ["megatron-core"],
        ),
        (
            "from plan3d import software_profile; software_profile('vtrain')",
            ["megatron-core", "megatron-deepspeed-fp16", "megatron-lm-2021", "vtrain"],
        ),
    ],
)
def test_only_the_stack_that_is_asked_for_is_read(code: str, read: list[str]) -> None:
    command = [sys.executable, "-c", READS.format(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == str([f"{name}.toml" for name in read])


OUTSIDE = """
import json
from dataclasses import replace
from plan3d import Cluster, Model, Plan, Task, evaluate, software_profile
from plan3d.cli.main import main
from plan3d.simulator.hardware.software_stack import register_software

register_software(replace(software_profile("torch"), name="torch-half", sustained=0.47))
machine, model = Cluster.profile("h100-sxm", gpus=1), Model.preset("llama-7b")
times = []
for name in ("torch", "torch-half"):
    task = Task(model, machine, sequence=2048, global_batch=4, software=name)
    times.append(evaluate(task, Plan(micro_batch=4)).compute_seconds["matmul"])
try:
    register_software(software_profile("nanotron"))
    register_software(replace(software_profile("nanotron"), sustained=1.0))
except ValueError as error:
    print(json.dumps({"times": times, "taken": str(error)}))
raise SystemExit(main(["software", "torch-half", "--json"]))
"""


def test_a_stack_from_outside_is_registered() -> None:
    command = [sys.executable, "-c", OUTSIDE]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    first, _, rest = done.stdout.partition("\n")
    told = json.loads(first)
    assert told["times"][1] == pytest.approx(2 * told["times"][0], rel=1e-3)
    assert told["taken"] == "software profile 'nanotron' is there already"
    assert json.loads(rest)["fields"]["sustained"]["value"] == 0.47
