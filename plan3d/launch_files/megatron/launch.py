"""Launch scripts of Megatron-LM, written and read: flags of megatron/core 0.16."""

from __future__ import annotations

from collections.abc import Sequence

from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.task import Task

from ..exporter import (
    PROCESSES,
    Exporter,
    Form,
    heading,
    partial_node,
    torchrun,
    unwritten_settings,
)
from ..launch_file import NO_OPTIONS, Launch, ReaderOptions, UnreadSetting
from ..model_settings import ALL
from ..numbers import fill_launch, model_of, numbers_of
from ..tables import Numbers, key_classes, read_implied, read_rows, settings_of
from .flags import ARRAYS, TABLE
from .rules import rules
from .spelling import to_flags

VERSION = "0.16"
TITLE = f"Megatron-LM (core {VERSION})"
BLACKWELL = ("b200", "b300", "gb200", "gb300")
"""Accelerators without the limit on device connections."""
BASE, SCALING = "--rotary-base", "--use-rope-scaling"
BALANCING = "--moe-router-load-balancing-type"
ROUTER = (
    "--moe-router-score-function (softmax unless set), --moe-router-enable-expert-bias, "
    f"--moe-router-topk-scaling-factor, {BALANCING}"
)
"""Settings that change neither time nor memory, and are not written where a model states none."""


def write(task: Task, plan: Plan, unread: Sequence[UnreadSetting] = ()) -> str:
    """The flags as bash arrays, to be sourced by a launch script."""
    from ..shell.launch_script import flag_lines, fragment_text, required_assignments, with_unread

    n = to_flags(numbers_of(task, plan), task)
    groups = {name: flag_lines(settings_of(table, n)) for name, table in ARRAYS.items()}
    top = [
        *heading(task, plan, TITLE),
        *unwritten_settings(task.model, BASE, SCALING, ROUTER, BALANCING),
        *environment(task, plan, n.fsdp),
        *required_assignments(unread),
        *partial_node(task.cluster, PROCESSES),
    ]
    command = f"{torchrun(task.cluster)} pretrain_gpt.py"
    return fragment_text(top, with_unread(groups, unread, key_classes(TABLE, n)), command)


def environment(task: Task, plan: Plan, fsdp: bool) -> list[str]:
    """CUDA_DEVICE_MAX_CONNECTIONS, which validate_args insists on before Blackwell."""
    if fsdp:
        return ["unset CUDA_DEVICE_MAX_CONNECTIONS  # Megatron-FSDP needs more than one"]
    kinds = task.cluster.accelerator.name.lower().split(" and ")
    if all(any(chip in kind for chip in BLACKWELL) for kind in kinds):
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


def read(text: str, file: str, options: ReaderOptions = NO_OPTIONS) -> Launch:
    """The launch of a script. Raises InputError naming the line that is wrong."""
    from ..shell.launch_script import launcher_gpus, script_of
    from .meaning import (
        from_flags,
        note_routing,
        offload_from_flags,
        sharding_from_flags,
        windows_from_flags,
    )
    from .script_flags import command_flags, unread_flags

    script = script_of(text, file, options.inputs)
    launch, n = Launch(file, "megatron", launcher_gpus=launcher_gpus(script)), Numbers()
    flags = command_flags(script, TABLE, launch)
    read_rows(TABLE, flags, n)
    from_flags(flags, n, launch, options.vocabulary)
    note_routing(flags, n, launch)
    windows_from_flags(flags, n)
    sharding_from_flags(flags, n, launch)
    offload_from_flags(flags, n, launch)
    launch.model = model_of(n, launch.stem, "flags of a Megatron-LM script")
    fill_launch(launch, n)
    derived = read_implied(TABLE, flags, n)
    launch.unread += unread_flags(flags, script, TABLE, derived)
    return launch


EXPORTER = Exporter(
    "megatron",
    (Form(VERSION, TITLE, rules(TITLE, "megatron"), write, table=TABLE, model_settings=ALL),),
    software="megatron-core",
)
