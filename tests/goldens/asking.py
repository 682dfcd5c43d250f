"""Questions of questions.toml, put to the command line of plan3d, and the answers that are kept.

An answer holds, for every command, its exit code, standard output and standard error, and the files
that the commands wrote. Text that is a JSON object is kept as that object, other text as its lines.

Catalogues, launch files and messages about mistakes are held exactly. Of predictions words and
layout are held: numbers in text are masked, those in JSON have four digits (differences.py says how
they are compared), and what depends on how a search went is masked.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

FOLDER = Path(__file__).parent
ANSWERS = FOLDER / "answers"
REPOSITORY = FOLDER.parents[1]
TABLES = tomllib.loads((FOLDER / "questions.toml").read_text(encoding="utf-8"))
ENVIRONMENT = {"COLUMNS": "100", "LINES": "40", "NO_COLOR": "1", "TERM": "xterm"}
"""Variables that decide how output is laid out; UNSET are the others."""
WIDE = "1000"
"""Columns where numbers are masked: where a sentence wraps follows from them."""
UNSET = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")

MASK = "#"
EXACT = re.compile(
    r"(terminal )?(clusters|export|help|models|software|systems)\b"
    r"|(?!.*--estimate\b)import |search --help-fields"
)
"""Commands whose answers follow from no prediction; so do messages about mistakes."""
MISTAKE = 2
"""Exit code of a mistake of the user's."""
VARYING_LEAVES = re.compile(
    r"plan3d|seconds_searching|optimum\.seconds|backends\[\d+\]\.(seconds|seeds_.*|evaluations.*)"
    r"|(.*\.)?(evaluated|feasible|changes|ties|family_plans|removed\.memory.*|pruned\..*)"
    r"|(.*\.)?(worst_rank|longest_on_rank|assumptions\[\d+\])"
    r"|profile\.(numbers|measured|given)|(nearest|fastest)_run\..*"
)
"""Places in a JSON object that hold the version, how long something took or how a search went,
what the published runs say, and sentences that screens hold."""
DIGITS, EXACT_DIGITS = 4, 9
"""Significant digits of a number in JSON, and of one that is held exactly: as text."""
UNIT = r"(?:[kKMGTP]i?[Bb]?(?:/s)?|[nuµm]?s|B|x|h)?"
NUMBER = re.compile(
    rf"(?<![\w.])(?:(?<!\w)[-+])?(?:\d{{1,3}}(?:,\d{{3}})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?{UNIT}(?!\w|\.\d)"
)
"""A number in text, and the unit that is glued to it; no part of a name."""
RULE = re.compile(r"([^\w\s#])\1{2,}")
GAP = re.compile(r"(?<=\S) {2,}")
VARYING_TEXT = (
    (re.compile(r"\d{4}-\d\d-\d\d( by plan3d)"), r"DATE\1"),
    (re.compile(r"(plan3d calibrate fit, )\d{4}-\d\d-\d\d"), r"\1DATE"),
)
"""The day in what is held exactly."""


def main(words: list[str]) -> int:
    """Run the command `plan3d` in this process: the only place that knows its entrance."""
    from plan3d.__main__ import main as run

    given = sys.argv
    sys.argv = ["plan3d", *words]
    try:
        return run()
    finally:
        sys.argv = given


class Terminal(io.StringIO):
    """Text that is written as to a terminal."""

    def isatty(self) -> bool:
        """True, which makes plan3d draw ruled tables."""
        return True


def questions() -> dict[str, list[str]]:
    """The commands of every question, by VERB/NAME."""
    return {
        f"{verb}/{name}": [
            " ".join(Template(line).substitute(TABLES["words"]).split())
            for line in ([lines] if isinstance(lines, str) else lines)
        ]
        for verb, named in TABLES["questions"].items()
        for name, lines in named.items()
    }


def place(name: str) -> Path:
    """The file of the answer to a question."""
    return ANSWERS / f"{name}.json"


def kept(name: str) -> Any:
    """The answer that is kept."""
    return json.loads(place(name).read_text(encoding="utf-8"))


def file_text(answer: Any) -> str:
    """An answer as its file holds it."""
    return json.dumps(answer, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def answer(commands: list[str]) -> Any:
    """What the commands of a question give, one after the other in a folder of their own."""
    with tempfile.TemporaryDirectory() as name, surroundings(name):
        folder = Path(name)
        given = put_inputs(folder, commands)
        results = [run(command) for command in commands]
        found = {str(path.relative_to(folder)): path for path in folder.rglob("*")}
        written = {name: path for name, path in sorted(found.items()) if is_new(path, name, given)}
        texts = {name: path.read_text(encoding="utf-8") for name, path in written.items()}
    exact = all(map(is_exact, commands))
    return {
        "commands": results,
        "files": {name: content(text, exact, name) for name, text in texts.items()},
    }


def is_exact(command: str) -> bool:
    """Whether the answer to a command follows from no prediction."""
    return EXACT.match(command) is not None


def is_new(path: Path, name: str, given: set[str]) -> bool:
    """Whether a file is none that was put there."""
    return path.is_file() and name.partition("/")[0] not in given


@contextlib.contextmanager
def surroundings(folder: str) -> Iterator[None]:
    """The folder and the environment in which questions are asked."""
    before = dict(os.environ)
    os.environ.update(ENVIRONMENT)
    for name in UNSET:
        os.environ.pop(name, None)
    try:
        with contextlib.chdir(folder):
            yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def put_inputs(folder: Path, commands: list[str]) -> set[str]:
    """Put the inputs that the commands name into the folder; their names."""
    inputs, files = TABLES["inputs"], TABLES["files"]
    words = {word.partition("/")[0] for command in commands for word in shlex.split(command)}
    for name in words & inputs.keys():
        (folder / name).symlink_to(REPOSITORY / inputs[name])
    for name in words & files.keys():
        (folder / name).write_text(files[name], encoding="utf-8")
    return {name for name in words if name in inputs or name in files}


def run(command: str) -> dict[str, Any]:
    """One command: its exit code, and what it writes to its streams."""
    words, _, file = command.partition(" > ")
    terminal = words.startswith("terminal ")
    os.environ["COLUMNS"] = ENVIRONMENT["COLUMNS"] if terminal or is_exact(command) else WIDE
    out, err = Terminal() if terminal else io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(shlex.split(words.removeprefix("terminal ")))
    if file:
        Path(file).write_text(out.getvalue(), encoding="utf-8")
    exact = code == MISTAKE or is_exact(command)
    return {
        "command": command,
        "exit_code": code,
        "stdout": [] if file else content(out.getvalue(), exact),
        "stderr": content(err.getvalue(), exact),
    }


def content(text: str, exact: bool, file: str = "") -> Any:
    """What is held of a text: the JSON object that it is, else its lines."""
    with contextlib.suppress(ValueError):
        found = json.loads(text)
        if isinstance(found, dict):
            return of_json(found, exact)
    for pattern, instead in VARYING_TEXT:
        text = pattern.sub(instead, text)
    if exact:
        return text.splitlines()
    return [masked_row(row) if file.endswith(".csv") else masked(row) for row in text.splitlines()]


def masked(line: str) -> str:
    """A line of text without its numbers, and without the widths that follow from them."""
    line = GAP.sub("  ", RULE.sub(r"\1\1\1", NUMBER.sub(MASK, line))).rstrip()
    return line.lstrip() if line.lstrip().startswith(MASK) else line


def masked_row(row: str) -> str:
    """A row of a CSV without its numbers and keys (hashes)."""
    row = re.sub(r"^[0-9a-f]{16},", f"{MASK},", row)
    return ",".join(masked(cell) for cell in row.split(","))


def of_json(node: Any, exact: bool, path: str = "") -> Any:
    """What is held of a JSON object."""
    if VARYING_LEAVES.fullmatch(path) and not isinstance(node, (dict, list)):
        return MASK
    if isinstance(node, dict):
        return {k: of_json(value, exact, f"{path}.{k}".lstrip(".")) for k, value in node.items()}
    if isinstance(node, list):
        return [of_json(value, exact, f"{path}[{i}]") for i, value in enumerate(node)]
    if isinstance(node, float):
        return f"{node:.{EXACT_DIGITS}g}" if exact else float(f"{node:.{DIGITS}g}")
    if exact:
        return node
    return masked(node) if isinstance(node, str) and " " in node else node
