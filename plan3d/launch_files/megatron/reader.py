"""Launch scripts of Megatron-LM that are read: flags as task and plan, and what nothing read."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from plan3d.simulator.base.errors import intended_name

from ..launch_file import NOTHING, Given, Kept, Launch
from ..numbers import fill, model_of
from ..shell.flags import Flags
from ..shell.launch_script import launcher_gpus, script_of, training_words
from ..shell.script import Script
from ..tables import Numbers, read_implied
from ..tables import read as read_table
from .launch import TABLE
from .meaning import meant, meant_offload, meant_sharding, meant_windows

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


def read(text: str, file: str, given: Given = NOTHING) -> Launch:
    """The launch of a script. Raises InputError naming the line that is wrong."""
    found = script_of(text, file)
    flags = Flags.of(training_words(found), file)
    launch, n = Launch(file, "megatron", launcher_gpus=launcher_gpus(found)), Numbers()
    read_table(TABLE, flags, n)
    meant(flags, n, launch, given.vocabulary)
    meant_windows(flags, n)
    meant_sharding(flags, n)
    meant_offload(flags, n, launch)
    launch.model = model_of(n, launch.stem, "flags of a Megatron-LM script")
    fill(launch, n)
    keep(flags, found, launch, read_implied(TABLE, flags, n))
    return launch


def keep(flags: Flags, found: Script, launch: Launch, follow: Collection[str]) -> None:
    """Note every flag that nothing read, and which `follow` from the plan; refuse a known one that
    depends on a condition."""
    conditional = Flags.of(found.conditional_words(), found.file).given
    for flag in conditional:
        if flag.name in flags.used:
            raise launch.refuse(
                f"line {flag.line}: {flag} depends on a condition; write it where it always holds"
            )
    for flag in [*flags.rest(), *conditional]:
        lines = [line for word in flag.words for line in found.variables.needed(word)]
        near = intended_name(flag.name, flags.used)
        matters = flag.name in MATTERS or bool(near)
        part = Kept(f"line {flag.line}", str(flag), matters, flag.name in follow, near=near)
        needs = tuple(dict.fromkeys(lines))
        launch.kept.append(replace(part, flag=flag.name, needs=needs))
