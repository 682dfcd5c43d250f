"""Tasks: model, cluster, batch, stack and goal, which all plans of one question share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .base.errors import InputError, check_type
from .base.text_tables import facts_html
from .base.units import format_count
from .hardware.cluster import Cluster
from .hardware.software_stack import (
    DEFAULT_SOFTWARE,
    FINE_TUNING_SOFTWARE,
    Software,
    sharding_stack,
    software_profile,
)
from .workload.adapters import Adapters
from .workload.model import Model

if TYPE_CHECKING:
    # Loads numpy, which a command line without a plan does not need.
    from .plan.gossip_graphs import Graph

MOST_DOCUMENTS = 100_000
"""Documents whose lengths may be given."""
_LARGEST = 2**31
_DEFAULT_STACK: Any = None


def default_stack(adapters: Adapters | None) -> str:
    """The name of the stack of a task that names none."""
    return FINE_TUNING_SOFTWARE if adapters else DEFAULT_SOFTWARE


def is_count(value: object, most: int) -> bool:
    """Whether a value is a whole number from 1 to `most`."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


class Goal(NamedTuple):
    """What a training run must reach, where the time to an accuracy is asked.

    >>> Goal(accuracy=0.1, sequence_noise=1.0)
    Goal(accuracy=0.1, sequence_noise=1.0)
    """

    accuracy: float
    """Mean squared gradient norm e."""
    sequence_noise: float
    """Variance of the gradient of one sequence."""


@dataclass(frozen=True, kw_only=True)
class Framework:
    """The training framework that launches the plans of a task; plans obey its rules besides those
    of rules.validity."""

    name: str
    title: str
    """Its name and version, for messages."""
    stack: str
    """The `framework` of the stacks that it trains with, as hardware.software has it."""
    required: bool
    """Plans that it refuses are illegal; otherwise a search avoids them where it can."""
    rules: tuple[Any, ...] = field(compare=False, repr=False)
    """What it refuses (rules.rule.Rule)."""
    search_values: Mapping[str, Sequence[Any]] = field(compare=False, repr=False)
    """Values by plan field that a search of its plans tries instead of the defaults."""
    rebuild: Callable[[], Framework] = field(compare=False, repr=False)
    """Builds it again in another process: rules are functions, which cannot be pickled."""

    def __reduce__(self) -> tuple[Callable[[], Framework], tuple[()]]:
        return self.rebuild, ()


@dataclass(frozen=True, kw_only=True)
class _Question:
    sequence: int
    """Tokens in one sequence."""
    global_batch: int
    """Sequences in one optimizer step."""
    software: Software = _DEFAULT_STACK
    """The training stack, its name or the path of its TOML file; default_stack() if none. In the
    place of the shipped one of the Trainer stands another where sharding_stack says so."""
    adapters: Adapters | None = None
    """Low-rank adapters, the only trained weights; None where all weights are trained."""
    documents: tuple[int, ...] = ()
    """Lengths of the documents that are packed into sequences, in any number: attention stays
    inside each. () where every sequence is one document."""
    graph: Graph | None = None
    """The replicas that average with each other under topology=given."""
    goal: Goal | None = None
    """What training must reach, where time to accuracy is asked."""
    framework: Framework | None = None
    """The framework that launches the plans, if given."""
    calibration: Any = field(default=None, repr=False)
    """Posterior of the constants of the stack (uncertainty.calibration.Calibration)."""


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
        software: object = self.software
        if software is None:
            software = default_stack(self.adapters)
        if isinstance(software, (str, Path)):
            software = software_profile(software)
        if not isinstance(software, Software):
            raise InputError(f"software must be a Software, its name or a path, not {software!r}")
        if isinstance(self.model, str):
            object.__setattr__(self, "model", Model.preset(self.model))
        instead = "Model.preset('llama-3.1-8b') or Model.from_config(path)"
        check_type("model", self.model, Model, instead)
        launched = self.framework is not None and self.framework.required
        loops = any(kind.experts for kind in self.model.kinds) and self.adapters is None
        name = self.cluster if isinstance(self.cluster, str) else "h100-sxm"
        check_type("cluster", self.cluster, Cluster, f"Cluster.profile({name!r}, gpus=...)")
        packs = isinstance(self.adapters, Adapters) and self.adapters.format.bitsandbytes
        software = sharding_stack(software, loops and not launched, packs and self.gpus > 1)
        object.__setattr__(self, "software", software)
        for key in ("sequence", "global_batch"):
            value = getattr(self, key)
            if not is_count(value, _LARGEST - 1):
                limit = f"must be a whole number from 1 to {_LARGEST - 1}"
                raise InputError(f"{key} {limit}, not {value!r}")
        if self.calibration:
            self.calibration.check(self)
        if self.model.mtp_layers and not software.multi_token_prediction:
            left_out = (*self.model.left_out, f"multi-token prediction ({software.label})")
            object.__setattr__(self, "model", replace(self.model, mtp_layers=0, left_out=left_out))
        if self.model.mtp_layers > 1:
            raise InputError(
                f"{self.model.name} has {self.model.mtp_layers} multi-token-prediction layers; "
                "at most 1 is modelled"
            )
        if self.adapters is not None:
            check_type("adapters", self.adapters, Adapters, "Adapters()")
            object.__setattr__(self, "adapters", self.adapters.of_model(self.model))
            self._check_adapters(self.adapters)
        if self.documents:
            self._check_documents()
        if not self.model.kinds and self.sequence != 1:
            raise InputError(
                f"{self.model.name} is a list of layers whose batch counts samples: sequence "
                f"must be 1, not {self.sequence}"
            )
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
        number = len(self.documents)
        if number > MOST_DOCUMENTS:
            limit = f"at most {MOST_DOCUMENTS:,}"
            raise InputError(f"{number:,} lengths of documents are too many; {limit}")
        for length in self.documents:
            if not is_count(length, self.sequence):
                limit = f"must be a whole number from 1 to the sequence {self.sequence}"
                raise InputError(f"length of a document {str(length)[:60]} {limit}")
        if not self.model.kinds:
            raise InputError(f"documents need attention layers; {self.model.name} is a layer list")
        if not self.software.flash_attention:
            raise InputError(
                f"documents change nothing where {self.software.name} computes every score: they "
                "need flash attention"
            )

    def __repr__(self) -> str:
        fields = [f"{name}={getattr(self, name)!r}" for name in ("sequence", "global_batch")]
        fields += [f"adapters={self.adapters!r}"] if self.adapters else []
        fields += [f"software={self.software.name!r}"]
        return f"Task({self.model!r}, {self.cluster!r}, {', '.join(fields)})"

    def _repr_html_(self) -> str:
        facts = {
            "model": f"{self.model.name}, {format_count(self.model.parameters)} parameters",
            "GPUs": f"{self.gpus} x {self.cluster.accelerator.name} ({self.cluster.name})",
            "sequence": f"{self.sequence:,} tokens",
            "global batch": f"{self.global_batch:,} sequences",
            "software": self.software.name,
        }
        if self.adapters:
            facts["adapters"] = repr(self.adapters)
        return facts_html("Task", facts)

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
    """Raise InputError for anything but a Task."""
    check_type("task", value, Task, "Task(model, cluster, sequence=..., global_batch=...)")


def mean_over_documents(
    documents: tuple[int, ...], sequence: int, of_length: Callable[[int], float]
) -> float:
    """The mean over tokens of what depends on the length of a token's document; a sequence is one
    document where no lengths are given."""
    if not documents:
        return of_length(sequence)
    counts = Counter(documents)
    tokens = sum(documents)
    return sum(count * length * of_length(length) for length, count in counts.items()) / tokens
