"""Overrides of recipes of Megatron-Bridge, for 0.3.

Source: megatron-bridge 0.3.1, training/utils/omegaconf_utils.py: overrides are words of Hydra and
go to a closed structure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.task import Task

from ..exporter import Exporter, Form, allowed_values, heading
from ..launch_file import UnreadSetting
from ..megatron.launch import environment
from ..megatron.rules import rules
from ..numbers import numbers_of
from ..processes import PROCESSES, not_full, torchrun
from ..shell.fragment import bash_array
from ..shell.words import quote
from ..tables import settings_of
from .keys import MIXED, TABLE, to_overrides

VERSION = "0.3.1"
TITLE = f"Megatron-Bridge {VERSION}"
RULES = (
    *rules(TITLE, "megatron-bridge"),
    allowed_values(
        "megatron-bridge-recipe", "precision", MIXED.values(), f"{TITLE} has no recipe for it"
    ),
)


def hydra(value: Any) -> str:
    """A value as an override states it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return f'"{value}"' if isinstance(value, str) and not value.isidentifier() else str(value)


def write(task: Task, plan: Plan, unread: Sequence[UnreadSetting] = ()) -> str:
    """The overrides as a bash array."""
    n = to_overrides(numbers_of(task, plan), task)
    words = [quote(f"{key}={hydra(value)}") for key, value in settings_of(TABLE, n)]
    return "\n".join(
        [
            *heading(task, plan, TITLE),
            *environment(task, plan, n.fsdp),
            *bash_array("OVERRIDES", words),
            "# Start from the recipe of this model, or of one of its family:",
            *not_full(task.cluster, PROCESSES),
            f'# {torchrun(task.cluster)} run_recipe.py --recipe RECIPE "${{OVERRIDES[@]}}"',
            "",
        ]
    )


EXPORTER = Exporter(
    "megatron-bridge",
    (Form(VERSION, TITLE, RULES, write, keeps_unread=False, table=TABLE),),
    software="megatron-core",
)
