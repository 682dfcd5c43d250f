"""Settings of a model that change no time: numbers of a launch file, and those it cannot say.

Source: megatron/core 0.16, transformer_config.py (moe_router_*, rope scaling of latent attention)
and models/common/embeddings/rotary_pos_embedding.py (_apply_scaling: the numbers of Llama 3 other
than the factor are fixed).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from plan3d.simulator.workload.model import Model
from plan3d.simulator.workload.settings import ModelSettings

from .tables import Codec, Numbers, Source

LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Numbers of the scaling of Llama 3 that Megatron fixes."""
YARN = {"beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 4096}
"""Defaults of YaRN in latent attention, for which Megatron-LM has no flags."""
DEFAULT_EPSILON = 1e-5
SCALINGS = {False: "llama3", True: "yarn"}
"""The scaling that can be written, by whether attention is latent."""

ALL = frozenset(
    {"rotary-share", "scaling", "router", "norm-epsilon", "squared-relu", "pre-softmax"}
)
"""What a table that has rows for all numbers of this module writes."""


def _read_number(source: Source, key: str, n: Numbers) -> float:
    text = source.text(key)
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 2**31:
        raise source.value_error(key, f"{text[:40]} must be a number of at least 0")
    return number


DECIMAL = Codec(lambda value: repr(float(value)), _read_number)
"""A number with a fraction."""


def setting_numbers(model: Model) -> dict[str, Any]:
    """The numbers of a model's settings."""
    s, latent = model.settings, _is_latent(model)
    scaled = _writes_scaling(model)
    return {
        "rotary_percent": s.rotary_share,
        "llama3_scaling": scaled and not latent,
        "rope_factor": s.rope_number("factor", 8.0) if scaled and not latent else 8.0,
        "rope_type": "yarn" if scaled and latent else "rope",
        "yarn_factor": s.rope_number("factor", 1.0) if scaled and latent else 1.0,
        "mscale": s.rope_number("mscale", 1.0) if scaled and latent else 1.0,
        "mscale_all_dim": s.rope_number("mscale_all_dim", 0.0) if scaled and latent else 0.0,
        "router_score": s.router_score or "softmax",
        "router_correction": s.router_correction,
        "router_scale": s.router_scale,
        "pre_softmax": s.pre_softmax,
        "router_dtype": s.router_dtype,
        "norm_epsilon": s.norm_epsilon or DEFAULT_EPSILON,
        "squared_relu": s.activation == "relu2",
        "states_settings": s != ModelSettings(),
        "stated_epsilon": s.norm_epsilon,
    }


def settings_from_numbers(n: Numbers) -> ModelSettings:
    """The settings that a file states."""
    has_experts = bool(getattr(n, "experts", 0))
    scaling, numbers = "", {}
    if n.multi_latent and n.rope_type == "yarn" and n.yarn_factor > 1:
        scaling = "yarn"
        numbers = {"factor": n.yarn_factor, "mscale": n.mscale, "mscale_all_dim": n.mscale_all_dim}
    elif n.llama3_scaling:
        scaling, numbers = "llama3", {"factor": n.rope_factor}
    epsilon = n.norm_epsilon
    return ModelSettings(
        rotary_share=n.rotary_percent,
        rope_scaling=scaling,
        rope_numbers=tuple(numbers.items()),
        router_score=n.router_score if has_experts else "",
        router_correction=has_experts and n.router_correction,
        router_scale=n.router_scale if has_experts else 0.0,
        pre_softmax=has_experts and n.pre_softmax,
        router_dtype=n.router_dtype if has_experts else "",
        norm_epsilon=0.0 if epsilon == DEFAULT_EPSILON else epsilon,
        activation="relu2" if n.squared_relu else "",
    )


def unwritten(model: Model, written: frozenset[str]) -> list[str]:
    """Settings of a model for which a format has no rows, in words."""
    return [text for name, text in _stated(model) if name not in written]


def _stated(model: Model) -> Iterator[tuple[str, str]]:
    """Name and words of every setting that is not what frameworks assume."""
    s = model.settings
    if s.rotary_share != 1.0:
        yield "rotary-share", f"rotary positions on {s.rotary_share:g} of a head"
    if s.rope_scaling:
        numbers = ", ".join(f"{name} {number:g}" for name, number in s.rope_numbers)
        name = "scaling" if _writes_scaling(model) else "other-scaling"
        yield name, f"rotary scaling {s.rope_scaling} ({numbers})"
    if s.router_score not in ("", "softmax", "sigmoid"):
        yield "other-router", f"a router of {s.router_score} scores"
    elif s.router_score == "sigmoid" or s.router_correction or s.router_scale:
        bias = ", a bias that balances experts" if s.router_correction else ""
        scale = f", scaled by {s.router_scale:g}" if s.router_scale else ""
        yield "router", f"a router of {s.router_score} scores{bias}{scale}"
    if s.pre_softmax:
        yield "pre-softmax", "a router whose weights are not normalised"
    if s.norm_epsilon not in (0.0, DEFAULT_EPSILON):
        yield "norm-epsilon", f"norm epsilon {s.norm_epsilon:g}"
    yield from _activation(model)


def _activation(model: Model) -> Iterator[tuple[str, str]]:
    """An activation other than SiLU behind a gate, and GELU without one."""
    name = model.settings.activation
    layers = [kind.mlp or (kind.experts and kind.experts.expert_mlp) for kind in model.kinds]
    gated = any(mlp.gated for mlp in layers if mlp)
    if not name or name.startswith("silu" if gated else "gelu") or name in ("swish", "swiglu"):
        return
    yield "squared-relu" if name == "relu2" and not gated else "activation", f"activation {name}"


def _is_latent(model: Model) -> bool:
    return any(kind.attention.kv_rank for kind in model.kinds)


def _writes_scaling(model: Model) -> bool:
    """Whether the scaling is one that Megatron has flags for, with the numbers that it fixes."""
    s, latent = model.settings, _is_latent(model)
    fixed = YARN if latent else LLAMA3
    same = all(s.rope_number(name, number) == number for name, number in fixed.items())
    return s.rope_scaling == SCALINGS[latent] and same
