"""Sweeps: one question asked over many values of its numbers, one point each.

A point is a task with a plan, or with none where its best plan is asked for. Points are
independent: they run in this process, in a pool of processes, on an executor or on a Dask cluster,
and the rows are the same whichever it is.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import signal
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass, field, replace
from multiprocessing import get_context, parent_process
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import TYPE_CHECKING, Any

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.files import is_local
from plan3d.simulator.base.printable import full_text
from plan3d.simulator.base.text_tables import format_table, tables_html
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.reporting.report import step_bounds, training_record
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.step.costs_tables import number_format
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task
from plan3d.simulator.uncertainty.memory import probability_fits, verdict

from ..rank_plans import Ranking, rank_plans
from ..result.obstacle import obstacle
from ..result.search_result import SearchResult
from ..space.space import Choices
from .climb import climbed
from .row_tables import WHOLE, rows_table, with_gib
from .schedulers import Scheduler, results_on
from .sweep_file import ILLEGAL, NO_PLAN, OK, SweepFile, varied

if TYPE_CHECKING:
    from plan3d.simulator.reporting.palette import Picture

POINTS = 18
"""Points that a text shows."""
Row = dict[str, Any]
NumberedRows = Generator[tuple[int, Row], None, None]
"""Numbers of points and their rows, as they finish."""
PointsDone = Callable[[int], None]
"""Called with the number of points that are done."""

WORTH_A_POOL = 2.0
"""Seconds of work left from which a pool of processes, which takes about one to start, pays."""
RESTARTS = 3
"""Pools that may lose a process before the rest of the points is run in this one."""


@dataclass(frozen=True, kw_only=True)
class PointOptions:
    """What is asked of every point of a sweep."""

    choose: Choices = field(default_factory=dict)
    """Constraints of the search."""
    headroom: float | None = None
    """That of a Ranking."""
    objective: str = "step-time"
    tokens: float | None = None
    """Training tokens; adds time, GPU-hours and energy."""
    price: float | None = None
    """A GPU-hour; adds the cost."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One question of a sweep."""

    settings: Mapping[str, Any]
    """What was varied: field and value, numbers in SI units."""
    task: Task
    plan: Plan | None = None
    """The plan to evaluate; None asks for the best one."""
    options: PointOptions = field(default_factory=PointOptions)

    @property
    def key(self) -> str:
        """A name for everything that decides the answer, for a file that is continued."""
        one = self.options
        asked = (self.task, self.plan, one.choose, one.headroom, one.objective)
        text = full_text((*asked, one.tokens, one.price, sorted(self.settings.items())))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Sweep:
    """Rows of the points that were run, in the order of the points.

    >>> task = Task(Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=8),
    ...             sequence=2048, global_batch=64)
    >>> sweep(task, {"tp": [1, 2]}, plan="recompute=full").rows[1]["plan"]
    'tp=2 dp=4 recompute=full'
    """

    rows: list[Row]
    complete: bool
    """False when interrupted."""

    def to_frame(self) -> Any:
        """A pandas DataFrame, a row a point."""
        import pandas

        return with_gib(pandas.DataFrame(self.rows))

    def plot(self) -> Picture:
        """Speed and MFU over what was varied: in a notebook a picture, elsewhere
        plot().save("sweep.png"). InputError where no point has a plan."""
        from plan3d.simulator.reporting.palette import Picture

        from .pictures import sweep_page

        return Picture(sweep_page(self.rows))

    def _repr_html_(self) -> str:
        return tables_html([rows_table(self.rows, varied(self.rows), WHOLE)])

    def __str__(self) -> str:
        """The table of the first POINTS, and how many there are more."""
        if not self.rows:
            return repr(self)
        table = format_table(rows_table(self.rows[:POINTS], varied(self.rows)))
        left = len(self.rows) - POINTS
        return table if left <= 0 else f"{table}\n... and {left} points more: to_frame()"

    def __repr__(self) -> str:
        done = sum(row["status"] == OK for row in self.rows)
        return f"Sweep({len(self.rows)} points, {done} with a plan)"


def run_point(point: Point) -> Row:
    """Answer one point: settings, status, and the numbers of its plan where there is one."""
    row = {**point.settings, "gpus": point.task.gpus, "status": OK, "detail": ""}
    try:
        if point.plan is not None:
            return {**row, **_numbers(point, evaluate(point.task, point.plan))}
        found = _search(point)
    except InputError as error:
        return {**row, "status": ILLEGAL, "detail": str(error)}
    if found.best is None:
        return {**row, "status": NO_PLAN, "detail": obstacle(found)}
    return {**row, **_numbers(point, found.best)}


def _search(point: Point) -> SearchResult:
    asked = point.options
    ranking = Ranking(objective=asked.objective, choose=asked.choose, headroom=asked.headroom)
    ranking = replace(ranking, families=ranking.can_list_families, safe=False, top=1)
    found = rank_plans(point.task, ranking).unless_interrupted()
    return climbed(found, asked.choose, top=1).unless_interrupted()


def _numbers(point: Point, costs: Costs) -> Row:
    low, high = step_bounds(costs)
    out = {
        "step_seconds": costs.step_seconds,
        "step_seconds_low": low,
        "step_seconds_high": high,
        "exchange_seconds": costs.seconds["data_comm"],
        "tokens_per_second": costs.tokens_per_second,
        "mfu": costs.mfu,
        "mfu_causal": costs.mfu_causal,
        "peak_flops": costs.peak_flops,
        "number_format": number_format(costs.plans),
        "memory_bytes": costs.memory_bytes,
        "capacity_bytes": costs.capacity,
        "probability_fits": probability_fits(costs),
        "verdict": verdict(costs),
        "global_batch": point.task.global_batch,
        "plan": str(costs.plans),
    }
    if costs.task.goal:
        out |= {"iterations": costs.iterations, "accuracy_seconds": costs.accuracy_seconds}
    if point.options.tokens is not None:
        out |= training_record(costs, 0, point.options.tokens, point.options.price)
    return out


def run_points(
    points: Sequence[Point],
    *,
    scheduler: Scheduler | None = None,
    resume: str | None = None,
    anew: bool = False,
    workers: int | None = None,
    each: PointsDone | None = None,
) -> Sweep:
    """Rows of all points, also written to the file `resume` as they finish.

    Points that the file holds already are not run again, unless `anew`; InputError where it holds
    others.
    `scheduler` runs the points elsewhere (schedulers.Scheduler); else up to `workers` processes
    (one a core) of this machine work. An interrupt keeps what is done.
    """
    keys = [point.key for point in points]
    settings = {key: point.settings for key, point in zip(keys, points, strict=True)}
    file = SweepFile(resume, settings, anew)
    done = {i: file.rows[key] for i, key in enumerate(keys) if key in file.rows}
    waiting = {i: point for i, point in enumerate(points) if i not in done}
    rows = (
        _on_this_machine(waiting, workers)
        if scheduler is None
        else results_on(scheduler, run_point, waiting)
    )
    try:
        with closing(rows):
            for i, row in rows:
                done[i] = row
                file.append(keys[i], row)
                if each:
                    each(len(done))
    except KeyboardInterrupt:
        return Sweep([done[i] for i in sorted(done)], complete=False)
    file.finish(keys)
    return Sweep([done[i] for i in range(len(points))], complete=True)


def _on_this_machine(points: dict[int, Point], workers: int | None) -> NumberedRows:
    """A first point here, to see how long one takes; the rest here or in a pool."""
    left = dict(points)
    several = is_local() and (workers or _cores()) > 1
    while left:
        began = time.perf_counter()
        i = next(iter(left))
        yield i, run_point(left.pop(i))
        if several and (time.perf_counter() - began) * len(left) > WORTH_A_POOL:
            for _ in range(RESTARTS):
                yield from _in_pool(left, min(workers or _cores(), len(left)))
            several = False


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_POINTS: dict[int, Point] = {}
"""In a process of a pool: what may be asked of it."""


def _begin(points: Path) -> None:
    """Read the points from a file, so that a task is only a number: a pipe with more than it holds
    blocks when the process that reads it is killed, or ends as it starts. Ctrl-C goes to every
    process of a terminal: only the first one acts on it; the others end with it, whatever ends
    it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()
    try:
        _POINTS.update(pickle.loads(points.read_bytes()))
    except FileNotFoundError:  # the pool was shut down before this process had begun
        os._exit(1)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run_numbered(number: int) -> Row:
    return run_point(_POINTS[number])


def _in_pool(left: dict[int, Point], workers: int) -> NumberedRows:
    """Rows from a pool of processes; takes points out of `left` as they finish.

    Ends early, without an error, when a process was killed: what is left is run again.
    """
    if not left:
        return
    folder = TemporaryDirectory()
    points = Path(folder.name) / "points"
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _begin, (points,))
    futures: dict[Future[Row], int] = {}
    try:
        points.write_bytes(pickle.dumps(left))
        for i in left:
            futures[pool.submit(_run_numbered, i)] = i
        for future in as_completed(futures):
            row = future.result()
            del left[futures[future]]
            yield futures[future], row
    except BrokenProcessPool:
        return
    finally:
        # A pool that is collected before its thread looks forgets that it should cancel.
        for future in futures:
            future.cancel()
        pool.shutdown(wait=False, cancel_futures=True)
        folder.cleanup()


def with_scaling(rows: Sequence[Row], series: str | None = None) -> list[Row]:
    """Rows with `scaling_efficiency`: tokens/s a GPU over that of the first row of their series.

    `series` is the second field of a sweep, which tells the series apart.
    """
    first: dict[Any, float] = {}
    out = []
    for row in rows:
        if row["status"] != OK:
            out.append(dict(row))
            continue
        rate = row["tokens_per_second"] / row["gpus"]
        reference = first.setdefault(row.get(series) if series else None, rate)
        out.append({**row, "scaling_efficiency": rate / reference})
    return out
