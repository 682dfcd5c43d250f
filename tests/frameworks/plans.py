"""Plans that are written, named ones and random legal ones, and what their files mean."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from plan3d.launch_files.exporter import refusals
from plan3d.launch_files.frameworks import for_framework
from plan3d.launch_files.registry import EXPORTERS
from plan3d.launch_files.shape import blocks
from plan3d.launch_files.torchtitan.model_flavors import flavor_model
from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.search.whatif.climb import climbed
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.precision import Precision
from plan3d.simulator.layers.placements import chunk_sizes
from plan3d.simulator.pipeline.schedule import Placement
from plan3d.simulator.pipeline.schedules import placement
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

Case = tuple[Task, Plan]

WINDOWED = {"every 4th whole": (1, 1, 1, 0), "upper half": (0,) * 16 + (1,) * 16}
"""Which layers of a model have a window, as often as they repeat."""
MEGATRON = (
    ("llama-3.1-8b", 32, "tp=2 pp=4 virtual_stages=2"),
    ("llama-3.1-8b", 32, "tp=2 pp=4 virtual_stages=2 overlap_p2p=0 micro_batch_group=8"),
    ("llama-3.1-8b", 32, "tp=2 cp=2 cp_comm=a2a"),
    ("llama-3.1-8b", 16, "pp=4 layers_per_stage=7,9,9,7"),
    ("llama-3.1-8b", 16, "pp=4 first_stage_layers=6 last_stage_layers=6"),
    *(("llama-3.1-8b", 16, f"tp=2 zero={z} recompute=full") for z in (1, 2, 3)),
    ("llama-3.1-8b", 16, "zero=0 overlap_param_gather=0"),
    ("llama-3.1-8b", 16, "dp=8 cp=2 zero=1 shard=4 bucket_parameters=20000000"),
    ("llama-3.1-8b", 16, "tp=2 zero=3 shard=4"),
    ("llama-3.1-8b", 16, "tp=4 pp=2 precision=fp8 overlap_tp=1 recompute=full"),
    ("gpt3-1.3b", 16, "tp=2 pp=2 precision=fp16 sequence_parallel=0"),
    ("mixtral-8x7b", 32, "tp=2 pp=2 ep=8 expert_dispatch=hierarchical"),
    ("mixtral-8x7b", 32, "pp=2 virtual_stages=2 ep=8 overlap_ep=1"),
    ("deepseek-v3", 128, "pp=8 ep=16 recompute=selective"),
    ("deepseek-v3", 128, "pp=8 virtual_stages=2 ep=16 precision=fp8"),
    ("mistral-7b", 16, "tp=2 pp=2"),
    ("mistral-7b", 16, "tp=2 cp=2 cp_comm=all-gather"),
    *((f"llama-3.1-8b, windows {form}", 16, "tp=2 pp=2") for form in WINDOWED),
)

NAMED = {
    "torchtitan": (
        ("llama-3.1-8b", 8, "dp=8 zero=3"),
        ("llama-3.1-8b", 8, "dp=8 zero=0 overlap_param_gather=0"),
        ("llama-3.1-8b", 16, "tp=2 pp=4 zero=2 schedule=gpipe recompute=full"),
        ("llama-3.1-8b", 16, "tp=2 pp=4 virtual_stages=2 zero=2 recompute=full"),
        ("llama-3.1-8b", 16, "pp=4 virtual_stages=2 schedule=zb-v zero=2"),
        ("llama-3.1-8b", 16, "pp=4 zero=2 layers_per_stage=7,9,9,7"),
        ("llama-3.1-8b", 16, "tp=2 cp=2 zero=3 cp_comm=all-gather"),
        ("llama-3.1-8b", 16, "tp=2 zero=3 precision=fp8"),
        ("llama-3.1-8b", 16, "tp=2 zero=3 recompute=selective"),
        ("llama-3.1-8b", 16, "dp=8 cp=2 zero=3 shard=4 cp_comm=all-gather"),
        ("llama-7b", 16, "tp=2 pp=2 zero=2"),
        ("deepseek_v3 671B", 64, "tp=2 ep=32 zero=3"),
        ("deepseek_v3 671B", 64, "pp=4 ep=16 zero=2 first_stage_layers=16"),
    ),
    "deepspeed": (
        *(("llama-3.1-8b", 16, f"zero={z} overlap_param_gather={int(z == 3)}") for z in (1, 2, 3)),
        ("llama-3.1-8b", 16, "zero=0 overlap_param_gather=0 overlap_grad_reduce=0 precision=fp32"),
        ("gpt3-1.3b", 16, "tp=2 pp=4 zero=1 overlap_param_gather=0 overlap_grad_reduce=0"),
        ("llama-3.1-8b", 16, "cp=4 cp_comm=a2a zero=3 recompute=full"),
        ("llama-3.1-8b", 16, "zero=2 overlap_param_gather=0 bucket_parameters=20000000"),
        ("gpt3-1.3b", 16, "dp=16 zero=2 overlap_param_gather=0 precision=fp16"),
    ),
    "megatron": MEGATRON,
    "megatron-bridge": MEGATRON,
}
"""Model, GPUs and plan by framework."""


CLUSTERS = (
    ("a100-80gb-sxm", 1),
    ("h100-sxm", 2),
    ("h800-sxm", 4),
    ("gb200", 8),
    ("mi300x", 16),
)
"""Profiles, and how many times the fewest GPUs of a model they have."""
FIRST = {
    "gpt3-1.3b": (8, 2048, 512),
    "gpt3-6.7b": (16, 2048, 1024),
    "gpt3-175b": (512, 2048, 1536),
    "megatron-529.6b": (1024, 2048, 1920),
    "llama-7b": (16, 2048, 2048),
    "llama-2-70b": (64, 4096, 1024),
    "llama-3.1-8b": (8, 8192, 512),
    "llama-3.1-70b": (128, 8192, 1024),
    "llama-3.1-405b": (1024, 8192, 2048),
    "mixtral-8x7b": (32, 4096, 1024),
    "qwen3-235b-a22b": (256, 4096, 4096),
    "deepseek-v3": (512, 4096, 8192),
}
"""Models, dense and of experts: the fewest GPUs, tokens of a sequence, sequences of a batch."""


def first_plans(framework: str, version: str) -> list[Case]:
    """The first plans of searches for this framework: of 12 models on 5 clusters, on 8 to 16,384
    GPUs; those of the models that it has."""
    out: list[Case] = []
    for model, (fewest, sequence, batch) in FIRST.items():
        for cluster, times in CLUSTERS:
            asked = Task(
                Model.preset(model),
                Cluster.profile(cluster, gpus=fewest * times),
                sequence=sequence,
                global_batch=batch,
            )
            task = for_framework(asked, framework, version)
            best = climbed(rank_plans(task, Ranking(families=True)), (), top=1).best
            if best is not None:
                out.append((task, best.plans.take(0)))
    return out


def task_of(model: str, gpus: int) -> Task:
    name, _, flavor = model.partition(" ")
    layers = flavor_model(name, flavor) or Model.preset(name.rstrip(","))
    form = flavor.removeprefix("windows ")
    layers = windowed(layers, WINDOWED[form]) if form in WINDOWED else layers
    return Task(layers, Cluster.profile("h100-sxm", gpus=gpus), sequence=2048, global_batch=1536)


def windowed(model: Model, pattern: tuple[int, ...]) -> Model:
    """A model of one kind of layer with a window of 1,024 keys in some of its layers."""
    (block,) = model.kinds
    window = replace(block, attention=replace(block.attention, window=1024))
    order = (pattern * model.layers)[: model.layers]
    return replace(model, kinds=(block, window), order=order)


def named_plans(framework: str, version: str) -> list[Case]:
    """The named plans that this version is said to run."""
    form = EXPORTERS[framework].form(version)
    cases = [(task_of(model, gpus), Plan.parse(plan)) for model, gpus, plan in NAMED[framework]]
    return [c for c in cases if not refusals(c[0], resolve(c[1], c[0].gpus).take(0), form)]


@cache
def _round_trips() -> Any:
    path = Path(__file__).parents[1] / "plan3d" / "launch_files" / "test_round_trips.py"
    spec = importlib.util.spec_from_file_location("round_trips", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def random_plans(framework: str, version: str, count: int) -> list[Case]:
    """Random plans that the framework is said to run."""
    trips, random = _round_trips(), np.random.default_rng(11)
    drawn = "megatron" if framework == "megatron-bridge" else framework
    form = EXPORTERS[framework].form(version)
    out: list[Case] = []
    while len(out) < count:
        model = str(random.choice(trips.MODELS[drawn]))
        gpus = int(random.choice((8, 12, 16)))
        plans = trips.legal_plans(drawn, model, gpus)
        task, plan = trips.base(model, gpus), plans.take(int(random.integers(plans.rows)))
        if not refusals(task, plan, form):
            out.append((task, plan))
    return out


def expected(task: Task, plan: Plan) -> dict[str, Any]:
    """What a file means, by the names that readers use."""
    row = resolve(plan, task.gpus).take(0)
    chunks = chunk_sizes(task, row)
    folded = placement(row.schedule) == Placement.V_SHAPED
    return {
        "dp": int(row.dp),
        "axes": tuple(int(axis) for axis in (row.tp, row.cp, row.pp, row.ep)),
        "micro_batches": int(task.global_batch // (row.micro_batch * row.dp)),
        "parameters": task.model.parameters,
        "micro_batch": int(row.micro_batch),
        "zero": int(row.zero),
        "replicas": int(row.dp * row.cp // row.shard) if row.shard else 1,
        "bucket_parameters": int(row.bucket_parameters),
        "formats": (row.precision == Precision.BF16, row.precision == Precision.FP16),
        "overlap_grad_reduce": bool(row.overlap_grad_reduce),
        "chunks": list(chunks),
        "sequence_parallel": bool(row.sequence_parallel),
        "overlap_p2p": bool(row.overlap_p2p),
        "overlap_param_gather": bool(row.overlap_param_gather),
        "windows": _windows(task.model),
        "chunks of rank 0": [chunks[0], chunks[-1]] if folded else list(chunks[:: int(row.pp)]),
    }


def _windows(model: Model) -> list[int]:
    """The windows of the layers, and of multi-token prediction."""
    found = [layer.attention.window for layer in blocks(model)]
    return [*found, *found[-1:] * model.mtp_layers]
