"""The command line as scripts see it: streams, exit codes, JSON, files."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from not_empty import not_empty

from plan3d.cli.arguments.usual_sizes import published_batch
from plan3d.cli.main import main
from plan3d.screens.views import peak_line
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.precision import CODES
from plan3d.simulator.plan.plan import Plan, concat
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.step.plan_groups import PARTS
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

TASK = ["--model", "llama-7b", "--cluster", "h100-sxm", "--gpus", "16", "--global-batch", "64"]
FEW = ["--choose", "tp=1,2,4", "--choose", "micro_batch=1,2", "--fix", "cp=1"]
FEWER = [word for name in ("tp", "pp", "cp", "micro_batch") for word in ("--fix", f"{name}=1")]
SEARCH = ["search", *TASK, *FEW]
BOXES = "─│┌┐└┘━┃"


def run(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    environment = {**os.environ, **changes}
    return subprocess.run(
        [sys.executable, "-m", "plan3d", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=60,
    )


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The JSON object that a command prints."""
    assert main([*arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    record: dict[str, Any] = json.loads(out, parse_constant=pytest.fail)
    return record


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    """The one line of a refused command."""
    assert main(list(arguments)) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("plan3d: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    "arguments", [["--help"], ["search", "--help"], ["models"], ["systems"], ["software", "torch"]]
)
def test_help_and_catalogues_import_no_numpy(arguments: list[str]) -> None:
    code = (
        "import sys; from plan3d.cli.main import main; "
        f"status = main({arguments}); "
        "print(sorted({'numpy', 'rich', 'pandas', 'shtab'} & set(sys.modules)), file=sys.stderr); "
        "sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
    assert len(done.stdout) > 100


def test_importing_the_package_imports_no_numpy() -> None:
    code = "import sys, plan3d; assert 'numpy' not in sys.modules; print(plan3d.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip()[0].isdigit()


@pytest.mark.parametrize(("given", "used"), [({}, "1"), ({"OPENBLAS_NUM_THREADS": "3"}, "3")])
def test_a_command_starts_no_threads_of_blas_unless_told_to(
    given: dict[str, str], used: str
) -> None:
    code = (
        "import os, sys; from plan3d.__main__ import main; sys.argv = ['plan3d', '--version']; "
        "main(); assert 'numpy' not in sys.modules; print(os.environ['OPENBLAS_NUM_THREADS'])"
    )
    kept = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=kept | given, capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[-1] == used


def test_every_public_name_is_there() -> None:
    import plan3d

    assert all(getattr(plan3d, name) is not None for name in not_empty(plan3d.__all__))
    assert set(plan3d.__all__) <= set(dir(plan3d))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = plan3d.no_such_name  # type: ignore[attr-defined]


def test_search_in_a_pipe_is_plain_text() -> None:
    done = run("search", *TASK, *FEW, "--top", "4", "-v", COLUMNS="100", NO_COLOR="1")
    assert done.returncode == 0
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert not set(BOXES) & set(done.stdout)
    assert "MFU of 989 TFLOP/s (bf16, dense) per GPU" in done.stdout
    assert "hardware profile h100-sxm" in done.stdout
    assert "megatron-core" in done.stdout
    stars = [line for line in done.stdout.splitlines() if line.startswith("* ")]
    assert stars[0].split()[1] == "1"
    rows = [line for line in done.stdout.splitlines() if line.startswith("  ") and "none" in line]
    assert len(rows) <= 3
    sentences = [line for line in done.stdout.splitlines() if line.startswith("- ")]
    assert all(len(line) <= 100 for line in not_empty(sentences))


def test_every_peak_behind_an_mfu_is_named() -> None:
    cluster = Cluster.profile("h100-sxm", gpus=16)
    task = Task(Model.preset("llama-7b"), cluster, sequence=2048, global_batch=64)
    plans = concat([Plan(tp=2), Plan(tp=4), Plan(tp=2, precision="fp8")])
    line = peak_line(evaluate(task, plans))
    assert line == "MFU of 989 TFLOP/s (bf16, dense) or 1979 TFLOP/s (fp8, dense) per GPU"


def test_a_terminal_gets_a_ruled_table() -> None:
    master, slave = os.openpty()
    command = [sys.executable, "-m", "plan3d", *SEARCH]
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "TERM": "xterm"}
    process = subprocess.Popen(command, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    seen = bytearray()
    while True:
        try:
            piece = os.read(master, 4096)
        except OSError:
            break
        if not piece:
            break
        seen += piece
    os.close(master)
    assert process.wait() == 0
    text = seen.decode()
    assert "─" in text
    assert "…" not in text
    assert "\x1b[3" not in text


def test_search_json_keeps_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *SEARCH, "--top", "3")
    assert {"plan3d", "task", "counts", "seconds_searching", "complete", "plans"} <= set(found)
    assert found["task"]["model"] == "llama-7b"
    assert found["task"]["parameters"] == 6_738_415_616
    assert (found["task"]["gpus"], found["task"]["global_batch"]) == (16, 64)
    assert found["complete"] is True
    assert 0 < found["nearest_run"]["mfu_causal"] < found["nearest_run"]["mfu"] < 1
    assert found["nearest_run"]["differs"]["gpus"][1] == 16
    counts = found["counts"]
    assert counts["candidates"] >= counts["evaluated"] >= counts["feasible"] > 0
    assert counts["removed"]["memory"] == counts["evaluated"] - counts["feasible"]
    assert [plan["rank"] for plan in found["plans"]] == [1, 2, 3]
    steps = [plan["step_seconds"] for plan in found["plans"]]
    assert steps == sorted(steps)
    for record in found["plans"]:
        check_plan(record)


def check_plan(record: dict[str, Any]) -> None:
    """One entry of 'plans': names, and parts that add up."""
    plan, memory = record["plan"], dict(record["memory_bytes"])
    assert plan["tp"] * plan["cp"] * plan["pp"] * plan["dp"] == 16
    assert plan["micro_batches"] * plan["micro_batch"] * plan["dp"] == 64
    assert plan["tp"] in (1, 2, 4)
    assert set(record["seconds"]) == set(PARTS)
    assert sum(record["seconds"].values()) == pytest.approx(record["step_seconds"], rel=1e-12)
    compute = sum(record["compute_seconds"].values())
    assert compute == pytest.approx(record["seconds"]["compute"], rel=1e-12)
    limit, capacity = memory.pop("limit"), memory.pop("capacity")
    total, _ = memory.pop("total"), memory.pop("worst_rank")
    assert sum(memory.values()) == pytest.approx(total, rel=1e-12)
    assert total <= limit <= capacity
    low, high = record["step_seconds_interval"]
    assert low < record["step_seconds"] < high
    assert 0 < record["mfu_causal"] < record["mfu"] < 1
    assert record["tokens_per_second"] == pytest.approx(64 * 2048 / record["step_seconds"])
    assert record["peak_flops"] == 989e12
    assert record["assumptions"]


def test_estimate_agrees_with_the_search(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = answer(capsys, *SEARCH, "--top", "3")
    saved = tmp_path / "result.json"
    saved.write_text(json.dumps(found))
    one = answer(capsys, "estimate", *TASK, "--plan", f"{saved}#3")
    (plan,) = one["plans"]
    assert plan["plan"] == found["plans"][2]["plan"]
    assert plan["step_seconds"] == pytest.approx(found["plans"][2]["step_seconds"], rel=1e-15)
    assert sum(plan["shares"].values()) == pytest.approx(1)
    assert len(one["stages"]) == plan["plan"]["pp"]
    assert sum(stage["layers"] for stage in one["stages"]) == 32
    fullest = max(stage["memory_bytes"]["total"] for stage in one["stages"])
    assert fullest == pytest.approx(plan["memory_bytes"]["total"], rel=1e-12)


def test_estimate_says_clearly_that_a_plan_does_not_fit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = ["--plan", "tp=2 pp=4 zero=0"]
    assert main(["estimate", *TASK, *plan, "--memory", "12 GiB", "-v"]) == 0
    out, _ = capsys.readouterr()
    assert "DOES NOT FIT" in out
    assert main(["estimate", *TASK, *plan, "--memory", "12 GiB"]) == 0
    printed = capsys.readouterr().out
    assert re.search(
        r"^\S+ on \d+ H100: OUT OF MEMORY by \d+\.\d GiB; a step would take \d", printed
    )
    assert re.search(r"memory +does not fit: \d+\.\d GiB too much", printed)
    assert "accelerator.memory given by the user" in " ".join(out.split())
    assert "memory by pipeline rank" in out
    assert main(["estimate", *TASK, *plan, "-v"]) == 0
    assert "\nFITS" in capsys.readouterr().out


def test_a_plan_file_is_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "plan.txt"
    file.write_text("tp=2\npp=2 recompute=full\n")
    (plan,) = answer(capsys, "estimate", *TASK, "--plan", str(file), "--precision", "fp8")["plans"]
    fields = plan["plan"]
    assert (fields["tp"], fields["pp"], fields["dp"]) == (2, 2, 4)
    assert (fields["recompute"], fields["precision"]) == ("full", "fp8")
    assert plan["peak_flops"] == 1979e12


def test_training_adds_time_energy_and_cost(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *SEARCH, "--tokens", "300B", "--price", "2")
    best = found["plans"][0]
    assert best["train_seconds"] == pytest.approx(300e9 / best["tokens_per_second"])
    assert best["gpu_hours"] == pytest.approx(best["train_seconds"] * 16 / 3600)
    assert best["cost_usd"] == pytest.approx(2 * best["gpu_hours"])
    assert best["energy_joules"] == pytest.approx(700 * 3600 * best["gpu_hours"])
    assert main([*SEARCH, "--tokens", "chinchilla", "-v"]) == 0
    out = capsys.readouterr().out
    assert "134.8 B tokens take" in out
    assert "GPU-hours" in out
    assert "estimate" in out
    assert "USD" not in out


def test_the_inverse_question_finds_the_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["search", "--model", "gpt3-1.3b", "--cluster", "a100-80gb-sxm", *FEWER]
    found = answer(capsys, *asked, "--tokens", "26B", "--days", "10")
    assert found["task"]["gpus"] % 8 == 0
    assert found["plans"][0]["train_seconds"] <= 10 * 86400
    line = refusal(capsys, *asked, "--tokens", "26B", "--budget-usd", "1", "--price", "2", code=3)
    assert "; 8 GPUs need" in line  # the cheapest cluster comes nearest
    assert main([*asked, "--tokens", "26B", "--budget-usd", "1", "--price", "2", "--json"]) == 3
    nothing = json.loads(capsys.readouterr().out)
    assert nothing["plans"] == []
    assert len(nothing["infeasible"]) == 1


@pytest.mark.slow
def test_a_larger_budget_buys_more_gpus_that_are_done_sooner(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ["search", "--model", "gpt3-1.3b", "--cluster", "a100-80gb-sxm", *FEW]
    asked += ["--tokens", "26B", "--price", "2"]
    small, large = (answer(capsys, *asked, "--budget-usd", usd) for usd in ("1500", "3000"))
    assert large["task"]["gpus"] > small["task"]["gpus"]
    assert large["plans"][0]["train_seconds"] < small["plans"][0]["train_seconds"]
    assert small["plans"][0]["cost_usd"] <= 1500
    assert large["plans"][0]["cost_usd"] <= 3000
    days = str(2 * large["plans"][0]["train_seconds"] / 86400)
    both = answer(capsys, *asked, "--budget-usd", "3000", "--days", days)
    assert both["task"]["gpus"] < large["task"]["gpus"]  # the fewest that keep the days


def test_a_budget_has_the_suffixes_of_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["search", "--model", "gpt3-1.3b", "--cluster", "a100-80gb-sxm", *FEWER]
    asked += ["--tokens", "26B", "--price", "2", "--budget-usd"]
    assert 1_000 < answer(capsys, *asked, "0.01M")["plans"][0]["cost_usd"] <= 10_000
    for text in ("0k", "much", "1.3Q", "nan", "1e40"):
        assert text in refusal(capsys, *asked, text)
    assert "for example 1.3M" in refusal(capsys, *asked, "much")


def test_what_does_not_fit_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["search", *TASK, *FEWER, "--memory", "3 GiB"]
    assert main(asked) == 3
    assert capsys.readouterr().out.startswith("llama-7b on 16 H100: no plan fits\n")
    assert main([*asked, "-v"]) == 3
    out = capsys.readouterr().out
    assert "No plan fits:" in out
    assert "GiB" in out
    assert main([*asked, "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["plans"] == []
    assert "stage" in found["infeasible"][0]


def test_a_plan_may_be_longer_than_the_name_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--model", "llama-3.1-405b", "--cluster", "h100-sxm", "--gpus", "1024"]
    layers = ",".join(["0", *["1"] * 126, "0"])
    plan = f"tp=8 pp=16 virtual_stages=8 layers_per_stage={layers}"
    assert len(plan) > 255
    assert answer(capsys, "estimate", *asked, "--plan", plan)["plans"][0]["plan"]["pp"] == 16
    answer(
        capsys, "explain", *asked, "--plan", "tp=8 pp=16", "--against", f"layers_per_stage={layers}"
    )


def test_where_no_plan_is_legal_the_nearest_questions_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ["search", "--model", "gpt3-13b", "--cluster", "a100-80gb-sxm", "--fix", "pp=1"]
    asked += ["--global-batch", "256"]
    assert main([*asked, "--gpus", "56", "--json"]) == 3
    _, *near = json.loads(capsys.readouterr().out)["infeasible"]
    assert [line.partition(":")[0] for line in near] == [
        "without the constraint on pp it fits",
        "on 40 GPUs it fits",
        "on 64 GPUs it fits",
        "with a global batch of 252 it fits",
        "with a global batch of 259 it fits",
    ]
    assert main([*asked, "--gpus", "40", "--json"]) == 0


def test_csv_holds_the_ranking(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "plans.csv"
    found = answer(capsys, *SEARCH, "--top", "5", "--csv", str(file))
    with file.open(newline="") as text:
        rows = list(csv.DictReader(text))
    assert [float(row["step_seconds"]) for row in rows] == [
        plan["step_seconds"] for plan in found["plans"]
    ]
    assert rows[0]["tp"] == str(found["plans"][0]["plan"]["tp"])
    assert float(rows[0]["memory_bytes.total"]) > 0
    assert [entry.name for entry in tmp_path.iterdir()] == ["plans.csv"]


def test_pareto_lists_plans_that_trade_time_for_memory(
    capsys: pytest.CaptureFixture[str],
) -> None:
    frontier = answer(capsys, *SEARCH, "--pareto")["frontier"]
    times = [plan["step_seconds"] for plan in frontier]
    sizes = [plan["memory_bytes"]["total"] for plan in frontier]
    assert times == sorted(times)
    assert sizes == sorted(sizes, reverse=True)
    assert main([*SEARCH, "--pareto", "--top", "3"]) == 0
    assert "Frontier of time against memory" in capsys.readouterr().out


def interrupt(costed: int) -> None:
    raise KeyboardInterrupt


def test_an_interrupt_keeps_the_best_so_far(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SEARCH, "--json"], progress=interrupt) == 130
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["complete"] is False
    assert found["plans"]
    assert err == "plan3d: interrupted: the best so far\n"
    assert main([*SEARCH, "--quiet"], progress=interrupt) == 130
    out, err = capsys.readouterr()
    assert "the search is not complete: the best so far" in out
    assert err == ""


def test_a_budget_ends_the_search_without_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *SEARCH, "--budget", "50")
    assert found["counts"]["evaluated"] == 50
    assert found["complete"] is False


BAD = [
    (["serach"], "did you mean search"),
    ([], "say what to do"),
    (["search", "--modle", "x"], "did you mean --model"),
    (["search", "--model", "gpt3-175", *TASK[2:]], "did you mean gpt3-175b"),
    (["search", *TASK[:2], "--cluster", "h101", "--gpus", "8"], "did you mean h100"),
    (["search", *TASK[:4]], "search needs a number of GPUs"),
    (["search", *TASK, "--gpus", "0"], "1 to"),
    (["search", *TASK, "--gpus", "-8"], "1 to"),
    (["search", *TASK, "--gpus", "eight"], "whole number"),
    (["search", *TASK, "--nodes", "3", "--gpus-per-node", "8"], "nearest: nodes 2"),
    (["search", *TASK, "--nodes", "1"], "16 a node, and h100-sxm has 8; nearest: nodes 2, gpus 8"),
    (["search", *TASK, "--sequence", "0"], "at least 1"),
    (["search", *TASK, "--global-batch", "0"], "global_batch"),
    (["search", *TASK, "--global-batch-tokens", "4M"], "give one"),
    (["search", *TASK[:6], "--global-batch-tokens", "4M"], "nearest: 3999744, 4001792"),
    (["search", *TASK, "--fix", "tpp=2"], "did you mean"),
    (["search", *TASK, "--fix", "tp"], "FIELD=VALUE"),
    (["search", *TASK, "--fix", "tp=2,4"], "--choose"),
    (["search", *TASK, "--fix", "tp=2", "--choose", "tp=4"], "constrained by --fix already"),
    (["search", *TASK, "--fix", "tp=3"], "does not divide 32 heads"),
    (["search", *TASK, "--fix", "zero=4"], "at most 3"),
    (["search", *TASK, "--fix", "dp=128"], "global batch 64 is not a multiple"),
    (["search", *TASK, "--choose", "layers_per_stage=1,31"], "one layout"),
    (["search", *TASK, "--precision", "fp7"], "not modelled"),
    (["search", *TASK, "--optimizer", "adagrad"], "not modelled"),
    (["search", *TASK, "--software", "jax"], "unknown software profile"),
    (["search", *TASK, "--software", ""], "unknown software profile"),
    (["search", *TASK, "--inter-node-bandwidth", "200"], "unit"),
    (["search", *TASK, "--inter-node-bandwidth", "0 Gb/s"], "above 0"),
    (["search", *TASK, "--network-latency", "5"], "unit"),
    (["search", *TASK, "--memory", "nan GiB"], "unit"),
    (["search", *TASK, "--memory-headroom", "100%"], "below 100%"),
    (["search", *TASK, "--objective", "speed"], "unknown objective"),
    (["search", *TASK, "--objective", "time-to-accuracy"], "needs the accuracy to reach"),
    (["search", *TASK, "--accuracy", "0.1"], "need each other"),
    (["search", *TASK, "--accuracy", "0"], "above 0"),
    (["search", *TASK, "--graph", "none.txt"], "cannot be read"),
    (["search", *TASK, "--calibration", ""], ".: cannot be read (it is a folder)"),
    (["timeline", *TASK, "--plan", "tp=2", "--graph", __file__], "must be two node numbers"),
    (
        ["timeline", *TASK, "--framework", "nanotron", "--plan", "pp=2 schedule=zb-h1"],
        "schedule=zb-h1: nanotron has 1f1b and afab (gpipe); nearest: schedule=1f1b",
    ),
    (["estimate", *TASK, "--plan", "sync=gossip sync_period=0"], "at least 1"),
    (["estimate", *TASK, "--plan", "sync=asynchronous-sgd"], "not modelled"),
    (["estimate", *TASK, "--plan", "compression=top-k kept_per_thousand=1001"], "at most 1000"),
    (["search", *TASK, "--backend", "magic"], "unknown backend"),
    (["search", *TASK, "--seed", "1"], "no effect"),
    (["search", *TASK, "--top", "0"], "at least 1"),
    (["search", *TASK, "--budget", "0"], "above 0"),
    (["search", *TASK, "--time-limit", "0"], "above 0"),
    (["search", *TASK, "--price", "2"], "needs --tokens"),
    (["search", *TASK, "--tokens", "0"], "above 0"),
    (["search", *TASK, "--tokens", "1T", "--days", "3"], "leave out --gpus"),
    (["search", *TASK[:4], "--days", "3"], "need --tokens"),
    (["search", *TASK[:4], "--tokens", "1T", "--budget-usd", "3"], "needs --price"),
    (["search", *TASK[:4], "--tokens", "1T", "--days", "3", "--budget", "9"], "do not go with"),
    (["search", *TASK, "--csv", "/no/such/folder/x.csv"], "cannot be written"),
    (["search", *TASK, "--csv", "/"], "cannot be written"),
    (["estimate", *TASK], "--plan"),
    (["estimate", *TASK, "--plan", "tp"], "neither"),
    (["estimate", *TASK, "--plan", "tp=8 pp=3"], "!= 16 GPUs"),
    (["estimate", *TASK, "--plan", "tp=2 tp=4"], "twice"),
    (["estimate", *TASK, "--plan", "tp=2;pp=2"], "must be a whole number"),
    (["estimate", *TASK, "--global-batch", "8", "--plan", "dp=16"], "global batch 8 is not"),
    (["estimate", *TASK, "--plan", "tp=2 precision=bf16", "--precision", "fp8"], "contradicts"),
    (
        ["estimate", "--model", "gpt3-125m", *TASK[2:], "--sequence", "4096", "--plan", "tp=1"],
        "positions",
    ),
    (["models", "gpt5"], "no model"),
    (["models", "--csv", "x"], "unknown option"),
    (["models", "llama-7b", "llama-13b"], "unknown argument"),
    (["clusters", "tpu"], "unknown profile"),
    (["search", *TASK[:2], "--cluster", "h100+a100", "--gpus", "8"], "mixed GPU types"),
    (["completion", "cmd.exe"], "must be bash, zsh, fish"),
    (["help", "flux"], "no verb and no word"),
]


@pytest.mark.parametrize(("arguments", "said"), BAD, ids=[" ".join(a)[-60:] for a, _ in BAD])
def test_a_mistake_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert said in refusal(capsys, *arguments)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("plan.json", "[", "not JSON"),
        ("plan.json", '{"plans": []}', "holds 0 plans"),
        ("plan.json", '{"tp": [1, 2]}', "cannot be"),
        ("plan.json", '{"tp": 1.5}', "cannot be"),
        ("plan.json", '{"tq": 1}', "did you mean"),
        ("plan.json", '{"layers_per_stage": ["x"]}', "cannot be"),
        ("plan.json", "[1]", "must hold"),
        ("plan.txt", "tp=2 pp", "FIELD=VALUE"),
        ("plan.txt", "tp=2 nonsense=1", "unknown plan field"),
    ],
)
def test_a_bad_plan_file_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, content: str, said: str
) -> None:
    file = tmp_path / name
    file.write_text(content)
    assert said in refusal(capsys, "estimate", *TASK, "--plan", str(file))


@pytest.mark.parametrize(
    ("content", "said"),
    [("{", "not JSON"), ('{"model_type": "llama"}', "missing"), ("[]", "object")],
)
def test_a_bad_config_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str, said: str
) -> None:
    file = tmp_path / "config.json"
    file.write_text(content)
    for name in (file, tmp_path):
        assert said in refusal(capsys, "search", "--model", str(name), *TASK[2:])


def test_a_bad_profile_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shipped = resources.files("plan3d.hardware_profiles").joinpath("v100-16gb-sxm.toml")
    text = shipped.read_text(encoding="utf-8")
    assert tomllib.loads(text)
    file = tmp_path / "mine.toml"
    file.write_text(
        text.replace("value = 300", "value = nan").replace("value = 900", "value = inf")
    )
    line = refusal(capsys, "search", *TASK[:2], "--cluster", str(file), "--gpus", "8")
    assert "mine.toml" in line


def test_a_failed_search_leaves_no_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    refusal(capsys, *SEARCH, "--csv", str(tmp_path / "x.csv"), "--fix", "pp=0")
    assert list(tmp_path.iterdir()) == []


def test_models_and_clusters_are_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    models = answer(capsys, "models")["models"]
    assert {"gpt3-175b", "llama-7b", "deepseek-v3"} <= {model["name"] for model in models}
    one = answer(capsys, "models", "deepseek-v3")
    assert sum(one["parameters_by_component"].values()) == one["parameters"]
    assert one["active_parameters"] < one["parameters"]
    clusters = answer(capsys, "clusters")["clusters"]
    assert {"a100-80gb-sxm", "gb200"} <= {cluster["name"] for cluster in clusters}
    profile = answer(capsys, "clusters", "h100-sxm")
    assert profile["tables"]["kernels.gemm.16bit.table"]["file"] == "h100-gemm-16bit.csv"
    assert "aiconfigurator" in profile["tables"]["kernels.gemm.16bit.table"]["source"]
    assert not answer(capsys, "clusters", "a100-80gb-sxm")["tables"]["kernels.layer.vtrain.table"][
        "measured"
    ]
    assert answer(capsys, "clusters", "mi300x")["tables"] == {}
    number = profile["numbers"]["accelerator.memory_bandwidth"]
    assert number["value"] == pytest.approx(3.35e12)
    assert number["source"]
    for arguments in (["models"], ["clusters"], ["models", "llama-7b"], ["clusters", "h100-sxm"]):
        assert main(arguments) == 0
        assert len(capsys.readouterr().out.splitlines()) > 8


def test_fields_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", "--help-fields"]) == 0
    assert "tensor-parallel size" in capsys.readouterr().out


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m plan3d models | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "plan3d", "models"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == "plan3d: cannot write the answer (No space left on device)\n"


def test_a_closed_stdout_is_no_error(tmp_path: Path) -> None:
    plans = tmp_path / "plans.csv"
    words = ["search", *TASK, "--csv", str(plans)]
    command = f"{sys.executable} -m plan3d {' '.join(words)} >&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert plans.read_text().startswith("rank,")


def test_a_pipe_is_written_as_a_file_is(capsys: pytest.CaptureFixture[str]) -> None:
    """`--csv >(gzip > plans.gz)`, `--csv /dev/stdout | less`."""
    reader, writer = os.pipe()
    assert main(["search", *TASK, "--top", "3", "--csv", f"/dev/fd/{writer}"]) == 0
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as pipe:
        assert len(pipe.readlines()) == 4
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "batch"),
    [("gpt3-175b", 1536), ("llama-7b", 2048), ("megatron-310.1b", 2160), ("deepseek-v3", 15360)],
)
def test_the_published_batch_is_a_round_number_of_sequences(name: str, batch: int) -> None:
    model = Model.preset(name)
    assert published_batch(model, model.sequence) == batch


def test_a_plan_that_gossips_is_estimated_and_says_what_is_assumed(capsys, tmp_path):
    plan = "dp=16 sync=gossip topology=ring"
    goal = ["--accuracy", "0.01", "--gradient-noise", "10"]
    assert main(["estimate", *TASK, "--plan", plan, *goal, "-v"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "gossip of weights among 16 replicas" in words
    assert "spectral gap 0.05" in words
    assert "Wang and Joshi 2021" in words
    assert "accuracy 0.01 takes" in words
    ring = tmp_path / "ring.txt"
    ring.write_text("".join(f"{i} {(i + 1) % 16}\n" for i in range(16)))
    given = ["--plan", "dp=16 sync=gossip topology=given", "--graph", str(ring)]
    record = answer(capsys, "estimate", *TASK, *given)["plans"][0]
    sent = record["synchronisation"]
    assert (sent["replicas"], sent["messages"]) == (16, 2)
    assert sent["spectral_gap"] == pytest.approx(0.05, abs=0.005)
    for verb in ("estimate", "timeline"):
        unused = refusal(capsys, verb, *TASK, "--plan", "dp=16", "--graph", str(ring))
        assert "--graph has no effect" in unused
    ring.write_text("0 1\n2 3\n")
    assert "2 unconnected parts never agree" in refusal(capsys, "estimate", *TASK, *given)


def test_a_search_by_time_to_accuracy_shows_iterations(capsys):
    goal = ["--objective", "time-to-accuracy", "--accuracy", "0.1", "--gradient-noise", "1"]
    ways = ["--choose", "sync=all-reduce,gossip", "--choose", "sync_period=1,8"]
    assert main([*SEARCH, *goal, *ways, "-v"]) == 0
    out = capsys.readouterr().out
    assert "iterations" in out
    assert "to accuracy" in out
    plans = answer(capsys, *SEARCH, *goal, *ways)["plans"]
    seconds = [plan["accuracy_seconds"] for plan in plans]
    assert seconds == sorted(seconds)
    assert all(
        p["accuracy_seconds"] == p["iterations"] * p["step_seconds"] for p in not_empty(plans)
    )


@pytest.mark.slow
def test_a_report_is_one_page_that_loads_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page, plot = tmp_path / "costs_tables.html", tmp_path / "frontier.png"
    words = ["--report", str(page), "--plot", str(plot), "--tokens", "1T", "--price", "2"]
    record = answer(capsys, *SEARCH, *words)
    text = page.read_text(encoding="utf-8")
    for said in ("Best plan:", "Ranking", "USD", "Assumptions", "default-src 'none'"):
        assert said in text
    assert f"{record['plans'][0]['step_seconds']:.4g} s a step" in text
    sources = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert len(sources) >= 2
    assert all(source.startswith("data:image/") for source in sources)
    assert "script-src 'sha256-" in text
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_a_search_without_a_frontier_has_a_report_and_no_plot(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page, plot = tmp_path / "report.html", tmp_path / "frontier.png"
    words = ["--backend", "branch-and-bound", "--report", str(page), "--plot", str(plot)]
    assert main([*SEARCH, *words]) == 0
    assert "Best plan:" in page.read_text(encoding="utf-8")
    assert "Time against memory" not in page.read_text(encoding="utf-8")
    assert not plot.exists()
    assert "not written, the branch-and-bound search has no frontier" in capsys.readouterr().err


def test_a_report_says_why_nothing_fits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page, plot = tmp_path / "costs_tables.html", tmp_path / "frontier.png"
    words = ["--memory", "2GiB", "--report", str(page), "--plot", str(plot)]
    assert main([*SEARCH, *words]) == 3
    assert "No plan fits" in page.read_text(encoding="utf-8")
    assert not plot.exists()
    assert "not written" in capsys.readouterr().err


def test_help_says_where_stacks_and_recipes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "search"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "see 'plan3d software') or path of a TOML file, default megatron-core" in said
    assert f"default bf16: {', '.join(CODES)}" in said


@pytest.mark.parametrize(
    "words",
    [
        ("estimate", "llama-7b", "h100-sxm", "16", "--plan", "pp=2"),
        ("timeline", "llama-7b", "h100-sxm", "16", "--plan", "pp=2"),
        ("compare", "llama-7b", "h100-sxm", "16", "--systems", "ddp,zero3", "--global-batch", "64"),
    ],
    ids=lambda words: words[0],
)
def test_one_option_draws_the_answer_of_every_verb(words, capsys, tmp_path):
    drawn = tmp_path / "answer.svg"
    assert main([*words, "--plot", str(drawn)]) == 0
    assert "unknown" not in capsys.readouterr().err
    assert drawn.read_text().startswith("<?xml")
    assert main([*words, "--plot", "answer.txt"]) == 2
    assert "must end in .png, .svg, .pdf" in capsys.readouterr().err
