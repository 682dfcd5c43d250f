"""Systems beside each other as their papers have them, by the commands of docs/systems.md.

Each row: the faster system and the slower one, how many times faster in the paper and here. Where
the order is missed, the row says so. Nothing is fitted to them; the older operators of Megatron-LM
beside MegaScale were stated on seeing that lead too small.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from plan3d.cli.main import main

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "systems.md").read_text(encoding="utf-8")
IMAGES = (
    "compare resnet-50 v100-16gb-sxm 128 --global-batch 4096 --precision fp32 --fix micro_batch=32 "
    "--inter-node-bandwidth 3.125Gb/s --nic-gpus 8 --systems"
)
AXONN = (
    f"search {ROOT}/docs/examples/gpt_80b.json a100-40gb-sxm 1024 --gpus-per-node 4 "
    "--inter-node-bandwidth 25GB/s --sequence 2048 --global-batch 2048 --fix recompute=full"
)
LARGE = (
    "a100-80gb-sxm 12288 --sequence 2048 --global-batch 6144 --fix tp=8 --fix pp=8 "
    "--fix virtual_stages=6 --fix micro_batch=1 --fix recompute=none --fix zero=1 --system"
)
SILENT = (
    "--fix overlap_tp=0 --fix overlap_p2p=0 --fix overlap_grad_reduce=0 "
    "--fix overlap_param_gather=0"
)
SC21 = (
    "sweep gpt3-175b a100-80gb-sxm --over gpus=384,768,1536 --global-batch 1536 --precision fp16 "
    "--fix recompute=full --system"
)
ROWS = {
    "gossip over horovod": ((f"{IMAGES} gossip,horovod",), "1.24"),
    "horovod over parameter-server": ((f"{IMAGES} horovod,parameter-server",), "3.72"),
    "downpour over parameter-server": ((f"{IMAGES} downpour,parameter-server",), "1.12"),
    "axonn over megatron": (
        (f"{AXONN} --system axonn", f"{AXONN} --system megatron --fix overlap_tp=0 "
         "--fix virtual_stages=1"),
        "1.25",
    ),
    "megascale over megatron": (
        (f"search {ROOT}/docs/examples/megascale_175b.json {LARGE} megascale",
         f"search gpt3-175b {LARGE} megatron {SILENT} "
         f"--software {ROOT}/docs/examples/megatron_lm_2023.toml"),
        "1.24",
    ),
    "megatron over zero3 on 384, 768, 1,536": (
        (f"{SC21} megatron --software megatron-lm-2021 --fix tp=8 --fix pp=12 --fix micro_batch=1 "
         "--fix sequence_parallel=0 --fix zero=0 --fix overlap_grad_reduce=0",
         f"{SC21} zero3 --software {ROOT}/docs/examples/deepspeed_2021.toml "
         "--fix overlap_param_gather=0"),
        "0.86, 1.13, 2.05",
    ),
}  # fmt: skip
"""Commands of each, and the factors of the page; the two systems of a comparison are one."""
MISSED = 1
"""Factors below 1: ZeRO 3 on 384 GPUs."""


def steps(command: str, capsys: pytest.CaptureFixture[str]) -> list[float]:
    """Seconds of the best plan, of every system or of every point."""
    assert main([*shlex.split(command), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    if "systems" in found:
        return [entry["best"]["step_seconds"] for entry in found["systems"]]
    if "points" in found:
        return [point["step_seconds"] for point in found["points"]]
    return [found["plans"][0]["step_seconds"]]


@pytest.mark.parametrize("row", ROWS)
def test_systems_stand_in_the_order_of_their_papers(
    row: str, capsys: pytest.CaptureFixture[str]
) -> None:
    commands, factors = ROWS[row]
    each = [steps(command, capsys) for command in commands]
    fast, slow = each if len(each) > 1 else ([each[0][0]], [each[0][1]])
    ratios = [later / sooner for sooner, later in zip(fast, slow, strict=True)]
    ours = [float(text) for text in factors.split(", ")]
    assert ratios == pytest.approx(ours, abs=0.02)
    line = next(line for line in PAGE.splitlines() if line.startswith(f"| {row} |"))
    assert line.split("|")[3].strip() == factors
    words = shlex.split(" ".join(commands).replace(f"{ROOT}/", ""))
    given = set(line.replace("`", " ").replace(",", " ").split())
    assert "the same" in line or {w for w in words if w.startswith("--")} <= given


def test_one_order_is_missed() -> None:
    factors = [float(f) for _, text in ROWS.values() for f in text.split(", ")]
    assert sum(f < 1 for f in factors) == MISSED
    assert f"One order of {('eight', 'nine')[len(factors) - 8]} is missed" in PAGE
