"""Published breakdowns of memory beside what is predicted of each part.

    python tests/benchmarks/memory_breakdowns.py

The breakdowns, with their sources, are in data/memory_breakdowns.toml.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from plan3d import Cluster, Model, Plan, Task, evaluate
from plan3d.simulator.base.units import GIB
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.step.evaluate import by_stage

DATA = Path(__file__).parent / "data" / "memory_breakdowns.toml"
CLUSTER = "h200-sxm"
"""Where a source's GPU does not matter."""


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """What a source says of the memory of one plan."""

    name: str
    source: str
    kind: str
    """counted or measured."""
    question: dict[str, Any]
    plan: str
    unit: str
    tolerance: float
    parts: dict[str, float]
    """Published, by part or sum of parts."""
    changes: dict[str, Any] | None = None
    rank: int | None = None

    @property
    def task(self) -> Task:
        asked = dict(self.question)
        software = software_profile(asked.get("software", "megatron-core"))
        changes = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in (self.changes or {}).items()
        }
        return Task(
            Model.preset(asked["model"]),
            Cluster.profile(CLUSTER, gpus=asked["gpus"]),
            sequence=asked.get("sequence", 2048),
            global_batch=asked.get("global_batch", asked["gpus"]),
            software=replace(software, **changes),
        )

    def predicted(self) -> dict[str, float]:
        """The same parts as predicted, in the same unit."""
        task = self.task
        costs = evaluate(task, Plan.parse(self.plan))
        if self.rank is None:
            held = {name: float(size) for name, size in costs.memory.items()}
        else:
            held = {name: float(column[self.rank]) for name, column in by_stage(costs).items()}
        model, micro = task.model, int(costs.plans.take(0).micro_batch)
        unit = {
            "B/parameter": float(model.parameters),
            "sbh": float(model.layers * task.sequence * micro * model.hidden),
            "GB": 1e9,
            "GiB": float(GIB),
        }[self.unit]
        return {part: sum(held[name] for name in part.split("+")) / unit for part in self.parts}


def breakdowns() -> list[Breakdown]:
    """All of them, as the file orders them."""
    tree = tomllib.loads(DATA.read_text(encoding="utf-8"))
    return [Breakdown(**one) for one in tree["breakdown"]]


def main() -> None:
    print(f"{'breakdown':54} {'part':28} {'unit':12} published  predicted  error %")
    errors, every = [], breakdowns()
    for one in every:
        for part, size in one.predicted().items():
            error = 100 * (size / one.parts[part] - 1)
            errors.append(abs(error))
            sizes = f"{one.parts[part]:9.4g}  {size:9.4g}  {error:+7.2f}"
            print(f"{one.name:54} {part:28} {one.unit:12} {sizes}")
    mean, most = sum(errors) / len(errors), max(errors)
    print(
        f"{len(every)} breakdowns, {len(errors)} parts: mean error {mean:.2f} %, {most:.2f} at most"
    )


if __name__ == "__main__":
    main()
