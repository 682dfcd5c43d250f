"""Cases of communication: NCCL collectives and send/recv through torch.distributed.

Run under torchrun; every rank takes part in every case and rank 0 writes the rows. `bytes` is
the size as nccl-tests has it; `seconds` the slowest rank's median.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from .timing import Bench, Call, Timing, batch_seconds, summary

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")


class CollectiveCase(NamedTuple):
    """One case."""

    op: str
    ranks: int
    bytes: int

    def shape(self, ranks_per_node: int) -> dict[str, int]:
        nodes = -(-self.ranks // ranks_per_node)
        return {"ranks": self.ranks, "nodes": nodes, "bytes": self.bytes}


def under_torchrun() -> bool:
    """Whether several processes were started."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def start(device: str) -> tuple[int, int]:
    """Join the other processes; returns this rank and how many share a node."""
    import torch
    import torch.distributed as dist

    per_node = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    return dist.get_rank(), per_node


def stop() -> None:
    """Leave the group."""
    import torch.distributed as dist

    dist.destroy_process_group()


def cases(world: int, quick: bool) -> Iterator[CollectiveCase]:
    """Groups of 2, 4, 8 ... ranks and all of them; sizes from 4 KiB to 1 GiB."""
    counts = {2**i for i in range(1, 16) if 2**i <= world} | {world}
    for ranks in sorted(counts):
        for op in OPERATIONS:
            if op != "send" or ranks in (2, world):
                for power in (12, 14) if quick else range(12, 31):
                    yield CollectiveCase(op, ranks, 2**power)


def groups(world: int) -> dict[int, Any]:
    """The process group of the first ranks, by size; made by every rank in the same order."""
    import torch.distributed as dist

    counts = sorted({case.ranks for case in cases(world, True)})
    return {count: dist.new_group(list(range(count))) for count in counts}


def time_collective(case: CollectiveCase, group: Any, bench: Bench) -> Timing | None:
    """Timing of the slowest rank; None on ranks outside the group or where one rank failed."""
    import torch
    import torch.distributed as dist

    if dist.get_rank() >= case.ranks:
        return None
    device = bench.device
    try:
        call, worked = _prepare(case, group, device), 1
    except RuntimeError:
        call, worked = (lambda: None), 0
    flag = torch.tensor([worked], device=device)
    dist.all_reduce(flag, dist.ReduceOp.MIN, group=group)
    if not int(flag):
        return None
    dist.barrier(group=group)
    timing = _same_count(call, bench, group)
    slowest = torch.tensor(timing[:3], dtype=torch.float64, device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX, group=group)
    median, least, most = (float(value) for value in slowest)
    return Timing(median, least, most, timing.repeats)


def _same_count(call: Call, bench: Bench, group: Any) -> Timing:
    """A number of calls that depends on nothing measured, because every rank must agree on it."""
    import torch.distributed as dist

    calls, batches = (2, 2) if bench.quick else (10, 7)
    for _ in range(3):
        call()
    seconds = []
    for _ in range(batches):
        dist.barrier(group=group)
        seconds.append(batch_seconds(call, calls, bench.device))
    return summary(seconds, calls)


def _prepare(case: CollectiveCase, group: Any, device: str) -> Call:
    """Buffers of one case and the call on them, fp32."""
    import torch
    import torch.distributed as dist

    count = max(case.bytes // 4 // case.ranks, 1) * case.ranks
    whole, other = (torch.ones(count, device=device) for _ in range(2))
    part = torch.ones(count // case.ranks, device=device)
    if case.op == "all_reduce":
        return lambda: dist.all_reduce(whole, group=group)
    if case.op == "all_gather":
        gather = _named(dist, "all_gather_single", "all_gather_into_tensor")
        return lambda: gather(whole, part, group=group)
    if case.op == "reduce_scatter":
        scatter = _named(dist, "reduce_scatter_single", "reduce_scatter_tensor")
        return lambda: scatter(part, whole, group=group)
    if case.op == "all_to_all":
        return lambda: dist.all_to_all_single(other, whole, group=group)
    return lambda: _ring_send(whole, other, case.ranks, group)


def _named(module: Any, new: str, old: str) -> Any:
    """A function under its new name, or the one it has in older versions of torch."""
    return getattr(module, new, None) or getattr(module, old)


def _ring_send(whole: Any, other: Any, ranks: int, group: Any) -> None:
    """Every rank sends to the next and receives from the one before, as nccl-tests' sendrecv."""
    import torch.distributed as dist

    rank = dist.get_rank()
    out = dist.P2POp(dist.isend, whole, (rank + 1) % ranks, group)
    into = dist.P2POp(dist.irecv, other, (rank - 1) % ranks, group)
    for work in dist.batch_isend_irecv([out, into]):
        work.wait()
