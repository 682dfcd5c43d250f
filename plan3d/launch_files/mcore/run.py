"""Runs on Megatron-Core of a model that is named."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

from plan3d.simulator.base.errors import intended_name
from plan3d.simulator.hardware.precision import Precision
from plan3d.simulator.plan.field_values import StateFormat
from plan3d.simulator.workload.model import Model

from ..documents import Document
from ..launch_file import Launch, ReaderOptions, UnreadSetting
from ..megatron.flags import NORMS, POSITIONS
from ..megatron.other_flags import group_of, unread_effect
from ..numbers import fill_launch, model_numbers
from ..tables import Effect, Numbers, Table, read_rows
from ..trainer.models import name_model
from ..trainer.spelling import adapters_of, check_loss, note_of_lengths, note_parts
from .fields import (
    fill_recompute,
    fill_sharding,
    fill_stages,
    fused_loss,
    is_on,
    optimizer_of,
    scaled_precision,
)

FUSED_ATTENTION = ("flash", "fused", "auto")
"""Attention backends that keep no scores, as the stack has them."""
STRATEGIES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""ZeRO stages of Megatron-FSDP."""


def read_run(
    content: dict[str, Any],
    launch: Launch,
    table: Table,
    options: ReaderOptions,
    has_samples: bool = False,
) -> Launch:
    """The launch of the arguments of a run; `table`: those of its program; `has_samples`: what it
    packs are samples, and not cuts of one text."""
    document, n = Document(content, launch.file), Numbers()
    document.check_model(table)
    read_rows(table, document, n)
    check_loss(n, document)
    model = name_model(n.model_id, launch, options)
    if launch.model is not None:
        launch.model = replace(launch.model, mtp_layers=n.mtp_layers)
    launch.adapters = adapters_of(n, document)
    fill_stages(n, document, launch, model)
    fill_recompute(n, launch, model)
    fill_sharding(n)
    if n.fsdp:
        n.zero = STRATEGIES.get(n.strategy, 3)
        n.overlap_grad_reduce = n.overlap_param_gather = True
    half = Precision.FP16 if n.fp16 or n.dtype == "float16" else Precision.BF16
    n.precision = scaled_precision(n, half, launch)
    if is_on(content.get("fp4_format")) and document.claim("fp4_format"):
        document.claim("fp4_recipe")
        n.precision = _four_bits(str(content.get("fp4_recipe") or "nvfp4"), launch)
    if not (n.bf16_ends and is_on(n.fp8_format)):
        n.bf16_first_layers = n.bf16_last_layers = 0
    if half == Precision.BF16 and (n.reduces_in_bf16 or not n.reduces_in_fp32):
        n.grad_reduce_dtype = StateFormat.BF16
    n.optimizer, n.loss = optimizer_of(n.optimizer_name, launch), fused_loss(n.fuses_loss)
    n.dropout, n.experts = False, any(kind.experts for kind in model.kinds)
    n.offload_optimizer = _share(n, launch)
    fill_launch(launch, n)
    if n.sequence and (has_samples or not is_on(n.packing)):
        text = note_of_lengths(n.sequence, is_on(n.packing))
        launch.unread.append(UnreadSetting("sequences", text, affects_cost=True))
    note_parts(document, launch, table)
    if n.attention not in FUSED_ATTENTION:
        launch.unread.append(UnreadSetting("attention_backend", n.attention, affects_cost=True))
    launch.unread += document.unread(table, ())
    return launch


def _four_bits(recipe: str, launch: Launch) -> int:
    if recipe.lower() != "nvfp4":
        launch.unmodelled["precision"] = f"fp4 by {recipe[:40]} is not modelled"
    return int(Precision.NVFP4)


def _share(n: Numbers, launch: Launch) -> int:
    """Percent of the optimizer on the host."""
    if not n.offloads:
        return 0
    fraction = n.fraction if isinstance(n.fraction, int | float) else -1.0
    if not 0 <= fraction <= 1:
        raise launch.refuse("optimizer_offload_fraction must be a number from 0 to 1")
    return round(100 * fraction)


SHAPE = {
    "num_layers": "layers",
    "hidden_size": "hidden",
    "ffn_hidden_size": "ffn",
    "num_attention_heads": "heads",
    "num_query_groups": "kv_heads",
    **dict.fromkeys(("num_moe_experts", "num_experts"), "experts"),
    "moe_ffn_hidden_size": "expert_ffn",
    "moe_shared_expert_intermediate_size": "shared_ffn",
    "moe_router_topk": "top_k",
    "moe_router_num_groups": "groups",
    "moe_router_group_topk": "group_limit",
}
"""Fields that make a named model another one, and its numbers."""
LATENT = {"q_lora_rank": "q_rank", "kv_lora_rank": "kv_rank", "v_head_dim": "value_dim"}
LATENT |= {"qk_pos_emb_head_dim": "rope_dim"}
"""The same of latent attention, which others have without effect."""
TRAITS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "multi_latent_attention": lambda n: n["kv_rank"] > 0,
    "qk_layernorm": lambda n: n["qk_norm"],
    "untie_embeddings_and_output_weights": lambda n: not n["tied"],
    "share_embeddings_and_output_weights": lambda n: n["tied"],
    "add_bias_linear": lambda n: n["out_bias"],
    "swiglu": lambda n: n["gated"],
    "gated_linear_unit": lambda n: n["gated"],
    "group_query_attention": lambda n: bool(n["kv_rank"]) or n["kv_heads"] < n["heads"],
}
"""Switches that make a named model another one, and whether it has them."""
OF_MODEL = frozenset((*SHAPE, *LATENT, *TRAITS, "kv_channels", "add_qkv_bias", "normalization"))
OF_MODEL |= {"window_size", "window_attn_skip_freq", "moe_layer_freq", "qk_head_dim"}
OF_MODEL |= {"position_embedding_type", "quick_geglu", "add_position_embedding"}
"""Fields that a named model decides: where they are not its own, it is refused."""


def _own_value(key: str, value: Any, n: dict[str, Any]) -> Any:
    """What a model has in place of a value; the value itself where it does not say."""
    if key in SHAPE or (key in LATENT and n["kv_rank"]):
        return n.get(SHAPE.get(key) or LATENT[key], value)
    if key in TRAITS and isinstance(value, bool):
        return TRAITS[key](n)
    if key == "kv_channels" and not n["kv_rank"]:
        return n["head_dim"]
    if key == "add_qkv_bias" and value is True:
        return n["qkv_bias"]
    if key == "normalization" and value in NORMS:
        return next(name for name, has_bias in NORMS.items() if has_bias == n["norm_bias"])
    if key == "position_embedding_type" and value in POSITIONS:
        is_learned = bool(n["learned_positions"])
        return value if POSITIONS[value] == is_learned else "learned" if is_learned else "rope"
    if key == "window_size" and str(value).lower() not in ("none", "0"):
        widest = max(n["windows"])
        found = re.match(r"[\[(]?\s*(\d{1,9})", str(value))
        return value if found and int(found[1]) in (widest - 1, widest) else widest
    if key == "moe_layer_freq" and n["experts"]:
        layers = len(n["sparse"])
        each = isinstance(value, int) and not isinstance(value, bool) and value > 0
        stated = [at % value == 0 for at in range(layers)] if each else value
        same = not isinstance(stated, list) or [*map(bool, stated)] == [*n["sparse"]]
        return value if same else f"{sum(n['sparse'])} of {layers} layers"
    return value


def check_model(stated: dict[str, Any], model: Model | None, launch: Launch) -> None:
    """Raise InputError for fields that make a named model another one."""
    if model is None:
        return
    sizes = model_numbers(model)
    for key, value in stated.items():
        if value is not None and value != _own_value(key, value, sizes):
            raise launch.refuse(
                f"changes {model.name} by {key} = {str(value)[:40]}: give --model config.json"
            )
        group = group_of(f"--{key.replace('_', '-')}", [str(value)])
        if group and group.effect is Effect.MODEL and value not in (None, False, 0):
            raise launch.refuse(f"{key} = {str(value)[:40]} is not modelled: {group.what}")


def unread_fields(
    content: dict[str, Any], keys: Collection[str], others: Collection[str] = ()
) -> Iterator[UnreadSetting]:
    """Settings beside the keys that are read: those that are on and change time or memory, and
    those that plan3d does not know; `others`: names of sections."""
    for key, value in content.items():
        if key in keys or key in others or key in OF_MODEL or value is None:
            continue
        if key == "performance_mode":
            text = "True: what it overlaps is not read"
            yield from [UnreadSetting(key, text, affects_cost=True)] if value else []
            continue
        costs, why = unread_effect(f"--{key.replace('_', '-')}", [str(value)], ())
        if costs and value in (False, 0, "none", ""):
            continue
        suggestion = "" if costs or why else intended_name(key, (*keys, *others))
        yield UnreadSetting(
            key,
            str(value)[:60],
            affects_cost=costs or bool(suggestion),
            suggestion=suggestion,
            why_neutral=why,
        )
