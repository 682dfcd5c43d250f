"""Models of torchtitan: its flavors, and new flavors of llama3.

Source: torchtitan 0.2.2 and 0.3.0, torchtitan/models: the flavors of llama3, llama4, qwen3, gpt_oss
and deepseek_v3, and how the width of the MLP follows from dim, ffn_dim_multiplier and multiple_of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from plan3d.simulator.base.documents import toml_string
from plan3d.simulator.base.printable import one_line
from plan3d.simulator.workload.model import Model

from .. import shape
from ..shape import features, same_shape, shape_of

FLAVORS = {
    ("llama3", "8B"): "llama-3.1-8b",
    ("llama3", "70B"): "llama-3.1-70b",
    ("llama3", "405B"): "llama-3.1-405b",
    ("deepseek_v3", "671B"): "deepseek-v3",
}
"""Presets by torchtitan's model and flavor, of the flavors that are written."""
WRITTEN = ", ".join(map(" ".join, FLAVORS))
"""The flavors that are written, for messages."""
_UNWRITTEN = {
    ("qwen3", "0.6B"): "qwen3-0.6b",
    ("qwen3", "1.7B"): "qwen3-1.7b",
    ("qwen3", "4B"): "qwen3-4b",
    ("qwen3", "8B"): "qwen3-8b",
    ("qwen3", "14B"): "qwen3-14b",
    ("qwen3", "32B"): "qwen3-32b",
    ("qwen3", "30B-A3B"): "qwen3-30b-a3b",
    ("qwen3", "235B-A22B"): "qwen3-235b-a22b",
    ("gpt_oss", "20b"): "gpt-oss-20b",
    ("gpt_oss", "120b"): "gpt-oss-120b",
    ("deepseek_v3", "16B"): "deepseek-v2-lite",
    ("deepseek_v3", "236B"): "deepseek-v2",
}
UNWRITTEN_0_2 = _UNWRITTEN | {
    ("llama4", "17bx16e_irope"): "llama-4-scout",
    ("llama4", "17bx128e_irope"): "llama-4-maverick",
}
"""Presets by flavor of 0.2 that plan3d does not write."""
UNWRITTEN_0_3 = _UNWRITTEN | {
    ("llama3", "1B"): "llama-3.2-1b",
    ("llama3", "3B"): "llama-3.2-3b",
    ("deepseek_v3", "671B with num_mtp_layers=1"): "deepseek-v3",
}
"""Presets by flavor of 0.3 that plan3d does not write."""
GLOBAL = {("llama4", "17bx16e"): "llama-4-scout", ("llama4", "17bx128e"): "llama-4-maverick"}
"""Presets by flavor that have neither chunks of attention nor layers without positions."""
READ = UNWRITTEN_0_3 | UNWRITTEN_0_2 | FLAVORS
"""Presets by flavor of the models that are read, written or not."""
DEBUG = {
    **{"model_type": "llama", "hidden_size": 256, "intermediate_size": 768, "vocab_size": 2048},
    **{"num_hidden_layers": 6, "num_attention_heads": 16, "tie_word_embeddings": False},
}
"""The flavor debugmodel of llama3, which is read."""
FLEXIBLE = frozenset((("deepseek_v3", "671B"),))
"""Flavors whose attn_type is flex in 0.2."""
LLAMA = frozenset(
    (
        shape.GROUPED_QUERIES,
        shape.RMS_NORM,
        shape.GATED_MLP,
        shape.ROTARY_POSITIONS,
        shape.UNTIED_HEAD,
    )
)
"""Features that a new flavor of llama3 can have."""


@cache
def flavor_model(name: str, flavor: str) -> Model | None:
    """The model of a flavor that is read, without multi-token prediction; None for an unknown
    one."""
    if (name, flavor) == ("llama3", "debugmodel"):
        return Model.from_config(DEBUG, flavor)
    if (name, flavor) in GLOBAL:
        return replace(without_windows(Model.preset(GLOBAL[name, flavor])), name=f"{name}-{flavor}")
    preset = READ.get((name, flavor))
    return replace(Model.preset(preset), mtp_layers=0) if preset else None


def without_windows(model: Model) -> Model:
    """The model with attention over the whole sequence in every layer."""
    kinds = [
        replace(kind, attention=replace(kind.attention, window=0, chunked=False))
        for kind in model.kinds
    ]
    distinct = list(dict.fromkeys(kinds))
    order = tuple(distinct.index(kinds[place]) for place in model.order)
    return replace(model, kinds=tuple(distinct), order=order)


def flavors_text(name: str) -> str:
    """The flavors of one of torchtitan's models that are read, or its models for another name."""
    flavors = [flavor for family, flavor in READ | GLOBAL if family == name and " " not in flavor]
    families = dict.fromkeys(family for family, _ in READ)
    return f"{name}: {', '.join(flavors)}" if flavors else f"models: {', '.join(families)}"


def flavor_of(model: Model) -> tuple[str, str]:
    """torchtitan's model and flavor; ('llama3', the model's name) where it has none."""
    for name, flavor in FLAVORS:
        shipped = flavor_model(name, flavor)
        if shipped is not None and same_shape(model, shipped):
            return name, flavor
    return "llama3", model.name


def is_flavor(model: Model) -> bool:
    """Whether torchtitan ships the model."""
    return flavor_of(model) in FLAVORS


def is_flexible(model: Model) -> bool:
    """Whether the model's attention is flex_attention in 0.2."""
    return flavor_of(model) in FLEXIBLE


def missing_features(model: Model) -> list[str]:
    """Features that neither a written flavor nor a new flavor of llama3 has."""
    return [] if is_flavor(model) else [f for f in features(model) if f not in LLAMA]


def refusal(model: Model, title: str, unwritten: Mapping[tuple[str, str], str]) -> str:
    """Why no file of a model is written for a version; `unwritten` are its flavors that plan3d does
    not write."""
    matching = (key for key, name in unwritten.items() if same_shape(model, Model.preset(name)))
    shipped, without_mtp = next(matching, None), replace(model, mtp_layers=0)
    if shipped is not None:
        reason = f"{title} has {model.name} as {' '.join(shipped)}, which plan3d does not write yet"
    elif is_flavor(without_mtp):
        flavor = " ".join(flavor_of(without_mtp))
        reason = f"{flavor} of {title} has no {shape.MTP}, which {model.name} has"
    else:
        features_text = " or ".join(missing_features(model))
        reason = f"plan3d does not write {features_text} of {model.name} for {title}"
    others = ", ".join(sorted({name for name, _ in unwritten}))
    return (
        f"{reason}; written: {WRITTEN}, and for 0.2 other shapes of Llama 3; not yet: other "
        f"flavors of {others}"
    )


def registration(model: Model) -> list[str]:
    """Comments with the code that adds a flavor to 0.2, where it does not ship the model."""
    if is_flavor(model):
        return []
    a, mlp = shape_of(model).attention, shape_of(model).mlp
    assert mlp is not None
    default_ffn = 8 * model.hidden // 3
    base = f", rope_theta={model.rotary_base!r}" if model.rotary_base else ""
    factor = f", ffn_dim_multiplier={mlp.ffn / default_ffn!r}" if mlp.ffn < default_ffn else ""
    return [
        "# torchtitan ships no such model: add to llama3_args in torchtitan/models/llama3:",
        f"#     {toml_string(one_line(model.name))}: TransformerModelArgs(",
        f"#         dim={model.hidden}, n_layers={model.layers}, n_heads={a.heads}, "
        f"n_kv_heads={a.kv_heads},",
        f"#         vocab_size={model.vocabulary}, multiple_of={mlp.ffn}{factor}{base}),",
    ]
