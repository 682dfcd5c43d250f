"""Whole training steps on one GPU: small Llama-like models, with their peak memory.

bf16 weights and activations. A gradient is added to its fp32 buffer as soon as autograd has made
it, and freed; fused AdamW updates fp32 copies of the weights, which are then rounded into the
weights: 2 + 4 + 12 bytes a parameter. Micro-batches follow one another; the loss is fp32.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from .cases import Case, time_with_peaks
from .cases_layer import BATCHES, MODELS, Layer, layer_forward, layer_weights, weight
from .timing import Bench

DEPTHS = ((8, 64_000), (4, 32_000), (2, 32_000))
"""(layers, vocabulary) of each of MODELS: all cases fit 80 GB."""
QUICK = ((64, 128, 4, 2, 16),)


class TrainingStep(NamedTuple):
    """What one optimizer step trains on."""

    layer: Layer
    layers: int
    vocabulary: int
    batch: int
    """Sequences of a micro-batch."""
    sequence: int
    micro_batches: int
    recompute: int
    """1 to run every layer again in the backward pass."""

    @property
    def shape(self) -> dict[str, int]:
        """Columns of a row."""
        of_layer = {name: getattr(self.layer, name) for name in Layer._fields if name != "tp"}
        return of_layer | {name: getattr(self, name) for name in self._fields[1:]}


class TrainingWeights(NamedTuple):
    """Parameters of a model, leaves of autograd."""

    embedding: Any
    layers: list[list[Any]]
    norm: Any
    head: Any

    def flat(self) -> list[Any]:
        return [self.embedding, *itertools.chain(*self.layers), self.norm, self.head]


def training(quick: bool) -> Iterator[Case]:
    """Steps of several models, micro-batches and sequences, without and with recompute."""
    models = QUICK if quick else MODELS
    depths = ((2, 256),) if quick else DEPTHS
    batches = ((1, 16), (2, 32)) if quick else BATCHES
    shapes = itertools.product(zip(models, depths, strict=True), batches, (0, 1))
    for ((h, f, a, g, d), (layers, vocabulary)), (b, s), recompute in shapes:
        sizes = TrainingStep(Layer(h, f, a, g, d, 1), layers, vocabulary, b, s, 2, recompute)
        run = partial(timed_step, prepare=training_step, sizes=sizes)
        yield Case(suite="training", op="step", shape=sizes.shape, run=run)


def timed_step(
    bench: Bench, prepare: Callable[[str, TrainingStep], Callable[[], Any]], sizes: TrainingStep
) -> Mapping[str, float]:
    """Seconds of a step, and the peak memory of weights, states, activations and temporaries, those
    of the first step included."""
    tokens = sizes.micro_batches * sizes.batch * sizes.sequence
    return {**time_with_peaks(partial(prepare, bench.device, sizes), bench), "tokens": tokens}


def training_step(device: str, sizes: TrainingStep) -> Callable[[], Any]:
    """Allocates a model and its optimizer; the call trains it by one step on the same random tokens
    every time and returns the loss."""
    import torch

    weights = _weights(device, sizes)
    update = mixed_precision(weights.flat())
    shape = (sizes.micro_batches, sizes.batch, sizes.sequence + 1)
    tokens = torch.randint(sizes.vocabulary, shape, device=device)

    def step() -> Any:
        total = torch.zeros((), device=device)
        for ids in tokens:
            loss = _loss(weights, ids, sizes) / sizes.micro_batches
            loss.backward()
            total += loss.detach()
        update()
        return total

    return step


def _weights(device: str, sizes: TrainingStep) -> TrainingWeights:
    import torch

    options: dict[str, Any] = {"dtype": torch.bfloat16, "device": device, "requires_grad": True}
    table = (sizes.vocabulary, sizes.layer.hidden)
    layers = [layer_weights(sizes.layer, options) for _ in range(sizes.layers)]
    norm = weight(sizes.layer.hidden, **options)
    return TrainingWeights(weight(*table, **options), layers, norm, weight(*table, **options))


def mixed_precision(weights: list[Any]) -> Callable[[], None]:
    """Makes backward passes add the gradients of bf16 weights to fp32 buffers; the call updates the
    weights by them and clears them."""
    import torch

    masters = [torch.nn.Parameter(w.detach().float()) for w in weights]
    for w, master in zip(weights, masters, strict=True):
        master.grad = torch.zeros_like(master)
        w.register_post_accumulate_grad_hook(partial(_accumulate, master.grad))
    adam = torch.optim.AdamW(masters, fused=True)

    def update() -> None:
        adam.step()
        with torch.no_grad():
            torch._foreach_copy_(weights, masters)
            torch._foreach_zero_([master.grad for master in masters])

    return update


def _accumulate(buffer: Any, w: Any) -> None:
    """Adds the gradient of a weight to its buffer and frees it."""
    buffer.add_(w.grad)
    w.grad = None


def _loss(weights: TrainingWeights, ids: Any, sizes: TrainingStep) -> Any:
    """Mean cross-entropy of predicting each next token; ids [batch, sequence + 1]."""
    import torch

    functional = torch.nn.functional
    x = functional.embedding(ids[:, :-1], weights.embedding)
    run, whole = _checkpoint() if sizes.recompute else (layer_forward, contextlib.nullcontext())
    with whole:
        for layer in weights.layers:
            x = run(x, layer, sizes.layer)
    x = functional.rms_norm(x, (sizes.layer.hidden,), weights.norm)
    # One expression, so that no name keeps the bf16 logits while their loss is computed.
    return functional.cross_entropy(
        functional.linear(x, weights.head).flatten(0, 1).float(), ids[:, 1:].flatten()
    )


def _checkpoint() -> tuple[Callable[..., Any], Any]:
    """A layer that keeps its input only, and the context that makes all of it run again: torch
    would otherwise leave out its last product, which other stacks do not."""
    from torch.utils import checkpoint

    run = partial(
        checkpoint.checkpoint, layer_forward, use_reentrant=False, preserve_rng_state=False
    )
    return run, checkpoint.set_checkpoint_early_stop(False)
