"""Training systems on the command line: --system, `systems` and `compare --systems`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from not_empty import not_empty

from plan3d.cli.main import main
from plan3d.screens.compare import open_fields
from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.search.systems.system_plans import complete_plan, constraints
from plan3d.search.systems.systems import SYSTEMS, system
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

TASK = ["--model", "gpt3-1.3b", "--cluster", "a100-80gb-sxm", "--gpus", "16"]
TASK += ["--global-batch", "64"]
LARGE = ["--model", "gpt3-6.7b", "--cluster", "a100-80gb-sxm", "--gpus", "16"]
GOAL = ["--accuracy", "0.01", "--gradient-noise", "10"]
SOME = "sequential,ddp,gossip,zero1"


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    """The JSON object that a command prints."""
    assert main([*arguments, "--json"]) == code
    record: dict[str, Any] = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    return record


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(list(arguments)) == code
    out, err = capsys.readouterr()
    assert err == ""
    return " ".join(out.split())


def test_a_search_keeps_to_its_system(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "search", *TASK, "--system", "zero2")
    assert found["system"] == "zero2"
    assert {plan["plan"]["zero"] for plan in found["plans"]} == {2}
    assert {plan["plan"]["dp"] for plan in found["plans"]} == {16}
    words = printed(capsys, "search", *TASK, "--system", "zero2", "--top", "1")
    assert "system zero2: data parallelism, optimizer state and gradients sharded" in words
    assert "system" not in answer(capsys, "search", *TASK, "--fix", "zero=2")


def test_a_constraint_narrows_what_a_system_leaves_open(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = answer(capsys, "search", *TASK, "--system", "fsdp", "--fix", "shard=8")
    assert {plan["plan"]["shard"] for plan in found["plans"]} == {8}


def test_an_estimate_fills_the_plan_in(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["estimate", *TASK, "--system", "gpipe", "--plan", "pp=4"]
    found = answer(capsys, *asked)
    plan = found["plans"][0]["plan"]
    assert (plan["schedule"], plan["recompute"], plan["zero"]) == ("gpipe", "full", 0)
    assert found["system"] == "gpipe"
    spelled = ["--plan", "pp=4 schedule=gpipe recompute=full zero=0 overlap_grad_reduce=0"]
    plain = answer(capsys, "estimate", *TASK, *spelled)
    assert plain["plans"] == found["plans"]
    assert "system gpipe: pipeline and data parallelism" in printed(capsys, *asked)


def test_a_sweep_asks_every_point_of_the_system(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["sweep", *TASK[:4], "--global-batch", "64", "--system", "pipedream"]
    found = answer(capsys, *asked, "--over", "gpus=8,16")
    plans = [Plan.parse(point["plan"]) for point in found["points"]]
    assert all(
        plan.pp > 1 and plan.virtual_stages == 1 and plan.tp == 1 for plan in not_empty(plans)
    )


def test_a_sweep_of_one_plan_completes_it_as_a_system_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ["sweep", *TASK, "--system", "gossip", "--plan", "micro_batch=1", *GOAL]
    (first, second) = answer(capsys, *asked, "--over", "micro_batch=1,2")["points"]
    assert first["plan"] == "dp=16 sync=gossip topology=inner-outer-exponential"
    assert second["plan"] == "dp=16 micro_batch=2 sync=gossip topology=inner-outer-exponential"
    assert first["accuracy_seconds"] == first["step_seconds"] * first["iterations"]
    assert "iterations accuracy" in printed(capsys, *asked, "--over", "micro_batch=1,2")


def test_a_sweep_of_systems_prints_where_they_change_places(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Top-k saves bytes and pays kernels: it wins on slow links alone."""
    asked = ["sweep", *TASK, "--system", "horovod,top-k", "--plan", "micro_batch=4"]
    asked += ["--over", "inter_node_bandwidth=25Gb/s,800Gb/s"]
    found = answer(capsys, *asked)
    steps = [point["step_seconds"] for point in found["points"]]
    assert [point["system"] for point in found["points"]] == ["horovod", "top-k"] * 2
    assert steps[1] < steps[0]
    assert steps[3] > steps[2]
    (crossing,) = found["crossings"]
    assert (crossing["system"], crossing["reference"]) == ("top-k", "horovod")
    assert crossing["first_shorter"] is True
    (at,) = crossing["values"]
    assert 25e9 / 8 < at < 800e9 / 8
    words = printed(capsys, *asked)
    assert "top-k: a shorter step than horovod up to inter_node_bandwidth = " in words
    assert ", then a longer one" in words


def test_what_is_in_the_way_of_a_fit(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["search", *LARGE, "--system", "ddp", "--fix", "micro_batch=1"]
    lines = answer(capsys, *asked, code=3)["infeasible"]
    assert any(line.startswith("without the system ddp it fits") for line in lines)
    assert not any("constraint on tp" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["search", *TASK, "--system", "dpp"], "unknown system 'dpp'; did you mean ddp"),
        (["search", *TASK, "--system", "ddp", "--fix", "tp=4"], "tp=4 contradicts the system ddp"),
        (
            ["search", *TASK, "--system", "zero1", "--choose", "zero=1,2"],
            "zero=2 contradicts the system zero1, which has zero=1",
        ),
        (
            ["search", *TASK, "--system", "local-sgd", "--fix", "sync_period=1"],
            "sync_period=1 contradicts the system local-sgd, which has sync_period=2 or more",
        ),
        (["search", *TASK, "--system", "sequential"], "trains on 1 GPU, not 16: give --gpus 1"),
        (
            ["estimate", *TASK, "--system", "sequential", "--plan", "micro_batch=1"],
            "trains on 1 GPU, not 16",
        ),
        (
            ["estimate", *TASK, "--system", "ddp", "--plan", "zero=3"],
            "zero=3 contradicts the system ddp, which has zero=0",
        ),
        (
            ["search", *TASK, "--system", "ddp", "--backend", "annealing", "--space", "staged"],
            "leave out --space",
        ),
        (
            ["sweep", *TASK, "--system", "ddp", "--over", "tp=1,2"],
            "tp=2 contradicts the system ddp",
        ),
        (
            ["sweep", *TASK, "--system", "ddp", "--plan", "micro_batch=1", "--over", "tp=1,2"],
            "tp=2 contradicts the system ddp",
        ),
        (
            ["sweep", *TASK, "--system", "ddp,dpp", "--over", "micro_batch=1,2"],
            "unknown system 'dpp'; did you mean ddp",
        ),
        (["sweep", *TASK, "--system", "ddp,ddp", "--over", "tp=1"], "names a system twice"),
        (
            ["sweep", *TASK, "--system", "ddp,zero1", "--over", "zero=0", "--over", "tp=1"],
            "--system names several systems, which are varied: give one --over",
        ),
        (["timeline", *TASK, "--system", "ddp", "--plan", "tp=1"], "unknown option '--system'"),
        (["systems", "megatorn"], "did you mean megatron"),
        (["compare", *TASK, "--system", "ddp"], "did you mean --systems"),
        (["compare", *TASK, "--systems", "ddp,gpip"], "did you mean gpipe"),
        (["compare", *TASK, "--systems", "ddp,ddp"], "names a system twice"),
        (["compare", *TASK, "--systems", "ddp", "--seeds", "3"], "--seeds has no effect"),
        (["compare", *TASK, "--systems", "ddp", "--space", "staged"], "--space has no effect"),
        (["compare", *TASK, "--systems", "ddp", "--backends", "spsa"], "--backends has no effect"),
        (["compare", *TASK, "--systems", "ddp", "--fix", "pp=2"], "pp=2 contradicts"),
        (["compare", *TASK, "--systems", "all", "--accuracy", "0.1"], "need each other"),
        (["compare", *TASK, *GOAL], "--accuracy has no effect on backends"),
    ],
)
def test_what_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("plan3d: ")
    assert err.count("\n") == 1
    assert message in err


def test_the_catalogue_lists_every_system(capsys: pytest.CaptureFixture[str]) -> None:
    listed = answer(capsys, "systems")["systems"]
    assert [entry["name"] for entry in listed] == list(SYSTEMS)
    assert all(entry["meaning"] and entry["source"] for entry in listed)
    words = printed(capsys, "systems")
    assert all(name in words for name in SYSTEMS)
    one = answer(capsys, "systems", "local-sgd")
    assert one["holds"]["sync_period"] == "2 or more"
    assert one["tries"] == {"sync_period": [8]}
    shown = printed(capsys, "systems", "gpipe")
    assert "schedule gpipe held" in shown
    assert "pp 2 or more held" in shown


def test_compare_keeps_its_contract(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "compare", *TASK, "--systems", SOME)
    assert [entry["system"] for entry in found["systems"]] == SOME.split(",")
    assert found["objective"] == "step-time"
    assert found["complete"] is True
    alone, ddp, gossip, _ = found["systems"]
    assert (alone["gpus"], ddp["gpus"]) == (1, 16)
    assert alone["speed_up"] == pytest.approx(1)
    ratio = found["one_device_step_seconds"] / ddp["best"]["step_seconds"]
    assert ddp["speed_up"] == pytest.approx(ratio)
    assert (ddp["exact"], gossip["exact"]) == (True, False)
    assert "iterations" not in ddp["best"]
    best = answer(capsys, "search", *TASK, "--system", "ddp", "--all-plans")["plans"][0]
    assert best["step_seconds"] == ddp["best"]["step_seconds"]
    assert best["plan"] == ddp["best"]["plan"]


def test_systems_say_how_likely_they_fit(capsys: pytest.CaptureFixture[str]) -> None:
    """By the memory that a search keeps to, which -v and JSON say."""
    searched = answer(capsys, "search", *TASK)
    found = answer(capsys, "compare", *TASK, "--systems", SOME)
    assert found["memory_limit_bytes"] == searched["memory_limit_bytes"]
    assert {one["best"]["verdict"] for one in found["systems"]} <= {"fits", "edge"}
    for more in ([], ["-v"], [*GOAL, "-v"]):
        assert "fits %" in printed(capsys, "compare", *TASK, "--systems", SOME, *more)
    tenth = answer(capsys, "compare", *TASK, "--systems", SOME, "--memory-headroom", "10%")
    assert tenth["memory_limit_bytes"] == pytest.approx(0.9 * 85.06e9, rel=1e-3)


def test_a_goal_adds_iterations_and_what_they_rest_on(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "compare", *TASK, "--systems", SOME, *GOAL)
    assert found["objective"] == "time-to-accuracy"
    steps = {entry["system"]: entry["best"]["iterations"] for entry in found["systems"]}
    assert steps["sequential"] == pytest.approx(steps["ddp"])
    # Two nodes that sum first and average with each other are exact, one step after another.
    assert steps["ddp"] == pytest.approx(steps["gossip"])
    words = printed(capsys, "compare", *TASK, "--systems", SOME, *GOAL, "-v")
    assert "to accuracy" in words
    assert "- sequential, ddp, zero1: iterations from v / (n e^2) + 1 / e" in words
    assert "- gossip: iterations from" in words
    assert f"{found['fastest']} is at the accuracy first, in " in words
    without = printed(capsys, "compare", *TASK, "--systems", SOME, "-v")
    assert "to accuracy" not in without
    assert "gossip: a step is not exact and worth less" in without


@pytest.mark.parametrize("goal", [[], GOAL])
def test_the_shortest_step_and_the_shortest_exact_one_are_named(
    goal: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Eight local steps to an average: shorter steps, which with a goal are worth less."""
    asked = ["compare", *TASK, *goal, "--systems"]
    found = answer(capsys, *asked, "horovod,local-sgd")
    assert (found["shortest_step"], found["shortest_exact_step"]) == ("local-sgd", "horovod")
    assert found["fastest"] == "horovod"
    words = printed(capsys, *asked, "horovod,local-sgd")
    horovod, local = (entry["best"]["step_seconds"] for entry in found["systems"])
    assert local < horovod
    assert words.startswith(f"local-sgd has the shortest step of 2 systems: {local:.4g} s (")
    assert f"; horovod has the shortest exact one: {horovod:.4g} s (" in words
    assert ("horovod is at the accuracy first, in " in words) == bool(goal)
    assert "none that is exact fits" in printed(capsys, *asked, "local-sgd")
    only = printed(capsys, *asked, "horovod")
    assert only.startswith("horovod has the shortest step of 1 systems, an exact one: ")


def test_what_does_not_fit_says_by_how_much(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "compare", *LARGE, "--systems", "sequential,ddp,zero3")
    ddp = found["systems"][1]
    assert ddp["best"] is None
    assert ddp["least_memory_bytes"] > found["memory_limit_bytes"]
    assert "GiB over the limit" in ddp["infeasible"]
    assert found["fastest"] == "zero3"
    words = printed(capsys, "compare", *LARGE, "--systems", "sequential,ddp,zero3")
    least = ddp["least_memory_bytes"] / 2**30
    assert (
        f"do not fit: sequential needs at least {least - 1.0:.1f} GiB, ddp {least:.1f}; "
        "plans may use 79.2 of a GPU's 79.2 GiB"
    ) in words
    words = printed(capsys, "compare", *LARGE, "--systems", "ddp,zero3")
    assert f"does not fit: ddp needs at least {least:.1f} GiB; plans may use 79.2" in words
    words = printed(capsys, "compare", *LARGE, "--systems", "sequential,ddp,zero3", "-v")
    assert "does not fit in 79.2 GiB: 74.4 GiB are optimizer" in words
    assert "were its memory enough" in words
    assert main(["compare", *LARGE, "--systems", "ddp,horovod"]) == 3


def test_rules_that_leave_no_plan_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["compare", *TASK[:4], "--gpus", "1", "--global-batch", "8"]
    words = printed(capsys, *asked, "--systems", "sequential,ddp")
    assert "No legal plan" in words
    assert "ddp: overlap_grad_reduce has nothing to reduce when dp x cp = 1" in words
    found = answer(capsys, "compare", *TASK[:-1], "100", "--systems", "ddp,zero1", code=3)
    for entry in found["systems"]:
        assert entry["infeasible"].startswith("global batch 100 is not a multiple of")
        assert entry["infeasible"].endswith("nearest: 96, 112")


def interrupt(costed: int) -> None:
    raise KeyboardInterrupt


def test_an_interrupted_comparison_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["compare", *TASK, "--systems", "all", "--json"]
    assert main(asked, progress=interrupt) == 130
    out, err = capsys.readouterr()
    assert json.loads(out)["complete"] is False
    assert err == "plan3d: interrupted: the systems that came to their end\n"


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_fields_of_a_table_give_the_plan_again(name: str) -> None:
    named = system(name)
    cluster = Cluster.profile("a100-80gb-sxm", gpus=named.gpus or 16)
    task = Task(Model.preset("gpt3-1.3b"), cluster, sequence=2048, global_batch=64)
    found = rank_plans(task, Ranking(choose=constraints(named, task, {}), top=5))
    for plan in not_empty(found.plans):
        text = open_fields(named, plan)
        stated = frozenset(word.partition("=")[0] for word in text.split())
        again = resolve(complete_plan(named, Plan.parse(text), stated), task.gpus)
        assert again.to_dict() == plan.to_dict()


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("local-sgd", {"sync_period=8"}),
        ("diloco", {"sync_period=500"}),
        ("streaming-diloco", {"sync_period=100", "fragments=10", "outer_delay=5"}),
        ("qsgd", set()),
        ("ddp", set()),
    ],
)
def test_a_row_shows_the_usual_period_of_its_system(name: str, shown: set[str]) -> None:
    usual = {n: values[0] for n, values in system(name).usual_settings.items()}
    plan = complete_plan(system(name), Plan(dp=16, micro_batch=4), frozenset(("dp", "micro_batch")))
    words = set(open_fields(system(name), resolve(plan, 16)).split())
    assert {word for word in words if word.partition("=")[0] in usual} == shown
