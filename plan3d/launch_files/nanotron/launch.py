"""Configurations of nanotron: the sections of its YAML that a plan decides, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plan3d.simulator.base.documents import parse_yaml
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.task import Task

from ..documents import Document, nested_document, with_unread
from ..exporter import Exporter, Form, heading, unwritten_settings
from ..launch_file import NO_OPTIONS, Launch, ReaderOptions, UnreadSetting
from ..numbers import fill_launch, model_of, numbers_of
from ..processes import PROCESSES, not_full, torchrun
from ..tables import Numbers, key_classes, read_implied, read_rows, settings_of
from .keys import MATTERS, TABLE, from_keys, to_keys
from .rules import RULES

VERSION = "2026-04"
TITLE = f"nanotron main of {VERSION}"


def write(task: Task, plan: Plan, unread: Sequence[UnreadSetting] = ()) -> str:
    """The sections as YAML."""
    n = to_keys(numbers_of(task, plan))
    content = with_unread(nested_document(settings_of(TABLE, n)), unread, key_classes(TABLE, n))
    top = [
        *heading(task, plan, TITLE),
        *unwritten_settings(
            task.model, "model.model_config.rope_theta (10000 unless set), rope_scaling"
        ),
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


def read(text: str, file: str, given: ReaderOptions = NO_OPTIONS) -> Launch:
    """The launch of a YAML file. Raises InputError naming the key that is wrong."""
    launch, n = Launch(file, "nanotron"), Numbers()
    config = Document(parse_yaml(text, file), file)
    read_rows(TABLE, config, n)
    from_keys(config, n, launch)
    launch.model = model_of(n, launch.stem, "model_config of a nanotron file")
    fill_launch(launch, n)
    launch.unread = config.unread(MATTERS, read_implied(TABLE, config, n))
    return launch


EXPORTER = Exporter(
    "nanotron",
    (Form(VERSION, TITLE, RULES, write, table=TABLE),),
    software="nanotron",
    search_values={"overlap_param_gather": (0,)},
)
