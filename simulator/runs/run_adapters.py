"""What of a published run is trained: adapters, where most of its weights are frozen."""

from __future__ import annotations

from ..base.errors import InputError
from ..workload.adapters import Adapters
from .published_runs import PublishedRun

LOW_RANK = ("lora", "qlora")
"""Adapters that are modelled."""
FORMATS = {"fp16": "bf16", "fp4": "nf4", "int4": "nf4", "awq4": "gptq4"}
"""Formats of frozen weights that are as large as one that is modelled."""


def adapters_of(run: PublishedRun) -> Adapters | None:
    """The adapters of a row; None where all weights are trained. InputError for other kinds."""
    if run["training"] != "peft":
        return None
    kind = run.given("peft", "lora")
    if kind not in LOW_RANK:
        raise InputError(f"{kind} is not modelled: only LoRA and QLoRA are")
    base = run.given("base_format", "bf16")
    return Adapters(
        rank=run.given("lora_rank", 16),
        targets=run.given("lora_targets", ("q", "k", "v", "o")),
        base=FORMATS.get(base, base),
    )
