"""Parts of a transformer timed whole: attention, a rank's share of a layer, launches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from .cases import Case, time_prepared, time_with_peaks
from .timing import Bench, Call


class Layer(NamedTuple):
    """A gated-MLP layer as one tensor rank holds it."""

    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    tp: int


MODELS = (
    (2048, 8192, 32, 8, 64),
    (4096, 14336, 32, 8, 128),
    (8192, 28672, 64, 8, 128),
)
"""(hidden, ffn, heads, kv heads, head dimension) of Llama-3 1B, 8B and 70B."""
TINY = Layer(64, 128, 4, 4, 16, 1)
"""A layer whose kernels take less time than their launches."""
BATCHES = ((1, 2048), (2, 2048), (8, 2048), (1, 8192), (1, 32768))
"""(micro-batch, sequence)."""
SPREAD = 0.02
"""Standard deviation of matrices (Llama's initialisation)."""


def attention(quick: bool) -> Iterator[Case]:
    """Scaled dot-product attention forward and backward."""
    sequences = (32, 64) if quick else (2048, 4096, 8192, 16384, 32768)
    groups = [(4, 4, 16), (4, 2, 16)]
    if not quick:
        groups = [(32, 32, 128), (32, 8, 128), (32, 4, 128), (32, 32, 64)]
    for s, (heads, keys, width), causal in itertools.product(sequences, groups, (1, 0)):
        batch = 1 if quick else max(1, 16384 // s)
        sizes = {"batch": batch, "heads": heads, "kv_heads": keys, "head_dim": width}
        sizes |= {"sequence": s, "causal": causal}
        for op in ("forward", "backward"):
            run = time_prepared(_attention, op, *sizes.values(), width)
            yield Case(suite="attention", op=op, shape=sizes, run=run)
    yield from _latent_attention(quick)


def _latent_attention(quick: bool) -> Iterator[Case]:
    """The heads of DeepSeek-V3 on 8 tensor ranks: values narrower than queries and keys."""
    heads, width, values = (2, 24, 16) if quick else (16, 192, 128)
    for s, op in itertools.product((32,) if quick else (4096, 16384), ("forward", "backward")):
        batch = 1 if quick else 16384 // s
        sizes = {"batch": batch, "heads": heads, "kv_heads": heads, "head_dim": width}
        sizes |= {"sequence": s, "causal": 1}
        run = time_prepared(_attention, op, *sizes.values(), values)
        yield Case(suite="attention", op=f"latent_{op}", shape=sizes, run=run)


def _attention(device: str, op: str, *sizes: int) -> Call:
    import torch

    batch, heads, keys, width, s, causal, values = sizes
    options: dict[str, Any] = {"dtype": torch.bfloat16, "device": device, "requires_grad": True}
    q = torch.randn(batch, heads, s, width, **options)
    k, v = (torch.randn(batch, keys, s, d, **options) for d in (width, values))

    def forward() -> Any:
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=bool(causal), enable_gqa=heads != keys
        )

    if op.endswith("forward"):
        return forward
    y = forward()
    dy = torch.randn_like(y)
    return lambda: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True)


def layer(quick: bool) -> Iterator[Case]:
    """One rank's share of a transformer layer without its communication."""
    models = ((64, 128, 4, 2, 16),) if quick else MODELS
    batches = ((1, 16), (2, 32)) if quick else BATCHES
    for (h, f, a, g, d), tp, (b, s) in itertools.product(
        models, (1, 2) if quick else (1, 2, 4, 8), batches
    ):
        sizes = Layer(h, f, a // tp, max(g // tp, 1), d, tp)
        shape = {"hidden": h, "ffn": f, "heads": a, "kv_heads": g, "head_dim": d, "tp": tp}
        for op in ("forward", "forward_backward"):
            yield Case(
                suite="layer",
                op=op,
                shape={**shape, "batch": b, "sequence": s},
                run=partial(_timed_layer, op=op, sizes=sizes, batch=b, sequence=s),
            )


def _timed_layer(
    bench: Bench, op: str, sizes: Layer, batch: int, sequence: int
) -> Mapping[str, float]:
    """Seconds, and the peak memory that the layer and its activations take."""
    prepare = partial(layer_call, bench.device, op, sizes, batch, sequence)
    return {**time_with_peaks(prepare, bench), "tokens": batch * sequence}


def layer_call(device: str, op: str, sizes: Layer, batch: int, sequence: int) -> Call:
    """Pre-norm attention and gated MLP with residuals; sizes.ffn and hidden are of the model."""
    import torch

    options: dict[str, Any] = {"dtype": torch.bfloat16, "device": device, "requires_grad": True}
    weights = layer_weights(sizes, options)
    x = torch.randn(batch, sequence, sizes.hidden, **options)

    def forward() -> Any:
        return layer_forward(x, weights, sizes)

    if op == "forward":
        return forward
    dy = torch.randn(batch, sequence, sizes.hidden, dtype=torch.bfloat16, device=device)
    return lambda: torch.autograd.grad(forward(), (x, *weights), dy)


def layer_weights(sizes: Layer, options: dict[str, Any]) -> list[Any]:
    """Norm, QKV, projection, norm, gate and up, down."""
    h, ffn = sizes.hidden, sizes.ffn // sizes.tp
    inner = sizes.heads * sizes.head_dim
    qkv = inner + 2 * sizes.kv_heads * sizes.head_dim
    shapes = ((h,), (qkv, h), (h, inner), (h,), (2 * ffn, h), (h, ffn))
    return [weight(*shape, **options) for shape in shapes]


def weight(*shape: int, **options: Any) -> Any:
    """A matrix of small normal numbers, or the scale of a norm."""
    import torch

    if len(shape) == 1:
        return torch.ones(*shape, **options)
    return torch.nn.init.normal_(torch.empty(*shape, **options), std=SPREAD)


def layer_forward(x: Any, weights: list[Any], sizes: Layer) -> Any:
    """The output of the layer for hidden states x [batch, sequence, hidden]."""
    import torch

    functional = torch.nn.functional
    norm1, w_qkv, w_out, norm2, w_up, w_down = weights
    a, g, d = sizes.heads, sizes.kv_heads, sizes.head_dim
    y = functional.linear(functional.rms_norm(x, (sizes.hidden,), norm1), w_qkv)
    y = y.view(*y.shape[:2], a + 2 * g, d).transpose(1, 2)
    q, k, v = y.split((a, g, g), dim=1)
    y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=a != g)
    x = x + functional.linear(y.transpose(1, 2).flatten(2), w_out)
    y = functional.linear(functional.rms_norm(x, (sizes.hidden,), norm2), w_up)
    gate, up = y.chunk(2, dim=-1)
    return x + functional.linear(functional.silu(gate) * up, w_down)


def launch(quick: bool) -> Iterator[Case]:
    """Layers so small that launches set the pace, and one kernel: eager and from a graph."""
    shape = {"hidden": TINY.hidden, "batch": 1, "sequence": 16}
    for op, graph in itertools.product(("forward", "forward_backward"), (False, True)):
        yield Case(
            suite="launch",
            op=f"layer_{op}_{'graph' if graph else 'eager'}",
            shape=shape,
            run=time_prepared(_tiny_layer, op, graph=graph),
        )
    for graph in (False, True):
        yield Case(
            suite="launch",
            op=f"kernel_{'graph' if graph else 'eager'}",
            shape={"elements": 1},
            run=time_prepared(_one_kernel, graph=graph),
        )


def _tiny_layer(device: str, op: str) -> Call:
    return layer_call(device, op, TINY, 1, 16)


def _one_kernel(device: str) -> Call:
    import torch

    x = torch.zeros(1, device=device)
    return lambda: x.add_(1)
