"""A matrix product beside a collective: what each takes from the other.

Rows of one shape: the product alone (`gemm`), and beside each collective (`gemm_beside_...`), which
runs on NCCL's own stream for as long. Their ratio is what overlap costs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .cases_collective import Layout, slowest_rank
from .timing import Bench, Timing, batch_seconds, summary

OPERATIONS = ("", "all_reduce", "all_gather", "reduce_scatter")
"""Collectives beside the product; '' for none."""


PRODUCT_REPEATS = 2
"""Collectives a product: of 256 MiB each, one takes longer than a product of 8,192^3 on links of up
to 1 TB/s."""


class ContentionCase(NamedTuple):
    """One case."""

    collective: str
    layout: Layout
    side: int
    """m = n = k of the product."""
    bytes: int

    @property
    def suite(self) -> str:
        return "contention"

    @property
    def dtype(self) -> str:
        return "bf16"

    @property
    def op(self) -> str:
        return f"gemm_beside_{self.collective}" if self.collective else "gemm"

    def shape(self, per_node: int) -> dict[str, int]:
        sides = dict.fromkeys(("m", "n", "k"), self.side)
        group = {"ranks": self.layout.ranks, "nodes": self.layout.nodes(per_node)}
        return {**sides, **group, "groups": self.layout.groups, "bytes": self.bytes}


def cases(world: int, per_node: int, quick: bool) -> list[ContentionCase]:
    """In a node, across all ranks, and with one rank a node, all groups at once."""
    side, size = (64, 2**12) if quick else (8192, 2**28)
    node = min(per_node, world)
    wanted = [Layout(node, 1, world // node), Layout(world)]
    if per_node > 1 and world > per_node:
        wanted.append(Layout(world // per_node, per_node, per_node))
    every = [layout for layout in dict.fromkeys(wanted) if layout.ranks > 1]
    return [ContentionCase(op, layout, side, size) for layout in every for op in OPERATIONS]


def time_contention(case: ContentionCase, mine: tuple[Any, list[int]], bench: Bench) -> Timing:
    """Seconds of a product on the slowest rank."""
    import torch
    import torch.distributed as dist

    half = torch.bfloat16 if bench.device == "cuda" else torch.float32
    x, w, y = (torch.ones(case.side, case.side, dtype=half, device=bench.device) for _ in range(3))
    calls, batches = (2, 2) if bench.quick else (20, 7)
    seconds = []
    for _ in range(1 + batches):
        dist.barrier()
        waiting = _start_collective(case, mine, calls, bench)
        seconds.append(batch_seconds(lambda: torch.mm(x, w, out=y), calls, bench.device))
        for work in waiting:
            work.wait()
    timing = summary(seconds[1:], calls)
    median, least, most = slowest_rank(timing[:3], bench.device)
    return Timing(median, least, most, timing.repeats)


def _start_collective(
    case: ContentionCase, mine: tuple[Any, list[int]], calls: int, bench: Bench
) -> list[Any]:
    """Collectives under way that last at least as long as the products."""
    import torch
    import torch.distributed as dist

    if not case.collective:
        return []
    group, ranks = mine
    count = max(case.bytes // 4 // len(ranks), 1)
    whole = torch.ones(count * len(ranks), device=bench.device)
    part = torch.ones(count, device=bench.device)
    begin: Callable[[], Any] = {
        "all_reduce": lambda: dist.all_reduce(whole, group=group, async_op=True),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part, group=group, async_op=True),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(
            part, whole, group=group, async_op=True
        ),
    }[case.collective]
    return [begin() for _ in range(PRODUCT_REPEATS * calls)]
