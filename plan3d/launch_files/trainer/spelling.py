"""Numbers of a Trainer's arguments as a launch: formats, optimizer, sharding, adapters.

Source: transformers 4.57, training_args.py (OptimizerNames, fsdp) and trainer.py; accelerate 1.11,
utils/dataclasses.py (FullyShardedDataParallelPlugin); LLaMA-Factory, src/llamafactory/model/
adapter.py (trained weights in fp32 unless pure_bf16); axolotl and ms-swift, which load all weights
in bf16.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.precision import Optimizer, Precision
from plan3d.simulator.plan.field_values import ContextComm, Loss, Recompute
from plan3d.simulator.workload.adapters import WORDS, Adapters, saved_modules_of

from ..documents import Document
from ..launch_file import Launch, UnreadSetting
from ..tables import TRUTHS, Effect, Numbers, Table
from .other_arguments import OWN_TOWER
from .own_programs import check_adapters, check_sizes, is_length, note_other_words, unknown_keys

FSDP_STAGES = {
    **{"full_shard": 3, "shard_grad_op": 2, "no_shard": 0},
    **{"hybrid_shard": 3, "hybrid_shard_zero2": 2},
    **{"fsdp2": 3, "1": 3, "2": 2, "3": 0, "4": 3, "5": 2},
}
"""ZeRO stages by strategy of FSDP, by name or number; fsdp2 is the file that ms-swift ships."""
HYBRID = ("hybrid_shard", "hybrid_shard_zero2", "4", "5")
FSDP_KEYS = (
    "sharding_strategy",
    "reshard_after_forward",
    "offload_params",
    "cpu_offload",
    "activation_checkpointing",
    "version",
)
"""Keys of the section that decide time or memory."""
EIGHT_BITS, FOUR_BITS = "8bit", "4bit"
"""Parts of names of optimizers with moments in so few bits."""
FAMILIES = {
    "adamw": Optimizer.ADAM,
    "adam": Optimizer.ADAM,
    "lion": Optimizer.LION,
    "adafactor": Optimizer.ADAFACTOR,
    "sgd": Optimizer.SGD,
    "muon": Optimizer.MUON,
}
OTHER_OPTIMIZERS = (
    *("galore", "apollo", "schedule_free", "anyprecision", "optimi_", "grok", "stable", "mini"),
    *("fp8", "flash_", FOUR_BITS),
)
"""Parts of names of optimizers whose states or steps are other ones than their family's."""
_QUANTIZED = re.compile(r"(?i)\b(?:AWQ|GPTQ\w*|AQLM|HQQ|Int4|Int8|[48]bit)\b")
"""Parts of names of models whose weights are stored in few bits."""
QUANTIZED = {"bnb": {4: "nf4-dq", 8: "int8"}}
"""Formats of frozen weights by method and bits."""
MATRICES = {
    **WORDS,
    "ALL": WORDS["all"],
    "linear_qkv": ("q", "k", "v"),
    "linear_proj": ("o",),
    "linear_fc1": ("gate", "up"),
    "linear_fc2": ("down",),
}
"""Targets of adapters by name, those of Megatron-Core too."""
STAGES = ("sft", "pt", "pretrain")
"""Losses of one model on tokens."""
PREFERENCES = {
    *("beta", "max_prompt_length", "precompute_ref_log_probs", "desirable_weight"),
    *("center_rewards_coefficient", "num_generations", "max_completion_length"),
    "num_padding_at_beginning",
}
"""Arguments of TRL's trainers of preferences and rewards that its SFTConfig has not, and of
DeepSpeed-Chat's."""
NEW_TOKENS = ("resize_vocab", "add_tokens", "add_special_tokens", "new_special_tokens_config")
"""Arguments of LLaMA-Factory with which embedding and head are trained beside adapters (model/
adapter.py and patcher.py)."""
SAME_COST_OPTIMIZERS = ("default", "lorap", "multimodal")
"""Optimizers of ms-swift that are the Trainer's with groups of learning rates."""
LOSS_PLUGINS = ("CutCrossEntropyPlugin", "LigerPlugin")
"""Plugins of axolotl whose keys, or defaults, are read."""


def fill_plan(n: Numbers, document: Document, launch: Launch, table: Table = ()) -> None:
    """Add what the arguments decide beside the sharding; `table` names those that no row reads.
    Raises InputError for what trains another model than the one named."""
    check_loss(n, document)
    unknown = unknown_keys(document, table) if table else []
    check_adapters(n, document, unknown)
    _read_sequence(n, document, launch, unknown)
    launch.adapters = adapters_of(n, document)
    n.dtype = str(n.dtype or getattr(n, "model_dtype", "") or "").rpartition(".")[2]
    if n.dtype == "auto":
        n.dtype = _stored_format(n, launch)
    if n.bf16 is None:
        n.bf16 = n.dtype == "bfloat16" and not n.fp16
    n.precision = int(_precision(n, launch))
    n.optimizer = int(_optimizer(n, launch))
    if _updates_by_operations(n, document):
        launch.software["fused_update"] = False
    _read_switches(n, document, launch, table)
    note_other_words(document, unknown, launch)
    check_sizes(n, document, unknown, launch)
    if _is_recomputed(n, document, launch):
        n.recompute = Recompute.FULL
    if _fuses_loss(n, document) or _cuts_loss(document):
        n.loss = int(Loss.FUSED_LINEAR)
    n.accumulation = n.accumulation if isinstance(n.accumulation, int) else None
    if getattr(n, "device_batch", None) and not document.contains("gradient_accumulation_steps"):
        n.accumulation = n.device_batch // n.micro_batch or 1


def _stored_format(n: Numbers, launch: Launch) -> str:
    """The format of the weights of a checkpoint, in which `auto` loads them: 16 bits, but for
    models of before 2020."""
    name = str(getattr(n, "model_id", "")).rpartition("/")[2].lower()
    stored = "float32" if name.startswith(("gpt2", "distilgpt2")) else "bfloat16"
    if not launch.adapters:
        launch.left_out.append(f"weights as the checkpoint has them, taken as {stored}")
    return stored


def _fuses_loss(n: Numbers, document: Document) -> bool:
    """Whether Liger's kernels compute the loss without logits, as they do unless their
    configuration says otherwise."""
    kernels = document.content.get("liger_kernel_config")
    is_fused = not isinstance(kernels, dict) or kernels.get("fused_linear_cross_entropy", True)
    return bool(n.liger or getattr(n, "enabled_liger", False)) and bool(is_fused)


def _cuts_loss(document: Document) -> bool:
    """Whether a plugin of axolotl computes the loss without logits, as it does unless switched off
    (integrations/cut_cross_entropy/args.py)."""
    plugins = document.words("plugins")
    if not plugins or not all(name.endswith(LOSS_PLUGINS) for name in plugins):
        document.read_paths.discard(("plugins",))
    is_named = any(name.endswith("CutCrossEntropyPlugin") for name in plugins)
    return is_named and document.content.get("cut_cross_entropy") is not False


def check_loss(n: Numbers, document: Document) -> None:
    """Raise InputError for a loss that needs a second model, or scores."""
    stage = str(getattr(n, "stage", "sft") or "sft").lower()
    if getattr(n, "scores", False) or getattr(n, "scores_steps", False):
        stage = "a reward"
    task = str(getattr(n, "task", "causal_lm")).lower()
    wrong = stage if stage not in STAGES else task if task != "causal_lm" else ""
    preference = [] if hasattr(n, "stage") else sorted(filter(document.contains, PREFERENCES))
    if preference and not wrong:
        wrong = f"preferences or rewards ($.{preference[0]})"
    if wrong:
        raise InputError(
            f"{document.file}: trains by {wrong}, which is not modelled: give a run that trains "
            "one model on tokens (sft or pt)"
        )


def _read_sequence(n: Numbers, document: Document, launch: Launch, unknown: Sequence[str]) -> None:
    """Tokens of a sequence; samples that are not packed are shorter."""
    names = ("max_seq_length", "block_size", "model_max_length")
    lengths = [n.sequence, *(getattr(n, name, None) for name in names)]
    n.sequence = next(filter(None, lengths), None)
    other = next((k for k in unknown if is_length(k) and document.content[k]), "")
    if other and not (n.sequence or getattr(n, "given_sequence", None)):
        raise InputError(
            f"{document.file}: {other} {str(document.content[other])[:40]} may be the length of "
            "its samples, in a program that is not known: give --sequence N"
        )
    packed = TRUTHS.get(str(n.packing).lower(), False) or getattr(n, "neat_packing", False)
    if packed and getattr(n, "packed_length", None):
        n.sequence = n.packed_length
    is_full = getattr(n, "stage", "sft") == "pt" or getattr(n, "block_size", None)
    is_full = is_full or TRUTHS.get(str(document.content.get("pad_to_sequence_len")).lower())
    text = ""
    if not n.sequence:
        text = "no length is stated: the model's usual one is taken, unless --sequence is given"
    elif packed and _keeps_samples_apart(n, document):
        text = (
            f"samples packed into {n.sequence} tokens: attention is timed over all, not within each"
        )
    elif not packed and not is_full:
        text = note_of_lengths(n.sequence, False)
    if text:
        launch.unread.append(UnreadSetting("sequences", text, affects_cost=True))


def note_of_lengths(sequence: int, packed: bool) -> str:
    """What the lengths of samples change of the prediction."""
    if packed:
        return f"samples packed into {sequence} tokens: attention is timed over all of them"
    return f"taken as {sequence} tokens each: shorter samples are not packed into them"


def _keeps_samples_apart(n: Numbers, document: Document) -> bool:
    """Whether tokens of a packed sequence see those of their own sample alone: not in LLaMA-Factory
    without neat_packing, nor in TRL where samples are cut to pieces of one length."""
    if hasattr(n, "neat_packing"):
        return bool(n.neat_packing)
    return str(document.content.get("packing_strategy", "bfd")) != "wrapped"


def adapters_of(n: Numbers, document: Document) -> Adapters | None:
    """The adapters; None where all weights are trained."""
    names = [getattr(n, name, "") for name in ("sft_type", "train_type", "tuner")]
    tuner = next(filter(None, names), "lora" if getattr(n, "uses_adapters", False) else "full")
    tuner = {"qlora": "lora"}.get(tuner.lower(), tuner.lower())
    base = _frozen_format(n, document)
    if tuner == "full":
        if base:
            raise InputError(f"{document.file}: trains all weights of a model in {n.bits} bits")
        return None
    if tuner != "lora":
        raise InputError(
            f"{document.file}: trains by {tuner}, which is not modelled; nearest: full or lora"
        )
    return Adapters(
        rank=n.rank,
        dropout=n.adapter_dropout,
        targets=_targets(n, document),
        base=base or "bf16",
        modules_to_save=_saved_modules(n, document),
    )


def _frozen_format(n: Numbers, document: Document) -> str:
    """The format of frozen weights; '' for 16 bits."""
    if getattr(n, "in_4_bits", False):
        n.bits = 4
    elif getattr(n, "in_8_bits", False):
        n.bits = 8
    bits, name = getattr(n, "bits", 0), str(getattr(n, "model_id", "")).rpartition("/")[2]
    stored = _QUANTIZED.search(name)
    if stored and not bits:
        raise InputError(
            f"{document.file}: {name[:80]} is in the bits of {stored[0]}, which are not modelled; "
            "nearest: the model in 16 bits with 4 or 8 bits by bnb"
        )
    method = str(getattr(n, "quantization", "bnb")).lower()
    if not bits:
        return ""
    known = QUANTIZED.get({"bitsandbytes": "bnb"}.get(method, method), {})
    if bits not in known:
        raise InputError(
            f"{document.file}: weights of {bits} bits by {method} are not modelled; nearest: "
            "4 or 8 bits by bnb"
        )
    return "nf4" if bits == 4 and not getattr(n, "double_quantization", True) else known[bits]


def _targets(n: Numbers, document: Document) -> tuple[str, ...]:
    """The matrices that have an adapter; those of the tool's default, the queries and values of
    PEFT, where none is named."""
    parameters = getattr(n, "target_parameters", None)
    if parameters:
        raise InputError(
            f"{document.file}: adapters of parameters ({str(parameters)[:60]}) are not modelled; "
            "nearest: those of attention"
        )
    stated = n.targets
    if getattr(n, "all_linear", False):
        stated = "all-linear"
    if stated is None:
        return ("q", "v")
    names = stated if isinstance(stated, list) else str(stated).replace(",", " ").split()
    unknown = [str(name) for name in names if str(name) not in MATRICES]
    if unknown or not names:
        raise InputError(
            f"{document.file}: adapters of {' '.join(unknown)[:60] or 'nothing'} are not modelled; "
            f"nearest: {', '.join(name for name in WORDS if name.endswith('_proj'))}"
        )
    return tuple(part for name in names for part in MATRICES[str(name)])


def _saved_modules(n: Numbers, document: Document) -> tuple[str, ...]:
    """The modules that are trained whole beside adapters."""
    stated = getattr(n, "saved_modules", None) or []
    if not stated and hasattr(n, "neat_packing") and any(map(document.is_on, NEW_TOKENS)):
        stated = ["embed_tokens", "lm_head"]
    names = stated if isinstance(stated, list) else str(stated).replace(",", " ").split()
    try:
        return saved_modules_of(names)
    except InputError as error:
        raise InputError(f"{document.file}: {error}") from None


def _precision(n: Numbers, launch: Launch) -> Precision:
    """Adapters are multiplied in 16 bits; DeepSpeed keeps 32-bit weights beside those of 16 bits,
    and accelerate makes shards of FSDP 32-bit weights where training is mixed (fsdp_utils.py); else
    the format of the loaded weights decides."""
    half = Precision.FP16 if n.fp16 else Precision.BF16
    if n.fp16 and n.bf16:
        raise launch.refuse("switches both bf16 and fp16 on: switch one off")
    if launch.adapters or n.has_engine:
        return half if n.fp16 or n.bf16 or launch.adapters else Precision.FP32
    if getattr(n, "pure_bf16", False):
        return Precision.PURE_BF16
    if n.zero and (n.fp16 or n.bf16):
        return half
    if n.dtype == "bfloat16":
        return Precision.PURE_BF16
    if not (n.fp16 or n.bf16):
        return Precision.FP32
    return half if n.fp16 else Precision.AMP


def _optimizer(n: Numbers, launch: Launch) -> Optimizer:
    """The optimizer by its name in the Trainer; states of a paged one are counted on GPUs, though
    they move to the host where nothing else fits (bitsandbytes, functional.py, get_paged)."""
    name = "adafactor" if getattr(n, "adafactor", False) else str(n.optimizer_name).lower()
    if "paged" in name:
        why = f"{name[:40]} (its states are counted on GPUs; full GPUs page them to the host)"
        launch.unread.append(UnreadSetting("optimizer", why, affects_cost=True))
    family = next((key for key in FAMILIES if key in name), "")
    is_other = any(part in name for part in OTHER_OPTIMIZERS)
    if family in ("adamw", "adam") and not is_other:
        return Optimizer.ADAM_8BIT if EIGHT_BITS in name else Optimizer.ADAM
    if family in ("", "adamw", "adam") or is_other or EIGHT_BITS in name:
        launch.unmodelled["optimizer"] = f"its optimizer is {name[:40]}, which is not modelled"
        return Optimizer.ADAM
    return FAMILIES[family]


def _updates_by_operations(n: Numbers, document: Document) -> bool:
    """Whether AdamW of PyTorch is asked for without its fused kernel, which is the default since
    PyTorch 2.8, and DeepSpeed's configuration names no other (transformers, training_args.py)."""
    is_stated = document.contains("optim") or document.contains("optimizer")
    named = str(n.optimizer_name).lower() == "adamw_torch"
    return is_stated and named and not getattr(n, "engine_updates", False)


OPTIMIZERS = ("use_galore", "use_apollo", "use_badam", "use_adam_mini")
"""Switches of LLaMA-Factory that replace the optimizer by one that is not modelled."""


def _read_switches(n: Numbers, document: Document, launch: Launch, table: Table) -> None:
    """Switches that replace the optimizer or the format, and parts that are left out."""

    other = str(getattr(n, "other_optimizer", "default") or "default").lower()

    def claims(key: str) -> bool:
        return document.is_on(key) and document.claim(key)

    if claims("use_muon") or other == "muon":
        n.optimizer = int(Optimizer.MUON)
    elif other not in SAME_COST_OPTIMIZERS:
        launch.unmodelled["optimizer"] = f"its optimizer is {other[:40]}, which is not modelled"
    for key in filter(claims, OPTIMIZERS):
        launch.unmodelled["optimizer"] = f"its optimizer is that of {key}, which is not modelled"
    note_parts(document, launch, table)
    for key in ("attn_implementation", "attn_impl", "flash_attn"):
        value = str(document.content.get(key)).lower()
        if value in ("eager", "disabled"):
            document.claim(key)
            text = f"{value} (predicted with fused attention)"
            launch.unread.append(UnreadSetting(f"$.{key}", text, affects_cost=True))
    if claims("fp8"):
        launch.unmodelled["precision"] = "fp8 is on: its recipe is not read"


def note_parts(document: Document, launch: Launch, table: Table) -> None:
    """Note the parts of the run that the prediction leaves out."""
    parts: dict[str, list[str]] = {}
    for key, row in document.acting(table, Effect.PART):
        if launch.model is None or row.advice != OWN_TOWER:
            parts.setdefault(row.advice, []).append(f"$.{key}")
    launch.left_out += [f"{part} ({', '.join(places)})" for part, places in parts.items()]


def _is_recomputed(n: Numbers, document: Document, launch: Launch) -> bool:
    """Whether layers are recomputed; checkpoints on the host are named as not modelled."""
    value = n.checkpointing
    if isinstance(value, str) and value.lower() not in TRUTHS:
        launch.unread.append(
            UnreadSetting("gradient_checkpointing", f"{value} (checkpoints stay on GPUs)", True)
        )
        return True
    on = value if isinstance(value, bool) else TRUTHS.get(str(value).lower(), False)
    return bool(on) or (n.is_checkpointed and not getattr(n, "not_checkpointing", False))


def fsdp_strategy(words: Any, section: dict[str, Any]) -> str:
    """The sharding strategy of the argument fsdp and of its section; '' without FSDP."""
    given = words if isinstance(words, list) else str(words or "").split()
    names = [str(word).lower() for word in given if str(word).lower() in FSDP_STAGES]
    stated = str(section.get("sharding_strategy", "")).lower()
    if stated in FSDP_STAGES:
        return stated
    reshard = section.get("reshard_after_forward")
    if str(reshard).lower() in FSDP_STAGES:
        return str(reshard).lower()
    if section or names or TRUTHS.get(str(words).lower()):
        name = names[0] if names else "full_shard"
        return "shard_grad_op" if reshard is False and name == "full_shard" else name
    return ""


def fsdp_section(document: Document, path: str) -> dict[str, Any]:
    """The section of FSDP at a path, without prefixes of its keys; everything in it that decides
    the sharding counts as read."""
    section = document.section(path).values if isinstance(document.content.get(path), dict) else {}
    out = {}
    for name, value in section.items():
        short = str(name).removeprefix("fsdp_")
        out[short] = value
        if short in FSDP_KEYS:
            document.claim(f"{path}.{name}")
    return out


def shard_by_fsdp(n: Numbers, launch: Launch, strategy: str, section: dict[str, Any]) -> None:
    """Add the plan of FSDP."""
    n.zero = FSDP_STAGES[strategy]
    n.overlap_grad_reduce = n.overlap_param_gather = n.zero > 0
    if n.zero == 0:
        n.overlap_grad_reduce = True
    if strategy in HYBRID:
        launch.unmodelled["shard"] = f"its strategy is {strategy}, of ranks of one node"
    offloads = section.get("offload_params", section.get("cpu_offload"))
    words = n.fsdp if isinstance(n.fsdp, list) else str(n.fsdp or "").split()
    if TRUTHS.get(str(offloads).lower()) or "offload" in words:
        n.offload_parameters = n.offload_optimizer = 100
    if TRUTHS.get(str(section.get("activation_checkpointing")).lower()):
        n.recompute = Recompute.FULL


def shard_by_degrees(n: Numbers, launch: Launch) -> None:
    """Add the axes that arguments size, as those of axolotl do."""
    n.tp, n.cp, n.ep = (getattr(n, name, 1) or 1 for name in ("tp", "cp", "ep"))
    n.cp = max(n.cp, getattr(n, "sequence_degree", 1))
    n.sequence_parallel = 0
    n.cp_comm = int(getattr(n, "context_comm", ContextComm.P2P))
    if n.cp > 1 and not n.has_engine:
        launch.software["splits"] = ("cp",)
    degree = getattr(n, "shard_degree", None)
    if degree and n.zero == 0 and not n.has_engine:
        n.zero, n.overlap_grad_reduce, n.overlap_param_gather = 3, True, True
    if degree:
        launch.gpus = degree * n.replicas * n.tp * n.cp
    launch.replicas = n.replicas if degree or n.zero else 1
