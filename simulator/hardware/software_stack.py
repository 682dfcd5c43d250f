"""Training stacks by name, and stacks of one's own from TOML files.

A file gives every field of Software, or those that differ from its base:

    base = "megatron-core"
    sustained = { value = 0.9, unit = "1", source = "mine", kind = "measured" }
    [spreads]
    network_bandwidth = { value = 5, unit = "%", source = "mine", kind = "measured" }
    [sources]
    mine = "a loop of GEMMs on our nodes, March 2026"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from ..base.errors import InputError, did_you_mean
from ..base.registry import Registry
from . import leaves
from .leaves import (
    FileKind,
    Quantity,
    describe,
    problem,
)
from .provenance import Provenance, inherit
from .releases import fields_of_release
from .software import (
    DEFAULT_SOFTWARE,
    ENDS,
    FINE_TUNING_SOFTWARE,
    FP32_PARTS,
    GRAPHS,
    MODULES,
    OF_PEAKS,
    OF_STEPS,
    OFFLOADABLE,
    OP_LIST,
    PROCESS_GROUPS,
    SPLITS,
    UNCERTAIN,
    Software,
)

__all__ = [
    "DEFAULT_SOFTWARE",
    "FINE_TUNING_SOFTWARE",
    "QUANTITIES",
    "SOFTWARE",
    "Software",
    "neutral",
    "register_software",
    "sharding_stack",
    "software_profile",
]

FOLDER = "software"
"""Of the shipped files, inside hardware_profiles."""
STACK = FileKind(provenance_kinds=("measured", "fitted", "rule", "prior"))

_SHARE = Quantity(dimension="ratio", example="1", maximum=2.0)
_FRACTION = Quantity(dimension="ratio", example="1", maximum=1.0, allows_zero=True)
_RATIO = Quantity(dimension="ratio", example="1", maximum=100.0)
_TIME = Quantity(dimension="time", example="us", maximum=3600.0, allows_zero=True)
_MEMORY = Quantity(dimension="memory", example="GiB", allows_zero=True)
_OF_PARAMETER = Quantity(dimension="bytes per parameter", example="B/parameter", allows_zero=True)
_OF_SCORE = Quantity(dimension="bytes per score", example="B/score", allows_zero=True)
_OF_LOGIT = Quantity(dimension="bytes per logit", example="B/logit", allows_zero=True)
_OF_UNIT = Quantity(dimension="bytes per hidden unit", example="B/unit", allows_zero=True)
_TENSORS = Quantity(dimension="tensors", example="tensors", maximum=1000.0, allows_zero=True)

QUANTITIES = {
    **dict.fromkeys(("sustained", "wgrad_rate"), _SHARE),
    **dict.fromkeys(("attention_rate", "memory_bound_rate"), _RATIO),
    **dict.fromkeys(("backward_bytes_ratio", "backward_floor_ratio"), _RATIO),
    **dict.fromkeys(("tp_overlap_share", "contention", "rank_spread"), _FRACTION),
    **dict.fromkeys(("kernel_contention", "fsdp_contention"), _FRACTION),
    **dict.fromkeys(("layer_floor", "pipeline_floor", "step_seconds", "slice_seconds"), _TIME),
    **dict.fromkeys(("expert_seconds", "adapter_floor", "expert_floor", "module_seconds"), _TIME),
    **dict.fromkeys(("gradient_seconds", "reduction_seconds"), _TIME),
    **dict.fromkeys(("norm_seconds", "overflow_seconds"), _TIME),
    "lone_step_seconds": _TIME,
    **dict.fromkeys(("score_bytes", "kept_score_bytes", "passing_score_bytes"), _OF_SCORE),
    **dict.fromkeys(("logit_bytes", "kept_logit_bytes"), _OF_LOGIT),
    **dict.fromkeys(("unfused_logit_bytes", "fused_logit_bytes"), _OF_LOGIT),
    "layer_launches": Quantity(
        dimension="launches", example="launches", minimum=1, maximum=10_000, is_integer=True
    ),
    **dict.fromkeys(
        ("routing_launches", "expert_launches"),
        Quantity(
            dimension="launches",
            example="launches",
            maximum=10_000,
            allows_zero=True,
            is_integer=True,
        ),
    ),
    "muon_stage": Quantity(
        dimension="stages", example="stage", maximum=3, allows_zero=True, is_integer=True
    ),
    "loss_pieces": Quantity(
        dimension="pieces", example="pieces", maximum=4096, allows_zero=True, is_integer=True
    ),
    **dict.fromkeys(("accumulation_bytes", "clipping_bytes", "host_scaling_bytes"), _OF_PARAMETER),
    **dict.fromkeys(("reduce_bytes", "gradient_memory"), _OF_PARAMETER),
    **dict.fromkeys(("bucket_memory", "optimizer_memory", "update_memory"), _OF_PARAMETER),
    "scaled_output_bytes": _OF_UNIT,
    "bucket_parameters": Quantity(dimension="parameters", example="M parameters"),
    **dict.fromkeys(
        ("bucket_parameters_per_rank", "live_parameters"),
        Quantity(dimension="parameters", example="M parameters", allows_zero=True),
    ),
    "working_sets": Quantity(
        dimension="layers", example="layers", maximum=1000.0, allows_zero=True
    ),
    "vocabulary_multiple": Quantity(
        dimension="length", example="tokens", minimum=1, maximum=2**31, is_integer=True
    ),
    "broadcast_tensors": Quantity(
        dimension="tensors", example="tensors", maximum=1000.0, allows_zero=True
    ),
    **dict.fromkeys(
        ("cublas_workspaces", "expert_workspaces", "ddp_buckets", "whole_buckets"), _TENSORS
    ),
    **dict.fromkeys(
        ("gather_buffers", "boundary_buffers", "sharded_inputs", "copied_inputs"), _TENSORS
    ),
    **dict.fromkeys(("context_bytes", "connection_bytes"), _MEMORY),
    **dict.fromkeys(
        ("allocator_slack", "rerun_slack", "uncounted"),
        Quantity(dimension="ratio", example="1", maximum=100.0, allows_zero=True),
    ),
}
"""What each number of a stack may be; Software says what it means."""
FLAGS = tuple(one.name for one in fields(Software) if one.type == "bool")
NAMES = {
    "selective": (*MODULES, OP_LIST),
    "offload_modules": OFFLOADABLE,
    "splits": SPLITS,
    "process_groups": PROCESS_GROUPS,
    "graphs": GRAPHS,
    "gathered_ends": ENDS,
    "fp32_beside_packed": FP32_PARTS,
}
"""What each list of a stack may name."""
LEAVES = tuple(one.name for one in fields(Software) if one.name in (*QUANTITIES, *FLAGS, *NAMES))
TEXTS = ("title", "framework")
SPREADS = "spreads"
"""The section of a file that says how uncertain constants are."""
UNCERTAINTY = Quantity(dimension="ratio", example="1", minimum=1e-3, maximum=3.0)
UNSTATED_SOURCE = Provenance(
    source="code: given in Python, without a source", measured=False, kind="prior"
)


@dataclass(frozen=True)
class _FileContent:
    """Values and provenance of a file, without its base."""

    values: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Provenance] = field(default_factory=dict)


def _read_stack(name: str, chain: tuple[str, ...] = ()) -> Software:
    """The shipped stack of that name, or the one in the TOML file at that path; `chain` are the
    files that it is the base of."""
    known = leaves.shipped_names(FOLDER)
    tree = leaves.read_tree(name, known, FOLDER)
    if name not in known and Path(name).stem in known:
        raise problem(name, f"a shipped stack is called {Path(name).stem}: rename the file")
    base = leaves.base_of(name, tree, known)
    sources = leaves.citations(name, tree.pop("sources", {}))
    spreads = _spreads(name, tree.pop(SPREADS, {}), sources)
    given = _read_fields(name, tree, sources)
    given.provenance.update(spreads.provenance)
    if base:
        chain = leaves.check_chain(name, chain)
        try:
            lender = _lookup(base, chain)
        except InputError as error:
            raise problem(name, f"base: {error}") from None
        given = _inherit_fields(lender, given)
        spreads = _FileContent(dict(lender.spreads) | spreads.values)
    for key in (*LEAVES, *TEXTS):
        if key not in given.values:
            raise problem(name, f"{key}: missing; give it, or a base that has it")
    if given.values["kept_logit_bytes"] > given.values["logit_bytes"]:
        raise problem(name, "kept_logit_bytes: more than logit_bytes, of which they are a part")
    return Software(
        name=name,
        base=base,
        **given.values,
        spreads=tuple(sorted(spreads.values.items())),
        provenance=given.provenance,
    )


def _spreads(where: str, tree: Any, sources: Mapping[str, str]) -> _FileContent:
    """How uncertain constants are, by name; provenance by 'spreads.NAME'."""
    known, out = (*UNCERTAIN, OF_STEPS, OF_PEAKS), _FileContent()
    if not isinstance(tree, dict):
        raise problem(where, f"{SPREADS}: must be a section, [{SPREADS}]")
    for name, node in tree.items():
        key = f"{SPREADS}.{name}"
        if name not in known:
            raise problem(where, f"{key}: unknown constant{did_you_mean(name, known)}")
        parts = {"value": "...", "unit": f'"{UNCERTAINTY.example}"'}
        out.provenance[key] = leaves.read_provenance(where, key, node, sources, STACK, parts)
        out.values[name] = leaves.read_number(where, key, node, UNCERTAINTY)
    return out


def _read_fields(where: str, tree: Mapping[str, Any], sources: Mapping[str, str]) -> _FileContent:
    known, out = (*LEAVES, *TEXTS), _FileContent()
    for key in tree:
        if key not in known:
            near = did_you_mean(key, (*known, "base", SPREADS, "sources"))
            raise problem(where, f"{key}: unknown field{near}")
    for key, node in tree.items():
        if key in TEXTS:
            out.values[key] = leaves.read_name(where, key, node) if node != "" else ""
        else:
            origin = leaves.read_provenance(where, key, node, sources, STACK, _example(key))
            out.values[key] = _value(where, key, node)
            if key in QUANTITIES:
                origin = leaves.with_neutral(where, key, node, QUANTITIES[key], origin)
            out.provenance[key] = origin
    return out


def _example(key: str) -> dict[str, str]:
    """The parts of a leaf that are not about where it comes from."""
    if key in QUANTITIES:
        return {"value": "...", "unit": f'"{QUANTITIES[key].example}"'}
    return {"value": "true" if key in FLAGS else f'["{NAMES[key][0]}"]'}


def _value(where: str, key: str, node: Mapping[str, Any]) -> Any:
    if key in QUANTITIES:
        wanted = QUANTITIES[key]
        number = leaves.read_number(where, key, node, wanted)
        return int(number) if wanted.is_integer else number
    value = node["value"]
    if key in FLAGS:
        if not isinstance(value, bool):
            raise problem(where, f"{key}.value: {describe(value)} must be true or false")
        return value
    if not isinstance(value, list):
        raise problem(where, f"{key}.value: {describe(value)} must be a list of names")
    for name in value:
        if name not in NAMES[key]:
            near = did_you_mean(str(name), NAMES[key])
            raise problem(where, f"{key}.value: {describe(name)} is no module{near}")
    return tuple(dict.fromkeys(value))


def _inherit_fields(base: Software, given: _FileContent) -> _FileContent:
    """The content of a file, and of its base where the file gives nothing."""
    values = {key: getattr(base, key) for key in (*LEAVES, "framework")}
    values["title"] = f"as {base.label}"
    origins = {
        key: inherit(base.provenance.get(key, UNSTATED_SOURCE), base.label) for key in LEAVES
    }
    return _FileContent(values | given.values, origins | given.provenance)


SOFTWARE: Registry[Software] = Registry(
    "software profile",
    "plan3d.software",
    {name: name for name in leaves.shipped_names(FOLDER)},
    _read_stack,
)
"""Stacks by name; the shipped ones are read on demand."""


def software_profile(name_or_path: str | Path) -> Software:
    """A stack by name, or of the TOML file at that path; InputError where there is none.

    >>> software_profile("megatron-core")
    Software('megatron-core')
    """
    return _lookup(str(name_or_path), ())


def _lookup(name: str, chain: tuple[str, ...]) -> Software:
    if leaves.is_path(name):
        return _read_stack(name, chain)
    if SOFTWARE.is_registered(name):
        return SOFTWARE[name]
    stack, at, release = name.partition("@")
    if at and SOFTWARE.is_registered(stack):
        return replace(SOFTWARE[stack], name=name, **fields_of_release(stack, release))
    near = did_you_mean(name, SOFTWARE)
    raise InputError(
        f"unknown software profile {describe(name)}, and not the path of a .toml file{near}"
    )


def neutral(stack: Software) -> Software:
    """The stack without what published runs taught: such numbers have their neutral value, or else
    the value of the base. InputError where there is neither."""
    learned = {key: one for key, one in stack.provenance.items() if one.origins}
    if not learned:
        return stack
    base = neutral(software_profile(stack.base)) if stack.base else None
    values: dict[str, Any] = {}
    provenance = dict(stack.provenance)
    for key, one in learned.items():
        if one.neutral is not None:
            values[key], provenance[key] = one.neutral, one.without_origins()
        elif base:
            values[key], provenance[key] = getattr(base, key), base.provenance[key]
        else:
            raise problem(stack.name, f"{key}: neither a base nor a neutral value beside origins")
    return replace(stack, **values, provenance=provenance)


TRAINER, ENGINE = "hf-trainer", "hf-deepspeed"
"""Stacks of Hugging Face's Trainer: with PyTorch's sharding, and with DeepSpeed's."""


@cache
def _engine_of_loops() -> Software:
    """DeepSpeed's stack in the place of the Trainer's: an object of its own, which tells it from
    the one that is asked for by name."""
    return replace(SOFTWARE[ENGINE])


@cache
def _trainer_of_shards() -> Software:
    """The Trainer's stack where nothing is fp32 beside packed weights: FSDP wants one format."""
    return replace(SOFTWARE[TRAINER], fp32_beside_packed=())


def sharding_stack(
    software: Software, trains_loops: bool = False, packs_shards: bool = False
) -> Software:
    """The stack of a task: all weights of experts that run one after another are trained under
    DeepSpeed, whose ZeRO 3 gathers each; packed ones that several GPUs may share are not prepared;
    the Trainer's own where neither is so, or no longer."""
    if software.name not in (TRAINER, ENGINE):
        return software
    own = (SOFTWARE[TRAINER], _engine_of_loops(), _trainer_of_shards())
    if not any(software is one for one in own):
        return software
    if trains_loops:
        return own[1]
    return own[2] if packs_shards else own[0]


def register_software(stack: Software) -> None:
    """Add a stack, which is then known by its name; ValueError where that is taken."""
    SOFTWARE.register(stack.name, stack)
