"""What does a published run not say? Defaults and units by source or framework, in one table.

A published row rarely states everything a prediction needs. What it leaves out is filled from
here, and from nowhere else, so that every assumption can be read, cited and changed in one place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..base.units import GIB


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What a published memory figure means."""

    unit: float = GIB
    """Bytes of the unit it is printed in."""
    first_stage: bool = False
    """Taken on the first pipeline rank; otherwise on the fullest."""
    reserved: bool = False
    """Includes context, communicators and the allocator's slack (nvidia-smi); otherwise it is
    what tensors allocate."""


@dataclass(frozen=True, kw_only=True)
class Convention:
    """How to read the rows of one source, or of one framework where the source is not known."""

    software: str
    """Software profile; '{dtype}' stands for the number format of the row."""
    vocabulary: int = 51200
    dtype: str = "bf16"
    recompute: str = "none"
    micro_batch: int = 0
    """0: a row that does not state it is not supported."""
    zero: int = 0
    deepest: bool = False
    """Pipelines that do not state their virtual stages hold one layer in each."""
    overlap: Mapping[str, int] = field(default_factory=dict)
    """Overlap fields of the plan, where they are legal."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the software profile that this source sets otherwise."""
    rack: int = 0
    """GPUs of a fast domain that jobs use, where they leave some of it idle; 0 all."""
    memory: Memory = Memory()


_DEEPSPEED = Convention(
    software="megatron-deepspeed-{dtype}",
    dtype="fp16",
    recompute="full",
    overlap={"overlap_grad_reduce": 0, "overlap_param_gather": 0},
)
# Megatron-LM's scripts of 2021 run with DDP=local: gradients are reduced after the last backward.
_MEGATRON_2021 = Convention(
    software="megatron-lm-2021",
    dtype="fp16",
    recompute="full",
    overlap={"overlap_grad_reduce": 0, "overlap_param_gather": 0},
    deepest=True,
)
# NeMo's recipes: distributed optimizer with both overlaps, TP overlap, one layer in each chunk,
# 16-bit gradients (their peak memory is 16 % too high with 32-bit ones, and right with these).
_NEMO = Convention(
    software="megatron-core",
    zero=1,
    deepest=True,
    overlap={"overlap_grad_reduce": 1, "overlap_param_gather": 1, "overlap_tp": 1},
    changes={"gradient_memory": 2.0, "reduce_bytes": 2.0},
)
_CORE = Convention(software="megatron-core", zero=1)
_FSDP = Convention(software="fsdp", vocabulary=50368, zero=3)
_NANOTRON = Convention(
    software="nanotron",
    memory=Memory(first_stage=True),
    overlap={"overlap_grad_reduce": 0, "overlap_param_gather": 0},
)
_ZERO_BUBBLE = Convention(
    software="zero-bubble",
    dtype="fp16",
    memory=Memory(unit=1e9),
    overlap={"overlap_grad_reduce": 0, "overlap_p2p": 0},
)

CONVENTIONS: dict[str, Convention] = {
    # By source.
    # Not stated; without sharded states some of the runs would not fit.
    "vtrain24_single": replace(_DEEPSPEED, software="vtrain", vocabulary=50257, zero=1),
    "vtrain24_multi": replace(_DEEPSPEED, vocabulary=50257, zero=1),
    "bloom_prequel22": replace(_DEEPSPEED, zero=1, memory=Memory(reserved=True)),
    # 32 GB V100s of 2021 hold less beside tensors than the stack's A100s (four peaks of 26-32 GB).
    "bigscience_gpt2_v100": replace(
        _DEEPSPEED,
        vocabulary=50257,
        memory=Memory(reserved=True),
        changes={"communicator_bytes": 0.375 * GIB},
    ),
    # arXiv:2210.02414, appendix: 176 micro-batches accumulated, hence one sequence in each.
    "glm130b": replace(_DEEPSPEED, zero=1, micro_batch=1),
    "megatron_sc21": _MEGATRON_2021,
    "megatron_v1_2019": _MEGATRON_2021,
    "nemo_launcher_2405": _NEMO,
    # NeMo 23.03 without flash attention, gradients accumulated outside the GEMMs.
    "nemo_launcher_a100": replace(
        _CORE,
        overlap={"overlap_grad_reduce": 0, "overlap_param_gather": 0},
        changes={"flash_attention": False, "score_bytes": 9.0, "accumulation_bytes": 10.0},
    ),
    "flagperf": replace(_CORE, memory=Memory(reserved=True)),
    # GB200 runs are on multiples of 64 GPUs: 64 of the 72 of a rack.
    "dgxc": replace(_NEMO, rack=64, memory=Memory(unit=1e9)),
    # Labels of out-of-memory runs fit 16-bit gradients and logits that tp does not shard.
    "hagemann24": replace(
        _CORE,
        vocabulary=128000,
        overlap={"overlap_grad_reduce": 0, "overlap_param_gather": 0},
        changes={"gradient_memory": 2.0, "sharded_logits": False, "logit_bytes": 16.0},
    ),
    "bluefog21": Convention(software="megatron-core", dtype="fp32"),
    "llmfoundry": _FSDP,
    "tinyllama": replace(_FSDP, vocabulary=32000),
    "zerobubble24": _ZERO_BUBBLE,
    "pipeoffload25": _ZERO_BUBBLE,
    # By framework, for rows of other sources; the first whose name the row's contains.
    "nanotron": _NANOTRON,
    "FSDP": _FSDP,
    "Megatron-DeepSpeed": _DEEPSPEED,
    "NeMo": _NEMO,
    "Megatron-Core": _CORE,
    "": _CORE,
}
"""Conventions by source or framework."""


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """What a row's network is, where it is not that of the hardware profile."""

    node_bandwidth: float
    """Bytes/s of a node in one direction."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of Network, in seconds and shares."""


NETWORKS = {
    # Jean Zay: four adapters of 100 Gb/s a node.
    "Omni-Path": Fabric(node_bandwidth=4 * 12.5e9),
    # p5: 3,200 Gb/s a node; all-gathers of 256 MB on 2-64 nodes take 300 us more for each node, and
    # all-reduces of all sizes on two nodes 51 us + 0.66 us/sqrt(kB) at 90 % of the bandwidth.
    "EFA": Fabric(
        node_bandwidth=32 * 12.5e9,
        constants={
            "latency": 51e-6,
            "latency_per_node": 300e-6,
            "root": 0.66e-6 / 1000**0.5,
            "efficiency": 0.9,
        },
    ),
    "RoCE 1600 Gbps": Fabric(node_bandwidth=16 * 12.5e9),
    "800 Gb/s IB per node": Fabric(node_bandwidth=8 * 12.5e9),
    "100 GB/s per server": Fabric(node_bandwidth=100e9),
    # p3.16xlarge: one adapter for eight GPUs.
    "25 Gb/s Ethernet": Fabric(node_bandwidth=3.125e9, constants={"nic_gpus": 8.0}),
}
"""Networks that rows name and hardware profiles do not describe, by a part of their name."""

_UNFUSED_NORM = {"norm_bytes": 32.0, "fused_norm": False}
KERNELS: dict[str, Mapping[str, Any]] = {
    "flash_attention2 + RMS kernel": {},
    "flash_attention2": _UNFUSED_NORM,
    "flash_attentionv1.0.8": {**_UNFUSED_NORM, "attention_rate": 0.6},
    # Eager softmax in fp32 makes about three times the passes of a fused one, and keeps its output.
    "torch": {
        **_UNFUSED_NORM,
        "flash_attention": False,
        "score_bytes": 27.0,
        "kept_score_bytes": 6.0,
    },
}
"""Software fields by the kernel a row names."""


@dataclass(frozen=True, kw_only=True)
class ModelFamily:
    """What a model family says about a layer."""

    gated: bool = False
    biases: bool = True
    tied: bool = True
    learned_positions: bool = True
    embedding_norm: bool = False
    layer_norm: bool = True


FAMILIES = {
    "gpt": ModelFamily(),
    "mpt": ModelFamily(),
    "bloom": ModelFamily(learned_positions=False, embedding_norm=True),
    "llama": ModelFamily(
        gated=True, biases=False, tied=False, learned_positions=False, layer_norm=False
    ),
}
FAMILIES["moe"] = FAMILIES["llama"]
"""Families of decoders by name."""

LISTED = {"ResNet-50": "resnet-50"}
"""Presets that are layer lists, by the model that a row names; a step takes samples of one unit."""


def convention(source: str, framework: str) -> Convention:
    """The convention of a source, else of the first framework the name contains."""
    if source in CONVENTIONS:
        return CONVENTIONS[source]
    return next(rule for name, rule in CONVENTIONS.items() if name in framework)
