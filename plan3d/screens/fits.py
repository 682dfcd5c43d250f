"""The screen of `fits`: each way to fine-tune, whether it fits, and how fast."""

from __future__ import annotations

from typing import Any

from plan3d.search.whatif.what_fits import CHOSEN, Fit
from plan3d.simulator.base.text_tables import Table
from plan3d.simulator.base.units import GIB, format_count
from plan3d.simulator.uncertainty.memory import format_probability

from ..answers.fits import FitsAnswer
from . import views
from .output import Screen

NAMES = {"full": "full", "lora": "LoRA", "qlora": "QLoRA"}
LETTERS = {"loss": "L", "optimizer": "O", "precision": "W"}
"""Of what `fits` chooses."""
HEADERS = (
    *("way", "recompute", "ZeRO", "micro", "peak GiB", "fits", "step s", "tokens/s"),
    "longest",
)


def fits_record(answer: FitsAnswer) -> dict[str, Any]:
    """The JSON object."""
    ways = [fit.record() for fit in answer.fits]
    question = views.question_record(answer.task)
    return {**question, "ways": ways, "not_modelled": list(answer.not_modelled)}


def print_fits(screen: Screen, answer: FitsAnswer) -> None:
    """A row for each way to fine-tune."""
    task, fits, best = answer.task, list(answer.fits), answer.fastest
    model, accelerator = task.model, task.cluster.accelerator
    print(f"{model.name}, {format_count(model.parameters)} parameters, on {task.gpus} x "
          f"{accelerator.name} of {accelerator.memory / GIB:.1f} GiB")  # fmt: skip
    several = "s" * (task.global_batch > 1)
    print(f"batch of {task.global_batch} sequence{several} of {task.sequence} tokens; "
          f"{answer.precision}, software {task.software.name}\n")  # fmt: skip
    more = [_chosen(fit) + _on_host(fit) for fit in fits]
    rows = tuple(
        (*_row(fit), *((cell,) if any(more) else ())) for fit, cell in zip(fits, more, strict=True)
    )
    headers = (*HEADERS, "with") if any(more) else HEADERS
    marked = -1 if best is None else fits.index(best)
    screen.table(Table(headers=headers, rows=rows, highlighted=marked))
    legend = "* fastest; a row: its fastest plan that fits (0.95), or the smallest where none"
    if best is None:
        legend = "nothing fits with probability 0.95: the smallest of each is shown"
    print(f"{legend};")
    print("longest: tokens that fit in a sequence with that ZeRO and a micro-batch of one")
    if any(_on_host(fit) for fit in fits):
        print("state, all: in host memory, of the optimizer or weights too")
    letters = [letter for name in CHOSEN if (letter := _letter_meaning(name, fits))]
    if letters:
        print(f"chosen so that it fits: {', '.join(letters)}")
    adapters = next((fit.task.adapters for fit in fits if fit.task.adapters), None)
    if adapters:
        print(f"adapters of rank {adapters.rank} on {' '.join(adapters.targets)}")
    for why in answer.not_modelled:
        print(f"left out: {why}")


def _chosen(fit: Fit) -> str:
    """Letters of what was chosen so that one way fits."""
    return "".join(LETTERS[name] for name in fit.chosen)


def _letter_meaning(name: str, fits: list[Fit]) -> str:
    """'L loss=fused-linear' where a field was chosen."""
    values = sorted({str(fit.plan.to_dict()[name]) for fit in fits if name in fit.chosen})
    return f"{LETTERS[name]} {name}={' or '.join(values)}" if values else ""


def _on_host(fit: Fit) -> str:
    """What of one way is in host memory."""
    return "all" if fit.plan.offload_parameters else "state" * (fit.plan.offload_optimizer > 0)


def _row(fit: Fit) -> tuple[str, ...]:
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
