"""Runs on Megatron-Core of a model that is named: its arguments, read with one table.

Source: megatron/core 0.16, transformer_config.py, model_parallel_config.py, distributed/
distributed_data_parallel_config.py and optimizer/optimizer_config.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from plan3d.simulator.hardware.precision import Precision

from ..documents import Document
from ..launch_file import Launch, ReaderOptions, UnreadSetting
from ..numbers import fill_launch
from ..tables import COUNT, Numbers, Row, Table, Unmodelled, cost_keys, read_rows
from ..trainer.arguments import ANY, LENGTH, NAME, TRUTH
from ..trainer.models import name_model
from ..trainer.spelling import adapters_of, check_loss
from .fields import (
    EXPERTS,
    FP8,
    NO_LAYERS,
    STAGES,
    fill_recompute,
    fill_sharding,
    fill_stages,
    fused_loss,
    is_on,
    optimizer_of,
    scaled_precision,
)

RUN: Table = (
    *STAGES,
    *EXPERTS,
    *FP8,
    Row("model", "model_id", NAME, ""),
    Row("micro_batch_size", "micro_batch", default=1),
    Row("max_length", "sequence", LENGTH, None),
    Row("packing", "packing", TRUTH, False),
    Row("torch_dtype", "dtype", NAME, "bfloat16"),
    Row("fp16", "fp16", TRUTH, False),
    Row("fp8_format", "fp8_format", ANY, None),
    Row("decoder_first_pipeline_num_layers", "first_stage_layers", COUNT, 0),
    Row("decoder_last_pipeline_num_layers", "last_stage_layers", COUNT, 0),
    Row("use_distributed_optimizer", "distributed", TRUTH, True),
    Row("overlap_grad_reduce", "overlap_grad_reduce", TRUTH, False),
    Row("overlap_param_gather", "overlap_param_gather", TRUTH, False),
    Row("tp_comm_overlap", "overlap_tp", TRUTH, False),
    Row("recompute_method", "recompute_method", ANY, None),
    Row("recompute_num_layers", "recompute_layers", NO_LAYERS, None),
    Row("recompute_modules", "modules", ANY, None),
    Row("cross_entropy_loss_fusion", "fuses_loss", TRUTH, True),
    Row("optimizer", "optimizer_name", NAME, "adam"),
    Row("optimizer_cpu_offload", "offloads", TRUTH, False),
    Row("optimizer_offload_fraction", "fraction", ANY, 1.0),
    Row("target_modules", "targets", ANY, "all-linear"),
    Row("use_megatron_fsdp", "fsdp", TRUTH, False),
    Row("data_parallel_sharding_strategy", "strategy", NAME, "optim_grads_params"),
    *(Unmodelled(key) for key in ("use_precision_aware_optimizer", "main_grads_dtype")),
    *(Unmodelled(key) for key in ("exp_avg_dtype", "exp_avg_sq_dtype")),
    *(Unmodelled(key) for key in ("freeze_llm", "freeze_parameters", "modules_to_save")),
    *(Unmodelled(key) for key in ("linear_decoupled_in_proj", "fp4_format", "moe_layer_recompute")),
    Row("mtp_num_layers", "mtp_layers", NO_LAYERS, 0),
    Row("attention_backend", "attention", NAME, "flash"),
)
"""Arguments that every program on Megatron-Core has, by the names of its configuration."""
FUSED_ATTENTION = ("flash", "fused", "auto")
"""Attention backends that keep no scores, as the stack has them."""
STRATEGIES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""ZeRO stages of Megatron-FSDP."""


def read_run(
    content: dict[str, Any], launch: Launch, table: Table, options: ReaderOptions
) -> Launch:
    """The launch of the arguments of a run; `table` holds RUN and what the program adds."""
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
