"""What does a DeepSpeed configuration run? Its JSON, alone or in a script of Megatron-DeepSpeed.

Source of the defaults: DeepSpeed, runtime/config.py and runtime/zero/config.py: two of the three
batch sizes give the third; overlap_comm is on by default with ZeRO 3 only.
"""

from __future__ import annotations

import json
from typing import Any

from plan3d.simulator.base.typed_objects import JsonObject, shown
from plan3d.simulator.hardware.precision import Precision
from plan3d.simulator.plan.codes import ContextComm

from ..documents import unread
from ..launch_file import NOTHING, Given, Launch
from ..megatron.reader import keep, read_flags
from ..shell.flags import LARGEST, Flags
from ..shell.launch_script import launcher_gpus, script_of, training_words
from ..shell.script import Script
from .writer import BUCKETS, FORMATS

USED = frozenset(
    (
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "zero_optimization.stage",
        "zero_optimization.overlap_comm",
        "zero_optimization.offload_optimizer.device",
        "zero_optimization.offload_optimizer.pin_memory",
        "zero_optimization.offload_optimizer.ratio",
        "bf16.enabled",
        "fp16.enabled",
        "optimizer.type",
    )
)
"""Keys that are read."""
MATTERS = frozenset(
    (
        "zero_optimization.reduce_bucket_size",
        "zero_optimization.allgather_bucket_size",
        "zero_optimization.offload_param.device",
        "zero_optimization.zero_hpz_partition_size",
        "zero_optimization.mics_shard_size",
        "zero_optimization.zero_quantized_weights",
        "zero_optimization.zero_quantized_gradients",
        "activation_checkpointing.partition_activations",
        "activation_checkpointing.cpu_checkpointing",
        "communication_data_type",
        "data_types.grad_accum_dtype",
        "bf16.bf16_master_weights_and_grads",
        "bf16.bf16_optimizer_states",
        "tensor_parallel.autotp_size",
        "sequence_parallel_size",
        "expert_parallel.autoep_size",
        "compression_training",
    )
)
"""Kept keys that change time or memory."""
BATCHES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def read(text: str, file: str, given: Given = NOTHING) -> Launch:
    """The launch of a JSON file or a script. Raises InputError naming key or line."""
    launch = Launch(file, "deepspeed")
    if text.lstrip().startswith("{"):
        content = _parsed(text, launch)
        launch.plan |= {"tp": 1, "pp": 1, "cp": 1, "recompute": 0}
        read_json(JsonObject.of(content, file), launch)
        launch.kept = unread(content, _used(launch), MATTERS)
        return launch
    return _script(text, launch, given)


def _parsed(text: str, launch: Launch) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise launch.refuse(f"is not JSON ({error})") from None
    if not isinstance(content, dict):
        raise launch.refuse("must hold a JSON object")
    return content


def _script(text: str, launch: Launch, given: Given) -> Launch:
    """A script of Megatron-DeepSpeed: its flags, and the JSON that it writes."""
    script = script_of(text, launch.file)
    flags = Flags.of(training_words(script), launch.file)
    flags.switch("--deepspeed")
    read_flags(flags, launch, given.vocabulary)
    launch.launcher_gpus = launcher_gpus(script)
    if flags.switch("--no-pipeline-parallel") and launch.plan["pp"] > 1:
        name = "--no-pipeline-parallel"
        raise flags.wrong(name, f"contradicts {launch.plan['pp']} pipeline stages")
    if flags.switch("--enable-zbh1-pipeline"):
        launch.plan["schedule"] = "zb-h1"
    for name in ("--deepspeed-activation-checkpointing", "--use-rotary-position-embeddings"):
        flags.switch(name)
    cp = flags.size("--ds-sequence-parallel-size", 1)
    launch.plan |= {"cp": cp, "cp_comm": int(ContextComm.A2A if cp > 1 else ContextComm.P2P)}
    zero = flags.size("--zero-stage", 0, least=0, most=3)
    launch.plan |= {"zero": zero, **_overlaps(zero, zero == 3, launch.plan["pp"])}
    launch.plan["offload_optimizer"] = 100 * flags.switch("--cpu-optimizer")
    flags.text("--deepspeed-config")
    keep(flags, script, launch)
    _configuration(script, flags, launch)
    return launch


def _configuration(script: Script, flags: Flags, launch: Launch) -> None:
    """The JSON of a here-document, which must say what the flags say."""
    document = next((d for d in script.documents if d.text.lstrip().startswith("{")), None)
    if document is None:
        return
    content = _parsed(document.text, Launch(f"{launch.file}: line {document.line}", ""))
    stated, said = dict(launch.plan), Launch(launch.file, "deepspeed")
    said.plan = {name: stated[name] for name in ("tp", "pp", "cp")}
    read_json(JsonObject.of(content, f"{launch.file}: line {document.line}"), said)
    for name in ("micro_batch", "zero", "precision"):
        if said.plan[name] != stated[name]:
            raise launch.refuse(
                f"line {document.line}: the JSON has {name} {said.plan[name]}, the flags have "
                f"{stated[name]}"
            )
    if said.global_batch not in (None, launch.global_batch):
        raise launch.refuse(
            f"line {document.line}: the JSON has a batch of {said.global_batch}, "
            f"--global-batch-size {launch.global_batch}"
        )
    decided = (
        *("overlap_grad_reduce", "overlap_param_gather"),
        *("bucket_parameters", "offload_optimizer"),
    )
    launch.plan |= {name: said.plan[name] for name in decided}
    launch.open |= said.open
    launch.gpus = said.gpus
    launch.kept += unread(content, _used(said), MATTERS)


def read_json(c: JsonObject, launch: Launch) -> None:
    """Batch, sharding and number formats."""
    _batch(c, launch)
    zero = JsonObject.of(c.values.get("zero_optimization", {}), c.name, "$.zero_optimization")
    stage = zero.size("stage", default=0, least=0, most=3)
    overlapped = zero.flag("overlap_comm", stage == 3)
    launch.plan |= {"zero": stage, **_overlaps(stage, overlapped, launch.plan["pp"])}
    launch.plan["bucket_parameters"] = _buckets(zero, launch.plan)
    _offload(zero, launch)
    on = [name for name in ("bf16", "fp16") if _enabled(c, name)]
    if len(on) > 1:
        raise c.refuse("fp16", "and bf16 are both enabled: switch one off")
    codes = {name: precision for precision, name in FORMATS.items()}
    launch.plan["precision"] = int(codes[on[0]] if on else Precision.FP32)
    optimizer = JsonObject.of(c.values.get("optimizer") or {}, c.name, "$.optimizer")
    name = optimizer.text("type", default="AdamW")
    if name.lower() not in ("adam", "adamw"):
        launch.open["optimizer"] = f"$.optimizer.type is {name}, which is not modelled"


def _buckets(zero: JsonObject, plan: dict[str, Any]) -> int:
    """Parameters of a bucket (5e8 is usual), where both kinds are stated alike and something is
    cut into them."""
    size, gathered = (zero.values.get(name) for name in BUCKETS)
    if size != gathered or not plan["overlap_grad_reduce"] or plan["zero"] == 3:
        return 0
    if not isinstance(size, int | float) or not 1 <= size < LARGEST or size != int(size):
        return 0
    return int(size)


def _used(launch: Launch) -> frozenset[str]:
    """Keys that are read: those of buckets where the plan has them."""
    buckets = {f"zero_optimization.{name}" for name in BUCKETS}
    return USED | buckets if launch.plan["bucket_parameters"] else USED


def _overlaps(stage: int, overlapped: bool, pp: int) -> dict[str, int]:
    """Reductions hide behind the backward pass with ZeRO and without a pipeline."""
    return {
        "overlap_grad_reduce": int(overlapped and stage > 0 and pp == 1),
        "overlap_param_gather": int(stage == 3),
    }


def _offload(zero: JsonObject, launch: Launch) -> None:
    """The share of the optimizer on the host; Twin-Flow's ratio is all of it by default."""
    where = f"{zero.path}.offload_optimizer"
    section = JsonObject.of(zero.values.get("offload_optimizer") or {}, zero.name, where)
    device, ratio = section.text("device", default="none"), section.values.get("ratio", 1.0)
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 <= ratio <= 1:
        raise section.refuse("ratio", f"is {shown(ratio)}; it must be a number from 0 to 1")
    percent = round(100 * ratio) if device == "cpu" else 0
    launch.plan["offload_optimizer"] = percent
    if device not in ("cpu", "none"):
        launch.open["offload_optimizer"] = f"{where}.device is {device}, which is not modelled"
    elif device == "cpu" and abs(100 * ratio - percent) > 1e-6:
        launch.open["offload_optimizer"] = f"{where}.ratio is no whole percent"


def _enabled(c: JsonObject, name: str) -> bool:
    return JsonObject.of(c.values.get(name) or {}, c.name, f"$.{name}").flag("enabled", False)


def _batch(c: JsonObject, launch: Launch) -> None:
    """The micro-batch, what else is stated, and the data ranks that all three imply."""
    for name in BATCHES:
        if c.values.get(name) == "auto":
            raise c.refuse(name, "is auto: write the number that your trainer puts there")
    batch, micro, steps = (c.size(name, default=0) for name in BATCHES)
    if not micro:
        raise c.refuse(BATCHES[1], "is missing; it must be a whole number, the micro-batch")
    shards = launch.plan["tp"] * launch.plan["pp"] * launch.plan["cp"]
    launch.plan["micro_batch"] = micro
    launch.global_batch = batch or None
    launch.accumulation = None if batch else steps or 1
    if not (batch and micro and steps):
        return
    ranks, rest = divmod(batch, micro * steps)
    if rest or not ranks:
        raise c.refuse(
            BATCHES[0],
            f"is {batch}, not a multiple of {micro} x {steps} (micro-batch x accumulation); "
            f"nearest: {max(ranks, 1) * micro * steps}",
        )
    launch.plan["dp"] = ranks
    launch.gpus = ranks * shards
