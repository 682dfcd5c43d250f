"""The first screen, questions without flags, help on one screen, and completion."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from plan3d.cli.arguments.usual_sizes import TOKENS_A_GPU, most_of
from plan3d.cli.catalogue.help import WORDS
from plan3d.cli.evidence.calibrate import SUBVERBS
from plan3d.cli.main import main
from plan3d.cli.verbs import VERBS
from plan3d.screens.output import ProgressBar, Screen
from plan3d.simulator.base.text_tables import Table
from plan3d.simulator.plan.fields import FIELDS

ROOT = Path(__file__).parents[3]

LLAMA = ["llama-7b", "h100-sxm", "16"]
SIZED = ["llama-7b", "h100-sxm", "16", "--global-batch", "64"]
PLAN = ["--plan", "tp=2 pp=2"]
SHOWN = {
    "search": SIZED,
    "estimate": [*SIZED, *PLAN],
    "explain": [*SIZED, *PLAN, "--against", "tp=4"],
    "timeline": [*SIZED, *PLAN],
    "sweep": [*SIZED, *PLAN, "--over", "zero=1,3"],
    "compare": ["gpt3-1.3b", "a100-80gb-sxm", "16", "--systems", "ddp,gpipe"],
    "models": [],
    "clusters": [],
    "systems": ["gpipe"],
    "software": [],
}
"""A question for every verb that prints a table."""


def printed(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """Standard output of a command."""
    assert main(list(words)) == code
    return capsys.readouterr().out


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line of a refused command."""
    assert main(list(words)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_a_search_with_one_plan_names_no_second(capsys: pytest.CaptureFixture[str]) -> None:
    one = printed(capsys, "search", "gpt3-125m", "h100-sxm", "1", "--fix", "micro_batch=8")
    assert "more      plan3d explain last; -v" in one
    assert "more      plan3d explain last#2; -v" in printed(capsys, "search", *SIZED)


@pytest.mark.parametrize("verb", SHOWN)
def test_every_header_is_explained_and_no_line_is_wide(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    headers: set[str] = set()
    table_of = Screen.table

    def kept(screen: Screen, table: Table) -> None:
        headers.update(table.headers)
        table_of(screen, table)

    monkeypatch.setattr(Screen, "table", kept)
    out = printed(capsys, verb, *SHOWN[verb])
    assert max(map(len, out.splitlines())) <= 80
    names = re.findall(r"^([a-z]+) {2,}\S", out, re.M) if verb in ("search", "estimate") else []
    plain = {header.partition(" (")[0] for header in headers if header}
    assert plain | set(names) <= {*WORDS, *FIELDS, "size", "value", "component", "field", "title",
                                  "meaning", "unit", "layers a stage"}  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
def test_help_is_one_screen_with_three_examples(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(capsys, verb, "--help").splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("  plan3d ") for line in lines) >= 3
    full = printed(capsys, "help", verb)
    if verb not in ("calibrate", "completion", "help"):
        assert "--quiet" in full
    assert "usage: plan3d" in full


OTHERS = (
    "search --help-fields",
    "help words",
    "models deepseek-v3",
    "software megatron-core",
    "fits llama-3.1-8b rtx-4090",
    "textbook gpt3-1.3b a100-80gb-sxm 16",
)
"""Questions whose answers are no tables of SHOWN."""


@pytest.mark.parametrize("line", [*(f"calibrate {name} --help" for name in SUBVERBS), *OTHERS])
def test_no_line_of_others_is_wide(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, *line.split()).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 60 or not line.endswith("--help")


def test_a_terminal_is_bold_unless_it_may_not_be(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    table = Table(headers=("a",), rows=(("1",),), highlighted=0)
    for changes, bold in (({"TERM": "xterm"}, True), ({"NO_COLOR": "1"}, False),
                          ({"NO_COLOR": "", "TERM": "dumb"}, False)):  # fmt: skip
        for name, value in changes.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("sys.stdout", out := Terminal())
        Screen().table(table)
        assert ("\x1b" in out.getvalue()) == bold
        assert "\u2500" in out.getvalue()


def test_words_without_flags_are_what_flags_say(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", "llama-7b", "--cluster", "h100-sxm", "--gpus", "16"]
    for rest in (["--global-batch", "64", *PLAN], PLAN):
        by_flag = printed(capsys, "estimate", *flags, *rest)
        assert printed(capsys, "estimate", *LLAMA, *rest) == by_flag
        assert printed(capsys, "estimate", *rest, *LLAMA[:1], *flags[2:]) == by_flag


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["search"], "a cluster (see 'plan3d clusters') and a number of GPUs: for example plan3d "
         "search llama-3.1-8b h100-sxm 64"),
        (["search", "llama-7b", "--gpus", "8"], "needs a cluster (see 'plan3d clusters'): for "
         "example plan3d search llama-7b h100-sxm 8"),
        (["sweep", "--over", "tp=1,2"], "sweep needs a model (see 'plan3d models', or a "
         "config.json), a cluster (see 'plan3d clusters') and a number of GPUs: for example"),
        (["estimate", *LLAMA], "estimate needs a plan: for example plan3d estimate llama-7b "),
        (["estimate", "llama-7b", "1xH100"], "llama-7b H100 1 --plan recompute=full"),
        (["search", *LLAMA, "64"], "unknown argument '64': after search comes MODEL CLUSTER GPUS"),
        (["search", *LLAMA, "--gpus", "8"], "'16' and --gpus both say the gpus: give one"),
        (["search", "llama-7b", "h100-sxm", "x"], "GPUS 'x' must be a whole number"),
        (["search", "llama-7b", "h100-sxm", "8,16"], "several: plan3d sweep --over gpus=8,16"),
        (["sweep", "llama-7b", "h100-sxm", "--gpus", "8..64"], "plan3d sweep --over gpus=8..64"),
    ],
)  # fmt: skip
def test_what_is_missing_is_asked_for_at_once(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refusal(capsys, *words)


def test_a_batch_that_nobody_states_suits_the_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    """65,536 tokens of a GPU are 32 sequences of 2,048; the published batch of 2,048 needs 64."""
    assert most_of(16, 2048) == 16 * 32
    assert most_of(8, 3000) == 8 * 16
    assert most_of(64, 131072) == 32
    assert most_of(1, 10**6) == 1
    for gpus, batch in (("16", 512), ("64", 2048), ("128", 2048)):
        record = json.loads(printed(capsys, "estimate", *LLAMA[:2], gpus, *PLAN, "--json"))
        assert record["task"]["global_batch"] == batch
    said = printed(capsys, "estimate", *LLAMA, *PLAN)
    assert f"assumed   batch: {TOKENS_A_GPU:,} tokens a GPU, published 2,048" in said
    assert "assumed" not in printed(capsys, "estimate", *SIZED, *PLAN)


CONFIGS = Path(__file__).parents[2] / "simulator" / "workload" / "hf_configs"


@pytest.mark.parametrize(
    ("config", "sequence", "words"),
    [
        ("gpt2", 1024, ["estimate", "--plan", "zero=1"]),
        ("gpt2", 1024, ["estimate", "--plan", "zero=1", "--adapter", "lora"]),
        ("gpt2", 1024, ["fits"]),
        ("opt-125m", 2048, ["estimate", "--plan", "zero=1"]),
        ("opt-125m", 2048, ["fits"]),
        ("pythia-70m", 4096, ["estimate", "--plan", "zero=1"]),
        ("pythia-70m", 2048, ["fits"]),
    ],
)
def test_a_sequence_that_nobody_states_is_one_that_the_model_can_have(
    config: str, sequence: int, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Learned positions end: 1,024 of GPT-2, and two rows of OPT's 2,050 are none. Rotary ones
    do not. What is asked for is taken, or refused."""
    asked = [words[0], str(CONFIGS / f"{config}.json"), "h100-sxm", "8", *words[1:]]
    assert json.loads(printed(capsys, *asked, "--json"))["task"]["sequence"] == sequence
    if config == "pythia-70m":
        assert main([*asked, "--sequence", "8192"]) == 0
        return
    if words[0] == "estimate" and "--adapter" not in words:
        told = " ".join(printed(capsys, *asked).split())
        assert "sequence: its learned positions (--sequence)" in told
    line = refusal(capsys, *asked, "--sequence", str(sequence + 1))
    assert f"sequence {sequence + 1} is longer than the {sequence} learned positions" in line


def test_the_sentence_of_a_size_has_its_interval(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["search", "llama-7b", "h100-sxm", "--tokens", "1T", "--days", "30", "--price", "2"]
    few = ["--choose", "tp=1,2", "--fix", "cp=1"]
    out = " ".join(printed(capsys, *words, *few).split())
    found = re.match(
        r"(\d+) H100: ([\d.]+) to ([\d.]+) days, \$([\d.]+)([kM]) to \$([\d.]+)([kM]) at 80 % "
        r"\(expected: ([\d.]+) days, \$", out)  # fmt: skip
    assert found
    low, middle, high = (float(found[i]) for i in (2, 8, 3))
    assert low < middle < high
    scale = {"k": 1e3, "M": 1e6}
    for days, usd, unit in ((low, found[4], found[5]), (high, found[6], found[7])):
        assert float(usd) * scale[unit] == pytest.approx(days * 24 * int(found[1]) * 2, rel=0.01)


@pytest.mark.parametrize(
    ("cluster", "name"),
    [("rtx-4090", "RTX-4090"), ("rtx-6000-ada", "RTX-6000-Ada"), ("h100-nvl", "H100")],
)
def test_the_headline_names_the_gpu(
    cluster: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = printed(capsys, "estimate", "gpt3-125m", cluster, "2", "--plan", "dp=2")
    assert out.startswith(f"gpt3-125m on 2 {name}: ")


def test_long_windows_say_both_mfus(capsys: pytest.CaptureFixture[str]) -> None:
    """At 128k tokens half of the arithmetic over the whole window is masked; at 2,048 little."""
    words = ["estimate", "llama-3.1-8b", "h100-sxm", "64", "--global-batch", "64"]
    plan = ["--plan", "tp=4 cp=4 recompute=full"]
    for sequence, both in (("131072", True), ("2048", False)):
        assert main([*words, "--sequence", sequence, *plan]) == 0
        first = " ".join(capsys.readouterr().out.splitlines()[:2])
        assert bool(re.search(r"% MFU \(\d+\.\d causal\), ", first)) is both


def test_every_answer_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("estimate", "sweep", "timeline", "models", "clusters", "systems"):
        assert json.loads(printed(capsys, verb, *SHOWN[verb], "--json"))["plan3d"][0].isdigit()


def test_a_count_never_falls() -> None:
    bar, seen = ProgressBar(quiet=True), []
    for costed in (4, 9, 2, 5, 1):
        bar(costed)
        seen.append(bar.total_done)
    assert seen == [4, 9, 11, 14, 15]


def test_words_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert "four of five" in printed(capsys, "help", "at 80 %")
    assert "dense peak" in printed(capsys, "help", "mfu")
    assert all(word in printed(capsys, "help", "words") for word in ("elasticity", "ZeRO"))
    assert "search" in printed(capsys, "help")


COMPLETED = {
    "plan3d se": {"search", "serve"},
    "plan3d search llama-3.1-8": {"llama-3.1-8b"},
    "plan3d search llama-7b h200": {"h200-sxm"},
    "plan3d estimate --cluster h200": {"h200-sxm"},
    "plan3d estimate --global-batch-": {"--global-batch-tokens"},
    "plan3d systems gpi": {"gpipe"},
    "plan3d calibrate fit --base h200": {"h200-sxm"},
    "plan3d search hardware_profiles/h20": {
        "hardware_profiles/h20.toml",
        "hardware_profiles/h200-sxm.toml",
    },
}


@pytest.mark.parametrize("line", COMPLETED)
def test_bash_completes(line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script = tmp_path / "completion.bash"
    script.write_text(printed(capsys, "completion", "bash"))
    words = line.split()
    asked = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _shtab_plan3d"
    done = subprocess.run(
        ["bash", "-c", f'source {script}; {asked}; echo "${{COMPREPLY[@]}}"'],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(done.stdout.split()) == COMPLETED[line]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_every_option(
    shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = printed(capsys, "completion", shell)
    flags = re.findall(r"--[a-z-]+", printed(capsys, "help", "search"))
    flags = [flag for flag in flags if flag != "--help-fields"]
    written = "-l {} " if shell == "fish" else '--{}["}}]*\\['
    missing = [flag for flag in flags if not re.search(written.format(flag[2:]), script)]
    assert flags
    assert missing == []
    assert "llama-3.1-8b" in script
    assert "h200-sxm" in script
    if shutil.which(shell):
        path = tmp_path / "completion"
        path.write_text(script)
        assert subprocess.run([shell, "-n", str(path)], check=False).returncode == 0


def test_a_tower_that_is_left_out_is_said_on_the_first_screen(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    sizes = {"hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 11008}
    sizes |= {"num_attention_heads": 32, "vocab_size": 32000}
    config = {"model_type": "qwen2_5_vl", "num_key_value_heads": 32, "vision_config": {}, **sizes}
    file = tmp_path / "eyes.json"
    file.write_text(json.dumps(config))
    asked = ["estimate", str(file), *SIZED[1:], "--sequence", "2048", *PLAN]
    said = "vision_config of the model is left out"
    for details in ([], ["-v"]):
        assert said in " ".join(printed(capsys, *asked, *details).split())


def test_a_near_run_outside_of_the_forecast_is_said_to_be(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["llama-3-8b", "h100-sxm", "8", "--sequence", "8192", "--global-batch", "8"]
    plan = ["--software", "torchtitan", "--plan", "zero=3 recompute=selective"]
    shown = printed(capsys, "estimate", *words, *plan)
    assert re.search(
        r"36\.8 % MFU, torchao tutorial 2025\n +which is outside the forecast of \d+ to \d+ % MFU",
        shown,
    )
    assert "forecast" not in printed(capsys, "search", *LLAMA, "--global-batch", "64")


def test_a_word_longer_than_a_line_is_cut_behind_its_commas(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stages = ",".join(["3"] * 40)
    Screen().items([("ran", f"17.6 s: tp=2 pp=40 layers_per_stage={stages} zero=1")])
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "ran       17.6 s: tp=2 pp=40"
    assert second.startswith("          layers_per_stage=3,3,")
    assert second.endswith(",")
    assert len(second) <= 80
    assert third.endswith("3,3 zero=1")
    assert f"{second.strip()}{third.split()[0]}" == f"layers_per_stage={stages}"
