"""A launch file in place of a model: its model, GPUs, sequence and batch."""

import argparse
import json

import pytest

from plan3d.cli.arguments.launch_file_arguments import fill_sizes, is_launch_file
from plan3d.cli.arguments.task_arguments import model_of
from plan3d.cli.main import main

RUN = """
NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen2.5-1.5B --tensor_model_parallel_size 2 \\
  --micro_batch_size 1 --global_batch_size 32 --packing true --max_length 2048
"""
SFT = """
model_name_or_path: Qwen/Qwen2.5-1.5B
do_train: true
stage: sft
finetuning_type: full
deepspeed: ds_z3_config.json
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
bf16: true
"""


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(RUN)
    return str(path)


def options(verb, **given):
    names = ("gpus", "sequence", "global_batch", "framework")
    return argparse.Namespace(**{**dict.fromkeys(names), "verb": verb, **given})


def test_sizes_of_a_launch_file_fill_what_options_leave_open(run):
    args = options("tune")
    fill_sizes(args, run)
    assert (args.gpus, args.sequence, args.global_batch) == (8, 2048, 32)
    assert args.framework == "megatron"
    args = options("search", gpus=16, sequence=4096, global_batch=64)
    fill_sizes(args, run)
    assert (args.gpus, args.sequence, args.global_batch, args.framework) == (16, 4096, 64, None)


def test_the_batch_of_micro_batches_follows_the_gpus(tmp_path):
    path = tmp_path / "sft.yaml"
    path.write_text(SFT)
    args = options("fits", gpus=4)
    fill_sizes(args, str(path))
    assert (args.sequence, args.global_batch) == (2048, 2 * 4 * 4)
    args = options("fits")
    fill_sizes(args, str(path))
    assert (args.gpus, args.global_batch) == (None, None)


def test_the_model_of_a_launch_file(run, tmp_path):
    assert is_launch_file(run)
    assert model_of(run).name == "qwen2.5-1.5b"
    for word in ("llama-7b", "config.json", str(tmp_path), "\0"):
        assert not is_launch_file(word)


def test_the_plan_of_a_file_is_estimated(run, capsys):
    assert main(["estimate", run, "a100-80gb-sxm", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    (plan,) = record["plans"]
    assert plan["plan"]["tp"] == 2
    assert record["task"]["global_batch"] == 32
    assert main(["estimate", run, "a100-80gb-sxm", "--plan", "tp=4", "--json"]) == 0
    assert '"tp": 4' in capsys.readouterr().out


def test_a_file_without_a_model_is_refused_by_name(tmp_path, capsys):
    path = tmp_path / "accelerate.yaml"
    path.write_text("distributed_type: FSDP\nnum_processes: 8\n")
    assert main(["search", str(path), "a100-80gb-sxm"]) == 2
    assert "accelerate.yaml: does not describe the model: give a model" in capsys.readouterr().err
