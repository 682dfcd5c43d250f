"""Models of training runs: by hub id, or by the name of a folder."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from plan3d.simulator.workload.model import Model
from plan3d.simulator.workload.presets import hub_models, preset_names, untuned

from ..launch_file import Launch, ReaderOptions

UPDATES: dict[str, dict[str, Any]] = {
    "-2507": {"rotary_base": 5e6, "sequence": 262_144},
    "-FP8": {},
}
"""What other checkpoints of a model changed, by the end of their names: Qwen3's of July 2025, and
those in 8 bits, which are trained in 16."""


SAME_SHAPES = (
    (r"-(?:fp16|bf16|dequantized|deduped)$", ""),
    (r"^qwen2-(?=(?:0\.5|1\.5|7|72)b$)|^qwen2\.5-(?:coder|math)-", "qwen2.5-"),
    (r"^deepseek-r1-distill-qwen-(?=(?:7|14|32)b$)", "qwen2.5-"),
    (r"^qwq-32b(?:-preview)?$", "qwen2.5-32b"),
    (r"^deepseek-r1-0528-qwen3-8b$", "qwen3-8b"),
    (r"^qwen3-coder-30b-a3b$", "qwen3-30b-a3b"),
    (r"^deepseek-r1-distill-llama-8b$", "llama-3.1-8b"),
    (r"^deepseek-r1-distill-llama-70b$", "llama-3.3-70b"),
    (r"^vicuna-(7|13)b-v1\.5$", r"llama-2-\1b"),
    (r"^tinyllama(?:_v1\.1|-1\.1b-v1\.0)$", "tinyllama-1.1b"),
    (r"^zephyr-7b-(?:alpha|beta|sft-full|dpo-full)$", "mistral-7b-v0.1"),
    (r"^(?:magistral-small-250[67]|devstral-small-250[57])$", "mistral-small-24b-2501"),
    (r"^gpt-oss-safeguard-", "gpt-oss-"),
    (r"^smollm-(?=(?:135|360)m$|1\.7b$)", "smollm2-"),
)
"""Names of models with the layers and the vocabulary of another, as patterns, and what the others
have in their place (their config.json)."""


def name_model(name: str, launch: Launch, options: ReaderOptions) -> Model:
    """Put the model of a name into the launch. Raises InputError for one that is no preset, where
    none is given."""
    name = str(name).strip().rstrip("/")
    launch.model = Model.preset(name) if name in preset_names() else known_model(name)
    model = launch.model or options.model
    if model is None:
        what = f"trains {name[:80]}, which is no preset" if name else "does not name its model"
        raise launch.refuse(f"{what}: give --model config.json")
    return model


def known_model(name: str) -> Model | None:
    """The preset of a hub id, or of the name of a folder or of a copy that is called as one; None
    where there is none. Multi-token prediction is not loaded by transformers (modeling_deepseek_v3,
    _keys_to_ignore_on_load_unexpected)."""
    plain = name
    changes: dict[str, Any] = {}
    for suffix in ("-FP8", "-2507"):
        if plain.endswith(suffix):
            plain, changes = plain.removesuffix(suffix), changes | UPDATES[suffix]
    wanted = untuned(plain.rpartition("/")[2]).removeprefix("meta-")
    for pattern, other in SAME_SHAPES:
        wanted = re.sub(pattern, other, wanted)
    for hub, preset in hub_models().ids.items():
        if wanted and untuned(hub.rpartition("/")[2]).removeprefix("meta-") == wanted:
            return replace(Model.preset(preset), **{"mtp_layers": 0, **changes})
    return None
