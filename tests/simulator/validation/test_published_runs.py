"""Are published rows read as they were meant? Cells, models, layouts, networks, refusals."""

from __future__ import annotations

import csv
import io
from collections import Counter
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.software_stack import SOFTWARE
from plan3d.simulator.pipeline.schedules import code
from plan3d.simulator.plan.codes import Recompute
from plan3d.simulator.validation.published_runs import COLUMNS, SHIPPED, PublishedRun, read_runs
from plan3d.simulator.validation.run_conventions import CONVENTIONS, FAMILIES, KERNELS, convention
from plan3d.simulator.validation.run_tasks import Question, questions

LLAMA = {
    "run": "a",
    "source": "hf_ultrascale",
    "status": "ok",
    "accelerator": "h100-sxm",
    "inter_node_network": "EFA (AWS, HF cluster)",
    "model": "Llama",
    "family": "llama",
    "framework": "nanotron",
    "dtype": "bf16",
    "gpus": 16,
    "gpus_per_node": 8,
    "layers": 16,
    "hidden": 2048,
    "ffn_hidden": 8192,
    "heads": 32,
    "kv_heads": 32,
    "vocab": 131072,
    "sequence": 4096,
    "global_batch": 256,
    "micro_batch": 2,
    "tp": 2,
    "pp": 2,
    "dp": 4,
    "zero_stage": 1,
    "sequence_parallel": True,
    "step_seconds": 5.0,
    "notes": "tied_emb=True; grad_accum=32",
}
GPT = LLAMA | {
    "source": "megatron_sc21",
    "accelerator": "a100-80gb-sxm",
    "inter_node_network": None,
    "family": "gpt",
    "framework": "Megatron-LM",
    "dtype": None,
    "vocab": None,
    "zero_stage": 0,
    "sequence_parallel": False,
    "notes": None,
}


def run(**cells: Any) -> PublishedRun:
    return PublishedRun({**dict.fromkeys(COLUMNS), **cells})


def ask(**cells: Any) -> Question:
    (answer,) = questions([run(**cells)])
    assert isinstance(answer, Question), answer
    return answer


def refusal(**cells: Any) -> str:
    (answer,) = questions([run(**cells)])
    assert isinstance(answer, str)
    return answer


def write(path: Path, *rows: dict[str, Any], drop: str = "") -> Path:
    names = [name for name in COLUMNS if name != drop]
    out = io.StringIO("# a comment\n")
    out.seek(0, io.SEEK_END)
    writer = csv.DictWriter(out, [*names, "further"], extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    path.write_text(out.getvalue(), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def shipped() -> list[PublishedRun]:
    return read_runs()


@pytest.fixture(scope="module")
def answers(shipped: list[PublishedRun]) -> list[Question | str]:
    return questions(shipped)


def test_the_shipped_rows_are_small_and_free(shipped: list[PublishedRun]) -> None:
    text = (resources.files("plan3d.simulator.validation") / SHIPPED).read_text(encoding="utf-8")
    assert len(text) < 700_000
    assert len(shipped) == 2524
    assert "hagemann24" not in text
    head = [line for line in text.splitlines() if line.startswith("#")]
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    for row in rows:
        named = any(f" {row['source']}: http" in line for line in head)
        assert named != bool(row["url"]), row["run"]


def test_nearly_all_timed_transformers_have_a_question(
    shipped: list[PublishedRun], answers: list[Question | str]
) -> None:
    timed = [a for r, a in zip(shipped, answers, strict=True) if r["step_seconds"] and r["hidden"]]
    refused = Counter(a for a in timed if isinstance(a, str))
    later = sum(n for why, n in refused.items() if why.startswith("schedule 'zb"))
    assert sum(refused.values()) - later <= 0.03 * len(timed), refused


def test_equal_tasks_are_one_object(answers: list[Question | str]) -> None:
    tasks = {id(a.task) for a in answers if isinstance(a, Question)}
    assert len(tasks) < 400


def test_models_have_the_parameters_that_rows_state(answers: list[Question | str]) -> None:
    exact = [
        a
        for a in answers
        if isinstance(a, Question) and a.run.source in ("hf_ultrascale", "vtrain24_single")
    ]
    assert len(exact) > 1800
    for q in exact:
        assert q.task.model.parameters == pytest.approx(1e9 * q.run["n_params_b"], rel=2e-3)


def test_a_file_round_trips(tmp_path: Path) -> None:
    (read,) = read_runs(write(tmp_path / "runs.csv", LLAMA))
    assert read["tp"] == 2
    assert read["sequence_parallel"] is True
    assert read["virtual_stages"] is None
    assert read.given("virtual_stages", 1) == 1
    assert not read.ran_out_of_memory


def test_whole_numbers_may_be_printed_as_decimals(tmp_path: Path) -> None:
    (read,) = read_runs(write(tmp_path / "runs.csv", LLAMA | {"layers": "16.0"}))
    assert read["layers"] == 16


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "runs.csv", LLAMA, drop="micro_batch")
    with pytest.raises(InputError, match=r"no column micro_batch$"):
        read_runs(path)


@pytest.mark.parametrize(
    ("column", "cell", "message"),
    [
        ("tp", "two", "row 1: tp 'two' must be a whole number"),
        ("tp", "1.5", "must be a whole number"),
        ("pp", "-1", "must be a whole number"),
        ("step_seconds", "0", "must be a number above 0"),
        ("step_seconds", "nan", "must be a number above 0"),
        ("gpus", "inf", "must be a whole number"),
        ("fsdp", "perhaps", "must be True or False"),
    ],
)
def test_a_wrong_cell_is_named(tmp_path: Path, column: str, cell: str, message: str) -> None:
    path = write(tmp_path / "runs.csv", LLAMA | {column: cell})
    with pytest.raises(InputError, match=message):
        read_runs(path)


def test_files_that_are_no_table_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_runs(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8"):
        read_runs(tmp_path / "binary.csv")
    with pytest.raises(InputError, match="has no rows"):
        read_runs(write(tmp_path / "empty.csv"))


def test_every_convention_names_a_shipped_profile() -> None:
    for name, rule in CONVENTIONS.items():
        for dtype in ("fp16", "bf16"):
            assert rule.software.format(dtype=dtype) in SOFTWARE, name
    assert convention("unknown", "nanotron 0.4").software == "nanotron"
    assert convention("unknown", "something else").software == "megatron-core"


def test_a_row_becomes_a_plan() -> None:
    q = ask(**LLAMA)
    p = q.plan
    assert (p.tp, p.pp, p.dp, p.micro_batch, p.zero) == (2, 2, 4, 2, 1)
    assert p.sequence_parallel == 1
    assert p.recompute == Recompute.NONE
    assert p.schedule == code("1f1b")
    assert (q.task.sequence, q.task.global_batch, q.task.gpus) == (4096, 256, 16)
    assert q.task.model.tied
    assert q.task.software.name == "nanotron"
    assert not ask(**LLAMA | {"notes": "tied_emb=False"}).task.model.tied


def test_what_a_row_leaves_out_comes_from_its_convention() -> None:
    q = ask(**GPT)
    assert q.task.model.vocabulary == 51200
    assert q.plan.to_dict()["precision"] == "fp16"
    assert q.plan.recompute == Recompute.FULL
    assert not q.plan.overlap_grad_reduce
    assert ask(**GPT | {"notes": "DDP=torch"}).plan.overlap_grad_reduce
    assert ask(**GPT | {"zero_stage": None, "fsdp": True}).plan.zero == 3


def test_networks_that_rows_name_replace_those_of_the_profile() -> None:
    efa = ask(**LLAMA).task.cluster.network
    assert efa.bandwidth == pytest.approx(50e9)
    assert efa.latency_per_node == pytest.approx(300e-6)
    slow = ask(**GPT | {"inter_node_network": "4x Omni-Path per node"}).task.cluster.network
    assert slow.bandwidth == pytest.approx(6.25e9)
    assert slow.latency_per_node == ask(**GPT).task.cluster.network.latency_per_node


def test_racks_are_used_in_part() -> None:
    nemo = GPT | {"source": "dgxc", "dtype": "bf16", "gpus_per_node": 4, "virtual_stages": 1}
    assert ask(**nemo | {"accelerator": "gb200"}).task.cluster.fast.gpus == 64
    assert ask(**nemo | {"accelerator": "h100-sxm"}).task.cluster.fast.gpus == 4


def test_kernels_and_flash_attention_change_the_software() -> None:
    note = 'trial 1, kernel="{}", more'
    base = ask(**LLAMA).task.software
    for kernel, fields in KERNELS.items():
        software = ask(**LLAMA | {"notes": note.format(kernel)}).task.software
        assert {name: getattr(software, name) for name in fields} == dict(fields)
    eager = ask(**LLAMA | {"flash_attention": False}).task.software
    assert base.flash_attention
    assert not eager.flash_attention
    assert "unknown kernel" in refusal(**LLAMA | {"notes": note.format("triton")})


def test_stages_whose_ends_have_one_layer_fewer() -> None:
    note = "First and last stage have one layer fewer."
    shape = {"source": "zerobubble24", "gpus": 8, "tp": 1, "pp": 8, "dp": 1, "layers": 22}
    plain = GPT | shape | {"notes": note, "schedule": "1f1b", "framework": "Megatron-LM (modified)"}
    assert ask(**plain).plan.layers_per_stage == (2, 3, 3, 3, 3, 3, 3, 2)
    chunks = ask(**plain | {"schedule": "interleaved", "virtual_stages": 3}).plan
    assert chunks.schedule == code("interleaved")
    assert chunks.layers_per_stage == (0, *[1] * 22, 0)


def test_nemo_recipes_without_virtual_stages_are_interleaved_to_the_layer() -> None:
    nemo = GPT | {"source": "dgxc", "dtype": "bf16", "schedule": "1f1b", "sequence_parallel": True}
    p = ask(**nemo).plan
    assert (p.virtual_stages, p.schedule) == (8, code("interleaved"))
    assert p.overlap_tp
    assert p.overlap_grad_reduce
    assert ask(**nemo | {"virtual_stages": 1}).plan.virtual_stages == 1


def test_a_mixture_of_experts_is_built_from_its_columns() -> None:
    moe = LLAMA | {"family": "moe", "experts": 8, "experts_per_token": 2, "ep": 4, "notes": None}
    q = ask(**moe)
    experts = q.task.model.kinds[0].experts
    assert experts is not None
    assert (experts.count, experts.top_k, experts.ffn) == (8, 2, 8192)
    assert (q.plan.ep, q.plan.etp) == (4, 2)


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ({"family": "resnet"}, "'resnet' is no decoder-only transformer"),
        ({"family": None}, "'' is no decoder-only transformer"),
        ({"heads": None, "layers": None}, "layers, heads not stated"),
        ({"micro_batch": None}, "micro_batch not stated"),
        ({"notes": "LoRA: frozen"}, "most weights are frozen"),
        ({"notes": "optimizer offload=Y"}, "offload of weights to the host"),
        ({"recompute": "custom remat policy"}, "recompute=custom remat policy is not modelled"),
        ({"schedule": "interleaved (GIS)", "virtual_stages": 2}, "is not modelled"),
        ({"schedule": "interleaved"}, "virtual stages of an interleaved schedule are not stated"),
        ({"n_params_b": 400.0}, "do not give the parameters"),
        ({"accelerator": "h10"}, "h10"),
        ({"dp": 3}, "breaks the rule world-size"),
    ],
)
def test_what_is_not_modelled_is_refused_with_the_reason(cells: dict[str, Any], why: str) -> None:
    assert why in refusal(**LLAMA | cells)


def test_families_cover_the_decoders() -> None:
    assert set(FAMILIES) == {"gpt", "mpt", "bloom", "llama", "moe"}


@pytest.mark.parametrize(
    ("framework", "sync", "topology"),
    [
        ("Horovod", "ring", "none"),
        ("BlueFog N_AR", "gossip", "inner-outer-exponential"),
        ("BlueFog H_N_AR", "hierarchical-gossip", "one-peer-exponential"),
    ],
)
def test_a_framework_names_the_way_to_synchronise(framework: str, sync: str, topology: str) -> None:
    runs = [run for run in read_runs() if run["framework"] == framework]
    asked = [question for question in questions(runs) if isinstance(question, Question)]
    assert len(asked) == len(runs) > 5
    for question in asked:
        plan = question.plan.to_dict()
        assert (plan["sync"], plan["topology"]) == (sync, topology)
        assert (plan["dp"], plan["precision"]) == (question.run["gpus"], "fp32")
        assert question.task.model.name == "resnet-50"


def test_a_layer_list_needs_no_sizes_but_a_machine() -> None:
    (run, *_) = (run for run in read_runs() if run.source == "bluefog21")
    blind = PublishedRun({**run.cells, "accelerator": None})
    assert questions([blind]) == ["accelerator not stated"]
    other = PublishedRun({**run.cells, "model": "ResNet-152"})
    assert questions([other]) == ["family 'resnet' is no decoder-only transformer"]
