"""Axes of collectives: to which kind of parallelism the communication of a trace belongs.

What the framework calls a process group decides, then its ranks, then its size and the operation
where the plan leaves only one axis for them; what several axes would explain stays unassigned.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .events import Collective
from .kernels import class_of
from .reader import Kernel

TENSOR, CONTEXT, EXPERT = "tensor_comm", "context_comm", "expert_comm"
PIPELINE, DATA, UNASSIGNED = "pipeline_comm", "data_comm", "unassigned_comm"
AXES = (TENSOR, CONTEXT, EXPERT, PIPELINE, DATA, UNASSIGNED)
"""Names as the parts of predicted steps have them, and what stays unassigned."""
NAMES = (
    (DATA, r"data|(^|_)(dp|fsdp|hsdp|edp|ddp|replicate|shard|zero)(_|$)|embedding|^model_parallel"),
    (CONTEXT, r"context|ring|ulysses|(^|_)(cp|sp)(_|$)"),
    (TENSOR, r"tensor|(^|_)(tp|etp)(_|$)"),
    (EXPERT, r"expert|(^|_)(ep|moe)(_|$)"),
    (PIPELINE, r"pipeline|(^|_)pp(_|$)"),
)
"""Axes by what Megatron-Core (parallel_state.py), torchtitan (parallel_dims.py) and DeepSpeed
(groups.py) call process groups; the first that matches."""
_NAMES = tuple((axis, re.compile(pattern)) for axis, pattern in NAMES)


class Sizes(NamedTuple):
    """Ranks of each axis of a plan."""

    tp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    dp: int = 1
    pp: int = 1

    @property
    def ranks(self) -> int:
        return self.tp * self.cp * self.dp * self.pp

    def stage(self, rank: int) -> int:
        """The pipeline rank of a rank; pipeline ranks are outermost (Megatron-Core, tp-cp-ep-dp-pp;
        torchtitan's mesh alike)."""
        return rank // (self.tp * self.cp * self.dp)

    def axes(self) -> dict[str, set[int]]:
        """Sizes that groups of each axis in use may have."""
        experts = self.tp * self.cp * self.dp // (self.ep * self.etp)
        every = {
            TENSOR: {self.tp, self.etp if self.ep > 1 else self.tp},
            CONTEXT: {self.cp},
            EXPERT: {self.ep, self.ep * self.etp} if self.ep > 1 else {1},
            PIPELINE: {self.pp},
            DATA: {self.dp, self.dp * self.cp, experts if self.ep > 1 else self.dp},
        }
        return {axis: sizes - {1} for axis, sizes in every.items() if sizes - {1}}


USUAL_AXES = {
    "all_to_all": (EXPERT, CONTEXT, TENSOR),
    "send_recv": (PIPELINE, CONTEXT),
    "peer_copy": (PIPELINE, TENSOR),
}
"""Axes that use an operation; the others are used by all but pipelines."""


def axis_of(kernel: Kernel, sizes: Sizes) -> str:
    """The axis that a kernel of communication belongs to."""
    about, operation = kernel.collective, class_of(kernel).name
    for axis, pattern in _NAMES:
        if about.description and pattern.search(about.description.lower()):
            return axis
    usual = USUAL_AXES.get(operation, (TENSOR, CONTEXT, EXPERT, DATA))
    possible = {axis: of for axis, of in sizes.axes().items() if axis in usual}
    if operation in USUAL_AXES and EXPERT in possible:
        return EXPERT
    if about.group_size:
        fitting = {axis: of for axis, of in possible.items() if about.group_size in of}
        possible = fitting or possible
    if about.ranks:
        possible = _by_distance(possible, about, sizes)
    return next(iter(possible)) if len(possible) == 1 else UNASSIGNED


def _by_distance(
    possible: dict[str, set[int]], about: Collective, sizes: Sizes
) -> dict[str, set[int]]:
    """Axes whose neighbours are as far apart as those of a group."""
    apart = {TENSOR: 1, CONTEXT: sizes.tp, EXPERT: sizes.etp, DATA: sizes.tp}
    if about.group_size == sizes.dp:
        apart[DATA] = sizes.tp * sizes.cp
    distance = abs(about.ranks[1] - about.ranks[0]) if len(about.ranks) > 1 else 0
    fitting = {axis: of for axis, of in possible.items() if apart.get(axis) == distance}
    return fitting or possible
