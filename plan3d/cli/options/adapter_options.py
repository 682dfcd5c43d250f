"""Options of fine-tuning few weights."""

from __future__ import annotations

from .parser import Option, whole
from .sweep_options import SWEEP

ADAPTING = ("search", "estimate", "timeline", "explain", "compare", *SWEEP)
"""Verbs that may ask about adapters."""

ADAPTER_OPTIONS = (
    Option(
        flag="--adapter",
        value="KIND",
        verbs=ADAPTING,
        help="fine-tune adapters beside frozen weights: lora (in 16 bits) or qlora (nf4-dq); "
        "default sequence, batch and software are then those of fine-tuning",
    ),
    Option(
        flag="--lora-rank",
        value="R",
        read=whole,
        verbs=(*ADAPTING, "fits"),
        help="rank of the adapters (16)",
    ),
    Option(
        flag="--lora-targets",
        value="T1,T2",
        verbs=(*ADAPTING, "fits"),
        help="matrices with an adapter: attention (default), all-linear, or q_proj,v_proj ...",
    ),
    Option(
        flag="--lora-base",
        value="FORMAT",
        verbs=(*ADAPTING, "fits"),
        help="format of the frozen matrices: bf16, fp8, int8, nf4, nf4-dq, gptq4 or gptq8",
    ),
)
"""Options of the verbs about a task."""
