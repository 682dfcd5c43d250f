"""Shipped priors, learned from published runs: of stacks fitted to runs of theirs, and of others.

priors.json is written by `plan3d validate --leave-origin-out --prior-out FILE`; the means of its
constants, without rows that are only scored, are numbers of the default stack
(hardware_profiles/software/megatron-core.toml). Spreads are wider for each part of a task's Setting
that no published run had (uncertainty.prior).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from ..base.documents import parse_json
from ..base.files import read_text
from ..hardware.cluster import Cluster
from ..hardware.software import DEFAULT_SOFTWARE, OF_STEPS, Software
from ..hardware.software_stack import neutral, software_profile
from ..task import Task
from .constants import CONSTANTS, lent_spreads
from .posterior import Prior

PRIORS_FILE = "priors.json"
FITTED_STACKS, OTHER_STACKS = "known", "unknown"
ADAPTERS = "adapters"
"""Of the memory of adapters beside frozen weights."""
MEMORY = "memory"
"""The part about peaks of memory."""
FITTED_KINDS = ("fitted", "measured")
"""Kinds of a sustained rate that somebody has timed."""
GBIT = 1.25e8
"""Bytes of a Gb."""
SHOWN = "shown"
"""What the runs behind the prior of OTHER_STACKS had, by the part of a Setting."""


class Setting(NamedTuple):
    """What runs may have shown of a task before: the fewer parts of it, the less is known."""

    stack: str
    accelerator: str
    network: str
    """With its Gb/s a GPU to the nearest power of two; none inside one fast domain."""
    kind: str
    """dense, moe or adapters."""

    @classmethod
    def of_task(cls, task: Task) -> Setting:
        """That of a task."""
        cluster, experts = task.cluster, any(kind.experts for kind in task.model.kinds)
        network = "none"
        if cluster.gpus > cluster.fast_domain.gpus:
            octave = round(math.log2(cluster.network.bandwidth / GBIT))
            network = f"{cluster.network.name}, {2.0**octave:g} Gb/s"
        kind = "adapters" if task.adapters else "moe" if experts else "dense"
        return cls(task.software.label, cluster.accelerator.name, network, kind)

    def novelty(self, shown: Mapping[str, Collection[str]]) -> int:
        """How many of its parts are not among those shown."""
        return sum(part not in shown[name] for name, part in self._asdict().items())


def parts_of(settings: Iterable[Setting]) -> dict[str, list[str]]:
    """What settings have, by the part."""
    several = list(settings)
    return {name: sorted({getattr(one, name) for one in several}) for name in Setting._fields}


def prior_record(prior: Prior) -> dict[str, Any]:
    """A prior as JSON holds it."""
    return {
        "names": list(prior.names),
        "mean": prior.mean.round(4).tolist(),
        "covariance": prior.covariance.round(6).tolist(),
        "sigma": round(prior.sigma, 5),
        "freedom": prior.freedom,
        "stalls": round(prior.stalls, 4),
        "novelty": prior.novelty,
        **({} if math.isinf(prior.unit_freedom) else {"unit_freedom": prior.unit_freedom}),
        **({} if prior.scatter == 1 else {"scatter": prior.scatter}),
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
        novelty=float(record.get("novelty", 0.0)),
        unit_freedom=float(record.get("unit_freedom", math.inf)),
        scatter=float(record.get("scatter", 1.0)),
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


def own_constants(software: Software) -> tuple[str, ...]:
    """Constants of which a stack, without what runs taught, has another number than the default
    stack: counted in its code or measured, so that the mean of others is not its own."""
    other, own = neutral(software_profile(DEFAULT_SOFTWARE)), neutral(software)
    keys = {name: one.stack_key for name, one in CONSTANTS.items() if one.stack_key}
    return tuple(name for name, key in keys.items() if getattr(own, key) != getattr(other, key))


def has_fitted_rates(software: Software) -> bool:
    """Whether the rates of a stack were fitted to runs of it, or measured."""
    origin = software.provenance.get("sustained")
    return origin is not None and origin.kind in FITTED_KINDS


def prior_of(task: Task) -> Prior:
    """The prior of a task's stack on its machine: narrower where the stack was fitted, wider for
    each part of a stack that is not which nobody showed, and where numbers of the machine are those
    of another. Spreads of the stack's file replace them."""
    if has_fitted_rates(task.software):
        prior = shipped_prior(FITTED_STACKS)
    else:
        new = Setting.of_task(task).novelty(shipped_records()[SHOWN])
        prior = shipped_prior(OTHER_STACKS).of_unit(new)
    return with_spreads(widened_for_machine(prior, task.cluster), dict(task.software.spreads))


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
    if OF_STEPS in own:
        prior = replace(prior, sigma=own[OF_STEPS], scatter=1.0)
    return replace(prior, covariance=covariance)
