"""Random tasks and random legal plans against what must hold of every prediction.

    python tests/benchmarks/semantic_fuzz.py --plans 100000 --seed 1

Holds: seconds and bytes are finite, not negative and add up; no plan beats the peak of its GPUs; a
row alone is the row of its table; faster links, a shorter latency and more arithmetic are never
slower, and change no byte where what is held back does not follow from times; a larger batch, a
longer sequence and recomputation of all layers are never faster. What does not is counted by rule,
with the worst case of each; the exit code is 1 where one is above ALLOWED. Stacks are the shipped
ones and those of published runs.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np

from plan3d.search.space.space import Space
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.profile_file import profile_names
from plan3d.simulator.hardware.software import Software
from plan3d.simulator.hardware.software_stack import SOFTWARE
from plan3d.simulator.pipeline.schedules import SCHEDULES, memory_follows_times
from plan3d.simulator.plan.field_values import Recompute
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.rules.validity import legal_rows
from plan3d.simulator.runs.published_runs import read_runs
from plan3d.simulator.runs.run_tasks import questions
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.adapters import FORMATS, TARGETS, Adapters
from plan3d.simulator.workload.model import Model
from plan3d.simulator.workload.presets import preset_names

CHOOSE = {
    "recompute": ["none", "selective", "full"],
    "zero": [0, 1, 2, 3],
    "schedule": list(SCHEDULES),
    "micro_batch": [1, 2, 4],
    "sequence_parallel": [0, 1],
    "overlap_tp": [0, 1],
    "overlap_ep": [0, 1],
    "overlap_grad_reduce": [0, 1],
    "overlap_param_gather": [0, 1],
    "virtual_stages": [1, 2, 4],
    "offload_activations": [0, 50, 100],
    "offload_optimizer": [0, 50, 100],
    "offload_parameters": [0, 100],
    "nvme": ["none", "optimizer", "parameters", "both"],
}
ROWS = 150
"""Plans of a task at most."""
SLACK = 1e-9
"""Relative difference that rounding may make."""
ALLOWED = 1e-4
"""That closed forms near the event simulation may make."""


@cache
def stacks() -> tuple[tuple[Software, ...], tuple[Software, ...]]:
    """The shipped ones, and those of published runs that can be predicted."""
    published = (q.task.software for q in questions(read_runs()) if not isinstance(q, str))
    return tuple(SOFTWARE.values()), tuple(dict.fromkeys(published))


def random_adapters(draw: np.random.Generator) -> Adapters:
    """Adapters of some matrices beside frozen ones of any format."""
    targets = draw.choice(TARGETS, int(draw.integers(1, len(TARGETS) + 1)), replace=False)
    return Adapters(
        rank=int(draw.choice([8, 64])),
        targets=tuple(map(str, targets)),
        base=str(draw.choice(list(FORMATS))),
        dropout=float(draw.choice([0, 0.1])),
    )


def random_task(draw: np.random.Generator) -> Task:
    """A model on a machine, small enough for its plans to be listed."""
    gpus = int(draw.choice([1, 2, 4, 8, 12, 16, 32, 64, 128]))
    kind = stacks()[int(draw.integers(2))]
    return Task(
        Model.preset(str(draw.choice(preset_names()))),
        Cluster.profile(str(draw.choice(profile_names())), gpus=gpus),
        sequence=int(draw.choice([512, 1024, 2048, 8192])),
        global_batch=int(draw.choice([8, 48, 64, 256, 1024])),
        software=kind[int(draw.integers(len(kind)))],
        adapters=random_adapters(draw) if draw.random() < 0.25 else None,
    )


def random_plans(task: Task, draw: np.random.Generator) -> Plan | None:
    """Legal plans of a few values of every field."""
    choose = {
        name: [values[i] for i in np.sort(draw.permutation(len(values))[:2])]
        for name, values in CHOOSE.items()
    }
    for plans in Space.of(task, choose).chunks():
        rows = draw.permutation(plans.rows)[:ROWS]
        return plans.take(rows) if rows.size else None
    return None


def faster(task: Task, what: str) -> Task:
    """The task on a better machine."""
    cluster = task.cluster
    if what == "network bandwidth x 2":
        better = replace(cluster.network, bandwidth=2 * cluster.network.bandwidth)
        return replace(task, cluster=replace(cluster, network=better))
    if what == "network latency / 2":
        better = replace(cluster.network, latency=cluster.network.latency / 2)
        return replace(task, cluster=replace(cluster, network=better))
    gpu = cluster.accelerator
    peak = {name: 2 * rate for name, rate in gpu.peak.items()}
    return replace(task, cluster=replace(cluster, accelerator=replace(gpu, peak=peak)))


BETTER = ("network bandwidth x 2", "network latency / 2", "peak x 2")
LARGER: dict[str, Callable[[Task], Task]] = {
    "global batch x 2": lambda task: replace(task, global_batch=2 * task.global_batch),
    "sequence x 2": lambda task: replace(task, sequence=2 * task.sequence),
}


class Broken:
    """What does not hold, and the worst case of each rule."""

    def __init__(self) -> None:
        self.times: Counter[str] = Counter()
        self.above: Counter[str] = Counter()
        """Those above ALLOWED."""
        self.worst: dict[str, tuple[float, str]] = {}

    def add(self, rule: str, excess: np.ndarray, costs: Costs) -> None:
        """Count the rows whose relative excess is above rounding."""
        excess = np.where(np.isfinite(excess), excess, np.inf)
        bad = np.flatnonzero(excess > SLACK)
        if not bad.size:
            return
        self.times[rule] += bad.size
        self.above[rule] += int((excess > ALLOWED).sum())
        at = int(excess.argmax())
        if excess[at] > self.worst.get(rule, (0.0, ""))[0]:
            task = costs.task
            asked = f"{task.model.name} on {task.gpus} x {task.cluster.accelerator.name}"
            asked += f", {task.sequence} x {task.global_batch}, {task.software.name}: "
            asked += str(costs.plans.take(at))
            self.worst[rule] = (float(excess[at]), asked)


def check(task: Task, plans: Plan, broken: Broken, draw: np.random.Generator) -> int:
    """Rules on one table; the comparisons that were made."""
    costs = evaluate(task, plans)
    step, memory = costs.step, costs.memory_total
    parts = sum(np.broadcast_to(part, step.shape) for part in costs.seconds.values())
    stored = sum(np.broadcast_to(part, step.shape) for part in costs.memory.values())
    each = (*costs.seconds.values(), *costs.memory.values())
    least = np.minimum.reduce([np.broadcast_to(part, step.shape) for part in each])
    broken.add("seconds add up", abs(parts / step - 1), costs)
    broken.add("bytes add up", abs(stored / memory - 1), costs)
    broken.add("no part is negative", np.maximum(-least, 0.0), costs)
    broken.add("no plan beats the peak", np.asarray(costs.mfu_causal) - 1, costs)
    made = 4
    for row in draw.permutation(plans.rows)[:3]:
        alone = evaluate(task, plans.take(int(row)))
        off = abs(alone.step_seconds / step[row] - 1) + abs(alone.memory_bytes / memory[row] - 1)
        broken.add("a row alone is its row", np.array([off]), costs.take([row]))
    for what in BETTER:
        other = evaluate(faster(task, what), plans)
        broken.add(f"{what} is not slower", other.step / step - 1, costs)
        changed = np.where(memory_follows_times(plans.schedule), 0, other.memory_total / memory - 1)
        broken.add(f"{what} changes no byte", abs(changed), costs)
    for what, make in LARGER.items():
        larger = make(task)
        keep = np.flatnonzero(legal_rows(plans, larger))
        if keep.size:
            some = costs.take(keep)
            other = evaluate(larger, plans.take(keep))
            broken.add(f"{what} is not faster", some.step / other.step - 1, some)
            smaller = some.memory_total / other.memory_total - 1
            broken.add(f"{what} needs no less memory", smaller, some)
    again = replace(plans, recompute=np.full(plans.rows, Recompute.FULL))
    # Of layers that run again fewer activations go to the host.
    stays = (plans.recompute == Recompute.NONE) & (plans.offload_activations == 0)
    keep = np.flatnonzero(legal_rows(again, task) & stays)
    if keep.size:
        some = costs.take(keep)
        other = evaluate(task, again.take(keep))
        broken.add("recompute is not faster", some.step / other.step - 1, some)
    return (made + 2 * len(BETTER) + 2 * len(LARGER)) * plans.rows + 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plans", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    draw, broken, began = np.random.default_rng(args.seed), Broken(), time.perf_counter()
    tasks = seen = made = refused = 0
    while seen < args.plans:
        try:
            task = random_task(draw)
            plans = random_plans(task, draw)
            if plans is not None:
                made += check(task, plans, broken, draw)
                tasks, seen = tasks + 1, seen + plans.rows
        except InputError:
            refused += 1
    print(f"{seen} legal plans of {tasks} tasks, {refused} tasks refused, {made} comparisons")
    for rule, times in broken.times.most_common():
        worst, where = broken.worst[rule]
        above = f"{broken.above[rule]} by more than {ALLOWED:.2%}"
        print(f"{times:8} not: {rule}, {above}; worst {worst:.4%}: {where}")
    print(f"{time.perf_counter() - began:.0f} s")
    return bool(broken.above.total())


if __name__ == "__main__":
    raise SystemExit(main())
