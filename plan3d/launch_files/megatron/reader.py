"""Launch scripts of Megatron-LM that are read: flags as task and plan, and what nothing read."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from plan3d.simulator.base.errors import intended_name

from ..launch_file import NO_OPTIONS, Launch, ReaderOptions, UnreadSetting
from ..numbers import fill_launch, model_of
from ..shell.flags import Flags
from ..shell.launch_script import launcher_gpus, script_of, training_words
from ..shell.script import Script
from ..tables import Numbers, read_implied, read_rows
from .launch import TABLE
from .meaning import from_flags, offload_from_flags, sharding_from_flags, windows_from_flags

MATTERS = (
    "--cpu-offloading-weights",
    "--distribute-saved-activations",
    "--outer-dp-sharding-strategy",
    "--use-precision-aware-optimizer",
    "--grad-reduce-in-bf16",
    "--hierarchical-context-parallel-sizes",
    "--moe-shared-expert-overlap",
    "--defer-embedding-wgrad-compute",
    "--use-tp-pp-dp-mapping",
    "--rampup-batch-size",
    "--encoder-num-layers",
    "--moe-pad-expert-input-to-capacity",
    "--moe-expert-capacity-factor",
)
"""Flags that change time or memory and are not modelled."""


def read(text: str, file: str, given: ReaderOptions = NO_OPTIONS) -> Launch:
    """The launch of a script. Raises InputError naming the line that is wrong."""
    found = script_of(text, file)
    flags = Flags.of(training_words(found), file)
    launch, n = Launch(file, "megatron", launcher_gpus=launcher_gpus(found)), Numbers()
    read_rows(TABLE, flags, n)
    from_flags(flags, n, launch, given.vocabulary)
    windows_from_flags(flags, n)
    sharding_from_flags(flags, n)
    offload_from_flags(flags, n, launch)
    launch.model = model_of(n, launch.stem, "flags of a Megatron-LM script")
    fill_launch(launch, n)
    keep(flags, found, launch, read_implied(TABLE, flags, n))
    return launch


def keep(flags: Flags, found: Script, launch: Launch, follow: Collection[str]) -> None:
    """Note every flag that nothing read, and which `follow` from the plan; refuse a known one that
    depends on a condition."""
    conditional = Flags.of(found.conditional_words(), found.file).in_order
    for flag in conditional:
        if flag.name in flags.read_names:
            raise launch.refuse(
                f"line {flag.line}: {flag} depends on a condition; write it where it always holds"
            )
    for flag in [*flags.unread(), *conditional]:
        flag_lines = [
            line for word in flag.words for line in found.variables.required_assignments(word)
        ]
        near = intended_name(flag.name, flags.read_names)
        matters = flag.name in MATTERS or bool(near)
        part = UnreadSetting(
            f"line {flag.line}", str(flag), matters, flag.name in follow, suggestion=near
        )
        needs = tuple(dict.fromkeys(flag_lines))
        launch.unread.append(replace(part, flag=flag.name, assignments=needs))
