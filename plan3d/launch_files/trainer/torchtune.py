"""Recipes of torchtune: the YAML of a run, and commands of `tune run` that name it.

Source: torchtune 0.7, recipes/full_finetune_distributed.py, lora_finetune_distributed.py and their
kin for one GPU (keys and defaults), recipes/configs, training/_distributed.py (shard_model),
models/llama3/_parallelism.py (sequence parallelism beside tensor parallelism), _cli/run.py and
config/_parse.py (overrides as KEY=VALUE, ~KEY).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from typing import Any

from plan3d.simulator.base.documents import parse_toml, parse_yaml
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.files import read_text
from plan3d.simulator.base.units import is_whole
from plan3d.simulator.hardware.software import ENDS
from plan3d.simulator.runs.run_stack import (
    CHUNKED_LOSS,
    TORCHTUNE,
    TORCHTUNE_CHUNKS,
    TORCHTUNE_COMPILED,
    TORCHTUNE_EAGER,
    TORCHTUNE_LINEAR_CHUNKS,
)
from plan3d.simulator.workload.model import Model
from plan3d.simulator.workload.presets import preset_names

from ..documents import DEEPEST, Document
from ..launch_file import NO_OPTIONS, Launch, ReaderOptions, UnreadSetting
from ..numbers import fill_launch
from ..shell.contents import Script
from ..shell.flags import Flags
from ..shell.launch_script import ask, check_inputs
from ..shell.script import read_script
from ..shell.words import Word
from ..spellings import RANK, SHARE
from ..tables import ANY, COUNT, NAME, TRUTH, Numbers, Row, Table, integer, read_rows
from .commands import typed
from .spelling import fill_plan

TITLE, FRAMEWORK = "torchtune", "torchtitan"
"""The tool, and the framework whose stack runs it: FSDP2 over a mesh."""
TABLE: Table = (
    Row("model._component_", "builder", NAME, ""),
    Row("model.lora_rank", "rank", RANK, 8),
    Row("model.lora_dropout", "adapter_dropout", SHARE, 0.0),
    Row("model.lora_attn_modules", "attention_targets", ANY, None),
    Row("model.apply_lora_to_mlp", "adapts_mlp", TRUTH, False),
    Row("model.apply_lora_to_output", "adapts_output", TRUTH, False),
    Row("model.use_dora", "is_dora", TRUTH, False),
    Row("model.quantize_base", "in_4_bits", TRUTH, False),
    Row("tokenizer.max_seq_len", "sequence", COUNT, None),
    Row("dataset.packed", "packing", TRUTH, False),
    Row("batch_size", "micro_batch", COUNT),
    Row("gradient_accumulation_steps", "accumulation", COUNT, 1),
    Row("dtype", "dtype", NAME, "bf16"),
    Row("optimizer._component_", "optimizer_name", NAME, ""),
    Row("optimizer.fused", "is_fused", TRUTH, False),
    Row("optimizer_in_bwd", "updates_in_backward", TRUTH, False),
    Row("loss._component_", "loss_name", NAME, ""),
    Row("clip_grad_norm", "clipping", ANY, None),
    Row("compile", "compiles", ANY, False),
    Row("enable_activation_checkpointing", "checkpointing", TRUTH, False),
    Row("enable_activation_offloading", "offloads_activations", TRUTH, False),
    Row("enable_fp8_training", "uses_fp8", TRUTH, False),
    Row("ac_mode", "recompute_mode", ANY, None),
    Row("fsdp_cpu_offload", "offloads", TRUTH, False),
    Row("fsdp.cpu_offload", "older_offloads", TRUTH, False),
    Row("fsdp_reshard_after_forward", "reshards", TRUTH, True),
    Row("custom_sharded_layers", "sharded_ends", ANY, None),
    Row("tensor_parallel_dim", "tp", COUNT, 1),
    Row("context_parallel_dim", "cp", COUNT, 1),
    Row("data_parallel_shard_dim", "shard_degree", integer(least=-1), -1),
    Row("data_parallel_replicate_dim", "replicas", COUNT, 1),
)
PRESETS = {
    "llama2": "llama-2-{}",
    "llama3": "llama-3-{}",
    "llama3_1": "llama-3.1-{}",
    "llama3_2": "llama-3.2-{}",
    "llama3_3": "llama-3.3-{}",
    "mistral": "mistral-{}",
    "gemma": "gemma-{}",
    "gemma2": "gemma-2-{}",
    "phi3": "phi-3-{}",
    "phi4": "phi-4",
    "qwen2": "qwen2.5-{}",
    "qwen2_5": "qwen2.5-{}",
    "qwen3": "qwen3-{}",
}
"""Presets by the beginning of a builder's name; the sizes of Qwen2 are those of Qwen2.5."""
WITHOUT_WINDOWS = ("mistral", "phi3")
"""Families whose attention has no window here (models/mistral, models/phi3)."""
_BUILDER = re.compile(r"(q?lora_)?(\w+?)(?:_(?:instruct|base))?")
ENCODERS = ("vision", "llama4", "clip")
"""Parts of names of models that see images."""
OTHER_MODELS = ("teacher_model", "policy_model", "reward_and_value_model", "ref_checkpointer")
"""Sections of runs that have a second model."""
LOSSES = {
    "LinearCrossEntropyLoss": TORCHTUNE_LINEAR_CHUNKS,
    "CEWithChunkedOutputLoss": TORCHTUNE_CHUNKS,
}
"""Bytes a logit of a loss that is not compiled, at the peak and until the backward pass."""
FREED = 1e-9
"""Bytes a parameter of gradients that the update inside the backward pass frees, and of moments in
pages of the host."""
NEUTRAL = frozenset(
    (
        *("tokenizer", "checkpointer", "dataset", "dataset_val", "lr_scheduler", "metric_logger"),
        *("profiler", "optimizer", "loss", "model", "seed", "shuffle", "epochs", "output_dir"),
        *("resume_from_checkpoint", "max_steps_per_epoch", "log_every_n_steps", "log_level"),
        *("log_peak_memory_stats", "device", "batch_size_val", "run_val_every_n_steps"),
        *("save_adapter_weights_only", "save_every_n_steps", "collate_fn", "low_cpu_ram"),
        *("tensor_parallel_plan", "enable_async_checkpointing", "use_distributed_state_dict"),
        *("ac_option", "context_parallel_rotate_method", "cudnn_deterministic_mode"),
        "base_model_path",
    )
)
"""Sections of data, schedules, reports and checkpoints, of which the rest changes no step."""
RECIPES = re.compile(
    r"(?:dev/)?(?:full|lora)_finetune_(?:single_device|distributed(?:_multi_\w+)?)"
)
IDLE = re.compile(r"eleuther_eval|generate|quantize|dev/generate\w*")
_SINGLE = re.compile(r"^# *tune run \w+_single_device\b", re.M)
"""The call of a file for one GPU, in its comments."""
_INTERPOLATION = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")


def read(text: str, file: str, options: ReaderOptions = NO_OPTIONS) -> Launch:
    """The launch of a recipe's file. Raises InputError for one that trains otherwise, by name."""
    content = parse_yaml(text, file)
    if not isinstance(content, dict):
        raise Launch(file, FRAMEWORK).refuse(f"must hold sections of {TITLE}")
    launch = read_content(content, file, options)
    if _SINGLE.search(text):
        launch.launcher_gpus = 1
    return launch


def read_content(content: dict[str, Any], file: str, options: ReaderOptions) -> Launch:
    """The launch of the keys of a recipe."""
    launch, n = Launch(file, FRAMEWORK, title=TITLE), Numbers()
    named: set[str] = set()
    document = Document(_interpolated(content, content, named), file)
    document.read_paths.update(tuple(name.split(".")) for name in named)
    _check_training(document, launch)
    read_rows(TABLE, document, n)
    launch.model = _model(n, launch, options)
    if not (n.sequence or options.sequence):
        raise launch.refuse(
            "does not state the length of its samples (tokenizer.max_seq_len): give --sequence N"
        )
    _fill_training(n, launch)
    fill_plan(n, document, launch)
    if n.is_paged:
        launch.unread = [one for one in launch.unread if one.place != "optimizer"]
        text = f"{n.optimizer_name[:40]}: its states are on the host, and paging them takes no time"
        launch.unread.append(UnreadSetting("optimizer", text, affects_cost=True))
    if n.uses_fp8 and not launch.adapters:
        launch.unmodelled["precision"] = "enable_fp8_training is on: its recipe is not read"
    launch.software |= _software(n)
    if launch.adapters and launch.adapters.format.bitsandbytes:
        launch.software["fp32_beside_packed"] = ()
    fill_launch(launch, n)
    launch.sequence = n.sequence or options.sequence
    unread = document.unread(TABLE, ())
    launch.unread += [one for one in unread if one.path[0] not in NEUTRAL]
    return launch


def _interpolated(value: Any, content: Mapping[str, Any], named: set[str]) -> Any:
    """A value with ${KEY} replaced by what stands at that path; `named` takes the paths."""
    if isinstance(value, dict):
        return {key: _interpolated(inner, content, named) for key, inner in value.items()}
    found = _INTERPOLATION.fullmatch(value) if isinstance(value, str) else None
    named |= {found[1]} if found else set()
    here: Any = content
    for name in found[1].split(".") if found else ():
        here = here.get(name) if isinstance(here, Mapping) else None
    return value if found is None or here is None or isinstance(here, dict) else here


def _check_training(document: Document, launch: Launch) -> None:
    """Raise InputError for a run that trains no model, or otherwise than one model on tokens."""
    content = document.content
    other = next((key for key in OTHER_MODELS if content.get(key)), "")
    if other:
        raise launch.refuse(
            f"trains with {other}, a second model, which is not modelled: give a run that trains "
            "one model on tokens"
        )
    if not (content.get("optimizer") and content.get("loss")):
        raise launch.refuse("trains no model: it has no optimizer and loss")
    if content.get("quantizer"):
        raise launch.refuse(
            "trains with fake numbers of few bits (quantizer), which is not modelled; nearest: the "
            "same run without quantizer"
        )


def _model(n: Numbers, launch: Launch, options: ReaderOptions) -> Model:
    """The model of a builder. Raises InputError for one that is no preset, where none is given."""
    name = n.builder.rpartition(".")[2]
    found = _BUILDER.fullmatch(name)
    adapted, plain = (found[1] or "", found[2]) if found else ("", "")
    n.is_adapted, n.in_4_bits = bool(adapted), n.in_4_bits or adapted == "qlora_"
    sizes = {
        family: preset.format(plain.removeprefix(f"{family}_").replace("_", "."))
        for family, preset in PRESETS.items()
        if plain.startswith(f"{family}_")
    }
    known = preset_names()
    family, preset = next(
        ((family, preset) for family, preset in sizes.items() if preset in known), ("", "")
    )
    if any(part in plain for part in ENCODERS):
        raise launch.refuse(f"trains {plain[:80]}, which has an encoder of images: not modelled")
    if not preset:
        if options.model is None:
            raise launch.refuse(
                f"trains {name[:80] or 'a model without a name'} of {TITLE}, which is no preset: "
                "give --model config.json"
            )
        return options.model
    model = Model.preset(preset)
    if family not in WITHOUT_WINDOWS:
        return model
    kinds = (replace(one, attention=replace(one.attention, window=0)) for one in model.kinds)
    return replace(model, kinds=tuple(kinds))


def _fill_training(n: Numbers, launch: Launch) -> None:
    """Add formats, adapters, axes and the loss, as the arguments of the Trainer have them."""
    loss = n.loss_name.rpartition(".")[2]
    if loss not in LOSSES:
        raise launch.refuse(
            f"trains by {loss[:60]}, which is not modelled; nearest: {', '.join(LOSSES)}"
        )
    n.tuner = "dora" if n.is_dora else "lora" if n.is_adapted else "full"
    targets = n.attention_targets if isinstance(n.attention_targets, list) else []
    n.targets = ["o_proj" if one == "output_proj" else str(one) for one in targets]
    n.targets += ["gate_proj", "up_proj", "down_proj"] * n.adapts_mlp + [
        "lm_head"
    ] * n.adapts_output
    n.bf16, n.fp16 = n.dtype == "bf16", n.dtype == "fp16"
    n.dtype = {"bf16": "bfloat16", "fp32": "float32"}.get(n.dtype, n.dtype)
    n.pure_bf16, n.has_engine, n.liger, n.is_checkpointed = n.bf16, False, False, False
    n.optimizer_name = n.optimizer_name.rpartition(".")[2]
    n.is_paged = "paged" in n.optimizer_name.lower()
    if n.recompute_mode not in (None, "full"):
        launch.unmodelled["recompute"] = f"ac_mode {str(n.recompute_mode)[:40]} is not read"
    elif n.recompute_mode:
        n.checkpointing = True
    if n.offloads_activations:
        launch.unmodelled["offload_activations"] = "what the backward pass reads is on the host"
    n.pp, n.ep, n.recompute, n.zero = 1, 1, 0, 3 if n.reshards else 2
    n.overlap_grad_reduce = n.overlap_param_gather = True
    n.sequence_parallel = int(n.tp > 1)
    if n.offloads or n.older_offloads:
        n.offload_parameters = n.offload_optimizer = 100
    if n.shard_degree > 0:
        launch.gpus = n.shard_degree * n.replicas * n.tp * n.cp
    elif n.replicas > 1:
        launch.replicas = n.replicas


def _software(n: Numbers) -> dict[str, Any]:
    """What the recipe says of the stack."""
    loss = CHUNKED_LOSS if n.compiles else LOSSES[n.loss_name.rpartition(".")[2]]
    kernels = TORCHTUNE_COMPILED if n.compiles else TORCHTUNE_EAGER
    out: dict[str, Any] = {**TORCHTUNE, **kernels}
    out |= {"logit_bytes": loss[0], "kept_logit_bytes": loss[1]}
    out["gathered_ends"] = () if n.sharded_ends else ENDS
    if n.clipping is None:
        out["clipping_bytes"] = 0.0
    if n.is_paged:
        out["optimizer_memory"] = FREED
    if n.updates_in_backward:
        out["gradient_memory"] = FREED
    if n.optimizer_name in ("AdamW", "Adam") and not n.is_fused:
        out["fused_update"] = False
    return out


def read_command(text: str, file: str, options: ReaderOptions = NO_OPTIONS) -> Launch:
    """The launch of a script with `tune run`. Raises InputError naming a config that is not
    beside it."""
    script = read_script(text, file, inputs=options.inputs)
    before, recipe, after = _parts(script)
    launch = Launch(file, FRAMEWORK)
    name = recipe.text.removesuffix(".py")
    if IDLE.fullmatch(name):
        raise launch.refuse(f"tune run {name} trains no model: give the script of a training run")
    if not RECIPES.fullmatch(name):
        kind = "trains otherwise than on tokens" if "/" not in name else "is a recipe of its own"
        raise launch.refuse(f"{name[:80]} {kind}, which is not read")
    flags = Flags.of(after, file).by_name
    named = flags.get("--config")
    path = named.texts[0] if named and named.texts else ""
    content = _config(path, launch, options)
    _replace(content, [*after, *(named.values[1:] if named else ())], script)
    check_inputs(script)
    notes = launch.left_out
    launch = read_content(content, file, options)
    launch.left_out += notes
    sizes = Flags.of(before, file).by_name
    names = ("--nproc-per-node", "--nnodes")
    stated = {key: "".join(sizes[key].texts[:1]) for key in names if key in sizes}
    counts = [
        stated.get("--nproc-per-node", "1" if not stated else ""),
        stated.get("--nnodes", "1"),
    ]
    if all(map(is_whole, counts)):
        launch.launcher_gpus = int(counts[0]) * int(counts[1])
    return launch


_SWITCHES = ("--standalone", "--no-python", "--no_python", "--module", "-m")
"""Options of torchrun without a value."""


def _parts(script: Script) -> tuple[Sequence[Word], Word, Sequence[Word]]:
    """The options of the launcher, the recipe and the words after it of the first `tune run`."""
    for command in script.commands:
        texts = [word.text for word in command]
        begin = next(
            (i for i in range(1, len(texts)) if texts[i - 1 : i + 1] == ["tune", "run"]), 0
        )
        at = begin + 1
        while begin and at < len(texts):
            if not texts[at].startswith("-"):
                return command[begin + 1 : at], command[at], command[at + 1 :]
            at += 1 if "=" in texts[at] or texts[at] in _SWITCHES else 2
    raise InputError(f"{script.file}: starts no recipe of {TITLE}")


def _config(path: str, launch: Launch, options: ReaderOptions) -> dict[str, Any]:
    """The content of the config that a command names."""
    read_source = options.inputs.read_source
    paths = (path, f"{path}.yaml", f"recipes/configs/{path}.yaml") if path else ()
    found = (read_source(one) for one in paths) if read_source else iter(())
    text = next((one for one in found if one is not None), None)
    own = built_in(path) if text is None else {}
    if own:
        launch.left_out.append(
            f"{path} is not beside the script: taken as {TITLE} 0.7 brings it (tune cp {path} .)"
        )
        return own
    if text is None:
        raise launch.refuse(
            f"the run is in the config {path[:80] or 'of a variable'}: put that file beside it "
            f"(tune cp {path[:80]} .), or give it"
        )
    content = parse_yaml(text, path)
    if not isinstance(content, dict):
        raise launch.refuse(f"{path[:80]} must hold sections of {TITLE}")
    return content


def built_in(name: str) -> dict[str, Any]:
    """What is read of a config that torchtune brings (torchtune_configs.toml), empty for others."""
    name = name.removeprefix("recipes/configs/").removesuffix(".yaml")
    file = "torchtune_configs.toml"
    every = parse_toml(read_text(resources.files(__package__) / file, file), file)
    for group in every["group"]:
        builder = dict(one.split("=") for one in group["configs"].split()).get(name)
        if builder is not None:
            content: dict[str, Any] = {"model": {"_component_": f"{TITLE}.models.{builder}"}}
            adapted = every["adapters"] if "lora_" in builder else ""
            changes = f"{every['common']} {adapted} {group.get('changes', '')}"
            _replace_keys(content, changes.split())
            return content
    return {}


_KEY = re.compile(r"~?[A-Za-z_][\w.]*")


def _replace(content: dict[str, Any], words: Sequence[Word], script: Script) -> None:
    """Replace keys of a config as the words of a command say, and ask for their open values."""
    read = {row.key for row in TABLE}
    needs = [
        (one, key)
        for word in words
        if (key := word.text.partition("=")[0]) in read
        for one in script.variables.dependences(word, expanded=True)
    ]
    _replace_keys(content, (word.text for word in words))
    ask(needs, script)


def _replace_keys(content: dict[str, Any], words: Iterable[str]) -> None:
    """Replace keys of a config by the words KEY=VALUE, and take away those of ~KEY."""
    for word in words:
        key, equals, value = word.partition("=")
        is_removed = key.startswith("~")
        if not (equals or is_removed) or not _KEY.fullmatch(key):
            continue
        *path, last = key.lstrip("~").split(".")
        if len(path) >= DEEPEST:
            raise InputError(f"{key[:60]} has more than {DEEPEST} levels")
        here = content
        for name in path:
            inner = here.get(name)
            here[name] = here = inner if isinstance(inner, dict) else {}
        if is_removed:
            here.pop(last, None)
        elif isinstance(here.get(last), dict) and "_component_" in here[last]:
            here[last] = {**here[last], "_component_": value}
        else:
            here[last] = _value(value)


def _value(text: str) -> Any:
    """A value as YAML has it."""
    if text[:1] in "[{":
        return parse_yaml(text, text)
    words = {"true": True, "false": False, "null": None, "none": None}
    return words.get(text.lower(), typed(text))
