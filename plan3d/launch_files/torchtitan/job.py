"""Job configurations of torchtitan, read.

Source: torchtitan 0.2.2, config/job_config.py.
"""

from __future__ import annotations

from typing import Any

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.workload.model import Model
from plan3d.simulator.workload.presets import preset_names

from ..documents import Document
from ..launch_file import Launch, ReaderOptions
from ..numbers import fill_launch
from ..tables import Numbers, neutral, read_implied, read_rows
from .keys import QUANTIZED, TABLE
from .model_flavors import flavor_model, flavors_text
from .older_names import with_newer_names
from .spelling import from_keys


def read_job(content: dict[str, Any], job_file: str, file: str, options: ReaderOptions) -> Launch:
    """The launch of a job; `job_file` is where its keys are."""
    content = with_newer_names(content)
    launch, job, n = Launch(file, "torchtitan"), Document(content, job_file), Numbers()
    if not content.keys() & {"training", "parallelism"}:
        problem = "has neither [training] nor [parallelism]: not a torchtitan job"
        raise InputError(f"{job_file}: {problem}")
    job.check_model(TABLE)
    read_rows(TABLE, job, n)
    launch.model = flavor_model(n.family, n.flavor)
    if launch.model is None and n.flavor in preset_names():
        launch.model = Model.preset(n.flavor)
    model = launch.model or options.model
    if model is None:
        raise InputError(
            f"{job_file}: names {n.family} {n.flavor}, which is no flavor that plan3d knows "
            f"({flavors_text(n.family)}): give --model"
        )
    from_keys(job, n, launch, model)
    fill_launch(launch, n)
    table = TABLE if n.converters else (*TABLE, *neutral("what is switched off", QUANTIZED))
    launch.unread = job.unread(table, read_implied(TABLE, job, n))
    return launch
