"""A task: model, cluster, batch and stack, which every plan of one question shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .base.errors import InputError, check_type
from .hardware.cluster import Cluster
from .hardware.software_stack import (
    DEFAULT_SOFTWARE,
    FINE_TUNING_SOFTWARE,
    Software,
    software_profile,
)
from .workload import documents
from .workload.adapters import Adapters
from .workload.model import Model

if TYPE_CHECKING:
    # Rooms that load numpy, which a command line without a plan need not.
    from .plan.goal import Goal
    from .plan.gossip_graphs import Graph

_LARGEST = 2**31
_UNSTATED: Any = None


def _positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _LARGEST:
        raise InputError(f"{name} must be a whole number from 1 to {_LARGEST - 1}, not {value!r}")


def _model(value: object) -> Model:
    if isinstance(value, str):
        return Model.preset(value)
    check_type("model", value, Model, "Model.preset('llama-3.1-8b') or Model.from_config(path)")
    return value  # type: ignore[return-value]


def usual_stack(adapters: Adapters | None) -> str:
    """The name of the stack of a task that names none."""
    return FINE_TUNING_SOFTWARE if adapters else DEFAULT_SOFTWARE


def _stack(value: object) -> Software:
    if isinstance(value, Software):
        return value
    if isinstance(value, (str, Path)):
        return software_profile(value)
    raise InputError(f"software must be a Software, its name or a path, not {value!r}")


@dataclass(frozen=True, kw_only=True)
class Framework:
    """The training framework that is to launch the plans of a task; its rules decide with those of
    rules.validity which plans there are."""

    name: str
    title: str
    """Its name and version, for messages."""
    required: bool
    """Plans that it refuses are illegal; otherwise a search leaves them out where it can."""
    rules: tuple[Any, ...] = field(compare=False, repr=False)
    """What it refuses (rules.rule.Rule)."""
    tries: Mapping[str, Sequence[Any]] = field(compare=False, repr=False)
    """Values by plan field that a search of its plans tries instead of the usual ones."""
    again: Callable[[], Framework] = field(compare=False, repr=False)
    """Makes it anew: rules are functions, which another process cannot be sent."""

    def __reduce__(self) -> tuple[Callable[[], Framework], tuple[()]]:
        return self.again, ()


@dataclass(frozen=True, kw_only=True)
class _Question:
    sequence: int
    """Tokens in one sequence."""
    global_batch: int
    """Sequences in one optimizer step."""
    software: Software = _UNSTATED
    """The training stack; its name, or the path of its TOML file, is read; usual_stack if none."""
    adapters: Adapters | None = None
    """Which few weights are trained, where all others are frozen."""
    documents: tuple[int, ...] = ()
    """Lengths of the documents that are packed into sequences, in any number: attention stays
    inside each. () where every sequence is one document."""
    graph: Graph | None = None
    """The replicas that average with each other under topology=given."""
    goal: Goal | None = None
    """What training must reach, where time to accuracy is asked."""
    framework: Framework | None = None
    """What launches the plans, where that matters."""
    calibration: Any = field(default=None, repr=False)
    """What timed steps of the stack said of it, an uncertainty.calibration.Calibration."""


@dataclass(frozen=True)
class Task(_Question):
    """Train `model` on `cluster` with `global_batch` sequences of `sequence` tokens a step.

    >>> task = Task(Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=8),
    ...             sequence=2048, global_batch=64)
    >>> task.gpus, task.tokens
    (8, 131072)
    """

    model: Model
    """What is trained; the name of a preset is read."""
    cluster: Cluster

    def __post_init__(self) -> None:
        stack = usual_stack(self.adapters) if self.software is None else self.software
        object.__setattr__(self, "software", _stack(stack))
        object.__setattr__(self, "model", _model(self.model))
        name = self.cluster if isinstance(self.cluster, str) else "h100-sxm"
        check_type("cluster", self.cluster, Cluster, f"Cluster.profile({name!r}, gpus=...)")
        _positive("sequence", self.sequence)
        _positive("global_batch", self.global_batch)
        if self.calibration:
            self.calibration.check(self)
        if self.model.mtp_layers > 1:
            raise InputError(
                f"{self.model.name} has {self.model.mtp_layers} multi-token-prediction layers; "
                "at most 1 is modelled"
            )
        if self.adapters is not None:
            check_type("adapters", self.adapters, Adapters, "Adapters()")
            self._check_adapters(self.adapters)
        if self.documents:
            self._check_documents()
        longest = self.model.longest_sequence
        if longest and self.sequence > longest:
            raise InputError(
                f"sequence {self.sequence} is longer than the {longest} learned positions of "
                f"{self.model.name}; at most {longest}"
            )

    def _check_adapters(self, adapters: Adapters) -> None:
        adapters.check(self.model)
        if self.framework and self.framework.required:
            raise InputError(
                f"launch files of {self.framework.title} train all weights, not adapters: leave "
                "out one of the two"
            )

    def _check_documents(self) -> None:
        documents.check(self.documents, self.sequence)
        if not self.model.kinds:
            raise InputError(f"documents need attention layers; {self.model.name} is a layer list")
        if not self.software.flash_attention:
            raise InputError(
                f"documents change nothing where {self.software.name} computes every score: they "
                "need flash attention"
            )

    def __repr__(self) -> str:
        said = [f"{name}={getattr(self, name)!r}" for name in ("sequence", "global_batch")]
        said += [f"adapters={self.adapters!r}"] if self.adapters else []
        said += [f"software={self.software.name!r}"]
        return f"Task({self.model!r}, {self.cluster!r}, {', '.join(said)})"

    @property
    def gpus(self) -> int:
        return self.cluster.gpus

    @property
    def trained_parameters(self) -> int:
        """Parameters that are trained: all, or those of adapters."""
        return self.adapters.parameters(self.model) if self.adapters else self.model.parameters

    @property
    def tokens(self) -> int:
        """Tokens in one optimizer step."""
        return self.global_batch * self.sequence


def check_task(value: object) -> None:
    """Raise InputError for what is no task."""
    check_type("task", value, Task, "Task(model, cluster, sequence=..., global_batch=...)")
