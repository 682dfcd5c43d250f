"""Syntax trees of the files of the repository."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path


@cache
def tree_of(path: Path) -> ast.Module:
    """The tree of a module. Its many objects are all in use: looking for garbage among them, which
    they would start, takes as long as reading them."""
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        gc.enable()
