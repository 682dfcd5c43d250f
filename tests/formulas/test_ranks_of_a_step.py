"""What the ranks of a pipeline wait for and keep, by hand: synchronisation and memory by stage.

Two stages of two layers and two replicas of them (unit_pipelines), four micro-batches each. The
layers have 100, 100, 100 and 300 parameters: 800 bytes of gradients on rank 0, 1,600 on rank 1.
"""

from dataclasses import replace

import numpy as np
import pytest
from unit_pipelines import cluster, costs, layer, parts, task

from plan3d.simulator.pipeline.rank_waits import Pipeline
from plan3d.simulator.pipeline.schedule import Passes, Sizes
from plan3d.simulator.pipeline.schedules import schedule_code
from plan3d.simulator.plan.plan import Plan, from_columns
from plan3d.simulator.plan.stage_layout import Segments
from plan3d.simulator.step.evaluate import by_stage, evaluate
from plan3d.simulator.step.stage_costs import stage_costs

UPDATE = 30 / 1e4
UNEVEN = (layer(), layer(), layer(), layer(parameters=300))


def data_comm(text, **software):
    return parts(task(4, 8, UNEVEN, **software), f"dp=2 {text}")["data_comm"]


PLAIN = "zero=0 overlap_grad_reduce=0 overlap_param_gather=0"


def test_later_ranks_reduce_while_earlier_ones_drain():
    """All-reduces of 2 x 1/2 x 800 / 50 = 16 and 32 seconds; rank 1 begins when rank 0 still has a
    backward pass of 4 seconds to do: 28 show (Narayanan et al. 2021, figure 4)."""
    assert data_comm(f"pp=2 {PLAIN}") == 32 - 4
    # With two chunks a rank only one chunk of rank 0 is left then, 2 seconds.
    assert data_comm(f"pp=2 virtual_stages=2 {PLAIN}") == 32 - 2
    # Nothing waits on a single stage: 600 parameters.
    assert parts(task(2, 8, UNEVEN), f"dp=2 {PLAIN}")["data_comm"] == 2400 / 50


def test_later_ranks_gather_while_earlier_ones_fill():
    """ZeRO 1: reduce-scatters of 1/2 x 800 / 40 = 10 and 20 seconds, all-gathers of 1/2 x 400 / 25
    = 8 and 16; rank 1 begins its forward pass 2 seconds after rank 0."""
    plan = "pp=2 zero=1 overlap_grad_reduce=0 overlap_param_gather=0"
    assert data_comm(plan) == (20 - 4) + (16 - 2)


def test_buckets_hide_behind_the_last_backward_pass():
    """Buckets of 50 parameters, 4 and 8 of them, of 4 seconds each: 16 - 4 and 32 - 4 seconds are
    left when a backward pass of 4 ends; rank 1 has another 4 to spare (Li et al. 2020, section
    3.2.3)."""
    plan = "pp=2 zero=0 overlap_grad_reduce=1"
    assert data_comm(plan, bucket_parameters=50) == 32 - 4 - 4
    # A quarter of the 4 seconds that hide is added to the pass that they slow.
    slower = parts(task(4, 8, UNEVEN, bucket_parameters=50, contention=0.25), f"dp=2 {plan}")
    assert (slower["data_comm"], slower["contended"]) == (32 - 4 - 4, 1)
    # One bucket can only be sent when the backward pass is over.
    assert data_comm(plan) == 32 - 4


def test_what_every_micro_batch_waits_for_fills_the_pipeline_too():
    """ZeRO 3 without overlap: a micro-batch gathers twice and scatters once, 2 x 8 + 10 = 26 and
    2 x 16 + 20 = 52 seconds. With 6 of compute, ranks take 32 and 58 seconds: a step of four
    micro-batches takes 4 x 58 + 32, of which 4 x 6 + 6 are compute and bubble."""
    plan = "pp=2 zero=3 overlap_grad_reduce=0 overlap_param_gather=0"
    assert data_comm(plan) == 4 * 58 + 32 - (4 * 6 + 6)
    # With two chunks a rank the other rank's 26 and its bubble count half.
    halved = f"virtual_stages=2 {plan}"
    assert data_comm(halved) == 4 * 52 + 26 / 2


def test_the_rank_with_most_parameters_steps_last():
    question = task(4, 8, UNEVEN)
    assert parts(question, f"pp=2 dp=2 {PLAIN}")["optimizer"] == pytest.approx(400 * UPDATE)
    assert parts(question, "pp=2 dp=2 zero=1")["optimizer"] == pytest.approx(200 * UPDATE)


def test_two_copies_of_the_model_are_reduced_together():
    """DualPipe on two ranks: both hold all 400 parameters of four equal layers, twice the half.
    With one replica, each copy has one partner on the other rank: 1/2 x 1,600 bytes scattered at
    40 a second, 1/2 x 800 gathered at 25, and half of the optimizer each."""
    question = task(2, 8)
    plan = "pp=2 schedule=dualpipe zero=1 overlap_grad_reduce=0 overlap_param_gather=0"
    found = parts(question, plan)
    assert found["data_comm"] == 800 / 40 + 400 / 25
    assert found["optimizer"] == pytest.approx(400 / 2 * UPDATE)
    kept = by_stage(costs(question, plan))
    assert kept["weights"].tolist() == [800, 800]
    assert kept["gradients"].tolist() == [1600, 1600]
    assert kept["optimizer"].tolist() == [400 * 12 / 2] * 2


@pytest.mark.parametrize(
    ("schedule", "waits"),
    [
        ("1f1b", [0, 2, 4, 6]),
        # Weight gradients of a second fill the drain, of which a rank waits r (i - w).
        ("zb-h1", [0, 0, 0, 0]),
        ("zb-h2-sync", [0, 0, 0, 0]),
    ],
)
def test_ranks_whose_weight_gradients_fill_the_drain_wait_for_no_others(schedule, waits):
    """Passes of a second on four ranks, which hold as many parameters as tell them apart."""
    layers = tuple(layer(parameters=100 + rank) for rank in range(4))
    (group,) = costs(task(4, 16, layers), f"pp=4 schedule={schedule}").groups
    assert group.stages.backward_before[:, 0] == pytest.approx(waits)


def test_ranks_that_are_faster_wait_for_the_slowest_at_both_ends():
    """Chimera: passes of 2 and 4 seconds on the outer ranks, of 1 and 2 on the inner ones. Other
    ranks wait for those before alone, which their step adds up."""
    layers = tuple(layer(float(n)) for n in (2, 1, 1, 2))
    (group,) = costs(task(4, 16, layers), "pp=4 schedule=chimera").groups
    assert group.stages.forward[:, 0].tolist() == [2, 1]
    assert group.stages.forward_before[:, 0].tolist() == [0, 2 - 1]
    assert group.stages.backward_before[:, 0].tolist() == [0, 4 - 2]
    for schedule in ("1f1b", "naive"):
        (group,) = costs(task(4, 16, layers), f"pp=4 schedule={schedule}").groups
        assert group.stages.forward_before[:, 0].tolist() == [0, 2]
    # Two of four micro-batches that would fill the pipeline: a third of it.
    (group,) = costs(task(4, 2, layers), "pp=4 schedule=zb-h1").groups
    assert group.stages.forward_before[:, 0] == pytest.approx([0, 2 + 1 / 3])


def waits(schedule, micro_batches, forward, input_gradient, weight_gradient):
    """Seconds that four ranks of these passes [rank] wait at the start and at the end of a step."""
    passes = Passes(
        *(
            np.full((4, 1), np.reshape(x, (-1, 1)))
            for x in (forward, input_gradient, weight_gradient)
        )
    )
    sizes = Sizes(*(np.array([float(n)]) for n in (4, 1, 4, micro_batches)))
    codes, ranks = np.array([schedule_code(schedule)]), np.arange(4.0)[:, None]
    before = np.array([part.cumsum(axis=0) - part for part in (passes[0], passes[1] + passes[2])])
    pipeline = Pipeline(codes, sizes, np.ones((4, 1)), ranks)
    steps = pipeline.rank_steps(passes, np.zeros(1))
    return pipeline.waits(passes, before, steps)[..., 0].tolist()


def test_weight_gradients_leave_a_part_of_the_drain_to_wait_in():
    """Passes of 1, 3 and 1 seconds: of 3 (1 + 3 - 1) that ZB-H1 idles 3 are the fill, and rank r
    waits r thirds of the other 6. Ranks of ZB-H2 step on their own, and wait for no fill; nor at
    the end where the slowest idles no more than that, 3 seconds of four micro-batches."""
    assert waits("zb-h1", 8, 1, 3, 1) == [[0, 1, 2, 3], [0, 2, 4, 6]]
    assert waits("zb-h2", 8, 1, 1, 1) == waits("zb-h2", 4, 1, 1, 1) == [[0, 0, 0, 0], [0, 0, 0, 0]]
    assert waits("1f1b", 8, 1, 3, 1) == [[0, 1, 2, 3], [0, 4, 8, 12]]


def test_ranks_wait_no_longer_than_the_slowest_makes_a_step():
    """ZB-H2, four micro-batches: weight gradients of the last rank that take up to two seconds and
    not one fill what it idles, and a step is not longer for them; the first rank waits for none."""
    for weight in (1, 1.5, 2):
        assert waits("zb-h2", 4, 1, 1, [1, 1, 1, weight])[1][0] == 0
    assert waits("zb-h2", 8, 1, 1, [1, 1, 1, 2])[1] == [1, 1, 1, 0]


def test_copies_that_make_a_rank_the_slowest_make_others_wait():
    """Chimera: passes of 2 and 4 seconds on the outer ranks, for which the inner ones wait 1 and 2
    seconds. Copies that make backward passes of these 4 seconds longer leave them nothing to wait
    for; nor have the outer ones, between whose passes they then wait for each other."""
    layers = tuple(layer(float(n)) for n in (2, 1, 1, 2))
    (group,) = costs(task(4, 16, layers), "pp=4 schedule=chimera").groups
    late = group.stages.with_longer_backward(np.array([[0.0], [4.0]]), np.array([60.0]))
    assert late.backward[:, 0].tolist() == [4, 6]
    assert late.backward_before[:, 0].tolist() == [0, 0]


def test_what_a_stage_costs_on_its_own():
    """Two layers of a pipeline of two stages and two replicas: 2 and 4 seconds a pass, 800 bytes
    of gradients all-reduced at 50 a second, or half of it scattered at 40 and 400 gathered at 25;
    18 bytes a parameter, of which 12 are sharded; 20 bytes and two boundary tensors in flight.
    Under ZeRO 3 every micro-batch gathers twice and scatters once, everything is sharded, and two
    gathered layers and the gradients of one are held besides. The host takes 5 seconds a step."""
    both = np.zeros((2, 1), np.int64)
    runs = Segments(
        stage=both, layers=both + 2, tp=both + 1, dp=both + 2, zero=both, recompute=both
    )
    sizes = {
        "tp": np.array([1, 1]),
        "pp": np.array([2, 2]),
        "dp": np.array([2, 2]),
        "micro_batch": np.array([1, 1]),
    }
    plans = from_columns(sizes, (), runs)
    question = task(4, 8, boundary_buffers=2.0, step_seconds=5.0)
    found = stage_costs(question, plans, np.array([0, 2]), [0, 1, 3])
    for zero, delay, reduce, gather, held in (
        (0, 0, 16, 0, 200 * 18),
        (1, 0, 10, 8, 200 * 12),
        (3, 2 * 8 + 10, 0, 0, 200 * 9 + 100 * (2 * 2 + 4)),
    ):
        one = found[zero]
        assert one.seconds.tolist() == [6 + delay, 6 + delay]
        assert one.forward.tolist() == [2, 2]
        assert one.backward.tolist() == [4, 4]
        assert one.reduce_seconds.tolist() == [reduce, reduce]
        assert one.gather_seconds.tolist() == [gather, gather]
        assert one.optimizer_seconds == pytest.approx(5 + 200 * 30 / 1e4 / min(zero + 1, 2))
        assert one.received_bytes.tolist() == one.sent_bytes.tolist() == [50, 50]
        assert one.static_bytes.tolist() == [held, held]
        assert one.micro_batch_bytes.tolist() == [20 + 2 * 50] * 2


def test_a_stage_receives_what_the_layer_before_it_hands_on():
    """50, 150, 70 and 500 bytes behind four layers, in stages of two and of one."""
    layers = tuple(layer(boundary=size) for size in (50, 150, 70, 500))
    for count, starts, received in ((2, [2], [150]), (1, [1, 2, 3], [50, 150, 70])):
        one = np.ones((len(starts), 1), np.int64)
        runs = Segments(
            stage=0 * one, layers=count * one, tp=one, dp=one, zero=0 * one, recompute=0 * one
        )
        sizes = {name: one[:, 0] for name in ("tp", "dp", "micro_batch")}
        plans = from_columns({**sizes, "pp": 4 // count * one[:, 0]}, (), runs)
        found = stage_costs(task(4, 8, layers), plans, np.array(starts), [0])[0]
        assert found.received_bytes.tolist() == received
        behind = [layers[start + count - 1].boundary_bytes for start in starts]
        assert found.sent_bytes.tolist() == behind


# Memory


def test_activations_by_rank():
    """10 bytes a layer and micro-batch in flight; p - r of them under 1F1B, 5.5 at most of two
    chunks a rank under the interleaved schedule (test_activations_in_flight)."""
    found = by_stage(costs(task(4), "pp=4"))
    assert found["activations"].tolist() == [40, 30, 20, 10]
    eight = task(4, 8, (layer(),) * 8)
    found = by_stage(costs(eight, "pp=4 virtual_stages=2"))
    assert found["activations"].tolist() == [110, 90, 70, 50]
    assert by_stage(costs(task(4), "pp=4 schedule=gpipe"))["activations"].tolist() == [80] * 4
    assert by_stage(costs(task(4), "pp=4 schedule=zb-h1"))["activations"].tolist() == [40] * 4


@pytest.mark.parametrize(
    ("plan", "buffers"),
    [
        # Two micro-batches in flight, then one; two tensors of 150 bytes.
        ("pp=2 segments=2|2", [600, 300]),
        # What a run hands to the next one of its stage is no boundary; 10 bytes run again.
        ("pp=2 segments=1:recompute=full+1|1+1", [610, 300]),
        # The middle receives 150 and sends 70.
        ("pp=3 segments=2|1|1", [900, 600, 140]),
        # A rank holds two chunks: 2.5 and 1.5 micro-batches, of which the second receives 900 and
        # the first sends 70.
        ("pp=2 virtual_stages=2 segments=1|1|1|1", [2 * 900 * 2.5, 2 * 900 * 1.5]),
        # Ranks are cut alike without segments; the largest tensor of all counts.
        ("pp=2", [600, 300]),
        ("pp=3 layers_per_stage=2,1,1", [900, 600, 140]),
        ("pp=4", [4 * 1800, 3 * 1800, 2 * 300, 140]),
        ("pp=2 virtual_stages=2", [2 * 900 * 2.5, 2 * 900 * 1.5]),
        # A V turns on one rank, which hands 150 on to nobody.
        ("pp=2 virtual_stages=2 schedule=zb-v", [2 * 900 * 2, 2 * 900 * 2]),
        # Both ends of two copies hold both stages.
        ("pp=2 schedule=dualpipe", [600 * 1.5, 600 * 1.5]),
    ],
)
def test_boundary_tensors_are_those_between_stages(plan, buffers):
    """900, 150, 70 and 5,000 bytes behind four layers: nothing comes to the first stage, and the
    last hands on nothing."""
    layers = tuple(layer(boundary=size) for size in (900, 150, 70, 5000))
    question = task(int(plan[3]), 8, layers, boundary_buffers=2.0)
    found = costs(question, plan)
    assert by_stage(found)["buffers"].tolist() == buffers
    assert found.memory["buffers"] == buffers[found.worst_rank]


def test_boundary_tensors_of_a_stage_on_its_own():
    """The first and the last of two stages, each in two runs, one of them without layers."""
    layers = tuple(layer(boundary=size) for size in (900, 150, 70, 5000))
    none = np.zeros((2, 2), np.int64)
    counts = np.array([[1, 1], [0, 2]])
    runs = Segments(stage=none, layers=counts, tp=none + 1, dp=none + 1, zero=none, recompute=none)
    sizes = {name: np.ones(2, np.int64) for name in ("tp", "dp", "micro_batch")}
    plans = from_columns({**sizes, "pp": np.array([2, 2])}, (), runs)
    question = task(2, 8, layers, boundary_buffers=2.0)
    found = stage_costs(question, plans, np.array([0, 2]), [0])[0]
    assert found.received_bytes.tolist() == [0, 150]
    assert found.micro_batch_bytes.tolist() == [20 + 2 * 150] * 2


def test_states_by_rank():
    """2 bytes of weights, 4 of gradients and 12 of optimizer state a parameter; seconds of both
    passes."""
    found = by_stage(costs(task(2, 8, UNEVEN), "pp=2"))
    assert found["weights"].tolist() == [400, 800]
    assert found["gradients"].tolist() == [800, 1600]
    assert found["optimizer"].tolist() == [2400, 4800]
    assert found["seconds"].tolist() == [6, 6]
    assert found["total"].tolist() == [400 + 800 + 2400 + 40, 800 + 1600 + 4800 + 20]


def test_boundary_tensors_by_rank():
    """Two buffers of 50 bytes for each micro-batch in flight; none on a single rank."""
    found = by_stage(costs(task(4, boundary_buffers=2.0), "pp=4"))
    assert found["buffers"].tolist() == [400, 300, 200, 100]
    assert by_stage(costs(task(1, boundary_buffers=2.0), "pp=1"))["buffers"].tolist() == [0]


def test_the_fullest_rank_counts():
    found = costs(task(2, 8, UNEVEN), "pp=2")
    assert found.worst_rank == 1
    assert found.memory_bytes == 7220
    assert found.memory["optimizer"] == 4800
    assert costs(task(4), "pp=4").worst_rank == 0


@pytest.mark.parametrize(
    ("schedule", "named"),
    [("dualpipe", 0), ("zb-h1", 0), ("zb-h2", 0), ("1f1b", 0), ("chimera", 1)],
)
def test_of_ranks_that_hold_as_much_the_first_is_named(schedule, named):
    """Under Chimera the two in the middle hold most."""
    assert costs(task(4), f"pp=4 schedule={schedule}").worst_rank == named


@pytest.mark.parametrize(("memory", "fits"), [(1840 / 0.84, True), (1840, True), (1839, False)])
def test_what_fits(memory, fits):
    """1,800 bytes of state and 40 of activations."""
    question = replace(task(4), cluster=cluster(4, memory))
    found = evaluate(question, Plan.parse("pp=4"))
    assert found.memory_bytes == 1840
    assert found.fits == fits
    assert found.margin == pytest.approx(memory - 1840)


def test_what_the_system_keeps_besides():
    """A context of 100 bytes, 7 for each of 2 channels to a neighbour (all ranks, the copy of the
    model and the pipeline have two, pairs one), and half as much again as is allocated, which the
    allocator reserves."""
    system = {"context_bytes": 100.0, "connection_bytes": 7.0, "allocator_slack": 0.5}
    found = costs(task(4, **system), "pp=4")
    assert found.memory["reserve"] == 100 + 3 * 4 * 7 + 1840 / 2
    assert found.memory_bytes == 1840 + 100 + 3 * 4 * 7 + 1840 / 2
    found = costs(task(4, **system), f"pp=2 dp=2 {PLAIN}")
    assert found.memory["reserve"] == 100 + (4 + 3 * 2) * 7 + (200 * 18 + 40) / 2
    assert costs(task(1, **system), "pp=1").memory["reserve"] == 100 + (400 * 18 + 40) / 2
