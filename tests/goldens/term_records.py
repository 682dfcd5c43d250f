"""Per-term records: every part of time and memory of the plans of plans.toml, exactly.

A record is one term of one plan: a line of terms/TERM.json. The sums (step_seconds, memory_bytes)
are not recorded but checked to be the sums of their parts, so that a change of a formula rewrites
the records of its own term.

Much of a step follows from the time of its GEMMs: bubbles, what shows of communication that hides
behind them, what is run again. So `matmul` is recorded as it is, and all other terms beside GEMMs
of a stated time: so long as their FLOPs take at half the peak, scaled such that those of the step
take what the model's FLOPs do. A change of the GEMM model rewrites the records of matmul, and
nothing else.
"""

from __future__ import annotations

import functools
import json
import math
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.operators import kernel_times
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Goal, Task
from plan3d.simulator.workload.adapters import Adapters
from plan3d.simulator.workload.model import Model, Network, with_imbalance

FOLDER = Path(__file__).parent
RECORDS = FOLDER / "terms"
CONFIGURATIONS = FOLDER.parent / "simulator" / "workload" / "hf_configs"
PLANS: dict[str, dict[str, Any]] = tomllib.loads((FOLDER / "plans.toml").read_text("utf-8"))
TOLERANCE = 1e-9
"""Relative difference up to which a record holds."""
SUM = 1e-12
"""Relative difference between a sum and its parts that is rounding."""
STATED_SHARE = 0.5
"""Share of the peak at which stated GEMMs run."""
Term = tuple[str, str]
"""The name of a term, and the plan."""


def task_of(name: str) -> Task:
    """The task of a plan of plans.toml."""
    row = PLANS[name]
    config = row["model"].endswith(".json")
    model = Model.from_config(CONFIGURATIONS / row["model"]) if config else row["model"]
    if "expert_imbalance" in row:
        model = with_imbalance(Model.preset(model), row["expert_imbalance"])
    per_node = row.get("gpus_per_node")
    adapters = row.get("adapters")
    return Task(
        model,
        Cluster.profile(row["cluster"], gpus=row["gpus"], gpus_per_node=per_node),
        sequence=row["sequence"],
        global_batch=row["global_batch"],
        software=row.get("software"),
        adapters=Adapters(**adapters) if adapters else None,
        goal=Goal(**row["goal"]) if "goal" in row else None,
        documents=tuple(row.get("documents", ())),
    )


def costs_of(name: str) -> Costs:
    """Costs of a plan of plans.toml."""
    return evaluate(task_of(name), Plan.parse(PLANS[name]["plan"]))


@contextmanager
def stated_gemms(seconds_per_flop: float) -> Iterator[None]:
    """GEMMs take so long for each of their FLOPs, whatever the GEMM model says."""
    functions = ("gemm_seconds", "roofline_seconds")
    before = {name: getattr(kernel_times, name) for name in functions}

    def of_sizes(sizes: Any, *_: Any) -> Any:
        m, n, k, batch = sizes
        return 2 * m * n * k * batch * seconds_per_flop

    def of_gemms(gemms: Any, rows: int, *_: Any) -> Any:
        return of_sizes(kernel_times.stack_gemms(gemms, rows))

    kernel_times.gemm_seconds, kernel_times.roofline_seconds = of_gemms, of_sizes
    try:
        yield
    finally:
        for function, original in before.items():
            setattr(kernel_times, function, original)


def costs_beside_stated_gemms(name: str) -> Costs:
    """Costs of a plan whose GEMMs take a stated time."""
    costs = costs_of(name)
    if isinstance(costs.task.model, Network):
        return costs
    seconds = 1 / (STATED_SHARE * costs.peak_flops)
    whole_step = costs.model_flops_per_second * costs.step_seconds * seconds
    with stated_gemms(seconds):
        scale = whole_step / costs_of(name).compute_seconds["matmul"]
    with stated_gemms(seconds * scale):
        return costs_of(name)


@functools.cache
def terms(name: str) -> dict[str, float]:
    """Every term of a plan that is not 0, by name; ValueError where a sum is not that of its
    parts."""
    measured, costs = costs_of(name), costs_beside_stated_gemms(name)
    for every in (measured, costs):
        check_sum(name, every.step_seconds, every.seconds)
        check_sum(name, every.seconds["compute"], every.compute_seconds)
        check_sum(name, every.memory_bytes, every.memory)
    seconds = {**costs.compute_seconds, **costs.seconds}
    del seconds["compute"]
    seconds["matmul"] = measured.compute_seconds["matmul"]
    whole = {
        **{f"seconds/{term}": value for term, value in seconds.items()},
        **{f"bytes/{term}": value for term, value in costs.memory.items()},
        "bytes/host": costs.node_bytes,
        "bytes/nvme": costs.nvme_bytes,
        "flops/model": costs.model_flops_per_second * costs.step_seconds,
        "flops/peak": costs.peak_flops,
        **(
            {f"iterations/{cause}": v[0] for cause, v in costs.iterations_by_cause.items()}
            if costs.task.goal
            else {}
        ),
    }
    return {term: float(value) for term, value in whole.items() if value != 0}


def check_sum(name: str, total: float, parts: dict[str, float]) -> None:
    """Raise ValueError where parts do not add up to their total."""
    if not math.isclose(math.fsum(parts.values()), total, rel_tol=SUM):
        raise ValueError(f"{name}: {total} is not the sum of {parts}")


def place(term: str) -> Path:
    """The file of the records of a term."""
    return RECORDS / f"{term}.json"


def read() -> dict[Term, float]:
    """All records."""
    out: dict[Term, float] = {}
    for path in sorted(RECORDS.rglob("*.json")):
        term = path.relative_to(RECORDS).with_suffix("").as_posix()
        out |= {(term, name): v for name, v in json.loads(path.read_text("utf-8")).items()}
    return out


def computed() -> dict[Term, float]:
    """The terms of all plans as they are computed now."""
    return {(term, name): value for name in PLANS for term, value in terms(name).items()}


def holds(record: float | None, value: float | None) -> bool:
    """Whether a record is what is computed, None where one of the two is not there."""
    if record is None or value is None:
        return False
    return math.isclose(record, value, rel_tol=TOLERANCE)


def write() -> list[str]:
    """Write the records that changed, and a line for each; others stay to the last digit."""
    old, new = read(), computed()
    changed = [key for key in sorted(old.keys() | new) if not holds(old.get(key), new.get(key))]
    now = {key: new[key] if key in changed else old[key] for key in new}
    for term in {term for term, _ in changed}:
        records = {name: now[term, name] for name in PLANS if (term, name) in now}
        place(term).unlink(missing_ok=True)
        if records:
            place(term).parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps(records, indent=1)
            place(term).write_text(text + "\n", encoding="utf-8")
    return [_change(key, old.get(key), new.get(key)) for key in changed]


def _change(key: Term, old: float | None, new: float | None) -> str:
    term, name = key
    if old is None or new is None:
        return f"{term} of {name}: {'new' if old is None else 'removed'}"
    return f"{term} of {name}: {old:.6g} -> {new:.6g} ({new / old - 1:+.3g})"
