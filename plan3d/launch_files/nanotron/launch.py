"""Configurations of nanotron: the sections of its YAML that a plan decides, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plan3d.simulator.base.documents import parse_yaml
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.task import Task

from ..documents import Document, nested, with_kept
from ..exporter import Exporter, Form, heading, unsaid
from ..launch_file import NOTHING, Given, Kept, Launch
from ..numbers import fill, model_of, numbers_of
from ..processes import PROCESSES, not_full, torchrun
from ..tables import Numbers, places, read_implied, stated
from ..tables import read as read_table
from .keys import MATTERS, TABLE, meant, spelled
from .rules import RULES

VERSION = "2026-04"
TITLE = f"nanotron main of {VERSION}"


def write(task: Task, plan: Plan, kept: Sequence[Kept] = ()) -> str:
    """The sections as YAML."""
    n = spelled(numbers_of(task, plan))
    content = with_kept(nested(stated(TABLE, n)), kept, places(TABLE, n))
    top = [
        *heading(task, plan, TITLE),
        *unsaid(task.model, "model.model_config.rope_theta (10000 unless set), rope_scaling"),
        "# Add general, tokenizer, data_stages, checkpoints, model.init_method, tokens.train_steps",
        "# and what else the optimizer needs (optimizer_factory, weight_decay, clip_grad,",
        "# learning_rate_scheduler), then:",
        f"# CUDA_DEVICE_MAX_CONNECTIONS=1 {torchrun(task.cluster)} run_train.py --config-file FILE",
        *not_full(task.cluster, PROCESSES),
    ]
    return "\n".join(top) + "\n" + yaml_text(content)


def yaml_text(content: dict[str, Any]) -> str:
    """A document in block style, keys in their order."""
    import yaml

    return str(yaml.safe_dump(content, sort_keys=False, default_flow_style=False))


def read(text: str, file: str, given: Given = NOTHING) -> Launch:
    """The launch of a YAML file. Raises InputError naming the key that is wrong."""
    launch, n = Launch(file, "nanotron"), Numbers()
    config = Document(parse_yaml(text, file), file)
    read_table(TABLE, config, n)
    meant(config, n, launch)
    launch.model = model_of(n, launch.stem, "model_config of a nanotron file")
    fill(launch, n)
    launch.kept = config.rest(MATTERS, read_implied(TABLE, config, n))
    return launch


EXPORTER = Exporter(
    "nanotron",
    (Form(VERSION, TITLE, RULES, write, table=TABLE),),
    software="nanotron",
    tries={"overlap_param_gather": (0,)},
)
