"""The answer of the last search, kept in the user's cache: its plans are `last#1`, `last#2`, ...

The file is a saved result like that of --json, with the options that state its question beside it,
so that `plan3d export last#2` needs nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plan3d.simulator.base.documents import SCHEMA
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.files import is_local

from ...answers.question import LAST
from ...screens.output import warn, write_whole
from ..options.table import OPTIONS
from .task_arguments import LAYOUTS, PLAN_FIELDS

if TYPE_CHECKING:
    from ...answers.search import SearchAnswer

OPTIONS_KEPT = frozenset(
    option.name
    for option in OPTIONS
    if {"search", "estimate"} <= set(option.verbs)
    and option.metavar
    and option.name not in (*PLAN_FIELDS, *LAYOUTS, "nodes", "global_batch_tokens")
)
"""Options that state a question, those of a plan's fields and other words for a size aside."""


def path() -> Path:
    """Where the answer is kept."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "plan3d" / "last-search.json"


def keep(args: argparse.Namespace, answer: SearchAnswer) -> None:
    """Keep the plans of an answer, of which there may be none; a warning where that fails, for what
    was kept before is then another search's."""
    if not is_local():
        return
    task = answer.result.task
    options = {name: getattr(args, name, None) for name in sorted(OPTIONS_KEPT)}
    options |= {"gpus": task.gpus, "sequence": task.sequence, "global_batch": task.global_batch}
    kept: dict[str, Any] = {
        "schema": SCHEMA,
        "options": {name: _absolute(v) for name, v in options.items() if v is not None},
        "plans": [{"plan": plan.to_record()} for plan in answer.result.plans],
    }
    if answer.safe is not None:
        kept["safe"] = {"plan": answer.safe.plans.take(0).to_record()}
    try:
        path().parent.mkdir(parents=True, exist_ok=True)
        write_whole(str(path()), LAST, json.dumps(kept))
    except (InputError, OSError, RuntimeError) as error:
        warn(f"{LAST}#1 is not this search's plan: {error}", args.quiet)


def _absolute(value: Any) -> Any:
    """The value of an option, a file or a folder by its whole path; a folder without a separator
    may have the name of a preset, which comes first."""
    if not isinstance(value, str) or not os.path.exists(value):
        return value
    return os.path.abspath(value) if os.path.isfile(value) or "/" in value else value
