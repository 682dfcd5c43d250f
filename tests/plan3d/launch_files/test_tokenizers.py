"""The vocabulary of a tokenizer that a script names, and where it is from."""

import pytest

from plan3d.launch_files.launch_file import ReaderOptions
from plan3d.launch_files.registry import reader
from plan3d.simulator.base.errors import InputError

RUN = (
    "torchrun --nnodes 1 --nproc-per-node 8 pretrain_gpt.py --num-layers 2 --hidden-size 64 "
    "--num-attention-heads 4 --seq-length 8 --max-position-embeddings 8 --micro-batch-size 1 "
    "--global-batch-size 64 --bf16 {}\n"
)


def launch(flags, vocabulary=None):
    text = RUN.format(flags)
    return reader(text, "run.sh", None)(text, "run.sh", ReaderOptions(vocabulary=vocabulary))


@pytest.mark.parametrize(
    ("flags", "vocabulary", "source"),
    [
        ("--patch-tokenizer-type LLama3Tokenizer --extra-vocab-size 256", 128_256, "LLama3"),
        ("--patch-tokenizer-type Qwen2Tokenizer --extra-vocab-size 421", 152_064, "Qwen2"),
        ("--patch-tokenizer-type DeepSeekV2Tokenizer --extra-vocab-size 467", 129_280, "DeepSeek"),
        ("--patch-tokenizer-type DeepSeekV2Tokenizer --extra-vocab-size 2400", 102_400, "DeepSeek"),
        ("--patch-tokenizer-type StarcoderTokenizerFromHF", 49_152, "Starcoder"),
        ("--patch-tokenizer-type LLamaTokenizer --load /x/yi-6b/tp1", 64_000, "yi-6b, in --load"),
        (
            "--tokenizer-type HuggingFaceTokenizer --tokenizer-model /d/Meta-Llama-3-8B/",
            128_256,
            "llama-3-8b, in --tokenizer-model",
        ),
        ("--tokenizer-model $HF/Qwen/Qwen2.5-7B-Instruct", 152_064, "qwen2.5-7b"),
    ],
)
def test_named_tokenizers(flags, vocabulary, source):
    found = launch(flags)
    assert found.model.vocabulary == vocabulary
    assert found.vocabulary_source.startswith(source)
    assert launch(flags, 1000).model.vocabulary == 1000


@pytest.mark.parametrize(
    "flags",
    [
        "--patch-tokenizer-type DeepSeekV2Tokenizer --extra-vocab-size 0",
        "--patch-tokenizer-type LLama3Tokenizer --extra-vocab-size $X",
        "--patch-tokenizer-type LLamaTokenizer --extra-vocab-size 0",
        "--tokenizer-model tokenizer.model",
        "--tokenizer-model $LLAMA_3_8B",
    ],
)
def test_other_tokenizers_are_asked_for(flags):
    with pytest.raises(InputError, match="give --vocabulary N"):
        launch(flags)
