"""A gate on the output of attention: its product, what it moves and what it keeps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from round_numbers import BLOCK, kind, local, of_blocks, stack, task

from plan3d.launch_files.exporter import launch_text
from plan3d.launch_files.registry import EXPORTERS
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.layers.memory_footprint import kept_activations
from plan3d.simulator.operators.attention import projections
from plan3d.simulator.operators.layer_parts import layer_bytes
from plan3d.simulator.operators.model_flops import model_flops_per_token
from plan3d.simulator.operators.work import Strategy
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

BARE = Model.preset("llama-3.2-1b")
(KIND,) = BARE.kinds
WIDTH = 32 * 64
"""32 heads of 64."""


def gated(width: int) -> Model:
    attention = replace(KIND.attention, output_gate=width)
    return replace(BARE, kinds=(replace(KIND, attention=attention),))


def test_columns_of_the_gate_are_in_the_product_of_queries() -> None:
    s = Strategy.of(tp=2, micro_batch=1)
    bare = projections(KIND.attention, 2048, s, 1024)[0]
    each = projections(gated(64).kinds[0].attention, 2048, s, 1024)[0]
    assert np.all(each.n - bare.n == WIDTH / 2)


@pytest.mark.parametrize(("width", "columns"), [(1, 32), (64, WIDTH)])
def test_parameters_and_flops(width: int, columns: int) -> None:
    model = gated(width)
    extra = 16 * 2048 * columns
    assert model.parameters - BARE.parameters == extra
    more = model_flops_per_token(model, 1024) - model_flops_per_token(BARE, 1024)
    assert more == pytest.approx(6 * extra)


def test_a_gate_and_the_output_are_read_and_their_product_written() -> None:
    s = Strategy.of(micro_batch=1)
    more = layer_bytes(gated(64).kinds[0], 2048, s, 1024) - layer_bytes(KIND, 2048, s, 1024)
    assert more == pytest.approx(2 * 1024 * 3 * WIDTH)


def test_a_gate_and_what_it_multiplies_are_kept() -> None:
    """Two tensors of 16 bits as wide as all heads, over two tensor ranks."""
    attention = replace(BLOCK.attention, output_gate=BLOCK.attention.value_dim)
    model, software = of_blocks(replace(BLOCK, attention=attention)), stack()
    kept = [
        kept_activations(kind(m, "block 0"), local(task(4, model=m, software=software), "tp=2"))[0]
        for m in (of_blocks(BLOCK), model)
    ]
    width = attention.heads * attention.value_dim
    assert float((kept[1] - kept[0])[0]) == pytest.approx(2 * 2 * 1024 * width / 2)


@pytest.mark.parametrize("framework", ["megatron", "megatron-bridge", "torchtitan"])
def test_no_export_leaves_a_gate_out(framework: str) -> None:
    task = Task(gated(64), Cluster.profile("h100-sxm", gpus=8), sequence=1024, global_batch=8)
    with pytest.raises(InputError, match="a gate of the output of attention"):
        launch_text(task, Plan(zero=1), EXPORTERS[framework].form())
