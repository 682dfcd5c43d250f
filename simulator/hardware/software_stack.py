"""What does a training stack do? Fused kernels, overlaps, buffers, launch overhead.

A hardware profile says what a machine can reach; a software profile says how a framework uses
it. Each value names its unit; sources are public descriptions of the frameworks and published
training runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..base.errors import InputError, did_you_mean
from ..base.units import GIB


@dataclass(frozen=True, kw_only=True)
class Software:
    """One training stack; seconds, bytes and shares."""

    name: str
    title: str
    sustained: float
    """Share of the isolated kernel rate that GEMMs keep in a training step (clocks, power)."""

    flash_attention: bool
    """Attention scores are never stored; otherwise they are materialised in memory."""
    attention_rate: float = 1.0
    """Rate of the stack's attention kernels over current ones (older flash generations)."""
    score_bytes: float = 0.0
    """Bytes moved per attention score forward when materialised (softmax, mask, dropout)."""
    kept_score_bytes: float = 2.0
    """Bytes kept per attention score when materialised: probabilities in 16 bits, and 4 more where
    the softmax runs in fp32 on its own."""
    memory_bound_rate: float = 1.0
    """Rate of the kernels between GEMMs over the hardware profile's."""
    norm_bytes: float = 0.0
    """Further bytes moved per token and hidden unit by norms that are not fused."""
    backward_bytes_ratio: float = 1.6
    """Bytes moved by memory-bound operations backward over forward."""
    wgrad_rate: float = 0.951
    """Rate of weight-gradient GEMMs over forward ones (measured on A100 and B200)."""
    accumulation_bytes: float = 0.0
    """Bytes moved per parameter and micro-batch to add a gradient into its buffer."""

    layer_floor: float
    """Seconds below which a layer's forward does not fall: kernel launches of one micro-batch."""
    backward_floor_ratio: float = 1.5
    """The backward floor over the forward floor."""
    pipeline_floor: float = 0.0
    """Seconds per layer and further tensor rank below which both passes of a micro-batch do not
    fall in a pipeline of several nodes (seen in one stack, mechanism unknown)."""

    tp_overlap_share: float = 0.7
    """Share of tensor-parallel communication that overlap_tp hides."""
    contention: float = 0.15
    """Share of communication across nodes that still shows when overlapped, because it slows the
    kernels it hides behind (0.04 to 0.18 measured on A100); 0 none, 1 no gain at all."""
    fsdp_contention: float = 0.65
    """The same for the layer-by-layer gathers of ZeRO 3 (0.5 to 0.75 in published FSDP runs)."""
    bucket_parameters: float = 40e6
    """Parameters in one gradient bucket when its reduction is overlapped."""
    bucket_parameters_per_rank: float = 0.0
    """Those for each data-parallel rank, where that is more: larger groups need larger messages.
    The bucket that ZeRO 2 keeps in memory does not grow."""
    slice_seconds: float = 0.0
    """Seconds of the host per layer and data-parallel rank where ZeRO 1 and 2 gather lists of
    slices: every rank's slice of every tensor is viewed and copied on its own, by Python."""
    context_parallel: bool = True
    """The stack can split a sequence over ranks (cp > 1)."""
    expert_exchange: bool = False
    """The stack can send a token once to a node on its way to several experts (DeepEP), and hide
    the all-to-alls of experts behind another micro-batch."""
    scatter_gather: bool = True
    """Pipeline sends are split over the tensor-parallel ranks and gathered after."""
    cut_by_parameters: bool = False
    """Stages are cut at equal shares of the parameters, LM head included, not of the layers."""

    offloads_gradients: bool = False
    """Where the optimizer is on the host, gradients leave as the backward pass makes them, unless
    ZeRO 1 keeps them whole (ZeRO-Offload); otherwise they are copied afterwards (Megatron-Core)."""
    reduce_bytes: float = 0.0
    """Bytes a parameter that gradient reduction sends; 0 the precision recipe's gradient."""
    gradient_memory: float = 0.0
    """Bytes a parameter of gradients kept; 0 those of the precision recipe."""
    bucket_memory: float = 0.0
    """Bytes a parameter of DDP's gradient buckets: in a pipeline they are alive beside the
    gradients of a pass and the activations of the other micro-batches."""
    optimizer_memory: float = 0.0
    """Bytes a parameter of optimizer state; 0 those of the precision recipe."""
    dropout: bool = False
    """Dropout masks are kept for the backward pass."""
    fused_activation: bool = True
    """The MLP activation keeps its input only (fused SwiGLU / bias-GELU)."""
    fused_norm: bool = True
    """Norms keep their input in 16 bits; otherwise also its fp32 copies."""
    keeps_gathered: bool = False
    """Inputs gathered for column-parallel GEMMs are kept, not gathered again, when pp = 1."""
    keeps_expert_output: bool = False
    """Expert outputs are kept to weigh them (routing weights are not applied inside the MLP)."""
    selective: tuple[str, ...] = ()
    """What selective recompute drops: 'core_attn', 'layernorm', 'moe_act', 'mla_up_proj'."""
    working_sets: float = 2.0
    """Full recompute: layers' worth of activations alive while one layer is run again."""
    vocabulary_multiple: int = 128
    """The vocabulary is padded to this times tp."""
    sharded_logits: bool = True
    """Each tensor rank holds its share of the logits (vocabulary-parallel cross-entropy)."""
    logit_bytes: float = 14.0
    """Peak bytes per logit on the last stage: 16-bit and fp32 logits, softmax, gradients."""
    kept_logit_bytes: float = 6.0
    """Those of them that wait for the backward pass: 16-bit logits and fp32 softmax. The others are
    gone when a layer is run again."""
    gather_buffers: float = 5.0
    """Full-size hidden-state buffers when tp > 1 (gathered inputs, gradient temporaries)."""
    boundary_buffers: float = 2.0
    """Boundary tensors a rank keeps per micro-batch in flight when pp > 1."""
    context_bytes: float = 0.5 * GIB
    """CUDA context and libraries."""
    communicator_bytes: float = 0.375 * GIB
    """NCCL buffers of one kind of process group."""
    allocator_slack: float = 0.06
    """Reserved over allocated memory, minus one."""


_MEGATRON_2021 = Software(
    name="megatron-lm-2021",
    title="Megatron-LM of the SC'21 paper: materialised attention, dropout",
    sustained=0.94,
    flash_attention=False,
    score_bytes=9.0,
    dropout=True,
    fused_activation=False,
    keeps_expert_output=True,
    selective=("core_attn",),
    layer_floor=300e-6,
    accumulation_bytes=10.0,
    tp_overlap_share=0.0,
    context_parallel=False,
)
_DEEPSPEED_BUCKETS = 2 * 5e8 * 2
"""Bytes of DeepSpeed's buckets to reduce and to gather in: 5e8 elements each by default."""
_DEEPSPEED_COMMUNICATOR = 1.54 * GIB
"""NCCL buffers of one kind of process group under DeepSpeed: 4 GiB with a context and the groups of
three kinds of parallelism (50 peaks of BLOOM, 2022)."""
_DEEPSPEED_FP16 = replace(
    _MEGATRON_2021,
    name="megatron-deepspeed-fp16",
    title="Megatron-DeepSpeed, fp16 (2022): materialised attention, launch-bound small layers",
    layer_floor=990e-6,
    context_bytes=0.5 * GIB + _DEEPSPEED_BUCKETS,
    communicator_bytes=_DEEPSPEED_COMMUNICATOR,
    offloads_gradients=True,
)

SOFTWARE = {
    profile.name: profile
    for profile in (
        Software(
            name="megatron-core",
            title="Megatron-Core / NeMo with flash attention",
            sustained=0.94,
            flash_attention=True,
            selective=("core_attn", "layernorm", "moe_act", "mla_up_proj"),
            layer_floor=300e-6,
            # Megatron-Core, DistributedDataParallelConfig: max(40 M, 1 M dp).
            bucket_parameters_per_rank=1e6,
            expert_exchange=True,
        ),
        _MEGATRON_2021,
        _DEEPSPEED_FP16,
        replace(
            _DEEPSPEED_FP16,
            name="vtrain",
            title="Megatron-DeepSpeed, fp16, of vTrain's node: A100s have a table of its layers",
        ),
        replace(
            _DEEPSPEED_FP16,
            name="megatron-deepspeed-bf16",
            title="Megatron-DeepSpeed, bf16 with fp32 accumulation (BLOOM)",
            sustained=0.78,
            memory_bound_rate=0.9,
            gradient_memory=6.0,
            optimizer_memory=16.0,
            context_bytes=0.5 * GIB,
        ),
        replace(
            _MEGATRON_2021,
            name="zero-bubble",
            title="Megatron-LM fork of the zero-bubble schedules: no flash attention",
            sustained=0.84,
            memory_bound_rate=1.6,
            dropout=True,
            fused_activation=True,
            accumulation_bytes=0.0,
            gradient_memory=2.0,
            optimizer_memory=12.0,
        ),
        Software(
            name="nanotron",
            title="nanotron: unfused SwiGLU, fp32 accumulation, stages cut by parameters",
            sustained=0.71,
            flash_attention=True,
            layer_floor=1.73e-3,
            pipeline_floor=2.3e-3,
            slice_seconds=80e-6,
            accumulation_bytes=10.0,
            fused_activation=False,
            keeps_gathered=True,
            gradient_memory=6.0,
            bucket_memory=2.0,
            cut_by_parameters=True,
            scatter_gather=False,
            tp_overlap_share=0.0,
            boundary_buffers=10.0,
        ),
        Software(
            name="fsdp",
            title="torch FSDP (llm-foundry): flash attention of 2023, no tensor parallelism",
            sustained=1.0,
            flash_attention=True,
            attention_rate=0.54,
            memory_bound_rate=1.15,
            layer_floor=300e-6,
            fsdp_contention=0.85,
            logit_bytes=6.0,
            kept_logit_bytes=2.0,
            working_sets=1.0,
            tp_overlap_share=0.0,
            context_parallel=False,
        ),
        Software(
            name="torch",
            title="plain PyTorch, eager, one GPU: fused AdamW, unfused SwiGLU and cross-entropy",
            sustained=0.94,
            # On Hopper and later recent versions choose cuDNN's kernels, elsewhere FlashAttention-2
            # (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp).
            flash_attention=True,
            # Norms and residuals of a layer without positions move 10 h elements forward, SwiGLU
            # 5 f; the model counts 19 h (rotary included) and 4 f, 1.17 to 1.20 times as many.
            memory_bound_rate=1.2,
            # 22 h (norms and their scales, residuals, q, k, v joined and laid out) and 13 f.
            backward_bytes_ratio=2.45,
            # A 16-bit gradient and the fp32 buffer are read, the buffer is written.
            accumulation_bytes=10.0,
            # Eleven kernels, each launched by the host in some 10 us.
            layer_floor=110e-6,
            fused_activation=False,
            # All that a layer keeps, and 4 f elements of gradients beside it in SwiGLU's backward.
            working_sets=1.35,
            vocabulary_multiple=1,
            # Gradient, output and input gradient of log_softmax, all fp32. On one GPU the backward
            # pass follows at once, so none waits for it.
            logit_bytes=12.0,
            kept_logit_bytes=0.0,
            tp_overlap_share=0.0,
            context_parallel=False,
        ),
    )
}
"""The shipped stacks by name."""

DEFAULT_SOFTWARE = "megatron-core"


def software_profile(name: str) -> Software:
    """A shipped stack by name; InputError with the nearest names when unknown."""
    if name not in SOFTWARE:
        raise InputError(f"unknown software profile {name!r}{did_you_mean(name, SOFTWARE)}")
    return SOFTWARE[name]
