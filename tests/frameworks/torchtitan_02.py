"""torchtitan 0.2 reads and builds what plan3d writes: its own parser, meshes, model and stages.

Ranks are those of torch's fake process group; the model has no storage (device meta).
"""

from __future__ import annotations

import logging
import re
import tempfile
from pathlib import Path
from typing import Any

import absent
import torch

absent.replace({"deep_ep": "1.2"})
import torchtitan.components.quantization.float8 as float8
import torchtitan.distributed.parallel_dims as parallel_dims
import torchtitan.tools.utils as utils

utils.device_type = parallel_dims.device_type = "cpu"
float8.has_cuda_capability = lambda *version: True

import torchtitan.models.llama3 as llama3
import torchtitan.protocols.train_spec as train_spec
from torch.testing._internal.distributed.fake_pg import FakeStore
from torchtitan.components.loss import cross_entropy_loss
from torchtitan.config import TORCH_DTYPE_MAP, ConfigManager
from torchtitan.distributed import ParallelDims
from torchtitan.protocols.model_converter import build_model_converters
from torchtitan.tools.logging import logger
from torchtitan_facts import facts, with_pipeline

logger.setLevel(logging.ERROR)
REGISTERED = re.compile(
    r'^#     "(?P<name>.+)": (?P<call>TransformerModelArgs\(.*?\)),$', re.M | re.S
)


def read(text: str, gpus: int) -> dict[str, Any]:
    """What torchtitan makes of a job configuration."""
    config = parsed(text)
    spec = train_spec.get_train_spec(config.model.name)
    for found in REGISTERED.finditer(text):
        named = {"TransformerModelArgs": llama3.TransformerModelArgs}
        spec.model_args[found["name"]] = eval(found["call"].replace("\n#", "\n"), named)
    p = config.parallelism
    torch.distributed.init_process_group("fake", rank=0, world_size=gpus, store=FakeStore())
    try:
        dims = ParallelDims(
            dp_replicate=p.data_parallel_replicate_degree,
            dp_shard=p.data_parallel_shard_degree,
            cp=p.context_parallel_degree,
            tp=p.tensor_parallel_degree,
            pp=p.pipeline_parallel_degree,
            ep=p.expert_parallel_degree,
            etp=p.expert_tensor_parallel_degree,
            world_size=gpus,
        )
        dims.build_mesh()
        return built(config, spec, dims)
    finally:
        torch.distributed.destroy_process_group()


def parsed(text: str) -> Any:
    """The job configuration."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.toml"
        path.write_text(text, encoding="utf-8")
        return ConfigManager().parse_args([f"--job.config_file={path}"])


def built(config: Any, spec: Any, dims: ParallelDims) -> dict[str, Any]:
    """The model and the stages of the first pipeline rank, as Trainer.__init__ makes them."""
    args = spec.model_args[config.model.flavor]
    args.update_from_config(config)
    with torch.device("meta"):
        torch.set_default_dtype(TORCH_DTYPE_MAP[config.training.dtype])
        model = spec.model_cls(args)
        torch.set_default_dtype(torch.float32)
    build_model_converters(config, dims).convert(model)
    found = facts(model, dims, config.training)
    if not dims.pp_enabled:
        spec.parallelize_fn(model, dims, config)
        return found
    schedule, parts, _, _ = spec.pipelining_fn(
        model, dims, config, torch.device("cpu"), args, spec.parallelize_fn, cross_entropy_loss
    )
    return with_pipeline(found, parts, schedule._n_microbatches)
