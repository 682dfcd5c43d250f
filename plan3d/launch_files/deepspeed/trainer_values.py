"""Values that a trainer writes in place of `auto`, from what is given beside the file.

Source: transformers, integrations/deepspeed.py (HfTrainerDeepSpeedConfig): batch sizes and number
formats are the trainer's arguments; reduce_bucket_size is hidden * hidden, and the sizes of ZeRO 3
that prefetch and keep weights are multiples of it or of hidden. axolotl and LLaMA-Factory ship such
files for the same trainer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from plan3d.simulator.base.errors import InputError

from ..launch_file import ReaderOptions
from .keys import BATCHES, FORMATS

AUTO = "auto"
"""The value that stands for the trainer's own."""
HIDDEN_SIZES: dict[str, Callable[[int], int]] = {
    "reduce_bucket_size": lambda hidden: hidden * hidden,
    "stage3_prefetch_bucket_size": lambda hidden: int(0.9 * hidden * hidden),
    "stage3_param_persistence_threshold": lambda hidden: 10 * hidden,
}
"""Sizes in parameters that the trainer works out from the hidden size."""


def is_batch_open(content: dict[str, Any]) -> bool:
    """Whether the trainer decides the batch of a step: its size or the accumulation is auto, and
    neither of them is a number."""
    batch, steps = content.get(BATCHES[0]), content.get(BATCHES[2])
    return AUTO in (batch, steps) and not any(isinstance(size, int) for size in (batch, steps))


def with_trainer_values(
    content: dict[str, Any], place: str, options: ReaderOptions
) -> dict[str, Any]:
    """The configuration with values in place of `auto` where the batch, the formats and the
    sharding are decided; None where the default holds. Raises InputError naming every value that is
    neither in the file nor given."""
    missing = list(_missing_values(content, options))
    if missing:
        keys = ", ".join(f"$.{key}" for keys, _ in missing for key in keys)
        given = " ".join(dict.fromkeys(option for _, option in missing))
        verb = "are" if len([key for keys, _ in missing for key in keys]) > 1 else "is"
        raise InputError(f"{place}: {keys} {verb} left to the trainer: give {given}")
    filled = copy.deepcopy(content)
    for name in BATCHES:
        if filled.get(name) in (AUTO, None):
            filled[name] = None
    if filled[BATCHES[1]] is None:
        filled[BATCHES[1]] = int(options.plan["micro_batch"])
    precision = options.plan.get("precision")
    for section in _open_formats(content):
        filled[section]["enabled"] = precision is not None and FORMATS.get(precision) == section
    zero = filled.get("zero_optimization")
    if isinstance(zero, dict):
        _fill_sharding(zero, options)
    return filled


def _missing_values(
    content: dict[str, Any], options: ReaderOptions
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Keys that the trainer decides, with the options that say what it writes there."""
    if is_batch_open(content) and not options.has_batch:
        yield (
            tuple(name for name in (BATCHES[0], BATCHES[2]) if content.get(name) == AUTO),
            ("--global-batch N (sequences)"),
        )
    if content.get(BATCHES[1]) in (AUTO, None) and "micro_batch" not in options.plan:
        yield (BATCHES[1],), "--with micro_batch=N"
    formats = _open_formats(content)
    if formats and "precision" not in options.plan and not _stated_format(content):
        names = [precision.name.lower() for precision, name in FORMATS.items() if name in formats]
        others = f" (or {', '.join([*names[:-1], 'fp32'])})"
        keys = tuple(f"{section}.enabled" for section in formats)
        yield keys, f"--with precision={names[-1]}{others}"
    zero = content.get("zero_optimization")
    if isinstance(zero, dict) and zero.get("stage") == AUTO and "zero" not in options.plan:
        yield ("zero_optimization.stage",), "--with zero=N"


def _open_formats(content: dict[str, Any]) -> list[str]:
    """The sections of 16-bit formats that the trainer switches."""
    sections = ((name, content.get(name)) for name in FORMATS.values() if name)
    return [name for name, section in sections if isinstance(section, dict) and _is_auto(section)]


def _is_auto(section: dict[str, Any]) -> bool:
    return bool(section.get("enabled") == AUTO)


def _stated_format(content: dict[str, Any]) -> bool:
    """Whether the file itself switches a 16-bit format on."""
    sections = (content.get(name) for name in FORMATS.values() if name)
    return any(isinstance(section, dict) and section.get("enabled") is True for section in sections)


def _fill_sharding(zero: dict[str, Any], options: ReaderOptions) -> None:
    """Stage, overlap and sizes of ZeRO."""
    if zero.get("stage") == AUTO:
        zero["stage"] = int(options.plan["zero"])
    if zero.get("overlap_comm") == AUTO:
        zero["overlap_comm"] = None
    hidden = getattr(options.model, "hidden", 0)
    for name, size in HIDDEN_SIZES.items():
        if zero.get(name) == AUTO and hidden:
            zero[name] = size(hidden)
