"""Recipes of a Python file that is not run: the objects that it makes, and the one that is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from plan3d.simulator.base.errors import LONGEST_QUESTION, InputError

from .evaluation import Module, Session
from .expressions import Function
from .values import Made

RUNNERS = ("run", "add", "pretrain", "finetune", "train", "main", "slurm_executor")
"""Functions and methods that are handed a recipe to run it."""
CHOICE = "recipe"
"""The name in --set that says which recipe of a file is read."""
KindOf = Callable[[Any], str]
"""Of which program an object is a recipe; '' of any other."""


@dataclass(frozen=True)
class Recipe:
    """A recipe of a file."""

    made: Made
    kind: str
    name: str


def recipes_of(session: Session, module: Module, kind_of: KindOf) -> list[Recipe]:
    """The recipes of a file: those that it runs, else those at its top, else those that functions
    return."""
    run = [
        Recipe(argument, kind_of(argument), one.name)
        for one in session.made
        for argument in (*one.arguments, *one.fields.values())
        if one.name in RUNNERS and kind_of(argument)
    ]
    top = [
        Recipe(value, kind_of(value), name)
        for name, value in module.scope.values.items()
        if kind_of(value)
    ]
    recipes = run or top or list(_returned(session, module, kind_of))
    return list({id(one.made): one for one in recipes}.values())


def _returned(session: Session, module: Module, kind_of: KindOf) -> Iterator[Recipe]:
    """Recipes that functions of the file return."""
    for name, value in list(module.scope.values.items()):
        if isinstance(value, Function) and value.file == module.file:
            made = None if name.startswith("_") else session.call(value, [], {})
            if isinstance(made, Made) and kind_of(made):
                yield Recipe(made, kind_of(made), name)


def chosen_recipe(recipes: list[Recipe], file: str, session: Session, title: str) -> Recipe:
    """The recipe that the user names, or the only one. Raises InputError naming them."""
    by_name = {one.name: one for one in recipes}
    wanted = session.given.get(CHOICE, "")
    if wanted in by_name:
        session.used.add(CHOICE)
        return by_name[wanted]
    if not recipes:
        raise InputError(
            f"{file}: is Python, which is not run, and makes no recipe of {title}: give the "
            "command or the log of the run"
        )
    if len(recipes) > 1 or wanted:
        problem = f"makes the recipes {', '.join(by_name)}: --set {CHOICE}={next(iter(by_name))}"
        raise InputError(f"{file}: {problem}", LONGEST_QUESTION)
    return recipes[0]
