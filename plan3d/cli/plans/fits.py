"""The verb `fits`: does fine-tuning of a model fit on some GPUs, and with what."""

from __future__ import annotations

import argparse

from plan3d.simulator.base.errors import InputError, NoFeasiblePlanError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.software import FINE_TUNING_SOFTWARE
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.task import Task
from plan3d.simulator.workload.adapters import Adapters

from ...screens.output import Progress, Screen, print_json
from ..arguments import task_arguments, training_arguments

ABOUT = """Does it fit, with what: fine-tuning of all weights, LoRA and QLoRA.

  plan3d fits llama-3.1-8b rtx-4090
  plan3d fits llama-3.1-70b h100-sxm 8 --sequence 4096
  plan3d fits config.json a100-80gb-sxm 2 --lora-rank 64 --json
  plan3d fits sft.yaml a100-80gb-sxm 8

Of each way, with and without recompute, the fastest data-parallel plan that
fits with probability 0.95, and the longest sequence with its ZeRO stage and a
micro-batch of one. Where none fits, the same with another loss, 8-bit moments
or 16-bit weights, unless --optimizer or --precision say otherwise; then with
the optimizer on the host, or the weights too."""


def run(args: argparse.Namespace, progress: Progress | None = None) -> int:
    """Say of every way to fine-tune whether it fits; exit code 3 where none does."""
    from ...answers.fits import FitsRequest, fine_tuning_fits
    from ...screens import fits as screens

    request = FitsRequest(
        task=_task(args),
        adapters=_adapters(args),
        precision=args.precision,
        optimizer=args.optimizer,
    )
    answer = fine_tuning_fits(request)
    if args.json:
        print_json(screens.fits_record(answer))
    else:
        screens.print_fits(Screen(args.verbose), answer)
    return 0 if answer.fastest else NoFeasiblePlanError.exit_code


def _task(args: argparse.Namespace) -> Task:
    """The question of the options: by default one GPU and a batch of fine-tuning."""
    model = task_arguments.model_of(args.model)
    gpus = 1 if args.gpus is None else args.gpus
    cluster = Cluster.profile(args.cluster, gpus=gpus, memory=args.memory)
    sequence = args.sequence
    if sequence is None:
        sequence = training_arguments.usual_sequence(model)
    batch = args.global_batch
    if batch is None:
        batch = -(-training_arguments.BATCH // cluster.gpus) * cluster.gpus
    stack = FINE_TUNING_SOFTWARE if args.software is None else args.software
    task = Task(
        model, cluster, sequence=sequence, global_batch=batch, software=software_profile(stack)
    )
    if batch % cluster.gpus:
        near = batch // cluster.gpus * cluster.gpus
        nearest = ", ".join(str(n) for n in (near, near + cluster.gpus) if n)
        raise InputError(
            f"--global-batch {batch} is not a multiple of {cluster.gpus} GPUs; nearest: {nearest}"
        )
    return task


def _adapters(args: argparse.Namespace) -> list[Adapters | None]:
    """All weights, LoRA, and QLoRA with the format of --lora-base."""
    given = {**vars(args), "framework": None}
    lora = argparse.Namespace(**{**given, "adapter": "lora", "lora_base": None})
    qlora = argparse.Namespace(**{**given, "adapter": "qlora"})
    return [None, training_arguments.adapters_of(lora), training_arguments.adapters_of(qlora)]
