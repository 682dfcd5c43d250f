"""Parts of the memory of a rank by hand, and the same bytes in both ways of adding them up."""

import contextlib
from dataclasses import replace

import numpy as np
import pytest
from round_numbers import PARAMETERS, sparse, stack, task

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.precision import RECIPES, Precision
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.plan.synchronisation import DEFAULT_POLICY
from plan3d.simulator.rules.validity import check
from plan3d.simulator.step import memory
from plan3d.simulator.step.evaluate import simulate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.adapters import Adapters

BF16 = RECIPES[Precision.BF16]
DENSE, EXPERT = 18_916_352, 67_108_864
"""Parameters of attention, routers, norms and ends, and of two of eight experts in four layers."""


def group_of(text, question):
    (found,) = simulate(question, resolve(Plan.parse(text), question.gpus).table()).groups
    return found


def weights_of(text="dp=8 ep=4 zero=1", question=None):
    """Eight data ranks, two of which have the same experts."""
    return group_of(text, question or task(8, 16, sparse())).stages.weights


def test_experts_are_sharded_over_those_that_have_the_same():
    """Of 12 bytes of optimizer state an eighth of the dense parameters, half of the experts'."""
    question = task(8, 16, sparse())
    states = memory.bytes_of_states(question, BF16, 0)
    parts = memory.state_bytes(states, 1, weights_of())
    assert parts["weights"] == pytest.approx(2 * (DENSE + EXPERT))
    assert parts["gradients"] == pytest.approx(4 * (DENSE + EXPERT))
    assert parts["optimizer"] == pytest.approx(12 * (DENSE / 8 + EXPERT / 2))
    third = memory.state_bytes(states, 3, weights_of())
    assert third["weights"] == pytest.approx(2 * (DENSE / 8 + EXPERT / 2))


@pytest.mark.parametrize(("fused", "each"), [(True, 5), (False, 9)])
def test_temporaries_of_an_update_are_of_what_a_rank_updates(fused, each):
    """5 bytes a parameter, and a second moment of 4 where the update is not one kernel."""
    question = task(8, 16, sparse(), software=stack(update_memory=5.0, fused_update=fused))
    found = memory.update_bytes(question, BF16, 1, weights_of(question=question))
    assert found == pytest.approx(each * (DENSE / 8 + EXPERT / 2))


def test_gradients_that_wait_to_be_reduced_are_whole():
    question, weights = task(8, 16, sparse()), weights_of()
    assert memory.unreduced_bytes(question, BF16, 1, weights) == 0
    for zero in (2, 3):
        found = memory.unreduced_bytes(question, BF16, zero, weights)
        assert found == pytest.approx(2 * (DENSE + EXPERT))


def test_frozen_weights_are_whole_but_under_zero_3():
    frozen = replace(weights_of(), frozen_bytes=np.array([[800.0]]))
    assert [float(memory.frozen_bytes(zero, frozen)[0, 0]) for zero in range(4)] == [
        800, 800, 800, 100
    ]  # fmt: skip
    assert memory.frozen_bytes(0, frozen, 0.25) == pytest.approx(200)
    question = task(8, 16, sparse(), software=stack(flat_gradients=0.5))
    assert memory.flat_gradients(question, 2, frozen) == 0
    assert memory.flat_gradients(question, 3, frozen) == pytest.approx(50)
    wide = memory.unreduced_bytes(question, BF16, 3, frozen) - 2 * (DENSE + EXPERT)
    assert wide == pytest.approx(400)


def test_what_leaves_for_the_host_is_its_share():
    """A quarter of the optimizer and half of the weights away."""
    question = task(1, 4, software=stack(offloads_gradients=True))
    policy = DEFAULT_POLICY._replace(offload_optimizer=25, offload_parameters=50)
    states = memory.bytes_of_states(question, BF16, 0, policy)
    assert (states["staying"], states["weights"], states["optimizer"]) == (0.5, 1, 9)
    assert (states["gradients"], states["leaving"]) == (4, 1)


def asked(software, model):
    machine = Cluster.profile("h100-sxm", gpus=8)
    adapters = Adapters(rank=8) if model == "adapters" else None
    network = sparse() if model == "experts" else task().model
    return Task(network, machine, sequence=1024, global_batch=16, adapters=adapters,
                software=software_profile(software))  # fmt: skip


PLANS = [
    *(f"dp=8 zero={zero}" for zero in range(4)),
    "tp=2 dp=4 zero=1",
    "pp=2 dp=4 zero=1",
    "dp=8 zero=3 offload_optimizer=100 offload_parameters=100",
    "dp=8 zero=2 recompute=full",
]


@pytest.mark.parametrize("model", ["dense", "experts", "adapters"])
@pytest.mark.parametrize("software", ["deepspeed", "fsdp", "hf-trainer", "megatron-core",
                                      "torchtitan"])  # fmt: skip
def test_the_fullest_rank_holds_the_sum_of_its_parts(software, model):
    """Bytes of a table, in which all that ZeRO stages share is added up once, are those of the
    parts of every rank at the fuller moment."""
    whole, parts = zip(*both_sums(software, model), strict=True)
    assert len(whole) >= 3
    assert whole == pytest.approx(parts, rel=1e-12)


def both_sums(software, model):
    """Bytes of the fullest rank of each of PLANS that there is, in both ways."""
    for text in PLANS:
        with contextlib.suppress(InputError):
            question = asked(software, model)
            plan = resolve(Plan.parse(text), 8)
            check(plan, question)
            costs = simulate(question, plan.table())
            (group,) = costs.groups
            parts = group.rank_moments(int(group.zero[0])).fuller()
            assert min(part.min() for part in parts.values()) >= 0
            yield float(costs.memory_total[0]), float(sum(parts.values(), np.zeros(1)).max())


def test_parameters_of_round_numbers_are_all_counted():
    question = task()
    parts = memory.state_bytes(
        memory.bytes_of_states(question, BF16, 0), 0, group_of("tp=1", question).stages.weights
    )
    assert sum(parts.values()) == pytest.approx(18 * PARAMETERS)
