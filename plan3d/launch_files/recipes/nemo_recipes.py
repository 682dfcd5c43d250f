"""Recipes of pretraining that NeMo 2 ships, by module: the model, the plan and the batch.

Source: NeMo 2.5, nemo/collections/llm/recipes, `pretrain_recipe` of each module with its defaults.
"""

from __future__ import annotations

from typing import Any

from .values import Made

COLUMNS = (
    *("module", "model", "tensor_model_parallel_size", "pipeline_model_parallel_size"),
    *("virtual_pipeline_model_parallel_size", "context_parallel_size"),
    *("expert_model_parallel_size", "sequence_parallel", "num_nodes", "devices", "seq_length"),
    *("global_batch_size", "micro_batch_size", "overlaps", "recompute_granularity"),
)
RECIPES = """
deepseek_v2 deepseek-v2 1 4 1 1 32 1 16 8 4096 512 1 1 full
deepseek_v2_lite deepseek-v2-lite 1 1 1 1 8 1 1 8 4096 512 1 1 none
gemma2_27b gemma-2-27b 8 2 1 1 1 0 2 8 4096 32 2 1 none
gemma2_2b gemma-2-2b 2 1 1 1 1 0 1 8 4096 32 2 1 none
gemma2_9b gemma-2-9b 8 1 1 1 1 0 1 8 4096 32 2 1 none
gemma3_1b gemma-3-1b 1 1 1 1 1 0 1 8 8192 512 1 1 none
gemma_2b gemma-2b 1 1 1 2 1 0 1 8 8192 512 1 1 none
gemma_7b gemma-7b 2 1 1 2 1 0 1 8 8192 512 1 1 none
gpt3_175b gpt3-175b 4 8 6 1 1 1 1 8 2048 2048 2 1 none
llama2_7b llama-2-7b 2 1 1 1 1 0 1 8 4096 512 1 1 none
llama31_405b llama-3.1-405b 8 8 2 4 1 1 1 8 8192 512 1 1 none
llama31_70b llama-3.1-70b 4 4 5 2 1 1 1 8 8192 512 1 1 none
llama31_8b llama-3.1-8b 1 1 1 2 1 0 1 8 8192 512 1 1 none
llama32_1b llama-3.2-1b 1 1 1 1 1 0 1 8 8192 512 1 1 none
llama32_3b llama-3.2-3b 1 1 1 1 1 0 1 8 8192 512 1 1 none
llama3_70b llama-3-70b 4 4 5 2 1 1 1 8 8192 512 1 1 none
llama3_70b_16k llama-3-70b 8 2 1 2 1 1 4 8 16384 512 1 1 none
llama3_70b_64k llama-3-70b 8 4 1 8 1 1 32 8 65536 512 1 1 none
llama3_8b llama-3-8b 1 1 1 2 1 0 1 8 8192 512 1 1 none
llama3_8b_128k llama-3-8b 4 2 1 8 1 1 8 8 131072 512 1 1 none
llama3_8b_16k llama-3-8b 4 2 1 2 1 1 2 8 16384 512 1 1 none
llama3_8b_64k llama-3-8b 4 2 1 4 1 1 4 8 65536 512 1 1 none
mistral_7b mistral-7b 1 1 1 2 1 0 1 8 4096 512 1 1 none
mistral_nemo_12b mistral-nemo-12b 2 1 1 2 1 1 1 8 8192 512 1 1 none
mixtral_8x22b mixtral-8x22b 2 4 14 2 8 1 16 8 4096 512 1 1 none
mixtral_8x22b_64k mixtral-8x22b 2 4 14 2 8 1 16 8 65536 512 1 1 none
mixtral_8x7b mixtral-8x7b 1 4 8 1 8 0 8 8 4096 512 1 1 none
mixtral_8x7b_16k mixtral-8x7b 4 2 1 4 1 1 4 8 16384 512 1 1 none
mixtral_8x7b_64k mixtral-8x7b 8 4 1 4 1 1 16 8 65536 512 1 1 none
phi3_mini_4k_instruct phi-3-mini 1 1 1 1 1 0 1 1 4096 512 1 1 none
qwen25_14b qwen2.5-14b 4 1 1 1 1 0 1 8 4096 32 2 0 none
qwen25_1p5b qwen2.5-1.5b 1 1 1 1 1 0 1 8 4096 32 2 0 none
qwen25_32b qwen2.5-32b 8 2 1 1 1 0 2 8 4096 32 2 0 none
qwen25_500m qwen2.5-0.5b 1 1 1 1 1 0 1 8 4096 32 2 0 none
qwen25_72b qwen2.5-72b 8 4 1 1 1 0 4 8 4096 32 2 0 none
qwen25_7b qwen2.5-7b 2 1 1 1 1 0 1 8 4096 32 2 0 none
qwen2_1p5b qwen2.5-1.5b 1 1 1 1 1 0 1 8 4096 32 2 0 none
qwen2_500m qwen2.5-0.5b 1 1 1 1 1 0 1 8 4096 32 2 0 none
qwen2_72b qwen2.5-72b 8 4 1 1 1 0 4 8 4096 32 2 0 none
qwen2_7b qwen2.5-7b 2 1 1 1 1 0 1 8 4096 32 2 0 none
qwen3_14b qwen3-14b 8 1 1 1 1 0 1 8 4096 32 2 1 none
qwen3_1p7b qwen3-1.7b 1 1 1 1 1 0 1 8 4096 32 2 1 none
qwen3_235b_a22b qwen3-235b-a22b 4 16 1 2 8 1 16 8 4096 32 1 1 none
qwen3_30b_a3b qwen3-30b-a3b 4 2 1 1 4 1 1 8 4096 32 2 1 full
qwen3_32b qwen3-32b 8 2 1 1 1 0 2 8 4096 32 2 1 full
qwen3_4b qwen3-4b 2 1 1 1 1 0 1 8 4096 32 2 1 none
qwen3_600m qwen3-0.6b 1 1 1 1 1 0 1 8 4096 32 2 1 none
qwen3_8b qwen3-8b 4 1 1 1 1 0 1 8 4096 32 2 1 none
"""
"""One a line, by column."""
COUNTING = ("llama31_405b", "qwen3_235b_a22b")
"""Modules whose embedding and loss count as layers of the stages."""
COUNTED_ENDS = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
_STRATEGY = COLUMNS[2:8]
_DATA = ("seq_length", "global_batch_size", "micro_batch_size")


def nemo_recipe(module: str, fields: dict[str, Any]) -> Made | None:
    """The recipe of a module, with the nodes and GPUs of its call; None of an unknown module."""
    lines = (dict(zip(COLUMNS, line.split(), strict=True)) for line in RECIPES.split("\n") if line)
    row = next((row for row in lines if row["module"] == module), None)
    if row is None:
        return None
    numbers = {name: int(text) for name, text in row.items() if text.isdecimal()}
    strategy: dict[str, Any] = {name: numbers[name] for name in _STRATEGY}
    strategy["sequence_parallel"] = bool(numbers["sequence_parallel"])
    if module in COUNTING:
        strategy |= dict.fromkeys(COUNTED_ENDS, True)
    names = ("overlap_grad_reduce", "overlap_param_gather")
    overlaps = dict.fromkeys(names, bool(numbers["overlaps"]))
    is_full = row["recompute_granularity"] == "full"
    config = {"recompute_granularity": "full", "recompute_method": "uniform"} if is_full else {}
    trainer = {
        "num_nodes": fields.get("num_nodes", numbers["num_nodes"]),
        "devices": fields.get("num_gpus_per_node", numbers["devices"]),
        "plugins": Made("bf16_mixed"),
        "strategy": Made("MegatronStrategy", fields={**strategy, "ddp": Made("", [], overlaps)}),
    }
    return Made(
        "pretrain",
        fields={
            "model": Made(
                "", fields={"config": Made(row["model"].replace(".", ""), fields=config)}
            ),
            "data": Made("", fields={name: numbers[name] for name in _DATA}),
            "trainer": Made("Trainer", fields=trainer),
            "optim": Made("", fields={"config": Made("", [], {"use_distributed_optimizer": True})}),
            "performance_mode": fields.get("performance_mode"),
        },
    )
