"""What PyTorch's caching allocator holds over what tensors take, where lengths of samples vary.

Rules of CUDACachingAllocator.cpp (PyTorch 2.1, no options): sizes are multiples of 512 B; of above
1 MiB, segments of 20 MiB below 10 MiB, else multiples of 2 MiB; the smallest free block that is
large enough is taken, and cut where over 1 MiB remains; neighbours are joined; nothing is given
back. Allocated are the tensors of LoRA under recompute, as eager PyTorch makes and drops them.

    python tests/benchmarks/caching_allocator.py
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, insort
from statistics import mean

MIB = 1 << 20
SHAPE, SCALE, SHORTEST = 1.6, 2020.0, 91
"""A gamma distribution of lengths with the mean, deviation and least length of a classification of
news articles (3,234, 2,548 and 91 tokens); longer samples than the cut are left out."""
# Hidden size, ffn, vocabulary, layers, keys over queries, logits in fp32.
MODELS = {
    "7B, 152k words": (4096, 11008, 151936, 32, 1.0, False),
    "1.8B, 152k words": (2048, 5504, 151936, 24, 1.0, False),
    "6B, 64k words": (4096, 11008, 64000, 32, 0.125, True),
    "7B, 37k words": (4096, 14336, 36608, 32, 0.25, True),
}
CUTS, STEPS, ORDERS = (512, 1024, 2048, 4096, 8192), 250, 2


class Allocator:
    """Large blocks, and how many bytes they and their segments have had at most."""

    def __init__(self) -> None:
        self.free: list[tuple[int, int]] = []
        self.size: dict[int, int] = {}
        self.sides: dict[int, list[int]] = {}
        self.idle: set[int] = set()
        self.held = self.used = self.peak = 0

    def take(self, size: float) -> int:
        """The block of a new tensor; 0 of a small one."""
        size = -(-int(size) // 512) * 512
        if size <= MIB:
            return 0
        at = bisect_left(self.free, (size, 0))
        block = self.free.pop(at)[1] if at < len(self.free) else self._segment(size)
        self.idle.discard(block)
        rest = self.size[block] - size
        if rest > MIB:
            before, after = self.sides[block]
            new = self._block(rest, block, after)
            self.size[block], self.sides[block] = size, [before, new]
            if after:
                self.sides[after][0] = new
            self._give(new)
        self.used += self.size[block]
        self.peak = max(self.peak, self.used)
        return block

    def drop(self, *blocks: int) -> None:
        """Free tensors; neighbours in a segment are joined."""
        for block in filter(None, blocks):
            self.used -= self.size[block]
            for side in (0, 1):
                other = self.sides[block][side]
                if other in self.idle:
                    self.free.pop(bisect_left(self.free, (self.size[other], other)))
                    self.idle.discard(other)
                    self.size[block] += self.size[other]
                    self.sides[block][side] = beyond = self.sides[other][side]
                    if beyond:
                        self.sides[beyond][1 - side] = block
            self._give(block)

    def _segment(self, size: int) -> int:
        segment = 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        self.held += segment
        return self._block(segment, 0, 0)

    def _block(self, size: int, before: int, after: int) -> int:
        block = len(self.size) + 1
        self.size[block], self.sides[block] = size, [before, after]
        return block

    def _give(self, block: int) -> None:
        insort(self.free, (self.size[block], block))
        self.idle.add(block)


def forward(a: Allocator, h: float, k: float, f: float, keep: bool) -> tuple[int, list[int]]:
    """The output of a layer, and what its backward pass waits for where it is to `keep` it."""
    copy, scaled, normed = a.take(2 * h), a.take(2 * h), a.take(h)
    a.drop(scaled)
    products, dropped, mask = a.take(h + 2 * k), a.take(h), a.take(h / 2)
    added, summed = a.take(h + 2 * k), a.take(h + 2 * k)
    a.drop(products, added)
    wide = [a.take(2 * h), a.take(2 * h), a.take(h), a.take(2 * k), a.take(2 * k), a.take(k)]
    queries, keys = wide.pop(2), wide.pop()
    a.drop(*wide)
    attended, projected = a.take(h), a.take(h)
    middle = a.take(h)
    a.drop(projected)
    copy2, scaled, normed2 = a.take(2 * h), a.take(2 * h), a.take(h)
    a.drop(scaled)
    gate, value = a.take(f), a.take(f)
    a.drop(normed2)
    active, product, down = a.take(f), a.take(f), a.take(h)
    a.drop(product)
    out = a.take(h)
    a.drop(down)
    kept = [copy, normed, dropped, mask, summed, queries, keys, attended, middle, copy2]
    kept += [gate, value, active]
    if not keep:
        a.drop(*kept)
    return out, kept


def backward(a: Allocator, gradient: int, h: float, k: float, f: float) -> int:
    """The gradient of a layer's input, its forward pass run again."""
    out, kept = forward(a, h, k, f, keep=True)
    *attention, middle, copy2, gate, value, active = kept
    a.drop(out)
    product, of_active, of_value = a.take(f), a.take(f), a.take(f)
    a.drop(product, active, value)
    first = a.take(h)
    a.drop(of_value)
    of_gate = a.take(f)
    a.drop(of_active, gate)
    second, both = a.take(h), a.take(h)
    a.drop(of_gate, first, second)
    wide = [a.take(2 * h), a.take(2 * h), a.take(h)]
    between = a.take(h)
    a.drop(*wide, copy2, both, gradient, middle)
    of_attended, of_all = a.take(h), a.take(h + 2 * k)
    a.drop(of_attended)
    parts = [a.take(h), a.take(h), a.take(h)]
    a.drop(of_all, *attention[1:])
    wide = [a.take(2 * h), a.take(2 * h)]
    new = a.take(h)
    a.drop(*wide, *parts, attention[0], between)
    return new


def step(a: Allocator, tokens: int, model: tuple[int, int, int, int, float, bool]) -> None:
    """A sample's forward pass, loss and backward pass."""
    hidden, ffn, words, layers, shared, fp32 = model
    h, f, k = 2 * hidden * tokens, 2 * ffn * tokens, 2 * hidden * tokens * shared
    inputs = [a.take(h)]
    for _ in range(layers):
        inputs.append(forward(a, h, k, f, keep=False)[0])
    logits = a.take(2 * words * tokens)
    if fp32:
        narrow, logits = logits, a.take(4 * words * tokens)
        a.drop(narrow)
    one = words * (tokens - 1)
    shifted = a.take((4 if fp32 else 2) * one)
    wide = 0 if fp32 else a.take(4 * one)
    probabilities = a.take(4 * one)
    a.drop(shifted, wide)
    gradient = a.take(4 * one)
    a.drop(probabilities)
    padded = a.take((4 if fp32 else 2) * words * tokens)
    a.drop(gradient)
    gradient = a.take(h)
    a.drop(padded, logits, inputs.pop())
    for _ in range(layers):
        gradient = backward(a, gradient, h, k, f)
        a.drop(inputs.pop())
    a.drop(gradient)


def held_over_used(model: tuple[int, int, int, int, float, bool], cut: int, seed: int) -> float:
    """Most bytes of segments over most bytes of tensors, after STEPS samples."""
    a, lengths, seen = Allocator(), random.Random(seed), 0
    while seen < STEPS:
        tokens = int(lengths.gammavariate(SHAPE, SCALE))
        if SHORTEST <= tokens <= cut:
            step(a, tokens, model)
            seen += 1
    return a.held / a.peak


def held_at_one_length(model: tuple[int, int, int, int, float, bool], tokens: int) -> float:
    """The same where all samples have one length: of the second step and all that follow."""
    a = Allocator()
    for _ in range(3):
        step(a, tokens, model)
    return a.held / a.peak


def main() -> None:
    """Print the table, its geometric mean, and the range where all samples are as long."""
    alike = [held_at_one_length(model, tokens) for model in MODELS.values() for tokens in CUTS]
    print(f"samples of one length: {min(alike):.2f} to {max(alike):.2f}", flush=True)
    every = []
    for name, model in MODELS.items():
        for cut in CUTS:
            found = [held_over_used(model, cut, seed) for seed in range(ORDERS)]
            every += found
            print(f"{name:18} {cut:6,} " + "  ".join(f"{one:.2f}" for one in found), flush=True)
    mid = math.exp(mean(map(math.log, every)))
    print(f"geometric mean {mid:.2f}, from {min(every):.2f} to {max(every):.2f}")


if __name__ == "__main__":
    main()
