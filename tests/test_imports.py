"""Imports run one way between folders, without heavy packages, and every package is listed."""

import ast
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

from syntax import tree_of

ROOT = Path(__file__).parent.parent
FOLDERS = {"simulator": "plan3d.simulator", "search": "plan3d.search", "plan3d": "plan3d"}
ORDER = """
    simulator.base simulator.hardware simulator.workload simulator.pipeline simulator.plan
    simulator.task simulator.operators simulator.layers simulator.rules simulator.runs
    simulator.step simulator.uncertainty simulator.analysis simulator.validation
    simulator.calibration simulator.reporting
    search.result search.space search.exact search.stages search.stage_dp search.layer_ilp
    search.sampling
    search.systems search.rank_plans search.whatif
    launch_files tuning answers screens cli.options cli.arguments cli web __main__
""".split()  # noqa: SIM905
"""Folders in the order in which data flows: one imports those before it."""
HEAVY = {"scipy", "pandas", "ortools", "networkx", "matplotlib", "rich", "torch", "yaml"}
HEAVY |= {"cmaes", "gymnasium", "shtab", "starlette", "uvicorn", "anywidget"}
"""Loaded by the functions that need them."""
READ = (".toml", ".csv", ".json", ".typed", ".js", ".css", ".html", ".svg", ".npz")
"""Endings of files beside the modules."""


def modules():
    """Module name -> file of every module in the tree."""
    found = {}
    for folder, package in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            inside = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join((package, *inside)).removesuffix(".__init__")] = path
    return found


MODULES = modules()


def folder(module):
    """Where in ORDER a module stands; None for the packages themselves."""
    inside = f"{module.removeprefix('plan3d.')}."
    return next((i for i, name in enumerate(ORDER) if inside.startswith(f"{name}.")), None)


@cache
def imports(name):
    """The imports of a module."""
    return tuple(found(name))


def found(name):
    """(target module, whether inside a function) of every import in a module."""
    path = MODULES[name]
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    for node, inside in statements(tree_of(path), False):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, inside
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = package.split(".")[: len(package.split(".")) + 1 - node.level]
                base = ".".join([*up, *base.split(".")] if base else up)
            for alias in node.names:
                submodule = f"{base}.{alias.name}"
                yield submodule if submodule in MODULES else base, inside


def statements(block, inside):
    """The statements of a block and of those in it, and whether each is inside a function; without
    expressions, which import nothing."""
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        for node in getattr(block, part, ()):
            yield node, inside
            function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            yield from statements(node, inside or function)


def test_no_arrow_between_folders_runs_back():
    wrong = []
    for name in (name for name in MODULES if folder(name) is not None):
        for target, _ in imports(name):
            if target.startswith("plan3d.") and target != "plan3d.hardware_profiles":
                there = target in MODULES and folder(target) is not None
                if not there or folder(target) > folder(name):
                    wrong.append(f"{name} imports {target}, which has no place or comes after it")
    assert wrong == []


def test_folders_can_be_walked():
    counts = {path.parent: len(list(path.parent.glob("*.py"))) for path in MODULES.values()}
    assert {str(where): files for where, files in counts.items() if files > 20} == {}
    rooms = [path for path in (ROOT / "simulator").iterdir() if (path / "__init__.py").is_file()]
    assert len(rooms) <= 15


def test_only_numpy_and_the_standard_library_at_module_top():
    light = {"plan3d", "numpy", *sys.stdlib_module_names} - HEAVY
    tops = [(n, target) for n in MODULES for target, inside in imports(n) if not inside]
    found = {one for one in tops if one[1].partition(".")[0] not in light}
    assert {one for one in found if not one[0].startswith("plan3d.web.")} == set()
    assert {target.partition(".")[0] for _, target in found} == {"starlette"}


def test_nothing_heavy_is_loaded():
    code = (
        "import sys, plan3d, plan3d.simulator.step.evaluate, plan3d.search.rank_plans;"
        f"print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_pyproject_lists_every_package():
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {**FOLDERS, "hardware_profiles": "plan3d.hardware_profiles"}
    found = set()
    for name, package in folders.items():
        for file in (ROOT / name).rglob("*"):
            if file.is_file() and file.suffix != ".pyc":
                found.add(".".join((package, *file.parent.relative_to(ROOT / name).parts)))
    assert found == set(setuptools["packages"])
    placed = {package: name for name, package in folders.items() if package != name}
    assert setuptools["package-dir"] == placed


def test_pyproject_lists_every_file_that_is_read():
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {package: name for name, package in FOLDERS.items()}
    folders["plan3d.hardware_profiles"] = "hardware_profiles"
    listed = set()
    for package, patterns in setuptools["package-data"].items():
        top = max((one for one in folders if f"{package}.".startswith(f"{one}.")), key=len)
        inside = package.removeprefix(top).strip(".").replace(".", "/")
        place = ROOT / folders[top] / inside
        listed |= {path for pattern in patterns for path in place.glob(pattern)}
    every = {path for name in folders.values() for path in (ROOT / name).rglob("*.*")}
    found = {path for path in every if path.suffix in READ}
    assert found == listed
    stacks = [path for path in found if path.parent.name == "software"]
    assert len(stacks) == 14
