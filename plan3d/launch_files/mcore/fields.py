"""Numbers of a plan from arguments of Megatron-Core, as other tools spell them (spellings.py).

Source: megatron/core 0.16, model_parallel_config.py and transformer_config.py; ms-swift 4,
swift/megatron/arguments/megatron_args.py (defaults); NeMo 1 (r2.0), examples/nlp/language_modeling/
conf/megatron_gpt_config.yaml and nemo/collections/nlp/parts/nlp_overrides.py.
"""

from __future__ import annotations

from typing import Any

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.precision import Optimizer, Precision
from plan3d.simulator.hardware.software import DEFAULT_MODULES, MODULES
from plan3d.simulator.plan.field_values import ContextComm, Dispatch, Loss, Recompute
from plan3d.simulator.plan.stage_layout import mtp_stage, read_layout
from plan3d.simulator.workload.model import Model

from ..documents import Document
from ..launch_file import Launch, explicit_layers
from ..tables import TRUTHS, Numbers

FP8_RECIPES = {
    "delayed": Precision.FP8_DELAYED,
    "tensorwise": Precision.FP8,
    "blockwise": Precision.FP8_BLOCKWISE,
    "mxfp8": Precision.MXFP8,
    "nvfp4": Precision.NVFP4,
}
"""Precision by recipe; that of 4 bits as recipes of Python name it."""
LAYER_LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
"""Letters of a layout by the names of its layers (megatron/core, PipelineParallelLayerLayout)."""
CP_COMM = {
    "p2p": ContextComm.P2P,
    "all_gather": ContextComm.ALL_GATHER,
    "allgather": ContextComm.ALL_GATHER,
    "a2a": ContextComm.A2A,
}
DISPATCHERS = {
    "alltoall": Dispatch.ALLTOALL,
    "flex": Dispatch.HIERARCHICAL,
    "allgather": Dispatch.ALL_GATHER,
}
RECOMPUTE = {"full": Recompute.FULL, "selective": Recompute.SELECTIVE, "none": Recompute.NONE}


def fill_stages(n: Numbers, document: Document, launch: Launch, model: Model) -> None:
    """Add chunks, schedule and exchanges. Raises InputError where layers cannot be cut so."""
    launch.plan["overlap_ep"] = n.overlap_ep
    n.cp_comm = _choice(n.cp_comm_types, CP_COMM, "cp_comm", launch, ContextComm.P2P)
    n.expert_dispatch = _choice(
        n.dispatcher, DISPATCHERS, "expert_dispatch", launch, Dispatch.ALLTOALL
    )
    n.virtual_stages = n.chunks if n.pp > 1 else 1
    counts_ends = _count_ends(n, launch, model)
    if n.layout and n.pp > 1:
        _read_layout(n, document, launch, model)
    elif (
        not counts_ends
        and model.layers % (n.pp * n.virtual_stages)
        and not (n.first_stage_layers or n.last_stage_layers)
    ):
        raise launch.refuse(
            f"{model.layers} layers cannot be cut into {n.pp * n.virtual_stages} equal chunks"
        )
    n.overlap_p2p = int(n.virtual_stages > 1 and bool(n.overlap_p2p))
    n.schedule = "interleaved" if n.virtual_stages > 1 else "1f1b"
    n.sequence_parallel = n.sequence_parallel and n.tp > 1


def _count_ends(n: Numbers, launch: Launch, model: Model) -> bool:
    """Take layers from the ends where the embedding or the loss counts as a layer
    (get_num_layers_to_build); whether one does. Raises InputError where chunks are unequal."""
    ends, chunks = (int(n.counts_embedding), int(n.counts_loss)), n.pp * n.virtual_stages
    if n.pp == 1 or not any(ends) or n.layout:
        return False
    each, rest = divmod(model.layers + sum(ends), chunks)
    if rest:
        raise launch.refuse(
            f"{model.layers} layers, embedding and loss cannot be cut into {chunks} equal chunks"
        )
    if n.virtual_stages > 1:
        layers = [each - ends[0], *[each] * (chunks - 2), each - ends[1]]
        launch.plan |= explicit_layers(layers, n.pp, n.virtual_stages)
    else:
        n.first_stage_layers, n.last_stage_layers = ends[0] and each - 1, ends[1] and each - 1
    return True


def _choice(value: Any, codes: dict[str, Any], field: str, launch: Launch, default: int) -> int:
    """The code of a word, or of a list whose words are the same; another word is noted as
    unmodelled."""
    words = value if isinstance(value, list) and value else [value]
    code = codes.get(str(words[0]).lower()) if len(set(map(str, words))) == 1 else None
    if code is None:
        known = ", ".join(codes)
        launch.unmodelled[field] = f"{str(value)[:40]} is not modelled (modelled: {known})"
    return int(default if code is None else code)


def _read_layout(n: Numbers, document: Document, launch: Launch, model: Model) -> None:
    """Chunks of an explicit layout."""
    if isinstance(n.layout, list):
        stages = [one if isinstance(one, list) else [one] for one in n.layout]
        words = [[LAYER_LETTERS.get(str(word), "?") for word in stage] for stage in stages]
        n.layout = "|".join(map("".join, words))
    try:
        chunks = read_layout(str(n.layout))
    except InputError as error:
        raise launch.refuse(f"pipeline_model_parallel_layout {error}") from None
    if len(chunks) % n.pp or sum(chunks) != model.layers:
        raise launch.refuse(
            f"pipeline_model_parallel_layout has {len(chunks)} stages with {sum(chunks)} layers; a "
            f"multiple of {n.pp} stages and {model.layers} layers are needed"
        )
    launch.plan |= explicit_layers(chunks, n.pp, len(chunks) // n.pp)
    n.virtual_stages, n.mtp_stage = len(chunks) // n.pp, mtp_stage(str(n.layout))


def fill_recompute(n: Numbers, launch: Launch, model: Model) -> None:
    """Add the recompute; what no plan can have is noted as unmodelled."""
    word = str(n.granularity or "none").lower()
    if word not in RECOMPUTE:
        launch.unmodelled["recompute"] = f"recompute {word[:40]} is not modelled"
    n.recompute = RECOMPUTE.get(word, Recompute.NONE)
    method, count = str(n.recompute_method or "uniform").lower(), n.recompute_layers
    largest = -(-model.layers // (n.pp * n.virtual_stages))
    if n.recompute == Recompute.SELECTIVE:
        modules = tuple(map(str, n.modules)) if isinstance(n.modules, list) else DEFAULT_MODULES
        unknown = [module for module in modules if module not in MODULES]
        if unknown:
            launch.unmodelled["recompute"] = f"recompute of {' '.join(unknown)[:60]}, not modelled"
        launch.software["selective"] = tuple(module for module in modules if module in MODULES)
    if n.recompute == Recompute.FULL and method == "block" and count == 0:
        n.recompute = Recompute.NONE
    elif n.recompute == Recompute.FULL and (
        (method == "block" and count is not None and count < largest)
        or (method == "uniform" and (count or 1) > 1)
    ):
        launch.unmodelled["recompute"] = (
            f"{method} recompute of {count} layers is not modelled (modelled: every layer)"
        )
    n.recompute = int(n.recompute)


def fill_sharding(n: Numbers) -> None:
    """Add ZeRO 1 of the distributed optimizer and its overlaps."""
    n.zero = int(bool(n.distributed))
    n.overlap_grad_reduce = bool(n.overlap_grad_reduce)
    n.overlap_param_gather = bool(n.overlap_param_gather and n.zero and n.overlap_grad_reduce)


_OFF = ("none", "null", "off")
_HALVES = ("bf16", "fp16")
"""Words for no format of eight bits."""


def scaled_precision(n: Numbers, half: Precision, launch: Launch) -> int:
    """The recipe of fp8 where its format is stated, else the 16-bit format."""
    if not is_on(n.fp8_format) or str(n.fp8_format).lower() in _HALVES:
        n.fp8_params = False
        return int(half)
    recipe = str(n.fp8_recipe).lower()
    if recipe not in FP8_RECIPES:
        launch.unmodelled["precision"] = f"fp8 by {recipe[:40]} is not modelled"
    return int(FP8_RECIPES.get(recipe, Precision.FP8_DELAYED))


def is_on(value: Any) -> bool:
    """Whether a value is stated and not false."""
    word = str(value).lower()
    return value not in (None, False, "", 0) and word not in _OFF and TRUTHS.get(word, True)


def optimizer_of(name: Any, launch: Launch) -> int:
    """The optimizer by a name that holds its family's."""
    word = str(name).lower()
    families = {"adam": Optimizer.ADAM, "sgd": Optimizer.SGD, "muon": Optimizer.MUON}
    families |= {"mcore_distributed_optim": Optimizer.ADAM}
    code = next((code for family, code in families.items() if family in word), None)
    if code is None:
        launch.unmodelled["optimizer"] = f"its optimizer is {word[:40]}, which is not modelled"
    return int(code or Optimizer.ADAM)


def fused_loss(fuses: Any) -> int:
    """The loss by cross_entropy_loss_fusion."""
    return int(Loss.FUSED if is_on(fuses) else Loss.USUAL)
