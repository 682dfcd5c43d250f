"""Launch files of a pipeline over two kinds of machines: the nodes of one come first.

A framework has one tp, dp, ZeRO stage and recompute, so stages differ in their layers only. The
ranks of a stage are consecutive where pipeline stages are the outermost dimension, so the kinds of
nodes follow from the order in which nodes join.
Source: Megatron-LM, megatron/core/parallel_state.py (order tp-cp-ep-dp-pp); torchtitan,
torchtitan/distributed/parallel_dims.py (pp is the first dimension of the mesh).
"""

from __future__ import annotations

from dataclasses import replace

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.task import Task

from . import exporter
from .exporter import Form
from .registry import EXPORTERS

TAKES_LAYERS = ("megatron", "megatron-bridge", "torchtitan")
"""Frameworks that are told the layers of every stage; others cut stages themselves."""
Pools = tuple[Task, Task]
"""The task on the machines of the first stages, and on those of the last."""


def refusals(pools: Pools, plan: Plan, form: Form) -> list[str]:
    """Why a framework cannot run a plan of all GPUs on both pools, a sentence a rule."""
    nodes = [task.cluster.gpus_per_node for task in pools]
    gpus = pools[0].gpus + pools[1].gpus
    stage = gpus // int(plan.pp)
    known = [name for name in TAKES_LAYERS if form in EXPORTERS[name].forms]
    checks = (
        (bool(known), f"{form.title} cuts stages itself, as if all ranks were alike (own-stages)"),
        (
            nodes[0] == nodes[1],
            f"nodes of {nodes[0]} and of {nodes[1]} GPUs start unlike numbers of processes "
            "(nodes-alike)",
        ),
        (
            all(task.gpus % task.cluster.gpus_per_node == 0 for task in pools),
            "a node would be of both kinds: pools are whole nodes (whole-nodes)",
        ),
        (
            pools[0].gpus % stage == 0,
            f"pp={int(plan.pp)} makes stages of {stage} GPUs, which {pools[0].gpus} GPUs of "
            f"{pools[0].cluster.name} are no multiple of (stages-in-one-pool)",
        ),
    )
    own = [why for ok, why in checks if not ok]
    rules = (
        exporter.refusals(task, plan, form)
        for task in (on_all_gpus(pools), on_all_gpus(pools[::-1]))
    )
    return own + list(dict.fromkeys(why for each in rules for why in each))


def launch_text(pools: Pools, plan: Plan, form: Form) -> str:
    """The file of one plan of all GPUs. Raises InputError with every rule that it breaks."""
    task = on_all_gpus(pools)
    plan = resolve(plan, task.gpus).take(0)
    refused = refusals(pools, plan, form)
    if refused:
        raise InputError(f"{form.title} cannot run {plan}: {'; '.join(refused)}")
    nodes = [task.cluster.nodes for task in pools]
    ends = f"nodes 0 to {nodes[0] - 1}", f"nodes {nodes[0]} to {sum(nodes) - 1}"
    kinds = " and ".join(
        f"{pool.cluster.accelerator.name} ({where})"
        for pool, where in zip(pools, ends, strict=True)
    )
    accelerator = replace(task.cluster.accelerator, name=kinds)
    named = replace(task, cluster=replace(task.cluster, accelerator=accelerator))
    return form.write(named, exporter.with_stage_layers(plan), ())


def on_all_gpus(pools: Pools) -> Task:
    """The task on all GPUs, as if they were those of the first pool."""
    cluster = replace(pools[0].cluster, gpus=pools[0].gpus + pools[1].gpus)
    return replace(pools[0], cluster=cluster)
