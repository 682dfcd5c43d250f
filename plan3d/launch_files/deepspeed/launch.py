"""Configurations of DeepSpeed, written and read: JSON, or a script of Megatron-DeepSpeed.

A plan with tensor or pipeline parallelism, or with recompute of a model that Megatron-DeepSpeed
has, also needs its flags: then one shell fragment states them and writes the JSON.
Source: DeepSpeed 0.19, runtime/engine.py (_do_optimizer_sanity_check) and bf16_optimizer.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from plan3d.simulator.base.documents import parse_json
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.precision import Precision
from plan3d.simulator.plan.field_values import Recompute
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.task import Task

from ..documents import Document, nested_document, with_unread
from ..exporter import (
    HEADING,
    Exporter,
    Form,
    heading,
    heading_model,
    partial_node,
    processes_by_node,
    read_heading,
    unwritten_settings,
)
from ..launch_file import NO_OPTIONS, Launch, ReaderOptions, UnreadSetting
from ..megatron.launch import environment
from ..megatron.meaning import from_flags
from ..megatron.script_flags import command_flags, unread_flags
from ..numbers import fill_launch, model_of, numbers_of
from ..shell import launch_script
from ..shell.contents import Document as ScriptDocument
from ..shell.contents import Script
from ..shell.flags import Flags
from ..shell.templates import replaced_documents
from ..tables import Numbers, key_classes, read_implied, read_rows, settings_of
from .keys import ARRAYS, CONFIG, FILE, TABLE
from .rules import RULES, needs_megatron
from .spelling import (
    experts_from_flags,
    from_config,
    schedule_from_flags,
    to_config,
    to_flags,
    with_expert_counts,
)
from .trainer_values import is_batch_open, with_trainer_values

_PLACEHOLDER = re.compile(r":\s*([A-Z][A-Z0-9_]{2,60})\s*[,}\n]")
"""A value without quotation that is no number: NaN and Infinity have small letters."""
OWN = "plan3d"
"""The key of what a JSON file of plan3d is for: DeepSpeed asks for keys by name, and ignores others
(runtime/config.py)."""
VERSION = "0.19"
TITLE = f"DeepSpeed {VERSION}"


def write(task: Task, plan: Plan, unread: Sequence[UnreadSetting] = ()) -> str:
    """The JSON file, or a shell fragment that writes it and states the other flags."""
    n, megatron = numbers_of(task, plan), bool(needs_megatron(plan, task))
    n = to_flags(n, task) if megatron else to_config(n)
    n.has_checkpointing = n.recompute == Recompute.FULL and not megatron
    content = with_unread(nested_document(settings_of(CONFIG, n)), unread, key_classes(CONFIG, n))
    text = json.dumps(content, indent=2)
    if not megatron:
        own = {"heading": heading(task, plan, TITLE), "sequence": task.sequence}
        return f"{json.dumps({**content, OWN: own}, indent=2)}\n"
    lines = {
        name: launch_script.flag_lines(settings_of(table, n)) for name, table in ARRAYS.items()
    }
    nodes, each, last = processes_by_node(task.cluster)
    sizes = f"--num_nodes {nodes}" + f" --num_gpus {each}" * (last == each)
    top = [
        *heading(task, plan, f"{TITLE} with Megatron-DeepSpeed"),
        *unwritten_settings(task.model, "--rotary-position-embeddings-theta", ""),
        *environment(task, plan, False),
        *launch_script.required_assignments(unread),
        f"cat > {FILE} <<'JSON'",
        text,
        "JSON",
        *partial_node(task.cluster, "with slots={} in the hostfile"),
    ]
    arrays = launch_script.with_unread(lines, unread, key_classes(TABLE, n))
    return launch_script.fragment_text(top, arrays, f"deepspeed {sizes} pretrain_gpt.py")


def read(text: str, file: str, options: ReaderOptions = NO_OPTIONS) -> Launch:
    """The launch of a JSON file or a script. Raises InputError naming key or line."""
    launch = Launch(file, "deepspeed")
    if not text.lstrip().startswith("{"):
        return _read_script(text, launch, options)
    n = Numbers(tp=1, pp=1, cp=1, recompute=0)
    content = _json(text, file)
    if isinstance(content, dict):
        n.sequence, options = _read_top(content.pop(OWN, None), launch, options)
    config, derived = read_configuration(content, launch, file, n, options)
    n.recompute = Recompute.FULL if n.has_checkpointing else Recompute.NONE
    fill_launch(launch, n)
    launch.unread = config.unread(CONFIG, derived)
    return launch


def _read_top(top: Any, launch: Launch, options: ReaderOptions) -> tuple[int | None, ReaderOptions]:
    """The sequence and the model of a file of plan3d, where none is given."""
    match top:
        case {"heading": [*lines], "sequence": int(sequence)}:
            text = "\n".join(map(str, lines))
            read_heading(launch, text)
            launch.model = None if options.model else heading_model(text)
            return sequence, replace(options, model=options.model or launch.model)
    return None, options


Configuration = tuple[Document, frozenset[str]]
"""A configuration that was read, and its keys whose values deviate from what the plan implies."""


def read_configuration(
    content: Any, launch: Launch, place: str, n: Numbers, options: ReaderOptions
) -> Configuration:
    """Put the content of a JSON configuration into the numbers; `place` names it in errors."""
    if not isinstance(content, dict):
        raise Launch(place, "").refuse("must hold a JSON object")
    config = Document(with_trainer_values(content, place, options), place)
    n.is_batch_open = is_batch_open(content)
    read_rows(CONFIG, config, n)
    from_config(config, n, launch)
    return config, read_implied(CONFIG, config, n)


def _json(text: str, place: str) -> Any:
    """The content of a configuration. Raises InputError, also for a template."""
    open_values = list(dict.fromkeys(_PLACEHOLDER.findall(text)))
    if open_values:
        raise InputError(
            f"{place}: is a template, in which {', '.join(open_values[:4])} stand for values: give "
            "the script that fills them in"
        )
    return parse_json(text, place)


def _read_script(text: str, launch: Launch, options: ReaderOptions) -> Launch:
    """A script of Megatron-DeepSpeed: its flags, and the JSON that it writes."""
    script = launch_script.script_of(text, launch.file, options.inputs)
    script.documents += replaced_documents(script)
    flags, n = command_flags(script, TABLE, launch, True), Numbers()
    _add_named_file(script, flags, options, launch)
    read_rows(TABLE, flags, n)
    n.counts_embedding = n.counts_loss = n.counts_ends
    from_flags(flags, n, launch, options.vocabulary)
    launch.launcher_gpus = launch_script.launcher_gpus(script)
    if n.no_pipeline and n.pp > 1:
        raise flags.value_error("--no-pipeline-parallel", f"contradicts {n.pp} pipeline stages")
    schedule_from_flags(n, launch)
    experts_from_flags(flags, n, launch)
    model = model_of(n, launch.stem, "flags of a Megatron-LM script")
    launch.model = with_expert_counts(model, n)
    configuration = _configuration(script, n, launch, flags, options)
    if n.zero == 0 and n.pp > 1 and n.precision == Precision.BF16 and not HEADING.search(text):
        n.zero = 1
        launch.left_out.append("in stages DeepSpeed shards the optimizer of bf16, as with ZeRO 1")
    fill_launch(launch, n)
    derived = read_implied(TABLE, flags, n)
    launch.unread = unread_flags(flags, script, TABLE, derived)
    if configuration:
        config, derived = configuration
        launch.unread += config.unread(CONFIG, derived)
    return launch


def _add_named_file(script: Script, flags: Flags, options: ReaderOptions, launch: Launch) -> None:
    """Put the file of --deepspeed_config among the documents of a script that writes none.

    Raises InputError where it is not beside the script and no flag states the ZeRO stage.
    """
    named = flags.by_name.get("--deepspeed-config")
    if named is None or any(own.text.lstrip().startswith("{") for own in script.documents):
        return
    path, read = " ".join(named.texts), options.inputs.read_source
    text = read(path) if read and not any(word.unresolved for word in named.values) else None
    if text is not None:
        script.documents.append(ScriptDocument(text, named.line))
    elif flags.contains("--zero-stage"):
        launch.left_out.append(f"{path} (line {named.line}) is not there: the flags are read alone")
    else:
        raise flags.value_error(
            "--deepspeed-config", f"{path} decides the ZeRO stage and is not there: put it there"
        )


def _configuration(
    script: Script, n: Numbers, launch: Launch, flags: Flags, given: ReaderOptions
) -> Configuration | None:
    """The JSON that a script writes or names, which must agree with the flags where the user does
    not say what holds; it decides the rest, and the ZeRO stage where no flag states it."""
    document = next((d for d in script.documents if d.text.lstrip().startswith("{")), None)
    if document is None:
        return None
    stated = Numbers(tp=n.tp, pp=n.pp, cp=n.cp)
    place = f"{launch.file}: line {document.line}"
    decided_by_flags = {"micro_batch": n.micro_batch, "precision": n.precision}
    options = ReaderOptions(launch.model, plan=decided_by_flags, has_batch=True)
    configuration = read_configuration(_json(document.text, place), launch, place, stated, options)
    if not flags.contains("--zero-stage"):
        n.zero = stated.zero
    for name in ("micro_batch", "zero", "precision"):
        if getattr(stated, name) == getattr(n, name):
            continue
        if name not in given.plan:
            raise launch.refuse(
                f"line {document.line}: the JSON has {name} {_word(name, stated)}, the flags have "
                f"{_word(name, n)}: say which holds: --with {name}=VALUE"
            )
        setattr(n, name, given.plan[name])
    if stated.global_batch and not n.global_batch:
        n.global_batch, n.accumulation = stated.global_batch, None
    if stated.global_batch not in (None, n.global_batch):
        if not given.has_batch:
            raise launch.refuse(
                f"line {document.line}: the JSON has a batch of {stated.global_batch}, "
                f"--global-batch-size {n.global_batch}: say which holds: --global-batch N"
            )
        n.global_batch = n.accumulation = None
    decided = ("overlap_grad_reduce", "overlap_param_gather", "bucket_parameters")
    for name in (*decided, "offload_optimizer", "offload_parameters", "nvme"):
        setattr(n, name, getattr(stated, name))
    n.gpus = getattr(stated, "gpus", None)
    return configuration


def _word(name: str, n: Numbers) -> str:
    """A number as a message shows it: a precision by name."""
    value = getattr(n, name)
    return Precision(value).name.lower() if name == "precision" else str(value)


EXPORTER = Exporter(
    "deepspeed",
    (Form(VERSION, TITLE, RULES, write, table=(*TABLE, *CONFIG), model_settings=frozenset()),),
    software="deepspeed",
    search_values={"overlap_param_gather": (0, 1), "cp_comm": ("p2p", "a2a")},
)
