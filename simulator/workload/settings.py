"""Settings of a published model that change neither its parameters nor the time of a step.

Another value is another model all the same, so launch files carry them. Read from config.json;
what a file leaves to the code of its model_type (the router of DeepSeek-V3) comes from the family.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..base.typed_objects import LARGEST_SIZE, JsonObject
from .hf_family import ConfigFamily

ROPE_NUMBERS = (
    "factor",
    "original_max_position_embeddings",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
)
EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSettings:
    """What makes a model of given sizes this model; defaults are "not stated"."""

    rotary_share: float = 1.0
    """Share of a head that is rotated."""
    rope_scaling: str = ""
    """Kind of the scaling of rotary positions: llama3, yarn, linear, longrope ..."""
    rope_numbers: tuple[tuple[str, float], ...] = ()
    """Its numbers by the names of ROPE_NUMBERS."""
    router_score: str = ""
    """softmax or sigmoid; '' without experts."""
    router_correction: bool = False
    """A bias of every expert, moved without a gradient, chooses experts (DeepSeek-V3)."""
    router_scale: float = 0.0
    """Factor of the sum of routed experts; 0 for none."""
    pre_softmax: bool = False
    """Softmax is over all experts and the weights of the chosen ones are left as they are."""
    router_dtype: str = ""
    """Format of the router's scores where it is not that of the activations."""
    norm_epsilon: float = 0.0
    activation: str = ""
    """silu, gelu, relu2 ... of the MLP."""

    def rope_number(self, name: str, default: float) -> float:
        return dict(self.rope_numbers).get(name, default)


def settings_of(config: JsonObject, family: ConfigFamily) -> ModelSettings:
    """The settings that a config.json states, or its family has."""
    nested = config.values.get("rope_parameters") or config.values.get("rope_scaling")
    rope = nested if isinstance(nested, dict) else {}
    kind = str(rope.get("rope_type") or rope.get("type") or "")[:40]
    numbers = tuple((key, _number(rope.get(key))) for key in ROPE_NUMBERS if key in rope)
    share = rope.get("partial_rotary_factor", config.values.get("partial_rotary_factor"))
    share = config.values.get("rotary_pct") if share is None else share
    return ModelSettings(
        rotary_share=_number(share) or 1.0,
        rope_scaling="" if kind == "default" else kind,
        rope_numbers=numbers if kind not in ("", "default") else (),
        norm_epsilon=_number(_first_stated(config, EPSILONS)),
        activation=str(_first_stated(config, ACTIVATIONS) or "")[:40],
        **(_router_settings(config, family) if family.experts else {}),
    )


def _router_settings(config: JsonObject, family: ConfigFamily) -> dict[str, Any]:
    """How experts are chosen and weighted."""
    score = str(_first_stated(config, SCORES) or family.router_score)[:40]
    correction = family.router_correction
    if config.values.get("topk_method"):
        correction = config.values["topk_method"] == "noaux_tc"
    scale = _number(_first_stated(config, SCALES))
    normalised = config.values.get("norm_topk_prob", family.normalised_router)
    return {
        "router_score": score,
        "router_correction": correction,
        "router_scale": 0.0 if scale == 1.0 else scale,
        "pre_softmax": score == "softmax" and normalised is False,
        "router_dtype": "fp32" if score == "sigmoid" or family.latent else "",
    }


SCORES = ("scoring_func", "score_function", "score_func", "expert_selection_fn")
"""Keys of how a router scores experts."""
SCALES = ("routed_scaling_factor", "route_scale", "router_scaling_factor")
"""Keys of the factor of routed experts."""


def _first_stated(config: JsonObject, keys: tuple[str, ...]) -> object:
    """The first of several keys that is stated; None where none is."""
    return next((config.values[key] for key in keys if config.values.get(key) is not None), None)


def _number(value: object) -> float:
    """A number; 0 where it is none."""
    fine = isinstance(value, int | float) and value is not True and 0 <= value < LARGEST_SIZE
    return float(value) if fine else 0.0  # type: ignore[arg-type]
