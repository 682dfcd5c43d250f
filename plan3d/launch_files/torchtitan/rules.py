"""Rules of torchtitan 0.2 and 0.3.

Source: torchtitan 0.2.2, config/job_config.py, distributed/parallel_dims.py,
distributed/pipeline_parallel.py, models/llama3/infra/parallelize.py; 0.3.0, trainer.py; torch,
distributed/pipelining/schedules.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plan3d.simulator.base.arrays import is_among
from plan3d.simulator.hardware.precision import Optimizer, Precision
from plan3d.simulator.pipeline.schedules import schedule_code
from plan3d.simulator.plan.field_values import ContextComm, Dispatch, Recompute
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.rules.rule import Rule

from ..common_rules import field_text, one_of, whole_key_heads
from .keys import FLOAT8_RECIPES, NOT_COMPILED, ROTATIONS, SCHEDULES
from .model_flavors import WRITTEN, is_flavor, is_flexible, missing_features, refusal
from .spelling import has_experts

FLOAT8 = tuple(FLOAT8_RECIPES.values())
PRECISIONS = (*FLOAT8, Precision.FP32, Precision.PURE_BF16, Precision.BF16)


def common_rules(title: str, unwritten: Mapping[tuple[str, str], str]) -> tuple[Rule, ...]:
    """Rules of both versions; `unwritten` are flavors of the version that plan3d does not write."""
    return (*_model_rules(title, unwritten), *_recipe_rules(title), *_overlap_rules(title))


def _model_rules(title: str, unwritten: Mapping[tuple[str, str], str]) -> tuple[Rule, ...]:
    """Rules of models, schedules and micro-batches."""
    return (
        Rule(
            "torchtitan-model",
            (),
            lambda p, t: not missing_features(t.model),
            lambda p, t: refusal(t.model, title, unwritten),
        ),
        one_of(
            "torchtitan-schedule",
            "schedule",
            SCHEDULES,
            f"torch.distributed.pipelining has {', '.join(SCHEDULES.values())}",
        ),
        whole_key_heads("torchtitan-key-heads", title),
        Rule(
            "torchtitan-compiled-schedule",
            ("schedule", "precision", "overlap_tp"),
            lambda p, t: (
                ~is_among(p.schedule, NOT_COMPILED)
                | (~is_among(p.precision, FLOAT8) & (p.overlap_tp == 0))
            ),
            lambda p, t: (
                f"{field_text(p, 'schedule')}: torch refuses it for compiled modules, which fp8 "
                "and overlap_tp need; nearest: schedule=interleaved"
            ),
        ),
        Rule(
            "torchtitan-micro-batches",
            ("schedule", "pp", "dp", "micro_batch"),
            lambda p, t: (
                (p.schedule != schedule_code("1f1b"))
                | (p.pp == 1)
                | (t.global_batch // (p.dp * p.micro_batch) >= p.pp)
            ),
            lambda p, t: (
                f"{t.global_batch // (p.dp * p.micro_batch)} micro-batches: Schedule1F1B needs at "
                f"least pp = {p.pp}; nearest: a smaller micro_batch, or schedule=gpipe"
            ),
        ),
        Rule(
            "torchtitan-group",
            ("micro_batch_group", "pp"),
            lambda p, t: (p.micro_batch_group == 0) | (p.micro_batch_group == p.pp),
            lambda p, t: (
                f"{field_text(p, 'micro_batch_group')}: Interleaved1F1B runs groups of pp "
                "micro-batches; nearest: micro_batch_group=0"
            ),
        ),
    )


def _recipe_rules(title: str) -> tuple[Rule, ...]:
    """Rules of number formats, optimizer, sharding and offloading."""
    return (
        one_of("torchtitan-precision", "precision", PRECISIONS, f"{title} has no such recipe"),
        one_of(
            "torchtitan-optimizer", "optimizer", (Optimizer.ADAM,), f"{title} has Adam and AdamW"
        ),
        one_of(
            "torchtitan-sharding",
            "zero",
            (0, 3, 2),
            "FSDP2 shards weights, gradients and optimizer together",
        ),
        Rule(
            "torchtitan-offloads-together",
            ("offload_optimizer", "offload_parameters"),
            lambda p, t: (
                (p.offload_optimizer == p.offload_parameters) & (p.offload_optimizer % 100 == 0)
            ),
            lambda p, t: (
                f"{field_text(p, 'offload_optimizer')} {field_text(p, 'offload_parameters')}: "
                "FSDP2 offloads weights and gradients with the optimizer, and all of them; "
                "nearest: both 0 or 100"
            ),
        ),
        one_of(
            "torchtitan-offloaded-activations",
            "offload_activations",
            (0,),
            f"{title} keeps activations on GPUs",
        ),
        Rule(
            "torchtitan-hybrid",
            ("shard", "cp"),
            lambda p, t: p.shard % p.cp == 0,
            lambda p, t: (
                f"{field_text(p, 'shard')}: FSDP shards over whole groups of cp = {p.cp} ranks; "
                f"nearest: shard={max(p.shard // p.cp, 1) * p.cp}"
            ),
        ),
        one_of(
            "torchtitan-buckets",
            "bucket_parameters",
            (0,),
            "FSDP2 reduces layer by layer, and the buckets of its DDP are fixed",
        ),
    )


def _has_replicas(p: Plan) -> Any:
    """Whether several ranks have the same weights."""
    return p.dp * p.cp > 1


def _overlap_rules(title: str) -> tuple[Rule, ...]:
    """Rules of overlaps: FSDP2 and the pipeline runtime always overlap."""
    return (
        Rule(
            "torchtitan-gradient-overlap",
            ("overlap_grad_reduce", "dp", "cp"),
            lambda p, t: p.overlap_grad_reduce == _has_replicas(p),
            lambda p, t: (
                f"{field_text(p, 'overlap_grad_reduce')}: {title} always overlaps gradient "
                "reduction; nearest: overlap_grad_reduce=1"
            ),
        ),
        Rule(
            "torchtitan-gather-overlap",
            ("overlap_param_gather", "zero", "dp", "cp"),
            lambda p, t: (
                (p.zero == 1) | (p.overlap_param_gather == (_has_replicas(p) & (p.zero > 1)))
            ),
            lambda p, t: (
                f"{field_text(p, 'overlap_param_gather')}: FSDP2 always prefetches, DDP has "
                f"nothing to; nearest: overlap_param_gather={int(p.zero > 1)}"
            ),
        ),
        Rule(
            "torchtitan-p2p-overlap",
            ("overlap_p2p", "virtual_stages"),
            lambda p, t: p.overlap_p2p == (p.virtual_stages > 1),
            lambda p, t: (
                f"{field_text(p, 'overlap_p2p')}: the pipeline runtime overlaps the sends of "
                f"several chunks; nearest: overlap_p2p={int(p.virtual_stages > 1)}"
            ),
        ),
    )


RULES_0_2 = (
    one_of(
        "torchtitan-context",
        "cp_comm",
        ROTATIONS.values(),
        "torch rotates or gathers keys and values",
    ),
    Rule(
        "torchtitan-context-flavor",
        ("cp",),
        lambda p, t: (p.cp == 1) | (not is_flexible(t.model)),
        lambda p, t: (
            f"{field_text(p, 'cp')}: 0.2 does not split the sequences of flex_attention, which "
            f"{t.model.name} has; nearest: cp=1"
        ),
    ),
    Rule(
        "torchtitan-expert-overlap",
        ("overlap_ep", "schedule", "recompute"),
        lambda p, t: (
            (p.overlap_ep == 0)
            | ((p.schedule == schedule_code("dualpipe-v")) & (p.recompute == Recompute.NONE))
        ),
        lambda p, t: "overlap_ep needs dualpipe-v without recompute; nearest: overlap_ep=0",
    ),
    Rule(
        "torchtitan-expert-sharding",
        ("ep", "zero", "dp", "cp"),
        lambda p, t: (p.ep == 1) | ((p.zero > 0) & _has_replicas(p)),
        lambda p, t: (
            f"{field_text(p, 'ep')} {field_text(p, 'zero')} on dp x cp = {p.dp * p.cp} ranks: 0.2 "
            "shards the rest of a model with experts by FSDP; nearest: ep=1, or zero=2 and dp x "
            "cp > 1"
        ),
    ),
    Rule(
        "torchtitan-ddp-alone",
        ("zero", "dp", "tp", "pp", "cp"),
        lambda p, t: (p.zero > 0) | (p.dp * p.cp == 1) | (p.tp * p.pp * p.cp == 1),
        lambda p, t: (
            "zero=0 is DDP, which 0.2 does not combine with other axes; nearest: zero=2 "
            "overlap_param_gather=1"
        ),
    ),
    Rule(
        "torchtitan-mixed-precision",
        ("precision", "dp", "tp", "pp", "cp"),
        lambda p, t: (
            (p.dp * p.cp > 1)
            | (p.tp * p.pp == 1)
            | ~is_among(p.precision, (Precision.BF16, *FLOAT8))
        ),
        lambda p, t: (
            f"{field_text(p, 'precision')}: 0.2 mixes precision through FSDP, which needs dp x cp "
            "> 1; nearest: precision=pure-bf16"
        ),
    ),
    Rule(
        "torchtitan-float8-experts",
        ("precision", "pp", "cp"),
        lambda p, t: (
            ~is_among(p.precision, FLOAT8) | (p.pp * p.cp == 1) | (not has_experts(t.model))
        ),
        lambda p, t: (
            f"{field_text(p, 'precision')} {field_text(p, 'pp')} {field_text(p, 'cp')}: 0.2 "
            "converts experts to float8 with neither; nearest: precision=bf16"
        ),
    ),
    Rule(
        "torchtitan-sequence-parallel",
        ("sequence_parallel", "tp"),
        lambda p, t: p.sequence_parallel == (p.tp > 1),
        lambda p, t: "0.2 always shards the sequence with tp; nearest: sequence_parallel=1",
    ),
    Rule(
        "torchtitan-sequence-divides",
        ("tp", "cp"),
        lambda p, t: t.sequence % (2 * p.tp * p.cp) == 0,
        lambda p, t: f"sequence {t.sequence} is not a multiple of 2 tp cp = {2 * p.tp * p.cp}",
    ),
    Rule(
        "torchtitan-expert-tensor",
        ("ep", "etp", "tp"),
        lambda p, t: (p.etp == 1) | ((p.ep > 1) & (p.etp == p.tp)),
        lambda p, t: f"etp={p.etp} must be 1, or tp = {p.tp} with ep > 1; nearest: etp=1",
    ),
    Rule(
        "torchtitan-deepep-experts",
        ("etp", "expert_dispatch"),
        lambda p, t: (p.etp == 1) | (p.expert_dispatch == Dispatch.ALLTOALL),
        lambda p, t: f"etp={p.etp}: DeepEP does not split experts; nearest: etp=1",
    ),
)
"""Rules of 0.2 alone."""

RULES_0_3 = (
    Rule(
        "torchtitan-float8-scale",
        ("precision",),
        lambda p, t: p.precision != Precision.FP8,
        lambda p, t: "0.3 scales float8 by rows; nearest: precision=fp8-rowwise",
    ),
    one_of(
        "torchtitan-recompute",
        "recompute",
        (Recompute.NONE, Recompute.FULL),
        "selective recompute of 0.3 keeps every product, which a plan cannot say",
    ),
    Rule(
        "torchtitan-flavor",
        (),
        lambda p, t: is_flavor(t.model) or bool(missing_features(t.model)),
        lambda p, t: (
            f"0.3 builds shapes in code, and plan3d writes none like {t.model.name}; nearest: "
            f"--version 0.2, or a flavor: {WRITTEN}"
        ),
    ),
    Rule(
        "torchtitan-expert-tensor",
        ("etp",),
        lambda p, t: p.etp == 1,
        lambda p, t: f"etp={p.etp}: 0.3 does not split experts; nearest: etp=1",
    ),
    Rule(
        "torchtitan-context",
        ("cp", "cp_comm"),
        lambda p, t: (p.cp == 1) | (p.cp_comm == ContextComm.ALL_GATHER),
        lambda p, t: (
            f"{field_text(p, 'cp_comm')}: 0.3 gathers keys and values; nearest: cp_comm=all-gather"
        ),
    ),
    one_of("torchtitan-dispatch", "expert_dispatch", (0,), "0.3 has its dispatchers in the model"),
    one_of("torchtitan-expert-overlap", "overlap_ep", (0,), "0.3 has no such overlap"),
    Rule(
        "torchtitan-replicas-cp",
        ("zero", "cp"),
        lambda p, t: (p.zero > 0) | (p.cp == 1),
        lambda p, t: "zero=0: context parallelism shards with FSDP; nearest: zero=2",
    ),
)
"""Rules of 0.3 alone."""
