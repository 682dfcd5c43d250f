"""Every test asserts something that runs.

An assertion inside a loop or a branch says nothing where the loop is empty or the branch is not
taken, and `all` of nothing is true. So a test needs an assertion that always runs, or a loop over
something that is not empty: a literal, a range of literals, a constant, a parameter of the test, or
what an assertion before it says is not empty.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from syntax import tree_of

TESTS = Path(__file__).parent
FILES = sorted(path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py"))
OF_PARTS = {"enumerate", "list", "map", "reversed", "set", "sorted", "tuple", "zip", "product"}
"""Calls whose result is empty only where an argument is."""
METHODS = {"items", "keys", "values", "split", "splitlines", "tolist", "ravel"}
"""Methods whose result is empty only where their object is."""


class Known:
    """The names of a test that are not empty."""

    def __init__(self, function: ast.FunctionDef, constants: set[str]) -> None:
        self.names = constants | _parameters(function)

    def holds(self, node: ast.expr) -> bool:
        """Whether an expression is not empty."""
        match node:
            case ast.Constant(value=str() | bytes() | int() as value):
                return bool(value)
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
                return any(not isinstance(p, ast.Starred) or self.holds(p.value) for p in parts)
            case ast.Dict(keys=keys, values=values):
                pairs = zip(keys, values, strict=True)
                return any(key is not None or self.holds(value) for key, value in pairs)
            case ast.ListComp(generators=loops) | ast.SetComp(generators=loops):
                return self.hold(loops)
            case ast.GeneratorExp(generators=loops) | ast.DictComp(generators=loops):
                return self.hold(loops)
            case ast.Name(id=name):
                return name in self.names
            case ast.Attribute(attr=name):
                return name.isupper() or ast.unparse(node) in self.names
            case ast.Call(func=ast.Name(id="not_empty")):
                return True
            case ast.Call(func=ast.Name(id="range"), args=args):
                return _counts(args)
            case ast.Call(func=ast.Name(id=name), args=args) if name in OF_PARTS and args:
                given = args[1:] if name == "map" else args
                return all(map(self.holds, given if name in ("zip", "product") else given[:1]))
            case ast.Call(func=ast.Attribute(value=of, attr=name)):
                return name in METHODS and self.holds(of)
            case ast.BinOp(left=left, right=right):
                return self.holds(left) or self.holds(right)
            case ast.Subscript():
                return ast.unparse(node) in self.names
        return False

    def hold(self, loops: list[ast.comprehension]) -> bool:
        """Whether loops of a comprehension run at least once."""
        return all(self.holds(loop.iter) and not loop.ifs for loop in loops)

    def learn(self, statement: ast.stmt) -> None:
        """What a statement that always runs says of names."""
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if self.holds(value):
                self.names.add(name)
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                for target, value in zip(targets, values, strict=False):
                    if isinstance(target, ast.Name) and self.holds(value):
                        self.names.add(target.id)
            case ast.Assert(test=condition):
                self.names |= {ast.unparse(node) for node in self.shown(condition)}

    def shown(self, condition: ast.expr) -> Iterator[ast.expr]:
        """What is not empty where a condition holds."""
        match condition:
            case ast.BoolOp(op=ast.And(), values=parts):
                for part in parts:
                    yield from self.shown(part)
            case ast.Name() | ast.Attribute() | ast.Subscript():
                yield condition
            case ast.Call(func=ast.Name(id="any"), args=[ast.GeneratorExp(generators=loops)]):
                yield loops[0].iter
            case ast.Compare(left=left, ops=[ast.In()], comparators=[right]):
                yield right
            case ast.Compare(left=left, ops=[ast.Gt() | ast.GtE() | ast.Eq()], comparators=[right]):
                yield from self.compared(left, right)
                yield from self.compared(right, left)
            case ast.Compare(left=left, ops=[ast.Lt() | ast.LtE()], comparators=[right]):
                yield from self.compared(right, left)
            case ast.Compare(left=left, ops=[first, *ops], comparators=[middle, *others]) if ops:
                yield from self.shown(ast.Compare(left, [first], [middle]))
                yield from self.shown(ast.Compare(middle, ops, others))

    def compared(self, one: ast.expr, other: ast.expr) -> Iterator[ast.expr]:
        """What is not empty where one side equals or exceeds the other."""
        sized = isinstance(one, ast.Call) and ast.unparse(one.func) in ("len", "max", "min", "sum")
        if sized or self.holds(other):
            yield one
            while isinstance(one, ast.Call) and one.args:
                one = one.args[0]
                yield one
            match one:
                case ast.ListComp(generators=loops) | ast.SetComp(generators=loops):
                    yield loops[0].iter
                case ast.GeneratorExp(generators=loops) | ast.DictComp(generators=loops):
                    yield loops[0].iter


def _is_all(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "all"


def _counts(args: list[ast.expr]) -> bool:
    """Whether a range of literals has a number."""
    try:
        return bool(range(*(ast.literal_eval(arg) for arg in args)))
    except (ValueError, TypeError):
        return False


def _parameters(function: ast.FunctionDef) -> set[str]:
    """The arguments that pytest.mark.parametrize gives."""
    names: set[str] = set()
    for mark in function.decorator_list:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func).endswith("parametrize"):
            given = ast.literal_eval(mark.args[0])
            names |= {*(given.replace(" ", "").split(",") if isinstance(given, str) else given)}
    return names


def constants_of(module: ast.Module) -> set[str]:
    """Names in capitals that are imported, or of which the module shows that they are not empty."""
    function = ast.parse("def none(): pass").body[0]
    assert isinstance(function, ast.FunctionDef)
    known = Known(function, set())
    for statement in module.body:
        if isinstance(statement, ast.ImportFrom):
            names = (alias.asname or alias.name for alias in statement.names)
            known.names |= {name for name in names if name.isupper()}
        known.learn(statement)
    return known.names


def unguarded(function: ast.FunctionDef, constants: set[str]) -> Iterator[ast.stmt]:
    """The assertions that may be true of nothing: `all` of what may be empty, and every one of a
    test in which none always runs."""
    known, skipped = Known(function, constants), []
    runs = _walk(function.body, known, skipped)
    empty = [s for s in skipped if isinstance(s, ast.Assert) and _is_all(s.test)]
    yield from empty if runs else skipped


def _walk(body: list[ast.stmt], known: Known, skipped: list[ast.stmt]) -> bool:
    """Whether an assertion among these statements always runs; adds the others."""
    runs = False
    for statement in body:
        match statement:
            case ast.Assert(test=test):
                if _is_all(test) and isinstance(test, ast.Call) and not known.holds(test.args[0]):
                    skipped.append(statement)
                else:
                    runs = True
            case ast.For(iter=every, body=inner):
                inside = _walk(inner, known, skipped)
                runs |= inside and known.holds(every)
                if inside and not known.holds(every):
                    skipped.append(statement)
            case ast.If(body=then, orelse=otherwise):
                one, other = (_walk(part, known, skipped) for part in (then, otherwise))
                runs |= one and other
                if one != other:
                    skipped.append(statement)
            case ast.While(body=inner):
                if _walk(inner, known, skipped):
                    skipped.append(statement)
            case ast.With(items=items, body=inner):
                checks = any("raises" in ast.unparse(item) for item in items)
                runs |= _walk(inner, known, skipped) or checks
            case ast.Try(body=inner, finalbody=last):
                runs |= _walk(inner, known, skipped) | _walk(last, known, skipped)
            case ast.Expr(value=ast.Call(func=called)):
                runs |= _checks(ast.unparse(called).rpartition(".")[2])
        known.learn(statement)
    return runs


def _checks(name: str) -> bool:
    """Whether a function's name says that it asserts."""
    return name.lstrip("_").startswith(("assert", "check", "compare", "expect"))


def written_tests(module: ast.Module) -> list[ast.FunctionDef]:
    """The test functions of a module."""
    classes = (node for node in module.body if isinstance(node, ast.ClassDef))
    nodes = [*module.body, *(node for one in classes for node in one.body)]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    return [node for node in functions if node.name.startswith("test_")]


def test_assertions_run() -> None:
    found = []
    for file in FILES:
        module = tree_of(TESTS / file)
        constants = constants_of(module)
        found += [
            f"{file}:{statement.lineno} ({function.name})"
            for function in written_tests(module)
            for statement in unguarded(function, constants)
        ]
    assert not found, f"{len(found)} assertions may never run: {', '.join(found)}"
