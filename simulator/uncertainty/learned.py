"""The priors that published runs taught: of stacks that somebody has timed, and of others.

priors.json is written by `plan3d validate --leave-origin-out --prior-out FILE`; the means of its
constants are numbers of the default stack (hardware_profiles/software/megatron-core.toml).
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from ..base.documents import parse_json
from ..base.files import read_text
from ..hardware.software import Software
from .prior import Prior

FILE = "priors.json"
KNOWN, UNKNOWN = "known", "unknown"
MEMORY = "memory"
"""The part about peaks of memory."""
TAUGHT = ("fitted", "measured")
"""Kinds of a sustained rate that somebody has timed."""


def as_record(prior: Prior) -> dict[str, Any]:
    """A prior as JSON holds it."""
    return {
        "names": list(prior.names),
        "mean": prior.mean.round(4).tolist(),
        "covariance": prior.covariance.round(6).tolist(),
        "sigma": round(prior.sigma, 5),
        "freedom": prior.freedom,
    }


def from_record(record: dict[str, Any]) -> Prior:
    """The same read back."""
    return Prior(
        names=tuple(record["names"]),
        mean=np.array(record["mean"], float),
        covariance=np.array(record["covariance"], float),
        sigma=float(record["sigma"]),
        freedom=float(record["freedom"]),
    )


@cache
def records() -> dict[str, Any]:
    """What FILE holds."""
    out: dict[str, Any] = parse_json(read_text(resources.files(__package__) / FILE, FILE), FILE)
    return out


@cache
def learned(which: str) -> Prior:
    """The prior of KNOWN or UNKNOWN stacks around their profiles' own numbers."""
    prior = from_record(records()[which])
    return Prior(prior.names, np.zeros_like(prior.mean), prior.covariance, prior.sigma)


def is_known(software: Software) -> bool:
    """Whether the rates of a stack were fitted to runs of it, or measured."""
    origin = software.provenance.get("sustained")
    return origin is not None and origin.kind in TAUGHT


def prior_of(software: Software) -> Prior:
    """The prior of a stack, narrower where it is known."""
    return learned(KNOWN if is_known(software) else UNKNOWN)
