"""Launch scripts of Megatron-LM: a shell fragment of flags, for megatron/core 0.16."""

from __future__ import annotations

from collections.abc import Sequence

from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.task import Task

from ..exporter import Exporter, Form, heading, unwritten_settings
from ..launch_file import UnreadSetting
from ..numbers import numbers_of
from ..processes import PROCESSES, not_full, torchrun
from ..shell.fragment import flag_lines, fragment_text, required_assignments, with_unread
from ..tables import Table, key_classes, settings_of
from .flags import AXES, MODEL, SHARDING, TRAINING, WINDOWS
from .rules import rules
from .spelling import to_flags

VERSION = "0.16"
TITLE = f"Megatron-LM (core {VERSION})"
ARRAYS = {
    "MODEL_ARGS": (*MODEL, *WINDOWS),
    "PARALLEL_ARGS": (*AXES, *SHARDING),
    "TRAINING_ARGS": TRAINING,
}
TABLE: Table = tuple(row for rows in ARRAYS.values() for row in rows)
BLACKWELL = ("b200", "b300", "gb200", "gb300")
"""Accelerators without the limit on device connections."""
ROTATION = "--rotary-base (10000 unless set), --use-rope-scaling"
ROUTER = (
    "--moe-router-score-function (softmax unless set), --moe-router-enable-expert-bias, "
    "--moe-router-topk-scaling-factor, --moe-router-load-balancing-type"
)
"""Settings of a model that change neither time nor memory, and that plan3d does not know."""


def write(task: Task, plan: Plan, unread: Sequence[UnreadSetting] = ()) -> str:
    """The flags as bash arrays, to be sourced by a launch script."""
    n = to_flags(numbers_of(task, plan), task)
    groups = {name: flag_lines(settings_of(table, n)) for name, table in ARRAYS.items()}
    top = [
        *heading(task, plan, TITLE),
        *unwritten_settings(task.model, ROTATION, ROUTER),
        *environment(task, plan, n.fsdp),
        *required_assignments(unread),
        *not_full(task.cluster, PROCESSES),
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


EXPORTER = Exporter(
    "megatron",
    (Form(VERSION, TITLE, rules(TITLE, "megatron"), write, table=TABLE),),
    software="megatron-core",
)
