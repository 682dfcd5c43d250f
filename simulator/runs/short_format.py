"""Runs in the short format: 44 columns, and what else is known as prose in `notes`.

Collections of published runs are often kept so. Rules here are about words that anybody uses (LoRA,
offload, hybrid sharding, Gb/s a node), not about sources. What a rule concludes and the row does
not state is named in `assumed`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..base.errors import InputError

NEEDED = (
    *("run", "source", "status", "accelerator", "gpus", "gpus_per_node", "inter_node_network"),
    *("model", "family", "n_params_b", "layers", "hidden", "ffn_hidden", "heads", "kv_heads"),
    *("vocab", "sequence", "experts", "experts_per_token", "global_batch", "micro_batch"),
    *("tp", "pp", "virtual_stages", "dp", "cp", "ep", "zero_stage", "fsdp", "sequence_parallel"),
    *("recompute", "dtype", "flash_attention", "schedule", "framework", "step_seconds"),
    *("peak_memory_gb", "notes"),
)
"""Columns that a file in this format must have."""
_OWN = ("fsdp", "flash_attention", "peak_memory_gb", "notes")
"""Columns that only this format has."""
_CHANGED = ("ffn_hidden", "recompute", "dtype", "schedule")
_SAME = (
    *("url", "year", "quality"),
    *(column for column in NEEDED if column not in (*_OWN, *_CHANGED)),
)
"""Columns of the same name and meaning in both formats."""

STACKS = (
    ("nanotron", "nanotron"),
    ("bridge", "megatron-bridge"),
    ("automodel", "automodel"),
    ("torchtitan", "torchtitan"),
    ("torchtune", "torchtune"),
    ("fsdp_qlora", "fsdp-qlora"),
    ("fms-fsdp", "fms-fsdp"),
    ("llm-foundry", "llm-foundry"),
    ("composer", "llm-foundry"),
    ("metaseq", "metaseq"),
    ("litgpt", "litgpt"),
    ("lit-gpt", "litgpt"),
    ("swift", "swift"),
    ("peft", "hf-peft"),
    ("hf trainer", "hf-trainer"),
    ("transformers", "hf-trainer"),
    ("accelerate", "hf-trainer"),
    ("maxtext", "maxtext"),
    ("pax", "paxml"),
    ("jax", "maxtext"),
    ("paddle", "paddle"),
    ("internevo", "internevo"),
    ("colossal", "megatron-core"),
    ("neox", "gpt-neox"),
    ("megascale", "megascale"),
    ("flagscale", "flagscale"),
    ("megatron-deepspeed", "megatron-deepspeed"),
    ("megatron-lm (modified)", "zero-bubble"),
    ("zero-bubble", "zero-bubble"),
    ("bluefog", "bluefog"),
    ("horovod", "horovod"),
    ("deepspeed", "deepspeed"),
    ("nemo", "nemo"),
    ("ddp", "pytorch-ddp"),
    ("fsdp", "torchtitan"),
    ("", "megatron-core"),
)
"""Stack by a part of the framework's name; the first that fits."""

_SCHEDULES = {
    "none": "",
    **dict.fromkeys(("afab", "all-forward-all-backward"), "gpipe"),
    "interleaved (gis)": "interleaved-gis",
    "interleaved (gis-h, half memory)": "interleaved-gis-h",
    "interleaved + half activation offload": "interleaved-offload-half",
    "interleaved + full activation offload": "interleaved-offload-full",
}
"""Schedules that go by another name."""
_GIB, _GB = 2**30, 10**9


def is_short(header: Sequence[str]) -> bool:
    """Whether a file has columns that only this format has."""
    return any(column in header for column in _OWN)


def translated(row: Mapping[str, str], where: str) -> dict[str, str]:
    """The cells of run_columns that a row in the short format stands for."""
    missing = [column for column in NEEDED if column not in row]
    if missing:
        raise InputError(f"{where.partition(':')[0]}: no column {', '.join(missing)}")
    cells = {column: row.get(column, "") for column in _SAME}
    cells["table"] = row.get("table_or_figure", "")
    assumed: list[str] = []
    framework = row["framework"].lower()
    cells["stack"] = next(stack for part, stack in STACKS if part in framework)
    if cells["gpus_per_node"] in ("0", "0.0"):
        cells["gpus_per_node"] = ""
    for part in (_model, _formats, _sharding, _recompute, _schedule, _network, _tuning, _peak):
        part(row, cells, assumed)
    cells["assumed"] = ";".join(dict.fromkeys(assumed))
    return cells


def _said(row: Mapping[str, str], pattern: str) -> re.Match[str] | None:
    """The first match in the notes, whatever its case."""
    return re.search(pattern, row["notes"], re.IGNORECASE)


def _model(row: Mapping[str, str], cells: dict[str, str], assumed: list[str]) -> None:
    routed = row["experts"] not in ("", "0", "0.0")
    cells["expert_ffn" if routed else "ffn_hidden"] = row["ffn_hidden"]
    for column, pattern in (
        ("head_dim", r"head[_ ]dim(?:ension)?s?\W{0,3}(?:=|of|is)?\s*(\d+)"),
        ("etp", r"\betp\W{0,3}(\d+)"),
        ("shared_expert_ffn", r"shared expert(?:s)? (?:ffn|width)\W{0,3}(\d+)"),
        ("mtp_layers", r"(\d+) (?:MTP|multi-token)"),
    ):
        if found := _said(row, pattern):
            cells[column] = found[1]
    if found := _said(row, r"tied_emb=(True|False)"):
        cells["tied"] = found[1]
    grouped = row["kv_heads"] not in ("", row["heads"])
    if row["family"] == "gpt" and grouped:
        # A GPT with grouped queries is a later one.
        cells |= {"tied": "False", "biases": "none", "positions": "rope"}
        assumed += ["tied", "biases", "positions"]
    if _said(row, "3 matrices"):
        cells["mlp"] = "swiglu"


def _formats(row: Mapping[str, str], cells: dict[str, str], assumed: list[str]) -> None:
    name = row["dtype"].lower()
    tf32 = _said(row, r"\btf32\b") and name in ("fp32", "")
    kinds = ("mxfp8", "nvfp4", "fp8", "bf16", "fp16", "tf32", "fp32")
    found = next((kind for kind in kinds if kind in name), "")
    cells["dtype"] = "tf32" if tf32 else found
    if not cells["dtype"]:
        old = cells["stack"] in ("megatron-deepspeed", "megatron-2021", "zero-bubble")
        cells["dtype"] = "fp16" if old else "bf16"
        assumed.append("dtype")
    if cells["dtype"] == "fp8":
        recipes = (
            *(("block", "blockwise"), ("row", "rowwise"), ("current", "current")),
            *(("tensor", "current"), ("delayed", "delayed")),
        )
        told = f"{name} {row['notes'].lower()}"
        stated = next((recipe for part, recipe in recipes if part in told), "")
        cells["fp8_recipe"] = stated or "delayed"
        assumed += [] if stated else ["fp8_recipe"]
    flash = {"true": "flash2", "1": "flash2", "false": "materialised", "0": "materialised"}
    cells["attention_kernel"] = flash.get(row["flash_attention"].lower(), "")
    if named := _said(row, r'kernel="([^"]*)"'):
        cells["attention_kernel"] = _KERNELS.get(named[1], cells["attention_kernel"])
        cells["fused_kernels"] = "rmsnorm" if "RMS" in named[1] else ""
    for pattern, loss in (
        (r"fused linear|liger|cut cross", "fused-linear"),
        (r"chunked (?:loss|cross)", "chunked"),
        (r"fused (?:loss|cross)", "fused"),
    ):
        if _said(row, pattern):
            cells["loss"] = loss
            break
    if _said(row, r"grad(?:ient)?s?[ _-](?:reduce[d]?[ _-])?in[ _-]bf16|grad_reduce_in_fp32=False"):
        cells["grad_dtype"] = "bf16"


_KERNELS = {
    "flash_attention2 + RMS kernel": "flash2",
    "flash_attention2": "flash2",
    "flash_attentionv1.0.8": "flash",
    "torch": "materialised",
}
"""Attention kernels by the name that a row gives in its notes."""


def _sharding(row: Mapping[str, str], cells: dict[str, str], assumed: list[str]) -> None:
    fsdp = row["fsdp"].lower() in ("true", "1")
    if not cells["zero_stage"]:
        optimizer = cells["stack"] in ("nemo", "megatron-bridge", "megatron-core", "megascale")
        cells["zero_stage"] = "3" if fsdp else "1" if optimizer else "0"
        assumed.append("zero_stage")
    if fsdp:
        cells["sharding"] = "fsdp1" if "fsdp1" in row["framework"].lower() else "fsdp2"
    hybrid = _said(row, r"(?:hsdp|hybrid shard\w*)[^.;]{0,40}?\b(\d+)\b(?! ?nodes)")
    group = _said(row, r"zero\w*[ -]?(?:group|size|shard)\w*[^.;\d]{0,20}(\d+)")
    if found := hybrid or group:
        cells["shard_ranks"] = found[1]
    if _said(row, r"optimizer offload=y|cpu ?adam|optimi[sz]er (?:on|to|in) (?:the )?(?:host|cpu)"):
        cells["optimizer_on_host"] = "True"
    if _said(row, r"param(?:eter)? offload=y|full cpu offload|parameters? (?:on|in) (?:the )?host"):
        cells |= {"params_on_host": "True", "optimizer_on_host": "True"}
    if _said(row, r"ddp=torch"):
        cells["overlap_grad_reduce"] = "True"
    if _said(row, r"\bmuon\b"):
        cells["optimizer"] = "muon"
    for name in ("deepep", "hybridep"):
        if _said(row, rf"\b{name}\b"):
            cells["dispatcher"] = name
    if _said(row, r"overlap_moe_expert_parallel|ep overlap on|expert overlap"):
        cells["overlap_ep"] = "True"


def _recompute(row: Mapping[str, str], cells: dict[str, str], assumed: list[str]) -> None:
    text = row["recompute"].lower()
    if not text:
        assumed.append("recompute")
        text = "full" if cells["stack"] in ("megatron-deepspeed", "megatron-2021") else "none"
    kind = next((word for word in ("none", "full", "selective") if text.startswith(word)), "")
    cells["recompute"] = kind or "selective"
    inside = re.search(r"\(([^)]*)\)", text)
    told = inside[1] if inside else ("" if kind else text)
    if every := re.search(r"every (other|\d+)", f"{text} {row['notes'].lower()}"):
        cells["recompute_every"] = "2" if every[1] == "other" else every[1]
        cells["recompute"] = "full"
    elif block := re.search(r"block\D*(\d+)", told):
        cells |= {"recompute_method": "block", "recompute_layers": block[1]}
    elif told in ("op", "op list", "op sac"):
        cells["recompute_ops"] = "op-sac"
    elif told:
        known = (
            "core_attn",
            "layernorm",
            "mlp",
            "moe",
            "moe_act",
            "mla_up_proj",
            "gelu",
            "dropout",
        )
        words = re.split(r"[ +,]+", told.replace("ln", "layernorm"))
        cells["recompute_ops"] = " ".join(w if w in known else "unknown" for w in words)


def _schedule(row: Mapping[str, str], cells: dict[str, str], assumed: list[str]) -> None:
    text = row["schedule"].lower()
    inner = re.fullmatch(r"zb \((.*)\)", text)
    name = inner[1] if inner else text.removesuffix(" (deepspeed)").removesuffix(" 1f1b")
    cells["schedule"] = _SCHEDULES.get(name, name).replace(" ", "-")
    if cells["schedule"] == "zb-2p" and _said(row, "synchronous all-reduce optimizer step"):
        cells["schedule"] = "zb-2p-sync"
    if _said(row, "first and last stage (?:have )?one layer (?:fewer|less)|embeddings? counted as"):
        cells["ends_short"] = "True"


def _network(row: Mapping[str, str], cells: dict[str, str], assumed: list[str]) -> None:
    """Gb/s of a node to the network, where the name of the network says so."""
    text = row["inter_node_network"].replace(",", "")
    if found := re.search(r"(\d+) ?x ?(?:HDR|NDR|EDR|FDR)? ?(\d+) ?G", text):
        cells["node_gbps"] = str(int(found[1]) * int(found[2]))
    elif found := re.search(r"(\d+) ?GB/s per (?:server|node)", text):
        cells["node_gbps"] = str(8 * int(found[1]))
    elif found := re.search(r"(\d+) ?Gb(?:/s|ps|it/s)", text):
        per_gpu = re.search(r"per GPU", text)
        each = int(cells["gpus_per_node"] or 8) if per_gpu else 1
        cells["node_gbps"] = str(each * int(found[1]))
        assumed += [] if per_gpu or "node" in text else ["node_gbps"]
    elif "EFA" in text and row["accelerator"].startswith(("h100", "h200", "b200")):
        cells["node_gbps"] = "3200"
        assumed.append("node_gbps")
    elif "Omni-Path" in text:
        cells["node_gbps"] = "400"
        assumed.append("node_gbps")


def _tuning(row: Mapping[str, str], cells: dict[str, str], assumed: list[str]) -> None:
    """Fine-tuning: which weights are trained."""
    told = f"{row['model']} {row['framework']} {row['notes']}"
    if found := re.search(r"\b(qlora|lora|dora|gptq)\b", told, re.IGNORECASE):
        kind = found[1].lower()
        cells |= {"training": "peft", "peft": "qlora" if kind == "gptq" else kind}
        if rank := re.search(r"\br(?:ank)?\W{0,2}(\d+)\b", told, re.IGNORECASE):
            cells["lora_rank"] = rank[1]
    elif re.search(r"full (?:fine|parameter|finetun)", told, re.IGNORECASE):
        cells["training"] = "full"


def _peak(row: Mapping[str, str], cells: dict[str, str], assumed: list[str]) -> None:
    """Bytes of the peak: GB of 10^9 unless the notes say GiB, and nanotron's GiB of its rank 0."""
    if not row["peak_memory_gb"]:
        return
    first = cells["stack"] == "nanotron"
    unit = _GIB if first or _said(row, r"\bGiB\b") else _GB
    cells["peak_bytes"] = repr(float(row["peak_memory_gb"]) * unit)
    cells["peak_rank"] = "first" if first or _said(row, r"rank 0|first (?:rank|stage)") else "max"
    meter = "device" if _said(row, "nvidia-smi|device memory") else ""
    cells["peak_meter"] = meter or ("reserved" if _said(row, "reserved") else "allocated")
    assumed += ["peak_meter"] if not meter and not _said(row, "reserved|allocated") else []
