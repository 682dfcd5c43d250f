"""Job configurations of torchtitan: the TOML of 0.2, and back; 0.3 has recipes.

Source: torchtitan 0.2.2, config/job_config.py, distributed/parallel_dims.py,
models/llama3/infra/parallelize.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from plan3d.simulator.base.documents import format_toml, parse_toml
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.task import Task

from ..documents import Document, nested_document, with_unread
from ..exporter import Exporter, Form, heading, unwritten_settings
from ..launch_file import NO_OPTIONS, Launch, ReaderOptions, UnreadSetting
from ..numbers import fill_launch, numbers_of
from ..tables import Numbers, key_classes, read_implied, read_rows, settings_of
from . import recipe
from .keys import MATTERS, TABLE
from .model_flavors import UNWRITTEN_0_2, flavor_model, is_flavor, registration
from .rules import RULES_0_2, common_rules
from .spelling import from_keys, to_keys

VERSION = "0.2.2"
TITLE = f"torchtitan {VERSION}"
ROTATION = "rope_theta (10000 unless set), rope_scaling_args"


def write(task: Task, plan: Plan, unread: Sequence[UnreadSetting] = ()) -> str:
    """The TOML file."""
    n = to_keys(numbers_of(task, plan), task, "output")
    content = with_unread(nested_document(settings_of(TABLE, n)), unread, key_classes(TABLE, n))
    own = [] if is_flavor(task.model) else unwritten_settings(task.model, ROTATION)
    top = "\n".join([*heading(task, plan, TITLE), *own, *registration(task.model), ""])
    return f"{top}\n{format_toml(content)}\n"


def read(text: str, file: str, given: ReaderOptions = NO_OPTIONS) -> Launch:
    """The launch of a TOML file. Raises InputError naming the key that is wrong."""
    content = parse_toml(text, file)
    launch, job, n = Launch(file, "torchtitan"), Document(content, file), Numbers()
    if not content.keys() & {"training", "parallelism"}:
        raise launch.refuse("has neither [training] nor [parallelism]: not a torchtitan job")
    read_rows(TABLE, job, n)
    launch.model = flavor_model(n.family, n.flavor)
    known = launch.model or given.model
    if known is None:
        names = f"{n.family} {n.flavor}"
        raise launch.refuse(f"names {names}, which plan3d does not know: give --model")
    from_keys(job, n, launch, known)
    fill_launch(launch, n)
    launch.unread = job.unread(MATTERS, read_implied(TABLE, job, n))
    return launch


RULES = (*common_rules(TITLE, UNWRITTEN_0_2), *RULES_0_2)
EXPORTER = Exporter(
    "torchtitan",
    (Form(VERSION, TITLE, RULES, write, table=TABLE), recipe.FORM),
    software="torchtitan",
    search_values={"overlap_ep": (0,), "cp_comm": ("p2p", "all-gather")},
)
