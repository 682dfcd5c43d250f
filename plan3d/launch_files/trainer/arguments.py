"""Tools that are built on Hugging Face's Trainer: their defaults, and configurations they ship.

Source: as of the spellings of their arguments (spellings.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..spellings import table_of
from ..tables import Table
from .own_programs import is_length


@dataclass(frozen=True, slots=True)
class Dialect:
    """The arguments of one tool."""

    title: str
    table: Table
    fsdp: str = "fsdp_config"
    """The section of FSDP."""
    is_checkpointed: bool = False
    """Whether layers are recomputed unless an argument of its own says otherwise, whatever that of
    the Trainer says."""
    dtype: str = ""
    """The format in which weights are loaded unless an argument says so; '' for that of bf16 and
    fp16."""
    configurations: Mapping[str, Mapping[str, Any]] | None = None
    """DeepSpeed configurations that it ships, by name: their zero_optimization."""
    older: Mapping[str, str] = field(default_factory=dict)
    """Usual names of arguments by older ones, and newer ones."""

    def renamed(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by today's names."""
        return {self.older.get(str(key), str(key)): value for key, value in content.items()}


def _zero(stage: int, offload: str = "", overlap: bool = False) -> dict[str, Any]:
    """zero_optimization of a configuration; `offload` names what is on the host."""
    out: dict[str, Any] = {"stage": stage, "overlap_comm": overlap}
    out |= {"offload_optimizer": {"device": "cpu"}} if "o" in offload else {}
    return out | ({"offload_param": {"device": "cpu"}} if "p" in offload else {})


SFT_KEYS = frozenset(
    (
        *("max_length", "packing", "packing_strategy", "padding_free", "dataset_text_field"),
        *("completion_only_loss", "assistant_only_loss", "eos_token", "use_peft"),
    )
)
"""Arguments of TRL's SFTConfig and ModelConfig that the Trainer has not."""


def with_sft_defaults(content: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with the defaults of TRL's SFTConfig that are not the Trainer's.

    Source: TRL 0.20 to 1.0, trainer/sft_config.py and base_config.py; before, with max_seq_length,
    nothing was recomputed and training was in fp32. Other lengths are of another program.
    """
    if any(map(is_length, content.keys() - {"max_length"})):
        return dict(content)
    half = {} if content.get("fp16") or "bf16" in content else {"bf16": True}
    return {"gradient_checkpointing": True, "max_length": 1024, **half, **content}


def with_axolotl_formats(content: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of axolotl with the format that is trained in: bf16 unless they say otherwise.

    Source: axolotl 0.18, utils/config/__init__.py, resolve_dtype.
    """
    own = {str(key): one for key, one in content.items() if key not in ("bfloat16", "float16")}
    bf16 = content.get("bf16", "auto")
    half = content.get("bfloat16") or (not content.get("fp16") if bf16 == "auto" else bf16)
    return own | {"bf16": half, "fp16": content.get("fp16") or (not half and weighs_half(content))}


def weighs_half(content: Mapping[str, Any]) -> bool:
    """Whether axolotl keeps weights in fp16, unless it trains in another format."""
    return bool(content.get("float16")) and not content.get("fp16")


def is_deepspeed_chat(content: Mapping[str, Any]) -> bool:
    """Whether arguments are those of the main.py of DeepSpeed-Chat."""
    return content.get("deepspeed") is True and "zero_stage" in content


def with_program_defaults(content: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of DeepSpeed-Chat, of its engine and of qlora.py in the words of the Trainer.

    Source: DeepSpeedExamples, DeepSpeed-Chat (dschat/utils/ds_utils.py and step 1, main.py);
    qlora.py and ChatGLM's ptuning/main.py (source and target are cut and joined).
    """
    own = dict(content)
    for names in (("source_max_len", "target_max_len"), ("max_source_length", "max_target_length")):
        ends = [own.get(name) for name in names]
        if all(isinstance(end, int) for end in ends):
            own = {key: value for key, value in own.items() if key not in names}
            own["max_length"] = sum(ends)
    if content.get("deepspeed") is True and "deepspeed_config" in content:
        return own | {"deepspeed": own.pop("deepspeed_config")}
    if not is_deepspeed_chat(content):
        return own
    half = "bf16" if own.pop("dtype", "fp16") == "bf16" else "fp16"
    offload = "op" if own.pop("offload", False) else ""
    zero = _zero(own.pop("zero_stage"), offload, overlap=True)
    own |= {"deepspeed": {"zero_optimization": zero, half: {"enabled": True}}, half: True}
    return own | {"max_length": own.pop("max_seq_len", 512)}


HUGGING_FACE = Dialect(
    "Hugging Face's Trainer",
    table_of("trainer"),
    older={
        # transformers since 5.19, training_args.py, which prints both.
        "activation_checkpointing": "gradient_checkpointing",
        "activation_checkpointing_kwargs": "gradient_checkpointing_kwargs",
    },
)
LLAMA_FACTORY = Dialect(
    "LLaMA-Factory",
    table_of("llama-factory"),
    is_checkpointed=True,
    older={"sft_packing": "packing", "new_special_tokens": "add_special_tokens"},
    configurations={
        "ds_z0_config.json": _zero(0),
        "ds_z2_config.json": _zero(2),
        "ds_z2_offload_config.json": _zero(2, "o"),
        "ds_z3_config.json": _zero(3),
        "ds_z3_offload_config.json": _zero(3, "op"),
    },
)
AXOLOTL = Dialect(
    "axolotl",
    table_of("axolotl"),
    dtype="bfloat16",
    configurations={
        "zero1.json": _zero(1, overlap=True),
        "zero2.json": _zero(2, "o", overlap=True),
        "zero3.json": _zero(3, overlap=True),
        "zero3_bf16.json": _zero(3, overlap=True),
        "zero3_bf16_cpuoffload_params.json": _zero(3, "p", overlap=True),
        "zero3_bf16_cpuoffload_all.json": _zero(3, "op", overlap=True),
    },
)
MS_SWIFT = Dialect(
    "ms-swift",
    table_of("ms-swift"),
    dtype="bfloat16",
    configurations={
        "zero0": _zero(0),
        "zero1": _zero(1),
        "zero2": _zero(2),
        "zero3": _zero(3),
        "zero2_offload": _zero(2, "o"),
        "zero3_offload": _zero(3, "op"),
    },
    older={
        "acc_steps": "gradient_accumulation_steps",
        "batch_size": "per_device_train_batch_size",
        "deepspeed_config_path": "deepspeed",
        "lora_bias_trainable": "lora_bias",
        "lora_dropout_p": "lora_dropout",
        "lora_modules_to_save": "modules_to_save",
        "lora_target_modules": "target_modules",
        "lora_target_regex": "target_regex",
        "model_id_or_path": "model",
        "quantization_bit": "quant_bits",
        "use_liger": "use_liger_kernel",
    },
)
