"""A step put together from its stages by hand, for every schedule.

    step = m t_max + idle + sends + what shows of data parallelism + optimizer

Four layers of a second each pass (unit_pipelines): t is 3 seconds a layer and micro-batch, m = 8.
Sources of the idle times: test_bubbles; of the sends: test_pipeline_sends.
"""

from dataclasses import replace

import pytest
import round_numbers
from unit_pipelines import costs, layer, parts, task

from plan3d.simulator.layers.placements import chunk_sizes
from plan3d.simulator.pipeline.operation_orders import Pass
from plan3d.simulator.plan.plan import Plan, concat, resolve
from plan3d.simulator.step.evaluate import by_stage, evaluate
from plan3d.simulator.step.plan_timeline import rescore, timeline_of

UPDATE = 30 / 1e4
"""Seconds a parameter: 12 bytes of state read and written, a gradient read, a weight written."""


def near(**seconds):
    return pytest.approx(seconds)


@pytest.mark.parametrize(
    ("plan", "bubble", "hops"),
    [
        ("pp=4", 3 * 3, 6 + 6 * 8 / 4 - 2),
        ("pp=4 schedule=gpipe", 3 * 3, 6),
        ("pp=4 schedule=naive", 8 * 3 * 3, 6 * 8),
        ("pp=4 schedule=zb-h1", 3 * 1, 12),
        ("pp=4 schedule=zb-h2", 0, 6),
        ("pp=4 schedule=zb-h2-sync", 3, 6),
        # (p/2 - 1)(F&B + B - 3W) = 1 x (3 + 2 - 3).
        ("pp=4 schedule=dualpipe", 2, 3 * 8 / 4 + 6 - 3),
    ],
)
def test_schedules_of_one_layer_a_rank(plan, bubble, hops):
    found = parts(task(4), plan)
    assert found["compute"] == 8 * 3
    assert found.get("bubble", 0) == pytest.approx(bubble)
    assert found["pipeline_comm"] == pytest.approx(hops * 0.5)
    # Two copies share what they own: each rank updates half of twice as much.
    assert found["optimizer"] == pytest.approx(100 * UPDATE)
    assert costs(task(4), plan).step_seconds == pytest.approx(sum(found.values()))
    assert ("data_comm" in found) == ("dualpipe" in plan)


@pytest.mark.parametrize(
    ("plan", "bubble", "hops"),
    [
        # (p-1)(f+i+w) / v: one chunk of the other rank.
        ("pp=2 virtual_stages=2", 6 / 2, 2 + 2 + 2),
        ("pp=2 virtual_stages=2 schedule=breadth-first", 6 / 2, 2),
        ("pp=2 virtual_stages=2 schedule=zb-v", 0, 3 * 2 - 2),
        # n = 1 of four stages: 3 + 2 - 3 seconds.
        ("pp=2 virtual_stages=2 schedule=dualpipe-v", 2, 2 * 8 / 2),
    ],
)
def test_schedules_of_two_chunks_a_rank(plan, bubble, hops):
    found = parts(task(2), plan)
    assert found["compute"] == 8 * 6
    assert found.get("bubble", 0) == pytest.approx(bubble)
    assert found["pipeline_comm"] == pytest.approx(hops * 0.5)
    assert found["optimizer"] == pytest.approx(200 * UPDATE)


def test_four_ranks_with_two_chunks_wait_for_three():
    layers = (layer(),) * 8
    plan = "pp=4 virtual_stages=2 overlap_p2p=0"
    found = parts(task(4, layers=layers), plan)
    assert found["bubble"] == 3 * 6 / 2
    assert found["pipeline_comm"] == (6 + 4 + 4 + 15) * 0.5
    grouped = parts(task(4, 12, layers), "pp=4 virtual_stages=2 micro_batch_group=6")
    assert grouped["pipeline_comm"] == 6 * 0.5


def test_gradients_that_take_unequal_time():
    """Weight gradients at twice the rate: w = 3 x 0.5 / (1 + 1 + 0.5) = 0.6 of three seconds,
    i = 1.4; ZB-H1 idles (p-1)(f + i - w)."""
    found = parts(task(4, wgrad_rate=2.0), "pp=4 schedule=zb-h1")
    assert found["bubble"] == pytest.approx(3 * (1 + 1.4 - 0.6))


@pytest.mark.parametrize(
    ("schedule", "layers"),
    [("gpipe", "2,1,1"), ("gpipe", "1,2,1"), ("gpipe", "1,1,2"), ("1f1b", "1,1,2")],
)
def test_the_slowest_rank_sets_the_pace(schedule, layers):
    """It works 8 x 6 seconds, the mean of 6, 3 and 3 being 4, and waits for one micro-batch of the
    two others; under 1F1B it is the last rank here, which waits for all to fill and drain."""
    found = parts(task(3), f"pp=3 schedule={schedule} layers_per_stage={layers}")
    assert (found["compute"], found["imbalance"], found["bubble"]) == (8 * 4, 8 * 2, 3 + 3)


def test_larger_micro_batches_are_fewer():
    """Four micro-batches of two samples: 6 seconds a rank, 100 bytes a send."""
    found = parts(task(4), "pp=4 micro_batch=2")
    assert found == near(
        compute=4 * 6, bubble=3 * 6, pipeline_comm=(6 + 6 * 4 / 4 - 2) * 1.0, optimizer=100 * UPDATE
    )


def test_full_recompute_runs_the_forward_pass_again():
    found = parts(task(4), "pp=4 recompute=full")
    assert (found["compute"], found["bubble"]) == (8 * 4, 3 * 4)
    by_kind = costs(task(4), "pp=4 recompute=full").compute_seconds
    assert (by_kind["matmul"], by_kind["recompute"]) == (8 * 3, 8 * 1)


def test_a_single_rank_has_no_bubble_and_sends_nothing():
    """Ledger T9."""
    assert parts(task(1), "pp=1") == near(compute=8 * 12, optimizer=400 * UPDATE)


@pytest.mark.parametrize(
    "text", ["pp=1 dp=4", "pp=4 schedule=gpipe", "pp=2 segments=2|2:recompute=full"]
)
def test_what_the_host_does_once_a_step_is_added_once(text):
    """5 seconds, counted as the optimizer's, whatever the stages and their runs of layers."""
    plain = task(4)
    slow = replace(plain, software=replace(plain.software, step_seconds=5.0))
    before, after = parts(plain, text), parts(slow, text)
    assert after == near(**{**before, "optimizer": before["optimizer"] + 5})


def test_sends_between_fast_domains_take_the_network():
    """Sixteen GPUs in domains of eight: the pipeline spans both, 50 bytes at 20 a second."""
    found = parts(task(16, 32), "pp=4 zero=0 overlap_grad_reduce=0 schedule=gpipe")
    assert found["pipeline_comm"] == 6 * 50 / 20


def test_sends_take_the_mean_of_the_boundaries_between_stages():
    """50, 150 and 50 bytes behind the first three layers, 500 behind the last, which sends nothing;
    of two stages only the 150 in the middle."""
    layers = tuple(layer(boundary=size) for size in (50, 150, 50, 500))
    found = parts(task(4, 8, layers), "pp=4 schedule=gpipe")
    assert found["pipeline_comm"] == pytest.approx(6 * (0.5 + 1.5 + 0.5) / 3)
    assert parts(task(2, 8, layers), "pp=2 schedule=gpipe")["pipeline_comm"] == 2 * 1.5


def test_stages_cut_by_parameters():
    """100, 100, 100 and 200 parameters: a stage ends once its share of 250 is passed, after three
    layers, unless the plan says how many it has."""
    layers = (*(layer(),) * 3, layer(parameters=200))
    question = task(2, 8, layers, cut_by_parameters=True)
    assert chunk_sizes(question, Plan.parse("pp=2")) == (3, 1)
    assert chunk_sizes(question, Plan.parse("pp=2 first_stage_layers=1")) == (1, 3)
    assert by_stage(costs(question, "pp=2"))["weights"].tolist() == [600, 400]


def test_the_launch_floor_of_pipelines_over_several_nodes():
    """Floors of 1.2 and 1.5 x 1.2 = 1.8 seconds a layer beside 1 and 2 seconds of work, by a smooth
    maximum of exponent 8."""
    slow = task(16, 32, layer_floor=1.2, pipeline_floor=1e-9)
    found = parts(slow, "pp=4 zero=0 overlap_grad_reduce=0")
    added = (1 + 1.2**8) ** (1 / 8) + (2**8 + 1.8**8) ** (1 / 8) - 3
    assert found["launch"] == pytest.approx(8 * added)
    assert found["bubble"] == pytest.approx(3 * (3 + added))


def test_launch_floors_of_split_backward_passes():
    """ZB-H1: each gradient has a floor of its share of 1.8 seconds. At equal rates halves of 2 and
    of 1.8; weight gradients at twice the rate are 0.6 of 2 seconds, a third of the launches."""

    def raised(seconds, floor):
        return (seconds**8 + floor**8) ** (1 / 8)

    f = raised(1, 1.2)
    for rate, w, i in (
        (1.0, raised(1, 0.9), raised(1, 0.9)),
        (2.0, raised(0.6, 0.6), raised(1.4, 1.2)),
    ):
        slow = task(16, 32, layer_floor=1.2, pipeline_floor=1e-9, wgrad_rate=rate)
        found = parts(slow, "pp=4 schedule=zb-h1 zero=0 overlap_grad_reduce=0")
        assert found["compute"] + found["launch"] == pytest.approx(8 * (f + i + w))
        assert found["bubble"] == pytest.approx(3 * (f + i - w))


def test_runs_of_layers_with_a_strategy_of_their_own():
    """Two stages, the last with full recompute: 8 seconds a micro-batch, the other 6; with full
    recompute of a single layer 4 + 3."""
    found = parts(task(2), "pp=2 segments=2|2:recompute=full")
    assert (found["compute"], found["imbalance"], found["bubble"]) == (8 * 7, 8 * 1, 6)
    assert found["pipeline_comm"] == (2 + 2 * 8 / 2 - 2) * 0.5
    assert found["optimizer"] == pytest.approx(200 * UPDATE)
    mixed = parts(task(2), "pp=2 segments=2|1:recompute=full+1")
    assert (mixed["compute"], mixed["imbalance"], mixed["bubble"]) == (8 * 6.5, 8 * 0.5, 6)
    assert by_stage(costs(task(2), "pp=2 segments=1|3"))["seconds"].tolist() == [3, 9]


def test_model_and_hardware_flops():
    """4 FLOPs forward, 12 in all, of 8 samples on 4 GPUs of 1 FLOP/s; full recompute runs a third
    more of them (Korthikanti et al. 2022, section 6.1)."""
    plain, full = (costs(task(4), f"pp=4 recompute={how}") for how in ("none", "full"))
    assert plain.step_seconds == pytest.approx(24 + 9 + 8 + 0.3)
    assert plain.tokens_per_second == pytest.approx(8 / 41.3)
    assert plain.mfu == plain.hfu == pytest.approx(12 * 8 / 41.3 / 4)
    assert full.step_seconds == pytest.approx(32 + 12 + 8 + 0.3)
    assert full.mfu == pytest.approx(12 * 8 / 52.3 / 4)
    assert full.hfu == pytest.approx((12 + 4) * 8 / 52.3 / 4)


def test_plans_of_one_table_do_not_mix():
    texts = ["pp=4", "pp=4 schedule=naive", "pp=2 dp=2 zero=0", "pp=4 schedule=zb-h1"]
    rows = concat([resolve(Plan.parse(text), 4).table() for text in texts])
    alone = [costs(task(4), text).step_seconds for text in texts]
    assert evaluate(task(4), rows).step.tolist() == pytest.approx(alone)


# The same step, event by event


def test_a_step_event_by_event():
    """Two ranks of two layers, two micro-batches, sends of half a second:

    rank 0  F0 0-2, F1 2-4                          B0 9-13     B1 15-19
    rank 1      F0 2.5-4.5, B0 4.5-8.5, F1 8.5-10.5, B1 10.5-14.5
    """
    x = timeline_of(task(2, 2), Plan.parse("pp=2"))
    assert x.times.forward.tolist() == [2, 2]
    assert x.times.input_gradient == pytest.approx([2, 2])
    assert x.times.weight_gradient == pytest.approx([2, 2])
    assert x.times.hop == 0.5
    assert x.pipeline_seconds == pytest.approx(19)
    assert x.step_seconds == pytest.approx(19 + 200 * UPDATE)
    assert x.closed_form == pytest.approx(2 * 6 + 6 + 2 * 0.5 + 200 * UPDATE)
    assert x.activations.tolist() == [20, 20]
    assert rescore(costs(task(2, 2), "pp=2")) == pytest.approx([19 + 200 * UPDATE])


def test_what_is_left_of_a_step_comes_after_the_pipeline():
    """Two replicas of 800 bytes of gradients: 2 x 1/2 x 800 / 50 seconds, none hidden."""
    x = timeline_of(task(4, 4), Plan.parse("pp=2 dp=2 zero=0 overlap_grad_reduce=0"))
    assert x.data_comm == 16
    assert x.step_seconds == pytest.approx(19 + 16 + 200 * UPDATE)


def test_sends_that_are_not_overlapped_hold_both_ranks_for_a_half():
    """A rank of interleaved stages sends both directions in one exchange, and receives beside."""
    x = timeline_of(task(4, 8, (layer(),) * 8), Plan.parse("pp=4 virtual_stages=2 overlap_p2p=0"))
    assert x.times.blocking_share == 0.5
    overlapped = timeline_of(task(4, 8, (layer(),) * 8), Plan.parse("pp=4 virtual_stages=2"))
    assert overlapped.times.blocking_share == 0


def test_zb_h2_holds_back_as_many_weight_gradients_as_it_needs():
    """w = 3 x 0.8 / 2.8 = 6/7 and f + i = 15/7 seconds, 2.5 times as many: rank 1 holds back three,
    and has run four input gradients before its first weight gradient."""
    x = timeline_of(task(4, 12, wgrad_rate=1.25), Plan.parse("pp=4 schedule=zb-h2"))
    assert x.costs.seconds["bubble"] == pytest.approx(3 * 15 / 7 - 6)
    g = x.timeline.graph
    kinds = g.kind[g.rank == 1].tolist()
    assert kinds[: kinds.index(Pass.WEIGHT)].count(Pass.INPUT) == 3 + 1
    # Of unlike ranks the longest passes and the longest weight gradient count.
    layers = (layer(2.0), layer(), layer(), layer())
    x = timeline_of(task(4, 12, layers, wgrad_rate=1.25), Plan.parse("pp=4 schedule=zb-h2"))
    kinds = x.timeline.graph.kind[x.timeline.graph.rank == 1].tolist()
    assert kinds[: kinds.index(Pass.WEIGHT)].count(Pass.INPUT) == 3 + 1


@pytest.mark.parametrize("schedule", ["zb-h1", "1f1b"])
def test_parts_of_a_chunk_are_its_passes(schedule):
    """With floors of launches, which a split backward pass has more of."""
    slow = task(16, 32, layer_floor=1.2, pipeline_floor=1e-9)
    x = timeline_of(slow, Plan.parse(f"pp=4 schedule={schedule} zero=0"))
    passes = x.times.forward + x.times.input_gradient + x.times.weight_gradient
    assert x.part_seconds.sum(axis=0) == pytest.approx(passes)


@pytest.mark.parametrize("sizes", ["2,1,1,2", "2,2,1,1", "1,1,2,2"])
@pytest.mark.parametrize("micro_batches", [2, 4, 8])
def test_uneven_chunks_wait_for_each_other_as_events_do(sizes, micro_batches):
    """Blocks of round numbers on two ranks with two chunks each, sends in no time."""
    domain = replace(round_numbers.FAST, send=replace(round_numbers.FAST.send, latency=0.0))
    domain = replace(domain, send=replace(domain.send, bandwidth=1e30))
    question = round_numbers.task(
        2,
        micro_batches,
        replace(round_numbers.MODEL, order=(0,) * 6),
        cluster=round_numbers.cluster(2, fast_domain=domain),
    )
    x = timeline_of(question, Plan.parse(f"pp=2 virtual_stages=2 layers_per_stage={sizes}"))
    assert x.step_seconds == pytest.approx(x.closed_form)


def test_only_pipelines_are_scored_again_by_events():
    """Sends that a shorter stage has time for show in the closed form alone; a single rank waits
    for nobody."""
    alone = costs(task(1, 4), "pp=1")
    assert rescore(alone).tolist() == [alone.step_seconds]
    for sizes in ("1,3", "3,1"):
        plan = Plan.parse(f"pp=2 layers_per_stage={sizes}")
        whole, events = evaluate(task(2), plan), timeline_of(task(2), plan).step_seconds
        assert rescore(whole).tolist() == [events]
        assert whole.step_seconds != pytest.approx(events, rel=1e-3)
