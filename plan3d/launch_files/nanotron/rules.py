"""What nanotron refuses.

Source: nanotron main of 2026-04 (2411b02): config/, parallel/, optim/.
"""

from __future__ import annotations

from plan3d.simulator.hardware.precision import Optimizer
from plan3d.simulator.plan.codes import Recompute
from plan3d.simulator.rules.rule import Rule

from .. import shape
from ..exporter import expresses, only, said, whole_key_heads
from .keys import ENGINES, FORMATS, KERNELS

EXPRESSES = (
    shape.GROUPED,
    shape.RMS_NORM,
    shape.GATED_MLP,
    shape.ROTARY,
    shape.TIED,
    shape.UNTIED,
)
"""Features of LlamaConfig."""
_NO_EXPERTS = "plans of nanotron are written for dense models"

RULES = (
    expresses("nanotron-model", "nanotron's LlamaConfig", EXPRESSES),
    whole_key_heads("nanotron-key-heads", "nanotron"),
    only("nanotron-schedule", "schedule", ENGINES.values(), "nanotron has 1f1b and afab (gpipe)"),
    only("nanotron-chunks", "virtual_stages", (1,), "its engines run one chunk a rank"),
    Rule(
        "nanotron-stages",
        ("first_stage_layers", "last_stage_layers"),
        lambda p, t: (
            (p.first_stage_layers == 0)
            & (p.last_stage_layers == 0)
            & (len(p.layers_per_stage) == 0)
        ),
        lambda p, t: (
            "nanotron cuts stages by the parameters of its blocks, which no file changes; nearest: "
            "neither layers_per_stage nor first_stage_layers nor last_stage_layers"
        ),
    ),
    only("nanotron-context", "cp_comm", KERNELS.values(), "nanotron has rings and gathers"),
    only("nanotron-sharding", "zero", (0, 1), "nanotron has ZeRO 0 and 1"),
    only("nanotron-hybrid", "shard", (0,), "its ZeRO 1 shards over all data ranks"),
    only("nanotron-buckets", "bucket_parameters", (0,), "its buckets are of megabytes"),
    only("nanotron-precision", "precision", FORMATS, "nanotron has bfloat16 and float32"),
    only("nanotron-optimizer", "optimizer", (Optimizer.ADAM,), "its SGD has no momentum"),
    only(
        "nanotron-recompute",
        "recompute",
        (Recompute.FULL, Recompute.NONE),
        "recompute_layer is of whole layers",
    ),
    only("nanotron-expert-axes", "ep", (1,), _NO_EXPERTS),
    only("nanotron-expert-tensor", "etp", (1,), _NO_EXPERTS),
    only("nanotron-offloaded-optimizer", "offload_optimizer", (0,), "its optimizer stays on GPUs"),
    only(
        "nanotron-offloaded-activations",
        "offload_activations",
        (0,),
        "it keeps activations on GPUs",
    ),
    only(
        "nanotron-gather-overlap",
        "overlap_param_gather",
        (0,),
        "its ZeRO 1 gathers weights after the step",
    ),
    Rule(
        "nanotron-gradient-overlap",
        ("overlap_grad_reduce", "dp", "cp"),
        lambda p, t: p.overlap_grad_reduce == (p.dp * p.cp > 1),
        lambda p, t: (
            f"{said(p, 'overlap_grad_reduce')}: its DDP always overlaps; nearest: "
            "overlap_grad_reduce=1"
        ),
    ),
)
"""Rules of nanotron."""
