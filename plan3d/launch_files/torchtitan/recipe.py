"""How does torchtitan 0.3 run a plan? A Python recipe over the configuration of a flavor.

Source: torchtitan 0.3.0, config/configs.py, trainer.py (Trainer.Config), config_registry.py of the
models, distributed/activation_checkpoint.py.
"""

from __future__ import annotations

from typing import Any

from plan3d.simulator.hardware.precision import Precision
from plan3d.simulator.plan.codes import ContextComm, Recompute
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.rules.rule import Rule
from plan3d.simulator.task import Task

from ..exporter import Exporter, Form, only, said
from . import writer
from .model_flavors import FLAVORS, flavor_of, is_flavor
from .rules import common_rules

VERSION = "0.3.0"
TITLE = f"torchtitan {VERSION}"
RULES = (
    *common_rules(TITLE),
    Rule(
        "torchtitan-flavor",
        (),
        lambda p, t: (p.tp > 0) & is_flavor(t.model),
        lambda p, t: (
            f"0.3 builds shapes in code and ships none like {t.model.name}; nearest: --version "
            f"0.2, or a flavor: {', '.join(f'{name} {flavor}' for name, flavor in FLAVORS)}"
        ),
    ),
    Rule(
        "torchtitan-expert-tensor",
        ("etp",),
        lambda p, t: p.etp == 1,
        lambda p, t: f"etp={p.etp}: 0.3 does not split experts; nearest: etp=1",
    ),
    Rule(
        "torchtitan-context",
        ("cp", "cp_comm"),
        lambda p, t: (p.cp == 1) | (p.cp_comm == ContextComm.ALL_GATHER),
        lambda p, t: (
            f"{said(p, 'cp_comm')}: 0.3 gathers keys and values; nearest: cp_comm=all-gather"
        ),
    ),
    only("torchtitan-dispatch", "expert_dispatch", (0,), "0.3 has its dispatchers in the model"),
    only("torchtitan-expert-overlap", "overlap_ep", (0,), "0.3 has no such overlap"),
    Rule(
        "torchtitan-replicas-cp",
        ("zero", "cp"),
        lambda p, t: (p.zero > 0) | (p.cp == 1),
        lambda p, t: "zero=0: context parallelism shards with FSDP; nearest: zero=2",
    ),
)


def write(task: Task, plan: Plan) -> str:
    """The recipe as a Python module."""
    name, flavor = flavor_of(task.model)
    function = f"{name}_{flavor.lower()}"
    if name != "llama3" and plan.precision == Precision.FP8:
        function += "_float8"
    cluster = task.cluster
    module = "plan3d_recipe"
    lines = [
        f'"""{TITLE} recipe, written by plan3d.',
        "",
        f"{task.model.name} on {task.gpus} x {cluster.accelerator.name} "
        f"({cluster.nodes} x {cluster.gpus_per_node}).",
        f"Plan: {plan}",
        f"Save as {module}.py and run torchtitan with --module {module} --config recipe.",
        '"""',
        "",
        *_imports(name, function, plan),
        "",
        "",
        "def recipe() -> Trainer.Config:",
        f'    """{task.model.name} as the plan has it."""',
        f"    config = {function}()",
        *(f"    config.{key} = {value}" for key, value in settings(task, plan, name, flavor)),
        "    return config",
        "",
    ]
    return "\n".join(lines)


def _imports(name: str, function: str, plan: Plan) -> list[str]:
    llama, float8 = name == "llama3", plan.precision == Precision.FP8
    lines = {
        "from torchtitan.components.quantization import Float8LinearConverter": llama and float8,
        "from torchtitan.config import CompileConfig": True,
        "from torchtitan.distributed.activation_checkpoint import FullAC": plan.recompute > 0,
        f"from torchtitan.models.{name} import model_registry": llama,
        f"from torchtitan.models.{name}.config_registry import {function}": True,
        "from torchtitan.trainer import Trainer": True,
    }
    return [line for line, needed in lines.items() if needed]


def settings(task: Task, plan: Plan, name: str, flavor: str) -> list[tuple[str, Any]]:
    """Attributes of the configuration and the Python text of their values."""
    float8 = plan.precision == Precision.FP8
    pure, full = plan.precision == Precision.PURE_BF16, plan.precision == Precision.FP32
    out: list[tuple[str, Any]] = [
        ("training.seq_len", task.sequence),
        ("training.local_batch_size", writer.local_batch(task, plan)),
        ("training.global_batch_size", task.global_batch),
        ("training.dtype", repr("bfloat16" if pure else "float32")),
        ("training.mixed_precision_param", repr("float32" if full else "bfloat16")),
        # CUDA graphs run neither pipelines nor the usual expert dispatch.
        ("training.disable_cuda_graphs", bool(plan.pp > 1 or plan.ep > 1)),
        ("parallelism.enable_sequence_parallel", bool(plan.sequence_parallel)),
    ]
    shared = writer.parallelism(task, plan, "lm_head")
    out += [(f"parallelism.{key}", repr(value)) for key, value in shared.items()]
    kind = "FullAC.Config()" if plan.recompute == Recompute.FULL else None
    out.append(("activation_checkpoint", kind))
    compiled = bool(plan.overlap_tp) or float8
    overlap = f", enable_async_tensor_parallel={bool(plan.overlap_tp)}" if compiled else ""
    out.append(("compile", f"CompileConfig(enable={compiled}{overlap})"))
    if name == "llama3":
        # Some flavors come with float8 layers: the registry is asked again.
        converter = "Float8LinearConverter.Config(model_compile_enabled=True)"
        converters = f", converters=[{converter}]" if float8 else ""
        out.append(("model_spec", f"model_registry({flavor!r}{converters})"))
    return out


EXPORTER = Exporter("torchtitan", (writer.FORM, Form(VERSION, TITLE, RULES, write)))
