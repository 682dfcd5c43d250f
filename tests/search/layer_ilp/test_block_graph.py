"""A transformer block as operators: sizes, bytes and seconds on a rank, by hand.

Llama 3.1 8B: h = 4096, 32 heads of 128 over 8 key heads, f = 14336, gated. Of 512 tokens.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from plan3d.search.layer_ilp.block_partition import WHOLE, block_graph, partition_block
from plan3d.search.layer_ilp.operator_graph import Partition
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.precision import RECIPES, Precision
from plan3d.simulator.operators import kernel_times
from plan3d.simulator.operators.work import AttentionWork, Gemm
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

TOKENS, H, F = 512, 4096, 14336
COLUMN = 2 * TOKENS
"""Bytes of one feature of all tokens, 2 each."""
RANKS = 16
QKV, SHARE = H + 8 * 256, H // RANKS + 256
"""Heads and the keys and values of 8 heads; of 16 ranks each repeats one key head."""
OUTPUTS = {
    **dict.fromkeys(("x", "norm", "attention", "projection", "add", "norm2", "down", "add2"), H),
    **{"qkv": QKV, "up": 2 * F, "activation": F, "out": 0},
}
PRODUCTS = {
    "qkv": ((QKV, H), (SHARE, H)),
    "projection": ((H, H), (H / RANKS, H)),
    "up": ((2 * F, H), (2 * F / RANKS, H)),
    "down": ((H, F), (H / RANKS, F)),
}
"""(n, k) of the whole and of a rank of rows."""


@cache
def task(model: str = "llama-3.1-8b") -> Task:
    return Task(
        Model.preset(model), Cluster.profile("h100-sxm", gpus=16), sequence=TOKENS, global_batch=16
    )


@cache
def operators() -> dict[str, dict[str, Partition]]:
    graph = block_graph(task(), task().model.kinds[0], RANKS, WHOLE)
    return {name: {p.name: p for p in node["partitions"]} for name, node in graph.nodes.items()}


def test_every_output_in_bytes() -> None:
    nodes = block_graph(task(), task().model.kinds[0], RANKS, WHOLE).nodes
    assert {name: nodes[name]["size"] for name in nodes} == {
        name: COLUMN * width for name, width in OUTPUTS.items()
    }


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_in_their_shape_on_a_rank(name: str) -> None:
    """18 bytes a parameter: 2 of weight, 4 of gradient, 12 of Adam. Three products of one shape."""
    machine, software = task().cluster.accelerator, task().software
    whole, rows = PRODUCTS[name]
    dgrad, wgrad = kernel_times.gradient_rates(software, machine)
    sides = {"replicated": whole, "rows": rows, "columns": (whole[0], whole[1] / RANKS)}
    for split, (n, k) in sides.items():
        seconds = kernel_times.gemm_seconds(
            [Gemm(TOKENS, n, k)],
            1,
            machine,
            RECIPES[Precision.BF16],
            kernel_times.sustained_share(software, machine, task().gpus),
        )
        found = operators()[name][split]
        assert found.bytes == 18 * n * k
        assert found.seconds == pytest.approx(float(seconds[0, 0]) * (1 + 1 / dgrad + 1 / wgrad))


@pytest.mark.parametrize(
    ("name", "moved"),
    [
        *[("norm", 5.5 * H), ("norm2", 5.5 * H), ("add", 0), ("add2", 0)],
        ("activation", 4 * F + 8 * H),
    ],
)
def test_memory_bound_operators_by_the_bytes_they_move(name: str, moved: float) -> None:
    """Forward once and backward 1.6 times; split by token or feature, a share each."""
    machine = task().cluster.accelerator
    rate = machine.memory_bound.efficiency * machine.memory_bandwidth
    whole = 2.6 * COLUMN * moved / rate
    found = {split: one.seconds for split, one in operators()[name].items()}
    by_hand = {split: whole if split == "whole" else whole / RANKS for split in found}
    assert len(found) > 1
    assert found == pytest.approx(by_hand)
    assert {one.bytes for one in operators()[name].values()} == {0}


def test_the_attention_core_by_its_heads() -> None:
    """32 heads of queries of 128 and values of 128, each over half the sequence."""
    work = AttentionWork(np.array([TOKENS * 32.0]), 256, TOKENS / 2, TOKENS)
    machine = task().cluster.accelerator
    both = kernel_times.attention_seconds(work, machine, RECIPES[Precision.BF16], task().software)
    seconds = float(both[0][0] + both[1][0])
    found = {split: one.seconds for split, one in operators()["attention"].items()}
    assert found == pytest.approx({"whole": seconds, "features": seconds / RANKS})


def test_a_block_on_one_rank_is_the_sum_of_its_operators() -> None:
    """And so is one of replicated operators: no collective, every operator whole. The best is no
    slower than the split of Megatron-LM; products are shaped (tokens, outputs, inputs)."""
    found = partition_block(task(), 2)
    alone = sum(
        one.seconds
        for name, splits in operators().items()
        for split, one in splits.items()
        if split in ("whole", "replicated")
    )
    assert found.one_rank == pytest.approx(alone)
    assert found.best.cost <= found.megatron * (1 + 1e-9)
    assert found.shapes == {name: (TOKENS, *whole) for name, (whole, _) in PRODUCTS.items()}


@pytest.mark.parametrize(("ranks", "why"), [(1, "from 2 to"), (17, "from 2 to"), (3, "nearest: 2")])
def test_ranks_that_do_not_divide_the_heads_are_refused(ranks: int, why: str) -> None:
    with pytest.raises(InputError, match=why):
        partition_block(task(), ranks)


def test_ranks_may_be_two_or_all() -> None:
    assert {partition_block(task(), n).one_rank > 0 for n in (2, 16)} == {True}


def test_a_model_without_a_dense_block_is_refused() -> None:
    with pytest.raises(InputError, match="no block of plain attention"):
        partition_block(task("deepseek-v3"), 2)
