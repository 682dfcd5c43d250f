"""Sides of the products of a layer, and the time of what only moves bytes, by hand."""

import pytest

from plan3d.search.layer_ilp.block_partition import (
    BACKWARD_BYTES,
    _Builder,
    _dense_block,
    _product_sides,
)
from plan3d.search.layer_ilp.operator_graph import OperatorLayout
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

CLUSTER = Cluster.profile("h100-sxm", gpus=16)
TASK = Task(Model.preset("llama-3.1-8b"), CLUSTER, sequence=4096, global_batch=16)
GPT = Task(Model.preset("gpt3-1.3b"), CLUSTER, sequence=2048, global_batch=16)


@pytest.mark.parametrize(
    ("task", "name", "ranks", "sides"),
    [
        # 32 query heads and 2 x 8 key and value heads of 128.
        (TASK, "qkv", 1, (6144, 4096, 6144)),
        (TASK, "qkv", 8, (6144, 4096, 768)),
        # Each of 16 ranks has two query heads, a key and a value head.
        (TASK, "qkv", 16, (6144, 4096, 512)),
        (TASK, "projection", 8, (4096, 4096, 512)),
        (TASK, "up", 8, (2 * 14336, 4096, 3584)),
        (TASK, "down", 8, (4096, 14336, 512)),
        # No gate.
        (GPT, "up", 4, (8192, 2048, 2048)),
        (GPT, "down", 4, (2048, 8192, 512)),
    ],
)
def test_sides_of_products(task, name, ranks, sides):
    assert _product_sides(_dense_block(task), task.model.hidden, name, ranks) == sides


def test_what_moves_bytes_takes_them_over_the_bandwidth():
    """Forward, and 1.6 times that backward, of two bytes of 4,096 tokens."""
    builder, layout = _Builder(TASK, 8), OperatorLayout.WHOLE
    builder.tensor("input", layout)
    builder.pointwise("norm", ["input"], 4096, 10_000, [layout])
    memory = TASK.cluster.accelerator
    seconds = 2.6 * 4096 * 2 * 10_000 / memory.memory_bandwidth / memory.memory_bound.efficiency
    assert BACKWARD_BYTES == 1.6
    (made,) = builder.graph.nodes["norm"]["partitions"]
    assert made.seconds == pytest.approx(seconds)
