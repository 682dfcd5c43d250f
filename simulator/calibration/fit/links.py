"""Subjects of collectives inside a fast domain and across the network, and the bandwidths of links.

Predictions are those of collectives.py on a cluster with the trial constants: there is one cost
model. Held out are GPU counts between the smallest and largest where there are three, else sizes.

A link of a base that is another machine's can be fitted by large messages alone: the collectives of
a link keep the base's shares of its bandwidth, so one number moves them all; those that were
measured are fitted on top. Refused are rows that another link or a latency bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...base.arrays import Value
from ...base.errors import CalibrationError, InputError, did_you_mean
from ...hardware.cluster import Cluster, CollectiveTime, FastDomain
from ...operators import collectives
from ...operators.collectives import ProcessGroup
from ..readers.measurements import Measurements
from . import priors
from .robust import (
    FOLLOWS_LINK,
    Constant,
    Constants,
    Fit,
    Subject,
    fit_subject,
    folds_of,
    groups_of,
)
from .subjects import make_subject

Operation = Callable[[Value, ProcessGroup, Cluster], Value]

OPERATIONS: dict[str, Operation] = {
    "all_reduce": collectives.all_reduce,
    "all_gather": collectives.all_gather,
    "reduce_scatter": collectives.reduce_scatter,
    "all_to_all": collectives.all_to_all,
}
OPERATION_NAMES = (*OPERATIONS, "send")
LARGE_MESSAGE = 16 * 2**20
"""Bytes from which a collective spends most of its time on bytes, not on starting: below, latencies
and protocols decide."""
LEAST_GAIN = 0.25
"""Share of their time that rows must lose with twice the bandwidth: half of it at most."""
LINKS = ("fast", "network")


def fast_subjects(rows: Measurements, cluster: Cluster) -> Iterator[Subject]:
    """One subject for each collective measured inside a fast domain."""
    table = rows.matching(suite="collective")
    inside = table.take(~_crosses(table, cluster))
    measured = set(inside.text("op").tolist())
    unknown = sorted(measured - set(OPERATION_NAMES))
    if unknown:
        raise CalibrationError(
            f"collective {unknown[0]!r} is not fitted; known: {', '.join(OPERATION_NAMES)}"
        )
    for op in OPERATION_NAMES:
        if op in measured:
            yield _fast_subject(inside.matching(op=op), op, cluster)


def _fast_subject(rows: Measurements, op: str, cluster: Cluster) -> Subject:
    """The forms of collectives.py; all-reduce also the switch's, whichever is faster."""
    n, size = rows.number("ranks"), rows.number("bytes")
    ops = np.full(n.shape, op)
    group = ProcessGroup(n, n, np.ones_like(n))
    has_switch = cluster.fast_domain.switch_all_reduce is not None
    switched = op == "all_reduce" and has_switch and bool((n > collectives.NVLS_RANKS).any())
    link = cluster.fast_domain.bandwidth

    def predict(c: Constants) -> Value:
        return _seconds(ops, size, group, _with_collective(cluster, op, c, switched))

    split, folds = _count_folds(n, size, "GPU")
    return make_subject(
        rows,
        f"{op} in {cluster.fast_domain.name}",
        f"links.fast.{op}",
        (*priors.collective(op, link), *(priors.switch(link) if switched else ())),
        predict,
        size,
        [n, size],
        split,
        folds,
    )


def _with_collective(cluster: Cluster, op: str, c: Constants, switched: bool) -> Cluster:
    """The cluster with trial constants of one collective."""
    ring = {name: value for name, value in c.items() if "." not in name}
    changes: dict[str, Any] = {op: CollectiveTime(**ring)}
    if switched:
        inside = {
            name.partition(".")[2]: value for name, value in c.items() if name.startswith("switch.")
        }
        changes["switch_all_reduce"] = CollectiveTime(latency_per_step=0.0, **inside)
    elif op == "all_reduce":
        changes["switch_all_reduce"] = None
    return replace(cluster, fast_domain=replace(cluster.fast_domain, **changes))


def network_subjects(rows: Measurements, cluster: Cluster) -> Iterator[Subject]:
    """One subject for all collectives that cross the network."""
    table = rows.matching(suite="collective")
    table = table.take(_crosses(table, cluster))
    if not len(table):
        return
    n, k, size = (table.number(column) for column in ("ranks", "nodes", "bytes"))
    per_node, ops = n / k, table.text("op")
    if (per_node != np.round(per_node)).any():
        raise CalibrationError("collectives across nodes: every node must hold equally many ranks")

    def predict(c: Constants) -> Value:
        constants: dict[str, Any] = dict(c)
        trial = replace(cluster, network=replace(cluster.network, **constants))
        return _seconds(ops, size, ProcessGroup(n, per_node, k), trial)

    name, shapes = f"network {cluster.network.name}", [_numbered(ops), n, k, size]
    split, folds = _count_folds(k, size, "node")
    yield make_subject(
        table, name, "links.network", priors.NETWORK, predict, size, shapes, split, folds
    )


def _crosses(rows: Measurements, cluster: Cluster) -> NDArray[np.bool_]:
    """Whether the ranks of a row leave a fast domain.

    A domain of one node is left as soon as there are two; a rack only when it is too small.
    """
    ranks = rows.number("ranks")
    nodes = np.nan_to_num(rows.number("nodes"), nan=1.0)
    if not (ranks >= 2).all():
        raise CalibrationError("collectives: every row needs ranks, at least 2")
    if not (rows.number("bytes") > 0).all():
        raise CalibrationError("collectives: every row needs bytes, more than 0")
    node_wide = cluster.fast_domain.gpus <= cluster.gpus_per_node
    out: NDArray[np.bool_] = (nodes > 1) if node_wide else (ranks > cluster.fast_domain.gpus)
    lost = ~out & (ranks > cluster.fast_domain.gpus)
    if lost.any():
        raise CalibrationError(
            f"collectives: {ranks[lost][0]:.0f} ranks on one node, but a fast domain of the base "
            f"has {cluster.fast_domain.gpus}: choose another base, or give the number of nodes"
        )
    return out


def _seconds(ops: NDArray[np.str_], size: Value, group: ProcessGroup, cluster: Cluster) -> Value:
    """Seconds of rows of several collectives."""
    out = np.empty_like(size)
    for op in set(ops.tolist()):
        rows = ops == op
        if op == "send":
            out[rows] = collectives.send(size[rows], group.domains[rows] > 1, cluster)
        else:
            part = ProcessGroup(*(column[rows] for column in group))
            out[rows] = OPERATIONS[op](size[rows], part, cluster)
    return out


def _numbered(ops: NDArray[np.str_]) -> Value:
    """A number for each distinct operation [row]."""
    return np.unique(ops, return_inverse=True)[1].astype(float)


def _count_folds(counts: Value, size: Value, what: str) -> tuple[str, NDArray[np.int64]]:
    """How rows are held out, and their folds: one for each count between the smallest and the
    largest, or by sizes where there is none."""
    inner = np.unique(counts)[1:-1]
    if not inner.size:
        return "sizes", folds_of(groups_of(size))
    folds = np.where(np.isin(counts, inner), np.searchsorted(inner, counts), -1)
    return f"{what} counts between smallest and largest", folds.astype(np.int64)


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
        fit = fit_subject(_link_subject(rows, cluster, link))
        bandwidth = fit.constants["bandwidth"].value
        faster = fit.subject.predict({"bandwidth": 2 * bandwidth})
        if np.median(1 - faster / fit.predicted) < LEAST_GAIN:
            raise CalibrationError(
                f"{fit.subject.name}: twice of it would make the rows less than "
                f"{LEAST_GAIN:.0%} faster: another link or a latency bounds them"
            )
        cluster = _with_bandwidth(cluster, link, bandwidth)
        fits.append(fit)
    return cluster, fits


def _link_subject(rows: Measurements, cluster: Cluster, link: str) -> Subject:
    table = rows.matching(suite="collective")
    leaves = _crosses(table, cluster)
    large = table.number("bytes") >= LARGE_MESSAGE
    table = table.take((leaves == (link == "network")) & large)
    domain = cluster.network if link == "network" else cluster.fast_domain
    if not len(table):
        where = "across nodes" if link == "network" else "inside a domain"
        raise CalibrationError(
            f"bandwidth of {domain.name}: no collective {where} of 16 MiB or more"
        )
    n, size, ops = table.number("ranks"), table.number("bytes"), table.text("op")
    k = np.maximum(np.nan_to_num(table.number("nodes"), nan=1.0), 1.0) if link == "network" else 1.0
    group = ProcessGroup(n, n / k, k * np.ones_like(n))

    def predict(c: Constants) -> Value:
        return _seconds(ops, size, group, _with_bandwidth(cluster, link, c["bandwidth"]))

    constants = (priors.bandwidth("bandwidth", domain.bandwidth),)
    return make_subject(
        table,
        f"bandwidth of {domain.name}",
        f"links.{link}",
        constants,
        predict,
        size,
        [_numbered(ops), n, size],
        folds=folds_of(groups_of(size)),
    )


def _with_bandwidth(cluster: Cluster, link: str, bandwidth: float) -> Cluster:
    """The cluster with another bandwidth of a link, and its collectives in proportion."""
    if link == "network":
        return replace(cluster, network=replace(cluster.network, bandwidth=bandwidth))
    ratio = bandwidth / cluster.fast_domain.bandwidth
    changes: dict[str, Any] = {
        op: replace(
            time, bandwidth=time.bandwidth * ratio, own_bandwidth=time.own_bandwidth * ratio
        )
        for op, time in _collectives(cluster).items()
    }
    return replace(
        cluster, fast_domain=replace(cluster.fast_domain, bandwidth=bandwidth, **changes)
    )


def followers(base: Cluster, cluster: Cluster) -> Mapping[str, Constant]:
    """Bandwidths of collectives that a fitted link changed, by dotted key of the profile."""
    return {
        f"links.fast.{op}.{name}": Constant(value=value, flags=(FOLLOWS_LINK,), measured=False)
        for op, time in _collectives(cluster).items()
        for name in ("bandwidth", "own_bandwidth")
        if np.isfinite(value := getattr(time, name))
        and value != getattr(_collectives(base)[op], name)
    }


def _collectives(cluster: Cluster) -> dict[str, CollectiveTime]:
    times = {field.name: getattr(cluster.fast_domain, field.name) for field in fields(FastDomain)}
    return {op: time for op, time in times.items() if isinstance(time, CollectiveTime)}
