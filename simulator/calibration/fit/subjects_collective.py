"""Constants that collective rows determine, inside a fast domain and across the network.

Predictions are those of collectives.py on a cluster with the trial constants: there is one cost
model. Held out are GPU counts between the smallest and largest where there are three, else sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...base.arrays import Value
from ...base.errors import CalibrationError
from ...hardware.cluster import Cluster, CollectiveTime
from ...operators import collectives
from ...operators.collectives import ProcessGroup
from ..readers.measurements import Measurements
from . import priors
from .robust import Constants, Subject, folds_of, groups_of

Operation = Callable[[Value, ProcessGroup, Cluster], Value]

OPERATIONS: dict[str, Operation] = {
    "all_reduce": collectives.all_reduce,
    "all_gather": collectives.all_gather,
    "reduce_scatter": collectives.reduce_scatter,
    "all_to_all": collectives.all_to_all,
}
NAMES = (*OPERATIONS, "send")


def fast_subjects(rows: Measurements, cluster: Cluster) -> Iterator[Subject]:
    """One subject for each collective measured inside a fast domain."""
    table = rows.where(suite="collective")
    inside = table.take(~crosses(table, cluster))
    for op in _operations(inside):
        yield _fast(inside.where(op=op), op, cluster)


def network_subjects(rows: Measurements, cluster: Cluster) -> Iterator[Subject]:
    """One subject for all collectives that cross the network."""
    table = rows.where(suite="collective")
    table = table.take(crosses(table, cluster))
    if not len(table):
        return
    n, k, size = (table.number(column) for column in ("ranks", "nodes", "bytes"))
    per_node = n / k
    if (per_node != np.round(per_node)).any():
        raise CalibrationError("collectives across nodes: every node must hold equally many ranks")
    ops = table.text("op")

    def predict(c: Constants) -> Value:
        constants: dict[str, Any] = dict(c)
        trial = replace(cluster, network=replace(cluster.network, **constants))
        return by_operation(ops, size, ProcessGroup(n, per_node, k), trial)

    shapes = groups_of(*(np.unique(ops, return_inverse=True)[1].astype(float), n, k, size))
    counts = _interior(k)
    yield Subject(
        name=f"network {cluster.network.name}",
        section="links.network",
        priors=priors.NETWORK,
        predict=predict,
        seconds=table.number("seconds"),
        work=size,
        shapes=shapes,
        folds=folds_of(groups_of(size)) if counts is None else counts,
        split="sizes" if counts is None else "node counts between smallest and largest",
        rows=table.rows,
    )


def crosses(rows: Measurements, cluster: Cluster) -> NDArray[np.bool_]:
    """Whether the ranks of a row leave a fast domain.

    A domain of one node is left as soon as there are two; a rack only when it is too small.
    """
    ranks = rows.number("ranks")
    nodes = np.nan_to_num(rows.number("nodes"), nan=1.0)
    if not (ranks >= 2).all():
        raise CalibrationError("collectives: every row needs ranks, at least 2")
    if not (rows.number("bytes") > 0).all():
        raise CalibrationError("collectives: every row needs bytes, more than 0")
    node_wide = cluster.fast.gpus <= cluster.gpus_per_node
    out: NDArray[np.bool_] = (nodes > 1) if node_wide else (ranks > cluster.fast.gpus)
    lost = ~out & (ranks > cluster.fast.gpus)
    if lost.any():
        raise CalibrationError(
            f"collectives: {ranks[lost][0]:.0f} ranks on one node, but a fast domain of the base "
            f"has {cluster.fast.gpus}: choose another base, or give the number of nodes"
        )
    return out


def _operations(rows: Measurements) -> list[str]:
    found = set(rows.text("op").tolist())
    unknown = sorted(found - set(NAMES))
    if unknown:
        raise CalibrationError(
            f"collective {unknown[0]!r} is not fitted; known: {', '.join(NAMES)}"
        )
    return [name for name in NAMES if name in found]


def _fast(rows: Measurements, op: str, cluster: Cluster) -> Subject:
    """The forms of collectives.py; all-reduce also the switch's, whichever is faster."""
    n, size = rows.number("ranks"), rows.number("bytes")
    ops = np.full(n.shape, op)
    group = ProcessGroup(n, n, np.ones_like(n))
    has_switch = cluster.fast.switch_all_reduce is not None
    switched = op == "all_reduce" and has_switch and bool((n > collectives.NVLS_RANKS).any())

    def predict(c: Constants) -> Value:
        return by_operation(ops, size, group, _with_constants(cluster, op, c, switched))

    counts = _interior(n)
    link = cluster.fast.bandwidth
    extra = priors.switch(link) if switched else ()
    return Subject(
        name=f"{op} in {cluster.fast.name}",
        section=f"links.fast.{op}",
        priors=(*priors.collective(op, link), *extra),
        predict=predict,
        seconds=rows.number("seconds"),
        work=size,
        shapes=groups_of(n, size),
        folds=folds_of(groups_of(size)) if counts is None else counts,
        split="sizes" if counts is None else "GPU counts between smallest and largest",
        rows=rows.rows,
    )


def _with_constants(cluster: Cluster, op: str, c: Constants, switched: bool) -> Cluster:
    """The cluster with trial constants of one collective."""
    plain = {name: value for name, value in c.items() if "." not in name}
    changes: dict[str, Any] = {op: CollectiveTime(**plain)}
    if switched:
        inside = {
            name.partition(".")[2]: value for name, value in c.items() if name.startswith("switch.")
        }
        changes["switch_all_reduce"] = CollectiveTime(latency_per_step=0.0, **inside)
    elif op == "all_reduce":
        changes["switch_all_reduce"] = None
    return replace(cluster, fast=replace(cluster.fast, **changes))


def by_operation(
    ops: NDArray[np.str_], size: Value, group: ProcessGroup, cluster: Cluster
) -> Value:
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


def _interior(counts: Value) -> NDArray[np.int64] | None:
    """A fold for each count between the smallest and the largest; None without such."""
    inner = np.unique(counts)[1:-1]
    if not inner.size:
        return None
    index = np.searchsorted(inner, counts)
    hit = np.isin(counts, inner)
    return np.where(hit, index, -1).astype(np.int64)
