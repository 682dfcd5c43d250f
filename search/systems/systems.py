"""Known training systems as the plan fields that each holds.

A system is a way to parallelise, not a software stack: kernels are those of --software for all, so
that two systems differ by what they exchange, keep and wait for. A field that a system holds may be
narrowed, never contradicted; what it tries is only its usual setting; the others are searched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from plan3d.simulator.base.errors import InputError, did_you_mean

Listed = tuple[str | int, ...]
"""Values of one plan field, as people write them."""


@dataclass(frozen=True)
class Those:
    """Values of a field that are too many to list."""

    said: str
    """What they are."""
    has: Callable[[Any], bool]
    """Whether a value, as people write it, is one of them."""
    least: str | int
    """The one of a plan that states none."""


Values = Listed | Those
MIB = 2**20
FP32 = 4
"""Bytes of a gradient in the bf16 recipe."""
DDP_BUCKET = 25 * MIB // FP32
"""Parameters in a bucket of 25 MiB (bucket_cap_mb of DistributedDataParallel)."""
HOROVOD_BUCKET = 64 * MIB // FP32
"""Parameters in a fusion buffer of 64 MiB (HOROVOD_FUSION_THRESHOLD)."""
ALONE: Mapping[str, Values] = {
    **dict.fromkeys(("tp", "pp", "cp", "ep", "virtual_stages", "sync_period"), (1,)),
    **dict.fromkeys(("zero", "shard"), (0,)),
    "tp_grid": ("1d",),
    "sync": ("all-reduce",),
    "compression": ("none",),
}
"""What a system holds unless it says otherwise: whole models, gradients all-reduced in full."""


def _several(value: Any) -> bool:
    return bool(value > 1)


def _solid(grid: Any) -> bool:
    return str(grid).startswith("3d:")


def _mesh(grid: Any) -> bool:
    return grid == "1d" or (_solid(grid) and grid.endswith("x1"))


SEVERAL = Those("2 or more", _several, 2)
_MESH = Those("1d, or a 3d grid of depth 1 such as 3d:4x2x1", _mesh, "1d")
"""The same dimension of all tensors over the same axis; the batch is data parallelism."""
_3D = Those("a 3d grid such as 3d:4x2x2", _solid, "auto")


@dataclass(frozen=True, kw_only=True)
class System:
    """One way to train; the fields named in `free`, and those of no table, are searched."""

    name: str
    meaning: str
    source: str
    own: Mapping[str, Values]
    """Fields that make it this system, with the values that they may have."""
    free: tuple[str, ...] = ()
    """Fields of ALONE that it does not hold."""
    tries: Mapping[str, Listed]
    """Usual settings, which the user may replace."""
    exact: bool = True
    """Every step is that of one device; else an accuracy takes more steps."""
    wide: bool = False
    """Its tensor ranks span any number of fast domains."""
    gpus: int | None = None
    """GPUs that it trains on; None for any number."""

    @property
    def holds(self) -> dict[str, Values]:
        """Every held field, with the values that it may have."""
        usual = {name: values for name, values in ALONE.items() if name not in self.free}
        return usual | dict(self.own)

    @property
    def usual(self) -> dict[str, Values]:
        """The values by field that its search tries unless told otherwise."""
        return self.holds | dict(self.tries)


def _system(
    name: str,
    meaning: str,
    source: str,
    own: Mapping[str, Values] | None = None,
    tries: Mapping[str, Listed] | None = None,
    **more: Any,
) -> System:
    return System(
        name=name, meaning=meaning, source=source, own=own or {}, tries=tries or {}, **more
    )


_OVERLAPPED: Mapping[str, Values] = {"overlap_grad_reduce": (1,)}
_AT_THE_END: Mapping[str, Values] = {"overlap_grad_reduce": (0,)}
_UPDATED: Mapping[str, Values] = {**_OVERLAPPED, "overlap_param_gather": (0,)}
"""Gradients reduced as they are ready, weights gathered after the optimizer."""
_PLAIN_TENSOR: Mapping[str, Values] = {"sequence_parallel": (0,), "overlap_tp": (0,)}
_GRID_TENSOR: Mapping[str, Values] = {"sequence_parallel": (0,), "overlap_tp": (1,)}
"""Gathers and sums of a grid run beside its products."""

SYSTEMS = {
    system.name: system
    for system in (
        _system(
            "sequential",
            "one device, gradients accumulated",
            "Bottou et al. 2018, section 3",
            gpus=1,
        ),
        _system(
            "parameter-server",
            "workers push gradients to servers and pull weights, every step",
            "Dean et al. 2012 (DistBelief), section 4; synchronous: Chen et al. 2016",
            {"sync": ("parameter-server", "sharded-parameter-server"), **_AT_THE_END},
        ),
        _system(
            "downpour",
            "parameter servers that nobody waits for",
            "Dean et al. 2012 (DistBelief, Downpour SGD), section 4.1",
            {"sync": ("asynchronous-parameter-server",), **_AT_THE_END},
            exact=False,
        ),
        _system(
            "horovod",
            "data parallelism, ring all-reduce of fused tensors",
            "Sergeev and Del Balso 2018",
            {"sync": ("ring",), **_OVERLAPPED},
            {"bucket_parameters": (HOROVOD_BUCKET,)},
        ),
        _system(
            "ddp",
            "data parallelism, buckets all-reduced as they are ready",
            "Li et al. 2020 (PyTorch DDP), section 3.2",
            _OVERLAPPED,
            {"bucket_parameters": (DDP_BUCKET,)},
        ),
        _system(
            "gossip",
            "replicas average weights with neighbours in a graph",
            "Ying et al. 2021 (BlueFog); Lian et al. 2017, algorithm 1",
            {"sync": ("gossip",), **_OVERLAPPED},
            {"topology": ("inner-outer-exponential", "one-peer-exponential", "ring")},
            exact=False,
        ),
        _system(
            "local-sgd",
            "replicas average weights every few steps (FedAvg)",
            "Stich 2019, algorithm 1; McMahan et al. 2017, algorithm 1",
            {"sync_period": SEVERAL, **_AT_THE_END},
            {"sync_period": (8,)},
            exact=False,
        ),
        _system(
            "qsgd",
            "gradients quantised at random before they are exchanged",
            "Alistarh et al. 2017, section 3",
            {"compression": ("qsgd",)},
            {"levels": (16,)},
            exact=False,
        ),
        _system(
            "top-k",
            "the largest entries of gradients, with error feedback",
            "Stich et al. 2018 (MEM-SGD), algorithm 1",
            {"compression": ("mem-sgd",)},
            {"kept_per_thousand": (10,)},
            exact=False,
        ),
        _system(
            "zero1",
            "data parallelism, optimizer state sharded",
            "Rajbhandari et al. 2020, section 5.1",
            {"zero": (1,), **_UPDATED},
        ),
        _system(
            "zero2",
            "data parallelism, optimizer state and gradients sharded",
            "Rajbhandari et al. 2020, section 5.2",
            {"zero": (2,), **_UPDATED},
        ),
        _system(
            "zero3",
            "data parallelism, all state sharded, weights gathered layer by layer",
            "Rajbhandari et al. 2020, section 5.3",
            {"zero": (3,), **_OVERLAPPED},
        ),
        _system(
            "fsdp",
            "zero3 by units, over all ranks or over a few and replicated",
            "Zhao et al. 2023, sections 3.2 and 3.3",
            {"zero": (3,), **_OVERLAPPED},
            {"shard": (0, 2, 4, 8, 16, 32, 64)},
            free=("shard",),
        ),
        _system(
            "gpipe",
            "pipeline and data parallelism, all forward, then all backward",
            "Huang et al. 2019, sections 2.2 and 2.3",
            {"pp": SEVERAL, "schedule": ("gpipe",), "recompute": ("full",), **_AT_THE_END},
        ),
        _system(
            "pipedream",
            "pipeline and data parallelism, 1F1B with flushes",
            "Narayanan et al. 2021 (SC'21), section 2.2.1",
            {"pp": SEVERAL, "schedule": ("1f1b",)},
        ),
        _system(
            "tensor",
            "tensor (1-D) and data parallelism: Megatron-LM of 2019",
            "Shoeybi et al. 2019, section 3",
            {"tp": SEVERAL, **_PLAIN_TENSOR},
        ),
        _system(
            "mesh-tf",
            "named dimensions split over a mesh: batch, features in and features out",
            "Shazeer et al. 2018, sections 3 and 4",
            {"tp": SEVERAL, "tp_grid": _MESH, **_PLAIN_TENSOR},
            wide=True,
        ),
        _system(
            "axonn",
            "matrices split over a 3-D grid of ranks, and data parallelism",
            "Singh et al. 2023 (4-D hybrid algorithm), sections 3 and 4",
            {"tp": SEVERAL, "tp_grid": _3D, **_GRID_TENSOR},
            wide=True,
        ),
        _system(
            "megatron",
            "tensor, context, expert, pipeline and data parallelism, distributed optimizer",
            "Narayanan et al. 2021 (SC'21), sections 2 and 3; Korthikanti et al. 2023, section 4",
            {"schedule": ("1f1b", "interleaved"), "zero": (1, 0)},
            {"schedule": ("auto",)},
            free=("tp", "pp", "cp", "ep", "virtual_stages"),
        ),
        _system(
            "megascale",
            "interleaved 3-D parallelism, all communication overlapped",
            "Jiang et al. 2024 (NSDI), sections 3.2 and 3.3",
            {
                **dict.fromkeys(("tp", "pp", "virtual_stages"), SEVERAL),
                **dict.fromkeys(("zero", "sequence_parallel", "overlap_tp", "overlap_p2p"), (1,)),
                **dict.fromkeys(("overlap_grad_reduce", "overlap_param_gather"), (1,)),
                "schedule": ("interleaved",),
            },
        ),
        _system(
            "llama3",
            "4-D parallelism with context, gradients sharded",
            "Llama Team 2024 (The Llama 3 herd of models), section 3.3.2",
            {
                **dict.fromkeys(("tp", "pp"), SEVERAL),
                "zero": (2,),
                "schedule": ("1f1b", "interleaved"),
                "overlap_grad_reduce": (1,),
                "overlap_param_gather": (1,),
            },
            {"schedule": ("auto",), "cp_comm": ("p2p", "all-gather")},
            free=("cp", "virtual_stages"),
        ),
    )
}
"""Every system by name, from one device upward."""


def system(name: str) -> System:
    """The system of that name; InputError, with the nearest names, when it is unknown."""
    if name not in SYSTEMS:
        raise InputError(f"unknown system {name!r}{did_you_mean(name, SYSTEMS)}")
    return SYSTEMS[name]


def shown(field: str, values: Values) -> str:
    """The values of a field: 'zero=0', 'sync_period=2 or more'."""
    said = values.said if isinstance(values, Those) else ",".join(map(str, values))
    return f"{field}={said}"


def is_single(values: Values) -> bool:
    """Whether there is no choice."""
    return not isinstance(values, Those) and len(values) == 1


def check_gpus(system: System, gpus: int) -> None:
    """InputError where the system does not train on so many GPUs."""
    if system.gpus not in (None, gpus):
        raise InputError(
            f"the system {system.name} trains on {system.gpus} GPU, not {gpus}: give --gpus "
            f"{system.gpus}"
        )
