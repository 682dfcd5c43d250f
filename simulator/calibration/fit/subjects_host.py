"""The link of a GPU to its host, from copies of pinned memory either way.

A profile has the datasheet's bandwidth, of which copies reach the share host.COPIED: what is
fitted is the bandwidth that makes the prediction right. Copies are of one GPU alone, so that how
many GPUs share a link is the base's.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...base.arrays import Value
from ...hardware.cluster import Cluster
from ...hardware.host import COPIED
from ..readers.measurements import Measurements
from .priors import US, Prior
from .robust import Constants, Subject, folds_of, groups_of
from .subjects import sizes_of

LATENCY = Prior(name="latency", centre=10 * US, spread=1.0, least=0.1 * US, most=1e-2)
"""Of one copy (CUDA's bandwidthTest: a few microseconds); no number of a profile."""
SPREAD, FARTHEST = 1.0, 100.0
"""Of the logarithm of the bandwidth around the base's, and the factor that bounds it."""


def host_subjects(rows: Measurements, cluster: Cluster) -> Iterator[Subject]:
    """t = t0 + bytes / (COPIED BW), over copies both ways; nothing of a base without [host]."""
    table = rows.where(suite="copy")
    if not len(table) or cluster.host is None:
        return
    moved = sizes_of(table, "bytes", "host copies")
    base = cluster.host.link_bandwidth

    def predict(c: Constants) -> Value:
        return c.get("latency", 0.0) + moved / (COPIED * c["link_bandwidth"])

    bounds = {"least": base / FARTHEST, "most": base * FARTHEST}
    shapes = groups_of(moved)
    yield Subject(
        name="host link",
        section="host",
        priors=(Prior(name="link_bandwidth", centre=base, spread=SPREAD, **bounds), LATENCY),
        predict=predict,
        seconds=table.number("seconds"),
        work=moved,
        shapes=shapes,
        folds=folds_of(shapes),
        split="sizes",
        rows=table.rows,
    )
