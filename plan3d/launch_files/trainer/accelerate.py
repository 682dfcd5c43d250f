"""The configuration of accelerate: FSDP, DeepSpeed, Megatron-LM or replicas, and their sizes.

Source: accelerate 1.11 to 1.14, commands/config/config_args.py (names), utils/dataclasses.py
(DeepSpeedPlugin, FullyShardedDataParallelPlugin, MegatronLMPlugin), parallelism_config.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plan3d.simulator.base.documents import parse_yaml
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.plan.field_values import ContextComm, Recompute

from ..documents import WITHOUT_EFFECT, Document
from ..launch_file import Launch, UnreadSetting
from ..tables import TRUTHS, Numbers, Table
from .other_arguments import other_arguments

ROTATIONS = {"allgather": ContextComm.ALL_GATHER, "alltoall": ContextComm.P2P}
"""cp_comm by the strategy of torch's context parallelism; alltoall is the ring."""

ENGINE = "deepspeed_config"
FSDP = "fsdp_config"
MEGATRON = "megatron_lm_config"
PARALLELISM = "parallelism_config"
OWN_KEYS = frozenset(
    ("distributed_type", "compute_environment", "num_processes", "mixed_precision")
)
"""Keys of which a configuration has one."""
SECTIONS = {
    FSDP: ("fsdp_",),
    ENGINE: ("zero", "offload_", "deepspeed_", "gradient_"),
    PARALLELISM: ("parallelism_config_",),
    MEGATRON: ("megatron_lm_",),
    "dynamo_config": ("dynamo_",),
    "fp8_config": ("fp8_",),
}
"""Beginnings of flags of accelerate launch by the section that has them in a configuration."""
KINDS = {
    "use_fsdp": "FSDP",
    "use_deepspeed": "DEEPSPEED",
    "use_megatron_lm": "MEGATRON_LM",
    "tpu": "TPU",
}
"""distributed_type by the flag that sets it."""
OWNERS = {FSDP: "FSDP", ENGINE: "DEEPSPEED", MEGATRON: "MEGATRON_LM"}
"""distributed_type by the section that it reads."""
ELSEWHERE = ("config_file", "num_processes", "module", "multi_gpu")
"""Flags that are read as the launcher's (commands.py), or follow from its processes."""
TABLE: Table = other_arguments("accelerate")
"""What is not read of a configuration."""
LOCAL = "LOCAL_MACHINE"
TYPES = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED", "MEGATRON_LM")
"""Values of distributed_type that are read."""
DEGREES = {
    "parallelism_config_tp_size": "tp",
    "parallelism_config_cp_size": "cp",
    "parallelism_config_sp_size": "cp",
    "parallelism_config_dp_shard_size": "shard_degree",
    "parallelism_config_dp_replicate_size": "replicas",
}
"""Numbers by key of parallelism_config."""
ROTATION = "parallelism_config_cp_comm_strategy"
"""The key of how keys and values reach the other ranks of a sequence."""
MEGATRON_DEGREES = {
    "tp_degree": "tp",
    "pp_degree": "pp",
    "expert_model_parallel_size": "ep",
    "context_parallel_size": "cp",
    "expert_tensor_parallel_size": "etp",
}
"""Numbers by key of the Megatron-LM plugin, without its beginning."""
GRANULARITIES = {"full": Recompute.FULL, "selective": Recompute.SELECTIVE}


def configuration_of(text: str, file: str) -> Document:
    """The configuration as a document. Raises InputError for one that is no mapping."""
    content = parse_yaml(text, file)
    if not isinstance(content, dict) or not content.keys() & OWN_KEYS:
        raise InputError(f"{file}: must hold keys and values of accelerate")
    return Document(content, file)


def with_launch_flags(config: Document | None, flags: Mapping[str, Any]) -> Document | None:
    """The configuration with the flags of accelerate launch, which win; None without either."""
    content: dict[str, Any] = dict(config.content) if config else {}
    for name, stated in flags.items():
        value = stated[0] if isinstance(stated, list) and stated else stated
        beginnings = SECTIONS.items()
        section = next((part for part, begins in beginnings if name.startswith(begins)), "")
        if name in KINDS:
            content["distributed_type"] = KINDS[name]
        elif section == PARALLELISM and "use_parallelism_config" not in flags:
            continue
        elif section:
            content[section] = dict(content.get(section) or {}) | {name: value}
        elif name not in ELSEWHERE:
            content[name] = value
    return Document(content, config.file if config else "accelerate launch") if content else None


def merge_configuration(config: Document, n: Numbers, launch: Launch) -> None:
    """Add what the configuration decides: the format, the number of GPUs and the kind of sharding.

    Arguments of the run itself win. Raises InputError for a kind that is not read.
    """
    kind = str(config.value("distributed_type") or "NO").upper()
    if kind not in TYPES:
        known = ", ".join(TYPES)
        raise config.value_error("distributed_type", f"is {kind[:40]}, not modelled: {known}")
    where = str(config.value("compute_environment") or LOCAL)
    if where != LOCAL:
        raise config.value_error("compute_environment", f"is {where[:40]}, which is not read")
    mixed = str(config.value("mixed_precision") or "no").lower()
    n.bf16, n.fp16 = n.bf16 or mixed == "bf16", n.fp16 or mixed == "fp16"
    if mixed == "fp8":
        launch.unmodelled["precision"] = "$.mixed_precision is fp8: its recipe is not read"
    if config.claim("num_processes"):
        launch.launcher_gpus = config.size("num_processes")
    for key, name in DEGREES.items():
        path = f"{PARALLELISM}.{key}"
        if config.claim(path):
            setattr(n, name, max(config.size(path, most=2**20), getattr(n, name, 1) or 1))
    way = config.value(f"{PARALLELISM}.{ROTATION}")
    if (getattr(n, "cp", 1) or 1) > 1:
        n.context_comm = ROTATIONS.get(str(way or "allgather"), ContextComm.P2P)
        if config.contains(f"{PARALLELISM}.parallelism_config_sp_size"):
            n.context_comm = ContextComm.A2A
    if kind == "FSDP":
        n.fsdp, n.fsdp_document = n.fsdp or "full_shard", config
    elif kind == "DEEPSPEED":
        n.deepspeed = n.deepspeed or _engine(config, n)
    elif kind == "MEGATRON_LM":
        _merge_megatron(config, n, launch)


def _engine(config: Document, n: Numbers) -> Any:
    """The configuration of DeepSpeed: a path, or the keys that the questions of accelerate set."""
    section = config.section(ENGINE).values
    for key in section:
        config.claim(f"{ENGINE}.{key}")
    if section.get("deepspeed_config_file"):
        return section["deepspeed_config_file"]
    steps = section.get("gradient_accumulation_steps")
    if isinstance(steps, int) and n.accumulation in (None, 1):
        n.accumulation = steps
    zero: dict[str, Any] = {"stage": section.get("zero_stage", 2)}
    for name in ("offload_optimizer", "offload_param"):
        device = section.get(f"{name}_device", "none")
        zero |= {name: {"device": device}} if device not in (None, "none") else {}
    return {"zero_optimization": zero}


def _merge_megatron(config: Document, n: Numbers, launch: Launch) -> None:
    """The plan of the Megatron-LM plugin."""
    path = f"{MEGATRON}.megatron_lm_"
    launch.framework = "megatron"
    for key, name in MEGATRON_DEGREES.items():
        setattr(n, name, config.size(f"{path}{key}") if config.claim(f"{path}{key}") else 1)
    n.sequence_parallel = _is_on(config, f"{path}sequence_parallelism")
    n.zero = int(_is_on(config, f"{path}use_distributed_optimizer"))
    n.overlap_grad_reduce = n.overlap_param_gather = False
    if _is_on(config, f"{path}recompute_activations"):
        n.recompute = int(Recompute.SELECTIVE)
    if config.claim(f"{path}recompute_granularity"):
        known = tuple(GRANULARITIES)
        n.recompute = int(GRANULARITIES[config.choice(f"{path}recompute_granularity", known)])
    if config.claim(f"{path}num_micro_batches"):
        n.accumulation = config.size(f"{path}num_micro_batches")


def unread_settings(config: Document) -> list[UnreadSetting]:
    """What is not read of the configuration; sections of other kinds have no effect."""
    kind = str(config.content.get("distributed_type")).upper()
    idle = {name for name, owner in OWNERS.items() if owner != kind}
    if str(config.content.get("mixed_precision")).lower() != "fp8":
        idle.add("fp8_config")
    return [
        replace(one, affects_cost=False, why_neutral=WITHOUT_EFFECT) if one.path[0] in idle else one
        for one in config.unread(TABLE, ())
    ]


def _is_on(config: Document, path: str) -> bool:
    return TRUTHS.get(str(config.value(path)).lower(), False)
