"""Recipes of Megatron-Bridge with overrides KEY=VALUE, as a command or in an array of plan3d, or in
sections of a YAML file that names its recipe.

The overrides become assignments to the fields of the recipe, which the reader of recipes follows.
Source: megatron-bridge 0.3.1, scripts/training/run_recipe.py, training/utils/omegaconf_utils.py;
NVIDIA-NeMo/Nemotron, src/nemotron/recipes (recipe._target_).
"""

from __future__ import annotations

import re
from typing import Any

from plan3d.simulator.base.documents import parse_yaml
from plan3d.simulator.base.errors import InputError

from ..launch_file import NO_OPTIONS, Launch, ReaderOptions
from ..recipes.launch import read as read_recipe
from ..shell.launch_script import launcher_gpus
from ..shell.script import read_script
from ..shell.words import Word

PROGRAM = "run_recipe.py"
ARRAY = "OVERRIDES"
"""Where a file of plan3d has its overrides."""
_OVERRIDE = re.compile(
    r"\+{0,2}([a-z_]+(?:\.[A-Za-z_]\w*)+|mixed_precision|comm_overlap)=(.*)", re.S
)
_RECIPE = re.compile(r"--recipe[= ](\w+_config)\b")
UNNAMED = "any_config"
"""A recipe that decides nothing: the overrides state all."""


def read(text: str, file: str, options: ReaderOptions = NO_OPTIONS) -> Launch:
    """The launch of a script. Raises InputError for a value that is open, and for a recipe whose
    model and plan the overrides do not state."""
    script = read_script(text, file, options.inputs)
    commands = [own for own in script.commands if any(w.text.endswith(PROGRAM) for w in own)]
    array = script.variables.values.get(ARRAY)
    words = commands[0] if commands else list(array.words) if array else []
    named = _RECIPE.search(" ".join(word.text for word in words) if commands else text)
    recipe = named[1] if named else UNNAMED
    lines = [f"from megatron.bridge.recipes import {recipe}", f"recipe = {recipe}()"]
    lines += [line for word in words if (line := _assignment(word, file))]
    launch = read_recipe("\n".join([*lines, "pretrain(recipe)", ""]), file, options)
    launch.launcher_gpus = launcher_gpus(script) or launch.launcher_gpus
    launch.title = "overrides of Megatron-Bridge"
    return launch


def read_document(text: str, file: str, options: ReaderOptions = NO_OPTIONS) -> Launch:
    """The launch of a YAML file of a recipe, its arguments and overrides. Raises InputError for a
    recipe that is not of Megatron-Bridge."""
    content = parse_yaml(text, file)
    arguments = content.get("recipe") if isinstance(content, dict) else None
    target = arguments.get("_target_") if isinstance(arguments, dict) else None
    named = _TARGET.fullmatch(str(target))
    if not named or not isinstance(arguments, dict):
        raise InputError(
            f"{file}: $.recipe._target_ is {target!r:.80}: no recipe of Megatron-Bridge"
        )
    own = {name: value for name, value in _leaves(arguments).items() if name.isidentifier()}
    stated = ", ".join(f"{name}={_expression(value)}" for name, value in own.items())
    lines = [f"from {named[1]} import {named[2]}", f"recipe = {named[2]}({stated})"]
    for section, values in content.items():
        is_read = (
            isinstance(values, dict) and str(section).isidentifier() and section not in OUTSIDE
        )
        fields = _leaves(values) if is_read else {}
        lines += [f"recipe.{section}.{key} = {_expression(v)}" for key, v in fields.items()]
    launch = read_recipe("\n".join([*lines, "pretrain(recipe)", ""]), file, options)
    launch.title = "overrides of Megatron-Bridge"
    return launch


OUTSIDE = ("run", "recipe")
"""Sections that are no fields of the recipe."""
_TARGET = re.compile(r"(megatron\.bridge(?:\.\w+)+)\.(\w+_config)")
_REFERENCE = re.compile(r"\$\{.*\}")


def _leaves(section: dict[str, Any]) -> dict[str, Any]:
    """The values of a section by path, of those whose keys are names."""
    out: dict[str, Any] = {}
    for key, value in section.items():
        inner = _leaves(value) if isinstance(value, dict) else None
        if str(key).isidentifier():
            out |= {key: value} if inner is None else {f"{key}.{k}": v for k, v in inner.items()}
    return out


def _expression(value: Any) -> str:
    """A value in Python; a reference to what is not in the file as a name."""
    if isinstance(value, str) and _REFERENCE.search(value):
        return re.sub(r"\W+", "_", value).strip("_") or "_"
    return repr(value)


def _assignment(word: Word, file: str) -> str:
    """The assignment of one override; '' of any other word."""
    found = _OVERRIDE.fullmatch(word.text)
    if not found:
        return ""
    if word.unresolved or word.condition:
        raise InputError(f"{file}: line {word.line}: {word.text[:80]} is open: write its value")
    return f"recipe.{found[1]} = {parse_yaml(f'x: {found[2]}', file)['x']!r}"
