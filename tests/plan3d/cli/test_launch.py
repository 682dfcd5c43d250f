"""`plan3d export` and `plan3d import` print, write and refuse what they say."""

import json
import re
import shlex
import tomllib

import pytest

from plan3d.cli.arguments.plan_arguments import read_plan
from plan3d.cli.main import main
from plan3d.launch_files.registry import EXPORTERS
from plan3d.simulator.base.errors import InputError

TASK = ["--model", "llama-3.1-8b", "--cluster", "h100-sxm", "--gpus", "16", "--global-batch", "64"]
TASK += ["--sequence", "2048"]
PLAN = "tp=2 pp=2 micro_batch=2"
SCRIPT = """
TP=2
torchrun pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 \\
  --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 2 --bf16 \\
  --global-batch-size 64 --tensor-model-parallel-size $TP --use-distributed-optimizer \\
  --data-path $DATA --lr 3e-4 --cpu-offloading-weights
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT)
    return str(path)


def run(capsys, *words):
    code = main(list(words))
    return code, *capsys.readouterr()


def good(capsys, *words):
    code, out, err = run(capsys, *words)
    assert (code, err) == (0, "")
    return out


def test_export_prints_the_file(capsys):
    out = good(capsys, "export", PLAN, *TASK, "--to", "megatron")
    assert "  --tensor-model-parallel-size 2\n" in out
    assert out.endswith("\n")


def test_export_writes_the_file(capsys, tmp_path):
    path = tmp_path / "plan.toml"
    words = ["export", "tp=2 zero=3", *TASK, "--to", "torchtitan", "-o", str(path)]
    code, out, err = run(capsys, *words)
    assert (code, out) == (0, "")
    assert err == f"plan3d: {path}: torchtitan 0.2.2\n"
    assert tomllib.loads(path.read_text())["parallelism"]["tensor_parallel_degree"] == 2
    assert run(capsys, *words, "--quiet")[2] == ""


def test_export_json_is_a_saved_result(capsys, tmp_path):
    path = tmp_path / "one.json"
    out = good(capsys, "export", PLAN, *TASK, "--to", "megatron", "--json")
    record = json.loads(out)
    assert (record["framework"], record["version"]) == ("megatron", "0.16")
    assert record["plans"][0]["plan"]["tp"] == 2
    path.write_text(out)
    assert good(capsys, "export", str(path), "--to", "megatron") == record["text"]


def test_a_plan_of_a_saved_search_brings_its_task(capsys, tmp_path):
    path = tmp_path / "result.json"
    few = ["--choose", "tp=1,2", "--fix", "cp=1", "--fix", "pp=1", "--choose", "micro_batch=1,2"]
    path.write_text(good(capsys, "search", *TASK, *few, "--json"))
    third = json.loads(path.read_text())["plans"][2]["plan"]
    out = good(capsys, "export", f"{path}#3", "--to", "megatron")
    assert f"  --tensor-model-parallel-size {third['tp']}\n" in out
    assert "# llama-3.1-8b on 16 x" in out
    assert "  --global-batch-size 64\n" in out
    other = good(capsys, "export", f"{path}#3", "--to", "megatron", "--global-batch", "128")
    assert "  --global-batch-size 128\n" in other
    code, _, err = run(capsys, "export", f"{path}#99", "--to", "megatron")
    assert code == 2
    assert "PLAN" in err
    assert "the result holds" in err


def test_the_same_reader_serves_estimate(tmp_path):
    path = tmp_path / "plan.txt"
    path.write_text("tp=4 pp=2\n")
    saved = read_plan(str(path), "--plan")
    assert (saved.plan.tp, saved.plan.pp, saved.stated, saved.task) == (4, 2, {"tp", "pp"}, {})
    path.write_text('{"plans": [{"plan": {"tp": 2}}], "task": {"gpus": "many"}}')
    with pytest.raises(InputError, match="gpus cannot be"):
        read_plan(f"{path}#1", "--plan")


def test_with_replaces_fields(capsys):
    words = ["export", PLAN, *TASK, "--to", "torchtitan"]
    code, _, err = run(capsys, *words)
    assert code == 2
    assert "nearest: zero=2" in err
    out = good(capsys, *words, "--with", "zero=2")
    assert tomllib.loads(out)["parallelism"]["fsdp_reshard_after_forward"] == "never"


def test_versions(capsys):
    words = ["export", "tp=2 zero=2", *TASK, "--to", "torchtitan"]
    assert "def recipe() -> Trainer.Config:" in good(capsys, *words, "--version", "0.3")
    code, _, err = run(capsys, *words, "--version", "1.0")
    assert code == 2
    assert "files are written for torchtitan 0.2.2, 0.3.0" in err


def test_search_ends_with_a_command_that_works(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    few = ["--choose", "tp=1,2", "--fix", "pp=1", "--fix", "cp=1"]
    last = good(capsys, "search", *TASK, *few, "-v").splitlines()[-1]
    prefix, command = last.split(": ", 1)
    assert prefix == "Launch it"
    words = shlex.split(command)
    assert words[:2] == ["plan3d", "export"]
    written = good(capsys, *words[1:])
    assert "--num-layers 32" in written
    short = re.search(r"^launch +plan3d (.*)$", good(capsys, "search", *TASK, *few), re.M)
    assert short
    assert good(capsys, *shlex.split(short[1])) == written


def test_a_search_says_when_megatron_cannot_run_its_best_plan(capsys):
    few = ["--choose", "tp=1,2", "--fix", "pp=2", "--fix", "cp=1", "--top", "1"]
    refused = "plan 1 cannot be launched by Megatron-LM (core 0.16)"
    assert refused not in good(capsys, "search", *TASK, *few)
    said = " ".join(good(capsys, "search", *TASK, *few, "--fix", "zero=3").split())
    assert f"{refused}: zero=3 is Megatron-FSDP" in said
    assert "(megatron-fsdp-pipeline)" in said
    two = ["--fix", "zero=3", "--fix", "schedule=gpipe", "--fix", "virtual_stages=1"]
    assert ", and 1 more" in good(capsys, "search", *TASK, *few, *two)
    small = ["gpt3-1.3b" if word == "llama-3.1-8b" else word for word in TASK]
    gpipe = [*small, "--fix", "tp=1", "--fix", "pp=2", "--fix", "cp=1", "--fix", "schedule=gpipe"]
    assert "cannot be launched by" in good(capsys, "search", *gpipe)
    assert "cannot be launched by" not in good(capsys, "search", *gpipe, "--system", "gpipe")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([PLAN, *TASK], f"--to is needed: {', '.join(EXPORTERS)}"),
        ([PLAN, *TASK, "--to", "megatrom"], "did you mean megatron"),
        ([*TASK, "--to", "megatron"], "PLAN"),
        ([PLAN, "--to", "megatron"], "--model"),
        ([PLAN, "--to", "megatron", "--model", "llama-7b"], "--cluster"),
        (["nowhere.json#3", *TASK, "--to", "megatron"], "nowhere.json: cannot be read"),
        (["tp=3", *TASK, "--to", "megatron"], "!= 16 GPUs"),
        ([PLAN, *TASK, "--to", "megatron", "--with", "tp"], "--with: plan 'tp' must be"),
        ([PLAN, *TASK, "--to", "megatron", "--with", "size=2"], "unknown plan field 'size'"),
        ([PLAN, *TASK, "--to", "megatron", "-o", "/nowhere/x"], "--output /nowhere/x"),
        (["tp=2 precision=fp8", *TASK, "--to", "megatron", "--precision", "bf16"], "contradicts"),
        ([PLAN, *TASK, "--to", "megatron", "--memory", "80GiB"], "unknown option '--memory'"),
        (["pp=4 schedule=zb-h2", *TASK, "--to", "nanotron"], "(nanotron-schedule)"),
    ],
)
def test_export_mistakes_take_one_line(capsys, words, message):
    code, out, err = run(capsys, "export", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_import_prints_task_plan_and_the_rest(capsys, script):
    out = good(capsys, "import", script, "--cluster", "h100-sxm", "--gpus", "16", "-v")
    assert "run.sh, read as megatron" in out
    assert "batch 64 x 2048" in out
    assert "Plan: tp=2 dp=8 micro_batch=2 sequence_parallel=0" in " ".join(out.split())
    ignored, kept = out.split("Not modelled")[1].split("Without effect on")
    assert "line 6: --cpu-offloading-weights" in ignored
    assert "line 6: --data-path $DATA" in kept
    assert "line 6: --lr 3e-4" in kept


def test_import_json(capsys, script):
    out = good(capsys, "import", script, "--cluster", "h100-sxm", "--gpus", "16", "--json")
    record = json.loads(out)
    assert record["task"]["gpus"] == 16
    assert record["framework"] == "megatron"
    assert record["plans"][0]["plan"]["dp"] == 8
    rate = {"where": "line 6", "text": "--lr 3e-4", "matters": False, "known": True}
    assert rate in record["kept"]


def test_import_estimates(capsys, script):
    words = ["import", script, "--cluster", "h100-sxm", "--gpus", "16", "--estimate"]
    assert "fits (probability" in good(capsys, *words)
    out = good(capsys, *words, "-v")
    assert "FITS" in out
    assert "part of a step" in out
    record = json.loads(good(capsys, *words, "--json"))
    assert record["plans"][0]["step_seconds"] > 0
    assert record["kept"]
    faster = json.loads(good(capsys, *words, "--json", "--inter-node-bandwidth", "800Gb/s"))
    assert faster["plans"][0]["step_seconds"] <= record["plans"][0]["step_seconds"]


def test_what_is_kept_is_written_again(capsys, script):
    words = ["import", script, "--cluster", "h100-sxm", "--gpus", "16"]
    code, out, err = run(capsys, *words, "--to", "megatron")
    assert (code, err) == (0, "")
    for flag in ("--data-path $DATA", "--lr 3e-4", "--cpu-offloading-weights"):
        assert f"  {flag}\n" in out
    assert '"${OTHER_ARGS[@]}"' in out


def test_a_kept_setting_takes_the_place_of_one_that_follows_and_of_no_plan_field(capsys, tmp_path):
    path = tmp_path / "run.sh"
    more = "--fp8-format e4m3 --fp8-recipe tensorwise --cp-comm-type p2p --tokenizer-type Mine"
    path.write_text(SCRIPT.replace("--bf16", f"--bf16 {more} --vocab-size 32000"))
    words = ["import", str(path), "--cluster", "h100-sxm", "--gpus", "16", "--to", "megatron"]
    out = good(capsys, *words)
    for flag in ("--fp8-format e4m3", "--fp8-recipe tensorwise"):
        assert out.count(flag.split()[0]) == 1
        assert f"  {flag}\n" in out.split("OTHER_ARGS")[0]
    others = out.split("OTHER_ARGS=(")[1]
    assert "  --tokenizer-type Mine\n" in others
    assert "  --cp-comm-type p2p\n" in others
    assert "--fp8" not in good(capsys, *words, "--with", "precision=bf16")
    split = good(capsys, *words, "--with", "cp=2 cp_comm=a2a dp=4")
    assert split.count("--cp-comm-type") == 1
    assert "  --cp-comm-type a2a\n" in split


def test_what_had_no_effect_is_kept_until_the_plan_decides_it(capsys, tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT.replace("--bf16", "--bf16 --ddp-bucket-size 5000"))
    words = ["import", str(path), "--cluster", "h100-sxm", "--gpus", "16", "--to", "megatron"]
    assert "--ddp-bucket-size 5000" in good(capsys, *words)
    assert "bucket" not in good(capsys, *words, "--with", "overlap_grad_reduce=1")
    more = "overlap_grad_reduce=1 bucket_parameters=7"
    assert good(capsys, *words, "--with", more).count("--ddp-bucket-size 7") == 1


def test_a_kept_key_takes_the_place_of_one_that_follows(capsys, tmp_path):
    path = tmp_path / "job.toml"
    text = good(capsys, "export", "tp=2 zero=2", *TASK, "--to", "torchtitan")
    path.write_text(
        text.replace('reduce = "float32"', 'reduce = "bfloat16"')
        + '["a.b"]\n"c\\n" = 2024-01-02\nd = [{e = inf}]\n'
    )
    same = good(capsys, "import", str(path), "--cluster", "h100-sxm", "--to", "torchtitan")
    again, before = tomllib.loads(same), tomllib.loads(path.read_text())
    assert again["training"]["mixed_precision_reduce"] == "bfloat16"
    assert {key: again[key] for key in ("compile", "a.b")} == {
        key: before[key] for key in ("compile", "a.b")
    }
    assert again["parallelism"] == before["parallelism"]


def test_keys_of_another_tool_are_no_words_of_a_script(capsys, tmp_path):
    path = tmp_path / "primus.yaml"
    path.write_text(
        "modules:\n  pre_trainer:\n    framework: megatron\n    model: llama3_8B.yaml\n"
        "    overrides: {global_batch_size: 64, tensor_model_parallel_size: 8, foo_bar: 3}\n"
    )
    words = ["import", str(path), "--cluster", "h100-sxm", "--gpus", "8", "--to", "megatron"]
    code, out, err = run(capsys, *words)
    assert code == 0
    assert "OTHER_ARGS" not in out
    assert f"plan3d: {path}: foo_bar: 3 is not in the new file\n" in err


def test_what_another_framework_cannot_keep_is_named(capsys, tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(good(capsys, "export", "tp=2 zero=2", *TASK, "--to", "torchtitan"))
    with path.open("a") as file:
        file.write("\n[job]\ndump_folder = 'out'\n")
    words = ["import", str(path), "--cluster", "h100-sxm", "--with", "zero=1"]
    code, out, err = run(capsys, *words, "--to", "megatron")
    assert code == 0
    assert "--use-distributed-optimizer" in out
    assert err == f'plan3d: {path}: $.job.dump_folder: "out" is not in the new file\n'
    same = good(capsys, "import", str(path), "--cluster", "h100-sxm", "--to", "torchtitan")
    assert tomllib.loads(same)["job"] == {"dump_folder": "out"}


@pytest.mark.parametrize("framework", ["deepspeed", "nanotron"])
def test_documents_keep_other_keys(capsys, tmp_path, framework):
    plan = "dp=16 zero=1 overlap_param_gather=0"
    text = good(capsys, "export", plan, *TASK, "--to", framework)
    path = tmp_path / {"deepspeed": "ds.json", "nanotron": "run.yaml"}[framework]
    if framework == "deepspeed":
        path.write_text(json.dumps({**json.loads(text), "steps_per_print": 7}))
    else:
        path.write_text(f"general:\n  project: mine\n{text}")
    words = ["import", str(path), "--cluster", "h100-sxm", "--model", "llama-3.1-8b"]
    out = good(capsys, *words, "--sequence", "2048", "--to", framework)
    assert ('"steps_per_print": 7' in out) or ("project: mine" in out)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpus", "16"], "give --cluster"),
        (["--cluster", "h100-sxm"], "does not say how many GPUs there are: give --gpus N"),
        (["--cluster", "h100-sxm", "--gpus", "7"], "!= 7 GPUs"),
        (["--cluster", "h100-sxm", "--gpus", "16", "--global-batch", "32"], "has a batch of 64"),
        (["--cluster", "h100-sxm", "--gpus", "16", "--sequence", "1024"], "sequences of 2048"),
        (["--cluster", "h100-sxm", "--gpus", "16", "--model", "llama-7b"], "describes a model of"),
        (["--cluster", "h100-sxm", "--gpus", "16", "-o", "x"], "--output needs --to"),
        (["--cluster", "h100-sxm", "--gpus", "16", "--to", "megatron", "--estimate"], "give one"),
        (["--cluster", "h100-sxm", "--gpus", "16", "--from", "jax"], "--from jax is not known"),
        (["--cluster", "h100-sxm", "--gpus", "16", "--vocabulary", "0"], "must be at least 1"),
        (["--cluster", "h100-sxm", "--gpus", "16", "--from", "nanotron"], "it must be an object"),
    ],
)
def test_import_mistakes_take_one_line(capsys, script, words, message):
    code, out, err = run(capsys, "import", script, *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_plan_that_its_stack_refuses_names_the_file(capsys, tmp_path):
    path = tmp_path / "sft.yaml"
    path.write_text(
        "model: Qwen/Qwen2.5-7B-Instruct\ntuner_type: full\nmax_length: 4096\n"
        "per_device_train_batch_size: 1\ntorch_dtype: bfloat16\n"
    )
    sizes = ("--cluster", "h100-sxm", "--gpus", "8", "--global-batch", "8")
    code, _, err = run(capsys, "import", str(path), *sizes, "--with", "cp=2")
    problem = "hf-trainer has no context parallelism: cp=2 must be 1"
    assert (code, err) == (2, f"plan3d: {path}: {problem}\n")


def test_files_that_cannot_be_read(capsys, tmp_path):
    path = tmp_path / "run.sh"
    for content in (None, b"\xff\xfe", b"x" * 2_000_001):
        if content is not None:
            path.write_bytes(content)
        code, out, err = run(capsys, "import", str(path), "--cluster", "h100-sxm")
        assert (code, out) == (2, "")
        assert err.count("\n") == 1


def test_contradictory_flags_name_the_line(capsys, tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT.replace("--bf16", "--bf16 --fp16"))
    code, _, err = run(capsys, "import", str(path), "--cluster", "h100-sxm", "--gpus", "16")
    assert code == 2
    assert "line 4: --fp16 contradicts --bf16 in line 4" in err
