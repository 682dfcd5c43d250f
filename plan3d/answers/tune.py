"""Tuning: which plans to time next on a machine, until one more run is not expected to gain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plan3d.search.space.constraints import check_choices
from plan3d.search.space.space import Choices
from plan3d.simulator.base.errors import NoFeasiblePlanError
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import imbalance

from ..launch_files.registry import exporter
from ..tuning.advice import Advice
from ..tuning.loop import LEAST_GAIN, Loop
from ..tuning.session import Run, resume_session
from .question import MACHINE_UNITS, launcher, task_record


@dataclass(frozen=True, kw_only=True)
class TuneRequest:
    """A machine whose best plan is looked for with timed runs."""

    task: Task
    framework: str
    folder: Path
    """Of launch files, their logs and the state of the session."""
    choose: Choices = field(default_factory=dict)
    headroom: float | None = None
    least_gain: float = LEAST_GAIN
    """Share of a step that one more run must be expected to gain."""
    runs: int = 1
    """Runs that are suggested, or started."""
    command: Sequence[str] = ()
    """Words that start a launch file; none where runs are not started."""
    make_folder: Callable[[Path], None]
    """Makes the folder, once there is something to keep in it."""
    write: Callable[[Path, str], None]
    """Writes a whole file."""
    announce: Callable[[Run], None]
    """Hears of a run that is about to start."""


@dataclass(frozen=True)
class TuneAnswer:
    """Where a session stands."""

    loop: Loop
    advice: Advice
    interrupted: bool = False


def tune(request: TuneRequest) -> TuneAnswer:
    """Read the logs that are there, and suggest, or start, the next runs. NoFeasiblePlanError where
    no plan fits."""
    check_choices(request.task, request.choose)
    options: dict[str, Any] = {"choose": request.choose}
    if request.headroom is not None:
        options["headroom"] = request.headroom
    loop = Loop(
        task=request.task,
        framework=request.framework,
        form=exporter(request.framework, "--framework").form(),
        session=resume_session(request.folder, _fixed(request)),
        folder=request.folder,
        options=options,
        least_gain=request.least_gain,
        write=request.write,
        announce=request.announce,
    )
    advice = loop.read_logs()
    if advice is None:
        raise NoFeasiblePlanError("no plan fits: plan3d search says what would")
    request.make_folder(request.folder)
    try:
        if request.command:
            advice = loop.start(advice, request.runs, request.command)
        else:
            loop.suggest(advice, request.runs)
    except KeyboardInterrupt:
        loop.save(loop.read_logs())
        return TuneAnswer(loop, advice, interrupted=True)
    return TuneAnswer(loop, advice)


def _fixed(request: TuneRequest) -> Mapping[str, Any]:
    """What may not change in a session."""
    task = request.task
    machine = {name: _stated(name, value) for name, value in task.cluster.settings.items()}
    uneven = imbalance(task.model)
    return {
        **task_record(task),
        "software": task.software.name,
        "framework": launcher(task),
        "machine": machine if uneven == 1 else {**machine, "expert_imbalance": f"{uneven:g}"},
        "plans": {name: ",".join(map(str, values)) for name, values in request.choose.items()},
    }


def _stated(name: str, value: float | str) -> str:
    """A number of a machine as an option takes it: 300W."""
    unit, factor = MACHINE_UNITS.get(name, ("", 1.0))
    return value if isinstance(value, str) else f"{value / factor:.9g}{unit}"
