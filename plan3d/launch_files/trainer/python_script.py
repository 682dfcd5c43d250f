"""Python scripts that train with Hugging Face's Trainer or TRL's SFTTrainer, not run: what they
state in literals, read from the syntax tree.

Read are TrainingArguments(...) or SFTConfig(...), the model of from_pretrained("..."), LoraConfig
and BitsAndBytesConfig. What a function, an argument or the environment decides is asked for.

Source: transformers 4.57, training_args.py and models/auto; peft 0.18, tuners/lora/config.py and
utils/other.py (prepare_model_for_kbit_training).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from plan3d.simulator.base.errors import LONGEST_QUESTION, InputError

from ..launch_file import NO_OPTIONS, Launch, ReaderOptions
from ..recipes.evaluation import Module, Session, follow
from ..recipes.expressions import Function
from ..recipes.values import Made, Open
from ..spellings import table_of
from ..tables import Row
from .arguments import HUGGING_FACE, with_sft_defaults
from .launch import read_arguments

ARGUMENTS = ("TrainingArguments", "SFTConfig")
TRAINERS = ("Trainer", "SFTTrainer")
PREPARING = "prepare_model_for_kbit_training"
RECOMPUTING = ("gradient_checkpointing_enable", PREPARING)
"""Functions that switch recompute on."""
LOADER = "from_pretrained"
CAUSAL = "ForCausalLM"
"""The end of the names of classes that predict the next token."""
PEFT = {"r": "lora_r", "target_modules": "lora_target_modules", "lora_dropout": "lora_dropout"}
PEFT |= {"modules_to_save": "lora_modules_to_save"}
"""Arguments of the table by fields of LoraConfig."""
OTHER_ADAPTERS = ("use_dora", "layers_to_transform", "rank_pattern", "loftq_config")
"""Fields of LoraConfig that make it another adapter."""
NO_ARGUMENTS = (
    "is Python of Hugging Face's Trainer, which is not run, and its arguments are not in it: give "
    "the command that starts it or the log of its run"
)
_TRAINS = re.compile(r"\bTrainer\b|\w+Trainer\(|\.train\(")
"""What is in every file that trains by the Trainer."""
BITS = ("load_in_4bit", "load_in_8bit")
_KEYS = {row.key for row in table_of("trainer") if isinstance(row, Row)}


def read_script(text: str, file: str, options: ReaderOptions = NO_OPTIONS) -> Launch:
    """The launch of a script. Raises InputError for one that makes no arguments of a trainer that
    is read, or trains another kind of model."""

    def read(session: Session, module: Module) -> tuple[dict[str, Any], bool]:
        _call_functions(session, module)
        content = _content(session, file, options)
        if not _TRAINS.search(text):
            raise InputError(
                f"{file}: makes arguments of the Trainer, and trains nothing with them"
            )
        return content, any(made.name == PREPARING for made in session.made)

    content, is_prepared = follow(text, file, options.inputs, lambda *_: None, read)
    return read_arguments(content, file, options, HUGGING_FACE, is_prepared=is_prepared)


def _call_functions(session: Session, module: Module) -> None:
    """Follow the functions of a file whose top makes no arguments."""
    for value in list(module.scope.values.values()):
        if any(_is_arguments(made) for made in session.made):
            return
        if isinstance(value, Function) and value.node.name not in session.followed:
            session.call(value, [], {})


def _is_arguments(made: Made) -> bool:
    return made.name in ARGUMENTS or made.name.endswith("TrainingArguments")


def _content(session: Session, file: str, options: ReaderOptions) -> dict[str, Any]:
    """The arguments of the Trainer, with the model and its adapters."""
    made = session.made
    trainers = [one for one in made if one.name.endswith("Trainer")]
    other = next((one.name for one in trainers if one.name not in TRAINERS), "")
    stated = [one for one in made if _is_arguments(one)]
    if other:
        raise InputError(
            f"{file}: trains with {other[:60]}, which is not read: Trainer, SFTTrainer"
        )
    if not stated:
        raise InputError(f"{file}: {NO_ARGUMENTS}")
    if len({id(one) for one in stated}) > 1:
        raise InputError(f"{file}: makes arguments of {len(stated)} trainers: keep one of them")
    arguments = stated[0]
    content = {key: _simple(value) for key, value in arguments.fields.items()}
    if arguments.name == "SFTConfig":
        content = with_sft_defaults(content)
        loading = content.pop("model_init_kwargs", None)
        content |= _loading(Made("", fields=loading if isinstance(loading, dict) else {}))
    if any(one.name in RECOMPUTING and _is_on(one) for one in made):
        content["gradient_checkpointing"] = True
    trainer = trainers[-1] if trainers else None
    for key in ("max_seq_length", "packing"):
        if trainer is not None and key in trainer.fields:
            content[key] = trainer.fields[key]
    content |= _model(session, trainer, file, options)
    content |= _adapters(session, file)
    _check_open(content, file)
    return {key: value for key, value in content.items() if not isinstance(value, Made | Open)}


def _is_on(made: Made) -> bool:
    return made.fields.get("use_gradient_checkpointing", True) is not False


def _simple(value: Any) -> Any:
    """A value; the last part of the name of a constant (torch.bfloat16), the text in a list."""
    if isinstance(value, Open) and value.is_name and "." in value.text:
        return value.text.rpartition(".")[2]
    return value


def _loading(made: Made) -> dict[str, Any]:
    """Arguments of from_pretrained: the format of the weights and their quantization."""
    fields = made.fields
    out: dict[str, Any] = {}
    for key in ("torch_dtype", "dtype"):
        if key in fields and _simple(fields[key]) != "auto":
            out[key] = _simple(fields[key])
    quantized = fields.get("quantization_config")
    inner = quantized.fields if isinstance(quantized, Made) else {}
    out |= {key: value for key in BITS if (value := inner.get(key, fields.get(key))) is not None}
    if "bnb_4bit_use_double_quant" in inner:
        out["use_bnb_nested_quant"] = inner["bnb_4bit_use_double_quant"]
    if isinstance(quantized, Open):
        out["load_in_4bit"] = quantized
    return out


def _chain(value: Any) -> Iterator[Made]:
    """An object and those that the calls around it were handed first."""
    while isinstance(value, Made):
        yield value
        value = value.arguments[0] if value.arguments else value.fields.get("model")


def _model(
    session: Session, trainer: Made | None, file: str, options: ReaderOptions
) -> dict[str, Any]:
    """The model of a trainer, by the name with which it is loaded."""
    handed = trainer.fields.get("model", *trainer.arguments[:1]) if trainer else None
    if isinstance(handed, str):
        return {"model_name_or_path": handed}
    loaders = [one for one in _chain(handed) if one.name == LOADER]
    loaders = loaders or [
        one for one in session.made if one.name == LOADER and "Model" in one.callee
    ]
    causal = [one for one in loaders if _class_of(one).endswith(CAUSAL)]
    if loaders and not causal:
        raise InputError(
            f"{file}: line {loaders[-1].line}: trains {_class_of(loaders[-1])[:60]}, which is not "
            "read: a model of text, AutoModelForCausalLM"
        )
    if not causal:
        if options.model is not None:
            return {}
        raise InputError(f"{file}: does not load its model by name: give --model config.json")
    made = causal[-1]
    name = made.fields.get("pretrained_model_name_or_path", *made.arguments[:1])
    if options.model is not None and isinstance(name, Open):
        return _loading(made)
    return {"model_name_or_path": name, **_loading(made)}


def _class_of(made: Made) -> str:
    return made.callee.split(".")[-2] if "." in made.callee else made.callee


def _adapters(session: Session, file: str) -> dict[str, Any]:
    """The adapters of LoraConfig; those of other methods are refused."""
    configs = [one for one in session.made if one.callee.startswith("peft.")]
    configs = [one for one in configs if one.name.endswith("Config")]
    if not configs:
        return {}
    config = configs[-1]
    other = next((key for key in OTHER_ADAPTERS if config.fields.get(key)), "")
    if config.name != "LoraConfig" or other:
        what = f"{config.name} with {other}" if other else config.name
        raise InputError(
            f"{file}: line {config.line}: trains by {what[:60]}, which is not modelled; nearest: "
            "LoraConfig"
        )
    out: dict[str, Any] = {"use_peft": True, "lora_r": 8, "lora_dropout": 0.0}
    return out | {name: config.fields[key] for key, name in PEFT.items() if key in config.fields}


def _check_open(content: dict[str, Any], file: str) -> None:
    """Raise InputError that asks for all needed values that are open."""
    asked = []
    for key, value in content.items():
        if isinstance(value, Open | Made) and key in _KEYS:
            text = value.text if isinstance(value, Open) else f"{value.name}(...)"
            name = value.names[0] if isinstance(value, Open) and value.names else ""
            asked.append(f"{key} is {text}" + (f": --set {name}=VALUE" if name else ""))
    if any(" is field(" in one for one in asked):
        raise InputError(f"{file}: {NO_ARGUMENTS}")
    if asked:
        give = "" if all("--set" in one for one in asked) else ": write it there"
        raise InputError(f"{file}: {'; '.join(asked)}{give}", LONGEST_QUESTION)
