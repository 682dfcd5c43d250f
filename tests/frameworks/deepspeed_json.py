"""DeepSpeed reads the configuration that plan3d writes: DeepSpeedConfig, with its own checks.

The flags of Megatron-DeepSpeed around it are not checked: it is no package.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import deepspeed.comm
import hjson
from deepspeed.runtime.config import DeepSpeedConfig

deepspeed.comm.get_rank = lambda group=None: 0


@dataclass
class Units:
    """What a client tells DeepSpeed about its axes."""

    data: int

    def get_data_parallel_world_size(self) -> int:
        return self.data


def read(text: str, gpus: int) -> dict[str, Any]:
    """What DeepSpeed makes of a configuration."""
    flags = {} if text.startswith("{") else flags_of(text)
    content = text if not flags else text.split("<<'JSON'\n")[1].split("\nJSON\n")[0]
    shards = [int(flags.get(name, "1")) for name in SHARDS]
    data = gpus // (shards[0] * shards[1] * shards[2])
    config = DeepSpeedConfig(hjson.loads(content), mpu=Units(data))
    assert json.loads(content).keys() <= KEYS, json.loads(content).keys() - KEYS
    bucket = config.zero_config.reduce_bucket_size
    return {
        "bucket_parameters": 0 if bucket == USUAL else bucket,
        "dp": data,
        "micro_batches": config.gradient_accumulation_steps,
        "micro_batch": config.train_micro_batch_size_per_gpu,
        "zero": int(config.zero_optimization_stage),
        "formats": (config.bfloat16_config.enabled, config.float16_config.enabled),
        "overlap_grad_reduce": bool(
            config.zero_optimization_stage and config.zero_config.overlap_comm
        ),
    }


SHARDS = (
    "--tensor-model-parallel-size",
    "--pipeline-model-parallel-size",
    "--ds-sequence-parallel-size",
)
USUAL = 5e8
"""Parameters of a bucket unless a file says otherwise."""
KEYS = {
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "zero_optimization",
    "bf16",
    "fp16",
    "optimizer",
    "activation_checkpointing",
}
"""Keys at the top, which DeepSpeed does not check itself."""


def flags_of(script: str) -> dict[str, str]:
    """Flags of the bash arrays with one value."""
    lines = [line.split() for line in script.splitlines() if line.startswith("  --")]
    return {words[0]: words[1] for words in lines if len(words) == 2}
