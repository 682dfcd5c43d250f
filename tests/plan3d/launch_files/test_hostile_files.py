"""Names and flags from files never run: exported scripts are run in bash, with stubs."""

import csv
import importlib.util
import io
import json
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from plan3d.cli.main import main
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.printable import is_printable
from plan3d.simulator.hardware.cluster import Cluster


def load():
    """The benchmark that counts executions, which has the names and the shell."""
    path = Path(__file__).parents[2] / "benchmarks" / "hostile_names.py"
    spec = importlib.util.spec_from_file_location("hostile_names", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hostile = load()
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
TEXTS = st.text(max_size=30) | st.sampled_from(hostile.NASTY)
NAMES = TEXTS | st.lists(st.sampled_from(hostile.FRAGMENTS), max_size=8).map("".join)
TASK = ["--model", "gpt3-1.3b", "--gpus", "16", "--sequence", "2048", "--global-batch", "64"]


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    return hostile.Shell(tmp_path_factory.mktemp("shell"))


@pytest.fixture(scope="module")
def plain(shell):
    """What launchers are started with under harmless names."""
    return {name: shell.arguments(hostile.script(name, None, None)) for name in hostile.SHELL}


def test_the_stubs_see_what_is_run(shell):
    script = hostile.script("megatron", None, None)
    assert "--num-layers" in shell.arguments(script)
    assert shell.arguments(f"touch PWNED\n{script}") is None
    assert shell.arguments(f": > PWNED\n{script}") is None
    assert shell.arguments(f"nothing\n{script}") is None


@pytest.mark.parametrize("framework", hostile.SHELL)
def test_a_name_is_no_command(shell, plain, framework):
    for name in hostile.NASTY:
        assert shell.arguments(hostile.script(framework, name, name)) == plain[framework], name


@pytest.mark.parametrize("kind", hostile.DOCUMENTS, ids=lambda kind: " ".join(kind).strip())
def test_a_name_is_no_key(kind):
    for name in hostile.NASTY:
        assert hostile.same(kind, name, name), name


@given(name=NAMES, framework=st.sampled_from(hostile.SHELL))
def test_no_name_is_a_command(shell, plain, name, framework):
    assert shell.arguments(hostile.script(framework, name, name)) == plain[framework]


@given(name=NAMES, kind=st.sampled_from(list(hostile.DOCUMENTS)))
def test_no_name_is_a_key(name, kind):
    assert hostile.same(kind, name, name)


@given(name=NAMES, framework=st.sampled_from(hostile.SHELL))
def test_a_name_in_a_file_is_refused_or_harmless(shell, plain, tmp_path_factory, name, framework):
    folder = tmp_path_factory.mktemp("names")
    try:
        script = hostile.through_files(name, framework, folder)
    except InputError:
        return
    assert shell.arguments(script) == plain[framework]


@given(name=NAMES)
def test_the_name_of_a_launch_file_is_no_command(shell, name):
    script = hostile.imported("--lr 1", f"{name}.sh")
    assert shell.arguments(script) == shell.arguments(hostile.imported("--lr 1"))


KEPT = (
    (r"--save \$\(touch\ PWNED\)", ["--save", "$(touch PWNED)"]),
    ("--save '$(touch PWNED)' --lr 1", ["--save", "$(touch PWNED)", "--lr", "1"]),
    ("--save '&' touch PWNED", ["--save", "&", "touch", "PWNED"]),
    ("--save ';' touch PWNED", ["--save", ";", "touch", "PWNED"]),
    ("--save '`touch PWNED`'", ["--save", "`touch PWNED`"]),
    ("--save 'a b'  \"c  d\"", ["--save", "a b", "c  d"]),
    ("--save ''", ["--save", ""]),
    (r"--save a\'b \"c\\", ["--save", "a'b", '"c\\']),
    ("--save '$HOME' '#' '*' ')' '<('", ["--save", "$HOME", "#", "*", ")", "<("]),
    ("--save='a b' --lr_x 3", ["--save=a b", "--lr_x", "3"]),
    ("--save $'a\\nb\\x1b' --name x", ["--save", "a\nb\x1b", "--name", "x"]),
    ("--save a > log.txt 2>&1", ["--save", "a"]),
    ("--save {a,'b c'}.py", ["--save", "a.py", "b c.py"]),
    ('--save ${UNSET:-usual} "${UNSET:-two words}"', ["--save", "usual", "two words"]),
    ("--save x$((2 * 3))y", ["--save", "x6y"]),
)


@pytest.mark.parametrize(("flags", "words"), KEPT, ids=[flags for flags, _ in KEPT])
def test_kept_flags_keep_their_meaning(shell, tmp_path, capsys, flags, words):
    path = tmp_path / "run.sh"
    path.write_text(hostile.IMPORTED.format(flags=flags))
    asked = ["--cluster", "h100-sxm", "--gpus", "16", "--to", "megatron"]
    assert main(["import", str(path), *asked]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    found = shell.arguments(out)
    assert found[found.index(words[0]) :] == words
    path.write_text(out)
    assert main(["import", str(path), *asked]) == 0
    assert capsys.readouterr().out == out


@given(words=st.lists(NAMES, min_size=1, max_size=3), seed=st.integers(0, 99))
def test_no_kept_flag_runs(shell, words, seed):
    words = [word.replace("\0", "").encode("utf-8", "replace").decode() for word in words]
    assume(not any(word.startswith("--") for word in words))  # flags, which mean something else
    assert hostile.kept_as(words, shell, random.Random(seed)) in (True, None)


def test_variables_from_outside_stay_live(shell, tmp_path):
    script = hostile.imported('--save "$HOME/x" $MORE "${A[@]}" --lr $(printf 3)')
    assert '--save "$HOME"/x\n  $MORE "${A[@]}"\n' in script
    found = shell.arguments(f"HOME=/h MORE='--a --b'\n{script}")
    at = found.index("--save")
    assert found[at:] == ["--save", "/h/x", "--a", "--b", "--lr", "3"]


def test_variables_that_live_words_need_come_along(shell):
    """An expansion that only a shell can do asks for what the file assigns."""
    top = "ROOT='/d \"a'\nDIR=$ROOT/b/; LIST=(x 'y z'); SELF=\"$SELF s\"; OTHER=$(touch PWNED)\n"
    flags = '--save "${DIR%/}" --name $(printf %s "${LIST[1]}") ${LIST[@]#x} "${SELF^^}"'
    launch = hostile.READERS["megatron"](
        top + hostile.IMPORTED.format(flags=flags), "run.sh", hostile.ReaderOptions()
    )
    task = hostile.task("gpt3-1.3b")
    plan = hostile.Plan.parse("overlap_param_gather=0")
    form = hostile.EXPORTERS["megatron"].form()
    script = hostile.launch_text(task, plan, form, launch.unread)
    assert "OTHER=" not in script.replace("OTHER_ARGS=", "")
    found = shell.arguments(f"SELF=e\n{script}")
    at = found.index("--save")
    assert found[at:] == ["--save", '/d "a/b', "--name", "y", "z", "y", "z", "E S"]


@pytest.mark.parametrize("name", ["H100\ntouch PWNED", "H100\u202e", "H100\x1b[2J", "x" * 300])
def test_a_name_that_cannot_be_one_is_refused_in_one_line(tmp_path, capsys, name):
    path = tmp_path / "mine.toml"
    path.write_text(hostile.profile_text(name), encoding="utf-8")
    with pytest.raises(InputError, match=r"accelerator\.name"):
        Cluster.profile(path, gpus=8)
    words = ["export", "tp=2", *TASK, "--cluster", str(path), "--to", "megatron"]
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert not [letter for letter in err.rstrip("\n") if not is_printable(letter)]
    assert len(err) < 500


@pytest.mark.parametrize("option", ["--model", "--cluster", "--software", "--output", "--to"])
def test_the_command_line_takes_one_printable_line(capsys, option):
    words = ["export", "tp=2", *TASK, "--cluster", "h100-sxm", "--to", "megatron"]
    assert main([*words, option, "a\x1b[2J\ntouch PWNED"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert f"plan3d: {option}" in err
    assert "\x1b" not in err


def test_what_is_shown_of_a_citation_is_one_line(tmp_path, capsys):
    text = hostile.profile_text("mine")
    old = text[text.index("[sources]") :].split('"')[1]
    assert f'"{old}"' in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(f'"{old}"', '"a\\n\\u001b[2J\\u202e<b>"'), encoding="utf-8")
    assert main(["clusters", str(path), "-v"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert r"a \x1b[2J\u202e<b>" in out


def test_cells_of_a_sweep_are_no_formulas(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = {"model_type": "gpt2", "n_layer": 4, "n_embd": 512, "n_head": 8, "n_positions": 2048}
    name = "=1+cmd|x.json"
    Path(name).write_text(json.dumps({**config, "vocab_size": 50257}))
    words = ["sweep", "--over", f"model={name},gpt3-1.3b", "--cluster", "h100-sxm", "--gpus", "8"]
    words += ["--sequence", "2048", "--global-batch", "8", "--plan", "dp=8", "--csv", "rows.csv"]
    assert main(words) == 0
    first = capsys.readouterr().out
    rows = list(csv.reader(io.StringIO(Path("rows.csv").read_text())))
    assert not any(cell.startswith(("=", "+", "@")) for row in rows for cell in row)
    assert main([*words, "--resume"]) == 0
    assert capsys.readouterr().out == first
