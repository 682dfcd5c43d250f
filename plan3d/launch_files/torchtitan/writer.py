"""How does torchtitan 0.2 run a plan? A TOML job configuration.

Source: torchtitan 0.2.2, config/job_config.py, distributed/parallel_dims.py,
distributed/pipeline_parallel.py, models/llama3/infra/parallelize.py; 0.3.0, trainer.py.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from plan3d.simulator.hardware.precision import Precision
from plan3d.simulator.pipeline.schedules import code
from plan3d.simulator.plan.codes import Dispatch, Recompute
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.step.stage_layouts import chunk_sizes
from plan3d.simulator.task import Task

from ..documents import comments, with_kept
from ..exporter import Form, heading, micro_batches
from ..launch_file import Kept
from .model_flavors import flavor_of, registration
from .rules import FLOAT8, ROTATIONS, RULES, SCHEDULES, TITLE, VERSION

SHARDED = {2: "never", 3: "always"}
"""fsdp_reshard_after_forward by ZeRO stage."""

Table = dict[str, dict[str, Any]]


def tables(task: Task, plan: Plan) -> Table:
    """The tables of the job configuration."""
    name, flavor = flavor_of(task.model)
    float8 = plan.precision == Precision.FP8
    out: Table = {
        "model": {"name": name, "flavor": flavor, **({"converters": [FLOAT8]} if float8 else {})},
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
            plan.ep > 1 and plan.schedule == code("dualpipe-v"),
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
    shards = 1 if replicated else int(plan.shard // plan.cp or plan.dp)
    out: dict[str, Any] = {
        "data_parallel_replicate_degree": int(plan.dp) // shards,
        "data_parallel_shard_degree": shards,
        "tensor_parallel_degree": int(plan.tp),
        "context_parallel_degree": int(plan.cp),
        "pipeline_parallel_degree": int(plan.pp),
        "expert_parallel_degree": int(plan.ep),
    }
    if not replicated:
        out["fsdp_reshard_after_forward"] = SHARDED[int(plan.zero)]
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
