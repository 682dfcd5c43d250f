"""Models of Primus on Megatron-LM, by what they have otherwise than the published ones of their
names.

Source: Primus, primus/configs/models/megatron, as of 2026-06.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, NamedTuple

from plan3d.simulator.workload.model import Model

from ..launch_file import Launch


class Change(NamedTuple):
    """What models have otherwise than the published ones."""

    names: str
    """A pattern."""
    what: str
    field: str
    """Of Model or Attention."""
    value: Any
    argument: str
    """The argument that decides it."""
    published: bool
    """Its value with which they are the published ones."""


CHANGES = (
    Change(
        *(r"llama3\.2_[13]B|qwen2\.5_3B|qwen3_4B", "an output head of its own", "tied", False),
        *("untie_embeddings_and_output_weights", False),
    ),
    Change(r"qwen2\.5_\d+B", "no biases in attention", "qkv_bias", False, "add_qkv_bias", True),
    Change(
        *(r"qwen3_(?:4|8|14|32)B", "no norms of queries and keys", "query_key_norm", ""),
        *("qk_layernorm", True),
    ),
)
OTHER = re.compile(r"gpt_oss_\d+B")
"""Models with the shared expert, norms and tokenizer of another one."""


def as_in_primus(model: Model, name: str, values: dict[str, Any], launch: Launch) -> Model:
    """A published model as Primus has it with these arguments. Raises InputError where it is
    another one."""
    if OTHER.fullmatch(name):
        raise launch.refuse(
            f"trains {name}, which in Primus has a shared expert and the tokenizer of "
            "DeepSeek-V2-Lite, and neither biases nor sinks: give --model config.json"
        )
    for change in CHANGES:
        is_own = re.fullmatch(change.names, name)
        if not is_own or values.get(change.argument) == change.published:
            continue
        launch.left_out.append(f"{name} of Primus has {change.what}, unlike {model.name}")
        new = {change.field: change.value}
        if change.field == "tied":
            model = replace(model, **new)
        else:
            kinds = [replace(k, attention=replace(k.attention, **new)) for k in model.kinds]
            model = replace(model, kinds=tuple(kinds))
    return model
