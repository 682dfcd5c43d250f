"""Where independent questions run: on any executor of concurrent.futures, or on a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.task import Task

from ..rank_plans import Ranking, rank_plans
from ..result.search_result import SearchResult

if TYPE_CHECKING:
    from concurrent.futures import Executor

    Scheduler = Executor | str | Any
else:
    Scheduler = Any
"""An executor of concurrent.futures, a client of Dask, or the address of a Dask scheduler."""
Item = TypeVar("Item")
Result = TypeVar("Result")
PATIENCE = 10
"""Seconds to wait for a scheduler to answer."""


def results_on(
    scheduler: Scheduler, call: Callable[[Item], Result], items: Mapping[int, Item]
) -> Generator[tuple[int, Result], None, None]:
    """Numbers of items and what `call` returns for them, as they finish; those that wait are taken
    back when the generator is closed.

    Raises InputError for anything but a Scheduler, and where it is lost. What goes to another
    process is pickled: `call` is a function of a module.
    """
    from concurrent.futures import BrokenExecutor, Executor, as_completed

    if isinstance(scheduler, str):
        yield from _at_address(scheduler, call, items)
        return
    # A client of Dask has an executor of its own.
    executor = scheduler.get_executor() if hasattr(scheduler, "get_executor") else scheduler
    if not isinstance(executor, Executor):
        raise InputError(
            "scheduler must be an executor of concurrent.futures, a client of Dask or the address "
            f"of its scheduler, not {type(scheduler).__name__}"
        )
    futures = {executor.submit(call, item): number for number, item in items.items()}
    try:
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BrokenExecutor as error:
        raise InputError(f"the executor was lost: {error}") from None
    finally:
        for future in futures:
            future.cancel()


def in_turn(
    scheduler: Scheduler | None, call: Callable[[Item], Result], items: Iterable[Item]
) -> Generator[Result, None, None]:
    """What `call` returns for each item, in their order; one after the other in this process where
    there is no scheduler. Closing it takes back what waits."""
    if scheduler is None:
        yield from map(call, items)
        return
    turn, early = 0, dict[int, Result]()
    with closing(results_on(scheduler, call, dict(enumerate(items)))) as results:
        for number, result in results:
            early[number] = result
            while turn in early:
                yield early.pop(turn)
                turn += 1


def ranked(asked: tuple[Task, Ranking]) -> SearchResult:
    """The search of a task by a ranking."""
    return rank_plans(*asked)


def searches(
    scheduler: Scheduler | None, asked: Iterable[tuple[Task, Ranking]]
) -> Generator[SearchResult, None, None]:
    """The searches of several questions in turn. Ctrl-C while another process runs one ends them;
    in this process it is the result that says so."""
    with closing(in_turn(scheduler, ranked, asked)) as results, suppress(KeyboardInterrupt):
        yield from results


def _at_address(
    address: str, call: Callable[[Item], Result], items: Mapping[int, Item]
) -> Generator[tuple[int, Result], None, None]:
    """Results of the workers of a Dask cluster; it runs the items of a lost worker again."""
    import logging

    try:
        dask: Any = import_module("distributed")
    except ImportError:
        raise InputError("--scheduler needs Dask: python -m pip install 'plan3d[dask]'") from None
    # What it says of a lost connection is said below.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    try:
        client = dask.Client(address, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(f"--scheduler {address}: cannot be reached ({error})") from None
    with client:
        try:
            client.wait_for_workers(1, timeout=PATIENCE)
            yield from _from_workers(dask, client, call, items)
        except (OSError, dask.CancelledError) as error:
            if isinstance(error, TimeoutError) and client.status == "running":
                why = f"no worker came within {PATIENCE} s"
            else:
                why = "it was lost; rows of a sweep that are done are in its --csv, for --resume"
            raise InputError(f"--scheduler {address}: {why}") from None


def _from_workers(
    dask: Any, client: Any, call: Callable[[Item], Result], items: Mapping[int, Item]
) -> Generator[tuple[int, Result], None, None]:
    """Results of a cluster as they finish; what waits is taken back at the end."""
    futures = {client.submit(call, item, pure=False): i for i, item in items.items()}
    try:
        for future in dask.as_completed(futures, loop=client.loop):
            yield futures[future], future.result()
    finally:
        if client.status == "running":
            client.cancel([future for future in futures if not future.done()])
