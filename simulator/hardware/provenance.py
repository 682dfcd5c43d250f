"""Profiles as records: numbers by dotted key, and the provenance of each.

Provenance is the source of a number, its kind, and the published origins it was learned from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from ..base.errors import InputError

KIND_MEANINGS = {
    "measured": "timed or read on the machine, or the fit of a kernel's form to such times",
    "fitted": "fitted to whole training runs",
    "datasheet": "stated by the maker or by the user",
    "rule": "a framework's documented default or what its code does; exact",
    "prior": "assumed; where published runs were looked at, its origins say which",
}
"""Meaning of each kind of number."""
LENT_PREFIX = "as "
"""Beginning of the source of a number that another machine lends."""
USER_SOURCE = "given by the user"
"""Source of such a number."""
EXACT = ("datasheet", "rule")
"""Kinds that are not learned from runs."""


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where one number of a profile comes from."""

    source: str
    """Id and citation: 'datasheet: NVIDIA H100 datasheet'."""
    measured: bool
    kind: str
    """A key of KIND_MEANINGS."""
    origins: tuple[str, ...] = ()
    """Origins of published runs that the number was fitted to, or chosen by looking at."""
    neutral: float | None = None
    """The value without these runs, in SI units: counted, measured on kernels, or the ideal."""

    def without_origins(self) -> Provenance:
        """The provenance of the neutral value."""
        return replace(self, kind="prior", measured=False, origins=(), neutral=None)

    @property
    def is_lent(self) -> bool:
        """Whether it is the number of another machine."""
        return self.source.startswith(LENT_PREFIX)

    @property
    def id(self) -> str:
        """The source's name in [sources]."""
        return self.source.partition(": ")[0]

    @property
    def citation(self) -> str:
        """The source in words."""
        return self.source.partition(": ")[2]


def provenance_counts(provenance: Mapping[str, Provenance]) -> dict[str, int]:
    """How many numbers of a profile were measured, and how many the user gave."""
    return {
        "numbers": len(provenance),
        "measured": sum(origin.measured for origin in provenance.values()),
        "given": sum(origin.source == USER_SOURCE for origin in provenance.values()),
    }


def provenance_line(name: str, provenance: Mapping[str, Provenance]) -> str:
    """'hardware profile X: 25 of 54 numbers measured, the others datasheet or prior'."""
    counts = provenance_counts(provenance)
    given = [key for key, origin in provenance.items() if origin.source == USER_SOURCE]
    by_user = f", {', '.join(given)} given by the user" if given else ""
    return (
        f"hardware profile {name}: {counts['measured']} of {counts['numbers']} numbers measured"
        f"{by_user}, the others datasheet or prior"
    )


def inherit(origin: Provenance, base: str, proportion: str = "") -> Provenance:
    """The provenance of a number that another profile lends, as it is or in proportion to
    something: a prior with the same origins. Its source says 'as h100-sxm, datasheet: ...'."""
    source = origin.source
    if proportion:
        source = f"{LENT_PREFIX}{base} in proportion to {proportion}, {source}"
    elif not origin.is_lent:
        source = f"{LENT_PREFIX}{base}, {source}"
    return replace(origin, source=source, measured=False, kind="prior")


class TableFile(NamedTuple):
    """A file of measured kernel times beside a profile; a bare name is one of the shipped."""

    path: str
    provenance: Provenance


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A valid profile file: SI numbers, names, tables and provenance by dotted key."""

    name: str
    numbers: dict[str, float] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    tables: dict[str, TableFile] = field(default_factory=dict)
    provenance: dict[str, Provenance] = field(default_factory=dict)

    def section(self, prefix: str) -> dict[str, float]:
        """The numbers directly inside one section, by their last name."""
        return dict(self._sections.get(prefix, {}))

    @cached_property
    def _sections(self) -> dict[str, dict[str, float]]:
        """The numbers by section and last name."""
        out: dict[str, dict[str, float]] = {}
        for key, value in self.numbers.items():
            section, _, name = key.rpartition(".")
            out.setdefault(section, {})[name] = value
        return out

    def with_numbers(
        self, numbers: Mapping[str, float], source: str, kind: str = "prior"
    ) -> Profile:
        """The profile with other numbers, which come from `source`."""
        origin = Provenance(source=source, measured=False, kind=kind)
        return replace(
            self,
            numbers={**self.numbers, **numbers},
            provenance={**self.provenance, **dict.fromkeys(numbers, origin)},
        )


def neutral(profile: Profile) -> Profile:
    """The profile without what published runs taught: such numbers have their neutral value, such
    tables are left out. InputError where a number has no neutral value."""
    numbers, provenance = dict(profile.numbers), dict(profile.provenance)
    for key, origin in profile.provenance.items():
        if origin.origins:
            if origin.neutral is None:
                raise InputError(f"{profile.name}: {key}: no neutral value beside origins")
            numbers[key], provenance[key] = origin.neutral, origin.without_origins()
    tables = {key: table for key, table in profile.tables.items() if not table.provenance.origins}
    return replace(profile, numbers=numbers, provenance=provenance, tables=tables)
