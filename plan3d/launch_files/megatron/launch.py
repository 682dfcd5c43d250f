"""Launch scripts of Megatron-LM: a shell fragment of flags, for megatron/core 0.16, and back."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.task import Task

from ..exporter import Exporter, Form, heading, unsaid
from ..launch_file import NOTHING, Given, Kept, Launch
from ..numbers import fill, model_of, numbers_of
from ..shell.flags import Flags
from ..shell.fragment import lines, needed, script, with_kept
from ..shell.launch_script import launcher_gpus, script_of, training_words
from ..shell.script import Script
from ..tables import Numbers, Table, places, read_implied, stated
from ..tables import read as read_table
from .flags import AXES, MODEL, SHARDING, TRAINING
from .meaning import meant, meant_offload, meant_sharding
from .rules import rules
from .spelling import spelled

VERSION = "0.16"
TITLE = f"Megatron-LM (core {VERSION})"
ARRAYS = {"MODEL_ARGS": MODEL, "PARALLEL_ARGS": (*AXES, *SHARDING), "TRAINING_ARGS": TRAINING}
TABLE: Table = (*MODEL, *AXES, *SHARDING, *TRAINING)
BLACKWELL = ("b200", "b300", "gb200", "gb300")
"""Accelerators without the limit on device connections."""
ROTATION = "--rotary-base (10000 unless set), --use-rope-scaling"
ROUTER = (
    "--moe-router-score-function (softmax unless set), --moe-router-enable-expert-bias, "
    "--moe-router-topk-scaling-factor, --moe-router-load-balancing-type"
)
"""Settings of a model that change neither time nor memory, and that plan3d does not know."""
MATTERS = (
    "--cpu-offloading-weights",
    "--fine-grained-activation-offloading",
    "--distribute-saved-activations",
    "--outer-dp-sharding-strategy",
    "--use-precision-aware-optimizer",
    "--grad-reduce-in-bf16",
    "--hierarchical-context-parallel-sizes",
    "--window-size",
    "--moe-shared-expert-overlap",
    "--defer-embedding-wgrad-compute",
    "--use-tp-pp-dp-mapping",
    "--rampup-batch-size",
    "--encoder-num-layers",
    "--cross-entropy-loss-fusion",
    "--moe-pad-expert-input-to-capacity",
    "--moe-expert-capacity-factor",
)
"""Flags that change time or memory and are not modelled."""


def write(task: Task, plan: Plan, kept: Sequence[Kept] = ()) -> str:
    """The flags as bash arrays, to be sourced by a launch script."""
    n = spelled(numbers_of(task, plan), task)
    groups = {name: lines(stated(table, n)) for name, table in ARRAYS.items()}
    top = [
        *heading(task, plan, TITLE),
        *unsaid(task.model, ROTATION, ROUTER),
        *environment(task, plan, n.fsdp),
        *needed(kept),
    ]
    nodes, each = task.cluster.nodes, task.cluster.gpus_per_node
    command = f"torchrun --nnodes {nodes} --nproc-per-node {each} pretrain_gpt.py"
    return script(top, with_kept(groups, kept, places(TABLE, n)), command)


def environment(task: Task, plan: Plan, fsdp: bool) -> list[str]:
    """CUDA_DEVICE_MAX_CONNECTIONS, which validate_args insists on before Blackwell."""
    if fsdp:
        return ["unset CUDA_DEVICE_MAX_CONNECTIONS  # Megatron-FSDP needs more than one"]
    name = task.cluster.accelerator.name.lower()
    if any(chip in name for chip in BLACKWELL):
        return []
    if plan.overlap_ep:
        return [
            "export CUDA_DEVICE_MAX_CONNECTIONS=32  # overlap of expert exchanges before Blackwell"
        ]
    if plan.tp == 1 and plan.cp == 1:
        return []
    return [
        "export CUDA_DEVICE_MAX_CONNECTIONS=1  # tensor or context parallelism before Blackwell"
    ]


def read(text: str, file: str, given: Given = NOTHING) -> Launch:
    """The launch of a script. Raises InputError naming the line that is wrong."""
    found = script_of(text, file)
    flags = Flags.of(training_words(found), file)
    launch, n = Launch(file, "megatron", launcher_gpus=launcher_gpus(found)), Numbers()
    read_table(TABLE, flags, n)
    meant(flags, n, launch, given.vocabulary)
    meant_sharding(flags, n)
    meant_offload(flags, n, launch)
    launch.model = model_of(n, launch.stem, "flags of a Megatron-LM script")
    fill(launch, n)
    keep(flags, found, launch, read_implied(TABLE, flags, n))
    return launch


def keep(flags: Flags, found: Script, launch: Launch, follow: Collection[str]) -> None:
    """Note every flag that nothing read, and which `follow` from the plan; refuse a known one that
    depends on a condition."""
    conditional = Flags.of(found.conditional_words(), found.file).given
    for flag in conditional:
        if flag.name in flags.used:
            raise launch.refuse(
                f"line {flag.line}: {flag} depends on a condition; write it where it always holds"
            )
    for flag in [*flags.rest(), *conditional]:
        lines = [line for word in flag.words for line in found.variables.needed(word)]
        part = Kept(f"line {flag.line}", str(flag), flag.name in MATTERS, flag.name in follow)
        needs = tuple(dict.fromkeys(lines))
        launch.kept.append(replace(part, flag=flag.name, needs=needs))


EXPORTER = Exporter(
    "megatron",
    (Form(VERSION, TITLE, rules(TITLE, "megatron"), write, table=TABLE),),
    software="megatron-core",
)
