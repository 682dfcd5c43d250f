"""Provenance of a number: its source, its kind, and the published origins it was learned from."""

from __future__ import annotations

from dataclasses import dataclass, replace

KINDS = {
    "measured": "timed or read on the machine, or the fit of a kernel's form to such times",
    "fitted": "fitted to whole training runs",
    "datasheet": "stated by the maker or by the user",
    "rule": "a framework's documented default or what its code does; exact",
    "prior": "assumed; where published runs were looked at, its origins say which",
}
"""What is known of a number, by kind."""
LENT = "as "
"""How the source of a number begins that another machine lends."""
EXACT = ("datasheet", "rule")
"""Kinds that no run has taught."""


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where one number of a profile comes from."""

    source: str
    """Id and citation: 'datasheet: NVIDIA H100 datasheet'."""
    measured: bool
    kind: str = ""
    """One of KINDS; unless it is said, measured or datasheet."""
    origins: tuple[str, ...] = ()
    """Origins of published runs that the number was fitted to, or chosen by looking at."""
    neutral: float | None = None
    """The value of somebody who has seen none of these runs, in SI units: counted, measured on
    kernels, or the ideal."""

    def __post_init__(self) -> None:
        if not self.kind:
            object.__setattr__(self, "kind", "measured" if self.measured else "datasheet")

    def forgotten(self) -> Provenance:
        """Of the neutral value."""
        return replace(self, kind="prior", measured=False, origins=(), neutral=None)

    @property
    def lent(self) -> bool:
        """Whether it is the number of another machine."""
        return self.source.startswith(LENT)

    @property
    def id(self) -> str:
        """The source's name in [sources]."""
        return self.source.partition(": ")[0]

    @property
    def citation(self) -> str:
        """The source in words."""
        return self.source.partition(": ")[2]


def inherited(origin: Provenance, base: str, proportion: str = "") -> Provenance:
    """Of a number that another profile lends, as it is or in proportion to something: a prior,
    which was learned from the same origins. Its source says 'as h100-sxm, datasheet: ...'."""
    source = origin.source
    if proportion:
        source = f"{LENT}{base} in proportion to {proportion}, {source}"
    elif not origin.lent:
        source = f"{LENT}{base}, {source}"
    return replace(origin, source=source, measured=False, kind="prior")
