"""The command line: parser, streams and exit codes.

Exit codes: 0 ok, 2 usage or bad input, 3 no feasible plan, 4 measurements that cannot be fitted,
70 internal error, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from plan3d.simulator.base.errors import InputError, Plan3dError, did_you_mean

from ..screens.output import INTERRUPTED, Screen, warn
from .arguments.positional import PLACES, placed
from .options.parser import Parser, plan_text, text
from .options.table import OPTIONS, TASK_FILES
from .verbs import VERBS


class _Fields(argparse.Action):
    """Prints what the fields of a plan mean and exits."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        from .catalogue.help import fields_table

        Screen(True).table(fields_table())
        parser.exit()


class _Help(argparse.Action):
    """Prints the short help of a verb and exits."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        from .catalogue.help import verb_page

        print(verb_page(parser.prog.split()[-1]))
        parser.exit()


class _Version(argparse.Action):
    """Prints the version and exits."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        from .. import __version__

        print(f"plan3d {__version__}")
        parser.exit()


def parser(asked: str = "") -> Parser:
    """The parser of one verb with its options, of ALL of them, or of their names alone."""
    top = Parser(
        prog="plan3d",
        description="Performance simulator and plan search for 3-D parallel training.",
        allow_abbrev=False,
    )
    top.add_argument("--version", nargs=0, action=_Version, help="print the version")
    top.add_argument(TRACEBACK, action="store_true", help="show where an internal error is")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    for name in (asked,) if asked in VERBS else VERBS:
        verb = VERBS[name]
        if asked not in (name, ALL):
            verbs.add_parser(name, help=verb.summary, add_help=False)
            continue
        sub = verbs.add_parser(name, help=verb.summary, allow_abbrev=False, add_help=False)
        sub.add_argument("-h", "--help", nargs=0, action=_Help, help="the options in short")
        _fill(sub, name)
    return top


TAKES_ARGUMENTS = ("import", "explain")
"""Verbs that read a script, whose arguments stand after `--`."""
TRACEBACK = "--traceback"
"""Shows where an internal error comes from; before or after the verb."""
ALL = "*"
"""Asks for the options of every verb."""


def _fill(sub: Parser, verb: str) -> None:
    positional = VERBS[verb].positional
    for option in OPTIONS:
        if verb in option.verbs:
            option.add_to(sub)
    if verb == "calibrate":
        VERBS[verb].load().declare(sub)
    if verb in TASK_FILES:
        sub.add_argument("--help-fields", nargs=0, action=_Fields, help="explain plan fields")
    if positional:
        action = sub.add_argument(
            positional.name.lower(),
            nargs="?" if positional.optional else None,
            type=partial(plan_text if positional.name == "PLAN" else text, what=positional.name),
            metavar=positional.name,
            help=positional.help,
        )
        setattr(action, "completes", positional.completes)  # noqa: B010


def main(
    arguments: Sequence[str] | None = None, *, progress: Callable[[int], None] | None = None
) -> int:
    """Run one command and return its exit code; `progress` also hears of plans costed."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    whole = [word for word in words if word != TRACEBACK]
    try:
        code = _run(whole, progress)
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
    except Exception as error:  # the last handler: no mistake of the user ends here
        from .internal_error import INTERNAL, error_line, follows_interrupt

        if follows_interrupt(error):
            warn("interrupted")
            return INTERRUPTED
        warn(error_line(error, traceback=whole != words))
        return INTERNAL
    return code


def _run(arguments: list[str], progress: Callable[[int], None] | None) -> int:
    verb = next((word for word in arguments if not word.startswith("-")), "")
    if verb and verb not in VERBS:
        raise InputError(f"unknown verb {verb!r}{did_you_mean(verb, VERBS)}")
    if verb == "calibrate":
        at = arguments.index(verb)
        return int(VERBS[verb].load().run([*arguments[:at], *arguments[at + 1 :]]))
    script_arguments: list[str] = []
    if verb in TAKES_ARGUMENTS and "--" in arguments:
        at = arguments.index("--")
        arguments, script_arguments = arguments[:at], arguments[at + 1 :]
    try:
        top = parser(verb if arguments[:1] == [verb] else "")
        args = top.parse(arguments, verb, OPTIONS, verb in PLACES)
        args.script_arguments = [text(word, "argument") for word in script_arguments]
    except SystemExit as stop:
        return int(stop.code or 0)
    if args.verb is None:
        raise InputError(f"say what to do: {', '.join(VERBS)}; see plan3d --help")
    if args.verb in PLACES:
        placed(args)
    return int(VERBS[args.verb].load().run(args, progress))


def _silence(stream: Any) -> None:
    """Point a stream that cannot be written at nothing, so that closing it says nothing."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
