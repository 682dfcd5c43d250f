"""Collectives measured by ranks that walk the same list; rank 0 decides and writes.

A rank that fails tells the others through the rendezvous store and ends; the others, which may wait
in a collective, see it and end too: no failure hangs.
"""

from __future__ import annotations

import datetime
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import cases_collective, cases_contention
from .cases_collective import CollectiveCase
from .cases_contention import ContentionCase
from .recording import RowFile, communication_of, open_files, origin_of, six_digits
from .timing import Bench, PowerLog

MEASURE, MEASURED_BEFORE, TIME_UP = range(3)
"""What rank 0 decides about a case."""
FAILURE = "plan3d/failure"
"""Key of the store under which a rank says why it ends."""
LOOK_SECONDS = 1.0
"""Seconds between two looks at it."""
LONGEST_WAIT = datetime.timedelta(minutes=5)
"""Of one collective, where no rank said anything."""
Progress = Callable[[str], None]


def under_torchrun() -> bool:
    """Whether several processes were started."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def measure_ranks(
    out: Path, suites: Sequence[str], bench: Bench, end: float, say: Progress
) -> dict[str, int]:
    """All cases of this group of processes; the counts of measure.measure."""
    import torch.distributed as dist

    store, rank, per_node = _join(bench.device)
    threading.Thread(target=_watch, args=(store, rank), daemon=True).start()
    try:
        counts = _measure_cases(out, suites, bench, end, say, per_node)
    except Exception as error:
        told = f"rank {rank} on {platform.node()}: {' '.join(str(error).split())[:500]}"
        store.set(FAILURE, told)
        _exit(told)
    dist.destroy_process_group()
    return counts if rank == 0 else {}


def _join(device: str) -> tuple[Any, int, int]:
    """Join the other processes: the store, this rank, and how many ranks share a node."""
    import torch
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    per_node = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    store, rank, world = next(iter(rendezvous("env://")))
    backend = "nccl" if device == "cuda" else "gloo"
    sizes: dict[str, Any] = {"store": store, "rank": rank, "world_size": world}
    dist.init_process_group(backend, timeout=LONGEST_WAIT, **sizes)
    return store, rank, per_node


def _watch(store: Any, rank: int) -> None:
    """End this process as soon as another says that it failed."""
    while True:
        time.sleep(LOOK_SECONDS)
        try:
            failed = store.check([FAILURE])
        except Exception:
            # The store went with the rank that kept it, or this process is at its end.
            return
        if failed:
            _exit(f"rank {rank} stops: {store.get(FAILURE).decode()}")


def _exit(told: str) -> None:
    """Say it and end at once: other threads may wait in a collective for ever."""
    print(f"measure: {told}", file=sys.stderr, flush=True)
    os._exit(1)


def _measure_cases(
    out: Path, suites: Sequence[str], bench: Bench, end: float, say: Progress, per_node: int
) -> dict[str, int]:
    import torch.distributed as dist

    rank, world = dist.get_rank(), dist.get_world_size()
    cases = _cases(suites, world, per_node, bench.quick)
    groups = cases_collective.make_groups(world, per_node)
    files = open_files(out) if rank == 0 else None
    origin = _common_origin(bench.device)
    counts = {"measured": 0, "skipped": 0, "left": 0, "known": 0}
    for number, case in enumerate(cases, 1):
        what: dict[str, object] = {"suite": case.suite, "op": case.op, "dtype": case.dtype}
        what |= {**case.shape(per_node), **origin}
        result = _measure_case(case, what, groups.get(case.layout), bench, end, files)
        counts[result] += 1
        if rank == 0:
            sizes = f"{case.layout.groups} x {case.layout.ranks} ranks, {case.bytes} bytes"
            say(f"[{number}/{len(cases)}] {case.op} {sizes}: {result}")
    return counts


def _cases(
    suites: Sequence[str], world: int, per_node: int, quick: bool
) -> list[CollectiveCase | ContentionCase]:
    out: list[CollectiveCase | ContentionCase] = []
    if "contention" in suites:
        out += cases_contention.cases(world, per_node, quick)
    if "collective" in suites:
        out += cases_collective.cases(world, per_node, quick)
    return out


def _common_origin(device: str) -> dict[str, str]:
    """GPU, versions and settings, which must be the same on every rank: a row has one."""
    own = {**origin_of(device), **communication_of(device)}
    every = _gathered(own)
    for name in ("gpu", "torch", "nccl"):
        values = sorted({other[name] for other in every})
        if len(values) > 1:
            raise ValueError(f"ranks have different {name}: {', '.join(values)}")
    return own


def _gathered(own: Any) -> list[Any]:
    """What every rank has, on all of them."""
    import torch.distributed as dist

    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, own)
    return every


def _measure_case(
    case: CollectiveCase | ContentionCase,
    what: dict[str, object],
    mine: tuple[Any, list[int]] | None,
    bench: Bench,
    end: float,
    files: tuple[RowFile, RowFile] | None,
) -> str:
    """One case on every rank; what became of it."""
    decision = MEASURE
    if files:
        decision = (
            MEASURED_BEFORE if what in files[0] else TIME_UP if time.monotonic() > end else MEASURE
        )
    decision = _broadcast(decision, bench.device)
    if decision != MEASURE:
        return "known" if decision == MEASURED_BEFORE else "left"
    with PowerLog(bench.device) as log:
        result = _result(case, mine, bench)
    logs = _gathered(log.columns())
    if files and result:
        files[0].append({**what, **six_digits({**result, **_worst_log(logs)})})
    elif files:
        files[1].append({**what, "note": "did not run on every rank"})
    return "measured" if result else "skipped"


def _result(
    case: CollectiveCase | ContentionCase, mine: tuple[Any, list[int]] | None, bench: Bench
) -> dict[str, float]:
    """Columns that were measured; {} where a rank could not begin."""
    if isinstance(case, ContentionCase):
        assert mine
        return cases_contention.time_contention(case, mine, bench).columns()
    found = cases_collective.time_collective(case, mine, bench)
    return {**found[0].columns(), "from_graph": int(found[1])} if found else {}


def _worst_log(logs: Sequence[dict[str, Any]]) -> dict[str, float | str]:
    """The slowest clock, the largest power and every throttle bit of all ranks."""
    out: dict[str, float | str] = {}
    for name, choose in (("clock_hz", min), ("power_watts", max)):
        values = [log[name] for log in logs if name in log]
        if values:
            out[name] = choose(values)
    bits = [int(log["throttled"], 16) for log in logs if "throttled" in log]
    if bits:
        every = 0
        for own in bits:
            every |= own
        out["throttled"] = f"{every:#x}"
    return out


def _broadcast(decision: int, device: str) -> int:
    """The decision of rank 0, on every rank."""
    import torch
    import torch.distributed as dist

    told = torch.tensor([decision], device=device)
    dist.broadcast(told, 0)
    return int(told)
