"""Ways to fine-tune that fit: what is tried, and which of it is shown."""

from dataclasses import replace

import pytest

from plan3d.search.whatif.what_fits import (
    LONGEST,
    SHORTEST,
    _costed,
    _fit,
    _longest,
    _plans,
    _sizes,
    _stages,
    usual_precision,
    what_fits,
)
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.task import Task
from plan3d.simulator.uncertainty.memory import FITS_PROBABILITY
from plan3d.simulator.workload.adapters import Adapters
from plan3d.simulator.workload.model import Model


def task(gpus=8, batch=64, model="llama-3.2-1b", cluster="h100-sxm", **changes):
    machine = Cluster.profile(cluster, gpus=gpus)
    asked = Task(Model.preset(model), machine, sequence=2048, global_batch=batch,
                 software="hf-trainer")  # fmt: skip
    return replace(asked, **changes)


@pytest.mark.parametrize(
    ("gpus", "batch", "sizes"), [(8, 64, [1, 2, 4, 8]), (8, 8, [1]), (1, 12, [1, 2, 3, 4, 6, 12])]
)
def test_micro_batches_divide_the_batch_of_a_gpu(gpus, batch, sizes):
    assert _sizes(task(gpus, batch)) == sizes


@pytest.mark.parametrize(
    ("gpus", "fixed", "stages"),
    [(1, {}, (0,)), (2, {}, (0, 1, 2, 3)), (8, {"offload_parameters": 100}, (3,))],
)
def test_stages_that_are_tried(gpus, fixed, stages):
    assert _stages(task(gpus), fixed) == stages


def test_the_fastest_plan_that_fits_is_taken():
    """Of every stage and micro-batch."""
    asked, fixed = task(), {"precision": "bf16", "optimizer": "adam", "recompute": "none"}
    found = _fit(asked, fixed)
    costs, fits = _costed(asked, _plans(asked, fixed, (0, 1, 2, 3), (1, 2, 4, 8)))
    assert found.costs.step_seconds == costs.step[fits >= FITS_PROBABILITY].min()
    assert found.probability == fits[costs.step == found.costs.step_seconds].max()


def test_the_plan_most_likely_to_fit_is_taken_where_none_does():
    asked = task(1, 8, "llama-3.1-8b", "rtx-4090")
    fixed = {"precision": "bf16", "optimizer": "adam", "recompute": "full"}
    found = _fit(asked, fixed)
    assert not found.fits
    _, fits = _costed(asked, _plans(asked, fixed, (0,), (1, 2, 4, 8)))
    assert found.probability == fits.max()
    assert _longest(found) == 0


def test_the_longest_sequence_is_the_last_power_of_two_that_fits():
    asked = task(8, 8, "llama-3.1-8b", cluster="a100-40gb-sxm")
    found = _fit(asked, {"precision": "bf16", "optimizer": "adam", "recompute": "full"})
    longest = _longest(found)
    assert SHORTEST <= longest <= LONGEST
    assert longest & (longest - 1) == 0

    def fits(sequence):
        longer = replace(asked, sequence=sequence)
        return _costed(longer, _plans(longer, found.fixed, [int(found.plan.zero)], [1]))[1].max()

    assert fits(longest) >= FITS_PROBABILITY
    assert longest == asked.model.longest_sequence or fits(2 * longest) < FITS_PROBABILITY


def test_of_leaner_choices_the_fastest_recompute_is_shown():
    """A card of 24 GB holds 1.2 billion parameters with a fused loss or leaner states."""
    found, left_out = what_fits(task(1, 8, cluster="rtx-4090"), [None, Adapters(rank=8)])
    assert left_out == []
    assert {fit.way for fit in found} == {"full", "lora"}
    for fit in (one for one in found if one.chosen):
        other = _fit(fit.task, {**fit.fixed, "recompute": "none"})
        full = _fit(fit.task, {**fit.fixed, "recompute": "full"})
        rates = [one.costs.tokens_per_second for one in (other, full) if one.fits]
        assert fit.costs.tokens_per_second == max(rates)


def test_gpus_without_bf16_train_in_fp16():
    assert usual_precision(task()) == "bf16"
    assert usual_precision(task(cluster="v100-sxm2-32gb")) == "fp16"
