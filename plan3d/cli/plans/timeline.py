"""The verb `timeline`: one plan simulated event by event, as a table, a trace and a picture."""

from __future__ import annotations

import argparse
import json

from ...screens.output import (
    Progress,
    Screen,
    check_writable,
    picture_form,
    print_json,
    write_whole,
)

ABOUT = """Simulate the pipeline of one plan, operation by operation.

  plan3d timeline llama-7b h100-sxm 64 --plan "pp=8 schedule=zb-h1"
  plan3d timeline llama-7b h100-sxm 64 --plan "pp=8" --plot step.png
  plan3d timeline llama-7b h100-sxm 64 --plan "pp=8" --trace step.json

Open the trace at https://ui.perfetto.dev."""


def run(args: argparse.Namespace, progress: Progress | None = None) -> int:
    """Simulate one plan and write what was asked for."""
    form = picture_form(args.plot)
    if args.trace is not None:
        check_writable(args.trace, "--trace")
    from plan3d.simulator.step.plan_timeline import timeline_of

    from ...screens import timeline as screens
    from ..arguments import plan_arguments, task_arguments

    x = timeline_of(task_arguments.task_of(args), plan_arguments.plan_of(args))
    if args.trace is not None:
        from plan3d.simulator.reporting.trace import trace

        text = json.dumps(trace(x), allow_nan=False, separators=(",", ":"))
        write_whole(args.trace, "--trace", text)
    if args.plot is not None:
        from plan3d.simulator.reporting.gantt import gantt_picture

        write_whole(args.plot, "--plot", gantt_picture(x, form))
    if args.json:
        print_json(screens.timeline_record(x, chart=args.verbose))
    else:
        screens.print_timeline(Screen(args.verbose), x)
    return 0
