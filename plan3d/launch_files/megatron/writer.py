"""How does Megatron-LM run a plan? A shell fragment of flags, for megatron/core 0.16.

Source: Megatron-LM, megatron/training/arguments.py (validate_args), megatron/core 0.16
(transformer_config.py, transformer_block.py, pipeline_parallel_layer_layout.py) and the guide of
Megatron-FSDP.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from plan3d.simulator.hardware.precision import Optimizer, Precision
from plan3d.simulator.plan.codes import ContextComm, Dispatch, Recompute
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.step.stage_layouts import chunk_sizes
from plan3d.simulator.task import Task

from .. import shape
from ..exporter import Exporter, Form, heading
from ..launch_file import Kept
from .model_flags import Lines, model_flags
from .offload_flags import offload_flags
from .rules import rules

VERSION = "0.16"
TITLE = f"Megatron-LM (core {VERSION})"
SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
"""Strategies of Megatron-FSDP by ZeRO stage; stage 1 is the distributed optimizer."""
EXCHANGES: dict[int, str] = {
    ContextComm.P2P: "p2p",
    ContextComm.ALL_GATHER: "all_gather",
    ContextComm.A2A: "a2a",
}
"""--cp-comm-type by cp_comm."""
DISPATCHERS: dict[int, str] = {Dispatch.ALLTOALL: "alltoall", Dispatch.HIERARCHICAL: "flex"}
"""--moe-token-dispatcher-type by expert_dispatch; the backend of flex is DeepEP by default."""
GROUP = "--microbatch-group-size-per-virtual-pipeline-stage"
BLACKWELL = ("b200", "b300", "gb200", "gb300")
"""Accelerators without the limit on device connections."""


def stage_flags(task: Task, plan: Plan) -> Lines:
    """Layers of the pipeline stages: nothing when even, ends, or an explicit layout."""
    v, chunks = int(plan.virtual_stages), chunk_sizes(task, plan)
    several: Lines = [("--num-virtual-stages-per-pipeline-rank", str(v))] if v > 1 else []
    ends_given = plan.first_stage_layers > 0 or plan.last_stage_layers > 0
    if plan.mtp_stage or (len(set(chunks)) > 1 and not ends_given):
        return [("--pipeline-model-parallel-layout", layout_text(task, plan))]
    ends = (
        ("--decoder-first-pipeline-num-layers", plan.first_stage_layers),
        ("--decoder-last-pipeline-num-layers", plan.last_stage_layers),
    )
    return [*several, *((flag, str(layers)) for flag, layers in ends if layers)]


def layout_text(task: Task, plan: Plan) -> str:
    """'Et*7|(t*8|)*6t*7L': the layers of every chunk in model order."""
    chunks = chunk_sizes(task, plan)
    stages = [_repeated("t", layers) for layers in chunks]
    stages[0] = f"E{stages[0]}"
    if task.model.mtp_layers:
        stages[int(plan.mtp_stage) - 1] += "m"
    stages[-1] += "L"
    out = []
    for stage, run in groupby(stages[:-1]):
        times = len(list(run))
        out.append(f"{stage}|" if times == 1 else f"({stage}|)*{times}")
    return "".join(out) + stages[-1]


def _repeated(letter: str, times: int) -> str:
    return letter * times if times < 2 else f"{letter}*{times}"


def parallel_flags(task: Task, plan: Plan) -> Lines:
    """Sizes of the axes, stages and overlaps."""
    out: Lines = [
        ("--tensor-model-parallel-size", str(plan.tp)),
        ("--pipeline-model-parallel-size", str(plan.pp)),
        ("--context-parallel-size", str(plan.cp)),
        *([("--cp-comm-type", EXCHANGES[int(plan.cp_comm)])] if plan.cp > 1 else []),
        *([(GROUP, str(plan.micro_batch_group))] if plan.micro_batch_group else []),
        *(stage_flags(task, plan) if plan.pp > 1 else []),
    ]
    if shape.EXPERTS in shape.features(task.model):
        out += [
            ("--expert-model-parallel-size", str(plan.ep)),
            ("--expert-tensor-parallel-size", str(plan.etp)),
            ("--moe-token-dispatcher-type", DISPATCHERS[int(plan.expert_dispatch)]),
        ]
        out += [("--moe-grouped-gemm",)] if plan.precision in _GROUPED else []
    switches = {
        "--sequence-parallel": plan.sequence_parallel,
        "--tp-comm-overlap": plan.overlap_tp,
        "--overlap-moe-expert-parallel-comm": plan.overlap_ep,
        "--no-overlap-p2p-communication": plan.virtual_stages > 1 and not plan.overlap_p2p,
        "--overlap-grad-reduce": plan.overlap_grad_reduce,
        "--overlap-param-gather": plan.overlap_param_gather,
    }
    flags: Lines = [(flag,) for flag, on in switches.items() if on]
    return [*out, *flags, *_sharding(plan), *_pieces(plan), *offload_flags(task, plan)]


def _pieces(plan: Plan) -> Lines:
    """Buckets, and replicas of the shards of hybrid sharding."""
    values = {"--ddp-bucket-size": plan.bucket_parameters, INSTANCES: instances(plan)}
    return [(flag, str(value)) for flag, value in values.items() if value]


def instances(plan: Plan) -> int:
    """Replicas of the shards; 0 where all data ranks share one set."""
    return int(plan.dp * plan.cp // plan.shard) if plan.shard else 0


INSTANCES = "--num-distributed-optimizer-instances"
_GROUPED = (Precision.BF16, Precision.FP8)


def _sharding(plan: Plan) -> Lines:
    if plan.zero == 0:
        return []
    if plan.zero == 1:
        return [("--use-distributed-optimizer",)]
    return [
        ("--use-megatron-fsdp",),
        ("--data-parallel-sharding-strategy", SHARDING[int(plan.zero)]),
        ("--use-distributed-optimizer",),
        ("--no-gradient-accumulation-fusion",),
        ("--ckpt-format", "fsdp_dtensor"),
    ]


def training_flags(task: Task, plan: Plan) -> Lines:
    """Batch, number formats, recompute and dropout."""
    formats: dict[int, Lines] = {
        Precision.BF16: [("--bf16",)],
        Precision.FP16: [("--fp16",)],
        Precision.FP8: [("--bf16",), ("--fp8-format", "hybrid"), ("--fp8-recipe", "tensorwise")],
        Precision.FP32: [],
    }
    dropout = "0.1" if task.software.dropout else "0.0"
    return [
        ("--micro-batch-size", str(plan.micro_batch)),
        ("--global-batch-size", str(task.global_batch)),
        ("--seq-length", str(task.sequence)),
        *formats[int(plan.precision)],
        ("--optimizer", Optimizer(int(plan.optimizer)).name.lower()),
        *recompute_flags(task, plan),
        ("--attention-dropout", dropout),
        ("--hidden-dropout", dropout),
    ]


def recompute_flags(task: Task, plan: Plan) -> Lines:
    """Full recompute of every layer, or of the modules that the software profile drops."""
    if plan.recompute == Recompute.NONE:
        return []
    if plan.recompute == Recompute.FULL:
        return [
            ("--recompute-granularity", "full"),
            ("--recompute-method", "uniform"),
            ("--recompute-num-layers", "1"),
        ]
    modules = recomputed_modules(task)
    return [("--recompute-granularity", "selective"), ("--recompute-modules", *modules)]


def recomputed_modules(task: Task) -> tuple[str, ...]:
    """The modules of the software profile that the model has."""
    has = shape.features(task.model)
    needs = {"moe_act": shape.EXPERTS, "mla_up_proj": shape.LATENT}
    return tuple(m for m in task.software.selective if needs.get(m, has[0]) in has)


def write(task: Task, plan: Plan) -> str:
    """The flags as bash arrays, to be sourced by a launch script."""
    groups = {
        "MODEL_ARGS": model_flags(task.model, task.sequence),
        "PARALLEL_ARGS": parallel_flags(task, plan),
        "TRAINING_ARGS": training_flags(task, plan),
    }
    nodes, each = task.cluster.nodes, task.cluster.gpus_per_node
    used = " ".join(f'"${{{name}[@]}}"' for name in groups)
    return "\n".join(
        [
            *heading(task, plan, TITLE),
            *environment(task, plan, bool(plan.zero > 1)),
            *(line for name, flags in groups.items() for line in array(name, flags)),
            "# Add your data, tokenizer, learning rate and checkpoint flags:",
            f"# torchrun --nnodes {nodes} --nproc-per-node {each} pretrain_gpt.py {used} ...",
            "",
        ]
    )


def merge(text: str, kept: Sequence[Kept]) -> str:
    """The fragment with the flags that an imported script had besides."""
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("# Add your data"))
    lines[at:at] = ["OTHER_ARGS=(", *(f"  {part.text}" for part in kept), ")"]
    return "\n".join(lines).replace(" ...", ' "${OTHER_ARGS[@]}"') + "\n"


def environment(task: Task, plan: Plan, fsdp: bool) -> list[str]:
    """CUDA_DEVICE_MAX_CONNECTIONS, which validate_args insists on before Blackwell."""
    if fsdp:
        return ["unset CUDA_DEVICE_MAX_CONNECTIONS  # Megatron-FSDP needs more than one"]
    name = task.cluster.accelerator.name.lower()
    if any(chip in name for chip in BLACKWELL) or (plan.tp == 1 and plan.cp == 1):
        return []
    return [
        "export CUDA_DEVICE_MAX_CONNECTIONS=1  # tensor or context parallelism before Blackwell"
    ]


def array(name: str, flags: Iterable[tuple[str, ...]]) -> list[str]:
    """Flags as the lines of a bash array."""
    return [f"{name}=(", *(f"  {' '.join(quoted(words))}" for words in flags), ")"]


def quoted(words: Iterable[str]) -> list[str]:
    """Words as a shell reads them back."""
    plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=,+@%"
    return [word if word and set(word) <= set(plain) else f"'{word}'" for word in words]


EXPORTER = Exporter(
    "megatron",
    (Form(VERSION, TITLE, rules(TITLE, "megatron"), write, merge),),
)
