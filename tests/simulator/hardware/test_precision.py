"""Precision recipes: bytes by hand, what each property changes, and recipes from outside."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.precision import (
    BF16,
    CODES,
    FORMATS,
    FP8,
    RECIPES,
    WIDTHS,
    Optimizer,
    Precision,
    Recipe,
    register_recipe,
)
from plan3d.simulator.layers.cost_columns import Cost, LayerCosts
from plan3d.simulator.layers.layer_costs import layer_costs
from plan3d.simulator.layers.layer_kinds import layer_kinds
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.rules.training_rules import supported_precisions
from plan3d.simulator.rules.validity import check
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.step.stages import strategies
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model


def task(cluster: str = "h100-sxm") -> Task:
    machine = Cluster.profile(cluster, gpus=16)
    return Task(Model.preset("llama-7b"), machine, sequence=2048, global_batch=64)


def layers(recipe: Recipe, plan: str = "tp=2 pp=2") -> LayerCosts:
    table = resolve(Plan.parse(plan).table(), 16)
    return layer_costs(task(), recipe, strategies(table))


def column(costs: LayerCosts, cost: Cost, kind: str) -> float:
    names = [one.name for one in layer_kinds(task().model)]
    return float(costs.table[0, names.index(kind), cost])


def test_codes_of_shipped_recipes_do_not_change() -> None:
    assert dict(CODES) == {
        **{"bf16": 0, "fp16": 1, "fp8": 2, "fp32": 3, "mixed": 4, "pure-bf16": 5},
        **{"fp8-delayed": 6, "fp8-blockwise": 7, "fp8-rowwise": 8, "mxfp8": 9, "nvfp4": 10},
        **{"amp": 11},
    }
    for code, recipe in RECIPES.items():
        assert Precision(code).name.lower().replace("_", "-") == recipe.name


@pytest.mark.parametrize(
    ("name", "adam", "sgd"),
    [
        # Weight + gradient + master + moments; momentum keeps the first of them.
        ("bf16", 2 + 4 + 4 + 4 + 4, 2 + 4 + 4 + 4),
        # And 4 of the gradient while the update runs.
        ("fp16", 2 + 2 + 4 + 4 + 4, 2 + 2 + 4 + 4),
        ("fp8", 2 + 4 + 4 + 4 + 4, 2 + 4 + 4 + 4),
        ("fp32", 4 + 4 + 4 + 4, 4 + 4 + 4),
        ("mixed", 4 + 2 + 2 + 4, 4 + 2 + 2),
        ("pure-bf16", 2 + 2 + 2 + 2, 2 + 2 + 2),
        ("amp", 4 + 4 + 4 + 4, 4 + 4 + 4),
    ],
)
def test_bytes_a_parameter(name: str, adam: int, sgd: int) -> None:
    recipe = RECIPES[CODES[name]]
    for optimizer, total in ((Optimizer.ADAM, adam), (Optimizer.SGD, sgd)):
        assert recipe.weight + recipe.gradient + recipe.optimizer_bytes(optimizer) == total


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda recipe: recipe.name)
def test_a_recipe_multiplies_in_formats_that_are_known(recipe: Recipe) -> None:
    assert len(recipe.source) > 20
    for form in recipe.formats:
        assert form.peak in FORMATS
        assert form.width in WIDTHS


def test_the_head_has_a_format_of_its_own() -> None:
    everything = replace(RECIPES[Precision.FP8], head=FP8)
    for kind, ratio in (("block 0", 1.0), ("head", 0.75)):
        fp8, both = (
            column(layers(recipe), Cost.MATMUL, kind)
            for recipe in (RECIPES[Precision.FP8], everything)
        )
        assert both <= ratio * fp8
        assert (both == fp8) is (ratio == 1.0)


def test_what_is_sent_and_what_is_kept_are_two_sizes() -> None:
    plain = RECIPES[Precision.BF16]
    kept, sent = (layers(replace(plain, **{name: 1})) for name in ("activation", "wire"))
    before = layers(plain)
    for costs, moves, stays in (
        (kept, Cost.ACTIVATIONS, Cost.TENSOR_COMM),
        (sent, Cost.TENSOR_COMM, Cost.ACTIVATIONS),
    ):
        assert column(costs, moves, "block 0") < column(before, moves, "block 0")
        assert column(costs, stays, "block 0") == column(before, stays, "block 0")
    assert np.array_equal(sent.boundary_bytes, before.boundary_bytes / 2)
    assert np.array_equal(kept.boundary_bytes, before.boundary_bytes)


def test_accelerators_run_the_recipes_whose_formats_they_have() -> None:
    found = {name: supported_precisions(task(name)) for name in ("h100-sxm", "a100-80gb-sxm")}
    assert found == {"h100-sxm": (*range(9), 11), "a100-80gb-sxm": (0, 1, 3, 4, 5, 11)}
    assert supported_precisions(task("b200")) == (*range(12),)
    with pytest.raises(InputError, match=r"has no fp8 arithmetic; it has bf16, fp16, tf32, fp32"):
        evaluate(task("a100-80gb-sxm"), Plan(precision="fp8"))
    with pytest.raises(InputError, match=r"H100-80GB-SXM5 has no mxfp8 arithmetic"):
        evaluate(task("h100-sxm"), Plan(precision="mxfp8"))


def test_scaled_formats_are_refused_on_grids() -> None:
    with pytest.raises(InputError, match="no scaling recipe of fp8 is known for partial sums"):
        check(resolve(Plan.parse("tp=4 tp_grid=2x2 micro_batch=2 precision=fp8"), 16), task())


def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(ValueError, match="'bf16' is there already"):
        register_recipe(replace(RECIPES[Precision.BF16], weight=1))
    assert register_recipe(RECIPES[Precision.BF16]) == Precision.BF16


OUTSIDE = """
import contextlib, io, json
from dataclasses import replace
from plan3d import Cluster, InputError, Model, Plan, Task, evaluate
from plan3d.cli.main import main
from plan3d.simulator.hardware.precision import RECIPES, register_recipe

lean = replace(RECIPES[2], name="fp8-lean", gradient=2, master=0, moments=(1, 1), weight=1)
assert register_recipe(lean) == 12
machine = Cluster.profile("h100-sxm", gpus=16)
task = Task(Model.preset("llama-7b"), machine, sequence=2048, global_batch=64)
costs = {name: evaluate(task, Plan(precision=name)) for name in ("fp8", "fp8-lean")}
words = "search --model llama-7b --cluster h100-sxm --gpus 8 --global-batch 64 --json --top 1"
out = io.StringIO()
with contextlib.redirect_stdout(out):
    main([*words.split(), "--precision", "fp8-lean"])
found = json.loads(out.getvalue())["plans"][0]["plan"]
try:
    Plan(precision="fp8-loan")
except InputError as error:
    refused = str(error)
try:
    Plan(precision=13)
except InputError as error:
    beyond = str(error)
print(json.dumps({
    "bytes": [costs[name].memory["optimizer"] for name in costs],
    "gradients": [costs[name].memory["gradients"] for name in costs],
    "seconds": [costs[name].compute_seconds["matmul"] for name in costs],
    "found": found["precision"], "refused": refused, "beyond": beyond,
}))
"""


def test_a_recipe_from_outside_is_one_record() -> None:
    done = subprocess.run([sys.executable, "-c", OUTSIDE], stdout=subprocess.PIPE, check=True)
    told = json.loads(done.stdout)
    # Optimizer state of 4 + 4 + 4 bytes a parameter becomes 1 + 1, gradients of 4 bytes 2.
    assert told["bytes"][1] == pytest.approx(told["bytes"][0] * 2 / 12)
    assert told["gradients"][1] == pytest.approx(told["gradients"][0] / 2)
    assert told["seconds"][0] == told["seconds"][1]
    assert told["found"] == "fp8-lean"
    assert "precision=fp8-loan is not modelled; did you mean fp8-lean" in told["refused"]
    assert told["beyond"] == "precision=13 must be at most 12"


def test_formats_differ_from_bf16_in_what_they_say() -> None:
    assert (BF16.is_scaled, FP8.is_scaled) == (False, True)
    assert RECIPES[Precision.FP8].is_scaled
    scaled = {p.name for p in Precision if RECIPES[p].is_scaled}
    assert scaled == {p.name for p in Precision if p.name.startswith(("FP8", "MXFP8", "NVFP4"))}


_HOPPER_ROWS = 5 + 5 * 2.1 / 0.65
_MX, _NV = 1 + 1 / 32, 0.5 + 1 / 16


@pytest.mark.parametrize(
    ("name", "moved", "kept", "copies"),
    [
        ("fp8", (6, 5), 1, (2, 1)),
        ("fp8-delayed", (4, 3), 1, (2, 1)),
        ("fp8-blockwise", (4, 4), 1, (2, 2)),
        ("fp8-rowwise", (_HOPPER_ROWS, _HOPPER_ROWS), 1, (2, 2)),
        ("mxfp8", (4.0625, 4.0625), _MX, (2 * _MX, 2 * _MX)),
        ("nvfp4", (5.125, 5.125), _NV, (2 * _NV, 2 * _NV)),
        ("amp", (6, 6), 2, (2, 2)),
    ],
)
def test_bytes_of_a_scaled_operand_on_narrow_and_on_wide_accelerators(
    name: str, moved: tuple[float, float], kept: float, copies: tuple[float, float]
) -> None:
    """Moved to scale it, of the copy of an input, and of the copies of a weight: 16 bits are read
    once or twice, 8 or 4 and their scales written once or twice; autocast reads 32, writes 16."""
    scaled = RECIPES[CODES[name]].quantisation
    assert scaled is not None
    assert scaled.bytes_moved == pytest.approx(moved)
    assert scaled.copy_bytes == pytest.approx(copies)
    assert scaled.kept_bytes == pytest.approx(kept)
    assert scaled.kernels == (4 if name == "fp8" else 1)
    assert scaled.fuses_experts == (name == "fp8-delayed")


@pytest.mark.parametrize(
    ("name", "weight", "gradient", "master", "moments", "copy"),
    [
        ("bf16", 2, 4, 4, (4, 4), 0),
        ("nvfp4", 2, 4, 4, (4, 4), 0),
        ("fp16", 2, 2, 4, (4, 4), 4),
        ("fp32", 4, 4, 0, (4, 4), 0),
        ("mixed", 4, 2, 0, (2, 4), 0),
        ("pure-bf16", 2, 2, 0, (2, 2), 0),
        ("amp", 4, 4, 0, (4, 4), 0),
    ],
)
def test_bytes_of_a_parameter_one_by_one(
    name: str, weight: int, gradient: int, master: int, moments: tuple[int, int], copy: int
) -> None:
    recipe = RECIPES[CODES[name]]
    assert (recipe.weight, recipe.gradient, recipe.master) == (weight, gradient, master)
    assert (recipe.moments, recipe.gradient_copy) == (moments, copy)
