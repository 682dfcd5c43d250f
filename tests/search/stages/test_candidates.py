"""What stages may be: those that fit and are as fast as asked, by the simulator stage by stage."""

from dataclasses import replace

import numpy as np
import pytest
from not_empty import not_empty

from plan3d.search.result.options import NEVER
from plan3d.search.space.space import Space
from plan3d.search.stages.candidates import _cells, _no_better_than_previous, candidates
from plan3d.search.stages.intervals import Intervals
from plan3d.search.stages.pipeline import pipelines
from plan3d.search.stages.stage_space import Shape, most_overlap, stage_space
from plan3d.search.stages.stage_table import StageTable
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.fields import code
from plan3d.simulator.plan.plan import from_columns
from plan3d.simulator.plan.stage_layout import Segments
from plan3d.simulator.step.stage_costs import StageCosts, stage_costs
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

TASK = Task(
    replace(Model.preset("llama-3.1-8b"), order=(0,) * 5),
    Cluster.profile("h100-sxm", gpus=4),
    sequence=4096,
    global_batch=8,
)
SHAPES = {
    1: Shape(code("schedule", "1f1b")),
    2: Shape(code("schedule", "interleaved"), 2, overlap_p2p=1),
}


def pipeline_of(chunks=1):
    """Two stages of two GPUs and four micro-batches, in all ways to recompute."""
    choose = {"pp": [2], "cp": [1], "ep": [1], "tp": [1, 2], "zero": [0, 1], "micro_batch": [1, 2]}
    axes = stage_space(Space.of(TASK, choose), "test", "step-time", ("1f1b",)).axes
    every = pipelines(TASK, {**axes, **most_overlap(TASK, axes)}, shapes=[SHAPES[chunks]])
    return next(one for one in every if one.micro_batches == 4)


def every_stage(pipeline, intervals):
    """(class, strategy, ZeRO stage, layers of the first run, its mode and the other's) of every
    mixture of two modes, with its costs."""
    modes = pipeline.recompute
    for kind, at in enumerate(intervals.examples):
        start, layers = intervals.start[at], int(intervals.end[at] - intervals.start[at])
        for s, light, zero in np.argwhere(pipeline.legal).tolist():
            for heavy in range(light, len(modes)):
                for more in range(1, layers) if heavy > light else (0,):
                    if not pipeline.legal[s, heavy, zero]:
                        continue
                    each = np.array([[modes[heavy], modes[light]]])
                    none, one = np.zeros_like(each), np.array([s])
                    runs = Segments(
                        none,
                        np.array([[more, layers - more]]),
                        pipeline.tp[one][:, None] + none,
                        pipeline.dp[one][:, None] + none,
                        none,
                        each,
                    )
                    plans = from_columns(pipeline.columns(one), (), runs)
                    costs = stage_costs(TASK, plans, np.array([start]), [zero])[zero]
                    held = modes[heavy] if more else modes[light]
                    yield (kind, s, zero, more, held, modes[light]), costs


@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("share", [0.601, 1.001])
def test_candidates_are_the_stages_that_fit_and_are_fast_enough(chunks, share):
    """All that are missing recompute a layer more than one that is there and no slower, for nothing
    or fit with no micro-batch more."""
    pipeline = pipeline_of(chunks)
    intervals = Intervals.of(pipeline, np.inf, np.inf)
    every = [*every_stage(pipeline, intervals)]
    longest = share * max(float(costs.seconds[0]) for _, costs in every)
    limit = share * max(
        float(costs.static_bytes[0] + costs.micro_batch_bytes[0] * pipeline.in_flight[0])
        for _, costs in every
    )
    table = candidates(pipeline, limit, longest, intervals, NEVER)
    layers = (intervals.end - intervals.start)[intervals.examples]
    rows = {}
    for row in range(table.kind.size):
        more, (first, second) = int(table.first_layers[row]), table.modes[row].tolist()
        whole = more == layers[table.kind[row]]
        key = (int(table.kind[row]), int(table.strategy[row]), int(table.zero[row]))
        rows[*key, 0 if whole else more, first, first if whole else second] = row
    assert len(rows) == table.kind.size > 0
    missing = 0
    for key, costs in not_empty(every):
        free = limit - float(costs.static_bytes[0])
        fit = np.floor(free / float(costs.micro_batch_bytes[0]) * chunks) / chunks
        flights = min(fit, pipeline.in_flight[0]) * (float(costs.update_bytes[0]) <= limit)
        may = flights >= pipeline.in_flight[-1] and float(costs.seconds[0]) <= longest
        row = rows.get(key)
        assert may or row is None
        if row is not None:
            assert table.most_in_flight[row] == flights
            assert table.costs.seconds[row] == pytest.approx(float(costs.seconds[0]) / chunks)
            assert table.costs.static_bytes[row] == pytest.approx(float(costs.static_bytes[0]))
        elif may:
            # A run of one mode is met with each other mode.
            kind, s, zero, *_ = key
            others = [r for (k, t, z, *_), r in rows.items() if (k, t, z) == (kind, s, zero)]
            seconds = float(costs.seconds[0]) / chunks
            assert any(
                table.most_in_flight[r] >= flights
                and table.costs.seconds[r] <= seconds * (1 + 1e-9)
                for r in others
            )
            missing += 1
    assert missing < len(every)


def costs_of(seconds, backward, forward, reduce, gather, optimizer):
    columns = dict.fromkeys(StageCosts.__slots__, np.zeros(2))
    names = ("seconds", "backward", "forward", "reduce_seconds", "gather_seconds")
    own = (seconds, backward, forward, reduce, gather)
    columns |= {name: np.array(pair, float) for name, pair in zip(names, own, strict=True)}
    return StageCosts(**columns | {"optimizer_seconds": np.array(optimizer, float)})


@pytest.mark.parametrize(
    ("flights", "pairs", "superfluous"),
    [
        # As many fit in as much time.
        ((2, 2), {}, True),
        ((3, 2), {}, True),
        ((2, 3), {}, False),
        ((2, 2), {"seconds": (1, 2)}, True),
        ((2, 2), {"seconds": (2, 1)}, False),
        # A longer reduction, or less backward pass for it to hide behind, adds to the step.
        ((2, 2), {"seconds": (1, 2), "reduce": (4, 3)}, True),
        ((2, 2), {"seconds": (1, 2), "reduce": (5, 3)}, False),
        ((2, 2), {"seconds": (1, 2), "backward": (1, 3)}, False),
        ((2, 2), {"seconds": (1, 2), "gather": (5, 3)}, False),
        ((2, 2), {"seconds": (1, 2), "forward": (1, 3)}, False),
        ((2, 2), {"seconds": (1, 2), "optimizer": (5, 3)}, False),
        ((2, 2), {"seconds": (1, 2), "reduce": (1, 3), "gather": (1, 3)}, True),
    ],
)
@pytest.mark.parametrize("follows", [True, False])
def test_a_layer_more_is_recomputed_for_time_or_memory(flights, pairs, superfluous, follows):
    """The first candidate never follows one."""
    names = ("seconds", "backward", "forward", "reduce", "gather", "optimizer")
    costs = costs_of(**{name: pairs.get(name, (1, 1)) for name in names})
    pipeline = pipeline_of()
    table = candidates(pipeline, 1e12, np.inf, Intervals.of(pipeline, np.inf, np.inf), NEVER)
    table = replace(table.take(np.arange(2)), costs=costs, most_in_flight=np.array(flights, float))
    found = _no_better_than_previous(table, np.array([True, follows]))
    assert found.tolist() == [False, superfluous and follows]


def test_a_cell_has_a_candidate_for_every_number_of_layers_that_recompute_more():
    """Of 0, 1 and 3 layers in the modes of a pipeline: no mixture twice."""
    pipeline, layers = pipeline_of(), np.array([0, 1, 3])
    cells, modes = _cells(pipeline, layers), len(pipeline.recompute)
    assert modes == 2
    counts = {
        kind: cells.count[(cells.kind == kind) & (cells.strategy == 0)].tolist()
        for kind in range(3)
    }
    assert counts == {0: [1], 1: [2], 2: [4]}
    assert cells.kind.size == 3 * pipeline.tp.size


@pytest.mark.parametrize("share", [0.7, 1.001])
def test_a_stage_may_be_each_undominated_candidate_of_the_layers_it_holds(share):
    """Of every interval of a class the same ones, all of whose micro-batches in flight fit."""
    pipeline = pipeline_of()
    every = Intervals.of(pipeline, np.inf, np.inf)
    whole = candidates(pipeline, 1e12, np.inf, every, NEVER)
    flights = pipeline.in_flight
    held = whole.costs.static_bytes + whole.costs.micro_batch_bytes * flights[0]
    limit, longest = share * held.max(), share * whole.costs.seconds.max()
    table = StageTable.of(pipeline, limit, longest, NEVER)
    own = table.candidates
    assert len(table.entries) == 2
    for stage, entries in enumerate(table.entries):
        ends = [*zip(entries.start.tolist(), entries.end.tolist(), strict=True)]
        assert ends
        assert [end for _, end in ends] == sorted(end for _, end in ends)
        chosen = {}
        for interval, candidate in zip(ends, entries.candidate.tolist(), strict=True):
            chosen.setdefault(interval, []).append(candidate)
        by_kind = {}
        for interval in chosen:
            (kind,) = {*own.kind[chosen[interval]].tolist()}
            by_kind.setdefault(kind, []).append(sorted(chosen[interval]))
        for kind, alike in not_empty(by_kind.items()):
            one = alike[0]
            assert alike == [one] * len(alike)
            fits = np.flatnonzero((own.kind == kind) & (own.most_in_flight >= flights[stage]))
            assert len(one) == len({*one} & {*fits.tolist()})
            assert own.costs.seconds[one].min() == own.costs.seconds[fits].min()
        assert entries.costs[0].tolist() == own.costs.seconds[entries.candidate].tolist()
        assert entries.costs[2].tolist() == own.costs.forward[entries.candidate].tolist()
        assert entries.tp.tolist() == pipeline.tp[own.strategy[entries.candidate]].tolist()
        assert not entries.gpus.any()
