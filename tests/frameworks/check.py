"""Frameworks read the files that plan3d writes for them; to be run where they are installed.

    python tests/frameworks/check.py torchtitan --version 0.2

writes plans, named ones and random legal ones, and hands each file to the framework's own parser
and validity checks; prints what was rejected, or understood otherwise than the plan means. With
--first the plans are those that searches of 12 models on 5 clusters find for the framework.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import sys
import traceback
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from plans import Case, expected, first_plans, named_plans, random_plans

from plan3d.launch_files.exporter import launch_text
from plan3d.launch_files.registry import EXPORTERS

READERS = {
    ("torchtitan", "0.2"): "torchtitan_02",
    ("torchtitan", "0.3"): "torchtitan_03",
    ("deepspeed", ""): "deepspeed_json",
    ("megatron", ""): "megatron_core",
    ("megatron-bridge", ""): "megatron_bridge",
}
"""The module that hands a file to its framework."""


def understood(case: Case, framework: str, version: str) -> tuple[str, str]:
    """'read', 'DIFFERS' or 'REJECTED', and why."""
    task, plan = case
    reader = importlib.import_module(READERS[framework, version])
    text = launch_text(task, plan, EXPORTERS[framework].form(version))
    try:
        found = reader.read(text, task.gpus)
    except Exception:
        return "REJECTED", traceback.format_exc(limit=-3)
    meant = expected(task, plan)
    other = [
        f"{key} is {found[key]}, not {meant[key]}" for key in found if found[key] != meant[key]
    ]
    return ("DIFFERS", "; ".join(other)) if other else ("read", "")


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("framework")
    words.add_argument("--version", default="")
    words.add_argument("--random", type=int, default=30, help="random plans besides the named")
    words.add_argument("--first", action="store_true", help="the first plans of searches instead")
    asked = words.parse_args()
    form = EXPORTERS[asked.framework].form(asked.version)
    if asked.first:
        cases = first_plans(asked.framework, asked.version)
    else:
        cases = named_plans(asked.framework, asked.version)
        cases += random_plans(asked.framework, asked.version, asked.random)
    importlib.import_module(READERS[asked.framework, asked.version])
    wrong = 0
    # A process a file: frameworks keep meshes and groups in globals.
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        ask = partial(understood, framework=asked.framework, version=asked.version)
        for (task, plan), (verdict, why) in zip(cases, pool.imap(ask, cases), strict=True):
            wrong += verdict != "read"
            print(
                f"{verdict:8} {task.model.name} on {task.gpus}: {plan}\n{why}".strip(), flush=True
            )
    print(f"{form.title}: {len(cases)} files, {wrong} rejected or read otherwise")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
