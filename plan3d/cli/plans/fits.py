"""The verb `fits`: does fine-tuning of a model fit on some GPUs, and with what."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from plan3d.simulator.base.errors import InputError, NoFeasiblePlanError
from plan3d.simulator.base.text_tables import Table
from plan3d.simulator.base.units import GIB, format_count
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.software import FINE_TUNING_SOFTWARE
from plan3d.simulator.task import Task
from plan3d.simulator.workload.adapters import Adapters

from ..arguments import adapter_arguments, task_arguments
from ..screen.output import Progress, Screen, print_json

if TYPE_CHECKING:
    from plan3d.search.whatif.what_fits import Fit

ABOUT = """Does it fit, with what: fine-tuning of all weights, LoRA and QLoRA.

  plan3d fits llama-3.1-8b rtx-4090
  plan3d fits llama-3.1-70b h100-sxm 8 --sequence 4096
  plan3d fits config.json a100-80gb-sxm 2 --lora-rank 64 --json

Of each way, with and without recompute, the fastest data-parallel plan that
fits with probability 0.95, and the longest sequence with its ZeRO stage and a
micro-batch of one; where none fits, the same with the optimizer on the host, or
the weights too."""

NAMES = {"full": "full", "lora": "LoRA", "qlora": "QLoRA"}


def run(args: argparse.Namespace, progress: Progress | None = None) -> int:
    """Say of every way to fine-tune whether it fits; exit code 3 where none does."""
    from plan3d.search.whatif.what_fits import what_fits

    task = _task(args)
    precision = args.precision or _usual_precision(task)
    found, left_out = what_fits(task, _ways(args), precision, args.optimizer or "adam")
    if args.json:
        from ..screen import views

        record = {**views.question_record(task), "ways": [fit.record() for fit in found]}
        print_json({**record, "not_modelled": left_out})
    else:
        _print(Screen(args.verbose), task, precision, found, left_out)
    return 0 if any(fit.fits for fit in found) else NoFeasiblePlanError.exit_code


def _task(args: argparse.Namespace) -> Task:
    """The question of the options: by default one GPU and a batch of fine-tuning."""
    model = task_arguments.model_of(args.model)
    gpus = 1 if args.gpus is None else args.gpus
    cluster = Cluster.profile(args.cluster, gpus=gpus, memory=args.memory)
    sequence = args.sequence
    if sequence is None:
        sequence = adapter_arguments.usual_sequence(model)
    batch = args.global_batch
    if batch is None:
        batch = -(-adapter_arguments.BATCH // cluster.gpus) * cluster.gpus
    stack = args.software or FINE_TUNING_SOFTWARE
    task = task_arguments.question(model, cluster, sequence, batch, stack)
    if batch % cluster.gpus:
        near = batch // cluster.gpus * cluster.gpus
        nearest = ", ".join(str(n) for n in (near, near + cluster.gpus) if n)
        raise InputError(
            f"--global-batch {batch} is not a multiple of {cluster.gpus} GPUs; nearest: {nearest}"
        )
    return task


def _ways(args: argparse.Namespace) -> list[Adapters | None]:
    """All weights, LoRA, and QLoRA with the format of --lora-base."""
    given = {**vars(args), "framework": None}
    lora = argparse.Namespace(**{**given, "adapter": "lora", "lora_base": None})
    qlora = argparse.Namespace(**{**given, "adapter": "qlora"})
    return [None, adapter_arguments.adapters_of(lora), adapter_arguments.adapters_of(qlora)]


def _usual_precision(task: Task) -> str:
    """bf16, or fp16 on GPUs that have none."""
    return "bf16" if "bf16" in task.cluster.accelerator.peak else "fp16"


def _print(
    screen: Screen, task: Task, precision: str, found: list[Fit], left_out: list[str]
) -> None:
    model, accelerator = task.model, task.cluster.accelerator
    print(f"{model.name}, {format_count(model.parameters)} parameters, on {task.gpus} x "
          f"{accelerator.name} of {accelerator.memory / GIB:.1f} GiB")  # fmt: skip
    print(f"batch of {task.global_batch} sequences of {task.sequence} tokens; "
          f"{precision}, software {task.software.name}\n")  # fmt: skip
    best = max((fit for fit in found if fit.fits), key=_speed, default=None)
    marked = -1 if best is None else found.index(best)
    hosted = any(_on_host(fit) for fit in found)
    rows = tuple((*_row(fit), *((_on_host(fit),) if hosted else ())) for fit in found)
    headers = (*HEADERS, "host") if hosted else HEADERS
    screen.table(Table(headers=headers, rows=rows, highlighted=marked))
    told = "* fastest; a row: its fastest plan that fits (0.95), or the smallest where none"
    if best is None:
        told = "nothing fits with probability 0.95: the smallest of each is shown"
    print(f"{told};")
    print("longest: tokens that fit in a sequence with that ZeRO and a micro-batch of one")
    if hosted:
        print("host: what is in host memory, the optimizer's state or all, weights too")
    tuned = next((fit.task.adapters for fit in found if fit.task.adapters), None)
    if tuned:
        print(f"adapters of rank {tuned.rank} on {' '.join(tuned.targets)}")
    for why in left_out:
        print(f"left out: {why}")


HEADERS = (
    *("way", "recompute", "ZeRO", "micro", "peak GiB", "fits", "step s", "tokens/s"),
    "longest",
)


def _on_host(fit: Fit) -> str:
    """What of one way is in host memory."""
    return "all" if fit.plan.offload_parameters else "state" * (fit.plan.offload_optimizer > 0)


def _speed(fit: Fit) -> float:
    return float(fit.costs.tokens_per_second)


def _row(fit: Fit) -> tuple[str, ...]:
    from plan3d.simulator.uncertainty.memory import format_probability

    costs, plan = fit.costs, fit.plan
    return (
        NAMES[fit.way],
        str(plan.to_dict()["recompute"]),
        str(int(plan.zero)),
        str(int(plan.micro_batch)),
        f"{costs.memory_bytes / GIB:.1f}",
        format_probability(fit.probability),
        f"{costs.step_seconds:.4g}" if fit.fits else "-",
        f"{costs.tokens_per_second:,.0f}" if fit.fits else "-",
        f"{fit.longest_sequence:,}" if fit.longest_sequence else "-",
    )
