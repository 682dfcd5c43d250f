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
from plan3d.simulator.workload.model import Model

from ..launch_file import NO_OPTIONS, Launch, ReaderOptions
from ..recipes.settings import model_of_class
from ..spellings import table_of
from ..tables import Row, UnmodelledKeys
from ..trainer.models import known_model
from .fields import is_on
from .primus_keys import OTHERS
from .primus_models import as_in_primus
from .run import check_model, read_run, unread_fields

TITLE = "Primus"
TABLE = (*table_of("primus"), *OTHERS)
_CLASSES = UnmodelledKeys(TABLE)
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
    model = options.model or model_of_class(_RELEASE.sub("", name))
    if model is None:
        raise launch.refuse(f"trains {name[:60]}, which is no preset: give --model config.json")
    model = model if options.model else as_in_primus(model, name, values, launch)
    check_model(values, model, launch)
    model = _with_vocabulary(model, values, launch, options.vocabulary)
    if values.get("use_torch_fsdp2"):
        values |= {"use_megatron_fsdp": True}
        values |= {"data_parallel_sharding_strategy": "optim_grads_params"}
    known = {k for k in values if k in _ROWS or _CLASSES.row_of((k,), "") is not None}
    run = {key: value for key, value in values.items() if key in _ROWS or (value and key in known)}
    run |= {"model": "", "packing": True}
    if is_on(values.get("fp4")):
        run |= {"fp4_format": values["fp4"], "fp4_recipe": values.get("fp4_recipe")}
    if is_on(values.get("recompute_activations")):
        run.setdefault("recompute_granularity", "selective")
    _note_unmodelled(values, launch)
    if any(kind.experts for kind in model.kinds):
        run.setdefault("expert_tensor_parallel_size", run.get("tensor_model_parallel_size", 1))
        if name.startswith("qwen"):
            run.setdefault("moe_token_dispatcher_type", "allgather")
    launch = read_run(run, launch, TABLE, replace(options, model=model))
    launch.model = model
    if any(values.get(name) for name in ("hidden_dropout", "attention_dropout")):
        launch.software["dropout"] = True
    launch.unread += unread_fields(values, known, OWN)
    return launch


UNMODELLED = {
    "patch_zero_bubble": ("schedule", "pp"),
    "patch_primus_pipeline": ("schedule", "pp"),
    "decoder_pipeline_manual_split_list": ("layers_per_stage", "pp"),
    "num_virtual_stages_per_pipeline_rank": ("virtual_stages", "pp"),
    "recompute_layer_ids": ("recompute", ""),
    "checkpoint_activations": ("recompute", ""),
}
"""Fields of the plan that arguments decide, which are not read, and the axis that they are of."""
OWN = {*UNMODELLED, "bf16", "fp4", "hidden_dropout", "attention_dropout", "use_torch_fsdp2"}
OWN |= {"recompute_activations", "fp4_recipe", "vocab_size", "tokenizer_model"}
"""Arguments that are read here."""


def _note_unmodelled(values: dict[str, Any], launch: Launch) -> None:
    """Note arguments that decide fields of the plan, and are not read."""
    for name, (field, axis) in UNMODELLED.items():
        stages = values.get("pipeline_model_parallel_size")
        if is_on(values.get(name)) and (not axis or stages not in (None, 1)):
            launch.unmodelled[field] = f"its {name} decides {field}, and is not read"
    if values.get("bf16") is False and not values.get("fp16"):
        launch.unmodelled["precision"] = "bf16 is switched off: it trains in fp32"


def _with_vocabulary(
    model: Model, values: dict[str, Any], launch: Launch, given: int | None
) -> Model:
    """The model with the vocabulary that is given, or of the tokenizer that the file names, which
    Megatron-LM makes the embedding for."""
    name = str(values.get("tokenizer_model") or "")
    named = known_model(name) if name else None
    size = given or values.get("vocab_size") or (named.vocabulary if named else 0)
    if not size and name:
        launch.left_out.append(
            f"the vocabulary is that of {model.name}: its tokenizer {name[:60]} is not known "
            "(--vocabulary N)"
        )
    if not isinstance(size, int) or size in (0, model.vocabulary):
        return model
    stated = "--vocabulary" if given else "vocab_size" if values.get("vocab_size") else name[:60]
    launch.vocabulary_source = stated
    return replace(model, vocabulary=size)
