"""The bandwidth of a link from large messages, for a base whose link is another machine's.

The collectives of a link keep the base's shares of its bandwidth, so one number moves them all;
those that were measured are fitted on top. Messages are large from LARGE on: below, latencies and
protocols decide. Refused: rows that another link or a latency bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from ...base.arrays import Value
from ...base.errors import CalibrationError, InputError, did_you_mean
from ...hardware.cluster import Cluster, CollectiveTime, FastDomain
from ...operators.collectives import ProcessGroup
from ..readers.measurements import Measurements
from .priors import Prior
from .robust import FOLLOWS, Constant, Constants, Fit, Subject, fit_subject, folds_of, groups_of
from .subjects_collective import by_operation, crosses

LARGE = 16 * 2**20
"""Bytes from which a collective spends most of its time on bytes, not on starting."""
SPREAD, FARTHEST = 1.0, 100.0
"""Of the logarithm of a bandwidth around the base's, and the factor that bounds it."""
LEAST_GAIN = 0.25
"""Share of their time that rows must lose with twice the bandwidth: half of it at most."""
LINKS = ("fast", "network")


def fit_links(
    rows: Measurements, cluster: Cluster, links: tuple[str, ...]
) -> tuple[Cluster, list[Fit]]:
    """The cluster with the bandwidths that large messages show, and their fits.

    Raises CalibrationError where the rows do not determine one.
    """
    fits = []
    for link in links:
        if link not in LINKS:
            raise InputError(f"--link {link}: no such link{did_you_mean(link, LINKS)}")
        found = fit_subject(_subject(rows, cluster, link))
        bandwidth = found.constants["bandwidth"].value
        faster = found.subject.predict({"bandwidth": 2 * bandwidth})
        if np.median(1 - faster / found.predicted) < LEAST_GAIN:
            raise CalibrationError(
                f"{found.subject.name}: twice of it would make the rows less than "
                f"{LEAST_GAIN:.0%} faster: another link or a latency bounds them"
            )
        cluster = with_bandwidth(cluster, link, bandwidth)
        fits.append(found)
    return cluster, fits


def followers(base: Cluster, cluster: Cluster) -> Mapping[str, Constant]:
    """Bandwidths of collectives that a fitted link changed, by dotted key of the profile."""
    return {
        f"links.fast.{op}.{name}": Constant(value=value, flags=(FOLLOWS,), measured=False)
        for op, time in _collectives(cluster).items()
        for name in ("bandwidth", "own_bandwidth")
        if np.isfinite(value := getattr(time, name))
        and value != getattr(_collectives(base)[op], name)
    }


def with_bandwidth(cluster: Cluster, link: str, bandwidth: float) -> Cluster:
    """The cluster with another bandwidth of a link, and its collectives in proportion."""
    if link == "network":
        return replace(cluster, network=replace(cluster.network, bandwidth=bandwidth))
    ratio = bandwidth / cluster.fast.bandwidth
    changes: dict[str, Any] = {
        op: replace(
            time, bandwidth=time.bandwidth * ratio, own_bandwidth=time.own_bandwidth * ratio
        )
        for op, time in _collectives(cluster).items()
    }
    return replace(cluster, fast=replace(cluster.fast, bandwidth=bandwidth, **changes))


def _collectives(cluster: Cluster) -> dict[str, CollectiveTime]:
    found = {field.name: getattr(cluster.fast, field.name) for field in fields(FastDomain)}
    return {op: time for op, time in found.items() if isinstance(time, CollectiveTime)}


def _subject(rows: Measurements, cluster: Cluster, link: str) -> Subject:
    table = rows.where(suite="collective")
    leaves = crosses(table, cluster)
    table = table.take((leaves == (link == "network")) & (table.number("bytes") >= LARGE))
    name = {"fast": cluster.fast.name, "network": cluster.network.name}[link]
    if not len(table):
        where = "across nodes" if link == "network" else "inside a domain"
        raise CalibrationError(f"bandwidth of {name}: no collective {where} of 16 MiB or more")
    n, size, ops = table.number("ranks"), table.number("bytes"), table.text("op")
    k = np.maximum(np.nan_to_num(table.number("nodes"), nan=1.0), 1.0) if link == "network" else 1.0
    group = ProcessGroup(n, n / k, k * np.ones_like(n))

    def predict(c: Constants) -> Value:
        return by_operation(ops, size, group, with_bandwidth(cluster, link, c["bandwidth"]))

    base = getattr(cluster, link).bandwidth
    bounds = {"least": base / FARTHEST, "most": base * FARTHEST}
    kinds = np.unique(ops, return_inverse=True)[1].astype(float)
    return Subject(
        name=f"bandwidth of {name}",
        section=f"links.{link}",
        priors=(Prior(name="bandwidth", centre=base, spread=SPREAD, **bounds),),
        predict=predict,
        seconds=table.number("seconds"),
        work=size,
        shapes=groups_of(kinds, n, size),
        folds=folds_of(groups_of(size)),
        split="sizes",
    )
