"""Layouts of published rows: shares, ends, stages and overlaps, by hand."""

from __future__ import annotations

import pytest

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.runs import run_plan
from plan3d.simulator.runs.published_runs import PublishedRun

USUAL = {
    "gpus": 8, "pp": 1, "tp": 1, "cp": 1, "layers": 8, "virtual_stages": 1, "dtype": "bf16",
    "recompute": "none", "recompute_every": 1, "recompute_method": "", "recompute_layers": 0,
    "pipeline_layout": (), "ends_short": False, "first_stage_layers": 0, "last_stage_layers": 0,
    "bf16_end_layers": 0, "offload_activations": False, "offload_layers": 0,
    "overlap_grad_reduce": None, "overlap_param_gather": None, "overlap_p2p": None,
    "overlap_tp": None,
}  # fmt: skip


def run(**cells: object) -> PublishedRun:
    return PublishedRun({**USUAL, **cells})


@pytest.mark.parametrize(
    ("cells", "first", "last"),
    [
        ({"dtype": "fp8", "bf16_end_layers": 2}, 1, 1),
        ({"dtype": "mxfp8", "bf16_end_layers": 5}, 2, 3),
        ({"dtype": "nvfp4", "bf16_end_layers": 1}, 0, 1),
    ],
)
def test_layers_in_16_bits_are_at_both_ends(cells, first, last):
    assert run_plan._wide_ends(run(**cells)) == {"bf16_first_layers": first,
                                                 "bf16_last_layers": last}  # fmt: skip
    assert run_plan._wide_ends(run(bf16_end_layers=5)) == {}


@pytest.mark.parametrize(
    ("group", "ranks", "zero", "shard"),
    [(4, 8, 3, 4), (4, 8, 0, 0), (8, 8, 3, 0), (1, 8, 3, 0), (2, 8, 1, 2), (None, 8, 3, 0)],
)
def test_weights_are_sharded_over_a_part_of_the_ranks(group, ranks, zero, shard):
    cells = {} if group is None else {"shard_ranks": group}
    assert run_plan._shard(run(**cells), ranks, zero) == shard


@pytest.mark.parametrize(
    ("cells", "percent"),
    [
        ({"offload_activations": True}, 100),
        ({"offload_layers": 2}, 25),
        ({"offload_layers": 2, "pp": 2}, 50),
        ({"offload_layers": 9}, 100),
        ({}, 0),
        ({"offload_layers": 1, "layers": 3}, 33),
    ],
)
def test_layers_whose_activations_wait_on_the_host_are_a_share_of_a_rank(cells, percent):
    assert run_plan._offloaded(run(**cells)) == percent


@pytest.mark.parametrize(
    ("cells", "fields"),
    [
        ({"pp": 4}, {}),
        ({"pp": 4, "layers": 10, "ends_short": True}, {"layers_per_stage": (2, 3, 3, 2)}),
        ({"pp": 2, "layers": 6, "ends_short": True}, {"layers_per_stage": (3, 3)}),
        ({"pp": 4, "layers": 9, "ends_short": True}, {}),  # 11 are no multiple of 4
        ({"pp": 1, "layers": 6, "ends_short": True}, {}),
        ({"pp": 4, "first_stage_layers": 1}, {"first_stage_layers": 1}),
        ({"pp": 1, "first_stage_layers": 1}, {}),
        ({"pp": 2, "pipeline_layout": (3, 5)}, {"layers_per_stage": (3, 5)}),
    ],
)
def test_layers_of_stages(cells, fields):
    """With embedding and head as layers, twelve are three each on four stages."""
    assert run_plan._layers_per_stage(run(**cells), 1) == fields


@pytest.mark.parametrize(
    ("cells", "again"),
    [
        ({"recompute_every": 2}, [(4, 4)]),
        ({"recompute_every": 3}, [(3, 5)]),
        ({"recompute_every": 2, "pp": 3}, [(2, 1), (2, 1), (1, 1)]),
        ({"recompute_method": "block", "recompute_layers": 3, "pp": 2}, [(3, 1), (3, 1)]),
        ({"recompute_method": "block", "recompute_layers": 9, "pp": 2}, [(4, 0), (4, 0)]),
    ],
)
def test_layers_that_run_again(cells, again):
    """Of eight layers every second or third, rounded up, or a block of them."""
    asked = run(recompute="full", **cells)
    stages = run_plan._layers_per_stage(asked, 1)["segments"]
    found = [
        tuple(sum(one["layers"] for one in runs if one["recompute"] == mode)
              for mode in ("full", "none"))
        for runs in stages
    ]  # fmt: skip
    assert found == again
    with pytest.raises(InputError, match="with virtual stages is not modelled"):
        run_plan._layers_per_stage(asked, 2)


@pytest.mark.parametrize(
    ("cells", "schedule", "virtual"),
    [
        ({"pp": 1, "virtual_stages": 4, "schedule": "gpipe"}, "1f1b", 1),
        ({"pp": 2}, "1f1b", 1),
        ({"pp": 2, "virtual_stages": 2}, "interleaved", 2),
        ({"pp": 2, "schedule": "zb-1p"}, "zb-h1", 1),
        ({"pp": 2, "schedule": "gpipe"}, "gpipe", 1),
    ],
)
def test_schedules_of_chunks_are_interleaved(cells, schedule, virtual):
    assert run_plan._virtual_stages(run(**cells)) == virtual
    assert run_plan._schedule(run(**cells), virtual) == schedule


@pytest.mark.parametrize(
    ("stated", "ranks", "zero", "virtual", "found"),
    [
        ({"overlap_grad_reduce": 1, "overlap_param_gather": 1}, 2, 1, 1, {"grad": 1, "gather": 1}),
        ({"overlap_grad_reduce": 1, "overlap_param_gather": 1}, 1, 1, 1, {}),
        ({"overlap_grad_reduce": 1, "overlap_param_gather": 1}, 2, 0, 1, {"grad": 1}),
        ({"overlap_grad_reduce": 0, "overlap_param_gather": 1}, 2, 1, 1, {"grad": 0, "gather": 0}),
        ({"overlap_grad_reduce": 0}, 2, 0, 1, {"grad": 0}),
    ],
)
def test_overlaps_are_where_there_is_something_to_overlap(stated, ranks, zero, virtual, found):
    every = run_plan._overlap(run(**stated), ranks, zero, virtual, False)
    names = {"overlap_grad_reduce": "grad", "overlap_param_gather": "gather"}
    assert {names[name]: value for name, value in every.items() if name in names} == found


def test_sends_overlap_between_chunks_and_tensor_ranks_where_sequences_are_split():
    stated = run(overlap_p2p=1, overlap_tp=1)
    for virtual, split, found in ((1, False, set()), (2, False, {"overlap_p2p"}),
                                  (1, True, {"overlap_tp"})):  # fmt: skip
        every = run_plan._overlap(stated, 1, 0, virtual, split)
        assert {name for name in every if name in ("overlap_p2p", "overlap_tp")} == found
