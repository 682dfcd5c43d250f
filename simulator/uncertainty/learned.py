"""Shipped priors, learned from published runs: of stacks fitted to runs of theirs, and of others.

priors.json is written by `plan3d validate --leave-origin-out --prior-out FILE`; the means of its
constants are numbers of the default stack (hardware_profiles/software/megatron-core.toml). The file
is of the command before it learned stalled rows and all kinds together (docs/accuracy.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from ..base.documents import parse_json
from ..base.files import read_text
from ..hardware.cluster import Cluster
from ..hardware.software import OF_STEPS, Software
from .constants import lent_spreads
from .posterior import Prior

PRIORS_FILE = "priors.json"
FITTED_STACKS, OTHER_STACKS = "known", "unknown"
ADAPTERS = "adapters"
"""Of the memory of adapters beside frozen weights."""
MEMORY = "memory"
"""The part about peaks of memory."""
FITTED_KINDS = ("fitted", "measured")
"""Kinds of a sustained rate that somebody has timed."""


def prior_record(prior: Prior) -> dict[str, Any]:
    """A prior as JSON holds it."""
    return {
        "names": list(prior.names),
        "mean": prior.mean.round(4).tolist(),
        "covariance": prior.covariance.round(6).tolist(),
        "sigma": round(prior.sigma, 5),
        "freedom": prior.freedom,
        "stalls": round(prior.stalls, 4),
    }


def prior_from_record(record: dict[str, Any]) -> Prior:
    """The same read back."""
    return Prior(
        names=tuple(record["names"]),
        mean=np.array(record["mean"], float),
        covariance=np.array(record["covariance"], float),
        sigma=float(record["sigma"]),
        freedom=float(record["freedom"]),
        stalls=float(record.get("stalls", 0.0)),
    )


@cache
def shipped_records() -> dict[str, Any]:
    """What PRIORS_FILE holds."""
    out: dict[str, Any] = parse_json(
        read_text(resources.files(__package__) / PRIORS_FILE, PRIORS_FILE), PRIORS_FILE
    )
    return out


@cache
def shipped_prior(which: str) -> Prior:
    """The prior of FITTED_STACKS or OTHER_STACKS around their profiles' own numbers."""
    prior = prior_from_record(shipped_records()[which])
    return replace(prior, mean=np.zeros_like(prior.mean))


def has_fitted_rates(software: Software) -> bool:
    """Whether the rates of a stack were fitted to runs of it, or measured."""
    origin = software.provenance.get("sustained")
    return origin is not None and origin.kind in FITTED_KINDS


def prior_of(software: Software, cluster: Cluster) -> Prior:
    """The prior of a stack on a machine: narrower where the stack is known, wider where numbers of
    the machine are those of another. Spreads of the stack's file replace both."""
    prior = widened_for_machine(
        shipped_prior(FITTED_STACKS if has_fitted_rates(software) else OTHER_STACKS), cluster
    )
    return with_spreads(prior, dict(software.spreads))


def widened_for_machine(prior: Prior, cluster: Cluster) -> Prior:
    """A prior of stacks, wider where numbers of the machine are those of another."""
    lent = np.array(lent_spreads(cluster, prior.names))
    return replace(prior, covariance=prior.covariance + np.diag(lent**2))


def with_spreads(prior: Prior, own: Mapping[str, float]) -> Prior:
    """The prior with some spreads replaced, and what runs taught of how they go with others."""
    covariance = prior.covariance.copy()
    for k, name in enumerate(prior.names):
        if name in own:
            covariance[k], covariance[:, k] = 0.0, 0.0
            covariance[k, k] = own[name] ** 2
    return replace(prior, covariance=covariance, sigma=own.get(OF_STEPS, prior.sigma))
