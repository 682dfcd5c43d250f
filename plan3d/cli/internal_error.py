"""Internal errors: one line that can be reported, and the rest on request."""

from __future__ import annotations

import sys
import traceback as tracebacks
from pathlib import Path

from plan3d.simulator.base.printable import one_line

INTERNAL = 70
"""Exit code, EX_SOFTWARE of sysexits.h."""
LONGEST = 200
"""Characters of what went wrong."""


def error_line(error: Exception, *, traceback: bool) -> str:
    """The line about an error that nobody expected; its traceback goes to stderr where asked."""
    if traceback:
        tracebacks.print_exception(error, file=sys.stderr)
    what = one_line(f"{type(error).__name__}: {error}".rstrip(": "), LONGEST)
    return (
        f"internal error ({what}; {_place(error)}): please report this line with the command and "
        f"the answer of plan3d --version{'' if traceback else '; --traceback shows the rest'}"
    )


def follows_interrupt(error: BaseException | None) -> bool:
    """Whether an error was raised because of an interrupt, as by an import that it broke."""
    if error is None or isinstance(error, KeyboardInterrupt):
        return error is not None
    return follows_interrupt(error.__cause__ or error.__context__)


def _place(error: Exception) -> str:
    """File and line of the innermost call inside plan3d."""
    frames = tracebacks.extract_tb(error.__traceback__)
    root = Path(__file__).parents[2]
    inside = [f for f in frames if {root.name, "simulator", "search"} & {*Path(f.filename).parts}]
    last = (inside or frames)[-1]
    return f"{'/'.join(Path(last.filename).parts[-2:])} line {last.lineno}"
