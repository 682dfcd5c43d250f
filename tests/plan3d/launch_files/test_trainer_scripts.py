"""Python scripts of Hugging Face's Trainer and of TRL, read from the syntax tree, never run."""

import pytest

from plan3d.launch_files.launch_file import ReaderOptions
from plan3d.launch_files.registry import reader
from plan3d.launch_files.shell.inputs import ScriptInputs
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.precision import Optimizer, Precision
from plan3d.simulator.plan.field_values import Recompute
from plan3d.simulator.workload.model import Model

TOP = """
import argparse
import torch
from peft import LoraConfig, VeraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
from transformers import BitsAndBytesConfig, Trainer, TrainingArguments
from trl import DPOTrainer, SFTConfig, SFTTrainer
"""
LOADED = 'model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B", {})\n'


def launch(body, **values):
    text = TOP + body
    inputs = ScriptInputs((), values, None)
    return reader(text, "train.py", None)(text, "train.py", ReaderOptions(inputs=inputs))


def fields(found, *names):
    return tuple(found.plan[name] for name in names)


def test_a_script_of_trl_with_quantized_adapters():
    found = launch(
        "quantized = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4')\n"
        + LOADED.format("quantization_config=quantized, torch_dtype=torch.bfloat16")
        + "args = SFTConfig(output_dir='o', per_device_train_batch_size=2, max_length=4096,\n"
        "    gradient_accumulation_steps=4, packing=True, optim='adamw_torch_fused')\n"
        "lora = LoraConfig(r=32, target_modules=['q_proj', 'v_proj'], lora_dropout=0.1)\n"
        "SFTTrainer(model=model, args=args, peft_config=lora).train()\n"
    )
    assert (found.model.name, found.sequence, found.accumulation) == ("llama-3.1-8b", 4096, 4)
    assert (found.adapters.rank, found.adapters.targets) == (32, ("q", "v"))
    assert (found.adapters.base, found.adapters.dropout) == ("nf4", 0.1)
    # SFTConfig recomputes unless told otherwise.
    assert fields(found, "micro_batch", "recompute") == (2, Recompute.FULL)


@pytest.mark.parametrize(
    ("prepared", "arguments", "trainer", "is_kept"),
    [
        (True, "TrainingArguments('o', bf16=True", "Trainer", True),
        (True, "SFTConfig('o'", "SFTTrainer", True),
        # TRL itself prepares nothing any more.
        (False, "SFTConfig('o'", "SFTTrainer", False),
        (False, "TrainingArguments('o', bf16=True", "Trainer", False),
        # FSDP wants one format.
        (True, "TrainingArguments('o', bf16=True, fsdp='full_shard auto_wrap'", "Trainer", False),
        (True, "TrainingArguments('o', bf16=True, deepspeed={'zero_optimization': {'stage': 2}}",
         "Trainer", False),
    ],
)  # fmt: skip
def test_what_is_not_packed_is_fp32_where_a_script_prepares_it(
    prepared, arguments, trainer, is_kept
):
    """Also where several GPUs each hold all weights."""
    found = launch(
        "quantized = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_use_double_quant=True)\n"
        + LOADED.format("quantization_config=quantized, torch_dtype=torch.bfloat16")
        + "model = prepare_model_for_kbit_training(model)\n" * prepared
        + "model = get_peft_model(model, LoraConfig(r=16, target_modules='all-linear'))\n"
        + f"args = {arguments}, per_device_train_batch_size=2, max_steps=9)\n"
        + f"{trainer}(model=model, args=args).train()\n"
    )
    assert found.adapters.base == "nf4-dq"
    assert found.software["fp32_beside_packed"] == (("norms", "ends") if is_kept else ())


def test_a_script_of_the_trainer_in_a_function_with_arguments_of_the_command():
    body = (
        "def main():\n"
        "    parser = argparse.ArgumentParser()\n"
        "    parser.add_argument('--batch', type=int, default=4)\n"
        "    args = parser.parse_args()\n    "
        + LOADED.format("")
        + "    training = TrainingArguments('o', optim='adafactor', bf16=True,\n"
        "        per_device_train_batch_size=args.batch, fsdp='full_shard auto_wrap')\n"
        "    Trainer(model=model, args=training).train()\n"
        "if __name__ == '__main__':\n    main()\n"
    )
    found = launch(body)
    assert fields(found, "micro_batch", "zero", "recompute") == (4, 3, Recompute.NONE)
    assert fields(found, "optimizer", "precision") == (Optimizer.ADAFACTOR, Precision.BF16)
    assert found.adapters is None
    assert any("no length is stated" in setting.text for setting in found.unread)
    assert launch(body, batch="8").plan["micro_batch"] == 8


def test_what_is_called_switches_recompute_on():
    body = LOADED.format("") + (
        "model.gradient_checkpointing_enable()\n"
        "args = TrainingArguments('o', bf16=True)\nTrainer(model, args).train()\n"
    )
    assert launch(body).plan["recompute"] == Recompute.FULL


ARGS = "args = TrainingArguments('o', bf16=True)\n"
PARSED = """class TrainingArguments(transformers.TrainingArguments):
    optim: str = field(default="adamw_torch")
    use_peft: bool = field(default=False)

args = TrainingArguments()
"""
"""Arguments that a parser fills from the command."""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (LOADED.format("") + ARGS + "DPOTrainer(model, args)\n", "trains with DPOTrainer, which"),
        (
            "model = AutoModelForSequenceClassification.from_pretrained('a/b')\n"
            + ARGS
            + "Trainer(model, args)\n",
            "line 8: trains AutoModelForSequenceClassification, which is not read",
        ),
        (
            LOADED.format("") + ARGS + "m = get_peft_model(model, VeraConfig(r=4))\nTrainer(m)\n",
            "trains by VeraConfig",
        ),
        (
            LOADED.format("") + ARGS + "m = get_peft_model(model, LoraConfig(use_dora=True))\n",
            "LoraConfig with use_dora",
        ),
        (LOADED.format("") + "Trainer(model)\n", "its arguments are not in it"),
        (LOADED.format("") + PARSED + "Trainer(model, args)\n", "its arguments are not in it"),
        (ARGS + "Trainer(make(), args)\n", "does not load its model by name: give --model"),
        (
            "model = AutoModelForCausalLM.from_pretrained(NAME)\n" + ARGS + "Trainer(model, args)",
            r"model_name_or_path is NAME: write it there",
        ),
        (
            "args = SFTConfig('o', max_length=length())\nSFTTrainer('meta-llama/Llama-3.1-8B')",
            r"max_length is length\(...\): write it there",
        ),
    ],
)
def test_what_is_not_read_is_refused_by_name(body, message):
    with pytest.raises(InputError, match=message):
        launch(body)


@pytest.mark.parametrize(
    ("loading", "precision"),
    [("{'torch_dtype': torch.bfloat16}", Precision.PURE_BF16), ("{}", Precision.AMP)],
)
def test_the_format_in_which_a_configuration_loads_a_model(loading, precision):
    found = launch(
        f"args = SFTConfig('o', bf16=True, model_init_kwargs={loading}, max_length=4096)\n"
        "SFTTrainer(model='meta-llama/Llama-3.1-8B', args=args).train()\n"
    )
    assert found.plan["precision"] == precision


def test_arguments_with_which_nothing_is_trained_are_none():
    text = 'from transformers import TrainingArguments\nargs = TrainingArguments("dummy")\n'
    with pytest.raises(InputError, match="trains nothing with them"):
        reader(text, "infer.py", None)(text, "infer.py", ReaderOptions(Model.preset("gpt2")))
