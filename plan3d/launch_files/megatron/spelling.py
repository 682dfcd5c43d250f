"""Numbers of a plan as flags of Megatron-LM: formats, stage layouts, windows and offloading.

Source: Megatron-LM, megatron/training/arguments.py (validate_args), megatron/core 0.16
(transformer_config.py, transformer_block.py, pipeline_parallel_layer_layout.py) and the guide of
Megatron-FSDP.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

from plan3d.simulator.hardware.precision import Precision
from plan3d.simulator.plan.field_values import ContextComm, Dispatch, Recompute
from plan3d.simulator.rules.training_rules import recomputed_modules
from plan3d.simulator.task import Task

from .. import shape
from ..tables import Numbers

CP_COMM_TYPES: dict[int, str] = {
    ContextComm.P2P: "p2p",
    ContextComm.ALL_GATHER: "all_gather",
    ContextComm.A2A: "a2a",
}
"""--cp-comm-type by cp_comm."""


class FormatFlags(NamedTuple):
    """The flags of one number format."""

    bf16: bool = False
    fp16: bool = False
    fp8_recipe: str = ""
    """--fp8-recipe; '' without --fp8-format."""
    fp4: bool = False


FORMATS = {
    Precision.FP32: FormatFlags(),
    Precision.FP16: FormatFlags(fp16=True),
    Precision.BF16: FormatFlags(bf16=True),
    Precision.FP8_DELAYED: FormatFlags(bf16=True, fp8_recipe="delayed"),
    Precision.FP8: FormatFlags(bf16=True, fp8_recipe="tensorwise"),
    Precision.FP8_BLOCKWISE: FormatFlags(bf16=True, fp8_recipe="blockwise"),
    Precision.MXFP8: FormatFlags(bf16=True, fp8_recipe="mxfp8"),
    Precision.NVFP4: FormatFlags(bf16=True, fp4=True),
}
"""Flags by precision."""
FP8_RECIPES = {flags.fp8_recipe: code for code, flags in FORMATS.items() if flags.fp8_recipe}
"""precision by --fp8-recipe; the first is its default."""


def to_flags(n: Numbers, task: Task) -> Numbers:
    """The numbers with those of the flags."""
    _model_flags(n)
    n.cp_comm_types = (CP_COMM_TYPES[n.cp_comm],)
    n.layout = layout_text(n) if _needs_layout(n) else ""
    n.chunks_a_rank = 1 if n.layout else n.virtual_stages
    n.blocking_sends = n.virtual_stages > 1 and not n.overlap_p2p
    n.fsdp, n.sharding_strategy = n.zero > 1, n.zero
    # Weights of 8 bits need the one that has wide ones, on a single data rank too.
    n.distributed_optimizer = n.zero > 0 or bool(n.fp8_params)
    precision = Precision(n.precision)
    n.bf16, n.fp16, recipe, n.fp4 = FORMATS[precision]
    n.fp8, n.fp8_recipe = bool(recipe), FP8_RECIPES[recipe or "delayed"]
    n.bf16_ends = bool(n.bf16_first_layers or n.bf16_last_layers)
    n.attention_dropout = n.hidden_dropout = n.dropout
    n.recompute_modules = recomputed_modules(task) if n.recompute == Recompute.SELECTIVE else ()
    n.recompute_method = "uniform" if n.recompute == Recompute.FULL else ""
    n.recompute_num_layers = int(n.recompute == Recompute.FULL)
    n.permute_fusion = bool(n.experts) and task.software.fused_permutation
    n.expert_modules = bool(task.software.expert_launches)
    several_nodes = task.cluster.fast_domain.gpus > task.cluster.gpus_per_node
    n.hybrid_exchange = n.expert_dispatch == Dispatch.HIERARCHICAL and several_nodes
    _offload_flags(n, task)
    return n


def _model_flags(n: Numbers) -> None:
    """Attention, positions, windows and the layers with experts."""
    n.multi_latent, n.grouped_queries = bool(n.kv_rank), n.kv_heads < n.heads
    n.qk_head_dim, n.v_head_dim, n.kv_channels = n.head_dim - n.rope_dim, n.value_dim, n.head_dim
    n.query_groups, n.absolute_positions = n.kv_heads, bool(n.learned_positions)
    n.rotary = False
    n.layer_freq = "1" if all(n.sparse) else layer_pattern(n.sparse)
    n.window = max(n.windows)
    n.windowed = [window > 0 for window in (*n.windows, *n.windows[-1:] * n.mtp_layers)]
    n.full_attention_period = full_attention_period(n.windowed)
    n.mixes_windows = n.window > 0 and not all(n.windowed)
    n.window_size = f"{n.window - 1},0" if n.window else ""
    pattern = n.full_attention_period or layer_pattern(n.windowed)
    n.window_freq = str(pattern) if n.mixes_windows else ""


def _offload_flags(n: Numbers, task: Task) -> None:
    """What is on the host."""
    n.offloads_optimizer = n.offload_optimizer > 0
    n.overlapped_copies = n.host_optimizer_is_aware = True
    n.offloaded_fraction = f"{n.offload_optimizer / 100:g}"
    n.offload_modules = offloaded_modules(task) if n.offload_activations else ()
    n.offloads_modules = bool(n.offload_modules)
    layers = 0 if n.offloads_modules else offloaded_layers(n.offload_activations, n.layers)
    n.offloaded_layers = int(layers)


def default_ffn(n: Numbers) -> int:
    """The default of --ffn-hidden-size."""
    return int(n.hidden * 8 // 3 // 64 * 64 if n.gated else 4 * n.hidden)


def default_head_dim(n: Numbers) -> int:
    """The default of --kv-channels; 0 where the heads do not divide the hidden size."""
    return 0 if n.hidden % n.heads else int(n.hidden // n.heads)


def has_hybrid_exchange(n: Numbers) -> bool:
    """Whether experts are exchanged on NVLink over several nodes; false where the machine is
    unknown."""
    return bool(getattr(n, "hybrid_exchange", False))


def has_grouped_gemms(n: Numbers) -> bool:
    """Whether the GEMMs of the experts are grouped: in bf16, unless experts are modules."""
    return FORMATS[Precision(n.precision)].bf16 and not getattr(n, "expert_modules", False)


def has_mxfp8_gather(n: Numbers) -> bool:
    """Whether weights of MXFP8 are gathered through the buffer of gradients, as they must be."""
    return bool(n.fp8_params and n.precision == Precision.MXFP8 and not n.fsdp)


def has_buckets(n: Numbers) -> bool:
    """Whether gradients are reduced bucket by bucket."""
    return bool(n.overlap_grad_reduce) and (n.sharding_strategy if n.fsdp else 0) < 3


def is_sharded(n: Numbers) -> bool:
    """Whether anything is sharded over data ranks."""
    return bool(n.sharding_strategy if n.fsdp else n.distributed_optimizer)


def offloaded_layers(percent: Any, layers: int) -> Any:
    """The fewest of all layers that are no smaller share."""
    return -(-percent * layers // 100)


def percent_of(offloaded: Any, layers: int) -> Any:
    """Percent of the activations that some of all layers keep, rounded down."""
    return 100 * offloaded // layers


def full_attention_period(windowed: Sequence[bool]) -> int:
    """N where just every Nth layer has no window; 0 for any other pattern."""
    n = windowed.index(False) + 1 if False in windowed else 0
    same = n > 1 and all(has == (i % n != 0) for i, has in enumerate(windowed, 1))
    return n if same else 0


def layer_pattern(marked: Sequence[bool]) -> str:
    """'([0]*3+[1]*58)': 1 for a layer of experts, or with a window; a pattern that repeats is
    multiplied."""
    n = len(marked)
    period = next(
        p
        for p in range(1, n + 1)
        if n % p == 0 and all(marked[i] == marked[i % p] for i in range(n))
    )
    runs = [(int(kind), len(list(run))) for kind, run in groupby(marked[:period])]
    inner = "+".join(f"[{kind}]*{length}" for kind, length in runs)
    return f"({inner})" if period == n else f"({inner})*{n // period}"


def _needs_layout(n: Numbers) -> bool:
    """Whether the stages are neither equal nor described by the layers of their ends."""
    return n.pp > 1 and bool(n.mtp_stage or (len(set(n.chunks)) > 1 and not ends_are_flags(n)))


def ends_are_flags(n: Numbers) -> bool:
    """Whether only the first or last rank differs: each holds whole chunks, and those between them
    equally many."""
    ends, v = (n.first_stage_layers, n.last_stage_layers), n.virtual_stages
    middle_ranks = n.pp - sum(end > 0 for end in ends)
    whole_chunks = all(end % v == 0 for end in ends)
    even_middle = (n.layers - sum(ends)) % (middle_ranks * v or 1) == 0
    return any(ends) and whole_chunks and even_middle


def layout_text(n: Numbers) -> str:
    """'Et*7|(t*8|)*6t*7L': the layers of every chunk in model order."""
    stages = ["t" * layers if layers < 2 else f"t*{layers}" for layers in n.chunks]
    stages[0] = f"E{stages[0]}"
    if n.mtp_layers:
        stages[n.mtp_stage - 1] += "m"
    stages[-1] += "L"
    out = []
    for stage, run in groupby(stages[:-1]):
        times = len(list(run))
        out.append(f"{stage}|" if times == 1 else f"({stage}|)*{times}")
    return "".join(out) + stages[-1]


def offloaded_modules(task: Task) -> tuple[str, ...]:
    """The modules of the software profile that the model has, whose inputs are on the host."""
    has_experts = shape.EXPERTS in shape.features(task.model)
    expert_modules = ("expert_fc1", "moe_act")
    modules = task.software.offload_modules
    return tuple(module for module in modules if has_experts or module not in expert_modules)
