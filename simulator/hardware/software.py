"""A training stack: fused kernels, overlaps, buffers, launch overhead.

A hardware profile says what a machine can reach; a software profile says how a framework uses it.
Profiles are TOML files (hardware_profiles/software, or one's own), whose numbers each say where
they come from; what a number means, and its SI unit, is said here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from .provenance import Provenance


@dataclass(frozen=True, kw_only=True)
class Software:
    """One training stack; seconds, bytes and shares.

    >>> software_profile("nanotron").framework
    'nanotron'
    """

    name: str
    """Name of the profile, or path of its file."""
    title: str
    framework: str
    """The framework of `plan3d export` that it is; empty where none is."""
    base: str
    """The profile that lends what its file does not give; empty where there is none."""
    provenance: Mapping[str, Provenance] = field(compare=False, repr=False)
    """By field."""

    sustained: float
    """Share of the isolated kernel rate that GEMMs keep in a training step (clocks, power)."""
    rank_spread: float
    """How much ranks differ in what their GEMMs take, a standard deviation over the mean: the
    others wait for the slowest."""

    flash_attention: bool
    """Attention scores are never stored; otherwise they are materialised in memory."""
    attention_rate: float
    """Rate of the stack's attention kernels over current ones (older flash generations)."""
    score_bytes: float
    """Bytes moved per attention score forward when materialised (softmax, mask, dropout)."""
    kept_score_bytes: float
    """Bytes kept per attention score when materialised: probabilities in 16 bits, and 4 more where
    the softmax runs in fp32 on its own."""
    passing_score_bytes: float
    """Further ones while the attention of a layer that is run again is alive: scores before the
    softmax, and gradients."""
    memory_bound_rate: float
    """Rate of the kernels between GEMMs over the hardware profile's."""
    backward_bytes_ratio: float
    """Bytes moved by memory-bound operations backward over forward."""
    wgrad_rate: float
    """Rate of weight-gradient GEMMs over forward ones (measured on A100 and B200)."""
    accumulation_bytes: float
    """Bytes moved per parameter and micro-batch to add a 16-bit gradient into an fp32 buffer, or to
    copy it into that of its reduction; of other formats as many more or less as an addition."""
    clipping_bytes: float
    """Bytes moved once a step for each fp32 gradient that a rank updates, for the norm of all and
    to scale it; of narrower gradients in proportion."""
    fused_update: bool
    """Adam is one kernel, which reads and writes every state once; otherwise one kernel for each of
    its operations, with a temporary of all weights (PyTorch's foreach)."""
    copies_gathered: bool
    """Under ZeRO 3 weights of a layer are copied into the buffer of their gather, in its stream,
    and out of it, in that of the passes (FSDP2)."""

    layer_floor: float
    """Seconds below which a layer's forward does not fall: kernel launches of one micro-batch."""
    adapter_floor: float
    """Those besides of each matrix with an adapter."""
    expert_floor: float
    """Those besides of each expert of a rank: all of it where experts run one after another in
    Python, two products where a loop of C++ launches grouped ones."""
    layer_launches: int
    """Kernels that the host launches in that time, of a plain layer."""
    routing_launches: int
    """Those besides of a layer with experts, which take as long each: its router and the loss that
    balances it, the order of tokens, what is known of their exchange, and the exchange."""
    expert_launches: int
    """Those besides of each expert of a rank that is a module of its own."""
    backward_floor_ratio: float
    """The backward floor over the forward floor."""
    pipeline_floor: float
    """Seconds per layer and further tensor rank below which both passes of a micro-batch do not
    fall in a pipeline of several nodes (seen in one stack, mechanism unknown)."""

    tp_overlap_share: float
    """Share of tensor-parallel communication that overlap_tp hides."""
    tp_overlap_across_domains: bool
    """overlap_tp works also where a tensor-parallel group spans fast domains (NVLink nodes)."""
    contention: float
    """By which share of it communication across nodes slows the kernels that hide it (0.04 to 0.18
    measured on A100); 0 not at all, 1 leaves no gain."""
    kernel_contention: float
    """The same of collectives beside GEMMs and attention of the same layer (overlap_tp, the ring of
    context parallelism), which take SMs and memory bandwidth from them (0.21 to 0.43 measured)."""
    fsdp_contention: float
    """The same for the layer-by-layer gathers of ZeRO 3 (0.5 to 0.75 in published FSDP runs)."""
    bucket_parameters: float
    """Parameters in one gradient bucket when its reduction is overlapped."""
    whole_buckets: float
    """Buckets of ZeRO 1 and 2 that are in memory as a whole, in the format of weights, however few
    weights are trained (DeepSpeed); 0 where a bucket holds what it is filled with."""
    bucket_parameters_per_rank: float
    """Those for each data-parallel rank, where that is more: larger groups need larger messages.
    The bucket that ZeRO 2 keeps in memory does not grow."""
    step_seconds: float
    """Seconds of the host once a step, counted as the optimizer's: the norm of gradients, launches
    of the update, logging, the next batch, and that ranks wait for each other."""
    lone_step_seconds: float
    """Those of one rank, which waits for no other."""
    expert_seconds: float
    """Seconds that the host keeps a forward pass of experts waiting: it copies the number of tokens
    of each expert from the GPU, waits for it, and only then launches what follows."""
    slice_seconds: float
    """Seconds of the host per layer and data-parallel rank where ZeRO gathers lists of slices, and
    ZeRO 3 reduces such: every rank's slice of every tensor is viewed and copied on its own."""
    module_seconds: float
    """Seconds of the host in the hooks of each module in a forward pass, also where a layer runs
    again, where ZeRO 3 gathers and frees modules, not layers: beside the kernels of the GPU. A
    backward pass has half of them."""
    gradient_seconds: float
    """Those of the hook of each gradient under ZeRO 2 and 3, in the backward pass."""
    reduction_seconds: float
    """Those of each reduction of such gradients."""
    norm_seconds: float
    """Seconds of the host once a step for the norm of each gradient that a rank has under ZeRO."""
    overflow_seconds: float
    """Those for whether it is finite, under ZeRO 1 and 2."""
    broadcast_tensors: float
    """Tensors of a layer where updated weights of ZeRO 1 are broadcast: whole tensors are dealt
    out, and every rank that has some sends them in one message; 0 where weights are gathered."""
    all_reduces_shards: bool
    """Gradients are all-reduced under ZeRO 1 too, not scattered."""
    splits: tuple[str, ...]
    """Degrees that the stack can have above 1, of SPLITS."""
    expert_exchange: bool
    """The stack can send a token once to a node on its way to several experts (DeepEP)."""
    expert_overlap: bool
    """It can hide the all-to-alls of experts behind another micro-batch."""
    scatter_gather: bool
    """Pipeline sends are split over the tensor-parallel ranks and gathered after."""
    multi_token_prediction: bool
    """The stack loads and trains the layers of multi-token prediction that a model has."""
    cut_by_parameters: bool
    """Stages are cut at equal shares of the parameters, LM head included, not of the layers."""

    offloads_gradients: bool
    """Where the optimizer is on the host, gradients leave as the backward pass makes them, unless
    ZeRO 1 keeps them whole (ZeRO-Offload); otherwise they are copied afterwards (Megatron-Core)."""
    host_scaling_bytes: float
    """Bytes a parameter that the host moves in passes of their own around an update: to scale its
    gradient, and to cast the weight."""
    uploads_after_update: bool
    """Weights that the host has updated leave it after the update, not beside it."""
    offloads_parameters: bool
    """Under ZeRO 3 shards of weights can wait in host memory."""
    swaps_to_nvme: bool
    """What is on the host can lie on NVMe drives (ZeRO-Infinity)."""
    muon_stage: int
    """The ZeRO stage up to which there is Muon: 1, ranks share out whole matrices (layer-wise); 2,
    also where each reduces its own gradients; 3, ranks exchange the shards of matrices by
    all-to-all, for a whole one each and back (FSDP2)."""
    keeps_scaled: bool
    """Where operands are scaled: the inputs of linear layers wait for the backward pass as they
    were scaled, and so do copies of weights through all micro-batches of a step (Transformer
    Engine); otherwise inputs wait as they came, and weights are scaled in each pass (torchao)."""
    scales_activation_inputs: bool
    """Where operands are scaled: what an MLP's activation reads waits as operands do."""
    scaled_output_bytes: float
    """Where operands are scaled: bytes an element at which the output of attention waits, for its
    own backward pass and for its projection's; 0 as it came and scaled besides."""
    reduce_bytes: float
    """Bytes a parameter that gradient reduction sends; 0 the precision recipe's gradient."""
    gradient_memory: float
    """Bytes a parameter of gradients kept; 0 those of the precision recipe."""
    gathered_ends: tuple[str, ...]
    """Under ZeRO 3 the ENDS that stay gathered between their passes: both of the root unit of FSDP,
    which is reduced last, or the head where the embedding is a unit of its own, as both are where
    they share their weights."""
    live_parameters: float
    """Parameters that stay gathered under ZeRO 3, where that is more than two layers: those that
    are read again after at most as many others."""
    bucket_memory: float
    """Bytes a parameter of DDP's gradient buckets: in a pipeline they are alive beside the
    gradients of a pass and the activations of the other micro-batches."""
    ddp_buckets: float
    """Copies of all gradients in buckets where they are all-reduced without ZeRO (torch's DDP,
    whose gradient_as_bucket_view is off unless asked for)."""
    optimizer_memory: float
    """Bytes a parameter of optimizer state; 0 those of the precision recipe."""
    casts_shards: bool
    """Under ZeRO 3 a rank keeps the optimizer's fp32 shard of a weight alone: the 16-bit one is
    cast from it as a layer is gathered (FSDP's mixed precision)."""
    autocasts: bool
    """Weights that ZeRO 3 does not shard are fp32 alone: autocast makes 16-bit copies in the
    forward pass, which wait for the backward pass unless their layer runs again."""
    frees_gradients: bool
    """Gradients are freed after the update: with one micro-batch a step there are none while its
    loss is computed."""
    keeps_shards: bool
    """Under ZeRO 3 shards of gradients lie in a buffer that is never freed (DeepSpeed)."""
    gradient_pool: bool
    """Under ZeRO 3 shards of gradients lie in memory of the stream that reduces them: the allocator
    gives what is freed there to no tensor of another stream (FSDP)."""
    unreduced_gradients: bool
    """Where a step has several micro-batches, gradients are reduced after the last, and wait whole
    under ZeRO 2 and 3 as well."""
    flat_gradients: bool
    """Under ZeRO 3 adapters lie in one tensor with the frozen weights of their layer, which has a
    gradient as a whole."""
    update_memory: float
    """Bytes a parameter of temporaries that the update makes of all weights together."""
    dropout: bool
    """Dropout masks are kept for the backward pass."""
    fused_activation: bool
    """The MLP activation keeps its input only (fused SwiGLU / bias-GELU)."""
    fused_adapters: bool
    """The product of an adapter is added to that of its matrix inside its second GEMM; otherwise it
    is scaled, then added."""
    adapter_casts: bool
    """Adapters are fp32 beside layers that compute in 16 bits, and so cast to these: each makes its
    input fp32 and, behind the dropout, 16 bits again, and keeps that copy; not beside packed
    weights."""
    clones_packed_outputs: bool
    """The output of a product with weights in 4 bits is copied before that of its adapter is
    added."""
    fp32_beside_packed: tuple[str, ...]
    """What is fp32 where bitsandbytes packs the frozen matrices, of FP32_PARTS. Norms in fp32 hand
    on fp32: all between products is, whose operands are cast to 16 bits one by one."""
    unpacks_by_operators: bool
    """Frozen weights of GPTQ are unpacked by operators of PyTorch one after another, whose result
    waits for the backward pass; otherwise by one kernel in either pass."""
    keeps_packed_inputs: bool
    """Products with packed weights keep their inputs, though nothing reads them."""
    fused_norm: bool
    """A norm is one kernel, which keeps its input in 16 bits; otherwise RMSNorms are several, and
    keep its fp32 copy."""
    norm_in_linear: bool
    """A norm is part of the linear layer that reads it (Transformer Engine) and is not run again
    alone: recompute of `layernorm` reaches those before latent attention and experts only."""
    keeps_gathered: bool
    """Inputs gathered for column-parallel GEMMs are kept, not gathered again, when pp = 1."""
    never_gathers_again: bool
    """They are kept in pipelines too: gathering is an operation of autograd before the linear
    layer, which saves what it reads."""
    copied_inputs: float
    """Further hidden-state tensors that a layer keeps under tensor parallelism without its split of
    sequences: every column-parallel product reads a copy of its own."""
    keeps_ring_steps: bool
    """Keys and values that a ring of context ranks passes round stay until its last step, and so
    does the output of every step."""
    expands_keys: bool
    """Keys and values that several query heads share are copied for each of them, and wait so."""
    packed_qkv: bool
    """Queries, keys and values are one product of which the values stay a view, so that it waits as
    a whole beside the queries and keys that were rotated."""
    fused_permutation: bool
    """Tokens are put into the order of their experts by one kernel, and back by another."""
    keeps_expert_output: bool
    """Expert outputs are kept to weigh them (routing weights are not applied inside the MLP)."""
    selective: tuple[str, ...]
    """What selective recompute runs again, of MODULES, or OP_LIST."""
    spares_last_product: bool
    """Full recompute leaves out the product that ends a dense layer without adapters: no gradient
    needs what it returns."""
    graphs: tuple[str, ...]
    """Modules that CUDA graphs launch as one, of GRAPHS."""
    offload_modules: tuple[str, ...]
    """What activations on the host are, of OFFLOADABLE: the inputs of these modules of every layer
    (Megatron-Core's fine-grained offloading); with none all that a layer keeps."""
    working_sets: float
    """Full recompute: layers' worth of activations alive while one layer is run again."""
    vocabulary_multiple: int
    """The vocabulary is padded to this times tp."""
    sharded_logits: bool
    """Each tensor rank holds its share of the logits (vocabulary-parallel cross-entropy)."""
    logit_bytes: float
    """Peak bytes per logit on the last stage: 16-bit and fp32 logits, softmax, gradients."""
    kept_logit_bytes: float
    """Those of them that wait for the backward pass: 16-bit logits and fp32 softmax. The others are
    gone when a layer is run again."""
    unfused_logit_bytes: float
    """Those at the peak where the plan asks for an unfused loss; 0 where the stack has none."""
    fused_logit_bytes: float
    """The same of a fused loss."""
    loss_pieces: int
    """Pieces of the tokens that a chunked loss goes through; 0 where the stack has none."""
    fused_linear_loss: bool
    """The stack has a loss that is fused with the head (Liger)."""
    gather_buffers: float
    """Full-size hidden-state buffers when tp > 1 (gathered inputs, gradient temporaries)."""
    sharded_inputs: float
    """Tensors of the size of its input that every layer with frozen weights leaves behind in the
    backward pass under ZeRO 3."""
    boundary_buffers: float
    """Boundary tensors a rank keeps per micro-batch in flight when pp > 1."""
    cublas_workspaces: float
    """Workspaces of cuBLAS that are allocated once and stay."""
    expert_workspaces: float
    """Those besides where grouped products run on streams of their own."""
    context_bytes: float
    """CUDA context and libraries."""
    process_groups: tuple[str, ...]
    """Which groups of ranks have a communicator of their own, of PROCESS_GROUPS."""
    connection_bytes: float
    """NCCL's buffers of a channel to a neighbour (operators/communicators.py)."""
    allocator_slack: float
    """Reserved over allocated memory, minus one."""
    rerun_slack: float
    """What the allocator holds besides for each byte that comes and goes, where layers run again as
    a whole and ZeRO 3 does not gather them."""
    uncounted: float
    """What ranks hold besides, over all that is counted of them: the mean over stacks whose peaks
    nobody fitted or measured."""

    scatters: bool
    """Models of Hugging Face run in eager PyTorch: what their steps do not state, as padding, short
    sequences and waits of the host, differs from run to run, and intervals are wider for it."""
    spreads: tuple[tuple[str, float], ...] = ()
    """How uncertain constants of the stack and its machine are, where its file says so: standard
    deviations of logarithms, by name in UNCERTAIN."""

    def __repr__(self) -> str:
        return f"Software({self.name!r})"

    def once_a_step(self, ranks: int) -> float:
        """Seconds of the host once a step on so many ranks."""
        return self.step_seconds if ranks > 1 else self.lone_step_seconds

    @property
    def has_hooks(self) -> bool:
        """Whether an engine calls hooks around modules or for each gradient; on a single rank too,
        which shards nothing (DeepSpeed)."""
        # Each is an array, of plans, where constants are uncertain.
        seconds: list[Any] = [getattr(self, name) for name in HOOKS]
        return any(bool(each.any()) if hasattr(each, "any") else each > 0 for each in seconds)

    @property
    def label(self) -> str:
        """Its name in `[kernels.layer.LABEL]` of a hardware profile: that of a file without folder
        and ending, or without its release."""
        name = PurePath(self.name).stem if self.name.endswith(".toml") else self.name
        return name.partition("@")[0]


HOOKS = (
    *("module_seconds", "gradient_seconds", "reduction_seconds", "norm_seconds"),
    "overflow_seconds",
)
"""Fields that say how long an engine's hooks take."""
UNCERTAIN = (
    *("common", "gemm", "memory_bound", "attention", "floor", "step", "experts"),
    *("fast_bandwidth", "fast_latency", "network_bandwidth", "network_latency", "contention"),
)
"""Constants of simulator/uncertainty/constants.py."""
OF_STEPS, OF_PEAKS = "steps", "peaks"
"""Spreads of what constants do not explain: of the steps of one stack, and of its peaks."""
SPLITS = ("tp", "pp", "cp", "ep")
"""Ways to split a model that not every stack has."""
OP_LIST = "op-sac"
"""Selective recompute by torchtitan's list of operations, in place of MODULES."""
MODULES = ("core_attn", "layernorm", "moe_act", "mla_up_proj", "mlp", "moe", "shared_experts")
"""What selective recompute can run again, as Megatron-Core names it."""
NORMS, FP32_ENDS = "norms", "ends"
FP32_PARTS = (NORMS, FP32_ENDS)
"""What may be fp32 beside packed weights: norms; embedding and head."""
ENDS = ("embedding", "head")
"""What a model has before and behind its layers; the last norm is the head's."""
DEFAULT_MODULES = ("core_attn",)
"""Those of Megatron-Core where none are named (transformer_config.py, __post_init__)."""
GRAPHS = ("attn", "mlp", "mamba", "moe_router", "moe_preprocess")
"""Modules that a CUDA graph can hold, as Megatron-Core names them (cuda_graph_modules)."""
OFFLOADABLE = (
    *("attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act"),
)
"""Modules whose inputs can wait in host memory, as Megatron-Core names them."""
PROCESS_GROUPS = (*("world", "model", "tp", "cp", "dp", "ep", "expert-dp", "pp"),)
"""Groups of ranks: all; those with a copy of the model (tp pp); and those of one degree."""
ALIVE = (
    *("frees_gradients", "unreduced_gradients", "flat_gradients", "update_memory", "casts_shards"),
    *("autocasts", "keeps_shards", "fused_update"),
    *("gathered_ends", "live_parameters", "copies_gathered", "gradient_pool", "sharded_inputs"),
    *("ddp_buckets", "logit_bytes", "kept_logit_bytes"),
)
"""Fields that say what of weights, gradients and logits is in memory when."""
DEFAULT_SOFTWARE = "megatron-core"
"""The stack of a task that names none and trains all weights."""
FINE_TUNING_SOFTWARE = "hf-trainer"
"""The stack of fine-tuning that names none: of tasks with adapters, and of `fits`."""
