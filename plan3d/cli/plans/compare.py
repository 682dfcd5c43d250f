"""The verb `compare`: search backends beside each other, or training systems."""

from __future__ import annotations

import argparse

from plan3d.search.systems.systems import SYSTEMS, System, system
from plan3d.simulator.base.errors import InputError, NoFeasiblePlanError

from ...screens.output import (
    INTERRUPTED,
    Progress,
    ProgressBar,
    Screen,
    picture_form,
    print_json,
    warn,
    write_whole,
)
from ..arguments import task_arguments

ABOUT = """Run search backends on one task against the optimum, which exhaustion
certifies; with --space staged a dynamic program does, for a set that has all
these plans and more. Or run training systems against one device.

  plan3d compare gpt3-6.7b a100-80gb-sxm 64 --systems all
  plan3d compare llama-3.1-70b h100-sxm 256 --seeds 10 --plot regret.png
  plan3d compare llama-3.1-8b h100-sxm 32 --global-batch 64 --space staged"""

OF_SYSTEMS = ("accuracy", "gradient_noise")
"""Options that a comparison of backends would not use."""
OF_BACKENDS = ("backends", "budget", "seeds", "space")
"""Options of a comparison of backends."""


def run(args: argparse.Namespace, progress: Progress | None = None) -> int:
    """Run the backends, or search the systems, and print what they found."""
    return _backends(args, progress) if args.systems is None else _systems(args, progress)


def _backends(args: argparse.Namespace, progress: Progress | None) -> int:
    for name in OF_SYSTEMS:
        if getattr(args, name) is not None:
            flag = name.replace("_", "-")
            raise InputError(f"--{flag} has no effect on backends; it goes with --systems")
    from plan3d.search.whatif.backend_benchmark import BackendsRequest

    from ...answers.compare import benchmark_backends
    from ...screens import compare

    names = None if args.backends is None else [n.strip() for n in args.backends.split(",")]
    if names is not None and len(set(names)) < len(names):
        raise InputError(f"--backends {args.backends}: names a backend twice")
    stated = {
        "backends": names,
        "space": args.space,
        "choose": task_arguments.choices_of(args),
        "headroom": args.memory_headroom,
        "budget": args.budget,
        "seeds": args.seeds,
        "scheduler": args.scheduler,
    }
    stated = {name: value for name, value in stated.items() if value is not None}
    task, form = task_arguments.task_of(args), picture_form(args.plot)
    with ProgressBar(args.quiet, progress) as bar:
        race = benchmark_backends(task, BackendsRequest(**stated, progress=bar))
    if args.plot is not None and race.entries:
        from plan3d.search.whatif.pictures import race_picture

        write_whole(args.plot, "--plot", race_picture(race, form))
    if args.json:
        print_json(compare.backends_record(race))
    else:
        compare.print_backends(Screen(args.verbose), race)
    if race.complete:
        return 0
    warn("interrupted: the backends that came to their end", args.quiet)
    return INTERRUPTED


def _systems(args: argparse.Namespace, progress: Progress | None) -> int:
    for name in OF_BACKENDS:
        if getattr(args, name) is not None:
            raise InputError(f"--{name} has no effect with --systems: no backends are compared")
    from plan3d.search.whatif.compare_systems import SystemsRequest

    from ...answers.compare import benchmark_systems
    from ...screens import compare

    choose, task = task_arguments.choices_of(args), task_arguments.task_of(args)
    systems, free = _named_systems(args.systems), args.memory_headroom
    form = picture_form(args.plot)
    with ProgressBar(args.quiet, progress) as bar:
        request = SystemsRequest(
            systems=systems,
            choose=choose,
            headroom=free,
            scheduler=args.scheduler,
            progress=bar,
        )
        found = benchmark_systems(task, request)
    if args.plot is not None:
        from plan3d.search.whatif.pictures import systems_page
        from plan3d.simulator.reporting.palette import image_bytes

        write_whole(args.plot, "--plot", image_bytes(systems_page(found), form))
    if args.json:
        print_json(compare.systems_record(found))
    else:
        compare.print_systems(Screen(args.verbose), found)
    if not found.complete:
        warn("interrupted: the systems that came to their end", args.quiet)
        return INTERRUPTED
    return 0 if any(entry.best for entry in found.entries) else NoFeasiblePlanError.exit_code


def _named_systems(text: str) -> list[System]:
    if text == "all":
        return list(SYSTEMS.values())
    named = [system(name.strip()) for name in text.split(",")]
    if len({s.name for s in named}) < len(named):
        raise InputError(f"--systems {text}: names a system twice")
    return named
