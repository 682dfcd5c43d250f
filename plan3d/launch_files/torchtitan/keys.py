"""The keys of a job configuration of torchtitan 0.2, as a table, and those of a recipe of 0.3.

Source: torchtitan 0.2.2, config/job_config.py (names, defaults), distributed/pipeline_parallel.py
(split of layers); 0.3.0, config/configs.py, trainer.py (Trainer.Config).
"""

from __future__ import annotations

from typing import Any

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.precision import Precision
from plan3d.simulator.pipeline.schedule_names import Schedule
from plan3d.simulator.plan.codes import ContextComm, Dispatch, Recompute
from plan3d.simulator.task import Task

from ..documents import Document
from ..launch_file import Launch, stated_layers
from ..tables import (
    SWITCH,
    TEXT,
    Implied,
    Kind,
    Numbers,
    Row,
    Source,
    Table,
    choice,
    count,
    only,
    rare,
    under,
)
from .model_flavors import flavor_of

SCHEDULES: dict[int, str] = {
    Schedule.GPIPE: "GPipe",
    Schedule.BREADTH_FIRST: "LoopedBFS",
    Schedule.ZB_V: "ZBVZeroBubble",
    Schedule.DUALPIPE_V: "DualPipeV",
    Schedule.INTERLEAVED: "Interleaved1F1B",
    Schedule.ONE_F_ONE_B: "1F1B",
}
"""torch.distributed.pipelining's name of each schedule that it has."""
SINGLE = (Schedule.ONE_F_ONE_B, Schedule.GPIPE)
"""Schedules with one chunk a rank."""
ROTATIONS = {"allgather": ContextComm.ALL_GATHER, "alltoall": ContextComm.P2P}
"""context_parallel_rotate_method: alltoall is the ring."""
BACKENDS = {"standard": Dispatch.ALLTOALL, "deepep": Dispatch.HIERARCHICAL}
POLICIES = {"default": 0, "always": 3, "never": 2}
"""fsdp_reshard_after_forward: the ZeRO stage; by default 3, and 2 in pipelines."""
MODES = {"selective": "selective", "full": Recompute.FULL, "memory_budget": "memory_budget"}
MODES |= {"none": Recompute.NONE}
"""activation_checkpoint.mode; two of them are torchtitan's own choice of operations."""
FLOAT8 = "quantize.linear.float8"
"""The converter of linear layers to float8; `float8` alone was its name before 0.2."""
MATTERS = frozenset(
    (
        "training.enable_cpu_offload",
        "parallelism.pipeline_parallel_schedule_csv",
        "parallelism.disable_loss_parallel",
        "optimizer.early_step_in_backward",
    )
)
"""Kept keys that change time or memory."""


def _staged(n: Numbers) -> bool:
    return bool(n.pp > 1)


def _even(n: Numbers) -> bool:
    return n.pp > 1 and n.modules is None


def _sparse(n: Numbers) -> bool:
    return bool(n.ep > 1)


def _compiled(n: Numbers) -> bool:
    return bool(n.overlap_tp or n.float8)


def _or_rest(source: Source, at: str, n: Numbers) -> Any:
    """A whole number; None for -1, what is left over."""
    return None if source.says(at, -1) else source.size(at)


def _read_converters(source: Source, at: str, n: Numbers) -> bool:
    return bool({FLOAT8, "float8"} & set(source.words(at)))


def _read_schedule(source: Source, at: str, n: Numbers) -> int | str:
    """A code; the name itself where no plan has it."""
    name = source.text(at)
    codes = {known.lower(): code for code, known in SCHEDULES.items()}
    return codes.get(name.lower(), name)


def _read_modules(source: Source, at: str, n: Numbers) -> Any:
    assert isinstance(source, Document)
    found = source.value(at)
    return found if isinstance(found, list) else []


OR_REST = Kind(lambda value: value, _or_rest)
CONVERTERS = Kind(lambda float8: [FLOAT8], _read_converters)
SCHEDULE = Kind(SCHEDULES.__getitem__, _read_schedule)
MODULES = Kind(lambda parts: parts, _read_modules)
PURE = choice({"float32": False, "bfloat16": True})
FULL = choice({"bfloat16": False, "float32": True})

MODEL: Table = (
    *under(
        "model",
        Row("name", "family", TEXT, "llama3"),
        Row("flavor", "flavor", TEXT, ""),
        rare("converters", "float8", False, kind=CONVERTERS),
    ),
    Implied("optimizer.name", "AdamW"),
)
TRAINING: Table = under(
    "training",
    Row("seq_len", "sequence", usual=2048),
    Row("local_batch_size", "local_batch", usual=8),
    Row("global_batch_size", "global_batch", OR_REST, None),
    Row("dtype", "pure", PURE, False),
    Row("mixed_precision_param", "full", FULL, False),
)
PARALLELISM: Table = under(
    "parallelism",
    Row("data_parallel_replicate_degree", "replicate", usual=1),
    Row("data_parallel_shard_degree", "shards", OR_REST, None),
    Row("tensor_parallel_degree", "tp", usual=1),
    Row("context_parallel_degree", "cp", usual=1),
    Row("pipeline_parallel_degree", "pp", usual=1),
    Row("expert_parallel_degree", "ep", usual=1),
    rare("fsdp_reshard_after_forward", "reshard", kind=choice(POLICIES)),
    *only(
        _staged,
        Row("pipeline_parallel_schedule", "schedule", SCHEDULE, Schedule.ONE_F_ONE_B),
        Row("pipeline_parallel_microbatch_size", "stage_batch", usual=1),
        rare("module_fqns_per_model_part", "modules", None, kind=MODULES),
    ),
    *only(
        _even,
        Row("pipeline_parallel_first_stage_less_layers", "first_less", count(0), 1),
        Row("pipeline_parallel_last_stage_less_layers", "last_less", count(0), 1),
        Row("pipeline_parallel_layers_per_stage", "layers_per_chunk", usual=0),
    ),
)
"""Axes, sharding and stages of both versions."""
ONLY_0_2: Table = under(
    "parallelism",
    Row(
        "context_parallel_rotate_method",
        "cp_comm",
        choice(ROTATIONS),
        ContextComm.ALL_GATHER,
        lambda n: n.cp > 1,
    ),
    *only(
        _sparse,
        Row("expert_tensor_parallel_degree", "etp", usual=1),
        Row("expert_parallel_comm_backend", "expert_dispatch", choice(BACKENDS), 0),
        Row(
            "pipeline_parallel_expert_parallel_overlap",
            "overlap_ep",
            SWITCH,
            True,
            lambda n: n.schedule == Schedule.DUALPIPE_V,
        ),
    ),
    rare("enable_async_tensor_parallel", "overlap_tp", False, kind=SWITCH),
)
"""Keys that 0.3 no longer has."""
TABLE: Table = (
    *MODEL,
    *TRAINING,
    Implied("training.mixed_precision_reduce", "float32"),
    *PARALLELISM,
    *ONLY_0_2,
    Row("activation_checkpoint.mode", "recompute", choice(MODES), "selective"),
    Implied("compile.enable", True, _compiled),
    Implied("compile.components", ["model", "loss"], _compiled),
    Implied(f"{FLOAT8}.recipe_name", "rowwise", lambda n: n.float8),
)
"""A job configuration of 0.2."""
RECIPE: Table = (
    *TRAINING,
    # CUDA graphs run neither pipelines nor the usual expert dispatch.
    Row("training.disable_cuda_graphs", "without_graphs", SWITCH),
    Row("parallelism.enable_sequence_parallel", "sequence_parallel", SWITCH),
    *PARALLELISM,
    Row("activation_checkpoint", "checkpointed", TEXT),
    Row("compile", "compiled", TEXT),
    rare("model_spec", "spec", "", kind=TEXT),
)
"""A recipe of 0.3."""


def spelled(n: Numbers, task: Task, head: str) -> Numbers:
    """The numbers with those of the keys; `head` is the name of the LM head.

    With a pipeline the local batch holds every micro-batch of a step. torchtitan's own split gives
    the first and the last stage a layer less: even stages switch that off, and others name the
    modules of every chunk.
    """
    n.family, n.flavor = flavor_of(task.model)
    n.float8, n.pure = n.precision == Precision.FP8, n.precision == Precision.PURE_BF16
    n.full = n.precision == Precision.FP32
    n.local_batch = n.micro_batch * (n.micro_batches if n.pp > 1 else 1)
    n.stage_batch = n.micro_batch
    n.shards = (n.shard // n.cp or n.dp) if n.zero else 1
    n.replicate, n.reshard = n.dp // n.shards, n.zero
    n.modules = modules(n.chunks, head) if len(set(n.chunks)) > 1 else None
    n.first_less, n.last_less, n.layers_per_chunk = 0, 0, n.chunks[0]
    return n


def modules(chunks: tuple[int, ...], head: str) -> list[list[str]]:
    """The modules of every chunk in model order."""
    out, at = [], 0
    for layers in chunks:
        out.append([f"layers.{i}" for i in range(at, at + layers)])
        at += layers
    out[0].insert(0, "tok_embeddings")
    out[-1] += ["norm", head]
    return out


def meant(job: Document, n: Numbers, launch: Launch, layers: int) -> None:
    """What the keys of 0.2 mean. Raises InputError naming the key that is wrong."""
    n.sequence_parallel = n.tp > 1
    _sharding(n)
    _stages(job, n, launch, layers)
    _batch(job, n)
    n.overlap_ep = n.overlap_ep and n.schedule == Schedule.DUALPIPE_V
    wide = Precision.FP32 if n.full else Precision.BF16
    half = Precision.PURE_BF16 if n.pure else wide
    n.precision = int(Precision.FP8 if n.float8 else half)
    optimizer = job.section("optimizer").text("name", default="AdamW")
    if optimizer not in ("Adam", "AdamW"):
        job.has("optimizer.name")
        launch.open["optimizer"] = f"$.optimizer.name is {optimizer}, which is not modelled"
    if isinstance(n.recompute, str):
        said = "is" if job.there("activation_checkpoint.mode") else "is by default"
        launch.open["recompute"] = (
            f"$.activation_checkpoint.mode {said} {n.recompute}, torchtitan's own choice of "
            "operations, which no plan has (nearest: none, full)"
        )
        n.recompute = 0


def _sharding(n: Numbers) -> None:
    """Data ranks, what they shard, and the overlaps that follow."""
    if n.shards is not None:
        n.dp = n.replicate * n.shards
        n.gpus = n.tp * n.cp * n.pp * n.dp
    sharded = n.shards is None or n.shards > 1 or n.cp > 1
    n.replicas = n.replicate if sharded else 1
    n.zero = (n.reshard or (3 if n.pp == 1 else 2)) if sharded else 0
    n.overlap_grad_reduce = sharded or n.replicate > 1
    n.overlap_param_gather = sharded


def _stages(job: Document, n: Numbers, launch: Launch, layers: int) -> None:
    """Schedule and chunks."""
    if n.pp == 1:
        n.virtual_stages, n.overlap_p2p = 1, 0
        return
    if isinstance(n.schedule, str):
        why = f"$.parallelism.pipeline_parallel_schedule is {n.schedule}, which no plan has"
        launch.open["schedule"] = f"{why} (known: {', '.join(SCHEDULES.values())})"
        n.schedule = Schedule.ONE_F_ONE_B
    chunks = _chunks(job, n, layers)
    n.virtual_stages = len(chunks) // n.pp
    n.overlap_p2p = n.virtual_stages > 1
    launch.plan |= stated_layers(chunks, n.pp, n.virtual_stages)


def _chunks(job: Document, n: Numbers, layers: int) -> tuple[int, ...]:
    """Layers of each chunk: of the named modules, else of torchtitan's own split."""
    if n.modules is not None:
        names = [part if isinstance(part, list) else [] for part in n.modules]
        chunks = tuple(sum(str(name).startswith("layers.") for name in part) for part in names)
        if not chunks or len(chunks) % n.pp or sum(chunks) != layers:
            has = f"has {len(chunks)} parts with {sum(chunks)} layers; a multiple of {n.pp} parts"
            why = f"{has} and {layers} layers are needed"
            raise job.wrong("parallelism.module_fqns_per_model_part", why)
        return chunks
    less, single = (n.first_less, n.last_less), n.schedule in SINGLE
    total = layers + sum(less)
    stages = n.pp * (1 if single else 2)
    stages = -(-total // n.layers_per_chunk) if n.layers_per_chunk else stages
    chunks = split(total, stages, less)
    if stages % n.pp or (single and stages > n.pp) or min(chunks) < 0:
        raise _uncut(job, stages, layers, n.pp)
    return chunks


def _uncut(job: Document, stages: int, layers: int, pp: int) -> InputError:
    why = f"makes {stages} chunks of {layers} layers for {pp} stages"
    return job.wrong("parallelism.pipeline_parallel_layers_per_stage", why)


def split(total: int, stages: int, less: tuple[int, int]) -> tuple[int, ...]:
    """torchtitan's split: embedding and head count as layers, the first stages get the rest."""
    each, more = divmod(total, stages)
    out = [each + (stage < more) for stage in range(stages)]
    out[0] -= less[0]
    out[-1] -= less[1]
    return tuple(out)


def _batch(job: Document, n: Numbers) -> None:
    """Micro-batch and sequences of a step."""
    if n.pp == 1:
        n.micro_batch, n.accumulation = n.local_batch, None if n.global_batch else 1
        return
    n.micro_batch = n.stage_batch
    if n.local_batch % n.micro_batch:
        why = f"is {n.local_batch}, not a multiple of micro-batches of {n.micro_batch}"
        raise job.wrong("training.local_batch_size", why)
    n.accumulation = n.local_batch // n.micro_batch
    ranks = getattr(n, "dp", None)
    if n.global_batch and ranks and n.global_batch != n.local_batch * ranks:
        raise job.wrong(
            "training.global_batch_size",
            f"is {n.global_batch}: accumulating over several pipelines of {n.local_batch} x "
            f"{ranks} sequences is not modelled; nearest: local_batch_size = "
            f"{n.global_batch // ranks}",
        )
