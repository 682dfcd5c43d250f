"""Rules of an optimizer or of activations on the host, with messages.

Whether they fit there is no rule but a property of costs, as memory of a GPU is.
Source: argument checks of Megatron-Core 0.16 and DeepSpeed; what has no cost model is refused.
"""

from __future__ import annotations

from typing import Any

from ..pipeline.schedules import defers, model_copies
from ..plan.codes import all_reduces
from ..plan.plan import Plan
from ..plan.values import spell
from ..task import Task
from .rule import Rule


def _known(field: str) -> Rule:
    return Rule(
        f"{field.replace('_', '-')}-needs-host",
        (field,),
        lambda p, t: (getattr(p, field) == 0) | (t.cluster.host is not None),
        lambda p, t: (
            f"{field}={getattr(p, field)}: {t.cluster.name} does not say what its host has "
            "([host] link_bandwidth, link_gpus, memory_bandwidth, memory); nearest: 0"
        ),
    )


def _shards(p: Any, task: Task) -> Any:
    """Whether no two ranks would update the same parameters."""
    alone = p.dp * p.cp * model_copies(p.schedule) == 1
    return (p.offload_optimizer == 0) | (p.zero > 0) | alone


def _usual_sync(p: Any, task: Task) -> Any:
    plain = all_reduces(p.sync) & (p.sync_period == 1) & (p.compression == 0)
    return (p.offload_optimizer == 0) | plain


def _sync_message(p: Plan, task: Task) -> str:
    ways = [f"sync={spell('sync', p.sync)}", f"sync_period={p.sync_period}"]
    ways.append(f"compression={spell('compression', p.compression)}")
    return (
        f"offload_optimizer={p.offload_optimizer} with {' '.join(ways)} is not modelled: it needs "
        "gradients that are all-reduced every step in full"
    )


OFFLOAD_RULES = (
    _known("offload_optimizer"),
    _known("offload_activations"),
    Rule(
        "offload-optimizer-shards",
        ("offload_optimizer", "zero", "dp", "cp", "schedule"),
        _shards,
        lambda p, t: (
            f"offload_optimizer={p.offload_optimizer} needs zero >= 1: {p.dp * p.cp} data ranks "
            "would update the same parameters on their hosts"
        ),
    ),
    Rule(
        "offload-optimizer-all-reduces",
        ("offload_optimizer", "sync", "sync_period", "compression"),
        _usual_sync,
        _sync_message,
    ),
    Rule(
        "offload-activations-schedule",
        ("offload_activations", "schedule"),
        lambda p, t: (p.offload_activations == 0) | (defers(p.schedule) == 0),
        lambda p, t: (
            f"offload_activations={p.offload_activations} is not modelled with "
            f"schedule={spell('schedule', p.schedule)}, which keeps what weight gradients need"
        ),
    ),
)
"""Rules of what a plan keeps on the host."""
