"""The question behind an answer: the task, and how it was asked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from plan3d.simulator.analysis.goodput import Training
from plan3d.simulator.base.units import GIB
from plan3d.simulator.hardware.software import DEFAULT_SOFTWARE
from plan3d.simulator.task import Task

if TYPE_CHECKING:
    from plan3d.simulator.plan.plan import Plan

MACHINE_UNITS = {
    "inter_node_bandwidth": ("GB/s", 1e9),
    "intra_node_bandwidth": ("GB/s", 1e9),
    "site_bandwidth": ("Gb/s", 1.25e8),
    "site_latency": ("ms", 1e-3),
    "network_latency": ("us", 1e-6),
    "latency_per_node": ("us", 1e-6),
    "memory": ("GiB", GIB),
    "power_limit": ("W", 1.0),
}
"""Units in which varied numbers are shown, in SI, unless all are written in another."""


LAST = "last"
"""What the command line calls the answer of its last search: its plans are last#1, last#2, ..."""


def launching_framework(task: Task, plan: Plan) -> str | None:
    """The framework of a task where it can run a plan, else the first that can; None where no
    framework can."""
    from ..launch_files.exporter import refusals
    from ..launch_files.registry import EXPORTERS

    names = [task.framework.name] if task.framework else []
    for name in dict.fromkeys((*names, *EXPORTERS)):
        if not refusals(task, plan, EXPORTERS[name].form()):
            return name
    return None


@dataclass(frozen=True, kw_only=True)
class LaunchCommand:
    """The command line that writes a plan as a launch file, as far as the question decides it."""

    model: str
    cluster: str
    options: tuple[str, ...] = ()
    """Words that state the size of a node and of a domain."""
    names_stack: bool = False
    """Whether --software is to be said."""
    names_framework: bool = False
    """Whether the framework was asked for, so that another stack than the usual one is said."""

    def words(self, task: Task, plan: Plan) -> list[str]:
        """The words for the framework that launches a plan; none where no framework can."""
        name = launching_framework(task, plan)
        if name is None:
            return []
        stack = task.software.name
        says_stack = self.names_stack or (self.names_framework and stack != DEFAULT_SOFTWARE)
        return [
            *("plan3d", "export", str(plan), "--to", name, "--model", self.model),
            *("--cluster", self.cluster, "--gpus", str(task.gpus), *self.options),
            *("--sequence", str(task.sequence), "--global-batch", str(task.global_batch)),
            *(("--software", stack) if says_stack else ()),
        ]


@dataclass(frozen=True, kw_only=True)
class Question:
    """A task as it was asked."""

    task: Task
    assumed: tuple[str, ...] = ()
    """What was taken for what the question left open, in sentences."""
    system: str | None = None
    """The training system whose plans alone are asked about."""
    training: Training | None = None
    command: LaunchCommand | None = None
    """None where no launch line is wanted."""

    @property
    def tokens(self) -> float | None:
        """Training tokens."""
        return None if self.training is None else self.training.tokens

    @property
    def price(self) -> float | None:
        """USD of a GPU-hour."""
        return None if self.training is None else self.training.price

    def of(self, task: Task) -> Question:
        """The same question about another task."""
        return replace(self, task=task)


def with_usual_framework(task: Task, system: str | None = None) -> Task:
    """The task with the framework of its stack, which yields to what is asked for by name; as it is
    where a system names another."""
    from ..launch_files.frameworks import with_usual

    usual = with_usual(task)
    other = system is not None and usual.framework and system != usual.framework.name
    return task if other else usual


def task_record(task: Task) -> dict[str, Any]:
    """The question as JSON holds it."""
    return {
        "model": task.model.name,
        "parameters": task.model.parameters,
        "active_parameters": task.model.active_parameters,
        "cluster": task.cluster.name,
        "accelerator": task.cluster.accelerator.name,
        "gpus": task.gpus,
        "gpus_per_node": task.cluster.gpus_per_node,
        "nodes": task.cluster.nodes,
        "sequence": task.sequence,
        "global_batch": task.global_batch,
        "tokens_per_step": task.tokens,
        **adapters_record(task),
        **documents_record(task),
    }


def adapters_record(task: Task) -> dict[str, Any]:
    """What a task says of its adapters, by option."""
    if task.adapters is None:
        return {}
    adapters = task.adapters
    return {
        "adapter": adapters.name,
        "lora_rank": adapters.rank,
        "lora_targets": ",".join(adapters.targets),
        "lora_base": adapters.base,
        **({"lora_dropout": adapters.dropout} if adapters.dropout else {}),
        **(
            {"modules_to_save": ",".join(adapters.modules_to_save)}
            if adapters.modules_to_save
            else {}
        ),
        "trained_parameters": task.trained_parameters,
    }


def documents_record(task: Task) -> dict[str, Any]:
    """What a task says of the documents packed into its sequences."""
    if not task.documents:
        return {}
    tokens = sum(task.documents)
    attended = sum(length * length for length in task.documents) / tokens
    return {"document_lengths": [*task.documents], "attended_tokens": attended}


def launcher(task: Task) -> str:
    """The framework that plans must be launched by, with its version; '' where there is none."""
    return task.framework.title if task.framework and task.framework.required else ""
