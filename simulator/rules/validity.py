"""Validity: the table of named rules, which prunes, explains and is tested.

A rule is a predicate over columns with a message for one row. It names the fields it reads, so
that a search space can apply it as soon as those are chosen. Rules of frameworks in general are
here and in the modules that it imports; those of one framework belong to its exporter.
Source: argument checks of Megatron-LM and torchtitan.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd
from typing import Any

import numpy as np

from ..base.arrays import Mask
from ..base.errors import InputError
from ..pipeline.schedules import model_copies
from ..plan.field_values import ContextComm
from ..plan.fields import OPT_IN, spell
from ..plan.plan import USUAL_FIELDS, Plan
from ..task import Task
from ..workload.blocks import LinearAttention
from .expert_rules import EXPERT_RULES
from .format_rules import FORMAT_RULES
from .layer_run_rules import SEGMENT_RULES, run_rows
from .offload_rules import OFFLOAD_RULES
from .pipeline_rules import PIPELINE_RULES
from .rule import Rule, divides, nearest_divisors
from .sync_rules import SITES_ARE_NAMED, SYNC_RULES
from .tensor_rules import GRID_RULES, TP_OVERLAP_RULES, feature_ranks
from .training_rules import ADAPTER_RULES, LOSS_RULES, PRECISION_RULES, RECOMPUTE_RULES


def _head_counts(task: Task) -> tuple[int, ...]:
    return tuple({kind.attention.heads for kind in task.model.kinds})


def _kv_head_counts(task: Task) -> tuple[int, ...]:
    """Key/value heads of layers that have any and that may copy them to several ranks."""
    of = (k.attention for k in task.model.kinds)
    return tuple({a.kv_heads for a in of if a.heads and not a.has_state})


def _state_fits(p: Any, layer: LinearAttention) -> Any:
    """Whether each rank has whole heads of a state, and whole groups of them or a part of one
    (Megatron-Core d98e8a6, ssm/mamba_context_parallel.py)."""
    groups = layer.kv_heads / p.tp
    whole = (groups % p.cp == 0) | (p.cp % groups == 0)
    return (layer.kv_heads % p.tp == 0) & (layer.heads % (p.tp * p.cp) == 0) & whole


def _states_fit(p: Any, task: Task) -> Any:
    out: Any = True
    for layer in task.model.linear_attention:
        out = out & _state_fits(p, layer)
    return out


def _states_message(p: Plan, task: Task) -> str:
    layer = next(one for one in task.model.linear_attention if not _state_fits(p, one))
    return (
        f"{layer.mixer} has {layer.heads} heads in {layer.kv_heads} groups: tp({p.tp}) must divide "
        f"the groups, tp x cp({p.cp}) the heads; nearest: tp={gcd(layer.kv_heads, int(p.tp))} cp=1"
    )


def _ffn_widths(task: Task) -> tuple[int, ...]:
    """Widths that tp splits: dense MLPs and shared experts."""
    widths = {k.mlp.ffn for k in task.model.kinds if k.mlp}
    widths |= {k.experts.shared_ffn for k in task.model.kinds if k.experts}
    return tuple(widths - {0})


def _kv_fits(p: Any, task: Task) -> Any:
    out: Any = True
    tp = feature_ranks(p)
    for kv in _kv_head_counts(task):
        out = out & ((kv % tp == 0) | (tp % kv == 0))
    return out


def _first_undivided(values: Iterable[int], by: int) -> int:
    return next(value for value in values if value % by)


def _undivided_message(p: Plan, values: Iterable[int], what: str) -> str:
    ranks = int(feature_ranks(p))
    first = _first_undivided(values, ranks)
    return (
        f"tensor size {ranks} does not divide {what.format(first)} "
        f"({'tp_grid' if p.tp_grid else 'tp'}); nearest: {nearest_divisors(first, ranks)}"
    )


def _chunks_message(p: Plan, task: Task) -> str:
    chunks, layers = int(p.pp * p.virtual_stages), task.model.layers
    ends = ("first_stage_layers", "last_stage_layers")[: chunks - layers]
    empty = " ".join(f"{name}={p.virtual_stages - 1}" for name in ends)
    spare = p.virtual_stages > 1 and 0 < chunks - layers <= 2
    return (
        f"pp({p.pp}) x virtual_stages({p.virtual_stages}) = {chunks} chunks need at least one "
        f"layer each, the model has {layers}"
        + f"; nearest: {empty}, which leaves embedding or head alone"
        * spare
    )


def _same_weights(p: Any) -> Any:
    """Ranks that hold the same weights."""
    return p.dp * p.cp * model_copies(p.schedule)


SPLIT_WORDS = {
    "tp": ("software-splits-tensors", "tensor"),
    "pp": ("software-splits-layers", "pipeline"),
    "cp": ("software-splits-sequences", "context"),
    "ep": ("software-splits-experts", "expert"),
}
"""By degree the rule of stacks that have it, and what it is called."""


def _split_rule(name: str, rule: str, word: str) -> Rule:
    """Only stacks that can split a model so do."""
    return Rule(
        rule,
        (name,),
        lambda p, t: (getattr(p, name) == 1) | (name in t.software.splits),
        lambda p, t: (
            f"{t.software.name} has no {word} parallelism: {name}={getattr(p, name)} must be 1"
        ),
    )


RULES: tuple[Rule, ...] = (
    *GRID_RULES,
    Rule(
        "tp-divides-heads",
        ("tp", "tp_grid"),
        lambda p, t: divides(_head_counts(t), feature_ranks(p)),
        lambda p, t: _undivided_message(p, _head_counts(t), "{} heads"),
    ),
    Rule(
        "tp-fits-kv-heads",
        ("tp", "tp_grid"),
        _kv_fits,
        lambda p, t: (
            f"tensor size {feature_ranks(p)} neither divides nor is a multiple of "
            f"{', '.join(map(str, _kv_head_counts(t)))} key/value heads (tp)"
        ),
    ),
    Rule("states-are-divided", ("tp", "cp"), _states_fit, _states_message),
    Rule(
        "tp-divides-ffn",
        ("tp", "tp_grid"),
        lambda p, t: divides(_ffn_widths(t), feature_ranks(p)),
        lambda p, t: _undivided_message(p, _ffn_widths(t), "ffn width {}"),
    ),
    Rule(
        "listed-layers-are-whole",
        ("tp", "cp"),
        lambda p, t: (p.tp * p.cp == 1) | bool(t.model.kinds),
        lambda p, t: (
            f"tp={p.tp} cp={p.cp} must be 1: {t.model.name} is a list of layers, which are split "
            "by pipeline and data parallelism only"
        ),
    ),
    Rule(
        "cp-divides-sequence",
        ("cp",),
        lambda p, t: (p.cp == 1) | (t.sequence % (2 * p.cp) == 0),
        lambda p, t: (
            f"sequence {t.sequence} is not a multiple of 2 cp = {2 * p.cp} (cp): each rank takes "
            "one chunk from either end to balance the causal mask"
        ),
    ),
    Rule(
        "documents-are-whole",
        ("cp",),
        lambda p, t: (p.cp == 1) | (not t.documents),
        lambda p, t: f"cp={p.cp} is not modelled with documents packed into sequences; nearest: 1",
    ),
    *(_split_rule(name, *words) for name, words in SPLIT_WORDS.items()),
    Rule(
        "world-size",
        ("tp", "cp", "pp", "dp"),
        lambda p, t: p.tp * p.cp * p.pp * p.dp == t.gpus,
        lambda p, t: (
            f"tp({p.tp}) x cp({p.cp}) x dp({p.dp}) x pp({p.pp}) = {p.tp * p.cp * p.dp * p.pp} "
            f"!= {t.gpus} GPUs; nearest: {_nearest_world(p, t)}"
        ),
    ),
    Rule(
        "layers-fill-stages",
        ("pp", "virtual_stages", "first_stage_layers", "last_stage_layers"),
        # A layout may leave a chunk at either end with nothing but the embedding or the head.
        lambda p, t: (
            (
                p.pp * p.virtual_stages
                <= t.model.layers
                + ((p.first_stage_layers > 0) & (p.first_stage_layers < p.virtual_stages)) * 1
                + ((p.last_stage_layers > 0) & (p.last_stage_layers < p.virtual_stages)) * 1
            )
            | bool(p.layers_per_stage)
        ),
        _chunks_message,
    ),
    Rule(
        "batch-divides",
        ("dp", "micro_batch"),
        lambda p, t: t.global_batch % (p.micro_batch * p.dp) == 0,
        lambda p, t: (
            f"global batch {t.global_batch} is not a multiple of micro_batch({p.micro_batch}) x "
            f"dp({p.dp}) = {p.micro_batch * p.dp}; nearest: "
            f"{_nearest_batch(t.global_batch, p.micro_batch * p.dp)}"
        ),
    ),
    *PIPELINE_RULES,
    Rule(
        "sequence-parallel-needs-tp",
        ("sequence_parallel", "tp"),
        lambda p, t: (p.sequence_parallel == 0) | (p.tp > 1),
        lambda p, t: "sequence_parallel needs tp > 1",
    ),
    Rule(
        "sequence-parallel-divides",
        ("sequence_parallel", "tp", "cp"),
        lambda p, t: (p.sequence_parallel == 0) | (t.sequence % (p.cp * p.tp) == 0),
        lambda p, t: f"sequence {t.sequence} is not a multiple of cp x tp = {p.cp * p.tp}",
    ),
    *TP_OVERLAP_RULES,
    Rule(
        "context-exchange-needs-cp",
        ("cp_comm", "cp"),
        lambda p, t: (p.cp_comm == 0) | (p.cp > 1),
        lambda p, t: f"cp_comm={spell('cp_comm', p.cp_comm)} needs cp > 1",
    ),
    Rule(
        "context-exchange-divides-heads",
        ("cp_comm", "cp", "tp"),
        lambda p, t: (
            (p.cp_comm != ContextComm.A2A)
            | divides((*_head_counts(t), *_kv_head_counts(t)), p.tp * p.cp)
        ),
        lambda p, t: (
            f"cp_comm=a2a: tp({p.tp}) x cp({p.cp}) = {p.tp * p.cp} does not divide "
            f"{_first_undivided((*_head_counts(t), *_kv_head_counts(t)), p.tp * p.cp)} heads"
        ),
    ),
    *EXPERT_RULES,
    Rule(
        "zero-needs-data-ranks",
        ("zero", "dp", "cp", "schedule", "offload_parameters", "nvme"),
        lambda p, t: (
            (p.zero == 0)
            | (p.offload_parameters > 0)
            | (p.nvme > 0)
            | (_same_weights(p) > 1)
            | t.software.has_hooks
        ),
        lambda p, t: f"zero={p.zero} has nothing to shard over when dp x cp = 1",
    ),
    Rule(
        "grad-overlap-needs-data-ranks",
        ("overlap_grad_reduce", "dp", "cp", "schedule"),
        lambda p, t: (p.overlap_grad_reduce == 0) | (_same_weights(p) > 1),
        lambda p, t: "overlap_grad_reduce has nothing to reduce when dp x cp = 1",
    ),
    Rule(
        "gather-overlap-needs-zero",
        ("overlap_param_gather", "zero", "overlap_grad_reduce", "offload_parameters"),
        lambda p, t: (
            (p.overlap_param_gather == 0)
            | ((p.zero > 0) & ((p.overlap_grad_reduce == 1) | (p.offload_parameters > 0)))
        ),
        lambda p, t: "overlap_param_gather needs zero >= 1 and overlap_grad_reduce",
    ),
    *PRECISION_RULES,
    *RECOMPUTE_RULES,
    *LOSS_RULES,
    *SYNC_RULES,
    SITES_ARE_NAMED,
    *OFFLOAD_RULES,
    *FORMAT_RULES,
    *ADAPTER_RULES,
)
"""Every rule a plan must meet, cheapest fields first."""


def _nearest_world(p: Plan, task: Task) -> str:
    ranks = p.tp * p.cp * p.pp
    if task.gpus % ranks == 0:
        return f"dp = {task.gpus // ranks}"
    smaller = {}
    for name in ("tp", "cp", "pp"):
        given, others = getattr(p, name), ranks // getattr(p, name)
        for value in range(min(given, task.gpus // others), 0, -1):
            if task.gpus % (others * value) == 0:
                smaller[name] = value
                break
    if not smaller:
        return f"tp x cp x pp must divide {task.gpus}: {nearest_divisors(task.gpus, ranks)}"
    name = max(smaller, key=lambda name: smaller[name] / getattr(p, name))
    return f"{name}={smaller[name]}"


def _nearest_batch(batch: int, unit: int) -> str:
    below = batch // unit * unit
    return ", ".join(str(b) for b in (below, below + unit) if b > 0)


OF_PIPELINE = ("world-size", "layers-fill-stages", "batch-divides")
"""Rules of RULES that are about the pipeline as a whole, in addition to PIPELINE_RULES."""


_PIPELINE_WIDE_RULES = tuple(
    rule for rule in RULES if rule.name in OF_PIPELINE or rule in PIPELINE_RULES
)
"""Rules that a plan with segments must meet itself, rather than each of its runs."""
_RUN_RULES = tuple(rule for rule in RULES if rule not in _PIPELINE_WIDE_RULES)
_SEGMENTED_RULES = tuple(rule for rule in _PIPELINE_WIDE_RULES if rule.name != "world-size")

_ALWAYS_READ = ("precision-on-accelerator", "layout-adds-up", "sites-are-named")
"""Rules that a plan may break all whose fields have their defaults: of an accelerator without bf16,
of the layout, which is no column, and of a cluster that has sites."""
_SWITCHES = {
    **{
        rule.name: tuple(name for name in rule.fields if name in OPT_IN)
        for rule in (*SYNC_RULES, *OFFLOAD_RULES, *FORMAT_RULES)
    },
    **{rule.name: ("tp_grid",) for rule in GRID_RULES},
    "micro-batch-group-fills-pipeline": ("micro_batch_group",),
    "mtp-follows-layers": ("mtp_stage",),
    "end-stages-fit": ("first_stage_layers", "last_stage_layers"),
    "expert-overlap-needs-interleaving": ("overlap_ep",),
    **{rule.name: ("adapters",) for rule in ADAPTER_RULES},
}
"""By rule of a feature the fields, of the plan or the task, that turn it on; a rule holds where it
is off."""


ONE_STRATEGY = Rule(
    "one-strategy",
    (),
    lambda p, t: not p.segments,
    lambda p, t: (
        f"segments: {t.framework.title if t.framework else 'a framework'} trains all stages alike; "
        "nearest: layers_per_stage"
    ),
)
"""The rule of every framework about plans of several strategies."""


def binding_rules(stated: set[str], task: Task) -> tuple[Rule, ...]:
    """The rules that plans may break of which only these fields are away from their usual values;
    those of features that are off hold."""
    on = {*stated, "adapters"} if task.adapters else stated
    return tuple(
        rule
        for rule in RULES
        if rule.name in _ALWAYS_READ or not on.isdisjoint(_SWITCHES.get(rule.name, rule.fields))
    )


def launchable_rows(plans: Plan, task: Task) -> Mask:
    """Which rows of a table the framework of the task launches; all of them where it has none."""
    keep = np.ones(plans.rows, bool)
    if task.framework is None:
        return keep
    for rule in (ONE_STRATEGY,) if plans.segments else task.framework.rules:
        keep &= rule.ok(plans, task)
    return keep


def _applicable_rules(plans: Plan, task: Task) -> tuple[Rule, ...]:
    """The rules that the fields of a plan may break; with segments, those of the pipeline."""
    framework = task.framework.rules if task.framework and task.framework.required else ()
    if plans.segments:
        return (*_SEGMENTED_RULES, ONE_STRATEGY) if framework else _SEGMENTED_RULES
    columns = ((name, getattr(plans, name) != usual) for name, usual in USUAL_FIELDS.items())
    stated = {name for name, away in columns if away is True or np.any(away)}
    return (*binding_rules(stated, task), *framework)


def violations(plan: Plan, task: Task) -> list[tuple[str, str]]:
    """Names of the rules one plan breaks, each with its message; empty when it is legal."""
    broken = [
        (rule.name, rule.message(plan, task))
        for rule in _applicable_rules(plan, task)
        if not rule.ok(plan, task)
    ]
    if not plan.segments:
        return broken
    for segment_rule in SEGMENT_RULES:
        if not segment_rule.ok(plan, plan.segments, task).all():
            message = segment_rule.message(plan, plan.segments, task)
            broken.append((segment_rule.name, message))
    rows, _ = run_rows(plan, task)
    for row in rows:
        broken += [
            (rule.name, rule.message(row, task)) for rule in _RUN_RULES if not rule.ok(row, task)
        ]
    return broken


def legal_rows(plans: Plan, task: Task) -> Mask:
    """Which rows of a table break no rule."""
    keep = np.ones(plans.rows, bool)
    for rule in _applicable_rules(plans, task):
        keep &= rule.ok(plans, task)
    if plans.segments:
        for segment_rule in SEGMENT_RULES:
            keep &= segment_rule.ok(plans, plans.segments, task)
        rows, owner = run_rows(plans, task)
        keep[owner[~legal_runs(rows, task)]] = False
    return keep


def legal_runs(rows: Plan, task: Task) -> Mask:
    """Which runs, each a row of its own, break no rule about layers."""
    keep = np.ones(rows.rows, bool)
    for rule in _RUN_RULES:
        keep &= rule.ok(rows, task)
    return keep


def check(plans: Plan, task: Task) -> None:
    """Raise InputError for the first row that breaks a rule, saying which and why."""
    if (
        plans.is_scalar
        and not plans.segments
        and all(rule.ok(plans, task) for rule in _applicable_rules(plans, task))
    ):
        return
    keep = legal_rows(plans, task)
    if not keep.all():
        row = int(np.argmin(keep))
        _, message = violations(plans.take(row), task)[0]
        where = f"row {row}: " if plans.rows > 1 else ""
        raise InputError(where + message)
