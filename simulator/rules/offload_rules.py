"""Rules of offloading: optimizer, weights or activations on the host.

Whether they fit there is not a rule but a property of costs, as the memory of a GPU is.
Source: argument checks of Megatron-Core 0.16 and DeepSpeed 0.19 (runtime/zero/config.py,
offload_config.py); what has no cost model is refused.
"""

from __future__ import annotations

from typing import Any

from ..pipeline.schedules import defers, model_copies
from ..plan.field_values import (
    Nvme,
    Recompute,
    swaps_optimizer,
    swaps_parameters,
)
from ..plan.fields import spell
from ..plan.plan import Plan
from ..plan.synchronisation import all_reduces
from ..task import Task
from .rule import Rule


def _needs_host(field: str) -> Rule:
    return Rule(
        f"{field.replace('_', '-')}-needs-host",
        (field,),
        lambda p, t: (getattr(p, field) == 0) | (t.cluster.host is not None),
        lambda p, t: (
            f"{field}={getattr(p, field)}: {t.cluster.name} does not say what its host has "
            "([host] link_bandwidth, link_gpus, memory_bandwidth, memory); nearest: 0"
        ),
    )


def _updates_once(p: Any, task: Task) -> Any:
    """Whether no two ranks would update the same parameters."""
    alone = p.dp * p.cp * model_copies(p.schedule) == 1
    return (p.offload_optimizer == 0) | (p.zero > 0) | alone


def _all_reduces_every_step(p: Any, task: Task) -> Any:
    plain = all_reduces(p.sync) & (p.sync_period == 1) & (p.compression == 0)
    return (p.offload_optimizer == 0) | plain


def _sync_message(p: Plan, task: Task) -> str:
    ways = [f"sync={spell('sync', p.sync)}", f"sync_period={p.sync_period}"]
    ways.append(f"compression={spell('compression', p.compression)}")
    return (
        f"offload_optimizer={p.offload_optimizer} with {' '.join(ways)} is not modelled: it needs "
        "gradients that are all-reduced every step in full"
    )


def _offloads_in_full(p: Any, task: Task) -> Any:
    """Whether all that is to lie on drives leaves the GPUs, in shards of ZeRO 3."""
    optimizer = (swaps_optimizer(p.nvme) == 0) | (p.offload_optimizer == 100)
    weights = (swaps_parameters(p.nvme) == 0) | (p.offload_parameters == 100)
    return (p.nvme == Nvme.NONE) | (optimizer & weights & (p.zero == 3))


def _nvme_message(p: Plan, task: Task) -> str:
    needed = [f"{what}=100" for what, swaps in _SWAPPED_FIELDS.items() if swaps(p.nvme)]
    return f"nvme={spell('nvme', p.nvme)} needs {' '.join([*needed, 'zero=3'])}"


_SWAPPED_FIELDS = {"offload_optimizer": swaps_optimizer, "offload_parameters": swaps_parameters}

OFFLOAD_RULES = (
    _needs_host("offload_optimizer"),
    _needs_host("offload_parameters"),
    _needs_host("offload_activations"),
    Rule(
        "offload-parameters-needs-zero-3",
        ("offload_parameters", "zero"),
        lambda p, t: (p.offload_parameters == 0) | (p.zero == 3),
        lambda p, t: (
            f"offload_parameters={p.offload_parameters} needs zero=3: weights that are not "
            "gathered layer by layer stay on the GPU"
        ),
    ),
    Rule(
        "offload-parameters-needs-stack",
        ("offload_parameters",),
        lambda p, t: (p.offload_parameters == 0) | t.software.offloads_parameters,
        lambda p, t: (
            f"offload_parameters={p.offload_parameters}: {t.software.name} keeps weights on its "
            "GPUs; --software deepspeed, torchtitan or hf-trainer does not; nearest: 0"
        ),
    ),
    Rule(
        "nvme-needs-stack",
        ("nvme",),
        lambda p, t: (p.nvme == Nvme.NONE) | t.software.swaps_to_nvme,
        lambda p, t: (
            f"nvme={spell('nvme', p.nvme)}: {t.software.name} does not use NVMe drives; "
            "--software deepspeed does; nearest: none"
        ),
    ),
    Rule(
        "nvme-needs-drives",
        ("nvme",),
        lambda p, t: (p.nvme == Nvme.NONE) | bool(t.cluster.host and t.cluster.host.has_drives),
        lambda p, t: (
            f"nvme={spell('nvme', p.nvme)}: {t.cluster.name} does not say what drives a node has "
            "([host] nvme, nvme_read, nvme_write); nearest: none"
        ),
    ),
    Rule(
        "nvme-needs-offload",
        ("nvme", "offload_optimizer", "offload_parameters", "zero"),
        _offloads_in_full,
        _nvme_message,
    ),
    Rule(
        "offload-optimizer-shards",
        ("offload_optimizer", "zero", "dp", "cp", "schedule"),
        _updates_once,
        lambda p, t: (
            f"offload_optimizer={p.offload_optimizer} needs zero >= 1: {p.dp * p.cp} data ranks "
            "would update the same parameters on their hosts"
        ),
    ),
    Rule(
        "offload-optimizer-all-reduces",
        ("offload_optimizer", "sync", "sync_period", "compression"),
        _all_reduces_every_step,
        _sync_message,
    ),
    Rule(
        "offload-modules-of-layers",
        ("offload_activations", "recompute"),
        lambda p, t: (
            (p.offload_activations == 0)
            | (not t.software.offload_modules)
            | ((p.recompute != Recompute.FULL) & bool(t.model.kinds))
        ),
        lambda p, t: (
            f"offload_activations={p.offload_activations} of {t.software.name} is of inputs of "
            f"{', '.join(t.software.offload_modules)} of transformer layers, which full recompute "
            "does not keep; nearest: recompute=selective, or offload_activations=0"
        ),
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
