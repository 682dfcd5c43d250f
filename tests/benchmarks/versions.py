"""Installs and tests with the lowest and the newest versions of what pyproject.toml asks for.

    python tests/benchmarks/versions.py [--python PATH]... [--keep FOLDER] [TEST]...

On every Python that is found (on PATH, and those of pyenv) the wheel is installed with the newest
versions, on the oldest one also with the lowest of every constraint; then editable. A wheel's
tests run in a copy without the package's folders, so that nothing else can be imported.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = (
    "tests/formulas",
    "tests/simulator/reporting",
    "tests/simulator/calibration/test_fit.py",
    "tests/search/layer_ilp/test_tensor_partition.py",
    "tests/search/sampling",
    "tests/plan3d/launch_files/test_round_trips.py",
    "tests/plan3d/cli/test_cli.py",
    "tests/plan3d/test_public_names.py",
)
"""Whatever uses a dependency; the whole suite takes minutes."""
NEEDED = ("pytest", "hypothesis")
"""What the tests themselves import, of the extra `dev`."""
BUILDS = ("ortools",)
"""Their releases end in the number of a build."""
PACKAGE = ("plan3d", "simulator", "search", "hardware_profiles")
WHOLE = """
import plan3d, plan3d.simulator.task as simulator, plan3d.search.rank_plans as search
from pathlib import Path
roots = {Path(plan3d.__file__).parents[1]}
of_clone = Path(simulator.__file__).parents[1].name != "plan3d"
roots |= {Path(m.__file__).parents[1 if of_clone else 2] for m in (simulator, search)}
assert len(roots) == 1, roots
"""
"""Nothing comes from an installed package and a clone at once."""


def requirements() -> dict[str, str]:
    """What must be there, by name: constraints as pyproject.toml has them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    dev = project["optional-dependencies"]["dev"]
    both = [*project["dependencies"], *(one for one in dev if _name(one) in NEEDED)]
    return {_name(one): one for one in both}


def _name(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found
    return found[0]


def lowest(requirement: str) -> str:
    """The lowest version that a constraint allows."""
    pinned = requirement.replace(">=", "==")
    return f"{pinned}.*" if _name(requirement) in BUILDS else pinned


def pythons() -> list[str]:
    """Every Python from 3.11 on, one of each minor version, the oldest first."""
    places = [*os.environ["PATH"].split(os.pathsep)]
    places += map(str, Path.home().glob(".pyenv/versions/*/bin"))
    found: dict[int, str] = {}
    for minor in range(11, 20):
        for place in places:
            path = Path(place) / f"python3.{minor}"
            works = path.exists() and _run([str(path), "-m", "venv", "--help"], ROOT)[0]
            if works and minor not in found:
                found[minor] = str(path)
    return list(found.values())


def _run(words: Sequence[str], folder: Path) -> tuple[bool, str]:
    plain = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(words, cwd=folder, env=plain, capture_output=True, text=True, check=False)
    return done.returncode == 0, (done.stdout + done.stderr).strip()


class Case:
    """One installation in a virtual environment of its own."""

    def __init__(self, python: str, lowest: bool, editable: bool, place: Path) -> None:
        self.python, self.lowest, self.editable = python, lowest, editable
        self.title = f"{Path(python).name}-{'lowest' if lowest else 'newest'}"
        self.title += "-editable" if editable else "-wheel"
        self.venv, self.bin = place / self.title, place / self.title / "bin" / "python"
        self.copy = place / "copy"

    def install(self, wheel: Path) -> tuple[bool, str]:
        """Make the environment and install the package with its requirements."""
        _run([self.python, "-m", "venv", str(self.venv)], ROOT)
        pins = [lowest(one) if self.lowest else one for one in requirements().values()]
        pip = [str(self.bin), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        what = ["--editable", str(ROOT)] if self.editable else [str(wheel)]
        return _run([*pip, "--only-binary=:all:", *pins, *what], ROOT)

    def versions(self) -> str:
        """What was installed of the requirements."""
        _, told = _run([str(self.bin), "-m", "pip", "freeze", "--disable-pip-version-check"], ROOT)
        known = {name.lower() for name in requirements()}
        lines = [line for line in told.splitlines() if line.split("==")[0].lower() in known]
        return " ".join(line.replace("==", " ") + "," for line in lines).rstrip(",")

    def test(self, tests: Sequence[str]) -> tuple[bool, str]:
        """Run tests, and see that nothing comes from elsewhere."""
        for folder in (ROOT, self.copy, self.venv):
            good, told = _run([str(self.bin), "-c", WHOLE], folder)
            if not good:
                return False, told
        folder = ROOT if self.editable else self.copy
        words = [str(self.bin), "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
        return _run(words, folder)


def built(place: Path) -> Path:
    """The wheel of this tree, and a copy of what tests need beside it."""
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    copy = place / "source"
    left_out = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, copy, ignore=left_out)
    good, told = _run([*wheel, str(place), str(copy)], place)
    if not good:
        raise SystemExit(told)
    shutil.copytree(ROOT, place / "copy", ignore=shutil.ignore_patterns(".*", "build", *PACKAGE))
    shutil.copytree(ROOT / "tests", place / "copy" / "tests", dirs_exist_ok=True)
    return next(place.glob("plan3d-*.whl"))


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--python", action="append", help="instead of those that are found")
    words.add_argument("--keep", type=Path, help="folder of the environments")
    words.add_argument("tests", nargs="*", default=TESTS)
    asked, failed = words.parse_args(), 0
    with tempfile.TemporaryDirectory() as folder:
        place = asked.keep or Path(folder)
        place.mkdir(exist_ok=True)
        wheel, found = built(place), asked.python or pythons()
        cases = [Case(found[0], lowest=True, editable=False, place=place)]
        cases += [Case(one, lowest=False, editable=False, place=place) for one in found]
        cases += [Case(found[0], lowest=False, editable=True, place=place)]
        for case in cases:
            began = time.monotonic()
            good, told = case.install(wheel)
            if good:
                good, told = case.test(asked.tests)
            last = told.splitlines()[-1] if told else ""
            print(f"{case.title}: {'passes' if good else 'FAILS'}, {last}", flush=True)
            print(f"    {case.versions()}; {time.monotonic() - began:.0f} s", flush=True)
            if not good:
                print("\n".join(told.splitlines()[-40:]), flush=True)
            failed += not good
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
