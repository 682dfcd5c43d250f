"""`plan3d timeline` prints, writes and refuses what it says."""

import itertools
import json

import pytest
from not_empty import not_empty

from plan3d.cli.main import main

TASK = [
    "--model",
    "gpt3-6.7b",
    "--cluster",
    "a100-80gb-sxm",
    "--gpus",
    "32",
    "--global-batch",
    "64",
]
LAYOUT = ["--pipeline-model-parallel-layout", "Et*7|(t*9|)*2,t*7L"]
PLAN = "pp=4 tp=2 schedule=zb-h1 micro_batch=2"


def run(capsys, *words):
    code = main(["timeline", *TASK, *words])
    return code, *capsys.readouterr()


def test_text(capsys):
    code, out, err = run(capsys, "--plan", PLAN)
    assert (code, err) == (0, "")
    for words in ("simulated: pipeline", "Closed form", "Critical path", "activations GiB"):
        assert words in out
    assert sum(line.lstrip().startswith(("0 ", "1 ", "2 ", "3 ")) for line in out.splitlines()) == 4


@pytest.mark.parametrize("plan", [PLAN, PLAN + " dp=1 tp=2 pp=16 micro_batch=1 schedule=1f1b"])
def test_what_is_drawn_is_as_busy_as_the_ranks(capsys, monkeypatch, plan):
    """Pass by pass, and by the shares of intervals where there are too many."""
    from plan3d.simulator.reporting import gantt

    monkeypatch.setattr(gantt, "MOST_OPERATIONS", 1000 if plan == PLAN else 100)
    fields = dict(word.split("=") for word in plan.split())
    words = " ".join(f"{name}={value}" for name, value in fields.items())
    code, out, _ = run(capsys, "--plan", words, "--json", "-v")
    assert code == 0
    record = json.loads(out)
    chart = record["chart"]
    assert chart["passes"][0] == "forward"
    drawn = []
    for row in chart["ranks"]:
        if plan == PLAN:
            drawn.append(sum(end - start for _, _, start, end in row["passes"]))
            assert {kind for kind, *_ in row["passes"]} == {0, 1, 2}
        else:
            widths = [b - a for a, b in itertools.pairwise(chart["edges"])]
            shares = [sum(each) for each in zip(*row["shares"], strict=True)]
            drawn.append(sum(w * s for w, s in zip(widths, shares, strict=True)))
    busy = [rank["busy_seconds"] for rank in record["ranks"]]
    assert drawn == pytest.approx(busy, rel=0.01)


def test_json(capsys):
    code, out, _ = run(capsys, "--plan", PLAN, "--json")
    assert code == 0
    record = json.loads(out)
    assert record["plan"]["schedule"] == "zb-h1"
    seconds = record["seconds"]
    assert sum(seconds.values()) == pytest.approx(record["step_seconds"])
    assert record["closed_form_step_seconds"] == pytest.approx(record["step_seconds"], rel=0.03)
    for rank in record["ranks"]:
        total = rank["busy_seconds"] + rank["idle_seconds"]
        assert total == pytest.approx(seconds["pipeline"])
        assert rank["activations_peak_bytes"] > 0
    path = record["critical_path"]
    assert sum(path["seconds"].values()) == pytest.approx(seconds["pipeline"])


def test_files(capsys, tmp_path):
    trace, gantt = tmp_path / "step.json", tmp_path / "step.svg"
    code, *_ = run(capsys, "--plan", PLAN, "--trace", str(trace), "--plot", str(gantt))
    assert code == 0
    events = json.loads(trace.read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "C", "s", "f"}
    assert gantt.read_text().startswith("<?xml")


@pytest.mark.parametrize("schedule", ["dualpipe", "zb-v virtual_stages=2"])
def test_two_chunks_a_rank(capsys, schedule):
    code, out, _ = run(capsys, "--plan", f"pp=4 tp=2 schedule={schedule}", "--json")
    assert code == 0
    record = json.loads(out)
    assert record["closed_form_step_seconds"] == pytest.approx(record["step_seconds"], rel=0.05)
    assert record["plan"]["schedule"] == schedule.split()[0]


def test_layouts_of_megatron(capsys):
    code, out, _ = run(capsys, "--plan", "pp=4 tp=2 layers_per_stage=Et*7|(t*9|)*2,t*7L", "--json")
    assert code == 0
    assert json.loads(out)["plan"]["layers_per_stage"] == [7, 9, 9, 7]


@pytest.mark.parametrize("verb", ["timeline", "estimate", "search"])
@pytest.mark.parametrize(
    "option",
    [
        ["--layers-per-stage", "7,9,9,7"],
        ["--pipeline-model-parallel-layout", "Et*7|(t*9|)*2,t*7L"],
    ],
)
def test_a_layout_is_an_option_of_every_verb_that_takes_a_plan(capsys, verb, option):
    plan = ["--fix", "pp=4"] if verb == "search" else ["--plan", "pp=4 tp=2"]
    assert main([verb, *TASK, *plan, *option, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    found = [p["plan"] for p in record.get("plans", [record])]
    assert all(p["layers_per_stage"] == [7, 9, 9, 7] and p["pp"] == 4 for p in not_empty(found))


def test_multi_token_prediction_in_a_stage_of_its_own(capsys):
    task = ["--model", "deepseek-v3", "--cluster", "h800-sxm", "--gpus", "128"]
    layout = "Et*3|(tt|)*29,m|L"
    plan = ["--plan", "pp=16 virtual_stages=2 ep=8", "--pipeline-model-parallel-layout", layout]
    batch = ["--global-batch", "128", "--sequence", "4096"]
    assert main(["timeline", *task, *batch, *plan, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["mtp_stage"] == 31
    fixed = ["--fix", "pp=16", "--fix", f"pipeline_model_parallel_layout={layout}"]
    assert (
        main(["search", *task, *batch, *fixed, "--fix", "ep=8", "--memory", "9TB", "--json"]) == 0
    )
    best = json.loads(capsys.readouterr().out)["plans"][0]["plan"]
    assert (best["mtp_stage"], best["virtual_stages"]) == (31, 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--plan", "pp=3"], "!= 32 GPUs"),
        (["--plan", "pp=4 schedule=zb-h3"], "zb-h3 is not modelled; did you mean zb-h"),
        (["--plan", "pp=4 layers_per_stage=8,8,8,9"], "layers_per_stage gives 4 stages with 33"),
        (["--plan", "pp=4 layers_per_stage=Ett|tt"], "one L must come last"),
        (["--plan", "pp=4 schedule=dualpipe micro_batch=4"], "2 micro-batches are fewer"),
        (["--plan", "pp=4 micro_batch=16 schedule=zb-h1"], "is not a multiple of micro_batch(16)"),
        (["--plan", "pp=8 virtual_stages=2 dp=4 micro_batch=4"], "not a multiple of pp = 8"),
        (["--plan", PLAN, "--plot", "step.txt"], "must end in .png, .svg, .pdf"),
        (["--plan", PLAN, "--trace", "/nowhere/step.json"], "--trace"),
        (["--plan", PLAN, "--tokens", "1B"], "--tokens"),
        (
            ["--plan", "pp=4 layers_per_stage=8,8,8,8", "--layers-per-stage", "7,9,9,7"],
            "contradicts",
        ),
        (
            ["--plan", "pp=4", *LAYOUT, "--layers-per-stage", "7,9,9,7"],
            "--layers-per-stage and --pipeline-model-parallel-layout say the same",
        ),
        (["--plan", "pp=8", *LAYOUT], "layers_per_stage gives 4 stages with 32 layers"),
        ([], "--plan"),
    ],
)
def test_mistakes_take_one_line(capsys, words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *words)
    assert code == 2
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
