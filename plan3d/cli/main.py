"""The command line: parser, streams and exit codes; cli_verbs does what a verb asks.

Exit codes: 0 ok, 2 usage or bad input, 3 no feasible plan, 4 measurements that cannot be fitted,
130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from plan3d.simulator.base.errors import InputError, Plan3dError, did_you_mean

from .arguments.options import OPTIONS
from .arguments.parser import Parser
from .arguments.task_options import ASKING
from .evidence import calibrate
from .files import export, import_
from .plans import explain, timeline
from .screen.output import INTERRUPTED, Screen, warn
from .whatif import compare, sweep

_SEARCH = """Search the plans of a model on a cluster and rank the best that fit.

  plan3d search --model gpt3-175b --cluster a100-80gb-sxm --gpus 1024 --global-batch 1536"""
_ESTIMATE = """Predict time and memory of one plan, and say where they go.

  plan3d estimate --model llama-7b --cluster h100-sxm --gpus 64 --global-batch 512 \\
      --plan "tp=2 pp=2 micro_batch=2 recompute=selective" """
_VALIDATE = """Predict published measured runs and say how far off the predictions are.

  plan3d validate --source megatron_sc21 --plot sc21.png"""
_SYSTEMS = """List the systems that --system knows, or show what one holds.

  plan3d systems gpipe
  plan3d compare --systems all --model gpt3-6.7b --cluster a100-80gb-sxm --gpus 64"""
VERBS = {
    "search": ("rank the plans of a model on a cluster", _SEARCH),
    "estimate": ("time and memory of one plan", _ESTIMATE),
    "explain": ("why a plan is as fast as it is, and what to change", explain.ABOUT),
    "sweep": ("the same question over one or two numbers", sweep.ABOUT),
    "compare": ("search backends against the optimum", compare.ABOUT),
    "timeline": ("one plan simulated event by event: trace and picture", timeline.ABOUT),
    "export": ("write a plan as a launch file of a framework", export.ABOUT),
    "import": ("read a launch file of a framework as task and plan", import_.ABOUT),
    "validate": ("errors of the predictions on published runs", _VALIDATE),
    "calibrate": (calibrate.SUMMARY, calibrate.ABOUT),
    "models": ("list known models, or show one", "List the presets, or show one model."),
    "clusters": ("list hardware profiles, or show one", "List the profiles, or show one."),
    "systems": ("list training systems, or show one", _SYSTEMS),
}

POSITIONAL = {
    "models": ("NAME", "?", "preset or config.json", "model"),
    "clusters": ("NAME", "?", "profile or TOML file", "cluster"),
    "systems": ("NAME", "?", "a system that --system knows", "system"),
    "export": ("PLAN", None, "'tp=8 pp=8 ...', a file, or result.json#3", "file"),
    "import": ("FILE", None, "launch script or configuration", "file"),
}
"""The argument without a flag: its name, how many, its help, and what a shell completes."""
RUN: dict[str, Callable[[argparse.Namespace], int]] = {
    "explain": explain.explain,
    "sweep": sweep.sweep,
    "timeline": timeline.timeline,
    "export": export.export,
    "import": import_.read,
}
"""Verbs with a room of their own."""


class _Completion(argparse.Action):
    """Prints a completion script and exits."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        import shtab

        from plan3d.search.systems.systems import SYSTEMS
        from plan3d.simulator.hardware.profile_file import profile_names
        from plan3d.simulator.hardware.software_stack import SOFTWARE
        from plan3d.simulator.workload.presets import preset_names

        names: dict[str, Iterable[str]] = {"model": preset_names(), "cluster": profile_names()}
        names |= {"software": SOFTWARE, "system": SYSTEMS}
        verbs = parser._subparsers._group_actions[0].choices
        for action in (action for verb in verbs.values() for action in verb._actions):
            kind = getattr(action, "completes", "")
            if kind in names:
                action.choices = list(names[kind])
            elif kind == "file":
                action.complete = shtab.FILE
        print(shtab.complete(parser, values))
        parser.exit()


class _Fields(argparse.Action):
    """Prints what the fields of a plan mean and exits."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        from plan3d.simulator.base.text_tables import Table
        from plan3d.simulator.plan.plan import HELP

        words = frozenset({0, 1})
        Screen().table(Table(headers=("field", "meaning"), rows=tuple(HELP.items()), words=words))
        parser.exit()


class _Version(argparse.Action):
    """Prints the version and exits."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        from .. import __version__

        print(f"plan3d {__version__}")
        parser.exit()


def parser() -> Parser:
    """The parser of every verb."""
    top = Parser(
        prog="plan3d",
        description="Performance simulator and plan search for 3-D parallel training.",
        allow_abbrev=False,
    )
    top.add_argument("--version", nargs=0, action=_Version, help="print the version")
    top.add_argument(
        "--print-completion",
        action=_Completion,
        metavar="SHELL",
        choices=("bash", "zsh", "tcsh"),
        help="print a completion script for bash, zsh or tcsh",
    )
    verbs = top.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    for verb, (short, long) in VERBS.items():
        layout = argparse.RawDescriptionHelpFormatter
        sub = verbs.add_parser(
            verb, help=short, description=long, allow_abbrev=False, formatter_class=layout
        )
        _fill(sub, verb)
    return top


def _fill(sub: Parser, verb: str) -> None:
    for option in OPTIONS:
        if verb in option.verbs:
            option.add_to(sub)
    if verb == "calibrate":
        calibrate.declare(sub)
    if verb in ASKING:
        sub.add_argument("--help-fields", nargs=0, action=_Fields, help="explain plan fields")
    if verb in POSITIONAL:
        name, many, what, kind = POSITIONAL[verb]
        action = sub.add_argument(name.lower(), nargs=many, metavar=name, help=what)
        setattr(action, "completes", kind)  # noqa: B010


def main(
    arguments: Sequence[str] | None = None, *, progress: Callable[[int], None] | None = None
) -> int:
    """Run one command and return its exit code; `progress` also hears of plans costed."""
    try:
        code = _run(sys.argv[1:] if arguments is None else list(arguments), progress)
        sys.stdout.flush()
    except BrokenPipeError:
        _silence(sys.stdout)
        return 0
    except Plan3dError as error:
        warn(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        warn("interrupted")
        return INTERRUPTED
    except OSError as error:
        _silence(sys.stdout)
        warn(f"cannot write the answer ({error.strerror})")
        return InputError.exit_code
    return code


def _run(arguments: list[str], progress: Callable[[int], None] | None) -> int:
    verb = next((word for word in arguments if not word.startswith("-")), "")
    if arguments[:1] == ["--print-completion"]:
        verb = ""
    if verb and verb not in VERBS:
        raise InputError(f"unknown verb {verb!r}{did_you_mean(verb, VERBS)}")
    if verb == "calibrate":
        at = arguments.index(verb)
        return calibrate.run([*arguments[:at], *arguments[at + 1 :]])
    try:
        args = parser().parse(arguments, verb, OPTIONS)
    except SystemExit as stop:
        return int(stop.code or 0)
    if args.verb is None:
        raise InputError(f"say what to do: {', '.join(VERBS)}; see plan3d --help")
    if args.verb == "validate":
        from .evidence import validate

        return validate.validate(args)
    if args.verb in RUN:
        return RUN[args.verb](args)
    if args.verb == "compare":
        return compare.compare(args, progress)
    from .plans import search

    if args.verb == "search":
        return search.search(args, progress)
    return search.estimate(args) if args.verb == "estimate" else search.catalogue(args)


def _silence(stream: Any) -> None:
    """Point a stream that cannot be written at nothing, so that closing it says nothing."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
