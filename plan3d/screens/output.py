"""Output: tables and lines on stdout, progress on stderr, files all or nothing."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from plan3d.simulator.base.documents import SCHEMA
from plan3d.simulator.base.errors import LONGEST_QUESTION, InputError
from plan3d.simulator.base.printable import escape_unprintable, one_line
from plan3d.simulator.base.text_tables import Line, Table, layout
from plan3d.simulator.base.units import is_whole

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""
NARROW = 80
"""Columns that no line is wider than, unless all details are asked for."""
PIPE_WIDTH = 100
"""Columns at which sentences of all details wrap where there is no terminal to ask."""
NAMES = 10
"""Columns of the names of items."""
UNBROKEN = "\N{NO-BREAK SPACE}%"
CONTINUED = 4
"""Columns by which a continued command is indented."""
BOLD, PLAIN = "\x1b[1m", "\x1b[0m"
Progress = Callable[[int], None]
"""Hears of plans costed so far."""
PATIENCE = 1.0
"""Seconds before a progress bar appears."""


def _at_commas(word: str, most: int) -> str:
    """A word that is longer than a line in parts that are not, cut behind commas where it has any:
    a list of layers of stages."""
    parts = [""]
    for piece in word.replace(",", ", ").split(" ") if len(word) > most else [word]:
        if parts[-1] and len(parts[-1]) + len(piece) > most:
            parts.append("")
        parts[-1] += piece
    return " ".join(parts)


class Screen:
    """Standard output: at most NARROW columns; where all `details` are asked for, sentences as wide
    as the terminal, and tables too, which in a pipe are whole."""

    def __init__(self, details: bool = False) -> None:
        self.details = details
        self.terminal = sys.stdout.isatty()
        self.width = _width(PIPE_WIDTH) if details else min(_width(NARROW), NARROW)
        has_colours = os.environ.get("TERM", "") not in ("", "dumb")
        self.colours = self.terminal and not os.environ.get("NO_COLOR") and has_colours

    def table(self, table: Table) -> None:
        """One table and an empty line."""
        whole = self.details and not self.terminal
        lines = layout(table, None if whole else self.width)
        rule = "\u2500" * max(len(line.text) for line in lines)
        for line, after in zip(lines, (*lines[1:], Line("")), strict=True):
            bold = self.colours and (line.is_header or line.is_highlighted)
            print(f"{BOLD}{line.text}{PLAIN}" if bold else line.text)
            if self.terminal and line.is_header and not after.is_header:
                print(rule)
        print()

    def lines(self, texts: list[str], bullet: str = "") -> None:
        """Sentences wrapped to the width, each on its own lines."""
        for text in texts:
            wrapped = self._wrap(text, bullet, " " * len(bullet))
            print("\n".join(wrapped).replace(UNBROKEN, " %"))

    def items(self, named: list[tuple[str, str]]) -> None:
        """What is said under short names, the names in a column of their own."""
        for name, text in named:
            self.lines([text], name.ljust(NAMES))

    def height(self, named: list[tuple[str, str]]) -> int:
        """Lines that items take."""
        return sum(len(self._wrap(text, " " * NAMES, " " * NAMES)) for _, text in named)

    def _wrap(self, text: str, first: str, then: str) -> list[str]:
        whole = escape_unprintable(" ".join(text.splitlines()))
        if self.details:
            given = whole
        else:
            most = self.width - len(then)
            given = " ".join(_at_commas(word, most) for word in whole.split(" "))
            given = given.replace(" %", UNBROKEN)
        return textwrap.wrap(
            given,
            self.width,
            initial_indent=first,
            subsequent_indent=then,
            break_long_words=not self.details,
            break_on_hyphens=False,
        )

    def section(self, title: str, texts: list[str]) -> None:
        """A heading and its sentences as a list, then an empty line."""
        if texts:
            print(title)
            self.lines(texts, "- ")
            print()

    def command(self, words: list[str], name: str = "") -> None:
        """A command to copy: whole where all details are asked for, else on lines that continue."""
        quoted = [shlex.quote(word) for word in words]
        if self.details:
            print(f"{name}: {' '.join(quoted)}")
            return
        lines = _filled([name.ljust(NAMES) + quoted[0], *_pairs(quoted[1:])], self.width)
        print(f" \\\n{' ' * CONTINUED}".join(lines))


def _pairs(words: list[str]) -> list[str]:
    """An option and its value as one."""
    out: list[str] = []
    for word in words:
        if out and out[-1].startswith("--") and " " not in out[-1] and not word.startswith("--"):
            out[-1] += f" {word}"
        else:
            out.append(word)
    return out


def _filled(words: list[str], width: int) -> list[str]:
    """Words of a command on lines; white space inside a word, of a plan, may end one too."""
    lines, width_left = words[:1], width - CONTINUED - len(" \\")
    for word in words[1:]:
        if len(lines[-1]) + 1 + len(word) <= width_left:
            lines[-1] += f" {word}"
        elif len(word) <= width_left:
            lines.append(word)
        else:
            lines.append("\n".join(textwrap.wrap(word, width_left, break_long_words=False)))
    return lines


def _width(in_pipe: int) -> int:
    """COLUMNS, else the terminal's width, else that of sentences in a pipe."""
    given = os.environ.get("COLUMNS", "")
    if is_whole(given) and int(given) > 0:
        return max(int(given), 20)
    with contextlib.suppress(OSError, ValueError):
        return max(os.get_terminal_size(sys.stdout.fileno()).columns, 20)
    return in_pipe


class ProgressBar:
    """What is done so far, on stderr: only in a terminal, and only once it takes a while.

    Call it with the count; `also`, when given, is called with the same. A count that starts again,
    as that of the next of several searches does, is added to what was done before.
    """

    def __init__(
        self,
        quiet: bool,
        also: Callable[[int], None] | None = None,
        what: str = "plans costed",
        total: int | None = None,
    ) -> None:
        self.what, self.total = what, total
        self.began = time.perf_counter()
        self.shown = not quiet and sys.stderr.isatty()
        self.also = also
        self.before = self.last = 0
        self.bar: Any = None
        self.task: Any = None

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self.bar:
            self.bar.stop()

    def __call__(self, costed: int) -> None:
        if self.also:
            self.also(costed)
        self.before += self.last if costed < self.last else 0
        self.last = costed
        if self.shown and not self.bar and time.perf_counter() - self.began > PATIENCE:
            self._start()
        if self.bar:
            self.bar.update(self.task, completed=self.total_done, costed=f"{self.total_done:,}")

    @property
    def total_done(self) -> int:
        """What was counted by all searches; it never falls."""
        return self.before + self.last

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.fields[costed]} " + self.what), BarColumn())
        console = Console(stderr=True)
        self.bar = Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
        self.task = self.bar.add_task("search", total=self.total, costed="0")
        self.bar.start()


def print_json(record: dict[str, Any]) -> None:
    """One JSON object on stdout, with the version of its schema; NaN and infinity are bugs."""
    print(json.dumps({"schema": SCHEMA, **record}, allow_nan=False, indent=1))


def warn(text: str, quiet: bool = False) -> None:
    """One line on stderr."""
    if not quiet:
        print(f"plan3d: {one_line(text, LONGEST_QUESTION)}", file=sys.stderr)


def check_writable(name: str, option: str) -> None:
    """Raise InputError unless write_whole could write this file; leaves nothing behind.

    A pipe is not tried: its reader would see the end of what it waits for.
    """
    try:
        path, draft = _paths(name)
        if draft == path:
            return
        if path.exists():
            with path.open("a", encoding="utf-8"):
                pass
        with draft.open("x", encoding="utf-8"):
            pass
        draft.unlink()
    except (OSError, ValueError) as error:
        raise _cannot_write(name, option, error) from None


PICTURES = ("png", "svg", "pdf")


def picture_form(name: str | None, option: str = "--plot") -> str:
    """The format that a picture's name asks for, '' for none; InputError unless it can be
    written."""
    if name is None:
        return ""
    form = name.rpartition(".")[2].lower()
    if form not in PICTURES:
        raise InputError(f"{option} {name}: must end in .{', .'.join(PICTURES)}")
    check_writable(name, option)
    return form


def write_whole(name: str, option: str, content: str | bytes) -> None:
    """Write a file all or nothing: a draft beside it replaces it once it is complete.

    What is no regular file (a pipe, /dev/stdout) is written directly.
    """
    try:
        path, draft = _paths(name)
        try:
            draft.write_bytes(content.encode() if isinstance(content, str) else content)
            if draft != path:
                if path.exists():
                    shutil.copymode(path, draft)
                os.replace(draft, path)
        finally:
            if draft != path:
                draft.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        raise _cannot_write(name, option, error) from None


def _paths(name: str) -> tuple[Path, Path]:
    given = Path(name)
    if given.exists() and not given.is_file() and not given.is_dir():
        return given, given
    path = given.resolve()
    return path, path.with_name(f".{path.name}.{os.getpid()}.tmp")


def _cannot_write(name: str, option: str, error: Exception) -> InputError:
    why = getattr(error, "strerror", None) or str(error)
    return InputError(f"{option} {name}: cannot be written ({why})")
