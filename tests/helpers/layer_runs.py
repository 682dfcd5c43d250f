"""Plans whose runs of layers differ, for properties that hold of all of them."""

from __future__ import annotations

from hypothesis import strategies as st

from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

DENSE = Task(
    Model.preset("llama-3.1-8b"),
    Cluster.profile("h100-sxm", gpus=32),
    sequence=4096,
    global_batch=64,
)


@st.composite
def mixed(draw):
    """A legal plan of DENSE with four stages whose runs differ."""
    cuts = sorted(draw(st.lists(st.integers(1, 31), min_size=3, max_size=3, unique=True)))
    stages = []
    for begin, end in zip([0, *cuts], [*cuts, 32], strict=True):
        runs, left = [], end - begin
        while left:
            layers = draw(st.integers(1, left))
            tp = draw(st.sampled_from([2, 4]))
            recompute = draw(st.sampled_from(["none", "full"]))
            zero = draw(st.sampled_from([0, 1, 2, 3]))
            runs.append(
                {"layers": layers, "tp": tp, "dp": 8 // tp, "zero": zero, "recompute": recompute}
            )
            left -= layers
        stages.append(runs)
    return Plan(tp=2, pp=4, dp=4, micro_batch=1, segments=stages)
