"""Jobs of torchtitan: the TOML of 0.2, written and read, and the Python recipe of 0.3.

Source: torchtitan 0.2.2, config/job_config.py, distributed/parallel_dims.py,
models/llama3/infra/parallelize.py; 0.3.0, config/configs.py, trainer.py (Trainer.Config),
config_registry.py of the models, distributed/activation_checkpoint.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from plan3d.simulator.base.documents import format_toml, parse_toml
from plan3d.simulator.base.printable import one_line
from plan3d.simulator.hardware.precision import Precision
from plan3d.simulator.plan.field_values import Recompute
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.task import Task

from ..documents import nested_document, with_unread
from ..exporter import Exporter, Form, heading, unwritten_settings
from ..launch_file import NO_OPTIONS, Launch, ReaderOptions, UnreadSetting
from ..numbers import numbers_of
from ..tables import Numbers, key_classes, settings_of
from .command import command_of, job_of_command, starts_torchtitan
from .job import read_job
from .keys import RECIPE, TABLE
from .model_flavors import UNWRITTEN_0_2, UNWRITTEN_0_3, is_flavor, registration
from .recipe import launch_of, read_recipe, recipe_of_command
from .rules import RULES_0_2, RULES_0_3, common_rules
from .spelling import to_keys

VERSION, VERSION_0_3 = "0.2.2", "0.3.0"
TITLE, TITLE_0_3 = f"torchtitan {VERSION}", f"torchtitan {VERSION_0_3}"
BASE, SCALING = "rope_theta", "rope_scaling_args"
MODULE = "plan3d_recipe"


def write_toml(task: Task, plan: Plan, unread: Sequence[UnreadSetting] = ()) -> str:
    """The TOML file of 0.2."""
    n = to_keys(numbers_of(task, plan), task, "output")
    content = with_unread(nested_document(settings_of(TABLE, n)), unread, key_classes(TABLE, n))
    positions = [] if is_flavor(task.model) else unwritten_settings(task.model, BASE, SCALING)
    top = "\n".join([*heading(task, plan, TITLE), *positions, *registration(task.model), ""])
    return f"{top}\n{format_toml(content)}\n"


def read(text: str, file: str, options: ReaderOptions = NO_OPTIONS) -> Launch:
    """The launch of a TOML file, of a recipe in Python, or of a script that names one of them.
    Raises InputError naming the key that is wrong, or the file that a script names."""
    if file.lower().endswith(".py"):
        return read_recipe(text, file, options)
    if file.lower().endswith(".toml") or not starts_torchtitan(text):
        return read_job(parse_toml(text, file), file, file, options)
    command = command_of(text, file, options)
    if command.recipe:
        made = recipe_of_command(command.module, command.recipe, file, command.options)
        launch = launch_of(made, file, command.options, command.recipe, command.overrides)
    else:
        launch = read_job(job_of_command(command), command.job, f"{file}: {command.job}", options)
    launch.launcher_gpus = command.gpus
    return launch


class Code(str):
    """Python text of a value that is no text."""

    def __repr__(self) -> str:
        return str(self)


def write_recipe(task: Task, plan: Plan, unread: Sequence[UnreadSetting] = ()) -> str:
    """The recipe of 0.3 as a Python module."""
    n = _recipe_numbers(task, plan)
    # As text of a docstring.
    model = one_line(task.model.name).replace("\\", "\\\\").replace('"', '\\"')
    float8 = "_float8" if n.family != "llama3" and n.float8 else ""
    function = f"{n.family}_{n.flavor.lower()}{float8}"
    return "\n".join(
        [
            *heading(task, plan, f"{TITLE_0_3} recipe"),
            f'"""Save as {MODULE}.py and run torchtitan with --module {MODULE} --config recipe."""',
            "",
            *_imports(n, function),
            "",
            "",
            "def recipe() -> Trainer.Config:",
            f'    """{model} as the plan has it."""',
            f"    config = {function}()",
            *(f"    config.{key} = {value!r}" for key, value in settings_of(RECIPE, n)),
            "    return config",
            "",
        ]
    )


def _recipe_numbers(task: Task, plan: Plan) -> Numbers:
    """The numbers with those of the recipe; some flavors come with float8 layers, so that the
    registry is asked again."""
    n = to_keys(numbers_of(task, plan), task, "lm_head")
    n.disable_cuda_graphs = n.pp > 1 or n.ep > 1
    n.checkpoint_config = Code("FullAC.Config()") if n.recompute == Recompute.FULL else None
    n.loss_config = Code("CrossEntropyLoss.Config()")
    overlap = f", enable_async_tensor_parallel={bool(n.overlap_tp)}" if n.compile_enabled else ""
    n.compile_config = Code(f"CompileConfig(enable={n.compile_enabled}{overlap})")
    recipe = 'recipe_name="rowwise", ' if n.precision == Precision.FP8_ROWWISE else ""
    converter = f"Float8LinearConverter.Config({recipe}model_compile_enabled=True)"
    converters = f", converters=[{converter}]" if n.float8 else ""
    registry = Code(f"model_registry({n.flavor!r}{converters})")
    n.model_spec = registry if n.family == "llama3" else ""
    return n


def _imports(n: Numbers, function: str) -> list[str]:
    """The imports of a recipe; `function` of the registry makes the configuration of a flavor."""
    llama = n.family == "llama3"
    lines = {
        "from torchtitan.components.loss import CrossEntropyLoss": True,
        "from torchtitan.components.quantization import Float8LinearConverter": llama and n.float8,
        "from torchtitan.config import CompileConfig": True,
        "from torchtitan.distributed.activation_checkpoint import FullAC": n.recompute > 0,
        f"from torchtitan.models.{n.family} import model_registry": llama,
        f"from torchtitan.models.{n.family}.config_registry import {function}": True,
        "from torchtitan.trainer import Trainer": True,
    }
    return [line for line, needed in lines.items() if needed]


EXPORTER = Exporter(
    "torchtitan",
    (
        Form(
            VERSION,
            TITLE,
            (*common_rules(TITLE, UNWRITTEN_0_2), *RULES_0_2),
            write_toml,
            table=TABLE,
        ),
        Form(
            VERSION_0_3,
            TITLE_0_3,
            (*common_rules(TITLE_0_3, UNWRITTEN_0_3), *RULES_0_3),
            write_recipe,
            keeps_unread=False,
            table=RECIPE,
        ),
    ),
    software="torchtitan",
    search_values={"overlap_ep": (0,), "cp_comm": ("p2p", "all-gather")},
)
