"""Random small questions on which every plan of a backend's set can be costed.

One and two kinds of layers, odd counts and batches, numbers of stages that do not divide the GPUs,
and a memory limit that a share of the plans meets.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "search" / "stage_dp"))
sys.path.insert(0, str(Path(__file__).parents[1] / "search" / "layer_ilp"))

import test_dynamic_programming as stages
import test_integer_programming as layers

from plan3d.search.exact import branch_and_bound, exhaustive
from plan3d.search.layer_ilp import integer_programming
from plan3d.search.result.options import SearchOptions
from plan3d.search.space.space import Space
from plan3d.search.stage_dp import dynamic_programming
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.step.evaluate import simulate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

MODELS = ("gpt3-125m", "llama-3.2-1b", "deepseek-v3")
SHARES = (0.0, 0.03, 0.1, 0.3, 1.0)
"""Shares of the plans that fit."""


@dataclass(frozen=True)
class Instance:
    """A question, values of its fields, the share of the plans that fit, and a backend."""

    backend: str
    task: Task
    choose: dict[str, tuple[int, ...]]
    share: float


def drawn(seed: int, stack: str = "megatron-core") -> dict[str, Instance]:
    """One instance of each backend, on the same question but for its size."""
    random = np.random.default_rng(seed)

    def some(values: tuple[int, ...], most: int) -> tuple[int, ...]:
        number = int(random.integers(1, min(most, len(values)) + 1))
        return tuple(sorted(int(v) for v in random.choice(values, number, replace=False)))

    model = Model.preset(str(random.choice(MODELS)))
    depth, gpus = int(random.integers(2, 5)), int(random.choice((1, 2, 3, 4, 6, 8)))
    order = tuple(int(k) for k in random.integers(0, len(model.kinds), depth))
    mtp = int(random.integers(2)) * model.mtp_layers
    model = replace(model, order=order, mtp_layers=mtp)
    question = Task(
        model,
        Cluster.profile("h100-sxm", gpus=gpus, gpus_per_node=4),
        sequence=1024,
        global_batch=int(random.choice((3, 4, 5, 6, 8, 12))),
        software=software_profile(stack),
    )
    choose = {
        **{**stages.USUAL, "virtual_stages": (1,)},
        "pp": some(tuple(p for p in (1, 2, 3) if p <= min(depth, gpus)), 2),
        "tp": some((1, 2, 4), 2),
        "zero": some((0, 1, 2, 3), 2),
        "recompute": some((0, 1, 2), 2),
        "sequence_parallel": some((0, 1), 1),
    }
    share = float(random.choice(SHARES))
    small = {**choose, "zero": choose["zero"][:1], "pp": choose["pp"][-1:]}
    small["tp"] = choose["tp"] if depth < 4 else choose["tp"][-1:]
    return {
        "branch-and-bound": Instance("branch-and-bound", question, choose, share),
        "dynamic-programming": Instance("dynamic-programming", question, choose, share),
        "integer-programming": Instance("integer-programming", question, small, share),
    }


def fault(instance: Instance) -> str:
    """What is wrong with the answer to an instance; '' where it is the best of its set, proven."""
    steps, sizes = _SETS[instance.backend](instance)
    limit = float(np.quantile(sizes, instance.share)) * (1 + 1e-9) if sizes.size else 1e15
    if instance.backend == "branch-and-bound":  # of equal plans one is listed under each limit
        steps, sizes = _uniform(instance, limit)
    asked = SearchOptions(limit=limit, top=1)
    search, space = _SEARCHES[instance.backend], Space.of(instance.task, instance.choose)
    found = search(space, asked)
    best = float(steps[sizes <= limit].min(initial=np.inf))
    step = float(found.costs.step[0]) if found.costs is not None else np.inf
    if not found.complete:
        return f"not complete: {step:.9g} s, best {best:.9g} s, bound {found.bound}"
    if found.bound is not None and found.bound > best * (1 + 1e-9):
        return f"the bound {found.bound:.9g} s is above {best:.9g} s"
    if not step <= best * (1 + _TOLERANCES[instance.backend]):
        return f"proven {step:.9g} s, best {best:.9g} s"
    if found.costs is not None and not found.costs.memory_total[0] <= limit:
        return "the plan does not fit"
    return "" if step >= best * (1 - 1e-9) else f"{step:.9g} s, not in the set of {best:.9g} s"


_SEARCHES: dict[str, Callable] = {
    "branch-and-bound": branch_and_bound.search,
    "dynamic-programming": dynamic_programming.search,
    "integer-programming": integer_programming.search,
}
_TOLERANCES = {
    "branch-and-bound": 1e-9,
    "dynamic-programming": 1e-9,
    "integer-programming": integer_programming.TOLERANCE,
}
Set = tuple[np.ndarray, np.ndarray]
"""Steps and bytes of plans."""


def _uniform(instance: Instance, limit: float = 1e18) -> Set:
    """Of every plan of the space that fits."""
    space = Space.of(instance.task, instance.choose)
    asked = SearchOptions(limit=limit, top=10**6)
    costs = exhaustive.search(space, asked).costs
    return (costs.step, costs.memory_total) if costs is not None else (np.empty(0), np.empty(0))


def _of_stages(instance: Instance) -> Set:
    return stages.every_plan(instance.task, instance.choose)


def _of_layers(instance: Instance) -> Set:
    """Of the plans of stages, and of those whose layers each have a strategy of their own where
    stages have equally many GPUs."""
    steps, sizes = zip(_of_stages(instance), *_layer_tables(instance), strict=True)
    return np.concatenate(steps), np.concatenate(sizes)


def _layer_tables(instance: Instance) -> Iterator[Set]:
    whole = tuple(pp for pp in instance.choose["pp"] if instance.task.gpus % pp == 0)
    choose = {**layers.FIXED, **instance.choose, "pp": whole}
    for plans in layers.every_plan(instance.task, choose) if whole else ():
        costs = simulate(instance.task, plans)
        yield costs.step, costs.memory_total


_SETS = {
    "branch-and-bound": _uniform,
    "dynamic-programming": _of_stages,
    "integer-programming": _of_layers,
}
