"""Experiments of Primus on Megatron-LM: the overrides of its pre-trainer.

Source: Primus, primus/configs/modules/megatron (defaults: trainer_base.yaml, over which stands
pre_trainer.yaml), primus/configs/models/megatron and primus/core/config (the default of
`${NAME:default}`); examples/megatron/configs.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from plan3d.simulator.base.documents import parse_yaml

from ..launch_file import NO_OPTIONS, Launch, ReaderOptions
from ..recipes.settings import model_of_class
from ..spellings import table_of
from ..tables import Row
from .run import check_model, read_run, unread_fields

TITLE = "Primus"
TABLE = table_of("primus")
_KEYS = {row.key for row in TABLE}
_ROWS = {row.key for row in TABLE if isinstance(row, Row)}
_DEFAULT = re.compile(r"\$\{\w{1,80}:([^{}]{0,200})\}")
_RELEASE = re.compile(r"_v0\.\d$")


def read(text: str, file: str, options: ReaderOptions = NO_OPTIONS) -> Launch:
    """The launch of an experiment. Raises InputError naming what is wrong or missing."""
    content = parse_yaml(_DEFAULT.sub(r"\1", text), file)
    launch = Launch(file, "megatron", title=TITLE)
    modules = content.get("modules") if isinstance(content, dict) else None
    trainer = modules.get("pre_trainer") if isinstance(modules, dict) else None
    if not isinstance(trainer, dict):
        raise launch.refuse(f"is a file of {TITLE} without a pre_trainer, which is not read")
    framework = str(trainer.get("framework", ""))[:40]
    if framework != "megatron":
        raise launch.refuse(
            f"is a file of {TITLE} for {framework or 'no framework'}, which is not read: give the "
            "model, the batch and the plan to plan3d estimate"
        )
    overrides = trainer.get("overrides")
    stated = overrides if isinstance(overrides, dict) else {}
    values: dict[str, Any] = {str(key): value for key, value in stated.items()}
    name = str(trainer.get("model", "")).removesuffix(".yaml")
    model = model_of_class(_RELEASE.sub("", name)) or options.model
    if model is None:
        raise launch.refuse(f"trains {name[:60]}, which is no preset: give --model config.json")
    check_model(values, model, launch)
    if values.get("use_torch_fsdp2"):
        values |= {"use_megatron_fsdp": True}
        values |= {"data_parallel_sharding_strategy": "optim_grads_params"}
    run = {key: value for key, value in values.items() if key in _ROWS or (value and key in _KEYS)}
    run |= {"model": "", "packing": True, "fp4_format": values.get("fp4")}
    run["fp4_recipe"] = values.get("fp4_recipe")
    if any(kind.experts for kind in model.kinds):
        run.setdefault("expert_tensor_parallel_size", run.get("tensor_model_parallel_size", 1))
        if name.startswith("qwen"):
            run.setdefault("moe_token_dispatcher_type", "allgather")
    launch = read_run(run, launch, TABLE, replace(options, model=model))
    launch.model = options.model or model
    launch.unread += unread_fields(values, _KEYS)
    return launch
