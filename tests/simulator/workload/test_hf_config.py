"""A config.json gives the published model to the last parameter, or one clear line."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.workload.hf_families import FAMILIES
from plan3d.simulator.workload.model import Model

CONFIGS = Path(__file__).parent / "hf_configs"
ROWS = list(csv.DictReader((CONFIGS / "cases.csv").read_text(encoding="utf-8").splitlines()))
HYBRID = "nemotron-h-56b"
TRANSFORMERS = [row for row in ROWS if row["name"] != HYBRID]
COMPONENTS = {
    "p_embed": "embedding",
    "p_pos_embed": "positions",
    "p_head": "head",
    "p_attn": "attention",
    "p_mlp": "mlp",
    "p_experts": "experts",
    "p_router": "router",
    "p_shared": "shared_experts",
    "p_norm": "norms",
}


def published(name: str) -> dict[str, Any]:
    config = json.loads((CONFIGS / f"{name}.json").read_text(encoding="utf-8"))
    assert isinstance(config, dict)
    return config


def changed(name: str, **values: object) -> Model:
    return Model.from_config_values(published(name) | values, name)


def refusal(config: object) -> str:
    with pytest.raises(InputError) as caught:
        Model.from_config_values(config, "mine")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_there_are_64_transformers_and_one_hybrid() -> None:
    assert len(TRANSFORMERS) == 64
    assert len(ROWS) == 65
    assert len(list(CONFIGS.glob("*.json"))) == 65


@pytest.mark.parametrize("row", TRANSFORMERS, ids=lambda row: row["name"])
def test_parameters_match_component_by_component(row: dict[str, str]) -> None:
    model = Model.from_config(CONFIGS / row["config"])
    expected = {component: int(row[column]) for column, component in COMPONENTS.items()}
    assert model.parameters_by_component == expected
    assert model.parameters == int(row["total_params"])
    assert model.active_parameters == int(row["active_params"])


@pytest.mark.parametrize("row", TRANSFORMERS, ids=lambda row: row["name"])
def test_shapes_match(row: dict[str, str]) -> None:
    model = Model.from_config(CONFIGS / row["config"])
    assert model.name == row["name"]
    attention = model.kinds[0].attention
    sparse = [model.kinds[kind].experts for kind in model.order if model.kinds[kind].experts]
    dense = [model.kinds[kind].mlp for kind in model.order if model.kinds[kind].mlp]
    expert = sparse[0] if sparse else None
    layer = dense[0] or expert if dense else expert
    assert layer is not None
    found = {
        "layers": model.layers,
        "hidden": model.hidden,
        "heads": attention.heads,
        "kv_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "v_head_dim": attention.value_dim,
        "ffn_dense": dense[0].ffn if dense and dense[0] else "",
        "gated_mlp": layer.gated,
        "vocab": model.vocabulary,
        "tied": model.tied,
        "experts": expert.count if expert else 0,
        "topk": expert.top_k if expert else 0,
        "expert_ffn": expert.ffn if expert else "",
        "shared_ffn": expert.shared_ffn if expert else "",
        "moe_layers": len(sparse),
        "dense_layers": len(dense),
        "mtp_layers": model.mtp_layers,
    }
    assert {key: str(value) for key, value in found.items()} == {key: row[key] for key in found}


def test_layers_of_a_hybrid_are_counted_part_by_part() -> None:
    row = next(row for row in ROWS if row["name"] == HYBRID)
    model = Model.from_config(CONFIGS / row["config"])
    assert model.parameters == model.active_parameters == int(row["total_params"])
    assert model.layers == int(row["layers"])


def windows(model: Model) -> list[int]:
    return [model.kinds[kind].attention.window for kind in model.order]


def test_windows_by_the_family_rule() -> None:
    assert windows(changed("mistral-7b-v0.1", sliding_window=4096)) == [4096] * 32
    assert windows(changed("mistral-7b-v0.3", sliding_window=None)) == [0] * 32
    assert windows(changed("gemma-2-2b")) == [4096, 0] * 13
    gemma3 = changed("gemma-3-1b")
    assert windows(gemma3) == ([512] * 5 + [0]) * 4 + [512] * 2
    assert len(gemma3.kinds) == 2
    assert windows(changed("gpt-oss-20b")) == [128, 0] * 12


def test_qwen_windows_need_the_switch_and_start_at_a_layer() -> None:
    qwen = {"sliding_window": 1024, "max_window_layers": 20}
    assert windows(changed("qwen2-7b", **qwen)) == [0] * 28
    assert windows(changed("qwen2-7b", use_sliding_window=True, **qwen)) == [0] * 20 + [1024] * 8
    assert set(windows(changed("qwen3-30b-a3b", use_sliding_window=True, **qwen))) == {1024}


def test_llama4_attends_in_chunks_but_every_fourth_layer() -> None:
    scout = changed("llama-4-scout")
    assert windows(scout) == [8192, 8192, 8192, 0] * 12
    assert [block.attention.chunked for block in scout.kinds] == [True, False]
    text = published("llama-4-scout")["text_config"]
    text["no_rope_layers"] = [0] * 24 + [1] * 24
    assert windows(Model.from_config_values(text, "text")) == [0] * 24 + [8192] * 24


def test_layer_types_overrule_the_rule() -> None:
    types = ["full_attention"] * 13 + ["sliding_attention"] * 13
    assert windows(changed("gemma-2-2b", layer_types=types)) == [0] * 13 + [4096] * 13


def test_which_layers_are_experts() -> None:
    dense = [not changed("deepseek-v3").kinds[kind].experts for kind in (0, 1)]
    assert dense == [True, False]
    model = changed("qwen3-30b-a3b", decoder_sparse_step=2, mlp_only_layers=[3])
    sparse = [bool(model.kinds[kind].experts) for kind in model.order]
    assert sparse[:6] == [False, True, False, False, False, True]
    text = published("llama-4-maverick")["text_config"] | {"moe_layers": [0, 47]}
    model = Model.from_config_values(text, "text")
    assert [layer for layer, kind in enumerate(model.order) if model.kinds[kind].experts] == [0, 47]
    types = ["sparse"] + ["dense"] * 60
    model = changed("deepseek-v3", mlp_layer_types=types)
    assert [layer for layer, kind in enumerate(model.order) if model.kinds[kind].experts] == [0]


def test_experts_end_at_the_layer_that_is_named() -> None:
    """Of 61 layers the first three are dense, and those beyond the 58th."""
    model = changed("deepseek-v3", moe_layer_end_index=57)
    sparse = [layer for layer, kind in enumerate(model.order) if model.kinds[kind].experts]
    assert sparse == list(range(3, 58))


def test_two_rows_of_the_positions_of_opt_stand_for_none() -> None:
    model = changed("opt-125m")
    assert (model.learned_positions, model.idle_positions) == (2050, 2)


def test_switches_in_the_file_overrule_the_family() -> None:
    plain = changed("llama-3.1-8b")
    biased = changed("llama-3.1-8b", attention_bias=True, mlp_bias=True)
    per_layer = (4096 + 2 * 1024) + 4096 + (2 * 14336 + 4096)
    assert biased.parameters - plain.parameters == 32 * per_layer
    assert changed("llama-3.1-8b", tie_word_embeddings=True).parameters_by_component["head"] == 0
    assert changed("pythia-70m", use_parallel_residual=False).kinds[0].parallel is False
    assert changed("falcon-7b", multi_query=False).kinds[0].attention.kv_heads == 71
    assert changed("falcon-7b", parallel_attn=False).kinds[0].norms == 2
    assert changed("aya-23-8b", use_qk_norm=True).kinds[0].attention.query_key_norm == "full"


def test_the_outer_tie_holds_when_the_text_config_is_silent() -> None:
    assert not changed("llama-4-scout").tied
    assert changed("llama-4-scout", tie_word_embeddings=True).tied


def test_null_query_rank_means_uncompressed_but_absence_is_refused() -> None:
    assert changed("deepseek-v2-lite").kinds[0].attention.q_rank == 0
    config = published("deepseek-v2-lite")
    del config["q_lora_rank"]
    assert "$.q_lora_rank is missing" in refusal(config)


def test_a_config_is_named_after_its_file_or_folder(tmp_path: Path) -> None:
    text = json.dumps(published("gpt2"))
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(text, encoding="utf-8")
    (folder / "other.json").write_text(text, encoding="utf-8")
    assert Model.from_config(folder / "config.json").name == "my-model"
    assert Model.from_config(str(folder / "other.json")).name == "other"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is not JSON"),
        (b"{'hidden_size': 1}", "is not JSON"),
        (b"\xff\xfe\xfd", "cannot be read as text"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "is not JSON"),
        (b"[1, 2]", "$ is a list of 2; it must be an object"),
        (b"null", "$ is null; it must be an object"),
    ],
)
def test_files_that_are_no_config(tmp_path: Path, content: bytes, problem: str) -> None:
    file = tmp_path / "broken.json"
    file.write_bytes(content)
    with pytest.raises(InputError) as caught:
        Model.from_config(file)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["missing.json", "", "zero\0byte", "line\nbreak"])
def test_files_that_cannot_be_read(tmp_path: Path, path: str) -> None:
    with pytest.raises(InputError) as caught:
        Model.from_config(f"{tmp_path}/{path}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("llama-3.1-8b", {"hidden_size": None}, "$.hidden_size is null"),
        ("llama-3.1-8b", {"hidden_size": -4}, "$.hidden_size is -4; it must be a whole number"),
        ("llama-3.1-8b", {"hidden_size": 0}, "$.hidden_size is 0"),
        ("llama-3.1-8b", {"hidden_size": 4096.0}, "$.hidden_size is 4096.0"),
        ("llama-3.1-8b", {"hidden_size": True}, "$.hidden_size is true"),
        ("llama-3.1-8b", {"hidden_size": 2**31 + 1}, "from 1 to 2147483648"),
        ("llama-3.1-8b", {"hidden_size": 10**5000}, "is a number beyond 2^64"),
        ("llama-3.1-8b", {"hidden_size": "4096"}, '$.hidden_size is "4096"'),
        ("llama-3.1-8b", {"hidden_size": [4096]}, "$.hidden_size is a list of 1"),
        ("llama-3.1-8b", {"hidden_size": {}}, "$.hidden_size is an object"),
        ("llama-3.1-8b", {"num_hidden_layers": 10**6}, "from 1 to 10000"),
        ("llama-3.1-8b", {"vocab_size": 2**31, "hidden_size": 2**31}, "parameters; at most"),
        ("llama-3.1-8b", {"num_attention_heads": 24}, "24, which does not divide hidden size 4096"),
        ("llama-3.1-8b", {"num_attention_heads": 2**31}, "from 1 to 65536"),
        ("llama-3.1-8b", {"num_key_value_heads": 7}, "does not divide 32 heads; nearest: 4, 8"),
        ("llama-3.1-8b", {"num_key_value_heads": 17}, "divide 32 heads; nearest: 16, 32"),
        ("llama-3.1-8b", {"num_key_value_heads": 64}, "from 1 to 32, the number of heads"),
        ("llama-3.1-8b", {"n_embd": 1024}, "$.n_embd is 1024 but hidden_size is 4096"),
        ("llama-3.1-8b", {"tie_word_embeddings": 1}, "it must be true or false"),
        ("llama-3.1-8b", {"sliding_window": 4096}, "$.sliding_window does not belong to llama"),
        ("llama-3.1-8b", {"num_local_experts": 8}, "does not belong to llama"),
        ("llama-3.1-8b", {"is_encoder_decoder": True}, "only decoder-only"),
        ("llama-3.1-8b", {"model_type": "lama"}, "did you mean llama"),
        ("llama-3.1-8b", {"model_type": None}, "$.model_type is null"),
        ("llama-3.1-8b", {"model_type": "mamba2"}, "state-space (Mamba)"),
        ("llama-3.1-8b", {"model_type": "t5"}, "an encoder"),
        ("llama-3.1-8b", {"text_config": 3}, "$.text_config is 3"),
        ("llama-3.1-8b", {"text_config": {}}, "$.text_config.model_type is missing"),
        ("llama-3.1-8b", {"layer_types": ["full_attention"]}, "it must be a list of 32 layers"),
        ("llama-3.1-8b", {"layer_types": "full"}, '$.layer_types is "full"'),
        (
            "llama-3.1-8b",
            {"layer_types": ["linear_attention"] * 32},
            "$.layer_types has state-space (Mamba) or linear-attention layers",
        ),
        (
            "mistral-7b-v0.3",
            {"layer_types": ["sliding_attention"] * 32},
            "$.layer_types has windows but sliding_window states none",
        ),
        ("llama-3.1-8b", {"hybrid_override_pattern": "M-*"}, "linear-attention"),
        ("mixtral-8x7b", {"num_experts_per_tok": 9}, "from 1 to 8, the number of experts"),
        ("gpt-oss-20b", {"experts_per_token": 2}, "but num_experts_per_tok is 4"),
        ("qwen3-30b-a3b", {"mlp_only_layers": [48]}, "$.mlp_only_layers[0] is 48"),
        ("qwen3-30b-a3b", {"mlp_only_layers": 1}, "it must be a list of layer numbers"),
        ("qwen3-8b", {"head_dim": None}, "$.head_dim is null; a qwen3 config must state it"),
        ("qwen2-7b", {"use_sliding_window": True, "sliding_window": 0}, "$.sliding_window is 0"),
        ("deepseek-v3", {"first_k_dense_replace": 62}, "from 0 to 61"),
        ("deepseek-v3", {"attention_bias": True}, "only false is supported"),
        ("deepseek-v3", {"num_key_value_heads": 8}, "must equal the 128 heads"),
        ("glm-5", {"qk_head_dim": 64}, "must be qk_nope_head_dim + qk_rope_head_dim = 256"),
        ("glm-5", {"q_lora_rank": None}, "the indexer needs compressed queries"),
        ("glm-5", {"indexer_types": ["shared"] * 78}, "$.indexer_types[0]"),
        ("glm-5", {"index_topk_freq": 4}, "only 1 is supported"),
        ("opt-125m", {"word_embed_proj_dim": 512}, "projections in and out are not supported"),
        ("opt-125m", {"do_layer_norm_before": False}, "for opt only true is supported"),
        ("phi-2", {"qk_layernorm": True}, "for phi only false is supported"),
        ("gpt2", {"add_cross_attention": True}, "only decoder-only"),
    ],
)
def test_bad_values_are_named_by_their_path(
    name: str, values: dict[str, object], expected: str
) -> None:
    assert expected in refusal(published(name) | values)


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "vocab_size", "model_type"])
def test_missing_keys_are_named(key: str) -> None:
    config = published("llama-3.1-8b")
    del config[key]
    assert f"$.{key} is missing" in refusal(config)


def test_every_family_names_switches_and_sizes_that_exist() -> None:
    for kind, family in FAMILIES.items():
        assert family.windows in ("", "all", "upper", "interval"), kind
        has_period = family.windows == "interval" or kind in PERIODIC_HYBRIDS
        assert has_period == (family.full_every > 0), kind
        assert family.query_key_norm in ("", "head", "full"), kind


PERIODIC_HYBRIDS = {kind for kind in FAMILIES if kind.startswith(("qwen3_5", "qwen3_next"))}
PERIODIC_HYBRIDS |= {"bailing_hybrid"}
"""Whose full attention comes in every nth layer where the file does not list it."""


NUMBERS = st.one_of(
    st.integers(-2, 200),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from([2**31, 2**31 + 1]),
)
NAMES = ("full_attention", "sliding_attention", "dense", "sparse", *FAMILIES)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=9), st.sampled_from(NAMES))
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
STARTS = [(name["name"], published(name["name"])) for name in ROWS]
KEYS = sorted({key for _, config in STARTS for key in config.get("text_config", config)})


@settings(max_examples=50, deadline=None, database=None)
@given(data=st.data())
def test_a_mutated_config_gives_a_model_or_one_line(data: st.DataObject) -> None:
    name, config = data.draw(st.sampled_from(STARTS))
    config = dict(config.get("text_config", config))
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from(sorted(config) or KEYS) | st.sampled_from(KEYS))
        if data.draw(st.booleans()):
            config.pop(key, None)
        else:
            config[key] = data.draw(ANYTHING)
    nested = data.draw(st.booleans())
    try:
        model = Model.from_config_values({"text_config": config} if nested else config, name)
    except InputError as error:
        message = str(error)
    else:
        message = "$"
        assert model.parameters >= model.active_parameters > 0
        assert sum(model.parameters_by_component.values()) == model.parameters
    assert "$" in message
    assert len(message.splitlines()) == 1


def test_a_model_of_too_many_parameters_is_one_line_that_says_where() -> None:
    config = published("falcon-40b") | {"hidden_size": 2**26, "num_hidden_layers": 1000}
    with pytest.raises(InputError, match=r"^falcon-40b: \$: its sizes give .*; at most 1e\+16$"):
        Model.from_config_values(config, "falcon-40b")


def slipped(name: str, key: str, typed: str) -> dict[str, Any]:
    """A published configuration with another key."""
    config = published(name)
    config[typed] = config.pop(key)
    return config


@pytest.mark.parametrize(
    ("name", "key", "typed"),
    [
        ("llama-3.1-8b", "num_hidden_layers", "num_hidden_layer"),
        ("llama-3.1-8b", "vocab_size", "vocabsize"),
        ("llama-3.1-8b", "model_type", "model_tpye"),
        ("llama-3.1-8b", "num_key_value_heads", "num_key_valu_heads"),
        ("llama-3.1-8b", "tie_word_embeddings", "tie_word_embedings"),
        ("mixtral-8x7b", "num_local_experts", "num_local_expert"),
        ("mixtral-8x7b", "num_experts_per_tok", "num_expert_per_tok"),
        ("starcoder2-7b", "sliding_window", "sliding_windw"),
    ],
)
def test_a_key_that_is_one_slip_off_is_refused(name: str, key: str, typed: str) -> None:
    """Whether the reader would refuse the file without the key, or take a default."""
    assert f"$.{typed} is unknown; did you mean {key}?" in refusal(slipped(name, key, typed))


@pytest.mark.parametrize("key", ["sliding_windw", "num_hidden_layer"])
def test_a_key_beside_the_right_one_is_left_alone(key: str) -> None:
    assert changed("starcoder2-7b", **{key: 1}) == changed("starcoder2-7b")


@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b"])
def test_a_configuration_may_be_a_dict(name: str) -> None:
    config = published(name)
    assert Model.from_config(config, name) == Model.from_config(CONFIGS / f"{name}.json")
    assert Model.from_config(config).name == config["model_type"]
    assert Model.from_config({**config, "_name_or_path": "mine/small"}).name == "small"


def test_numbers_below_one_are_settings() -> None:
    """A quarter of each head of pythia-70m is rotated; norms are kept from 0 by 1e-5."""
    config = {**published("pythia-70m"), "layer_norm_eps": 1e-5}
    settings = Model.from_config(config).settings
    assert (settings.rotary_share, settings.norm_epsilon) == (0.25, 1e-5)
    assert Model.from_config({**config, "rotary_pct": -0.25}).settings.rotary_share == 1.0
