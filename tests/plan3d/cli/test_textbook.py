"""`plan3d textbook`: the lecture's figures through the command line."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from plan3d import Cluster, Model, Plan, Task, closed_forms, evaluate
from plan3d.answers.textbook import TextbookRequest, textbook
from plan3d.cli.main import main
from plan3d.simulator.analysis.textbook import memory_rows, time_rows

GPT3 = ["textbook", "gpt3-175b", "a100-80gb-sxm", "1024"]


def rows(capsys, *words):
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    return {row["name"]: row for row in found["rows"]}


def test_gpt_3_as_the_lecture_has_it(capsys):
    """444 GB of activations at 2,048 tokens, 2.8 TB of fp32 states, 33.5 % of 1,024 A100 in 34 days
    (Narayanan et al. 2021 count 8 T N for full recompute: 45 %)."""
    found = rows(capsys, *GPT3, "--tokens", "300B", "--took", "34days")
    assert found["activations, b = 1"]["textbook"] == pytest.approx(444e9, rel=2e-3)
    assert found["activations, b = 1"]["simulator"] < 0.4 * 444e9
    states = found["states, fp32"]
    assert states["textbook"] == pytest.approx(states["simulator"], rel=1e-4)
    assert states["textbook"] == pytest.approx(4 * 700e9, rel=0.01)
    assert found["states, mixed"]["simulator"] == pytest.approx(12 * 174.6e9, rel=1e-3)
    share = found["a GPU, model parallel"]  # tp 4, pp 8
    assert share["textbook"] == pytest.approx(16 * 174.6e9 / 32, rel=1e-3)
    assert share["simulator"] == pytest.approx(share["textbook"], rel=0.04)
    assert found["utilisation"]["textbook"] == pytest.approx(0.335, abs=1e-3)
    days = found["training"]["simulator"] / 86400
    assert found["training"]["textbook"] / 86400 < days < 34


def test_one_bubble_is_one_number_on_every_screen(capsys):
    """Over useful time, over all time of the pipeline and over the step, which holds more."""
    words = ["megatron-145.6b", "a100-80gb-sxm", "4", "--global-batch", "16", "--plan", "pp=4"]
    found, record = rows(capsys, "textbook", *words), {}
    for verb in ("timeline", "estimate"):
        assert main([verb, *words, "--json"]) == 0
        record[verb] = json.loads(capsys.readouterr().out)
    over_useful = found["bubble, its stages"]["simulator"]
    idle = found["idle of the pipeline"]
    assert idle["textbook"] == pytest.approx(over_useful / (1 + over_useful), rel=1e-6)
    assert idle["simulator"] == record["timeline"]["idle_share"]
    assert idle["simulator"] == pytest.approx(idle["textbook"], rel=0.01)
    step = record["estimate"]["plans"][0]["seconds"]
    of_pipeline = idle["simulator"] * record["timeline"]["seconds"]["pipeline"]
    assert of_pipeline == pytest.approx(step["bubble"] + step["imbalance"], rel=0.01)
    assert main(["timeline", *words]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "16.6 % idle, 20.0 % of useful time" in printed


def test_full_recompute_counts_eight_instead_of_six():
    """T2: 0.4347 of 175 B, which the preset's 174.6 B make 0.4337."""
    asked = replace(
        SMALL, model=Model.preset("gpt3-175b"), cluster=replace(SMALL.cluster, gpus=1024)
    )
    costs = evaluate(replace(asked, global_batch=1536), Plan(tp=8, pp=8)).row()
    six, eight = (
        {row.name: row for row in time_rows(asked, costs, 300e9, 35 * 86400.0, full)}
        for full in (False, True)
    )
    assert eight["utilisation"].textbook == pytest.approx(0.4337, abs=5e-4)
    assert all(eight[name].formula.startswith("8 T N") for name in ("utilisation", "training"))
    for side in ("textbook", "simulator"):
        ratio = getattr(eight["utilisation"], side) / getattr(six["utilisation"], side)
        assert ratio == pytest.approx(8 / 6, rel=0.01)
    # The forward pass that runs again is in the utilisation too: the days are the same.
    assert eight["training"].textbook == pytest.approx(six["training"].textbook, rel=0.01)


def test_a_layer_of_the_plan_keeps_its_input_where_all_runs_again(capsys):
    """4 sequences of 2,048 tokens, 16 bits, four tensor ranks: 2 x 4 x 2048 x 4096 / 4 bytes; by
    the formula 2 x 4 (2 x 2048^2 x 32 + 14 x 2048 x 4096) / 4 where nothing does."""
    found = rows(capsys, "textbook", "llama-7b", "h100-sxm", "8", "--plan", "tp=4 micro_batch=4")
    kept, again = found["a layer, recompute=none"], found["a layer, recompute=full"]
    assert again["textbook"] == again["simulator"] == 2 * 4 * 2048 * 4096 / 4
    assert kept["textbook"] == 2 * 4 * (2 * 2048**2 * 32 + 14 * 2048 * 4096) / 4
    assert again["simulator"] < kept["simulator"] < 0.5 * kept["textbook"]


def test_the_screen_says_why(capsys):
    assert main([*GPT3, "--plan", "tp=8 pp=8", "--units", "GiB"]) == 0
    said = capsys.readouterr().out
    assert "414.0 GiB" in said
    assert "GB" not in said.replace("80GB", "")
    assert "flash attention stores no scores" in said
    assert max(map(len, said.splitlines())) <= 80


def test_it_holds_where_nothing_fits_and_without_bf16(capsys):
    """GPT-3 on 8 V100: 16-bit states are 8 N bytes, whatever a V100 computes in."""
    found = rows(capsys, "textbook", "gpt3-175b", "v100-32gb-sxm", "8", "--global-batch", "128")
    share = found["a GPU, data parallel"]
    n, values = 174.6e9, 128 * 444.5e9 / 4
    assert share["textbook"] == pytest.approx(2 * (4 * n + values / 8), rel=2e-3)
    assert 8 * n < share["simulator"] < share["textbook"]
    assert found["weights, fp32"]["simulator"] == pytest.approx(4 * n, rel=1e-3)
    assert found["  over weights, b = 128"]["textbook"] == pytest.approx(81, abs=0.5)


SMALL = Task(
    Model.preset("gpt3-1.3b"), Cluster.profile("a100-80gb-sxm", gpus=16), sequence=2048,
    global_batch=64,
)  # fmt: skip
SMALL_PLAN = Plan(pp=4, virtual_stages=2, zero=1)


def both_sides(task=SMALL):
    found = textbook(TextbookRequest(task=task, plan=SMALL_PLAN)).rows
    return {(row.topic, row.name): (row.textbook, row.simulator) for row in found}


@pytest.fixture(scope="module")
def sides():
    """Both sides of every row of SMALL."""
    return both_sides()


def test_every_formula_is_near_or_says_what_it_leaves_out(sides):
    """By hand: p = 4, m = 16, v = 2, n = 16, N = 1.517 B."""
    found = {name: pair for (_, name), pair in sides.items()}
    for name, value in {
        "bubble, even stages": 3 / 16,
        "bubble, v = 2": 3 / 32,
        "one stage at a time": 3,
        "sends, at least": 6,
        "rows, columns, columns": 3,
        "rows, rows, columns": 6,
        "messages, ring, n=16": 30,
        "messages, tree, n=16": 8,
        "messages, graph, n=32": 2,
    }.items():
        assert found[name] == pytest.approx((value, value)), name
    assert found["bubble, its stages"][0] == pytest.approx(found["bubble, its stages"][1])
    assert found["bubble, its stages"][1] > 3 / 16
    assert found["sends, at most"] == pytest.approx((96, 6))
    size = 4 * SMALL.model.parameters
    for name, value in {
        "server receives, n=32": 32 * size,
        "a worker, ring, n=16": 30 / 16 * size,
        "a worker, graph, n=32": 2 * size,
        "a worker, tau = 8": 30 / 16 * size / 8,
        "a worker, top 1 %": size / 50,
        "gradients in 16 bits": size / 2,
    }.items():
        assert found[name] == pytest.approx((value, value), rel=2e-3), name
    assert found["0.6 becomes 0.5"] == pytest.approx((0.6, 0.6), abs=0.02)
    assert found["linear speed-up"] == pytest.approx((16, 16), rel=0.01)


def test_the_simulator_is_asked_and_not_the_formula(monkeypatch, sides):
    """What only one side knows moves that side alone: vocabulary padding, an exposed send's
    network and attention's kernels on the right, the lecture's four values of Adam on the left."""
    first = sides
    stack = replace(SMALL.software, vocabulary_multiple=60_000)
    padded = both_sides(replace(SMALL, software=stack))
    bytes_of_weights = [key for key in first if key[1].startswith(
        ("values", "weights", "gradients", "states, ", "a GPU", "server", "a worker"))]  # fmt: skip
    assert len(bytes_of_weights) >= 20
    for key in bytes_of_weights:
        assert padded[key][0] == first[key][0]
        assert padded[key][1] > 1.001 * first[key][1], key
    monkeypatch.setattr(closed_forms, "ADAM_VALUES", 5)
    monkeypatch.setattr(closed_forms, "bubble", lambda *sizes: 1.0)
    changed = both_sides()
    assert [pair[1] for pair in changed.values()] == [pair[1] for pair in first.values()]
    moved = {name for (topic, name), pair in changed.items() if pair != first[topic, name]}
    assert moved == {"values of Adam", "states and those, b = 1", "a GPU, data parallel",
                     "one stage at a time", "bubble, even stages", "bubble, v = 2",
                     "idle of the pipeline"}  # fmt: skip


def test_data_parallel_bytes_depend_on_the_batch():
    name = "a GPU, data parallel"
    one, four = (
        next(r for r in memory_rows(replace(SMALL, global_batch=b), SMALL_PLAN) if r.name == name)
        for b in (64, 256)
    )
    more = 2 * (256 - 64) / 16 * 25.0e9 / 4
    assert four.textbook - one.textbook == pytest.approx(more, rel=0.01)
    assert four.simulator > one.simulator + 2e10


def test_a_real_layer_is_split_as_megatron_splits_it(capsys):
    """T10 on GPT-3: rows, columns, rows, columns; a small layer is better off in part unsplit."""
    found = partition(capsys, *GPT3, "--partition", "8")
    names = ("qkv", "projection", "up", "down")
    assert [found["choice"][n] for n in names] == ["rows", "columns"] * 2
    assert found["seconds"] == pytest.approx(found["megatron_seconds"])
    assert found["bound_seconds"] <= found["seconds"] < found["whole_seconds"] / 6
    moves = [(c["tensor"], c["collective"]) for c in found["collectives"] if not c["backward"]]
    assert moves == [
        ("norm", "all_gather"),
        ("projection", "reduce_scatter"),
        ("norm2", "all_gather"),
        ("down", "reduce_scatter"),
    ]
    small = ("textbook", "gpt3-125m", "a100-80gb-sxm", "8", "--sequence", "128")
    found = partition(capsys, *small, "--partition", "4")
    assert found["seconds"] < 0.95 * found["megatron_seconds"]
    assert found["choice"]["up"] == found["choice"]["down"] == "replicated"


def test_products_of_given_widths(capsys):
    """The ledger's T10 needs no model."""
    found = partition(capsys, "textbook", "--partition", "8", "--widths", "1,4,1")
    every = {tuple(row["partition"]): row["units"] for row in found["every"]}
    assert every["rows", "columns", "columns"] == 6
    assert every["rows", "rows", "columns"] == 3 == found["units"]
    assert main(["textbook", "--partition", "8", "--widths", "1,4,1"]) == 0
    assert "at 3 ring units" in " ".join(capsys.readouterr().out.split())


def partition(capsys, *words):
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["resnet-50", "v100-16gb-sxm", "8", "--global-batch", "256"], "of transformers"),
        ([*GPT3[1:], "--took", "0s"], "above 0"),
        (["gpt3-175b", "a100-80gb-sxm"], "needs a number of GPUs"),
        (["--widths", "4,1"], "needs --partition"),
        (["--widths", "4,1", "--partition", "8", "--units", "GB"], "in ring units"),
        ([*GPT3[1:], "--units", "MB"], "must be GB"),
        ([*GPT3[1:], "--plan", "tp=7"], "does not divide"),
        (["--widths", "4,no", "--partition", "8"], "such as 4,1,1"),
        ([*GPT3[1:], "--partition", "7"], "does not divide 96 heads; nearest: 6"),
        ([*GPT3[1:], "--partition", "1"], "must be from 2"),
        (["mixtral-8x7b", "h100-sxm", "64", "--partition", "8"], "no block of plain attention"),
    ],
)
def test_what_has_no_textbook_is_refused(capsys, words, why):
    assert main(["textbook", *words]) == 2
    assert why in capsys.readouterr().err
