"""Plans as runs of Hugging Face's Trainer: under accelerate with FSDP2, or under DeepSpeed.

One shell fragment writes the configuration of the launcher and holds the arguments of the Trainer,
as trl/scripts/sft.py of TRL takes them.
Source: accelerate 1.11 (commands/config, FullyShardedDataParallelPlugin with fsdp_version 2),
transformers 4.57 (training_args.py), trl 0.24 (SFTConfig, ModelConfig).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from plan3d.simulator.base.printable import one_line
from plan3d.simulator.hardware.precision import Optimizer, Precision
from plan3d.simulator.plan.field_values import Loss, Recompute
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.rules.rule import Rule
from plan3d.simulator.task import Task
from plan3d.simulator.workload.presets import hub_id_of

from .. import shape
from ..common_rules import field_text, one_of
from ..deepspeed.keys import CONFIG, FILE
from ..deepspeed.rules import GATHER_OVERLAP
from ..deepspeed.spelling import to_config
from ..documents import nested_document
from ..exporter import Exporter, Form, heading, processes_by_node
from ..launch_file import UnreadSetting
from ..numbers import numbers_of
from ..shell.words import quote
from ..tables import (
    SWITCH,
    TEXT,
    Codec,
    Implied,
    Numbers,
    Row,
    Table,
    in_section,
    rows_if,
    settings_of,
)

ACCELERATE_FILE = "accelerate.yaml"
TITLE = "Hugging Face's Trainer under accelerate (FSDP2)"
ENGINE_TITLE = "Hugging Face's Trainer under DeepSpeed"
OPTIMIZERS = {
    Optimizer.SGD: "sgd",
    Optimizer.ADAM_8BIT: "adamw_bnb_8bit",
    Optimizer.LION: "lion_32bit",
    Optimizer.ADAFACTOR: "adafactor",
    Optimizer.ADAM: "adamw_torch_fused",
}
"""The argument optim by optimizer."""
_TRAINER = "the Trainer has data parallelism alone"
_HALVES = (Precision.BF16, Precision.AMP, Precision.PURE_BF16)


def _on_host_together(p: Plan, task: Task) -> Any:
    return (p.offload_optimizer == p.offload_parameters) & (
        (p.offload_parameters == 0) | ((p.offload_parameters == 100) & (p.zero == 3))
    )


COMMON: tuple[Rule, ...] = (
    Rule(
        "trainer-model",
        (),
        lambda p, t: shape.LAYER_LIST not in shape.features(t.model),
        lambda p, t: f"{t.model.name} is {shape.LAYER_LIST}, which the Trainer does not load",
    ),
    *(one_of(f"trainer-{name}", name, (1,), _TRAINER) for name in ("tp", "pp", "cp", "ep", "etp")),
    one_of("trainer-sequence-parallel", "sequence_parallel", (0,), _TRAINER),
    one_of("trainer-chunks", "virtual_stages", (1,), _TRAINER),
    one_of("trainer-hybrid", "shard", (0,), "shards are over all ranks"),
    one_of("trainer-optimizer", "optimizer", OPTIMIZERS, "the Trainer has these optimizers"),
    one_of(
        "trainer-recompute",
        "recompute",
        (Recompute.FULL, Recompute.NONE),
        "gradient_checkpointing is of whole layers",
    ),
    one_of(
        "trainer-loss", "loss", (Loss.FUSED_LINEAR, Loss.USUAL), "Liger fuses head and loss, or not"
    ),
    one_of("trainer-activations", "offload_activations", (0,), "activations stay on GPUs"),
    one_of("trainer-tensor-overlap", "overlap_tp", (0,), _TRAINER),
    one_of("trainer-expert-overlap", "overlap_ep", (0,), _TRAINER),
)
"""What the Trainer refuses under either launcher."""
FSDP_RULES: tuple[Rule, ...] = (
    *COMMON,
    one_of("fsdp2-sharding", "zero", (0, 2, 3), "FSDP2 shards weights and gradients, or nothing"),
    one_of("fsdp2-buckets", "bucket_parameters", (0,), "FSDP2 reduces layer by layer"),
    one_of(
        "fsdp2-precision",
        "precision",
        (Precision.FP32, *_HALVES[::-1]),
        "accelerate mixes bf16 and fp32",
    ),
    Rule(
        "fsdp2-master-weights",
        ("precision", "zero"),
        lambda p, t: (p.precision != Precision.BF16) | (p.zero > 0),
        lambda p, t: (
            "precision=bf16 with zero=0: replicas hold weights of one format; nearest: "
            "precision=amp or precision=pure-bf16"
        ),
    ),
    Rule(
        "fsdp2-mixed",
        ("precision", "zero"),
        lambda p, t: (p.precision != Precision.AMP) | (p.zero == 0),
        lambda p, t: f"precision=amp with {field_text(p, 'zero')}; nearest: precision=bf16",
    ),
    Rule(
        "fsdp2-offload",
        ("offload_optimizer", "offload_parameters", "zero"),
        _on_host_together,
        lambda p, t: (
            f"{field_text(p, 'offload_optimizer')} {field_text(p, 'offload_parameters')}: "
            "fsdp_offload_params moves both with zero=3; nearest: 0 or 100 for both"
        ),
    ),
    Rule(
        "fsdp2-overlap",
        ("overlap_grad_reduce", "overlap_param_gather", "zero", "dp"),
        lambda p, t: (
            ((p.overlap_grad_reduce == 1) & (p.overlap_param_gather == (p.zero > 0))) | (p.dp == 1)
        ),
        lambda p, t: (
            f"{field_text(p, 'overlap_grad_reduce')} {field_text(p, 'overlap_param_gather')}: it "
            "always overlaps; nearest: overlap_grad_reduce=1 "
            f"overlap_param_gather={int(p.zero > 0)}"
        ),
    ),
)
"""What accelerate with FSDP2 refuses."""


def _word(truth: Any) -> str:
    return "True" if truth else "False"


WORD = Codec(_word, lambda source, key, n: source.switch(key))
"""A truth as an argument of the Trainer."""
ARGUMENTS: Table = (
    Row("--model_name_or_path", "model_id", TEXT),
    Row("--dtype", "weights", TEXT),
    Row("--bf16", "bf16", WORD),
    Row("--fp16", "fp16", WORD),
    Row("--max_length", "sequence"),
    Implied("--packing", "True"),
    Row("--per_device_train_batch_size", "micro_batch"),
    Row("--gradient_accumulation_steps", "micro_batches"),
    Row("--gradient_checkpointing", "recompute", WORD),
    Row("--optim", "optimizer", Codec(OPTIMIZERS.__getitem__, lambda source, key, n: None)),
    Row("--use_liger_kernel", "loss", WORD),
)
"""Arguments of the Trainer."""
LAUNCHER: Table = (
    Implied("compute_environment", "LOCAL_MACHINE"),
    Row("distributed_type", "distribution", TEXT),
    Row("mixed_precision", "mixed", TEXT),
    Row("num_machines", "nodes"),
    Row("num_processes", "gpus"),
    *in_section(
        "fsdp_config",
        *rows_if(
            lambda n: n.zero > 0,
            Implied("fsdp_version", 2),
            Implied("fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP"),
            Row("fsdp_reshard_after_forward", "reshards", SWITCH),
            Row("fsdp_offload_params", "offload_parameters", SWITCH),
            Implied("fsdp_state_dict_type", "SHARDED_STATE_DICT"),
        ),
    ),
)
"""The configuration of accelerate."""


def write_fsdp(task: Task, plan: Plan, unread: Sequence[UnreadSetting] = ()) -> str:
    """The fragment for accelerate."""
    import yaml

    n = _numbers(task, plan)
    n.distribution = "FSDP" if n.zero else "MULTI_GPU" if n.dp > 1 else "NO"
    n.mixed = "bf16" if n.bf16 else "no"
    n.gpus, n.reshards = task.gpus, n.zero == 3
    text = yaml.safe_dump(nested_document(settings_of(LAUNCHER, n)), sort_keys=False)
    command = f"accelerate launch --config_file {ACCELERATE_FILE}"
    if n.nodes > 1:
        command += ' --machine_rank "${NODE_RANK:-0}" --main_process_ip "${MASTER_ADDR:?}"'
    top = heading(task, plan, TITLE)
    return _fragment(top, [ACCELERATE_FILE, text], command, settings_of(ARGUMENTS, n))


def write_engine(task: Task, plan: Plan, unread: Sequence[UnreadSetting] = ()) -> str:
    """The fragment for DeepSpeed."""
    n = to_config(_numbers(task, plan))
    n.has_checkpointing = False
    content = nested_document(settings_of(CONFIG, n))
    content.pop("optimizer", None)
    each = processes_by_node(task.cluster)[1]
    command = f"deepspeed --num_nodes {n.nodes} --num_gpus {each}"
    text = f"{json.dumps(content, indent=2)}\n"
    settings = [("--deepspeed", FILE), *settings_of(ARGUMENTS, n)]
    return _fragment(heading(task, plan, ENGINE_TITLE), [FILE, text], command, settings)


def _numbers(task: Task, plan: Plan) -> Numbers:
    """The numbers with those of the arguments."""
    n = numbers_of(task, plan)
    n.model_id = hub_id_of(task.model.name) or f'"${{MODEL:-{quote(one_line(task.model.name))}}}"'
    n.weights = "bfloat16" if n.precision == Precision.PURE_BF16 else "float32"
    n.bf16, n.fp16 = n.precision in _HALVES[:2], n.precision == Precision.FP16
    n.nodes = processes_by_node(task.cluster)[0]
    return n


def _fragment(
    top: list[str], document: list[str], command: str, settings: Iterable[tuple[str, Any]]
) -> str:
    """The configuration, a name and its text, as a here-document, and the command."""
    name, text = document
    flags = [f"{key} {value}" for key, value in settings]
    return "\n".join(
        [
            *top,
            "# Add --dataset_name, --output_dir, the learning rate and steps; sft.py is",
            "# trl/scripts/sft.py of TRL.",
            f"cat > {name} <<'END'",
            f"{text}END",
            " \\\n  ".join([f"{command} sft.py", *flags, '"$@"']),
            "",
        ]
    )


ENGINE_RULES: tuple[Rule, ...] = (
    *COMMON,
    one_of(
        "engine-precision",
        "precision",
        (Precision.FP32, Precision.FP16, Precision.BF16),
        "DeepSpeed keeps 32-bit weights beside those of 16 bits",
    ),
    GATHER_OVERLAP,
)
EXPORTER = Exporter(
    "accelerate",
    (
        Form(
            "fsdp2",
            TITLE,
            FSDP_RULES,
            write_fsdp,
            keeps_unread=False,
            table=(*ARGUMENTS, *LAUNCHER),
        ),
        Form(
            "deepspeed",
            ENGINE_TITLE,
            ENGINE_RULES,
            write_engine,
            keeps_unread=False,
            table=(*ARGUMENTS, *CONFIG),
        ),
    ),
    software="hf-trainer",
    search_values={"zero": (0, 2, 3)},
)
"""Runs of the Trainer."""
