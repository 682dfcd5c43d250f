"""How does Megatron-LM keep the optimizer and activations on the host? Flags, rules, and back.

Activations are offloaded by whole layers, spread evenly over the forward pass, so a share of them
is a number of layers.
Source: Megatron-LM, core 0.16: optimizer/cpu_offloading (HybridDeviceOptimizer and its README),
transformer_config.py, training/arguments.py; NVIDIA/Megatron-LM#4910 on Megatron-FSDP.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from plan3d.simulator.hardware.precision import Optimizer
from plan3d.simulator.plan.codes import Recompute
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.rules.rule import Rule
from plan3d.simulator.task import Task

from ..exporter import said
from ..launch_file import Launch
from ..shell.flags import Flags
from .model_flags import Lines

FRACTION = "--optimizer-offload-fraction"
LAYERS = "--cpu-offloading-num-layers"
OVERLAP = "--overlap-cpu-optimizer-d2h-h2d"


def offloaded_layers(percent: Any, layers: int) -> Any:
    """The fewest of all layers that are no smaller share."""
    return -(-percent * layers // 100)


def percent_of(offloaded: Any, layers: int) -> Any:
    """Percent of the activations that some of all layers keep, rounded down."""
    return 100 * offloaded // layers


def offload_flags(task: Task, plan: Plan) -> Lines:
    """Flags of what is on the host; none where nothing is."""
    out: Lines = []
    if plan.offload_optimizer:
        out += [
            ("--optimizer-cpu-offload",),
            (FRACTION, f"{plan.offload_optimizer / 100:g}"),
            (OVERLAP,),
            ("--use-precision-aware-optimizer",),
            *([("--use-distributed-optimizer",)] if plan.zero == 0 else []),
        ]
    if plan.offload_activations:
        layers = offloaded_layers(plan.offload_activations, task.model.layers)
        out.append((LAYERS, str(layers)))
    return out


def offload_values(task: Task, plan: Plan) -> dict[str, Any]:
    """The same as overrides of Megatron-Bridge; none where nothing is on the host."""
    out: dict[str, Any] = {}
    if plan.offload_optimizer:
        out |= {
            "optimizer.optimizer_cpu_offload": True,
            "optimizer.optimizer_offload_fraction": plan.offload_optimizer / 100,
            "optimizer.overlap_cpu_optimizer_d2h_h2d": True,
            "optimizer.use_precision_aware_optimizer": True,
            "ddp.use_distributed_optimizer": True,
            "optimizer.use_distributed_optimizer": True,
        }
    if plan.offload_activations:
        out |= {
            "model.cpu_offloading": True,
            "model.cpu_offloading_num_layers": int(
                offloaded_layers(plan.offload_activations, task.model.layers)
            ),
            "model.cpu_offloading_weights": False,
        }
    return out


def _whole_layers(p: Any, task: Task) -> Any:
    """A share that is a number of layers, not all of them."""
    layers = offloaded_layers(np.asarray(p.offload_activations), task.model.layers)
    exact = percent_of(layers, task.model.layers) == p.offload_activations
    return (p.offload_activations == 0) | (exact & (layers < task.model.layers))


def _layers_message(p: Plan, task: Task) -> str:
    total = task.model.layers
    near = min(int(offloaded_layers(p.offload_activations, total)), total - 1)
    return (
        f"{said(p, 'offload_activations')}: whole layers are offloaded, at most {total - 1} of "
        f"{total}; nearest: offload_activations={percent_of(near, total)} ({near} layers)"
    )


def offload_rules(prefix: str) -> tuple[Rule, ...]:
    """What Megatron-Core refuses to offload."""
    return (
        Rule(
            f"{prefix}-offloaded-optimizer",
            ("offload_optimizer", "zero", "optimizer"),
            lambda p, t: (
                (p.offload_optimizer == 0) | ((p.zero < 2) & (p.optimizer == Optimizer.ADAM))
            ),
            lambda p, t: (
                f"{said(p, 'offload_optimizer')}: the host updates for the distributed optimizer "
                "with Adam, not yet for Megatron-FSDP (NVIDIA/Megatron-LM#4910); nearest: zero=1 "
                "optimizer=adam"
            ),
        ),
        Rule(
            f"{prefix}-offloaded-activations",
            ("offload_activations", "pp", "recompute"),
            lambda p, t: (
                (p.offload_activations == 0) | ((p.pp == 1) & (p.recompute == Recompute.NONE))
            ),
            lambda p, t: (
                f"{said(p, 'offload_activations')}: offloading of layers excludes pipeline stages "
                "and recompute; nearest: pp=1 recompute=none"
            ),
        ),
        Rule(
            f"{prefix}-offloaded-layers", ("offload_activations",), _whole_layers, _layers_message
        ),
    )


def read_offload(flags: Flags, launch: Launch) -> None:
    """The shares on the host; what is not modelled is left open."""
    if flags.switch("--optimizer-cpu-offload"):
        _read_optimizer(flags, launch)
    flags.switch("--cpu-offloading")
    total = launch.model.layers if launch.model else 0
    layers = flags.size(LAYERS, 0, least=0, most=max(total - 1, 0))
    if layers:
        launch.plan["offload_activations"] = percent_of(layers, total)


def _read_optimizer(flags: Flags, launch: Launch) -> None:
    flags.switch("--use-precision-aware-optimizer")
    text = flags.text(FRACTION) or "1"
    try:
        percent = 100 * float(text)
    except ValueError:
        percent = -1.0
    if not 0 <= percent <= 100:
        raise flags.wrong(FRACTION, f"{text} must be a number from 0 to 1")
    launch.plan["offload_optimizer"] = round(percent)
    if abs(percent - round(percent)) > 1e-6:
        line = flags.line(FRACTION)
        launch.open["offload_optimizer"] = f"line {line}: {FRACTION} {text} is no whole percent"
    if not flags.switch(OVERLAP):
        line = flags.line("--optimizer-cpu-offload")
        launch.open["offload_optimizer"] = (
            f"line {line}: copies that wait for the update are not modelled (modelled: {OVERLAP})"
        )
