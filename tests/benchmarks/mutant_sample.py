"""A seeded sample of changed operators, each left to its folder's own tests and the formulas.

    python tests/benchmarks/mutant_sample.py --sample 600 --seed 1 --csv FILE [--folder NAME]

Sites are what computes in simulator/, search/ and launch_files/: operators, bounds, roundings and
numbers of sums, products and comparisons. Prints the share caught by package with its standard
error, and the survivors; those of equivalent_mutants.toml, which change nothing that a caller can
see, are counted apart. Sites that FILE has are not run again, so that a run can be ended at any
time; a smaller sample of the same seed is the beginning of a larger one, and so is an unfinished
table but for what is computed while modules load, which comes last. Sites are numbered in the code:
a table is good for one tree.

The tests of all folders are collected once and run once with a probe at each site of the sample.
Each bug then gets a fork, in which functions have changed code, and the tests of its folder that
came by it, cheapest first, until one fails; then those behind them in a file, which may read what
caches and fixtures keep. What is computed while modules load is left to the whole folder, in a
process of its own. (General tools start a process and a whole folder for each bug.)
"""

from __future__ import annotations

import argparse
import ast
import builtins
import csv
import functools
import gc
import importlib
import importlib.util
import json
import os
import random
import resource
import signal
import sys
import time
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import mutants
import pytest

PACKAGES = ("plan3d.simulator", "plan3d.search", "plan3d.launch_files")
ENOUGH = 0.92
"""Share of the sample that must be caught."""
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.toml")
"""Changes that no caller can see: a module, the text of a line, the changes of it, the reason."""
SLACK = 10
"""CPU seconds that tests may take beside four times their usual ones, or they hang."""
LOADED = 600
"""CPU seconds that all tests of a folder may take, or they hang."""
OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
CALLS = {"min": "max", "minimum": "maximum", "ceil": "floor"}
CALLS |= {new: old for old, new in CALLS.items()}
FIELDS = ("folder", "module", "index", "line", "change", "caught", "by", "seconds")


@dataclass(frozen=True)
class Site:
    """A place of a module, the index-th of those that can be changed."""

    module: str
    index: int

    @property
    def folder(self) -> str:
        """The package of the module, two levels below plan3d where it is as deep."""
        parts = self.module.split(".")
        deep = parts[1] != "launch_files" and len(parts) > 3
        return ".".join(parts[1:3] if deep else parts[1:2])


@functools.cache
def own_tests(folder: str) -> tuple[str, ...]:
    """The folder of tests that mirrors a package, what else answers for it, and all formulas."""
    mirror = f"tests/{folder.replace('.', '/').replace('launch_files', 'plan3d/launch_files')}"
    answering = {f.name: list(f.tests) for f in mutants.folders()}
    names = (folder.partition(".")[0], folder.rpartition(".")[2])
    others = [path for name in dict.fromkeys(names) for path in answering.get(name, [])]
    formulas = "tests/formulas"
    more = [path for path in others if not path.startswith((mirror, formulas))]
    return (mirror, *more, *([formulas] if folder != "launch_files" else []))


def _text(node: ast.AST) -> bool:
    """Whether an operand is text, None or a literal of a container: its operator is no sum."""
    return any(
        isinstance(part, ast.JoinedStr | ast.Dict | ast.Set | ast.List | ast.Tuple)
        or (isinstance(part, ast.Constant) and isinstance(part.value, str | None))
        for part in (node, getattr(node, "left", node), getattr(node, "right", node))
    )


def sites(tree: ast.Module) -> list[tuple[ast.AST, bool]]:
    """The nodes of a module that can be changed, and whether each is inside a function."""
    found: list[tuple[ast.AST, bool]] = []

    def visit(node: ast.AST, inside: bool) -> None:
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list"):
                continue
            runs = inside or (name == "body" and isinstance(node, ast.FunctionDef | ast.Lambda))
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    number = isinstance(child, ast.Constant) and type(child.value) in (int, float)
                    computes = isinstance(node, ast.BinOp | ast.AugAssign | ast.Compare)
                    if (number and computes) or _changes(child, runs):
                        found.append((child, runs))
                    visit(child, runs)

    visit(tree, False)
    return found


def _changes(node: ast.AST, inside: bool) -> bool:
    match node:
        case ast.BinOp(left=left, op=op, right=right):
            union = isinstance(op, ast.BitOr) and not inside
            return type(op) in OPERATORS and not (_text(left) or _text(right) or union)
        case ast.AugAssign(op=op, value=value):
            return type(op) in OPERATORS and not _text(value)
        case ast.Compare(ops=[op]):
            return type(op) in OPERATORS
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in CALLS
    return False


def change(node: ast.AST) -> str:
    """Change a node in place; what was changed, in words."""
    old = ast.unparse(node)
    match node:
        case ast.Constant():
            node.value += 1
        case ast.Compare():
            node.ops = [OPERATORS[type(node.ops[0])]()]
        case ast.Call(func=ast.Name() as func):
            func.id = CALLS[func.id]
        case ast.Call(func=ast.Attribute() as func):
            func.attr = CALLS[func.attr]
        case _:
            node.op = OPERATORS[type(node.op)]()
    return f"{old} -> {ast.unparse(node)}"


class _Probes(ast.NodeTransformer):
    """Each node of `indices` first tells that it is reached."""

    def __init__(self, indices: dict[int, int]) -> None:
        self.indices = indices

    def visit(self, node: ast.AST) -> ast.AST:
        self.generic_visit(node)
        number = self.indices.get(id(node))
        if number is None:
            return node
        call = f"__reached__({number})"
        expression = node.value if isinstance(node, ast.AugAssign) else node
        told = ast.BoolOp(ast.Or(), [ast.parse(call, mode="eval").body, expression])
        ast.fix_missing_locations(ast.copy_location(told, expression))
        if isinstance(node, ast.AugAssign):
            node.value = told
            return node
        return told


class Loaded:
    """An import hook that loads some modules from other trees than their files'."""

    def __init__(self, trees: dict[str, ast.Module]) -> None:
        self.trees = trees

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        """As importlib asks it."""
        if name not in self.trees:
            return None
        path = str(mutants.source_of(name))
        loader = SourceFileLoader(name, path)
        loader.get_code = lambda _: compile(self.trees[name], path, "exec")  # type: ignore
        return importlib.util.spec_from_file_location(name, path, loader=loader)


def parsed(module: str) -> ast.Module:
    """The tree of a module in the working tree."""
    return ast.parse(mutants.source_of(module).read_text())


def equivalents() -> set[tuple[str, str, str]]:
    """Module, text of the line and change of each that is recorded as equivalent."""
    return {
        (entry["module"], entry["line"], change)
        for entry in tomllib.loads(EQUIVALENT.read_text())["equivalent"]
        for change in entry["changes"]
    }


def key_of(module: str, line: int, changed: str) -> tuple[str, str, str]:
    """What a change is recorded by, wherever its line is."""
    return module, mutants.source_of(module).read_text().splitlines()[line - 1].strip(), changed


def every_site() -> list[Site]:
    """The sites of the three packages."""
    found = []
    for package in PACKAGES:
        home = mutants.source_of(f"{package}.x").parent
        for path in sorted(home.rglob("*.py")):
            if path.name != "__init__.py":
                inside = path.relative_to(home).with_suffix("").as_posix().replace("/", ".")
                module = f"{package}.{inside}"
                found += [Site(module, i) for i in range(len(sites(parsed(module))))]
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _codes(part)


Place = tuple[str, str, int, tuple[str, ...], tuple[str, ...]]


def _place(code: CodeType) -> Place:
    """Where a function stands; of several on one line its variables tell which it is."""
    where = code.co_filename, code.co_qualname, code.co_firstlineno
    return *where, code.co_freevars, code.co_varnames


def _forked(work: Callable[[], object], cpu_seconds: float) -> object:
    """What `work` returns in a fork; None where it is ended for its time. Raises ChildProcessError
    where it breaks."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        limit = int(time.process_time() + cpu_seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
        try:
            os.write(writing, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        text = told.read()
    _, status = os.waitpid(child, 0)
    if text:
        return json.loads(text)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL):
        return None
    raise ChildProcessError(f"a fork ended without an answer, status {status}")


def _behind(reached: list[str], every: list[str]) -> Iterator[str]:
    """The tests of a file behind one that came by a bug, which may read what it kept."""
    files = set()
    for name in every:
        file = name.partition("::")[0]
        if file in files:
            yield name
        if name in reached:
            files.add(file)


def _verdict(work: Callable[[], object], cpu_seconds: float) -> str:
    """The test that failed in a fork, "hangs", or why the bug is not caught."""
    try:
        failed = _forked(work, cpu_seconds)
    except ChildProcessError as error:
        return f"survived, as {error}"
    return "hangs" if failed is None else str(failed) or "survived"


class Runner:
    """A plugin of pytest that runs bugs in place of the tests, each by those of its folder."""

    def __init__(self, chosen: list[Site], told: Callable[..., None]) -> None:
        self.chosen = chosen
        self.told = told
        self.at: str | None = None
        self.reached: dict[str | None, set[int]] = defaultdict(set)
        builtins.__reached__ = lambda number: self.reached[self.at].add(number)  # type: ignore
        trees = {}
        for module in {site.module for site in chosen}:
            tree = parsed(module)
            places = [node for node, _ in sites(tree)]
            numbers = {id(places[s.index]): i for i, s in enumerate(chosen) if s.module == module}
            trees[module] = _Probes(numbers).visit(tree)
        sys.meta_path.insert(0, Loaded(trees))

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Every test once with probes, then the tests of each bug; modules that only a test would
        import are changed too."""
        for module in sorted({site.module for site in self.chosen}):
            importlib.import_module(module)
        gc.unfreeze()
        objects = gc.get_objects()
        self.caches = [o for o in objects if isinstance(o, functools._lru_cache_wrapper)]
        self.functions: dict[Place, list[FunctionType]] = defaultdict(list)
        for function in (o for o in objects if isinstance(o, FunctionType)):
            self.functions[_place(function.__code__)].append(function)
        gc.freeze()
        items = {item.nodeid: item for item in session.items}
        mapped = _forked(lambda: self._map(session), 3600)
        if mapped is None:
            raise RuntimeError("tests fail without a bug")
        seconds, reached = mapped
        for number, site in enumerate(self.chosen):
            own = [name for name in seconds if name.startswith(own_tests(site.folder))]
            mine = [name for name in own if number in reached.get(name, ())]
            tests = {**dict.fromkeys(mine), **dict.fromkeys(_behind(mine, own))}
            _, inside = sites(parsed(site.module))[site.index]
            if not inside or number in self.reached[None]:
                self.told(site, "loading", 0.0)
                continue
            if not mine:
                self.told(site, "survived, as no test comes by it", 0.0)
                continue
            began = os.times()
            cheap = sorted(tests, key=lambda name: (name not in mine, seconds[name]))
            ordered = [items[name] for name in cheap]
            limit = SLACK + 4 * sum(seconds[name] for name in tests)
            by = _verdict(functools.partial(self._planted, session, site, ordered), limit)
            cpu = os.times().children_user - began.children_user
            self.told(site, by, cpu)
        return True

    def _map(self, session: pytest.Session) -> object:
        seconds, file = {}, None
        for item in session.items:
            for cache in self.caches if item.path != file else ():
                cache.cache_clear()
            file = item.path
            self.at, began = item.nodeid, time.process_time()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            seconds[item.nodeid] = time.process_time() - began
            if session.testsfailed:
                print("fails without a bug:", item.nodeid, file=sys.stderr)
                session.testsfailed = 0
                del seconds[item.nodeid]
        return seconds, {str(name): sorted(numbers) for name, numbers in self.reached.items()}

    def _planted(self, session: pytest.Session, site: Site, tests: list[pytest.Item]) -> str:
        tree = parsed(site.module)
        change(sites(tree)[site.index][0])
        path = str(mutants.source_of(site.module))
        for code in _codes(compile(tree, path, "exec")):
            for function in self.functions[_place(code)]:
                function.__code__ = code
        for cache in self.caches:
            cache.cache_clear()
        for item in tests:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            if session.testsfailed:
                return item.nodeid
        return ""


class First:
    """A plugin of pytest that keeps the first test that fails."""

    name = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """As pytest tells it."""
        if report.failed:
            self.name = self.name or report.nodeid


OPTIONS = ("-q", "-x", "-p", "no:cacheprovider", "-n", "0", "--hypothesis-seed=0")


def _loading(site: Site) -> str:
    tree = parsed(site.module)
    change(sites(tree)[site.index][0])
    sys.meta_path.insert(0, Loaded({site.module: tree}))
    first = First()
    code = pytest.main([*OPTIONS, *own_tests(site.folder)], plugins=[first])
    return first.name or ("" if code == 0 else f"pytest ends with {int(code)}")


def run(chosen: list[Site], path: Path) -> None:
    """Run some bugs and add them to the table."""
    every = dict.fromkeys(name for site in chosen for name in own_tests(site.folder))
    tests = [name for name in every if not any(name.startswith(f"{one}/") for one in every)]

    def told(site: Site, by: str, seconds: float) -> None:
        node = sites(parsed(site.module))[site.index][0]
        line = node.lineno
        caught = int(not by.startswith("survived"))
        row = (site.folder, site.module, site.index, line, change(node), caught, by)
        with path.open("a", newline="") as file:
            csv.writer(file).writerow((*row, f"{seconds:.2f}"))

    later: list[Site] = []

    def warm(site: Site, by: str, seconds: float) -> None:
        if by == "loading":
            os.write(writing, f"{chosen.index(site)}\n".encode())
        else:
            told(site, by, seconds)

    def loop() -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        # Processes that tests start import the program they come from, which may be any.
        sys.modules["__main__"] = ModuleType("__main__")
        pytest.main([*OPTIONS, *tests], plugins=[Runner(chosen, warm)])

    reading, writing = os.pipe()
    _forked(loop, 7200)
    os.close(writing)
    with os.fdopen(reading) as file:
        later = [chosen[int(line)] for line in file]
    for site in later:
        began = os.times().children_user
        os.sys.stdout.flush()
        by = _verdict(functools.partial(_quiet, _loading, site), LOADED)
        told(site, by, os.times().children_user - began)


def _quiet(work: Callable[[Site], str], site: Site) -> str:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return work(site)


def rows_of(path: Path) -> list[dict[str, str]]:
    """The table so far."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def report(rows: list[dict[str, str]]) -> float:
    """Print the survivors, and the share caught by package with its standard error; the share of
    all."""
    groups, known = defaultdict(list), equivalents()
    for row in rows:
        key = key_of(row["module"], int(row["line"]), row["change"])
        if row["caught"] == "0":
            what = "EQUIVALENT" if key in known else "SURVIVED"
            print(f"{what} {row['module']}:{row['line']} {row['change']} ({row['by']})")
            if key in known:
                continue
        for name in {row["folder"].partition(".")[0], row["folder"], "all"}:
            groups[name].append(int(row["caught"]))
    for name, caught in sorted(groups.items()):
        share = sum(caught) / len(caught)
        error = (share * (1 - share) / len(caught)) ** 0.5
        print(f"{name:24} {sum(caught):4} of {len(caught):4}  {share:6.1%} ± {error:.1%}")
    return sum(groups["all"]) / len(groups["all"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing of the sample; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sample", type=int, default=600, help="sites")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--csv", type=Path, required=True, help="table of what became of each")
    parser.add_argument("--folder", action="append", help="a package, such as simulator.step")
    asked = parser.parse_args(arguments)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    every = every_site()
    chosen = random.Random(asked.seed).sample(every, len(every))[: asked.sample]
    if not asked.csv.exists():
        asked.csv.write_text(",".join(FIELDS) + "\n")
    done = {Site(row["module"], int(row["index"])) for row in rows_of(asked.csv)}
    wanted = [site for site in chosen if not asked.folder or site.folder in asked.folder]
    missing = [site for site in wanted if site not in done]
    print(f"{len(every)} sites, {len(missing)} to run", flush=True)
    if missing:
        run(missing, asked.csv)
    rows = [r for r in rows_of(asked.csv) if Site(r["module"], int(r["index"])) in set(chosen)]
    return int(report(rows) < ENOUGH)


if __name__ == "__main__":
    sys.exit(main())
