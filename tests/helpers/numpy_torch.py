"""As much of torch as the measurement of a machine calls, over numpy: no gradients, no devices.

What is drawn is 1, 2, 3 and so on, and large arrays take no memory, so that values and sizes can be
written down by hand. A group of processes is one of them that remembers what it was asked. The
tests that need torch itself run where it is installed (test_measure.py, test_torch_memory.py).
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

SMALL = 10_000
"""Elements up to which an array has a memory of its own."""


class Tensor:
    """An array with the methods of a tensor."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values, float)
        self.grad: Any = None

    shape = property(lambda self: self.values.shape)

    def __add__(self, other: Any) -> Tensor:
        return Tensor(self.values + plain(other))

    __iadd__ = __add__

    def __mul__(self, other: Any) -> Tensor:
        return Tensor(self.values * plain(other))

    def __truediv__(self, other: Any) -> Tensor:
        return Tensor(self.values / plain(other))

    def __matmul__(self, other: Any) -> Tensor:
        return Tensor(self.values @ plain(other))

    def __getitem__(self, at: Any) -> Tensor:
        return Tensor(self.values[at])

    def __iter__(self) -> Iterator[Tensor]:
        return map(Tensor, self.values)

    def __float__(self) -> float:
        return float(self.values.item())

    def __int__(self) -> int:
        return int(self.values.item())

    def same(self, *_: Any, **__: Any) -> Tensor:
        """Of another type, or apart from gradients: the same."""
        return self

    to = float = detach = register_post_accumulate_grad_hook = same

    def backward(self) -> None:
        """Nothing."""

    def t(self) -> Tensor:
        return Tensor(self.values.T)

    def abs(self) -> Tensor:
        return Tensor(abs(self.values))

    def amax(self) -> Tensor:
        return Tensor(self.values.max())

    def view(self, *shape: int) -> Tensor:
        return Tensor(self.values.reshape(shape))

    def transpose(self, one: int, other: int) -> Tensor:
        return Tensor(self.values.swapaxes(one, other))

    def flatten(self, first: int = 0, last: int = -1) -> Tensor:
        last %= self.values.ndim
        shape = self.shape[:first], (-1,), self.shape[last + 1 :]
        return Tensor(self.values.reshape(sum(shape, ())))

    def chunk(self, parts: int, dim: int = 0) -> list[Tensor]:
        return [Tensor(part) for part in np.split(self.values, parts, dim)]

    def split(self, sizes: Sequence[int], dim: int) -> list[Tensor]:
        return [Tensor(part) for part in np.split(self.values, np.cumsum(sizes)[:-1], dim)]

    def copy_(self, other: Tensor, **_: Any) -> Tensor:
        self.values = np.broadcast_to(other.values, self.shape)
        return self

    def add_(self, other: Any) -> Tensor:
        self.values = self.values + plain(other)
        return self


def plain(value: Any) -> Any:
    """Numbers of a tensor or a number."""
    return value.values if isinstance(value, Tensor) else value


def _filled(value: float, shape: Sequence[Any]) -> Tensor:
    shape = tuple(shape[0]) if shape and not isinstance(shape[0], int) else tuple(shape)
    return Tensor(np.broadcast_to(float(value), shape))


def _counted(*shape: int, **_: Any) -> Tensor:
    size = math.prod(shape)
    return _filled(1, shape) if size > SMALL else Tensor(np.arange(1, size + 1).reshape(shape))


def rms_norm(x: Tensor, _: Any, scale: Tensor) -> Tensor:
    mean = (x.values**2).mean(axis=-1, keepdims=True)
    return Tensor(x.values / np.sqrt(mean + 1e-12) * scale.values)


def attention(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, enable_gqa: bool) -> Tensor:
    groups = q.shape[1] // k.shape[1]
    assert enable_gqa == (groups > 1)
    keys, values = (np.repeat(one.values, groups, axis=1) for one in (k, v))
    scores = q.values @ keys.swapaxes(-1, -2) / q.shape[-1] ** 0.5
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:]), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return Tensor(weights / weights.sum(axis=-1, keepdims=True) @ values)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    assert logits.shape[:-1] == targets.shape
    chosen = np.take_along_axis(logits.values, targets.values.astype(int)[:, None], axis=1)
    return Tensor((np.log(np.exp(logits.values).sum(axis=1)) - chosen[:, 0]).mean())


def _into(out: Tensor, value: Tensor) -> Tensor:
    assert out.shape == value.shape
    return out.copy_(value)


class Event:
    """A moment."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.moment = time.perf_counter()

    def elapsed_time(self, other: Event) -> float:
        return 1e3 * (other.moment - self.moment)


class Graph:
    """Plays again how often a call was made while it was recorded."""

    def replay(self) -> None:
        """Nothing."""


class Group(SimpleNamespace):
    """torch.distributed as the process of some rank sees it; `asked` is what it was asked."""

    ReduceOp = SimpleNamespace(MIN="min", MAX="max")
    isend, irecv = "isend", "irecv"

    def __init__(self, rank: int, world: int) -> None:
        super().__init__(rank=rank, world=world, asked=[], barriers=0, waited=0)
        for name in ("all_reduce", "broadcast", "all_to_all_single", "all_gather_into_tensor",
                     "reduce_scatter_tensor"):  # fmt: skip
            setattr(self, name, self._asked(name))

    def _asked(self, name: str) -> Any:
        def ask(*tensors: Any, group: Any = None, **_: Any) -> Any:
            sizes = [one.values.size for one in tensors if isinstance(one, Tensor)]
            self.asked.append((name, sizes, group))
            return self

        return ask

    def get_rank(self) -> int:
        return self.rank

    def get_world_size(self) -> int:
        return self.world

    def new_group(self, ranks: list[int]) -> tuple[int, ...]:
        return tuple(ranks)

    def barrier(self) -> None:
        self.barriers += 1

    def wait(self) -> None:
        self.waited += 1

    def all_gather_object(self, every: list[Any], own: Any) -> None:
        every[:] = [own] * len(every)

    def P2POp(self, way: str, tensor: Tensor, peer: int, group: Any) -> Group:
        self.asked.append((way, [tensor.values.size], peer))
        return self

    def batch_isend_irecv(self, each: list[Any]) -> list[Any]:
        return each


def modules(rank: int = 0, world: int = 1) -> dict[str, Any]:
    """The modules by name."""
    formats = dict.fromkeys(("bfloat16", "float32", "float64", "float8_e4m3fn", "uint8", "int32"))
    nothing = contextlib.nullcontext()
    functional = SimpleNamespace(
        rms_norm=rms_norm,
        layer_norm=lambda x, _, scale: (
            Tensor((x.values - x.values.mean(-1, keepdims=True)) / x.values.std(-1, keepdims=True))
            * scale
        ),
        gelu=lambda x, approximate: Tensor(
            0.5 * x.values * (1 + np.tanh((2 / np.pi) ** 0.5 * (x.values + 0.044715 * x.values**3)))
        ),
        silu=lambda x: Tensor(x.values / (1 + np.exp(-x.values))),
        linear=lambda x, w: Tensor(x.values @ w.values.T),
        embedding=lambda ids, table: Tensor(table.values[ids.values.astype(int)]),
        cross_entropy=cross_entropy,
        scaled_dot_product_attention=attention,
    )
    cuda = SimpleNamespace(
        is_available=lambda: False, Event=Event, synchronize=lambda: None, CUDAGraph=Graph,
        Stream=lambda: SimpleNamespace(wait_stream=lambda other: None),
        current_stream=lambda: SimpleNamespace(wait_stream=lambda other: None),
        stream=lambda one: nothing, graph=lambda one: nothing, empty_cache=lambda: None,
        memory_allocated=lambda: 100, max_memory_allocated=lambda: 700,
        memory_reserved=lambda: 200, max_memory_reserved=lambda: 1200,
        reset_peak_memory_stats=lambda: None,
    )  # fmt: skip
    torch = SimpleNamespace(
        **formats, __version__="numpy", cuda=cuda, no_grad=lambda: nothing, distributed=None,
        randn=_counted, ones=lambda *shape, **_: _filled(1, shape),
        zeros=lambda *shape, **_: _filled(0, shape), empty=lambda *shape, **_: _filled(0, shape),
        randint=lambda most, shape, **_: Tensor(np.full(shape, most - 1)),
        arange=lambda low, high, **_: Tensor(np.arange(low, high)),
        tensor=lambda values, **_: Tensor(values), cat=lambda each: Tensor(
            np.concatenate([one.values for one in each])
        ),
        randn_like=lambda x: _counted(*x.shape), zeros_like=lambda x: _filled(0, x.shape),
        mm=lambda x, w, out: _into(out, x @ w),
        addmm=lambda base, x, w, **_: base + x @ w,
        _scaled_mm=lambda x, w, scale_a, scale_b, **_: x @ w * scale_a * scale_b,
        _foreach_copy_=lambda into, of: [_into(*pair) for pair in zip(into, of, strict=True)],
        _foreach_zero_=lambda each: None,
        autograd=SimpleNamespace(grad=lambda of, to, weight=None, **_: (of, to, weight)),
        nn=SimpleNamespace(
            functional=functional, Parameter=lambda x: Tensor(x.values),
            init=SimpleNamespace(normal_=lambda x, std: x),
        ),
        optim=SimpleNamespace(
            AdamW=lambda each, fused: SimpleNamespace(
                step=lambda: sum(one.values.size for one in each)
            )
        ),
    )  # fmt: skip
    torch.distributed = Group(rank, world)
    return {"torch": torch, "torch.distributed": torch.distributed}
