"""How far is a profile off on measured rows? Its own constants against them; nothing is fitted.

Kernels and collectives are predicted from the profile alone. Gradients, long loops and backward
passes are rates over measured forward rows, as in a fit; what the profile leaves to the stack
(floor of a layer, weight gradients, backward bytes) is that of the software profile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .. import layer_tables
from ..accelerator import Accelerator
from ..errors import CalibrationError
from ..hardware import Cluster
from ..hardware_profile import read_profile
from ..kernels import gradient_rates
from ..software import DEFAULT_SOFTWARE, Software, software_profile
from .fit import kernel_subjects, key_of, tabled_seconds
from .layer_times import both_passes, modelled_layers, table_sizes
from .measurements import Measurements, usable
from .robust import Constant, Fit, Subject, errors, folds_of, groups_of
from .subjects_collective import fast_subjects, network_subjects
from .subjects_training import SECTION, layer_floor, training_subjects

Value = NDArray[np.float64]


def compare(
    table: Measurements, profile: str, *, gpu: str | None = None, stack: str | None = None
) -> tuple[Fit, ...]:
    """Errors of a profile on the rows, by subject; CalibrationError where it predicts none."""
    table = usable(table, gpu)
    cluster = Cluster.profile(profile, nodes=1)
    software = software_profile(stack or DEFAULT_SOFTWARE)
    subjects = [
        *(_tabled(subject, cluster.accelerator) for subject in kernel_subjects(table, cluster)),
        *training_subjects(table, cluster.accelerator),
        *fast_subjects(table, cluster),
        *network_subjects(table, cluster),
        *_launches(table, cluster.accelerator, software),
        *_layers(table, cluster, software),
    ]
    if not subjects:
        raise CalibrationError("no row that a profile's constants predict")
    numbers = read_profile(profile).numbers
    unstated = _unstated(cluster.accelerator, software)
    return tuple(_as_is(subject, numbers, unstated) for subject in subjects)


def _unstated(accelerator: Accelerator, software: Software) -> dict[str, float]:
    """Constants of training kernels as a step uses them, whether or not the profile states them."""
    training = accelerator.training
    return {
        "dgrad_rate": training.dgrad_rate,
        "wgrad_rate": gradient_rates(software, accelerator)[1],
        "grouped_rate": training.grouped_rate,
        "sustained": training.sustained,
        "streaming_efficiency": training.streaming_efficiency,
        "loss_efficiency": training.loss_efficiency or accelerator.memory_bound.efficiency,
        "backward_bytes_ratio": training.backward_bytes_ratio or software.backward_bytes_ratio,
        # Launching one long pass is hidden behind the kernel before.
        "latency": 0.0,
    }


def _tabled(subject: Subject, accelerator: Accelerator) -> Subject:
    """GEMMs as the profile predicts them: from its table where it has one."""
    seconds = tabled_seconds(subject, accelerator)
    return subject if seconds is None else replace(subject, predict=lambda constants: seconds)


def _launches(
    table: Measurements, accelerator: Accelerator, software: Software
) -> Iterator[Subject]:
    """The host's time to launch a plain layer, against the floor of the profile and the stack."""
    measured = layer_floor(table)
    if measured:
        floor = max(accelerator.training.layer_floor, software.layer_floor)
        seconds = np.array([constant.value for constant in measured.values()])
        yield _given(f"launches of a layer, {software.name}", np.array([floor]), seconds)


def _layers(table: Measurements, cluster: Cluster, software: Software) -> Iterator[Subject]:
    """Whole layers, forward and backward together; with the profile's table of them, if it has."""
    rows = table.where(suite="layer")
    shapes, measured = both_passes(rows)
    if not len(rows) or not shapes.size:
        return
    modelled = modelled_layers(Path(cluster.name), software.name, shapes)
    entry = cluster.accelerator.layer_tables.get(software.name)
    if entry is not None:
        modelled *= layer_tables.ratios(layer_tables.table_of(entry), table_sizes(shapes))
    name = f"whole layers, {software.name}"
    yield _given(name, modelled.sum(axis=0), measured.sum(axis=0))


def _given(name: str, predicted: Value, seconds: Value) -> Subject:
    """Rows whose prediction has no constants of its own."""
    shapes = groups_of(seconds)
    return Subject(
        name=name,
        section=SECTION,
        priors=(),
        predict=lambda constants: predicted,
        seconds=seconds,
        work=seconds,
        shapes=shapes,
        folds=folds_of(shapes),
        split="rows",
    )


def _as_is(subject: Subject, numbers: Mapping[str, float], unstated: Mapping[str, float]) -> Fit:
    known = dict(unstated) if subject.section == SECTION else {}
    known |= {
        prior.name: numbers[key_of(subject, prior.name)]
        for prior in subject.priors
        if key_of(subject, prior.name) in numbers
    }
    constants = {
        prior.name: Constant(value=known[prior.name])
        for prior in subject.priors
        if prior.name in known
    }
    predicted = subject.predict({name: constant.value for name, constant in constants.items()})
    found = errors(predicted, subject.seconds)
    return Fit(subject=subject, constants=constants, in_sample=found, held_out=None)
