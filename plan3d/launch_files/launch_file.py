"""What a launch file says: a model, a batch and a plan, as far as it states them.

Readers fill a Launch; what they cannot express as a plan field they note, so that the user can
say what to take instead, and what they do not know they keep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.printable import one_line
from plan3d.simulator.pipeline.stage_placement import chunk_layers
from plan3d.simulator.plan.codes import Recompute
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.rules.recompute_rules import recomputed_modules
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model


@dataclass(frozen=True, slots=True)
class Kept:
    """A part of a file that plan3d does not read, to be shown and written again."""

    where: str
    """'line 12' or '$.optimizer.params'."""
    text: str
    matters: bool = False
    """It is known to change time or memory, and the prediction does not include it."""
    follows: bool = False
    """It stands for a setting that follows from the plan, and is not there without it."""
    flag: str = ""
    """The name of a flag, with dashes."""
    needs: tuple[str, ...] = ()
    """Assignments that its words ask the shell for."""
    keys: tuple[str, ...] = ()
    """The path of a value in a nested document."""
    value: Any = None
    near: str = ""
    """The known flag that it is one slip from."""

    @property
    def told(self) -> str:
        """The part as a message shows it."""
        return f"{self.text} (did you mean {self.near}?)" if self.near else self.text


@dataclass(frozen=True, slots=True)
class Given:
    """What the user says besides the file."""

    model: Model | None = None
    vocabulary: int | None = None
    """Tokens of the tokenizer."""


NOTHING = Given()


@dataclass
class Launch:
    """A launch file as far as it could be read."""

    file: str
    framework: str
    model: Model | None = None
    sequence: int | None = None
    global_batch: int | None = None
    """Sequences of a step."""
    accumulation: int | None = None
    """Micro-batches of a step, where the file states those rather than the batch."""
    gpus: int | None = None
    plan: dict[str, Any] = field(default_factory=dict)
    """Fields of the plan that the file decides."""
    open: dict[str, str] = field(default_factory=dict)
    """Fields that the file sets to what no plan can have -> why; --with replaces them."""
    software: dict[str, Any] = field(default_factory=dict)
    """Fields of the software profile that the file decides."""
    kept: list[Kept] = field(default_factory=list)
    replicas: int = 1
    """Copies of the shards of hybrid sharding."""
    launcher_gpus: int | None = None
    """GPUs of the launcher that the file names; --gpus replaces it."""

    @property
    def stem(self) -> str:
        """The file's name without folder and ending, as the name of its model."""
        return one_line(self.file.rsplit("/", 1)[-1].rpartition(".")[0] or self.file)

    def refuse(self, problem: str) -> InputError:
        """The error about the file."""
        return InputError(f"{self.file}: {problem}")


def plan_of(launch: Launch, overrides: Mapping[str, Any]) -> Plan:
    """The plan of a file; `overrides` replace its fields.

    Raises InputError for a field that the file sets to what is not modelled.
    """
    for name, why in launch.open.items():
        if name not in overrides:
            raise launch.refuse(f"{why}; say what to take instead: --with {name}=VALUE")
    return Plan(**{**launch.plan, **overrides})


def gpus_of(launch: Launch, given: int | None) -> int:
    """GPUs of the run, from the file or from --gpus, which may not differ."""
    if launch.gpus is None and given is None and launch.launcher_gpus:
        return launch.launcher_gpus
    if launch.gpus is None and given is None:
        raise launch.refuse("does not say how many GPUs there are: give --gpus N")
    if given is not None and launch.gpus not in (None, given):
        raise launch.refuse(f"is for {launch.gpus} GPUs, which contradicts --gpus {given}")
    return given if given is not None else launch.gpus or 0


def batch_of(launch: Launch, plan: Plan, gpus: int, given: int | None) -> int:
    """Sequences of a step: stated, or micro-batches times their size and the data ranks."""
    stated = launch.global_batch
    if stated is None and launch.accumulation is not None:
        row = resolve(plan, gpus)
        stated = int(launch.accumulation * row.micro_batch * row.dp)
    if stated is None and given is None:
        raise launch.refuse("does not state the batch: give --global-batch N (sequences)")
    if given is not None and stated not in (None, given):
        raise launch.refuse(f"has a batch of {stated}, which contradicts --global-batch {given}")
    return given if given is not None else stated or 0


def sequence_of(launch: Launch, given: int | None, model: Model) -> int:
    """Tokens of a sequence: stated, given, or those of a published model."""
    if given is not None and launch.sequence not in (None, given):
        raise launch.refuse(f"has sequences of {launch.sequence}; --sequence {given} contradicts")
    found = given or launch.sequence or model.sequence
    if not found:
        raise launch.refuse("does not state the sequence length: give --sequence N (tokens)")
    return found


def stated_layers(chunks: Sequence[int], pp: int, virtual: int) -> dict[str, tuple[int, ...]]:
    """The plan field that states the layers of every chunk; even ones need no statement."""
    usual = chunk_layers(sum(chunks), pp, virtual, 0, 0, ())
    return {} if tuple(chunks) == usual else {"layers_per_stage": tuple(chunks)}


def settled(launch: Launch, plan: Plan, task: Task) -> Plan:
    """The plan without what frameworks ignore: selective recompute of what the model has nothing
    of, and what has no effect on one data-parallel rank; and with the shards of its replicas.

    Raises InputError where the replicas do not divide the data ranks.
    """
    row = resolve(plan, task.gpus)
    listed = task.software.selective
    if row.recompute == Recompute.SELECTIVE and listed and not recomputed_modules(task):
        plan = replace(plan, recompute=Recompute.NONE)
    ranks = int(row.dp * row.cp)
    if ranks == 1:
        alone = replace(plan, overlap_grad_reduce=0, bucket_parameters=0)
        if plan.offload_parameters:
            return alone
        return replace(alone, overlap_param_gather=0, zero=3 if plan.nvme else 0)
    if launch.replicas == 1 or not plan.zero:
        return plan
    if ranks % launch.replicas:
        raise launch.refuse(
            f"has {launch.replicas} replicas of shards, which do not divide dp x cp = {ranks}"
        )
    return replace(plan, shard=ranks // launch.replicas)
