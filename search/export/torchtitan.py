"""How does torchtitan 0.2 run a plan? A TOML job configuration, and the rules of 0.2 and 0.3.

Source: torchtitan 0.2.2, config/job_config.py, distributed/parallel_dims.py,
distributed/pipeline_parallel.py, models/llama3/infra/parallelize.py; 0.3.0, trainer.py.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from ...simulator.pipeline_rules import Rule
from ...simulator.placements import chunk_sizes
from ...simulator.plan import ContextComm, Dispatch, Optimizer, Plan, Precision, Recompute, Schedule
from ...simulator.task import Task
from .documents import comments, with_kept
from .exporter import Form, heading, micro_batches, only, said
from .launch_file import Kept
from .torchtitan_model import flavor_of, missing, registration

VERSION = "0.2.2"
TITLE = f"torchtitan {VERSION}"
SCHEDULES: dict[int, str] = {
    Schedule.GPIPE: "GPipe",
    Schedule.BREADTH_FIRST: "LoopedBFS",
    Schedule.ZB_V: "ZBVZeroBubble",
    Schedule.DUALPIPE_V: "DualPipeV",
    Schedule.INTERLEAVED: "Interleaved1F1B",
    Schedule.ONE_F_ONE_B: "1F1B",
}
"""torch.distributed.pipelining's name of each schedule that it has."""
V_SHAPED = (Schedule.ZB_V, Schedule.DUALPIPE_V)
PRECISIONS = (Precision.FP8, Precision.FP32, Precision.PURE_BF16, Precision.BF16)
ROTATIONS = {ContextComm.ALL_GATHER: "allgather", ContextComm.P2P: "alltoall"}
"""context_parallel_rotate_method by cp_comm."""
SHARDED = {2: "never", 3: "always"}
"""fsdp_reshard_after_forward by ZeRO stage."""


def common_rules(title: str) -> tuple[Rule, ...]:
    """What 0.2 and 0.3 both refuse."""
    return (
        Rule(
            "torchtitan-model",
            (),
            lambda p, t: (p.tp > 0) & (not missing(t.model)),
            lambda p, t: (
                f"{title} has no model with {' or '.join(missing(t.model))} like {t.model.name}"
            ),
        ),
        only(
            "torchtitan-schedule",
            "schedule",
            SCHEDULES,
            f"torch.distributed.pipelining has {', '.join(SCHEDULES.values())}",
        ),
        only("torchtitan-precision", "precision", PRECISIONS, f"{title} has no such recipe"),
        only("torchtitan-optimizer", "optimizer", (Optimizer.ADAM,), f"{title} has Adam and AdamW"),
        only(
            "torchtitan-recompute",
            "recompute",
            (Recompute.NONE, Recompute.FULL),
            "torchtitan's own selective recompute drops every second GEMM, which a plan cannot say",
        ),
        only(
            "torchtitan-sharding",
            "zero",
            (0, 3, 2),
            "FSDP2 shards weights, gradients and optimizer together",
        ),
        *_overlap_rules(title),
        Rule(
            "torchtitan-group",
            ("micro_batch_group", "pp"),
            lambda p, t: (p.micro_batch_group == 0) | (p.micro_batch_group == p.pp),
            lambda p, t: (
                f"{said(p, 'micro_batch_group')}: Interleaved1F1B runs groups of pp micro-batches; "
                "nearest: micro_batch_group=0"
            ),
        ),
    )


def _overlap_rules(title: str) -> tuple[Rule, ...]:
    """FSDP2 and the pipeline runtime always overlap."""

    def several(p: Any) -> Any:
        return p.dp * p.cp > 1

    return (
        Rule(
            "torchtitan-gradient-overlap",
            ("overlap_grad_reduce", "dp", "cp"),
            lambda p, t: p.overlap_grad_reduce == several(p),
            lambda p, t: (
                f"{said(p, 'overlap_grad_reduce')}: {title} always overlaps gradient reduction; "
                "nearest: overlap_grad_reduce=1"
            ),
        ),
        Rule(
            "torchtitan-gather-overlap",
            ("overlap_param_gather", "zero", "dp", "cp"),
            lambda p, t: (p.zero == 1) | (p.overlap_param_gather == (several(p) & (p.zero > 1))),
            lambda p, t: (
                f"{said(p, 'overlap_param_gather')} zero={p.zero}: FSDP2 always prefetches weights "
                f"and DDP has none to gather; nearest: overlap_param_gather={int(p.zero > 1)}"
            ),
        ),
        Rule(
            "torchtitan-p2p-overlap",
            ("overlap_p2p", "virtual_stages"),
            lambda p, t: p.overlap_p2p == (p.virtual_stages > 1),
            lambda p, t: (
                f"{said(p, 'overlap_p2p')}: the pipeline runtime overlaps the sends of several "
                f"chunks; nearest: overlap_p2p={int(p.virtual_stages > 1)}"
            ),
        ),
    )


RULES = (
    *common_rules(TITLE),
    only("torchtitan-context", "cp_comm", ROTATIONS, "torch rotates or gathers keys and values"),
    Rule(
        "torchtitan-expert-overlap",
        ("overlap_ep", "schedule", "recompute"),
        lambda p, t: (
            (p.overlap_ep == 0)
            | ((p.schedule == Schedule.DUALPIPE_V) & (p.recompute == Recompute.NONE))
        ),
        lambda p, t: "overlap_ep needs dualpipe-v without recompute; nearest: overlap_ep=0",
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
            | ((p.precision != Precision.BF16) & (p.precision != Precision.FP8))
        ),
        lambda p, t: (
            f"{said(p, 'precision')}: 0.2 mixes precision through FSDP, which needs dp x cp > 1; "
            "nearest: precision=pure-bf16"
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
)
"""Rules of 0.2."""

Table = dict[str, dict[str, Any]]


def tables(task: Task, plan: Plan) -> Table:
    """The tables of the job configuration."""
    name, flavor = flavor_of(task.model)
    float8 = plan.precision == Precision.FP8
    out: Table = {
        "model": {"name": name, "flavor": flavor, **({"converters": ["float8"]} if float8 else {})},
        "optimizer": {"name": "AdamW"},
        "training": {
            "seq_len": task.sequence,
            "local_batch_size": local_batch(task, plan),
            "global_batch_size": task.global_batch,
            "dtype": "bfloat16" if plan.precision == Precision.PURE_BF16 else "float32",
            "mixed_precision_param": "float32" if plan.precision == Precision.FP32 else "bfloat16",
            "mixed_precision_reduce": "float32",
        },
        "parallelism": parallelism(task, plan, "output"),
        "activation_checkpoint": {"mode": Recompute(int(plan.recompute)).name.lower()},
    }
    out["parallelism"] |= only_in_0_2(plan)
    if plan.overlap_tp or float8:
        out["compile"] = {"enable": True, "components": ["model", "loss"]}
    if float8:
        out["quantize"] = {"linear": {"float8": {"recipe_name": "rowwise"}}}
    return out


def only_in_0_2(plan: Plan) -> dict[str, Any]:
    """Keys that 0.3 no longer has."""
    deep = plan.expert_dispatch == Dispatch.HIERARCHICAL
    keys: dict[str, tuple[bool, Any]] = {
        "context_parallel_rotate_method": (plan.cp > 1, ROTATIONS.get(int(plan.cp_comm))),
        "expert_tensor_parallel_degree": (plan.ep > 1, int(plan.etp)),
        "expert_parallel_comm_backend": (plan.ep > 1, "deepep" if deep else "standard"),
        "pipeline_parallel_expert_parallel_overlap": (
            plan.ep > 1 and plan.schedule == Schedule.DUALPIPE_V,
            bool(plan.overlap_ep),
        ),
        "enable_async_tensor_parallel": (bool(plan.overlap_tp), True),
    }
    return {key: value for key, (needed, value) in keys.items() if needed}


def local_batch(task: Task, plan: Plan) -> int:
    """Sequences of a data rank between two optimizer steps' accumulations: with a pipeline all
    of them, which it splits into micro-batches."""
    return int(plan.micro_batch) * (micro_batches(task, plan) if plan.pp > 1 else 1)


def parallelism(task: Task, plan: Plan, head: str) -> dict[str, Any]:
    """The keys that 0.2 and 0.3 have in common; `head` is the name of the LM head."""
    replicated = plan.zero == 0
    out: dict[str, Any] = {
        "data_parallel_replicate_degree": int(plan.dp) if replicated else 1,
        "data_parallel_shard_degree": 1 if replicated else int(plan.dp),
        "tensor_parallel_degree": int(plan.tp),
        "context_parallel_degree": int(plan.cp),
        "pipeline_parallel_degree": int(plan.pp),
    }
    if not replicated:
        out["fsdp_reshard_after_forward"] = SHARDED[int(plan.zero)]
    if plan.ep > 1:
        out["expert_parallel_degree"] = int(plan.ep)
    return {**out, **pipeline(task, plan, head)} if plan.pp > 1 else out


def pipeline(task: Task, plan: Plan, head: str) -> dict[str, Any]:
    """Schedule, micro-batches and the layers of every chunk.

    torchtitan's own split gives the first and last stage a layer less; so even stages switch
    that off, and others name the modules of every chunk.
    """
    out: dict[str, Any] = {
        "pipeline_parallel_schedule": SCHEDULES[int(plan.schedule)],
        "pipeline_parallel_microbatch_size": int(plan.micro_batch),
    }
    chunks = chunk_sizes(task, plan)
    if len(set(chunks)) == 1:
        return {
            **out,
            "pipeline_parallel_first_stage_less_layers": 0,
            "pipeline_parallel_last_stage_less_layers": 0,
            "pipeline_parallel_layers_per_stage": chunks[0],
        }
    return {**out, "module_fqns_per_model_part": modules(chunks, head)}


def modules(chunks: tuple[int, ...], head: str) -> list[list[str]]:
    """The modules of every chunk in model order."""
    out, at = [], 0
    for layers in chunks:
        out.append([f"layers.{i}" for i in range(at, at + layers)])
        at += layers
    out[0].insert(0, "tok_embeddings")
    out[-1] += ["norm", head]
    return out


def write(task: Task, plan: Plan) -> str:
    """The TOML file."""
    top = "\n".join([*heading(task, plan, TITLE), *registration(task.model), ""])
    return f"{top}\n{toml_text(tables(task, plan))}"


def merge(text: str, kept: Sequence[Kept]) -> str:
    """The file with the keys that an imported one had besides."""
    return f"{comments(text)}\n{toml_text(with_kept(tomllib.loads(text), kept))}"


def toml_text(content: Mapping[str, Any], path: str = "") -> str:
    """Nested tables as TOML."""
    values = {key: value for key, value in content.items() if not isinstance(value, dict)}
    lines = [f"{key} = {toml(value)}" for key, value in values.items()]
    own = "\n".join([*([f"[{path}]"] if path else []), *lines, "", ""]) if lines else ""
    inner = {key: value for key, value in content.items() if isinstance(value, dict)}
    return own + "".join(
        toml_text(value, f"{path}.{key}".lstrip(".")) for key, value in inner.items()
    )


def toml(value: Any) -> str:
    """A value as TOML writes it; text, numbers, truth and lists are as in JSON."""
    if isinstance(value, list) and value and isinstance(value[0], list):
        rows = ",\n".join(f"  {json.dumps(row)}" for row in value)
        return f"[\n{rows},\n]"
    return json.dumps(value)


FORM = Form(VERSION, TITLE, RULES, write, merge)
