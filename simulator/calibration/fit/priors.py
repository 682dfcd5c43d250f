"""Priors of the constants: centres and spreads before measuring, pooled over GPUs.

A spread is the standard deviation of a constant's logarithm over the GPUs that were fitted, widened
where they are few; a prior weighs as much as one measurement that far off. Sources: p-norm fits to
the GEMM tables and root-form fits to the nccl-tests tables of A100, H100, H200, B200, B300, GB200
and GB300 in PyPI aiconfigurator-core 0.12.0 (Apache-2.0); norms of microsoft/vidur@7d47513 and
NVIDIA/cudnn-frontend@3929da2 (MIT); nccl-tests sweeps on 2-4 nodes of aws-samples,
oracle-quickstart and Google Cloud.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

US = 1e-6
ROOT = US / math.sqrt(1e3)
"""us per square root of a kB in SI."""


@dataclass(frozen=True, kw_only=True)
class Prior:
    """One constant to fit, all in SI units; positive, so that it is fitted as a logarithm."""

    name: str
    centre: float
    spread: float
    """Of the logarithm."""
    least: float
    most: float


def _prior(name: str, centre: float, spread: float, least: float, most: float) -> Prior:
    return Prior(name=name, centre=centre, spread=spread, least=least, most=most)


def _gemm(
    efficiency: tuple[float, float], memory: tuple[float, float], latency: tuple[float, float]
) -> tuple[Prior, ...]:
    return (
        _prior("efficiency", *efficiency, 0.02, 1.0),
        _prior("memory_efficiency", *memory, 0.02, 2.0),
        _prior("latency", *latency, 0.1 * US, 1e-3),
        _prior("sharpness", 2.3, 0.35, 1.0, 20.0),
    )


GEMM = {
    "16bit": _gemm((0.75, 0.12), (0.76, 0.20), (2.8 * US, 0.40)),
    "8bit": _gemm((0.70, 0.20), (0.70, 0.30), (3.0 * US, 0.50)),
    "4bit": _gemm((0.65, 0.30), (0.70, 0.30), (3.0 * US, 0.50)),
    "32bit": _gemm((0.75, 0.20), (0.76, 0.25), (2.8 * US, 0.50)),
}
"""By operand width; operands are quantised already."""

ATTENTION = (
    _prior("efficiency", 0.59, 0.15, 0.02, 1.0),
    _prior("diagonal_tokens", 290.0, 0.5, 1.0, 1e4),
    _prior("latency", 10 * US, 0.8, 0.1 * US, 1e-3),
    _prior("tail_rows", 15e3, 1.0, 1.0, 1e6),
)
BACKWARD_RATIO = _prior("backward_ratio", 3.0, 0.12, 1.0, 10.0)
"""Backward over forward time of causal attention: 2.7 to 3.3, more where deterministic."""

MEMORY_BOUND = (
    _prior("efficiency", 0.60, 0.40, 0.02, 1.5),
    _prior("latency", 3.3 * US, 0.7, 0.1 * US, 1e-3),
)

_SHARES = {
    "all_reduce": (6.3, 0.95, 0.153, 0.85),
    "all_gather": (6.3, 1.0, 0.19, 0.89),
    "reduce_scatter": (6.3, 0.95, 0.142, 0.84),
    "all_to_all": (8.5, 0.24, 2.5, 0.67),
    "send": (6.3, 1.0, 0.20, 0.80),
}
"""Latency (us), latency a step (us), root (us/sqrt(kB)) and share of the link's bandwidth."""
_OWN_BANDWIDTHS = {"all_reduce": 2.5, "all_gather": 1.9, "reduce_scatter": 1.4, "all_to_all": 1.9}
"""Rate over the link's at which a rank copies or adds the share that it keeps."""


def collective(op: str, link: float) -> tuple[Prior, ...]:
    """Constants of a collective inside a fast domain whose link carries `link` bytes/s; what a
    rank keeps moves no slower than that."""
    latency, step, root, share = _SHARES[op]
    own: tuple[Prior, ...] = ()
    if op in _OWN_BANDWIDTHS:
        own = (_prior("own_bandwidth", _OWN_BANDWIDTHS[op] * link, 0.5, link, 20 * link),)
    if op == "all_to_all":
        own += (_prior("root_bytes", 40e3, 1.5, 1e3, 1e9),)
    return (
        _prior("latency", latency * US, 0.40, 0.1 * US, 1e-3),
        _prior("latency_per_step", step * US, 0.40, 1e-3 * US, 1e-3),
        _prior("root", root * ROOT, 0.45, 1e-4 * ROOT, 1e2 * ROOT),
        _prior("bandwidth", share * link, 0.15, 0.01 * link, 1.5 * link),
        *own,
    )


def switch(link: float) -> tuple[Prior, ...]:
    """Constants of the all-reduce inside the switch."""
    return (
        _prior("switch.latency", 40 * US, 0.5, 0.1 * US, 1e-3),
        _prior("switch.root", 0.155 * ROOT, 0.6, 1e-4 * ROOT, 1e2 * ROOT),
        _prior("switch.bandwidth", 1.07 * link, 0.4, 0.01 * link, 3.0 * link),
    )


NETWORK = (
    _prior("efficiency", 0.88, 0.15, 0.02, 2.0),
    _prior("latency", 50 * US, 0.8, 0.1 * US, 1e-1),
    _prior("latency_per_node", 75 * US, 0.8, 0.1 * US, 1e-1),
    _prior("root", 0.4 * ROOT, 0.8, 1e-4 * ROOT, 1e3 * ROOT),
)

TRAINING = {
    "dgrad_rate": _prior("dgrad_rate", 1.0, 0.10, 0.1, 2.0),
    "wgrad_rate": _prior("wgrad_rate", 0.951, 0.10, 0.1, 2.0),
    "grouped_rate": _prior("grouped_rate", 1.0, 0.30, 0.05, 2.0),
    "sustained": _prior("sustained", 0.94, 0.08, 0.1, 2.0),
    "backward_bytes_ratio": _prior("backward_bytes_ratio", 1.6, 0.40, 0.1, 20.0),
    "streaming_efficiency": _prior("streaming_efficiency", 0.85, 0.15, 0.02, 1.5),
    "loss_efficiency": _prior("loss_efficiency", 0.60, 0.50, 0.02, 2.0),
}
"""Rates over forward GEMMs: 1.00 and 0.951 on A100 and B200 (SimuMax); long loops: two stacks'
tables on H200 and published steps; streaming: STREAM triad; the others are the defaults of the
cost model, with wide spreads."""


def bandwidth(name: str, base: float) -> Prior:
    """The bandwidth of a link around that of the base, which may be another machine's."""
    return _prior(name, base, 1.0, base / 100.0, base * 100.0)


COPY_LATENCY = _prior("latency", 10 * US, 1.0, 0.1 * US, 1e-2)
"""Of one copy to or from the host (CUDA's bandwidthTest: a few microseconds); no number of a
profile."""
PASS_LATENCY = _prior("latency", 10 * US, 1.5, 0.1 * US, 1e-2)
"""Of one long pass; no field of a profile."""

SUSTAINED = (0.73, 1.05)
"""Shares of the isolated rate that public steps keep; a scale outside is flagged."""
