"""Numbers of a plan as keys of torchtitan, and back.

Source: torchtitan 0.2.2, config/job_config.py, distributed/pipeline_parallel.py (split of layers);
0.3.0, trainer.py.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from plan3d.simulator.base.units import is_whole
from plan3d.simulator.hardware.precision import Precision
from plan3d.simulator.pipeline.schedules import most_chunks, schedule_code
from plan3d.simulator.plan.field_values import Recompute
from plan3d.simulator.task import Task
from plan3d.simulator.workload.blocks import MOST_LAYERS
from plan3d.simulator.workload.model import Model

from ..documents import Document
from ..launch_file import Launch, explicit_layers
from ..tables import Numbers
from .keys import (
    ALL_PARTS,
    BY_OPERATION,
    FLOAT8,
    FLOAT8_EXPERTS,
    FLOAT8_RECIPES,
    NOT_COMPILED,
    SCHEDULES,
)
from .model_flavors import flavor_of

EAGER: dict[str, dict[str, Any]] = {
    "model": {"fused_norm": False, "fused_activation": False, "spares_last_product": False},
    "loss": {"logit_bytes": 14.0, "kept_logit_bytes": 6.0},
}
"""Fields of Software by part that is not compiled: norms in fp32 as separate kernels
(before PyTorch 2.9), checkpoints that run all of a layer again (distributed/
activation_checkpoint.py, early_stop), and a loss in fp32 (torchtitan.toml, unfused_logit_bytes)."""


def has_experts(model: Model) -> bool:
    """Whether a layer of the model has experts."""
    return any(kind.experts for kind in model.kinds)


def to_keys(n: Numbers, task: Task, head: str) -> Numbers:
    """The numbers with those of the keys; `head` is the name of the LM head.

    With a pipeline the local batch holds every micro-batch of a step. By default torchtitan gives
    the first and the last stage a layer less: equal stages switch that off, others name the modules
    of every chunk.
    """
    n.family, n.flavor = flavor_of(task.model)
    n.float8, n.pure_bf16 = (
        n.precision in FLOAT8_RECIPES.values(),
        n.precision == Precision.PURE_BF16,
    )
    n.float8_recipe = n.precision if n.float8 else Precision.FP8
    n.float8_experts = ("experts",) if n.float8 and has_experts(task.model) else ()
    n.converters = (FLOAT8,) * n.float8 + (FLOAT8_EXPERTS,) * bool(n.float8_experts)
    n.full_precision, n.cpu_offload = n.precision == Precision.FP32, n.offload_parameters > 0
    n.compile_enabled, n.compile_parts = n.schedule not in NOT_COMPILED, ALL_PARTS
    n.local_batch = n.micro_batch * (n.micro_batches if n.pp > 1 else 1)
    n.stage_batch = n.micro_batch
    n.shard_degree = (n.shard // n.cp or n.dp) if n.zero else 1
    n.replicate_degree, n.reshard_stage = n.dp // n.shard_degree, n.zero
    n.stage_modules = stage_modules(n.chunks, head) if len(set(n.chunks)) > 1 else None
    n.first_stage_less, n.last_stage_less, n.layers_per_chunk = 0, 0, n.chunks[0]
    n.selective_option = BY_OPERATION
    return n


def stage_modules(chunks: tuple[int, ...], head: str) -> list[list[str]]:
    """The modules of every chunk in model order; `head` is the name of the LM head."""
    out, first = [], 0
    for layers in chunks:
        out.append([f"layers.{i}" for i in range(first, first + layers)])
        first += layers
    out[0].insert(0, "tok_embeddings")
    out[-1] += ["norm", head]
    return out


def from_keys(job: Document, n: Numbers, launch: Launch, model: Model) -> None:
    """Add the plan of a job of 0.2. Raises InputError naming the key that is wrong."""
    n.sequence_parallel = n.tp > 1
    _read_sharding(n)
    _read_stages(job, n, launch, model.layers)
    _read_batch(job, n)
    n.overlap_ep = n.overlap_ep and n.schedule == schedule_code("dualpipe-v")
    n.compile_enabled = n.compile_enabled or n.older_compile
    for part in ALL_PARTS:
        if not n.compile_enabled or part not in n.compile_parts:
            launch.software |= EAGER[part]
    if n.early_stop:
        launch.software.pop("spares_last_product", None)
    wide = Precision.FP32 if n.full_precision else Precision.BF16
    half = Precision.PURE_BF16 if n.pure_bf16 else wide
    n.float8 = bool({FLOAT8, "float8"} & {*n.converters})
    recipe = n.older_recipe or n.float8_recipe
    n.precision = int(recipe if n.float8 else half)
    if not n.zero and half == Precision.BF16:
        launch.left_out.append(WITHOUT_FSDP[n.tp > 1 or n.pp > 1])
    _check_converters(n, launch, model)
    optimizer = job.section("optimizer").string("name", default="AdamW")
    if optimizer not in ("Adam", "AdamW"):
        job.claim("optimizer.name")
        launch.unmodelled["optimizer"] = f"$.optimizer.name is {optimizer}, which is not modelled"
    _read_recompute(job, n, launch, model)


WITHOUT_FSDP = (
    "autocast of fp32 weights, which torchtitan has without FSDP: taken as bf16",
    "fp32, in which torchtitan trains beside tp or pp without FSDP: taken as bf16",
)
"""What training.mixed_precision_param is then: of replicas or one rank, and with stages or tensor
ranks.

Source: torchtitan 0.2.2, distributed/utils.py (maybe_enable_amp)."""


def _check_converters(n: Numbers, launch: Launch, model: Model) -> None:
    """Note converters that are not modelled, and float8 of linear layers or of experts alone."""
    others = sorted({*n.converters} - {FLOAT8, "float8", FLOAT8_EXPERTS})
    of_experts = FLOAT8_EXPERTS in n.converters and bool(n.float8_experts)
    if others:
        why = f"its layers are converted by {', '.join(others)[:60]}, not modelled"
        launch.unmodelled["precision"] = why
    elif n.float8 != of_experts and has_experts(model):
        part = "linear layers" if n.float8 else "experts"
        launch.unmodelled["precision"] = f"only its {part} are converted to float8"


def _read_recompute(job: Document, n: Numbers, launch: Launch, model: Model) -> None:
    """Recompute; what no plan can have is noted as unmodelled."""
    if n.recompute in (Recompute.NONE, Recompute.FULL):
        return
    selective = n.recompute == Recompute.SELECTIVE
    if selective and n.selective_option == BY_OPERATION:
        if not has_experts(model):
            return
        why, nearest = ", which is not modelled for experts", ""
    else:
        why, nearest = ", which no plan has", f", or selective_ac_option {BY_OPERATION}"
    key = "selective_ac_option" if selective else "mode"
    verb = "is" if job.contains(f"activation_checkpoint.{key}") else "is by default"
    value = n.selective_option if selective else n.recompute
    launch.unmodelled["recompute"] = (
        f"$.activation_checkpoint.{key} {verb} {value}{why} (nearest: mode none or full{nearest})"
    )
    n.recompute = Recompute.NONE


def _read_sharding(n: Numbers) -> None:
    """Data ranks, ZeRO stage, offloading and overlaps."""
    if n.shard_degree is not None:
        n.dp = n.replicate_degree * n.shard_degree
        n.gpus = n.tp * n.cp * n.pp * n.dp
    sharded = n.shard_degree is None or n.shard_degree > 1 or n.cp > 1
    n.replicas = n.replicate_degree if sharded else 1
    n.zero = (n.reshard_stage or (3 if n.pp == 1 else 2)) if sharded else 0
    n.overlap_grad_reduce = sharded or n.replicate_degree > 1
    n.overlap_param_gather = sharded
    n.offload_optimizer = n.offload_parameters = 100 * n.cpu_offload


def _read_stages(job: Document, n: Numbers, launch: Launch, layers: int) -> None:
    """Schedule and chunks."""
    if n.pp == 1:
        n.virtual_stages, n.overlap_p2p = 1, 0
        return
    if isinstance(n.schedule, str):
        why = f"$.parallelism.pipeline_parallel_schedule is {n.schedule}, which no plan has"
        launch.unmodelled["schedule"] = f"{why} (known: {', '.join(SCHEDULES.values())})"
        n.schedule = schedule_code("1f1b")
    chunks = _chunks(job, n, layers)
    n.virtual_stages = len(chunks) // n.pp
    n.overlap_p2p = n.virtual_stages > 1
    launch.plan |= explicit_layers(chunks, n.pp, n.virtual_stages)


def _chunks(job: Document, n: Numbers, layers: int) -> tuple[int, ...]:
    """Layers of each chunk: of the modules that are named, or of torchtitan's split."""
    if n.stage_modules is not None:
        names = [part if isinstance(part, list) else [] for part in n.stage_modules]
        chunks = tuple(sum(str(name).startswith("layers.") for name in part) for part in names)
        if not chunks or len(chunks) % n.pp or sum(chunks) != layers:
            has = f"has {len(chunks)} parts with {sum(chunks)} layers; a multiple of {n.pp} parts"
            why = f"{has} and {layers} layers are needed"
            raise job.value_error("parallelism.module_fqns_per_model_part", why)
        return chunks
    if n.split_points:
        return _chunks_between(job, n, layers)
    less, one_chunk = (n.first_stage_less, n.last_stage_less), bool(most_chunks(n.schedule) == 1)
    total = layers + sum(less)
    stages = n.pp * (1 if one_chunk else 2)
    stages = -(-total // n.layers_per_chunk) if n.layers_per_chunk else stages
    wrong = stages % n.pp or stages > MOST_LAYERS or (one_chunk and stages > n.pp)
    chunks = () if wrong else layers_of_chunks(total, stages, less)
    if wrong or min(chunks) < 0:
        why = f"makes {stages} chunks of {layers} layers for {n.pp} stages"
        raise job.value_error("parallelism.pipeline_parallel_layers_per_stage", why)
    return chunks


def _chunks_between(job: Document, n: Numbers, layers: int) -> tuple[int, ...]:
    """Layers of each chunk, by the names of the first layers of all but the first."""
    numbers = [str(name).rpartition(".")[2] for name in n.split_points]
    starts = [0, *(int(text) if is_whole(text) else 0 for text in numbers), layers]
    chunks = tuple(last - first for first, last in pairwise(starts))
    if min(chunks) < 1 or len(chunks) % n.pp:
        why = f"must be rising layers below {layers} that make a multiple of {n.pp} parts"
        raise job.value_error("parallelism.pipeline_parallel_split_points", why)
    return chunks


def layers_of_chunks(total: int, stages: int, less: tuple[int, int]) -> tuple[int, ...]:
    """torchtitan's split, where embedding and head count as layers and the first chunks get the
    remainder."""
    each, more = divmod(total, stages)
    out = [each + (stage < more) for stage in range(stages)]
    out[0] -= less[0]
    out[-1] -= less[1]
    return tuple(out)


def _read_batch(job: Document, n: Numbers) -> None:
    """Micro-batch and sequences of a step."""
    if n.pp == 1:
        n.micro_batch, n.accumulation = n.local_batch, None if n.global_batch else 1
        return
    n.micro_batch = n.stage_batch
    if n.local_batch % n.micro_batch:
        why = f"is {n.local_batch}, not a multiple of micro-batches of {n.micro_batch}"
        raise job.value_error("training.local_batch_size", why)
    n.accumulation = n.local_batch // n.micro_batch
    ranks = getattr(n, "dp", None)
    if n.global_batch and ranks and n.global_batch != n.local_batch * ranks:
        raise job.value_error(
            "training.global_batch_size",
            f"is {n.global_batch}: accumulating over several pipelines of {n.local_batch} x "
            f"{ranks} sequences is not modelled; nearest: local_batch_size = "
            f"{n.global_batch // ranks}",
        )
