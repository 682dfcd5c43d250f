"""Closed forms of lectures and papers: what people compute before any simulation.

Each function is one published estimate, kept beside the simulator so that its answers can be
compared with what people compute by hand. Legend: N parameters, l layers, h hidden, s sequence,
a heads, b sequences in the batch, v vocabulary, T tokens, n GPUs, F peak FLOP/s, U utilisation;
of a pipeline p stages, m micro-batches; of an accuracy e (a mean squared gradient norm) and the
variance sigma^2 of one worker's gradient, in units where loss to go times smoothness is 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, log2, pi, sqrt

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
    """16 N / n: fp32 weights, gradients and moments, divided evenly over stages or tensor ranks."""
    return 16.0 * parameters / ranks


def zero_bytes(parameters: float, ranks: int, stage: int) -> float:
    """fp32 states of a rank: moments (ZeRO 1), gradients too (2), weights too (3) divided by n.

    Source: Rajbhandari et al. 2020, figure 1, with 4 bytes of each value.
    """
    divided = 4.0 * parameters * (0, 2, 3, 4)[stage]
    return 16.0 * parameters - divided * (1 - 1 / ranks)


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


def bubble(stages: int, micro_batches: int, virtual_stages: int = 1) -> float:
    """(p - 1) / (v m): idle over useful time of even stages under GPipe and 1F1B, v chunks each.

    Source: Narayanan et al. 2021, sections 2.2.1 and 2.2.2.
    """
    return (stages - 1) / (virtual_stages * micro_batches)


def uneven_bubble(seconds: Sequence[float], micro_batches: int) -> float:
    """(sum t + (m - 1) max t) / (m mean t) - 1: the slowest stage sets the pace, others wait."""
    total, slowest = sum(seconds), max(seconds)
    step = total + (micro_batches - 1) * slowest
    return step / (micro_batches * total / len(seconds)) - 1


def exposed_sends(stages: int, micro_batches: int) -> tuple[int, int]:
    """2 (p - 1) and 2 (p - 1) m: boundary transfers of one micro-batch, and of all of them, between
    which lies what a step waits for: once forward, once backward."""
    return 2 * (stages - 1), 2 * (stages - 1) * micro_batches


def ring_bytes(size: float, ranks: int) -> float:
    """2 (n - 1) / n S: what a rank sends in a ring all-reduce of S bytes."""
    return 2 * (ranks - 1) / ranks * size


def ring_messages(ranks: int) -> float:
    """2 (n - 1), one after another."""
    return 2.0 * (ranks - 1)


def tree_messages(ranks: int) -> float:
    """2 log2 n, one after another: up and down a binary tree."""
    return 2 * log2(ranks)


def server_bytes(size: float, ranks: int) -> float:
    """n S: what one parameter server receives, S from each worker."""
    return ranks * size


def ring_graph_singular_value(ranks: int) -> float:
    """|1 + 2 cos(2 pi / n)| / 3: second of a ring whose ranks average with both neighbours."""
    return abs(1 + 2 * cos(2 * pi / ranks)) / 3


def parallel_sgd_steps(variance: float, workers: int, accuracy: float) -> float:
    """sigma^2 / (n e^2): steps until sigma / sqrt(n T) is e, the linear speed-up."""
    return variance / (workers * accuracy * accuracy)


def local_sgd_steps(variance: float, workers: int, accuracy: float, period: int) -> float:
    """sigma^2 / (n e^2) + sigma sqrt(tau - 1) / e^1.5: averages every tau steps.

    Source: Wang and Joshi 2021.
    """
    drift = sqrt(variance * (period - 1) / accuracy**3)
    return parallel_sgd_steps(variance, workers, accuracy) + drift


def decentralised_steps(variance: float, workers: int, accuracy: float, second: float) -> float:
    """sigma^2 / (n e^2) + sigma sqrt(2 s^2 / (1 - s^2)) / e^1.5: averages over a graph whose
    second singular value is s. Source: Wang and Joshi 2021, with tau = 1."""
    spread = 2 * second**2 / (1 - second**2)
    return parallel_sgd_steps(variance, workers, accuracy) + sqrt(variance * spread / accuracy**3)


def unbiased_steps(variance: float, workers: int, accuracy: float, omega: float) -> float:
    """(1 + omega) sigma^2 / (n e^2): a quantiser whose variance is omega |x|^2.

    Source: Alistarh et al. 2017.
    """
    return (1 + omega) * parallel_sgd_steps(variance, workers, accuracy)


def quantiser_variance(entries: int, levels: int) -> float:
    """omega = min(d / s^2, sqrt(d) / s) of d entries with one norm and s = levels - 1 steps.

    Source: Alistarh et al. 2017, lemma 3.1.
    """
    steps = levels - 1
    return min(entries / steps**2, sqrt(entries) / steps)


def contractive_steps(variance: float, workers: int, accuracy: float, delta: float) -> float:
    """sigma^2 / (n e^2) + sigma / (delta e^1.5): top-k with error feedback, delta = k / d.

    Source: Stich et al. 2018.
    """
    left_out = sqrt(variance / accuracy**3) / delta
    return parallel_sgd_steps(variance, workers, accuracy) + left_out


def rounding(value: float, levels: int) -> tuple[float, float, float]:
    """The levels of 0 to 1 around a value, and the probability of the upper one that keeps its
    mean. Source: Alistarh et al. 2017."""
    step = 1 / (levels - 1)
    low = min(int(value / step), levels - 2) * step
    return low, low + step, (value - low) / step
