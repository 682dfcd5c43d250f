"""The configuration of accelerate: FSDP, DeepSpeed, Megatron-LM or replicas, and their sizes.

Source: accelerate 1.11, commands/config/config_args.py (names), utils/dataclasses.py
(DeepSpeedPlugin, FullyShardedDataParallelPlugin, MegatronLMPlugin), parallelism_config.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plan3d.simulator.base.documents import parse_yaml
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.plan.field_values import Recompute

from ..documents import Document
from ..launch_file import Launch
from ..tables import TRUTHS, Numbers

ENGINE = "deepspeed_config"
FSDP = "fsdp_config"
KEYS = frozenset(("distributed_type", "compute_environment", "num_processes", "mixed_precision"))
"""Keys of which a configuration has one."""
FLAGS = {
    FSDP: ("fsdp_",),
    ENGINE: ("zero_stage", "offload_", "deepspeed_config_file", "gradient_accumulation_steps"),
    "parallelism_config": ("parallelism_config_",),
}
"""Beginnings of flags of accelerate launch by the section that has them in a configuration."""
TYPES = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED", "MEGATRON_LM")
"""Values of distributed_type that are read."""
DEGREES = {
    "parallelism_config_tp_size": "tp",
    "parallelism_config_cp_size": "cp",
    "parallelism_config_dp_shard_size": "shard_degree",
    "parallelism_config_dp_replicate_size": "replicas",
}
"""Numbers by key of parallelism_config."""


def configuration_of(text: str, file: str) -> Document:
    """The configuration as a document. Raises InputError for one that is no mapping."""
    content = parse_yaml(text, file)
    if not isinstance(content, dict) or not content.keys() & KEYS:
        raise InputError(f"{file}: must hold keys and values of accelerate")
    return Document(content, file)


def with_launch_flags(config: Document | None, flags: Mapping[str, Any]) -> Document | None:
    """The configuration with the flags of accelerate launch, which win; None without either."""
    content: dict[str, Any] = dict(config.content) if config else {}
    for name, section in (("use_fsdp", FSDP), ("use_deepspeed", ENGINE)):
        if name in flags:
            content["distributed_type"] = section.removesuffix("_config").upper()
    for name, stated in flags.items():
        value = stated[0] if isinstance(stated, list) and stated else stated
        section = next((part for part, names in FLAGS.items() if name.startswith(names)), "")
        if section:
            content[section] = dict(content.get(section) or {}) | {name: value}
        elif name == "mixed_precision":
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
    mixed = str(config.value("mixed_precision") or "no").lower()
    n.bf16, n.fp16 = n.bf16 or mixed == "bf16", n.fp16 or mixed == "fp16"
    if mixed == "fp8":
        launch.unmodelled["precision"] = "$.mixed_precision is fp8: its recipe is not read"
    if config.claim("num_processes"):
        launch.launcher_gpus = config.size("num_processes")
    for key, name in DEGREES.items():
        path = f"parallelism_config.{key}"
        if config.contains(path):
            setattr(n, name, config.size(path, most=2**20))
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
    path = "megatron_lm_config.megatron_lm_"
    launch.framework = "megatron"
    for key, name in {"tp_degree": "tp", "pp_degree": "pp"}.items():
        setattr(n, name, config.size(f"{path}{key}") if config.contains(f"{path}{key}") else 1)
    n.sequence_parallel = _is_on(config, f"{path}sequence_parallelism")
    n.zero = int(_is_on(config, f"{path}use_distributed_optimizer"))
    n.overlap_grad_reduce = n.overlap_param_gather = False
    if _is_on(config, f"{path}recompute_activations"):
        n.recompute = int(Recompute.SELECTIVE)
    if config.contains(f"{path}num_micro_batches"):
        n.accumulation = config.size(f"{path}num_micro_batches")


def _is_on(config: Document, path: str) -> bool:
    return TRUTHS.get(str(config.value(path)).lower(), False)
