"""The flags of Megatron-LM that no row reads: what each of them changes.

Four classes: the model (the file is refused), a part that the prediction leaves out (said on the
screen), time or memory (said on the screen), neither (with the reason). A flag that is neither here
nor in the tables of rows is unknown, and shown as such. `name=a,b` has no effect with these values;
`name*` is every flag that begins so.
Source: Megatron-LM, megatron/training/arguments.py with the configurations that it makes flags of
(TransformerConfig, ModelParallelConfig, megatron/training/config), core 0.8 to 0.19 and main;
Megatron-DeepSpeed, megatron/arguments.py, as of 2024-05; Pai-Megatron-Patch,
megatron_patch/arguments.py, as of 2025-12; slime, slime/utils/arguments.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from plan3d.simulator.base.errors import InputError

from ..launch_file import Launch
from ..shell.contents import is_auxiliary
from ..shell.flags import Flag, Flags
from ..tables import Effect, Table
from .neutral_flags import NEUTRAL


@dataclass(frozen=True, slots=True)
class FlagGroup:
    """Flags with the same effect."""

    effect: Effect
    what: str
    """What they change or set, as a message says it."""
    names: str
    """Without dashes in front, separated by white space."""


GROUPS = (
    FlagGroup(
        Effect.MODEL,
        "state-space or linear-attention layers",
        """
        gdp-num-householder=3 hybrid-attention-ratio=0,0.0 hybrid-layer-pattern
        hybrid-mlp-ratio=0,0.0 hybrid-override-pattern is-hybrid-model
        linear-attention-freq linear-attention-type linear-conv-kernel-dim=4
        linear-key-head-dim=128 linear-num-key-heads=16 linear-num-value-heads=32
        linear-value-head-dim=128 mamba-head-dim=64 mamba-num-groups=8 mamba-num-heads
        mamba-state-dim=128 mtp-hybrid-override-pattern
        """,
    ),
    FlagGroup(
        Effect.MODEL,
        "attention that is sparse, linear or gated",
        """
        attention-output-gate dsa-indexer-head-dim dsa-indexer-n-heads dsa-indexer-topk
        enable-dsa-indexer experimental-attention-variant index-n-heads index-topk lf-conv2d-group
        sparse-mode sparsity=none use-gated-attention use-lf-gate
        """,
    ),
    FlagGroup(
        Effect.MODEL,
        "layers that differ from each other",
        """
        heterogeneous-layers-config-encoded-json heterogeneous-layers-config-path
        """,
    ),
    FlagGroup(
        Effect.MODEL,
        "an encoder beside the decoder",
        """
        decoder-num-layers encoder-pipeline-model-parallel-size=0
        encoder-tensor-model-parallel-size=0 pipeline-model-parallel-split-rank
        """,
    ),
    FlagGroup(
        Effect.MODEL,
        "a retriever",
        """
        biencoder-projection-dim=0 ict-head-size retriever-score-scaling
        retro-add-retriever retro-tasks
        """,
    ),
    FlagGroup(
        Effect.MODEL,
        "a model for images",
        "vision-pretraining vision-pretraining-type=classify",
    ),
    FlagGroup(
        Effect.MODEL,
        "MS-AMP, whose weights, gradients and moments have 8 bits",
        "msamp msamp-opt-level",
    ),
    FlagGroup(
        Effect.MODEL,
        "weights over more ranks than those of tensors",
        "expert-gtp-weight-remat-size=1 gtp-weight-remat-size=1",
    ),
    FlagGroup(Effect.MODEL, "attention sinks", "softmax-type=vanilla"),
    FlagGroup(
        Effect.MODEL,
        "several residual streams (hyper-connections)",
        "enable-mhc-connections",
    ),
    FlagGroup(Effect.MODEL, "experts in a smaller width than that of the model", "moe-latent-size"),
    FlagGroup(
        Effect.MODEL,
        "prediction of several tokens by one layer that repeats",
        "mtp-use-repeated-layer",
    ),
    FlagGroup(
        Effect.MODEL, "experts in every Nth layer, of Megatron-DeepSpeed", "expert-interval topk"
    ),
    FlagGroup(
        Effect.MODEL,
        "parallelism by its name of 2020, beside the newer one: leave one out",
        "model-parallel-size pipe-parallel-size=0",
    ),
    FlagGroup(
        Effect.MODEL, "layers that share weights", "num-unique-layers param-sharing-style=grouped"
    ),
    FlagGroup(Effect.MODEL, "experts of an older patch", "moe moe-topk use-normhead"),
    FlagGroup(
        Effect.MODEL,
        "the model is the one that a checkpoint states, not that of the flags: give its name or "
        "its config.json to plan3d estimate",
        "bridge-hf-model transformer-type=megatron use-bridge",
    ),
    FlagGroup(
        Effect.MODEL,
        "one expert a token, by a fork's name of it: write --moe-router-topk 1",
        "routing-mode=top2,sinkhorn_top2",
    ),
    FlagGroup(
        Effect.MODEL,
        "layers of MindSpeed-LLM that have no experts, do nothing or have further norms",
        """
        first-k-dense-replace=0,-1 input-embeds-norm interleave-sliding-window n-shared-experts=0
        noop-layers num-zero-experts=0 post-norm
        """,
    ),
    FlagGroup(Effect.MODEL, "training by preferences or rewards", "dpo-loss-type stage=pt,sft"),
    FlagGroup(
        Effect.MODEL, "stages of unequal length, by a list", "num-layer-list pipeline-num-layers"
    ),
    FlagGroup(
        Effect.MODEL,
        "adapters, which are read of scripts of a trainer alone (plan3d fits --lora-rank)",
        "adapter-dim lora-alpha lora-fusion lora-r lora-rank lora-target-modules peft-type qlora",
    ),
    FlagGroup(
        Effect.MODEL,
        "reinforcement learning: a step has rollouts, and sequences of unequal length",
        """
        actor-num-gpus-per-node actor-num-nodes langrl-env-config n-samples-per-prompt
        perform-rl-step rollout-batch-size rollout-function-path
        """,
    ),
    FlagGroup(
        Effect.PART,
        "a vision tower, which is left out",
        """
        allow-missing-vision-projection-checkpoint cvcuda-image-processing
        disable-vision-class-token image-folder image-size img-h=224 img-w=224 language-model-type
        max-num-tiles=1 mm-projector-type mm-vision-select-layer num-channels=3 num-frames=1
        packing-buffer-size packing-seq-length patch-dim=16 patch-size pixel-shuffle
        recompute-vision use-area-weighted-aspect-ratio use-thumbnail use-tile-tags use-tiling
        vision-backbone-type=vit vision-model-type vision-root vision-tower
        """,
    ),
    FlagGroup(
        Effect.PART,
        "positions in two dimensions, which are taken as rotary ones in one",
        "position-encoding-2d",
    ),
    FlagGroup(
        Effect.PART,
        "frozen parts, which are taken as trained",
        """
        bitfit freeze-LM freeze-ViT freeze-all-layers freeze-clip-vision-tower freeze-llm
        mm-tunable-parts tune-mm-mlp-adapter
        """,
    ),
    FlagGroup(
        Effect.PART,
        "a teacher, whose forward pass is left out",
        """
        export-kd-cfg export-kd-teacher-load kd load-teacher logits-load-dir
        logits-save-dir mos num-layers-teacher
        """,
    ),
    FlagGroup(
        Effect.PART,
        "medusa or eagle heads, which are left out",
        "export-num-eagle-layers=0 export-num-medusa-heads=0",
    ),
    FlagGroup(
        Effect.PART,
        "layers of a specification in Python, which are taken as those of the flags",
        "spec",
    ),
    FlagGroup(
        Effect.COST,
        "time or memory",
        """
        DDP-impl=local activation-offload-fraction=1.0 activations-checkpoint-method
        adaptive-seq-len attention-backend=auto,flash,fused batch-invariant-mode batch-size
        cache-mla-latents calculate-per-token-loss check-weight-hash-across-dp-replicas-interval
        checkpoint-in-cpu checkpoint-num-layers=1 coc-fused-kernel
        context-parallel-algo=megatron_cp_algo context-parallel-balance contigious-checkpointing
        cpu-offloading-retain-pinned-cpu-buffers cpu-offloading-weights cpu-optimizer cpu-torch-adam
        create-all-gather-group cross-entropy-fusion-impl=native cuda-graph-impl=none
        cuda-graph-modules cuda-graph-scope=full curriculum-learning
        data-efficiency-curriculum-learning data-pad-size-multiplier
        dataloader-inter-document-masking ddp-num-buckets ddp-pad-buckets-for-high-nccl-busbw
        ddp-reduce-scatter-with-fp32-accumulation decrease-batch-size-if-needed
        deepspeed-activation-checkpointing defer-embedding-wgrad-compute
        delay-offload-until-cuda-graph delay-param-gather delay-wgrad-compute
        delta-offload-bytes-across-pp-ranks=0 deterministic-mode disable-bias-attn-fc
        disable-bias-linear-fc disable-jit-fuser disable-mamba-mem-eff-path disable-mem-efficient-ln
        disable-moe-token-dropping disable-parallel-output disable-symmetric-registration
        disable-tp-comm-bulk-dgrad disable-tp-comm-bulk-wgrad disable-tp-comm-overlap-ag
        disable-tp-comm-overlap-rs disable-tp-comm-split-ag disable-tp-comm-split-rs
        distribute-checkpointed-activations ds-sequence-parallel-fpdt* distribute-saved-activations
        embed-layernorm embedding-weights-in-fp32 empty-unused-memory-level=0 enable-cuda-graph
        enable-experimental enable-expert-tensor-parallelism enable-full-sharding-in-hsdp
        enable-mtp-training enable-1f1b-v enable-optimizer-post-validation
        enable-recompute-layers-per-pp-rank enable-zb-runtime enable-zbh1-exact-semantics
        enable-zero-bubble encoder-num-layers ep-overlap-early-attn-memory-release
        export-te-mcore-model external-cuda-graph fine-grained-offloading-max-inflight-offloads
        flash-attention-version force-ds-sequence-parallel fp16-lm-cross-entropy fp32-allreduce
        fp32-embedding fp32-layernorm fp32-residual-connection fp32-tokentypes fp4-param-gather
        fp4-quantizer-factory fp4-recipe=nvfp4 fp8-output-proj fp8-quantizer-factory
        fsdp-db-use-persist-buf-on-alloc-fail fsdp-double-buffer fused-residual-rmsnorm gas
        gemm-gradient-accumulation-fusion goldfish-loss gradient-accumulation-steps
        gtp-remat-opt-in-modules hierarchical-context-parallel-sizes high-priority-a2a-comm-stream
        hybrid-context-parallel keep-fp8-transpose-cache
        keep-fp8-transpose-cache-when-using-custom-fsdp kitchen-config-file kitchen-recipe-number
        max-seqlen-per-dp-cp-rank max-tokens-per-gpu megatron-fsdp-enable-fine-grained-param-gather
        megatron-fsdp-grad-comm-dtype=auto megatron-fsdp-main-grads-dtype=auto
        megatron-fsdp-main-params-dtype=fp32 megatron-fsdp-max-pool-double-buffer
        memory-centric-tiled-linear mhc-recompute-layer-num min-offloaded-tensor-size=1048576
        mla-down-proj-fusion mla-mm-split mla-swap-core-attn-out mla-up-proj-tp-overlap
        mlp-chunks-for-training=1 moe-alltoall-overlap-comm moe-combine-bwd-dtype=bf16
        moe-deepep-num-sms=20 moe-dispatch-fwd-dtype=bf16 moe-enable-deepep
        moe-expert-capacity-factor moe-expert-rank-capacity-factor moe-extended-tp moe-fb-overlap
        moe-flex-dispatcher-num-sms moe-hybridep-num-blocks-permute
        moe-hybridep-num-blocks-unpermute moe-hybridep-num-sms=16
        moe-hybridep-num-sms-preprocessing=108 moe-hybridep-pad-uneven-dispatch-inputs
        moe-input-feature-slicing moe-layer-recompute moe-ncclep-static-shape moe-ncclep-zero-copy
        moe-pad-expert-input-to-capacity moe-paged-stash moe-permutation-async-comm
        moe-permute-fusion-into-hybridep moe-router-force-biased moe-router-force-load-balancing
        moe-router-fusion moe-router-padding-for-fp8 moe-router-padding-for-quantization
        moe-router-topk-limited-devices moe-shared-expert-gate moe-shared-expert-overlap
        moe-single-grouped-weight moe-tp-extend-ep moe-train-capacity-factor moe-use-grouped-tensor
        moe-use-legacy-grouped-gemm moe-zero-memory mtp-mem-efficient-logits mtp-standalone
        muon-tp-mode=blockwise nccl-communicator-config-path no-align-grad-reduce
        no-align-param-gather no-async-tensor-model-parallel-allreduce no-attn-layernorm
        no-bias-dropout-fusion no-bias-gelu-fusion no-bias-swiglu-fusion
        no-clone-scatter-output-in-embedding no-contiguous-buffers-in-local-ddp no-delay-grad-reduce
        no-final-layernorm no-fp8-wgrad no-gradient-accumulation-fusion no-masked-softmax-fusion
        no-mlp-layernorm no-persist-layer-norm no-pin-cpu-grads no-pin-cpu-params no-rope-fusion
        no-scatter-gather-tensors-in-pipeline no-shared-storage no-tp-comm-bulk-dgrad
        no-tp-comm-bulk-wgrad no-tp-comm-overlap-ag no-tp-comm-overlap-rs no-tp-comm-split-ag
        no-tp-comm-split-rs no-use-mamba-mem-eff-path o2-gradient o2-optimizer
        offload-continuous-buffers onebitadam optimizer-cuda-graph optimizer-offload-auto-threshold
        optimizer-offload-chunk-size optimizer-offload-policy outer-dp-sharding-strategy=no_shard
        output-logit-dtype overlap-dispatch-backward-with-experts-wgrad overlap-p2p-communication
        overlap-p2p-communication-warmup-flush overlap-param-gather-with-optimizer-step
        partition-activations pipeline-model-parallel-comm-backend post-layer-norm profile-backward
        qk-clip qk-l2-norm rampup-batch-size random-ltd recompute-activation-function recompute-lgd
        recompute-mla-up-proj reduce-bucket-size remote-device=none reset-attention-mask
        reset-position-ids reuse-fp32-param scattered-embeddings schedules-method sft sliding-window
        softmax-in-fp32 split-transformers standalone-embedding-stage step-batch-size-schedule
        suggested-communication-unit-size=400000000 swap-attention swap-modules swap-optimizer
        symmetric-ar-type synchronize-each-layer te-precision-config-file tile-factor
        torch-fsdp2-no-reshard-after-forward tp-2d tp-comm-overlap-cfg tp-comm-overlap-rs-dgrad tp-x
        tp-y train-mode transformer-impl=transformer_engine ulysses-degree-in-cp use-ascend-coc
        use-ascend-mc2 use-bnb-optimizer use-checkpoint-args use-cp-send-recv-overlap
        use-dynamic-batch-size use-flash-attn-triton use-fused-weighted-squared-relu
        use-grouped-gemm-for-dense-mlp use-grouped-gemm-for-shared-expert use-kitchen-attention
        use-legacy-models use-nccl-ub use-pin-memory use-ring-exchange-p2p use-sharp
        use-te-activation-func use-torch-optimizer-for-cpu-offload use-tp-pp-dp-mapping
        use-transformer-engine-op-fuser use-tutel variable-seq-lengths wgrad-deferral-limit=0
        yaml-cfg zero-allgather-bucket-size zero-contigious-gradients zero-bubble-*
        zero-reduce-bucket-size zero-reduce-scatter
        """,
    ),
    *(FlagGroup(Effect.NONE, what, names) for what, names in NEUTRAL.items()),
)
"""Every flag by its effect."""


@cache
def _by_name() -> dict[str, tuple[FlagGroup, tuple[str, ...]]]:
    """The group and the values without effect of every flag, with dashes."""
    out = {}
    for group in GROUPS:
        for entry in group.names.split():
            name, _, values = entry.partition("=")
            out[f"--{name}"] = (group, tuple(filter(None, values.split(","))))
    return out


@cache
def _prefixes() -> tuple[str, ...]:
    return tuple(name[:-1] for name in _by_name() if name.endswith("*"))


_NEGATED = re.compile(r"^--(?:no|disable)-")
_NONE: tuple[FlagGroup | None, tuple[str, ...]] = (None, ())
WITHOUT_EFFECT = FlagGroup(Effect.NONE, "defaults, or without effect here", "")


def group_of(name: str, values: Sequence[str] = ()) -> FlagGroup | None:
    """The group of a flag with these values; None of an unknown flag. A switch that is on is turned
    off by --no-NAME or --disable-NAME (training/argument_utils.py, ArgumentGroupFactory), and the
    negation of one without effect has none.

    >>> group_of("--log-interval", ["10"]).what
    'logs and profiles'
    """
    known = _by_name()
    negated = _NEGATED.sub("--", name)
    spellings = (name, f"--no-{negated[2:]}") if name.startswith("--disable-") else (name,)
    prefixes = [f"{begin}*" for begin in _prefixes() if name.startswith(begin)]
    group, neutral = next((known[one] for one in (*spellings, *prefixes) if one in known), _NONE)
    if group is None and negated != name:
        positive = group_of(negated)
        group = positive if positive and positive.effect is Effect.NONE else None
    if group and group.effect is not Effect.NONE and len(values) == 1 and values[0] in neutral:
        return WITHOUT_EFFECT
    return group


def check_flags(flags: Flags, launch: Launch, table: Table, program: str) -> None:
    """Note the parts of the run that the prediction leaves out. Raises InputError for a program or
    a flag of another model than rows describe."""
    check_program(program, launch)
    rows = {row.key for row in table}
    parts: dict[str, list[str]] = {}
    for flag in flags.in_order:
        group = None if flag.name in rows else group_of(flag.name, flag.texts)
        if group and group.effect is Effect.MODEL:
            raise flag_error(launch.file, flag, group)
        if group and group.effect is Effect.PART:
            parts.setdefault(group.what, []).append(f"line {flag.line}: {flag}")
    launch.left_out += [f"{what} ({', '.join(places)})" for what, places in parts.items()]


def flag_error(file: str, flag: Flag, group: FlagGroup) -> InputError:
    """The error about a flag that changes the model."""
    return InputError(f"{file}: line {flag.line}: {flag} is not modelled: {group.what}")


RECURRENT = "state-space or linear-attention layers"
PROGRAMS = {
    "bert": "BERT, an encoder",
    "yuan": "Yuan, whose attention has convolutions",
    "t5": "T5, an encoder and a decoder",
    **dict.fromkeys(("mamba", "hybrid", "griffin", "hyena"), RECURRENT),
    **dict.fromkeys(("ict", "retro", "realm", "biencoder", "retriever"), "a retriever"),
    **dict.fromkeys(("vision", "dino", "swin", "vit", "inpaint"), "a model for images"),
    **dict.fromkeys(("rl", "grpo", "ppo"), "reinforcement learning"),
    **dict.fromkeys(("wan", "flux", "dit", "diffusion"), "a diffusion model"),
}
"""Models of training programs that are not modelled, by a word of the program's name."""
VISION = frozenset(("vlm", "multimodal", "llava", "vl", "clip", "omni"))
"""Words of the names of programs that train a decoder behind a vision tower."""


def check_program(program: str, launch: Launch) -> None:
    """Raise InputError for a program that trains another model, or none, by the words of its name;
    note a vision tower."""
    path, _, name = program.rpartition("/")
    words = re.split(r"[^a-z0-9]+", name.removesuffix(".py").lower())
    if is_auxiliary(program):
        raise launch.refuse(f"{name} does not train a language model")
    for word in words:
        if word in PROGRAMS:
            raise launch.refuse(f"{name} is not modelled: {PROGRAMS[word]}")
    if {"tasks", "tools"} & {*path.split("/")}:
        raise launch.refuse(f"{program} trains no language model, or a head for a task")
    if VISION & {*words}:
        launch.left_out.append(f"a vision tower, which is left out ({name})")


def unread_effect(flag: str, values: Sequence[str], rows: Iterable[str]) -> tuple[bool, str]:
    """Whether a flag that no row took changes time or memory, and what it sets where it changes
    nothing; `rows`: the flags that rows read, which have no effect where they did not."""
    group = group_of(flag, values)
    if group is None:
        return False, WITHOUT_EFFECT.what if flag in rows else ""
    return group.effect is Effect.COST, "" if group.effect is Effect.COST else group.what
