"""Published rows are read as they were meant: cells, models, layouts, networks, refusals."""

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
from plan3d.simulator.pipeline.schedules import schedule_code
from plan3d.simulator.plan.field_values import Recompute
from plan3d.simulator.runs.published_runs import NEEDED, SHIPPED, PublishedRun, columns, read_runs
from plan3d.simulator.runs.run_model import FAMILIES
from plan3d.simulator.runs.run_plan import _shard
from plan3d.simulator.runs.run_stack import STACKS
from plan3d.simulator.runs.run_tasks import Question, questions
from plan3d.simulator.step.evaluate import evaluate

LLAMA = {
    "run": "a",
    "source": "somebody",
    "stack": "nanotron",
    "accelerator": "h100-sxm",
    "inter_node_network": "EFA (AWS, HF cluster)",
    "node_gbps": 3200.0,
    "model": "Llama",
    "family": "llama",
    "dtype": "bf16",
    "gpus": 16,
    "gpus_per_node": 8,
    "layers": 16,
    "hidden": 2048,
    "ffn_hidden": 8192,
    "heads": 32,
    "kv_heads": 32,
    "vocab": 131072,
    "tied": True,
    "sequence": 4096,
    "global_batch": 256,
    "micro_batch": 2,
    "tp": 2,
    "pp": 2,
    "dp": 4,
    "zero_stage": 1,
    "sequence_parallel": True,
    "step_seconds": 5.0,
}
GPT = {
    **LLAMA,
    "stack": "megatron-2021",
    "accelerator": "a100-80gb-sxm",
    "inter_node_network": None,
    "node_gbps": None,
    "family": "gpt",
    "tied": None,
    "dtype": "fp16",
    "vocab": 51200,
    "zero_stage": 0,
    "sequence_parallel": False,
}


def run(**cells: Any) -> PublishedRun:
    return PublishedRun({name: cell for name, cell in cells.items() if cell is not None})


def ask(**cells: Any) -> Question:
    (answer,) = questions([run(**cells)])
    assert isinstance(answer, Question), answer
    return answer


def refusal(**cells: Any) -> str:
    (answer,) = questions([run(**cells)])
    assert isinstance(answer, str)
    return answer


def write(path: Path, *rows: dict[str, Any], drop: str = "") -> Path:
    names = [name for name in columns() if name != drop]
    out = io.StringIO("# a comment\n")
    out.seek(0, io.SEEK_END)
    writer = csv.DictWriter(out, names, extrasaction="ignore")
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
    text = (resources.files("plan3d.simulator.runs") / SHIPPED).read_text(encoding="utf-8")
    assert len(text) < 2_500_000
    assert len(shipped) == 3973
    assert "hagemann24" not in {run.source for run in shipped}
    assert len({run.source for run in shipped}) == 53
    assert all(run.states("origin") for run in shipped)
    assert len({run["run"] for run in shipped}) == len(shipped)


def test_nearly_all_expressible_rows_have_a_question(
    shipped: list[PublishedRun], answers: list[Question | str]
) -> None:
    """Of timed rows of decoders, but adapters and hybrids, which are not modelled."""
    refused: Counter[str] = Counter()
    rows = 0
    for one, answer in zip(shipped, answers, strict=True):
        other = one["training"] == "peft"
        if one.has_step_time and not other and one["family"] not in ("hybrid", "bert"):
            rows += 1
            refused.update([answer] if isinstance(answer, str) else [])
    assert rows > 2500
    assert sum(refused.values()) <= 0.04 * rows, refused.most_common(9)


def test_equal_tasks_are_one_object(answers: list[Question | str]) -> None:
    tasks = {id(a.task) for a in answers if isinstance(a, Question)}
    assert len(tasks) < 0.4 * len(answers)


def test_models_have_the_parameters_that_rows_state(answers: list[Question | str]) -> None:
    exact = [
        a
        for a in answers
        if isinstance(a, Question) and a.run.source in ("hf_ultrascale", "vtrain24_single")
    ]
    assert len(exact) > 1800
    for q in exact:
        assert q.task.model.parameters == pytest.approx(1e9 * q.run["n_params_b"], rel=3e-3)


def test_a_file_round_trips(tmp_path: Path) -> None:
    (read,) = read_runs(write(tmp_path / "runs.csv", LLAMA))
    assert read["tp"] == 2
    assert read["sequence_parallel"] is True
    assert not read.states("virtual_stages")
    assert read["virtual_stages"] == 1
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
        ("sequence_parallel", "perhaps", "must be True or False"),
        ("stack", "megatorn-core", "is unknown; did you mean megatron-core"),
        ("optimizer", "adan", "is unknown; did you mean adam"),
        ("run", "a\u202eb", "cannot be in a name"),
    ],
)
def test_a_wrong_cell_is_named(tmp_path: Path, column: str, cell: str, message: str) -> None:
    path = write(tmp_path / "runs.csv", LLAMA | {column: cell})
    with pytest.raises(InputError, match=message):
        read_runs(path)


def test_an_unknown_word_makes_its_row_unsupported_and_not_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "runs.csv", LLAMA, LLAMA | {"optimizer": "adan"})
    first, second = questions(read_runs(path))
    assert isinstance(first, Question)
    assert second == "optimizer 'adan' is unknown; did you mean adam?"


def test_files_that_are_no_table_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_runs(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is UTF-16"):
        read_runs(tmp_path / "binary.csv")
    with pytest.raises(InputError, match="has no rows"):
        read_runs(write(tmp_path / "empty.csv"))


def test_an_unknown_column_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "runs.csv", LLAMA)
    path.write_text(path.read_text().replace("virtual_stages", "virtual_stage"))
    with pytest.raises(InputError, match="unknown column 'virtual_stage'; did you mean virtual_st"):
        read_runs(path)


def test_columns_that_nothing_stands_in_for_are_needed() -> None:
    assert set(NEEDED) <= set(columns())
    assert not any(columns()[name].default for name in NEEDED)


def test_every_stack_names_a_shipped_profile() -> None:
    assert set(STACKS) == set(columns()["stack"].words)
    for name, rule in STACKS.items():
        for dtype in ("fp16", "bf16"):
            assert rule.software.format(dtype=dtype) in SOFTWARE, name


def test_a_row_becomes_a_plan() -> None:
    q = ask(**LLAMA)
    p = q.plan
    assert (p.tp, p.pp, p.dp, p.micro_batch, p.zero) == (2, 2, 4, 2, 1)
    assert p.sequence_parallel == 1
    assert p.recompute == Recompute.NONE
    assert p.schedule == schedule_code("1f1b")
    assert (q.task.sequence, q.task.global_batch, q.task.gpus) == (4096, 256, 16)
    assert q.task.model.tied
    assert q.task.software.name == "nanotron"
    assert not ask(**LLAMA | {"tied": False}).task.model.tied


def test_what_a_row_leaves_out_comes_from_its_stack() -> None:
    q = ask(**GPT)
    assert q.plan.to_dict()["precision"] == "fp16"
    assert not q.plan.overlap_grad_reduce
    assert ask(**GPT | {"overlap_grad_reduce": True}).plan.overlap_grad_reduce
    assert ask(**GPT | {"stack": "nemo", "zero_stage": 1}).plan.overlap_param_gather


def test_internevo_reduces_gradients_in_16_bits_beside_the_backward_pass() -> None:
    q = ask(**LLAMA | {"stack": "internevo"})
    assert (q.task.software.reduce_bytes, q.task.software.gradient_memory) == (2.0, 2.0)
    assert (q.plan.overlap_grad_reduce, q.plan.overlap_param_gather) == (1, 0)


def test_the_update_of_internevo_holds_26_bytes_a_parameter() -> None:
    """Weights and gradients in 16 bits 4, fp32 states 12, gradients flat 2 and in fp32 4, square
    roots of the second moments 4 (hybrid_zero_optim.py), of InternLM-7B split by tp 4."""
    runs = [run for run in read_runs() if run.source == "internevo24" and run["tp"] == 4]
    (asked,) = (q for q in questions(runs[:1]) if isinstance(q, Question))
    costs = evaluate(asked.peak_task, asked.plan)
    own = asked.task.model.parameters / 4
    held = costs.memory_bytes - costs.memory["reserve"]
    assert held == pytest.approx(26 * own, rel=0.03)


def test_networks_that_rows_name_replace_those_of_the_profile() -> None:
    efa = ask(**LLAMA).task.cluster.network
    assert efa.bandwidth == pytest.approx(50e9)
    assert efa.latency_per_node == pytest.approx(300e-6)
    omni_path = ask(**GPT | {"inter_node_network": "4x Omni-Path per node"}).task.cluster.network
    assert (omni_path.name, omni_path.efficiency) == ("Omni-Path", 0.37)
    slow = ask(**GPT | {"node_gbps": 400.0}).task.cluster.network
    assert slow.bandwidth == pytest.approx(6.25e9)
    assert slow.latency_per_node == ask(**GPT).task.cluster.network.latency_per_node


def test_racks_are_used_in_part() -> None:
    rack = GPT | {"stack": "nemo", "dtype": "bf16", "gpus_per_node": 4, "domain_gpus_used": 64}
    assert ask(**rack | {"accelerator": "gb200"}).task.cluster.fast_domain.gpus == 64
    assert ask(**rack | {"accelerator": "h100-sxm"}).task.cluster.fast_domain.gpus == 4


def test_attention_kernels_have_the_rates_of_their_own_timings() -> None:
    """FlashAttention-2 on H100 1/1.65 of FlashAttention-3; materialised scores are in memory."""
    base = ask(**LLAMA).task.software
    assert (base.flash_attention, base.attention_rate) == (True, 1.0)
    second = ask(**LLAMA | {"attention_kernel": "flash2"}).task.software
    assert second.attention_rate == pytest.approx(1 / 1.65, abs=0.01)
    eager = ask(**LLAMA | {"attention_kernel": "materialised"}).task.software
    assert not eager.flash_attention
    assert eager.score_bytes > 0
    kernels = LLAMA | {"attention_kernel": "materialised", "stack": "deepspeed", "tp": 1, "pp": 1}
    # Scaled, masked, softmax in fp32, dropout: every pass of transformers is a kernel.
    assert eager.score_bytes == 9.0
    assert ask(**kernels | {"dp": 16}).task.software.score_bytes == 25.0


@pytest.mark.parametrize(("virtual", "schedule"), [(2, "interleaved"), (1, "1f1b")])
def test_stages_of_two_chunks_are_interleaved(virtual: int, schedule: str) -> None:
    plan = ask(**GPT | {"pp": 4, "dp": 2, "virtual_stages": virtual, "schedule": "1f1b"}).plan
    assert (plan.virtual_stages, plan.schedule) == (virtual, schedule_code(schedule))


def test_stages_whose_ends_have_one_layer_fewer() -> None:
    shape = {"stack": "zero-bubble", "gpus": 8, "tp": 1, "pp": 8, "dp": 1, "layers": 22}
    plain = GPT | shape | {"ends_short": True, "schedule": "1f1b"}
    assert ask(**plain).plan.layers_per_stage == (2, 3, 3, 3, 3, 3, 3, 2)
    chunks = ask(**plain | {"schedule": "interleaved", "virtual_stages": 3}).plan
    assert chunks.schedule == schedule_code("interleaved")
    assert chunks.layers_per_stage == (0, *[1] * 22, 0)


def test_some_layers_may_be_run_again() -> None:
    """Every second of eight layers on a stage; or the first three of each."""
    every = ask(**LLAMA | {"recompute": "full", "recompute_every": 2}).plan
    assert [[r["layers"] for r in s] for s in every.to_dict()["segments"]] == [[4, 4], [4, 4]]
    block = {"recompute": "full", "recompute_method": "block", "recompute_layers": 3}
    stages = ask(**LLAMA | block).plan.to_dict()["segments"]
    assert [[r["layers"] for r in s] for s in stages] == [[3, 5], [3, 5]]


def test_recompute_by_a_list_of_ops() -> None:
    some = ask(**LLAMA | {"recompute": "selective", "recompute_ops": ("mlp", "layernorm")})
    assert some.task.software.selective == ("mlp", "layernorm")
    assert some.plan.recompute == Recompute.SELECTIVE


def test_without_what_runs_taught_nothing_of_it_is_left() -> None:
    (plain,) = questions([run(**LLAMA)], learned=False)
    assert isinstance(plain, Question)
    assert plain.task.software.sustained == 1.0
    efa, none = ask(**LLAMA).task.cluster.network, plain.task.cluster.network
    assert (efa.latency_per_node, efa.efficiency) == (300e-6, 0.9)
    assert none.latency_per_node != 300e-6
    assert none.efficiency == 0.9


def test_a_mixture_of_experts_is_built_from_its_columns() -> None:
    moe = LLAMA | {"family": "moe", "experts": 8, "experts_per_token": 2, "ep": 4, "etp": 1}
    q = ask(**moe)
    experts = q.task.model.kinds[0].experts
    assert experts is not None
    assert (experts.count, experts.top_k, experts.ffn) == (8, 2, 8192)
    assert (q.plan.ep, q.plan.etp) == (4, 1)


def test_a_capacity_pads_experts_but_is_a_buffer_in_hybridep() -> None:
    moe = LLAMA | {"family": "moe", "experts": 8, "experts_per_token": 2, "ep": 4, "etp": 1}
    moe |= {"stack": "megatron-core", "pp": 1, "dp": 8, "capacity_factor": 1.5}
    padded, buffer = (ask(**moe | {"dispatcher": d}) for d in ("alltoall", "hybridep"))
    assert [q.task.model.kinds[0].experts.imbalance for q in (padded, buffer)] == [1.5, 1.0]


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ({"family": "bert"}, "'bert' is no decoder-only transformer"),
        ({"heads": None, "layers": None}, "layers, heads not stated"),
        ({"micro_batch": None}, "micro_batch not stated"),
        ({"sequence": None}, "sequence not stated"),
        ({"experts": 8, "experts_per_token": 2}, "ep not stated"),
        ({"training": "peft", "peft": "vera"}, "vera is not modelled: only LoRA and QLoRA are"),
        ({"params_on_host": True}, "breaks the rule offload-parameters-needs-zero-3"),
        ({"dtype": "tf32"}, "precision tf32 is not modelled"),
        ({"recompute": "selective", "recompute_ops": ("unknown",)}, "recomputed is not stated"),
        ({"schedule": "interleaved-gis", "virtual_stages": 2}, "is not modelled"),
        ({"schedule": "interleaved"}, "virtual stages of an interleaved schedule are not stated"),
        ({"n_params_b": 400.0}, "do not give the parameters"),
        ({"accelerator": "h10"}, "h10"),
        ({"dp": 3}, "breaks the rule world-size"),
    ],
)
def test_what_is_not_modelled_is_refused_with_the_reason(cells: dict[str, Any], why: str) -> None:
    assert why in refusal(**LLAMA | cells)


def test_families_cover_the_decoders() -> None:
    assert set(FAMILIES) == {"gpt", "mpt", "bloom", "llama", "moe", "hybrid"}


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


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({"peft": "lora"}, "bf16"),
        ({"peft": "qlora"}, "nf4-dq"),
        ({"peft": "qlora", "base_format": "gptq8"}, "gptq8"),
    ],
)
def test_frozen_weights_of_qlora_are_packed_unless_a_row_says_otherwise(
    cells: dict[str, str], expected: str
) -> None:
    """And adapters are beside all matrices of a layer, as fine-tuning frameworks have it."""
    fine_tuned = {**LLAMA, "stack": "hf-trainer", "training": "peft", "tp": 1, "pp": 1, "dp": 16}
    answer = questions([run(**fine_tuned, **cells)])[0]
    assert isinstance(answer, Question)
    assert answer.task.adapters is not None
    assert answer.task.adapters.base == expected
    assert answer.task.adapters.targets == ("q", "k", "v", "o", "gate", "up", "down")


def test_modules_that_are_trained_whole_beside_adapters() -> None:
    """Embedding and head of a model, as peft's modules_to_save names them."""
    fine_tuned = {**LLAMA, "stack": "hf-trainer", "training": "peft", "tp": 1, "pp": 1, "dp": 16}
    answer = questions([run(**fine_tuned, modules_to_save=("embed_tokens", "lm_head"))])[0]
    assert isinstance(answer, Question)
    assert answer.task.adapters is not None
    assert answer.task.adapters.modules_to_save == ("embed_tokens", "lm_head")


@pytest.mark.parametrize("stack", ["torchtitan", "paxml"])
@pytest.mark.parametrize(
    ("cells", "expected"), [({}, (4.0, 2.0)), ({"loss": "unfused"}, (14.0, 6.0))]
)
def test_losses_of_compiled_stacks_are_compiled_unless_a_row_says_otherwise(
    cells: dict[str, str], expected: tuple[float, float], stack: str
) -> None:
    answer = questions([run(**{**LLAMA, "stack": stack}, **cells)])[0]
    assert isinstance(answer, Question)
    software = answer.task.software
    assert (software.logit_bytes, software.kept_logit_bytes) == expected


@pytest.mark.parametrize(("loss", "fused"), [("unfused", False), ("fused-linear", True)])
def test_norms_of_the_trainer_are_fused_with_the_loss_of_liger(loss: str, fused: bool) -> None:
    row = run(**{**LLAMA, "stack": "hf-peft", "tp": 1, "pp": 1, "dp": 16, "loss": loss})
    answer = questions([row])[0]
    assert isinstance(answer, Question)
    assert answer.task.software.fused_norm == fused


@pytest.mark.parametrize(("cells", "fused"), [({}, False), ({"compile": True}, True)])
def test_norms_of_torchtune_are_fused_where_it_compiles(
    cells: dict[str, bool], fused: bool
) -> None:
    answer = questions(
        [run(**{**LLAMA, "stack": "torchtune", "tp": 1, "pp": 1, "dp": 16}, **cells)]
    )[0]
    assert isinstance(answer, Question)
    assert answer.task.software.fused_norm == fused


@pytest.mark.parametrize(
    ("group", "zero", "shard"),
    [(1, 3, 0), (2, 3, 2), (4, 3, 4), (7, 3, 7), (8, 3, 0), (9, 3, 0), (2, 0, 0)],
)
def test_a_group_that_shards_is_said_where_it_is_some_of_the_ranks(group, zero, shard):
    run = PublishedRun({"shard_ranks": group})
    assert _shard(run, 8, zero) == shard
