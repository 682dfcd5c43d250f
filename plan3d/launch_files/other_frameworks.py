"""Documents of frameworks that are not read, recognised by their keys.

Source: examples/train_full of LLaMA-Factory, examples of axolotl, accelerate's config of
`accelerate config`, NeMo 1 and 2, NeMo-RL, torchtune's recipes, verl's ppo_trainer.yaml,
llm-foundry's and OLMo's pretraining files, MaxText's base.yml, Primus, Megatron-LM's --yaml-cfg.
"""

from __future__ import annotations

from typing import Any

from plan3d.simulator.base.errors import InputError

FRAMEWORKS: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...] = (
    ("LLaMA-Factory", (("finetuning_type",), ("cutoff_len",), ("model_name_or_path", "stage"))),
    ("axolotl", (("base_model", "micro_batch_size"), ("base_model", "sequence_len"))),
    ("accelerate", (("distributed_type",), ("compute_environment",))),
    ("verl", (("actor_rollout_ref",),)),
    ("NeMo-RL", (("policy", "grpo"), ("policy", "sft"), ("policy", "dpo"))),
    (
        "NeMo",
        (
            ("exp_manager",),
            ("trainer.num_nodes",),
            ("run.results_dir",),
            ("recipe._target_",),
            ("model._target_",),
            ("model.tensor_model_parallel_size",),
        ),
    ),
    ("Megatron-LM (--yaml-cfg)", (("language_model", "model_parallel"),)),
    ("torchtune", (("model._component_",), ("tokenizer._component_",))),
    ("OLMo", (("model.d_model", "device_train_microbatch_size"), ("model.mlp_ratio",))),
    ("llm-foundry", (("device_train_microbatch_size",), ("fsdp_config",), ("variables.data_local",))),
    (
        "MaxText",
        (
            ("base_emb_dim",),
            ("ici_fsdp_parallelism",),
            ("ici_tensor_parallelism",),
            ("base_config",),
            ("per_device_batch_size",),
        ),
    ),
    ("Levanter", (("trainer.tracker",), ("trainer.mp",), ("trainer.train_batch_size",))),
    ("Primus", (("work_group", "modules"), ("exp_name", "modules"), ("modules.pre_trainer",))),
    ("ms-swift", (("tuner_type",), ("train_type",), ("rlhf_type",))),
    ("the Hugging Face Trainer", (("per_device_train_batch_size",), ("model_name_or_path",))),
    ("Kubernetes", (("apiVersion", "kind"),)),
    ("SkyPilot", (("resources", "run"),)),
)
"""Frameworks with alternatives of the keys, by path, that their documents have, in the order in
which documents are compared with them."""
SECTIONS_OF_NANOTRON = ("parallelism", "model", "tokens", "general")


def check_nanotron(content: Any, file: str) -> None:
    """Raise InputError for a document that is another framework's, or has none of nanotron's
    sections."""
    if not isinstance(content, dict) or {"parallelism", "tokens"} <= content.keys():
        return
    name = framework_of(content)
    if name:
        raise InputError(
            f"{file}: is a file of {name}, which is not read: give the model, the batch and the "
            "plan to plan3d estimate"
        )
    if not content.keys() & set(SECTIONS_OF_NANOTRON):
        sections = ", ".join(SECTIONS_OF_NANOTRON[:-1])
        raise InputError(f"{file}: has none of nanotron's sections ({sections})")


def framework_of(content: dict[str, Any]) -> str:
    """The first framework of whose keys a document has one of the alternatives; '' for none."""
    for name, alternatives in FRAMEWORKS:
        if any(all(_has_key(content, key) for key in keys) for keys in alternatives):
            return name
    return ""


def _has_key(content: dict[str, Any], path: str) -> bool:
    """Whether a document has a key at a path."""
    section, _, key = path.rpartition(".")
    inner = content.get(section) if section else content
    return isinstance(inner, dict) and key in inner
