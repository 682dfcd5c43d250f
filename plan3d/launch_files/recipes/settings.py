"""Settings of a recipe: the object that a file makes, as arguments of Megatron-Core by name.

Source: NeMo 2.5, nemo/lightning/pytorch/strategies/megatron_strategy.py, plugins/
mixed_precision.py, callbacks/megatron_comm_overlap.py and nemo/collections/llm/gpt/model;
Megatron-Bridge, src/megatron/bridge/training/config.py, mixed_precision.py and comm_overlap.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from plan3d.simulator.workload.model import Model
from plan3d.simulator.workload.presets import preset_names

from ..megatron_bridge.run_config import ADAPTED, FORMATS
from ..trainer.models import known_model
from .values import Made, Open

SECTIONS = {
    "bridge": (
        *("model", "ddp", "optimizer", "mixed_precision", "train", "dataset", "comm_overlap"),
    ),
    "nemo": (
        *("model", "model.config", "trainer", "trainer.strategy", "trainer.strategy.ddp"),
        *("optim.config", "trainer.plugins", "data"),
    ),
}
"""Sections of which the fields are arguments, in the order in which they count."""
ARGUMENTS = {
    "seq_length": "max_length",
    "sequence_length": "max_length",
    "fp8": "fp8_format",
    "fp4": "fp4_format",
    "fp8_param": "fp8_param_gather",
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
}
"""Arguments by fields of another name."""
OVERLAPS = "MegatronCommOverlapCallback"
"""The callback of NeMo 2 that is read."""
_NEUTRAL = """
accelerator autocast_dtype autocast_enabled batch_p2p_comm check_val_every_n_epoch checkpoint_io
cluster_environment create_attention_mask data_sampler data_step_fn dataset_cls
deallocate_pipeline_outputs enable_checkpointing enable_progress_bar find_unused_parameters
forward_step_fn fp16_hysteresis fp16_initial_loss_scale fp16_loss_scale fp16_loss_scale_window
fp16_min_loss_scale fsdp generation_config index_mapping_dir init_consumed_samples init_global_step
init_model_parallel lazy_init limit_test_batches limit_val_batches log_every_n_steps max_epochs
max_steps max_time megatron_log_level merges_file mmap_bin_files
num_sanity_val_steps num_test_samples num_train_samples num_val_samples output_log parallel_devices
parallel_output params_dtype paths persistent_workers pin_memory pipeline_dtype progress_interval
replace_progress_bar restore_config rotary_base save_ckpt_format scatter_embedding_sequence_parallel
seq_len_interpolation_factor sequence_length setup_optimizers tokenizer transformer_layer_spec
use_distributed_sampler use_gloo_process_groups use_te_rng_tracker val_check_interval vocab_size
"""
NEUTRAL = frozenset(_NEUTRAL.split())
"""Arguments of Lightning's Trainer, and of what a recipe of NeMo makes, that change neither the
model nor a step of training, or that are read otherwise (lightning 2.5, Trainer; NeMo 2.5,
MegatronStrategy, MegatronMixedPrecision, GPTConfig and the modules of data)."""
_FP8 = {"fp8_format": "hybrid"}
PRECISIONS: dict[str, dict[str, Any]] = {
    "bf16_mixed": {},
    "fp16_mixed": {"fp16": True},
    "bf16_with_fp8_mixed": {**_FP8, "fp8_recipe": "delayed", "fp8_param_gather": True},
    "bf16_with_fp8_delayed_scaling_mixed": {
        **_FP8,
        "fp8_recipe": "delayed",
        "fp8_param_gather": True,
    },
    "bf16_with_fp8_current_scaling_mixed": {
        **_FP8,
        "fp8_recipe": "tensorwise",
        "fp8_param_gather": True,
        "first_last_layers_bf16": True,
    },
    "bf16_with_fp8_subchannel_scaling_mixed": {**_FP8, "fp8_recipe": "blockwise"},
    "bf16_with_nvfp4_mixed": {**_FP8, "fp8_recipe": "nvfp4"},
    "bf16_with_mxfp8_mixed": {**_FP8, "fp8_recipe": "mxfp8", "fp8_param_gather": True},
}
"""Arguments of the functions and names of number formats."""
LOADERS = ("from_hf_pretrained", "from_hf_config", "from_pretrained", "import_ckpt")
"""Methods whose first text names a model of the Hub."""
_RECIPE_ENDING = re.compile(r"(?:_(?:pretrain|finetune|sft|peft))?_config$")
_CLASS = re.compile(r"Model(?=Provider)|Model(?=Config)|Config|Provider")
_SIZES = {"500M": "0.5B", "600M": "0.6B", "1P5B": "1.5B", "1P7B": "1.7B"}
CLASSES = {
    "gpt175b": "gpt3-175b",
    **{f"qwen2{size}b": f"qwen2.5-{size}b" for size in ("05", "15", "7", "72")},
}
"""Presets of classes with another name."""


def model_of_class(name: str) -> Model | None:
    """The preset of a class or a recipe that is called as the model, Llama31Config8B or
    llama31_8b; None where there is none.

    >>> model_of_class("Qwen25Config500M").name
    'qwen2.5-0.5b'
    """
    word = name
    for size, other in _SIZES.items():
        word = re.sub(f"(?i)(?<!\\d){size}", other, word)
    word = _CLASS.sub("", word)
    wanted = re.sub(r"[^a-z0-9]", "", word.lower())
    wanted = re.sub(r"[^a-z0-9]", "", CLASSES.get(wanted, wanted))
    for preset in preset_names():
        if re.sub(r"[^a-z0-9]", "", preset.lower()) == wanted:
            return Model.preset(preset)
    return None


def section(recipe: Made, path: str) -> Any:
    """The value at a path of attributes; None where there is none."""
    here: Any = recipe
    for name in path.split("."):
        here = here.fields.get(name) if isinstance(here, Made) else None
    return here


def arguments_of(recipe: Made, kind: str) -> dict[str, Any]:
    """The arguments of a recipe by name; those of a later section count."""
    out: dict[str, Any] = {}
    for path in SECTIONS[kind]:
        here = section(recipe, path)
        if path in _FORMATS and (unknown := _open_format(here)):
            out["fp8_format"] = unknown
        for name, value in _fields(here):
            key = ARGUMENTS.get(name, name)
            if value is not None or key not in out:
                out[key] = value
    out |= dict(_overlaps(recipe, kind, out))
    out["performance_mode"] = recipe.fields.get("performance_mode")
    adapters = recipe.fields.get("peft")
    if isinstance(adapters, Made):
        out |= {"dim": 32, "target_modules": list(ADAPTED), **adapters.fields}
        out["tuner"] = adapters.name.lower()
    out["packing"] = _is_packed(recipe, kind)
    if out.get("fsdp") == "megatron":
        out["use_megatron_fsdp"] = True
    formats = {name: _format(out[name]) for name in _DTYPES if name in out}
    out |= {name: None if word == "fp32" else word for name, word in formats.items()}
    return {
        name: Open(f"{value.name}(...)") if isinstance(value, Made) else value
        for name, value in out.items()
    }


_DTYPES = ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
"""Number formats of the optimizer, 32 bits unless they say otherwise."""


def _format(value: Any) -> Any:
    """A number format by Megatron-LM's word; what is no format as it is."""
    named = value.text if isinstance(value, Open) and value.is_name else str(value)
    return FORMATS.get(named.rpartition(".")[2], value)


def _is_packed(recipe: Made, kind: str) -> bool:
    """Whether every sequence is full: those of pretraining, and packed ones."""
    if kind == "bridge":
        return True
    return recipe.name != "finetune" or section(recipe, "data.packed_sequence_specs") is not None


def sections_of(recipe: Made, kind: str) -> dict[str, Any]:
    """The sections of a recipe that states the sizes of its model, as a run_config.yaml has
    them."""
    model, out = section(recipe, "model"), {}
    config = section(recipe, "model.config") if kind == "nemo" else model
    for path in SECTIONS[kind]:
        out[path] = {
            name: _format(value) if name in _DTYPES else value
            for name, value in _fields(section(recipe, path))
            if not isinstance(value, Made) and not (isinstance(value, Open) and not value.is_name)
        }
    provider = config.callee if isinstance(config, Made) else ""
    fields = {"_target_": provider, **out.pop("model")}
    if kind == "nemo":
        fields |= out["model.config"] | out["trainer.strategy"] | out["trainer.plugins"]
    activation = fields.get("activation_func")
    if isinstance(activation, Open):
        fields["activation_func"] = activation.text
    others = {name: value for path in out for name, value in out[path].items()}
    out_fields = {"bf16": not others.get("fp16"), **others}
    adapters = section(recipe, "peft")
    is_made = isinstance(adapters, Made)
    peft = {"_target_": adapters.name, **adapters.fields} if is_made else None
    return {"model": fields, "train": out_fields, "peft": peft}


_FORMATS = ("trainer.plugins", "mixed_precision")
"""Sections that state the number format."""


def _open_format(here: Any) -> Open | None:
    """What decides the number format of a section, where the file does not."""
    if isinstance(here, Made) and here.name == "get_mixed_precision_config":
        here = next(iter((*here.arguments, *here.fields.values())), None)
    is_made = isinstance(here, Made)
    if is_made and here.name.islower() and not (here.name in PRECISIONS or here.fields):
        return None if here.name.endswith("_mixed") else Open(f"{here.name}(...)")
    return here if isinstance(here, Open) and not here.is_name else None


def _fields(here: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a section, which may be a word or a function of a number format."""
    named = here.text.rpartition(".")[2] if isinstance(here, Open) and here.is_name else ""
    word = here if isinstance(here, str) else here.name if isinstance(here, Made) else named
    if word == "get_mixed_precision_config" and isinstance(here, Made):
        word = str(next(iter(here.arguments), word))
    word = word.replace("-", "_")
    unknown = {"fp8_format": "hybrid", "fp8_recipe": word} if word.endswith("_mixed") else {}
    yield from PRECISIONS.get(word, unknown).items()
    if isinstance(here, Made):
        if here.fields.get("precision") in ("16-mixed", "16", 16):
            yield "fp16", True
        yield from ((name, value) for name, value in here.fields.items() if name != "precision")


def _overlaps(recipe: Made, kind: str, values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What the configuration of overlaps decides: of parameters and gradients where there are
    several data ranks, of stages where they are interleaved."""
    made = section(recipe, "comm_overlap") if kind == "bridge" else _callback(recipe)
    if not isinstance(made, Made):
        return
    for name in ("overlap_grad_reduce", "overlap_param_gather"):
        value = made.fields.get(name)
        yield name, value if value is not None else bool(values.get("use_distributed_optimizer"))
    if kind == "nemo":
        yield from made.fields.items()


def _callback(recipe: Made) -> Made | None:
    """The callback of overlaps of NeMo 2."""
    callbacks = section(recipe, "trainer.callbacks")
    listed = callbacks if isinstance(callbacks, list | tuple) else ()
    named = (one for one in listed if isinstance(one, Made))
    return next((one for one in named if one.name == OVERLAPS), None)


def model_of(recipe: Made, kind: str) -> tuple[Model | None, str, dict[str, Any]]:
    """The preset that a recipe trains, the name that it has there, and the fields of the model
    that are stated; None and '' where it names none."""
    model = section(recipe, "model")
    config = section(recipe, "model.config") if kind == "nemo" else model
    stated = dict(config.fields) if isinstance(config, Made) else {}
    for made in (config, model):
        if not isinstance(made, Made):
            continue
        loaded = hub_name(made)
        if loaded:
            return known_model(loaded), loaded, stated
        preset = model_of_class(made.name) if made.callee else None
        if preset:
            return preset, made.name, stated
    for made in (config, model):
        texts = [one for one in _values(made) if isinstance(one, str)]
        named = filter(None, (model_of_class(text) or known_model(text) for text in texts))
        preset = next(named, None)
        if preset:
            return preset, preset.name, {}
    if isinstance(config, Open) and config.is_name:
        return model_of_class(config.text.rpartition(".")[2]), config.text, stated
    own = model_of_class(_RECIPE_ENDING.sub("", recipe.name)) if kind == "bridge" else None
    if own and not stated.get("num_layers"):
        return own, recipe.name, stated
    module = recipe.callee.rpartition(".")[0].rpartition(".")[2]
    shipped = model_of_class(module) if recipe.name.endswith("_recipe") else None
    if shipped and config is None:
        return shipped, module, stated
    name = config.name if isinstance(config, Made) else ""
    return None, name if name[:1].isupper() else "", stated


def vocabulary_of(recipe: Made, kind: str) -> tuple[int, str]:
    """The vocabulary that a recipe states, or that of the tokenizer which it names, and where;
    (0, '') where it does neither."""
    config = section(recipe, "model.config" if kind == "nemo" else "model")
    stated = config.fields.get("vocab_size") if isinstance(config, Made) else None
    if isinstance(stated, int):
        return stated, "vocab_size"
    for path in ("model.tokenizer", "data.tokenizer") if kind == "nemo" else ():
        made = section(recipe, path)
        if not isinstance(made, Made):
            continue
        size = made.fields.get("vocab_size")
        if isinstance(size, int):
            return size, path
        texts = [one for one in (*made.arguments, *made.fields.values()) if isinstance(one, str)]
        named = next(filter(None, map(known_model, texts)), None)
        if named:
            return named.vocabulary, f"{named.name}, in {path}"
    return 0, ""


def parts_left_out(recipe: Made) -> list[str]:
    """Parts of a model of text and images that a prediction of its decoder lacks."""
    fields = getattr(section(recipe, "model"), "fields", {})
    vision = [name for name in fields if name.startswith("freeze_vision") or "vision_conf" in name]
    if vision or section(recipe, "dataset.hf_processor_path"):
        return [f"a vision tower, which is left out ({' '.join(vision) or 'hf_processor_path'})"]
    return []


def _values(made: Any) -> list[Any]:
    """The arguments and fields of an object of which nothing is known."""
    is_call = isinstance(made, Made) and not made.name[:1].isupper()
    return [*made.arguments, *made.fields.values()] if is_call else []


def hub_name(made: Made) -> str:
    """The name of the Hub with which a chain of calls begins; '' where it has none."""
    here: Any = made
    for _ in range(8):
        if not isinstance(here, Made):
            return ""
        texts = [one for one in here.arguments if isinstance(one, str)]
        texts += [one for one in here.fields.values() if isinstance(one, str) and "/" in one]
        if here.name in LOADERS and texts:
            return texts[0]
        here = next((one for one in here.arguments if isinstance(one, Made)), None)
    return ""
