"""Vocabularies of tokenizers that a script of Megatron-LM names.

Source: Megatron-LM, megatron/training/tokenizer; Pai-Megatron-Patch,
megatron_patch/tokenizer/__init__.py, build_tokenizer, as of 2025-12; the tokenizers on the Hugging
Face Hub.
"""

from __future__ import annotations

from plan3d.simulator.base.units import is_whole

from ..shell.flags import Flags
from ..trainer.models import known_model

PATCH = "--patch-tokenizer-type"
EXTRA = "--extra-vocab-size"
NAMES = ("--tokenizer-model", "--tokenizer-name-or-path", "--tokenizer-file", "--hf-checkpoint")
"""Flags whose path may be named after a published model."""
FIXED = {
    "BloomTokenizerFromHF": 250_880,
    "ChatGLMTokenizerFromHF": 130_528,
    "GLM10BZHTokenizerFromHF": 50_048,
    "IcetkGLM130BTokenizer": 150_528,
    "StarcoderTokenizerFromHF": 49_152,
    "VicunaTokenizerFromHF": 32_000,
}
"""Rows of the embedding that Pai-Megatron-Patch sets for a tokenizer."""
OWN = {
    "LLama3Tokenizer": (128_000,),
    "Qwen2Tokenizer": (151_643,),
    "Qwen3Tokenizer": (151_643,),
    "Qwen2VLTokenizer": (151_643,),
    "FalconTokenizer": (65_024,),
    "MixtralTokenizer": (32_000,),
    "DeepSeekV2Tokenizer": (100_000, 128_813),
}
"""Tokens of a tokenizer of Pai-Megatron-Patch, to which --extra-vocab-size is added; of one that
several models have, each of theirs."""
PUBLISHED = (102_400, 129_280)
"""Embeddings of the models that share a tokenizer's name: DeepSeek-V2 and V3."""


def named_vocabulary(flags: Flags) -> tuple[int, str]:
    """The tokens of the tokenizer that flags name, and what names it; (0, '') where they do not."""
    patch = flags.by_name.get(PATCH)
    kind = " ".join(patch.texts) if patch else ""
    rows = _patch_vocabulary(kind, flags)
    if rows:
        return rows, kind
    for name in (*NAMES, *(["--load"] if patch else [])):
        flag = flags.by_name.get(name)
        path = flag.values[0] if flag and flag.values else None
        if path is None or path.condition:
            continue
        for part in reversed([part for part in path.text.split("/") if "$" not in part]):
            model = known_model(part)
            if model:
                return model.vocabulary, f"{model.name}, in {name}"
    return 0, ""


def _patch_vocabulary(kind: str, flags: Flags) -> int:
    """Rows of the embedding of a tokenizer of Pai-Megatron-Patch; 0 where they are not known."""
    if kind in FIXED:
        return FIXED[kind]
    extra = flags.by_name.get(EXTRA)
    text = extra.texts[0] if extra and len(extra.texts) == 1 else ""
    if not is_whole(text) or (extra and extra.values[0].condition):
        return 0
    sums = [own + int(text) for own in OWN.get(kind, ())]
    own = [rows for rows in sums if len(sums) == 1 or rows in PUBLISHED]
    return own[0] if len(own) == 1 else 0
