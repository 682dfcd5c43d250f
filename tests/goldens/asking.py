"""Questions of questions.toml, put to the command line of plan3d, and the answers that are kept.

An answer holds, for every command, its exit code, standard output and standard error, and the files
that the commands wrote. Text that is a JSON object is kept as that object, other text as its lines;
what varies from day to day and from machine to machine is masked.
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
TOLERANCES: dict[str, float] = TABLES["tolerances"]
ENVIRONMENT = {"COLUMNS": "100", "LINES": "40", "NO_COLOR": "1", "TERM": "xterm"}
"""Variables that decide how output is laid out; UNSET are the others."""
UNSET = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")

MASK = "varies"
VARYING_LEAVES = re.compile(r"plan3d|seconds_searching|optimum\.seconds|backends\[\d+\]\.seconds")
"""Places in a JSON object that hold the version, or how long something took."""
BACKENDS = (
    *("exhaustive", "dynamic-programming", "random", "annealing", "spsa", "cma-es"),
    *("reinforcement-learning", "pretrained-policy"),
)
VARYING_TEXT = (
    (re.compile(r"((?:step-time|memory|cost|time-to-accuracy),\s+)\d\.\d\d s"), r"\1_.__ s"),
    (re.compile(rf"(?m)^((?:{'|'.join(BACKENDS)})(?: +\S+){{3}} +)\d\.\d\d "), r"\1_.__ "),
    (re.compile(r"\d{4}-\d\d-\d\d( by plan3d)"), r"DATE\1"),
    (re.compile(r"(?m)^[0-9a-f]{16},"), "KEY,"),
    (re.compile(r"(plan3d calibrate fit, )\d{4}-\d\d-\d\d"), r"\1DATE"),
)
"""The same in text: seconds of a search, those of a table of backends, keys of a sweep's points
(hashes that change with the name of a class), the day of a fit."""


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
        files = {name: content(path.read_text(encoding="utf-8")) for name, path in written.items()}
    return {"commands": results, "files": files}


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
    out, err = Terminal() if terminal else io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(shlex.split(words.removeprefix("terminal ")))
    if file:
        Path(file).write_text(out.getvalue(), encoding="utf-8")
    return {
        "command": command,
        "exit_code": code,
        "stdout": [] if file else content(out.getvalue()),
        "stderr": content(err.getvalue()),
    }


def content(text: str) -> Any:
    """The JSON object that a text is, else its lines; masked."""
    with contextlib.suppress(ValueError):
        found = json.loads(text)
        if isinstance(found, dict):
            return masked(found)
    for pattern, instead in VARYING_TEXT:
        text = pattern.sub(instead, text)
    return text.splitlines()


def masked(node: Any, path: str = "") -> Any:
    """A JSON object with what varies replaced by MASK."""
    if VARYING_LEAVES.fullmatch(path):
        return MASK
    if isinstance(node, dict):
        return {key: masked(value, f"{path}.{key}".lstrip(".")) for key, value in node.items()}
    if isinstance(node, list):
        return [masked(value, f"{path}[{i}]") for i, value in enumerate(node)]
    return node
