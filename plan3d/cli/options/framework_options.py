"""The option that names a training framework."""

from __future__ import annotations

from .parser import Option
from .sweep_options import SWEEP
from .tune_options import TUNE

FRAMEWORK_OPTIONS = (
    Option(
        flag="--framework",
        value="F",
        verbs=("search", "estimate", "explain", "compare", *SWEEP, *TUNE),
        help="only plans that it launches, on its stack: megatron, megatron-bridge, torchtitan, "
        "deepspeed or nanotron",
    ),
)
"""Options of the verbs that take a framework."""
