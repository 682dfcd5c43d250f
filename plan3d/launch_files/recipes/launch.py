"""Recipes of NeMo 2 and Megatron-Bridge, which are Python, read without running them.

The recipe is the object that a function of the file returns, or that the file hands to the program
that trains. What it sets to no literal is asked for by name: `--set NAME=VALUE` gives a parameter
of a function, an argument of the command line or an argument of Megatron-Core.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from plan3d.simulator.base.errors import LONGEST_QUESTION, intended_name

from ..launch_file import NO_OPTIONS, Launch, ReaderOptions, UnreadSetting
from ..mcore.run import check_model, read_run, unread_fields
from ..megatron_bridge.run_config import read_content
from ..shell.inputs import NO_INPUTS
from ..spellings import table_of
from ..tables import ANY, NAME, Row
from .evaluation import Module, Session, follow
from .library import ROOTS, UNKNOWN, library
from .selection import Recipe, chosen_recipe, recipes_of
from .settings import (
    ARGUMENTS,
    NEUTRAL,
    OVERLAPS,
    SECTIONS,
    arguments_of,
    model_of,
    parts_left_out,
    sections_of,
    vocabulary_of,
)
from .values import Made, Open, is_literal

TITLES = {"bridge": "Megatron-Bridge recipe", "nemo": "NeMo 2 recipe"}
TABLE = table_of("recipe")
_KEYS = {row.key for row in TABLE}
_WORDS = {row.key for row in TABLE if isinstance(row, Row) and row.codec in (ANY, NAME)}
"""Arguments whose values may be names of classes and constants."""
_BRIDGE_RECIPES = "megatron.bridge.recipes."
AXES = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
    *("micro_batch_size", "global_batch_size", "max_length"),
)
"""What a recipe that plan3d does not know must be told."""


def read(text: str, file: str, options: ReaderOptions = NO_OPTIONS) -> Launch:
    """The launch of a recipe. Raises InputError for Python that makes none."""

    def launch_of(session: Session, module: Module) -> Launch:
        recipes = recipes_of(session, module, kind_of)
        recipe = chosen_recipe(recipes, file, session, "NeMo 2 or Megatron-Bridge")
        return _launch(recipe, file, options, session)

    return follow(text, file, options.inputs, library, launch_of)


def kind_of(value: Any) -> str:
    """Of which program an object is a recipe; '' of any other."""
    if not isinstance(value, Made):
        return ""
    if value.name in UNKNOWN:
        return UNKNOWN[value.name]
    if value.callee.startswith("megatron.bridge.recipes.") and value.name.endswith("_config"):
        return "bridge"
    kind = ROOTS.get(value.name, "")
    if kind and value.fields.keys() & {"model", "trainer", "train", "data"}:
        return kind
    inner = [one for one in value.arguments if kind_of(one)]
    return kind_of(inner[0]) if len(inner) == 1 and not value.name[:1].isupper() else ""


def _base(value: Made, launch: Launch) -> Made:
    """The recipe that functions which are not read were handed; they are noted."""
    while not _is_root(value):
        inner = next(one for one in value.arguments if isinstance(one, Made) and kind_of(one))
        launch.unread.append(
            UnreadSetting(f"line {value.line}", f"{value.callee}(...) is not read", True)
        )
        _put_fields(inner, value)
        value = inner
    return value


def _put_fields(recipe: Made, later: Made) -> None:
    """Put the fields of a later object into those of the recipe: of a section whose fields alone
    are set, just these."""
    for name, value in later.fields.items():
        section = recipe.fields.get(name)
        if isinstance(section, Made) and isinstance(value, Made) and not value.callee:
            _put_fields(section, value)
        else:
            recipe.fields[name] = value


def _is_root(value: Made) -> bool:
    return (
        value.name in UNKNOWN or value.name in ROOTS or value.callee.startswith("megatron.bridge.")
    )


def _launch(recipe: Recipe, file: str, options: ReaderOptions, session: Session) -> Launch:
    kind = recipe.kind
    launch = Launch(file, "megatron", title=TITLES[kind])
    made = _base(recipe.made, launch)
    launch.left_out += parts_left_out(made)
    content = arguments_of(made, kind)
    for key in set(session.given) & _KEYS - session.used:
        content[key] = session.parameter(key, None)
    _check_stated(content, made, launch)
    preset, name, stated = model_of(made, kind)
    if preset is None and options.model is None:
        if stated.get("num_layers") and stated.get("hidden_size"):
            found = read_content(
                sections_of(made, kind), launch, replace(options, inputs=NO_INPUTS)
            )
            found.gpus = _gpus(content)
            return found
        what = f"trains {name[:60]}, which is no preset" if name else "does not name its model"
        raise launch.refuse(f"{what}: give --model config.json")
    shown = {key: value.text if isinstance(value, Open) else value for key, value in stated.items()}
    check_model(shown, preset or options.model, launch)
    values = {key: value for key, value in content.items() if key in _KEYS}
    values["model"] = ""
    launch = read_run(values, launch, TABLE, replace(options, model=preset or options.model))
    launch.model = preset
    size, launch.vocabulary_source = vocabulary_of(made, kind)
    if options.vocabulary:
        size, launch.vocabulary_source = options.vocabulary, "--vocabulary"
    if preset and size:
        launch.model = replace(preset, vocabulary=size)
    _check_strategy(content, kind, launch)
    launch.unread += _unread(content, made, kind)
    launch.gpus = _gpus(content)
    return launch


def _check_strategy(content: dict[str, Any], kind: str, launch: Launch) -> None:
    """Note the strategy of Megatron-FSDP where NeMo leaves it to Megatron-Core. Raises InputError
    for another FSDP."""
    fsdp = content.get("fsdp")
    if fsdp not in (None, False, "megatron"):
        raise launch.refuse(f"fsdp = {str(fsdp)[:40]} is not modelled; nearest: megatron")
    if kind == "nemo" and content.get("use_megatron_fsdp") and not content.get(STRATEGY):
        launch.unmodelled["zero"] = (
            f"{STRATEGY} is not stated: it is no_shard (zero=0) before core 0.18, and "
            "optim_grads_params (zero=3) since"
        )


STRATEGY = "data_parallel_sharding_strategy"


def _unread(content: dict[str, Any], made: Made, kind: str) -> Iterator[UnreadSetting]:
    """What is stated and not read: values, and objects that are named almost as a section."""
    sections = {name for path in SECTIONS[kind] for name in path.split(".")}
    names = sections | ARGUMENTS.keys() | NEUTRAL
    literal = {key: _text(value) for key, value in content.items() if is_literal(value)}
    yield from unread_fields(literal, _KEYS, names)
    objects = made.fields | {key: one for key, one in content.items() if not is_literal(one)}
    rest = {key: "(...)" for key in objects if intended_name(key, _KEYS | names)}
    yield from unread_fields(rest, _KEYS, names)


def _text(value: Any) -> Any:
    """A value; of a list the texts, with the names of objects that are not read, or None."""
    if not isinstance(value, list | tuple):
        return value
    texts = [f"{one.name}(...)" if isinstance(one, Made) else str(one) for one in value]
    return ", ".join(text for text in texts if text != f"{OVERLAPS}(...)") or None


def _gpus(content: dict[str, Any]) -> int | None:
    """GPUs of the trainer of NeMo."""
    nodes, devices = content.get("num_nodes"), content.get("devices")
    return nodes * devices if isinstance(nodes, int) and isinstance(devices, int) else None


def _check_stated(content: dict[str, Any], made: Made, launch: Launch) -> None:
    """Raise InputError that asks for all values that are no literals, and for those that a recipe
    which is not known decides."""
    asked = []
    for key in sorted(content.keys() & _KEYS):
        value = content[key]
        if isinstance(value, Open) and value.is_name and key in _WORDS:
            content[key] = value.text.rpartition(".")[2]
        elif isinstance(value, Open):
            name = value.names[0] if value.names else key
            asked.append(f"{key} is {value.text}: --set {name}=VALUE")
    if asked:
        raise launch.refuse("; ".join(asked), LONGEST_QUESTION)
    missing = [key for key in AXES if content.get(key) is None]
    is_unknown = made.name in UNKNOWN or made.callee.startswith(_BRIDGE_RECIPES)
    if is_unknown and missing:
        wanted = " ".join(f"--set {key}=VALUE" for key in missing)
        raise launch.refuse(f"starts from {made.callee}, which is not known: {wanted}")
    if is_unknown:
        text = f"{made.name} decides what is not stated beside it, and is not read"
        launch.unread.append(UnreadSetting("recipe", text, affects_cost=True))
