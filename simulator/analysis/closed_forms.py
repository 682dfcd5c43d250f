"""Closed forms of lectures and papers: what people compute before any simulation.

Each function is one published estimate, kept beside the simulator so that its answers can be
compared with what people compute by hand. Legend: N parameters, l layers, h hidden, s sequence,
a heads, b sequences in the batch, v vocabulary, T tokens, n GPUs, F peak FLOP/s, U utilisation.
"""

from __future__ import annotations

CHINCHILLA_TOKENS_PER_PARAMETER = 20.0
"""Hoffmann et al. 2022, table 3: compute-optimal tokens a parameter."""
ADAM_VALUES = 4
"""Values a parameter has under Adam: weight, gradient and two moments."""


def parameters(layers: int, hidden: int, vocabulary: int) -> int:
    """12 l h^2 + 2 v h: attention and a 4 h MLP, untied embedding and head; norms neglected."""
    return 12 * layers * hidden**2 + 2 * vocabulary * hidden


def activation_values(layers: int, hidden: int, heads: int, sequence: int, batch: float) -> float:
    """b l (2 s^2 a + 14 s h): numbers kept for the backward pass, scores stored, nothing shared.

    Neglects the head, dropout masks and whatever fused kernels do not keep.
    """
    return batch * layers * (2 * sequence**2 * heads + 14 * sequence * hidden)


def training_bytes(
    layers: int, hidden: int, heads: int, sequence: int, batch: float, element: float = 4.0
) -> float:
    """(48 l h^2 + b l (2 s^2 a + 14 s h)) x bytes of a number: Adam's four values, activations."""
    states = ADAM_VALUES * 12 * layers * hidden**2
    return element * (states + activation_values(layers, hidden, heads, sequence, batch))


def data_parallel_bytes(parameters: float, activations: float, ranks: int) -> float:
    """2 [4 N + (b / n) activations]: everything in 16 bits, only the batch is divided."""
    return 2.0 * (ADAM_VALUES * parameters + activations / ranks)


def model_parallel_bytes(parameters: float, ranks: int) -> float:
    """16 N / n: fp32 weights, gradients and moments, divided evenly."""
    return 16.0 * parameters / ranks


def train_seconds(
    parameters: float,
    tokens: float,
    gpus: int,
    peak_flops: float,
    utilisation: float,
    full_recompute: bool = False,
) -> float:
    """(6 or 8) T N / (n F U): 2 N FLOPs a token forward, 4 N backward, 2 N more to recompute.

    Source: Narayanan et al. 2021, section 5.1 (8 T P / (n X)).
    """
    return _flops(parameters, tokens, full_recompute) / (gpus * peak_flops * utilisation)


def utilisation(
    parameters: float,
    tokens: float,
    gpus: int,
    peak_flops: float,
    seconds: float,
    full_recompute: bool = False,
) -> float:
    """The share of peak that a run of known length reached: train_seconds solved for U."""
    return _flops(parameters, tokens, full_recompute) / (gpus * peak_flops * seconds)


def _flops(parameters: float, tokens: float, full_recompute: bool) -> float:
    return (8.0 if full_recompute else 6.0) * tokens * parameters


def chinchilla_tokens(parameters: float) -> float:
    """Compute-optimal tokens: 20 a parameter."""
    return CHINCHILLA_TOKENS_PER_PARAMETER * parameters
