"""What Megatron-Core makes of a configuration: the layers of every chunk, by its own count."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import absent
import torch

absent.replace(
    {
        "transformer_engine": "2.12.0",
        "transformer_engine_torch": "2.12.0",
        "deep_ep": "1.2",
        "qwen_vl_utils": "0.1",
        "megatron.energon": "7.0",
    }
)
os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
H100 = SimpleNamespace(major=9, minor=0, name="NVIDIA H100 80GB HBM3")
torch.cuda.get_device_properties = lambda device=0: H100

from megatron.core import parallel_state
from megatron.core.transformer.transformer_block import get_num_layers_to_build
from megatron.core.transformer.utils import is_layer_window_attention


def chunks(config: Any) -> list[int]:
    """Decoder layers of every chunk, in model order."""
    pp, v = config.pipeline_model_parallel_size, config.virtual_pipeline_model_parallel_size or 1
    out = []
    parallel_state.set_virtual_pipeline_model_parallel_world_size(v if v > 1 else None)
    for stage in range(v):
        for rank in range(pp):
            parallel_state.set_pipeline_model_parallel_rank(rank)
            parallel_state.set_pipeline_model_parallel_world_size(pp)
            out.append(get_num_layers_to_build(config, stage if v > 1 else None, rank))
    return out


def windows(config: Any) -> list[int]:
    """Keys that a query of each layer sees under the causal mask, its own among them; 0 for all."""
    size, frequency = config.window_size, config.window_attn_skip_freq
    layers = range(1, config.num_layers + 1 + (config.mtp_num_layers or 0))
    found = [is_layer_window_attention(size, frequency, layer) for layer in layers]
    return [size[0] + 1 if has else 0 for has in found]


def facts(config: Any, ddp: Any, gpus: int, batch: int, micro_batch: int) -> dict[str, Any]:
    """What Megatron-Core will run."""
    axes = (
        config.tensor_model_parallel_size,
        config.context_parallel_size,
        config.pipeline_model_parallel_size,
        config.expert_model_parallel_size,
    )
    data, rest = divmod(gpus, axes[0] * axes[1] * axes[2])
    assert rest == 0
    assert batch % (micro_batch * data) == 0
    strategies = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
    strategy = strategies[ddp.data_parallel_sharding_strategy]
    sharded = strategy if ddp.use_megatron_fsdp else int(ddp.use_distributed_optimizer)
    return {
        "axes": axes,
        "dp": data,
        "micro_batches": batch // (micro_batch * data),
        "micro_batch": micro_batch,
        "chunks": chunks(config),
        "replicas": ddp.num_distributed_optimizer_instances,
        "bucket_parameters": ddp.bucket_size or 0,
        "zero": sharded if data * axes[1] > 1 else 0,
        "sequence_parallel": config.sequence_parallel,
        "overlap_p2p": bool(config.overlap_p2p_comm),
        "overlap_grad_reduce": ddp.overlap_grad_reduce,
        "overlap_param_gather": ddp.overlap_param_gather,
        "windows": windows(config),
    }
