"""Frameworks and dialects: how a file is recognised, and who writes and reads it.

A framework is loaded when it is needed. Others are added by `register_exporter`, or by entry points
in the groups `plan3d.exporters` and `plan3d.readers`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from plan3d.simulator.base.registry import Registry

from .exporter import Exporter
from .launch_file import Launch, ReaderOptions
from .other_programs import check_program, python_reader, starts_nanotron
from .tables import Row

Reader = Callable[[str, str, ReaderOptions], Launch]
"""(text, file name, what the user gives beside it) -> the contents of the file."""
_PACKAGE = __package__
EXPORTERS: Registry[Exporter] = Registry(
    "framework",
    "plan3d.exporters",
    {
        "megatron": f"{_PACKAGE}.megatron.launch:EXPORTER",
        "megatron-bridge": f"{_PACKAGE}.megatron_bridge.launch:EXPORTER",
        "torchtitan": f"{_PACKAGE}.torchtitan.launch:EXPORTER",
        "deepspeed": f"{_PACKAGE}.deepspeed.launch:EXPORTER",
        "nanotron": f"{_PACKAGE}.nanotron.launch:EXPORTER",
        "accelerate": f"{_PACKAGE}.trainer.export:EXPORTER",
    },
)
"""Writers by framework."""
READERS: Registry[Reader] = Registry(
    "framework",
    "plan3d.readers",
    {
        "megatron": f"{_PACKAGE}.megatron.launch:read",
        "megatron-arguments": f"{_PACKAGE}.megatron.yaml_arguments:read",
        "torchtitan": f"{_PACKAGE}.torchtitan.launch:read",
        "deepspeed": f"{_PACKAGE}.deepspeed.launch:read",
        "nanotron": f"{_PACKAGE}.nanotron.launch:read",
        "nanotron-command": f"{_PACKAGE}.nanotron.launch:read_command",
        "llama-factory": f"{_PACKAGE}.trainer.launch:read_llama_factory",
        "axolotl": f"{_PACKAGE}.trainer.launch:read_axolotl",
        "ms-swift": f"{_PACKAGE}.trainer.launch:read_swift",
        "megatron-swift": f"{_PACKAGE}.mcore.swift:read",
        "megatron-swift-command": f"{_PACKAGE}.mcore.swift:read_command",
        "nemo": f"{_PACKAGE}.mcore.nemo:read",
        "primus": f"{_PACKAGE}.mcore.primus:read",
        "megatron-bridge": f"{_PACKAGE}.megatron_bridge.overrides:read",
        "megatron-bridge-recipe": f"{_PACKAGE}.megatron_bridge.overrides:read_document",
        "megatron-bridge-config": f"{_PACKAGE}.megatron_bridge.run_config:read",
        "recipe": f"{_PACKAGE}.recipes.launch:read",
        "automodel": f"{_PACKAGE}.trainer.automodel:read",
        "torchtune": f"{_PACKAGE}.trainer.torchtune:read",
        "torchtune-command": f"{_PACKAGE}.trainer.torchtune:read_command",
        "trainer": f"{_PACKAGE}.trainer.launch:read_trainer",
        "trainer-script": f"{_PACKAGE}.trainer.python_script:read_script",
        "trainer-command": f"{_PACKAGE}.trainer.launch:read_command",
        "accelerate": f"{_PACKAGE}.trainer.launch:read_accelerate",
        "log": f"{_PACKAGE}.logs.launch:read",
        "wandb": f"{_PACKAGE}.logs.launch:read_kept",
    },
)
"""Readers by framework."""


TORCHTITAN_COMMAND = (
    r"^(?![ \t]*#).*(?:\btorchtitan(?:\.train\b|/train\.py)|--job\.config[_-]file\b"
    r"|\bCONFIG_FILE=\S*\.toml\b)"
)
"""A line, no comment, that starts torchtitan or names its job."""
OPEN_IN_YAML = r"^MODEL_ARGS:|^ +_target_: megatron\.bridge\."
"""A line of YAML that begins the flags of a command, with variables of the shell, or that names a
recipe, whose values may be open."""
LOG_ENDINGS = ("log", "out", "err", "jsonl")
LOG = (
    r"^.{0,200}(?:-{8,} arguments -{8,}\s*$|\bRunning with (?:args|configs): ?\{"
    r"|\*{8,} Experiment configuration \*{8,}|\bparameters \w*TrainingArguments\()"
)
"""A line with which a trainer begins to print its settings."""
BRIDGE_OVERRIDE = r"^(?:OVERRIDES=\($|(?![ \t]*#).*\brun_recipe\.py\b)"
"""A line, no comment, that starts a recipe of Megatron-Bridge, or the overrides of plan3d."""
SWIFT_COMMAND = (
    r"^(?![ \t]*#).*(?:(?<![\w./-])megatron (?:sft|pt)\b|\bswift/cli/_megatron/(?:sft|pt)\.py)"
)
"""A line, no comment, that starts Megatron under ms-swift."""
TUNE_COMMAND = r"^(?![ \t]*#).*\btune run\b"
"""A line, no comment, that starts a recipe of torchtune."""
TRAINER_PROGRAM = (
    r"^(?![ \t]*#).*(?:\bswift\)? (?:sft|pt)\b|\bswift/cli/(?:sft|pt)\.py"
    r"|\baxolotl(?:\.cli\.| )train\b"
    r"|\b(?:llamafactory-cli|lmf) train\b|\btrl sft\b|\bsrc/train\.py\s+\S+\.ya?ml\b)"
)
"""A line, no comment, that starts what is built on Hugging Face's Trainer."""
TRAINER_COMMAND = TRAINER_PROGRAM + r"|^(?![ \t]*#).*--per[-_]device[-_]train[-_]batch[-_]size\b"
"""The same, or one with an argument of the Trainer."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """Files of one kind that a framework's reader takes, and how they are recognised."""

    title: str
    framework: str
    """Whose reader takes them."""
    endings: tuple[str, ...] = ()
    """Endings of file names."""
    opening: str = ""
    """Beginning of the text, without leading white space."""
    marker: str = ""
    """Pattern of a line that stands in no file of another dialect."""
    is_script: bool = False
    """It has arguments and variables."""

    def matches(self, text: str, file: str) -> bool:
        """Whether a file has an ending, the opening or the marker of the dialect."""
        return (
            file.rpartition(".")[2].lower() in self.endings
            or bool(self.opening and text.lstrip().startswith(self.opening))
            or bool(self.marker and re.search(self.marker, text, re.M))
        )


DEEPSPEED_SCRIPT = Dialect(
    "Megatron-DeepSpeed script", "deepspeed", marker="--deepspeed", is_script=True
)
DIALECTS = (
    Dialect("log", "log", endings=LOG_ENDINGS, marker=LOG),
    Dialect("torchtitan job configuration", "torchtitan", endings=("toml",)),
    Dialect("DeepSpeed configuration", "deepspeed", endings=("json",), opening="{"),
    Dialect("Python recipe", "recipe", endings=("py",), is_script=True),
    Dialect("Megatron-Bridge overrides", "megatron-bridge", marker=BRIDGE_OVERRIDE, is_script=True),
    Dialect("torchtitan command", "torchtitan", marker=TORCHTITAN_COMMAND, is_script=True),
    Dialect("ms-swift command", "megatron-swift-command", marker=SWIFT_COMMAND, is_script=True),
    Dialect("torchtune command", "torchtune-command", marker=TUNE_COMMAND, is_script=True),
    Dialect("Trainer command", "trainer-command", marker=TRAINER_COMMAND, is_script=True),
    DEEPSPEED_SCRIPT,
)
"""Dialects in the order in which files are compared with them. YAML is recognised by its keys
(yaml_frameworks.py); other files are scripts of Megatron-LM."""
MEGATRON_SCRIPT = Dialect("Megatron-LM script", "megatron", is_script=True)


def framework_of_file(text: str, file: str) -> str:
    """The framework of the first dialect that a file matches; a YAML document of one that is not
    read is an InputError."""
    if _is_yaml(file):
        from .yaml_frameworks import framework_of_document

        return framework_of_document(text, file)
    dialect = _dialect_of(text, file)
    if dialect.opening:
        from .yaml_frameworks import framework_of_json

        return framework_of_json(text, file)
    if dialect.framework == "recipe":
        return python_reader(text, file)
    is_megatron = dialect in (MEGATRON_SCRIPT, DEEPSPEED_SCRIPT)
    program = r"\bpretrain_[\w${}]*\.py" if is_megatron else TRAINER_PROGRAM
    is_other = is_megatron or dialect.framework == "trainer-command"
    if is_other and not re.search(program, text, re.M):
        if starts_nanotron(text):
            return "nanotron-command"
        check_program(text, file)
    return dialect.framework


def _is_yaml(file: str) -> bool:
    return file.rpartition(".")[2].lower() in ("yaml", "yml")


def _dialect_of(text: str, file: str) -> Dialect:
    matching = (dialect for dialect in DIALECTS if dialect.matches(text, file))
    return next(matching, MEGATRON_SCRIPT)


EXPORTERS.aliases |= {
    **dict.fromkeys(("fsdp", "fsdp2", "hf-trainer", "transformers", "trl"), "accelerate"),
    **dict.fromkeys(("hf", "huggingface", "trainer"), "accelerate"),
    **dict.fromkeys(("pytorch", "torch"), "torchtitan"),
    **dict.fromkeys(("megatron-lm", "megatron-core", "mcore"), "megatron"),
    **dict.fromkeys(("nemo", "bridge"), "megatron-bridge"),
}
"""What people call a framework: FSDP as Accelerate starts it, PyTorch's own trainer."""


def register_exporter(exporter: Exporter, read: Reader | None = None) -> None:
    """Add a framework, and the reader of its files; ValueError where its name is taken."""
    EXPORTERS.register(exporter.name, exporter)
    if read is not None:
        READERS.register(exporter.name, read)


def exporter(name: str, option: str = "--to") -> Exporter:
    """A writer by name; InputError with the nearest names when unknown."""
    return EXPORTERS.lookup(name, option)


def reader(text: str, file: str, framework: str | None) -> Reader:
    """The reader of a named framework, or of the one whose dialect a file is in."""
    return READERS.lookup(framework or framework_of_file(text, file), "--from")


def is_script(text: str, file: str, framework: str | None) -> bool:
    """Whether a file is a script, which has arguments and variables; one of a named framework is
    any that is no document."""
    if framework is None and not _is_yaml(file):
        return _dialect_of(text, file).is_script
    ending = file.rpartition(".")[2].lower()
    return ending not in ("yaml", "yml", "toml", "json") and not text.lstrip().startswith("{")


def takes_inputs(text: str, file: str, framework: str | None) -> bool:
    """Whether a file has arguments or variables: a script, or YAML with open values."""
    return is_script(text, file, framework) or bool(re.search(OPEN_IN_YAML, text, re.M))


def flags_by_framework(field: str) -> dict[str, str]:
    """The flag of a plan field in each framework that has exactly one for it."""
    flags: dict[str, str] = {}
    for name, exporter in EXPORTERS.items():
        for row in exporter.form().table:
            if isinstance(row, Row) and row.name == field and not row.read_only:
                flags.setdefault(name, row.key)
    return flags
