"""One-line bugs planted in the core, each left to its own folder's tests.

    python tests/benchmarks/mutants.py [--jobs 2] [--folder pipeline] [--only TEXT]

Prints which bugs were caught and by which test. Exit code 1 when fewer than 95 % were, 2 when a
bug cannot be planted any more or tests fail without one.

mutations/FOLDER.toml has the bugs of a folder and the tests that answer for it. A bug is a name, a
module, a text that the module has exactly once and the text in its place; `audit` marks those that
were first planted in an audit, by the tests that found them then: none (survived), others, or the
folder's own. Packages are copied, bugs planted in the copies: the working tree is never touched.
"""

from __future__ import annotations

import argparse
import compileall
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from py_compile import PycInvalidationMode
from queue import SimpleQueue

ROOT = Path(__file__).parents[2]
FOLDERS = Path(__file__).parent / "mutations"
ENOUGH = 0.95
"""Share of the bugs that must be caught."""
LONGEST = 300.0
"""Seconds after which tests hang: the bug was noticed."""
FAILED = 1
"""Exit code of pytest when tests ran and one failed."""


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """One bug."""

    folder: str
    name: str
    module: str
    """Dotted, as it is imported."""
    old: str
    new: str
    audit: str = ""

    def planted(self, text: str) -> str:
        """The module's text with the bug. Raises ValueError where it cannot be planted."""
        found = text.count(self.old)
        if found != 1:
            raise ValueError(
                f"{self.folder}.toml, {self.name!r}: {self.module} has {self.old!r} {found} times"
            )
        return text.replace(self.old, self.new)


@dataclass(frozen=True, kw_only=True)
class Folder:
    """The bugs of a folder, and the tests that answer for it."""

    name: str
    tests: tuple[str, ...]
    mutations: tuple[Mutation, ...]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a bug."""

    caught: bool
    by: str
    """The first test that failed, or what happened instead."""


def folders() -> list[Folder]:
    """Every folder with bugs."""
    return [_folder(path) for path in sorted(FOLDERS.glob("*.toml"))]


def _folder(path: Path) -> Folder:
    content = tomllib.loads(path.read_text())
    own = (Mutation(folder=path.stem, **record) for record in content["mutation"])
    return Folder(name=path.stem, tests=tuple(content["tests"]), mutations=tuple(own))


@cache
def package_folders() -> dict[str, Path]:
    """Where pyproject.toml says that packages lie."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    return {"plan3d": ROOT / "plan3d"} | {
        package: ROOT / folder for package, folder in settings["package-dir"].items()
    }


def source_of(module: str) -> Path:
    """The file of a module in the working tree."""
    packages = package_folders()
    inside = max((p for p in packages if f"{module}.".startswith(f"{p}.")), key=len)
    return packages[inside] / f"{module[len(inside) + 1 :].replace('.', '/')}.py"


class Tree:
    """A copy of all packages that Python finds before any installed one."""

    def __init__(self, home: Path) -> None:
        self.home = home
        for package, folder in package_folders().items():
            shutil.copytree(
                folder,
                home / package.replace(".", "/"),
                ignore=shutil.ignore_patterns("__pycache__"),
                dirs_exist_ok=True,
            )
        # By content: a bug may have the size and the second of what it replaces.
        compileall.compile_dir(
            str(home), quiet=1, invalidation_mode=PycInvalidationMode.CHECKED_HASH
        )

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Python in the repository with the packages of this tree."""
        own = {
            "PYTHONPATH": str(self.home),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self.home / "hypothesis"),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        return subprocess.run(
            [sys.executable, "-P", *arguments],
            cwd=ROOT,
            env={**os.environ, **own},
            capture_output=True,
            text=True,
            timeout=LONGEST,
            check=False,
        )

    def pytest(self, tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run tests until the first that fails; examples of Hypothesis are always the same."""
        options = ("-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0")
        return self.python("-m", "pytest", *options, *tests)

    def check(self, tests: Sequence[str]) -> None:
        """Raise ValueError where tests fail without a bug or do not import this tree."""
        told = self.python("-c", "import plan3d.simulator as s; print(s.__file__)").stdout
        if not told.startswith(str(self.home)):
            raise ValueError(f"tests would import {told.strip()}, not {self.home}")
        done = self.pytest(tests)
        if done.returncode:
            raise ValueError(f"tests fail without a bug:\n{done.stdout[-2000:]}")

    def outcome(self, mutation: Mutation, tests: Sequence[str]) -> Outcome:
        """Plant a bug, run the tests, and take the bug out again."""
        if not tests:
            return Outcome(caught=False, by="no tests")
        path = self.home / f"{mutation.module.replace('.', '/')}.py"
        text = path.read_text()
        path.write_text(mutation.planted(text))
        try:
            done = self.pytest(tests)
        except subprocess.TimeoutExpired:
            return Outcome(caught=True, by=f"hangs for {LONGEST:.0f} s")
        finally:
            path.write_text(text)
        return _read(done)


def _read(done: subprocess.CompletedProcess[str]) -> Outcome:
    """What a run of pytest says. Raises ValueError where no test could run."""
    if done.returncode == 0:
        return Outcome(caught=False, by="")
    failed = re.search(r"^(?:FAILED|ERROR) tests/(\S+)", done.stdout, re.MULTILINE)
    if done.returncode != FAILED or not failed:
        raise ValueError(f"tests do not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return Outcome(caught=True, by=failed[1])


def present(folder: Folder) -> list[str]:
    """The tests of a folder that there are; the others are named on stderr."""
    for path in folder.tests:
        if not (ROOT / path).exists():
            print(f"{folder.name}.toml: there is no {path}", file=sys.stderr)
    return [path for path in folder.tests if (ROOT / path).exists()]


def outcomes(
    wanted: list[Mutation], tests: dict[str, list[str]], jobs: int
) -> Iterator[tuple[Mutation, Outcome]]:
    """Every bug with what became of it, in order."""
    with tempfile.TemporaryDirectory(prefix="plan3d-mutants-") as home:
        trees: SimpleQueue[Tree] = SimpleQueue()
        for i in range(jobs):
            trees.put(Tree(Path(home) / str(i)))

        @contextmanager
        def borrowed() -> Iterator[Tree]:
            tree = trees.get()
            try:
                yield tree
            finally:
                trees.put(tree)

        def check(folder: str) -> None:
            with borrowed() as tree:
                tree.check(tests[folder])

        def left_to_tests(mutation: Mutation) -> Outcome:
            with borrowed() as tree:
                return tree.outcome(mutation, tests[mutation.folder])

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(check, sorted(name for name in tests if tests[name])))
            yield from zip(wanted, pool.map(left_to_tests, wanted), strict=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Plant the bugs asked for; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--jobs", type=int, default=2, help="bugs at a time")
    parser.add_argument("--folder", help="bugs of one folder")
    parser.add_argument("--only", default="", help="bugs whose name or module has this text")
    asked = parser.parse_args(arguments)
    chosen = [f for f in folders() if asked.folder in (None, f.name)]
    wanted = [m for f in chosen for m in f.mutations if asked.only in f"{m.module} {m.name}"]
    needed = {m.folder for m in wanted}
    tests = {f.name: present(f) for f in chosen if f.name in needed}
    began, caught = time.perf_counter(), 0
    try:
        for mutation in wanted:
            mutation.planted(source_of(mutation.module).read_text())
        for mutation, outcome in outcomes(wanted, tests, asked.jobs):
            caught += outcome.caught
            verdict = "caught  " if outcome.caught else "SURVIVED"
            print(f"{verdict} {mutation.folder:9} {mutation.name:64} {outcome.by}", flush=True)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    seconds = time.perf_counter() - began
    share = caught / max(len(wanted), 1)
    print(f"{caught} of {len(wanted)} caught ({share:.1%}), in {seconds:.0f} s")
    return int(share < ENOUGH)


if __name__ == "__main__":
    sys.exit(main())
