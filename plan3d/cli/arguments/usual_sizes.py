"""Sequence and batch of a question that leaves them open.

sequence: the model's published one, else SEQUENCE, or as many as its learned positions allow.
batch: the model's published one, else BATCH_TOKENS; at most TOKENS_A_GPU of every GPU, which keeps
the step of a job that is smaller than the published one at seconds. Where the number of GPUs is
asked for, or varied, the batch does not follow it.
"""

from __future__ import annotations

import argparse
import math

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.workload.model import Model

ROUND = 0.05
"""A published batch is a rounded number of tokens: by how much sequences may differ from it."""
SEQUENCE = 4096
"""Tokens, where the model states none: that of Llama 2 (Touvron et al. 2023, table 1)."""
BATCH_TOKENS = 4 * 2**20
"""Tokens of a step, where the model states none: that of Llama 2 (the same)."""
TOKENS_A_GPU = 65_536
"""Tokens of a step for one GPU: eight micro-batches of one sequence of 8,192."""
VARIES = ("sweep",)
"""Verbs that vary the GPUs and keep the batch."""


def sequence_of(model: Model, given: int | None) -> int:
    """Tokens of a sequence; InputError below 1."""
    sequence = within_positions(model, model.sequence or SEQUENCE) if given is None else given
    if sequence < 1:
        raise InputError(f"--sequence {sequence} must be at least 1")
    return sequence


def within_positions(model: Model, tokens: int) -> int:
    """So many tokens, or those that the model's learned positions are enough for."""
    return min(tokens, model.longest_sequence or tokens)


def usual_batch(args: argparse.Namespace, model: Model, sequence: int, gpus: int) -> int:
    """Sequences of a step where the question says none."""
    batch = published_batch(model, sequence)
    return min(batch, most_of(gpus, sequence)) if _follows_gpus(args, model) else batch


def most_of(gpus: int, sequence: int) -> int:
    """The most sequences of at most TOKENS_A_GPU a GPU, a power of two for each of them."""
    share = TOKENS_A_GPU / sequence
    if share >= 1:
        return gpus * int(2 ** math.floor(math.log2(share)))
    return max(gpus // int(2 ** math.ceil(-math.log2(share))), 1)


def _follows_gpus(args: argparse.Namespace, model: Model) -> bool:
    asked = getattr(args, "days", None) is not None or getattr(args, "budget_usd", None) is not None
    return model.unit == "tokens" and not asked and getattr(args, "verb", None) not in VARIES


def published_batch(model: Model, sequence: int) -> int:
    """Sequences of the model's published batch, of BATCH_TOKENS where there is none.

    Publications round tokens ('3.2 M'), which seldom divides into sequences: then the multiple
    of the largest power of two within ROUND of it, which is how such batches are chosen.
    """
    if not model.batch_tokens and model.unit != "tokens":
        raise InputError(f"{model.name} states no batch: give --global-batch (samples)")
    tokens = model.batch_tokens or BATCH_TOKENS
    exact, rest = divmod(tokens, sequence)
    if not rest:
        return exact
    wanted, unit = tokens / sequence, 1
    while abs(round(wanted / (2 * unit)) * 2 * unit - wanted) <= ROUND * wanted:
        unit *= 2
    return max(round(wanted / unit) * unit, 1)


def assumed(args: argparse.Namespace, model: Model, sequence: int, batch: int) -> list[str]:
    """What was taken for what the question left open; one sentence, or none."""
    told = []
    if args.global_batch is None and args.global_batch_tokens is None:
        told.append(f"batch: {_batch_source(model, sequence, batch)} (--global-batch)")
    if args.sequence is None and not model.sequence:
        whole = sequence == model.longest_sequence
        why = "its learned positions" if whole else "a usual one"
        told.append(f"sequence: {why} (--sequence)")
    return ["; ".join(told)] if told else []


def _batch_source(model: Model, sequence: int, batch: int) -> str:
    published = published_batch(model, sequence)
    if batch < published:
        more = f", published {published:,}" if model.batch_tokens else ""
        return f"{TOKENS_A_GPU:,} tokens a GPU{more}"
    return "as published" if model.batch_tokens else f"{BATCH_TOKENS:,} tokens"
