"""Recipes that torchtitan 0.3 ships, by module and function.

Source: torchtitan 0.3.0, torchtitan/models: config_registry.py of the models. A recipe that another
one starts from has the values of that one.
"""

from __future__ import annotations

from typing import Any

from ..recipes.values import Made

COLUMNS = (
    *("family", "recipe", "flavor", "local_batch_size", "seq_len", "tensor_parallel_degree"),
    *("expert_parallel_degree", "schedule", "checkpointing", "compiled", "converters"),
)
RECIPES = """
llama3 llama3_debugmodel debugmodel 8 2048 1 1 Interleaved1F1B SelectiveAC - -
llama3 llama3_8b 8B 1 8192 1 1 1F1B SelectiveAC - -
llama3 llama3_8b_mxfp8 8B 1 8192 1 1 1F1B SelectiveAC model MXFP8LinearConverter
llama3 llama3_70b 70B 8 8192 8 1 1F1B FullAC - -
llama3 llama3_405b 405B 2 8192 8 1 1F1B FullAC model,loss,async Float8LinearConverter
deepseek_v3 deepseek_v3_debugmodel debugmodel 8 2048 1 1 1F1B SelectiveAC - -
deepseek_v3 deepseek_v3_16b 16B 4 4096 1 8 Interleaved1F1B SelectiveAC loss -
deepseek_v3 deepseek_v3_671b 671B 4 4096 1 2 Interleaved1F1B SelectiveAC loss -
deepseek_v3 deepseek_v3_671b_float8 671B 4 4096 1 2 Interleaved1F1B SelectiveAC loss \
Float8LinearConverter,Float8GroupedExpertsConverter
qwen3 qwen3_debugmodel debugmodel 8 2048 1 1 1F1B SelectiveAC - -
qwen3 qwen3_0_6b 0.6B 4 4096 1 1 1F1B SelectiveAC - -
qwen3 qwen3_1_7b 1.7B 4 4096 1 1 1F1B SelectiveAC - -
qwen3 sft_qwen3_8b_math 8B 1 2048 1 1 1F1B SelectiveAC - -
qwen3 qwen3_14b 14B 4 4096 1 1 1F1B FullAC - -
qwen3 qwen3_32b 32B 2 4096 1 1 1F1B FullAC - -
qwen3 qwen3_30b_a3b 30B-A3B 2 4096 1 1 1F1B FullAC - -
qwen3 qwen3_moe_debug debugmodel_moe 4 4096 1 1 1F1B SelectiveAC - -
gpt_oss gpt_oss_debugmodel debugmodel 8 2048 1 1 1F1B None - -
gpt_oss gpt_oss_20b 20b 1 8192 1 1 1F1B FullAC - -
gpt_oss gpt_oss_120b 120b 1 8192 1 1 1F1B FullAC - -
"""
"""One a line, by column; what is compiled, with async where products and collectives overlap."""
ROWS = {
    row["recipe"]: row
    for row in (
        dict(zip(COLUMNS, line.split(), strict=True)) for line in RECIPES.split("\n") if line
    )
}
ROOT = "torchtitan.trainer.Trainer.Config"
"""What makes a recipe."""


def registered_recipe(name: str) -> Made | None:
    """The recipe of a function; None of one that is not known."""
    row = ROWS.get(name)
    if row is None:
        return None
    numbers = {key: int(text) for key, text in row.items() if text.isdecimal()}
    converters = [Made(f"{one}.Config") for one in row["converters"].split(",") if one != "-"]
    compiled = row["compiled"].split(",")
    parts = [part for part in compiled if part in ("model", "loss")]
    compile_fields: dict[str, Any] = {
        "enable": bool(parts),
        "enable_async_tensor_parallel": "async" in compiled,
    }
    compile_fields |= {"components": parts} if parts else {}
    checkpointing = row["checkpointing"]
    return Made(
        ROOT,
        fields={
            "model_spec": Made(
                f"torchtitan.models.{row['family']}.model_registry",
                [row["flavor"]],
                {"converters": converters},
            ),
            "loss": Made("ChunkedLossWrapper.Config"),
            "optimizer": Made("default_adamw"),
            "training": Made(
                "TrainingConfig",
                fields={key: numbers[key] for key in ("local_batch_size", "seq_len")},
            ),
            "parallelism": Made(
                "ParallelismConfig",
                fields={
                    "tensor_parallel_degree": numbers["tensor_parallel_degree"],
                    "expert_parallel_degree": numbers["expert_parallel_degree"],
                    "pipeline_parallel_schedule": row["schedule"],
                },
            ),
            "activation_checkpoint": (
                None if checkpointing == "None" else Made(f"{checkpointing}.Config")
            ),
            "compile": Made("CompileConfig", fields=compile_fields),
        },
    )
