"""`plan3d explain` prints, draws and refuses what it says."""

import json
from pathlib import Path

import numpy as np
import pytest

from plan3d import Cluster, Model, Plan, Task, for_framework
from plan3d.cli.main import main
from plan3d.launch_files.exporter import refusals
from plan3d.launch_files.registry import EXPORTERS
from plan3d.simulator.plan.plan import resolve

TASK = ["--model", "gpt3-6.7b", "--cluster", "a100-80gb-sxm", "--gpus", "32"]
TASK += ["--global-batch", "64"]
PLAN = "pp=4 tp=2 recompute=full"


def run(capsys, *words):
    code = main(["explain", *TASK, *words])
    return code, *capsys.readouterr()


def record_of(capsys, *words):
    code, out, err = run(capsys, *words, "--json")
    assert (code, err) == (0, "")
    return json.loads(out, parse_constant=pytest.fail)


def test_text(capsys):
    code, out, err = run(capsys, "--plan", PLAN, "--against", "tp=4", "-v")
    assert (code, err) == (0, "")
    for words in (
        "Why not tp=4?",
        "it changes tp 4 (was 2), dp 2 (was 4)",
        "arithmetic at peak",
        "memory by pipeline rank, GiB",
        "Memory does not bind",
        "recompute=none",
        "elasticity",
        "What matters",
    ):
        assert words in out


def test_json(capsys):
    record = record_of(capsys, "--plan", PLAN)
    assert list(record) == [
        *("schema", "plan3d", "task", "profile", "nearest_run", "plans", "stages", "waterfall"),
        "binding",
        *("edits", "too_large", "sensitivity", "held_by_tables", "capacity"),
    ]
    (plan,) = record["plans"]
    bars = record["waterfall"]
    assert sum(bar["seconds"] for bar in bars) == pytest.approx(plan["step_seconds"])
    assert len(record["stages"]) == 4
    assert len(record["edits"]) == 10
    for edit in record["edits"]:
        assert edit["verdict"] in ("fits", "edge")
        ratio = edit["step_seconds"] / plan["step_seconds"]
        assert edit["step_change"] == pytest.approx(ratio - 1)
    assert record["edits"][0]["edit"] == "recompute=none"
    assert {s["name"] for s in record["sensitivity"]} >= {"flop_rate", "inter_node_bandwidth"}
    assert [at["factor"] for at in record["capacity"]] == [0.8, 1.0, 1.25]


def test_against_a_plan_and_a_saved_plan(capsys, tmp_path):
    record = record_of(capsys, "--plan", PLAN, "--against", "tp=8 pp=2")
    against = record["against"]
    assert against["asked"] == "tp=8 pp=2"
    assert against["changed"]["recompute"] == ["full", "none"]
    slower = against["step_seconds"] - record["plans"][0]["step_seconds"]
    assert sum(against["seconds"].values()) == pytest.approx(slower)
    saved = tmp_path / "saved.json"
    saved.write_text(json.dumps(record))
    same = record_of(capsys, "--plan", f"{saved}#1", "--against", str(saved))
    assert same["against"]["changed"] == {}


def test_what_is_illegal_names_its_rule(capsys):
    record = record_of(capsys, "--plan", PLAN, "--against", "tp=3")
    rules = [broken["rule"] for broken in record["against"]["refused_by"]]
    assert "tp-divides-heads" in rules
    assert "rule tp-divides-heads" in record["against"]["sentences"][0]
    assert "step_seconds" not in record["against"]


def test_plans_that_are_not_uniform(capsys):
    text = "pp=4 segments=8:recompute=full|8:tp=2,dp=4|8*2"
    record = record_of(capsys, "--plan", text, "--against", "micro_batch=2")
    assert record["against"]["changed"] == {"micro_batch": [1, 2]}
    (plan,) = record["plans"]
    assert sum(b["seconds"] for b in record["waterfall"]) == pytest.approx(plan["step_seconds"])


def test_the_pictures(capsys, tmp_path):
    files = [tmp_path / name for name in ("why.png", "ranks.svg")]
    words = ["--plot", str(files[0]), "--ranks", str(files[1])]
    assert run(capsys, "--plan", PLAN, *words)[0] == 0
    assert [file.read_bytes()[:4] for file in files] == [b"\x89PNG", b"<?xm"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--plan", "pp=3"], "!= 32 GPUs"),
        (["--plan", PLAN, "--against", "ttp=4"], "unknown plan field 'ttp'; did you mean tp"),
        (["--plan", PLAN, "--against", "tp=4 ttp=4"], "unknown plan field 'ttp'"),
        (["--plan", PLAN, "--against", "nothing.json"], "--against nothing.json: cannot be read"),
        (["--plan", PLAN, "--plot", "why.txt"], "must end in .png, .svg, .pdf"),
        (["--plan", PLAN, "--ranks", "why.txt"], "--ranks why.txt: must end in .png, .svg, .pdf"),
        (["--plan", PLAN, "--tokens", "1B"], "--tokens"),
        ([], "--plan"),
    ],
)
def test_mistakes_take_one_line(capsys, words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


SCRIPT = Path(__file__).parents[3] / "docs" / "examples" / "gpt_7b.sh"


def test_a_launch_file_is_explained_as_the_plan_that_it_states(capsys):
    cluster = ["--cluster", "h100-sxm", "--json"]
    assert main(["explain", str(SCRIPT), *cluster]) == 0
    of_file = json.loads(capsys.readouterr().out)
    assert main(["import", str(SCRIPT), *cluster, "--estimate"]) == 0
    estimate = json.loads(capsys.readouterr().out)
    assert of_file["plans"][0]["step_seconds"] == estimate["plans"][0]["step_seconds"]
    assert of_file["task"] == estimate["task"]


def test_fields_of_a_plan_replace_those_of_a_launch_file(capsys):
    """What the file would do with them: the others stay, as `import --with` has it."""
    cluster, plan = ["--cluster", "h100-sxm", "--json"], "tp=4 zero=0"
    assert main(["explain", str(SCRIPT), *cluster, "--plan", plan]) == 0
    other = json.loads(capsys.readouterr().out)["plans"][0]
    assert main(["import", str(SCRIPT), *cluster, "--estimate", "--with", plan]) == 0
    estimate = json.loads(capsys.readouterr().out)["plans"][0]
    assert other["plan"] == estimate["plan"]
    assert (other["plan"]["tp"], other["plan"]["zero"]) == (4, 0)
    assert other["step_seconds"] == estimate["step_seconds"]
    assert main(["explain", str(SCRIPT), *cluster, "--plan", "tp=3"]) == 2
    assert "tensor size 3" in capsys.readouterr().err


def test_a_framework_keeps_the_stack_of_its_launch_file(capsys, tmp_path):
    """The script below drops activations, and recomputes two modules; its stack says both."""
    path = tmp_path / "run.sh"
    full = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    some = "--recompute-granularity selective --recompute-modules core_attn layernorm"
    dropped = SCRIPT.read_text().replace("--attention-dropout 0 --hidden-dropout 0", "")
    path.write_text(dropped.replace(full, some))
    words = ["explain", str(path), "--cluster", "h100-sxm", "--json", "--quiet"]
    said = []
    for more in ([], ["--framework", "megatron-bridge"]):
        assert main([*words, *more]) == 0
        said.append(json.loads(capsys.readouterr().out)["plans"][0])
    assert said[0] == said[1]
    assert main(["explain", str(SCRIPT), "--cluster", "h100-sxm", "--json", "--quiet"]) == 0
    plain = json.loads(capsys.readouterr().out)["plans"][0]
    assert plain["step_seconds"] != said[0]["step_seconds"]


@pytest.fixture
def edits_of(capsys, tmp_path):
    """Edits that are offered of a plan's launch file, each with its plan."""

    def offered(name, model, plan, *more):
        file, cluster = str(tmp_path / FILES[name]), ["--cluster", "h100-sxm", "--gpus", "32"]
        task = ["--model", model, *cluster, "--sequence", "2048", "--global-batch", "128"]
        assert main(["export", plan, "--to", name, *task, "-o", file, "--quiet"]) == 0
        words = [*task[2:], "--json", "--quiet", *([] if name == "megatron" else task[:2])]
        assert main(["explain", file, *words, *more]) == 0
        found = json.loads(capsys.readouterr().out)
        edits = (*found["edits"], *found["too_large"])
        return {edit["edit"]: resolve(Plan.parse(edit["plan"]), 32) for edit in edits}

    return offered


FILES = {"megatron": "a.sh", "torchtitan": "a.toml", "deepspeed": "a.json", "nanotron": "a.yaml"}


@pytest.mark.parametrize(
    ("name", "model", "plan"),
    [
        ("megatron", "llama-3.1-8b", "tp=2 pp=4"),
        ("torchtitan", "llama-3.1-8b", "tp=2 pp=2 zero=2"),
        ("deepspeed", "gpt3-6.7b", "zero=1 overlap_param_gather=0"),
        ("nanotron", "llama-3.1-8b", "tp=2 pp=2 zero=0"),
    ],
)
def test_edits_of_a_launch_file_are_launched_by_its_framework(edits_of, name, model, plan):
    form = EXPORTERS[name].form()
    cluster = Cluster.profile("h100-sxm", gpus=32)
    task = Task(Model.preset(model), cluster, sequence=2048, global_batch=128)
    task, found = for_framework(task, name), edits_of(name, model, plan)
    assert len(found) >= 5
    assert not [edit for edit, other in found.items() if refusals(task, other, form)]


def test_an_edit_turns_the_switch_that_the_framework_of_the_file_wants_otherwise(edits_of):
    """nanotron gathers weights after the step, and DeepSpeed reduces after it with stages."""
    plan = "tp=2 pp=2 zero=0"
    sharded = edits_of("nanotron", "llama-3.1-8b", plan)["zero=1"]
    assert (sharded.zero, sharded.overlap_param_gather) == (1, 0)
    again = edits_of("nanotron", "llama-3.1-8b", plan, "--framework", "nanotron")["zero=1"]
    assert str(again) == str(sharded)
    staged = edits_of("deepspeed", "gpt3-6.7b", "zero=1 overlap_param_gather=0")["pp=2"]
    assert (staged.pp, staged.overlap_grad_reduce) == (2, 0)


def test_a_framework_that_is_not_that_of_the_launch_file_is_refused(capsys):
    words = ["explain", str(SCRIPT), "--cluster", "h100-sxm", "--quiet"]
    assert main([*words, "--framework", "torchtitan"]) == 2
    err = capsys.readouterr().err
    assert f"{SCRIPT}: its stack megatron-core contradicts --framework torchtitan" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "factor", [0.85, *(pytest.param(x, marks=pytest.mark.slow) for x in (1.15, 2.5))]
)
def test_a_measured_step_moves_what_is_explained(capsys, factor):
    """Most of a difference of 15 % is taken for constants, none of it beyond what was measured."""
    plain = record_of(capsys, "--plan", PLAN)
    before = plain["plans"][0]["step_seconds"]
    seconds = f"{factor * before:.6f}"
    found = record_of(capsys, "--plan", PLAN, "--measured-step", seconds)
    said, after = found["measured"], found["plans"][0]["step_seconds"]
    assert said["predicted_seconds"] == before
    assert said["conditioned_seconds"] == after
    low, high = sorted((before, float(seconds)))
    assert low < after < high
    assert abs(after - float(seconds)) < 0.5 * abs(before - float(seconds))
    moved = sum(said["moves"].values())
    assert moved == pytest.approx(np.log(after / before), abs=1e-9)
    assert sum(bar["seconds"] for bar in found["waterfall"]) == pytest.approx(after)
    _, out, _ = run(capsys, "--plan", PLAN, "--measured-step", seconds)
    said = " ".join(out.split())
    assert "are left to this run alone" in said
    assert "check GPUs, batch, sequence and plan are the run's" in said


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--plan", PLAN, "--measured-step", "4200"], "more than ten times off"),
        (["--plan", PLAN, "--measured-step", "0"], "above 0 seconds"),
        (["--plan", PLAN, "--measured-step", "4", "--calibration", "x.toml"], "x.toml"),
        (["--plan", "tp=64", "--measured-step", "4"], "tensor size 64"),
        ([], "explain needs a plan: for example plan3d explain gpt3-6.7b"),
    ],
)
def test_what_cannot_be_explained_is_one_line(capsys, words, why):
    code, _, err = run(capsys, *words)
    assert code == 2
    assert why in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", ["nofile.sh", "runs/nofile.toml", "nofile.yaml", "nofile.json"])
@pytest.mark.parametrize("words", [[], ["h100-sxm"], ["h100-sxm", "8", "--plan", "tp=2"]])
def test_a_file_that_is_missing_is_refused_before_anything_is_asked_for(capsys, name, words):
    assert main(["explain", name, *words]) == 2
    error = capsys.readouterr().err
    assert error == f"plan3d: {name}: cannot be read (No such file or directory)\n"


# --memory without a size


def test_memory_names_the_peak_its_rank_and_what_is_in_flight(capsys):
    """1F1B keeps four micro-batches on the first of four ranks."""
    code, out, err = run(capsys, "--plan", PLAN, "--memory")
    assert (code, err) == (0, "")
    for words in (
        "on pipeline rank 0 of 4, at backward of micro-batch 0",
        "0 is the fullest of 4, ",
        "stage 0: 4 micro-batches (0 to 3)",
        "Pipeline rank 0 through a step, GiB",
        "* backward 0",
        "update",
        "Peaks by pipeline rank, GiB",
    ):
        assert words in out


def test_memory_as_json(capsys):
    record = record_of(capsys, "--plan", PLAN, "--memory")
    peak = record["peak"]
    assert (peak["rank"], peak["moment"], peak["micro_batch"]) == (0, "backward", 0)
    assert peak["bytes"] == pytest.approx(peak["memory_bytes"]["total"])
    assert peak["bytes"] == pytest.approx(peak["closed_form_bytes"])
    assert [rank["rank"] for rank in record["ranks"]] == [0, 1, 2, 3]
    assert len(record["timeline"]) == 2 * 16 + 1
    assert record["timeline"][-1]["moment"] == "update"
    for moment in record["timeline"]:
        parts = {**moment["memory_bytes"]}
        assert parts.pop("total") == pytest.approx(sum(parts.values()))


def test_a_size_of_memory_is_still_the_capacity(capsys):
    code, out, _ = run(capsys, "--plan", PLAN, "--memory", "12 GiB")
    assert code == 0
    assert "of 12.0 GiB" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--memory", "gpt3-6.7b"), "without a size it stands last"),
        (("--memory", "--against", "tp=4"), "--memory without a size does not go with --against"),
        (("--memory", "--ranks", "x.png"), "--memory without a size does not go with --ranks"),
    ],
)
def test_memory_without_a_size_is_alone(capsys, words, message):
    code, out, err = run(capsys, "--plan", PLAN, *words)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_memory_is_drawn(capsys, tmp_path):
    target = tmp_path / "memory.svg"
    code, _, err = run(capsys, "--plan", PLAN, "--memory", "--plot", str(target))
    assert (code, err) == (0, "")
    text = target.read_text(encoding="utf-8")
    assert "</svg>" in text
