"""`search --second-pool`: a pipeline over two kinds of machines, as a table and as JSON."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from plan3d.simulator.base.errors import InputError, NoFeasiblePlanError

from ...screens.output import INTERRUPTED, Progress, ProgressBar, Screen, print_json, warn
from ..arguments import task_arguments

if TYPE_CHECKING:
    pass

SUPPORTED_OPTIONS = (
    *("verb", "words", "model", "cluster", "gpus", "nodes", "sequence", "software", "second_pool"),
    *("global_batch", "global_batch_tokens", "memory_headroom", "time_limit", "fix", "choose"),
    *("precision", "optimizer", "json", "quiet", "verbose", "traceback", "backend", "framework"),
)
"""Options that change the answer; others are refused."""
BACKEND = "dynamic-programming"


def run(args: argparse.Namespace, progress: Progress | None = None) -> int:
    """Print the best plan that has stages in both pools."""
    _check(args)
    from ...answers.two_pools import PoolsRequest, search_two_pools
    from ...screens import two_pools as screens

    choose = task_arguments.choices_of(args)
    task = task_arguments.task_of(args)
    tasks = task, replace(task, cluster=task_arguments.second_pool(args.second_pool))
    with ProgressBar(args.quiet, progress) as bar:
        answer = search_two_pools(
            PoolsRequest(
                tasks=tasks,
                choose=choose,
                headroom=args.memory_headroom,
                time_limit=args.time_limit,
                framework=args.framework,
                model=args.model,
                software=args.software,
                progress=bar,
            )
        )
    found = answer.result
    if args.json:
        print_json(screens.pools_record(answer))
    else:
        screens.print_pools(Screen(args.verbose), answer)
    if found.interrupted:
        warn("interrupted: the best so far", args.quiet)
        return INTERRUPTED
    fits = found.plan is not None or min(found.alone_seconds) < float("inf")
    return 0 if fits else NoFeasiblePlanError.exit_code


def _check(args: argparse.Namespace) -> None:
    """Refuse what a search of two pools does not take."""
    given = [name for name, value in vars(args).items() if value not in (None, False, [])]
    other = next((name for name in given if name not in SUPPORTED_OPTIONS), None)
    if other is not None:
        raise InputError(f"--{other.replace('_', '-')} has no effect with --second-pool")
    if args.backend not in (None, BACKEND):
        raise InputError(
            f"--second-pool is searched by {BACKEND}, not by the {args.backend} backend"
        )
    from ...launch_files.pools import TAKES_LAYERS

    if args.framework not in (None, *TAKES_LAYERS):
        raise InputError(
            f"--second-pool goes with no --framework {args.framework}, which cuts stages itself; "
            f"nearest: {', '.join(TAKES_LAYERS)}"
        )
    if args.global_batch is None and args.global_batch_tokens is None:
        raise InputError("--second-pool needs --global-batch: the pools share it")
