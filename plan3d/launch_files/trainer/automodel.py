"""Recipes of NeMo AutoModel, which are YAML: a model of the Hub trained by FSDP2 or DDP.

Source: NeMo AutoModel main of 2026, nemo_automodel/recipes/_dist_utils.py
(parse_distributed_section), components/distributed/config.py (FSDP2Config, DDPConfig),
components/distributed/pipelining/config.py, components/_peft/lora.py (PeftConfig) and
components/training/step_scheduler.py.
"""

from __future__ import annotations

from typing import Any

from plan3d.simulator.base.documents import parse_yaml
from plan3d.simulator.workload.adapters import TARGETS, WORDS

from ..documents import Document
from ..launch_file import NO_OPTIONS, Launch, ReaderOptions, UnreadSetting
from ..numbers import fill_launch
from ..spellings import read_rank, read_share
from ..tables import (
    ANY,
    COUNT,
    NAME,
    REQUIRED,
    TRUTH,
    Numbers,
    Row,
    Table,
    Unmodelled,
    read_rows,
)
from .launch import FRAMEWORK
from .models import name_model
from .spelling import fill_plan, shard_by_degrees

TITLE = "NeMo AutoModel"
TABLE: Table = (
    Row("recipe", "recipe", ANY, None),
    Row("model._target_", "builder", NAME, ""),
    Row("model.pretrained_model_name_or_path", "model_id", ANY, None),
    Row("model.config", "config", ANY, None),
    Row("model.torch_dtype", "dtype", NAME, "bfloat16"),
    Row("step_scheduler.global_batch_size", "global_batch", COUNT, REQUIRED),
    Row("step_scheduler.local_batch_size", "micro_batch", COUNT, REQUIRED),
    Row("dataset.seq_len", "sequence", COUNT, None),
    Row("dataset.seq_length", "block_size", COUNT, None),
    Row("packed_sequence.packed_sequence_size", "packed", ANY, 0),
    Row("distributed.strategy", "strategy", NAME, "fsdp2"),
    Row("distributed.tp_size", "tp", ANY, 1),
    Row("distributed.cp_size", "cp", ANY, 1),
    Row("distributed.ep_size", "ep", ANY, 1),
    Row("distributed.pp_size", "stages", ANY, 1),
    Row("distributed.dp_size", "ranks", ANY, None),
    Row("distributed.dp_replicate_size", "replicas", ANY, 1),
    Row("distributed.sequence_parallel", "shards_sequence", TRUTH, False),
    Row("distributed.activation_checkpointing", "checkpointing", ANY, None),
    Row("distributed.reshard_after_forward", "reshards", TRUTH, True),
    Row("optimizer._target_", "optimizer_name", NAME, ""),
    Row("loss_fn._target_", "loss_name", NAME, ""),
    Row("peft", "peft", ANY, None),
    Row("quantization.load_in_4bit", "in_4_bits", TRUTH, False),
    Row("quantization.load_in_8bit", "in_8_bits", TRUTH, False),
    *map(
        Unmodelled,
        (
            *("compile.enabled", "distributed.enable_compile", "distributed.offload_policy"),
            *("distributed.enable_async_tensor_parallel", "model.backend.attn"),
            *("model.attn_implementation", "model.backend.dispatcher", "model.backend.experts"),
            *("fp8.enabled", "model.backend.linear", "optimizer.master_weights"),
            *("optimizer.exp_avg_dtype", "optimizer.exp_avg_sq_dtype", "qat.enabled"),
        ),
    ),
)
RECIPES = ("TrainFinetuneRecipeForNextTokenPrediction", "BenchmarkingRecipeForNextTokenPrediction")
"""Recipes that train one model on tokens."""
BUILDERS = ("NeMoAutoModelForCausalLM.from_pretrained", "NeMoAutoModelForCausalLM.from_config")
MESH_FRAMEWORK = "torchtitan"
"""The framework whose stack runs a recipe with other axes than data: FSDP2 over a mesh."""
NEUTRAL = frozenset(
    (
        *("rng", "seed", "ci", "checkpoint", "benchmark", "dist_env", "lr_scheduler", "wandb"),
        *("validation_dataset", "validation_dataloader", "dataset", "dataloader", "mlflow"),
        *("step_scheduler", "comet", "auto_resume"),
    )
)
"""Sections of data, schedules and reports, of which the rest changes no step."""
EVERY_MATRIX = ("*_proj", "*", ["*"], ["*_proj"])
"""Patterns of adapters at all matrices of a layer."""
LOSSES = {"FusedLinearCrossEntropy": True, "MaskedCrossEntropy": False}
"""Whether a loss is one kernel with the output layer."""


def read(text: str, file: str, options: ReaderOptions = NO_OPTIONS) -> Launch:
    """The launch of a recipe. Raises InputError for one that trains otherwise, by its name."""
    content = parse_yaml(text, file)
    launch = Launch(file, FRAMEWORK, title=TITLE)
    if not isinstance(content, dict):
        raise launch.refuse(f"must hold sections of {TITLE}")
    document, n = Document(content, file), Numbers()
    read_rows(TABLE, document, n)
    _check_program(n, launch)
    name_model(_model_name(n, launch, options), launch, options)
    for name in ("tp", "cp", "ep", "stages", "replicas"):
        setattr(n, name, _size(getattr(n, name), name, document))
    if n.stages > 1:
        raise launch.refuse(
            f"has {n.stages} pipeline stages, which are not read from a file of {TITLE}: give the "
            "model, the batch and the plan to plan3d estimate"
        )
    _fill_training(n, document, launch)
    n.pp, n.zero = 1, 0 if n.strategy.lower() == "ddp" else 3 if n.reshards else 2
    n.overlap_grad_reduce, n.overlap_param_gather = True, n.zero > 0
    n.recompute, n.has_engine, n.accumulation = 0, False, None
    shard_sequence = n.shards_sequence
    shard_by_degrees(n, launch)
    n.sequence_parallel = int(shard_sequence and n.tp > 1)
    launch.framework = MESH_FRAMEWORK if n.tp * n.cp * n.ep > 1 else FRAMEWORK
    fill_plan(n, document, launch)
    if document.section("model.backend").values.get("te_fp8"):
        launch.unmodelled["precision"] = "model.backend.te_fp8 is on: its recipe is not read"
    if n.ranks not in (None, "none", "None"):
        launch.gpus = _size(n.ranks, "dp_size", document) * n.tp * n.cp
    fill_launch(launch, n)
    launch.unread += document.unread(TABLE, ())
    launch.unread = [
        one
        for one in launch.unread
        if one.affects_cost or ".".join(one.path[:1]) not in NEUTRAL | {"", "optimizer"}
    ]
    return launch


def _check_program(n: Numbers, launch: Launch) -> None:
    """Raise InputError for a recipe that trains another way, or more than a decoder."""
    recipe = n.recipe.get("_target_") if isinstance(n.recipe, dict) else n.recipe
    name = str(recipe or RECIPES[0]).rpartition(".")[2]
    if name not in RECIPES:
        raise launch.refuse(f"is the recipe {name[:80]} of {TITLE}, which is not read")
    builder = ".".join(n.builder.split(".")[-2:])
    if builder not in BUILDERS:
        raise launch.refuse(f"trains {builder[:80]} of {TITLE}, which is not read")
    if n.strategy.lower() not in ("fsdp2", "ddp"):
        raise launch.refuse(f"shards by {n.strategy[:40]}, which is not read; nearest: fsdp2")


def _model_name(n: Numbers, launch: Launch, options: ReaderOptions) -> str:
    """The id of the model on the Hub. Raises InputError for a configuration that changes it."""
    config = n.config if isinstance(n.config, dict) else {"pretrained_model_name_or_path": n.config}
    name = n.model_id or config.get("pretrained_model_name_or_path") or ""
    sizes = [key for key in config if key.startswith(("num_", "n_", "hidden_", "vocab", "moe_"))]
    if sizes and options.model is None:
        raise launch.refuse(f"changes its model by {sizes[0]}: give --model config.json")
    return str(name)


def _size(value: Any, name: str, document: Document) -> int:
    """The size of an axis; one that is not stated is 1."""
    if value in (None, "none", "None"):
        return 1
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 2**20:
        name = {"stages": "pp", "replicas": "dp_replicate"}.get(name, name).removesuffix("_size")
        raise document.value_error(f"distributed.{name}_size", "must be a whole number from 1")
    return value


def _last(name: Any) -> str:
    """The last part of a pattern of modules: of *.q_proj the name of the matrix."""
    return str(name).rpartition(".")[2]


def _fill_training(n: Numbers, document: Document, launch: Launch) -> None:
    """Add formats, adapters, the sequence and the loss, as the arguments of the Trainer have
    them."""
    peft = n.peft if isinstance(n.peft, dict) else {}
    n.uses_adapters, n.rank = bool(peft), read_rank(document, "peft.dim", peft.get("dim", 8))
    n.adapter_dropout = read_share(document, "peft.dropout", peft.get("dropout", 0.0))
    every = peft.get("match_all_linear") or peft.get("target_modules") in EVERY_MATRIX
    targets = peft.get("target_modules") or []
    names = targets if isinstance(targets, list) else [targets]
    n.targets = "all-linear" if every else [_last(name) for name in names]
    excluded = peft.get("exclude_modules")
    if isinstance(excluded, list) and not n.targets:
        left_out = {part for name in excluded for part in WORDS.get(_last(name), ())}
        n.targets = [part for part in TARGETS if part not in left_out]
    n.tuner = "dora" if peft.get("use_dora") else "lora" if peft else "full"
    word = n.dtype.rpartition(".")[2]
    n.dtype = {"bf16": "bfloat16", "auto": "bfloat16", "fp32": "float32"}.get(word, word)
    n.bf16, n.fp16, n.pure_bf16 = True, False, n.dtype == "bfloat16"
    n.is_checkpointed, n.liger = False, LOSSES.get(n.loss_name.rpartition(".")[2], False)
    if n.loss_name.rpartition(".")[2] not in LOSSES:
        launch.unread.append(UnreadSetting("loss_fn", f"{n.loss_name[:80]} is not read", True))
    if str(n.checkpointing).lower() == "selective":
        launch.unmodelled["recompute"] = "recomputes selected operators, which are not read"
        n.checkpointing = None
    packed = n.packed if isinstance(n.packed, int) else 0
    n.sequence, n.packing = packed or n.sequence, packed > 0
    n.optimizer_name = n.optimizer_name.rpartition(".")[2].removeprefix("Fused")
    launch.unread.append(
        UnreadSetting("distributed.mp_policy", "gradients are reduced in 32 bits", True)
    )
