"""The published models are the ones that were published."""

from pathlib import Path

import pytest

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.workload.model import Model
from plan3d.simulator.workload.presets import hub_models, preset_names, table_arguments

CONFIGS = Path(__file__).parent / "hf_configs"
SAME_AS_CONFIG = sorted({file.stem for file in CONFIGS.glob("*.json")} & set(preset_names()))

GPT3 = {
    "gpt3-125m": (12, 768, 12, 64, 0.5e6, 0.125e9),
    "gpt3-350m": (24, 1024, 16, 64, 0.5e6, 0.35e9),
    "gpt3-760m": (24, 1536, 16, 96, 0.5e6, 0.76e9),
    "gpt3-1.3b": (24, 2048, 24, 128, 1e6, 1.517e9),
    "gpt3-2.7b": (32, 2560, 32, 80, 1e6, 2.65e9),
    "gpt3-6.7b": (32, 4096, 32, 128, 2e6, 6.66e9),
    "gpt3-13b": (40, 5140, 40, 128, 2e6, 12.94e9),
    "gpt3-175b": (96, 12288, 96, 128, 3.2e6, 174.6e9),
}
LLAMA = {
    "llama-7b": (32, 4096, 32, 1.0e12, 6_738_415_616, 6_704_594_944),
    "llama-13b": (40, 5120, 40, 1.0e12, 13_015_864_320, 12_910_592_000),
    "llama-33b": (60, 6656, 52, 1.4e12, 32_528_943_616, 32_323_665_920),
    "llama-65b": (80, 8192, 64, 1.4e12, 65_285_660_672, 64_948_797_440),
}
MEGATRON = {
    "megatron-1.7b": (24, 2304, 24, 512, 1.7e9),
    "megatron-3.6b": (32, 3072, 30, 512, 3.6e9),
    "megatron-7.5b": (32, 4096, 36, 512, 7.5e9),
    "megatron-18.4b": (48, 6144, 40, 1024, 18.4e9),
    "megatron-39.1b": (64, 8192, 48, 1536, 39.1e9),
    "megatron-76.1b": (80, 10240, 60, 1792, 76.1e9),
    "megatron-145.6b": (96, 12288, 80, 2304, 145.6e9),
    "megatron-310.1b": (128, 16384, 96, 2160, 310.1e9),
    "megatron-529.6b": (128, 20480, 105, 2520, 529.6e9),
    "megatron-1008b": (160, 25600, 128, 3072, 1008.0e9),
}


@pytest.mark.parametrize("name", GPT3)
def test_gpt3_table(name: str) -> None:
    layers, hidden, heads, head_dim, batch, parameters = GPT3[name]
    model = Model.preset(name)
    block = model.kinds[0]
    assert (model.layers, model.hidden, block.attention.heads) == (layers, hidden, heads)
    assert block.attention.head_dim == head_dim
    assert block.mlp is not None
    assert (block.mlp.ffn, block.mlp.gated, block.mlp.bias) == (4 * hidden, False, True)
    assert (model.vocabulary, model.learned_positions, model.sequence) == (50257, 2048, 2048)
    assert (model.tied, model.norm_bias) == (True, True)
    assert (model.batch_tokens, model.train_tokens) == (batch, 300e9)
    assert model.parameters == pytest.approx(parameters, rel=0.02)


def test_gpt3_heads_need_not_fill_the_hidden_size() -> None:
    xl, thirteen = Model.preset("gpt3-1.3b"), Model.preset("gpt3-13b")
    assert xl.kinds[0].attention.heads * xl.kinds[0].attention.head_dim == 3072
    assert thirteen.kinds[0].attention.heads * thirteen.kinds[0].attention.head_dim == 5120


@pytest.mark.parametrize("name", LLAMA)
def test_llama_table(name: str) -> None:
    layers, hidden, heads, tokens, parameters, approximate = LLAMA[name]
    model = Model.preset(name)
    block = model.kinds[0]
    assert (model.layers, model.hidden, block.attention.heads) == (layers, hidden, heads)
    assert (model.vocabulary, model.sequence) == (32000, 2048)
    assert (model.batch_tokens, model.train_tokens) == (4e6, tokens)
    assert model.parameters == parameters
    assert 12 * layers * hidden**2 + 2 * model.vocabulary * hidden == approximate
    assert model.parameters == pytest.approx(approximate, rel=0.01)


@pytest.mark.parametrize("name", MEGATRON)
def test_megatron_table_and_its_parameter_formula(name: str) -> None:
    """P = 12 l h^2 (1 + 13/(12 h) + (V + s)/(12 l h)), plus the last LayerNorm, 2h.

    Source: Narayanan et al. 2021, equation 2.
    """
    heads, h, layers, sequences, parameters = MEGATRON[name]
    model = Model.preset(name)
    assert (model.layers, model.hidden, model.kinds[0].attention.heads) == (layers, h, heads)
    assert model.kinds[0].attention.head_dim * heads == h
    assert model.batch_tokens == sequences * model.sequence
    assert model.parameters == 12 * layers * h**2 + 13 * layers * h + (51200 + 2048) * h + 2 * h
    assert model.parameters == pytest.approx(parameters, rel=0.03)


def test_which_presets_have_a_config() -> None:
    expected = {"llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "mixtral-8x7b", "deepseek-v3"}
    assert expected <= set(SAME_AS_CONFIG)


@pytest.mark.parametrize("name", SAME_AS_CONFIG)
def test_presets_equal_their_configs(name: str) -> None:
    model, config = Model.preset(name), Model.from_config(CONFIGS / f"{name}.json")
    assert model.parameters_by_component == config.parameters_by_component
    assert model.active_parameters == config.active_parameters
    assert model.mtp_layers == config.mtp_layers
    assert (model.kinds, model.order) == (config.kinds, config.order)
    assert (model.tied, model.norm_bias) == (config.tied, config.norm_bias)


def test_deepseek_v3_as_trained() -> None:
    model = Model.preset("deepseek-v3")
    assert (model.layers, model.mtp_layers, model.sequence) == (61, 1, 4096)
    assert [bool(model.kinds[kind].experts) for kind in model.order[:4]] == [False] * 3 + [True]
    assert model.batch_tokens == 15360 * 4096
    assert model.train_tokens == 14.8e12


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_states_its_source(name: str) -> None:
    model = Model.preset(name)
    assert model.name == name
    assert model.source
    assert model.sequence > 0 or name in hub_models().configs


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(InputError, match=r"no model is called 'gpt3-175'; did you mean gpt3-175b"):
        Model.preset("gpt3-175")


TABLE: dict[str, object] = {
    "layers": 2,
    "hidden": 8,
    "heads": 2,
    "head_dim": 4,
    "ffn": 32,
    "vocabulary": 10,
    "source": "a test",
}


def test_a_table_gives_a_model() -> None:
    model = Model(**table_arguments("small", TABLE))
    assert model.parameters == 2 * (4 * 64 + 3 * 8 * 32 + 16) + 2 * 80 + 8


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"layrs": 2}, "small: $.layrs is unknown; did you mean layers"),
        ({"hidden": "8"}, '$.hidden is "8"; it must be a whole number'),
        ({"ffn": None}, "$.ffn is null"),
        ({"tied": 1}, "$.tied is 1; it must be true or false"),
        ({"query_key_norm": "rms"}, "it must be one of '', 'head', 'full'"),
        ({"source": None}, "$.source is missing; it must be a text"),
        ({"experts": 4, "top_k": 5}, "$.top_k is 5"),
        ({"dense_layers": 3}, "from 0 to 2"),
    ],
)
def test_bad_tables_are_refused(values: dict[str, object], expected: str) -> None:
    with pytest.raises(InputError) as caught:
        Model(**table_arguments("small", TABLE | values))
    assert expected in str(caught.value)
