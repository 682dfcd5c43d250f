"""Layers of a rank in chunks, and of two runs in each of them, by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from plan3d.search.result.options import NEVER
from plan3d.search.stages import stage_plans
from plan3d.search.stages.stage_plans import (
    CHUNK_DIVISIONS,
    LAYOUT_MARGIN,
    _divide_runs,
    best_layout,
)

EVENLY, FIRST, LAST = CHUNK_DIVISIONS


@pytest.mark.parametrize(
    ("layers", "chunks", "evenly", "first", "last"),
    [
        (8, 2, [4, 4], [4, 4], [4, 4]),
        (5, 2, [2, 3], [3, 2], [2, 3]),
        (10, 4, [2, 3, 2, 3], [3, 3, 2, 2], [2, 2, 3, 3]),
        (3, 4, [0, 1, 1, 1], [1, 1, 1, 0], [0, 1, 1, 1]),
    ],
)
def test_larger_chunks_are_spread_out_or_at_an_end(layers, chunks, evenly, first, last):
    found = [divide(layers, chunks).tolist() for divide in (EVENLY, FIRST, LAST)]
    assert found == [evenly, first, last]


@pytest.mark.parametrize(
    ("runs", "chunks", "layers"),
    [
        ((3, 5), 2, [{"a": 1, "b": 3}, {"a": 2, "b": 2}]),  # 1.5 of the first 4 layers, and 3 of 8
        ((4, 4), 2, [{"a": 2, "b": 2}, {"a": 2, "b": 2}]),
        ((1, 3), 2, [{"b": 2}, {"a": 1, "b": 1}]),
        ((5,), 2, [{"a": 2}, {"a": 3}]),
        ((2, 4), 3, [{"b": 2}, {"a": 1, "b": 1}, {"a": 1, "b": 1}]),
    ],
)
def test_every_chunk_has_its_share_of_the_first_run(runs, chunks, layers):
    whole = [{"layers": n, "name": name} for n, name in zip(runs, "ab", strict=False)]
    found = _divide_runs(whole, EVENLY, chunks)
    assert [{run["name"]: run["layers"] for run in chunk} for chunk in found] == layers


ENOUGH = 1 + LAYOUT_MARGIN


@pytest.mark.parametrize(
    ("steps", "found", "tried"),
    [
        # All ranks in one way; then one rank in another of the ways that differ.
        ([ENOUGH], ENOUGH, [[(0, 0), (1, 1), (2, 2)]]),
        ([0.99999 * ENOUGH], 0.99999 * ENOUGH, [[(0, 0), (1, 1), (2, 2)]]),
        ([1.00001 * ENOUGH] * 2, 1.00001 * ENOUGH, [[(0, 0), (1, 1), (2, 2)], [(1, 0), (0, 1)]]),
        (
            [3.0, 2.0, 2.0],
            2.0,
            [[(0, 0), (1, 1), (2, 2)], [(1, 0), (0, 1)], [(0, 0), (2, 0), (1, 1)]],
        ),
    ],
)
def test_layouts_are_tried_while_they_help_and_are_not_near_the_least_step(
    monkeypatch, steps, found, tried
):
    """Of five layers in two chunks the larger first is one way, and both others are alike."""
    asked, left = [], iter(steps)

    def fastest(pipeline, chunks, choices, limit):
        asked.append(choices)
        return next(left), choices[0], choices[0]

    monkeypatch.setattr(stage_plans, "_fastest_layout", fastest)
    ranks = [[{"layers": 5}], [{"layers": 5}]]
    step, _ = best_layout(SimpleNamespace(chunks=2), ranks, 1.0, 1.0, NEVER)
    assert (step, asked) == (found, tried)
