"""Comparison of a profile's own constants with measured rows; nothing is fitted.

Kernels and collectives are predicted from the profile alone. Gradients, long loops and backward
passes are rates over measured forward rows, as in a fit; what the profile leaves to the stack
(floor of a layer, weight gradients, backward bytes) is that of the software profile. Whole steps
are of the stack that their suite runs unless another is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...base.arrays import Value
from ...base.errors import CalibrationError
from ...hardware import layer_tables
from ...hardware.accelerator import Accelerator
from ...hardware.cluster import Cluster
from ...hardware.precision import FORMATS, RECIPES
from ...hardware.profile_file import read_profile
from ...hardware.software_stack import DEFAULT_SOFTWARE, Software, software_profile
from ...operators import kernel_times
from ...operators.kernel_times import gradient_rates
from ...operators.work import Gemm
from ..readers.measurements import Measurements, usable
from .fit import key_of, tabled_seconds
from .layer_times import both_passes, modelled_layers, rows_of_both_passes, table_sizes
from .links import fast_subjects, network_subjects
from .robust import Constant, Fit, Subject, errors, folds_of, groups_of
from .subjects import (
    TRAINING_SECTION,
    host_subjects,
    kernel_subjects,
    launches,
    training_subjects,
)
from .whole_steps import STACKS, predicted_steps

STEP_TITLES = {
    "seconds": "training steps",
    "memory_bytes": "peak of allocated memory",
    "reserved_bytes": "peak of reserved memory",
}
"""What a training step is compared in, by column."""


def compare(
    table: Measurements, profile: str, *, gpu: str | None = None, stack: str | None = None
) -> tuple[Fit, ...]:
    """Errors of a profile on the rows, by subject; CalibrationError where it predicts none."""
    table = usable(table, gpu)
    cluster = Cluster.profile(profile, nodes=1)
    software = software_profile(stack or DEFAULT_SOFTWARE)
    subjects = [
        *(
            _as_steps_use_gemms(subject, cluster.accelerator)
            for subject in kernel_subjects(table, cluster)
        ),
        *training_subjects(table, cluster.accelerator),
        *fast_subjects(table, cluster),
        *network_subjects(table, cluster),
        *host_subjects(table, cluster),
        *_launch_subjects(table, cluster.accelerator, software),
        *_layer_subjects(table, cluster, software),
        *_step_subjects(table, Cluster.profile(profile, gpus=1), stack),
    ]
    if not subjects:
        raise CalibrationError("no row that a profile's constants predict")
    numbers = read_profile(profile).numbers
    unstated = _default_constants(cluster.accelerator, software)
    return tuple(_unfitted(subject, numbers, unstated) for subject in subjects)


def _default_constants(accelerator: Accelerator, software: Software) -> dict[str, float]:
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


def _as_steps_use_gemms(subject: Subject, accelerator: Accelerator) -> Subject:
    """GEMMs as the profile predicts them: from its table where it has one, and with the kernels of
    16 bits where a scaled format has none of its own."""
    seconds = tabled_seconds(subject, accelerator)
    width = subject.section.removeprefix("kernels.gemm.")
    if seconds is None and width != subject.section and width not in accelerator.gemm:
        form = FORMATS[subject.name.removeprefix("GEMM ")]
        recipe = next(recipe for recipe in RECIPES.values() if recipe.linear is form)
        if subject.sides is None:
            raise CalibrationError(f"{subject.name}: {accelerator.name} has no {width} kernels")
        m, n, k = subject.sides
        sizes = [Gemm(m, n, k, 1.0)]
        seconds = kernel_times.gemm_seconds(sizes, len(subject.seconds), accelerator, recipe, 1.0)
    return subject if seconds is None else replace(subject, predict=lambda constants: seconds)


def _launch_subjects(
    table: Measurements, accelerator: Accelerator, software: Software
) -> Iterator[Subject]:
    """The host's time to launch a plain layer, against the floor of the profile and the stack."""
    rows = launches(table)
    if len(rows):
        floor = max(accelerator.training.layer_floor, software.layer_floor)
        name = f"launches of a layer, {software.name}"
        yield _fixed_subject(name, np.full(len(rows), floor), rows.number("seconds"), rows.rows)


def _layer_subjects(table: Measurements, cluster: Cluster, software: Software) -> Iterator[Subject]:
    """Whole layers, forward and backward together; with the profile's table of them, if it has."""
    rows = table.matching(suite="layer")
    shapes, measured = both_passes(rows)
    if not len(rows) or not shapes.size:
        return
    modelled = modelled_layers(Path(cluster.name), software, shapes)
    entry = cluster.accelerator.layer_tables.get(software.label)
    if entry is not None:
        modelled *= layer_tables.ratios(layer_tables.table_of(entry), table_sizes(shapes))
    name = f"whole layers, {software.name}"
    whole = rows_of_both_passes(rows, shapes)
    yield _fixed_subject(name, modelled.sum(axis=0), measured.sum(axis=0), whole)


def _step_subjects(table: Measurements, cluster: Cluster, stack: str | None) -> Iterator[Subject]:
    """Whole training steps: their time, and the memory of those whose peaks were measured."""
    for suite, usual in STACKS.items():
        rows, software = table.matching(suite=suite), software_profile(stack or usual)
        if not len(rows):
            continue
        for quantity, predicted in predicted_steps(rows, cluster, software).items():
            known = rows.number(quantity) > 0
            if known.any():
                measured = rows.take(known)
                name = f"{STEP_TITLES[quantity]}, {software.name}"
                values = measured.number(quantity)
                yield _fixed_subject(name, predicted[known], values, measured.rows, quantity)


def _fixed_subject(
    name: str,
    predicted: Value,
    measured: Value,
    rows: tuple[Mapping[str, str], ...],
    quantity: str = "seconds",
) -> Subject:
    """Rows whose prediction has no constants of its own."""
    shapes = groups_of(measured)
    return Subject(
        name=name,
        section=TRAINING_SECTION,
        priors=(),
        predict=lambda constants: predicted,
        seconds=measured,
        work=measured,
        shapes=shapes,
        folds=folds_of(shapes),
        split="rows",
        rows=rows,
        quantity=quantity,
    )


def _unfitted(subject: Subject, numbers: Mapping[str, float], unstated: Mapping[str, float]) -> Fit:
    known = dict(unstated) if subject.section == TRAINING_SECTION else {}
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
