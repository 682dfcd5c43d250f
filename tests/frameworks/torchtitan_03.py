"""torchtitan 0.3 runs the recipe that plan3d writes: the recipe, its meshes, model and stages.

Ranks are those of torch's fake process group; the model has no storage (device meta).
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import absent
import torch

absent.replace({"deep_ep": "1.2", "torch_checkpointing": "0.1"})
import torchtitan.components.quantization.float8 as float8
import torchtitan.distributed.parallel_dims as parallel_dims
import torchtitan.tools.utils as utils

utils.device_type = parallel_dims.device_type = "cpu"
float8.has_cuda_capability = lambda *version: True

from torch.testing._internal.distributed.fake_pg import FakeStore
from torchtitan.config import TORCH_DTYPE_MAP
from torchtitan.distributed import ParallelDims
from torchtitan.distributed import utils as distributed
from torchtitan.tools.logging import logger
from torchtitan_facts import facts, with_pipeline

logger.setLevel(logging.ERROR)


def read(text: str, gpus: int) -> dict[str, Any]:
    """What torchtitan makes of a recipe."""
    module: dict[str, Any] = {}
    exec(compile(text, "plan3d_recipe.py", "exec"), module)
    config = dataclasses.replace(module["recipe"]())  # runs the checks of the configuration again
    torch.distributed.init_process_group("fake", rank=0, world_size=gpus, store=FakeStore())
    try:
        dims = ParallelDims.from_config(config.parallelism, gpus)
        dims.build_mesh()
        return built(config, dims)
    finally:
        torch.distributed.destroy_process_group()


def built(config: Any, dims: ParallelDims) -> dict[str, Any]:
    """The model and the stages of the first pipeline rank, as Trainer.__init__ makes them."""
    p, spec = config.parallelism, config.model_spec
    split = (dims.tp if p.enable_sequence_parallel else 1) * (2 * dims.cp if dims.cp > 1 else 1)
    assert config.training.seq_len % split == 0, "sequence"
    distributed.set_spmd_backend(p.spmd_backend)
    spec.model.update_from_config(config=config)
    config._validate_cuda_graphs()
    with torch.device("meta"), utils.set_default_dtype(TORCH_DTYPE_MAP[config.training.dtype]):
        model = spec.model.build()
    model.verify_module_protocol()
    found = facts(model, dims, config.training)
    shared = {
        "parallel_dims": dims,
        "training": config.training,
        "parallelism": p,
        "compile_config": config.compile,
        "ac_config": config.activation_checkpoint,
        "dump_folder": "",
    }
    if not dims.pp_enabled:
        spec.parallelize_fn(model, **shared)
        return found
    loss = config.loss.build(compile_config=config.compile)
    _, parts, _, _ = spec.pipelining_fn(
        model,
        **shared,
        device=torch.device("cpu"),
        model_config=spec.model,
        parallelize_fn=spec.parallelize_fn,
        loss_fn=loss,
    )
    pieces = config.training.local_batch_size // p.pipeline_parallel_microbatch_size
    return with_pipeline(found, parts, pieces)
