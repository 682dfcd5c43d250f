"""Families of which no published config stands in hf_configs: the defaults of their public class.

class_defaults.json holds the keys of the defaults of each configuration class of transformers
5.23.0 (with a head_dim, a top_k or switches where the class leaves them open) that this reader
reads, and the parameters of the model built from them on PyTorch's meta device, by part of name.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.workload.hf_families import FAMILIES, UNSUPPORTED_TYPES
from plan3d.simulator.workload.model import Model

CASES: dict[str, Any] = json.loads((Path(__file__).parent / "class_defaults.json").read_text())
NEW: dict[str, Any] = json.loads((Path(__file__).parent / "families_2025.json").read_text())
REMOTE = {"baichuan", "deepseek", "internlm2"}
"""Model types whose code is not in transformers."""
FLAT = {"qwen2_vl", "qwen2_5_vl", "qwen2_vl_text", "qwen3_5", "qwen3_5_moe", "minimax_m1"}
"""Older spellings of a type, or those beside a tower."""


@pytest.mark.parametrize("name", sorted(CASES))
def test_parameters_of_class_defaults(name: str) -> None:
    case = CASES[name]
    found = Model.from_config_values(case["config"], name)
    parts = found.parameters_by_component
    named = {key: parts[key] for key in ("embedding", "positions", "head", "norms")}
    named["rest"] = found.parameters - sum(named.values())
    assert {key: count for key, count in named.items() if count} == case["parts"]
    assert found.parameters == case["total"]


def test_every_family_is_counted_somewhere() -> None:
    configs = Path(__file__).parent / "hf_configs"
    read = [json.loads(file.read_text()) for file in configs.glob("*.json")]
    read += [case["config"] for case in (*CASES.values(), *NEW.values())]
    counted = {config.get("text_config", config)["model_type"] for config in read}
    assert set(FAMILIES) - counted == REMOTE | FLAT


def test_sizes_beside_a_tower() -> None:
    """As checkpoints of Qwen 2.5 VL state them: no text_config."""
    case = CASES["qwen2_5_vl"]
    flat = {
        **case["config"]["text_config"],
        "model_type": "qwen2_5_vl",
        "vision_config": {"depth": 1},
    }
    found = Model.from_config_values(flat, "mine")
    assert found.parameters == case["total"]


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("falcon_h1", "linear-attention layers, which is not modelled"),
        ("gemma3n_text", "parallel streams, which is not modelled"),
        ("gemma4", "two widths of heads, which is not modelled"),
        ("deepseek_v4", "compressed attention"),
        ("nemotron-nas", "layers of different widths"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(kind: str, what: str) -> None:
    assert kind in UNSUPPORTED_TYPES
    with pytest.raises(InputError, match=what):
        Model.from_config_values({"model_type": kind}, "mine")


def test_experts_between_two_layers_of_ernie() -> None:
    """Layers 1 to 27 of 28 as the class has it; every second of 3 to 26 otherwise."""
    config = CASES["ernie4_5_moe"]["config"]
    change = {
        "moe_layer_start_index": 3,
        "moe_layer_end_index": 26,
        "moe_layer_interval": 2,
        "num_hidden_layers": 28,
    }
    found = Model.from_config_values(config | change, "mine")
    sparse = [i for i, kind in enumerate(found.order) if found.kinds[kind].experts]
    assert sparse == list(range(3, 27, 2))


def test_a_tower_beside_the_text_is_named() -> None:
    text = CASES["ministral3"]["config"]
    config = {"model_type": "mistral3", "text_config": text, "vision_config": {"hidden_size": 1024}}
    found = Model.from_config_values(config, "mine")
    assert found.parameters == CASES["ministral3"]["total"]
    assert found.left_out == ("vision_config",)
