"""Presets of the Hub have the parameters that the Hub states, and are found by their ids."""

from __future__ import annotations

import pytest

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.workload.model import Model
from plan3d.simulator.workload.presets import (
    hub_id_of,
    hub_models,
    is_hub_id,
    preset_names,
    preset_of_id,
)

TOWER = 416_866_032
"""Parameters of the vision tower (SigLIP so400m, 896 pixels) that checkpoints of Gemma 3 hold."""
PUBLISHED = {
    "codellama-34b": 33_743_970_304,
    "deepseek-llm-7b": 6_910_365_696,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v2-lite": 15_706_484_224,
    "ernie-4.5-21b-a3b": 21_825_437_888,
    "falcon-40b": 41_303_293_952,
    "gemma-2-27b": 27_227_128_320,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2b": 2_506_172_416,
    # The checkpoint, less its tower and the projection into the text model with its norm.
    "gemma-3-12b": 12_187_325_040 - TOWER - 1152 * (3840 + 1),
    "gemma-3-27b": 27_432_406_640 - TOWER - 1152 * (5376 + 1),
    "gemma-3-4b": 4_300_079_472 - TOWER - 1152 * (2560 + 1),
    "gemma-7b": 8_537_680_896,
    "glm-4-9b": 9_400_279_040,
    "gpt-neox-20b": 20_554_567_680,
    "gpt-oss-120b": 116_829_156_672,
    "gpt-oss-20b": 20_914_757_184,
    "gpt2-xl": 1_557_611_200,
    "granite-4.0-h-small": 32_207_337_984,
    "granite-4.0-h-tiny": 6_939_037_248,
    "granite-3.1-2b": 2_533_531_648,
    "granite-3.1-8b": 8_170_848_256,
    # Less the biases of the routers, which balance experts and are not trained by gradients.
    "kimi-k2": 1_026_408_232_448 - 60 * 384,
    "llama-3-70b": 70_553_706_496,
    "llama-3-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.3-70b": 70_553_706_496,
    "mistral-7b": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "mistral-large-123b": 122_610_069_504,
    "mistral-nemo-12b": 12_247_782_400,
    "mistral-small-24b": 23_572_403_200,
    "mixtral-8x22b": 140_620_634_112,
    "minimax-m2": 228_689_748_992,
    "mpt-7b": 6_649_286_656,
    "olmo-1b": 1_176_764_416,
    "olmo-2-13b": 13_716_198_400,
    "olmo-2-32b": 32_234_279_936,
    "olmo-7b": 6_888_095_744,
    "phi-3.5-mini": 3_821_079_552,
    "phi-3.5-moe": 41_873_153_344,
    "phi-4": 14_659_507_200,
    "phi-4-mini": 3_836_021_760,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-72b": 72_706_203_648,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-14b": 14_768_307_200,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-32b": 32_762_123_264,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-coder-480b-a35b": 480_154_875_392,
    "seed-oss-36b": 36_151_104_512,
    "smollm2-1.7b": 1_711_376_384,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm3-3b": 3_075_098_624,
    "tinyllama-1.1b": 1_100_048_384,
    "yi-34b": 34_388_917_248,
    "yi-6b": 6_061_035_520,
}
"""The totals that the Hub shows of each checkpoint's safetensors."""


def test_parameters_are_those_that_the_hub_states() -> None:
    found = {name: Model.preset(name).parameters for name in PUBLISHED}
    assert found == PUBLISHED


@pytest.mark.parametrize("name", sorted(hub_models().configs))
def test_every_preset_reads(name: str) -> None:
    assert Model.preset(name).name == name
    assert name in preset_names()


@pytest.mark.parametrize(
    ("hub_id", "preset"),
    [
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("google/gemma-3-4b-it", "gemma-3-4b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
    ],
)
def test_hub_ids(hub_id: str, preset: str) -> None:
    assert preset_of_id(hub_id) == preset
    assert Model.preset(hub_id) == Model.preset(preset)


def test_every_id_is_that_of_a_preset() -> None:
    names = {*preset_names()}
    for hub_id, preset in hub_models().ids.items():
        assert is_hub_id(hub_id)
        assert preset in names
        assert preset_of_id(hub_id) == preset
    assert hub_id_of("gpt3-175b") == ""


def test_an_unknown_id_names_the_nearest() -> None:
    with pytest.raises(InputError, match=r"give its config.json; did you mean qwen/qwen2.5-7b"):
        Model.preset("Qwen/Qwen2.5-8B")
    assert not is_hub_id("examples/mine.json")
