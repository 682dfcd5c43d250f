"""Contents of a launch file: a model, a batch and a plan, as far as it states them.

Readers fill a Launch. Plan fields that a file sets to what no plan can have are noted with the
reason, so that the user can replace them; settings that no reader takes are listed as unread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from plan3d.simulator.base.errors import LONGEST_MESSAGE, InputError
from plan3d.simulator.base.printable import one_line
from plan3d.simulator.layers.placements import chunk_sizes
from plan3d.simulator.pipeline.stage_placement import chunk_layers
from plan3d.simulator.plan.field_values import Recompute
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.rules.training_rules import recomputed_modules
from plan3d.simulator.rules.validity import check
from plan3d.simulator.task import Task
from plan3d.simulator.workload.adapters import Adapters
from plan3d.simulator.workload.model import Model

from .shell.inputs import NO_INPUTS, ScriptInputs


@dataclass(frozen=True, slots=True)
class UnreadSetting:
    """A part of a file that no reader took, to be shown and written again."""

    place: str
    """'line 12' or '$.optimizer.params'."""
    text: str
    affects_cost: bool = False
    """It is known to change time or memory, and the prediction does not include it."""
    is_derived: bool = False
    """It stands for a setting that follows from the plan, and is not written without it."""
    flag: str = ""
    """The name of a flag, with dashes."""
    assignments: tuple[str, ...] = ()
    """Assignments of the script whose variables its words use."""
    path: tuple[str, ...] = ()
    """The path of a value in a nested document."""
    value: Any = None
    """The value at that path."""
    suggestion: str = ""
    """The known flag or key that it may misspell."""
    overrides: bool = False
    """It is written in place of what the plan decides."""
    why_neutral: str = ""
    """What it sets, where that changes neither model nor cost; '' of an unknown setting."""

    @property
    def message(self) -> str:
        """The part as a message shows it."""
        return f"{self.text} (did you mean {self.suggestion}?)" if self.suggestion else self.text


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """What the user gives beside a file."""

    model: Model | None = None
    vocabulary: int | None = None
    """Tokens of the tokenizer."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the plan."""
    has_batch: bool = False
    """Whether the batch of a step is given."""
    inputs: ScriptInputs = NO_INPUTS
    """Arguments and variables of a script."""
    sequence: int | None = None
    """Tokens of a sequence."""


NO_OPTIONS = ReaderOptions()


def with_here_documents(options: ReaderOptions, texts: list[str]) -> ReaderOptions:
    """The options with the here-documents of a script as the files that are not beside it: one of
    JSON and one of YAML at most."""
    beside = options.inputs.read_source

    def read_source(name: str) -> str | None:
        found = beside(name) if beside else None
        if found is not None:
            return found
        is_json = name.endswith(".json")
        matching = (text for text in texts if text.lstrip().startswith("{") == is_json)
        return next(matching, None)

    return replace(options, inputs=replace(options.inputs, read_source=read_source))


@dataclass
class Launch:
    """A launch file as far as it could be read."""

    file: str
    framework: str
    """Whose stack runs it."""
    title: str = ""
    """The tool that reads it, where that is not the framework."""
    model: Model | None = None
    adapters: Adapters | None = None
    """The only trained weights; None where all are trained."""
    sequence: int | None = None
    global_batch: int | None = None
    """Sequences of a step."""
    accumulation: int | None = None
    """Micro-batches of a step, where the file states those rather than the batch."""
    gpus: int | None = None
    plan: dict[str, Any] = field(default_factory=dict)
    """Fields of the plan that the file decides."""
    vocabulary_source: str = ""
    """What states the vocabulary, where the file does not name the model."""
    unmodelled: dict[str, str] = field(default_factory=dict)
    """Fields that the file sets to what no plan can have -> why; --with replaces them."""
    software: dict[str, Any] = field(default_factory=dict)
    """Fields of the software profile that the file decides."""
    stack: str = ""
    """The software profile of the engine that it names; '' for that of the framework."""
    states_sharding: bool = False
    """It says who shards the weights, where the stack alone does not."""
    unread: list[UnreadSetting] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """What the run has and the prediction lacks, and what was decided in reading, in sentences."""
    replicas: int = 1
    """Copies of the shards of hybrid sharding."""
    launcher_gpus: int | None = None
    """GPUs of the launcher that the file names; --gpus replaces it."""
    log: str = ""
    """The text of the log that the settings are from."""
    cluster: str = ""
    """The hardware profile that a file of plan3d is for; --cluster replaces it."""
    stated_plan: Plan | None = None
    """The plan that a file of plan3d states at its top."""
    overlap_setting: UnreadSetting | None = None
    """The setting of overlap_tp, to be listed as not modelled by stacks that hide none of it."""

    @property
    def stem(self) -> str:
        """The file's name without folder and ending, as the name of its model."""
        return one_line(self.file.rsplit("/", 1)[-1].rpartition(".")[0] or self.file)

    def refuse(self, problem: str, most: int = LONGEST_MESSAGE) -> InputError:
        """The error about the file."""
        return InputError(f"{self.file}: {problem}", most)


def plan_of(launch: Launch, overrides: Mapping[str, Any]) -> Plan:
    """The plan of a file; `overrides` replace its fields.

    Raises InputError for a field that the file sets to what is not modelled.
    """
    for name, why in launch.unmodelled.items():
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
    sequence = given or launch.sequence or model.sequence
    if not sequence:
        raise launch.refuse("does not state the sequence length: give --sequence N (tokens)")
    return sequence


def explicit_layers(chunks: Sequence[int], pp: int, virtual: int) -> dict[str, tuple[int, ...]]:
    """The plan field that states the layers of every chunk; none where chunks are even."""
    even = chunk_layers(sum(chunks), pp, virtual, 0, 0, ())
    return {} if tuple(chunks) == even else {"layers_per_stage": tuple(chunks)}


def _with_stated_stages(launch: Launch, plan: Plan, task: Task) -> Plan:
    """The plan with the layers of its stages as the top of the file states them, where that plan is
    legal and the settings mean the same chunks."""
    stated = launch.stated_plan
    if stated is None or (int(stated.pp), int(stated.virtual_stages)) != (
        int(plan.pp),
        int(plan.virtual_stages),
    ):
        return plan
    try:
        own, other = (resolve(one, task.gpus).take(0) for one in (plan, stated))
        check(other, task)
    except InputError:
        return plan
    if chunk_sizes(task, own) != chunk_sizes(task, other):
        return plan
    return replace(plan, **{name: getattr(stated, name) for name in STAGE_LAYERS})


STAGE_LAYERS = ("first_stage_layers", "last_stage_layers", "layers_per_stage")
"""Fields that state the layers of stages."""


def effective_plan(launch: Launch, plan: Plan, task: Task) -> Plan:
    """The plan without what frameworks ignore, and with the shard size that its replicas imply.

    Ignored are selective recompute of modules that the model lacks, what has no effect on one
    data-parallel rank, and an overlap of tensor communication of which the stack hides nothing: its
    setting is listed as not modelled.

    Raises InputError where the replicas do not divide the data ranks.
    """
    plan = _with_stated_stages(launch, plan, task)
    row = resolve(plan, task.gpus)
    listed = task.software.selective
    if launch.overlap_setting and plan.overlap_tp and not task.software.tp_overlap_share:
        plan = replace(plan, overlap_tp=0)
        launch.unread.append(launch.overlap_setting)
    if row.recompute == Recompute.SELECTIVE and listed and not recomputed_modules(task):
        plan = replace(plan, recompute=Recompute.NONE)
    ranks = int(row.dp * row.cp)
    if ranks == 1:
        scaled = plan.fp8_params * (plan.zero > 0)
        single = replace(plan, overlap_grad_reduce=0, bucket_parameters=0, fp8_params=scaled)
        if plan.offload_parameters:
            return single
        zero = 3 if plan.nvme else plan.zero * task.software.has_hooks
        if zero and not plan.nvme:
            launch.left_out.append(
                f"zero={zero} shards nothing on one GPU: the hooks and copies of the engine, which "
                "run all the same, are predicted"
            )
        return replace(single, overlap_param_gather=0, zero=zero)
    if launch.replicas == 1 or not plan.zero:
        return plan
    if ranks % launch.replicas:
        raise launch.refuse(
            f"has {launch.replicas} replicas of shards, which do not divide dp x cp = {ranks}"
        )
    return replace(plan, shard=ranks // launch.replicas)
