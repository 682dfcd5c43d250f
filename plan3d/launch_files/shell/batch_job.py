"""Sizes that a script asks of Slurm: `#SBATCH` lines as variables of its environment.

Source: Slurm, sbatch(1), options and output environment variables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_LINE = re.compile(r"^#SBATCH\b.*", re.M)
_OPTION = re.compile(
    r"[ \t](?:--(?P<name>[\w-]+)(?:=|[ \t]+)|-(?P<letter>[Nncg])[ \t]*)(?P<value>[^\s-]\S*)"
)
_LETTERS = {"N": "nodes", "n": "ntasks", "c": "cpus-per-task", "g": "gpus"}
_GPUS = re.compile(r"gpu(?::[\w.-]+)?:(\d{1,3})(?:\(.*)?")
_COUNT = re.compile(r"[1-9]\d{0,5}")
VARIABLES = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "ntasks-per-node": ("SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"),
    "gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    "gpus-per-task": ("SLURM_GPUS_PER_TASK",),
    "gpus": ("SLURM_GPUS",),
    "cpus-per-task": ("SLURM_CPUS_PER_TASK",),
}
"""Variables that Slurm sets, by option of sbatch."""


def job_sizes(text: str) -> dict[str, int]:
    """The sizes of a job by option."""
    return _sizes(line[0].partition(" #")[0] for line in _LINE.finditer(text))


def sizes_of_options(options: Iterable[str]) -> dict[str, int]:
    """The sizes that the words of a command ask of sbatch or srun."""
    words = [word.rpartition("/")[2] for word in options]
    at = next((i for i, word in enumerate(words) if word in ("sbatch", "srun")), len(words))
    return _sizes([" ".join(words[at:])])


def _sizes(lines: Iterable[str]) -> dict[str, int]:
    """The sizes of lines of options."""
    sizes: dict[str, int] = {}
    for match in (match for line in lines for match in _OPTION.finditer(line)):
        name, value = match["name"] or _LETTERS.get(match["letter"], ""), match["value"]
        gpus = _GPUS.fullmatch(value) if name == "gres" else None
        if gpus:
            name, value = "gpus-per-node", gpus[1]
        elif name.startswith("gpus"):
            value = value.rpartition(":")[2]
        if name in VARIABLES and _COUNT.fullmatch(value):
            sizes[name] = int(value)
    return sizes


def with_tasks(sizes: dict[str, int]) -> dict[str, int]:
    """The sizes with the number of tasks, which follows from those of a node."""
    if {"nodes", "ntasks-per-node"} <= sizes.keys():
        return {"ntasks": sizes["nodes"] * sizes["ntasks-per-node"], **sizes}
    return sizes


def job_variables(sizes: dict[str, int]) -> dict[str, str]:
    """The variables that Slurm sets for a job of these sizes."""
    return {name: str(size) for option, size in sizes.items() for name in VARIABLES[option]}


def job_gpus(sizes: dict[str, int]) -> int | None:
    """GPUs of the job: in all, of nodes or of tasks; None where it states none of them."""
    by_node = sizes.get("nodes", 0) * sizes.get("gpus-per-node", 0)
    by_task = sizes.get("ntasks", 0) * sizes.get("gpus-per-task", 0)
    return sizes.get("gpus") or by_node or by_task or None
