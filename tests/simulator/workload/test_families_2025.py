"""Model families of 2025 and 2026: exact parameters from their configurations, or refused by name.

families_2025.json holds keys of published configurations (Granite 4, Nemotron, MiniMax-Text-01,
Trinity, Kimi-Linear, Ling) or of the defaults of a configuration class, and the parameters of the
model that transformers 5.24.0 (Apache-2.0) builds from them on PyTorch's meta device. `active`
counts top_k of the routed experts. Ling's total is the sum over its published tensors.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plan3d.cli.catalogue.catalogues import model_record
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.workload.blocks import LinearAttention
from plan3d.simulator.workload.hf_families import FAMILIES, UNSUPPORTED_TYPES
from plan3d.simulator.workload.model import Model

HERE = Path(__file__).parent
CASES: dict[str, Any] = json.loads((HERE / "families_2025.json").read_text())

EXACT_TYPES = """
afmoe arcee axk1 bailing_hybrid bailing_moe_v2 bamba cohere2 cwm deepseek_v3 deepseek_v32 dots1
ernie4_5 ernie4_5_moe exaone4 exaone_moe flex_olmo flint gemma3_text glm4 glm4_moe glm4_moe_lite
glm_moe_dsa gpt_oss granite_swa granitemoe_swa granitemoehybrid helium hunyuan_v1_dense hy_v3
iquestcoder jais2 kimi_k2 kimi_linear kolibri1 laguna llama4_text mellum minimax minimax_m2
ministral ministral3 nanochat nemotron_h olmo2 olmo3 qwen3 qwen3_5_moe_text qwen3_5_text qwen3_moe
qwen3_next sarvam_mla sarvam_moe seed_oss smollm3 solar_open vaultgemma youtu
"""
EXACT = tuple(EXACT_TYPES.split())
REFUSED = {
    "apertus": "activations with weights",
    "beam": "a gate of attention with biases",
    "bitnet": "1.58 bits",
    "deepseek_v4": "residual streams",
    "diffllama": "differential attention",
    "falcon_h1": "Mamba",
    "gemma3n_text": "embeddings in every layer",
    "gemma4_text": "embeddings in every layer",
    "jamba": "Mamba",
    "lfm2": "short convolutions",
    "longcat_flash": "two attentions a layer",
    "mimo_v2_flash": "two widths of heads",
    "olmo_hybrid": "linear-attention",
    "zamba2": "Mamba",
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_total_and_active_parameters(name: str) -> None:
    case = CASES[name]
    found = Model.from_config_values(case["config"], name)
    assert (found.parameters, found.active_parameters) == (case["total"], case["active"])


def test_every_family_is_exact_or_refused_by_name() -> None:
    """Counts of the exact ones: here, in class_defaults.json or in hf_configs."""
    assert len(EXACT) >= 36
    assert set(EXACT) <= set(FAMILIES)
    for kind, reason in REFUSED.items():
        assert reason in UNSUPPORTED_TYPES[kind]
        with pytest.raises(InputError, match="not modelled"):
            Model.from_config_values({"model_type": kind}, "mine")


def changed(name: str, **values: object) -> Model:
    config = {**CASES[name]["config"], **values}
    return Model.from_config_values({k: v for k, v in config.items() if v != "-"}, name)


def refusal(name: str, **values: object) -> str:
    with pytest.raises(InputError) as caught:
        changed(name, **values)
    return str(caught.value)


def test_tensors_of_a_mamba_layer() -> None:
    """Granite 4.0 H Small: 128 heads of 64, one group, a state of 128, convolutions of 4."""
    model = Model.from_config_values(CASES["granite-4.0-h-small"]["config"], "granite")
    mixer = model.kinds[0].attention
    assert isinstance(mixer, LinearAttention)
    inner, convolved = 128 * 64, 128 * 64 + 2 * 128
    projections = 4096 * (inner + convolved + 128) + inner * 4096
    assert mixer.parameters(4096) == projections + convolved * 5 + 3 * 128
    assert mixer.norm_parameters() == inner
    assert mixer.state_elements == 128 * 64 * 128
    layers = [isinstance(model.kinds[kind].attention, LinearAttention) for kind in model.order]
    assert [i for i, is_linear in enumerate(layers) if not is_linear] == [5, 15, 25, 35]


def test_tensors_of_a_gated_delta_net() -> None:
    """Qwen3-Next: 16 key heads and 32 value heads of 128; full attention in every 4th layer has
    a gate as wide as its queries."""
    model = Model.from_config_values(CASES["qwen3-next-80b-a3b"]["config"], "qwen3-next")
    linear, full = model.kinds[0].attention, model.kinds[model.order[3]].attention
    keys, values, h = 16 * 128, 32 * 128, 2048
    assert linear.parameters(h) == (
        h * (2 * keys + 2 * values + 2 * 32) + (2 * keys + values) * 4 + 2 * 32 + values * h
    )
    assert full.parameters(h) == h * (2 * 16 * 256 + 2 * 2 * 256) + 16 * 256 * h
    assert full.gate_width == 16 * 256


def test_layers_of_one_part_keep_their_number() -> None:
    model = Model.from_config_values(CASES["nemotron-3-nano-30b-a3b"]["config"], "nano")
    assert model.layers == 52
    assert sum(bool(model.kinds[kind].experts) for kind in model.order) == 23
    assert sum(bool(model.kinds[kind].attention.kv_heads) for kind in model.order) == 29
    assert {kind.norms for kind in model.kinds} == {1}


def test_patterns_of_other_letters_are_refused() -> None:
    message = refusal("nemotron-nano-9b-v2", hybrid_override_pattern="M-X*")
    assert "it must be 4 letters of M * - E" in message


def test_a_pattern_of_too_many_layers_is_refused() -> None:
    message = refusal("nemotron-nano-9b-v2", hybrid_override_pattern="M" * 10_001)
    assert "it must be 10000 letters" in message


def test_a_list_of_layers_is_read_as_the_pattern_of_letters() -> None:
    """Of lists the first 10,000 layers at most are known."""
    names = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
    for case in ("nemotron-nano-9b-v2", "nemotron-3-nano-30b-a3b"):
        config = dict(CASES[case]["config"])
        pattern = config.pop("hybrid_override_pattern")
        config["layers_block_type"] = [names[letter] for letter in pattern]
        listed = Model.from_config_values(config, "listed")
        assert listed == Model.from_config_values(CASES[case]["config"], "listed")
    message = refusal("nemotron-nano-9b-v2", layers_block_type=["mlp"] * 10_001)
    assert "it must be a list of 10000 layers" in message


def test_layers_counted_from_one() -> None:
    config = CASES["kimi-linear-48b-a3b"]["config"]
    nested = {**config["linear_attn_config"], "full_attn_layers": [0]}
    assert "layer numbers from 1 to 27" in refusal("kimi-linear-48b-a3b", linear_attn_config=nested)


@pytest.mark.parametrize(
    ("name", "mixer"),
    [
        ("granite-4.0-h-tiny", "Mamba-2"),
        ("qwen3-next-80b-a3b", "gated delta net"),
        ("kimi-linear-48b-a3b", "Kimi delta attention"),
        ("minimax-text-01", "lightning attention"),
    ],
)
def test_layers_with_a_state_are_read(name: str, mixer: str) -> None:
    model = Model.from_config_values(CASES[name]["config"], name)
    assert {layer.mixer for layer in model.linear_attention} == {mixer}


def test_a_hybrid_type_whose_layers_are_all_attention_is_a_transformer() -> None:
    """By layer_types, not by model_type."""
    model = Model.from_config_values(CASES["granite-4.0-micro"]["config"], "micro")
    assert not any(isinstance(kind.attention, LinearAttention) for kind in model.kinds)
    h, ffn, kv = 2560, 8192, 8 * 64
    layer = 2 * h * h + 2 * h * kv + 3 * h * ffn + 2 * h
    assert model.parameters == 100352 * h + 40 * layer + h


def test_a_screen_lists_the_mixers_of_a_hybrid() -> None:
    model = Model.from_config_values(CASES["nemotron-nano-9b-v2"]["config"], "nano")
    record = model_record(model)
    assert record["layer_mixers"] == {"Mamba-2": 27, "none": 25, "attention": 4}
    assert (record["heads"], record["kv_heads"], record["head_dim"]) == (40, 8, 128)


UNKNOWN = {"model_type": "nova_moe"}


def test_an_unknown_type_of_known_parts_is_read_and_says_so() -> None:
    model = changed("ling-flash-2.0", **UNKNOWN)
    assert model.parameters == CASES["ling-flash-2.0"]["total"]
    model = changed("ling-flash-2.0", **UNKNOWN, rms_norm_eps=1e-6, rope_theta=600000)
    assert "nova_moe, unknown and read by its parts: two RMSNorms a layer" in model.source
    assert model.rotary_base == 600000


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hc_mult": 4}, "$.hc_mult is 4; model_type"),
        ({"use_sparse_selection": True}, "$.use_sparse_selection is true"),
        ({"mamba_d_state": 128}, "may be state-space (Mamba) or linear-attention layers"),
        ({"layer_types": ["linear_attention"] * 32}, "has linear_attention layers"),
        ({"hidden_act": "gelu"}, "whether its MLP is gated is not stated"),
        ({"hidden_act": "silu", "tie_word_embeddings": "-"}, "$.tie_word_embeddings is missing"),
        ({"num_key_value_heads": "-"}, "$.num_key_value_heads is missing"),
        ({"sliding_window": 4096}, "not which layers have it"),
        ({"shared_expert_intermediate_size": 1000}, "is 1000, neither 1024 nor 1"),
        ({"kv_channels": 128}, "may be in attention too, as those of jetmoe are"),
        ({"ffn_multiplier": 1.5}, "$.ffn_multiplier is 1.5"),
        ({"num_experts": 0}, "$.num_shared_experts is 1 without experts"),
    ],
)
def test_unknown_parts_of_an_unknown_type_are_refused(
    values: dict[str, object], message: str
) -> None:
    assert message in refusal("ling-flash-2.0", **UNKNOWN, **values)


def test_known_parts_of_an_unknown_type() -> None:
    """Windows by a list, an MLP without gate, no experts; each counted by hand."""
    config = {
        "model_type": "nova",
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 256,
        "hidden_act": "relu2",
        "layer_norm_eps": 1e-5,
        "vocab_size": 1000,
        "tie_word_embeddings": True,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_experts": 0,
    }
    model = Model.from_config_values(config, "nova")
    assert [model.kinds[kind].attention.window for kind in model.order] == [128, 0, 128, 0]
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 2 * 64 * 256 + 2 * 2 * 64
    assert model.parameters == 1000 * 64 + 4 * layer + 2 * 64


def test_another_number_is_no_slip_of_a_known_type() -> None:
    """Qwen 5 is not a misspelt Qwen 3."""
    config = {**CASES["granite-4.0-micro"]["config"], "model_type": "qwen5", "head_dim": 64}
    config |= {"intermediate_size": 8192, "shared_intermediate_size": 0}
    assert "qwen5, unknown and read by its parts" in Model.from_config_values(config, "q").source


def test_heads_of_layers_that_differ_are_refused() -> None:
    layers = CASES["laguna"]["config"]["num_hidden_layers"]
    assert "[1] is 64" in refusal("laguna", num_attention_heads_per_layer=[48, 64] * (layers // 2))


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("nemotron-nano-9b-v2", "mlp_bias"),
        ("qwen3-next-80b-a3b", "attention_bias"),
        ("hy_v3", "mlp_bias"),
    ],
)
def test_biases_that_are_not_modelled_are_refused(name: str, key: str) -> None:
    assert key in refusal(name, **{key: True})
