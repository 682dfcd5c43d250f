"""`plan3d software`, and --software with a file of one's own in every verb that takes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plan3d.cli.main import main
from plan3d.launch_files.registry import EXPORTERS
from plan3d.simulator.hardware.software_stack import LEAVES, SOFTWARE, software_profile

MINE = """
base = "megatron-core"
title = "ours"
sustained = { value = 0.4485, unit = "1", source = "loop", kind = "measured" }
[sources]
loop = "a loop of GEMMs on one node"
"""
TASK = ["--model", "llama-7b", "--cluster", "h100-sxm", "--gpus", "16"]
TASK += ["--sequence", "2048", "--global-batch", "64"]
PLAN = ["--plan", "tp=2 pp=2 micro_batch=2"]
STEPS = """suite,op,hidden,ffn,heads,kv_heads,head_dim,tp,batch,sequence,dtype,seconds
layer,forward,4096,14336,32,8,128,1,1,2048,bf16,0.002
layer,forward_backward,4096,14336,32,8,128,1,1,2048,bf16,0.006
layer,forward,4096,14336,32,8,128,1,2,2048,bf16,0.004
layer,forward_backward,4096,14336,32,8,128,1,2,2048,bf16,0.012
layer,forward,4096,14336,32,8,128,2,1,2048,bf16,0.001
layer,forward_backward,4096,14336,32,8,128,2,1,2048,bf16,0.003
layer,forward,4096,14336,32,8,128,2,2,2048,bf16,0.002
layer,forward_backward,4096,14336,32,8,128,2,2,2048,bf16,0.006
"""


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("plan3d: ")
    assert err.count("\n") == 1
    return err.removeprefix("plan3d: ").strip()


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mystack.toml").write_text(MINE)
    return "mystack.toml"


def test_stacks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    listed = answer(capsys, "software")["software"]
    assert [stack["name"] for stack in listed] == list(SOFTWARE)
    one = next(stack for stack in listed if stack["name"] == "fsdp")
    assert one["fitted_to"] == ["llmfoundry"]
    assert one["base"] == "megatron-core"
    assert set(one["fitted_to"]) < set(one["origins"])
    assert sum(one["kinds"].values()) == len(LEAVES)
    lines = printed(capsys, "software", "-v").splitlines()
    assert lines[0].split()[:2] == ["software", "title"]
    assert sum(line.split()[0] in SOFTWARE for line in lines[1:] if line) == len(SOFTWARE)


def test_one_stack_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    fields = answer(capsys, "software", "nanotron")["fields"]
    assert list(fields) == list(LEAVES)
    assert fields["layer_floor"] == {
        "value": 1.73e-3,
        "unit": "s",
        "measured": False,
        "kind": "fitted",
        "source": software_profile("nanotron").provenance["layer_floor"].source,
        "origins": ["hf_ultrascale"],
    }
    assert fields["cut_by_parameters"]["value"] is True
    assert "unit" not in fields["cut_by_parameters"]
    shown = printed(capsys, "software", "nanotron", "-v")
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "layer_floor 1730 us fitted steps hf_ultrascale" in lines
    assert "bucket_parameters 40 M parameters prior as megatron-core, buckets" in lines
    assert "cut_by_parameters yes rule cut" in lines
    assert "selective - rule code" in lines
    assert any(line.startswith("[steps] fit to 617 steps") for line in lines)
    assert "megatorn" not in shown


def test_a_file_is_shown(capsys: pytest.CaptureFixture[str], mine: str) -> None:
    record = answer(capsys, "software", mine)
    assert (record["name"], record["base"]) == (mine, "megatron-core")
    assert record["kinds"] == {"measured": 1, "prior": len(LEAVES) - 1}
    assert record["fields"]["sustained"]["source"] == "loop: a loop of GEMMs on one node"


def test_unknown_stacks(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean nanotron?" in refusal(capsys, "software", "nanotorn")
    assert "No such file" in refusal(capsys, "software", "gone.toml")
    assert "No such file" in refusal(capsys, "estimate", *TASK, *PLAN, "--software", "gone.toml")


def test_a_bad_file_is_refused_in_one_line(capsys: pytest.CaptureFixture[str], mine: str) -> None:
    Path(mine).write_text(MINE.replace("sustained", "sustaned"))
    for words in (["software", mine], ["estimate", *TASK, *PLAN, "--software", mine]):
        said = refusal(capsys, *words)
        assert said.startswith("mystack.toml: sustaned: unknown field; did you mean sustained, ")


def test_estimates_with_a_file(capsys: pytest.CaptureFixture[str], mine: str) -> None:
    base, own = (
        answer(capsys, "estimate", *TASK, *PLAN, "--software", name)
        for name in ("megatron-core", mine)
    )
    assert own["profile"]["software"] == mine
    ratio = [record["plans"][0]["compute_seconds"]["matmul"] for record in (own, base)]
    shares = software_profile("megatron-core").sustained / 0.4485
    assert ratio[0] / ratio[1] == pytest.approx(shares)
    assert "software profile mystack.toml: ours" in " ".join(
        printed(capsys, "estimate", *TASK, *PLAN, "--software", mine, "-v").split()
    )


def test_a_saved_result_keeps_its_stack(capsys: pytest.CaptureFixture[str], mine: str) -> None:
    few = ["--fix", "cp=1", "--choose", "tp=1,2", "--choose", "micro_batch=1,2", "--top", "1"]
    found = answer(capsys, "search", *TASK, *few, "--software", mine)
    assert found["profile"]["software"] == mine
    Path("result.json").write_text(json.dumps(found))
    written = answer(capsys, "export", "result.json#1", "--to", "megatron")
    assert written["profile"]["software"] == mine
    Path(mine).unlink()
    assert "mystack.toml: cannot be read" in refusal(
        capsys, "export", "result.json#1", "--to", "megatron"
    )
    Path(mine).write_text(MINE)
    launch = printed(capsys, "search", *TASK, *few, "--software", mine, "-v")
    assert "--software mystack.toml" in " ".join(launch.split())


def test_every_verb_with_a_stack_takes_a_file(
    capsys: pytest.CaptureFixture[str], mine: str
) -> None:
    few = ["--fix", "cp=1", "--fix", "tp=2", "--choose", "micro_batch=1,2"]
    commands = [
        ["timeline", *TASK, *PLAN],
        ["explain", *TASK, *PLAN],
        ["sweep", *TASK, *few, "--over", "zero=1,2"],
        ["compare", *TASK, *few, "--backends", "exhaustive,random", "--budget", "20"],
    ]
    for words in commands:
        other = printed(capsys, *words, "--software", "megatron-core")
        assert printed(capsys, *words, "--software", mine) != other, words
    script = printed(capsys, "export", PLAN[1], "--to", "megatron", *TASK, "--software", mine)
    Path("run.sh").write_text(script)
    read = answer(
        capsys, "import", "run.sh", "--cluster", "h100-sxm", "--gpus", "16", "--software", mine
    )
    assert read["profile"]["software"] == mine


def test_a_sweep_over_stacks_and_files(capsys: pytest.CaptureFixture[str], mine: str) -> None:
    words = ["sweep", *TASK, *PLAN, "--over", f"software=megatron-core,{mine}"]
    points = answer(capsys, *words)["points"]
    assert [point["software"] for point in points] == ["megatron-core", mine]
    assert points[1]["step_seconds"] > 1.3 * points[0]["step_seconds"]


def test_a_table_of_layers_for_a_file(capsys: pytest.CaptureFixture[str], mine: str) -> None:
    Path("layers.csv").write_text(STEPS)
    words = ["fit", "layers.csv", "--base", "h100-sxm", "--software", mine, "--out", "gpu.toml"]
    found = answer(capsys, "calibrate", *words, "--quiet")
    assert found["layers"]["software"] == "mystack"
    assert "[kernels.layer.mystack]" in Path("gpu.toml").read_text()
    shown = answer(
        capsys, "calibrate", "show", "layers.csv", "--profile", "gpu.toml", "--software", mine
    )
    (subject,) = shown["subjects"]
    assert subject["name"] == "whole layers, mystack.toml"
    assert subject["median"] < 0.05


def test_frameworks_of_stacks_are_those_of_export() -> None:
    assert {stack.framework for stack in SOFTWARE.values()} - {""} <= set(EXPORTERS)


@pytest.mark.parametrize(
    ("cluster", "software", "warned"),
    [
        ("v100-32gb-sxm", "megatron-core", True),
        ("v100-32gb-sxm", "megatron-lm-2021", False),
        ("v100-32gb-sxm", "torchtitan", False),
        ("a100-80gb-sxm", "megatron-core", False),
    ],
)
def test_a_stack_that_is_newer_than_the_gpus_is_told(
    capsys: pytest.CaptureFixture[str], cluster: str, software: str, warned: bool
) -> None:
    """FlashAttention 2 and Transformer Engine start with Ampere; PyTorch has kernels of its own."""
    asked = ["search", "gpt2-xl", cluster, "8", "--global-batch", "64", "--sequence", "1024"]
    out = " ".join(printed(capsys, *asked, "--software", software).split())
    assert (
        "warning megatron-core counts on FlashAttention 2 and Transformer Engine" in out
    ) is warned


def test_a_network_without_attention_counts_on_no_kernel_of_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = [
        "estimate",
        "resnet-50",
        "v100-16gb-sxm",
        "8",
        "--global-batch",
        "512",
        "--plan",
        "dp=8",
    ]
    assert "FlashAttention" not in printed(capsys, *asked, "--precision", "fp16", "-v")


@pytest.mark.parametrize(
    ("model", "words", "stack"),
    [
        ("mixtral-8x7b", ["--software", "hf-trainer"], "hf-deepspeed"),
        ("mixtral-8x7b", ["--framework", "accelerate"], "hf-trainer"),
        ("mixtral-8x7b", ["--software", "hf-trainer", "--adapter", "lora"], "hf-trainer"),
        ("llama-7b", ["--software", "hf-trainer"], "hf-trainer"),
    ],
)
def test_experts_in_a_loop_are_sharded_by_the_engine_that_gathers_each(
    model: str, words: list[str], stack: str, capsys: pytest.CaptureFixture[str]
) -> None:
    task = ["--model", model, "--cluster", "h100-sxm", "--gpus", "16", "--global-batch", "16"]
    asked = answer(capsys, "estimate", *task, *words, "--plan", "zero=3 recompute=full")
    assert asked["profile"]["software"] == stack
    said = any("DeepSpeed" in line for line in asked["plans"][0]["assumptions"])
    assert said == (stack == "hf-deepspeed")
