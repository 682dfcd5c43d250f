"""Textbook formulas of data parallelism beside the simulator: what is sent, steps to an accuracy.

Legend: n workers, one GPU each; S = 4 N bytes of gradients or weights in fp32; tau steps between
averages; e a mean squared gradient norm, sigma^2 the variance of a worker's gradient.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..plan import compressors
from ..plan.plan import Plan
from ..step.evaluate import evaluate
from ..task import Goal, Task
from . import closed_forms
from .textbook import FormulaRow, in_16_bits
from .traffic import Traffic, traffic

EXCHANGE, STEPS = "exchange", "steps to an accuracy"
"""Topics of rows."""
PERIOD = 8
"""Steps between the averages of local SGD."""
BUCKET = 512
"""Entries with one norm (Alistarh et al. 2017, section 5)."""
LEVELS, KEPT = 5, 10
"""Levels of the quantiser, entries kept of a thousand."""
ACCURACY, VARIANCE = 1e-3, 100.0
"""The goal of the rates, and the noise of one worker's gradient."""
VALUE, DRAWS = 0.6, 1000
"""What the lectures round at random, and how often it is rounded here."""


def exchange_rows(task: Task) -> list[FormulaRow]:
    """What one worker sends, and a server receives, in a step of n workers and of 2 n."""
    workers = max(task.gpus, 2)
    rows = [row for n in (workers, 2 * workers) for row in _rows_of(task, n)]
    half = _traffic(in_16_bits(task), workers, "pure-bf16", "sync=parameter-server").bytes_sent
    by_hand = 2.0 * task.model.parameters
    why = f"n = {workers:,}; the vocabulary is padded"
    row = FormulaRow(EXCHANGE, "gradients in 16 bits", "2 N", by_hand, half, "bytes", why)
    return [*rows, row, *_compressed_rows(task, workers)]


def _traffic(task: Task, n: int, precision: str, text: str) -> Traffic:
    """What n workers send in a step, a sequence each."""
    asked = replace(task, cluster=replace(task.cluster, gpus=n), global_batch=n)
    plan = Plan.parse(f"dp={n} zero=0 overlap_grad_reduce=0 precision={precision} {text}")
    return traffic(evaluate(asked, plan))


def _rows_of(task: Task, n: int) -> list[FormulaRow]:
    size = 4.0 * task.model.parameters
    server, ring, tree, near, peer = (
        _traffic(task, n, "fp32", f"sync={text}")
        for text in ("parameter-server", "ring", "tree", "gossip topology=ring",
                     "gossip topology=one-peer-exponential")
    )  # fmt: skip
    why, serial = f"n = {n:,}; the vocabulary is padded", f"n = {n:,}: one after another"
    neighbours, messages = f"n = {n:,}, each with its neighbours", float(min(2, n - 1))
    found = (
        ("server receives", "n S", closed_forms.server_bytes(size, n), server.server_bytes, why),
        ("a worker, server", "S", size, server.bytes_sent, why),
        ("a worker, ring", "2 (n-1)/n S", closed_forms.ring_bytes(size, n), ring.bytes_sent, why),
        ("a worker, graph", "degree S", messages * size, near.bytes_sent, neighbours),
        ("a worker, one peer", "S", size, peer.bytes_sent, why),
    )
    counts = (
        ("messages, ring", "2 (n - 1)", closed_forms.ring_messages(n), ring.messages, serial),
        ("messages, tree", "2 log2 n", closed_forms.tree_messages(n), tree.messages, serial),
        ("messages, graph", "degree", messages, near.messages, neighbours),
    )
    rows = [
        FormulaRow(EXCHANGE, f"{a}, n={n}", f, by, sim, "bytes", y) for a, f, by, sim, y in found
    ]
    return rows + [
        FormulaRow(EXCHANGE, f"{a}, n={n}", f, by, sim, "", y) for a, f, by, sim, y in counts
    ]


def _compressed_rows(task: Task, n: int) -> list[FormulaRow]:
    """Averages now and then, and fewer bytes: what a worker sends."""
    size = 4.0 * task.model.parameters
    ring = closed_forms.ring_bytes(size, n)
    bits = 4 / 32 + 1 / BUCKET
    server, levels = "sync=parameter-server compression=", f"qsgd levels={LEVELS}"
    seldom = f"sync=ring sync_period={PERIOD}"
    cases = (
        (f"a worker, tau = {PERIOD}", "ring / tau", ring / PERIOD, seldom),
        ("a worker, 1-bit", "S / 32", size / 32, f"{server}1-bit"),
        (f"a worker, {LEVELS} levels", "4 S / 32 + norms", bits * size, server + levels),
        ("a worker, top 1 %", "2 S / 100", size / 50, f"{server}mem-sgd kept_per_thousand={KEPT}"),
        ("a worker, NEOLITHIC", "two rounds of it", size / 25,
         f"{server}neolithic kept_per_thousand={KEPT}"),
    )  # fmt: skip
    why = f"n = {n:,}; a worker's bytes of a step: values, indices and norms"
    return [
        FormulaRow(EXCHANGE, name, formula, by_hand, _traffic(task, n, "fp32", text).bytes_sent,
                   "bytes", why)
        for name, formula, by_hand, text in cases
    ]  # fmt: skip


def rate_rows(task: Task) -> list[FormulaRow]:
    """Steps to an accuracy by published rates, and the lectures' example of a quantiser."""
    n, v, e = max(task.gpus, 2), VARIANCE, ACCURACY

    def steps(workers: int, text: str = "") -> float:
        asked = replace(
            task,
            cluster=replace(task.cluster, gpus=workers),
            global_batch=workers,
            goal=Goal(accuracy=e, sequence_noise=v),
        )
        return float(
            evaluate(asked, Plan.parse(f"dp={workers} zero=0 precision=fp32 {text}")).iterations
        )

    graph = closed_forms.ring_graph_singular_value(n) if n > 2 else 0.0
    delta, omega = KEPT / 1000, closed_forms.quantiser_variance(BUCKET, LEVELS)
    cases = (
        ("parallel SGD", "sigma^2/(n e^2)", closed_forms.parallel_sgd_steps(v, n, e), ""),
        (f"local SGD, tau = {PERIOD}", "+ sigma sqrt(tau-1)/e^1.5",
         closed_forms.local_sgd_steps(v, n, e, PERIOD), f"sync_period={PERIOD}"),
        ("gossip on a ring", "+ sigma sqrt(..s)/e^1.5",
         closed_forms.decentralised_steps(v, n, e, graph), "sync=gossip topology=ring"),
        (f"QSGD, {LEVELS} levels", "(1+omega) sigma^2/(n e^2)",
         closed_forms.unbiased_steps(v, n, e, omega), f"compression=qsgd levels={LEVELS}"),
        ("top-k, 1 %", "+ sigma/(delta e^1.5)", closed_forms.contractive_steps(v, n, e, delta),
         f"compression=mem-sgd kept_per_thousand={KEPT}"),
    )  # fmt: skip
    why = f"n = {n:,}, e = {e:g}, sigma^2 = {v:g}; the descent of exact gradients, 1 / e, besides"
    rows = [FormulaRow(STEPS, name, f, by, steps(n, text), "", why) for name, f, by, text in cases]
    gain = steps(1) / steps(n)
    speed_up = FormulaRow(
        STEPS, "linear speed-up", "n, from sigma/sqrt(nT)", float(n), gain, "",
        "steps of one worker over those of n: the descent is not shared",
    )  # fmt: skip
    return [rows[0], speed_up, *rows[1:], *_rounding_rows()]


def _rounding_rows() -> list[FormulaRow]:
    """0.6 on five levels, many times, beside 0.8 so that the two have a norm of 1."""
    low, _, upper = closed_forms.rounding(VALUE, LEVELS)
    bucket = np.zeros(BUCKET)
    bucket[:2] = VALUE, (1 - VALUE**2) ** 0.5
    drawn = compressors.quantise(np.tile(bucket, DRAWS), LEVELS, np.random.default_rng(0))
    found = drawn.reshape(DRAWS, -1)[:, 0]
    share = float(np.mean(np.isclose(found, low)))
    why = f"{DRAWS:,} draws of the quantiser"
    name = f"{VALUE} becomes {low:g}"
    return [
        FormulaRow(STEPS, name, f"{LEVELS} levels", 1 - upper, share, "1", why),
        FormulaRow(STEPS, "  in the mean", "unbiased", VALUE, float(found.mean()), "", why),
    ]
