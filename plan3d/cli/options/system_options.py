"""Options that name a training system."""

from __future__ import annotations

from .parser import Option
from .sweep_options import SWEEP

SYSTEM_OPTIONS = (
    Option(
        flag="--system",
        value="SYSTEM",
        verbs=("search", "estimate", *SWEEP),
        completes="system",
        help="do only what a system does: ddp, fsdp, gpipe, megatron ... (see 'plan3d systems')",
    ),
    Option(
        flag="--systems",
        value="S1,S2",
        verbs=("compare",),
        help="compare training systems instead of backends: names (see 'plan3d systems') or all",
    ),
)
"""Options of the verbs that take a system."""
