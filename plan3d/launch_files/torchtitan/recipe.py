"""A plan as a Python recipe over the configuration of a flavor of torchtitan 0.3.

Source: torchtitan 0.3.0, config/configs.py, trainer.py (Trainer.Config), config_registry.py of the
models, distributed/activation_checkpoint.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from plan3d.simulator.base.printable import one_line
from plan3d.simulator.hardware.precision import Precision
from plan3d.simulator.plan.codes import Recompute
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.task import Task

from ..exporter import Form
from ..launch_file import UnreadSetting
from ..numbers import numbers_of
from ..tables import Numbers, settings_of
from .keys import RECIPE
from .model_flavors import UNWRITTEN_0_3
from .rules import RULES_0_3, common_rules
from .spelling import to_keys

VERSION = "0.3.0"
TITLE = f"torchtitan {VERSION}"
MODULE = "plan3d_recipe"


class Code(str):
    """Python text of a value that is no text."""

    def __repr__(self) -> str:
        return str(self)


def write(task: Task, plan: Plan, unread: Sequence[UnreadSetting] = ()) -> str:
    """The recipe as a Python module."""
    n = _recipe_numbers(task, plan)
    cluster, function = task.cluster, _function(n)
    return "\n".join(
        [
            f'"""{TITLE} recipe, written by plan3d.',
            "",
            f"{_inside(task.model.name)} on {task.gpus} x {_inside(cluster.accelerator.name)} "
            f"({cluster.nodes} x {cluster.gpus_per_node}).",
            f"Plan: {plan}",
            f"Save as {MODULE}.py and run torchtitan with --module {MODULE} --config recipe.",
            '"""',
            "",
            *_imports(n, function),
            "",
            "",
            "def recipe() -> Trainer.Config:",
            f'    """{_inside(task.model.name)} as the plan has it."""',
            f"    config = {function}()",
            *(f"    config.{key} = {value!r}" for key, value in settings_of(RECIPE, n)),
            "    return config",
            "",
        ]
    )


def _inside(name: str) -> str:
    """A name inside a docstring."""
    return one_line(name).replace("\\", "\\\\").replace('"', '\\"')


def _recipe_numbers(task: Task, plan: Plan) -> Numbers:
    """The numbers with those of the recipe; some flavors come with float8 layers, so that the
    registry is asked again."""
    n = to_keys(numbers_of(task, plan), task, "lm_head")
    n.without_graphs = n.pp > 1 or n.ep > 1
    n.checkpointed = Code("FullAC.Config()") if n.recompute == Recompute.FULL else None
    overlap = f", enable_async_tensor_parallel={bool(n.overlap_tp)}" if n.compiles else ""
    n.compiled = Code(f"CompileConfig(enable={n.compiles}{overlap})")
    recipe = 'recipe_name="rowwise", ' if n.precision == Precision.FP8_ROWWISE else ""
    converter = f"Float8LinearConverter.Config({recipe}model_compile_enabled=True)"
    converters = f", converters=[{converter}]" if n.float8 else ""
    registry = Code(f"model_registry({n.flavor!r}{converters})")
    n.spec = registry if n.family == "llama3" else ""
    return n


def _function(n: Numbers) -> str:
    """The function of the registry that makes a flavor's configuration."""
    float8 = "_float8" if n.family != "llama3" and n.float8 else ""
    return f"{n.family}_{n.flavor.lower()}{float8}"


def _imports(n: Numbers, function: str) -> list[str]:
    llama = n.family == "llama3"
    lines = {
        "from torchtitan.components.quantization import Float8LinearConverter": llama and n.float8,
        "from torchtitan.config import CompileConfig": True,
        "from torchtitan.distributed.activation_checkpoint import FullAC": n.recompute > 0,
        f"from torchtitan.models.{n.family} import model_registry": llama,
        f"from torchtitan.models.{n.family}.config_registry import {function}": True,
        "from torchtitan.trainer import Trainer": True,
    }
    return [line for line, needed in lines.items() if needed]


RULES = (*common_rules(TITLE, UNWRITTEN_0_3), *RULES_0_3)
FORM = Form(VERSION, TITLE, RULES, write, keeps_unread=False, table=RECIPE)
