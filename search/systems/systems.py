"""Known training systems as the plan fields that each holds.

A system is a way to parallelise, not a software stack: kernels are those of --software for all, so
that two systems differ by what they exchange, keep and wait for. A field that a system holds may be
narrowed, never contradicted; its usual settings may be replaced; the other fields are searched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from plan3d.simulator.base.errors import InputError, did_you_mean

Listed = tuple[str | int, ...]
"""Values of one plan field, as people write them."""


@dataclass(frozen=True)
class ValueSet:
    """Values of a field that are too many to list."""

    description: str
    """What they are."""
    contains: Callable[[Any], bool]
    """Whether a value, as people write it, is one of them."""
    default: str | int
    """The one of a plan that states none."""


Values = Listed | ValueSet
MIB = 2**20
FP32 = 4
"""Bytes of a gradient in the bf16 recipe."""
DDP_BUCKET = 25 * MIB // FP32
"""Parameters in a bucket of 25 MiB (bucket_cap_mb of DistributedDataParallel)."""
HOROVOD_BUCKET = 64 * MIB // FP32
"""Parameters in a fusion buffer of 64 MiB (HOROVOD_FUSION_THRESHOLD)."""
GOSSIP_GRAPHS = (
    *("inner-outer-exponential", "one-peer-exponential", "exponential"),
    *("ring", "grid", "torus"),
)
"""Graphs of BlueFog (topology_util.py), dynamic ones first, then fixed ones, and a torus."""
HELD_BY_DEFAULT: Mapping[str, Values] = {
    **dict.fromkeys(("tp", "pp", "cp", "ep", "virtual_stages", "sync_period"), (1,)),
    **dict.fromkeys(("zero", "shard"), (0,)),
    "tp_grid": ("1d",),
    "sync": ("all-reduce",),
    "compression": ("none",),
}
"""Held fields by default: whole models, gradients all-reduced in full."""


def _is_3d_grid(grid: Any) -> bool:
    return str(grid).startswith("3d:")


def _is_several(value: Any) -> bool:
    return bool(value > 1)


def _is_mesh_grid(grid: Any) -> bool:
    """Whether it splits the same dimension of all tensors over the same axis; the batch is data
    parallelism."""
    return grid == "1d" or (_is_3d_grid(grid) and grid.endswith("x1"))


def _is_positive(value: Any) -> bool:
    return bool(value > 0)


TWO_OR_MORE = ValueSet("2 or more", _is_several, 2)
ONE_OR_MORE = ValueSet("1 or more", _is_positive, 1)
_MESH_GRIDS = ValueSet("1d, or a 3d grid of depth 1 such as 3d:4x2x1", _is_mesh_grid, "1d")
_3D_GRIDS = ValueSet("a 3d grid such as 3d:4x2x2", _is_3d_grid, "auto")


@dataclass(frozen=True)
class System:
    """One way to train; the `searched_fields`, and the fields of no table, are searched."""

    name: str
    meaning: str
    source: str
    defining_fields: Mapping[str, Values] = field(default_factory=dict)
    """Fields that make it this system, with the values that they may have."""
    usual_settings: Mapping[str, Listed] = field(default_factory=dict)
    """Values of further fields, which the user may replace."""
    _: KW_ONLY
    searched_fields: tuple[str, ...] = ()
    """Fields of HELD_BY_DEFAULT that it does not hold."""
    exact: bool = True
    """Every step is that of one device; else an accuracy takes more steps."""
    spans_domains: bool = False
    """Its tensor ranks span any number of fast domains."""
    gpus: int | None = None
    """GPUs that it trains on; None for any number."""

    @property
    def held_values(self) -> dict[str, Values]:
        """Every held field, with the values that it may have."""
        defaults = {
            n: values for n, values in HELD_BY_DEFAULT.items() if n not in self.searched_fields
        }
        return defaults | dict(self.defining_fields)

    @property
    def search_values(self) -> dict[str, Values]:
        """The values by field that its search tries unless told otherwise."""
        return self.held_values | dict(self.usual_settings)


_OVERLAPPED: Mapping[str, Values] = {"overlap_grad_reduce": (1,)}
_REDUCED_AT_THE_END: Mapping[str, Values] = {"overlap_grad_reduce": (0,)}
_GATHERED_AT_THE_END: Mapping[str, Values] = {
    **_OVERLAPPED,
    "overlap_param_gather": (0,),
}
"""Gradients reduced as they are ready, weights gathered after the optimizer."""
_MEGATRON_TENSOR: Mapping[str, Values] = {"sequence_parallel": (0,), "overlap_tp": (0,)}
_OF_SITES: Mapping[str, Values] = {
    **dict.fromkeys(("sites", "sync_period"), TWO_OR_MORE),
    "outer_optimizer": ("nesterov",),
}
_IN_A_SITE = ("tp", "pp", "virtual_stages", "zero", "sync_period")
"""What is searched of the plan inside a site."""
_OVERLAPPED_GRID: Mapping[str, Values] = {"sequence_parallel": (0,), "overlap_tp": (1,)}
"""Gathers and sums of a grid overlap with its products."""

SYSTEMS = {
    system.name: system
    for system in (
        System(
            "sequential",
            "one device, gradients accumulated",
            "Bottou et al. 2018, section 3",
            gpus=1,
        ),
        System(
            "parameter-server",
            "workers push gradients to servers and pull weights, every step",
            "Dean et al. 2012 (DistBelief), section 4; synchronous: Chen et al. 2016",
            {"sync": ("parameter-server", "sharded-parameter-server"), **_REDUCED_AT_THE_END},
        ),
        System(
            "downpour",
            "parameter servers without waiting (asynchronous)",
            "Dean et al. 2012 (DistBelief, Downpour SGD), section 4.1",
            {"sync": ("asynchronous-parameter-server",), **_REDUCED_AT_THE_END},
            exact=False,
        ),
        System(
            "horovod",
            "data parallelism, ring all-reduce of fused tensors",
            "Sergeev and Del Balso 2018",
            {"sync": ("ring",), **_OVERLAPPED},
            {"bucket_parameters": (HOROVOD_BUCKET,)},
        ),
        System(
            "ddp",
            "data parallelism, buckets all-reduced as they are ready",
            "Li et al. 2020 (PyTorch DDP), section 3.2",
            _OVERLAPPED,
            {"bucket_parameters": (DDP_BUCKET,)},
        ),
        System(
            "gossip",
            "replicas, or nodes that sum first, average weights with neighbours in a graph",
            "Ying et al. 2021 (BlueFog), section 3; Lian et al. 2017, algorithm 1",
            {"sync": ("gossip", "hierarchical-gossip"), **_OVERLAPPED},
            {"topology": GOSSIP_GRAPHS},
            exact=False,
        ),
        System(
            "local-sgd",
            "replicas average weights every few steps (FedAvg)",
            "Stich 2019, algorithm 1; McMahan et al. 2017, algorithm 1",
            {"sync_period": TWO_OR_MORE, **_REDUCED_AT_THE_END},
            {"sync_period": (8,)},
            exact=False,
        ),
        System(
            "diloco",
            "sites train on their own and take an outer momentum step now and then",
            "Douillard et al. 2023 (DiLoCo), algorithm 1",
            {**_OF_SITES, "fragments": (1,), "outer_delay": (0,), "outer_bits": (0,)},
            {"sync_period": (500,)},
            searched_fields=_IN_A_SITE,
            exact=False,
        ),
        System(
            "streaming-diloco",
            "the same, a part of the model after the other, beside compute and in 4 bits",
            "Douillard et al. 2025 (Streaming DiLoCo); torchft, local_sgd.py (DiLoCo)",
            {**_OF_SITES, "fragments": TWO_OR_MORE, "outer_delay": ONE_OR_MORE},
            {"sync_period": (100,), "fragments": (10,), "outer_delay": (5,), "outer_bits": (4,)},
            searched_fields=_IN_A_SITE,
            exact=False,
        ),
        System(
            "qsgd",
            "gradients quantised at random before they are exchanged",
            "Alistarh et al. 2017, section 3",
            {"compression": ("qsgd",)},
            {"levels": (16,), "bucket_parameters": (HOROVOD_BUCKET,)},
            exact=False,
        ),
        System(
            "top-k",
            "the largest entries of gradients, with error feedback",
            "Stich et al. 2018 (MEM-SGD), algorithm 1",
            {"compression": ("mem-sgd",)},
            {"kept_per_thousand": (10,), "bucket_parameters": (HOROVOD_BUCKET,)},
            exact=False,
        ),
        System(
            "zero1",
            "data parallelism, optimizer state sharded",
            "Rajbhandari et al. 2020, section 5.1",
            {"zero": (1,), **_GATHERED_AT_THE_END},
        ),
        System(
            "zero2",
            "data parallelism, optimizer state and gradients sharded",
            "Rajbhandari et al. 2020, section 5.2",
            {"zero": (2,), **_GATHERED_AT_THE_END},
        ),
        System(
            "zero3",
            "data parallelism, all state sharded, weights gathered layer by layer",
            "Rajbhandari et al. 2020, section 5.3",
            {"zero": (3,), **_OVERLAPPED},
        ),
        System(
            "fsdp",
            "zero3 by units, over all ranks or over a few and replicated",
            "Zhao et al. 2023, sections 3.2 and 3.3",
            {"zero": (3,), **_OVERLAPPED},
            {"shard": (0, 2, 4, 8, 16, 32, 64)},
            searched_fields=("shard",),
        ),
        System(
            "gpipe",
            "pipeline and data parallelism, all forward, then all backward",
            "Huang et al. 2019, sections 2.2 and 2.3",
            {
                "pp": TWO_OR_MORE,
                "schedule": ("gpipe",),
                "recompute": ("full",),
                **_REDUCED_AT_THE_END,
            },
        ),
        System(
            "pipedream",
            "pipeline and data parallelism, 1F1B with flushes",
            "Narayanan et al. 2021 (SC'21), section 2.2.1",
            {"pp": TWO_OR_MORE, "schedule": ("1f1b",)},
        ),
        System(
            "tensor",
            "tensor (1-D) and data parallelism: Megatron-LM of 2019",
            "Shoeybi et al. 2019, section 3",
            {"tp": TWO_OR_MORE, **_MEGATRON_TENSOR},
        ),
        System(
            "mesh-tf",
            "named dimensions split over a mesh: batch, features in and out; Adafactor",
            "Shazeer et al. 2018, sections 3 and 4; tensorflow/mesh, gin/defaults.gin (Adafactor)",
            {"tp": TWO_OR_MORE, "tp_grid": _MESH_GRIDS, **_MEGATRON_TENSOR},
            {"optimizer": ("adafactor",)},
            spans_domains=True,
        ),
        System(
            "axonn",
            "matrices split over a 3-D grid of ranks, and data parallelism",
            "Singh et al. 2023 (4-D hybrid algorithm), sections 3 and 4",
            {"tp": TWO_OR_MORE, "tp_grid": _3D_GRIDS, **_OVERLAPPED_GRID},
            spans_domains=True,
        ),
        System(
            "megatron",
            "tensor, context, expert, pipeline and data parallelism, distributed optimizer",
            "Narayanan et al. 2021 (SC'21), sections 2 and 3; Korthikanti et al. 2023, section 4",
            {"schedule": ("1f1b", "interleaved"), "zero": (1, 0)},
            {"schedule": ("auto",)},
            searched_fields=("tp", "pp", "cp", "ep", "virtual_stages"),
        ),
        System(
            "megascale",
            "interleaved 3-D parallelism, all communication overlapped",
            "Jiang et al. 2024 (NSDI), sections 3.2 and 3.3",
            {
                **dict.fromkeys(("tp", "pp", "virtual_stages"), TWO_OR_MORE),
                **dict.fromkeys(("zero", "sequence_parallel", "overlap_tp", "overlap_p2p"), (1,)),
                **dict.fromkeys(("overlap_grad_reduce", "overlap_param_gather"), (1,)),
                "schedule": ("interleaved",),
            },
        ),
        System(
            "llama3",
            "4-D parallelism with context, gradients sharded",
            "Llama Team 2024 (The Llama 3 herd of models), section 3.3.2",
            {
                **dict.fromkeys(("tp", "pp"), TWO_OR_MORE),
                "zero": (2,),
                "schedule": ("1f1b", "interleaved"),
                "overlap_grad_reduce": (1,),
                "overlap_param_gather": (1,),
            },
            {"schedule": ("auto",), "cp_comm": ("p2p", "all-gather")},
            searched_fields=("cp", "virtual_stages"),
        ),
    )
}
"""Every system by name, from one device upward."""


def system(name: str) -> System:
    """The system of that name in any case; InputError, with the nearest names, when it is
    unknown."""
    name = name.lower()
    if name not in SYSTEMS:
        raise InputError(f"unknown system {name!r}{did_you_mean(name, SYSTEMS)}")
    return SYSTEMS[name]


def describe_values(name: str, values: Values) -> str:
    """The values of a field: 'zero=0', 'sync_period=2 or more'."""
    description = values.description if isinstance(values, ValueSet) else ",".join(map(str, values))
    return f"{name}={description}"


def is_single(values: Values) -> bool:
    """Whether there is no choice."""
    return not isinstance(values, ValueSet) and len(values) == 1


def check_gpus(system: System, gpus: int) -> None:
    """InputError where the system does not train on so many GPUs."""
    if system.gpus not in (None, gpus):
        raise InputError(
            f"the system {system.name} trains on {system.gpus} GPU, not {gpus}: give --gpus "
            f"{system.gpus}"
        )
