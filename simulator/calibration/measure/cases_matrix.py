"""Matrix products to time: GEMMs of common layers and their gradients, fp8, experts.

Legend: Y[m, n] = X[m, k] W[k, n]; W is stored as [n, k], as torch.nn.Linear has it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from .cases import Case, time_prepared
from .timing import Bench, Call, summary

MODELS = (
    (2048, 2048, 5632, True),
    (4096, 1024, 14336, True),
    (5120, 5120, 20480, False),
    (8192, 1024, 28672, True),
    (12288, 12288, 49152, False),
)
"""(hidden, width of keys, ffn, gated MLP): 1B, Llama-3 8B, GPT 13B, Llama-3 70B, GPT-3 175B."""
TENSOR_SIZES = (1, 2, 4, 8)
TOKENS = (4096, 1024, 16384)
EXPERTS = ((128, 768, 2048), (8, 14336, 4096), (32, 4096, 7168), (64, 1408, 2048))
"""(experts of a rank, n, k): Qwen3-30B, Mixtral, DeepSeek-V3's gate and up on 8 ranks, Moonlight;
from 8 rows an expert, which memory binds, to thousands."""
LOOP_SHAPES = (
    (4096, 4096, 4096),
    (4096, 28672, 4096),
    (16384, 6144, 4096),
    (16384, 10240, 8192),
    (16384, 57344, 8192),
)
"""(m, n, k) of long loops; each is timed alone as well."""
CACHE_BYTES = 256e6
"""Weights are cycled through copies of this many bytes, more than any L2 cache."""


def shapes() -> list[tuple[int, int]]:
    """(n, k) of QKV, projection and the two MLP GEMMs of each model and tensor size."""
    found: dict[tuple[int, int], None] = {}
    for (hidden, keys, ffn, gated), tp in itertools.product(MODELS, TENSOR_SIZES):
        up = 2 * ffn if gated else ffn
        pairs = [((hidden + 2 * keys) // tp, hidden), (hidden, hidden // tp)]
        pairs += [(up // tp, hidden), (hidden, ffn // tp)]
        found.update(dict.fromkeys(pairs))
    return list(found)


def gemm(quick: bool) -> Iterator[Case]:
    """Forward, input gradient and weight gradient in bf16."""
    sizes = [(32, 64), (64, 32), (64, 128), (96, 64)] if quick else shapes()
    for m in (16, 64) if quick else TOKENS:
        for n, k in sizes:
            for op in ("forward", "dgrad", "wgrad", "wgrad_fp32"):
                yield _gemm_case(op, m, n, k)


def _gemm_case(op: str, m: int, n: int, k: int) -> Case:
    return Case(
        suite="gemm",
        op=op,
        shape={"m": m, "n": n, "k": k},
        run=time_prepared(_gemm, op, m, n, k, graph=True),
    )


def _gemm(device: str, op: str, m: int, n: int, k: int) -> Call:
    """X W^T, dY W or dY^T X with preallocated results and cycled weights; with an fp32 gradient,
    dY^T X added to one that is there."""
    import torch

    options: dict[str, Any] = {"dtype": torch.bfloat16, "device": device}
    copies = max(1, min(8, round(CACHE_BYTES / (2 * n * k)))) if device == "cuda" else 1
    x, dy = torch.randn(m, k, **options), torch.randn(m, n, **options)
    weights = itertools.cycle([torch.randn(n, k, **options) for _ in range(copies)])
    if op == "forward":
        return lambda: torch.mm(x, next(weights).t(), out=dy)
    if op == "dgrad":
        return lambda: torch.mm(dy, next(weights), out=x)
    if op == "wgrad":
        return lambda: torch.mm(dy.t(), x, out=next(weights))
    main = torch.zeros(n, k, dtype=torch.float32, device=device)
    return lambda: torch.addmm(main, dy.t(), x, out_dtype=torch.float32)


def sustained(quick: bool) -> Iterator[Case]:
    """Forward alone, and in a loop of 10 s, when clocks have settled."""
    for m, n, k in [(64, 96, 64)] if quick else LOOP_SHAPES:
        yield _gemm_case("forward", m, n, k)
        yield Case(
            suite="sustained",
            op="forward",
            shape={"m": m, "n": n, "k": k},
            run=partial(_sustained, m=m, n=n, k=k),
        )


def _sustained(bench: Bench, m: int, n: int, k: int) -> Mapping[str, float]:
    return _loop(_gemm(bench.device, "forward", m, n, k), bench)


def _loop(call: Call, bench: Bench) -> Mapping[str, float]:
    """Seconds of a call over the second half of a long loop; the first half warms the chip."""
    from .timing import time_call

    calls = max(1, round(0.05 / time_call(call, bench).median))
    began, seconds = time.perf_counter(), []
    while (now := time.perf_counter()) - began < bench.sustained_seconds:
        _repeat(call, calls, bench.device)
        seconds.append((time.perf_counter() - now) / calls)
    return summary(seconds[len(seconds) // 2 :]).columns()


def _repeat(call: Call, calls: int, device: str) -> None:
    for _ in range(calls):
        call()
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def fp8(quick: bool) -> Iterator[Case]:
    """e4m3 GEMMs alone and with the quantisation of their input."""
    sizes = [(32, 64), (64, 32)] if quick else shapes()[::3]
    for m in (16,) if quick else TOKENS:
        for n, k in sizes:
            for op in ("forward", "forward_quantised", "forward_rowwise"):
                yield Case(
                    suite="gemm",
                    op=op,
                    dtype="fp8",
                    shape={"m": m, "n": n, "k": k},
                    run=time_prepared(_fp8, op, m, n, k, graph=True),
                )


def _fp8(device: str, op: str, m: int, n: int, k: int) -> Call:
    """A scale for each matrix, or for each row of X and of W; the quantisation of X finds its
    largest value and casts."""
    import torch

    x = torch.randn(m, k, dtype=torch.bfloat16, device=device)
    rows, columns = ((m, 1), (1, n)) if op == "forward_rowwise" else ((), ())
    scale_x, scale_w = (torch.ones(s, dtype=torch.float32, device=device) for s in (rows, columns))
    w = torch.randn(n, k, dtype=torch.bfloat16, device=device).to(torch.float8_e4m3fn)
    x8 = x.to(torch.float8_e4m3fn)
    largest = 448.0  # of e4m3

    def multiply(values: Any, scale: Any) -> Any:
        arguments = {"scale_a": scale, "scale_b": scale_w, "out_dtype": torch.bfloat16}
        return torch._scaled_mm(values, w.t(), **arguments)

    def quantise() -> Any:
        scale = x.abs().amax().float() / largest
        return multiply((x / scale).to(torch.float8_e4m3fn), scale)

    return quantise if op == "forward_quantised" else lambda: multiply(x8, scale_x)


def grouped(quick: bool) -> Iterator[Case]:
    """Expert GEMMs of equally many tokens each: one grouped kernel, or a loop without it."""
    sizes = [(4, 64, 32, 32)] if quick else []
    if not quick:
        for experts, n, k in EXPERTS:
            sizes += [(experts, m, n, k) for m in (4096, 65536, 16384, 1024)]
    for experts, m, n, k in sizes:
        for op in ("forward", "backward"):
            yield Case(
                suite="grouped",
                op=op,
                shape={"m": m, "n": n, "k": k, "experts": experts},
                run=time_prepared(_grouped, op, experts, m, n, k),
            )


def _grouped(device: str, op: str, experts: int, m: int, n: int, k: int) -> Call:
    import torch

    options: dict[str, Any] = {"dtype": torch.bfloat16, "device": device, "requires_grad": True}
    x, weights = torch.randn(m, k, **options), torch.randn(experts, n, k, **options)
    ends = torch.arange(1, experts + 1, dtype=torch.int32, device=device) * (m // experts)

    def forward() -> Any:
        w = weights.transpose(-2, -1)
        if device == "cuda" and hasattr(torch, "_grouped_mm"):
            return torch._grouped_mm(x, w, offs=ends)
        return torch.cat([a @ b for a, b in zip(x.chunk(experts), w, strict=True)])

    if op == "forward":
        return forward
    y = forward()
    dy = torch.randn_like(y)
    return lambda: torch.autograd.grad(y, (x, weights), dy, retain_graph=True)
