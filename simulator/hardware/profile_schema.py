"""Fields of a profile file by dotted key, with dimension, unit and bounds."""

from __future__ import annotations

from .leaves import Quantity
from .precision import (
    FORMATS,
    SCALED_FORMATS,
    UNIVERSAL_WIDTHS,
    WIDTHS,
)

_MEMORY = Quantity(dimension="memory", example="GiB")
_MESSAGE = Quantity(dimension="memory", example="kB")
_BANDWIDTH = Quantity(dimension="bandwidth", example="GB/s")
_FLOPS = Quantity(dimension="compute rate", example="TFLOP/s")
_POWER = Quantity(dimension="power", example="W")
_TIME = Quantity(dimension="time", example="us", allows_zero=True)
_ROOT = Quantity(dimension="root latency", example="us/sqrt(kB)", allows_zero=True)
_SHARE = Quantity(dimension="ratio", example="1", maximum=2.0)
_SHARPNESS = Quantity(dimension="ratio", example="1", minimum=1.0, maximum=100.0)
_RATIO = Quantity(dimension="ratio", example="1", maximum=100.0)
_YES = Quantity(dimension="ratio", example="1", maximum=1.0, allows_zero=True, is_integer=True)
_TOKENS = Quantity(dimension="length", example="tokens", allows_zero=True)
_ROWS = Quantity(dimension="rows", example="rows", allows_zero=True)
_GPUS = Quantity(dimension="count", example="GPUs", minimum=1, maximum=100_000, is_integer=True)

_GEMM = {
    "efficiency": _SHARE,
    "memory_efficiency": _SHARE,
    "latency": _TIME,
    "sharpness": _SHARPNESS,
}
_COLLECTIVE = {
    "latency": _TIME,
    "latency_per_step": _TIME,
    "root": _ROOT,
    "bandwidth": _BANDWIDTH,
}
_EXCHANGE = {**_COLLECTIVE, "own_bandwidth": _BANDWIDTH}
_SECTIONS: dict[str, dict[str, Quantity]] = {
    "accelerator": {"memory": _MEMORY, "memory_bandwidth": _BANDWIDTH, "power": _POWER},
    "accelerator.peak": dict.fromkeys(FORMATS, _FLOPS),
    **{f"kernels.gemm.{width}": _GEMM for width in WIDTHS},
    "kernels.attention": {
        "efficiency": _SHARE,
        "diagonal_tokens": _TOKENS,
        "latency": _TIME,
        "backward_ratio": _RATIO,
        "tail_rows": _ROWS,
    },
    "kernels.memory_bound": {"efficiency": _SHARE, "latency": _TIME},
    "kernels.training": {
        **dict.fromkeys(("dgrad_rate", "wgrad_rate", "grouped_rate", "sustained"), _SHARE),
        **dict.fromkeys(("streaming_efficiency", "loss_efficiency", "scaling_efficiency"), _SHARE),
        "backward_bytes_ratio": _RATIO,
        "layer_floor": _TIME,
    },
    "kernels.formats": dict.fromkeys(SCALED_FORMATS, _SHARE),
    "node": {"gpus": _GPUS},
    "host": {
        "link_bandwidth": _BANDWIDTH,
        "link_gpus": _GPUS,
        "memory_bandwidth": _BANDWIDTH,
        "memory": _MEMORY,
        "nvme": _MEMORY,
        "nvme_read": _BANDWIDTH,
        "nvme_write": _BANDWIDTH,
    },
    "links.fast": {"gpus": _GPUS, "bandwidth": _BANDWIDTH, "peer_memory": _YES},
    "links.fast.all_reduce": _EXCHANGE,
    "links.fast.all_gather": _EXCHANGE,
    "links.fast.reduce_scatter": _EXCHANGE,
    "links.fast.all_to_all": {**_EXCHANGE, "root_bytes": _MESSAGE},
    "links.fast.send": _COLLECTIVE,
    "links.fast.switch_all_reduce": _COLLECTIVE,
    "links.network": {
        "bandwidth": _BANDWIDTH,
        "efficiency": _SHARE,
        "latency": _TIME,
        "latency_per_node": _TIME,
        "root": _ROOT,
        "nic_gpus": _GPUS,
        "ring_bandwidth": _BANDWIDTH,
        "site_bandwidth": _BANDWIDTH,
        "site_latency": _TIME,
    },
}
QUANTITIES = {f"{s}.{name}": q for s, inside in _SECTIONS.items() for name, q in inside.items()}
TEXTS = ("accelerator.name", "accelerator.title", "links.fast.name", "links.network.name")
LAYERS = "kernels.layer."
"""Tables of whole layers: a section for every stack that has one, whatever its name."""
FIELDS = (*QUANTITIES, *TEXTS, *(f"kernels.gemm.{width}.table" for width in WIDTHS))
SECTIONS = {key[:dot] for key in (*FIELDS, LAYERS) for dot, char in enumerate(key) if char == "."}


def is_section(key: str, inside: str) -> bool:
    """Whether a key, which ends in the name of something `inside` a section, is a section."""
    return key in SECTIONS or inside == LAYERS


def is_table_file(key: str) -> bool:
    """Whether a key names a file of times."""
    return key.startswith(("kernels.gemm.", LAYERS)) and key.endswith(".table")


def names_in(prefix: str) -> list[str]:
    """What the section with that prefix may hold."""
    if prefix.startswith(LAYERS) and prefix != LAYERS:
        return ["table"]
    return sorted({k[len(prefix) :].split(".")[0] for k in FIELDS if k.startswith(prefix)})


ONE_BY_ONE = ("accelerator.peak", "kernels.training", "kernels.formats")
"""Sections of which a machine may lack any number."""
OPTIONAL_NUMBERS = (
    "kernels.attention.tail_rows",
    "links.network.nic_gpus",
    "links.network.ring_bandwidth",
    *("links.network.site_bandwidth", "links.network.site_latency"),
    "links.fast.peer_memory",
    *("host.nvme", "host.nvme_read", "host.nvme_write"),
    *(key for key in QUANTITIES if key.endswith((".own_bandwidth", ".root_bytes"))),
)
"""Numbers that a section may lack."""
OPTIONAL = (
    *ONE_BY_ONE,
    *(f"kernels.gemm.{width}" for width in WIDTHS if width not in UNIVERSAL_WIDTHS),
    "links.fast.switch_all_reduce",
    "host",
)
"""Sections that a machine may lack, those that are not ONE_BY_ONE whole."""
