"""Programs of one's own on Hugging Face's Trainer: arguments by other names, and unknown ones that
may decide the model or the plan.

Source: peft, examples/sft; scripts of models and of courses, whose names for the same differ.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from plan3d.simulator.base.errors import InputError

from ..documents import Document
from ..launch_file import Launch
from ..tables import Numbers, Row, Table, UnmodelledKeys

_ADAPTER = re.compile(r"(?:^|_)(?:q_?)?lora(?:_|$)|^pre_seq_len$")
"""Switches and ranks of adapters in programs that are not TRL's."""
_TUNERS = ("lora", "qlora", "dora", "adalora", "loha", "lokr", "ia3", "vera", "ptuning")
"""What they call their adapters."""
_NOTHING = ("false", "no", "none", "0", "")
_LENGTH = re.compile(
    r"(?:max|model|input|context)_(?:\w+_)?(?:len(?:gth)?|tokens|window)$|seq(?:uence)?_?len(?:gth)?"
    r"|(?:block|context)_size$|^cutoff"
)
_OTHER_LENGTH = re.compile(r"^(?:eval|generation|val)|prompt|completion|new_tokens|target|source")


def is_length(name: object) -> bool:
    """Whether an argument is the length of samples by its name, in whatever program."""
    return bool(_LENGTH.search(str(name))) and not _OTHER_LENGTH.search(str(name))


SWITCH_NAMES = {
    "use_gradient_checkpointing": "gradient_checkpointing",
    "use_peft_lora": "use_peft",
    "use_4bit_quantization": "load_in_4bit",
    "use_8bit_quantization": "load_in_8bit",
    "use_nested_quant": "use_bnb_nested_quant",
}
"""TRL's names of switches by those of PEFT's examples (peft, examples/sft/train.py)."""
ACCUMULATION_STEPS = "gradient_accumulation_steps"
ACCUMULATION = re.compile(
    r"^(?:grad(?:ient)?_)?acc(?:um(?:ulation|ulate)?)?(?:_grad)?(?:_(?:steps|batches))?$"
)
"""What programs call gradient_accumulation_steps."""
MODEL_NAMES = ("model_name", "model_id", "base_model", "model_path")
"""What programs call model_name_or_path."""
ADAPTER_NAMES = {
    "lora_rank": "lora_r",
    "lora_dim": "lora_r",
    "target_modules": "lora_target_modules",
    "lora_target": "lora_target_modules",
    "modules_to_save": "lora_modules_to_save",
}
"""TRL's names of arguments of adapters by those of programs that have its use_peft."""


def with_names_of_trl(content: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with the model and the adapters of other programs by TRL's names."""
    own = dict(content)
    for other, name in SWITCH_NAMES.items():
        is_whole = name != "use_peft" or {"lora_r", "lora_target_modules"} <= own.keys()
        if other in own and name not in own and is_whole:
            own[name] = own.pop(other)
    stated = [name for name in MODEL_NAMES if isinstance(own.get(name), str)]
    if stated and "model_name_or_path" not in own:
        own["model_name_or_path"] = own.pop(stated[0])
    steps = [name for name in own if ACCUMULATION.search(name) and name != ACCUMULATION_STEPS]
    if len(steps) == 1 and ACCUMULATION_STEPS not in own:
        own[ACCUMULATION_STEPS] = own.pop(steps[0])
    for other, name in ADAPTER_NAMES.items() if own.get("use_peft") else ():
        if other in own and name not in own:
            own[name] = own.pop(other)
    return own


def unknown_keys(document: Document, table: Table) -> list[str]:
    """The arguments that stand in no row."""
    rows, known = UnmodelledKeys(table), {row.key for row in table if isinstance(row, Row)}
    return [k for k in document.content if k not in known and rows.row_of((k,), "") is None]


def check_adapters(n: Numbers, document: Document, unknown: Sequence[str]) -> None:
    """Raise InputError where arguments of another program may make adapters."""
    content = document.content
    if not hasattr(n, "uses_adapters") or "use_peft" in content:
        return
    for key in sorted({*unknown, "lora_r"} & content.keys()):
        value = str(content[key]).lower()
        if value in _TUNERS or (_ADAPTER.search(key) and value not in _NOTHING):
            raise InputError(
                f"{document.file}: {key} makes adapters of another program, which is not "
                "read: give use_peft and lora_r in its place"
            )


_BITS = re.compile(r"^(?:load_in_|quant\w*_|n_|num_)?k?bits$")
_BATCH = re.compile(
    r"^(?:global|total|effective|full)_?(?:train_)?batch(?:_?size)?$|^train_batch_size$"
)
_SIZES = re.compile(
    r"^(?:num_(?:hidden_)?layers|n_?layers?|hidden_(?:size|dim)|(?:num_|n_)(?:attention_|kv_|"
    r"key_value_)?heads|intermediate_size|ffn_(?:hidden_size|dim)|(?:padded_)?vocab_size|n_embd|"
    r"d_model|num_(?:local_)?experts|moe_\w*freq\w*|resize_\w*embeddings?\w*)$"
)


def check_sizes(n: Numbers, document: Document, unknown: Sequence[str], launch: Launch) -> None:
    """Raise InputError for arguments that may be the batch of a step, or make another model of the
    one that is named; name frozen parts."""
    for key in unknown:
        value = document.content[key]
        is_count = type(value) in (int, float) and value > 0
        if is_count and _SIZES.search(key):
            if not n.is_model_given:
                raise launch.refuse(
                    f"{key} is {value}, which may make another model of the one that is named: "
                    "give --model config.json"
                )
            launch.model = None
        if is_count and _BITS.search(key) and value <= 8 and not n.in_bits:
            raise launch.refuse(
                f"{key} is {value}: the weights are in fewer bits, by a program that is not read: "
                "give load_in_4bit or load_in_8bit in its place"
            )
        if is_count and _BATCH.search(key):
            if not n.has_batch:
                raise launch.refuse(
                    f"{key} {value} may be the batch of a step, in another program: give "
                    "--global-batch N (sequences)"
                )
            n.accumulation = None
        if "freeze" in key and str(value).lower() not in _NOTHING:
            launch.left_out.append(f"frozen parts, which are taken as trained ($.{key})")


_AXIS = r"(?:_model)?_(?:parallel\w*|size|degree|world_size)$"
_OTHER_WORDS = (
    (
        "recompute",
        re.compile(r"checkpoint\w*_(?:layers|activations)|(?:grad|act)\w*_c\w*k\w*p\w*t"),
    ),
    ("precision", re.compile(r"^(?:mixed_)?precision$|^(?:compute|train\w*|amp)_dtype$|^amp$")),
    ("zero", re.compile(r"^zero(?:_stage)?$")),
    ("cp", re.compile(rf"(?:^|_)(?:seq|sequence|context|ulysses|ring|sp|cp){_AXIS}|ring_attn")),
    ("tp", re.compile(rf"(?:^|_)(?:tensor|tp|model_parallel){_AXIS}")),
    ("pp", re.compile(rf"(?:^|_)(?:pipeline|pipe|pp){_AXIS}")),
    ("ep", re.compile(rf"(?:^|_)(?:expert|ep){_AXIS}")),
)
"""Fields of the plan that arguments of programs which are not known decide by their names."""


def note_other_words(document: Document, unknown: Sequence[str], launch: Launch) -> None:
    """Note arguments of a program that is not known which decide fields of the plan."""
    for field, pattern in _OTHER_WORDS:
        for key in filter(pattern.search, unknown):
            stated = document.content[key]
            value = str(stated)
            is_off = field in ("cp", "tp", "pp", "ep") and type(stated) in (int, float)
            is_off = is_off and stated <= 1
            if value.lower() not in _NOTHING and not is_off:
                launch.unmodelled.setdefault(field, f"{key} is {value[:40]}, in another program")
