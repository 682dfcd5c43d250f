"""Runs on Megatron-Core of a model that is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from plan3d.simulator.hardware.precision import Precision

from ..documents import Document
from ..launch_file import Launch, ReaderOptions, UnreadSetting
from ..numbers import fill_launch
from ..tables import Numbers, Table, cost_keys, read_rows
from ..trainer.models import name_model
from ..trainer.spelling import adapters_of, check_loss
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
    content: dict[str, Any], launch: Launch, table: Table, options: ReaderOptions
) -> Launch:
    """The launch of the arguments of a run; `table`: those of its program."""
    document, n = Document(content, launch.file), Numbers()
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
    n.optimizer, n.loss = optimizer_of(n.optimizer_name, launch), fused_loss(n.fuses_loss)
    n.dropout, n.experts = False, any(kind.experts for kind in model.kinds)
    n.offload_optimizer = _share(n, launch)
    fill_launch(launch, n)
    if n.sequence and not is_on(n.packing):
        launch.unread.append(
            UnreadSetting(
                "sequences",
                f"taken as {n.sequence} tokens each: shorter samples are not packed into them",
                affects_cost=True,
            )
        )
    if n.attention not in FUSED_ATTENTION:
        launch.unread.append(UnreadSetting("attention_backend", n.attention, affects_cost=True))
    launch.unread += document.unread(cost_keys(table), ())
    return launch


def _share(n: Numbers, launch: Launch) -> int:
    """Percent of the optimizer on the host."""
    if not n.offloads:
        return 0
    fraction = n.fraction if isinstance(n.fraction, int | float) else -1.0
    if not 0 <= fraction <= 1:
        raise launch.refuse("optimizer_offload_fraction must be a number from 0 to 1")
    return round(100 * fraction)
