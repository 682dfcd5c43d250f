"""Cases of communication: NCCL collectives and send/recv through torch.distributed.

Run under torchrun; every rank takes part in every decision and rank 0 writes the rows, those of all
nodes. `bytes` is the size as nccl-tests has it; `seconds` the slowest rank's median. Small messages
are replayed from a CUDA graph where that works, so that launches do not set the pace.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from .cases import coarse_to_fine
from .timing import Bench, Call, Timing, batch_seconds, graph_of, summary

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
SMALL_BYTES = 2**20
"""Bytes up to which a call is shorter than what it takes to launch it."""
GRAPH_CALLS = 20
"""Calls in a CUDA graph."""


class Layout(NamedTuple):
    """Which ranks are together: groups of `ranks`, `stride` apart; all ranks at once, or the first
    group alone."""

    ranks: int
    stride: int = 1
    groups: int = 1

    def members(self) -> list[list[int]]:
        """The ranks of every group."""
        span = self.ranks * self.stride
        starts = [
            block * span + offset
            for block in range(-(-self.groups // self.stride))
            for offset in range(self.stride)
        ]
        return [
            [start + i * self.stride for i in range(self.ranks)] for start in starts[: self.groups]
        ]

    def nodes(self, per_node: int) -> int:
        """Nodes that a group is on."""
        return len({rank // per_node for rank in self.members()[0]})


class CollectiveCase(NamedTuple):
    """One case."""

    op: str
    layout: Layout
    bytes: int

    @property
    def suite(self) -> str:
        return "collective"

    @property
    def dtype(self) -> str:
        return "fp32"

    def shape(self, per_node: int) -> dict[str, int]:
        return {
            "ranks": self.layout.ranks,
            "nodes": self.layout.nodes(per_node),
            "groups": self.layout.groups,
            "bytes": self.bytes,
        }


def layouts(world: int, per_node: int) -> list[Layout]:
    """Groups of 2, 4, 8 ... neighbours and of all; of one rank a node; and as many at once as there
    are ranks for."""
    powers = [2**i for i in range(1, 16) if 2**i <= world]
    near = sorted({*powers, world})
    nodes = world // per_node
    far = [n for n in sorted({*powers, nodes}) if 2 <= n <= nodes] if per_node > 1 else []
    alone = [Layout(n) for n in near] + [Layout(n, per_node) for n in far]
    full = [Layout(a.ranks, a.stride, world // a.ranks) for a in alone if world % a.ranks == 0]
    fitting = [a for a in full if a.groups > 1 and world % (a.ranks * a.stride) == 0]
    return [*alone, *fitting]


def cases(world: int, per_node: int, quick: bool) -> list[CollectiveCase]:
    """Every layout and operation, sizes from 4 KiB to 1 GiB, the most valuable first."""
    powers = (12, 14) if quick else range(12, 31)
    series = [
        [CollectiveCase(op, layout, 2**power) for power in powers]
        for layout in _by_use(layouts(world, per_node), world, per_node)
        for op in OPERATIONS
        if op != "send" or layout.ranks in (2, world)
    ]
    return coarse_to_fine(series)


def _by_use(every: list[Layout], world: int, per_node: int) -> Iterator[Layout]:
    """All ranks, a node, one rank a node; then the others."""
    first = [Layout(world), Layout(min(per_node, world)), Layout(world // per_node, per_node)]
    yield from (layout for layout in dict.fromkeys(first) if layout in every)
    yield from (layout for layout in every if layout not in first)


def make_groups(world: int, per_node: int) -> dict[Layout, tuple[Any, list[int]]]:
    """This rank's process group in each layout, and its ranks; absent where it is in none. Made by
    every rank in the same order; a group of the same ranks is made once."""
    import torch.distributed as dist

    known: dict[tuple[int, ...], Any] = {}
    out: dict[Layout, tuple[Any, list[int]]] = {}
    for layout in layouts(world, per_node):
        for ranks in layout.members():
            key = tuple(ranks)
            if key not in known:
                known[key] = dist.new_group(ranks)
            if dist.get_rank() in ranks:
                out[layout] = (known[key], ranks)
    return out


def time_collective(
    case: CollectiveCase, mine: tuple[Any, list[int]] | None, bench: Bench
) -> tuple[Timing, bool] | None:
    """Timing of the slowest rank of all groups, and whether calls were replayed from a graph; None
    where a rank could not begin. Ranks outside all groups only wait."""
    call = _started_call(case, mine, bench.device)
    if not all_ranks_agree(call is not None, bench.device):
        return None
    assert call
    graph = None
    if case.bytes <= SMALL_BYTES and bench.device == "cuda" and not bench.quick:
        call()
        graph = graph_of(call, GRAPH_CALLS) if mine else call
        if not all_ranks_agree(graph is not None, bench.device):
            graph = None
    timing = _same_count(graph or call, GRAPH_CALLS if graph else 1, bench)
    median, least, most = slowest_rank(timing[:3], bench.device)
    return Timing(median, least, most, timing.repeats), graph is not None


def _started_call(
    case: CollectiveCase, mine: tuple[Any, list[int]] | None, device: str
) -> Call | None:
    """The call with its buffers; None where they do not fit."""
    if mine is None:
        return lambda: None
    try:
        return prepare(case.op, case.bytes, *mine, device)
    except RuntimeError:
        return None


def all_ranks_agree(yes: bool, device: str) -> bool:
    """Whether every rank says yes."""
    import torch
    import torch.distributed as dist

    flag = torch.tensor([int(yes)], device=device)
    dist.all_reduce(flag, dist.ReduceOp.MIN)
    return bool(int(flag))


def slowest_rank(seconds: tuple[float, ...], device: str) -> tuple[float, ...]:
    """The largest of each number over all ranks."""
    import torch
    import torch.distributed as dist

    most = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return tuple(float(value) for value in most)


def _same_count(call: Call, each: int, bench: Bench) -> Timing:
    """A number of calls that depends on nothing measured, because every rank must agree on it;
    `each` is how often one call communicates."""
    import torch.distributed as dist

    calls, batches = (2, 2) if bench.quick else (10, 7)
    for _ in range(3):
        call()
    seconds = []
    for _ in range(batches):
        dist.barrier()
        seconds.append(batch_seconds(call, calls, bench.device))
    return summary(seconds, calls * each)


def prepare(op: str, size: int, group: Any, ranks: list[int], device: str) -> Call:
    """Buffers of one case and the call on them, fp32."""
    import torch
    import torch.distributed as dist

    count = max(size // 4 // len(ranks), 1) * len(ranks)
    whole, other = (torch.ones(count, device=device) for _ in range(2))
    part = torch.ones(count // len(ranks), device=device)
    if op == "all_reduce":
        return lambda: dist.all_reduce(whole, group=group)
    if op == "all_gather":
        gather = _attribute_of(dist, "all_gather_single", "all_gather_into_tensor")
        return lambda: gather(whole, part, group=group)
    if op == "reduce_scatter":
        scatter = _attribute_of(dist, "reduce_scatter_single", "reduce_scatter_tensor")
        return lambda: scatter(part, whole, group=group)
    if op == "all_to_all":
        return lambda: dist.all_to_all_single(other, whole, group=group)
    return lambda: _ring_send(whole, other, ranks, group)


def _attribute_of(module: Any, new: str, old: str) -> Any:
    """A function under its new name, or the one it has in older versions of torch."""
    return getattr(module, new, None) or getattr(module, old)


def _ring_send(whole: Any, other: Any, ranks: list[int], group: Any) -> None:
    """Every rank sends to the next and receives from the one before, as nccl-tests' sendrecv."""
    import torch.distributed as dist

    at = ranks.index(dist.get_rank())
    out = dist.P2POp(dist.isend, whole, ranks[(at + 1) % len(ranks)], group)
    into = dist.P2POp(dist.irecv, other, ranks[at - 1], group)
    for work in dist.batch_isend_irecv([out, into]):
        work.wait()
