"""The statements of the lectures, one a row of tests/lectures/statements.csv, asked of plan3d.

A row's `call` is a command of plan3d, asked with --json in the repository, or Python over the names
of this module; `value` takes the product's number from the answer `a` (of `textbook` its rows by
name). `lecture` is what the lectures have: a number with its tolerance, a range a..b, or a bound
such as > 1. A verdict is `right` where the product's number is within it, else `explained`, by the
reason, which also says where a tolerance above 1 % comes from. Rows `system` only say that a name
is listed; tests/search/systems and tests/plan3d/cli/test_systems.py search and compare each.

    python -P tests/helpers/lecture_statements.py

writes what the product says now into the columns `product` and `verdict`.
"""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import io
import json
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from plan3d import Cluster, Model, Plan, Task, closed_forms, evaluate  # noqa: F401, calls name them
from plan3d.cli.main import main as plan3d
from plan3d.search.layer_ilp import operator_graph
from plan3d.search.layer_ilp.block_partition import chain_of_products
from plan3d.simulator.analysis.textbook_pipeline import idle_share, unit_timeline
from plan3d.simulator.plan import compressors

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "tests" / "lectures" / "statements.csv"
RIGHT, EXPLAINED = "right", "explained"
DIGITS = 5
"""Of the product's number in the table."""
_SPEC = importlib.util.spec_from_file_location(
    "synchronisation", ROOT / "tests" / "benchmarks" / "synchronisation.py"
)
assert _SPEC is not None
assert _SPEC.loader is not None
synchronisation = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(synchronisation)


def sizes(name: str) -> tuple[int, int, int, int, float]:
    """Layers, hidden size, heads, their size and tokens of a batch of a preset."""
    model = Model.preset(name)
    attention = model.kinds[0].attention
    return model.layers, model.hidden, attention.heads, attention.head_dim, model.batch_tokens


def idle_over_busy(schedule: str, stages: int, virtual: int, micro_batches: int) -> float:
    """Of even stages, event by event."""
    return idle_share(unit_timeline(schedule, stages, virtual, micro_batches))


def naive_units(splits: tuple[str, ...]) -> float:
    """Units of a partition of three products of equal width, an all-reduce being two."""
    graph, prices = chain_of_products((1, 1, 1), 8), operator_graph.naive_units(8)
    choice = {f"W{i}": int(name == "columns") for i, name in enumerate(splits, start=1)}
    return float(operator_graph.cost(graph, prices, {"x": 0, "y": 0, **choice}))


@cache
def bert_hours() -> float:
    """Hours of decentralised SGD on BERT-Large with the network fitted to ResNet-50."""
    return float(synchronisation.bert_hours(synchronisation.fit_network()).predicted)


def ring_seconds() -> float:
    """Seconds of communication of a step of parallel SGD, GPT-3 1.3B on 64 A100."""
    asked = Task(Model.preset("gpt3-1.3b"), Cluster.profile("a100-80gb-sxm", gpus=64),
                 sequence=2048, global_batch=64)  # fmt: skip
    plan = Plan(sync="ring", zero=0, overlap_grad_reduce=0)
    return float(evaluate(asked, plan).seconds["data_comm"])


@cache
def exposed(field: str) -> float:
    """Seconds that gradients add to a step, GPT-3 1.3B on two nodes."""
    asked = Task(Model.preset("gpt3-1.3b"), Cluster.profile("a100-80gb-sxm", gpus=16),
                 sequence=2048, global_batch=64)  # fmt: skip
    costs = evaluate(asked, Plan.parse(f"zero=0 micro_batch=4 {field}"))
    return float(costs.seconds["data_comm"] + costs.seconds["contended"])


def quantisation_error(levels: int) -> float:
    """Mean squared error of random quantisation over omega |x|^2."""
    x = np.random.default_rng(0).normal(size=512 * 20)
    drawn = compressors.quantise(x, levels, np.random.default_rng(1))
    return float(np.sum((drawn - x) ** 2) / np.sum(x**2) / compressors.omega(levels))


def top_k_error(share: float) -> float:
    """Squared error of the largest entries over (1 - delta) |x|^2."""
    x = np.random.default_rng(0).normal(size=10_000)
    kept = compressors.top_k(x, int(share * x.size))
    return float(np.sum((kept - x) ** 2) / np.sum(x**2) / (1 - share))


def steps(compared: dict[str, Any]) -> dict[str, float]:
    """Seconds of the best step of every system of an answer of `compare --systems`."""
    return {e["system"]: e["best"]["step_seconds"] for e in compared["systems"] if e["best"]}


def rows() -> list[dict[str, str]]:
    """The statements."""
    with TABLE.open(encoding="utf-8", newline="") as text:
        return list(csv.DictReader(text))


@cache
def answer(call: str) -> Any:
    """What one call answers; each is made once."""
    verb, _, words = call.partition(" ")
    if verb != "plan3d":
        return eval(call, globals())
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.chdir(ROOT):
        code = plan3d([*shlex.split(words), "--json"])
    if code:
        raise ValueError(f"{call}: exit code {code}")
    found = json.loads(out.getvalue())
    if words.startswith("textbook") and "rows" in found:
        return {row["name"]: row for row in found["rows"]}
    return found


def product(row: dict[str, str]) -> float:
    """The product's number of a statement."""
    return float(eval(row["value"], {**globals(), "a": answer(row["call"])}))


def agrees(value: float, lecture: str, tolerance: str) -> bool:
    """Whether a number is what the lectures have."""
    if ".." in lecture:
        low, high = map(float, lecture.split(".."))
        return low <= value <= high
    sign, _, bound = lecture.partition(" ")
    if bound:
        known = {">": value > float(bound), "<": value < float(bound),
                 ">=": value >= float(bound) * (1 - 1e-9),
                 "<=": value <= float(bound) * (1 + 1e-9)}  # fmt: skip
        return known[sign]
    wanted, share = float(lecture), float(tolerance.removesuffix("%")) / 100
    return abs(value - wanted) <= share * abs(wanted) + 1e-9


def verdict(row: dict[str, str], value: float) -> str:
    """`right`, or `explained` by the row's reason."""
    return RIGHT if agrees(value, row["lecture"], row["tolerance"]) else EXPLAINED


def main() -> None:
    """Write the product's numbers and the verdicts."""
    every = rows()
    for row in every:
        value = product(row)
        row["product"], row["verdict"] = f"{value:.{DIGITS}g}", verdict(row, value)
    with TABLE.open("w", encoding="utf-8", newline="") as text:
        writer = csv.DictWriter(text, list(every[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(every)


if __name__ == "__main__":
    main()
