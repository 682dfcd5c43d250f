"""Functions, files and simulations that one question visits.

    python tests/benchmarks/walks.py [--list NAME]

A function is a code object of the package that was called at least once (sys.setprofile; class
bodies, modules and comprehensions do not count); a simulation is one evaluation of a table of
plans, step.evaluate.simulate. Each question is asked in a process of its own, for one that follows
another finds tables that are made once.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

GPT = "--model gpt3-175b --cluster a100-80gb-sxm --gpus 1024 --sequence 2048 --global-batch 1536"
Ask = Callable[[], object]
PLAN = "tp=8 pp=8 micro_batch=1 recompute=full"


def command(words: str, *more: str) -> Callable[[], Ask]:
    """A command of plan3d, its screen thrown away."""

    def prepare() -> Ask:
        from plan3d.cli.main import main

        def ask() -> object:
            with contextlib.redirect_stdout(io.StringIO()):
                return main([*words.split(), *more])

        return ask

    return prepare


def evaluation() -> Ask:
    """One plan of a task in Python."""
    from plan3d import Cluster, Model, Plan, Task, evaluate

    cluster = Cluster.profile("a100-80gb-sxm", gpus=1024)
    task = Task(Model.preset("gpt3-175b"), cluster, sequence=2048, global_batch=1536)
    return lambda: evaluate(task, Plan(tp=8, pp=8, micro_batch=1, recompute="full"))


class Bar(NamedTuple):
    """A question, and what it may visit."""

    prepare: Callable[[], Ask]
    """Brings what is not counted: imports, and the task of a call in Python."""
    functions: int
    files: int | None = None
    simulations: int | None = None


QUESTIONS = {
    "search": Bar(command(f"search {GPT}"), 750, files=120),
    "estimate": Bar(command(f"estimate {GPT} --plan", PLAN), 600, simulations=6),
    "explain": Bar(command(f"explain {GPT} --plan", PLAN), 800),
    "evaluate": Bar(evaluation, 300),
}


class Walk(NamedTuple):
    """What one question visited."""

    calls: collections.Counter[CodeType]

    @property
    def functions(self) -> list[CodeType]:
        return [code for code in self.calls if not code.co_name.startswith("<")]

    @property
    def files(self) -> set[str]:
        return {code.co_filename for code in self.functions}

    @property
    def simulations(self) -> int:
        return sum(
            count
            for code, count in self.calls.items()
            if code.co_name == "simulate" and code.co_filename.endswith("step/evaluate.py")
        )


def walk(prepare: Callable[[], Ask]) -> Walk:
    """Ask a question and count the calls of each function of the package."""
    import plan3d

    root = str(Path(plan3d.__file__).parents[1])
    folders = tuple(f"{root}/{name}/" for name in ("plan3d", "simulator", "search"))
    calls: collections.Counter[CodeType] = collections.Counter()

    def count(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(folders):
            calls[code] += bool(code.co_flags & 0x2)  # CO_NEWLOCALS: no class body, no module

    ask = prepare()
    sys.setprofile(count)
    try:
        ask()
    finally:
        sys.setprofile(None)
    return Walk(+calls)


def main() -> None:
    """Print a line a question; with --list the functions of one."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--list", choices=QUESTIONS, help="print what a question visits")
    options.add_argument("--only", choices=QUESTIONS, help="ask one question")
    asked = options.parse_args()
    name = asked.list or asked.only
    if name is None:
        for each in QUESTIONS:
            subprocess.run([sys.executable, __file__, "--only", each], check=True)
        return
    bar, walked = QUESTIONS[name], walk(QUESTIONS[name].prepare)
    print(
        f"{name:9} {len(walked.functions):5} functions (at most {bar.functions}), "
        f"{len(walked.files):4} files (at most {bar.files or '-'}), "
        f"{walked.simulations:3} simulations (at most {bar.simulations or '-'})"
    )
    if asked.list:
        for code in sorted(walked.functions, key=lambda c: (c.co_filename, c.co_firstlineno)):
            place = "/".join(Path(code.co_filename).parts[-3:])
            print(f"  {place}:{code.co_firstlineno} {code.co_qualname} {walked.calls[code]}")


if __name__ == "__main__":
    main()
