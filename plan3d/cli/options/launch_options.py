"""Options of the verbs about files of training frameworks."""

from __future__ import annotations

from .parser import Option, whole, words

LAUNCH = ("export", "import")
"""Verbs about files of training frameworks."""

LAUNCH_OPTIONS = (
    Option(
        flag="--model",
        value="M",
        verbs=LAUNCH,
        completes="model",
        help="preset or config.json (default: what the file or the saved result says)",
    ),
    Option(
        flag="--cluster",
        value="C",
        verbs=LAUNCH,
        completes="cluster",
        help="hardware profile or TOML file (default: the saved result's)",
    ),
    Option(
        flag="--to",
        value="FRAMEWORK",
        verbs=LAUNCH,
        help="megatron, megatron-bridge, torchtitan, deepspeed or nanotron",
    ),
    Option(
        flag="--version",
        value="V",
        verbs=LAUNCH,
        help="of the framework (default: its first in docs/export.md)",
    ),
    Option(
        flag="--output",
        short="-o",
        value="FILE",
        completes="file",
        verbs=LAUNCH,
        help="write the file here instead of printing it",
    ),
    Option(
        flag="--with",
        value="F=V",
        read=words,
        many=True,
        verbs=LAUNCH,
        help="use V for plan field F, whatever the plan or the file says; repeatable",
    ),
    Option(
        flag="--from",
        value="FRAMEWORK",
        verbs=("import",),
        help="megatron, torchtitan, deepspeed or nanotron (default: what the file looks like)",
    ),
    Option(
        flag="--vocabulary",
        value="N",
        read=whole,
        verbs=("import", "explain"),
        help="tokens of the tokenizer, where the file does not say",
    ),
    Option(flag="--estimate", verbs=("import",), help="predict the plan's time and memory"),
)
"""Options of `export` and `import` besides those of a task."""
