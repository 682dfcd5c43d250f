"""Every command and every line of Python that the user guide shows works."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from plan3d.cli.main import main
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.software_stack import software_profile

TESTS = Path(__file__).parent
DOCS = TESTS.parent / "docs"
PUBLISHED = TESTS.parent / "simulator" / "runs" / "published_runs.csv"
BROUGHT = {
    "qwen2-7b.json": TESTS / "simulator" / "workload" / "hf_configs" / "qwen2-7b.json",
    "phi-4-mini.json": TESTS / "simulator" / "workload" / "hf_configs" / "phi-4-mini.json",
    "pretrain.sh": DOCS / "examples" / "gpt_7b.sh",
}
"""Files that the guide expects its reader to have."""
SLOW = "--leave-origin-out"
"""A score of all published runs takes a minute: it is shown for those of FEW."""
FEW = ("flagperf_paddle", "internevo24")
ANSWERED = (0, 3)
"""Exit codes of an answer: a plan, or why none fits."""

ANSWERS = {
    "search": (28, r"s a step \(.* at 80 %\)|days.* at 80 % \(expected|: no plan fits"),
    "estimate": (26, r"s a step \(.* at 80 %\), [\d.]+ % MFU|days.* at 80 % \(expected"),
    "explain": (36, r"s a step|^measured .* predicted"),
    "sweep": (42, r"tokens/s, the most of \d+ points"),
    "compare": (66, r"^\S+ is the fastest of \d+ systems"),
    "import": (40, r"read as megatron"),
    "validate": (18, r"off by [\d.]+ % in the median"),
    "systems": (26, r"^system +meaning"),
    "clusters": (90, r"^h200-sxm: "),
    "tune": (20, r"^llama-7b .* on 64 x H100"),
}
"""Lines of the first screen of a verb at most, and the sentence that it begins with."""


def commands(page: str) -> list[list[str]]:
    """Shell words of the lines in ```sh blocks, continued lines joined."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.M | re.S)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines]


def test_python_of_the_guide_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (DOCS / "guide.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    assert blocks
    for block in blocks:
        names: dict[str, object] = {}
        exec(block, names)
    assert "It takes" in capsys.readouterr().out
    assert names["best"]


def some_runs(folder: Path) -> str:
    """A file of the published runs of FEW."""
    head, *rows = PUBLISHED.read_text(encoding="utf-8").splitlines(keepends=True)
    path = folder / "few.csv"
    path.write_text(head + "".join(row for row in rows if any(f",{name}," in row for name in FEW)))
    return str(path)


def test_commands_of_the_guide_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, source in BROUGHT.items():
        shutil.copy(source, tmp_path / name)
    shown = commands((DOCS / "guide.md").read_text(encoding="utf-8"))
    assert len(shown) >= 24
    seen: list[str] = []
    for program, *words in shown:
        assert program == "plan3d"
        if SLOW in words:
            words += ["--runs", some_runs(tmp_path)]
        asked, target = (words[:-2], words[-1]) if ">" in words else (words, None)
        code = main(asked)
        printed = capsys.readouterr()
        assert code in ANSWERED, f"plan3d {shlex.join(asked)}: {printed.err}"
        assert printed.out
        if target:
            Path(target).write_text(printed.out, encoding="utf-8")
        elif asked[0] in ANSWERS and SLOW not in asked:
            lines = printed.out.splitlines()
            assert max(map(len, lines)) <= 80, shlex.join(asked)
            assert len(lines) <= ANSWERS[asked[0]][0], shlex.join(asked)
            assert re.search(ANSWERS[asked[0]][1], " ".join(lines[:2])), lines[0]
            seen.append(asked[0])
    assert len(seen) >= 36
    assert set(seen) == set(ANSWERS)


def profile_of(page: str, folder: Path) -> Path:
    """The only profile that a page shows, in a file."""
    shown = re.findall(r"^```toml\n(.*?)^```$", (DOCS / page).read_text(), re.M | re.S)
    (block,) = (text for text in shown if re.search("^base = ", text, re.M))
    path = folder / "mine.toml"
    path.write_text(block)
    return path


def test_the_stack_and_the_machine_that_pages_show_are_read(tmp_path: Path) -> None:
    stack = software_profile(profile_of("software_profiles.md", tmp_path))
    assert (stack.sustained, stack.layer_floor, stack.dropout) == (0.9, 0.2e-3, True)
    machine = Cluster.profile(profile_of("extending.md", tmp_path), gpus=16)
    assert machine.accelerator.memory_bandwidth == 2e12
    assert machine.network.bandwidth == 25e9
    assert machine.fast.switch_all_reduce is None
