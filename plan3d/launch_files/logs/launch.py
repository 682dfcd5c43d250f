"""Logs of training runs, read as launch files: settings, timed steps and peaks of memory."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace

from plan3d.simulator.base.documents import parse_yaml
from plan3d.simulator.base.errors import LONGEST_QUESTION, InputError
from plan3d.simulator.calibration.readers.log_values import RunSizes
from plan3d.simulator.calibration.readers.rank_lines import without_prefixes
from plan3d.simulator.calibration.readers.training_logs import is_log, ran_out, read_log
from plan3d.simulator.workload.model import Model

from ..launch_file import NO_OPTIONS, Launch, ReaderOptions
from ..registry import READERS
from ..spellings import table_of
from .printed_settings import (
    ABSENT,
    OTHER_MODELS,
    Printed,
    kept_settings,
    other_model,
    printed_settings,
)

ANOTHER = "another model than its flags describe"
TRACKER = "_wandb"
"""What Weights & Biases keeps of itself among the settings of a run."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class MeasuredRun:
    """What a log says of its run."""

    seconds: float | None
    """Of a step, the median; None where no step was timed."""
    steps: int
    """Timed lines."""
    memory_bytes: int | None
    """Peak of tensors; None where the log does not say."""
    reserved_bytes: int | None
    """Peak that the allocator reserved."""
    ran_out: bool
    """It needed more memory than its GPUs have."""


def read(text: str, file: str, options: ReaderOptions = NO_OPTIONS) -> Launch:
    """The launch of the settings that a log prints. Raises InputError where it prints none."""
    plain = without_prefixes(_COLOUR.sub("", text))
    printed = printed_settings(plain)
    if printed is None:
        hint = "give the launch file" + ", and the log to plan3d calibrate steps" * is_log(text)
        raise InputError(f"{file}: prints no settings of a trainer that plan3d reads: {hint}")
    other = other_model(plain) if printed.reader in ("megatron", "deepspeed") else ""
    if other:
        raise InputError(f"{file}: {other} makes it {ANOTHER}: not read")
    launch = _launch_of(printed, file, options, "a log")
    launch.log = text
    return launch


def read_kept(text: str, file: str, options: ReaderOptions = NO_OPTIONS) -> Launch:
    """The launch of the settings that Weights & Biases keeps of a run (config.yaml). Raises
    InputError where they are of no trainer that is read."""
    content = parse_yaml(text, file)
    if not isinstance(content, dict):
        raise InputError(f"{file}: must hold settings by name, each with its value")
    values = {
        name: entry["value"]
        for name, entry in content.items()
        if isinstance(name, str) and isinstance(entry, dict) and "value" in entry
    }
    values.pop(TRACKER, None)
    printed = kept_settings(values)
    stated = [name for name in OTHER_MODELS if str(values.get(name)) not in (*ABSENT, "0")]
    if stated and printed and printed.reader in ("megatron", "deepspeed"):
        raise InputError(f"{file}: {stated[0]} makes it {ANOTHER}: not read")
    if printed is None:
        raise InputError(
            f"{file}: has settings of no trainer that plan3d reads: give the launch file, or the "
            "model, the batch and the plan to plan3d estimate"
        )
    model = None
    if printed.reader == "trainer":
        keys = {row.key for row in table_of("trainer")} - {"model_type"}
        arguments = {key: value for key, value in values.items() if key in keys and value != []}
        printed = printed._replace(text=json.dumps(arguments, default=str))
    if printed.reader == "trainer" and values.get("model_type") and options.model is None:
        model = Model.from_config_values(values, str(values["model_type"]))
        options = replace(options, model=model)
    launch = _launch_of(printed, file, options, "Weights & Biases")
    launch.model = launch.model or model
    return launch


def _launch_of(printed: Printed, file: str, options: ReaderOptions, where: str) -> Launch:
    """The launch of settings that stand in another file."""
    name = f"{file}.{printed.ending}"
    try:
        launch = READERS.lookup(printed.reader, "--from")(printed.text, name, options)
    except InputError as error:
        raise InputError(str(error).replace(name, file), LONGEST_QUESTION) from None
    launch.file = file
    launch.launcher_gpus = printed.gpus or launch.launcher_gpus
    launch.title = f"{launch.title or launch.framework}, in {where}"
    launch.unread = [setting for setting in launch.unread if setting.affects_cost]
    return launch


def measured_run(text: str, gpus: int, sequence: int, batch: int, file: str) -> MeasuredRun:
    """The timed steps and peaks of a log of so many GPUs, tokens and sequences."""
    if ran_out(text) or not is_log(text):
        return MeasuredRun(None, 0, None, None, ran_out(text))
    (row,) = read_log(text, RunSizes(gpus, sequence, batch), file, timed=False)
    seconds, tokens, reserved = (
        row.get(name) for name in ("seconds", "memory_bytes", "reserved_bytes")
    )
    return MeasuredRun(
        seconds=float(str(seconds)) if seconds else None,
        steps=int(str(row["repeats"])),
        memory_bytes=int(str(tokens)) if tokens else None,
        reserved_bytes=int(str(reserved)) if reserved else None,
        ran_out=False,
    )
