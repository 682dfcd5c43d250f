"""What functions of NeMo 2 and Megatron-Bridge that recipes call return: settings by path.

Source: Megatron-Bridge, src/megatron/bridge/recipes/common.py, training/mixed_precision.py and
training/comm_overlap.py; NeMo 2.5, nemo/collections/llm/recipes/finetune_default.py,
precision/mixed_precision.py, optim/adam.py; peft/lora.py of both.
"""

from __future__ import annotations

from typing import Any

from ..megatron_bridge.run_config import ADAPTED
from .nemo_recipes import nemo_recipe
from .values import Made, Open

ROOTS = {
    "ConfigContainer": "bridge",
    "_pretrain_common": "bridge",
    "_sft_common": "bridge",
    "_peft_common": "bridge",
    "pretrain": "nemo",
    "finetune": "nemo",
    "default_finetune_recipe": "nemo",
}
"""Functions that make a whole recipe, by the last part of their names."""
UNKNOWN = {"pretrain_recipe": "nemo", "finetune_recipe": "nemo"}
"""Functions of modules that are not known here, whose recipes must be completed."""
_OVERLAPPED = {"overlap_grad_reduce": True, "overlap_param_gather": True}
_DISTRIBUTED = {"use_distributed_optimizer": True}


def _bridge(batch: int, micro: int, length: int, **ddp: Any) -> Made:
    return Made(
        "ConfigContainer",
        fields={
            "train": Made("", fields={"global_batch_size": batch, "micro_batch_size": micro}),
            "dataset": Made("", fields={"seq_length": length}),
            "ddp": Made("", fields=dict(ddp)),
            "optimizer": Made("", fields=dict(_DISTRIBUTED)),
            "mixed_precision": "bf16_mixed",
            "comm_overlap": None,
        },
    )


def _adapters(rank: int) -> Made:
    return Made("LoRA", fields={"dim": rank, "target_modules": list(ADAPTED)})


def _finetuning(arguments: list[Any], fields: dict[str, Any]) -> Made:
    """default_finetune_recipe(model, resume_path, dir, name, num_nodes, num_gpus_per_node,
    packed_sequence)."""
    names = ("model", "resume_path", "dir", "name", "num_nodes", "num_gpus_per_node", "packed")
    given = dict(zip(names, arguments, strict=False)) | fields
    packed = given.get("packed", given.get("packed_sequence", False))
    return Made(
        "finetune",
        fields={
            "model": given.get("model"),
            "data": Made(
                "",
                fields={
                    "seq_length": 2048,
                    "global_batch_size": 8 if packed is True else 128,
                    "micro_batch_size": 1,
                },
            ),
            "trainer": Made(
                "Trainer",
                fields={
                    "num_nodes": given.get("num_nodes", 1),
                    "devices": given.get("num_gpus_per_node", 8),
                    "plugins": Made("bf16_mixed"),
                    "strategy": Made("MegatronStrategy"),
                },
            ),
            "optim": Made("", fields={"config": Made("", fields=dict(_DISTRIBUTED))}),
        },
    )


_PERFORMANCE = {
    "num_nodes": "trainer.num_nodes",
    "num_gpus_per_node": "trainer.devices",
    "mbs": "data.micro_batch_size",
    "gbs": "data.global_batch_size",
    "tp_size": "trainer.strategy.tensor_model_parallel_size",
    "pp_size": "trainer.strategy.pipeline_model_parallel_size",
    "cp_size": "trainer.strategy.context_parallel_size",
    "vp_size": "trainer.strategy.virtual_pipeline_model_parallel_size",
    "ep_size": "trainer.strategy.expert_model_parallel_size",
    "etp_size": "trainer.strategy.expert_tensor_parallel_size",
    "enable_cuda_graphs": "model.config.enable_cuda_graph",
    "use_mcore_fsdp": "trainer.strategy.use_megatron_fsdp",
    "recompute_layers": "model.config.recompute_num_layers",
    "recompute_modules": "model.config.recompute_modules",
    "activation_offload_layers": "model.config.cpu_offloading_num_layers",
}
"""Fields that set_primary_perf_configs sets, by its arguments (NeMo 2.5, scripts/performance/
helpers.py)."""
_FP8_PLUGINS = {
    "ds": "bf16_with_fp8_mixed",
    "cs": "bf16_with_fp8_current_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "ss": "bf16_with_fp8_subchannel_scaling_mixed",
}


def _set(made: Made, path: str, value: Any) -> None:
    """Set a field of an object inside others; made where there is none."""
    *sections, name = path.split(".")
    for section in sections:
        inner = made.fields.get(section)
        made.fields[section] = made = inner if isinstance(inner, Made) else Made("")
    made.fields[name] = value


def _tuned(arguments: list[Any], fields: dict[str, Any]) -> Made | None:
    """set_primary_perf_configs(recipe, task, num_nodes, ...): the recipe that it was handed."""
    names = (
        *("recipe", "task", "num_nodes", "num_gpus_per_node", "mbs", "gbs", "max_steps"),
        *("tp_size", "pp_size", "cp_size", "vp_size", "ep_size", "etp_size"),
    )
    given = dict(zip(names, arguments, strict=False)) | fields
    recipe = given.get("recipe")
    if not isinstance(recipe, Made):
        return None
    for name, path in _PERFORMANCE.items():
        if given.get(name) or (name in given and name == "vp_size"):
            _set(recipe, path, given[name])
    if given.get("recompute_layers"):
        _set(recipe, "model.config.recompute_granularity", "full")
        _set(recipe, "model.config.recompute_method", "block")
    if given.get("use_mcore_fsdp"):
        strategy = "optim_grads_params"
        _set(recipe, "trainer.strategy.ddp.data_parallel_sharding_strategy", strategy)
    tp = given.get("tp_size")
    is_split = tp if isinstance(tp, Open) else isinstance(tp, int) and tp > 1
    _set(recipe, "trainer.strategy.sequence_parallel", is_split)
    if isinstance(given.get("compute_dtype"), Open):
        _set(recipe, "model.config.fp8_format", given["compute_dtype"])
    if str(given.get("compute_dtype")).lower() == "fp8":
        word = str(given.get("fp8_recipe") or "ds").lower()
        plugins = Made(_FP8_PLUGINS.get(word, word))
        plugins.fields |= {"first_last_layers_bf16": False} if word == "cs" else {}
        _set(recipe, "trainer.plugins", plugins)
    _set(recipe, "trainer.plugins.grad_reduce_in_fp32", False)
    return recipe


def library(name: str, arguments: list[Any], fields: dict[str, Any]) -> Made | None:
    """What a known function returns; None of any other."""
    last = name.rpartition(".")[2]
    if last == "pretrain_recipe":
        return nemo_recipe(name.split(".")[-2] if "." in name else "", fields)
    if last == "_pretrain_common":
        return _bridge(32, 2, 4096, **_OVERLAPPED, **_DISTRIBUTED)
    if last == "_sft_common":
        return _bridge(128, 1, 2048)
    if last == "_peft_common":
        made = _bridge(128, 1, 2048)
        made.fields["peft"] = _adapters(32)
        return made
    if last == "default_peft_config":
        made = _adapters(32)
        scheme = arguments[0] if arguments else fields.pop("peft_scheme", "lora")
        made.callee = {"lora": "LoRA", "dora": "DoRA"}.get(str(scheme).lower(), str(scheme))
        made.fields |= fields
        return made
    if last == "set_primary_perf_configs":
        return _tuned(arguments, fields)
    if last == "default_finetune_recipe":
        return _finetuning(arguments, fields)
    if last == "distributed_fused_adam_with_cosine_annealing":
        return Made(last, fields={"config": Made("", fields=dict(_DISTRIBUTED)), **fields})
    return None
