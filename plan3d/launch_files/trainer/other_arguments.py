"""Arguments of programs on Hugging Face's Trainer that no row reads (other_arguments.toml)."""

from __future__ import annotations

from ..tables import Effect, Entry, Table, group, neutral, unread_groups

TRAINERS = "trainer llama-factory axolotl ms-swift"
"""Programs on Hugging Face's Trainer."""


OWN_TOWER = "parts of the model for images, if it has any, which are left out"
"""What is said only of models that are not known by name: those are text models."""


OWN = {"megatron-swift": ("ms-swift", "megatron-swift")}
"""Programs whose arguments a program has, where those are not its own alone."""


def other_arguments(program: str) -> Table:
    """The rows of a program; its own win over those of all programs."""
    rows: dict[str, Entry] = {}
    every = unread_groups(__package__, "other_arguments.toml")
    for programs in (TRAINERS, *OWN.get(program, (program,))):
        for one in (one for one in every if one.programs == programs):
            if one.effect is Effect.NONE:
                found = neutral(one.what, one.keys)
            else:
                found = group(one.effect, one.what, one.keys)
            rows |= {row.key: row for row in found}
    return tuple(rows.values())
