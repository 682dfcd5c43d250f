"""Flags of the training command of a script: what is asked for, refused, and left unread."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import pairwise

from plan3d.simulator.base.errors import LONGEST_QUESTION, InputError, intended_name

from ..launch_file import Launch, UnreadSetting
from ..other_programs import check_program
from ..shell.contents import Script
from ..shell.examples import places_of_examples
from ..shell.flags import Flag, Flags, without_value
from ..shell.inputs import open_parameters
from ..shell.launch_script import (
    check_inputs,
    launcher_needs,
    other_commands,
    training_condition,
    training_program,
    training_words,
)
from ..shell.words import CONDITION, Word
from ..tables import Effect, Row, Table
from .flags import ALIASES, OLDER
from .other_flags import check_flags, group_of, unread_effect

SIZES = ("--num-layers", "--hidden-size", "--num-attention-heads", "--ffn-hidden-size")
"""Flags of which every training of Megatron-LM has one."""

_FLAG = re.compile(r"--[a-z][\w-]*")
OWN_FLAGS = (
    *("--num-attention-heads", "--micro-batch-size", "--max-position-embeddings", "--train-iters"),
    *("--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--train-samples"),
    *OLDER,
    *("--tokenizer-type", "--use-mcore-models"),
)
"""Flags of which a program of Megatron-LM has one, and few others."""
_OWN_NAMES = re.compile(r"(?i)pretrain|megatron|gpt")
"""Parts of names of programs that may be Megatron-LM's, with flags from another file."""
MATTERING = (Effect.MODEL, Effect.COST)
"""Effects of flags that no row reads by which training commands differ."""


def command_flags(
    script: Script, table: Table, launch: Launch, reads_documents: bool = False
) -> Flags:
    """The flags of the training command; `reads_documents`: the JSON of here-documents is needed.

    Raises InputError for another model, and one that asks for all values at once that flags of the
    table need and that are not in the file.
    """
    aliases, variables = other_names(script), script.variables
    flags = Flags.of(training_words(script), script.file, aliases)
    flags = replace(flags, missing_files=tuple(script.missing_sources))
    program = training_program(script)
    check_flags(flags, launch, table, program)
    is_open = bool(program) and any(map(_is_open, flags.in_order))
    is_whole = not script.missing_sources and not is_open
    if program.endswith("run_train.py") and flags.contains("--config-file"):
        check_program(f"run_train.py {flags.by_name['--config-file']}", script.file)
    _check_sizes(flags, program, is_whole, launch)
    launch.left_out += [f"{name} is sourced and not there" for name in script.missing_sources]
    launch.left_out += [
        f"line {before.line}: {before} gives way to line {last.line}: {last}"
        for before, last in flags.replaced()
    ]
    every_key = {row.key for row in table if isinstance(row, Row)}
    keys = {row.key for row in table if isinstance(row, Row) and row.codec.takes_value}
    needs: list[tuple[str, str]] = []
    for flag in flags.in_order:
        value = flag.values[0] if flag.values and flag.name in keys else Word.of("")
        names = value.condition.split(" and ") if value.condition else []
        needs += [
            (name, flag.name) for name in names or variables.dependences(value, expanded=True)
        ]
        needs += _open_flags(flag, every_key, script)
    needs += _other_commands(script, flags, every_key, launch)
    if reads_documents:
        documents = (own for own in script.documents if own.text.lstrip().startswith("{"))
        needs += [(name, "the JSON") for own in documents for name in own.dependences]
    for own in script.conditional_values:
        for flag in Flags.of(own.all_words, script.file, aliases).in_order:
            if flag.name in every_key:
                needs += [(name, flag.name) for name in own.condition.split(" and ")]
    asked = open_parameters(needs)
    requests = [
        parameter.request(variables.choices.get(parameter.name, ()), flag)
        for parameter, flag in asked.items()
    ]
    if requests:
        sizes = open_parameters(launcher_needs(script))
        requests += [
            f"{parameter.request(choices, flag)}, or --gpus N"
            for parameter, flag in sizes.items()
            if parameter not in asked and (choices := variables.choices.get(parameter.name, ()))
        ]
        problem = "; ".join([*_examples(script), *requests])
        raise InputError(f"{script.file}: {problem}", LONGEST_QUESTION)
    check_inputs(script)
    if variables.inputs.example:
        words = " ".join(variables.inputs.arguments)
        launch.left_out.append(f"arguments as in {variables.inputs.example}: {words[:100]}")
    return flags


def other_names(script: Script) -> Mapping[str, str]:
    """Other names of flags in a script: of the older ones those beside which no newer one stands,
    and which are not 0."""
    words = [*training_words(script), *script.conditional_words()]
    texts = [word.text.partition("=")[0].replace("_", "-") for word in words]
    off = {name for name, value in pairwise(texts) if value == "0"}
    older = {old: new for old, new in OLDER.items() if new not in texts and old not in off}
    return {**ALIASES, **older}


def _check_sizes(flags: Flags, program: str, is_whole: bool, launch: Launch) -> None:
    """Raise InputError for a program whose flags are not those of Megatron-LM, and for sizes that
    are in a checkpoint; `is_whole`: no flag is in another file."""
    other = ": give its JSON to plan3d import" if flags.contains("--deepspeed-config") else ""
    if flags.contains("--use-checkpoint-args") and not flags.contains("--num-layers"):
        raise launch.refuse(
            "has the sizes of its model in a checkpoint (--use-checkpoint-args): give the log of "
            "the run, or add --num-layers and the others to the script"
        )
    names_model = flags.contains("--model-name-or-path") and not flags.contains(SIZES[0])
    if is_whole and names_model and program:
        raise launch.refuse(
            f"starts {program[-60:]}, which has no --per_device_train_batch_size: if it trains by "
            "Hugging Face's Trainer, add it (8 where none is stated)"
        )
    if is_whole and not any(map(flags.contains, SIZES)):
        what = f"starts {program[-60:]}, which" if program else "starts no training, and"
        raise launch.refuse(f"{what} has no sizes of a model of Megatron-LM{other}")
    may_be_own = not is_whole and _OWN_NAMES.search(program.rpartition("/")[2])
    if program and not may_be_own and not any(map(flags.contains, OWN_FLAGS)):
        advice = other or ": give the model, the batch and the plan to plan3d estimate"
        raise launch.refuse(f"starts {program[-60:]}, a program that is not known{advice}")


def _open_flags(flag: Flag, keys: Collection[str], script: Script) -> list[tuple[str, str]]:
    """What the name of a flag, or a flag of the keys in an expansion beside it, depends on.

    Raises InputError where that is nothing to give a value to.
    """
    needs: list[tuple[str, str]] = []
    for part in flag.open_parts:
        inside = _FLAG.search(part.raw)
        name = inside[0].replace("_", "-") if inside else flag.name
        if inside and other_names(script).get(name, name) not in keys:
            continue
        own = [(one, name) for one in script.variables.dependences(Word((part,)), expanded=True)]
        if not open_parameters(own):
            problem = "depends on a condition or a command; write it where it always holds"
            raise InputError(f"{script.file}: line {flag.line}: {name} {problem}")
        needs += own
    return needs


def _is_open(flag: Flag) -> bool:
    """Whether a flag, or words beside it, stand for others that are not in the file."""
    return any(word.unresolved for word in flag.words)


def _examples(script: Script) -> list[str]:
    """The sentence that offers the calls of a script that are written beside it."""
    inputs = script.variables.inputs
    places = [] if inputs.example else places_of_examples(script.file, inputs.read_source)
    if not places:
        return []
    others = f" (also {', '.join(places[1:])})" if places[1:] else ""
    return [f"takes arguments, for example --example {places[0]}{others}, or one by one"]


def _other_commands(
    script: Script, flags: Flags, keys: Collection[str], launch: Launch
) -> list[tuple[str, str]]:
    """What decides between training commands that differ in flags of the table, or in others with
    an effect; where nothing that has a name does, it is noted that the first is read."""
    for words in other_commands(script):
        other = Flags.of(words, script.file, other_names(script))
        stated = (*flags.in_order, *other.in_order)
        groups = {flag.name: group_of(flag.name, flag.texts) for flag in stated}
        names = {name for name, group in groups.items() if group and group.effect in MATTERING}
        names |= {*keys}
        differing = [name for name in sorted(names) if _texts(flags, name) != _texts(other, name)]
        if not differing:
            continue
        condition = training_condition(script)
        if condition not in ("", CONDITION):
            return [(name, differing[0]) for name in condition.split(" and ")]
        line = words[0].line if words else 0
        launch.left_out.append(
            f"the training command in line {line}, which differs in {', '.join(differing[:4])}: "
            "the first one is read"
        )
        break
    return []


def _texts(flags: Flags, name: str) -> tuple[str, ...] | None:
    return flags.by_name[name].texts if name in flags.by_name else None


def unread_flags(
    flags: Flags, script: Script, table: Table, derived: Collection[str]
) -> list[UnreadSetting]:
    """Every flag of a script that no reader took.

    `derived`: flags that follow from the plan (tables.read_implied). Raises InputError for a flag
    that was read, or changes the model, and depends on a condition.
    """
    conditional: list[Flag] = []
    for value in script.conditional_values:
        own = Flags.of(value.all_words, script.file, other_names(script)).in_order
        conditional += own
        for flag in own:
            group = group_of(flag.name, flag.texts)
            if flag.name in flags.read_names or (group and group.effect is Effect.MODEL):
                reason = "a condition; write it where it always holds"
                if value.condition != CONDITION:
                    reason = without_value(value.condition)
                raise InputError(f"{script.file}: line {flag.line}: {flag} depends on {reason}")
    settings, rows = [], {row.key for row in table}
    places = {name: place for place, name in enumerate(script.variables.values)}
    for flag in (*flags.unread(), *conditional):
        affects_cost, why_neutral = unread_effect(flag.name, flag.texts, rows)
        is_unknown = not (affects_cost or why_neutral)
        suggestion = intended_name(flag.name, flags.read_names) if is_unknown else ""
        settings.append(
            UnreadSetting(
                f"line {flag.line}",
                str(flag),
                affects_cost=affects_cost or bool(suggestion),
                is_derived=flag.name in derived,
                flag=flag.name,
                assignments=script.variables.required_assignments(flag.words, places),
                suggestion=suggestion,
                why_neutral=why_neutral,
            )
        )
    return settings
