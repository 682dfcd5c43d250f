"""Start scripts around launch files: what runs is the plan, on all GPUs."""

import subprocess

import pytest

from plan3d.cli.main import main
from plan3d.launch_files.launch_file import ReaderOptions, plan_of
from plan3d.launch_files.registry import READERS, framework_of_file
from plan3d.simulator.plan.plan import Plan

TASK = ["--model", "llama-3.1-8b", "--cluster", "h100-sxm", "--sequence", "4096"]
TASK += ["--global-batch", "96"]
PLANS = {
    "megatron": "tp=2 zero=1",
    "megatron-bridge": "tp=2",
    "torchtitan": "tp=2 zero=2",
    "deepspeed": "zero=3",
    "nanotron": "tp=2 overlap_param_gather=0",
    "accelerate": "zero=3 recompute=full",
}


def script(capsys, framework, wrapper, *more, gpus=32, plan=""):
    words = ["export", plan or PLANS[framework], "--to", framework, "--wrapper", wrapper, *TASK]
    assert main([*words, "--gpus", str(gpus), *more]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("wrapper", ["torchrun", "slurm"])
@pytest.mark.parametrize("framework", PLANS)
def test_a_start_script_is_a_script_of_bash(capsys, framework, wrapper):
    out = script(capsys, framework, wrapper)
    assert subprocess.run(["bash", "-n"], input=out.encode(), check=False).returncode == 0
    assert out.startswith("#!/bin/bash\n")
    assert out.count('"$@"') == 1
    assert out.count("#SBATCH --nodes=4\n") == out.count("\nsrun ") == (wrapper == "slurm")
    if framework != "accelerate":
        assert "torchrun --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d" in out


@pytest.mark.parametrize("wrapper", ["torchrun", "slurm"])
@pytest.mark.parametrize("framework", ["megatron", "torchtitan", "accelerate"])
def test_a_start_script_is_read_as_its_plan(capsys, framework, wrapper):
    out = script(capsys, framework, wrapper)
    launch = READERS[framework_of_file(out, "run.sh")](out, "run.sh", ReaderOptions())
    plan, wanted = plan_of(launch, {}), Plan.parse(PLANS[framework])
    assert (plan.tp, plan.zero, plan.recompute) == (wanted.tp, wanted.zero, wanted.recompute)
    assert 32 in (launch.gpus, launch.launcher_gpus)
    assert (launch.model.parameters, launch.sequence) == (8_030_261_248, 4096)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--to", "megatron", "--wrapper", "kubernetes"], "must be one of torchrun, slurm"),
        (["--to", "torchtitan", "--version", "0.3", "--wrapper", "slurm"], "is a recipe in Python"),
        (["--to", "megatron", "--wrapper", "slurm", "--second-pool", "a100-80gb-sxm:8"],
         "--wrapper starts nodes of one kind"),
    ],
)  # fmt: skip
def test_what_no_start_script_is_written_for(capsys, words, message):
    assert main(["export", "tp=2 zero=2", *words, *TASK, "--gpus", "16"]) == 2
    assert message in capsys.readouterr().err


def test_nodes_must_be_full(capsys):
    words = ["export", "tp=2 zero=1", "--to", "megatron", "--wrapper", "slurm", *TASK]
    assert main([*words, "--gpus", "12"]) == 2
    assert "12 GPUs do not fill nodes of 8; nearest: --gpus 8, 16" in capsys.readouterr().err
    words[words.index("--global-batch") + 1] = "80"
    assert main([*words, "--gpus", "20"]) == 2
    assert "20 GPUs do not fill nodes of 8; nearest: --gpus 16, 24" in capsys.readouterr().err


@pytest.mark.parametrize(("gpus", "nodes"), [(8, 1), (16, 2), (48, 6)])
def test_ranks_of_other_nodes_are_told_where_the_first_one_is(capsys, gpus, nodes):
    out = script(capsys, "accelerate", "slurm", gpus=gpus)
    assert f"#SBATCH --nodes={nodes}\n" in out
    assert "#SBATCH --gpus-per-node=8\n" in out
    assert ("--main_process_ip" in out) is (nodes > 1)
