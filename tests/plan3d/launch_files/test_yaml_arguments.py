"""Flags of Megatron-LM in YAML (MODEL_ARGS)."""

import pytest

from plan3d.cli.main import main
from plan3d.launch_files.launch_file import ReaderOptions, plan_of
from plan3d.launch_files.registry import reader
from plan3d.launch_files.shell.inputs import ScriptInputs
from plan3d.simulator.base.errors import InputError

TEXT = """ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
TEST_TYPE: regular
MODEL_ARGS:
  --num-layers: 4
  --hidden-size: 512
  --num-attention-heads: 8
  --seq-length: 128
  --max-position-embeddings: 128
  --micro-batch-size: 2
  --global-batch-size: ${GBS}
  --tensor-model-parallel-size: ${TP}
  --swiglu: true
  --sequence-parallel: false
  --data-args-path: ""
  --adam-beta1: 0.9
  --moe-layer-freq: ([0]*1+[1]*3)
  --rampup-batch-size: "[8 8 100]"
  --bf16: true # as in the paper
"""
GPT = {"PROGRAM": "pretrain_gpt.py", "GBS": "32", "TP": "2"}


def launch(text=TEXT, values=GPT):
    inputs = ScriptInputs(values=values)
    return reader(text, "run.yaml", None)(text, "run.yaml", ReaderOptions(inputs=inputs))


def test_flags_in_yaml_are_those_of_a_command():
    read = launch()
    assert (read.model.layers, read.model.hidden, read.global_batch) == (4, 512, 32)
    plan = plan_of(read, {})
    assert (plan.tp, plan.micro_batch, plan.sequence_parallel) == (2, 2, 0)
    flags = {setting.flag: setting.place for setting in read.unread}
    assert flags["--adam-beta1"] == "line 16"
    assert "--data-args-path" not in flags
    assert any("which it does not show" in one for one in read.left_out)


@pytest.mark.parametrize(
    ("old", "new", "values", "message"),
    [
        ("", "", {}, r"program that it does not name: --set PROGRAM=pretrain_gpt.py"),
        ("", "", {**GPT, "PROGRAM": "pretrain_bert.py"}, "pretrain_bert.py is not modelled: BERT"),
        ("", "", {"PROGRAM": "pretrain_gpt.py"}, r"GBS has no value .*TP has no value"),
        ("", "", {**GPT, "PP": "2"}, "nothing in it is open that --set PP would decide"),
        ("regular", "regular\nMODE: inference", GPT, "MODE: inference, which is no training"),
        ("--num-layers: 4", "--num-layers: 4x", GPT, r"line 5: --num-layers 4x must be a whole"),
        ("  --num", "  trainer.steps: 2\n  --num", GPT, "MODEL_ARGS that is no object of flags"),
    ],
)
def test_what_is_wrong_is_named(old, new, values, message):
    with pytest.raises(InputError, match=message):
        launch(TEXT.replace(old, new, 1), values)


def test_values_of_the_shell_are_given_as_those_of_a_script(tmp_path, capsys):
    path = tmp_path / "run.yaml"
    path.write_text(TEXT)
    words = ["import", str(path), "--cluster", "h100-sxm", "--gpus", "8", "--vocabulary", "1000"]
    assert main([*words, *(f"--set={name}={value}" for name, value in GPT.items())]) == 0
    assert "tp=2" in capsys.readouterr().out
