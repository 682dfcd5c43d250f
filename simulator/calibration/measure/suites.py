"""Every suite of measurements by name."""

from __future__ import annotations

from . import cases_layer, cases_matrix, cases_memory, cases_model, cases_training
from .cases import Suite

SUITES = (
    "gemm",
    "layer",
    "training",
    "model",
    "attention",
    "memory",
    "loss",
    "optimizer",
    "launch",
    "fp8",
    "grouped",
    "copy",
    "sustained",
    "collective",
    "contention",
)
"""Names of the suites."""
RANK_SUITES = ("collective", "contention")
"""Those that need several processes (torchrun)."""


def suites() -> dict[str, Suite]:
    """Every suite by name, in order of value."""
    return {
        "gemm": cases_matrix.gemm,
        "layer": cases_layer.layer,
        "training": cases_training.training,
        "model": cases_model.model,
        "attention": cases_layer.attention,
        "memory": cases_memory.memory,
        "loss": cases_memory.loss,
        "optimizer": cases_memory.optimizer,
        "launch": cases_layer.launch,
        "fp8": cases_matrix.fp8,
        "grouped": cases_matrix.grouped,
        "copy": cases_memory.copy,
        "sustained": cases_matrix.sustained,
    }
