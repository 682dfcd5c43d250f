"""Number formats of a training step: one file a recipe, the table of them, and optimizers."""

from .optimizers import Optimizer
from .recipe import Recipe
from .recipes import CODES, RECIPES, Precision, register_recipe

__all__ = ["CODES", "RECIPES", "Optimizer", "Precision", "Recipe", "register_recipe"]
