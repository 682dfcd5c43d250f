"""Memory-bound work to time: norms, activations, loss, optimizer and host copies.

`bytes` counts each tensor that a fused kernel must read or write, once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from .cases import Case, time_prepared
from .timing import Call

TRAFFIC = {
    "rms_norm": (4, 10),
    "layer_norm": (4, 10),
    "swiglu": (6, 16),
    "gelu": (4, 10),
    "add": (6, 6),
}
"""Bytes per output element, forward and forward with backward, in 16 bits: forward reads the input
(SwiGLU and add two) and writes the output; backward reads input and gradient and writes a gradient
for each input (an addition passes its gradient on)."""
ADAM_BYTES = 28
"""fp32 parameter, gradient and two moments read, all but the gradient written."""
LOSS_BYTES = 4
"""bf16 logits read and their gradients written, at least."""


def memory(quick: bool) -> Iterator[Case]:
    """Norms, activations and a residual addition, eager kernels."""
    tokens = (16, 64) if quick else (1024, 4096, 16384)
    widths = (64, 256) if quick else (2048, 4096, 8192, 14336)
    for m, hidden, name in itertools.product(tokens, widths, TRAFFIC):
        for op, traffic in zip(("forward", "forward_backward"), TRAFFIC[name], strict=True):
            if (name, op) == ("add", "forward_backward"):
                continue
            yield Case(
                suite="memory",
                op=f"{name}_{op}",
                shape={"m": m, "hidden": hidden, "bytes": traffic * m * hidden},
                run=time_prepared(_elementwise, name, op, m, hidden, graph=True),
            )


def _elementwise(device: str, name: str, op: str, m: int, hidden: int) -> Call:
    import torch

    width = 2 * hidden if name == "swiglu" else hidden
    options: dict[str, Any] = {"dtype": torch.bfloat16, "device": device}
    x = torch.randn(m, width, **options, requires_grad=op == "forward_backward")
    other, scale = torch.randn(m, hidden, **options), torch.ones(hidden, **options)

    def forward() -> Any:
        functional = torch.nn.functional
        if name == "rms_norm":
            return functional.rms_norm(x, (hidden,), scale)
        if name == "layer_norm":
            return functional.layer_norm(x, (hidden,), scale)
        if name == "gelu":
            return functional.gelu(x, approximate="tanh")
        if name == "swiglu":
            gate, up = x.chunk(2, dim=-1)
            return functional.silu(gate) * up
        return x + other

    if op == "forward":
        return forward
    return lambda: torch.autograd.grad(forward(), x, other)


def loss(quick: bool) -> Iterator[Case]:
    """Cross-entropy forward and backward over whole vocabularies."""
    tokens = (16,) if quick else (2048, 8192)
    sizes = (128, 512) if quick else (32_000, 50_304, 128_256, 262_144)
    for m, vocabulary in itertools.product(tokens, sizes):
        shape = {"m": m, "vocabulary": vocabulary, "bytes": LOSS_BYTES * m * vocabulary}
        yield Case(
            suite="loss",
            op="cross_entropy_forward_backward",
            shape=shape,
            run=time_prepared(_loss, m, vocabulary),
        )


def _loss(device: str, m: int, vocabulary: int) -> Call:
    import torch

    logits = torch.randn(m, vocabulary, dtype=torch.bfloat16, device=device, requires_grad=True)
    target = torch.randint(vocabulary, (m,), device=device)

    def call() -> Any:
        value = torch.nn.functional.cross_entropy(logits.float(), target)
        return torch.autograd.grad(value, logits)

    return call


def optimizer(quick: bool) -> Iterator[Case]:
    """Fused AdamW on fp32 parameters."""
    for elements in (4096, 65536) if quick else (10**7, 3 * 10**7, 10**8, 3 * 10**8, 10**9):
        yield Case(
            suite="optimizer",
            op="adamw_fused",
            dtype="fp32",
            shape={"elements": elements, "bytes": ADAM_BYTES * elements},
            run=time_prepared(_adam, elements),
        )


def _adam(device: str, elements: int) -> Call:
    import torch

    parameter = torch.nn.Parameter(torch.randn(elements, device=device))
    parameter.grad = torch.randn_like(parameter)
    adam = torch.optim.AdamW([parameter], fused=True)
    step: Call = adam.step
    return step


def copy(quick: bool) -> Iterator[Case]:
    """Pinned host memory to the GPU and back."""
    for size, op in itertools.product(
        (4096,) if quick else (2**20, 2**24, 2**28, 2**30), ("host_to_device", "device_to_host")
    ):
        yield Case(
            suite="copy",
            op=op,
            dtype="uint8",
            shape={"bytes": size},
            run=time_prepared(_copy, op, size),
        )


def _copy(device: str, op: str, size: int) -> Call:
    import torch

    pin = device == "cuda"
    host = torch.empty(size, dtype=torch.uint8, pin_memory=pin)
    remote = torch.empty(size, dtype=torch.uint8, device=device)
    if op == "host_to_device":
        return lambda: remote.copy_(host, non_blocking=True)
    return lambda: host.copy_(remote, non_blocking=True)
