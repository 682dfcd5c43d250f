"""The verb `sweep`: the same question over one or two numbers, scaling, what-if and cost."""

from __future__ import annotations

import argparse

from plan3d.simulator.base.errors import NoFeasiblePlanError

from ...screens.output import (
    INTERRUPTED,
    Progress,
    ProgressBar,
    Screen,
    check_writable,
    picture_form,
    print_json,
    warn,
    write_whole,
)
from ..arguments import sweep_points

ABOUT = """Ask the same question over one or two numbers: scaling, what-if, cost.
F of --over: an option of the task (gpus, sequence, model ...) or a plan field.

  plan3d sweep llama-3.1-70b h100-sxm --over gpus=128,256,512 --tokens 2T
  plan3d sweep llama-7b h100-sxm 64 --over tp=1,2,4 --over zero=1,3
  plan3d sweep llama-7b h100-sxm 64 --over inter-node-bandwidth=25GB/s,50GB/s"""


def run(args: argparse.Namespace, progress: Progress | None = None) -> int:
    """Run all points and print the table; the exit code says whether any has a plan."""
    from plan3d.search.whatif.sweep_file import OK, own_file

    from ...answers.sweep import SweepRequest, run_sweep
    from ...screens import sweep as screens

    sweep_points.check(args)
    form = picture_form(args.plot)
    axes = sweep_points.axes_of(args)
    points = sweep_points.points_of(args, axes)
    if args.csv is not None:
        own_file(args.csv)
        check_writable(args.csv, "--csv")
    with ProgressBar(args.quiet, None, f"of {len(points)} points", len(points)) as bar:
        done = run_sweep(
            SweepRequest(
                points=points,
                varied=[axis.name for axis in axes],
                scheduler=args.scheduler,
                resume=args.csv,
                anew=not args.resume,
                progress=bar,
            )
        )
    view = screens.SweepView(
        axes=axes,
        plan=args.plan,
        weak=bool(args.weak),
        energy=args.tokens is not None,
        machine=", ".join(str(text) for text in (args.model, args.cluster) if text is not None),
    )
    drawable = any(row["status"] == OK for row in done.rows)
    if args.plot is not None and drawable:
        write_whole(args.plot, "--plot", screens.sweep_picture(done.rows, view, form))
    elif args.plot is not None:
        warn(f"--plot {args.plot}: not written, no point has a plan", args.quiet)
    if args.json:
        print_json(screens.sweep_record(done, view))
    else:
        screens.print_sweep(Screen(args.verbose), done, view, points[0].task)
    if not done.complete:
        warn(f"interrupted: {len(done.rows)} of {len(points)} points are done", args.quiet)
        return INTERRUPTED
    return 0 if drawable else NoFeasiblePlanError.exit_code
