"""What does a torchtitan 0.2 job configuration run? Its TOML as a batch, a plan and a flavor.

Source of the defaults: torchtitan 0.2.2, config/job_config.py; distributed/pipeline_parallel.py
for the split of layers.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.typed_objects import JsonObject
from plan3d.simulator.hardware.precision import Precision
from plan3d.simulator.pipeline.schedules import code, most_chunks
from plan3d.simulator.plan.codes import Recompute

from ..documents import unread
from ..launch_file import NOTHING, Given, Launch, stated_layers
from .model_flavors import flavor_model
from .rules import FLOAT8, ROTATIONS, SCHEDULES

CODES = {name.lower(): code for code, name in SCHEDULES.items()}
USED = frozenset(
    (
        "model.name",
        "model.flavor",
        "model.converters",
        "optimizer.name",
        "training.seq_len",
        "training.local_batch_size",
        "training.global_batch_size",
        "training.dtype",
        "training.mixed_precision_param",
        "training.mixed_precision_reduce",
        "parallelism.data_parallel_replicate_degree",
        "parallelism.data_parallel_shard_degree",
        "parallelism.fsdp_reshard_after_forward",
        "parallelism.tensor_parallel_degree",
        "parallelism.enable_async_tensor_parallel",
        "parallelism.pipeline_parallel_degree",
        "parallelism.pipeline_parallel_schedule",
        "parallelism.pipeline_parallel_microbatch_size",
        "parallelism.pipeline_parallel_layers_per_stage",
        "parallelism.pipeline_parallel_first_stage_less_layers",
        "parallelism.pipeline_parallel_last_stage_less_layers",
        "parallelism.module_fqns_per_model_part",
        "parallelism.context_parallel_degree",
        "parallelism.expert_parallel_degree",
        "parallelism.expert_tensor_parallel_degree",
        "parallelism.context_parallel_rotate_method",
        "parallelism.expert_parallel_comm_backend",
        "parallelism.pipeline_parallel_expert_parallel_overlap",
        "activation_checkpoint.mode",
        "compile.enable",
        "compile.components",
        "quantize.linear.float8.recipe_name",
    )
)
"""Keys that are read or follow from the plan; all others are kept."""
POLICIES = ("default", "always", "never")
MATTERS = (
    "training.enable_cpu_offload",
    "parallelism.pipeline_parallel_schedule_csv",
    "parallelism.disable_loss_parallel",
    "optimizer.early_step_in_backward",
)
"""Kept keys that change time or memory."""


def read(text: str, file: str, given: Given = NOTHING) -> Launch:
    """The launch of a TOML file. Raises InputError naming the key that is wrong."""
    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{file}: is not TOML ({error})") from None
    launch = Launch(file, "torchtitan")
    parts = {
        name: JsonObject.of(content.get(name, {}), file, f"$.{name}")
        for name in ("model", "optimizer", "training", "parallelism", "activation_checkpoint")
    }
    if not content.keys() & {"training", "parallelism"}:
        raise launch.refuse("has neither [training] nor [parallelism]: not a torchtitan job")
    names = parts["model"].text("name", default="llama3"), parts["model"].text("flavor", default="")
    launch.model = flavor_model(*names)
    known = launch.model or given.model
    if known is None:
        raise launch.refuse(f"names {' '.join(names)}, which plan3d does not know: give --model")
    _sizes(parts["parallelism"], launch, known.layers)
    _batch(parts["training"], parts["parallelism"], launch)
    _formats(parts, launch)
    _recompute(parts["activation_checkpoint"], launch)
    launch.kept = unread(content, USED, MATTERS)
    return launch


def _sizes(p: JsonObject, launch: Launch, layers: int) -> None:
    """Axes, stages and sharding."""
    names = ("tensor", "context", "pipeline", "expert")
    tp, cp, pp, ep = (p.size(f"{name}_parallel_degree", default=1) for name in names)
    launch.plan |= {
        "tp": tp,
        "cp": cp,
        "pp": pp,
        "ep": ep,
        "etp": p.size("expert_tensor_parallel_degree", default=1) if ep > 1 else 1,
        "sequence_parallel": int(tp > 1),
        "overlap_tp": int(p.flag("enable_async_tensor_parallel", False)),
    }
    _sharding(p, launch)
    _pipeline(p, pp, launch, layers)
    _exchanges(p, launch)


def _exchanges(p: JsonObject, launch: Launch) -> None:
    """How split sequences and experts get their tokens."""
    plan, codes = launch.plan, {name: int(code) for code, name in ROTATIONS.items()}
    method = p.text("context_parallel_rotate_method", tuple(codes), default="allgather")
    backend = p.text("expert_parallel_comm_backend", ("standard", "deepep"), default="standard")
    dual = plan["schedule"] == code("dualpipe-v")
    wanted = p.flag("pipeline_parallel_expert_parallel_overlap", True)
    if plan["cp"] > 1:
        plan["cp_comm"] = codes[method]
    if plan["ep"] > 1:
        plan["expert_dispatch"] = int(backend == "deepep")
        plan["overlap_ep"] = int(dual and wanted)


def _sharding(p: JsonObject, launch: Launch) -> None:
    """Data ranks, what they shard, and the overlaps that follow; -1 shards are what is left."""
    plan, replicas = launch.plan, p.size("data_parallel_replicate_degree", default=1)
    rest = p.values.get("data_parallel_shard_degree", -1) == -1
    shards = 1 if rest else p.size("data_parallel_shard_degree")
    if not rest:
        plan["dp"] = replicas * shards
        launch.gpus = plan["tp"] * plan["cp"] * plan["pp"] * replicas * shards
    sharded = rest or shards > 1 or plan["cp"] > 1
    launch.replicas = replicas if sharded else 1
    policy = p.text("fsdp_reshard_after_forward", POLICIES, default="default")
    again = policy == "always" or (policy == "default" and plan["pp"] == 1)
    plan |= {
        "zero": (3 if again else 2) if sharded else 0,
        "overlap_grad_reduce": int(sharded or replicas > 1),
        "overlap_param_gather": int(sharded),
    }


def _pipeline(p: JsonObject, pp: int, launch: Launch, layers: int) -> None:
    """Schedule and chunks."""
    plan = launch.plan
    if pp == 1:
        plan |= {"schedule": "1f1b", "virtual_stages": 1, "overlap_p2p": 0}
        return
    name = p.text("pipeline_parallel_schedule", default="1F1B")
    if name.lower() not in CODES:
        why = f"$.parallelism.pipeline_parallel_schedule is {name}, which no plan has"
        launch.open["schedule"] = f"{why} (known: {', '.join(SCHEDULES.values())})"
    schedule = CODES.get(name.lower(), code("1f1b"))
    plan["schedule"] = schedule
    chunks = _chunks(p, pp, bool(most_chunks(schedule) == 1), layers)
    v = len(chunks) // pp
    plan |= {"virtual_stages": v, "overlap_p2p": int(v > 1), **stated_layers(chunks, pp, v)}


def _chunks(p: JsonObject, pp: int, single: bool, layers: int) -> tuple[int, ...]:
    """Layers of each chunk: of the named modules, else of torchtitan's own split."""
    parts = p.values.get("module_fqns_per_model_part")
    if parts is not None:
        names = [part if isinstance(part, list) else [] for part in _list(parts)]
        chunks = tuple(sum(str(name).startswith("layers.") for name in part) for part in names)
        if not chunks or len(chunks) % pp or sum(chunks) != layers:
            problem = f"has {len(chunks)} parts with {sum(chunks)} layers; a multiple of {pp} parts"
            raise p.refuse(
                "module_fqns_per_model_part", f"{problem} and {layers} layers are needed"
            )
        return chunks
    less = [
        p.size(f"pipeline_parallel_{end}_stage_less_layers", default=1, least=0)
        for end in ("first", "last")
    ]
    total = layers + sum(less)
    each = p.size("pipeline_parallel_layers_per_stage", default=0)
    stages = -(-total // each) if each else pp * (1 if single else 2)
    chunks = split(total, stages, less)
    if stages % pp or (single and stages > pp) or min(chunks) < 0:
        key = "pipeline_parallel_layers_per_stage"
        raise p.refuse(key, f"makes {stages} chunks of {layers} layers for {pp} stages")
    return chunks


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def split(total: int, stages: int, less: list[int]) -> tuple[int, ...]:
    """torchtitan's split: embedding and head count as layers, the first stages get the rest."""
    each, more = divmod(total, stages)
    out = [each + (stage < more) for stage in range(stages)]
    out[0] -= less[0]
    out[-1] -= less[1]
    return tuple(out)


def _batch(t: JsonObject, p: JsonObject, launch: Launch) -> None:
    """Micro-batch, sequences of a step and tokens of a sequence."""
    launch.sequence = t.size("seq_len", default=2048)
    local = t.size("local_batch_size", default=8)
    stated = t.values.get("global_batch_size", -1)
    launch.global_batch = None if stated == -1 else t.size("global_batch_size")
    if launch.plan["pp"] == 1:
        launch.plan["micro_batch"] = local
        launch.accumulation = None if launch.global_batch else 1
        return
    micro = p.size("pipeline_parallel_microbatch_size", default=1)
    launch.plan["micro_batch"] = micro
    if local % micro:
        raise t.refuse(
            "local_batch_size", f"is {local}, not a multiple of micro-batches of {micro}"
        )
    launch.accumulation = local // micro
    ranks = launch.plan.get("dp")
    if launch.global_batch and ranks and launch.global_batch != local * ranks:
        raise t.refuse(
            "global_batch_size",
            f"is {launch.global_batch}: accumulating over several pipelines of {local} x {ranks} "
            "sequences is not modelled; nearest: local_batch_size = "
            f"{launch.global_batch // ranks}",
        )


def _formats(parts: Mapping[str, JsonObject], launch: Launch) -> None:
    """Number formats and optimizer."""
    t, model = parts["training"], parts["model"]
    kinds = ("float32", "bfloat16")
    pure = t.text("dtype", kinds, default="float32") == "bfloat16"
    full = t.text("mixed_precision_param", kinds, default="bfloat16") == "float32"
    converters = model.values.get("converters", [])
    if isinstance(converters, list) and {FLOAT8, "float8"} & set(map(str, converters)):
        precision = Precision.FP8
    elif pure:
        precision = Precision.PURE_BF16
    else:
        precision = Precision.FP32 if full else Precision.BF16
    launch.plan["precision"] = int(precision)
    name = parts["optimizer"].text("name", default="AdamW")
    if name not in ("Adam", "AdamW"):
        launch.open["optimizer"] = f"$.optimizer.name is {name}, which is not modelled"


def _recompute(a: JsonObject, launch: Launch) -> None:
    modes = ("selective", "full", "memory_budget", "none")
    mode = a.text("mode", modes, default="selective")
    if mode in ("none", "full"):
        launch.plan["recompute"] = int(Recompute[mode.upper()])
        return
    stated = "is" if a.has("mode") else "is by default"
    launch.open["recompute"] = (
        f"$.activation_checkpoint.mode {stated} {mode}, torchtitan's own choice of operations, "
        "which no plan has (nearest: none, full)"
    )
