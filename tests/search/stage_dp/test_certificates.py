"""What a backend proves is the best of all plans of its set: random small questions."""

from dataclasses import replace

import certificate_instances as instances
import pytest

from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.search.space.space import Space
from plan3d.search.stages.pipeline import pipelines
from plan3d.search.stages.stage_space import stage_space
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

BACKENDS = ("branch-and-bound", "dynamic-programming", "integer-programming")


@pytest.mark.parametrize("backend", BACKENDS)
def test_certificates_hold_on_random_questions(backend):
    """tests/benchmarks/certificates.py has thousands of them."""
    faults = [instances.fault(instances.drawn(seed)[backend]) for seed in range(10)]
    assert faults == [""] * 10


@pytest.mark.parametrize(
    ("stack", "seed"),
    [
        ("torchtitan", 39),  # one micro-batch: no gradients beside the activations
        ("torchtitan", 67),  # boundary tensors of as many micro-batches as are in flight
        ("hf-trainer", 43),
        ("hf-trainer", 93),  # gradients wait whole where there are several
        ("hf-trainer", 25),  # which has no pipeline
        ("fsdp", 20),
        ("fsdp", 25),
        ("torchtitan", 20140),  # dozens of proposals that are slower than the program says
        ("hf-trainer", 20201),  # no layer of the model has the experts of its kinds
    ],
)
def test_certificates_hold_on_stacks_that_free_gradients_or_have_no_pipeline(stack, seed):
    faults = {name: instances.fault(one) for name, one in instances.drawn(seed, stack).items()}
    assert faults == dict.fromkeys(faults, "")


def wide_vocabulary(gpus=3):
    """A model of few layers whose head takes as long as several of them."""
    model = replace(Model.preset("llama-3.2-1b"), order=(0,) * 5)
    return Task(model, Cluster.profile("h100-sxm", gpus=gpus), sequence=1024, global_batch=24)


def test_the_last_stage_may_hold_the_head_alone():
    """The step of the layout that Megatron-Core writes as Ett|..|L, and no plan of the set is
    better."""
    question = wide_vocabulary()
    choose = {"pp": (3,), "tp": (1,), "micro_batch": (1,), "recompute": ("none",)}
    found = rank_plans(question, Ranking(backend="dynamic-programming", choose=choose))
    runs = found.plans[0].segments
    assert found.complete
    assert runs.layers[runs.stage == 2].tolist() == [0]
    layout = ",".join(str(runs.layers[runs.stage == i].sum()) for i in range(3))
    same = evaluate(question, Plan.parse(f"pp=3 micro_batch=1 layers_per_stage={layout}"))
    assert found.best.step_seconds == pytest.approx(same.step_seconds, rel=1e-12)


def test_stages_of_unequal_size_have_every_tp_that_divides_them():
    """Of 10 GPUs in three stages some have 4, which 10 does not have as a divisor."""
    question = wide_vocabulary(gpus=10)
    space = Space.of(question, {"pp": [3], "cp": [1], "virtual_stages": [1]})
    axes = stage_space(space, "test", "step-time", ("1f1b",)).axes
    found = {tp for p in pipelines(question, axes) for tp in p.tp.tolist()}
    assert {1, 2, 4, 8} <= found
    assert found <= {1, 2, 4, 8}
