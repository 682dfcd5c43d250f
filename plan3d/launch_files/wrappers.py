"""Start scripts around launch files: torchrun on every node, or one job of Slurm.

Every node runs the same command: torchrun, and accelerate in its place, agree on ranks by the c10d
rendezvous, so that no node needs a rank of its own.
Source: torch.distributed.run (--rdzv-backend c10d); accelerate, commands/launch.py (machine_rank is
not used unless rdzv_backend is static); torchtitan 0.2.2, multinode_trainer.slurm.
"""

from __future__ import annotations

import re

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.task import Task

from .exporter import processes_by_node

WRAPPERS = ("torchrun", "slurm")
DOCUMENTS = {
    "torchtitan": ("job.toml", "-m torchtitan.train --job.config_file job.toml"),
    "nanotron": ("job.yaml", "run_train.py --config-file job.yaml"),
    "deepspeed": ("ds_config.json", '"${SCRIPT:?training script}" --deepspeed ds_config.json'),
}
"""By framework whose file is a document: where the script writes it, and the program that reads
it."""
_LAUNCHER = re.compile(
    r"^(?:# )?(?:[A-Z_]+=\S+ )*(?:torchrun|deepspeed|accelerate launch)\b.*?(?=\S+\.py\b)", re.M
)
"""The launcher of a fragment, in its last comment or as a command, until its program."""
_RENDEZVOUS = '"${MASTER_ADDR:-localhost}:${MASTER_PORT:-29500}"'


def wrapped(text: str, framework: str, task: Task, wrapper: str) -> str:
    """The start script of a launch file. Raises InputError for an unknown wrapper, for a recipe in
    Python and where the last node is not full."""
    if wrapper not in WRAPPERS:
        raise InputError(f"--wrapper {wrapper[:40]!r} must be one of {', '.join(WRAPPERS)}")
    nodes, each, last = processes_by_node(task.cluster)
    if last != each:
        raise InputError(
            f"--wrapper {wrapper}: {task.gpus} GPUs do not fill nodes of {each}; nearest: "
            f"--gpus {(nodes - 1) * each}, {nodes * each}"
        )
    if re.search('^"""', text, re.M):
        raise InputError(
            f"--wrapper {wrapper}: the file is a recipe in Python; nearest: a TOML file"
        )
    is_document = framework in DOCUMENTS and "cat >" not in text and "_ARGS=(" not in text
    body = _of_document if is_document else _of_fragment
    top = ["#!/bin/bash"]
    if wrapper == "slurm":
        top += [
            "#SBATCH --job-name=train",
            f"#SBATCH --nodes={nodes}",
            "#SBATCH --ntasks-per-node=1",
            f"#SBATCH --gpus-per-node={each}",
            "#SBATCH --exclusive",
            'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        ]
    run = "srun " if wrapper == "slurm" else ""
    if framework == "nanotron":
        top.append("export CUDA_DEVICE_MAX_CONNECTIONS=1")
    return "\n".join([*top, body(text, framework, run, (nodes, each)), ""])


def _torchrun(run: str, sizes: tuple[int, int]) -> str:
    """torchrun and its sizes: nodes, and processes of each."""
    return (
        f"{run}torchrun --nnodes {sizes[0]} --nproc-per-node {sizes[1]} --rdzv-backend c10d "
        f"--rdzv-endpoint {_RENDEZVOUS} --rdzv-id train"
    )


def _of_document(text: str, framework: str, run: str, sizes: tuple[int, int]) -> str:
    """The document as a here-document, and the program that reads it."""
    name, program = DOCUMENTS[framework]
    return "\n".join(
        [
            f"cat > {name} <<'END'",
            text.rstrip("\n"),
            "END",
            f'{_torchrun(run, sizes)} {program} "$@"',
        ]
    )


def _of_fragment(text: str, framework: str, run: str, sizes: tuple[int, int]) -> str:
    """The fragment with its launcher started."""
    *_, match = _LAUNCHER.finditer(text)
    launcher = _torchrun(run, sizes)
    if "accelerate" in match[0]:
        config = match[0].split("--machine_rank")[0].strip()
        launcher = f"{run}{config} --rdzv_backend c10d --main_process_port 29500"
        launcher += ' --main_process_ip "${MASTER_ADDR:-localhost}"' if sizes[0] > 1 else ""
    command = text[match.end() :].rstrip("\n").removesuffix(" ...")
    command = command.replace("--recipe RECIPE", '--recipe "${RECIPE:?name of the recipe}"')
    more = "" if '"$@"' in command else ' "$@"'
    return f"{text[: match.start()]}{launcher} {command}{more}"
