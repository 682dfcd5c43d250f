"""How Megatron-LM spells what a plan says in one field or in none.

Source: Megatron-LM, megatron/training/arguments.py (validate_args), megatron/core 0.16
(transformer_config.py, transformer_block.py, pipeline_parallel_layer_layout.py) and the guide of
Megatron-FSDP.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from plan3d.simulator.hardware.precision import Precision
from plan3d.simulator.plan.codes import ContextComm, Dispatch, Recompute
from plan3d.simulator.rules.recompute_rules import recomputed_modules
from plan3d.simulator.task import Task

from .. import shape
from ..tables import Numbers

EXCHANGES: dict[int, str] = {
    ContextComm.P2P: "p2p",
    ContextComm.ALL_GATHER: "all_gather",
    ContextComm.A2A: "a2a",
}
"""--cp-comm-type by cp_comm."""


FP8_RECIPES = {
    "delayed": Precision.FP8_DELAYED,
    "tensorwise": Precision.FP8,
    "blockwise": Precision.FP8_BLOCKWISE,
    "mxfp8": Precision.MXFP8,
}
"""precision by --fp8-recipe; the first is its default."""


def to_flags(n: Numbers, task: Task) -> Numbers:
    """The numbers with those of the flags."""
    n.latent, n.grouped = n.kv_rank > 0, n.kv_heads < n.heads
    n.plain_dim, n.latent_value_dim, n.channels = n.head_dim - n.rope_dim, n.value_dim, n.head_dim
    n.groups_of_queries, n.learned = n.kv_heads, n.learned_positions > 0
    n.rotary = False
    n.layer_freq = "1" if all(n.sparse) else layer_pattern(n.sparse)
    n.window = max(n.windows)
    n.windowed = [window > 0 for window in (*n.windows, *n.windows[-1:] * n.mtp_layers)]
    n.full_every = full_every(n.windowed)
    n.mixes_windows = n.window > 0 and not all(n.windowed)
    n.window_size = f"{n.window - 1},0" if n.window else ""
    n.window_freq = str(n.full_every or layer_pattern(n.windowed)) if n.mixes_windows else ""
    n.exchanges = (EXCHANGES[n.cp_comm],)
    n.layout = layout_text(n) if _needs_layout(n) else ""
    n.chunks_a_rank = 1 if n.layout else n.virtual_stages
    n.waits_for_sends = n.virtual_stages > 1 and not n.overlap_p2p
    n.fsdp, n.distributed, n.strategy = n.zero > 1, n.zero > 0, n.zero
    n.fp16, n.fp8 = n.precision == Precision.FP16, n.precision in FP8_RECIPES.values()
    n.fp8_recipe = n.precision if n.fp8 else Precision.FP8_DELAYED
    n.fp4 = n.precision == Precision.NVFP4
    n.bf16 = n.precision == Precision.BF16 or n.fp8 or n.fp4
    n.wide_ends = bool(n.bf16_first_layers or n.bf16_last_layers)
    n.attention_dropout = n.hidden_dropout = n.dropout
    n.modules = recomputed_modules(task) if n.recompute == Recompute.SELECTIVE else ()
    n.method = "uniform" if n.recompute == Recompute.FULL else ""
    n.recomputed_layers = int(n.recompute == Recompute.FULL)
    n.offloads, n.copies_overlap, n.precision_aware = n.offload_optimizer > 0, True, True
    n.offloaded_fraction = f"{n.offload_optimizer / 100:g}"
    n.offload_modules = offloaded_modules(task) if n.offload_activations else ()
    n.offloads_modules = bool(n.offload_modules)
    layers = 0 if n.offloads_modules else offloaded_layers(n.offload_activations, n.layers)
    n.offloaded_layers = int(layers)
    n.permute_fusion = bool(n.experts) and task.software.fused_permutation
    across = task.cluster.fast.gpus > task.cluster.gpus_per_node
    n.hybrid_exchange = n.expert_dispatch == Dispatch.HIERARCHICAL and across
    return n


def usual_width(n: Numbers) -> int:
    """Width of the MLP unless a script says otherwise."""
    return int(n.hidden * 8 // 3 // 64 * 64 if n.gated else 4 * n.hidden)


def usual_channels(n: Numbers) -> int:
    """Width of a head unless a script says otherwise; 0 where there is none."""
    return 0 if n.hidden % n.heads else int(n.hidden // n.heads)


def crosses_nodes(n: Numbers) -> bool:
    """Whether experts are exchanged on NVLink over several nodes, as far as the machine is
    known."""
    return bool(getattr(n, "hybrid_exchange", False))


def groups_gemms(n: Numbers) -> bool:
    """Whether the experts' products are one kernel."""
    return n.precision in (Precision.BF16, Precision.NVFP4, *FP8_RECIPES.values())


def gathers_mxfp8(n: Numbers) -> bool:
    """Whether weights of MXFP8 are gathered through the buffer of gradients, as they must be."""
    return bool(n.fp8_params and n.precision == Precision.MXFP8 and not n.fsdp)


def cuts_buckets(n: Numbers) -> bool:
    """Whether gradients are reduced bucket by bucket."""
    return bool(n.overlap_grad_reduce) and (n.strategy if n.fsdp else 0) < 3


def shards(n: Numbers) -> bool:
    """Whether anything is sharded over data ranks."""
    return bool(n.strategy if n.fsdp else n.distributed)


def offloaded_layers(percent: Any, layers: int) -> Any:
    """The fewest of all layers that are no smaller share."""
    return -(-percent * layers // 100)


def percent_of(offloaded: Any, layers: int) -> Any:
    """Percent of the activations that some of all layers keep, rounded down."""
    return 100 * offloaded // layers


def full_every(windowed: Sequence[bool]) -> int:
    """N where just every Nth layer has no window; 0 where no N says it."""
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
    """Whether neither equal stages nor other ends say it."""
    return n.pp > 1 and bool(n.mtp_stage or (len(set(n.chunks)) > 1 and not ends_are_flags(n)))


def ends_are_flags(n: Numbers) -> bool:
    """Whether only the first or last rank differs: each holds whole chunks, and those between them
    equally many."""
    ends, v = (n.first_stage_layers, n.last_stage_layers), n.virtual_stages
    free = n.pp - sum(end > 0 for end in ends)
    whole = all(end % v == 0 for end in ends)
    return any(ends) and whole and (n.layers - sum(ends)) % (free * v or 1) == 0


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
    """The modules of the software profile whose inputs the model has, those that wait on the
    host."""
    needs, has = dict.fromkeys(("expert_fc1", "moe_act"), shape.EXPERTS), shape.features(task.model)
    return tuple(m for m in task.software.offload_modules if needs.get(m, has[0]) in has)
