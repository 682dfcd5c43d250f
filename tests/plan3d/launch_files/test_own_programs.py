"""Programs of one's own on Hugging Face's Trainer: their arguments are read, or asked for."""

import json

import pytest

from plan3d.launch_files.launch_file import ReaderOptions
from plan3d.launch_files.registry import reader
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.precision import Precision
from plan3d.simulator.plan.field_values import Recompute

RUN = (
    "torchrun --nproc-per-node 8 {} --per_device_train_batch_size 1 --bf16 True "
    "--model_name_or_path Qwen/Qwen2.5-7B "
)


def launch(words, program="tune.py", **given):
    text = f"{RUN.format(program)}{words}\n"
    return reader(text, "run.sh", None)(text, "run.sh", ReaderOptions(**given))


def test_a_program_named_sft_with_another_length_has_no_defaults_of_trl():
    found = launch("--block_size 32768", "sft.py")
    assert found.sequence == 32768
    assert found.plan["recompute"] == Recompute.NONE
    assert launch("", "sft.py").sequence == 1024


@pytest.mark.parametrize("name", ["max_seq_len", "context_length", "max_len", "seq_length"])
@pytest.mark.parametrize("program", ["tune.py", "sft.py"])
def test_a_length_by_an_unknown_name_is_asked_for(name, program):
    with pytest.raises(InputError, match=f"{name} 4096 may be the length .* give --sequence N"):
        launch(f"--{name} 4096", program)
    assert launch(f"--{name} 4096", program, sequence=4096).sequence is None
    assert launch(f"--{name} 4096 --block_size 512").sequence == 512


@pytest.mark.parametrize("name", ["eval_max_len", "max_new_tokens", "max_samples", "dataset_size"])
def test_other_sizes_are_no_lengths(name):
    assert launch(f"--{name} 4096").sequence is None


@pytest.mark.parametrize("name", ["model_name", "base_model", "model_path"])
def test_the_model_by_another_name(name):
    text = RUN.format("tune.py").replace("model_name_or_path", name)
    found = reader(text, "run.sh", None)(text, "run.sh", ReaderOptions())
    assert found.model.name == "qwen2.5-7b"
    assert not [one for one in found.unread if name in one.place]


def test_adapters_by_other_names_beside_use_peft_are_read():
    found = launch("--use_peft True --lora_rank 8 --target_modules all --lora_alpha 16")
    assert found.adapters.rank == 8
    assert {"q", "o", "gate", "down"} <= {*found.adapters.targets}
    assert launch("--use_peft --lora_r 4 --lora_rank 8").adapters.rank == 4
    assert launch("--use_peft False --lora_rank 8").adapters is None


@pytest.mark.parametrize(
    "argument",
    [{"train_mode": "qlora"}, {"tuning": "LoRA"}, {"lora_enable": True}, {"use_q_lora": "yes"}],
)
def test_what_makes_adapters_in_an_unknown_program_is_refused(argument):
    common = {"model_name_or_path": "Qwen/Qwen2.5-7B", "per_device_train_batch_size": 1}
    text = json.dumps(common | argument)
    with pytest.raises(InputError, match="makes adapters of another program"):
        reader(text, "a.json", None)(text, "a.json", ReaderOptions())


def test_adapters_that_are_switched_off_are_none():
    words = "--lora_enable False --lora_ckpt none --train_mode full"
    assert launch(words).adapters is None


@pytest.mark.parametrize("argument", ["dtype", "torch_dtype"])
def test_weights_in_the_format_of_their_checkpoint(argument):
    for name, precision in (("Qwen/Qwen2.5-7B", Precision.PURE_BF16), ("gpt2-xl", Precision.AMP)):
        found = launch(f"--{argument} auto --model_name_or_path {name}")
        assert found.plan["precision"] == precision
        assert "weights as the checkpoint has them" in found.left_out[0]
