"""Programs of one's own on Hugging Face's Trainer: their arguments are read, or asked for."""

import json

import pytest

from plan3d.launch_files.launch_file import ReaderOptions, batch_of, plan_of
from plan3d.launch_files.registry import reader
from plan3d.launch_files.shell.inputs import ScriptInputs
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


def test_the_model_of_a_tool_has_its_own_name():
    text = "axolotl train run.yaml --base-model Qwen/Qwen2.5-7B --micro-batch-size 1\n"
    inputs = ScriptInputs(read_source={"run.yaml": "sequence_len: 512\n"}.get)
    found = reader(text, "run.sh", None)(text, "run.sh", ReaderOptions(inputs=inputs))
    assert (found.model.name, found.title) == ("qwen2.5-7b", "axolotl")


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


def test_switches_of_the_examples_of_peft():
    words = "--use_peft_lora True --lora_r 8 --lora_target_modules all-linear"
    found = launch(f"{words} --use_4bit_quantization True --use_gradient_checkpointing True")
    assert (found.adapters.rank, found.adapters.base) == (8, "nf4")
    assert found.plan["recompute"] == Recompute.FULL
    with pytest.raises(InputError, match="lora_r makes adapters of another program"):
        launch("--use_peft_lora True --lora_r 8")


def test_checkpointing_by_its_newer_name():
    assert launch("--activation_checkpointing True").plan["recompute"] == Recompute.FULL


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ("--grad_ckpt True", "recompute"),
        ("--act_ckpt 1", "recompute"),
        ("--checkpoint_activations", "recompute"),
        ("--mixed_precision bf16", "precision"),
        ("--compute_dtype fp16", "precision"),
        ("--zero_stage 3", "zero"),
    ],
)
def test_unknown_arguments_that_may_decide_the_plan_are_asked_for(words, field):
    assert [*launch(words).unmodelled] == [field]


@pytest.mark.parametrize(
    "words",
    [
        "--checkpointing_steps 100 --checkpoint_dir x --save_checkpoint True --ckpt_every 5",
        "--activation_checkpointing False --mixed_precision no --zero_stage 0",
        "--gradient_checkpointing True --gradient_checkpointing_kwargs {} --activation gelu",
    ],
)
def test_others_decide_nothing(words):
    assert launch(words).unmodelled == {}


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ("--seq_parallel_size 4", "cp"),
        ("--ulysses_degree 4", "cp"),
        ("--ring_attn True", "cp"),
        ("--sp_size 4", "cp"),
        ("--tensor_parallel_size 4", "tp"),
        ("--model_parallel_size 4", "tp"),
        ("--pipeline_parallel_degree 4", "pp"),
        ("--ep_size 4", "ep"),
    ],
)
def test_an_axis_of_another_program_is_asked_for(words, field):
    assert list(launch(words).unmodelled) == [field]
    name = words.split()[0]
    assert not launch(f"{name} 1").unmodelled
    assert not launch(f"{name} -1").unmodelled


def test_batch_of_an_axis_that_is_given():
    script = f"{RUN.format('tune.py')} --gradient_accumulation_steps 2 --seq_parallel_size 4"
    found = reader(script, "run.sh", None)(script, "run.sh", ReaderOptions())
    assert batch_of(found, plan_of(found, {"cp": 4}), 8, None) == 4


@pytest.mark.parametrize(("value", "saved"), [("False", ()), ("True", ())])
def test_special_tokens_of_another_program_train_no_embeddings(value, saved):
    words = "--use_peft True --lora_r 8 --lora_target_modules q_proj --add_special_tokens"
    assert launch(f"{words} {value}").adapters.modules_to_save == saved


def test_recompute_switched_off_by_0():
    assert launch("--gradient_checkpointing 0").plan["recompute"] == Recompute.NONE


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("--vision_path InternViT --freeze_llm False", "vision tower"),
        ("--force_image_size 448", "vision tower"),
        ("--tune_vision_tower False", "vision tower"),
        ("--tune_language_model False", "frozen parts"),
        ("--tune_language_model True", ""),
    ],
)
def test_parts_for_images_are_named(words, part):
    found = launch(words).left_out
    assert part in found[0] if part else not found


@pytest.mark.parametrize(
    "name",
    [
        "grad_accum",
        "accumulation_steps",
        "grad_accumulation_steps",
        "accum_steps",
        "grad_acc_steps",
    ],
)
def test_accumulation_by_another_name(name):
    assert launch(f"--{name} 4").accumulation == 4
    assert launch(f"--{name} 4 --gradient_accumulation_steps 2").accumulation == 2


@pytest.mark.parametrize("name", ["global_batch_size", "total_batch_size", "train_batch_size"])
def test_a_batch_by_an_unknown_name_is_asked_for(name):
    with pytest.raises(InputError, match=f"{name} 64 may be the batch .* give --global-batch N"):
        launch(f"--{name} 64")
    assert launch(f"--{name} 64", has_batch=True).accumulation is None


@pytest.mark.parametrize(
    "words",
    ["--num_hidden_layers 16", "--vocab_size 50000", "--num_experts 8", "--moe_layer_freq 2"],
)
def test_sizes_of_a_model_that_is_named_are_not_ignored(words):
    with pytest.raises(InputError, match="another model of the one that is named"):
        launch(words)
    assert launch(words, model=launch("").model).model is None


@pytest.mark.parametrize("words", ["--bits 4", "--load_in_kbits 8", "--quant_bits 4"])
def test_weights_in_few_bits_of_another_program_are_refused(words):
    with pytest.raises(InputError, match="fewer bits"):
        launch(words)
    assert launch(words.rpartition(" ")[0] + " 16").adapters is None


def test_frozen_parts_by_unknown_names_are_named():
    (found,) = launch("--unfreeze_layers 2").left_out
    assert "frozen parts" in found
    assert not launch("--freeze_backbone_of_mine False").left_out


def test_a_program_without_a_batch_is_told_what_to_add():
    text = "torchrun tune.py --model_name_or_path Qwen/Qwen2.5-7B --bf16 True\n"
    with pytest.raises(InputError, match=r"no --per_device_train_batch_size: .* add it"):
        reader(text, "run.sh", None)(text, "run.sh", ReaderOptions())


@pytest.mark.parametrize(("words", "bits"), [("--bits", 8), ("--n_bits", 1), ("--quant_bits", 8)])
def test_bits_of_weights_are_those_up_to_8(words, bits):
    with pytest.raises(InputError, match=f"{bits}: the weights are in fewer bits"):
        launch(f"{words} {bits}")
    assert launch(f"{words} 9").adapters is None
    assert launch(f"{words} 0").adapters is None


@pytest.mark.parametrize("name", ["num_hidden_layers", "vocab_size", "global_batch_size"])
def test_sizes_of_0_are_none(name):
    found = launch(f"--{name} 0")
    assert (found.model.name, found.accumulation) == ("qwen2.5-7b", launch("").accumulation)
    with pytest.raises(InputError, match=name):
        launch(f"--{name} 1")


@pytest.mark.parametrize("name", ["sp_size", "ring_attn_size", "tensor_parallel_size", "pp_degree"])
def test_an_axis_of_2_is_the_first_that_shards(name):
    assert not launch(f"--{name} 1").unmodelled
    (text,) = launch(f"--{name} 2").unmodelled.values()
    assert text == f"{name} is 2, in another program"


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import colossalai\n", "tune.py: is Python of Colossal-AI, which is not read"),
        ("from verl import x\nfrom trl import SFTTrainer\n", "tune.py: is Python of verl"),
        ("t = DPOTrainer(model, args=a)\n", "tune.py: trains with DPOTrainer, which is not read"),
    ],
)
def test_a_program_beside_its_command_that_is_no_trainer_is_refused(program, message):
    given = ScriptInputs(read_source={"tune.py": program}.get)
    with pytest.raises(InputError, match=message):
        launch("", inputs=given)
    both = ScriptInputs(read_source={"tune.py": f"{program}t = SFTTrainer(m)\n"}.get)
    if "DPO" in program:
        assert launch("", inputs=both).model.name == "qwen2.5-7b"
