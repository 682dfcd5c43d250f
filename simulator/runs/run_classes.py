"""Classes of runs: generations of accelerators, and number formats that count as one."""

from __future__ import annotations

_PRECISION = {"bf16": "16-bit", "fp16": "16-bit", "tf32": "fp32"}
_GENERATIONS = (
    ("v100", "Volta"),
    ("a100", "Ampere"),
    ("a800", "Ampere"),
    ("a10", "Ampere"),
    ("rtx-3090", "Ampere"),
    ("rtx-a", "Ampere"),
    ("h20", "Hopper"),
    ("h100", "Hopper"),
    ("h800", "Hopper"),
    ("gh200", "Hopper"),
    ("b200", "Blackwell"),
    ("b300", "Blackwell"),
    ("gb", "Blackwell"),
    ("rtx-5090", "Blackwell"),
    ("mi", "CDNA"),
    ("", "Ada"),
)
"""Generation by how the name of an accelerator begins; the first that fits."""

_CARDS = ("rtx", "l4", "a10g", "t4", "h100-nvl")
"""How names of accelerators begin that are cards."""


def precision_class(number_format: str) -> str:
    """Number formats that are one: '16-bit' of bf16 and fp16."""
    return _PRECISION.get(number_format, number_format)


def machine_class(accelerator: str) -> str:
    """The generation of an accelerator, or 'PCIe' of cards without NVLink or with pairs at most."""
    on_pcie = accelerator.startswith(_CARDS) or "pcie" in accelerator
    return "PCIe" if on_pcie else generation(accelerator)


def generation(accelerator: str) -> str:
    """The generation of an accelerator by its name in small letters."""
    return next(name for start, name in _GENERATIONS if accelerator.startswith(start))
