"""The package is found however it was installed, and from whichever folder it is used."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ("plan3d", "simulator", "search", "hardware_profiles")
USES = """
from plan3d import Model, find_plans
import plan3d.simulator.task
print(Model.preset("gpt3-6.7b").layers, plan3d.simulator.task.__file__, sep="\\n")
"""


@pytest.fixture(scope="module")
def clone() -> Iterator[Path]:
    """A clone: what the package is made of, side by side."""
    with tempfile.TemporaryDirectory() as folder:
        for name in PACKAGE:
            shutil.copytree(ROOT / name, Path(folder, name))
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, folder)
        yield Path(folder)


@pytest.fixture(scope="module")
def wheel(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that a wheel of the clone is unpacked to."""
    out, unpacked = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("site")
    command = ("-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", out, clone)
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    zipfile.ZipFile(built).extractall(unpacked)
    return unpacked


def used(folder: Path, *paths: Path) -> list[str]:
    """What a user's lines print in a folder, with packages of these paths and no hooks of pip."""
    libraries = Path(numpy.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*paths, libraries)))}
    return printed([sys.executable, "-S", "-c", USES], folder, environment)


def printed(command: list[str], folder: Path, environment: dict[str, str]) -> list[str]:
    """The lines that a command prints."""
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_wheel_is_whole(wheel, tmp_path):
    assert used(tmp_path, wheel) == ["32", str(wheel / "plan3d" / "simulator" / "task.py")]


def test_inside_a_clone_all_of_the_package_is_the_clone_s(wheel, clone):
    assert used(clone, wheel) == ["32", str(clone / "simulator" / "task.py")]


def test_a_clone_needs_no_installation(clone):
    assert used(clone) == ["32", str(clone / "simulator" / "task.py")]


def test_the_package_of_these_tests_is_found_from_any_folder(tmp_path):
    assert printed([sys.executable, "-c", USES], tmp_path, dict(os.environ))[0] == "32"
