"""The software of a published run: its stack's profile with the kernels and formats of the row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any

from ..base.documents import parse_toml
from ..base.errors import InputError
from ..base.files import read_text
from ..hardware.provenance import Provenance
from ..hardware.software import DEFAULT_MODULES, ENDS, GRAPHS, OFFLOADABLE
from ..hardware.software_stack import Software, neutral, software_profile
from .published_runs import PublishedRun
from .run_cluster import generation


@dataclass(frozen=True, kw_only=True)
class StackRule:
    """What rows of one stack have in common."""

    software: str
    """Software profile; '{dtype}' stands for the number format of the row."""
    overlap: Mapping[str, int] = field(default_factory=dict)
    """Overlaps of its scripts where a row does not state them."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of Software in which its code differs from the profile's."""
    lora_dropout: float = 0.0
    """Dropout before adapters in its scripts."""


_SEQUENTIAL = {"overlap_grad_reduce": 0, "overlap_param_gather": 0}
_OVERLAPPED = {"overlap_grad_reduce": 1, "overlap_param_gather": 1}
# DeepSpeed since 0.8, engine.py (get_data_types, _do_optimizer_sanity_check): under ZeRO gradients
# are added up in bf16 unless fp32 is asked for, which makes the optimizer of bf16 (BLOOM's).
_BF16_OPTIMIZER, _BF16_UNDER_ZERO = "megatron-deepspeed-bf16", "deepspeed"
_DEEPSPEED = StackRule(software="megatron-deepspeed-{dtype}", overlap=_SEQUENTIAL)
# Megatron-LM's scripts of 2021 run with DDP=local: gradients are reduced after the last backward.
# Its overlaps are younger: of sends 31 May 2023 (f9283c5a), of gradients 16 August 2023 (2d5220a4),
# of gathers December 2023 (5e993318).
_BEFORE_OVERLAPS = {**_SEQUENTIAL, "overlap_p2p": 0}
_MEGATRON_2021 = StackRule(software="megatron-lm-2021", overlap=_BEFORE_OVERLAPS)
# Sends are split over tensor ranks up to 31 January 2023 (39b83c79), in Paddle
# (enable_partial_send_recv) and in InternEvo (scatter_gather of its pipeline scheduler).
_SPLIT_SENDS = {"scatter_gather": True}
_MEGATRON_2023 = StackRule(software="megatron-core", overlap=_BEFORE_OVERLAPS, changes=_SPLIT_SENDS)
_CORE = StackRule(software="megatron-core")
_SPLIT = StackRule(software="megatron-core", changes=_SPLIT_SENDS)
_NEMO = StackRule(software="megatron-core", overlap=_OVERLAPPED)
# Megatron-Bridge, scripts/performance/utils/overrides.py: the loss is Transformer Engine's, whose
# gradient takes the place of 16-bit logits (pytorch/triton/cross_entropy.py before July 2026).
_BRIDGE = StackRule(
    software="megatron-core",
    overlap=_OVERLAPPED,
    changes={"logit_bytes": 2.0, "kept_logit_bytes": 2.0},
)
_FOUNDRY = StackRule(software="fsdp", overlap=_OVERLAPPED)
# OPT, section 2.4: fully sharded data parallelism with the tensor parallelism of Megatron-LM.
_METASEQ = StackRule(software="fsdp", overlap=_OVERLAPPED, changes={"splits": ("tp",)})
# FSDP of today: nothing of what was fitted to llm-foundry's runs of 2023.
_TORCH = StackRule(software="torchtitan", overlap=_OVERLAPPED)
# One flat tensor of weights and one of gradients a unit, gathered and reduced in place (FSDP1), and
# compilers that do without either: a 16-bit gradient is added into the fp32 one.
_FLAT = replace(
    _TORCH,
    changes={"copies_gathered": False, "accumulation_bytes": 10.0, "gathered_ends": ENDS},
)
_XLA = replace(_FLAT, changes={**_FLAT.changes, "gathered_ends": ()})
TORCHTUNE = {"autocasts": False, "expands_keys": True, "rerun_slack": 0.22}
"""torchtune's weights are made in the format that is trained (set_default_dtype in its recipes),
and its keys and values are copied for every query head (modules/attention.py); blocks are those of
plain PyTorch (profile of torch)."""
_AUTOMODEL = StackRule(software="automodel", overlap=_OVERLAPPED)
# Loops of fine-tuning without torch.compile, all before PyTorch 2.8: AdamW over lists of tensors,
# whose square roots of second moments are as many as the weights (torch.optim, `foreach`).
# Their adapters have the format of the layers (peft before 0.12).
_EAGER = StackRule(
    software="hf-trainer",
    overlap=_OVERLAPPED,
    changes={"update_memory": 4.0, "adapter_casts": False},
)
# Their scripts have a dropout before adapters (fms-acceleration 0.1, ms-swift and lit-gpt 0.05,
# fsdp_qlora 0.1), peft's comparison has none. bitsandbytes keeps inputs of packed products before
# its release 0.44 (commit 9e753741).
_DROPOUT = replace(_EAGER, lora_dropout=0.05)
# Neither fsdp_qlora (train.py) nor ms-swift of 2024 prepares what is not packed in fp32.
_PACKED = replace(
    _DROPOUT,
    changes={**_DROPOUT.changes, "keeps_packed_inputs": True, "fp32_beside_packed": ()},
)
# DeepSpeed's engine around models of Hugging Face.
_HF_DEEPSPEED = replace(_EAGER, software="hf-deepspeed")
# lit-gpt's units are whole blocks (finetune/lora.py, auto_wrap_policy={Block}), adapters included:
# "equivalent to not freezing" (PyTorch's FSDP, use_orig_params). Its own layer of adapters
# (lit_gpt/lora.py, LoRALinear.forward) copies no outputs, its attention keys for every query head.
_LITGPT = replace(
    _PACKED,
    changes={
        **{**_PACKED.changes, "flat_gradients": True, "clones_packed_outputs": False},
        "expands_keys": True,
    },
)
# InternLM/InternEvo, hybrid_zero_optim.py: gradients stay in 16 bits and are reduced so beside the
# backward pass, all-reduced in buckets of 512 Mi; whole tensors, nine of a layer, are dealt out and
# after the step broadcast by every rank that has some (configs: overlap_sync_param off).
# The update flattens them (2 bytes a parameter that a rank updates), copies them to fp32 (4), and
# AdamW over lists takes a square root of the second moments (4); the allocator keeps all of it.
_INTERNEVO = StackRule(
    software="megatron-core",
    overlap={"overlap_grad_reduce": 1, "overlap_param_gather": 0},
    changes={
        "gradient_memory": 2.0,
        "reduce_bytes": 2.0,
        "update_memory": 10.0,
        "bucket_parameters": 512 * 2**20,
        "bucket_parameters_per_rank": 0.0,
        "broadcast_tensors": 9,
        "all_reduces_shards": True,
        **_SPLIT_SENDS,
    },
)
# DeepSeek-V3 report, section 3.3.3: what SwiGLU reads waits in 8 bits, the output of attention in
# 12 (E5M6), for its own backward pass too.
_HAI = StackRule(
    software="megatron-core",
    changes={"scales_activation_inputs": True, "scaled_output_bytes": 1.5},
)
_ZERO_BUBBLE = StackRule(
    software="zero-bubble", overlap={"overlap_grad_reduce": 0, "overlap_p2p": 0}
)
STACKS: dict[str, StackRule] = {
    "megatron-2019": _MEGATRON_2021,
    "megatron-2021": _MEGATRON_2021,
    "megatron-2023": _MEGATRON_2023,
    "megatron-deepspeed": _DEEPSPEED,
    "deepspeed": _HF_DEEPSPEED,
    "gpt-neox": _DEEPSPEED,
    "nanotron": StackRule(software="nanotron", overlap=_SEQUENTIAL),
    "zero-bubble": _ZERO_BUBBLE,
    "pipe-offload": _ZERO_BUBBLE,
    "nemo": _NEMO,
    "megatron-bridge": _BRIDGE,
    "automodel": _AUTOMODEL,
    **dict.fromkeys(("megatron-core", "flagscale"), _CORE),
    **dict.fromkeys(("megascale", "paddle"), _SPLIT),
    "internevo": _INTERNEVO,
    "hai-llm": _HAI,
    **dict.fromkeys(("bluefog", "horovod", "pytorch-ddp"), StackRule(software="torch")),
    "llm-foundry": _FOUNDRY,
    "metaseq": _METASEQ,
    "torchtitan": _TORCH,
    # recipes/configs: clip_grad_norm is null; of Llama 3 embedding and output are units as layers
    # are (custom_sharded_layers), but for LoRA of 8 billion.
    "torchtune": replace(_TORCH, changes={"clipping_bytes": 0.0, "gathered_ends": (), **TORCHTUNE}),
    **dict.fromkeys(("fms-fsdp", "tinyllama", "flash-attention"), _FLAT),
    **dict.fromkeys(("maxtext", "paxml"), _XLA),
    **dict.fromkeys(("swift", "fsdp-qlora"), _PACKED),
    "hf-trainer": _DROPOUT,
    "hf-peft": _EAGER,
    "litgpt": _LITGPT,
}
"""Rules by stack."""

SOURCE_SOFTWARE = "source_software.toml"
"""What the runs of single sources say of their software."""
_ATTENTION_RATES = {
    ("flash", "Ampere"): 0.45,
    ("triton", "Ampere"): 0.55,
    ("flash", "Hopper"): 0.35,
    ("triton", "Hopper"): 0.35,
    ("flash2", "Hopper"): 0.6,
    ("sdpa", "Hopper"): 0.6,
    ("flash2", "Blackwell"): 0.26,
    ("flash3", "Blackwell"): 0.26,
}
"""Rate of the kernels of an attention over the current ones of its generation, from timings of
kernels alone, forward and backward: FlashAttention-2 is 1.7 to 3.0 times as fast as the first and
1.3 to 2.5 times as fast as Triton's on A100 (Dao 2023, arXiv:2307.08691, section 4.1),
FlashAttention-3 and cuDNN 1.5 to 2.0 and 1.5 to 1.75 times as fast as the second on H100 (Shah et
al. 2024, arXiv:2407.08608, section 4.1). Geometric middles. B200: 346 TFLOP/s of the second
(Dao-AILab/flash-attention#1589), whose products are those of Ampere, against 1,300 of the fourth
(#2280); the third runs on Hopper alone, elsewhere the second stands for it."""
_UNFUSED_PERMUTATION = ("megatron-core", "nemo", "torchtitan")
"""Stacks that permute tokens by several kernels unless a row says otherwise: moe_permute_fusion is
off, or there is none (profile of torchtitan)."""
_FUSED_LOSS = (8.0, 0.0)
"""Bytes a logit of the Trainer where cross-entropy is one kernel: a copy in fp32, and another of
all but the last position in which the gradient takes the place of the logits (transformers,
ForCausalLMLoss)."""
_UNFUSED_LOSS = {"megatron-core": (6.0, 4.0), "torchtitan": (14.0, 6.0), "automodel": (6.0, 4.0)}
"""Bytes a logit, at the peak and until the backward pass, where a row says that its loss is neither
fused nor compiled, by stack or by software profile (sources there); AutoModel's recipes leave
logits in 16 bits (loss/masked_ce.py, fp32_upcast)."""
_COMPILED = ("torchtitan", "maxtext", "paxml")
"""Stacks whose loss is compiled with the layers: rows that say nothing of theirs have it (profile
of torchtitan; XLA compiles whole steps)."""
_ONEFLOW = {"process_groups": ("tp", "dp", "cp", "ep", "expert-dp", "pp")}
"""OneFlow makes a communicator for a set of devices, core/job/eager_nccl_comm_manager.cpp
(GetCommForDevice); read after its peaks were seen beside Megatron-LM's groups."""
_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "8bit": 1.0}
_FREED = 1e-9
"""Bytes a parameter of what no allocator holds; 0 stands for those of the recipe."""
TORCHTUNE_EAGER = {"fused_norm": False, "fused_activation": False, "memory_bound_rate": 0.72}
"""torchtune 0.6 without compile, as its recipes have it: norms in fp32 (modules/rms_norm.py), and
the activated gate is a tensor of its own (modules/feed_forward.py). Of 51 h + 4 f elements that are
counted of a forward pass, eager norms included, positions are 2.5 h; they take 27.5 h more, of 1.25
h queries and keys (modules/position_embeddings.py: cast 2 + 4 bytes, four products of halves 4 x 4,
sum and difference 4 + 8, stacked 4 + 4, cast 4 + 2, less 2 + 2)."""
TORCHTUNE_COMPILED = {"memory_bound_rate": 1.4, "fused_adapters": True}
"""Layers of torchtune under compile: of 19 h + 4 f elements that are counted of a forward pass (f
is 2.7 to 3.5 h) kernels move 13 h + 3 f, norms with residuals 8 h, positions 2.5 h, keys and values
for every head 2.5 h; what adapters return is scaled and added in them too (kernels of a profiler
trace on one H100, 28 November 2026)."""
CHUNKED_LOSS = 2.0, 0.5
"""Bytes a logit, at the peak and until the backward pass, of a compiled loss over chunks."""
TORCHTUNE_CHUNKS = 6.5, 4.0
"""Bytes a logit of its chunked loss, run eagerly, at the peak and until the backward pass: all in
16 bits, one of eight chunks in fp32, and what log_softmax of every chunk returns in fp32, which
waits (torchtune 0.6, modules/loss/ce_chunked_output_loss.py)."""
TORCHTUNE_LINEAR_CHUNKS = 4.75, 4.0
"""The same of the loss that multiplies by the output matrix itself, chunk by chunk: one of eight
chunks in 16 bits and in fp32, and log_softmax of all (torchtune 0.7, cross_entropy_loss.py)."""
_FUSED_SOFTMAX, _EAGER_SOFTMAX = 9.0, 25.0
"""Bytes moved per score by a fused softmax with mask and dropout; and by the kernels of
transformers' eager attention: scaled 4, mask added 4, softmax into fp32 6, back to 16 bits 6,
dropout with its mask 5 (modeling_gpt2.py and modeling_llama.py, eager_attention_forward)."""
_HUGGING_FACE = ("hf-trainer", "hf-deepspeed")
"""Software profiles of eager models of transformers."""


def software_of(run: PublishedRun, learned: bool = True) -> Software:
    """The software profile of a row with what the row states, and with what published runs taught
    or not."""
    rule, source = STACKS[stack_of(run)], _source_software().get(run.source, {})
    if rule.software == "hf-trainer" and "deepspeed" in str(run.get("framework", "")).lower():
        rule = replace(rule, software=_HF_DEEPSPEED.software)
    name = rule.software.format(dtype="bf16" if run["dtype"] == "bf16" else "fp16")
    if name == _BF16_OPTIMIZER and run["grad_dtype"] != "fp32":
        name = _BF16_UNDER_ZERO
    software = software_profile(source.get("software", name))
    software = software if learned else neutral(software)
    software = replace(software, **rule.changes) if rule.changes else software
    changes = _kernels(run, software)
    changes |= {**_formats(run, software), **_recompute(run, software)}
    read = {**source.get("code", {}), **_row_fields(run, source.get("code_rows", ()))}
    changes |= {name: tuple(v) if isinstance(v, list) else v for name, v in read.items()}
    if run["offload_activations"]:
        unknown = [name for name in run["offload_activations"] if name not in OFFLOADABLE]
        if unknown:
            raise InputError(f"{unknown[0]} on the host is not modelled")
        changes["offload_modules"] = tuple(run["offload_activations"])
    if learned:
        fitted = source.get("fitted", {})
        origin = Provenance(
            source=f"{run.source}: its own runs",
            measured=False,
            kind="fitted",
            origins=(run.origin,),
        )
        changes |= {**_row_fields(run, source.get("rows", ())), **fitted}
        changes["provenance"] = {**software.provenance, **dict.fromkeys(fitted, origin)}
    return replace(software, **changes)


def stack_of(run: PublishedRun) -> str:
    """The stack of a row."""
    return str(run.get("stack", "megatron-core"))


@cache
def _source_software() -> dict[str, dict[str, Any]]:
    """SOURCE_SOFTWARE by source."""
    text = read_text(resources.files(__package__) / SOURCE_SOFTWARE, SOURCE_SOFTWARE)
    return parse_toml(text, SOURCE_SOFTWARE)


def _row_fields(run: PublishedRun, rules: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Fields of Software that the rules of its source give a row."""
    out: dict[str, Any] = {}
    for rule in rules:
        cell = run[rule["column"]]
        words = (cell,) if isinstance(cell, str) else cell or ()
        if rule["with"] in words if "with" in rule else rule["without"] not in words:
            out |= rule["fields"]
    return out


def _kernels(run: PublishedRun, software: Software) -> dict[str, Any]:
    out: dict[str, Any] = {}
    kernel = run["attention_kernel"]
    flash = kernel != "materialised"
    if run.states("attention_kernel") and flash != software.flash_attention:
        softmax = _EAGER_SOFTMAX if software.label in _HUGGING_FACE else _FUSED_SOFTMAX
        out |= {"flash_attention": flash, "score_bytes": 0.0 if flash else softmax}
    if not software.provenance["attention_rate"].origins and run.states("attention_kernel"):
        rate = _ATTENTION_RATES.get((kernel, generation(run["accelerator"])), 1.0)
        out |= {"attention_rate": rate}
    fused = run["permute_fusion"]
    out["fused_permutation"] = stack_of(run) not in _UNFUSED_PERMUTATION if fused is None else fused
    kernels = run.get("fused_kernels", ())
    if str(run["framework"]).startswith("OneFlow"):
        out |= _ONEFLOW
    if "lora" in kernels:
        out["fused_adapters"] = True
    liger = run["loss"] == "fused-linear" and software.label in _HUGGING_FACE
    if "rmsnorm" in kernels or liger:
        out["fused_norm"] = True
    if stack_of(run) == "torchtune":
        out |= TORCHTUNE_COMPILED if run["compile"] else TORCHTUNE_EAGER
    elif run["compile"] is False and run.states("compile") and software.name == "torchtitan":
        out |= {"fused_norm": False, "fused_activation": False}
    if run["dropout"] is not None:
        out["dropout"] = run["dropout"]
    if run["vocab_multiple"]:
        out["vocabulary_multiple"] = run["vocab_multiple"]
    if run["wgrad_fusion"] is False and run["dtype"] == "bf16":
        out["accumulation_bytes"] = software.accumulation_bytes or 10.0
    if run["bucket_elements"]:
        out |= {"bucket_parameters": float(run["bucket_elements"])}
        out |= {"bucket_parameters_per_rank": 0.0}
    loss: dict[str, tuple[float, float] | None]
    loss = {"fused-linear": (0.5, 0.0), "chunked": CHUNKED_LOSS}
    if stack_of(run) == "torchtune" and not run["compile"]:
        loss["chunked"] = TORCHTUNE_CHUNKS
    if software.label in _HUGGING_FACE:
        loss["fused"] = _FUSED_LOSS
    if "full" in run.get("cuda_graphs", ()):
        out |= {"layer_floor": 0.0, "expert_floor": 0.0, "expert_seconds": 0.0}
    out["graphs"] = tuple(name for name in run.get("cuda_graphs", ()) if name in GRAPHS)
    if stack_of(run) not in _COMPILED or run.states("loss"):
        loss["unfused"] = _UNFUSED_LOSS.get(stack_of(run)) or _UNFUSED_LOSS.get(software.name)
    if logit_bytes := loss.get(run["loss"]):
        out["logit_bytes"], out["kept_logit_bytes"] = logit_bytes
    return out


def _formats(run: PublishedRun, software: Software) -> dict[str, Any]:
    """Bytes of gradients and of optimizer state where they are not the recipe's."""
    out: dict[str, Any] = {}
    wide = run["dtype"] in ("fp32", "tf32")
    if run["grad_dtype"] in ("bf16", "fp16") and not software.gradient_memory and not wide:
        out |= {"gradient_memory": 2.0, "reduce_bytes": 2.0}
    if run["param_dtype"] != "fp32" or run["optimizer_dtype"] != "fp32":
        master = 0.0 if wide or run["param_dtype"] != "fp32" else 4.0
        moments = 1 if run["optimizer"] == "sgd" else 2
        out["optimizer_memory"] = master + moments * _BYTES[run["optimizer_dtype"]]
        if software.update_memory:
            out["update_memory"] = _BYTES[run["optimizer_dtype"]]
    if "paged" in run["optimizer"]:
        out["optimizer_memory"] = _FREED
    if "in-backward" in run["optimizer"]:
        out["gradient_memory"] = _FREED
    return out


def _recompute(run: PublishedRun, software: Software) -> dict[str, Any]:
    """The modules that a row names; the framework's own where it only says selective."""
    if run["recompute"] != "selective":
        return {}
    if not run["recompute_ops"]:
        return {"selective": DEFAULT_MODULES} if software.framework == "megatron" else {}
    if "unknown" in run["recompute_ops"]:
        raise InputError("which ops are recomputed is not stated")
    return {"selective": tuple(run["recompute_ops"])}
