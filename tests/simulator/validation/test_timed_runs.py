"""Do ratios of layers come back from the steps that they make?"""

import functools
from dataclasses import replace

import numpy as np
import pytest

from plan3d.simulator.hardware import layer_tables
from plan3d.simulator.runs.published_runs import PublishedRun, read_runs
from plan3d.simulator.runs.run_tasks import questions
from plan3d.simulator.validation import timed_runs
from plan3d.simulator.validation.timed_runs import TimedRuns


@functools.cache
def published():
    """Some runs, their rows, and the sizes of their layers."""
    runs = [run for run in read_runs() if run.source == "vtrain24_single"][:24]
    rows = TimedRuns(questions(runs))
    return runs, rows, np.unique(timed_runs.sizes_of(rows), axis=1)


def made_of(ratio):
    """The runs, timed as a table of these ratios would have it."""
    runs, rows, sizes = published()
    table = layer_tables.build(sizes, np.stack([ratio, ratio]))
    seconds = rows.seconds(timed_runs.then_table(lambda task: task, table))
    return TimedRuns(questions(_timed(run, s) for run, s in zip(runs, seconds, strict=True)))


def _timed(run, seconds):
    return PublishedRun({**run.cells, "step_seconds": float(seconds)})


def test_known_ratios_are_recovered():
    _, _, sizes = published()
    ratio = np.exp(np.random.default_rng(0).normal(0, 0.2, sizes.shape[1]))
    found = timed_runs.fit(made_of(ratio))
    assert (found.sizes == sizes).all()
    assert found.ratio == pytest.approx(ratio, rel=1e-3)


@pytest.mark.slow
def test_runs_that_went_wrong_do_not_move_a_ratio():
    _, _, sizes = published()
    rows = made_of(np.ones(sizes.shape[1]))
    wrong = np.random.default_rng(0).random(rows.measured_seconds.size) < 0.15
    rows.measured_seconds[wrong] *= 3
    assert np.median(np.abs(np.log(timed_runs.fit(rows).ratio))) < 1e-3


def test_bare_takes_the_shipped_table_away():
    _, rows, _ = published()
    task = rows.questions[0].task
    assert task.software.name in task.cluster.accelerator.layer_tables
    assert not timed_runs.without_layer_table(task).cluster.accelerator.layer_tables
    assert (
        replace(task, cluster=timed_runs.without_layer_table(task).cluster).software
        == task.software
    )
