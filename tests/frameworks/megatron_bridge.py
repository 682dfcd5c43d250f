"""Megatron-Bridge parses, applies and validates the overrides that plan3d writes.

The base is the common pre-training recipe with a bare provider: recipes of models ask the network
for the model's configuration. GPU libraries are replaced by empty modules.
"""

from __future__ import annotations

import os
import shlex
from typing import Any

import megatron_layers
from megatron.bridge.models import GPTModelProvider
from megatron.bridge.models.mla_provider import MLAModelProvider
from megatron.bridge.recipes.common import _pretrain_common
from megatron.bridge.training.config import runtime_config_update
from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides


def read(text: str, gpus: int) -> dict[str, Any]:
    """What Megatron-Bridge makes of overrides."""
    lines = [line for line in text.splitlines() if line.startswith("  ")]
    words = [shlex.split(line)[0] for line in lines]
    latent = any(word.startswith("model.multi_latent_attention=true") for word in words)
    provider = MLAModelProvider if latent else GPTModelProvider
    os.environ["WORLD_SIZE"] = str(gpus)
    config = _pretrain_common()
    config.model = provider(num_layers=2, hidden_size=128, num_attention_heads=8)
    config = process_config_with_overrides(config, cli_overrides=words)
    runtime_config_update(config)
    train = config.train
    return megatron_layers.facts(
        config.model, config.ddp, gpus, train.global_batch_size, train.micro_batch_size
    )
