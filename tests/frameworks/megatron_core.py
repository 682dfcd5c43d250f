"""Megatron-Core takes what Megatron-LM's flags say: its configurations, with their checks.

The parser of Megatron-LM is no package: here a flag is the field of its name, as
core_transformer_config_from_args has it, and FIELDS are those that it renames. GPU libraries are
replaced by empty modules.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Callable
from dataclasses import MISSING, fields
from importlib.util import find_spec
from typing import Any

import megatron_layers
import torch
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

FIELDS: dict[str, Callable[[str], dict[str, Any]]] = {
    "bf16": lambda _: {
        "bf16": True,
        "params_dtype": torch.bfloat16,
        "pipeline_dtype": torch.bfloat16,
    },
    "fp16": lambda _: {
        "fp16": True,
        "params_dtype": torch.float16,
        "pipeline_dtype": torch.float16,
    },
    "fp8_format": lambda text: {"fp8": text},
    "ddp_bucket_size": lambda text: {"bucket_size": int(text)},
    "num_experts": lambda text: {"num_moe_experts": int(text)},
    "swiglu": lambda _: {"gated_linear_unit": True},
    "disable_bias_linear": lambda _: {"add_bias_linear": False},
    "decoder_first_pipeline_num_layers": lambda n: {"num_layers_in_first_pipeline_stage": int(n)},
    "decoder_last_pipeline_num_layers": lambda n: {"num_layers_in_last_pipeline_stage": int(n)},
    "num_virtual_stages_per_pipeline_rank": lambda n: {
        "virtual_pipeline_model_parallel_size": int(n)
    },
    "microbatch_group_size_per_virtual_pipeline_stage": lambda n: {
        "microbatch_group_size_per_vp_stage": int(n)
    },
    "moe_layer_freq": lambda text: {"moe_layer_freq": eval(text)},
    "window_attn_skip_freq": lambda text: {"window_attn_skip_freq": eval(text)},
    "no_overlap_p2p_communication": lambda _: {"overlap_p2p_comm": False},
    "no_gradient_accumulation_fusion": lambda _: {"gradient_accumulation_fusion": False},
    "cp_comm_type": lambda text: {"cp_comm_type": text},
}
"""Fields of flags that are spelled otherwise."""
LISTS = {"recompute_modules", "offload_modules"}
"""Flags of several words, of which there may be one."""
OWN = {
    "global_batch_size",
    "micro_batch_size",
    "seq_length",
    "max_position_embeddings",
    "position_embedding_type",
    "vocab_size",
    "group_query_attention",
    "untie_embeddings_and_output_weights",
    "ckpt_format",
}
"""Flags of the training script itself."""


def read(text: str, gpus: int) -> dict[str, Any]:
    """What Megatron-Core makes of the flags."""
    flags = flags_of(text)
    if find_spec("megatron.training") is not None:
        import megatron_arguments

        megatron_arguments.check(text, flags, gpus)
    values: dict[str, Any] = {"overlap_p2p_comm": None, **DEFAULTS}
    for name, words in flags.items():
        values |= (
            FIELDS[name](words[0] if words else "") if name in FIELDS else {name: plain(words)}
        )
    values |= {name: flags[name] for name in LISTS & flags.keys()}
    if values["overlap_p2p_comm"] is None:
        layout = str(values.get("pipeline_model_parallel_layout", ""))
        chunks = values.get("virtual_pipeline_model_parallel_size", 1)
        several = chunks > 1 or _expanded(layout) > values["pipeline_model_parallel_size"]
        values |= {"overlap_p2p_comm": several, "batch_p2p_comm": not several}
    known = set(OWN)
    latent = "multi_latent_attention" in values
    made = []
    for kind in (MLATransformerConfig if latent else TransformerConfig, *OTHERS):
        names = {field.name for field in fields(kind)}
        known |= names
        needed = {f.name for f in fields(kind) if f.default is f.default_factory is MISSING}
        assert needed <= values.keys(), needed - values.keys()
        made.append(kind(**{name: values[name] for name in names & values.keys()}))
    assert values.keys() <= known, f"flags that nothing reads: {values.keys() - known}"
    batch, micro = int(flags["global_batch_size"][0]), int(flags["micro_batch_size"][0])
    return megatron_layers.facts(made[0], made[1], gpus, batch, micro)


DEFAULTS = {"params_dtype": torch.float32, "pipeline_dtype": torch.float32}
OTHERS = (DistributedDataParallelConfig, OptimizerConfig)


def _expanded(layout: str) -> int:
    """Stages of a layout."""
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

    return len(PipelineParallelLayerLayout.parse_str_to_list(layout)) if layout else 0


def plain(words: list[str]) -> Any:
    """A switch, a number, a word or several."""
    if not words:
        return True
    try:
        return ast.literal_eval(words[0])
    except (ValueError, SyntaxError):
        return words if len(words) > 1 else words[0]


def flags_of(script: str) -> dict[str, list[str]]:
    """The flags of the arrays, as bash itself hands them over."""
    names = [line[:-2] for line in script.splitlines() if line.endswith("_ARGS=(")]
    arrays = " ".join(f'"${{{name}[@]}}"' for name in names)
    shell = ["bash", "-c", f'{script}\nprintf "%s\\0" {arrays}']
    words = subprocess.run(shell, check=True, capture_output=True, text=True).stdout.split("\0")[
        :-1
    ]
    out: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            last = out.setdefault(word[2:].replace("-", "_"), [])
        else:
            last.append(word)
    return out
