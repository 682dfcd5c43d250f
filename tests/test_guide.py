"""Every command and every line of Python that the guide shows works, and answers."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
from pathlib import Path

import pytest
from not_empty import not_empty

from plan3d.cli.main import main
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.software_stack import software_profile

TESTS = Path(__file__).parent
DOCS = TESTS.parent / "docs"
PUBLISHED = TESTS.parent / "simulator" / "runs" / "published_runs.csv"
BROUGHT = {
    "qwen2-7b.json": TESTS / "simulator" / "workload" / "hf_configs" / "qwen2-7b.json",
    "pretrain.sh": DOCS / "examples" / "gpt_7b.sh",
}
"""Files that the guide expects its reader to have."""
SCORE = "--leave-origin-out"
"""Of all published runs it takes a minute: it is shown for those of FEW."""
SLOW = {SCORE, "--second-pool", "--report", "dynamic-programming"}
SLOW |= {"framework=megatron,torchtitan,nanotron"}
"""Words of commands that take seconds, which run with -m slow; their verbs are among the others."""
FEW = ("flagperf_paddle",)
ANSWERED = (0, 3)
"""Exit codes of an answer: a plan, or why none fits."""

LINES, COLUMNS = 32, 80
"""Of a first screen at most."""
CATALOGUES = ("clusters", "systems")
"""Verbs that list what is known, and answer no question."""
SENTENCES = {
    "search": r"s a step \(.* at 80 %\)|(days|hours).* at 80 % \(expected|: no plan fits|"
    r"s a step on \d+ x \S+ and \d+ x ",
    "estimate": r"s a step \(.* at 80 %\), [\d.]+ % MFU|days.* at 80 % \(expected",
    "explain": r"s a step|^measured .* predicted",
    "sweep": r"tokens/s, the most of \d+ points",
    "compare": r"^\S+ has the shortest step of \d+ systems",
    "import": r"read as megatron",
    "validate": r"off by [\d.]+ % in the median",
    "systems": r"^system +meaning",
    "clusters": r"^h200-sxm: ",
    "fits": r"^llama-3.1-8b, 8.03 B parameters, on 1 x ",
    "tune": r"^llama-7b .* on 64 x H100",
}
"""The sentence that a first screen begins with, by verb."""
TWELVE = {
    "How many GPUs": r"^\d+ H100: .* days, \$.* at 80 % \(expected",
    "torchtitan": r"^llama-3.1-8b on 8 H100: .* s a step",
    "script slow": r"^measured 6.8 s, predicted",
    "my one node": r"^llama-3.1-8b on 8 A100: .* s a step",
    "half as fast": r"^inter_node_bandwidth=50 GB/s: .* tokens/s, the most .* times "
    r"inter_node_bandwidth=25 GB/s",
    "fp8 bring": r"^with precision=fp8 .* faster",
    "fine-tune it": r"^llama-3.1-8b, 8.03 B parameters, on 1 x RTX-4090",
    "more GPUs": r"^gpus=128: .* times gpus=32",
    "training system": r"^megatron has the shortest step of 4 systems, an exact one",
    "failures": r"^512 H100: .* days, \$",
    "time on my own": r"^llama-7b .* on 64 x H100",
    "How right": r"^predicted steps of \d+ published runs are off by",
}
"""Words of a question on the first page, and the sentence that answers it."""
ALSO = {
    "failures": r"^failures ",
    "script slow": r"^check ",
    "my one node": r"^memory +(fits|at the edge) ",
}
"""What the first screen of a question says besides."""


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def commands(page: str) -> list[list[str]]:
    """Shell words of the lines in ```sh blocks, continued lines joined."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.M | re.S)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines]


def test_python_of_the_guide_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", page("guide"), re.M | re.S)
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


def test_commands_of_the_guide_are_answered(tmp_path: Path) -> None:
    """One test, since commands read what those before them wrote."""
    asked = commands(page("guide"))
    shown = screens(tmp_path, [words for words in asked if not SLOW & {*words}])
    first_screens_answer(shown)
    each_of_twelve_questions_has_one_command(shown)


@pytest.mark.slow
def test_long_commands_of_the_guide_are_answered(tmp_path: Path) -> None:
    asked = [words for words in commands(page("guide")) if SLOW & {*words}]
    assert {word for words in asked for word in words} >= SLOW
    assert all(len(lines) > 3 for lines in not_empty(screens(tmp_path, asked).values()))


def screens(folder: Path, typed: list[list[str]]) -> dict[str, list[str]]:
    """Lines of the first screen of commands of the guide, each run once, in their order."""
    for name, source in BROUGHT.items():
        shutil.copy(source, folder / name)
    few = some_runs(folder)
    found: dict[str, list[str]] = {}
    with contextlib.chdir(folder):
        for program, *words in typed:
            assert program == "plan3d"
            asked, target = (words[:-2], words[-1]) if ">" in words else (words, None)
            if shlex.join(asked) not in found:
                more = ["--runs", few] if SCORE in asked else []
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    code = main([*asked, *more])
                assert code in ANSWERED, shlex.join(asked)
                found[shlex.join(asked)] = out.getvalue().splitlines()
                if target:
                    Path(target).write_text(out.getvalue(), encoding="utf-8")
    return found


def first_screens_answer(screens: dict[str, list[str]]) -> None:
    """Each fits a screen and begins with the sentence of its verb."""
    for asked, lines in screens.items():
        verb, *words = shlex.split(asked)
        assert lines, asked
        if "--json" in words or verb == "export":
            continue
        assert max(map(len, lines)) <= COLUMNS, asked
        assert len(lines) <= LINES or verb in CATALOGUES, asked
        assert re.search(SENTENCES[verb], " ".join(lines[:2])), lines[0]
    assert {asked.partition(" ")[0] for asked in screens} == {*SENTENCES, "export"}
    assert len(screens) >= 35


def each_of_twelve_questions_has_one_command(screens: dict[str, list[str]]) -> None:
    """The questions of guide.md, each with its own sentence."""
    asked = re.findall(r"^([A-Z][^\n]*\?)\n\n(```sh\n.*?```)$", page("guide"), re.M | re.S)
    assert len(asked) == len(TWELVE)
    for (question, block), (words, sentence) in zip(asked, TWELVE.items(), strict=True):
        assert words in question
        ((_, *command),) = commands(f"{block}\n")
        lines = screens[shlex.join(command)]
        assert re.search(sentence, " ".join(lines[:2])), lines[0]
        assert any(re.search(ALSO.get(words, ""), line) for line in lines), words


def profile_of(name: str, folder: Path) -> Path:
    """The first profile that a page shows, in a file."""
    shown = re.findall(r"^```toml\n(.*?)^```$", page(name), re.M | re.S)
    block = next(text for text in shown if re.search("^base = ", text, re.M))
    path = folder / "mine.toml"
    path.write_text(block)
    return path


def test_the_stack_and_the_machine_that_pages_show_are_read(tmp_path: Path) -> None:
    stack = software_profile(profile_of("profiles", tmp_path))
    assert (stack.sustained, stack.layer_floor, stack.dropout) == (0.9, 0.2e-3, True)
    machine = Cluster.profile(profile_of("extending", tmp_path), gpus=16)
    assert machine.accelerator.memory_bandwidth == 2e12
    assert machine.network.bandwidth == 25e9
    assert machine.fast_domain.switch_all_reduce is None
