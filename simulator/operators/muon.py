"""Muon: seconds to orthogonalise what a rank updates, and to get whole matrices for its shards.

Without ZeRO every rank orthogonalises all its matrices. With it the ranks that hold the same
weights share them out: dense ones over dp cp ranks, routed experts over those that hold the same
experts, which are fewer. Where shards are of rows (FSDP2), each rank gets whole matrices for its
shards by an all-to-all in 16 bits, and gives the results back by another, beside the products of
other matrices; experts are whole on their ranks. Neglected: matrices that do not divide by ranks.
Source: Jordan et al. 2024; Liu et al. 2025, arXiv:2502.16982, section 3 (sharing out);
essential.ai, Layer sharding for large-scale training with Muon (the all-to-alls).
Legend: arrays are [ZeRO or not, class, skeleton] or [class, skeleton].
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..base.arrays import Value
from ..hardware.precision.number_formats import BF16
from ..task import Task
from . import collectives, kernel_times
from .collectives import ProcessGroup

SENT = 2.0
"""Bytes of an element of a matrix that ranks exchange."""
EXCHANGES = 3
"""The muon_stage of stacks whose ranks exchange shards."""


class Matrices(NamedTuple):
    """The matrices of hidden layers of a rank [class, skeleton]."""

    flops: Value
    """To orthogonalise all of them once."""
    routed: Value
    """Those of them that are of routed experts."""
    dense: Value
    """Parameters of the others."""
    data_group: ProcessGroup
    """Ranks that hold the same ones."""
    expert_group: ProcessGroup
    """Ranks that hold the same experts."""


def seconds(task: Task, matrices: Matrices) -> Value:
    """Seconds of a step besides those of states, without ZeRO and with."""
    accelerator = task.cluster.accelerator
    sustained = kernel_times.sustained_share(task.software, accelerator)
    constants, peak = kernel_times.gemm_constants(accelerator, BF16)
    rate, group = constants.efficiency * sustained * peak, matrices.data_group
    dense = (matrices.flops - matrices.routed) / group.ranks
    shared = (dense + matrices.routed / matrices.expert_group.ranks) / rate
    if task.software.muon_stage >= EXCHANGES:
        shard = SENT * matrices.dense / group.ranks
        shared = np.maximum(shared, 2 * collectives.all_to_all(shard, group, task.cluster))
    return np.array([matrices.flops / rate, shared])
