"""What does a Megatron-LM launch script run? Its flags as a model, a batch and a plan.

Source of the defaults: Megatron-LM, megatron/training/arguments.py, megatron/core 0.16.
"""

from __future__ import annotations

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.precision import Optimizer, Precision
from plan3d.simulator.plan.codes import Recompute
from plan3d.simulator.plan.stage_layout import mtp_stage, read_layout

from ..launch_file import NOTHING, Given, Kept, Launch, stated_layers
from ..shell.flags import Flags
from ..shell.launch_script import launcher_gpus, script_of, training_words
from ..shell.script import Script
from .model_flags import model_of
from .offload_flags import read_offload
from .writer import EXCHANGES, INSTANCES

STRATEGIES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""ZeRO stages of --data-parallel-sharding-strategy."""
RECOMPUTED = ("core_attn", "layernorm", "moe_act", "mla_up_proj")
"""Modules whose recompute is modelled, by their names in --recompute-modules."""
IMPLIED = (
    "--moe-grouped-gemm",
    "--moe-flex-dispatcher-backend",
    "--moe-enable-deepep",
    "--ckpt-format",
    "--no-gradient-accumulation-fusion",
    "--overlap-p2p-communication",
    "--max-position-embeddings",
    "--num-query-groups",
    "--fp8-recipe",
    "--tokenizer-type",
)
"""Flags that the writer adds and that decide no field of a plan."""
MATTERS = (
    "--cpu-offloading-weights",
    "--fine-grained-activation-offloading",
    "--distribute-saved-activations",
    "--outer-dp-sharding-strategy",
    "--use-precision-aware-optimizer",
    "--grad-reduce-in-bf16",
    "--hierarchical-context-parallel-sizes",
    "--window-size",
    "--moe-shared-expert-overlap",
    "--defer-embedding-wgrad-compute",
    "--use-tp-pp-dp-mapping",
    "--rampup-batch-size",
    "--encoder-num-layers",
    "--cross-entropy-loss-fusion",
    "--moe-pad-expert-input-to-capacity",
    "--moe-expert-capacity-factor",
)
"""Flags that change time or memory and are not modelled."""


def read(text: str, file: str, given: Given = NOTHING) -> Launch:
    """The launch of a script. Raises InputError naming the line that is wrong."""
    script = script_of(text, file)
    flags = Flags.of(training_words(script), file)
    launch = Launch(file, "megatron", launcher_gpus=launcher_gpus(script))
    read_flags(flags, launch, given.vocabulary)
    read_sharding(flags, launch)
    read_offload(flags, launch)
    keep(flags, script, launch)
    return launch


def read_flags(flags: Flags, launch: Launch, vocabulary: int | None) -> None:
    """Model, batch and what Megatron-LM and Megatron-DeepSpeed have in common of a plan."""
    launch.model = model_of(flags, _stem(launch.file), vocabulary)
    launch.sequence = flags.size("--seq-length")
    launch.plan["micro_batch"] = flags.size("--micro-batch-size")
    if flags.has("--global-batch-size"):
        launch.global_batch = flags.size("--global-batch-size")
    else:
        launch.accumulation = 1
    tp = flags.size("--tensor-model-parallel-size", 1)
    launch.plan |= {
        "tp": tp,
        "cp": flags.size("--context-parallel-size", 1),
        "sequence_parallel": int(flags.switch("--sequence-parallel") and tp > 1),
        "overlap_tp": int(flags.switch("--tp-comm-overlap")),
        "precision": int(_precision(flags)),
        "optimizer": int(_optimizer(flags)),
    }
    if launch.model.order and any(kind.experts for kind in launch.model.kinds):
        launch.plan["ep"] = flags.size("--expert-model-parallel-size", 1)
        launch.plan["etp"] = flags.size("--expert-tensor-parallel-size", tp)
    _exchanges(flags, launch)
    _stages(flags, launch)
    _recompute(flags, launch)
    rates = (flags.text("--attention-dropout"), flags.text("--hidden-dropout"))
    launch.software["dropout"] = any(_rate(rate) > 0 for rate in rates)


def _exchanges(flags: Flags, launch: Launch) -> None:
    """How split sequences and experts get their tokens."""
    codes = {name: int(code) for code, name in EXCHANGES.items()} | {"allgather": 1}
    kinds = flags.words("--cp-comm-type") or ("p2p",)
    if launch.plan["cp"] > 1:
        if len(set(kinds)) > 1 or kinds[0] not in codes:
            why = f"line {flags.line('--cp-comm-type')}: --cp-comm-type {' '.join(kinds)}"
            launch.open["cp_comm"] = f"{why} is not modelled (modelled: {', '.join(codes)})"
        launch.plan["cp_comm"] = codes.get(kinds[0], 0)
    known = ("alltoall", "flex", "allgather")
    kind = flags.choice("--moe-token-dispatcher-type", known, "alltoall")
    overlapped = flags.switch("--overlap-moe-expert-parallel-comm")
    if launch.plan.get("ep", 1) == 1:
        return
    if kind == "allgather":
        line = flags.line("--moe-token-dispatcher-type")
        launch.open["expert_dispatch"] = f"line {line}: dispatch by all-gather is not modelled"
    launch.plan["expert_dispatch"] = int(kind == "flex")
    launch.plan["overlap_ep"] = int(overlapped)


def _stem(file: str) -> str:
    return file.rsplit("/", 1)[-1].rpartition(".")[0] or file


def _rate(text: str) -> float:
    """A dropout rate; 0.1 where the flag is left out."""
    try:
        return float(text) if text else 0.1
    except ValueError:
        return 0.1


def _precision(flags: Flags) -> Precision:
    flags.together("--bf16", "--fp16")
    eight_bit = flags.has("--fp8-format") or flags.has("--fp8-hybrid") or flags.has("--fp8-e4m3")
    half, brain = flags.switch("--fp16"), flags.switch("--bf16")
    if eight_bit:
        return Precision.FP8
    return Precision.FP16 if half else Precision.BF16 if brain else Precision.FP32


def _optimizer(flags: Flags) -> Optimizer:
    name = flags.choice("--optimizer", ("adam", "adamw", "sgd"), "adam")
    return Optimizer.SGD if name == "sgd" else Optimizer.ADAM


def _stages(flags: Flags, launch: Launch) -> None:
    """Pipeline size, chunks, their layers and the schedule that follows from them."""
    flags.together(
        "--pipeline-model-parallel-layout",
        "--num-virtual-stages-per-pipeline-rank",
        "--num-layers-per-virtual-pipeline-stage",
    )
    pp = flags.size("--pipeline-model-parallel-size", 1)
    launch.plan["pp"] = pp
    v = _layout(flags, launch, pp) or _virtual(flags, launch, pp)
    launch.plan["virtual_stages"] = v
    without = flags.switch("--no-overlap-p2p-communication")
    launch.plan["overlap_p2p"] = int(v > 1 and not without)
    launch.plan["schedule"] = "interleaved" if v > 1 else "1f1b"
    group = flags.size("--microbatch-group-size-per-virtual-pipeline-stage", 0)
    launch.plan["micro_batch_group"] = group if v > 1 else 0


def _layout(flags: Flags, launch: Launch, pp: int) -> int:
    """Chunks a rank of an explicit layout; 0 when there is none."""
    name = "--pipeline-model-parallel-layout"
    text = flags.text(name)
    if not text:
        return 0
    for ends in ("first", "last"):
        flags.together(name, f"--decoder-{ends}-pipeline-num-layers")
    try:
        chunks = read_layout(text)
    except InputError as error:
        raise flags.wrong(name, str(error)) from None
    layers = launch.model.layers if launch.model else 0
    if len(chunks) % pp or sum(chunks) != layers:
        raise flags.wrong(
            name,
            f"has {len(chunks)} stages with {sum(chunks)} layers; a multiple of {pp} stages and "
            f"{layers} layers are needed",
        )
    launch.plan |= stated_layers(chunks, pp, len(chunks) // pp)
    launch.plan["mtp_stage"] = mtp_stage(text)
    return len(chunks) // pp


def _virtual(flags: Flags, launch: Launch, pp: int) -> int:
    """Chunks a rank, from their number or their layers, and uneven ends."""
    layers = launch.model.layers if launch.model else 0
    ends = ("first", "last")
    given = {end: flags.size(f"--decoder-{end}-pipeline-num-layers", 0) for end in ends}
    extra = [
        flags.switch(f"--account-for-{end}-in-pipeline-split") for end in ("embedding", "loss")
    ]
    per_chunk = flags.size("--num-layers-per-virtual-pipeline-stage", 0)
    v = flags.size("--num-virtual-stages-per-pipeline-rank", 1)
    total = layers + sum(extra)
    if per_chunk:
        if total % (pp * per_chunk):
            name = "--num-layers-per-virtual-pipeline-stage"
            raise flags.wrong(name, f"{per_chunk} x {pp} stages does not divide {total} layers")
        v = total // (pp * per_chunk)
    launch.plan |= {f"{end}_stage_layers": given[end] for end in ends if given[end] and pp > 1}
    if any(extra) and pp > 1:
        if any(given.values()) or total % (pp * v):
            raise launch.refuse(
                f"--account-for-...-in-pipeline-split needs {total} to be a multiple of "
                f"{pp * v} chunks, without uneven ends"
            )
        chunks = [total // (pp * v)] * (pp * v)
        chunks[0] -= extra[0]
        chunks[-1] -= extra[1]
        launch.plan |= stated_layers(chunks, pp, v)
    elif layers % (pp * v) and not any(given.values()):
        raise launch.refuse(f"{layers} layers cannot be cut into {pp * v} equal chunks")
    return v


def _recompute(flags: Flags, launch: Launch) -> None:
    """Which activations are recomputed; what no plan can have is left open."""
    kind = flags.choice("--recompute-granularity", ("full", "selective", "none"), "none")
    if flags.switch("--recompute-activations"):
        kind = "selective"
    if flags.switch("--checkpoint-activations"):
        kind = "full"
    launch.plan["recompute"] = int(Recompute[kind.upper()])
    modules = flags.words("--recompute-modules") or ("core_attn",)
    method = flags.choice("--recompute-method", ("uniform", "block"), "uniform")
    count = flags.size("--recompute-num-layers", 1)
    if kind == "selective":
        if flags.has("--recompute-method"):
            raise flags.wrong("--recompute-method", "contradicts selective recompute")
        unknown = [module for module in modules if module not in RECOMPUTED]
        if unknown:
            line = flags.line("--recompute-modules")
            why = f"line {line}: recompute of {', '.join(unknown)} is not modelled"
            launch.open["recompute"] = f"{why} (modelled: {', '.join(RECOMPUTED)})"
        launch.software["selective"] = tuple(m for m in modules if m in RECOMPUTED)
    if kind == "full":
        whole = _most_layers(launch) if method == "block" else 1
        if (method == "block" and count < whole) or (method == "uniform" and count > 1):
            line = flags.line("--recompute-num-layers")
            launch.open["recompute"] = (
                f"line {line}: {method} recompute of {count} layers is not modelled "
                f"(modelled: {method} {whole}, every layer)"
            )


def _most_layers(launch: Launch) -> int:
    """Layers of the largest chunk."""
    plan, layers = launch.plan, launch.model.layers if launch.model else 0
    chunks = plan["pp"] * plan["virtual_stages"]
    ends = (plan.get("first_stage_layers", 0), plan.get("last_stage_layers", 0))
    return int(max([*plan.get("layers_per_stage", ()), *ends, -(-layers // chunks)]))


def read_sharding(flags: Flags, launch: Launch) -> None:
    """ZeRO stage and overlaps of Megatron-LM."""
    flags.together("--use-megatron-fsdp", "--use-torch-fsdp2")
    strategy = flags.choice("--data-parallel-sharding-strategy", STRATEGIES, "no_shard")
    sharded = flags.switch("--use-distributed-optimizer")
    if flags.switch("--use-torch-fsdp2"):
        launch.plan |= {"zero": 3, "overlap_grad_reduce": 1, "overlap_param_gather": 1}
        return
    zero = STRATEGIES[strategy] if flags.switch("--use-megatron-fsdp") else int(sharded)
    launch.replicas = flags.size(INSTANCES, 1) if zero else 1
    launch.plan |= {
        "zero": zero,
        "overlap_grad_reduce": int(flags.switch("--overlap-grad-reduce")),
        "overlap_param_gather": int(flags.switch("--overlap-param-gather")),
    }
    if launch.plan["overlap_grad_reduce"] and zero < 3:
        launch.plan["bucket_parameters"] = flags.size("--ddp-bucket-size", 0)
    if launch.plan["overlap_param_gather"] and not (zero and launch.plan["overlap_grad_reduce"]):
        name = "--overlap-param-gather"
        raise flags.wrong(name, "needs --use-distributed-optimizer and --overlap-grad-reduce")


def keep(flags: Flags, script: Script, launch: Launch) -> None:
    """Note every flag that nothing read; refuse a known one that depends on a condition."""
    for name in IMPLIED:
        flags.has(name)
    conditional = Flags.of(script.conditional_words(), script.file).by_name.values()
    for flag in conditional:
        if flag.name in flags.used:
            raise launch.refuse(
                f"line {flag.line}: {flag} depends on a condition; write it where it always holds"
            )
    for flag in sorted([*flags.rest(), *conditional], key=lambda flag: flag.line):
        launch.kept.append(Kept(f"line {flag.line}", str(flag), flag.name in MATTERS))
