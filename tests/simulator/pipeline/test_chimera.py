"""Chimera: its order as published, and its closed forms equal to the event simulation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan3d.launch_files.exporter import refusals
from plan3d.launch_files.registry import EXPORTERS
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.pipeline.chimera import SCHEDULE
from plan3d.simulator.pipeline.dependency_graph import graph
from plan3d.simulator.pipeline.event_simulation import StageTimes, simulate
from plan3d.simulator.pipeline.rank_waits import Pipeline
from plan3d.simulator.pipeline.schedule import Passes, Sizes
from plan3d.simulator.pipeline.schedules import schedule_code
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.rules.validity import violations
from plan3d.simulator.step.evaluate import by_stage, evaluate
from plan3d.simulator.step.plan_timeline import timeline_of
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

TASK = Task(
    Model.preset("gpt3-6.7b"),
    Cluster.profile("a100-80gb-sxm", gpus=64),
    sequence=2048,
    global_batch=512,
)


def sizes(p, m):
    return Sizes(*(np.array([float(x)]) for x in (p, 1, p, m)))


def timeline(forward, gradient, weight, p, units, **more):
    """The events of stages [stage], or of equal ones."""
    each = (np.broadcast_to(x, (p,)) for x in (forward, gradient, weight))
    names = ("forward", "input_gradient", "weight_gradient")
    times = StageTimes(**dict(zip(names, each, strict=True)), **more)
    return simulate(graph(SCHEDULE, p, 1, p * units), times)


def closed_idle(f, i, w, p, units):
    own = Passes(*(np.array([x]) for x in (f, i, w)))
    others = Passes(*((p - 1) * part for part in own))
    return SCHEDULE.idle(sizes(p, p * units), own, others)[0]


def written(p, m):
    """Every rank's passes, as F2@3: the forward pass of micro-batch 2 on stage 3."""
    return [
        " ".join(f"{'FB'[kind]}{micro}@{stage}" for kind, stage, micro, _ in rank.tolist())
        for rank in SCHEDULE.orders(p, 1, m)
    ]


def test_the_published_order():
    """Li and Hoefler 2021, figure 3: four ranks, micro-batches 0 and 1 down, 2 and 3 up. A slot is
    a pass; rank 0 waits in slots 1 and 8, rank 1 never."""
    found = written(4, 4)
    assert found[0] == "F0@0 F1@0 F2@3 B2@3 F3@3 B3@3 B0@0 B1@0"
    assert found[1] == "F0@1 F2@2 F1@1 F3@2 B2@2 B0@1 B3@2 B1@1"
    assert found[2:] == [
        "F2@1 F0@2 F3@1 F1@2 B0@2 B2@1 B1@2 B3@1",
        "F2@0 F3@0 F0@3 B0@3 F1@3 B1@3 B2@0 B3@0",
    ]


def test_the_next_unit_begins_in_the_bubble_of_the_one_before():
    """Rank 0 runs F2, of the second unit, before B1, the last pass of the first."""
    assert written(4, 8)[0].split()[6:10] == ["B0@0", "F2@0", "B1@0", "F3@0"]


@pytest.mark.parametrize("p", [2, 4, 8, 16])
@pytest.mark.parametrize("units", [1, 3])
def test_the_published_bubble(p, units):
    """(D-2) / (2N + D-2) of a step where both passes take equally long: table 2."""
    m = p * units
    t = timeline(1.0, 0.6, 0.4, p, units)
    np.testing.assert_allclose(t.idle / t.step_seconds, (p - 2) / (2 * m + p - 2))
    assert closed_idle(1.0, 0.6, 0.4, p, units) == pytest.approx(p - 2)


def test_the_published_longest_path():
    """Six micro-batches on six ranks: 6 forward and 10 backward passes (section 3.4)."""
    f, b = 1.0, 2.0
    assert timeline(f, b / 2, b / 2, 6, 1).step_seconds == pytest.approx(6 * f + 10 * b)
    assert 6 * (f + b) + closed_idle(f, b / 2, b / 2, 6, 1) == pytest.approx(6 * f + 10 * b)


@given(
    half=st.integers(1, 8),
    units=st.integers(1, 6),
    seconds=st.tuples(*3 * [st.floats(0.01, 10)]),
)
def test_idle_time_equals_the_event_simulation(half, units, seconds):
    """Of equal ranks with sends that take no time: any passes, any sizes that are legal."""
    p = 2 * half
    t = timeline(*seconds, p, units)
    np.testing.assert_allclose(t.idle, closed_idle(*seconds, p, units), rtol=1e-9, atol=1e-9)


@given(
    half=st.integers(2, 6),
    units=st.integers(1, 8),
    head=st.floats(0, 1.5),
    ratio=st.floats(1.6, 2.4),
    layers=st.integers(2, 8),
)
def test_a_head_on_the_outer_ranks_equals_the_event_simulation(half, units, head, ratio, layers):
    p, m = 2 * half, 2 * half * units
    stage = np.full(p, float(layers))
    stage[-1] += head
    rank = (stage + stage[::-1]) / 2
    own = rank.max()
    found = float(timeline(stage, ratio * stage, 0.0, p, units).step_seconds)
    slowest, others = (
        Passes(*(np.array([x * part]) for part in (1.0, ratio, 0.0)))
        for x in (own, rank.sum() - own)
    )
    idle = SCHEDULE.idle(sizes(p, m), slowest, others)[0]
    assert m * own * (1 + ratio) + idle == pytest.approx(found)


def closed_step(forward, backward, units, waits=0.0):
    """Seconds of a step of ranks with these passes [rank], every one a class of its own, of which
    forward ones wait for communication [rank]."""
    p = forward.size
    late, alone = (
        Passes(on[:, None], backward[:, None], 0 * on[:, None]) for on in (forward + waits, forward)
    )
    code, ranks = np.array([schedule_code("chimera")]), np.arange(p)[:, None]
    pipeline = Pipeline(code, sizes(p, p * units), np.ones((p, 1)), ranks)
    return pipeline.rank_steps(late, np.zeros(1), alone).max()


def test_an_inner_rank_waits_for_the_outer_one_at_both_ends():
    """F, B = 1, 2 of the outer ranks, 3, 3 of the two inner ones: these run 4 (3 + 3) seconds
    without a gap, after a forward pass of an outer rank and before a backward pass of one."""
    forward, backward = np.array([1.0, 3, 3, 1]), np.array([2.0, 3, 3, 2])
    assert timeline(forward, backward, 0.0, 4, 1).step_seconds == 1 + 4 * 6 + 2
    assert closed_step(forward, backward, 1) == 1 + 4 * 6 + 2


@given(
    half=st.integers(2, 6),
    units=st.integers(1, 8),
    outer=st.tuples(*2 * [st.floats(0.1, 5)]),
    inner=st.tuples(*2 * [st.floats(0.1, 5)]),
    longer=st.tuples(*2 * [st.floats(0, 1)]),
)
def test_outer_ranks_that_differ_equal_the_event_simulation(half, units, outer, inner, longer):
    """Of any passes of the outer pair and of inner ranks that are alike, where the outer ones are
    no slower; slower ones are so by the head of one of their stages, and no faster than that. Where
    inner ranks take longer a step is never shorter. It was up to 20 % off."""
    p, ends = 2 * half, np.array([1, *[0] * (2 * half - 2), 1])
    steps = []
    for more in (0.0, 1.0):
        f, b = (np.where(ends, outer[i], inner[i] + more * longer[i]) for i in range(2))
        steps.append(closed_step(f, b, units))
        found = float(timeline(f, b, 0.0, p, units).step_seconds)
        slower = sum(outer) > sum(inner) + more * sum(longer)
        assert steps[-1] >= found * (1 - 1e-9)
        assert slower or steps[-1] == pytest.approx(found)
    if sum(outer) <= sum(inner):
        assert steps[1] >= steps[0] * (1 - 1e-12)


def test_communication_of_outer_ranks_is_in_both_of_their_stages():
    """Passes of 1 and 2 seconds on four ranks; both stages of an outer one wait 3 more before the
    forward pass. In 4 units it works 16 (4 + 2), and lets inner ranks begin and end, which take 0
    and 2 x 2 - 2 seconds besides. Were it a head of 6 on one of the stages, the others would wait
    4 (2 x 2 - 3) + 2: the less, the longer inner ranks take."""
    forward, backward, outer = np.ones(4), 2 * np.ones(4), np.array([3.0, 0, 0, 3])
    assert timeline(forward + outer, backward, 0.0, 4, 4).step_seconds == 16 * 6 + 2
    assert closed_step(forward, backward, 4, outer) == 16 * 6 + 2
    head = np.array([0.0, 0, 0, 6])
    assert timeline(forward + head, backward, 0.0, 4, 4).step_seconds == 16 * 6 + 4 + 2
    assert closed_step(forward + outer, backward, 4) == 16 * 6 + 4 + 2


@given(half=st.integers(1, 8), units=st.integers(1, 4))
def test_activations_in_flight_equal_the_event_simulation(half, units):
    """From D/2 + 1 on the outer ranks to D in the middle: table 2."""
    p, rank = 2 * half, np.arange(2 * half, dtype=float)
    kept = SCHEDULE.in_flight(sizes(p, p * units), rank)
    np.testing.assert_array_equal(timeline(1, 1, 1, p, units).peak(np.ones(p)), kept)
    assert (kept.min(), kept.max()) == (p / 2 + 1, p)


@pytest.mark.parametrize("p", [2, 4, 6, 12])
@pytest.mark.parametrize("units", [1, 2, 5])
def test_sends_equal_the_event_simulation(p, units):
    hop = 1e-4
    late, plain = (timeline(1, 1, 1, p, units, hop=h).step_seconds for h in (hop, 0.0))
    closed = SCHEDULE.hidden_sends(sizes(p, p * units))[0]
    assert (late - plain) / hop == pytest.approx(closed, abs=1e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tp=4 pp=1", "needs pp > 1"),
        ("tp=2 pp=8 micro_batch=32", "not pp = 8 and 4; nearest: pp = 8 and 8"),
        ("pp=4 virtual_stages=2", "virtual_stages=2 needs schedule=interleaved, not chimera"),
    ],
)
def test_what_it_cannot_run(text, message):
    plan = resolve(Plan.parse(f"{text} schedule=chimera"), 64)
    assert any(message in why for _, why in violations(plan, TASK))


def test_an_odd_number_of_ranks_names_the_next():
    odd = Plan.parse("pp=3 dp=1 micro_batch=1 schedule=chimera")
    found = dict(violations(resolve(odd, 3), TASK))
    assert "not pp = 3 and 512; nearest: pp = 4 and 512" in found["chimera-units"]


@pytest.mark.parametrize(("pp", "error"), [(2, 1e-9), (4, 0.02), (8, 0.02)])
def test_a_plan_holds_two_copies_and_is_near_its_events(pp, error):
    plan, one = (Plan(pp=pp, schedule=name) for name in ("chimera", "1f1b"))
    x = timeline_of(TASK, plan)
    assert x.step_seconds == pytest.approx(x.closed_form, rel=error)
    both, single = by_stage(evaluate(TASK, plan)), by_stage(evaluate(TASK, one))
    middle = slice(1, -1) if pp > 2 else slice(0, 0)
    np.testing.assert_allclose(both["weights"][middle], 2 * single["weights"][middle])
    assert x.timeline.peak(x.activations).max() <= 1.01 * both["activations"].max()
    row = resolve(plan, TASK.gpus).take(0)
    for exporter in EXPORTERS.values():
        reasons = refusals(TASK, row, exporter.forms[0])
        assert any("schedule=chimera" in why or f"pp={pp}: " in why for why in reasons)


def test_the_fullest_rank_is_in_the_middle():
    costs = evaluate(TASK, Plan.parse("pp=8 schedule=chimera"))
    found = by_stage(costs)["activations"]
    assert found.argmax() in (3, 4)
    assert costs.memory["activations"] == pytest.approx(found.max())
    assert found[3] / found[1] == pytest.approx(8 / 6)
