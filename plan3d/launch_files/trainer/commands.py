"""Commands that start a trainer: which tool they start, its arguments and files, and the GPUs.

Source: README and examples of LLaMA-Factory (llamafactory-cli train), axolotl (axolotl train),
ms-swift (swift sft, megatron sft; NPROC_PER_NODE and NNODES), accelerate (commands/launch.py),
torch.distributed.run and DeepSpeed's launcher.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plan3d.simulator.base.documents import parse_json
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.units import is_whole

from ..other_programs import check_imports
from ..shell.contents import Script, is_auxiliary
from ..shell.flags import Flags
from ..shell.inputs import open_parameters
from ..shell.launch_script import (
    ask,
    check_conditions,
    check_decided,
    check_inputs,
    processes_of,
)
from ..shell.words import CONDITION, Word

FILES = (".yaml", ".yml", ".json")
"""Endings of files of arguments."""
TOOLS = {
    "swift": "ms-swift",
    "megatron": "megatron-swift",
    "llamafactory-cli": "llama-factory",
    "lmf": "llama-factory",
    "axolotl": "axolotl",
    "trl": "sft",
}
"""Tools by program."""
LAUNCHING = ("llama-factory", "axolotl")
"""Tools that start one process for each GPU that they see."""
VERBS = ("sft", "pt", "train")
"""What programs of tools are told to do where they train."""
MODULES = {
    "swift/cli/sft.py": "ms-swift",
    "swift/cli/pt.py": "ms-swift",
    "swift/cli/_megatron/sft.py": "megatron-swift",
    "swift/cli/_megatron/pt.py": "megatron-swift",
    "axolotl.cli.train": "axolotl",
}
"""Tools by the file or module that a launcher starts."""


_OTHER_LOSS = re.compile(
    r"(?i)(?:^|[_-])(dpo|grpo|kto|orpo|cpo|ppo|rloo|gkd|rlhf|reward|prm)(?=[_.-]|$)"
)
"""Losses of preferences and rewards in the names of scripts, as TRL's examples are called."""
_OTHER_TASK = re.compile(
    r"(?i)^run_(glue|mlm|ner|plm|qa|squad|summarization|swag|translation)(?=[_.])"
)
"""Tasks of transformers' examples that train no language model, or an encoder beside it."""
_BATCH = re.compile(r"--per[-_]device[-_]train[-_]batch[-_]size\b")
"""The argument that every command of the Trainer is recognised by."""


@dataclass(frozen=True)
class Command:
    """A command that trains."""

    tool: str
    arguments: dict[str, Any] = field(default_factory=dict)
    """Values by name, with underscores."""
    files: tuple[str, ...] = ()
    """Files of arguments."""
    accelerate_file: str = ""
    """The configuration of accelerate launch."""
    accelerate_flags: dict[str, Any] = field(default_factory=dict)
    """Flags of accelerate launch by name, with underscores."""
    gpus: int | None = None
    visible_gpus: int | None = None
    """GPUs of the environment, which a configuration of the launcher overrides."""
    note: str = ""
    """What another training command of the script has otherwise."""


def command_of(script: Script, keys: Sequence[str]) -> Command:
    """The first command of a script that trains; `keys` are the arguments whose values are needed.

    Raises InputError for a needed value that is open, and where nothing trains.
    """
    for place, words in enumerate(script.commands):
        split = _split(words)
        if split is None:
            continue
        tool, at = split
        name = words[at].text.rpartition("/")[2] if tool == "trainer" else ""
        loss, task = _OTHER_LOSS.search(name), _OTHER_TASK.match(name)
        if loss or task:
            what = f"by {loss[1]}" if loss else f"for {task[1]}" if task else ""
            raise InputError(
                f"{script.file}: {words[at].text[:60]} trains {what}, which is not "
                "modelled: give a run that trains one model on tokens (sft or pt)"
            )
        _check_program(script.variables.file_text(words[at].text) if name else None, name)
        before, after = words[:at], words[at + 1 :]
        launcher = Flags.of(before, script.file).by_name
        config = launcher.get("--config-file")
        check_inputs(script)
        named = [word for word in after if word.text.lower().endswith(FILES)]
        files = [(word, "its file") for word in (*named, *(config.values[:1] if config else ()))]
        check_decided(files, script)
        check_conditions(script, {f"--{key.replace('_', '-')}" for key in keys})
        return Command(
            tool,
            _arguments(after, script, keys),
            tuple(word.text for word in named),
            config.texts[0] if config and config.texts else "",
            _arguments(_accelerated(before), script, keys),
            _gpus(before, script, place) or _gpus(after if tool == "sft" else [], script, place),
            _visible_gpus(before, script, tool, place),
            _other_training(script, place, keys),
        )
    raise InputError(f"{script.file}: starts no training that plan3d knows")


_OTHER_TRAINER = re.compile(r"\b((?:DPO|KTO|PPO|GRPO|ORPO|CPO|RLOO|Reward)Trainer)\(")
_TRAINER = re.compile(r"\b(?:SFT|Seq2Seq)?Trainer\(")


def _check_program(text: str | None, name: str) -> None:
    """Raise InputError for a program beside the script, as far as it is there, that trains by a
    library which is not read, or by preferences and rewards alone."""
    if text is None or not name.endswith(".py"):
        return
    check_imports(text, name)
    other = _OTHER_TRAINER.search(text)
    if other and not _TRAINER.search(text):
        raise InputError(f"{name}: trains with {other[1]}, which is not read: Trainer, SFTTrainer")


def _other_training(script: Script, place: int, keys: Sequence[str]) -> str:
    """The sentence about a later training command that differs in arguments of the keys; '' where
    there is none. Raises InputError where an open parameter decides between the two."""
    stated = _compared(script.commands[place], script, keys)
    for words in script.commands[place + 1 :]:
        other = _compared(words, script, keys) if _split(words) else stated
        differing = sorted(
            name for name in {*stated, *other} if stated.get(name) != other.get(name)
        )
        if not differing:
            continue
        condition = script.conditions.get(place, "")
        needs = [(name, differing[0]) for name in condition.split(" and ")]
        ask(needs if condition != CONDITION else (), script)
        return (
            f"the training command in line {words[0].line}, which differs in "
            f"{', '.join(differing[:4])}: the first one is read"
        )
    return ""


def _compared(words: Sequence[Word], script: Script, keys: Sequence[str]) -> dict[str, Any]:
    """The flags of the keys that a training command has, and its files, as texts."""
    split = _split(words)
    after = words[split[1] + 1 :] if split else ()
    known = {f"--{key.replace('_', '-')}" for key in keys}
    flags = Flags.of(after, script.file).by_name
    files = [word.text for word in after if word.text.lower().endswith(FILES)]
    return {name: flags[name].texts for name in known & flags.keys()} | {"its files": files}


def _accelerated(before: Sequence[Word]) -> Sequence[Word]:
    """The words after accelerate launch, if it is one of the launchers."""
    names = [word.text.rpartition("/")[2] for word in before]
    return before[names.index("accelerate") + 2 :] if "accelerate" in names else ()


def _split(words: Sequence[Word]) -> tuple[str, int] | None:
    """The tool and the place of the last word before its arguments; None for other commands."""
    texts = [word.text for word in words]
    for at, text in enumerate(texts):
        name = text.rpartition("/")[2]
        following = texts[at + 1] if at + 1 < len(texts) else ""
        if name in TOOLS and following in VERBS:
            return TOOLS[name], at + 1
        module = next((tool for end, tool in MODULES.items() if text.endswith(end)), None)
        if module:
            return module, at
        if text.endswith(".py") and any(map(_BATCH.match, texts)) and "--" not in texts[at:]:
            is_factory = "--finetuning_type" in texts or "--stage" in texts
            if is_auxiliary(name):
                return None
            plain = "sft" if name == "sft.py" else "trainer"
            return "llama-factory" if is_factory else plain, at
        if text.endswith("src/train.py") and following.lower().endswith(FILES):
            return "llama-factory", at
    return None


def _arguments(words: Sequence[Word], script: Script, keys: Sequence[str]) -> dict[str, Any]:
    """The values of flags, and of words KEY=VALUE, by name."""
    file = script.file
    out: dict[str, Any] = {}
    needs: list[tuple[str, str]] = []
    for flag in Flags.of(words, file).in_order:
        name = flag.name.removeprefix("--").replace("-", "_")
        if not flag.name:
            pairs = (text.partition("=") for text in flag.texts if "=" in text)
            out |= {key.replace("-", "_"): typed(value) for key, _, value in pairs}
            continue
        values: list[Any] = []
        for word in flag.values:
            is_open = bool(word.condition) or (word.unresolved and not _names_file(word))
            value = None if is_open else typed(word.text)
            if value is None and name in keys and not values:
                names = script.variables.dependences(word, expanded=True)
                needs += [(one, flag.name) for one in names]
                if not open_parameters((one, "") for one in names):
                    why = "depends on a condition" if word.condition else "has no value"
                    problem = f"--{name} {word.text} {why} in this file: write it there"
                    raise InputError(f"{file}: line {flag.line}: {problem}")
            values += [] if value is None else [value]
        out[name] = True if not flag.values else values[0] if len(values) == 1 else values
    ask(needs, script)
    return out


def _names_file(word: Word) -> bool:
    """Whether a word is the path of a file of arguments in a folder that stays open."""
    last = word.parts[-1]
    return not last.unresolved and "/" in last.text and last.text.lower().endswith(FILES)


def check_values(content: Mapping[str, Any], script: Script, keys: Sequence[str]) -> None:
    """Raise InputError that asks for the variables in values of these keys of a here-document."""
    values = {key: content[key] for key in keys if isinstance(content.get(key), str)}
    needs = [
        (f"${name}", key)
        for key, value in values.items()
        for name in re.findall(r"\$\{?([A-Za-z_]\w*)", value)
    ]
    ask(needs, script)


def typed(text: str) -> Any:
    """A whole number, a number, a JSON object or list, else the text."""
    if is_whole(text) and len(text) < 19:
        return int(text)
    if text[:1] in "{[":
        try:
            return parse_json(text, text)
        except InputError:
            return text
    try:
        return float(text) if any(digit.isdigit() for digit in text) and len(text) < 40 else text
    except ValueError:
        return text


def _gpus(before: Sequence[Word], script: Script, place: int) -> int | None:
    """GPUs that the launcher names, or the environment of a tool that has a launcher inside."""
    each, nodes = (_variable_text(script, name, place) for name in ("NPROC_PER_NODE", "NNODES"))
    nodes = "1" if nodes is None else nodes
    stated = processes_of(before, script)
    return stated or (
        int(each) * int(nodes) if each and is_whole(each) and is_whole(nodes) else None
    )


def _variable_text(script: Script, name: str, place: int) -> str | None:
    """The text of a variable of a command; '' where an open condition decides it."""
    value = script.variable(name, place)
    if value is None:
        return None
    is_open = value.condition or any(word.condition for word in value.words)
    return "" if is_open else value.text


def _visible_gpus(before: Sequence[Word], script: Script, tool: str, place: int) -> int | None:
    """GPUs of CUDA_VISIBLE_DEVICES: one process drives one GPU, more need a launcher. Raises
    InputError where ms-swift has more than processes, and spreads the layers over them."""
    names = "CUDA_VISIBLE_DEVICES", "NPROC_PER_NODE"
    visible, each = (_variable_text(script, name, place) for name in names)
    devices = [part for part in (visible or "").split(",") if part]
    launchers = ("torchrun", "accelerate", "deepspeed")
    has_launcher = tool in LAUNCHING or any(word.text in launchers for word in before)
    processes = "1" if each is None else each
    if tool == "ms-swift" and not has_launcher and is_whole(processes):
        spread = len(devices) // max(int(processes), 1)
        if spread > 1:
            raise InputError(
                f"{script.file}: {spread} GPUs of CUDA_VISIBLE_DEVICES for each process spread the "
                f"layers over them, which is not modelled: NPROC_PER_NODE={len(devices)}"
            )
    return len(devices) if len(devices) == 1 or has_launcher else None
