"""Configurations of DeepSpeed: JSON; with tensor or pipeline parallelism, or recompute of a model
that it has, also the flags of Megatron-DeepSpeed, in one shell fragment that writes the JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from plan3d.simulator.base.documents import parse_json
from plan3d.simulator.plan.codes import Recompute
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.task import Task

from ..documents import Document, nested_document, with_unread
from ..exporter import Exporter, Form, heading, unwritten_settings
from ..launch_file import NO_OPTIONS, Launch, ReaderOptions, UnreadSetting
from ..megatron.launch import environment
from ..megatron.meaning import from_flags
from ..megatron.reader import keep
from ..numbers import fill_launch, model_of, numbers_of
from ..processes import not_full, started
from ..shell import fragment
from ..shell.flags import Flags
from ..shell.launch_script import launcher_gpus, script_of, training_words
from ..shell.script import Script
from ..tables import Numbers, key_classes, read_implied, read_rows, settings_of
from .keys import (
    ARRAYS,
    CONFIG,
    FILE,
    MATTERS,
    TABLE,
)
from .rules import RULES, needs_megatron
from .spelling import from_config, schedule_from_flags, to_config, to_flags

VERSION = "0.19"
TITLE = f"DeepSpeed {VERSION}"


def write(task: Task, plan: Plan, unread: Sequence[UnreadSetting] = ()) -> str:
    """The JSON file, or a shell fragment that writes it and states the other flags."""
    n, megatron = numbers_of(task, plan), bool(needs_megatron(plan, task))
    n = to_flags(n, task) if megatron else to_config(n)
    n.checkpointed = n.recompute == Recompute.FULL and not megatron
    content = with_unread(nested_document(settings_of(CONFIG, n)), unread, key_classes(CONFIG, n))
    text = json.dumps(content, indent=2)
    if not megatron:
        return f"{text}\n"
    groups = {name: fragment.flag_lines(settings_of(table, n)) for name, table in ARRAYS.items()}
    nodes, each, last = started(task.cluster)
    sizes = f"--num_nodes {nodes}" + f" --num_gpus {each}" * (last == each)
    top = heading(task, plan, f"{TITLE} with Megatron-DeepSpeed")
    top += unwritten_settings(task.model, "--rotary-position-embeddings-theta (10000 unless set)")
    top += [*environment(task, plan, False), *fragment.required_assignments(unread)]
    top += [f"cat > {FILE} <<'JSON'", text, "JSON"]
    top += not_full(task.cluster, "with slots={} in the hostfile")
    command = f"deepspeed {sizes} pretrain_gpt.py"
    return fragment.fragment_text(
        top, fragment.with_unread(groups, unread, key_classes(TABLE, n)), command
    )


def read(text: str, file: str, given: ReaderOptions = NO_OPTIONS) -> Launch:
    """The launch of a JSON file or a script. Raises InputError naming key or line."""
    launch = Launch(file, "deepspeed")
    if not text.lstrip().startswith("{"):
        return _script(text, launch, given)
    n = Numbers(tp=1, pp=1, cp=1, recompute=0)
    config, follow = _configuration(text, launch, file, n)
    n.recompute = Recompute.FULL if n.checkpointed else Recompute.NONE
    fill_launch(launch, n)
    launch.unread = config.unread(MATTERS, follow)
    return launch


Read = tuple[Document, frozenset[str]]
"""A configuration that was read, and places where it may say what else follows from the plan."""


def _configuration(text: str, launch: Launch, where: str, n: Numbers) -> Read:
    """The numbers of a JSON configuration; `where` names it in errors."""
    config = Document(_parsed(text, where), where)
    read_rows(CONFIG, config, n)
    from_config(config, n, launch)
    return config, read_implied(CONFIG, config, n)


def _parsed(text: str, where: str) -> dict[str, Any]:
    content = parse_json(text, where)
    if not isinstance(content, dict):
        raise Launch(where, "").refuse("must hold a JSON object")
    return content


def _script(text: str, launch: Launch, given: ReaderOptions) -> Launch:
    """A script of Megatron-DeepSpeed: its flags, and the JSON that it writes."""
    found = script_of(text, launch.file)
    flags, n = Flags.of(training_words(found), launch.file), Numbers()
    read_rows(TABLE, flags, n)
    from_flags(flags, n, launch, given.vocabulary)
    launch.launcher_gpus = launcher_gpus(found)
    if n.without_stages and n.pp > 1:
        raise flags.value_error("--no-pipeline-parallel", f"contradicts {n.pp} pipeline stages")
    schedule_from_flags(n, launch)
    launch.model = model_of(n, launch.stem, "flags of a Megatron-LM script")
    written_too = _written(found, n, launch)
    fill_launch(launch, n)
    keep(flags, found, launch, read_implied(TABLE, flags, n))
    if written_too:
        config, follow = written_too
        launch.unread += config.unread(MATTERS, follow)
    return launch


def _written(found: Script, n: Numbers, launch: Launch) -> Read | None:
    """The JSON of a here-document, which must say what the flags say."""
    document = next((d for d in found.documents if d.text.lstrip().startswith("{")), None)
    if document is None:
        return None
    own = Numbers(tp=n.tp, pp=n.pp, cp=n.cp)
    read_too = _configuration(document.text, launch, f"{launch.file}: line {document.line}", own)
    for name in ("micro_batch", "zero", "precision"):
        if getattr(own, name) != getattr(n, name):
            raise launch.refuse(
                f"line {document.line}: the JSON has {name} {getattr(own, name)}, the flags have "
                f"{getattr(n, name)}"
            )
    if own.global_batch not in (None, n.global_batch):
        raise launch.refuse(
            f"line {document.line}: the JSON has a batch of {own.global_batch}, "
            f"--global-batch-size {n.global_batch}"
        )
    decided = ("overlap_grad_reduce", "overlap_param_gather", "bucket_parameters")
    for name in (*decided, "offload_optimizer", "offload_parameters", "nvme"):
        setattr(n, name, getattr(own, name))
    n.gpus = getattr(own, "gpus", None)
    return read_too


EXPORTER = Exporter(
    "deepspeed",
    (Form(VERSION, TITLE, RULES, write, table=(*TABLE, *CONFIG)),),
    software="deepspeed",
    search_values={"overlap_param_gather": (0, 1), "cp_comm": ("p2p", "a2a")},
)
