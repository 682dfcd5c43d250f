"""Numbers of a launch file by name: from a task and a plan, and back.

Fields of the plan have their own names. Beside them:

    layers hidden vocabulary tied norm_bias learned_positions rotary_base mtp_layers positions
    heads kv_heads head_dim value_dim kv_rank q_rank rope_dim qkv_bias out_bias qk_norm
    ffn gated experts top_k expert_ffn shared_ffn groups group_limit sparse
    windows                                                                     the model
    sequence global_batch micro_batches chunks replicas dropout                 the run
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from plan3d.simulator.layers.placements import chunk_sizes
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.task import Task
from plan3d.simulator.workload.blocks import Attention, Block, Experts, Mlp
from plan3d.simulator.workload.model import Model
from plan3d.simulator.workload.settings import ModelSettings

from .launch_file import Launch
from .model_settings import setting_numbers, settings_from_numbers
from .shape import Shape, blocks, model_of_shape, shape_of
from .tables import Numbers

EXPERT_FIELDS = ("top_k", "shared_ffn", "groups", "group_limit")
"""Fields of Experts that numbers have under the same names."""


def numbers_of(task: Task, plan: Plan) -> Numbers:
    """The numbers of a file of one plan."""
    n = Numbers(**{name: int(value) for name, value in plan.columns().items()})
    n.chunks = chunk_sizes(task, plan)
    n.sequence, n.global_batch = task.sequence, task.global_batch
    n.micro_batches = int(task.global_batch // (plan.micro_batch * plan.dp))
    n.replicas = n.dp * n.cp // n.shard if n.shard else 0
    n.dropout = task.software.dropout
    n.experts = 0
    if blocks(task.model):
        vars(n).update(model_numbers(task.model))
        n.positions = n.learned_positions or max(task.sequence, task.model.sequence)
    return n


def model_numbers(model: Model) -> dict[str, Any]:
    """The sizes of a model whose layers differ only in being dense or sparse, and in windows."""
    s = shape_of(model)
    a, dense, experts = s.attention, s.mlp, s.experts
    out = {
        "layers": model.layers,
        "hidden": model.hidden,
        "vocabulary": model.vocabulary,
        "tied": model.tied,
        "norm_bias": model.norm_bias,
        "learned_positions": model.learned_positions,
        "rotary_base": model.rotary_base,
        "mtp_layers": model.mtp_layers,
        "qk_norm": bool(a.kv_rank or a.query_key_norm),
        "ffn": dense.ffn if dense else experts.ffn if experts else 0,
        "gated": dense.gated if dense else experts is not None and experts.gated,
        "experts": experts.count if experts else 0,
        "sparse": s.sparse,
        "windows": s.windows,
    }
    out |= setting_numbers(model)
    names = ("heads", "kv_heads", "head_dim", "value_dim", "kv_rank", "q_rank", "rope_dim")
    out |= {name: getattr(a, name) for name in (*names, "qkv_bias", "out_bias")}
    if experts:
        out |= {name: getattr(experts, name) for name in EXPERT_FIELDS}
        out |= {"expert_ffn": experts.ffn}
    return out


def model_of(n: Numbers, name: str, source: str) -> Model:
    """The model of the numbers of a file."""
    attention = Attention(
        heads=n.heads,
        kv_heads=n.kv_heads,
        head_dim=n.head_dim,
        value_dim=n.value_dim,
        qkv_bias=n.qkv_bias,
        out_bias=n.out_bias,
        query_key_norm="head" if n.qk_norm and not n.kv_rank else "",
        kv_rank=n.kv_rank,
        q_rank=n.q_rank,
        rope_dim=n.rope_dim,
    )
    rest = Model(
        name=name,
        hidden=n.hidden,
        vocabulary=n.vocabulary,
        kinds=(),
        order=(),
        tied=n.tied,
        norm_bias=n.norm_bias,
        learned_positions=n.learned_positions,
        rotary_base=0.0 if n.learned_positions else float(n.rotary_base),
        mtp_layers=n.mtp_layers,
        settings=settings_from_numbers(n) if hasattr(n, "norm_epsilon") else ModelSettings(),
        sequence=0 if n.learned_positions else n.positions,
        source=source,
    )
    mlp = Mlp(ffn=n.ffn, gated=n.gated, bias=n.out_bias)
    experts = None
    if n.experts:
        routing = {name: getattr(n, name) for name in EXPERT_FIELDS}
        experts = Experts(
            count=n.experts, ffn=n.expert_ffn, gated=n.gated, bias=n.out_bias, **routing
        )
    parts = Shape(attention, mlp, experts, n.sparse, n.windows)
    return model_of_shape(name, parts, Block(attention=attention), rest)


def fill_launch(launch: Launch, n: Numbers) -> None:
    """Put the numbers of a file into its launch, without those that have no effect."""
    plan_fields = {field.name for field in fields(Plan)}
    launch.plan |= {name: value for name, value in vars(n).items() if name in plan_fields}
    axes = {"cp_comm": "cp", "expert_dispatch": "ep", "overlap_ep": "ep"}
    axes |= {"sequence_parallel": "tp", "micro_batch_group": "virtual_stages"}
    axes |= dict.fromkeys(("first_stage_layers", "last_stage_layers"), "pp")
    for name, axis in axes.items():
        if name in launch.plan and launch.plan.get(axis, 1) == 1:
            launch.plan[name] = 0
    for name in ("sequence", "global_batch", "accumulation", "gpus", "replicas"):
        if getattr(n, name, None):
            setattr(launch, name, getattr(n, name))
    if hasattr(n, "dropout"):
        launch.software["dropout"] = n.dropout
    has_engine = launch.framework == "deepspeed" or getattr(n, "has_engine", False)
    if not getattr(n, "clips_gradients", True) and not has_engine:
        launch.software["clipping_bytes"] = 0.0
    if getattr(n, "experts", 0) and hasattr(n, "permute_fusion"):
        launch.software["fused_permutation"] = n.permute_fusion
