"""YAML documents of frameworks, recognised by their keys: whose reader takes them, or none.

Source: examples of LLaMA-Factory (README of examples/, and examples/v1 of its second design),
axolotl (examples), ms-swift (examples/yaml), the file of `accelerate config`, NeMo 1 (Hydra) and
2 (nemo-run), NeMo-RL, Megatron-Bridge, torchtune's recipes, verl's ppo_trainer.yaml, llm-foundry's
and OLMo's pretraining files, MaxText's base.yml, Primus, Megatron-LM's --yaml-cfg, VeOmni
(configs), ArcticTraining (projects), dolomite-engine and nnScaler (examples), Neuron's NeMo.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from plan3d.simulator.base.documents import parse_json, parse_yaml
from plan3d.simulator.base.errors import InputError

from .deepspeed.keys import BATCHES, CONFIG
from .deepspeed.launch import OWN


@dataclass(frozen=True, slots=True)
class Recognition:
    """How documents of one framework are recognised."""

    title: str
    alternatives: tuple[tuple[str, ...], ...]
    """Keys by path; a document with all of one alternative is the framework's."""
    reader: str = ""
    """The name of its reader; empty where it is not read."""


_OF_AXOLOTL = (
    *("sequence_len", "micro_batch_size", "gradient_accumulation_steps", "adapter"),
    *("val_set_size", "sample_packing", "pretraining_dataset"),
)
"""Keys of which a training of axolotl has one beside base_model, which descriptions of models
have too; or it has data sets beside one of the next."""
_OF_TRAINERS = ("num_epochs", "learning_rate", "optimizer")
RECOGNITIONS = (
    Recognition("Kubernetes", (("apiVersion", "kind"),)),
    Recognition("SkyPilot", (("resources", "run"),)),
    Recognition("Primus", (("work_group", "modules"), ("modules.pre_trainer",)), "primus"),
    Recognition(
        "SageMaker HyperPod",
        (("training_config.model_config",), ("training_config.training_args",)),
    ),
    Recognition("NeuronX Distributed Training", (("distributed_strategy", "model_source"),)),
    Recognition("align-anything", (("train_cfgs", "model_cfgs"),)),
    Recognition("leap-finetune", (("training_type", "training_config"),)),
    Recognition("Weights & Biases", (("_wandb.value",),), "wandb"),
    Recognition(
        "Weights & Biases (last values of a run, whose config.yaml is read)",
        (("_runtime", "_step"), ("_wandb.runtime",)),
    ),
    Recognition("MosaicML's command line", (("integrations", "compute", "command"),)),
    Recognition("ArcticTraining", (("data.sources", "model.name_or_path"),)),
    Recognition("dolomite-engine", (("model_args", "training_parameters"),)),
    Recognition("DistillKit", (("teacher", "loss_functions"),)),
    Recognition("nnScaler", (("compute_config", "pas_policy"),)),
    Recognition("ChatLearn", (("models", "runtime_args"),)),
    Recognition("verl", (("actor_rollout_ref",),)),
    Recognition("slime", (("rollout_num_gpus",), ("actor_num_gpus_per_node",))),
    Recognition("NeMo-RL", (("policy", "grpo"), ("policy", "sft"), ("policy", "dpo"))),
    Recognition("NeMo for AWS Neuron", (("trainer", "model.wrap_with_zero"),)),
    Recognition(
        "NeMo",
        (("trainer", "model.encoder_seq_length", "model.num_layers"),),
        "nemo",
    ),
    Recognition("Megatron-Bridge", (("recipe._target_", "train"),), "megatron-bridge-recipe"),
    Recognition(
        "NeMo",
        (("exp_manager",), ("trainer.num_nodes",), ("run.results_dir",), ("recipe._target_",)),
    ),
    Recognition(
        "Megatron-Bridge",
        (("model.num_layers", "model.hidden_size", "train.global_batch_size"),),
        "megatron-bridge-config",
    ),
    Recognition(
        "Megatron-Bridge (overrides of a recipe; its run_config.yaml is read)",
        (("train.train_iters", "dist"), ("train.global_batch_size", "rng"), ("train.train_iters",)),
    ),
    Recognition("NeMo AutoModel", (("model._target_", "step_scheduler"),), "automodel"),
    Recognition("NeMo AutoModel", (("model._target_",), ("step_scheduler",))),
    Recognition("Megatron-LM (MODEL_ARGS)", (("MODEL_ARGS",),), "megatron-arguments"),
    Recognition("Megatron-LM (--yaml-cfg)", (("language_model", "model_parallel"),)),
    Recognition("torchtune", (("model._component_",), ("tokenizer._component_",)), "torchtune"),
    Recognition("OLMo", (("model.d_model",), ("model.mlp_ratio",))),
    Recognition("llm-foundry", (("device_train_microbatch_size",), ("variables.data_local",))),
    Recognition(
        "MaxText",
        (
            ("base_emb_dim",),
            ("ici_fsdp_parallelism",),
            ("ici_tensor_parallelism",),
            ("base_config",),
            ("per_device_batch_size", "max_target_length"),
            ("per_device_batch_size", "run_name"),
            ("per_device_batch_size", "model_name"),
        ),
    ),
    Recognition("GPT-NeoX", (("pipe_parallel_size",), ("pipe-parallel-size",))),
    Recognition("oumi", (("model.model_name", "training.trainer_type"),)),
    Recognition(
        "torchtitan in YAML (a Python recipe or TOML is read)",
        (("parallelism.data_parallel_shard_degree",), ("parallelism.pipeline_parallel_degree",)),
    ),
    Recognition(
        "VeOmni",
        (("train.accelerator",), ("model.ops_implementation",), ("model.model_path", "train")),
    ),
    Recognition("LitGPT", (("train.micro_batch_size", "train.global_batch_size"),)),
    Recognition("FlagScale", (("experiment.task",), ("system", "model.num_layers"))),
    Recognition("Levanter", (("trainer.tracker",), ("trainer.train_batch_size",))),
    Recognition(
        "LLaMA-Factory v1",
        (
            ("model_class", "dist_config"),
            ("model_class", "train_dataset"),
            ("model", "model_class"),
        ),
    ),
    Recognition(
        "LLaMA-Factory with Megatron",
        (("finetuning_type", "tensor_model_parallel_size"), ("stage", "use_distributed_optimizer")),
    ),
    Recognition("LLaMA-Factory with KTransformers", (("use_kt",), ("kt_config",))),
    Recognition(
        "LLaMA-Factory",
        (
            ("finetuning_type",),
            ("cutoff_len",),
            ("model_name_or_path", "stage"),
            ("model_name_or_path", "template"),
        ),
        "llama-factory",
    ),
    Recognition("mergekit", (("merge_method",),)),
    Recognition(
        "axolotl",
        (
            *(("base_model", key) for key in _OF_AXOLOTL),
            *(("base_model", "datasets", key) for key in _OF_TRAINERS),
        ),
        "axolotl",
    ),
    Recognition("accelerate", (("distributed_type",), ("compute_environment",)), "accelerate"),
    Recognition(
        "ms-swift (Megatron)",
        (
            ("model", "expert_model_parallel_size", "max_length"),
            ("model", "tensor_model_parallel_size", "max_length"),
            ("model", "global_batch_size", "max_length"),
        ),
        "megatron-swift",
    ),
    Recognition(
        "ms-swift",
        (
            ("tuner_type",),
            ("train_type",),
            ("rlhf_type",),
            ("model", "per_device_train_batch_size"),
        ),
        "ms-swift",
    ),
    Recognition(
        "Hugging Face's Trainer",
        (("per_device_train_batch_size",), ("model_name_or_path", "learning_rate")),
        "trainer",
    ),
    Recognition("Hydra that is put together of others (defaults)", (("defaults",),)),
    Recognition(
        "sizes of a model of Megatron-LM alone",
        (("num_layers", "hidden_size", "num_attention_heads"),),
    ),
)
"""Frameworks in the order in which documents are compared with them."""
DEEPSPEED_ALONE = {"zero_optimization", *BATCHES[:2], OWN}
"""Keys that make a JSON document DeepSpeed's whatever else it has; the third of BATCHES is a key of
the Trainer too."""
DEEPSPEED_KEYS = {row.key.partition(".")[0] for row in CONFIG} - {"sequence_parallel_size"}
"""Keys that it may have; that one is of ms-swift and LLaMA-Factory too (spellings.py)."""
_INCLUDE = re.compile(r"(?<=: )!include\b")
"""The tag with which Levanter includes other files; readers of what is read refuse it."""
SECTIONS_OF_NANOTRON = ("parallelism", "model", "tokens", "general")


def framework_of_document(text: str, file: str) -> str:
    """The reader of a YAML document. Raises InputError naming the framework of one that is not
    read, or nanotron's sections where the document has none of them."""
    content = parse_yaml(_INCLUDE.sub("", text), file)
    if not isinstance(content, dict):
        return "nanotron"
    recognised = recognition_of(content)
    if recognised is not None:
        if recognised.reader:
            return recognised.reader
        raise InputError(
            f"{file}: is a file of {recognised.title}, which is not read: give the model, the "
            "batch and the plan to plan3d estimate"
        )
    own = [name for name in SECTIONS_OF_NANOTRON if isinstance(content.get(name), dict)]
    if len(own) < 2 and "parallelism" not in own:
        raise InputError(
            f"{file}: has keys of no framework that plan3d reads, and not two of nanotron's "
            f"sections ({', '.join(SECTIONS_OF_NANOTRON)})"
        )
    return "nanotron"


def framework_of_json(text: str, file: str) -> str:
    """The reader of a JSON document: DeepSpeed's unless it has keys of another framework, as the
    arguments have that ms-swift saves. Raises InputError where it has keys of none."""
    try:
        content = parse_json(text, file)
    except InputError:
        return "deepspeed"
    if not isinstance(content, dict) or content.keys() & DEEPSPEED_ALONE:
        return "deepspeed"
    if recognition_of(content) is not None:
        return framework_of_document(text, file)
    if content and not content.keys() & DEEPSPEED_KEYS:
        raise InputError(
            f"{file}: has keys of no framework that plan3d reads, and none of DeepSpeed's "
            "configuration (a model's config.json goes to --model)"
        )
    return "deepspeed"


def recognition_of(content: dict[str, Any]) -> Recognition | None:
    """The first framework of whose keys a document has one of the alternatives."""
    for recognition in RECOGNITIONS:
        for keys in recognition.alternatives:
            if all(_has_key(content, key) for key in keys):
                return recognition
    return None


def _has_key(content: dict[str, Any], path: str) -> bool:
    """Whether a document has a key at a path."""
    section, _, key = path.rpartition(".")
    inner = content.get(section) if section else content
    return isinstance(inner, dict) and key in inner
