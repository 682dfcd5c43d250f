"""Does Megatron-LM take the flags? Its own parse_args and validate_args, of a checkout on the path.

PYTHONPATH=Megatron-LM python tests/frameworks/check.py megatron
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any

import torch
from megatron.training import arguments
from megatron.training.arguments import parse_args, validate_args

CONNECTIONS = re.compile(r"^export CUDA_DEVICE_MAX_CONNECTIONS=(\d+)", re.M)
UNSTATED = ("--lr", "1e-4", "--train-iters", "10", "--tokenizer-type", "NullTokenizer")
"""What a script of Megatron-LM needs besides model, plan and batch."""
BLACKWELL = re.compile(r"^# .* x .*\bG?B[23]00\b", re.M)
"""In the comment at the top: an accelerator without the limit on device connections."""
arguments._print_args = lambda *title: None
torch.cuda.get_device_capability = lambda device=None: (9, 0)


def check(script: str, flags: dict[str, list[str]], gpus: int) -> None:
    """Raise what Megatron-LM raises, or AssertionError where it trains on another number of
    micro-batches than the flags say."""
    words = [w for name, rest in flags.items() for w in (f"--{name.replace('_', '-')}", *rest)]
    major = 10 if BLACKWELL.search(script) else 9
    arguments.get_device_arch_version = lambda: major
    connections = CONNECTIONS.search(script)
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    if connections:
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = connections[1]
    os.environ |= {"RANK": "0", "WORLD_SIZE": str(gpus)}
    sys.argv = ["pretrain_gpt.py", *UNSTATED, *words]
    defaults: dict[str, Any] = {}
    args = validate_args(parse_args(), defaults)
    arguments.core_transformer_config_from_args(args)
