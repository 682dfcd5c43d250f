"""Job configurations of torchtitan, read: keys of 0.2, or of 0.1, where sizes of axes stand in
[training] and [experimental], with batch_size, and float8 is a switch.

Source: torchtitan 0.2.2, config/job_config.py; 0.1.0 and its history of 2024,
torchtitan/config_manager.py.
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
from .spelling import from_keys


def read_job(content: dict[str, Any], job_file: str, file: str, options: ReaderOptions) -> Launch:
    """The launch of a job; `job_file` is where its keys are."""
    content = _with_newer_names(content)
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


_AXES = ("data_parallel_replicate", "data_parallel_shard", "tensor_parallel", "context_parallel")
OLDER = {
    "training.batch_size": "training.local_batch_size",
    "training.sequence_parallel_degree": "parallelism.tensor_parallel_degree",
    "training.data_parallel_degree": "parallelism.data_parallel_shard_degree",
    "training.fsdp_reshard_after_forward": "parallelism.fsdp_reshard_after_forward",
    "training.disable_loss_parallel": "parallelism.disable_loss_parallel",
    **{
        f"{section}.{name}": f"parallelism.{name}"
        for section in ("training", "experimental")
        for name in (
            *(f"{axis}_degree" for axis in (*_AXES, "pipeline_parallel")),
            *("pipeline_parallel_schedule", "pipeline_parallel_split_points"),
            *("pipeline_parallel_schedule_csv", "pipeline_parallel_microbatches"),
            *("context_parallel_rotate_method", "enable_async_tensor_parallel"),
            "enable_compiled_autograd",
        )
    },
}
"""Keys by their older names."""
MICROBATCHES = "pipeline_parallel_microbatches"
_SWITCHES = (("float8", "enable_float8_linear"), ("training", "enable_fp8_linear"))
"""Switches of float8, which a converter replaced."""


def _with_newer_names(content: dict[str, Any]) -> dict[str, Any]:
    """A job with the keys of 0.2 in place of the older ones."""
    own = {key: dict(value) if isinstance(value, dict) else value for key, value in content.items()}

    def section(name: str) -> dict[str, Any]:
        here = own.setdefault(name, {})
        return here if isinstance(here, dict) else {}

    is_older = False
    for older, newer in OLDER.items():
        (place, name), (target, key) = older.split("."), newer.split(".")
        here = own.get(place)
        if isinstance(here, dict) and name in here and key not in section(target):
            section(target)[key] = here.pop(name)
            is_older = True
            if not here:
                del own[place]
    _copy_all_ranks(own)
    for place, name in _SWITCHES:
        here = own.get(place)
        value = here.get(name) if isinstance(here, dict) else None
        if value not in (None, False, "") and not section("model").get("converters"):
            section("model")["converters"] = ["float8"]
    return _with_microbatches(own) if is_older else own


def _copy_all_ranks(own: dict[str, Any]) -> None:
    """Data ranks of `data_parallel_type = "ddp"` hold all weights."""
    training, axes = own.get("training"), own.get("parallelism")
    if not isinstance(training, dict) or not isinstance(axes, dict):
        return
    if training.get("data_parallel_type") == "ddp" and "data_parallel_shard_degree" in axes:
        axes["data_parallel_replicate_degree"] = axes["data_parallel_shard_degree"]
        axes["data_parallel_shard_degree"] = 1


def _with_microbatches(own: dict[str, Any]) -> dict[str, Any]:
    """The job with the size of micro-batches in place of their number, which was that of the
    stages where it was not stated."""
    axes, training = own.get("parallelism"), own.get("training")
    if not isinstance(axes, dict) or not isinstance(training, dict):
        return own
    stages, batch = axes.get("pipeline_parallel_degree", 1), training.get("local_batch_size", 8)
    count = axes.get(MICROBATCHES) or stages
    are_counts = all(type(value) is int and value > 0 for value in (stages, batch, count))
    if are_counts and stages > 1 and batch % count == 0:
        axes.pop(MICROBATCHES, None)
        axes.setdefault("pipeline_parallel_microbatch_size", batch // count)
    return own
