"""Configurations that Megatron-Bridge saves beside its checkpoints, as flags of Megatron-LM.

`run_config.yaml` states every field of the run after its recipe, its overrides and the defaults;
recipes themselves are Python, which is not run.
Source: megatron-bridge 0.3.1, training/config.py (ConfigContainer), training/utils/
checkpoint_utils.py (run_config.yaml), models/gpt_provider.py; names of flags as in Megatron-LM,
megatron/training/arguments.py (core_transformer_config_from_args).
"""

from __future__ import annotations

import re
from typing import Any

from plan3d.simulator.base.documents import parse_yaml

from ..launch_file import NO_OPTIONS, Launch, ReaderOptions
from ..logs.printed_settings import argument_words
from ..megatron.launch import read as read_script
from ..megatron.other_flags import check_program

TITLE = "Megatron-Bridge"
SECTIONS = ("mixed_precision", "model", "ddp", "optimizer", "train")
"""Sections whose fields are arguments; of a field in several the last counts."""
FLAGS = {
    "num_moe_experts": "num_experts",
    "layernorm_epsilon": "norm_epsilon",
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
    "bucket_size": "ddp_bucket_size",
    "grad_reduce_in_fp32": "accumulate_allreduce_grads_in_fp32",
    "rope_scaling": "use_rope_scaling",
    "fp8_param": "fp8_param_gather",
}
"""Arguments of Megatron-LM by fields of another name."""
GATES = {"silu": "swiglu", "gelu": "geglu", "quick_gelu": "quick_geglu"}
"""Flags of a gated unit by its activation."""
HETEROGENEOUS = "heterogeneous_block_specs"


def read(text: str, file: str, options: ReaderOptions = NO_OPTIONS) -> Launch:
    """The launch of a run_config.yaml. Raises InputError naming what is wrong or missing."""
    return read_content(parse_yaml(text, file), Launch(file, "megatron", title=TITLE), options)


def read_content(content: Any, launch: Launch, options: ReaderOptions) -> Launch:
    """The launch of sections of fields."""
    model = content.get("model") if isinstance(content, dict) else None
    if not isinstance(model, dict):
        raise launch.refuse(f"must hold sections of {launch.title}")
    provider = str(model.get("_target_", ""))
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", provider.rpartition(".models.")[2])
    check_program(f"{name.replace('.', '_')}.py", launch)
    if model.get(HETEROGENEOUS):
        raise launch.refuse(f"$.model.{HETEROGENEOUS} is not modelled: layers that differ")
    values = _arguments(content, model)
    command = f"pretrain_gpt.py {' '.join(argument_words(values))}\n"
    found = read_script(command, launch.file, options)
    found.title, found.left_out = launch.title, [*launch.left_out, *found.left_out]
    found.unread = [setting for setting in found.unread if setting.affects_cost]
    return found


def _arguments(content: dict[str, Any], model: dict[str, Any]) -> dict[str, str]:
    """The arguments of Megatron-LM by name, as it prints them."""
    values: dict[str, Any] = {}
    for section in SECTIONS:
        fields = content.get(section)
        for field, value in fields.items() if isinstance(fields, dict) else ():
            if field == "activation_func" or isinstance(value, dict) or str(field).startswith("_"):
                continue
            known = FLAGS.get(str(field), str(field))
            values[known] = value if value is not None else values.get(known)
    activation = model.get("activation_func")
    target = str(activation.get("_target_", "")) if isinstance(activation, dict) else activation
    word = str(target or "gelu").rpartition(".")[2]
    if values.pop("gated_linear_unit", False):
        values[GATES.get(word, "glu_activation")] = True if word in GATES else word
    elif word == "squared_relu":
        values["squared_relu"] = True
    values["untie_embeddings_and_output_weights"] = not values.pop(
        "share_embeddings_and_output_weights", True
    )
    values["group_query_attention"] = values.get("num_query_groups") is not None
    values["max_position_embeddings"] = values.get("max_position_embeddings") or values.get(
        "seq_length"
    )
    values["bf16"] = bool(values.get("bf16")) and not values.get("fp16")
    return {str(name): str(value) for name, value in values.items()}
