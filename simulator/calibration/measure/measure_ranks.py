"""Collectives measured by ranks that walk the same list; rank 0 decides and writes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import cases_collective
from .cases_collective import CollectiveCase
from .recording import open_files, origin_of, rounded
from .rowfile import RowFile
from .timing import Bench

MEASURE, KNOWN, LEFT = range(3)
"""What rank 0 decides about a case."""


def measure_ranks(
    out: Path, bench: Bench, end: float, say: Callable[[str], None]
) -> dict[str, int]:
    """All collectives of this group of processes; the counts of measure.measure."""
    rank, per_node = cases_collective.start(bench.device)
    try:
        import torch.distributed as dist

        cases = list(cases_collective.cases(dist.get_world_size(), bench.quick))
        groups = cases_collective.groups(dist.get_world_size())
        files = open_files(out) if rank == 0 else None
        counts = {"measured": 0, "skipped": 0, "left": 0, "known": 0}
        for number, case in enumerate(cases, 1):
            result = _one(case, groups[case.ranks], bench, end, per_node, files)
            counts[result] += 1
            if rank == 0:
                say(f"[{number}/{len(cases)}] {case.op} {case.ranks} {case.bytes}: {result}")
        return counts if rank == 0 else {}
    finally:
        cases_collective.stop()


def _one(
    case: CollectiveCase,
    group: Any,
    bench: Bench,
    end: float,
    per_node: int,
    files: tuple[RowFile, RowFile] | None,
) -> str:
    """One case on every rank; what became of it."""
    what: dict[str, object] = {"suite": "collective", "op": case.op, "dtype": "fp32"}
    what |= {**case.shape(per_node), **origin_of(bench.device)}
    decision = MEASURE
    if files:
        decision = KNOWN if what in files[0] else LEFT if time.monotonic() > end else MEASURE
    decision = _told(decision, bench.device)
    if decision != MEASURE:
        return "known" if decision == KNOWN else "left"
    timing = cases_collective.time_collective(case, group, bench)
    if files and timing:
        files[0].append({**what, **rounded(timing.columns())})
    elif files:
        files[1].append({**what, "note": "did not run on every rank"})
    return "measured" if timing else "skipped"


def _told(decision: int, device: str) -> int:
    """The decision of rank 0, on every rank."""
    import torch
    import torch.distributed as dist

    told = torch.tensor([decision], device=device)
    dist.broadcast(told, 0)
    return int(told)
