"""Runs of Hugging Face's Trainer and of what is built on it, read: YAML files and scripts.

Source: see arguments.py, accelerate.py and commands.py; transformers, integrations/deepspeed.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plan3d.simulator.base.documents import parse_json, parse_yaml
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.precision import Precision
from plan3d.simulator.hardware.software import FP32_PARTS
from plan3d.simulator.hardware.software_stack import ENGINE
from plan3d.simulator.plan.field_values import Recompute

from ..deepspeed.keys import CONFIG
from ..deepspeed.launch import read_configuration
from ..documents import Document
from ..launch_file import (
    NO_OPTIONS,
    Launch,
    ReaderOptions,
    UnreadSetting,
    with_here_documents,
)
from ..numbers import fill_launch
from ..shell.script import read_script
from ..tables import TRUTHS, Numbers, Row, read_rows
from .accelerate import (
    FSDP,
    OWN_KEYS,
    configuration_of,
    merge_configuration,
    unread_settings,
    with_launch_flags,
)
from .arguments import (
    AXOLOTL,
    HUGGING_FACE,
    LLAMA_FACTORY,
    MS_SWIFT,
    SFT_KEYS,
    Dialect,
    is_deepspeed_chat,
    weighs_half,
    with_axolotl_formats,
    with_program_defaults,
    with_sft_defaults,
)
from .commands import Command, check_values, command_of
from .models import name_model
from .own_programs import with_names_of_trl
from .spelling import (
    FSDP_STAGES,
    fill_plan,
    fsdp_section,
    fsdp_strategy,
    shard_by_degrees,
    shard_by_fsdp,
)

DEEPSPEED = "deepspeed"
"""The argument of a configuration, whose keys are read as such."""
FRAMEWORK = "accelerate"
"""The framework whose stack runs all of them."""
DIALECTS = {
    "llama-factory": LLAMA_FACTORY,
    "axolotl": AXOLOTL,
    "ms-swift": MS_SWIFT,
    "trainer": HUGGING_FACE,
    "sft": HUGGING_FACE,
}
"""Tools by name."""
KEYS = tuple(
    {row.key for dialect in DIALECTS.values() for row in dialect.table if isinstance(row, Row)}
    | {older for dialect in DIALECTS.values() for older in dialect.older}
)
ENGINE_FIELDS = (
    *("zero", "overlap_grad_reduce", "overlap_param_gather", "bucket_parameters"),
    *("offload_optimizer", "offload_parameters", "nvme"),
)
"""Fields of the plan that a configuration of DeepSpeed decides."""


def read_llama_factory(text: str, file: str, options: ReaderOptions = NO_OPTIONS) -> Launch:
    """The launch of a YAML file of LLaMA-Factory."""
    return _read_document(text, file, options, LLAMA_FACTORY)


def read_axolotl(text: str, file: str, options: ReaderOptions = NO_OPTIONS) -> Launch:
    """The launch of a YAML file of axolotl."""
    return _read_document(text, file, options, AXOLOTL)


def read_swift(text: str, file: str, options: ReaderOptions = NO_OPTIONS) -> Launch:
    """The launch of a YAML file of ms-swift."""
    return _read_document(text, file, options, MS_SWIFT)


def read_trainer(text: str, file: str, options: ReaderOptions = NO_OPTIONS) -> Launch:
    """The launch of a YAML file of the Trainer's arguments."""
    return _read_document(text, file, options, HUGGING_FACE)


def read_accelerate(text: str, file: str, options: ReaderOptions = NO_OPTIONS) -> Launch:
    """The launch of a configuration of accelerate, which states neither model nor batch."""
    return read_arguments(
        {}, file, options, HUGGING_FACE, configuration_of(text, file), is_open=True
    )


def read_command(text: str, file: str, options: ReaderOptions = NO_OPTIONS) -> Launch:
    """The launch of a script that starts one of the tools. Raises InputError naming a file of
    arguments that is not beside it."""
    script = read_script(text, file, inputs=options.inputs)
    command = command_of(script, KEYS)
    megatron = script.variable("USE_MCA")
    if command.tool == "llama-factory" and megatron and TRUTHS.get(megatron.text.lower()):
        raise InputError(f"{file}: USE_MCA trains by Megatron-Core, whose arguments are not read")
    options = with_here_documents(options, [document.text for document in script.documents])
    if command.tool not in DIALECTS:
        raise InputError(f"{file}: starts {command.tool}, which another reader takes")
    stated = _file_arguments(command, file, options)
    if any(document.dependences for document in script.documents):
        check_values(stated, script, KEYS)
    content = stated | command.arguments
    if DIALECTS[command.tool] is HUGGING_FACE:
        content = with_names_of_trl(content)
    content = with_sft_defaults(content) if command.tool == "sft" else content
    config = None
    if command.accelerate_file:
        config = configuration_of(
            _text_beside(command.accelerate_file, file, options), command.accelerate_file
        )
    config = with_launch_flags(config, command.accelerate_flags)
    launch = read_arguments(
        with_program_defaults(content), file, options, DIALECTS[command.tool], config
    )
    if is_deepspeed_chat(content):
        if "dpo" in re.split(r"[\W_]", file):
            raise launch.refuse("trains by preferences (DPO), which is not modelled")
        launch.left_out.append(
            "taken as the first step of DeepSpeed-Chat, on tokens: its DPO has the same arguments"
        )
    launch.left_out += [command.note] if command.note else []
    launch.launcher_gpus = command.gpus or launch.launcher_gpus or command.visible_gpus
    older = DIALECTS[command.tool].older
    flags = {f"$.{older.get(name, name)}": f"--{name}" for name in command.arguments}
    launch.unread = [replace(one, place=flags.get(one.place, one.place)) for one in launch.unread]
    return launch


def _file_arguments(command: Command, file: str, options: ReaderOptions) -> dict[str, Any]:
    """The arguments of the first file that a command names before its flags."""
    if not command.files or "=" in command.files[0]:
        return {}
    name = command.files[0]
    if name in map(str, command.arguments.values()):
        return {}
    content = parse_yaml(_text_beside(name, file, options), name)
    return content if isinstance(content, dict) else {}


def _text_beside(name: str, file: str, options: ReaderOptions) -> str:
    text = options.inputs.read_source(name) if options.inputs.read_source else None
    if text is None:
        raise InputError(f"{file}: the run is in {name}: give that file, or put it beside this one")
    return text


def _with_sharding(content: dict[str, Any], file: str, options: ReaderOptions) -> dict[str, Any]:
    """Arguments with the files of FSDP in their place: its section, or that and its words, which
    ms-swift takes as one, written out or by name.

    Source: ms-swift 4, swift/arguments/sft_args.py (_init_fsdp).
    """
    words, section = content.get("fsdp"), content.get(FSDP)
    if isinstance(words, str) and words.endswith(".json"):
        words = parse_json(_text_beside(words, file, options), words)
    if isinstance(words, dict):
        both = {"fsdp": words.get("fsdp", "full_shard"), FSDP: words.get(FSDP, {})}
        return {**content, **both}
    if isinstance(section, str):
        return {**content, FSDP: parse_json(_text_beside(section, file, options), section)}
    return content


def _read_document(text: str, file: str, options: ReaderOptions, dialect: Dialect) -> Launch:
    content = parse_yaml(text, file)
    if not isinstance(content, dict):
        raise InputError(f"{file}: must hold keys and values of {dialect.title}")
    if dialect is HUGGING_FACE and (content.keys() & SFT_KEYS or "trl sft" in text):
        content = with_sft_defaults(content)
    return read_arguments(content, file, options, dialect)


def read_arguments(
    content: dict[str, Any],
    file: str,
    options: ReaderOptions,
    dialect: Dialect,
    accelerate: Document | None = None,
    is_open: bool = False,
    is_prepared: bool = False,
) -> Launch:
    """The launch of arguments, with a configuration of accelerate; one that is open states no
    batch. Only a script `is_prepared`: what is not packed becomes fp32 (PEFT's
    prepare_model_for_kbit_training) where nobody shards it.

    Source: TRL before 0.26 prepares a model itself, but leaves embedding and head in 16 bits
    (trainer/utils.py, peft_module_casting_to_bf16); axolotl 067b021 undoes it (loaders/model.py);
    LLaMA-Factory ff6d4d1 and ms-swift 3602360 do not prepare.
    """
    launch = Launch(file, FRAMEWORK, title=dialect.title)
    if accelerate is None and not content.keys() & {row.key for row in dialect.table}:
        raise launch.refuse(f"has no argument of {dialect.title}")
    content = dialect.renamed(content)
    weighs = dialect is AXOLOTL and weighs_half(content)
    content = with_axolotl_formats(content) if dialect is AXOLOTL else content
    content = _with_sharding(content, file, options)
    document, n = Document(content, file), Numbers()
    document.check_model(dialect.table)
    read_rows(dialect.table, document, n)
    n.micro_batch = n.old_micro_batch or n.micro_batch
    n.is_checkpointed, n.pp, n.fsdp_document = dialect.is_checkpointed, 1, document
    n.dtype = str(getattr(n, "dtype", "") or (dialect.dtype if n.bf16 else ""))
    n.zero, n.has_engine, n.recompute, n.loss = 0, False, int(Recompute.NONE), 0
    n.has_configuration = False
    n.overlap_grad_reduce, n.overlap_param_gather = True, False
    n.replicas = int(getattr(n, "replicas", 1) or 1)
    n.given_sequence, n.has_batch = options.sequence, options.has_batch
    n.is_model_given = options.model is not None
    n.in_bits = getattr(n, "in_4_bits", False) or getattr(n, "in_8_bits", False)
    if is_open:
        n.accumulation = None
    launch.launcher_gpus = getattr(n, "workers", None)
    if accelerate is not None:
        merge_configuration(accelerate, n, launch)
    _check_training(n, document, launch)
    if n.model_id:
        name_model(n.model_id, launch, options)
    is_stated = accelerate is not None and accelerate.contains("distributed_type")
    _shard(n, launch, options, dialect, is_stated)
    if launch.framework == FRAMEWORK:
        shard_by_degrees(n, launch)
    fill_plan(n, document, launch, dialect.table)
    if weighs and n.fp16 and not launch.adapters:
        launch.unmodelled["precision"] = "$.float16 keeps weights in fp16, which is not modelled"
    is_configured = accelerate is not None and accelerate.content.keys() & OWN_KEYS
    stated = is_configured or n.has_configuration or n.dtype or document.contains("bf16")
    if not stated and n.precision == Precision.FP32 and "precision" not in options.plan:
        text = "fp32, as none is stated: accelerate may decide otherwise (--with precision=amp)"
        launch.unread.append(UnreadSetting("precision", text, affects_cost=True))
    fill_launch(launch, n)
    if launch.adapters and launch.adapters.format.bitsandbytes:
        is_whole = launch.framework == FRAMEWORK and not n.zero and not launch.stack
        launch.software["fp32_beside_packed"] = FP32_PARTS if is_prepared and is_whole else ()
    if is_open:
        launch.title = FRAMEWORK
        launch.plan.pop("micro_batch", None)
        launch.unmodelled["micro_batch"] = "states no micro-batch"
    unread = document.unread(dialect.table, ())
    launch.unread += [one for one in unread if one.path[0] != DEEPSPEED]
    launch.unread += unread_settings(accelerate) if accelerate else []
    return launch


TRAINING = frozenset(("do_train", "learning_rate", "num_train_epochs", "max_steps"))
"""Arguments of which one stands beside do_eval where a run trains."""


def _check_training(n: Numbers, document: Document, launch: Launch) -> None:
    """Raise InputError for a run that only predicts or writes a model."""
    evaluates = document.content.get("do_eval") and not document.content.keys() & TRAINING
    if evaluates or not getattr(n, "trains", True):
        raise launch.refuse("does not train: do_train is not true in it")


def _shard(
    n: Numbers, launch: Launch, options: ReaderOptions, dialect: Dialect, is_stated: bool
) -> None:
    """Add the sharding of DeepSpeed or FSDP."""
    launch.states_sharding = True
    path = FSDP if n.fsdp_document.contains(FSDP) else dialect.fsdp
    section = fsdp_section(n.fsdp_document, path)
    if n.deepspeed:
        _shard_by_engine(n, launch, options, dialect)
        return
    has_words = bool(n.fsdp) and TRUTHS.get(str(n.fsdp).lower(), True)
    is_on = has_words or dialect is AXOLOTL
    strategy = fsdp_strategy(n.fsdp, section) if is_on else ""
    if has_words and not strategy:
        known = ", ".join(name for name in FSDP_STAGES if not name.isdecimal())
        raise launch.refuse(f"has fsdp: {str(n.fsdp)[:60]}, which is not known; known: {known}")
    if strategy:
        shard_by_fsdp(n, launch, strategy, section)
    elif not is_stated and not getattr(n, "shard_degree", None):
        launch.states_sharding = False
        if "zero" not in options.plan:
            launch.unread.append(
                UnreadSetting(
                    "sharding",
                    "none is stated, so that every GPU holds all weights: a configuration of "
                    "accelerate may decide otherwise (--with zero=3)",
                    affects_cost=True,
                )
            )


def _shard_by_engine(n: Numbers, launch: Launch, options: ReaderOptions, dialect: Dialect) -> None:
    """Add the sharding of a configuration of DeepSpeed."""
    content, place = _engine_content(n.deepspeed, launch, options, dialect)
    n.has_engine, n.has_configuration = True, content is not None
    launch.stack = ENGINE
    n.engine_updates = content is not None and "optimizer" in content
    if content is None:
        n.zero = int(options.plan["zero"])
        n.overlap_param_gather = n.zero == 3
        return
    half = "fp16" if n.fp16 else "bf16"
    values = {"micro_batch": n.micro_batch or 1, "precision": _engine_precision(half)}
    given = ReaderOptions(launch.model or options.model, plan=values, has_batch=True)
    stated = Numbers(tp=1, pp=1, cp=1)
    config, derived = read_configuration(dict(content), launch, place, stated, given)
    if n.micro_batch and stated.micro_batch != n.micro_batch:
        raise launch.refuse(
            f"{place} has a micro-batch of {stated.micro_batch}, the arguments {n.micro_batch}"
        )
    for name in ENGINE_FIELDS:
        setattr(n, name, getattr(stated, name))
    for name in ("tp", "cp", "ep"):
        setattr(n, name, max(getattr(n, name, 1) or 1, getattr(stated, name)))
    launch.unread += [
        replace(setting, place=f"{place}: {setting.place}")
        for setting in config.unread(CONFIG, derived)
        if setting.affects_cost and setting.value != "auto"
    ]


def _engine_precision(half: str) -> int:
    from ..deepspeed.keys import FORMATS

    return next(int(code) for code, name in FORMATS.items() if name == half)


def _engine_content(
    value: Any, launch: Launch, options: ReaderOptions, dialect: Dialect
) -> tuple[Mapping[str, Any] | None, str]:
    """The configuration and its place: written out, in a file beside the run, or shipped with the
    tool; None where the stage is given by --with zero=N."""
    if isinstance(value, dict):
        return value, DEEPSPEED
    name = str(value)
    text = options.inputs.read_source(name) if options.inputs.read_source else None
    if text is not None:
        content = parse_json(text, name)
        return content if isinstance(content, dict) else {}, name
    shipped = (dialect.configurations or {}).get(name.rpartition("/")[2])
    if shipped is not None:
        launch.unread.append(
            UnreadSetting(
                "deepspeed", name, is_derived=True, why_neutral=f"as {dialect.title} ships"
            )
        )
        return {"zero_optimization": dict(shipped), "bf16": {"enabled": "auto"}}, name
    if "zero" in options.plan:
        return None, name
    raise launch.refuse(f"shards by {name[:80]}: put that file beside it, or give --with zero=N")
